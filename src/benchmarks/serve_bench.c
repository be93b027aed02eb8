#include "benchmarks/serve_bench.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "benchmarks/arrival.h"
#include "benchmarks/plot.h"

enum { READY_RETRY_S = 5 };

/** DIR/tokenizer.json, or DIR itself when it is that file; NULL: there is none. */
static const char *find_tokenizer(struct arena *arena, const char *dir)
{
    if (!dir)
        return NULL;
    const char *path = arena_printf(arena, "%s/tokenizer.json", dir);
    if (access(path, R_OK) == 0)
        return path;
    return str_ends_with(str_from(dir), STR(".json")) && access(dir, R_OK) == 0 ? dir : NULL;
}

/** --tokenizer must be there; the model's folder, or the one that the server names, may be. */
static enum status load_tokenizer(struct serve_bench *bench, const char *server_root,
                                  struct error *err)
{
    struct bench_options *o = bench->options;
    if (o->skip_tokenizer_init)
        return STATUS_OK;
    const char *dirs[] = {o->tokenizer, o->model, server_root};
    const char *path = NULL;
    for (size_t i = 0; i < ARRAY_LEN(dirs) && !path; i++) {
        path = find_tokenizer(&o->arena, dirs[i]);
        bench->tokenizer_dir = dirs[i];
        if (i == 0 && dirs[i] && !path)
            return error_set(err, STATUS_NOT_FOUND, "--tokenizer %s: no tokenizer.json there",
                             dirs[i]);
    }
    if (path)
        return tokenizer_load(&bench->tokenizer, path, err);
    bench->tokenizer_dir = NULL;
    printf("No tokenizer: prompt lengths are estimates until the server counts them; see "
           "--tokenizer.\n");
    return STATUS_OK;
}

enum status serve_bench_make_prompts(struct serve_bench *bench, struct error *err)
{
    struct dataset_use use = {.tokenizer = bench->tokenizer, .template_dir = bench->tokenizer_dir};
    dataset_deinit(&bench->dataset);
    return dataset_make(&bench->dataset, bench->options, &use, err);
}

enum status serve_bench_open(struct serve_bench *bench, struct bench_options *o, struct error *err)
{
    *bench = (struct serve_bench){.options = o};
    const char *model = o->model, *root = NULL;
    TRY(target_init(&bench->target, o, err));
    if (!model || (!o->tokenizer && access(model, F_OK) != 0)) {
        const char *listed = NULL;
        enum status status = target_find_model(&bench->target, &o->arena, &listed, &root, err);
        if (status != STATUS_OK && !model && o->ready_check_timeout_s == 0)
            return status;
        model = model ? model : listed;
    }
    // A server that is still to come cannot be asked for its model.
    if (!model)
        return error_set(err, STATUS_INVALID,
                         "%s does not answer yet: --ready-check-timeout-sec "
                         "needs --model",
                         bench->target.url);
    TRY(load_tokenizer(bench, root, err));
    bench->facts.model_id = model;
    bench->facts.tokenizer_id = bench->tokenizer_dir ? bench->tokenizer_dir : model;
    char hex[9];
    random_hex(hex, 8);
    snprintf(bench->id_prefix, sizeof(bench->id_prefix), "bench-%s-", hex);
    const char *prefix = o->request_id_prefix ? o->request_id_prefix : bench->id_prefix;
    const char *sent_name = o->served_model_name ? o->served_model_name : model;
    TRY(request_body_init(&bench->body, o, &bench->target, sent_name, prefix, err));
    return serve_bench_make_prompts(bench, err);
}

void serve_bench_close(struct serve_bench *bench)
{
    dataset_deinit(&bench->dataset);
    request_body_deinit(&bench->body);
    tokenizer_destroy(bench->tokenizer);
    target_deinit(&bench->target);
}

/** `num` requests with the first prompt, not counted; how many succeeded and why one did not. */
static enum status try_requests(struct serve_bench *bench, int32_t num, int32_t concurrency,
                                int32_t *num_ok, bool *interrupted, struct error *err)
{
    struct bench_prompt *prompts = xcalloc((size_t)num, sizeof(*prompts));
    struct request_record *records = xcalloc((size_t)num, sizeof(*records));
    for (int32_t i = 0; i < num; i++)
        prompts[i] = bench->dataset.prompts[0];
    struct load load = {.target = &bench->target,
                        .body = &bench->body,
                        .prompts = prompts,
                        .num = num,
                        .max_concurrency = concurrency};
    struct load_times times;
    enum status status = load_run(&load, records, &times, err);
    *num_ok = 0;
    *interrupted = status == STATUS_OK && times.interrupted;
    for (int32_t i = 0; i < num; i++) {
        *num_ok += records[i].outcome == OUTCOME_OK || records[i].outcome == OUTCOME_EMPTY;
        if (records[i].error)
            error_set(err, STATUS_UNAVAILABLE, "%s", records[i].error);
    }
    request_records_free(records, num);
    free(prompts);
    return status;
}

enum status serve_bench_wait_ready(struct serve_bench *bench, struct error *err)
{
    int32_t timeout_s = bench->options->ready_check_timeout_s;
    if (timeout_s == 0) {
        printf("Skipping endpoint ready check.\n");
        return STATUS_OK;
    }
    printf("Starting initial single prompt test run...\n");
    int64_t until_ns = clock_monotonic_ns() + timeout_s * INT64_C(1000000000);
    for (;;) {
        int32_t num_ok = 0;
        bool interrupted = false;
        TRY(try_requests(bench, 1, 1, &num_ok, &interrupted, err));
        if (num_ok > 0)
            return STATUS_OK;
        int64_t left_ns = until_ns - clock_monotonic_ns();
        if (interrupted)
            return error_set(err, STATUS_CLOSED, "interrupted");
        if (left_ns <= 0) {
            error_prefix(err, "the test request did not succeed within %d s", timeout_s);
            return STATUS_TIMEOUT;
        }
        int64_t nap_ns = min_i64(left_ns, READY_RETRY_S * INT64_C(1000000000));
        nanosleep(&(struct timespec){nap_ns / 1000000000, nap_ns % 1000000000}, NULL);
    }
}

static void announce(const struct bench_options *o)
{
    printf("Starting main benchmark run...\n");
    if (!o->temperature && o->backend != BENCH_BACKEND_EMBEDDINGS)
        printf("No --temperature: the server's default sampling applies.\n");
    if (o->self_timed)
        printf("Traffic request rate: by the time stamps of the dataset\n");
    else if (o->ramp_up != RAMP_UP_NONE)
        printf("Traffic ramp-up strategy: %s.\nWill increase RPS from %g to %g RPS over the "
               "duration of the benchmark.\n",
               o->ramp_up_text, o->ramp_up_start_rps, o->ramp_up_end_rps);
    else if (isinf(o->request_rate))
        printf("Traffic request rate: inf\n");
    else
        printf("Traffic request rate: %g\n", o->request_rate);
    printf("Burstiness factor: %g (%s)\n", o->burstiness,
           o->burstiness == 1 ? "Poisson process" : "Gamma distribution");
    if (o->max_concurrency > 0)
        printf("Maximum request concurrency: %d\n", o->max_concurrency);
    else
        printf("Maximum request concurrency: None\n");
    fflush(stdout);
}

static enum status warm_up(struct serve_bench *bench, bool *interrupted, struct error *err)
{
    const struct bench_options *o = bench->options;
    if (o->num_warmups == 0)
        return STATUS_OK;
    int32_t num_ok = 0;
    printf("Warming up with %d requests...\n", o->num_warmups);
    TRY(try_requests(bench, o->num_warmups, o->max_concurrency, &num_ok, interrupted, err));
    if (num_ok < o->num_warmups)
        printf("%d of %d warm-up requests failed: %s\n", o->num_warmups - num_ok, o->num_warmups,
               err->message);
    return STATUS_OK;
}

/** NULL: all at once. */
static double *make_times(const struct serve_bench *bench)
{
    const struct bench_options *o = bench->options;
    int32_t num = bench->dataset.num;
    if (!o->self_timed && o->ramp_up == RAMP_UP_NONE && isinf(o->request_rate))
        return NULL;
    double *times_s = xcalloc((size_t)num, sizeof(*times_s));
    if (!o->self_timed)
        arrival_times(o, num, times_s);
    for (int32_t i = 0; o->self_timed && i < num; i++)
        times_s[i] = bench->dataset.prompts[i].at_s;
    return times_s;
}

enum status serve_bench_run(struct serve_bench *bench, struct serve_run *run, struct error *err)
{
    const struct bench_options *o = bench->options;
    int32_t num = bench->dataset.num;
    *run = (struct serve_run){0};
    TRY(warm_up(bench, &run->interrupted, err));
    if (run->interrupted)
        return error_set(err, STATUS_CLOSED, "interrupted");
    announce(o);
    double *times_s = make_times(bench);
    struct load load = {
        .target = &bench->target,
        .body = &bench->body,
        .prompts = bench->dataset.prompts,
        .num = num,
        .times_s = times_s,
        .max_concurrency = o->max_concurrency,
        .shows_progress = !o->disable_tqdm && isatty(STDERR_FILENO),
    };
    struct load_times times;
    run->records = xcalloc((size_t)num, sizeof(*run->records));
    enum status status = load_run(&load, run->records, &times, err);
    free(times_s);
    if (status != STATUS_OK) {
        free(run->records);
        run->records = NULL;
        return status;
    }
    run->interrupted = times.interrupted;
    bench_result_compute(&run->result, o, bench->dataset.prompts, run->records, num, &times,
                         bench->tokenizer);
    if (run->interrupted)
        printf("Interrupted: this is the report so far.\n");
    bench_report_failures(stdout, run->records, num);
    bench_report_print(stdout, &run->result, o);
    fflush(stdout);
    return STATUS_OK;
}

void serve_run_deinit(struct serve_run *run)
{
    request_records_free(run->records, run->result.num_prompts);
    bench_result_deinit(&run->result);
    *run = (struct serve_run){0};
}

static enum status save(const struct serve_bench *bench, const struct serve_run *run,
                        struct error *err)
{
    const struct bench_options *o = bench->options;
    if (!o->save_result && !o->append_result && !o->save_detailed)
        return STATUS_OK;
    json_t *json = bench_result_json(&run->result, o, &bench->facts, bench->dataset.prompts,
                                     o->save_detailed ? run->records : NULL);
    enum status status = bench_result_save(json, &run->result, o, &bench->facts, err);
    json_decref(json);
    return status;
}

int serve_bench_main(struct bench_options *options)
{
    struct serve_bench bench;
    struct serve_run run = {0};
    struct error err = {0};
    enum status status = serve_bench_open(&bench, options, &err);
    if (status == STATUS_OK)
        status = serve_bench_wait_ready(&bench, &err);
    if (status == STATUS_OK)
        status = serve_bench_run(&bench, &run, &err);
    if (status == STATUS_OK)
        status = save(&bench, &run, &err);
    if (status == STATUS_OK && options->plot)
        status = plot_save(options->plot, &run.result, 1, options, bench.facts.model_id, &err);
    if (status != STATUS_OK)
        fprintf(stderr, "vllm bench serve: error: %s\n", err.message);
    bool any = run.result.completed > 0;
    serve_run_deinit(&run);
    serve_bench_close(&bench);
    return status == STATUS_OK && any ? 0 : 1;
}
