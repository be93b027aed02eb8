// A line at the terminal that tells how far the run is.
#pragma once

#include <stdint.h>

/** Redraws "45%|####      | 450/1000 [00:12<00:15, 36.2it/s]" on standard error. */
void progress_show(int64_t num_done, int64_t num_total, double elapsed_s);

/** Draws it for the last time and ends the line. */
void progress_end(int64_t num_done, int64_t num_total, double elapsed_s);
