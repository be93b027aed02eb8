// A result out of its file: the numbers of the report, and distributions where it has the lists.
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "benchmarks/sweep_summary.h"

static double number_of(const json_t *json, const char *key, double otherwise)
{
    const json_t *value = json_object_get(json, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

/** A count; 0 for what no count can be. */
static int32_t count_of(const json_t *json, const char *key)
{
    double value = number_of(json, key, 0);
    return value >= 0 && value <= INT32_MAX ? (int32_t)value : 0;
}

/** Seconds, one for each request or a list for each; those without an answer have none. */
static void read_values(struct metric_values *metric, const json_t *list)
{
    size_t room = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        room += json_is_array(item) ? json_array_size(item) : 1;
    }
    if (room == 0)
        return;
    metric->values = xcalloc(room, sizeof(*metric->values));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        size_t num = json_is_array(item) ? json_array_size(item) : 1;
        for (size_t k = 0; k < num; k++) {
            const json_t *value = json_is_array(item) ? json_array_get(item, k) : item;
            if (json_is_number(value) && json_number_value(value) > 0)
                metric->values[metric->num++] = json_number_value(value) * 1e3;
        }
    }
    qsort(metric->values, (size_t)metric->num, sizeof(*metric->values), compare_doubles);
}

static void read_metric(struct metric_values *metric, const json_t *json, const char *name,
                        const struct bench_options *o)
{
    char key[96], percent[32];
    snprintf(key, sizeof(key), "mean_%s_ms", name);
    metric->mean = number_of(json, key, NAN);
    snprintf(key, sizeof(key), "median_%s_ms", name);
    metric->median = number_of(json, key, NAN);
    snprintf(key, sizeof(key), "std_%s_ms", name);
    metric->std = number_of(json, key, NAN);
    for (int32_t p = 0; p < o->num_percentiles; p++) {
        percentile_name(o->percentiles[p], percent, sizeof(percent));
        snprintf(key, sizeof(key), "p%s_%s_ms", percent, name);
        metric->percentiles[p] = number_of(json, key, NAN);
    }
    snprintf(key, sizeof(key), "%ss", name);
    read_values(metric, json_object_get(json, key));
}

enum status bench_result_read(struct bench_result *r, const json_t *json,
                              const struct bench_options *o, const char *path, struct error *err)
{
    *r = (struct bench_result){0};
    if (!json_is_number(json_object_get(json, "completed")) ||
        !json_is_number(json_object_get(json, "request_throughput")))
        return error_set(err, STATUS_INVALID,
                         "%s: expected the result of a serving benchmark, with \"completed\" and "
                         "\"request_throughput\"",
                         path);
    *r = (struct bench_result){
        .request_rate = number_of(json, "request_rate", INFINITY),
        .max_concurrency = count_of(json, "max_concurrency"),
        .duration_s = number_of(json, "duration", 0),
        .num_prompts = count_of(json, "num_prompts"),
        .completed = count_of(json, "completed"),
        .empty = count_of(json, "empty"),
        .failed = count_of(json, "failed"),
        .cancelled = count_of(json, "cancelled"),
        .total_input_tokens = (int64_t)number_of(json, "total_input_tokens", 0),
        .total_output_tokens = (int64_t)number_of(json, "total_output_tokens", 0),
        .request_throughput = number_of(json, "request_throughput", 0),
        .request_goodput = number_of(json, "request_goodput", -1),
        .output_throughput = number_of(json, "output_throughput", 0),
        .total_token_throughput = number_of(json, "total_token_throughput", 0),
        .max_output_tokens_per_s = number_of(json, "max_output_tokens_per_s", 0),
        .max_concurrent_requests = number_of(json, "max_concurrent_requests", 0),
    };
    if (r->max_concurrency == 0)
        r->max_concurrency = -1; // null: no limit
    for (int m = 0; m < NUM_METRICS; m++)
        read_metric(&r->metrics[m], json, bench_metric_name((enum bench_metric)m), o);
    return STATUS_OK;
}
