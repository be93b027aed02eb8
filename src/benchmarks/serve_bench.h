// One measured run against a running server, and what several of them share.
#pragma once

#include "benchmarks/bench_options.h"
#include "benchmarks/bench_result.h"
#include "benchmarks/dataset.h"
#include "benchmarks/request_body.h"
#include "benchmarks/target.h"
#include "tokenizer/tokenizer.h"

/** Everything that a run needs and the next run needs again. */
struct serve_bench {
    struct bench_options *options; // a sweep changes rate, concurrency and seed between runs
    struct target target;
    struct tokenizer *tokenizer; // NULL: none
    const char *tokenizer_dir;
    struct bench_facts facts;
    struct request_body body;
    struct dataset dataset;
    char id_prefix[24];
};

/** Finds server, model and tokenizer and makes the prompts. Errors: those of its parts. End with
 *  serve_bench_close() in any case. */
NODISCARD enum status serve_bench_open(struct serve_bench *bench, struct bench_options *options,
                                       struct error *err);
void serve_bench_close(struct serve_bench *bench);

/** Makes the prompts anew, after a change of the seed. */
NODISCARD enum status serve_bench_make_prompts(struct serve_bench *bench, struct error *err);

/** Waits for the server where the options say so. Errors: TIMEOUT. */
NODISCARD enum status serve_bench_wait_ready(struct serve_bench *bench, struct error *err);

/** What one run leaves behind. */
struct serve_run {
    struct bench_result result;
    struct request_record *records;
    bool interrupted;
};

/** Warm-up, arrival times, load, failures and report. End with serve_run_deinit(). */
NODISCARD enum status serve_bench_run(struct serve_bench *bench, struct serve_run *run,
                                      struct error *err);
void serve_run_deinit(struct serve_run *run);

/** `vllm bench serve`, `vllm bench sweep` and the sweeps of commands: the exit status. */
int serve_bench_main(struct bench_options *options);
int sweep_main(struct bench_options *options);
int sweep_serve_main(struct bench_options *options);
int sweep_workload_main(struct bench_options *options);
