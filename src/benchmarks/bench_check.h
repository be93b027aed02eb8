// What the options of `vllm bench` mean together.
#pragma once

#include "benchmarks/bench_options.h"

/** Fills the derived fields. Errors: INVALID, naming the option and the value. */
NODISCARD enum status bench_options_check(struct bench_options *options, enum bench_command command,
                                          bool rate_given, struct error *err);
