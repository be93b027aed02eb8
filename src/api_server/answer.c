// Parts of JSON that chat and completion answers share.
#include "api_server/generation.h"
#include "api_server/logprobs.h"
#include "api_server/request_timings.h"
#include "base/memory.h"

static const char *const finish_names[] = {
    [FINISH_REASON_STOP] = "\"stop\"",   [FINISH_REASON_LENGTH] = "\"length\"",
    [FINISH_REASON_ABORT] = "\"abort\"", [FINISH_REASON_REPETITION] = "\"repetition\"",
    [FINISH_REASON_ERROR] = "\"abort\"", // an error is answered as one; never reached
};

void answer_write_finish_reason(struct buf *out, const struct choice *choice)
{
    enum finish_reason reason = choice->out.finish_reason;
    buf_append_c(out, reason == FINISH_REASON_NONE ? "null" : finish_names[reason]);
}

void answer_write_stop_reason(struct buf *out, const struct choice *choice)
{
    const struct output_processor *p = &choice->out;
    if (p->stop_string >= 0)
        buf_append_json_string(out, choice->generation->stops.strings[p->stop_string]);
    else if (p->stop_token_id >= 0)
        buf_append_int(out, p->stop_token_id);
    else
        buf_append_c(out, "null");
}

/** Prompt tokens that the request put into the prefix cache: those of its full blocks that were not
 *  there before. */
static int64_t created_cache_tokens(const struct generation *g, int32_t num_prompt_tokens,
                                    int32_t num_cached)
{
    const struct engine_page *engine = &g->server->page->engine;
    int32_t block_size = atomic_load(&engine->block_size);
    if (!atomic_load(&engine->prefix_caching) || block_size < 1)
        return 0;
    return max_i32(num_prompt_tokens / block_size * block_size - num_cached, 0);
}

void answer_write_usage(struct buf *out, const struct generation *g, const struct choice *one,
                        bool with_null_details)
{
    int64_t prompt_tokens = 0, completion_tokens = 0, cached = 0, created = 0;
    int32_t n = g->num_choices / g->num_prompts;
    for (int32_t i = 0; i < g->num_prompts; i++) {
        if (one && one->prompt != &g->prompts[i])
            continue;
        prompt_tokens += g->prompts[i].num_ids;
        cached += g->choices[i * n].out.num_cached_tokens;
        created +=
            created_cache_tokens(g, g->prompts[i].num_ids, g->choices[i * n].out.num_cached_tokens);
    }
    for (int32_t i = 0; i < g->num_choices; i++) {
        if (!one || one == &g->choices[i])
            completion_tokens += g->choices[i].out.taken_tokens;
    }
    buf_append_c(out, "{\"prompt_tokens\":");
    buf_append_int(out, prompt_tokens);
    buf_append_c(out, ",\"total_tokens\":");
    buf_append_int(out, prompt_tokens + completion_tokens);
    buf_append_c(out, ",\"completion_tokens\":");
    buf_append_int(out, completion_tokens);
    if (g->server->options->enable_prompt_tokens_details) {
        buf_append_c(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
        buf_append_int(out, cached);
        buf_append_c(out, ",\"created_cache_tokens\":");
        buf_append_int(out, created);
        buf_append_c(out, with_null_details ? ",\"multimodal_tokens\":null}" : "}");
    } else if (with_null_details) {
        buf_append_c(out, ",\"prompt_tokens_details\":null");
    }
    buf_append_char(out, '}');
}

void answer_write_ids(struct buf *out, const int32_t *ids, int32_t num_ids)
{
    buf_append_char(out, '[');
    for (int32_t i = 0; i < num_ids; i++) {
        if (i > 0)
            buf_append_char(out, ',');
        buf_append_int(out, ids[i]);
    }
    buf_append_char(out, ']');
}

void answer_write_token_ids(struct buf *out, const struct choice *choice, int32_t first,
                            int32_t end)
{
    if (choice->generation->fields->return_token_ids)
        answer_write_ids(out, choice->out.engine.output_token_ids + first, end - first);
    else
        buf_append_c(out, "null");
}

struct logprob_format answer_logprob_format(const struct generation *g)
{
    return (struct logprob_format){.tokenizer = g->server->facts.tokenizer,
                                   .as_token_ids = g->fields->return_tokens_as_token_ids,
                                   .scratch = &g->server->scratch_arena};
}

void answer_write_prompt_logprobs(struct buf *out, const struct choice *choice)
{
    const struct generation *g = choice->generation;
    if (g->fields->sampling.num_prompt_logprobs == NUM_LOGPROBS_NONE) {
        buf_append_c(out, "null");
        return;
    }
    struct logprob_format format = answer_logprob_format(g);
    logprobs_write_prompt(out, &format, choice->prompt->ids, choice->prompt->num_ids,
                          &choice->out.prompt_logprobs);
}

void answer_begin(struct buf *out, const struct generation *g, const char *object)
{
    buf_append_c(out, "{\"id\":");
    buf_append_json_string(out, str_from(g->id));
    buf_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object,
               (long long)g->created);
    buf_append_json_string(out, str_from(g->model));
}

void answer_write_choices(struct buf *out, struct generation *g,
                          void (*write_choice)(struct buf *out, struct choice *choice))
{
    buf_append_c(out, ",\"choices\":[");
    for (int32_t i = 0; i < g->num_choices; i++) {
        if (i > 0)
            buf_append_char(out, ',');
        write_choice(out, &g->choices[i]);
    }
    buf_append_c(out, "],\"service_tier\":null,\"system_fingerprint\":");
    buf_append_json_string(out, str_from(g->server->facts.system_fingerprint));
    buf_append_c(out, ",\"usage\":");
    answer_write_usage(out, g, NULL, true);
}

void answer_end(struct buf *out, const struct generation *g)
{
    buf_append_c(out, ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":");
    request_timings_write(out, g);
    buf_append_char(out, '}');
}

void answer_write_running_usage(struct buf *out, const struct choice *c)
{
    if (!c->generation->fields->continuous_usage)
        return;
    buf_append_c(out, ",\"usage\":");
    answer_write_usage(out, c->generation, c, false);
}

void answer_end_chunk(struct buf *out, const struct choice *c, bool is_finish)
{
    const struct generation *g = c->generation;
    buf_append_c(out, "}]");
    answer_write_running_usage(out, c);
    if (is_finish && !g->fields->include_usage) {
        buf_append_c(out, ",\"system_fingerprint\":");
        buf_append_json_string(out, str_from(g->server->facts.system_fingerprint));
    }
    buf_append_c(out, "}\n\n");
}
