// POST /v1/messages and /v1/messages/count_tokens: Anthropic's shapes over the same generation.
#include "api_server/generation.h"
#include "api_server/messages_request.h"
#include "api_server/serving.h"

static enum status parse_as_chat(struct generation *g, bool counts_only, struct api_error *err)
{
    json_t *chat;
    g->fields = &g->chat.common;
    TRY(messages_request_to_chat(&chat, g->json, counts_only, err));
    json_decref(g->json);
    g->json = chat;
    enum status status =
        chat_request_parse(&g->chat, chat, &g->server->facts.protocol, &g->arena, err);
    if (status != STATUS_OK)
        api_error_rename(err, "response_format", "output_config.format");
    return status;
}

static enum status parse(struct generation *g, struct api_error *err)
{
    return parse_as_chat(g, false, err);
}

static void write_usage(struct buf *out, const struct generation *g, bool with_output)
{
    const struct choice *c = &g->choices[0];
    buf_append_c(out, "{\"input_tokens\":");
    buf_append_int(out, g->prompts[0].num_ids);
    if (g->server->options->enable_prompt_tokens_details) {
        buf_append_c(out, ",\"cache_read_input_tokens\":");
        buf_append_int(out, c->out.num_cached_tokens);
    }
    buf_append_c(out, ",\"output_tokens\":");
    buf_append_int(out, with_output ? c->out.num_tokens : 0);
    buf_append_char(out, '}');
}

/** NULL: it was cut off, for which there is no word. */
static const char *stop_reason(const struct choice *c)
{
    switch (c->out.finish_reason) {
    case FINISH_REASON_STOP:
        return "end_turn";
    case FINISH_REASON_LENGTH:
        return "max_tokens";
    default:
        return NULL;
    }
}

/** {"id":...,"model":... */
static void begin_message(struct buf *out, const struct generation *g)
{
    buf_append_c(out, "{\"id\":");
    buf_append_json_string(out, str_from(g->id));
    buf_append_c(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    buf_append_json_string(out, str_from(g->model));
}

static void write_answer(struct generation *g, struct buf *out)
{
    const struct choice *c = &g->choices[0];
    begin_message(out, g);
    buf_append_c(out, ",\"content\":[{\"type\":\"text\",\"text\":");
    buf_append_json_string(out, buf_str(&c->out.text));
    buf_append_c(out, "}]");
    if (stop_reason(c))
        buf_printf(out, ",\"stop_reason\":\"%s\"", stop_reason(c));
    buf_append_c(out, ",\"usage\":");
    write_usage(out, g, true);
    buf_append_char(out, '}');
}

static void write_stream_start(struct generation *g, struct buf *out)
{
    if (!g->fields->stream)
        return;
    sse_begin_event(out, "message_start");
    buf_append_c(out, "{\"type\":\"message_start\",\"message\":");
    begin_message(out, g);
    buf_append_c(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    write_usage(out, g, false);
    buf_append_c(out, "}}\n\n");
}

static void write_chunk(struct generation *g, struct choice *c, const struct output_delta *delta,
                        struct buf *out)
{
    (void)g;
    if (delta->text.len == 0 && !delta->is_finish)
        return;
    if (!c->has_chunk) {
        sse_begin_event(out, "content_block_start");
        buf_append_c(out, "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":"
                          "{\"type\":\"text\",\"text\":\"\"}}\n\n");
    }
    if (delta->text.len > 0) {
        sse_begin_event(out, "content_block_delta");
        buf_append_c(out, "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":"
                          "{\"type\":\"text_delta\",\"text\":");
        buf_append_json_string(out, delta->text);
        buf_append_c(out, "}}\n\n");
    }
    if (delta->is_finish) {
        sse_begin_event(out, "content_block_stop");
        buf_append_c(out, "{\"type\":\"content_block_stop\",\"index\":0}\n\n");
    }
}

static void write_stream_end(struct generation *g, struct buf *out)
{
    const char *reason = stop_reason(&g->choices[0]);
    sse_begin_event(out, "message_delta");
    buf_append_c(out, "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":");
    if (reason)
        buf_printf(out, "\"%s\"", reason);
    else
        buf_append_c(out, "null");
    buf_append_c(out, ",\"stop_sequence\":null},\"usage\":");
    write_usage(out, g, true);
    buf_append_c(out, "}\n\n");
    sse_begin_event(out, "message_stop");
    buf_append_c(out, "{\"type\":\"message_stop\"}\n\n");
}

static void write_stream_error(struct generation *g, const struct api_error *err, struct buf *out)
{
    (void)g;
    sse_begin_event(out, "error");
    api_error_write_anthropic(out, err);
    buf_append_c(out, "\n\n");
}

static const struct generation_kind messages_kind = {
    .id_prefix = "chatcmpl-",
    .parse = parse,
    .make_prompts = chat_make_prompts,
    .on_start = write_stream_start,
    .write_chunk = write_chunk,
    .write_answer = write_answer,
    .write_stream_end = write_stream_end,
    .write_stream_error = write_stream_error,
};

void serving_messages(struct api_call *call)
{
    generation_begin(call, &messages_kind);
}

// ---- counting ----

static enum status parse_count(struct generation *g, struct api_error *err)
{
    return parse_as_chat(g, true, err);
}

static void write_count(struct generation *g, struct buf *out)
{
    buf_append_c(out, "{\"input_tokens\":");
    buf_append_int(out, g->prompts[0].num_ids);
    buf_append_char(out, '}');
}

static const struct generation_kind count_kind = {
    .id_prefix = "chatcmpl-",
    .any_length = true,
    .parse = parse_count,
    .make_prompts = chat_make_prompts,
    .answer_prepared = write_count,
};

void serving_count_tokens(struct api_call *call)
{
    generation_begin(call, &count_kind);
}
