// Pictures of results: latency distributions, and for a sweep throughput against latency.
#pragma once

#include "benchmarks/bench_result.h"

/**
 * Writes `path`: a page (.html) or a picture (.svg) that needs nothing else. One result: how its
 * latencies are distributed. Several: also how they change with the load. Errors: IO.
 */
NODISCARD enum status plot_save(const char *path, const struct bench_result *results, int32_t num,
                                const struct bench_options *options, const char *model,
                                struct error *err);
