// A row of the page is an array of slots. Where each series starts follows from the tables: first
// the counters, then per histogram its buckets (not cumulative), the last being +Inf, and its sum,
// then the HTTP series. A slot has one writer, so adding is a load and a store.
#include "api_server/metrics.h"

#include <math.h>
#include <stdio.h>

#include "api_server/exposition.h"
#include "api_server/metrics_host.h"
#include "base/clock.h"
#include "base/memory.h"

enum { MAX_BUCKETS = 24 };

static const double buckets_a[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                   0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                   20,    40,    80,   160,  640,  2560};
static const double buckets_b[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                   0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double buckets_c[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                   30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double buckets_d[] = {1,   2,   5,   1e1, 2e1, 5e1, 1e2, 2e2, 5e2, 1e3, 2e3,
                                   5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7};
static const double buckets_n[] = {1, 2, 5, 10, 20};
static const double buckets_http[] = {0.1, 0.5, 1};
static const double buckets_highr[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1,  1.5, 2,
                                       2.5,  3,     3.5,  4,     4.5, 5,    7.5, 10,   30, 60};
static const double buckets_iteration[] = {1,   8,    16,   32,   64,   128,  256,
                                           512, 1024, 2048, 4096, 8192, 16384};

#define BUCKETS(array) (array), ARRAY_LEN(array)

struct histogram_row {
    const char *name, *help;
    const double *buckets;
    size_t num_buckets; // without +Inf
};

static const struct histogram_row histograms[NUM_METRIC_HISTOGRAMS] = {
    [METRIC_TIME_TO_FIRST_TOKEN] = {"vllm:time_to_first_token_seconds",
                                    "Histogram of time to first token in seconds.",
                                    BUCKETS(buckets_a)},
    [METRIC_INTER_TOKEN_LATENCY] = {"vllm:inter_token_latency_seconds",
                                    "Histogram of inter-token latency in seconds.",
                                    BUCKETS(buckets_b)},
    [METRIC_TIME_PER_OUTPUT_TOKEN] = {"vllm:request_time_per_output_token_seconds",
                                      "Histogram of time_per_output_token_seconds per request.",
                                      BUCKETS(buckets_b)},
    [METRIC_E2E_LATENCY] = {"vllm:e2e_request_latency_seconds",
                            "Histogram of e2e request latency in seconds.", BUCKETS(buckets_c)},
    [METRIC_QUEUE_TIME] = {"vllm:request_queue_time_seconds",
                           "Histogram of time spent in WAITING phase for request.",
                           BUCKETS(buckets_c)},
    [METRIC_PREFILL_TIME] = {"vllm:request_prefill_time_seconds",
                             "Histogram of time spent in PREFILL phase for request.",
                             BUCKETS(buckets_c)},
    [METRIC_DECODE_TIME] = {"vllm:request_decode_time_seconds",
                            "Histogram of time spent in DECODE phase for request.",
                            BUCKETS(buckets_c)},
    [METRIC_INFERENCE_TIME] = {"vllm:request_inference_time_seconds",
                               "Histogram of time spent in RUNNING phase for request.",
                               BUCKETS(buckets_c)},
    [METRIC_REQUEST_PROMPT_TOKENS] = {"vllm:request_prompt_tokens",
                                      "Number of prefill tokens processed.", BUCKETS(buckets_d)},
    [METRIC_REQUEST_GENERATION_TOKENS] = {"vllm:request_generation_tokens",
                                          "Number of generation tokens processed.",
                                          BUCKETS(buckets_d)},
    [METRIC_MAX_NUM_GENERATION_TOKENS] = {"vllm:request_max_num_generation_tokens",
                                          "Histogram of maximum number of requested generation "
                                          "tokens.",
                                          BUCKETS(buckets_d)},
    [METRIC_PARAMS_MAX_TOKENS] = {"vllm:request_params_max_tokens",
                                  "Histogram of the max_tokens request parameter.",
                                  BUCKETS(buckets_d)},
    [METRIC_PREFILL_KV_COMPUTED_TOKENS] = {"vllm:request_prefill_kv_computed_tokens",
                                           "Histogram of new KV tokens computed during prefill "
                                           "(excluding cached tokens).",
                                           BUCKETS(buckets_d)},
    [METRIC_PARAMS_N] = {"vllm:request_params_n", "Histogram of the n request parameter.",
                         BUCKETS(buckets_n)},
};

static const struct {
    const char *path, *method;
} handlers[NUM_METRIC_HANDLERS] = {
    [HANDLER_CHAT] = {"/v1/chat/completions", "POST"},
    [HANDLER_COMPLETIONS] = {"/v1/completions", "POST"},
    [HANDLER_MODELS] = {"/v1/models", "GET"},
    [HANDLER_TOKENIZE] = {"/tokenize", "POST"},
    [HANDLER_DETOKENIZE] = {"/detokenize", "POST"},
    [HANDLER_RESET_PREFIX_CACHE] = {"/reset_prefix_cache", "POST"},
    [HANDLER_CHAT_RENDER] = {"/v1/chat/completions/render", "POST"},
    [HANDLER_COMPLETION_RENDER] = {"/v1/completions/render", "POST"},
    [HANDLER_RESPONSES] = {"/v1/responses", "POST"},
    [HANDLER_RESPONSE] = {"/v1/responses/{response_id}", "GET"},
    [HANDLER_RESPONSE_CANCEL] = {"/v1/responses/{response_id}/cancel", "POST"},
    [HANDLER_MESSAGES] = {"/v1/messages", "POST"},
    [HANDLER_COUNT_TOKENS] = {"/v1/messages/count_tokens", "POST"},
    [HANDLER_EMBEDDINGS] = {"/v1/embeddings", "POST"},
    [HANDLER_INVOCATIONS] = {"/invocations", "POST"},
    [HANDLER_NONE] = {"none", "none"},
};

enum {
    NUM_STATUS_CLASSES = 5,
    HTTP_HISTOGRAM_SLOTS = ARRAY_LEN(buckets_http) + 2,
    // Of one handler: requests by class, duration, count and sum of two sizes.
    HTTP_SLOTS = NUM_STATUS_CLASSES + HTTP_HISTOGRAM_SLOTS + 4,
};

static int32_t histogram_slot(enum metric_histogram histogram)
{
    int32_t slot = NUM_METRIC_COUNTERS;
    for (int h = 0; h < (int)histogram; h++)
        slot += (int32_t)histograms[h].num_buckets + 2;
    return slot;
}

static int32_t http_slot(enum metric_handler handler)
{
    return histogram_slot(NUM_METRIC_HISTOGRAMS) + (int32_t)handler * HTTP_SLOTS;
}

static int32_t highr_slot(void)
{
    return http_slot(NUM_METRIC_HANDLERS);
}

// ---- counting ----

static void add(struct metrics *m, int32_t slot, double by)
{
    CHECK(slot >= 0 && slot < NUM_FRONT_COUNTERS);
    _Atomic double *counter = &m->page->fronts[m->client_index].counters[slot];
    double value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + by, memory_order_relaxed);
}

static void observe(struct metrics *m, int32_t slot, const double *buckets, size_t num_buckets,
                    double value)
{
    if (!(value >= 0) || !isfinite(value))
        value = 0;
    size_t b = 0;
    while (b < num_buckets && value > buckets[b])
        b++;
    add(m, slot + (int32_t)b, 1);
    add(m, slot + (int32_t)num_buckets + 1, value);
}

void metrics_count(struct metrics *m, enum metric_counter counter, double by)
{
    if (by > 0)
        add(m, (int32_t)counter, by);
}

void metrics_begin(struct metrics *m)
{
    const _Atomic double *row = m->page->fronts[m->client_index].counters;
    double unfinished = row[METRIC_REQUESTS_RECEIVED] - row[METRIC_REQUESTS_LOST];
    for (int i = METRIC_SUCCESS_STOP; i < METRIC_REQUESTS_RECEIVED; i++)
        unfinished -= row[i];
    metrics_count(m, METRIC_REQUESTS_LOST, unfinished);
}

void metrics_observe(struct metrics *m, enum metric_histogram histogram, double value)
{
    const struct histogram_row *row = &histograms[histogram];
    observe(m, histogram_slot(histogram), row->buckets, row->num_buckets, value);
}

void metrics_success(struct metrics *m, enum finish_reason reason)
{
    if (reason != FINISH_REASON_NONE)
        add(m, METRIC_SUCCESS_STOP + (int32_t)reason, 1);
}

void metrics_http(struct metrics *m, enum metric_handler handler, int32_t status, double seconds,
                  size_t request_bytes, size_t response_bytes)
{
    if (handler == HANDLER_EXCLUDED)
        return;
    int32_t slot = http_slot(handler);
    int32_t class = status / 100 - 1;
    add(m, slot + (class < 0 || class >= NUM_STATUS_CLASSES ? NUM_STATUS_CLASSES - 1 : class), 1);
    slot += NUM_STATUS_CLASSES;
    observe(m, slot, BUCKETS(buckets_http), seconds);
    slot += HTTP_HISTOGRAM_SLOTS;
    add(m, slot, 1);
    add(m, slot + 1, (double)request_bytes);
    add(m, slot + 2, 1);
    add(m, slot + 3, (double)response_bytes);
    observe(m, highr_slot(), BUCKETS(buckets_highr), seconds);
}

static double total(const struct metrics *m, int32_t slot)
{
    double sum = 0;
    for (int32_t i = 0; i < m->page->num_api_servers && i < MAX_API_SERVERS; i++)
        sum += atomic_load_explicit(&m->page->fronts[i].counters[slot], memory_order_relaxed);
    return sum;
}

double metrics_total(const struct metrics *m, enum metric_counter counter)
{
    return total(m, (int32_t)counter);
}

// ---- rendering ----

struct render {
    const struct metrics *metrics;
    struct buf *out;
    struct buf labels; // model_name="...",engine="0"
    double created;    // when counting began
};

static void head(struct render *r, const char *name, const char *suffix, const char *type,
                 const char *help)
{
    exposition_head(r->out, name, suffix, type, help);
}

static void sample(struct render *r, const char *name, const char *suffix, struct str base,
                   const char *extra, double value)
{
    exposition_sample(r->out, name, suffix, base, extra, value);
}

static void gauge(struct render *r, const char *name, const char *help, double value)
{
    head(r, name, "", "gauge", help);
    sample(r, name, "", buf_str(&r->labels), "", value < 0 ? 0 : value);
}

/** A counter with one sample for each of `extras`. */
static void counter_by(struct render *r, const char *name, const char *help,
                       const char *const *extras, const double *values, size_t count)
{
    head(r, name, "_total", "counter", help);
    for (size_t i = 0; i < count; i++)
        sample(r, name, "_total", buf_str(&r->labels), extras[i], values[i]);
    head(r, name, "_created", "gauge", help);
    for (size_t i = 0; i < count; i++)
        sample(r, name, "_created", buf_str(&r->labels), extras[i], r->created);
}

static void counter(struct render *r, const char *name, const char *help, double value)
{
    counter_by(r, name, help, (const char *const[]){""}, &value, 1);
}

/** `counts`: per bucket, the last one +Inf. `limit`: buckets above it are left out (0: none). */
static void histogram_samples(struct render *r, const char *name, struct str base,
                              const double *buckets, size_t num_buckets, const double *counts,
                              double sum, double limit)
{
    double cumulative = 0;
    for (size_t b = 0; b <= num_buckets; b++) {
        cumulative += counts[b];
        if (b < num_buckets && limit > 0 && buckets[b] > limit)
            continue;
        struct buf le = {0};
        buf_append_c(&le, "le=\"");
        exposition_number(&le, b < num_buckets ? buckets[b] : INFINITY);
        buf_append_c(&le, "\"");
        buf_append_char(&le, '\0');
        sample(r, name, "_bucket", base, le.ptr, cumulative);
        buf_deinit(&le);
    }
    sample(r, name, "_count", base, "", cumulative);
    sample(r, name, "_sum", base, "", sum);
}

static void page_histogram(struct render *r, const char *name, struct str base, int32_t slot,
                           const double *buckets, size_t num_buckets, double limit)
{
    double counts[MAX_BUCKETS + 1];
    for (size_t b = 0; b <= num_buckets; b++)
        counts[b] = total(r->metrics, slot + (int32_t)b);
    histogram_samples(r, name, base, buckets, num_buckets, counts,
                      total(r->metrics, slot + (int32_t)num_buckets + 1), limit);
}

static void render_gauges(struct render *r)
{
    const struct engine_page *e = &r->metrics->page->engine;
    // An engine that is gone runs nothing, whatever its last step wrote.
    bool ready = atomic_load(&e->state) == ENGINE_STATE_READY;
    double running = ready ? atomic_load(&e->num_running) : 0;
    double waiting = ready ? atomic_load(&e->num_waiting) : 0;
    double used = ready ? atomic_load(&e->num_used_blocks) : 0;
    double blocks = atomic_load(&e->num_blocks);
    gauge(r, "vllm:num_requests_running", "Number of requests in model execution batches.",
          running);
    gauge(r, "vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting);
    head(r, "vllm:num_requests_waiting_by_reason", "", "gauge",
         "Number of waiting requests by reason.");
    sample(r, "vllm:num_requests_waiting_by_reason", "", buf_str(&r->labels), "reason=\"capacity\"",
           waiting < 0 ? 0 : waiting);
    sample(r, "vllm:num_requests_waiting_by_reason", "", buf_str(&r->labels), "reason=\"deferred\"",
           0);
    double usage = blocks > 0 ? used / blocks : 0;
    gauge(r, "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
          usage > 1 ? 1 : usage);
    static const char *const states[] = {"awake", "weights_offloaded", "discard_all"};
    head(r, "vllm:engine_sleep_state", "", "gauge",
         "Engine sleep state; awake = 0 means engine is sleeping.");
    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        char extra[64];
        snprintf(extra, sizeof(extra), "sleep_state=\"%s\"", states[i]);
        sample(r, "vllm:engine_sleep_state", "", buf_str(&r->labels), extra, i == 0);
    }
}

static void render_cache_config(struct render *r)
{
    const struct engine_page *e = &r->metrics->page->engine;
    const struct serve_options *o = r->metrics->options;
    struct buf labels = {0};
    buf_printf(&labels, "block_size=\"%d\",", atomic_load(&e->block_size));
    buf_append_c(&labels, "cache_dtype=");
    exposition_label_value(&labels, str_from(o->kv_cache_dtype ? o->kv_cache_dtype : "auto"));
    buf_printf(&labels,
               ",enable_prefix_caching=\"%s\",engine=\"0\",gpu_memory_utilization=\"%g\","
               "kv_cache_max_concurrency=\"%.2f\",kv_cache_size_tokens=\"%lld\","
               "num_gpu_blocks=\"%d\",num_gpu_blocks_override=\"",
               atomic_load(&e->prefix_caching) ? "True" : "False", o->gpu_memory_utilization,
               atomic_load(&e->kv_cache_max_concurrency),
               (long long)atomic_load(&e->kv_cache_size_tokens), atomic_load(&e->num_blocks));
    if (o->num_gpu_blocks_override >= 0)
        buf_printf(&labels, "%d\"", o->num_gpu_blocks_override);
    else
        buf_append_c(&labels, "None\"");
    buf_append_c(&labels, ",kv_cache_memory_bytes=\"");
    if (o->kv_cache_memory_bytes >= 0)
        buf_printf(&labels, "%lld\"", (long long)o->kv_cache_memory_bytes);
    else
        buf_append_c(&labels, "None\"");
    head(r, "vllm:cache_config_info", "", "gauge", "Information of the LLMEngine CacheConfig");
    sample(r, "vllm:cache_config_info", "", buf_str(&labels), "", 1);
    buf_deinit(&labels);
}

static void render_counters(struct render *r)
{
    const struct engine_page *e = &r->metrics->page->engine;
    const struct metrics *m = r->metrics;
    counter(r, "vllm:prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
            (double)atomic_load(&e->prefix_cache_queries));
    counter(r, "vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.",
            (double)atomic_load(&e->prefix_cache_hits));
    // There is no connector to another cache and no cache of media here: nothing to count.
    counter(
        r, "vllm:external_prefix_cache_queries",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms "
        "of number of queried tokens.",
        0);
    counter(
        r, "vllm:external_prefix_cache_hits",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of "
        "number of cached tokens.",
        0);
    counter(r, "vllm:mm_cache_queries",
            "Multi-modal cache queries, in terms of number of queried items.", 0);
    counter(r, "vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.",
            0);
    counter(r, "vllm:num_preemptions", "Cumulative number of preemption from the engine.",
            (double)atomic_load(&e->num_preemptions));
    counter(r, "vllm:prompt_tokens", "Number of prefill tokens processed.",
            total(m, METRIC_PROMPT_TOKENS));
    const double by_source[] = {total(m, METRIC_PROMPT_TOKENS_COMPUTED),
                                total(m, METRIC_PROMPT_TOKENS_CACHED), 0};
    static const char *const sources[] = {"source=\"local_compute\"", "source=\"local_cache_hit\"",
                                          "source=\"external_kv_transfer\""};
    counter_by(r, "vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", sources,
               by_source, 3);
    counter(r, "vllm:prompt_tokens_cached", "Number of cached prompt tokens (local and external).",
            total(m, METRIC_PROMPT_TOKENS_CACHED));
    counter(r, "vllm:generation_tokens", "Number of generation tokens processed.",
            total(m, METRIC_GENERATION_TOKENS));
    static const char *const reasons[] = {"finished_reason=\"stop\"", "finished_reason=\"length\"",
                                          "finished_reason=\"abort\"", "finished_reason=\"error\"",
                                          "finished_reason=\"repetition\""};
    const double successes[] = {total(m, METRIC_SUCCESS_STOP), total(m, METRIC_SUCCESS_LENGTH),
                                total(m, METRIC_SUCCESS_ABORT), total(m, METRIC_SUCCESS_ERROR),
                                total(m, METRIC_SUCCESS_REPETITION)};
    counter_by(r, "vllm:request_success", "Count of successfully processed requests.", reasons,
               successes, 5);
}

static void render_histograms(struct render *r)
{
    const struct engine_page *e = &r->metrics->page->engine;
    double max_model_len = atomic_load(&e->max_model_len);
    for (int h = 0; h < NUM_METRIC_HISTOGRAMS; h++) {
        const struct histogram_row *row = &histograms[h];
        head(r, row->name, "", "histogram", row->help);
        page_histogram(r, row->name, buf_str(&r->labels), histogram_slot(h), row->buckets,
                       row->num_buckets, row->buckets == buckets_d ? max_model_len : 0);
        head(r, row->name, "_created", "gauge", row->help);
        sample(r, row->name, "_created", buf_str(&r->labels), "", r->created);
    }
    double counts[MAX_BUCKETS + 1] = {0};
    _Static_assert(NUM_ITERATION_TOKEN_BUCKETS == ARRAY_LEN(buckets_iteration) + 1, "and +Inf");
    for (size_t b = 0; b < NUM_ITERATION_TOKEN_BUCKETS; b++)
        counts[b] = (double)atomic_load(&e->iteration_tokens_buckets[b]);
    const char *name = "vllm:iteration_tokens_total";
    head(r, name, "", "histogram", "Histogram of number of tokens per engine_step.");
    histogram_samples(r, name, buf_str(&r->labels), BUCKETS(buckets_iteration), counts,
                      (double)atomic_load(&e->iteration_tokens_sum), 0);
    head(r, name, "_created", "gauge", "Histogram of number of tokens per engine_step.");
    sample(r, name, "_created", buf_str(&r->labels), "", r->created);
}

/** Requests by handler and class of status: how many, or (`created`) since when they are counted.
 */
static void http_requests(struct render *r, bool created)
{
    static const char name[] = "http_requests";
    static const char help[] = "Total number of requests by method, status and handler.";
    const char *suffix = created ? "_created" : "_total";
    char labels[128];
    head(r, name, suffix, created ? "gauge" : "counter", help);
    for (int h = 0; h < NUM_METRIC_HANDLERS; h++) {
        for (int class = 0; class < NUM_STATUS_CLASSES; class ++) {
            double value = total(r->metrics, http_slot(h) + class);
            snprintf(labels, sizeof(labels), "handler=\"%s\",method=\"%s\",status=\"%dxx\"",
                     handlers[h].path, handlers[h].method, class + 1);
            if (value > 0)
                sample(r, name, suffix, (struct str){0}, labels, created ? r->created : value);
        }
    }
}

/** Whether a handler has answered. */
static bool is_used(const struct render *r, int handler)
{
    return total(r->metrics, http_slot(handler) + NUM_STATUS_CLASSES + HTTP_HISTOGRAM_SLOTS) > 0;
}

/** A summary of a count and a sum for each handler; the count is at `slot` behind its histogram. */
static void http_sizes(struct render *r, const char *name, const char *help, int32_t slot)
{
    char labels[128];
    for (int created = 0; created < 2; created++) {
        head(r, name, created ? "_created" : "", created ? "gauge" : "summary", help);
        for (int h = 0; h < NUM_METRIC_HANDLERS; h++) {
            int32_t at = http_slot(h) + NUM_STATUS_CLASSES + HTTP_HISTOGRAM_SLOTS + slot;
            snprintf(labels, sizeof(labels), "handler=\"%s\"", handlers[h].path);
            if (!is_used(r, h))
                continue;
            if (created) {
                sample(r, name, "_created", (struct str){0}, labels, r->created);
                continue;
            }
            sample(r, name, "_count", (struct str){0}, labels, total(r->metrics, at));
            sample(r, name, "_sum", (struct str){0}, labels, total(r->metrics, at + 1));
        }
    }
}

static void http_durations(struct render *r)
{
    static const char name[] = "http_request_duration_seconds";
    static const char help[] = "Latency with only few buckets by handler.";
    char labels[128];
    for (int created = 0; created < 2; created++) {
        head(r, name, created ? "_created" : "", created ? "gauge" : "histogram", help);
        for (int h = 0; h < NUM_METRIC_HANDLERS; h++) {
            snprintf(labels, sizeof(labels), "handler=\"%s\",method=\"%s\"", handlers[h].path,
                     handlers[h].method);
            if (is_used(r, h) && created)
                sample(r, name, "_created", (struct str){0}, labels, r->created);
            else if (is_used(r, h))
                page_histogram(r, name, str_from(labels), http_slot(h) + NUM_STATUS_CLASSES,
                               BUCKETS(buckets_http), 0);
        }
    }
}

static void render_http(struct render *r)
{
    static const char highr[] = "http_request_duration_highr_seconds";
    static const char highr_help[] = "Latency with many buckets but no API specific labels.";
    http_requests(r, false);
    http_requests(r, true);
    http_sizes(r, "http_request_size_bytes", "Content length of incoming requests by handler.", 0);
    http_sizes(r, "http_response_size_bytes", "Content length of outgoing responses by handler.",
               2);
    head(r, highr, "", "histogram", highr_help);
    page_histogram(r, highr, (struct str){0}, highr_slot(), BUCKETS(buckets_highr), 0);
    head(r, highr, "_created", "gauge", highr_help);
    sample(r, highr, "_created", (struct str){0}, "", r->created);
    http_durations(r);
}

/** What vLLM does not have. */
static void render_own(struct render *r)
{
    const struct metrics *m = r->metrics;
    const struct engine_page *e = &m->page->engine;
    counter(r, "vllm_c:requests_received", "Requests handed to the engine, each choice one.",
            total(m, METRIC_REQUESTS_RECEIVED));
    counter(r, "vllm_c:requests_lost",
            "Requests that ended with the API server that waited for them.",
            total(m, METRIC_REQUESTS_LOST));
    counter(r, "vllm_c:recomputed_tokens", "Tokens computed again after a preemption.",
            (double)atomic_load(&e->num_recomputed_tokens));
    counter(r, "vllm_c:engine_steps", "Steps that the engine ran.",
            (double)atomic_load(&e->num_steps));
    counter(r, "vllm_c:engine_starts", "Times that an engine was started.",
            (double)atomic_load(&e->generation));
    static const char *const phases[NUM_STEP_PHASES] = {
        [STEP_PHASE_SCHEDULE] = "phase=\"schedule\"",
        [STEP_PHASE_EXECUTE] = "phase=\"execute\"",
        [STEP_PHASE_UPDATE] = "phase=\"update\"",
        [STEP_PHASE_SEND] = "phase=\"send\"",
    };
    double seconds[NUM_STEP_PHASES];
    for (int i = 0; i < NUM_STEP_PHASES; i++)
        seconds[i] = (double)atomic_load(&e->step_phase_ns[i]) / 1e9;
    counter_by(r, "vllm_c:step_seconds", "Time that the phases of steps took.", phases, seconds,
               NUM_STEP_PHASES);
    gauge(r, "vllm_c:engine_healthy",
          "1 while the engine is ready and beats or makes progress; what /health says.",
          engine_page_is_healthy(e, clock_monotonic_ns()));
}

void metrics_render(const struct metrics *m, struct buf *out)
{
    struct render r = {.metrics = m, .out = out, .created = (double)m->page->start_wall_ns / 1e9};
    buf_append_c(&r.labels, "engine=\"0\",model_name=");
    exposition_label_value(&r.labels, str_from(m->options->served_model_names.items[0]));
    metrics_render_processes(m, out);
    metrics_render_gpus(m, out);
    if (!m->options->disable_log_stats) {
        render_gauges(&r);
        render_cache_config(&r);
        render_counters(&r);
        render_histograms(&r);
        render_own(&r);
    }
    render_http(&r);
    buf_deinit(&r.labels);
}
