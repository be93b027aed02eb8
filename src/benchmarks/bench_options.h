// The options of every `vllm bench` command, in one table; each command takes some groups of it.
#pragma once

#include <stdio.h>

#include "config/options.h"

enum bench_command {
    BENCH_SERVE,
    BENCH_SWEEP,          // of a server that runs
    BENCH_SWEEP_SERVE,    // of commands
    BENCH_SWEEP_WORKLOAD, // of commands, over loads between the extremes
    BENCH_THROUGHPUT,
    BENCH_LATENCY,
};

enum bench_backend { BENCH_BACKEND_COMPLETIONS, BENCH_BACKEND_CHAT, BENCH_BACKEND_EMBEDDINGS };

enum dataset_kind {
    DATASET_RANDOM,
    DATASET_SHAREGPT,
    DATASET_CUSTOM,
    DATASET_SONNET,
    DATASET_PREFIX_REPETITION,
    DATASET_TIMED_TRACE,
    DATASET_BURSTGPT,
};

enum ramp_up { RAMP_UP_NONE, RAMP_UP_LINEAR, RAMP_UP_EXPONENTIAL };

enum bench_metric { METRIC_TTFT, METRIC_TPOT, METRIC_ITL, METRIC_E2EL, NUM_METRICS };

enum { MAX_PERCENTILES = 32, MAX_SWEEP_POINTS = 64 };

/** Strings live in `arena`. NULL or a negative number: not given. */
struct bench_options {
    struct arena arena;

    const char *model, *tokenizer;
    int64_t seed;

    // Server
    const char *backend_name, *base_url, *host, *endpoint, *served_model_name, *api_key;
    int32_t port;
    struct str_list headers; // K=V
    bool insecure, skip_tokenizer_init;
    int32_t ready_check_timeout_s;

    // Request
    bool ignore_eos;
    const char *temperature, *top_p, *top_k, *min_p; // checked numbers, as they were written
    const char *frequency_penalty, *presence_penalty, *repetition_penalty;
    const char *extra_body;
    int32_t logprobs;
    const char *request_id_prefix;

    // Dataset
    const char *dataset_name, *dataset_path, *chat_template_kwargs;
    int32_t num_prompts, input_len, output_len;
    bool disable_shuffle, no_oversample, skip_chat_template;
    int32_t random_input_len, random_output_len, random_prefix_len;
    const char *random_range_ratio;
    int32_t random_batch_size;
    int32_t sharegpt_output_len, custom_output_len;
    int32_t sonnet_input_len, sonnet_output_len, sonnet_prefix_len;
    int32_t prefix_repetition_prefix_len, prefix_repetition_suffix_len;
    int32_t prefix_repetition_num_prefixes, prefix_repetition_output_len;

    // Load
    const char *request_rate_text, *ramp_up_text;
    double burstiness;
    int32_t max_concurrency;
    const char *ramp_up_start_text, *ramp_up_end_text;
    bool self_timed;
    int32_t num_warmups;

    // Report
    struct str_list metric_names, percentile_texts, goodput_texts;
    bool save_result, save_detailed, append_result;
    const char *result_dir, *result_filename, *label;
    struct str_list metadata; // K=V
    bool disable_tqdm;
    const char *plot;

    // Engine: throughput and latency
    const char *output_json;
    int32_t n;
    int32_t batch_size, num_iters, num_iters_warmup;
    struct str_list serve_words; // what is left for the engine's own options

    // Sweep
    struct str_list rate_texts, concurrency_texts;
    int32_t num_runs;
    const char *output_dir, *experiment_name;

    // Sweep of commands
    const char *serve_cmd, *bench_cmd, *serve_params, *bench_params, *after_bench_cmd;
    struct str_list link_vars; // SERVE_FLAG=BENCH_FLAG
    bool show_stdout, dry_run, resume;
    int32_t server_ready_timeout_s;
    const char *workload_var;
    int32_t workload_iters;

    // Derived
    enum bench_backend backend;
    enum dataset_kind dataset;
    enum ramp_up ramp_up;
    double request_rate; // per second; INFINITY: all at once
    double ramp_up_start_rps, ramp_up_end_rps;
    double input_range_ratio, output_range_ratio; // of random lengths, [0, 1)
    bool shows[NUM_METRICS];
    double percentiles[MAX_PERCENTILES];
    int32_t num_percentiles;
    double goodput_ms[NUM_METRICS]; // negative: no such objective
    bool has_goodput;
    double sweep_rates[MAX_SWEEP_POINTS];
    int32_t num_sweep_rates;
    int32_t sweep_concurrencies[MAX_SWEEP_POINTS];
    int32_t num_sweep_concurrencies;
};

/**
 * Parses and checks the words after the sub-command. OPTIONS_EXIT: help or an error was printed,
 * and `*exit_status` is what to exit with. End with bench_options_deinit() in any case.
 */
enum options_outcome bench_options_parse(struct bench_options *options, enum bench_command command,
                                         int argc, char **argv, FILE *out, FILE *err_out,
                                         int *exit_status);
void bench_options_deinit(struct bench_options *options);

/** "ttft", "tpot", "itl", "e2el". */
const char *bench_metric_name(enum bench_metric metric);
