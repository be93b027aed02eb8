// The part of /metrics that is about the host: our processes, and its GPUs.
#pragma once

#include "api_server/metrics.h"

/** Facts of this process as client libraries export them (with several API servers they would mean
 *  nothing), and the memory of every process of the server. */
void metrics_render_processes(const struct metrics *metrics, struct buf *out);

/** Memory and load of the GPUs; nothing where there are none. */
void metrics_render_gpus(const struct metrics *metrics, struct buf *out);
