// What the engine knows of single requests, for people.
#include "api_server/debug_requests.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"

bool refusal_explain(const struct request_refusal *refusal, struct api_error *err)
{
    int num = (int)refusal->num_tokens, limit = (int)refusal->limit;
    switch (refusal->kind) {
    case REFUSAL_TOKEN_IDS:
        api_error_set(err, API_ERROR_VALUE,
                      "A token id is outside the engine's vocabulary of %d tokens.", limit);
        return true;
    case REFUSAL_MODEL_LEN:
        api_error_set(
            err, API_ERROR_VALUE,
            "The prompt has %d tokens, and the engine takes at most %d so that one output "
            "token has room.",
            num, limit);
        return true;
    case REFUSAL_STEP:
        api_error_set(err, API_ERROR_VALUE,
                      "The prompt has %d tokens, and without chunked prefill at most %d fit into a "
                      "step (--max-num-batched-tokens).",
                      num, limit);
        return true;
    case REFUSAL_KV_CACHE:
        api_error_set(err, API_ERROR_VALUE,
                      "The prompt has %d tokens, and the whole KV cache holds a prompt of at most "
                      "%d.",
                      num, limit);
        return true;
    case REFUSAL_NO_TOKEN: // the caller knows which constraints there are
    case REFUSAL_NONE:
    case NUM_REFUSAL_KINDS:
        break;
    }
    return false;
}

// ---- calls that wait for the engine's word; the client may leave before it comes ----

struct question {
    struct api_call *call;
    struct str id; // in the call's arena
};

static void on_client_gone(void *context)
{
    struct question *question = context;
    question->call = NULL;
}

static struct question *ask(struct api_call *call)
{
    struct question *question = xcalloc(1, sizeof(*question));
    question->call = call;
    api_call_on_close(call, on_client_gone, question);
    return question;
}

static void fail_unanswered(struct api_call *call)
{
    struct api_error err;
    api_error_set(&err, API_ERROR_OVERLOADED,
                  "The engine does not answer. Please try again later.");
    api_call_fail(call, &err);
}

// ---- one request ----

static void write_ms(struct buf *out, const char *name, int64_t from_ns, int64_t to_ns)
{
    buf_printf(out, "\"%s\":", name);
    if (from_ns > 0 && to_ns >= from_ns)
        buf_append_json_double(out, (double)(to_ns - from_ns) / 1e6);
    else
        buf_append_c(out, "null");
}

static void write_queue(struct buf *out, const struct request_history *h)
{
    static const char *const names[NUM_HOLD_REASONS] = {
        [HOLD_SEATS] = "max_num_seqs_running",
        [HOLD_BUDGET] = "token_budget_used",
        [HOLD_BLOCKS] = "kv_blocks_missing",
        [HOLD_AFTER_PREEMPTION] = "room_to_get_ahead_missing",
        [HOLD_PARTIAL_PREFILLS] = "partial_prefills_limit",
        [HOLD_GRAMMAR] = "waiting_for_grammar",
        [HOLD_SHARED_PREFIX] = "prefix_being_computed",
    };
    int64_t end_ns = h->scheduled_ns  ? h->scheduled_ns
                     : h->finished_ns ? h->finished_ns
                                      : h->now_ns;
    buf_append_c(out, "\"queue\":{");
    write_ms(out, "ms", h->queued_ns, end_ns);
    buf_printf(out, ",\"waiting_ahead\":%d,\"running_ahead\":%d,\"held_steps\":{",
               (int)h->num_ahead, (int)h->num_running_ahead);
    for (int i = 0; i < NUM_HOLD_REASONS; i++)
        buf_printf(out, "%s\"%s\":%" PRId64, i > 0 ? "," : "", names[i], h->num_held_steps[i]);
    buf_append_c(out, "}}");
}

static void write_prefill(struct buf *out, const struct request_history *h)
{
    buf_append_c(out, "\"prefill\":{");
    write_ms(out, "ms", h->scheduled_ns, h->first_token_ns);
    buf_printf(out, ",\"cached_tokens\":%d,\"num_chunks\":%d,\"chunks\":[",
               (int)h->num_cached_tokens, (int)h->num_chunks);
    for (int i = 0; i < min_i32(h->num_chunks, MAX_HISTORY_CHUNKS); i++) {
        const struct prefill_chunk *c = &h->chunks[i];
        buf_printf(out, "%s{\"step\":%" PRId64 ",\"first_token\":%d,\"num_tokens\":%d,",
                   i > 0 ? "," : "", c->step, (int)c->first_token, (int)c->num_tokens);
        write_ms(out, "at_ms", h->queued_ns, c->at_ns);
        buf_append_c(out, "}");
    }
    buf_append_c(out, "]}");
}

static void write_preemptions(struct buf *out, const struct request_history *h)
{
    buf_printf(out, "\"num_preemptions\":%d,\"preemptions\":[", (int)h->num_preemptions);
    for (int i = 0; i < min_i32(h->num_preemptions, MAX_HISTORY_PREEMPTIONS); i++) {
        const struct preemption *p = &h->preemptions[i];
        buf_printf(out,
                   "%s{\"step\":%" PRId64 ",\"by_engine_request\":\"%016" PRIx64
                   "\",\"lost_tokens\":%d,",
                   i > 0 ? "," : "", p->step, p->by_request_id, (int)p->num_lost_tokens);
        write_ms(out, "at_ms", h->queued_ns, p->at_ns);
        buf_append_c(out, ",");
        write_ms(out, "away_ms", p->at_ns, p->resumed_ns ? p->resumed_ns : h->now_ns);
        buf_append_c(out, "}");
    }
    buf_append_c(out, "]");
}

static void write_decode(struct buf *out, const struct request_history *h)
{
    buf_printf(out, "\"decode\":{\"output_tokens\":%d,", (int)h->num_output_tokens);
    write_ms(out, "ms", h->first_token_ns, h->last_token_ns);
    buf_append_c(out, ",\"tokens_per_second\":");
    if (h->sum_interval_ns > 0)
        buf_append_json_double(out, (double)h->num_intervals * 1e9 / (double)h->sum_interval_ns);
    else
        buf_append_c(out, "null");
    bool any = h->num_intervals > 0;
    buf_append_c(out, ",\"interval\":{");
    write_ms(out, "min_ms", any, any ? 1 + h->min_interval_ns : 0);
    buf_append_c(out, ",");
    write_ms(out, "mean_ms", any, any ? 1 + h->sum_interval_ns / h->num_intervals : 0);
    buf_append_c(out, ",");
    write_ms(out, "max_ms", any, any ? 1 + h->max_interval_ns : 0);
    buf_append_c(out, "}}");
}

static void write_history(struct buf *out, const struct request_history *h)
{
    static const char *const states[NUM_REQUEST_STATES] = {"waiting", "running", "finished"};
    static const char *const reasons[] = {"stop", "length", "abort", "error"};
    buf_printf(out, "{\"engine_request\":\"%016" PRIx64 "\",\"state\":\"%s\",\"finish_reason\":",
               h->request_id, states[h->state]);
    if (h->finish_reason == FINISH_REASON_NONE)
        buf_append_c(out, "null");
    else
        buf_append_json_string(out, str_from(reasons[h->finish_reason]));
    buf_printf(out, ",\"prompt_tokens\":%d,", (int)h->num_prompt_tokens);
    write_ms(out, "total_ms", h->queued_ns, h->finished_ns ? h->finished_ns : h->now_ns);
    buf_append_c(out, ",");
    write_queue(out, h);
    buf_append_c(out, ",");
    write_prefill(out, h);
    buf_append_c(out, ",");
    write_preemptions(out, h);
    buf_append_c(out, ",");
    write_decode(out, h);
    buf_append_c(out, "}");
}

// In the order in which the choices were made.
static int compare_histories(const void *a, const void *b)
{
    const struct request_history *x = a, *y = b;
    return (x->request_id > y->request_id) - (x->request_id < y->request_id);
}

static void answer_request(struct api_call *call, struct str id, const struct message *reply)
{
    if (reply->histories.num_histories == 0) {
        struct api_error err;
        api_error_set(&err, API_ERROR_NOT_FOUND,
                      "The request `" STR_FORMAT "` is neither running nor among the last that "
                      "finished in this engine.",
                      STR_ARG(str_slice(id, 0, 200)));
        api_call_fail(call, &err);
        return;
    }
    size_t num = (size_t)reply->histories.num_histories;
    struct request_history *sorted = arena_array(&call->arena, struct request_history, num);
    memcpy(sorted, reply->histories.histories, num * sizeof(*sorted));
    qsort(sorted, num, sizeof(*sorted), compare_histories);
    struct buf out = {0};
    buf_append_c(&out, "{\"id\":");
    buf_append_json_string(&out, id);
    buf_append_c(&out, ",\"choices\":[");
    for (size_t i = 0; i < num; i++) {
        if (i > 0)
            buf_append_c(&out, ",");
        write_history(&out, &sorted[i]);
    }
    buf_append_c(&out, "]}");
    api_call_reply_json(call, buf_str(&out));
    buf_deinit(&out);
}

static void on_histories(void *context, const struct message *reply)
{
    struct question *question = context;
    if (question->call && reply)
        answer_request(question->call, question->id, reply);
    else if (question->call)
        fail_unanswered(question->call);
    free(question);
}

void serving_debug_request(struct api_call *call)
{
    struct question *question = ask(call);
    question->id = arena_str(&call->arena, call->path_value);
    struct message message = {.kind = MESSAGE_FIND_REQUEST};
    message.find_request.external_id = str_hash(question->id);
    engine_client_ask(call->server->engine, &message, on_histories, question);
}

// ---- the flight recorder ----

static void on_dumped(void *context, const struct message *reply)
{
    struct question *question = context;
    struct api_call *call = question->call;
    free(question);
    if (!call)
        return;
    if (!reply) {
        fail_unanswered(call);
        return;
    }
    if (!reply->dumped.ok) {
        struct api_error err;
        api_error_set(&err, API_ERROR_INTERNAL, STR_FORMAT, STR_ARG(reply->dumped.text));
        api_call_fail(call, &err);
        return;
    }
    struct buf out = {0};
    buf_append_c(&out, "{\"path\":");
    buf_append_json_string(&out, reply->dumped.text);
    buf_append_c(&out, "}");
    api_call_reply_json(call, buf_str(&out));
    buf_deinit(&out);
}

void serving_debug_recording(struct api_call *call)
{
    struct message message = {.kind = MESSAGE_DUMP_RECORDING};
    engine_client_ask(call->server->engine, &message, on_dumped, ask(call));
}
