// Whether a request that is ready may go to the engine now, and the line that tells of it.
#include <inttypes.h>

#include "api_server/generation.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/utf8.h"

// The client hears when so many prompt tokens and requests less are to be expected.
static enum status refuse_for_now(const struct generation *g, struct api_error *err,
                                  int64_t num_prompt_tokens, int64_t num_requests)
{
    const struct progress_sample now = api_server_progress(g->server);
    err->retry_after_s =
        retry_after_seconds(&g->server->retry_after, &now, num_prompt_tokens, num_requests);
    return STATUS_UNAVAILABLE;
}

/** What all API servers of the host have taken in: they share the limits. Two that look at the same
 *  moment may both let one in. */
static void count_load(const struct api_server *server, int32_t *unfinished, int64_t *queued_tokens)
{
    *unfinished = 0;
    *queued_tokens = 0;
    for (int32_t i = 0; i < server->page->num_api_servers; i++) {
        const struct front_page *front = &server->page->fronts[i];
        *unfinished += atomic_load(&front->num_unfinished);
        *queued_tokens += atomic_load(&front->num_queued_prompt_tokens);
    }
}

enum status generation_admit(struct generation *g, int64_t num_choices, struct api_error *err)
{
    const struct serve_options *o = g->server->options;
    if (!api_server_accepts(g->server, err))
        return STATUS_UNAVAILABLE;
    int32_t unfinished;
    int64_t queued;
    count_load(g->server, &unfinished, &queued);
    int64_t excess = unfinished + num_choices - o->max_num_queued_reqs;
    if (o->max_num_queued_reqs >= 0 && excess > 0) {
        api_error_set(err, API_ERROR_OVERLOADED,
                      "The server is busy: %d requests are unfinished and the limit is %d. "
                      "Please try again later.",
                      unfinished, o->max_num_queued_reqs);
        return refuse_for_now(g, err, 0, min_i64(excess, unfinished));
    }
    if (o->max_num_queued_tokens >= 0 && queued >= o->max_num_queued_tokens) {
        api_error_set(err, API_ERROR_OVERLOADED,
                      "The prefill backlog is too large: %" PRId64
                      " prompt tokens wait and the limit is %" PRId64 ". Please try again later.",
                      queued, o->max_num_queued_tokens);
        return refuse_for_now(g, err, min_i64(queued - o->max_num_queued_tokens + 1, queued), 0);
    }
    return STATUS_OK;
}

/** The length that --max-log-len leaves of a prompt. */
static struct str log_cut(const struct serve_options *o, struct str text)
{
    text = str_slice(text, 0, o->max_log_len >= 0 ? (size_t)o->max_log_len : 4096);
    text.len = utf8_complete_prefix(text);
    return text;
}

void generation_log(const struct generation *g)
{
    const struct serve_options *o = g->server->options;
    if (!o->enable_log_requests)
        return;
    for (int32_t i = 0; i < g->num_prompts; i++) {
        const struct prompt *p = &g->prompts[i];
        const struct sampling_params *s = &p->sampling;
        if (g->kind->pools)
            log_info("Received request %s: params: PoolingParams(task='embed', dimensions=%d, "
                     "use_activation=%s), num_prompt_tokens: %d, lora_request: None.",
                     g->id, (int)g->pooling.dimensions,
                     g->pooling.use_activation ? "True" : "False", (int)p->num_ids);
        else
            log_info("Received request %s: params: SamplingParams(n=%d, presence_penalty=%g, "
                     "frequency_penalty=%g, repetition_penalty=%g, temperature=%g, top_p=%g, "
                     "top_k=%d, min_p=%g, seed=%" PRIu64 ", max_tokens=%d, min_tokens=%d, "
                     "ignore_eos=%s, num_stop=%d, num_stop_token_ids=%d, logprobs=%d, "
                     "prompt_logprobs=%d), num_prompt_tokens: %d, lora_request: None.",
                     g->id, (int)g->fields->sampling.n, s->presence_penalty, s->frequency_penalty,
                     s->repetition_penalty, s->temperature, s->top_p, s->top_k, s->min_p, s->seed,
                     s->max_tokens, s->min_tokens, s->eos_token_id < 0 ? "True" : "False",
                     g->fields->sampling.num_stop, s->num_stop_token_ids, s->num_logprobs,
                     s->num_prompt_logprobs, p->num_ids);
        if (log_get_level() > LOG_LEVEL_DEBUG)
            continue;
        struct arena *arena = &g->server->scratch_arena;
        struct arena_mark mark = arena_mark(arena);
        struct str text =
            tokenizer_decode(g->server->facts.tokenizer, p->ids, p->num_ids, false, arena);
        log_debug("Request %s details: prompt: '" STR_FORMAT "'", g->id, STR_ARG(log_cut(o, text)));
        arena_release(arena, mark);
    }
}
