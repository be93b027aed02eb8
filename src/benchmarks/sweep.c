// `vllm bench sweep`: one serve run after the other over rates or concurrency limits; a table, the
// results as files, and a picture.
//
//   DIR/EXPERIMENT/BENCH--request_rate=4/run=0.json ...   each run
//   DIR/EXPERIMENT/summary.json, summary.csv              all runs; the table's rows
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "benchmarks/plot.h"
#include "benchmarks/serve_bench.h"

/** A sweep under way. */
struct sweep {
    struct bench_options *options;
    struct serve_bench bench;
    const char *folder;          // DIR/EXPERIMENT
    struct bench_result *points; // [num_points]: of each its middle run
    int32_t num_points;
    json_t *all_runs;
    bool is_reset_refused, interrupted, any_completed;
};

static int32_t count_points(const struct bench_options *o)
{
    return o->num_sweep_rates + o->num_sweep_concurrencies; // one of them is 0
}

static const char *point_name(struct arena *arena, const struct bench_options *o, int32_t point)
{
    return o->num_sweep_rates > 0
               ? arena_printf(arena, "request_rate=%s", o->rate_texts.items[point])
               : arena_printf(arena, "max_concurrency=%s", o->concurrency_texts.items[point]);
}

/** Every folder of the path that is not there yet. */
static enum status make_folders(struct arena *arena, const char *path, struct error *err)
{
    char *copy = arena_strdup(arena, str_from(path));
    for (char *p = copy + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char end = *p;
        *p = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            return error_set(err, STATUS_IO, "%s: %s", copy, strerror(errno));
        *p = end;
        if (end == '\0')
            return STATUS_OK;
    }
}

/** So that no run finds in the server's cache what the one before put there. */
static void reset_cache(struct sweep *s)
{
    struct buf body = {0};
    struct error err = {0};
    int code = 0;
    if (s->is_reset_refused)
        return;
    enum status status =
        target_call(&s->bench.target, "POST", "/reset_prefix_cache", &code, &body, &err);
    if (status == STATUS_OK && code != 200) {
        s->is_reset_refused = true;
        printf("The server does not reset its prefix cache (POST /reset_prefix_cache answers %d); "
               "each run takes other prompts where the dataset is random.\n",
               code);
    }
    buf_deinit(&body);
}

static enum status save_run(struct sweep *s, const struct serve_run *run, int32_t point,
                            int32_t number, struct error *err)
{
    const struct bench_options *o = s->options;
    struct arena *arena = &s->options->arena;
    const char *folder =
        arena_printf(arena, "%s/BENCH--%s", s->folder, point_name(arena, o, point));
    TRY(make_folders(arena, folder, err));
    json_t *json = bench_result_json(&run->result, o, &s->bench.facts, s->bench.dataset.prompts,
                                     o->save_detailed ? run->records : NULL);
    json_object_set_new(json, "run_number", json_integer(number));
    enum status status =
        json_save(json, arena_printf(arena, "%s/run=%d.json", folder, number), false, err);
    json_array_append_new(s->all_runs, json);
    return status;
}

static int by_throughput(const void *a, const void *b)
{
    const struct bench_result *x = a, *y = b;
    return (x->output_throughput > y->output_throughput) -
           (x->output_throughput < y->output_throughput);
}

/** All runs of a point; the one in the middle by throughput stands for it. */
static enum status run_point(struct sweep *s, int32_t point, struct error *err)
{
    struct bench_options *o = s->options;
    int64_t seed = o->seed;
    struct bench_result *runs = xcalloc((size_t)o->num_runs, sizeof(*runs));
    int32_t num_done = 0;
    enum status status = STATUS_OK;
    if (o->num_sweep_rates > 0)
        o->request_rate = o->sweep_rates[point];
    else
        o->max_concurrency = o->sweep_concurrencies[point];
    while (status == STATUS_OK && num_done < o->num_runs && !s->interrupted) {
        struct serve_run run = {0};
        printf("\n[%d/%d] %s, run %d of %d\n", point + 1, count_points(o),
               point_name(&o->arena, o, point), num_done + 1, o->num_runs);
        o->seed = seed + (int64_t)point * o->num_runs + num_done;
        reset_cache(s);
        status = serve_bench_make_prompts(&s->bench, err);
        if (status == STATUS_OK)
            status = serve_bench_run(&s->bench, &run, err);
        if (status == STATUS_OK)
            status = save_run(s, &run, point, num_done, err);
        s->interrupted |= run.interrupted;
        s->any_completed |= run.result.completed > 0;
        if (status == STATUS_OK) {
            runs[num_done++] = run.result;
            run.result = (struct bench_result){.num_prompts = run.result.num_prompts};
        }
        serve_run_deinit(&run);
    }
    o->seed = seed;
    if (status == STATUS_OK && num_done > 0) {
        qsort(runs, (size_t)num_done, sizeof(*runs), by_throughput);
        s->points[s->num_points++] = runs[num_done / 2];
        runs[num_done / 2] = (struct bench_result){0};
    }
    for (int32_t i = 0; i < num_done; i++)
        bench_result_deinit(&runs[i]);
    free(runs);
    return status;
}

static const char *rate_text(const struct bench_result *r, char *out, size_t size)
{
    snprintf(out, size, isfinite(r->request_rate) ? "%.10g" : "inf", r->request_rate);
    return out;
}

static const char *concurrency_text(const struct bench_result *r, char *out, size_t size)
{
    snprintf(out, size, r->max_concurrency > 0 ? "%d" : "-", r->max_concurrency);
    return out;
}

/** The percentile that the table shows: the last one asked for. */
static double tail_of(const struct metric_values *metric, const struct bench_options *o)
{
    return o->num_percentiles > 0 ? metric->percentiles[o->num_percentiles - 1] : metric->median;
}

static void print_table(const struct sweep *s)
{
    const struct bench_options *o = s->options;
    char tail[32] = "med", rate[32], concurrency[32];
    if (o->num_percentiles > 0) {
        tail[0] = 'p';
        percentile_name(o->percentiles[o->num_percentiles - 1], tail + 1, sizeof(tail) - 1);
    }
    printf("\n%8s %6s %7s %7s %9s %10s | %10s %10s | %10s | %10s %10s\n", "rate", "conc", "ok",
           "not ok", "req/s", "out tok/s", "TTFT med", tail, "TPOT med", "ITL med", tail);
    for (int32_t i = 0; i < s->num_points; i++) {
        const struct bench_result *r = &s->points[i];
        const struct metric_values *ttft = &r->metrics[METRIC_TTFT];
        const struct metric_values *itl = &r->metrics[METRIC_ITL];
        printf("%8s %6s %7d %7d %9.2f %10.1f | %10.2f %10.2f | %10.2f | %10.2f %10.2f\n",
               rate_text(r, rate, sizeof(rate)),
               concurrency_text(r, concurrency, sizeof(concurrency)), r->completed,
               r->num_prompts - r->completed, r->request_throughput, r->output_throughput,
               ttft->median, tail_of(ttft, o), r->metrics[METRIC_TPOT].median, itl->median,
               tail_of(itl, o));
    }
    printf("Latencies in milliseconds; each row is the run of median throughput among %d.\n",
           o->num_runs);
}

static enum status save_csv(const struct sweep *s, const char *path, struct error *err)
{
    FILE *file = fopen(path, "w");
    char rate[32], concurrency[32];
    if (!file)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    fputs("request_rate,max_concurrency,completed,empty,failed,request_throughput,"
          "output_throughput,total_token_throughput",
          file);
    for (int m = 0; m < NUM_METRICS; m++)
        fprintf(file, ",mean_%s_ms,median_%s_ms,tail_%s_ms", bench_metric_name(m),
                bench_metric_name(m), bench_metric_name(m));
    fputc('\n', file);
    for (int32_t i = 0; i < s->num_points; i++) {
        const struct bench_result *r = &s->points[i];
        fprintf(file, "%s,%s,%d,%d,%d,%.6g,%.6g,%.6g", rate_text(r, rate, sizeof(rate)),
                concurrency_text(r, concurrency, sizeof(concurrency)), r->completed, r->empty,
                r->failed, r->request_throughput, r->output_throughput, r->total_token_throughput);
        for (int m = 0; m < NUM_METRICS; m++)
            fprintf(file, ",%.6g,%.6g,%.6g", r->metrics[m].mean, r->metrics[m].median,
                    tail_of(&r->metrics[m], s->options));
        fputc('\n', file);
    }
    if (fclose(file) != 0)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    return STATUS_OK;
}

static enum status save_summary(struct sweep *s, struct error *err)
{
    struct arena *arena = &s->options->arena;
    TRY(json_save(s->all_runs, arena_printf(arena, "%s/summary.json", s->folder), false, err));
    TRY(save_csv(s, arena_printf(arena, "%s/summary.csv", s->folder), err));
    printf("Results saved to %s\n", s->folder);
    if (!s->options->plot)
        return STATUS_OK;
    return plot_save(s->options->plot, s->points, s->num_points, s->options,
                     s->bench.facts.model_id, err);
}

static const char *make_folder_name(struct bench_options *o)
{
    char date[32];
    time_t now = (time_t)(clock_wall_ns() / 1000000000);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(date, sizeof(date), "%Y%m%d_%H%M%S", &tm);
    return arena_printf(&o->arena, "%s/%s", o->output_dir,
                        o->experiment_name ? o->experiment_name : date);
}

static enum status run_all(struct sweep *s, struct error *err)
{
    struct bench_options *o = s->options;
    TRY(serve_bench_open(&s->bench, o, err));
    TRY(make_folders(&o->arena, s->folder, err));
    TRY(serve_bench_wait_ready(&s->bench, err));
    for (int32_t i = 0; i < count_points(o) && !s->interrupted; i++)
        TRY(run_point(s, i, err));
    print_table(s);
    return save_summary(s, err);
}

int sweep_main(struct bench_options *options)
{
    struct sweep s = {.options = options, .all_runs = json_array()};
    struct error err = {0};
    s.folder = make_folder_name(options);
    s.points = xcalloc((size_t)count_points(options), sizeof(*s.points));
    enum status status = run_all(&s, &err);
    if (status != STATUS_OK)
        fprintf(stderr, "vllm bench sweep: error: %s\n", err.message);
    for (int32_t i = 0; i < s.num_points; i++)
        bench_result_deinit(&s.points[i]);
    free(s.points);
    json_decref(s.all_runs);
    serve_bench_close(&s.bench);
    return status == STATUS_OK && s.any_completed ? 0 : 1;
}
