// POST /v1/completions.
#include "api_server/generation.h"
#include "api_server/logprobs.h"
#include "api_server/serving.h"

static enum status parse(struct generation *g, struct api_error *err)
{
    g->fields = &g->completion.common;
    return completion_request_parse(&g->completion, g->json, &g->server->facts.protocol, &g->arena,
                                    err);
}

static enum status make_prompts(struct generation *g, struct api_error *err)
{
    (void)err;
    g->num_prompts = g->completion.num_prompts;
    g->prompts = arena_calloc(&g->arena, (size_t)g->num_prompts, sizeof(*g->prompts));
    for (int32_t i = 0; i < g->num_prompts; i++) {
        g->prompts[i].text = g->completion.prompts[i].text;
        g->prompts[i].ids = g->completion.prompts[i].ids;
        g->prompts[i].num_ids = g->completion.prompts[i].num_ids;
    }
    return STATUS_OK;
}

/** Text of the answer, behind the prompt's where `with_prompt`. */
static void write_text(struct buf *out, const struct choice *c, struct str text, bool with_prompt)
{
    if (!with_prompt) {
        buf_append_json_string(out, text);
        return;
    }
    struct buf joined = {0};
    buf_append(&joined, c->prompt->text);
    buf_append(&joined, text);
    buf_append_json_string(out, buf_str(&joined));
    buf_deinit(&joined);
}

static void write_logprobs(struct buf *out, struct choice *c, int32_t first, int32_t end,
                           bool with_prompt)
{
    const struct generation_fields *f = c->generation->fields;
    if (f->sampling.num_logprobs == NUM_LOGPROBS_NONE || (first == end && !with_prompt)) {
        buf_append_c(out, "null");
        return;
    }
    struct logprob_format format = answer_logprob_format(c->generation);
    struct logprob_range prompt = {c->prompt->ids, &c->out.prompt_logprobs, 0, c->prompt->num_ids};
    struct logprob_range range = {c->out.engine.output_token_ids, &c->out.logprobs, first, end};
    logprobs_write_completion(out, &format, with_prompt ? &prompt : NULL, &range,
                              c->prompt->sampling.num_logprobs, &c->text_offset);
}

static void write_prompt_ids(struct buf *out, const struct choice *c, bool wanted)
{
    buf_append_c(out, ",\"prompt_token_ids\":");
    if (wanted && c->generation->fields->return_token_ids)
        answer_write_ids(out, c->prompt->ids, c->prompt->num_ids);
    else
        buf_append_c(out, "null");
}

static void write_chunk(struct generation *g, struct choice *c, const struct output_delta *delta,
                        struct buf *out)
{
    bool is_first = !c->has_chunk;
    bool with_prompt = is_first && g->fields->echo;
    if (delta->text.len == 0 && delta->num_tokens == 0 && !delta->is_finish && !with_prompt)
        return;
    sse_begin_chunk(out, g);
    buf_append_c(out, "{\"index\":");
    buf_append_int(out, c->index);
    buf_append_c(out, ",\"text\":");
    write_text(out, c, delta->text, with_prompt);
    buf_append_c(out, ",\"logprobs\":");
    write_logprobs(out, c, delta->first_token, delta->first_token + delta->num_tokens, with_prompt);
    buf_append_c(out, ",\"finish_reason\":");
    answer_write_finish_reason(out, c);
    buf_append_c(out, ",\"stop_reason\":");
    answer_write_stop_reason(out, c);
    write_prompt_ids(out, c, is_first);
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
    buf_append_c(out, ",\"text\":");
    write_text(out, c, whole.text, g->fields->echo);
    buf_append_c(out, ",\"logprobs\":");
    write_logprobs(out, c, 0, c->out.num_tokens, g->fields->echo);
    buf_append_c(out, ",\"finish_reason\":");
    answer_write_finish_reason(out, c);
    buf_append_c(out, ",\"stop_reason\":");
    answer_write_stop_reason(out, c);
    buf_append_c(out, ",\"token_ids\":");
    answer_write_token_ids(out, c, 0, c->out.num_tokens);
    buf_append_c(out, ",\"prompt_logprobs\":");
    answer_write_prompt_logprobs(out, c);
    write_prompt_ids(out, c, true);
    buf_append_c(out, ",\"routed_experts\":null}");
}

static void write_answer(struct generation *g, struct buf *out)
{
    answer_begin(out, g, "text_completion");
    answer_write_choices(out, g, write_choice);
    answer_end(out, g);
}

static const struct generation_kind completion_kind = {
    .id_prefix = "cmpl-",
    .chunk_object = "text_completion",
    .parse = parse,
    .make_prompts = make_prompts,
    .write_chunk = write_chunk,
    .write_answer = write_answer,
    .write_stream_end = sse_end_stream,
    .write_stream_error = sse_fail_stream,
};

static const struct generation_kind render_kind = {
    .id_prefix = "cmpl-",
    .parse = parse,
    .make_prompts = make_prompts,
    .answer_prepared = render_write_completions,
};

void serving_completion_render(struct api_call *call)
{
    generation_begin(call, &render_kind);
}

void serving_completion(struct api_call *call)
{
    generation_begin(call, &completion_kind);
}
