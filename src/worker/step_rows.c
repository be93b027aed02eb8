// A step's rows of logits: which positions they belong to, who draws a token from each, and how.
//
// A device that draws is told what sampler.c would do, with the lists of a request (allowed tokens,
// biases, its history for penalties, the mask of structured output) in the step's own copy. Tokens
// that are still being drawn need not be known for that: a history ends with the token that the
// step itself reads as the row's input. Masks and sequences of bad words do depend on them
// (step_rows_need_history()).
#include <omp.h>
#include <string.h>

#include "base/memory.h"
#include "structured_output/token_trie.h"
#include "worker/constraint.h"
#include "worker/model_runner.h"
#include "worker/sampler.h"

// ---- which -----------------------------------------------------------------------------------

/** Prompt positions whose log-probabilities a step can tell: position p's come from the logits at
 *  p - 1, so a chunk scores one token past its own end and chunks leave no hole. */
static int32_t count_prompt_logprobs(const struct batch_row *row,
                                     const struct scheduled_row *scheduled)
{
    int32_t start = scheduled->num_computed_tokens;
    int32_t end = min_i32(start + scheduled->num_scheduled_tokens, row->num_prompt_tokens - 1);
    return row->sampling.num_prompt_logprobs < 0 ? 0 : max_i32(end - start, 0);
}

int32_t step_rows_count(const struct model_runner *runner, const struct scheduler_output *step)
{
    int32_t count = 0;
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        const struct scheduled_row *scheduled = &step->rows[seq];
        count += count_prompt_logprobs(&runner->batch.rows[scheduled->row], scheduled) +
                 (scheduled->samples && runner->pooler.options.type == POOLING_NONE);
    }
    return count;
}

static void list_prompt_logprobs(struct model_runner *runner, struct runner_step *own,
                                 const struct batch_row *row, const struct scheduled_row *scheduled,
                                 int32_t seq)
{
    int32_t start = scheduled->num_computed_tokens;
    int32_t count = count_prompt_logprobs(row, scheduled);
    if (count == 0)
        return;
    struct row_output *output = &own->outputs[seq];
    struct token_logprobs *logprobs = arena_calloc(&own->arena, (size_t)count, sizeof(*logprobs));
    output->first_prompt_logprob = start + 1;
    output->num_prompt_logprobs = count;
    output->prompt_logprobs = logprobs;
    for (int32_t i = 0; i < count; i++)
        own->logits_rows[own->num_logits_rows++] = (struct logits_row){
            .hidden_row = runner->batch.host.query_start[seq] + i,
            .seq = seq,
            .logprobs = &logprobs[i],
            .token_id = row->token_ids[start + i + 1],
        };
}

void step_rows_list(struct model_runner *runner, struct runner_step *own)
{
    const struct scheduler_output *step = own->step;
    own->num_logits_rows = 0;
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        const struct scheduled_row *scheduled = &step->rows[seq];
        const struct batch_row *row = &runner->batch.rows[scheduled->row];
        own->outputs[seq] = (struct row_output){.row = scheduled->row, .token_id = TOKEN_ID_NONE};
        list_prompt_logprobs(runner, own, row, scheduled, seq);
        if (scheduled->samples && runner->pooler.options.type == POOLING_NONE)
            own->logits_rows[own->num_logits_rows++] = (struct logits_row){
                .hidden_row = runner->batch.host.query_start[seq + 1] - 1,
                .seq = seq,
                .batch_row = scheduled->row,
                .occupant = row->occupant,
            };
    }
}

// ---- on the device ---------------------------------------------------------------------------

static bool has_penalty(const struct sampling_params *p)
{
    return p->repetition_penalty != 1.0f || p->frequency_penalty != 0.0f ||
           p->presence_penalty != 0.0f;
}

static bool device_draws(const struct model_runner *runner)
{
    return runner->dev.ops.sample &&
           runner->config->model->vocab_size <= runner->dev.max_sampled_vocab;
}

/** Whether the device has all that the row asks for. Which of its log-probabilities come from the
 *  host depends on what else the step computes, so a row whose last bits must not is the host's. */
static bool is_for_device(const struct model_runner *runner, const struct sampling_params *p)
{
    bool is_hosts = device_draws(runner) && runner->dev.is_batch_invariant && p->num_logprobs >= 0;
    return !is_hosts && p->num_logprobs <= MAX_DEVICE_LOGPROBS && p->num_logprob_token_ids == 0;
}

bool step_rows_need_history(const struct model_runner *runner, const struct scheduler_output *step)
{
    for (int32_t i = 0; i < step->num_rows; i++) {
        const struct batch_row *row = &runner->batch.rows[step->rows[i].row];
        const struct sampling_params *p = &row->sampling;
        if (row->num_pending > 0 &&
            (p->num_automaton_words > 0 || p->num_bad_word_ints > 0 || !is_for_device(runner, p)))
            return true;
    }
    return false;
}

/** Copies a list to where the device finds it. False: there is no room. */
static bool send_list(struct model_runner *runner, const void *list, size_t size_bytes,
                      const void **on_device)
{
    void *place = input_batch_extra(&runner->batch, size_bytes, on_device);
    if (place && size_bytes > 0)
        memcpy(place, list, size_bytes);
    return place != NULL;
}

/** eos and stop tokens. */
static int32_t list_stops(int32_t *ids, const struct sampling_params *p)
{
    int32_t count = 0;
    if (p->eos_token_id >= 0)
        ids[count++] = p->eos_token_id;
    for (int32_t i = 0; i < p->num_stop_token_ids; i++)
        ids[count++] = p->stop_token_ids[i];
    return count;
}

/** What must not come now: the ends of an answer that is too short, and of bad words. */
static bool send_forbidden(struct model_runner *runner, const struct batch_row *row, bool must_end,
                           struct sample_params *out)
{
    const struct sampling_params *p = &row->sampling;
    bool is_short = out->num_tokens - out->num_prompt_tokens < p->min_tokens && !must_end;
    if (!is_short && p->num_bad_word_ints == 0)
        return true;
    const void *on_device;
    size_t most = (size_t)MAX_STOP_TOKEN_IDS + 1 + (size_t)p->num_bad_word_ints;
    int32_t *ids = input_batch_extra(&runner->batch, most * sizeof(*ids), &on_device);
    if (!ids)
        return false;
    int32_t count = is_short ? list_stops(ids, p) : 0;
    const struct sampler_history history = {row->token_ids, row->num_prompt_tokens, row->num_tokens,
                                            NULL};
    count += sampler_bad_word_ends(p, &history, ids + count);
    out->forbidden = on_device;
    out->num_forbidden = count;
    out->min_tokens = INT32_MAX; // the list is of this position
    return true;
}

/** Where a constraint decides when the answer ends, the tokens that end it need not be listed. */
static bool send_allowed(struct model_runner *runner, const struct sampling_params *p,
                         struct sample_params *out)
{
    if (p->num_allowed_token_ids == 0)
        return true;
    const void *on_device;
    size_t most = (size_t)p->num_allowed_token_ids + MAX_STOP_TOKEN_IDS + 1;
    int32_t *ids = input_batch_extra(&runner->batch, most * sizeof(*ids), &on_device);
    if (!ids)
        return false;
    int32_t count = p->num_allowed_token_ids;
    memcpy(ids, p->allowed_token_ids, (size_t)count * sizeof(*ids));
    if (out->mask)
        count += list_stops(ids + count, p);
    out->allowed = on_device;
    out->num_allowed = count;
    return true;
}

/** The lists of one row. False: they find no room. */
static bool send_lists(struct model_runner *runner, const struct logits_row *logits_row,
                       const struct batch_row *row, bool must_end, struct sample_params *out)
{
    const struct sampling_params *p = &row->sampling;
    const void *on_device = NULL;
    if (p->num_logit_bias > 0) {
        size_t size_bytes = (size_t)p->num_logit_bias * sizeof(*p->logit_bias);
        if (!send_list(runner, p->logit_bias, size_bytes, &on_device))
            return false;
        out->logit_bias = on_device;
        out->num_logit_bias = p->num_logit_bias;
    }
    if (has_penalty(p)) {
        if (!send_list(runner, row->token_ids, (size_t)row->num_tokens * sizeof(int32_t),
                       &on_device))
            return false;
        out->token_ids = on_device;
        // A token that is still being drawn is what the row's last position reads.
        if (row->num_pending > 0)
            out->last_token = runner->batch.device.token_ids + logits_row->hidden_row;
    }
    return send_allowed(runner, p, out) && send_forbidden(runner, row, must_end, out);
}

/** Parameters of a row that nobody draws from on the device. */
static struct sample_params greedy_params(void)
{
    return (struct sample_params){.top_p = 1, .repetition_penalty = 1, .num_logprobs = -1};
}

/** Sends the mask of a row with an automaton; `*must_end` is the constraint's. */
static enum draw_place send_mask(struct model_runner *runner, const struct logits_row *logits_row,
                                 const struct batch_row *row, struct sample_params *out,
                                 bool *must_end)
{
    int32_t vocab_size = runner->config->model->vocab_size;
    struct token_constraint constraint;
    struct arena *arena = &runner->dev.scratch;
    struct arena_mark mark = arena_mark(arena);
    enum draw_place place = DRAW_NOTHING;
    if (constraint_find(&constraint, runner->tokens, row, logits_row->mask, vocab_size, arena)) {
        const void *on_device;
        size_t size_bytes = token_mask_words(vocab_size) * sizeof(uint32_t);
        place = DRAW_ON_HOST;
        if (send_list(runner, constraint.mask, size_bytes, &on_device)) {
            out->mask = on_device;
            *must_end = constraint.must_end;
            place = DRAW_ON_DEVICE;
        }
    }
    arena_release(arena, mark);
    return place;
}

/** Decides where one row is drawn. */
static enum draw_place fill_sample(struct model_runner *runner, const struct logits_row *logits_row,
                                   bool may_give_logprobs, struct sample_params *out)
{
    *out = greedy_params();
    if (logits_row->logprobs || !device_draws(runner))
        return DRAW_ON_HOST;
    const struct batch_row *row = &runner->batch.rows[logits_row->batch_row];
    const struct sampling_params *p = &row->sampling;
    if (!is_for_device(runner, p) || (p->num_logprobs >= 0 && !may_give_logprobs))
        return DRAW_ON_HOST;
    struct sample_params params = {
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .repetition_penalty = p->repetition_penalty,
        .presence_penalty = p->presence_penalty,
        .frequency_penalty = p->frequency_penalty,
        .seed = p->seed,
        .top_k = p->top_k,
        .num_logprobs = p->num_logprobs,
        .num_prompt_tokens = row->num_prompt_tokens,
        .num_tokens = row->num_tokens + row->num_pending,
    };
    bool must_end = false;
    if (p->num_automaton_words > 0) {
        enum draw_place place = send_mask(runner, logits_row, row, &params, &must_end);
        if (place != DRAW_ON_DEVICE)
            return place;
    }
    if (!send_lists(runner, logits_row, row, must_end, &params))
        return DRAW_ON_HOST;
    *out = params;
    return DRAW_ON_DEVICE;
}

/** Finds the masks of the rows that draw under an automaton, and makes those that are new. */
static void find_masks(struct model_runner *runner, struct runner_step *own)
{
    struct stored_mask *made[NUM_STORED_MASKS];
    const uint32_t *automata[NUM_STORED_MASKS]; // of made
    int32_t num_made = 0;
    constraint_store_begin_step(&runner->constraints);
    for (int32_t i = 0; runner->tokens && i < own->num_logits_rows; i++) {
        struct logits_row *logits_row = &own->logits_rows[i];
        const struct batch_row *row = &runner->batch.rows[own->step->rows[logits_row->seq].row];
        if (logits_row->logprobs || row->automaton_id == 0 ||
            row->automaton_state == AUTOMATON_DEAD)
            continue;
        int64_t num_known = runner->constraints.num_made;
        struct stored_mask *mask =
            constraint_store_find(&runner->constraints, row->automaton_id, row->automaton_state);
        logits_row->mask = mask;
        if (runner->constraints.num_made > num_known) {
            automata[num_made] = row->sampling.automaton;
            made[num_made++] = mask;
        }
    }
#pragma omp parallel for schedule(dynamic) num_threads(runner->dev.num_threads) if (num_made > 1)
    for (int32_t i = 0; i < num_made; i++)
        constraint_store_make(&runner->constraints, made[i], automata[i], runner->tokens);
}

void step_rows_fill(struct model_runner *runner, struct runner_step *own)
{
    find_masks(runner, own);
    const struct step_arrays *arrays = &runner->batch.host;
    // Of the rows of one slice: more come only with prompts that want theirs, or at such sizes that
    // nobody waits for the host.
    bool may_give_logprobs =
        own->num_logits_rows <= min_i32(runner->config->max_num_seqs, runner->sizes.logits_rows);
    own->draws_on_device = device_draws(runner);
    own->wants_logprobs = false;
    for (int32_t i = 0; i < own->num_logits_rows; i++) {
        struct logits_row *row = &own->logits_rows[i];
        arrays->logits_rows[i] = row->hidden_row;
        row->place = fill_sample(runner, row, may_give_logprobs, &arrays->samples[i]);
        own->draws_on_device &= row->place != DRAW_ON_HOST;
        row->num_logprobs = arrays->samples[i].num_logprobs;
        own->wants_logprobs |= row->num_logprobs >= 0;
        if (row->place == DRAW_NOTHING && runner->tokens)
            own->outputs[row->seq].token_id = TOKEN_ID_FORBIDDEN;
    }
}

void step_rows_take(const struct model_runner *runner, struct runner_step *own, int32_t index)
{
    enum { ENTRIES = 1 + MAX_DEVICE_LOGPROBS };
    const struct logits_row *row = &own->logits_rows[index];
    struct row_output *output = &own->outputs[row->seq];
    output->token_id = own->drawn[index];
    if (row->num_logprobs < 0 || output->token_id < 0)
        return;
    int32_t num_entries = 1 + min_i32(row->num_logprobs, runner->config->model->vocab_size);
    struct token_logprobs *logprobs = &own->sampled_logprobs[row->seq];
    *logprobs = (struct token_logprobs){
        .num_entries = num_entries,
        .token_ids = own->logprobs.token_ids + (int64_t)index * ENTRIES,
        .logprobs = own->logprobs.logprobs + (int64_t)index * ENTRIES,
        .rank = own->logprobs.ranks[index],
    };
    output->logprobs = logprobs;
}

// ---- on the host -----------------------------------------------------------------------------

/** Turns one row of logits into what was asked of it. Called by several threads at once, each with
 *  rows and an arena of its own. */
static void use_logits(struct model_runner *runner, struct runner_step *own,
                       const struct logits_row *logits_row, float *logits, struct arena *arena)
{
    const struct batch_row *row = &runner->batch.rows[own->step->rows[logits_row->seq].row];
    int32_t vocab_size = runner->config->model->vocab_size;
    if (logits_row->logprobs) {
        sampler_logprobs(logits, vocab_size, logits_row->token_id,
                         row->sampling.num_prompt_logprobs, logits_row->logprobs, arena);
        return;
    }
    struct sampler_history history = {row->token_ids, row->num_prompt_tokens, row->num_tokens,
                                      NULL};
    struct token_constraint constraint;
    if (row->sampling.num_automaton_words > 0) {
        if (!constraint_find(&constraint, runner->tokens, row, logits_row->mask, vocab_size,
                             arena)) {
            if (runner->tokens)
                own->outputs[logits_row->seq].token_id = TOKEN_ID_FORBIDDEN;
            return;
        }
        history.constraint = &constraint;
    }
    struct row_output *output = &own->outputs[logits_row->seq];
    struct token_logprobs *logprobs = &own->sampled_logprobs[logits_row->seq];
    output->token_id =
        sampler_sample(logits, vocab_size, &row->sampling, &history, logprobs, arena);
    if (row->sampling.num_logprobs >= 0 && output->token_id >= 0)
        output->logprobs = logprobs;
}

void step_rows_use(struct model_runner *runner, struct runner_step *own,
                   const struct logits_row *const *rows, float *logits, int32_t count)
{
    int64_t vocab_size = runner->config->model->vocab_size;
    // Always the whole team: OpenMP ends threads that a smaller one leaves idle.
#pragma omp parallel for schedule(static) num_threads(runner->dev.num_threads) if (count > 1)
    for (int32_t i = 0; i < count; i++)
        use_logits(runner, own, rows[i], logits + i * vocab_size,
                   &own->thread_arenas[omp_get_thread_num()]);
}
