// What the options of `vllm bench` mean together.
#pragma once

#include "benchmarks/bench_options.h"

/** What the words said, where a default cannot be told from the same value. */
struct bench_given {
    bool request_rate, percentile_metrics;
    const char *output_len; // the option that set an output length; NULL: none
};

/** Fills the derived fields. Errors: INVALID, naming the option and the value. */
NODISCARD enum status bench_options_check(struct bench_options *options, enum bench_command command,
                                          const struct bench_given *given, struct error *err);
