// Requests on their way into the scheduler and out of it: checks, refusals, aborts.
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "engine/scheduler.h"

static void complete_history(const struct request *r, int64_t now_ns,
                             struct request_history *history)
{
    *history = *r->history;
    history->request_id = r->request_id;
    history->state = r->state;
    history->finish_reason = r->finish_reason;
    history->num_prompt_tokens = r->num_prompt_tokens;
    history->num_output_tokens = request_num_output_tokens(r);
    history->num_cached_tokens = r->num_cached_tokens;
    history->num_preemptions = r->num_preemptions;
    history->now_ns = now_ns;
    history->queued_ns = r->queued_ns;
    history->scheduled_ns = r->scheduled_ns;
    history->first_token_ns = r->first_token_ns;
    history->last_token_ns = r->last_token_ns;
    history->num_intervals = r->num_intervals;
    history->sum_interval_ns = r->sum_interval_ns;
    history->min_interval_ns = r->min_interval_ns;
    history->max_interval_ns = r->max_interval_ns;
    history->finished_ns = r->state == REQUEST_FINISHED ? now_ns : 0;
}

int32_t scheduler_find_histories(const struct scheduler *s, uint64_t external_id, int64_t now_ns,
                                 struct request_history *histories, int32_t max)
{
    int32_t num = 0;
    for (uint64_t i = 0; i < s->requests.num_buckets; i++) {
        for (const struct request *r = s->requests.buckets[i]; r && num < max; r = r->hash_next) {
            if (r->history->external_id == external_id)
                complete_history(r, now_ns, &histories[num++]);
        }
    }
    for (int64_t i = 1; i <= min_i64(s->num_past, NUM_PAST_REQUESTS) && num < max; i++) {
        const struct request_history *past = &s->past[(s->num_past - i) % NUM_PAST_REQUESTS];
        if (past->external_id == external_id) {
            histories[num] = *past;
            histories[num++].now_ns = now_ns;
        }
    }
    return num;
}

void scheduler_forget(struct scheduler *s, struct request *r, int64_t now_ns)
{
    complete_history(r, now_ns, &s->past[s->num_past++ % NUM_PAST_REQUESTS]);
    s->num_live[r->client_index]--;
    s->num_automaton_words -= r->sampling.num_automaton_words;
    request_table_remove(&s->requests, r);
    r->is_forgotten = true;
    if (r->num_in_flight == 0)
        request_table_recycle(&s->requests, r);
}

void scheduler_unpin(struct scheduler *s, struct request *r, int32_t num_tokens)
{
    r->num_in_flight--;
    r->num_in_flight_tokens -= num_tokens;
    if (r->is_forgotten && r->num_in_flight == 0)
        request_table_recycle(&s->requests, r);
}

void scheduler_give_row_back(struct scheduler *s, struct request *r)
{
    s->free_rows[s->num_free_rows++] = r->row;
    s->given_back_rows[s->num_given_back_rows++] = r->row;
    r->row = NO_ROW;
}

void scheduler_finish_running(struct scheduler *s, struct request *r, enum finish_reason reason)
{
    // Logits that are not finite may come from keys and values that are not.
    kv_cache_manager_free(&s->kv, &r->kv, reason == FINISH_REASON_ERROR);
    scheduler_give_row_back(s, r);
    r->state = REQUEST_FINISHED;
    r->finish_reason = reason;
}

void scheduler_finish_waiting(struct scheduler *s, struct request *r, enum finish_reason reason)
{
    request_queue_remove(&s->waiting, r);
    if (s->blocked == r)
        s->blocked = NULL;
    if (reason == FINISH_REASON_ERROR)
        kv_cache_manager_forget(&s->kv, &r->kv);
    r->state = REQUEST_FINISHED;
    r->finish_reason = reason;
}

void scheduler_finish_outside_step(struct scheduler *s, struct request *r,
                                   enum finish_reason reason)
{
    r->state = REQUEST_FINISHED;
    r->finish_reason = reason;
    request_queue_push(&s->finished, r);
}

static bool ids_in_vocabulary(const int32_t *ids, int32_t count, int32_t vocab_size)
{
    for (int32_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return false;
    }
    return true;
}

// What the worker would use as an index must be one.
static bool request_is_in_vocabulary(const struct engine_core_request *m, int32_t vocab_size)
{
    const struct sampling_params *p = &m->sampling;
    for (int32_t i = 0; i < p->num_logit_bias; i++) {
        if (!ids_in_vocabulary(&p->logit_bias[i].token_id, 1, vocab_size))
            return false;
    }
    return ids_in_vocabulary(m->prompt_token_ids, m->num_prompt_tokens, vocab_size) &&
           ids_in_vocabulary(m->output_token_ids, m->num_output_tokens, vocab_size) &&
           ids_in_vocabulary(p->allowed_token_ids, p->num_allowed_token_ids, vocab_size) &&
           ids_in_vocabulary(p->logprob_token_ids, p->num_logprob_token_ids, vocab_size);
}

// A stop token outside the vocabulary is never drawn; the worker need not know it.
static void drop_impossible_stops(struct request *r, int32_t vocab_size)
{
    struct sampling_params *p = &r->sampling;
    int32_t *ids = (int32_t *)(uintptr_t)p->stop_token_ids; // the request's own copy
    int32_t num_kept = 0;
    for (int32_t i = 0; i < p->num_stop_token_ids; i++) {
        if (ids[i] >= 0 && ids[i] < vocab_size)
            ids[num_kept++] = ids[i];
    }
    p->num_stop_token_ids = num_kept;
    if (p->eos_token_id < 0 || p->eos_token_id >= vocab_size)
        p->eos_token_id = -1;
    request_settle_stops(r);
}

static enum status check_numbers(const struct scheduler *s, const struct engine_core_request *m,
                                 struct error *err)
{
    if (m->client_index < 0 || m->client_index >= MAX_API_SERVERS)
        return error_set(err, STATUS_INVALID, "client index %d is not in [0, %d)",
                         (int)m->client_index, MAX_API_SERVERS);
    if (m->num_prompt_tokens < 1 || m->num_output_tokens < 0 ||
        m->num_output_tokens > INT32_MAX - m->num_prompt_tokens)
        return error_set(err, STATUS_INVALID, "%d prompt tokens and %d output tokens",
                         (int)m->num_prompt_tokens, (int)m->num_output_tokens);
    if (m->sampling.max_tokens < 1)
        return error_set(err, STATUS_INVALID, "max_tokens is %d, expected at least 1",
                         (int)m->sampling.max_tokens);
    bool pools = m->pooling.type != POOLING_NONE;
    if (pools && (m->num_output_tokens > 0 || m->sampling.num_prompt_logprobs >= 0))
        return error_set(err, STATUS_INVALID,
                         "%d output tokens or prompt log-probabilities of a request that pools",
                         (int)m->num_output_tokens);
    if (request_table_find(&s->requests, m->request_id))
        return error_set(err, STATUS_INVALID, "request %" PRIu64 " is here already", m->request_id);
    return STATUS_OK;
}

bool scheduler_can_ever_run(const struct scheduler *s, int64_t num_tokens)
{
    if (!s->config.enable_chunked_prefill && num_tokens > s->config.max_num_batched_tokens)
        return false;
    return kv_cache_manager_blocks_needed(&s->kv, num_tokens) <= s->kv.config.num_blocks;
}

// The longest sequence whose blocks fit into the whole cache.
static int32_t cache_capacity_tokens(const struct scheduler *s)
{
    int32_t low = 0, high = s->config.max_model_len;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (kv_cache_manager_blocks_needed(&s->kv, middle) <= s->kv.config.num_blocks)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// Why a fresh request of so many prompt tokens can never run here, with the number it exceeds. It
// needs room for the token that it draws as well, unless it pools.
static void refuse_if_impossible(const struct scheduler *s, struct request *r, int32_t num_tokens,
                                 bool is_valid)
{
    struct request_refusal *refusal = &r->refusal;
    const int32_t room = request_pools(r) ? 0 : 1;
    if (!is_valid) {
        refusal->kind = REFUSAL_TOKEN_IDS;
        refusal->limit = s->config.vocab_size;
    } else if (num_tokens > s->config.max_model_len - room) {
        refusal->kind = REFUSAL_MODEL_LEN;
        refusal->limit = s->config.max_model_len - room;
    } else if (!s->config.enable_chunked_prefill &&
               num_tokens > s->config.max_num_batched_tokens - room) {
        refusal->kind = REFUSAL_STEP;
        refusal->limit = s->config.max_num_batched_tokens - room;
    } else if (!scheduler_can_ever_run(s, (int64_t)num_tokens + room)) {
        refusal->kind = REFUSAL_KV_CACHE;
        refusal->limit = cache_capacity_tokens(s) - room;
    }
    refusal->num_tokens = refusal->kind != REFUSAL_NONE ? num_tokens : 0;
}

void scheduler_reserve_outputs(struct scheduler *s)
{
    if (s->outputs_capacity >= s->requests.len)
        return;
    s->outputs_capacity = max_i32(s->requests.len, 2 * s->outputs_capacity);
    s->outputs = xrealloc(s->outputs, (size_t)s->outputs_capacity * sizeof(*s->outputs));
}

static void enqueue(struct scheduler *s, struct request *r)
{
    kv_cache_manager_extend_hashes(&s->kv, &r->kv, r->num_tokens);
    r->history->num_ahead = s->waiting.len;
    r->history->num_running_ahead = s->num_running;
    request_queue_push(&s->waiting, r);
}

enum status scheduler_add(struct scheduler *s, const struct engine_core_request *m, int64_t now_ns,
                          struct error *err)
{
    TRY(check_numbers(s, m, err));
    s->now_ns = now_ns;
    int32_t num_tokens = m->num_prompt_tokens + m->num_output_tokens;
    int32_t given_tokens = num_tokens, given_outputs = m->num_output_tokens;
    bool is_resumed = m->num_output_tokens > 0;
    bool is_too_long = num_tokens > s->config.max_model_len;
    bool is_valid = request_is_in_vocabulary(m, s->config.vocab_size);
    struct engine_core_request shortened = *m;
    if (is_too_long) { // it will be refused: nothing of its size is kept
        shortened.num_prompt_tokens = num_tokens = 1;
        shortened.num_output_tokens = 0;
        m = &shortened;
    }
    int32_t limit = engine_core_request_max_tokens(m, s->config.max_model_len);
    int32_t max_tokens = max_i32(limit, num_tokens);
    int32_t max_blocks = (int32_t)ceil_div(max_tokens, s->kv.config.block_size);
    struct request *r =
        request_table_add(&s->requests, m, max_tokens, max_blocks, s->kv.config.num_groups);
    r->kv.root = kv_cache_manager_root(&s->kv, m->cache_salt);
    r->queued_ns = now_ns;
    r->order = s->num_added++;
    r->given_tokens = given_tokens;
    r->given_outputs = given_outputs;
    drop_impossible_stops(r, s->config.vocab_size);
    s->num_live[r->client_index]++;
    s->num_automaton_words += r->sampling.num_automaton_words;
    request_queue_reserve(&s->waiting, s->requests.len);
    scheduler_reserve_outputs(s);

    enum finish_reason reason = FINISH_REASON_NONE;
    if (is_resumed && is_valid) // it may have ended elsewhere
        reason = is_too_long ? FINISH_REASON_LENGTH : request_check_stop(r);
    else
        refuse_if_impossible(s, r, given_tokens, is_valid);
    if (r->refusal.kind != REFUSAL_NONE)
        reason = FINISH_REASON_ERROR;
    if (reason != FINISH_REASON_NONE)
        scheduler_finish_outside_step(s, r, reason);
    else
        enqueue(s, r);
    return STATUS_OK;
}

void scheduler_remove_from_running(struct scheduler *s, int32_t index)
{
    s->num_running--;
    memmove(&s->running[index], &s->running[index + 1],
            (size_t)(s->num_running - index) * sizeof(*s->running));
}

static void abort_request(struct scheduler *s, struct request *r, enum finish_reason reason)
{
    if (r->state == REQUEST_FINISHED)
        return;
    if (r->state == REQUEST_RUNNING) {
        // A step in flight may still write its blocks: before any that another owner computes. What
        // such a step draws is dropped.
        int32_t index = 0;
        while (s->running[index] != r)
            index++;
        scheduler_remove_from_running(s, index);
        scheduler_finish_running(
            s, r, reason == FINISH_REASON_ERROR ? FINISH_REASON_ERROR : FINISH_REASON_ABORT);
    } else {
        request_queue_remove(&s->waiting, r);
    }
    if (s->blocked == r)
        s->blocked = NULL;
    if (reason != FINISH_REASON_NONE) {
        scheduler_finish_outside_step(s, r, reason);
        return;
    }
    r->state = REQUEST_FINISHED;
    r->finish_reason = FINISH_REASON_ABORT;
    scheduler_forget(s, r, s->now_ns);
}

void scheduler_abort(struct scheduler *s, int32_t client_index, const uint64_t *ids,
                     int32_t num_ids, enum finish_reason reason)
{
    for (int32_t i = 0; i < num_ids; i++) {
        struct request *r = request_table_find(&s->requests, ids[i]);
        if (r && r->client_index == client_index)
            abort_request(s, r, reason);
    }
}

void scheduler_abort_client(struct scheduler *s, int32_t client_index, enum finish_reason reason)
{
    for (uint64_t i = 0; i < s->requests.num_buckets; i++) {
        for (struct request *r = s->requests.buckets[i], *next; r; r = next) {
            next = r->hash_next;
            if (client_index < 0 || r->client_index == client_index)
                abort_request(s, r, reason);
        }
    }
}

bool scheduler_reset_prefix_cache(struct scheduler *s)
{
    s->blocked = NULL;
    return kv_cache_manager_reset_prefix_cache(&s->kv);
}
