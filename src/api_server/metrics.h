// What Prometheus reads: every series once, in a table; counts live in the shared page, one row an
// API server, so that they outlive the process that counts and any server can show the sum.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "api_server/gpu_monitor.h"
#include "base/buf.h"
#include "base/str.h"
#include "config/options.h"
#include "message/message.h"
#include "message/shared_page.h"

/** Counters of this process's row. */
enum metric_counter {
    METRIC_PROMPT_TOKENS,
    METRIC_PROMPT_TOKENS_COMPUTED,
    METRIC_PROMPT_TOKENS_CACHED,
    METRIC_GENERATION_TOKENS,
    METRIC_SUCCESS_STOP, // in the order of enum finish_reason
    METRIC_SUCCESS_LENGTH,
    METRIC_SUCCESS_ABORT,
    METRIC_SUCCESS_ERROR,
    METRIC_SUCCESS_REPETITION,
    METRIC_REQUESTS_RECEIVED, // each choice one; directly behind the finish reasons
    METRIC_REQUESTS_LOST,     // their API server died
    NUM_METRIC_COUNTERS,
};

enum metric_histogram {
    METRIC_TIME_TO_FIRST_TOKEN,
    METRIC_INTER_TOKEN_LATENCY,
    METRIC_TIME_PER_OUTPUT_TOKEN,
    METRIC_E2E_LATENCY,
    METRIC_QUEUE_TIME,
    METRIC_PREFILL_TIME,
    METRIC_DECODE_TIME,
    METRIC_INFERENCE_TIME,
    METRIC_REQUEST_PROMPT_TOKENS,
    METRIC_REQUEST_GENERATION_TOKENS,
    METRIC_MAX_NUM_GENERATION_TOKENS,
    METRIC_PARAMS_MAX_TOKENS,
    METRIC_PREFILL_KV_COMPUTED_TOKENS,
    METRIC_PARAMS_N,
    NUM_METRIC_HISTOGRAMS,
};

/** Paths that http_requests_total tells apart; the small ones (health, metrics ...) do not count.
 */
enum metric_handler {
    HANDLER_CHAT,
    HANDLER_COMPLETIONS,
    HANDLER_MODELS,
    HANDLER_TOKENIZE,
    HANDLER_DETOKENIZE,
    HANDLER_RESET_PREFIX_CACHE,
    HANDLER_CHAT_RENDER,
    HANDLER_COMPLETION_RENDER,
    HANDLER_RESPONSES,
    HANDLER_RESPONSE,
    HANDLER_RESPONSE_CANCEL,
    HANDLER_MESSAGES,
    HANDLER_COUNT_TOKENS,
    HANDLER_EMBEDDINGS,
    HANDLER_INVOCATIONS,
    HANDLER_NONE, // unknown paths
    NUM_METRIC_HANDLERS,
    HANDLER_EXCLUDED = NUM_METRIC_HANDLERS,
};

/** Borrowed pointers; the event loop's. */
struct metrics {
    struct shared_page *page;
    const struct serve_options *options;
    int32_t client_index;
    const struct gpu_readings *gpus; // NULL: not known
};

/** Settles what an earlier process of this row left unfinished. Before anything is counted. */
void metrics_begin(struct metrics *metrics);

void metrics_count(struct metrics *metrics, enum metric_counter counter, double by);
/** Not-a-number and negative values count as 0. */
void metrics_observe(struct metrics *metrics, enum metric_histogram histogram, double value);
void metrics_success(struct metrics *metrics, enum finish_reason reason);
void metrics_http(struct metrics *metrics, enum metric_handler handler, int32_t status,
                  double seconds, size_t request_bytes, size_t response_bytes);

/** A counter summed over all API servers. */
double metrics_total(const struct metrics *metrics, enum metric_counter counter);

/** Appends the exposition (text format 0.0.4). */
void metrics_render(const struct metrics *metrics, struct buf *out);
