// /v1/responses: items and named events over the same generation; where the server keeps responses,
// also in the background, to be asked for, cancelled and continued later.
#include <inttypes.h>
#include <string.h>

#include "api_server/generation.h"
#include "api_server/json_body.h"
#include "api_server/logprobs.h"
#include "api_server/response_events.h"
#include "api_server/response_store.h"
#include "api_server/responses_request.h"
#include "api_server/serving.h"

// ---- the request ----

static enum status parse(struct generation *g, struct api_error *err)
{
    json_t *chat;
    g->fields = &g->chat.common;
    g->response = arena_calloc(&g->arena, 1, sizeof(*g->response));
    TRY(responses_request_to_chat(&chat, g->response, g->json, g->server->responses != NULL,
                                  &g->arena, err));
    json_decref(g->json);
    g->json = chat;
    g->is_background = g->response->background;
    enum status status =
        chat_request_parse(&g->chat, chat, &g->server->facts.protocol, &g->arena, err);
    if (status != STATUS_OK)
        api_error_rename(err, "response_format", "text.format");
    TRY(status);
    g->fields->sampling.max_tokens_field = "max_output_tokens";
    return STATUS_OK;
}

static enum status no_such_response(struct api_error *err, struct str id)
{
    return api_error_set(err, API_ERROR_NO_RESPONSE, "Response with id '" STR_FORMAT "' not found.",
                         (int)(id.len < 200 ? id.len : 200), id.ptr);
}

/** Puts the conversation that this one goes on from between the instructions and the input. */
static enum status insert_previous(struct generation *g, struct api_error *err)
{
    const struct response *r = g->response;
    if (!r->previous_id.ptr)
        return STATUS_OK;
    struct str history = {0};
    enum response_lookup found = RESPONSE_UNKNOWN;
    if (g->server->responses)
        found = response_store_history(g->server->responses, r->previous_id, &g->arena, &history);
    if (found == RESPONSE_UNKNOWN)
        return no_such_response(err, r->previous_id);
    if (found == RESPONSE_LIVE || history.len == 0)
        return api_error_set(err, API_ERROR_RESPONSE,
                             "The previous response has not completed: it cannot be continued.");
    json_t *messages = json_object_get(g->json, "messages");
    json_t *previous = json_loadb(history.ptr, history.len, JSON_ALLOW_NUL, NULL);
    size_t at = r->has_instructions ? 1 : 0;
    for (size_t i = 0; i < json_array_size(previous); i++)
        json_array_insert(messages, at + i, json_array_get(previous, i));
    json_decref(previous);
    return STATUS_OK;
}

/** Instructions are not carried over to what continues this response. */
static void keep_history(struct generation *g)
{
    struct response *r = g->response;
    json_t *messages = json_copy(json_object_get(g->json, "messages"));
    if (r->has_instructions)
        json_array_remove(messages, 0);
    char *text = json_dumps(messages, JSON_COMPACT);
    r->history = arena_str(&g->arena, str_from(text));
    free(text);
    json_decref(messages);
}

static enum status make_prompts(struct generation *g, struct api_error *err)
{
    if (g->response->background && !response_store_has_room(g->server->responses))
        return api_error_set(err, API_ERROR_OVERLOADED,
                             "Too many responses are generated in the background. Please try again "
                             "later.");
    TRY(insert_previous(g, err));
    if (g->response->store)
        keep_history(g);
    return chat_make_prompts(g, err);
}

// ---- the answer ----

static const char *state_name(const struct choice *c)
{
    switch (c->out.finish_reason) {
    case FINISH_REASON_STOP:
        return "completed";
    case FINISH_REASON_LENGTH:
        return "incomplete";
    case FINISH_REASON_ABORT:
        return "cancelled";
    case FINISH_REASON_ERROR:
        return "failed";
    default:
        return c->out.has_output ? "in_progress" : "queued";
    }
}

/** The log-probabilities of tokens [first, end) as a list; `otherwise` when nobody asked. */
static void write_logprobs(struct buf *out, const struct choice *c, int32_t first, int32_t end,
                           const char *otherwise)
{
    const struct generation *g = c->generation;
    if (g->fields->sampling.num_logprobs == NUM_LOGPROBS_NONE) {
        buf_append_c(out, otherwise);
        return;
    }
    struct logprob_format format = answer_logprob_format(g);
    struct logprob_range range = {c->out.engine.output_token_ids, &c->out.logprobs, first, end};
    logprobs_write_list(out, &format, &range, c->prompt->sampling.num_logprobs);
}

/** A part of the message, empty or whole. */
static void write_part(struct buf *out, const struct choice *c, bool whole)
{
    buf_append_c(out, "{\"type\":\"output_text\",\"text\":");
    buf_append_json_string(out, whole ? buf_str(&c->out.text) : (struct str){0});
    buf_append_c(out, ",\"annotations\":[],\"logprobs\":");
    write_logprobs(out, c, 0, whole ? c->out.num_tokens : 0, whole ? "null" : "[]");
    buf_append_char(out, '}');
}

/** The message that is the answer; before its part was added its content is empty. */
static void write_item(struct buf *out, const struct choice *c, bool whole)
{
    const char *status = !whole                                       ? "in_progress"
                         : c->out.finish_reason == FINISH_REASON_STOP ? "completed"
                                                                      : "incomplete";
    buf_append_c(out, "{\"type\":\"message\",\"id\":");
    buf_append_json_string(out, str_from(c->generation->response->item_id));
    buf_printf(out, ",\"role\":\"assistant\",\"status\":\"%s\",\"content\":[", status);
    if (whole)
        write_part(out, c, true);
    buf_append_c(out, "]}");
}

static void write_usage(struct buf *out, const struct choice *c)
{
    int32_t input = c->prompt->num_ids, output = c->out.num_tokens;
    buf_printf(out,
               "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d},"
               "\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":0},"
               "\"total_tokens\":%d}",
               input, c->out.num_cached_tokens > 0 ? c->out.num_cached_tokens : 0, output,
               input + output);
}

static void write_number(struct buf *out, bool given, double asked, float resolved)
{
    if (given)
        buf_append_json_double(out, asked);
    else
        buf_printf(out, "%.7g", (double)resolved); // as many digits as a float has
}

/** The response object. Only one that has ended has output and usage. */
static void write_response(struct buf *out, const struct generation *g, const char *status,
                           const struct api_error *failure)
{
    const struct response *r = g->response;
    const struct choice *c = &g->choices[0];
    const struct sampling_params *s = &g->prompts[0].sampling;
    const struct sampling_fields *f = &g->fields->sampling;
    bool ended = c->out.finish_reason != FINISH_REASON_NONE;
    buf_append_c(out, "{\"id\":");
    buf_append_json_string(out, str_from(g->id));
    buf_printf(out,
               ",\"object\":\"response\",\"created_at\":%" PRId64
               ",\"status\":\"%s\",\"background\":%s,\"model\":",
               g->created, status, r->background ? "true" : "false");
    buf_append_json_string(out, str_from(g->model));
    buf_append_c(out, ",\"error\":");
    if (failure) {
        buf_append_c(out, "{\"code\":\"server_error\",\"message\":");
        buf_append_json_string(out, str_from(failure->message));
        buf_append_char(out, '}');
    } else {
        buf_append_c(out, "null");
    }
    buf_append_c(out, ",\"incomplete_details\":");
    buf_append_c(out, c->out.finish_reason == FINISH_REASON_LENGTH
                          ? "{\"reason\":\"max_output_tokens\"}"
                          : "null");
    buf_append_c(out, ",\"output\":[");
    if (ended && !failure)
        write_item(out, c, true);
    buf_append_c(out, "],\"temperature\":");
    write_number(out, f->has_temperature, f->temperature, s->temperature);
    buf_append_c(out, ",\"top_p\":");
    write_number(out, f->has_top_p, f->top_p, s->top_p);
    buf_printf(out, ",\"max_output_tokens\":%d,", s->max_tokens);
    buf_append(out, r->echo);
    buf_append_c(out, ",\"usage\":");
    if (ended && !failure)
        write_usage(out, c);
    else
        buf_append_c(out, "null");
    buf_append_char(out, '}');
}

static void write_answer(struct generation *g, struct buf *out)
{
    write_response(out, g, state_name(&g->choices[0]), NULL);
}

// ---- the stream ----

/** event: T, data: {"type":"T","sequence_number":N */
static void begin_event(struct buf *out, struct generation *g, const char *type)
{
    sse_begin_event(out, type);
    buf_printf(out, "{\"type\":\"%s\",\"sequence_number\":%" PRId64, type,
               g->response->sequence_number++);
}

/** As begin_event() for an event of the message's text. */
static void begin_text_event(struct buf *out, struct generation *g, const char *type)
{
    begin_event(out, g, type);
    buf_printf(out, ",\"item_id\":\"%s\",\"output_index\":0,\"content_index\":0",
               g->response->item_id);
}

static void end_event(struct buf *out)
{
    buf_append_c(out, "}\n\n");
}

static void write_response_event(struct buf *out, struct generation *g, const char *type,
                                 const char *status)
{
    begin_event(out, g, type);
    buf_append_c(out, ",\"response\":");
    write_response(out, g, status, NULL);
    end_event(out);
}

static void write_item_event(struct buf *out, struct generation *g, const char *type, bool whole)
{
    begin_event(out, g, type);
    buf_append_c(out, ",\"output_index\":0,\"item\":");
    write_item(out, &g->choices[0], whole);
    end_event(out);
}

static void write_part_event(struct buf *out, struct generation *g, const char *type, bool whole)
{
    begin_text_event(out, g, type);
    buf_append_c(out, ",\"part\":");
    write_part(out, &g->choices[0], whole);
    end_event(out);
}

static void on_start(struct generation *g, struct buf *out)
{
    if (g->is_background) {
        struct event_log *events = g->fields->stream ? event_log_create() : NULL;
        response_store_begin(g->server->responses, str_from(g->id), g, events);
        g->events = events;
        if (events) { // the client is the first reader of several
            event_log_follow(events, g->call, -1);
            g->call = NULL;
        }
    }
    if (!g->fields->stream)
        return;
    write_response_event(out, g, "response.created", "in_progress");
    write_response_event(out, g, "response.in_progress", "in_progress");
}

static void write_chunk(struct generation *g, struct choice *c, const struct output_delta *delta,
                        struct buf *out)
{
    bool has_logprobs =
        delta->num_tokens > 0 && g->fields->sampling.num_logprobs != NUM_LOGPROBS_NONE;
    bool has_text = delta->text.len > 0 || has_logprobs;
    if (!has_text && !delta->is_finish)
        return;
    if (!c->has_chunk) {
        write_item_event(out, g, "response.output_item.added", false);
        write_part_event(out, g, "response.content_part.added", false);
    }
    if (has_text) {
        begin_text_event(out, g, "response.output_text.delta");
        buf_append_c(out, ",\"delta\":");
        buf_append_json_string(out, delta->text);
        buf_append_c(out, ",\"logprobs\":");
        write_logprobs(out, c, delta->first_token, delta->first_token + delta->num_tokens, "[]");
        end_event(out);
    }
}

static void write_stream_end(struct generation *g, struct buf *out)
{
    const struct choice *c = &g->choices[0];
    begin_text_event(out, g, "response.output_text.done");
    buf_append_c(out, ",\"text\":");
    buf_append_json_string(out, buf_str(&c->out.text));
    buf_append_c(out, ",\"logprobs\":");
    write_logprobs(out, c, 0, c->out.num_tokens, "[]");
    end_event(out);
    write_part_event(out, g, "response.content_part.done", true);
    write_item_event(out, g, "response.output_item.done", true);
    write_response_event(out, g, "response.completed", state_name(c));
}

static void write_stream_error(struct generation *g, const struct api_error *err, struct buf *out)
{
    begin_event(out, g, "error");
    buf_append_c(out, ",\"code\":\"server_error\",\"message\":");
    buf_append_json_string(out, str_from(err->message));
    buf_append_c(out, ",\"param\":null");
    end_event(out);
}

// ---- the store ----

/** The conversation with the answer at its end. */
static void append_answer(struct buf *out, const struct generation *g)
{
    struct str history = g->response->history; // "[...]"
    buf_append(out, str_slice(history, 0, history.len - 1));
    buf_append_c(out, history.len > 2 ? ",{\"role\":\"assistant\",\"content\":"
                                      : "{\"role\":\"assistant\",\"content\":");
    buf_append_json_string(out, buf_str(&g->choices[0].out.text));
    buf_append_c(out, "}]");
}

static void keep_response(struct generation *g, const char *status, const struct api_error *failure)
{
    struct buf json = {0}, history = {0};
    write_response(&json, g, status, failure);
    if (g->choices[0].out.finish_reason == FINISH_REASON_STOP ||
        g->choices[0].out.finish_reason == FINISH_REASON_LENGTH)
        append_answer(&history, g); // others cannot be continued
    response_store_finish(g->server->responses, str_from(g->id), g->is_background ? g : NULL,
                          buf_str(&json), buf_str(&history));
    buf_deinit(&json);
    buf_deinit(&history);
}

static void on_end(struct generation *g, const struct api_error *err)
{
    // A request that failed before it began has nothing to keep, nor a client who would ask.
    if (!g->response || !g->response->store || g->num_choices == 0 || (err && !g->is_background))
        return;
    keep_response(g, err ? "failed" : state_name(&g->choices[0]), err);
    if (g->events)
        event_log_end(g->events);
}

static const struct generation_kind responses_kind = {
    .id_prefix = "resp_",
    .parse = parse,
    .make_prompts = make_prompts,
    .on_start = on_start,
    .write_chunk = write_chunk,
    .write_answer = write_answer,
    .write_stream_end = write_stream_end,
    .write_stream_error = write_stream_error,
    .on_end = on_end,
};

void serving_responses(struct api_call *call)
{
    generation_begin(call, &responses_kind);
}

static void fail_unknown(struct api_call *call, struct str id)
{
    struct api_error err;
    no_such_response(&err, id);
    api_call_fail(call, &err);
}

/** The response that the path names. */
static enum response_lookup find_response(struct api_call *call, struct str id,
                                          struct generation **live, struct str *json)
{
    if (!call->server->responses)
        return RESPONSE_UNKNOWN;
    return response_store_find(call->server->responses, id, live, json);
}

/** ?stream=true&starting_after=N */
static enum status read_query(const struct api_call *call, bool *stream, int64_t *after,
                              struct api_error *err)
{
    struct str query = http_exchange_query(call->exchange);
    *stream = false;
    *after = -1;
    while (query.len > 0) {
        struct str value = str_split(&query, '&');
        struct str key = str_split(&value, '=');
        if (str_eq(key, STR("stream"))) {
            *stream = str_eq(value, STR("true")) || str_eq(value, STR("1"));
        } else if (str_eq(key, STR("starting_after"))) {
            *after = 0;
            bool is_number = value.len > 0 && value.len <= 9;
            for (size_t i = 0; is_number && i < value.len; i++) {
                is_number = value.ptr[i] >= '0' && value.ptr[i] <= '9';
                *after = 10 * *after + (value.ptr[i] - '0');
            }
            if (!is_number)
                return api_error_schema(err, "int_parsing", "query.starting_after", NULL,
                                        "Input should be the sequence number of an event");
        }
    }
    return STATUS_OK;
}

void serving_response_get(struct api_call *call)
{
    struct generation *live;
    struct str json, id = call->path_value;
    enum response_lookup found = find_response(call, id, &live, &json);
    if (found == RESPONSE_UNKNOWN) {
        fail_unknown(call, id);
        return;
    }
    bool stream;
    int64_t after;
    struct api_error err;
    struct event_log *events = response_store_events(call->server->responses, id);
    enum status status = read_query(call, &stream, &after, &err);
    if (status == STATUS_OK && stream && !events)
        status = api_error_set(&err, API_ERROR_RESPONSE,
                               "Only responses that were created with `background=true` and "
                               "`stream=true` can be streamed.");
    if (status != STATUS_OK) {
        api_call_fail(call, &err);
        return;
    }
    if (stream) {
        event_log_follow(events, call, after);
        return;
    }
    struct buf out = {0};
    if (found == RESPONSE_LIVE)
        write_answer(live, &out);
    else
        buf_append(&out, json);
    api_call_reply_json(call, buf_str(&out));
    buf_deinit(&out);
}

void serving_response_cancel(struct api_call *call)
{
    struct generation *live;
    struct str json, id = call->path_value;
    enum response_lookup found = find_response(call, id, &live, &json);
    if (found == RESPONSE_UNKNOWN) {
        fail_unknown(call, id);
        return;
    }
    if (found == RESPONSE_FINISHED) {
        struct api_error err;
        api_error_set(&err, API_ERROR_RESPONSE, "Cannot cancel a synchronous response.");
        api_call_fail(call, &err);
        return;
    }
    const char *live_id = arena_strdup(&call->arena, str_from(live->id));
    keep_response(live, "cancelled", NULL);
    generation_cancel(live);
    response_store_find(call->server->responses, str_from(live_id), &live, &json);
    struct buf out = {0};
    buf_append(&out, json);
    api_call_reply_json(call, buf_str(&out));
    buf_deinit(&out);
}
