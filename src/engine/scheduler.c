// Continuous batching: which requests compute how many tokens in the next step.
#include "engine/scheduler.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

struct scheduler_config scheduler_config_from(const struct engine_config *engine)
{
    const struct serve_options *o = engine->options;
    return (struct scheduler_config){
        .max_num_batched_tokens = engine->max_num_batched_tokens,
        .max_num_seqs = engine->max_num_seqs,
        .max_model_len = engine->max_model_len,
        .vocab_size = engine->model->vocab_size,
        .enable_chunked_prefill = o->enable_chunked_prefill != TRISTATE_FALSE,
        .enable_prefix_caching = o->enable_prefix_caching != TRISTATE_FALSE,
        .long_prefill_token_threshold = o->long_prefill_token_threshold,
        .max_num_partial_prefills = o->max_num_partial_prefills,
        .max_long_partial_prefills = o->max_long_partial_prefills,
        .policy = o->scheduling_policy,
        .reserve_full_isl = o->scheduler_reserve_full_isl,
        .watermark = o->watermark,
        .kv_cache = &engine->kv_cache,
    };
}

void scheduler_init(struct scheduler *s, const struct scheduler_config *config)
{
    assert(config->max_num_seqs > 0 && config->max_num_batched_tokens > 0);
    *s = (struct scheduler){.config = *config, .waiting = {.policy = config->policy}};
    if (config->enable_chunked_prefill) {
        s->long_prefill_token_threshold = max_i32(config->long_prefill_token_threshold, 0);
        if (config->max_num_partial_prefills > 1 && s->long_prefill_token_threshold == 0)
            s->long_prefill_token_threshold = max_i32(config->max_model_len / 25, 1); // 4 %
    }
    s->watermark_blocks = (int32_t)(config->watermark * config->kv_cache->num_blocks);
    kv_cache_manager_init(&s->kv, config->kv_cache, config->max_model_len,
                          config->max_num_batched_tokens, config->enable_prefix_caching);
    s->config.kv_cache = &s->kv.config;
    request_table_init(&s->requests, 2 * config->max_num_seqs);

    size_t num_seqs = (size_t)config->max_num_seqs;
    s->running = xcalloc(num_seqs, sizeof(*s->running));
    s->free_rows = xcalloc(num_seqs, sizeof(*s->free_rows));
    s->given_back_rows = xcalloc(num_seqs, sizeof(*s->given_back_rows));
    s->finished_rows = xcalloc(num_seqs, sizeof(*s->finished_rows));
    s->rows = xcalloc(num_seqs, sizeof(*s->rows));
    s->row_requests = xcalloc(num_seqs, sizeof(*s->row_requests));
    s->new_requests = xcalloc(num_seqs, sizeof(*s->new_requests));
    for (int32_t row = config->max_num_seqs - 1; row >= 0; row--)
        s->free_rows[s->num_free_rows++] = row; // the lowest on top
}

void scheduler_deinit(struct scheduler *s)
{
    kv_cache_manager_deinit(&s->kv);
    request_table_deinit(&s->requests);
    request_queue_deinit(&s->waiting);
    free(s->running);
    free(s->free_rows);
    free(s->given_back_rows);
    free(s->finished_rows);
    free(s->rows);
    free(s->row_requests);
    free(s->new_requests);
    free(s->outputs);
    *s = (struct scheduler){0};
}

// ---- in and out ----------------------------------------------------------------------------

void scheduler_forget(struct scheduler *s, struct request *r)
{
    s->num_live[r->client_index]--;
    request_table_remove(&s->requests, r);
}

static void give_row_back(struct scheduler *s, struct request *r)
{
    s->free_rows[s->num_free_rows++] = r->row;
    s->given_back_rows[s->num_given_back_rows++] = r->row;
    r->row = NO_ROW;
}

void scheduler_finish_running(struct scheduler *s, struct request *r, enum finish_reason reason)
{
    // Logits that are not finite may come from keys and values that are not.
    kv_cache_manager_free(&s->kv, &r->kv, reason == FINISH_REASON_ERROR);
    give_row_back(s, r);
    r->state = REQUEST_FINISHED;
    r->finish_reason = reason;
}

// Ends a request that is in no queue and has no blocks; its output goes with the next update.
static void finish_outside_step(struct scheduler *s, struct request *r, enum finish_reason reason)
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
           ids_in_vocabulary(p->allowed_token_ids, p->num_allowed_token_ids, vocab_size);
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
    if (request_table_find(&s->requests, m->request_id))
        return error_set(err, STATUS_INVALID, "request %" PRIu64 " is here already", m->request_id);
    return STATUS_OK;
}

// Whether so many tokens could be computed if the request had the engine for itself.
static bool can_ever_run(const struct scheduler *s, int64_t num_tokens)
{
    if (!s->config.enable_chunked_prefill && num_tokens > s->config.max_num_batched_tokens)
        return false;
    return kv_cache_manager_blocks_needed(&s->kv, num_tokens) <= s->kv.config.num_blocks;
}

enum status scheduler_add(struct scheduler *s, const struct engine_core_request *m, int64_t now_ns,
                          struct error *err)
{
    TRY(check_numbers(s, m, err));
    int32_t num_tokens = m->num_prompt_tokens + m->num_output_tokens;
    bool is_resumed = m->num_output_tokens > 0;
    bool is_too_long = num_tokens > s->config.max_model_len;
    bool is_valid = request_is_in_vocabulary(m, s->config.vocab_size);
    struct engine_core_request shortened = *m;
    if (is_too_long) { // it will be refused: nothing of its size is kept
        shortened.num_prompt_tokens = num_tokens = 1;
        shortened.num_output_tokens = 0;
        m = &shortened;
    }
    int64_t limit =
        min_i64((int64_t)m->num_prompt_tokens + m->sampling.max_tokens, s->config.max_model_len);
    int32_t max_tokens = (int32_t)max_i64(limit, num_tokens);
    int32_t max_blocks = (int32_t)ceil_div(max_tokens, s->kv.config.block_size);
    struct request *r =
        request_table_add(&s->requests, m, max_tokens, max_blocks, s->kv.config.num_groups);
    r->kv.root = kv_cache_manager_root(&s->kv, m->cache_salt);
    r->queued_ns = now_ns;
    drop_impossible_stops(r, s->config.vocab_size);
    s->num_live[r->client_index]++;
    request_queue_reserve(&s->waiting, s->requests.len);
    if (s->outputs_capacity < s->requests.len) {
        s->outputs_capacity = max_i32(s->requests.len, 2 * s->outputs_capacity);
        s->outputs = xrealloc(s->outputs, (size_t)s->outputs_capacity * sizeof(*s->outputs));
    }

    enum finish_reason reason = FINISH_REASON_NONE;
    if (!is_valid)
        reason = FINISH_REASON_ERROR;
    else if (is_too_long)
        reason = is_resumed ? FINISH_REASON_LENGTH : FINISH_REASON_ERROR;
    else if (is_resumed)
        reason = request_check_stop(r, s->config.max_model_len); // it may have ended elsewhere
    else if (num_tokens == s->config.max_model_len || !can_ever_run(s, (int64_t)num_tokens + 1))
        reason = FINISH_REASON_ERROR;
    if (reason != FINISH_REASON_NONE)
        finish_outside_step(s, r, reason);
    else
        request_queue_push(&s->waiting, r);
    return STATUS_OK;
}

static void remove_from_running(struct scheduler *s, int32_t index)
{
    s->num_running--;
    memmove(&s->running[index], &s->running[index + 1],
            (size_t)(s->num_running - index) * sizeof(*s->running));
}

static void abort_request(struct scheduler *s, struct request *r, enum finish_reason reason)
{
    if (r->state == REQUEST_FINISHED)
        return;
    if (r->state == REQUEST_RUNNING && s->in_flight && r->scheduled_slot >= 0) {
        // The worker may be reading its tokens and writing its blocks.
        if (!r->abort_requested || reason == FINISH_REASON_NONE)
            r->abort_reason = reason;
        r->abort_requested = true;
        return;
    }
    if (r->state == REQUEST_RUNNING) {
        int32_t index = 0;
        while (s->running[index] != r)
            index++;
        remove_from_running(s, index);
        scheduler_finish_running(s, r, FINISH_REASON_ABORT);
    } else {
        request_queue_remove(&s->waiting, r);
    }
    if (s->blocked == r)
        s->blocked = NULL;
    if (reason != FINISH_REASON_NONE)
        finish_outside_step(s, r, reason);
    else
        scheduler_forget(s, r);
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

double scheduler_prefix_hit_rate(const struct scheduler *s)
{
    const struct hit_rate_window *w = &s->hit_rate;
    return w->sum_queries > 0 ? (double)w->sum_hits / (double)w->sum_queries : 0;
}

// ---- one step ------------------------------------------------------------------------------

static int32_t remaining_tokens(const struct request *r)
{
    return r->num_tokens - r->num_computed_tokens;
}

static int32_t cap_chunk(const struct scheduler *s, int32_t num_new)
{
    int32_t threshold = s->long_prefill_token_threshold;
    return threshold > 0 ? min_i32(num_new, threshold) : num_new;
}

// Puts the request into the step. Its tables have grown from `num_blocks` entries per group.
static void add_row(struct scheduler *s, struct scheduler_output *out, struct request *r,
                    int32_t num_new, int32_t num_blocks)
{
    r->scheduled_slot = out->num_rows++;
    s->row_requests[r->scheduled_slot] = r;
    struct scheduled_row *row = &s->rows[r->scheduled_slot];
    row->row = r->row;
    row->num_computed_tokens = r->num_computed_tokens;
    row->num_scheduled_tokens = num_new;
    for (int32_t g = 0; g < s->kv.config.num_groups; g++) {
        const struct block_table *table = &r->kv.tables[g];
        row->num_new_blocks[g] = table->len - num_blocks;
        row->new_blocks[g] = table->blocks + num_blocks;
        row->num_freed_blocks[g] = table->num_freed;
    }
    r->num_computed_tokens += num_new;
    row->samples = r->num_computed_tokens == r->num_tokens;
    out->num_scheduled_tokens += num_new;
}

// Takes the request out of the step again.
static void remove_row(struct scheduler *s, struct scheduler_output *out, struct request *r)
{
    int32_t slot = r->scheduled_slot;
    out->num_scheduled_tokens -= s->rows[slot].num_scheduled_tokens;
    out->num_rows--;
    for (int32_t i = slot; i < out->num_rows; i++) {
        s->rows[i] = s->rows[i + 1];
        s->row_requests[i] = s->row_requests[i + 1];
        s->row_requests[i]->scheduled_slot = i;
    }
    r->scheduled_slot = -1;
}

// Who has to give its blocks back: the one admitted last, or the one that is least urgent.
static int32_t choose_victim(const struct scheduler *s)
{
    int32_t victim = s->num_running - 1;
    if (s->config.policy != SCHEDULING_POLICY_PRIORITY)
        return victim;
    for (int32_t i = victim - 1; i >= 0; i--) {
        if (request_is_before(s->running[victim], s->running[i]))
            victim = i;
    }
    return victim;
}

// By recomputation: it keeps its tokens, gives everything else back and waits again.
static void preempt(struct scheduler *s, int32_t index)
{
    struct request *r = s->running[index];
    remove_from_running(s, index);
    kv_cache_manager_free(&s->kv, &r->kv, false);
    give_row_back(s, r);
    r->state = REQUEST_WAITING;
    r->num_computed_tokens = 0;
    r->num_preemptions++;
    s->stats.num_preemptions++;
    request_queue_push_front(&s->waiting, r);
}

static int32_t count_decodes(const struct scheduler *s, int32_t from)
{
    int32_t count = 0;
    for (int32_t i = from; i < s->num_running; i++)
        count += remaining_tokens(s->running[i]) == 1;
    return count;
}

// Pass A: running requests, oldest first; they hold blocks already. True if one was preempted.
static bool schedule_running(struct scheduler *s, struct scheduler_output *out, int32_t *budget)
{
    bool preempted = false;
    int32_t num_decodes = -1; // at or behind i, each sure of its token; counted when it matters
    for (int32_t i = 0; i < s->num_running; i++) {
        if (*budget == 0)
            break;
        struct request *r = s->running[i];
        int32_t num_new = remaining_tokens(r);
        if (num_new == 1) {
            num_decodes = max_i32(num_decodes - 1, -1);
        } else {
            if (num_decodes < 0)
                num_decodes = count_decodes(s, i);
            num_new = min_i32(cap_chunk(s, num_new), *budget - num_decodes);
        }
        if (num_new <= 0)
            continue;

        int32_t num_blocks = r->kv.tables[0].len;
        const struct kv_demand demand = {.num_computed_tokens = r->num_computed_tokens,
                                         .num_new_tokens = num_new};
        bool is_victim = false;
        while (!is_victim && !kv_cache_manager_allocate(&s->kv, &r->kv, &demand)) {
            int32_t index = choose_victim(s);
            struct request *victim = s->running[index];
            if (victim->scheduled_slot >= 0) {
                *budget += s->rows[victim->scheduled_slot].num_scheduled_tokens;
                remove_row(s, out, victim);
            } else if (index > i && remaining_tokens(victim) == 1) {
                num_decodes = max_i32(num_decodes - 1, -1);
            }
            preempt(s, index);
            preempted = true;
            is_victim = victim == r;
            if (index <= i)
                i--; // what stood behind it has moved up
        }
        if (is_victim)
            continue;
        add_row(s, out, r, num_new, num_blocks);
        *budget -= num_new;
    }
    return preempted;
}

static void count_prefix_lookup(struct scheduler *s, int32_t num_queried, int32_t num_found)
{
    struct hit_rate_window *w = &s->hit_rate;
    s->stats.prefix_cache_queries += num_queried;
    s->stats.prefix_cache_hits += num_found;
    w->sum_queries += num_queried - w->queries[w->next];
    w->sum_hits += num_found - w->hits[w->next];
    w->queries[w->next] = num_queried;
    w->hits[w->next] = num_found;
    w->next = (w->next + 1) % HIT_RATE_WINDOW;
}

// Waiting → running.
static void admit(struct scheduler *s, struct scheduler_output *out, struct request *r,
                  int32_t num_found, bool looked_up, int64_t now_ns)
{
    r->state = REQUEST_RUNNING;
    r->row = s->free_rows[--s->num_free_rows];
    r->num_computed_tokens = num_found;
    s->running[s->num_running++] = r;
    if (r->num_preemptions == 0) {
        r->scheduled_ns = now_ns;
        r->num_cached_tokens = num_found;
        r->num_highest_computed = num_found;
        if (looked_up)
            count_prefix_lookup(s, r->num_tokens, num_found);
    }
    s->new_requests[out->num_new_requests++] = (struct scheduled_new_request){
        .row = r->row,
        .request_id = r->request_id,
        .num_prompt_tokens = r->num_prompt_tokens,
        .num_tokens = r->num_tokens,
        .token_ids = r->token_ids,
        .sampling = &r->sampling,
    };
}

struct partial_prefills {
    int32_t num, num_long;
};

static void count_partial(const struct scheduler *s, struct partial_prefills *partial,
                          const struct request *r)
{
    partial->num++;
    partial->num_long += r->num_tokens > s->long_prefill_token_threshold;
}

// Whether this prompt, which would be left unfinished by the step, has to wait for others that are.
static bool must_be_overtaken(const struct scheduler *s, const struct partial_prefills *partial,
                              const struct request *r)
{
    if (s->config.max_num_partial_prefills <= 1)
        return false;
    return partial->num >= s->config.max_num_partial_prefills ||
           (r->num_tokens > s->long_prefill_token_threshold &&
            partial->num_long >= max_i32(s->config.max_long_partial_prefills, 1));
}

// A row that is certain to run: what it writes may be found from now on. Tokens computed for the
// first time are progress, those below the highest are not.
static void commit_row(struct scheduler *s, int32_t slot)
{
    struct request *r = s->row_requests[slot];
    int32_t start = s->rows[slot].num_computed_tokens, end = r->num_computed_tokens;
    kv_cache_manager_cache(&s->kv, &r->kv, end);
    int32_t fresh = max_i32(start, min_i32(r->num_highest_computed, end));
    s->stats.num_recomputed_tokens += fresh - start;
    s->num_prompt_tokens_in_step += max_i32(min_i32(end, r->num_prompt_tokens) - fresh, 0);
    r->num_highest_computed = max_i32(r->num_highest_computed, end);
}

// Pass B: waiting requests, each from the end of its cached prefix. One that does not fit holds
// back all behind it.
static void schedule_waiting(struct scheduler *s, struct scheduler_output *out, int32_t *budget,
                             int64_t now_ns)
{
    struct partial_prefills partial = {0};
    for (int32_t i = 0; i < s->num_running && s->config.max_num_partial_prefills > 1; i++) {
        if (remaining_tokens(s->running[i]) > 0)
            count_partial(s, &partial, s->running[i]);
    }
    int32_t num_overtaken = 0;
    while (*budget > 0 && s->num_running < s->config.max_num_seqs && s->waiting.len > 0) {
        struct request *r = request_queue_peek(&s->waiting);
        if (r == s->blocked && s->num_running > 0 && s->kv.pool.num_free <= s->blocked_num_free)
            break;
        if (!can_ever_run(s, r->num_tokens)) { // it has grown beyond what the engine holds
            request_queue_remove(&s->waiting, r);
            finish_outside_step(s, r, FINISH_REASON_LENGTH);
            continue;
        }
        // Prompt log-probabilities need the logits of every prompt token computed anew.
        bool reads_cache = r->sampling.num_prompt_logprobs < 0 && s->config.enable_prefix_caching;
        int32_t num_found =
            reads_cache ? kv_cache_manager_find_prefix(&s->kv, &r->kv, r->num_tokens) : 0;
        int32_t num_left = r->num_tokens - num_found;
        int32_t num_new = cap_chunk(s, num_left);
        if (!s->config.enable_chunked_prefill && num_new > *budget)
            break;
        num_new = min_i32(num_new, *budget);
        bool is_partial = num_new < num_left;
        if (is_partial && must_be_overtaken(s, &partial, r)) {
            if (num_overtaken == MAX_OVERTAKEN_PREFILLS)
                break;
            request_queue_remove(&s->waiting, r);
            s->overtaken[num_overtaken++] = r;
            continue;
        }
        const struct kv_demand demand = {
            .num_found_tokens = num_found,
            .num_new_tokens = num_new,
            .num_reserved_tokens = s->config.reserve_full_isl ? r->num_tokens : 0,
            .watermark_blocks = s->num_running > 0 ? s->watermark_blocks : 0,
        };
        if (!kv_cache_manager_allocate(&s->kv, &r->kv, &demand)) {
            s->blocked = r;
            s->blocked_num_free = s->kv.pool.num_free;
            break;
        }
        s->blocked = NULL;
        request_queue_remove(&s->waiting, r);
        admit(s, out, r, num_found, reads_cache, now_ns);
        add_row(s, out, r, num_new, 0);
        commit_row(s, r->scheduled_slot);
        if (is_partial)
            count_partial(s, &partial, r);
        *budget -= num_new;
    }
    while (num_overtaken > 0)
        request_queue_push_front(&s->waiting, s->overtaken[--num_overtaken]);
}

bool scheduler_schedule(struct scheduler *s, int64_t now_ns, struct scheduler_output *out)
{
    assert(!s->in_flight);
    *out = (struct scheduler_output){.rows = s->rows, .new_requests = s->new_requests};
    int32_t budget = s->config.max_num_batched_tokens;
    bool preempted = schedule_running(s, out, &budget);
    // Only now: a request that was preempted above after it had got its tokens never writes them.
    s->num_prompt_tokens_in_step = 0;
    for (int32_t i = 0; i < out->num_rows; i++)
        commit_row(s, i);
    if (!preempted)
        schedule_waiting(s, out, &budget, now_ns);
    if (out->num_rows == 0)
        return false; // rows given back go with the next step

    s->stats.num_computed_prompt_tokens += s->num_prompt_tokens_in_step;
    memcpy(s->finished_rows, s->given_back_rows,
           (size_t)s->num_given_back_rows * sizeof(*s->finished_rows));
    out->finished_rows = s->finished_rows;
    out->num_finished_rows = s->num_given_back_rows;
    s->num_given_back_rows = 0;
    out->step = s->step++;
    s->in_flight = true;
    return true;
}
