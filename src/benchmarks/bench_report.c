// The printed report and the result file, under the labels and keys that vLLM's tools read.
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "benchmarks/bench_result.h"

enum { RULER_WIDTH = 50, MAX_FAILURES_SHOWN = 10 };

static const struct {
    const char *title, *name;
} metric_titles[NUM_METRICS] = {
    [METRIC_TTFT] = {"Time to First Token", "TTFT"},
    [METRIC_TPOT] = {"Time per Output Token (excl. 1st token)", "TPOT"},
    [METRIC_ITL] = {"Inter-token Latency", "ITL"},
    [METRIC_E2EL] = {"End-to-end Latency", "E2EL"},
};

static void print_ruler(FILE *out, const char *title, char fill)
{
    int pad = RULER_WIDTH - (int)strlen(title), left = pad / 2;
    for (int i = 0; i < left; i++)
        fputc(fill, out);
    fputs(title, out);
    for (int i = left; i < pad; i++)
        fputc(fill, out);
    fputc('\n', out);
}

static void print_count(FILE *out, const char *label, int64_t value)
{
    fprintf(out, "%-40s %-10lld\n", label, (long long)value);
}

static void print_value(FILE *out, const char *label, double value)
{
    fprintf(out, "%-40s %-10.2f\n", label, value);
}

static void print_metric(FILE *out, enum bench_metric metric, const struct metric_values *values,
                         const struct bench_options *o)
{
    const char *name = metric_titles[metric].name;
    char label[64], percent[32];
    print_ruler(out, metric_titles[metric].title, '-');
    snprintf(label, sizeof(label), "Mean %s (ms):", name);
    print_value(out, label, values->mean);
    snprintf(label, sizeof(label), "Median %s (ms):", name);
    print_value(out, label, values->median);
    for (int32_t p = 0; p < o->num_percentiles; p++) {
        percentile_name(o->percentiles[p], percent, sizeof(percent));
        snprintf(label, sizeof(label), "P%s %s (ms):", percent, name);
        print_value(out, label, values->percentiles[p]);
    }
}

/** What there is to say only where tokens are generated. */
static void print_output(FILE *out, const struct bench_result *r)
{
    print_value(out, "Output token throughput (tok/s):", r->output_throughput);
    print_value(out, "Peak output token throughput (tok/s):", r->max_output_tokens_per_s);
    print_value(out, "Peak concurrent requests:", r->max_concurrent_requests);
}

void bench_report_print(FILE *out, const struct bench_result *r, const struct bench_options *o)
{
    bool generates = o->backend != BENCH_BACKEND_EMBEDDINGS;
    print_ruler(out, " Serving Benchmark Result ", '=');
    print_count(out, "Successful requests:", r->completed);
    if (r->empty > 0)
        print_count(out, "Empty answers:", r->empty);
    print_count(out, "Failed requests:", r->failed);
    if (r->cancelled > 0)
        print_count(out, "Cancelled requests:", r->cancelled);
    if (r->max_concurrency > 0)
        print_count(out, "Maximum request concurrency:", r->max_concurrency);
    if (isfinite(r->request_rate))
        print_value(out, "Request rate configured (RPS):", r->request_rate);
    print_value(out, "Benchmark duration (s):", r->duration_s);
    print_count(out, "Total input tokens:", r->total_input_tokens);
    if (generates)
        print_count(out, "Total generated tokens:", r->total_output_tokens);
    print_value(out, "Request throughput (req/s):", r->request_throughput);
    if (r->request_goodput >= 0)
        print_value(out, "Request goodput (req/s):", r->request_goodput);
    if (generates)
        print_output(out, r);
    print_value(out, "Total token throughput (tok/s):", r->total_token_throughput);
    for (int m = 0; m < NUM_METRICS; m++) {
        if (o->shows[m])
            print_metric(out, (enum bench_metric)m, &r->metrics[m], o);
    }
    print_ruler(out, "", '=');
}

void bench_report_failures(FILE *out, const struct request_record *records, int32_t num)
{
    int num_shown = 0;
    for (int32_t i = 0; i < num && num_shown < MAX_FAILURES_SHOWN; i++) {
        if (records[i].outcome != OUTCOME_FAILED)
            continue;
        if (num_shown == 0)
            fputs("Failed requests during benchmark run detected (capping to 10):\n", out);
        fprintf(out, "Error %d: %s\n", num_shown++, records[i].error);
    }
}

// ---- JSON ----------------------------------------------------------------------------------

static void set_real(json_t *root, const char *key, double value)
{
    json_object_set_new(root, key, json_real(value));
}

static void set_text(json_t *root, const char *key, const char *value)
{
    json_t *text = value ? json_string(value) : NULL;
    json_object_set_new(root, key, text ? text : json_null());
}

static void set_rate(json_t *root, const char *key, double rate)
{
    json_object_set_new(root, key, isfinite(rate) ? json_real(rate) : json_string("inf"));
}

static void set_metric(json_t *root, enum bench_metric metric, const struct metric_values *values,
                       const struct bench_options *o)
{
    const char *name = bench_metric_name(metric);
    char key[96], percent[32];
    snprintf(key, sizeof(key), "mean_%s_ms", name);
    set_real(root, key, values->mean);
    snprintf(key, sizeof(key), "median_%s_ms", name);
    set_real(root, key, values->median);
    snprintf(key, sizeof(key), "std_%s_ms", name);
    set_real(root, key, values->std);
    for (int32_t p = 0; p < o->num_percentiles; p++) {
        percentile_name(o->percentiles[p], percent, sizeof(percent));
        snprintf(key, sizeof(key), "p%s_%s_ms", percent, name);
        set_real(root, key, values->percentiles[p]);
    }
}

static void set_metadata(json_t *root, const struct bench_options *o)
{
    for (int32_t i = 0; i < o->metadata.len; i++) {
        struct str value = str_from(o->metadata.items[i]), key = str_split(&value, '=');
        struct arena arena = {0};
        json_object_set_new(root, arena_strdup(&arena, key), json_stringn(value.ptr, value.len));
        arena_deinit(&arena);
    }
}

static json_t *seconds_between(int64_t from_ns, int64_t to_ns)
{
    return json_real((double)(to_ns - from_ns) / 1e9);
}

static json_t *failure_json(const struct request_record *r)
{
    const char *error = r->error                          ? r->error
                        : r->outcome == OUTCOME_EMPTY     ? "empty answer"
                        : r->outcome == OUTCOME_CANCELLED ? "cancelled"
                        : r->outcome == OUTCOME_NOT_SENT  ? "not sent"
                                                          : "";
    json_t *why = json_string(error);
    return why ? why : json_string("not UTF-8");
}

static void set_details(json_t *root, const struct bench_result *result,
                        const struct bench_prompt *prompts, const struct request_record *records)
{
    json_t *input_lens = json_array(), *output_lens = json_array(), *ttfts = json_array();
    json_t *itls = json_array(), *starts = json_array(), *texts = json_array();
    json_t *errors = json_array(), *e2els = json_array();
    for (int32_t i = 0; i < result->num_prompts; i++) {
        const struct request_record *r = &records[i];
        bool is_ok = r->outcome == OUTCOME_OK, has_tokens = is_ok && r->num_token_ns > 0;
        json_t *gaps = json_array();
        for (int32_t t = 1; is_ok && t < r->num_token_ns; t++)
            json_array_append_new(gaps, seconds_between(r->token_ns[t - 1], r->token_ns[t]));
        json_t *text = json_stringn(r->text.ptr ? r->text.ptr : "", r->text.len);
        int64_t input_len = r->prompt_tokens > 0 ? r->prompt_tokens : prompts[i].num_tokens;
        int64_t output_len = r->completion_tokens >= 0 ? r->completion_tokens : r->num_token_ns;
        json_array_append_new(input_lens, json_integer(input_len));
        json_array_append_new(output_lens, json_integer(is_ok ? output_len : 0));
        json_array_append_new(ttfts, has_tokens ? seconds_between(r->start_ns, r->token_ns[0])
                                                : json_null());
        json_array_append_new(itls, gaps);
        json_array_append_new(starts, json_real((double)r->start_ns / 1e9));
        json_array_append_new(texts, text ? text : json_string(""));
        json_array_append_new(e2els,
                              is_ok ? seconds_between(r->start_ns, r->last_ns) : json_null());
        json_array_append_new(errors, failure_json(r));
    }
    json_object_set_new(root, "input_lens", input_lens);
    json_object_set_new(root, "output_lens", output_lens);
    json_object_set_new(root, "ttfts", ttfts);
    json_object_set_new(root, "itls", itls);
    json_object_set_new(root, "start_times", starts);
    json_object_set_new(root, "generated_texts", texts);
    json_object_set_new(root, "e2els", e2els);
    json_object_set_new(root, "errors", errors);
}

static void local_time(char *out, size_t size)
{
    time_t now = (time_t)(clock_wall_ns() / 1000000000);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(out, size, "%Y%m%d-%H%M%S", &tm);
}

json_t *bench_result_json(const struct bench_result *r, const struct bench_options *o,
                          const struct bench_facts *facts, const struct bench_prompt *prompts,
                          const struct request_record *records)
{
    bool generates = o->backend != BENCH_BACKEND_EMBEDDINGS;
    json_t *root = json_object();
    char date[32];
    local_time(date, sizeof(date));
    set_text(root, "date", date);
    set_text(root, "endpoint_type", o->backend_name);
    set_text(root, "backend", o->backend_name);
    set_text(root, "label", o->label);
    set_text(root, "model_id", facts->model_id);
    set_text(root, "tokenizer_id", facts->tokenizer_id);
    json_object_set_new(root, "num_prompts", json_integer(r->num_prompts));
    set_metadata(root, o);
    set_rate(root, "request_rate", r->request_rate);
    set_real(root, "burstiness", o->burstiness);
    json_object_set_new(root, "max_concurrency",
                        r->max_concurrency > 0 ? json_integer(r->max_concurrency) : json_null());
    if (o->ramp_up != RAMP_UP_NONE) {
        set_text(root, "ramp_up_strategy", o->ramp_up_text);
        set_real(root, "ramp_up_start_rps", o->ramp_up_start_rps);
        set_real(root, "ramp_up_end_rps", o->ramp_up_end_rps);
    }
    set_real(root, "duration", r->duration_s);
    json_object_set_new(root, "completed", json_integer(r->completed));
    json_object_set_new(root, "empty", json_integer(r->empty));
    json_object_set_new(root, "failed", json_integer(r->failed));
    json_object_set_new(root, "cancelled", json_integer(r->cancelled));
    json_object_set_new(root, "total_input_tokens", json_integer(r->total_input_tokens));
    if (generates)
        json_object_set_new(root, "total_output_tokens", json_integer(r->total_output_tokens));
    set_real(root, "request_throughput", r->request_throughput);
    json_object_set_new(root, "request_goodput",
                        r->request_goodput >= 0 ? json_real(r->request_goodput) : json_null());
    if (generates)
        set_real(root, "output_throughput", r->output_throughput);
    set_real(root, "total_token_throughput", r->total_token_throughput);
    if (generates) {
        set_real(root, "max_output_tokens_per_s", r->max_output_tokens_per_s);
        set_real(root, "max_concurrent_requests", r->max_concurrent_requests);
        set_real(root, "rtfx", 0);
    }
    for (int m = 0; m < NUM_METRICS; m++) {
        if (o->shows[m])
            set_metric(root, (enum bench_metric)m, &r->metrics[m], o);
    }
    if (records)
        set_details(root, r, prompts, records);
    return root;
}

enum status json_save(const json_t *json, const char *path, bool append, struct error *err)
{
    size_t flags = JSON_REAL_PRECISION(15) | (append ? JSON_COMPACT : JSON_INDENT(2));
    FILE *file = fopen(path, append ? "a" : "w");
    if (!file)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    bool ok = json_dumpf(json, file, flags) == 0 && fputc('\n', file) != EOF;
    ok = fclose(file) == 0 && ok;
    return ok ? STATUS_OK : error_set(err, STATUS_IO, "%s: cannot be written", path);
}

/** "openai-infqps-concurrency64-demo-20260102-030405.json". */
static const char *default_name(struct arena *arena, const struct bench_result *r,
                                const struct bench_options *o, const struct bench_facts *facts)
{
    char date[32];
    local_time(date, sizeof(date));
    const char *slash = strrchr(facts->model_id, '/');
    const char *model = slash ? slash + 1 : facts->model_id;
    const char *label = o->label ? o->label : o->backend_name;
    const char *concurrency =
        r->max_concurrency > 0 ? arena_printf(arena, "-concurrency%d", r->max_concurrency) : "";
    if (o->ramp_up != RAMP_UP_NONE)
        return arena_printf(arena, "%s-ramp-up-%s-%gqps-%gqps%s-%s-%s.json", label, o->ramp_up_text,
                            o->ramp_up_start_rps, o->ramp_up_end_rps, concurrency, model, date);
    const char *rate =
        isfinite(r->request_rate)
            ? arena_printf(arena, "%.*f", r->request_rate == floor(r->request_rate) ? 1 : 3,
                           r->request_rate)
            : "inf";
    return arena_printf(arena, "%s-%sqps%s-%s-%s.json", label, rate, concurrency, model, date);
}

enum status bench_result_save(const json_t *json, const struct bench_result *r,
                              const struct bench_options *o, const struct bench_facts *facts,
                              struct error *err)
{
    struct arena arena = {0};
    const char *name = o->result_filename ? o->result_filename : default_name(&arena, r, o, facts);
    const char *path = name;
    if (o->result_dir) {
        mkdir(o->result_dir, 0777); // if it cannot be made, opening the file says why
        path = arena_printf(&arena, "%s/%s", o->result_dir, name);
    }
    enum status status = json_save(json, path, o->append_result, err);
    if (status == STATUS_OK)
        printf("Result saved to %s\n", path);
    arena_deinit(&arena);
    return status;
}
