// When each request is sent.
#pragma once

#include "benchmarks/bench_options.h"

/**
 * Fills `times_s[num]`, seconds after the start, in ascending order: gamma-distributed gaps whose
 * mean follows the request rate or its ramp. Without a ramp the times are stretched so that the
 * last is num / rate exactly. The same seed gives the same times.
 */
void arrival_times(const struct bench_options *options, int32_t num, double *times_s);
