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
    const char *algo = o->prefix_caching_hash_algo;
    return (struct scheduler_config){
        .max_num_batched_tokens = engine->max_num_batched_tokens,
        .max_num_seqs = engine->max_num_seqs,
        .max_model_len = engine->max_model_len,
        .vocab_size = engine->model->vocab_size,
        .enable_chunked_prefill = o->enable_chunked_prefill != TRISTATE_FALSE,
        .enable_prefix_caching = o->enable_prefix_caching != TRISTATE_FALSE,
        // The worker pools a step's rows before the next step may give them to others.
        .async_scheduling = engine->async_scheduling && engine->pooling.type == POOLING_NONE,
        .hash_algo = algo && strcmp(algo, "xxhash") == 0 ? BLOCK_HASH_XXHASH : BLOCK_HASH_SHA256,
        .long_prefill_token_threshold = o->long_prefill_token_threshold,
        .max_num_partial_prefills = o->max_num_partial_prefills,
        .max_long_partial_prefills = o->max_long_partial_prefills,
        .policy = o->scheduling_policy,
        .reserve_full_isl = o->scheduler_reserve_full_isl,
        .watermark = o->watermark,
        .kv_cache = &engine->kv_cache,
    };
}

static enum block_hash_algo hash_algo(const struct scheduler_config *config)
{
    if (!config->enable_prefix_caching)
        return BLOCK_HASH_NONE;
    return config->hash_algo == BLOCK_HASH_NONE ? BLOCK_HASH_SHA256 : config->hash_algo;
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
    int64_t max_tokens_in_flight =
        (int64_t)config->max_num_batched_tokens * (config->async_scheduling ? 2 : 1);
    kv_cache_manager_init(&s->kv, config->kv_cache, config->max_model_len,
                          (int32_t)min_i64(max_tokens_in_flight, INT32_MAX), hash_algo(config));
    s->config.kv_cache = &s->kv.config;
    request_table_init(&s->requests, 2 * config->max_num_seqs);

    size_t num_seqs = (size_t)config->max_num_seqs;
    s->running = xcalloc(num_seqs, sizeof(*s->running));
    s->free_rows = xcalloc(num_seqs, sizeof(*s->free_rows));
    s->given_back_rows = xcalloc(num_seqs, sizeof(*s->given_back_rows));
    for (int32_t i = 0; i < MAX_STEPS_IN_FLIGHT; i++) {
        struct scheduled_step *step = &s->steps[i];
        step->finished_rows = xcalloc(num_seqs, sizeof(*step->finished_rows));
        step->rows = xcalloc(num_seqs, sizeof(*step->rows));
        step->row_requests = xcalloc(num_seqs, sizeof(struct request *));
        step->new_requests = xcalloc(num_seqs, sizeof(*step->new_requests));
    }
    s->row_commits = xcalloc(num_seqs, sizeof(*s->row_commits));
    s->notable_rows = xcalloc(num_seqs, sizeof(*s->notable_rows));
    s->prefilling = xcalloc(num_seqs, sizeof(*s->prefilling));
    s->preemptions = xcalloc(num_seqs, sizeof(*s->preemptions));
    s->past = xcalloc(NUM_PAST_REQUESTS, sizeof(*s->past));
    for (int32_t row = config->max_num_seqs - 1; row >= 0; row--)
        s->free_rows[s->num_free_rows++] = row; // the lowest on top
}

// Ends what is in flight for an engine that goes down with it, and frees its places.
static void release_steps(struct scheduler *s)
{
    for (int32_t i = 0; i < MAX_STEPS_IN_FLIGHT; i++) {
        struct scheduled_step *step = &s->steps[i];
        for (int32_t k = 0; k < step->num_pinned; k++)
            scheduler_unpin(s, step->row_requests[k], step->rows[k].num_scheduled_tokens);
        free(step->finished_rows);
        free(step->rows);
        free(step->row_requests);
        free(step->new_requests);
    }
}

void scheduler_deinit(struct scheduler *s)
{
    kv_cache_manager_deinit(&s->kv);
    release_steps(s);
    request_table_deinit(&s->requests);
    request_queue_deinit(&s->waiting);
    free(s->running);
    free(s->free_rows);
    free(s->given_back_rows);
    free(s->row_commits);
    free(s->notable_rows);
    free(s->prefilling);
    free(s->preemptions);
    free(s->past);
    free(s->outputs);
    *s = (struct scheduler){0};
}

double scheduler_prefix_hit_rate(const struct scheduler *s)
{
    const struct hit_rate_window *w = &s->hit_rate;
    return w->sum_queries > 0 ? (double)w->sum_hits / (double)w->sum_queries : 0;
}

// ---- one step ------------------------------------------------------------------------------

static int32_t cap_chunk(const struct scheduler *s, int32_t num_new)
{
    int32_t threshold = s->long_prefill_token_threshold;
    return threshold > 0 ? min_i32(num_new, threshold) : num_new;
}

static void note_chunk(const struct scheduler *s, struct request *r, int32_t num_new,
                       int64_t now_ns)
{
    struct request_history *history = r->history;
    if (history->num_chunks < MAX_HISTORY_CHUNKS)
        history->chunks[history->num_chunks] =
            (struct prefill_chunk){s->step, now_ns, r->num_computed_tokens, num_new};
    history->num_chunks++;
}

// Puts the request into the step. Its tables have grown from `num_blocks` entries per group.
static void add_row(struct scheduler *s, struct scheduler_output *out, struct request *r,
                    int32_t num_new, int32_t num_blocks, int64_t now_ns)
{
    if (num_new > 1 || r->num_computed_tokens < r->num_prompt_tokens)
        note_chunk(s, r, num_new, now_ns);
    r->scheduled_slot = out->num_rows++;
    s->row_requests[r->scheduled_slot] = r;
    s->row_commits[r->scheduled_slot] =
        num_new > 1 || r->num_computed_tokens < r->num_prompt_tokens ||
        r->num_computed_tokens < r->num_highest_computed ||
        (r->num_computed_tokens + num_new) % s->kv.config.block_size == 0;
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
    row->samples = request_remaining_tokens(r) == 0;
    out->num_scheduled_tokens += num_new;
    // Until the step's update it belongs to a step in flight.
    r->num_in_flight++;
    r->num_in_flight_tokens += num_new;
    r->num_placeholders += row->samples && !request_pools(r);
}

// Takes the request out of the step again.
static void remove_row(struct scheduler *s, struct scheduler_output *out, struct request *r)
{
    int32_t slot = r->scheduled_slot;
    const struct scheduled_row *row = &s->rows[slot];
    out->num_scheduled_tokens -= row->num_scheduled_tokens;
    r->num_computed_tokens = row->num_computed_tokens;
    r->num_in_flight--;
    r->num_in_flight_tokens -= row->num_scheduled_tokens;
    r->num_placeholders -= row->samples && !request_pools(r);
    out->num_rows--;
    for (int32_t i = slot; i < out->num_rows; i++) {
        s->rows[i] = s->rows[i + 1];
        s->row_commits[i] = s->row_commits[i + 1];
        s->row_requests[i] = s->row_requests[i + 1];
        s->row_requests[i]->scheduled_slot = i;
    }
    r->scheduled_slot = -1;
}

static int32_t count_decodes(const struct scheduler *s, int32_t from)
{
    int32_t count = 0;
    for (int32_t i = from; i < s->num_running; i++)
        count += request_schedulable_tokens(s->running[i]) == 1;
    return count;
}

// Pass A: running requests, oldest first; they hold blocks already. True if one was preempted.
static bool schedule_running(struct scheduler *s, struct scheduler_output *out, int32_t *budget,
                             int64_t now_ns)
{
    bool preempted = false;
    int32_t num_decodes = -1; // at or behind i, each sure of its token; counted when it matters
    for (int32_t i = 0; i < s->num_running; i++) {
        if (*budget == 0)
            break;
        struct request *r = s->running[i];
        if (i + PREFETCH_DISTANCE < s->num_running)
            request_prefetch(s->running[i + PREFETCH_DISTANCE]);
        int32_t num_new = request_schedulable_tokens(r);
        if (num_new == 0)
            continue;
        if (num_new == 1) {
            num_decodes = max_i32(num_decodes - 1, -1);
        } else {
            if (num_decodes < 0)
                num_decodes = count_decodes(s, i);
            num_new = min_i32(cap_chunk(s, num_new), *budget - num_decodes);
        }
        if (num_new <= 0) {
            s->prefilling[s->num_prefilling++] = r;
            continue;
        }

        int32_t num_blocks = r->kv.tables[0].len;
        const struct kv_demand demand = {.num_computed_tokens = r->num_computed_tokens,
                                         .num_in_flight_tokens = r->num_in_flight_tokens,
                                         .num_new_tokens = num_new};
        bool is_victim = false;
        while (!is_victim && !kv_cache_manager_allocate(&s->kv, &r->kv, &demand)) {
            int32_t index = scheduler_choose_victim(s);
            struct request *victim = s->running[index];
            if (victim->scheduled_slot >= 0) {
                *budget += s->rows[victim->scheduled_slot].num_scheduled_tokens;
                remove_row(s, out, victim);
            } else if (index > i && request_schedulable_tokens(victim) == 1) {
                num_decodes = max_i32(num_decodes - 1, -1);
            }
            scheduler_preempt(s, index, r, now_ns);
            preempted = true;
            is_victim = victim == r;
            if (index <= i)
                i--; // what stood behind it has moved up
        }
        if (is_victim)
            continue;
        if (num_new < request_remaining_tokens(r))
            s->prefilling[s->num_prefilling++] = r;
        add_row(s, out, r, num_new, num_blocks, now_ns);
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
    r->admitted_step = s->step;
    s->running[s->num_running++] = r;
    if (r->num_preemptions > 0 && r->num_preemptions <= MAX_HISTORY_PREEMPTIONS)
        r->history->preemptions[r->num_preemptions - 1].resumed_ns = now_ns;
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
        .pooling = r->pooling,
    };
}

static bool is_long(const struct scheduler *s, const struct request *r)
{
    return r->num_tokens > s->long_prefill_token_threshold;
}

// Whether this prompt, which would be left unfinished by the step, has to wait for others that are.
static bool exceeds_partial_prefills(const struct scheduler *s, const struct request *r)
{
    if (s->config.max_num_partial_prefills <= 1)
        return false;
    int32_t num_long = 0;
    for (int32_t i = 0; i < s->num_prefilling; i++)
        num_long += is_long(s, s->prefilling[i]);
    return s->num_prefilling >= s->config.max_num_partial_prefills ||
           (is_long(s, r) && num_long >= max_i32(s->config.max_long_partial_prefills, 1));
}

// Whether a running request is about to compute the block behind the prefix that was found: then
// it is cheaper to wait for it than to compute it twice.
static bool is_being_computed(const struct scheduler *s, const struct request *r, int32_t num_found)
{
    int32_t block = num_found / s->kv.config.block_size;
    int32_t end = num_found + s->kv.config.block_size;
    if (end >= r->num_tokens)
        return false; // the last token is computed in any case
    for (int32_t i = 0; i < s->num_prefilling; i++) {
        const struct request *p = s->prefilling[i];
        if (p->num_computed_tokens < end && block < p->kv.num_hashes &&
            p->kv.hashes[block].low == r->kv.hashes[block].low &&
            p->kv.hashes[block].high == r->kv.hashes[block].high)
            return true;
    }
    return false;
}

// A row that is certain to run: what it writes may be found from now on. Tokens computed for the
// first time are progress, those below the highest are not.
static void commit_row(struct scheduler *s, int32_t slot)
{
    struct request *r = s->row_requests[slot];
    int32_t start = s->rows[slot].num_computed_tokens, end = r->num_computed_tokens;
    kv_cache_manager_cache(&s->kv, &r->kv, min_i32(end, r->num_tokens));
    int32_t fresh = max_i32(start, min_i32(r->num_highest_computed, end));
    s->stats.num_recomputed_tokens += fresh - start;
    s->num_prompt_tokens_in_step += max_i32(min_i32(end, r->num_prompt_tokens) - fresh, 0);
}

static void note_hold(struct request *r, enum hold_reason reason)
{
    r->history->num_held_steps[reason]++;
}

// Pass B: waiting requests, each from the end of its cached prefix. One that does not fit holds
// back all behind it.
static void schedule_waiting(struct scheduler *s, struct scheduler_output *out, int32_t *budget,
                             int64_t now_ns)
{
    int32_t num_overtaken = 0;
    while (*budget > 0 && s->num_running < s->config.max_num_seqs && s->waiting.len > 0) {
        struct request *r = request_queue_peek(&s->waiting);
        if (r->num_in_flight > 0) { // preempted, and its last token is still being drawn
            note_hold(r, HOLD_AFTER_PREEMPTION);
            break;
        }
        if (r == s->blocked && s->num_running > 0 && s->kv.pool.num_free <= s->blocked_num_free) {
            note_hold(r, r->num_preemptions > 0 ? HOLD_AFTER_PREEMPTION : HOLD_BLOCKS);
            break;
        }
        if (!scheduler_can_ever_run(s,
                                    r->num_tokens)) { // it has grown beyond what the engine holds
            request_queue_remove(&s->waiting, r);
            scheduler_finish_outside_step(s, r, FINISH_REASON_LENGTH);
            continue;
        }
        bool reads_cache = s->config.enable_prefix_caching && request_reads_cache(r);
        int32_t num_found =
            reads_cache ? kv_cache_manager_find_prefix(&s->kv, &r->kv, r->num_tokens) : 0;
        int32_t num_left = r->num_tokens - num_found;
        int32_t num_new = cap_chunk(s, num_left);
        if (!s->config.enable_chunked_prefill && num_new > *budget) {
            note_hold(r, HOLD_BUDGET);
            break;
        }
        num_new = min_i32(num_new, *budget);
        bool is_partial = num_new < num_left;
        bool shares = reads_cache && is_being_computed(s, r, num_found);
        if (shares || (is_partial && exceeds_partial_prefills(s, r))) {
            if (num_overtaken == MAX_OVERTAKEN_PREFILLS)
                break;
            note_hold(r, shares ? HOLD_SHARED_PREFIX : HOLD_PARTIAL_PREFILLS);
            request_queue_remove(&s->waiting, r);
            s->overtaken[num_overtaken++] = r;
            continue;
        }
        struct kv_demand demand = {
            .num_found_tokens = num_found,
            .num_new_tokens = num_new,
            .num_reserved_tokens = s->config.reserve_full_isl ? r->num_tokens : 0,
            .watermark_blocks = s->num_running > 0 ? s->watermark_blocks : 0,
        };
        scheduler_hold_back(s, r, &demand);
        if (!kv_cache_manager_allocate(&s->kv, &r->kv, &demand)) {
            s->blocked = r;
            s->blocked_num_free = s->kv.pool.num_free;
            note_hold(r, r->num_preemptions > 0 ? HOLD_AFTER_PREEMPTION : HOLD_BLOCKS);
            break;
        }
        s->blocked = NULL;
        request_queue_remove(&s->waiting, r);
        admit(s, out, r, num_found, reads_cache, now_ns);
        add_row(s, out, r, num_new, 0, now_ns);
        commit_row(s, r->scheduled_slot);
        if (is_partial)
            s->prefilling[s->num_prefilling++] = r;
        *budget -= num_new;
    }
    struct request *head = request_queue_peek(&s->waiting);
    if (head && s->num_running == s->config.max_num_seqs)
        note_hold(head, HOLD_SEATS);
    else if (head && *budget == 0)
        note_hold(head, HOLD_BUDGET);
    while (num_overtaken > 0)
        request_queue_push_front(&s->waiting, s->overtaken[--num_overtaken]);
}

// The rows of the step before do not count in the one that comes.
static void turn_to_next_step(struct scheduler *s)
{
    const struct scheduled_step *before = &s->steps[(s->step + 1) % MAX_STEPS_IN_FLIGHT];
    for (int32_t i = 0; s->in_flight > 0 && i < before->num_pinned; i++)
        before->row_requests[i]->scheduled_slot = -1;
    const struct scheduled_step *next = &s->steps[s->step % MAX_STEPS_IN_FLIGHT];
    s->rows = next->rows;
    s->row_requests = next->row_requests;
    s->new_requests = next->new_requests;
}

bool scheduler_schedule(struct scheduler *s, int64_t now_ns, struct scheduler_output *out)
{
    CHECK(scheduler_can_schedule(s));
    turn_to_next_step(s);
    *out = (struct scheduler_output){.rows = s->rows, .new_requests = s->new_requests};
    int32_t budget = s->config.max_num_batched_tokens;
    s->now_ns = now_ns;
    s->num_prefilling = s->num_preemptions = 0;
    bool preempted = schedule_running(s, out, &budget, now_ns);
    // Only now: a request that was preempted above after it had got its tokens never writes them.
    s->num_prompt_tokens_in_step = 0;
    for (int32_t i = 0; i < out->num_rows; i++) {
        if (s->row_commits[i])
            commit_row(s, i);
    }
    if (!preempted)
        schedule_waiting(s, out, &budget, now_ns);
    if (out->num_rows == 0)
        return false; // rows given back go with the next step

    s->stats.num_computed_prompt_tokens += s->num_prompt_tokens_in_step;
    struct scheduled_step *step = &s->steps[s->step % MAX_STEPS_IN_FLIGHT];
    step->num_pinned = out->num_rows;
    step->num_prompt_tokens = s->num_prompt_tokens_in_step;
    memcpy(step->finished_rows, s->given_back_rows,
           (size_t)s->num_given_back_rows * sizeof(*step->finished_rows));
    out->finished_rows = step->finished_rows;
    out->num_finished_rows = s->num_given_back_rows;
    s->num_given_back_rows = 0;
    out->step = s->step++;
    s->in_flight++;
    return true;
}
