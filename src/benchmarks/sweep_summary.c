#include "benchmarks/sweep_summary.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "benchmarks/plot.h"

enum { MAX_NAME_WIDTH = 72 };

void sweep_summary_begin(struct sweep_summary *s, const char *name, int32_t series)
{
    s->points = xrealloc(s->points, (size_t)(s->num_points + 1) * sizeof(*s->points));
    s->points[s->num_points++] = (struct sweep_point){.name = name, .series = series};
}

void sweep_summary_add(struct sweep_summary *s, json_t *json, const struct bench_result *result)
{
    struct sweep_point *point = &s->points[s->num_points - 1];
    point->runs = xrealloc(point->runs, (size_t)(point->num_runs + 1) * sizeof(*point->runs));
    point->runs[point->num_runs++] = (struct sweep_run){json, *result};
}

void sweep_summary_move_last(struct sweep_summary *s, int32_t point)
{
    struct sweep_point moved = s->points[point];
    memmove(&s->points[point], &s->points[point + 1],
            (size_t)(s->num_points - point - 1) * sizeof(moved));
    s->points[s->num_points - 1] = moved;
}

void sweep_summary_deinit(struct sweep_summary *s)
{
    for (int32_t i = 0; i < s->num_points; i++) {
        for (int32_t r = 0; r < s->points[i].num_runs; r++) {
            json_decref(s->points[i].runs[r].json);
            bench_result_deinit(&s->points[i].runs[r].result);
        }
        free(s->points[i].runs);
    }
    free(s->points);
    *s = (struct sweep_summary){0};
}

/** Tokens per second: those generated, or those read where none are. */
static double throughput_of(const struct bench_result *r)
{
    return r->output_throughput > 0 ? r->output_throughput : r->total_token_throughput;
}

static int by_throughput(const void *a, const void *b)
{
    const struct sweep_run *const *x = a, *const *y = b;
    double p = throughput_of(&(*x)->result), q = throughput_of(&(*y)->result);
    return (p > q) - (p < q);
}

const struct sweep_run *sweep_point_median(const struct sweep_point *point)
{
    if (point->num_runs == 0)
        return NULL;
    const struct sweep_run **runs = xcalloc((size_t)point->num_runs, sizeof(*runs));
    for (int32_t i = 0; i < point->num_runs; i++)
        runs[i] = &point->runs[i];
    qsort(runs, (size_t)point->num_runs, sizeof(*runs), by_throughput);
    const struct sweep_run *median = runs[point->num_runs / 2];
    free(runs);
    return median;
}

// ---- the table -----------------------------------------------------------------------------

static void print_ms(double ms)
{
    if (ms > 0)
        printf(" %9.2f", ms);
    else
        printf(" %9s", "-"); // not measured
}

/** The percentile that the table shows: the last one asked for. */
static double tail_of(const struct metric_values *metric, const struct bench_options *o)
{
    return o->num_percentiles > 0 ? metric->percentiles[o->num_percentiles - 1] : metric->median;
}

static void print_row(const struct sweep_summary *s, const struct sweep_point *point, int width)
{
    const struct bench_result *r = &sweep_point_median(point)->result;
    printf("%-*.*s %6d %6d %9.2f %9.1f |", width, width, point->name, r->completed,
           r->num_prompts - r->completed, r->request_throughput, throughput_of(r));
    print_ms(r->metrics[METRIC_TTFT].median);
    print_ms(tail_of(&r->metrics[METRIC_TTFT], s->options));
    printf(" |");
    print_ms(r->metrics[METRIC_TPOT].median);
    printf(" |");
    print_ms(r->metrics[METRIC_ITL].median);
    print_ms(tail_of(&r->metrics[METRIC_ITL], s->options));
    printf(" |");
    print_ms(r->metrics[METRIC_E2EL].median);
    printf("\n");
}

void sweep_summary_print(const struct sweep_summary *s)
{
    const struct bench_options *o = s->options;
    char tail[32] = "med";
    int width = 5;
    if (o->num_percentiles > 0) {
        tail[0] = 'p';
        percentile_name(o->percentiles[o->num_percentiles - 1], tail + 1, sizeof(tail) - 1);
    }
    for (int32_t i = 0; i < s->num_points; i++)
        width = max_i32(width, min_i32(MAX_NAME_WIDTH, (int32_t)strlen(s->points[i].name)));
    printf("\n%-*s %6s %6s %9s %9s | %9s %9s | %9s | %9s %9s | %9s\n", width, "point", "ok",
           "not ok", "req/s", "tok/s", "TTFT med", tail, "TPOT med", "ITL med", tail, "E2EL med");
    for (int32_t i = 0; i < s->num_points; i++) {
        if (s->points[i].num_runs > 0)
            print_row(s, &s->points[i], width);
    }
    printf("Latencies in milliseconds; each row is the run of median throughput among its runs.\n");
}

// ---- files ---------------------------------------------------------------------------------

static bool is_scalar(const json_t *value)
{
    return !json_is_array(value) && !json_is_object(value);
}

/** The runs without the lists of each request. */
static json_t *scalars_of_all(const struct sweep_summary *s)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < s->num_points; i++) {
        for (int32_t r = 0; r < s->points[i].num_runs; r++) {
            json_t *row = json_object(), *value;
            const char *key;
            json_object_foreach(s->points[i].runs[r].json, key, value)
            {
                if (is_scalar(value))
                    json_object_set(row, key, value);
            }
            json_array_append_new(all, row);
        }
    }
    return all;
}

/** A cell as RFC 4180 has it; null is empty. */
static void write_cell(FILE *file, const json_t *value)
{
    if (json_is_string(value)) {
        const char *text = json_string_value(value);
        bool is_plain = !strpbrk(text, ",\"\r\n");
        if (!is_plain)
            fputc('"', file);
        for (const char *p = text; *p != '\0'; p++)
            fprintf(file, *p == '"' ? "\"\"" : "%c", *p);
        if (!is_plain)
            fputc('"', file);
    } else if (value && !json_is_null(value)) {
        json_dumpf(value, file, JSON_ENCODE_ANY | JSON_REAL_PRECISION(10));
    }
}

static enum status save_csv(const json_t *rows, const char *path, struct error *err)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    json_t *columns = json_object(); // the keys of all rows in the order in which they come
    for (size_t i = 0; i < json_array_size(rows); i++)
        json_object_update_missing(columns, json_array_get(rows, i));
    const char *key;
    json_t *value;
    bool is_first = true;
    json_object_foreach(columns, key, value)
    {
        json_t *name = json_string(key);
        if (!is_first)
            fputc(',', file);
        write_cell(file, name);
        json_decref(name);
        is_first = false;
    }
    fputs("\n", file);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        is_first = true;
        json_object_foreach(columns, key, value)
        {
            if (!is_first)
                fputc(',', file);
            write_cell(file, json_object_get(json_array_get(rows, i), key));
            is_first = false;
        }
        fputs("\n", file);
    }
    json_decref(columns);
    if (fclose(file) != 0)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    return STATUS_OK;
}

static enum status save_plot(const struct sweep_summary *s, const char *model, bool names_points,
                             struct error *err)
{
    struct bench_result *medians = xcalloc((size_t)s->num_points + 1, sizeof(*medians));
    int32_t num = 0;
    for (int32_t i = 0; i < s->num_points; i++) {
        const struct sweep_run *median = sweep_point_median(&s->points[i]);
        if (!median)
            continue;
        medians[num] = median->result; // borrowed
        medians[num].name = names_points ? s->points[i].name : NULL;
        medians[num++].series = s->points[i].series;
    }
    enum status status = plot_save(s->options->plot, medians, num, s->options, model, err);
    free(medians);
    return status;
}

enum status sweep_summary_save(const struct sweep_summary *s, const char *folder, const char *model,
                               bool names_points, struct error *err)
{
    struct arena arena = {0};
    json_t *rows = scalars_of_all(s);
    enum status status =
        json_save(rows, arena_printf(&arena, "%s/summary.json", folder), false, err);
    if (status == STATUS_OK)
        status = save_csv(rows, arena_printf(&arena, "%s/summary.csv", folder), err);
    if (status == STATUS_OK)
        printf("Results saved to %s\n", folder);
    if (status == STATUS_OK && s->options->plot)
        status = save_plot(s, model, names_points, err);
    json_decref(rows);
    arena_deinit(&arena);
    return status;
}

enum status make_folders(struct arena *arena, const char *path, struct error *err)
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

const char *sweep_folder_name(struct bench_options *o)
{
    char date[32];
    time_t now = (time_t)(clock_wall_ns() / 1000000000);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(date, sizeof(date), "%Y%m%d_%H%M%S", &tm);
    return arena_printf(&o->arena, "%s/%s", o->output_dir,
                        o->experiment_name ? o->experiment_name : date);
}
