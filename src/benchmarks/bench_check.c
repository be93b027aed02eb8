#include "benchmarks/bench_check.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"

static const char *const metric_names[NUM_METRICS] = {"ttft", "tpot", "itl", "e2el"};

const char *bench_metric_name(enum bench_metric metric)
{
    return metric_names[metric];
}

static bool find_metric(struct str name, enum bench_metric *metric)
{
    for (int m = 0; m < NUM_METRICS; m++) {
        if (str_eq_c(name, metric_names[m])) {
            *metric = (enum bench_metric)m;
            return true;
        }
    }
    return false;
}

/** A decimal number; with `allows_inf` also inf. */
static bool read_number(const char *text, bool allows_inf, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    bool is_number = end != text && *end == '\0' && !strpbrk(text, "xXpPnN");
    return allows_inf && strcmp(text, "inf") == 0 ? true : is_number && isfinite(*out);
}

static enum status check_rate(const char *option, const char *text, double *out, struct error *err)
{
    if (read_number(text, true, out) && *out > 0)
        return STATUS_OK;
    return error_set_field(err, STATUS_INVALID, option,
                           "%s is '%.100s', expected a number above 0 or inf", option, text);
}

static enum status check_sampling(const struct bench_options *o, struct error *err)
{
    const struct {
        const char *option, *text;
    } rows[] = {
        {"--temperature", o->temperature},
        {"--top-p", o->top_p},
        {"--top-k", o->top_k},
        {"--min-p", o->min_p},
        {"--frequency-penalty", o->frequency_penalty},
        {"--presence-penalty", o->presence_penalty},
        {"--repetition-penalty", o->repetition_penalty},
    };
    double value;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].text && !read_number(rows[i].text, false, &value))
            return error_set_field(err, STATUS_INVALID, rows[i].option,
                                   "%s is '%.100s', expected a number", rows[i].option,
                                   rows[i].text);
    }
    return STATUS_OK;
}

static enum status check_range_ratio(struct bench_options *o, struct error *err)
{
    json_t *value = json_loads(o->random_range_ratio, JSON_DECODE_ANY, NULL);
    const json_t *in = json_is_object(value) ? json_object_get(value, "input") : value;
    const json_t *out = json_is_object(value) ? json_object_get(value, "output") : value;
    bool right = json_is_number(in) && json_is_number(out);
    o->input_range_ratio = json_number_value(in);
    o->output_range_ratio = json_number_value(out);
    json_decref(value);
    if (right && o->input_range_ratio >= 0 && o->input_range_ratio < 1 &&
        o->output_range_ratio >= 0 && o->output_range_ratio < 1)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "--random-range-ratio is '%.100s', expected a number in [0, 1) or "
                     "{\"input\": a, \"output\": b}",
                     o->random_range_ratio);
}

static enum status check_dataset(struct bench_options *o, struct error *err)
{
    static const struct {
        const char *name;
        enum dataset_kind kind;
    } names[] = {
        {"random", DATASET_RANDOM},
        {"sharegpt", DATASET_SHAREGPT},
        {"custom", DATASET_CUSTOM},
        {"sonnet", DATASET_SONNET},
        {"prefix_repetition", DATASET_PREFIX_REPETITION},
        {"prefix-repetition", DATASET_PREFIX_REPETITION},
        {"timed_trace", DATASET_TIMED_TRACE},
        {"timed-trace", DATASET_TIMED_TRACE},
        {"burstgpt", DATASET_BURSTGPT},
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i].name, o->dataset_name) == 0)
            o->dataset = names[i].kind;
    }
    bool needs_file = o->dataset != DATASET_RANDOM && o->dataset != DATASET_PREFIX_REPETITION;
    if (needs_file && !o->dataset_path)
        return error_set(err, STATUS_INVALID, "--dataset-name %s needs --dataset-path",
                         o->dataset_name);
    if (!needs_file && o->dataset_path)
        return error_set(err, STATUS_INVALID,
                         "--dataset-path is given, but --dataset-name %s reads no file",
                         o->dataset_name);
    if (o->input_len > 0)
        o->random_input_len = o->sonnet_input_len = o->input_len;
    if (o->input_len > 0)
        o->prefix_repetition_suffix_len =
            max_i32(1, o->input_len - o->prefix_repetition_prefix_len);
    if (o->output_len > 0) {
        o->random_output_len = o->sonnet_output_len = o->output_len;
        o->sharegpt_output_len = o->custom_output_len = o->output_len;
        o->prefix_repetition_output_len = o->output_len;
    }
    if (o->custom_output_len == 0)
        return error_set(err, STATUS_INVALID, "--custom-output-len is 0, expected -1 or more");
    if (o->random_batch_size > 1 && o->dataset != DATASET_RANDOM)
        return error_set(err, STATUS_INVALID,
                         "--random-batch-size is %d, but --dataset-name is %s, expected random",
                         o->random_batch_size, o->dataset_name);
    return check_range_ratio(o, err);
}

static enum status check_load(struct bench_options *o, bool rate_given, struct error *err)
{
    TRY(check_rate("--request-rate", o->request_rate_text, &o->request_rate, err));
    o->self_timed |= o->dataset == DATASET_TIMED_TRACE;
    if (o->self_timed && o->dataset != DATASET_TIMED_TRACE)
        return error_set(err, STATUS_INVALID,
                         "--self-timed needs a dataset with time stamps: timed_trace");
    if (o->self_timed && (rate_given || o->ramp_up_text))
        return error_set(err, STATUS_INVALID,
                         "a dataset with time stamps says itself when requests are sent; leave out "
                         "--request-rate and --ramp-up-strategy");
    if (!o->ramp_up_text && (o->ramp_up_start_text || o->ramp_up_end_text))
        return error_set(err, STATUS_INVALID,
                         "--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy");
    if (!o->ramp_up_text)
        return STATUS_OK;
    o->ramp_up = strcmp(o->ramp_up_text, "linear") == 0 ? RAMP_UP_LINEAR : RAMP_UP_EXPONENTIAL;
    if (rate_given)
        return error_set(err, STATUS_INVALID,
                         "--ramp-up-strategy sets the rate; leave out --request-rate");
    double *start = &o->ramp_up_start_rps, *end = &o->ramp_up_end_rps;
    if (!o->ramp_up_start_text || !o->ramp_up_end_text ||
        !read_number(o->ramp_up_start_text, false, start) ||
        !read_number(o->ramp_up_end_text, false, end) || *start < 0 || *end <= *start)
        return error_set(err, STATUS_INVALID,
                         "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps, two "
                         "numbers with 0 <= start < end; they are '%.50s' and '%.50s'",
                         o->ramp_up_start_text ? o->ramp_up_start_text : "",
                         o->ramp_up_end_text ? o->ramp_up_end_text : "");
    if (o->ramp_up == RAMP_UP_EXPONENTIAL && *start == 0)
        return error_set(err, STATUS_INVALID,
                         "--ramp-up-start-rps is 0, expected more for exponential growth");
    return STATUS_OK;
}

static enum status check_goodput(struct bench_options *o, struct error *err)
{
    for (int m = 0; m < NUM_METRICS; m++)
        o->goodput_ms[m] = -1;
    for (int32_t i = 0; i < o->goodput_texts.len; i++) {
        const char *text = o->goodput_texts.items[i];
        struct str value = str_from(text), name = str_split(&value, ':');
        enum bench_metric metric;
        double ms;
        if (!find_metric(name, &metric) || metric == METRIC_ITL || value.len == 0 ||
            !read_number(value.ptr, false, &ms) || ms < 0)
            return error_set(err, STATUS_INVALID,
                             "--goodput has '%.100s', expected ttft:MS, tpot:MS or e2el:MS", text);
        o->goodput_ms[metric] = ms;
        o->has_goodput = true;
    }
    return STATUS_OK;
}

static enum status check_plot(const struct bench_options *o, struct error *err)
{
    struct str plot = str_from(o->plot);
    if (o->plot && !str_ends_with(plot, STR(".html")) && !str_ends_with(plot, STR(".svg")))
        return error_set(err, STATUS_INVALID, "--plot is '%.200s', expected a .html or .svg file",
                         o->plot);
    return STATUS_OK;
}

static enum status check_report(struct bench_options *o, struct error *err)
{
    for (int32_t i = 0; i < o->metric_names.len; i++) {
        enum bench_metric metric;
        if (!find_metric(str_from(o->metric_names.items[i]), &metric))
            return error_set(err, STATUS_INVALID,
                             "--percentile-metrics has '%.100s', expected ttft, tpot, itl, e2el",
                             o->metric_names.items[i]);
        o->shows[metric] = true;
    }
    for (int32_t i = 0; i < o->percentile_texts.len; i++) {
        double value;
        if (i >= MAX_PERCENTILES || !read_number(o->percentile_texts.items[i], false, &value) ||
            value < 0 || value > 100)
            return error_set(err, STATUS_INVALID,
                             "--metric-percentiles has '%.100s', expected at most %d numbers in "
                             "[0, 100]",
                             o->percentile_texts.items[i], MAX_PERCENTILES);
        o->percentiles[o->num_percentiles++] = value;
    }
    const struct {
        const char *option;
        const struct str_list *list;
    } pairs[] = {{"--header", &o->headers}, {"--metadata", &o->metadata}};
    for (size_t p = 0; p < ARRAY_LEN(pairs); p++) {
        for (int32_t i = 0; i < pairs[p].list->len; i++) {
            const char *text = pairs[p].list->items[i];
            if (!strchr(text, '=') || text[0] == '=' || strpbrk(text, "\r\n"))
                return error_set(err, STATUS_INVALID, "%s has '%.100s', expected KEY=VALUE",
                                 pairs[p].option, text);
        }
    }
    TRY(check_plot(o, err));
    return check_goodput(o, err);
}

/** A vector is made in one go: nothing is sampled, and only its whole time is known. */
static enum status check_embeddings(struct bench_options *o, const struct bench_given *given,
                                    struct error *err)
{
    const struct {
        const char *option;
        bool is_given;
    } rows[] = {
        {"--temperature", o->temperature != NULL},
        {"--top-p", o->top_p != NULL},
        {"--top-k", o->top_k != NULL},
        {"--min-p", o->min_p != NULL},
        {"--frequency-penalty", o->frequency_penalty != NULL},
        {"--presence-penalty", o->presence_penalty != NULL},
        {"--repetition-penalty", o->repetition_penalty != NULL},
        {"--ignore-eos", o->ignore_eos},
        {"--logprobs", o->logprobs >= 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].is_given)
            return error_set_field(err, STATUS_INVALID, rows[i].option,
                                   "%s is for generated tokens; --backend %s generates none",
                                   rows[i].option, o->backend_name);
    }
    if (given->output_len)
        return error_set(err, STATUS_INVALID, "--%s is given, but --backend %s generates no tokens",
                         given->output_len, o->backend_name);
    for (int m = 0; m < NUM_METRICS; m++) {
        if (!given->percentile_metrics)
            o->shows[m] = m == METRIC_E2EL;
        if (m != METRIC_E2EL && (o->shows[m] || o->goodput_ms[m] >= 0))
            return error_set(err, STATUS_INVALID, "%s has %s; --backend %s answers whole: e2el",
                             o->shows[m] ? "--percentile-metrics" : "--goodput", metric_names[m],
                             o->backend_name);
    }
    return STATUS_OK;
}

static enum status check_server(struct bench_options *o, struct error *err)
{
    static const struct {
        const char *name;
        enum bench_backend backend;
        const char *endpoint, *ending;
    } backends[] = {
        {"openai", BENCH_BACKEND_COMPLETIONS, "/v1/completions", "completions"},
        {"vllm", BENCH_BACKEND_COMPLETIONS, "/v1/completions", "completions"},
        {"openai-chat", BENCH_BACKEND_CHAT, "/v1/chat/completions", "chat/completions"},
        {"openai-embeddings", BENCH_BACKEND_EMBEDDINGS, "/v1/embeddings", "embeddings"},
    };
    const char *wanted = "";
    for (size_t i = 0; i < ARRAY_LEN(backends); i++) {
        if (strcmp(backends[i].name, o->backend_name) != 0)
            continue;
        o->backend = backends[i].backend;
        o->endpoint = o->endpoint ? o->endpoint : backends[i].endpoint;
        wanted = backends[i].ending;
    }
    struct str endpoint = str_from(o->endpoint);
    if (endpoint.ptr[0] != '/' || !str_ends_with(endpoint, str_from(wanted)) ||
        strpbrk(o->endpoint, " \r\n"))
        return error_set(err, STATUS_INVALID,
                         "--endpoint is '%.200s', expected a path that ends in %s for --backend %s",
                         o->endpoint, wanted, o->backend_name);
    if (!o->api_key)
        o->api_key = options_env("OPENAI_API_KEY");
    const char *one_line[] = {o->api_key, o->request_id_prefix};
    for (size_t i = 0; i < ARRAY_LEN(one_line); i++) {
        if (one_line[i] && strpbrk(one_line[i], "\r\n"))
            return error_set(err, STATUS_INVALID, "%s holds a line break",
                             i == 0 ? "the API key" : "--request-id-prefix");
    }
    return STATUS_OK;
}

static enum status check_sweep(struct bench_options *o, struct error *err)
{
    bool has_rates = o->rate_texts.len > 0, has_concurrencies = o->concurrency_texts.len > 0;
    if (has_rates == has_concurrencies)
        return error_set(err, STATUS_INVALID,
                         "expected one of --request-rates and --max-concurrencies");
    if (o->rate_texts.len > MAX_SWEEP_POINTS || o->concurrency_texts.len > MAX_SWEEP_POINTS)
        return error_set(err, STATUS_INVALID, "a sweep has at most %d points", MAX_SWEEP_POINTS);
    if (has_rates && (o->self_timed || o->ramp_up != RAMP_UP_NONE))
        return error_set(err, STATUS_INVALID,
                         "--request-rates sets the rate of each run; leave "
                         "out --ramp-up-strategy and time stamps");
    for (int32_t i = 0; i < o->rate_texts.len; i++)
        TRY(check_rate("--request-rates", o->rate_texts.items[i],
                       &o->sweep_rates[o->num_sweep_rates++], err));
    for (int32_t i = 0; i < o->concurrency_texts.len; i++) {
        double value;
        if (!read_number(o->concurrency_texts.items[i], false, &value) || value < 1 ||
            value > 65536 || value != floor(value))
            return error_set(err, STATUS_INVALID,
                             "--max-concurrencies has '%.100s', expected integers in [1, 65536]",
                             o->concurrency_texts.items[i]);
        o->sweep_concurrencies[o->num_sweep_concurrencies++] = (int32_t)value;
    }
    return STATUS_OK;
}

static enum status check_commands(const struct bench_options *o, struct error *err)
{
    if (!o->bench_cmd)
        return error_set(err, STATUS_INVALID,
                         "expected --bench-cmd; `vllm bench sweep` without a word after it "
                         "measures a running server by itself");
    if (o->serve_params && !o->serve_cmd)
        return error_set(err, STATUS_INVALID, "--serve-params needs --serve-cmd");
    if (o->resume && !o->experiment_name)
        return error_set(err, STATUS_INVALID, "--resume needs --experiment-name");
    return check_plot(o, err);
}

enum status bench_options_check(struct bench_options *o, enum bench_command command,
                                const struct bench_given *given, struct error *err)
{
    if (command == BENCH_SWEEP_SERVE || command == BENCH_SWEEP_WORKLOAD)
        return check_commands(o, err);
    TRY(check_dataset(o, err));
    if (o->random_batch_size > 1 && strcmp(o->backend_name, "openai-embeddings") != 0)
        return error_set(err, STATUS_INVALID,
                         "--random-batch-size is %d; only requests of --backend openai-embeddings "
                         "hold several prompts",
                         o->random_batch_size);
    if (command == BENCH_LATENCY || command == BENCH_THROUGHPUT) {
        if (!o->model)
            return error_set(err, STATUS_INVALID, "expected --model DIR");
        if (command == BENCH_LATENCY) { // its lengths have defaults of their own
            o->input_len = o->input_len > 0 ? o->input_len : 32;
            o->output_len = o->output_len > 0 ? o->output_len : 128;
        }
        return STATUS_OK;
    }
    TRY(check_server(o, err));
    TRY(check_sampling(o, err));
    TRY(check_load(o, given->request_rate, err));
    TRY(check_report(o, err));
    if (o->backend == BENCH_BACKEND_EMBEDDINGS)
        TRY(check_embeddings(o, given, err));
    return command == BENCH_SWEEP ? check_sweep(o, err) : STATUS_OK;
}
