// What a run measured, in numbers: computed from its records, printed, saved, drawn.
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "benchmarks/bench_options.h"
#include "benchmarks/load.h"
#include "tokenizer/tokenizer.h"

/** One kind of latency, in milliseconds. */
struct metric_values {
    double *values; // ascending
    int64_t num;
    double mean, median, std;
    double percentiles[MAX_PERCENTILES]; // those of the options
};

struct bench_result {
    const char *name;        // of a sweep's point; NULL: it is called by its load
    int32_t series;          // of a sweep: which points belong together
    double request_rate;     // as asked for; INFINITY: all at once
    int32_t max_concurrency; // -1: no limit
    double duration_s;
    int32_t num_prompts, completed, empty, failed, cancelled;
    int64_t total_input_tokens, total_output_tokens;
    double request_throughput, request_goodput; // goodput: negative without objectives
    double output_throughput, total_token_throughput;
    double max_output_tokens_per_s, max_concurrent_requests;
    struct metric_values metrics[NUM_METRICS];
};

/**
 * Computes the result. Only requests with output count in latencies and throughput. Output tokens
 * are the server's own count; without one those of the text, or without a tokenizer (NULL) the
 * number of events. End with bench_result_deinit().
 */
void bench_result_compute(struct bench_result *result, const struct bench_options *options,
                          const struct bench_prompt *prompts, const struct request_record *records,
                          int32_t num, const struct load_times *times,
                          const struct tokenizer *tokenizer);
void bench_result_deinit(struct bench_result *result);

/** The value at `percent` of ascending values, between two of them where it falls between; 0 for
 *  none. */
double percentile_of(const double *values, int64_t num, double percent);

/** Ascending, for qsort(). */
int compare_doubles(const void *a, const void *b);

/** "99", "99.9". */
void percentile_name(double percent, char *out, size_t size);

/** What stands in a result file beside the numbers. */
struct bench_facts {
    const char *model_id, *tokenizer_id;
};

/** Prints the report. */
void bench_report_print(FILE *out, const struct bench_result *result,
                        const struct bench_options *options);

/** Prints the first failures, at most ten. */
void bench_report_failures(FILE *out, const struct request_record *records, int32_t num);

/** The result as JSON; the caller owns it. `records` NULL: no detail. */
json_t *bench_result_json(const struct bench_result *result, const struct bench_options *options,
                          const struct bench_facts *facts, const struct bench_prompt *prompts,
                          const struct request_record *records);

/** Writes (or appends a line of) JSON where the options say; prints the path. Errors: IO. */
NODISCARD enum status bench_result_save(const json_t *json, const struct bench_result *result,
                                        const struct bench_options *options,
                                        const struct bench_facts *facts, struct error *err);

/** Writes JSON to a file, or appends it as a line. Errors: IO. */
NODISCARD enum status json_save(const json_t *json, const char *path, bool append,
                                struct error *err);
