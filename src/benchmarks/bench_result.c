#include "benchmarks/bench_result.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

#define NS_PER_MS 1e6

int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double percentile_of(const double *values, int64_t num, double percent)
{
    if (num == 0)
        return 0;
    double at = percent / 100 * (double)(num - 1);
    int64_t below = (int64_t)floor(at), above = min_i64(below + 1, num - 1);
    return values[below] + (values[above] - values[below]) * (at - (double)below);
}

void percentile_name(double percent, char *out, size_t size)
{
    snprintf(out, size, "%.10g", percent);
}

static void push(struct metric_values *metric, double value)
{
    int64_t num = metric->num;
    if ((num & (num - 1)) == 0)
        metric->values =
            xrealloc(metric->values, (size_t)max_i64(1, 2 * num) * sizeof(*metric->values));
    metric->values[metric->num++] = value;
}

static void summarise(struct metric_values *metric, const struct bench_options *o)
{
    if (metric->num == 0)
        return;
    double sum = 0, squares = 0;
    qsort(metric->values, (size_t)metric->num, sizeof(*metric->values), compare_doubles);
    for (int64_t i = 0; i < metric->num; i++)
        sum += metric->values[i];
    metric->mean = sum / (double)metric->num;
    for (int64_t i = 0; i < metric->num; i++)
        squares += (metric->values[i] - metric->mean) * (metric->values[i] - metric->mean);
    metric->std = sqrt(squares / (double)metric->num);
    metric->median = percentile_of(metric->values, metric->num, 50);
    for (int32_t p = 0; p < o->num_percentiles; p++)
        metric->percentiles[p] = percentile_of(metric->values, metric->num, o->percentiles[p]);
}

static int64_t count_output(const struct request_record *record, const struct tokenizer *tokenizer)
{
    if (record->completion_tokens >= 0)
        return record->completion_tokens;
    if (!tokenizer || record->num_token_ns == 0)
        return record->num_token_ns;
    struct arena arena = {0};
    int32_t num = 0;
    tokenizer_encode(tokenizer, buf_str(&record->text), false, &arena, &num);
    arena_deinit(&arena);
    return num;
}

/** The latencies of one request with output; TPOT is 0 for a single token. An embedding has no
 *  tokens, so all that it has is its end. */
static void measure(struct bench_result *result, const struct request_record *record,
                    int64_t num_output, double ms[NUM_METRICS])
{
    double e2el = (double)(record->last_ns - record->start_ns) / NS_PER_MS;
    ms[METRIC_E2EL] = e2el;
    push(&result->metrics[METRIC_E2EL], e2el);
    if (record->num_token_ns == 0)
        return;
    double ttft = (double)(record->token_ns[0] - record->start_ns) / NS_PER_MS;
    ms[METRIC_TTFT] = ttft;
    ms[METRIC_TPOT] = num_output > 1 ? (e2el - ttft) / (double)(num_output - 1) : 0;
    push(&result->metrics[METRIC_TTFT], ttft);
    if (num_output > 1)
        push(&result->metrics[METRIC_TPOT], ms[METRIC_TPOT]);
    for (int32_t i = 1; i < record->num_token_ns; i++)
        push(&result->metrics[METRIC_ITL],
             (double)(record->token_ns[i] - record->token_ns[i - 1]) / NS_PER_MS);
}

static bool meets_objectives(const struct bench_options *o, const double ms[NUM_METRICS])
{
    for (int m = 0; m < NUM_METRICS; m++) {
        if (o->goodput_ms[m] >= 0 && ms[m] > o->goodput_ms[m])
            return false;
    }
    return true;
}

/** Most events, and most requests under way, in any second since the first start. */
static void find_peaks(struct bench_result *result, const struct request_record *records,
                       int32_t num)
{
    int64_t first_ns = INT64_MAX, last_ns = 0;
    for (int32_t i = 0; i < num; i++) {
        if (records[i].outcome != OUTCOME_OK)
            continue;
        first_ns = min_i64(first_ns, records[i].start_ns);
        last_ns = max_i64(last_ns, records[i].last_ns);
    }
    if (last_ns == 0)
        return;
    size_t num_seconds = (size_t)((last_ns - first_ns) / 1000000000) + 1;
    int64_t *events = xcalloc(num_seconds, sizeof(*events));
    int64_t *active = xcalloc(num_seconds + 1, sizeof(*active));
    for (int32_t i = 0; i < num; i++) {
        const struct request_record *r = &records[i];
        if (r->outcome != OUTCOME_OK)
            continue;
        for (int32_t t = 0; t < r->num_token_ns; t++)
            events[(r->token_ns[t] - first_ns) / 1000000000]++;
        active[(r->start_ns - first_ns) / 1000000000]++; // differences, summed below
        active[(r->last_ns - first_ns) / 1000000000 + 1]--;
    }
    int64_t now_active = 0, most_events = 0, most_active = 0;
    for (size_t s = 0; s < num_seconds; s++) {
        now_active += active[s];
        most_events = max_i64(most_events, events[s]);
        most_active = max_i64(most_active, now_active);
    }
    result->max_output_tokens_per_s = (double)most_events;
    result->max_concurrent_requests = (double)most_active;
    free(events);
    free(active);
}

void bench_result_compute(struct bench_result *result, const struct bench_options *o,
                          const struct bench_prompt *prompts, const struct request_record *records,
                          int32_t num, const struct load_times *times,
                          const struct tokenizer *tokenizer)
{
    *result = (struct bench_result){
        .request_rate = o->request_rate,
        .max_concurrency = o->max_concurrency,
        .duration_s = (double)(times->end_ns - times->start_ns) / 1e9,
        .num_prompts = num,
        .request_goodput = -1,
    };
    int32_t num_good = 0;
    for (int32_t i = 0; i < num; i++) {
        const struct request_record *r = &records[i];
        result->empty += r->outcome == OUTCOME_EMPTY;
        result->failed += r->outcome == OUTCOME_FAILED;
        result->cancelled += r->outcome == OUTCOME_CANCELLED || r->outcome == OUTCOME_NOT_SENT;
        if (r->outcome != OUTCOME_OK)
            continue;
        double ms[NUM_METRICS] = {0};
        int64_t num_output = count_output(r, tokenizer);
        result->completed++;
        result->total_output_tokens += num_output;
        result->total_input_tokens +=
            r->prompt_tokens >= 0 ? r->prompt_tokens : prompts[i].num_tokens;
        measure(result, r, num_output, ms);
        num_good += meets_objectives(o, ms);
    }
    double d = result->duration_s > 0 ? result->duration_s : 1e-9;
    result->request_throughput = result->completed / d;
    result->output_throughput = (double)result->total_output_tokens / d;
    result->total_token_throughput =
        (double)(result->total_input_tokens + result->total_output_tokens) / d;
    if (o->has_goodput)
        result->request_goodput = num_good / d;
    for (int m = 0; m < NUM_METRICS; m++)
        summarise(&result->metrics[m], o);
    find_peaks(result, records, num);
}

void bench_result_deinit(struct bench_result *result)
{
    for (int m = 0; m < NUM_METRICS; m++)
        free(result->metrics[m].values);
    *result = (struct bench_result){0};
}
