// What the render endpoints answer: a request as the engine would get it, and the prompt as the
// model would read it. The chat and completion endpoints prepare it; nothing is generated.
#include <inttypes.h>

#include "api_server/generation.h"

static void write_member(struct buf *out, const char *key)
{
    buf_append_c(out, ",\"");
    buf_append_c(out, key);
    buf_append_c(out, "\":");
}

static void write_float(struct buf *out, const char *key, float value)
{
    write_member(out, key);
    buf_printf(out, "%.7g", (double)value); // as many digits as a float has
}

static void write_int(struct buf *out, const char *key, int64_t value)
{
    write_member(out, key);
    buf_append_int(out, value);
}

static void write_optional_int(struct buf *out, const char *key, int32_t value)
{
    write_member(out, key);
    if (value >= 0)
        buf_append_int(out, value);
    else
        buf_append_c(out, "null");
}

static void write_bias(struct buf *out, const struct sampling_params *s)
{
    write_member(out, "logit_bias");
    buf_append_char(out, '{');
    for (int32_t i = 0; i < s->num_logit_bias; i++)
        buf_printf(out, "%s\"%d\":%.7g", i > 0 ? "," : "", s->logit_bias[i].token_id,
                   (double)s->logit_bias[i].bias);
    buf_append_char(out, '}');
}

static void write_texts(struct buf *out, const struct str *texts, int32_t count)
{
    buf_append_char(out, '[');
    for (int32_t i = 0; i < count; i++) {
        buf_append_c(out, i > 0 ? "," : "");
        buf_append_json_string(out, texts[i]);
    }
    buf_append_char(out, ']');
}

/** What restricts the answer's tokens. */
static void write_constraints(struct buf *out, const struct sampling_params *s,
                              const struct sampling_fields *f)
{
    write_bias(out, s);
    write_member(out, "bad_words");
    write_texts(out, f->bad_words, f->num_bad_words);
    write_member(out, "allowed_token_ids");
    if (s->num_allowed_token_ids > 0)
        answer_write_ids(out, s->allowed_token_ids, s->num_allowed_token_ids);
    else
        buf_append_c(out, "null");
    write_member(out, "structured_outputs");
    if (f->num_choices > 0) {
        buf_append_c(out, "{\"choice\":");
        write_texts(out, f->choices, f->num_choices);
        buf_append_char(out, '}');
    } else {
        buf_append_c(out, "null");
    }
}

static void write_sampling(struct buf *out, const struct generation *g,
                           const struct sampling_params *s)
{
    const struct sampling_fields *f = &g->fields->sampling;
    buf_printf(out, "{\"n\":%" PRId64, f->n);
    write_float(out, "temperature", s->temperature);
    write_float(out, "top_p", s->top_p);
    write_int(out, "top_k", s->top_k);
    write_float(out, "min_p", s->min_p);
    write_float(out, "presence_penalty", s->presence_penalty);
    write_float(out, "frequency_penalty", s->frequency_penalty);
    write_float(out, "repetition_penalty", s->repetition_penalty);
    write_member(out, "seed");
    if (f->has_seed)
        buf_append_int(out, f->seed);
    else
        buf_append_c(out, "null"); // drawn anew for every generation
    write_int(out, "max_tokens", s->max_tokens);
    write_int(out, "min_tokens", s->min_tokens);
    write_member(out, "ignore_eos");
    buf_append_c(out, f->ignore_eos ? "true" : "false");
    write_member(out, "stop");
    write_texts(out, f->stop, f->num_stop);
    write_member(out, "stop_token_ids");
    answer_write_ids(out, s->stop_token_ids, s->num_stop_token_ids);
    write_constraints(out, s, f);
    write_optional_int(out, "logprobs", s->num_logprobs);
    write_optional_int(out, "prompt_logprobs", s->num_prompt_logprobs);
    buf_append_char(out, '}');
}

static void write_prompt(struct buf *out, const struct generation *g, int32_t index)
{
    const struct prompt *p = &g->prompts[index];
    buf_append_c(out, "{\"request_id\":");
    buf_append_json_string(out, str_from(g->id));
    write_member(out, "model");
    buf_append_json_string(out, str_from(g->model));
    write_member(out, "prompt");
    buf_append_json_string(out, p->text);
    write_member(out, "token_ids");
    answer_write_ids(out, p->ids, p->num_ids);
    write_member(out, "sampling_params");
    write_sampling(out, g, &p->sampling);
    write_member(out, "stream");
    buf_append_c(out, g->fields->stream ? "true" : "false");
    write_member(out, "cache_salt");
    if (g->fields->cache_salt.len > 0)
        buf_append_json_string(out, g->fields->cache_salt);
    else
        buf_append_c(out, "null");
    write_int(out, "priority", g->fields->priority);
    buf_append_char(out, '}');
}

void render_write_chat(struct generation *g, struct buf *out)
{
    write_prompt(out, g, 0);
}

void render_write_completions(struct generation *g, struct buf *out)
{
    buf_append_char(out, '[');
    for (int32_t i = 0; i < g->num_prompts; i++) {
        buf_append_c(out, i > 0 ? "," : "");
        write_prompt(out, g, i);
    }
    buf_append_char(out, ']');
}
