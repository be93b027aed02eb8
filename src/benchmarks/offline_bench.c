#include "benchmarks/offline_bench.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "benchmarks/bench_result.h"
#include "benchmarks/offline_engine.h"
#include "benchmarks/progress.h"
#include "config/hf_config.h"

enum { LATENCY_ID_BOUND = 10000 }; // prompts of the latency benchmark use ids below it

static const double latency_percentiles[] = {10, 25, 50, 75, 90, 99};

/** An engine with the prompts for it. `= {0}` is a valid empty object. */
struct offline_bench {
    struct bench_options *options;
    struct serve_options serve;
    struct tokenizer *tokenizer;
    struct dataset dataset;
    struct offline_engine *engine;
    int exit_status; // of refused engine options
};

/** The engine's own command line: the model, what this command left over, and `more`. */
static bool parse_serve_words(struct offline_bench *b, const char *more)
{
    struct bench_options *o = b->options;
    struct arena *arena = &o->arena;
    char **words = arena_array(arena, char *, o->serve_words.len + 8);
    int num = 0;
    words[num++] = arena_strdup(arena, str_from(o->model));
    if (o->tokenizer) {
        words[num++] = arena_strdup(arena, STR("--tokenizer"));
        words[num++] = arena_strdup(arena, str_from(o->tokenizer));
    }
    if (more)
        words[num++] = arena_strdup(arena, str_from(more));
    for (int32_t i = 0; i < o->serve_words.len; i++)
        words[num++] = arena_strdup(arena, str_from(o->serve_words.items[i]));
    return options_parse_serve(&b->serve, num, words, &b->exit_status) == OPTIONS_RUN;
}

static enum status make_prompts(struct offline_bench *b, struct error *err)
{
    struct model_config config = {0};
    const char *dir = b->serve.model;
    enum status status = model_config_load(&config, dir, "vllm", NULL, err);
    struct dataset_use use = {.vocab_size = config.vocab_size, .wants_ids = true};
    // Random prompts need no tokenizer here: they are ids from the beginning.
    bool has_texts = b->options->dataset != DATASET_RANDOM &&
                     b->options->dataset != DATASET_PREFIX_REPETITION &&
                     b->options->dataset != DATASET_TIMED_TRACE;
    const char *tokenizer_dir = b->serve.tokenizer ? b->serve.tokenizer : dir;
    if (status == STATUS_OK && has_texts)
        status = tokenizer_load(
            &b->tokenizer, arena_printf(&b->options->arena, "%s/tokenizer.json", tokenizer_dir),
            err);
    use.tokenizer = b->tokenizer;
    use.template_dir = tokenizer_dir;
    if (status == STATUS_OK)
        status = dataset_make(&b->dataset, b->options, &use, err);
    model_config_deinit(&config);
    return status;
}

static enum status start_engine(struct offline_bench *b, struct error *err)
{
    // The report is what the reader wants; --log-level debug shows the rest.
    log_set_level(b->serve.log_level == LOG_LEVEL_INFO ? LOG_LEVEL_WARNING : b->serve.log_level);
    return offline_engine_start(&b->engine, &b->serve, err);
}

static void close_bench(struct offline_bench *b)
{
    offline_engine_stop(b->engine);
    dataset_deinit(&b->dataset);
    tokenizer_destroy(b->tokenizer);
    options_deinit(&b->serve);
}

static int report_failure(const char *command, const struct error *err)
{
    fprintf(stderr, "vllm bench %s: error: %s\n", command, err->message);
    return 1;
}

// ---- throughput ----------------------------------------------------------------------------

static enum status warm_up(struct offline_bench *b, struct error *err)
{
    struct offline_times times;
    int32_t num = min_i32(b->options->num_warmups, b->dataset.num);
    if (num == 0)
        return STATUS_OK;
    printf("Warming up with %d requests...\n", num);
    return offline_engine_run(b->engine, b->dataset.prompts, num, 1, &times, err);
}

static enum status report_throughput(const struct offline_bench *b,
                                     const struct offline_times *times, struct error *err)
{
    const struct bench_options *o = b->options;
    double seconds = times->seconds;
    int32_t num_requests = b->dataset.num;
    int64_t total = times->num_prompt_tokens + times->num_output_tokens;
    printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n",
           num_requests / seconds, (double)total / seconds,
           (double)times->num_output_tokens / seconds);
    printf("Total num prompt tokens:  %lld\n", (long long)times->num_prompt_tokens);
    printf("Total num output tokens:  %lld\n", (long long)times->num_output_tokens);
    if (!o->output_json)
        return STATUS_OK;
    json_t *json =
        json_pack("{s:f, s:i, s:I, s:f, s:f}", "elapsed_time", seconds, "num_requests",
                  num_requests, "total_num_tokens", (json_int_t)total, "requests_per_second",
                  num_requests / seconds, "tokens_per_second", (double)total / seconds);
    enum status status = json_save(json, o->output_json, false, err);
    json_decref(json);
    return status;
}

int throughput_main(struct bench_options *options)
{
    struct offline_bench b = {.options = options};
    struct error err = {0};
    struct offline_times times;
    if (!parse_serve_words(&b, NULL))
        return b.exit_status;
    enum status status = start_engine(&b, &err);
    if (status == STATUS_OK)
        status = make_prompts(&b, &err);
    if (status == STATUS_OK)
        status = warm_up(&b, &err);
    if (status == STATUS_OK)
        status = offline_engine_run(b.engine, b.dataset.prompts, b.dataset.num, options->n, &times,
                                    &err);
    if (status == STATUS_OK)
        status = report_throughput(&b, &times, &err);
    close_bench(&b);
    return status == STATUS_OK ? 0 : report_failure("throughput", &err);
}

// ---- latency -------------------------------------------------------------------------------

/** One batch of random ids, all of the same length. */
static enum status make_batch(struct offline_bench *b, struct error *err)
{
    struct bench_options *o = b->options;
    struct model_config config = {0};
    enum status status = model_config_load(&config, b->serve.model, "vllm", NULL, err);
    struct dataset_use use = {.vocab_size = min_i32(config.vocab_size, LATENCY_ID_BOUND),
                              .wants_ids = true};
    o->num_prompts = o->batch_size;
    if (status == STATUS_OK)
        status = dataset_make(&b->dataset, o, &use, err);
    model_config_deinit(&config);
    return status;
}

static enum status report_latency(const struct bench_options *o, json_t *latencies, double *sorted,
                                  struct error *err)
{
    int32_t num = o->num_iters;
    double sum = 0;
    for (int32_t i = 0; i < num; i++)
        sum += sorted[i];
    printf("Avg latency: %.6g seconds\n", sum / num);
    json_t *percentiles = json_object();
    for (size_t p = 0; p < ARRAY_LEN(latency_percentiles); p++) {
        double value = percentile_of(sorted, num, latency_percentiles[p]);
        char name[32];
        percentile_name(latency_percentiles[p], name, sizeof(name));
        printf("%s%% percentile latency: %.6g seconds\n", name, value);
        json_object_set_new(percentiles, name, json_real(value));
    }
    json_t *json = json_pack("{s:f, s:O, s:o}", "avg_latency", sum / num, "latencies", latencies,
                             "percentiles", percentiles);
    enum status status = o->output_json ? json_save(json, o->output_json, false, err) : STATUS_OK;
    json_decref(json);
    return status;
}

static enum status measure_latency(struct offline_bench *b, struct error *err)
{
    const struct bench_options *o = b->options;
    double *sorted = xcalloc((size_t)o->num_iters, sizeof(*sorted));
    json_t *latencies = json_array();
    enum status status = STATUS_OK;
    bool shows_progress = isatty(STDERR_FILENO);
    double elapsed_s = 0;
    if (o->num_iters_warmup > 0)
        printf("Warming up...\n");
    for (int32_t i = -o->num_iters_warmup; i < o->num_iters && status == STATUS_OK; i++) {
        struct offline_times times;
        status =
            offline_engine_run(b->engine, b->dataset.prompts, b->dataset.num, o->n, &times, err);
        if (status != STATUS_OK || i < 0)
            continue;
        sorted[i] = times.seconds;
        elapsed_s += times.seconds;
        json_array_append_new(latencies, json_real(times.seconds));
        if (shows_progress)
            progress_show(i + 1, o->num_iters, elapsed_s);
    }
    if (shows_progress)
        fputc('\n', stderr);
    if (status == STATUS_OK) {
        qsort(sorted, (size_t)o->num_iters, sizeof(*sorted), compare_doubles);
        status = report_latency(o, latencies, sorted, err);
    }
    json_decref(latencies);
    free(sorted);
    return status;
}

int latency_main(struct bench_options *options)
{
    struct offline_bench b = {.options = options};
    struct error err = {0};
    // The same batch again and again: cached prefixes would leave nothing to compute.
    if (!parse_serve_words(&b, "--no-enable-prefix-caching"))
        return b.exit_status;
    enum status status = start_engine(&b, &err);
    if (status == STATUS_OK)
        status = make_batch(&b, &err);
    if (status == STATUS_OK)
        status = measure_latency(&b, &err);
    close_bench(&b);
    return status == STATUS_OK ? 0 : report_failure("latency", &err);
}
