// POST /v1/chat/completions.
#include "api_server/chat_render.h"
#include "api_server/generation.h"
#include "api_server/logprobs.h"
#include "api_server/serving.h"

static enum status parse(struct generation *g, struct api_error *err)
{
    g->fields = &g->chat.common;
    return chat_request_parse(&g->chat, g->json, &g->server->facts.protocol, &g->arena, err);
}

enum status chat_make_prompts(struct generation *g, struct api_error *err)
{
    g->num_prompts = 1;
    g->prompts = arena_calloc(&g->arena, 1, sizeof(*g->prompts));
    struct str text, last_text, last_role;
    TRY(chat_render(g->server, &g->chat, &g->arena, &text, &last_text, &last_role, err));
    g->prompts[0].text = text;
    g->role = g->chat.add_generation_prompt || !last_role.ptr
                  ? str_from(g->server->options->response_role)
                  : last_role;
    // Echo gives back the last message when the answer goes on in its role.
    bool echoes = g->fields->echo && str_eq(last_role, g->role);
    g->echo_text = echoes ? last_text : (struct str){0};
    return STATUS_OK;
}

static void write_prompt_fields(struct buf *out, const struct generation *g)
{
    const struct prompt *p = &g->prompts[0];
    buf_append_c(out, "\"prompt_token_ids\":");
    if (g->fields->return_token_ids)
        answer_write_ids(out, p->ids, p->num_ids);
    else
        buf_append_c(out, "null");
    buf_append_c(out, ",\"prompt_text\":");
    if (g->fields->return_prompt_text)
        buf_append_json_string(out, p->text);
    else
        buf_append_c(out, "null");
}

static void write_logprobs(struct buf *out, const struct choice *c, int32_t first, int32_t end)
{
    const struct sampling_fields *s = &c->generation->fields->sampling;
    if (s->num_logprobs == NUM_LOGPROBS_NONE || first == end) {
        buf_append_c(out, "null");
        return;
    }
    struct logprob_format format = answer_logprob_format(c->generation);
    struct logprob_range range = {c->out.engine.output_token_ids, &c->out.logprobs, first, end};
    logprobs_write_chat(out, &format, &range, c->prompt->sampling.num_logprobs);
}

/** "choices":[{"index":I,"delta":{ */
static void begin_delta(struct buf *out, const struct choice *c)
{
    sse_begin_chunk(out, c->generation);
    buf_append_c(out, "{\"index\":");
    buf_append_int(out, c->index);
    buf_append_c(out, ",\"delta\":{");
}

static void write_role_chunk(struct buf *out, struct choice *c)
{
    const struct generation *g = c->generation;
    begin_delta(out, c);
    buf_append_c(out, "\"role\":");
    buf_append_json_string(out, g->role);
    buf_append_c(out, ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
    if (g->fields->continuous_usage) { // nothing is counted before the first content
        int32_t taken = c->out.taken_tokens;
        c->out.taken_tokens = 0;
        answer_write_running_usage(out, c);
        c->out.taken_tokens = taken;
    }
    buf_append_char(out, ',');
    write_prompt_fields(out, g);
    buf_append_c(out, "}\n\n");
    c->has_role_chunk = true;
    if (g->echo_text.len > 0) {
        begin_delta(out, c);
        buf_append_c(out, "\"content\":");
        buf_append_json_string(out, g->echo_text);
        buf_append_c(out, "},\"logprobs\":null,\"finish_reason\":null}]");
        buf_append_c(out, "}\n\n");
    }
}

static void write_chunk(struct generation *g, struct choice *c, const struct output_delta *delta,
                        struct buf *out)
{
    (void)g;
    if (!c->has_role_chunk)
        write_role_chunk(out, c);
    if (delta->text.len == 0 && delta->num_tokens == 0 && !delta->is_finish)
        return;
    begin_delta(out, c);
    buf_append_c(out, "\"content\":");
    buf_append_json_string(out, delta->text);
    buf_append_c(out, "},\"logprobs\":");
    write_logprobs(out, c, delta->first_token, delta->first_token + delta->num_tokens);
    buf_append_c(out, ",\"finish_reason\":");
    answer_write_finish_reason(out, c);
    if (delta->is_finish) {
        buf_append_c(out, ",\"stop_reason\":");
        answer_write_stop_reason(out, c);
    }
    buf_append_c(out, ",\"token_ids\":");
    answer_write_token_ids(out, c, delta->first_token, delta->first_token + delta->num_tokens);
    answer_end_chunk(out, c, delta->is_finish);
}

static void write_choice(struct buf *out, struct choice *c)
{
    const struct generation *g = c->generation;
    struct output_delta whole = output_processor_take(&c->out);
    buf_append_c(out, "{\"index\":");
    buf_append_int(out, c->index);
    buf_append_c(out, ",\"message\":{\"role\":");
    buf_append_json_string(out, g->role);
    buf_append_c(out, ",\"content\":");
    if (g->echo_text.len > 0) {
        struct buf joined = {0};
        buf_append(&joined, g->echo_text);
        buf_append(&joined, whole.text);
        buf_append_json_string(out, buf_str(&joined));
        buf_deinit(&joined);
    } else {
        buf_append_json_string(out, whole.text);
    }
    buf_append_c(out, ",\"refusal\":null,\"annotations\":null,\"audio\":null,"
                      "\"function_call\":null,\"reasoning\":null},\"logprobs\":");
    write_logprobs(out, c, 0, c->out.num_tokens);
    buf_append_c(out, ",\"finish_reason\":");
    answer_write_finish_reason(out, c);
    buf_append_c(out, ",\"stop_reason\":");
    answer_write_stop_reason(out, c);
    buf_append_c(out, ",\"token_ids\":");
    answer_write_token_ids(out, c, 0, c->out.num_tokens);
    buf_append_c(out, ",\"routed_experts\":null}");
}

static void write_answer(struct generation *g, struct buf *out)
{
    answer_begin(out, g, "chat.completion");
    answer_write_choices(out, g, write_choice);
    buf_append_c(out, ",\"prompt_logprobs\":");
    answer_write_prompt_logprobs(out, &g->choices[0]);
    buf_append_char(out, ',');
    write_prompt_fields(out, g);
    answer_end(out, g);
}

static const struct generation_kind chat_kind = {
    .id_prefix = "chatcmpl-",
    .chunk_object = "chat.completion.chunk",
    .parse = parse,
    .make_prompts = chat_make_prompts,
    .write_chunk = write_chunk,
    .write_answer = write_answer,
    .write_stream_end = sse_end_stream,
    .write_stream_error = sse_fail_stream,
};

static const struct generation_kind render_kind = {
    .id_prefix = "chatcmpl-",
    .parse = parse,
    .make_prompts = chat_make_prompts,
    .answer_prepared = render_write_chat,
};

void serving_chat_render(struct api_call *call)
{
    generation_begin(call, &render_kind);
}

void serving_chat(struct api_call *call)
{
    generation_begin(call, &chat_kind);
}
