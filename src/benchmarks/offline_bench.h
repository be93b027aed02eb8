// `vllm bench throughput` and `vllm bench latency`: an engine alone.
#pragma once

#include "benchmarks/bench_options.h"

/** Each returns the exit status of the command. */
int throughput_main(struct bench_options *options);
int latency_main(struct bench_options *options);
