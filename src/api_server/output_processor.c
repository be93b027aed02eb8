// Tokens are looked at one by one, so that neither the size of a step nor the moment of a look
// changes what comes out.
#include "api_server/output_processor.h"

#include <string.h>

#include "base/memory.h"

void logprob_list_append(struct logprob_list *list, const struct token_logprobs *logprobs)
{
    int32_t count = logprobs ? logprobs->num_entries : 0;
    if (list->num_positions == list->max_positions) {
        list->max_positions = max_i32(16, 2 * list->max_positions);
        list->positions =
            xrealloc(list->positions, (size_t)list->max_positions * sizeof(*list->positions));
    }
    if (list->num_entries + count > list->max_entries) {
        list->max_entries = max_i32(list->num_entries + count, max_i32(64, 2 * list->max_entries));
        size_t bytes = (size_t)list->max_entries * sizeof(int32_t);
        list->token_ids = xrealloc(list->token_ids, bytes);
        list->logprobs = xrealloc(list->logprobs, bytes);
    }
    list->positions[list->num_positions++] =
        (struct logprob_position){list->num_entries, count, logprobs ? logprobs->rank : 0};
    if (count > 0) {
        size_t bytes = (size_t)count * sizeof(int32_t);
        memcpy(list->token_ids + list->num_entries, logprobs->token_ids, bytes);
        memcpy(list->logprobs + list->num_entries, logprobs->logprobs, bytes);
    }
    list->num_entries += count;
}

void logprob_list_deinit(struct logprob_list *list)
{
    free(list->positions);
    free(list->token_ids);
    free(list->logprobs);
    *list = (struct logprob_list){0};
}

void output_processor_init(struct output_processor *p,
                           const struct output_processor_options *options)
{
    p->options = *options;
    p->finish_reason = FINISH_REASON_NONE;
    p->stop_token_id = -1;
    p->stop_string = -1;
    p->detokenizer =
        detokenizer_create(options->tokenizer, p->engine.core.prompt_token_ids,
                           p->engine.core.num_prompt_tokens, options->skip_special_tokens);
    if (options->joins_added_tokens)
        detokenizer_join_added_tokens(p->detokenizer);
}

void output_processor_deinit(struct output_processor *p)
{
    detokenizer_destroy(p->detokenizer);
    p->detokenizer = NULL;
    buf_deinit(&p->text);
    logprob_list_deinit(&p->logprobs);
    logprob_list_deinit(&p->prompt_logprobs);
    engine_request_deinit(&p->engine);
}

/** Prompt positions come in order, and again after a preemption or on a new engine. */
static void take_prompt_logprobs(struct output_processor *p, const struct engine_core_output *o)
{
    for (int32_t i = 0; i < o->num_prompt_logprobs; i++) {
        int32_t position = o->first_prompt_logprob + i;
        if (position < 1 || position >= p->engine.core.num_prompt_tokens ||
            position - 1 < p->prompt_logprobs.num_positions)
            continue;
        while (p->prompt_logprobs.num_positions < position - 1)
            logprob_list_append(&p->prompt_logprobs, NULL); // a hole shows as null
        logprob_list_append(&p->prompt_logprobs, &o->prompt_logprobs[i]);
    }
}

/** Text that came with the last token; true if a stop string ends in it. */
static bool find_stop(struct output_processor *p, size_t num_new)
{
    size_t cut;
    if (num_new == 0 || p->options.stops->num_strings == 0 ||
        p->num_tokens <= p->options.min_tokens)
        return false;
    p->stop_string = stop_matcher_find(p->options.stops, buf_str(&p->text), num_new, &cut);
    if (p->stop_string < 0)
        return false;
    p->text.len = cut;
    p->finish_reason = FINISH_REASON_STOP;
    return true;
}

/** Whether the last tokens are one pattern, as often as the rule asks. */
static bool is_repeated(const int32_t *ids, int32_t num_ids, int32_t size, int32_t count)
{
    for (int32_t i = num_ids - size * (count - 1); i < num_ids; i++) {
        if (ids[i] != ids[i - size])
            return false;
    }
    return true;
}

static bool find_repetition(struct output_processor *p)
{
    const struct repetition_rule *rule = &p->options.repetition;
    if (rule->max_pattern_size == 0 || p->num_tokens < p->options.min_tokens)
        return false;
    for (int32_t size = rule->min_pattern_size; size <= rule->max_pattern_size; size++) {
        if ((int64_t)size * rule->min_count > p->num_tokens)
            return false;
        if (is_repeated(p->engine.output_token_ids, p->num_tokens, size, rule->min_count)) {
            p->finish_reason = FINISH_REASON_REPETITION;
            return true;
        }
    }
    return false;
}

bool output_processor_update(struct output_processor *p, const struct engine_core_output *o)
{
    if (p->finish_reason != FINISH_REASON_NONE)
        return false;
    if (!p->has_output)
        p->num_cached_tokens = o->num_cached_tokens;
    p->has_output = p->has_output || o->num_new_tokens > 0;
    take_prompt_logprobs(p, o);
    for (int32_t i = 0; i < o->num_new_tokens && !p->options.drop_tokens; i++) {
        int32_t id = o->new_token_ids[i];
        p->num_tokens++;
        if (p->engine.core.sampling.num_logprobs >= 0)
            logprob_list_append(&p->logprobs, o->logprobs ? &o->logprobs[i] : NULL);
        // The token that the engine stopped at is part of the answer's tokens, not of its text.
        bool is_last = i == o->num_new_tokens - 1 && o->finish_reason == FINISH_REASON_STOP;
        if (is_last && !p->options.stops->include_in_output)
            continue;
        size_t before = p->text.len;
        detokenizer_step(p->detokenizer, id, &p->text);
        if (find_stop(p, p->text.len - before) || find_repetition(p)) {
            p->engine.core.num_output_tokens = p->num_tokens; // what else the step drew is void
            return o->finish_reason == FINISH_REASON_NONE;
        }
    }
    if (o->finish_reason != FINISH_REASON_NONE) {
        p->stop_token_id = o->stop_token_id;
        output_processor_finish(p, p->options.drop_tokens && o->finish_reason == FINISH_REASON_STOP
                                       ? FINISH_REASON_LENGTH
                                       : o->finish_reason);
    }
    return false;
}

void output_processor_finish(struct output_processor *p, enum finish_reason reason)
{
    if (p->finish_reason != FINISH_REASON_NONE)
        return;
    if (!p->options.drop_tokens)
        detokenizer_finish(p->detokenizer, &p->text);
    p->finish_reason = reason;
    if (p->options.drop_tokens || reason != FINISH_REASON_STOP)
        p->stop_token_id = -1;
}

static size_t visible_text(const struct output_processor *p)
{
    if (p->finish_reason != FINISH_REASON_NONE)
        return p->text.len;
    return stop_matcher_visible(p->options.stops, buf_str(&p->text));
}

size_t output_processor_pending_text(const struct output_processor *p)
{
    size_t visible = visible_text(p);
    return visible > p->taken_text ? visible - p->taken_text : 0;
}

struct output_delta output_processor_take(struct output_processor *p)
{
    size_t pending = output_processor_pending_text(p);
    struct output_delta delta = {
        .text = str_slice(buf_str(&p->text), p->taken_text, p->taken_text + pending),
        .first_token = p->taken_tokens,
        .num_tokens = p->num_tokens - p->taken_tokens,
        .is_finish = p->finish_reason != FINISH_REASON_NONE && !p->taken_finish,
    };
    p->taken_text += pending;
    p->taken_tokens = p->num_tokens;
    p->taken_finish = p->finish_reason != FINISH_REASON_NONE;
    return delta;
}
