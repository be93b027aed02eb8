// Random traffic through the real scheduler and KV cache with a fake worker. A round is a trace:
// a configuration, and what happens in order. A trace that breaks an invariant is made smaller
// while it still does, and printed; the traces under tests/engine/traces/ run as tests of their
// own. VLLM_PROPERTY_STEPS raises the number of steps, VLLM_PROPERTY_SEED is the first seed.
//
// A trace has a line for each event, a letter and numbers:
//   c  block_size num_groups window0 window1 window2 (0: full) max_model_len num_blocks
//      max_num_seqs max_num_batched_tokens chunked caching threshold partial long_partial
//      priority_policy reserve_full watermark_percent nan_one_in async
//   a  number (from 1) client priority prompt_tokens family leaves_family_at private_seed
//      max_tokens min_tokens eos num_stops stop0 stop1 prompt_use num_outputs n
//      (prompt_use: 1 with log-probabilities; twice its enum pooling_type for one that pools)
//   x  number child silent in_flight      an abort
//   s                                     a step
//   r                                     a reset of the prefix cache
#include "engine/fake_worker.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mapped_file.h"
#include "engine/recorder.h"
#include "engine/replay.h"
#include "engine/scheduler.h"

enum {
    MAX_LIVE = 48,
    DEFAULT_STEPS = 400000,
    STEPS_A_ROUND = 500,
    MAX_PROMPT = 90,
    NUM_CLIENTS = 3,
    MAX_CHOICES = 4,
    NUM_VALUES = 19,
    MAX_PENDING = 16,
    STEPS_A_TURN = 8, // beside those that compute a token: admission, steps in flight, the end
};

struct event {
    char kind;
    int32_t v[NUM_VALUES];
};

struct trace {
    struct event *events;
    int32_t num_events, capacity;
};

struct client_request {
    bool live, aborted;
    uint64_t id;
    int32_t client_index;
    int32_t num_prompt, num_tokens, num_given; // given: prompt and what a resume brought along
    int32_t tokens[FAKE_MAX_LEN];
    struct sampling_params sampling;
    enum pooling_type pooling;
    int32_t stop_ids[2];
    bool refusable;   // so large that an error is right
    int64_t num_held; // steps in which others were let pass, as last seen
    // How long it may take, see check_patience().
    int64_t age, allowance; // steps
    uint64_t counted;       // places in `requests` whose work the allowance contains
};

_Static_assert(MAX_LIVE <= 64, "a bit for each");

struct world {
    struct kv_cache_config kv;
    struct scheduler_config config;
    struct scheduler scheduler;
    struct recorder recorder;
    struct fake_worker worker;
    struct client_request requests[MAX_LIVE];
    struct event pending[MAX_PENDING]; // aborts for while the next step is in flight
    int32_t num_pending;
    int64_t now_ns;
    int64_t num_pooled;
    int64_t num_finished, num_hits, num_preemptions, num_tokens, num_overtakings;
    struct scheduler_output steps[MAX_STEPS_IN_FLIGHT]; // in flight, by number
    int64_t num_overlaps;                               // steps decided while another was in flight
    int64_t num_replayed, num_compared_snapshots, num_gaps;
    int64_t longest_age, least_slack; // steps: of a request, and between it and its bound
};

// ---- making a trace ------------------------------------------------------------------------

struct dice {
    uint64_t random;
};

static uint64_t next_random(struct dice *d)
{
    d->random += 0x9E3779B97F4A7C15u;
    return fake_mix(d->random, 7);
}

static int32_t pick(struct dice *d, int32_t low, int32_t high)
{
    return low + (int32_t)(next_random(d) % (uint64_t)(high - low + 1));
}

static bool one_in(struct dice *d, int32_t n)
{
    return pick(d, 1, n) == 1;
}

static struct event *trace_add(struct trace *t, char kind)
{
    if (t->num_events == t->capacity) {
        t->capacity = max_i32(256, 2 * t->capacity);
        t->events = xrealloc(t->events, (size_t)t->capacity * sizeof(*t->events));
    }
    t->events[t->num_events] = (struct event){.kind = kind};
    return &t->events[t->num_events++];
}

static void make_config(struct trace *t, struct dice *d)
{
    static const int32_t block_sizes[] = {1, 2, 4, 8, 16};
    int32_t *v = trace_add(t, 'c')->v;
    v[0] = block_sizes[pick(d, 0, 4)];
    v[1] = pick(d, 1, 3);
    for (int32_t g = 0; g < 3; g++)
        v[2 + g] = one_in(d, 2) ? pick(d, 2, 40) : 0;
    v[5] = pick(d, 8, 160);
    int32_t per_sequence = (v[5] + v[0] - 1) / v[0];
    // From pools that hold less than one longest request to roomy ones.
    v[6] = max_i32(per_sequence * v[1] * pick(d, 2, one_in(d, 2) ? 6 : 20) / 4, 4);
    v[7] = pick(d, 1, 8);
    v[8] = v[7] + pick(d, 0, 64);
    v[9] = !one_in(d, 4);
    v[10] = !one_in(d, 4);
    v[11] = one_in(d, 3) ? pick(d, 1, 20) : 0;
    v[12] = one_in(d, 3) ? pick(d, 2, 3) : 1;
    v[13] = pick(d, 1, 2);
    v[14] = one_in(d, 2);
    v[15] = !one_in(d, 3);
    v[16] = one_in(d, 3) ? 10 : 0;
    v[17] = one_in(d, 4) ? 200 : 0;
    v[18] = one_in(d, 2);
    if (!v[9])
        v[8] = max_i32(v[8], one_in(d, 2) ? v[5] : 1);
}

static void make_add(struct trace *t, struct dice *d, int32_t number, int32_t max_model_len)
{
    int32_t *v = trace_add(t, 'a')->v;
    v[0] = number;
    v[1] = pick(d, 0, NUM_CLIENTS - 1);
    v[2] = pick(d, 0, 3);
    // Few different prompts, so that prefixes repeat: a family, and where it leaves the family.
    v[3] = pick(d, 1, one_in(d, 30) ? MAX_PROMPT * 2 : MAX_PROMPT);
    if (!one_in(d, 10))
        v[3] = min_i32(v[3], max_i32(max_model_len - 1, 1));
    v[4] = pick(d, 0, 3);
    v[5] = one_in(d, 2) ? v[3] : pick(d, 0, v[3]);
    v[6] = pick(d, 0, 1 << 20);
    v[7] = one_in(d, 8) ? INT32_MAX : pick(d, 1, 40);
    v[8] = one_in(d, 4) ? pick(d, 1, min_i32(v[7], 20)) : 0;
    v[9] = one_in(d, 3) ? pick(d, 0, FAKE_VOCAB_SIZE - 1) : -1;
    v[10] = pick(d, 0, 2);
    v[11] = pick(d, 0, FAKE_VOCAB_SIZE - 1);
    v[12] = pick(d, 0, FAKE_VOCAB_SIZE - 1);
    v[13] = one_in(d, 6) ? 2 * pick(d, POOLING_LAST, POOLING_MEAN) : one_in(d, 10);
    v[14] = one_in(d, 5) ? pick(d, 1, 12) : 0;
    v[15] = one_in(d, 4) ? pick(d, 2, MAX_CHOICES) : 1;
}

static void make_aborts(struct trace *t, struct dice *d, int32_t number, bool in_flight)
{
    for (int32_t i = pick(d, 1, 3); i > 0 && number > 0; i--) {
        int32_t *v = trace_add(t, 'x')->v;
        v[0] = max_i32(number - pick(d, 0, 30), 1);
        v[1] = one_in(d, 3) ? pick(d, 0, MAX_CHOICES - 1) : 0;
        v[2] = !one_in(d, 4);
        v[3] = in_flight;
    }
}

static void make_trace(struct trace *t, uint64_t seed)
{
    struct dice dice = {seed}, *d = &dice;
    t->num_events = 0;
    make_config(t, d);
    int32_t max_model_len = t->events[0].v[5], number = 0;
    int32_t arrival_rarity = pick(d, 1, 12), abort_rarity = pick(d, 5, 60);
    for (int32_t i = 0; i < STEPS_A_ROUND; i++) {
        while (one_in(d, arrival_rarity + 1))
            make_add(t, d, ++number, max_model_len);
        if (one_in(d, abort_rarity))
            make_aborts(t, d, number, one_in(d, 2));
        trace_add(t, 's');
        if (one_in(d, 100))
            trace_add(t, 'r');
    }
}

// ---- running it ----------------------------------------------------------------------------

// Number and choice stand in the id, so that the worker can tell the salt.
static uint64_t id_of(int32_t number, int32_t child)
{
    return (uint64_t)number * 8 + (uint64_t)child;
}

static uint64_t salt_of(uint64_t id)
{
    return id / 8 % 3;
}

static void configure(struct world *w, const int32_t *v)
{
    w->kv = (struct kv_cache_config){.block_size = v[0], .num_groups = v[1], .num_blocks = v[6]};
    for (int32_t g = 0; g < v[1]; g++) {
        w->kv.groups[g].kind = v[2 + g] > 0 ? KV_CACHE_GROUP_SLIDING : KV_CACHE_GROUP_FULL;
        w->kv.groups[g].window = v[2 + g];
    }
    w->config = (struct scheduler_config){
        .max_num_seqs = v[7],
        .max_num_batched_tokens = v[8],
        .max_model_len = v[5],
        .vocab_size = FAKE_VOCAB_SIZE,
        .enable_chunked_prefill = v[9],
        .enable_prefix_caching = v[10],
        .long_prefill_token_threshold = v[11],
        .max_num_partial_prefills = v[12],
        .max_long_partial_prefills = v[13],
        .policy = v[14] ? SCHEDULING_POLICY_PRIORITY : SCHEDULING_POLICY_FCFS,
        .reserve_full_isl = v[15],
        .watermark = v[16] / 100.0,
        .async_scheduling = v[18],
        .kv_cache = &w->kv,
    };
}

// Steps that a request takes at most when nobody is before it: each computes a token at least.
static int64_t steps_alone(const struct world *w, const struct client_request *r)
{
    return STEPS_A_TURN +
           min_i64((int64_t)r->num_prompt + r->sampling.max_tokens, w->config.max_model_len);
}

static void add_choice(struct world *w, const int32_t *v, int32_t child)
{
    struct client_request *r = w->requests;
    while (r < w->requests + MAX_LIVE && r->live)
        r++;
    if (r == w->requests + MAX_LIVE)
        return;
    *r = (struct client_request){.live = true,
                                 .id = id_of(v[0], child),
                                 .client_index = v[1],
                                 .num_prompt = v[3],
                                 .num_tokens = v[3],
                                 .stop_ids = {v[11], v[12]}};
    for (int32_t i = 0; i < r->num_prompt; i++) {
        uint64_t family = i < v[5] ? (uint64_t)v[4] : 1000u + (uint64_t)v[6];
        r->tokens[i] = (int32_t)(fake_mix(family, (uint64_t)i) % FAKE_VOCAB_SIZE);
    }
    r->sampling = (struct sampling_params){
        .max_tokens = v[7],
        .min_tokens = v[8],
        .eos_token_id = v[9],
        .num_stop_token_ids = v[10],
        .stop_token_ids = r->stop_ids,
        .num_logprobs = -1,
        .num_prompt_logprobs = v[13] % 2 - 1,
    };
    // Resumed: an earlier engine got this far.
    r->pooling = (enum pooling_type)(v[13] / 2);
    for (int32_t i = 0; i < v[14] && !r->pooling && i + 1 < r->sampling.max_tokens; i++) {
        r->tokens[r->num_tokens] =
            fake_next_token(&w->kv, r->tokens, r->num_tokens, salt_of(r->id));
        r->num_tokens++;
    }
    r->num_given = r->num_tokens;
    r->allowance = steps_alone(w, r);
    for (int32_t i = 0; i < MAX_LIVE; i++) // another request's place before
        w->requests[i].counted &= ~((uint64_t)1 << (r - w->requests));
    int32_t num_least = r->num_prompt + (r->pooling == POOLING_NONE);
    r->refusable =
        num_least > w->config.max_model_len ||
        (!w->config.enable_chunked_prefill && num_least > w->config.max_num_batched_tokens) ||
        kv_cache_manager_blocks_needed(&w->scheduler.kv, num_least) > w->kv.num_blocks;
    static const char *const salts[] = {"", "a", "b"};
    const struct engine_core_request message = {
        .request_id = r->id,
        .client_index = r->client_index,
        .priority = v[2],
        .arrival_time_ns = w->now_ns,
        .num_prompt_tokens = r->num_prompt,
        .prompt_token_ids = r->tokens,
        .num_output_tokens = r->num_tokens - r->num_prompt,
        .output_token_ids = r->tokens + r->num_prompt,
        .cache_salt = str_from(salts[salt_of(r->id)]),
        .pooling = {.type = r->pooling},
        .sampling = r->sampling,
    };
    struct error err = {0};
    recorder_checkpoint(&w->recorder, &w->scheduler);
    assert_int_equal(scheduler_add(&w->scheduler, &message, w->now_ns, &err), STATUS_OK);
    recorder_add(&w->recorder, &w->scheduler, r->id);
    assert_int_equal(scheduler_add(&w->scheduler, &message, w->now_ns, &err), STATUS_INVALID);
}

static void abort_one(struct world *w, int32_t client_index, uint64_t id, enum finish_reason reason)
{
    recorder_checkpoint(&w->recorder, &w->scheduler);
    recorder_abort(&w->recorder, client_index, &id, 1, reason);
    scheduler_abort(&w->scheduler, client_index, &id, 1, reason);
}

static void abort_request(struct world *w, const int32_t *v)
{
    uint64_t id = id_of(v[0], v[1]);
    for (int32_t i = 0; i < MAX_LIVE; i++) {
        struct client_request *r = &w->requests[i];
        if (!r->live || r->aborted || r->id != id)
            continue;
        enum finish_reason reason = v[2] ? FINISH_REASON_NONE : FINISH_REASON_ABORT;
        abort_one(w, (r->client_index + 1) % NUM_CLIENTS, r->id, reason);
        abort_one(w, r->client_index, r->id, reason);
        abort_one(w, r->client_index, r->id, reason);
        if (v[2])
            r->live = false;
        else
            r->aborted = true; // an output will say so
    }
}

static bool is_stop_token(const struct client_request *r, int32_t token)
{
    for (int32_t i = 0; i < r->sampling.num_stop_token_ids; i++) {
        if (r->stop_ids[i] == token)
            return true;
    }
    return token == r->sampling.eos_token_id;
}

static void check_finish(struct world *w, const struct client_request *r,
                         const struct engine_core_output *out)
{
    int32_t num_outputs = r->num_tokens - r->num_prompt;
    int32_t last = r->tokens[r->num_tokens - 1];
    switch (out->finish_reason) {
    case FINISH_REASON_STOP:
        if (r->pooling != POOLING_NONE) {
            assert_int_equal(out->num_pooled, 1);
            assert_int_equal((int32_t)out->pooled[0],
                             fake_next_token(&w->kv, r->tokens, r->num_tokens, salt_of(r->id)));
            w->num_pooled++;
            break;
        }
        assert_true(num_outputs >= r->sampling.min_tokens && is_stop_token(r, last));
        assert_int_equal(out->stop_token_id, last == r->sampling.eos_token_id ? -1 : last);
        break;
    case FINISH_REASON_LENGTH:
        assert_int_equal(r->pooling, POOLING_NONE);
        assert_true(
            num_outputs >= r->sampling.max_tokens || r->num_tokens >= w->config.max_model_len ||
            (!w->config.enable_chunked_prefill &&
             r->num_tokens > w->config.max_num_batched_tokens) ||
            kv_cache_manager_blocks_needed(&w->scheduler.kv, r->num_tokens) > w->kv.num_blocks);
        break;
    case FINISH_REASON_ABORT:
        assert_true(r->aborted);
        break;
    default:
        assert_int_equal(out->finish_reason, FINISH_REASON_ERROR);
        assert_true(w->worker.nan_one_in > 0 || r->refusable);
    }
    w->num_finished++;
}

static void take_output(struct world *w, int32_t client_index, const struct engine_core_output *out)
{
    struct client_request *r = w->requests;
    while (r < w->requests + MAX_LIVE && !(r->live && r->id == out->request_id))
        r++;
    if (r == w->requests + MAX_LIVE)
        return; // aborted silently while its last output was on its way
    assert_int_equal(r->client_index, client_index);
    for (int32_t i = 0; i < out->num_new_tokens; i++) {
        // Had the last token ended it, nothing would follow.
        int32_t num_outputs = r->num_tokens - r->num_prompt;
        if (num_outputs > 0 && r->num_tokens > r->num_given)
            assert_false(num_outputs >= r->sampling.min_tokens &&
                         is_stop_token(r, r->tokens[r->num_tokens - 1]));
        assert_true(num_outputs < r->sampling.max_tokens);
        assert_int_equal(out->new_token_ids[i],
                         fake_next_token(&w->kv, r->tokens, r->num_tokens, salt_of(r->id)));
        r->tokens[r->num_tokens++] = out->new_token_ids[i];
        w->num_tokens++;
    }
    assert_true(out->num_new_tokens > 0 || out->finish_reason != FINISH_REASON_NONE);
    if (r->pooling != POOLING_NONE)
        assert_int_equal(out->num_new_tokens, 0);
    if (r->sampling.num_prompt_logprobs >= 0 || r->pooling == POOLING_MEAN)
        assert_int_equal(out->num_cached_tokens, 0);
    if (out->finish_reason != FINISH_REASON_NONE) {
        check_finish(w, r, out);
        r->live = false;
    }
}

// Every block has exactly the owners that its count says; free blocks are in the list once.
static void check_blocks(const struct world *w)
{
    const struct scheduler *s = &w->scheduler;
    const struct block_pool *pool = &s->kv.pool;
    int32_t owners[4096] = {0};
    assert_true(pool->num_blocks <= 4096);
    for (int32_t i = 0; i < s->num_running; i++) {
        for (int32_t g = 0; g < s->kv.config.num_groups; g++) {
            const struct block_table *table = &s->running[i]->kv.tables[g];
            for (int32_t k = 0; k < table->len; k++) {
                assert_int_equal(table->blocks[k] == NO_BLOCK, k < table->num_freed);
                if (table->blocks[k] != NO_BLOCK)
                    owners[table->blocks[k]]++;
            }
        }
    }
    int32_t num_free = 0, before = NO_BLOCK;
    for (int32_t id = pool->free_head; id != NO_BLOCK; id = pool->blocks[id].next) {
        assert_int_equal(pool->blocks[id].prev, before);
        assert_int_equal(pool->blocks[id].ref_count, 0);
        assert_true(++num_free <= pool->num_blocks);
        before = id;
    }
    assert_int_equal(before, pool->free_tail);
    assert_int_equal(num_free, pool->num_free);
    for (int32_t id = 0; id < pool->num_blocks; id++) {
        assert_int_equal(owners[id], pool->blocks[id].ref_count);
        num_free -= owners[id] == 0;
        if (pool->blocks[id].group >= 0) {
            int32_t found = block_pool_find(pool, pool->blocks[id].hash, pool->blocks[id].group);
            assert_int_not_equal(found, NO_BLOCK);
        }
    }
    assert_int_equal(num_free, 0);
}

static void check_step(const struct world *w, const struct scheduler_output *step,
                       const uint64_t *decoding, int32_t num_decoding, int64_t preemptions_before)
{
    const struct scheduler *s = &w->scheduler;
    assert_true(step->num_scheduled_tokens <= w->config.max_num_batched_tokens);
    assert_true(step->num_rows <= w->config.max_num_seqs);
    assert_true(s->num_running <= w->config.max_num_seqs);
    if (s->stats.num_preemptions > preemptions_before)
        assert_int_equal(step->num_new_requests, 0);
    for (int32_t i = 0; i < num_decoding; i++) {
        const struct request *r = request_table_find(&s->requests, decoding[i]);
        if (r && r->state == REQUEST_RUNNING)
            assert_true(r->scheduled_slot >= 0); // a decode advances in every step
    }
    int32_t num_partial = 0, num_long = 0;
    for (int32_t i = 0; i < s->num_running; i++) {
        const struct request *r = s->running[i];
        bool is_partial = r->num_computed_tokens < r->num_tokens;
        num_partial += is_partial;
        num_long += is_partial && r->num_tokens > s->long_prefill_token_threshold;
    }
    if (w->config.max_num_partial_prefills > 1 && w->config.enable_chunked_prefill) {
        assert_true(num_partial <= w->config.max_num_partial_prefills);
        assert_true(num_long <= w->config.max_long_partial_prefills);
    }
    for (int32_t i = 0; i < step->num_rows; i++) {
        if (w->config.enable_chunked_prefill && s->long_prefill_token_threshold > 0)
            assert_true(step->rows[i].num_scheduled_tokens <= s->long_prefill_token_threshold);
    }
}

// Whether FCFS wants `a` to be admitted before `b`: what was preempted comes before what never ran.
static bool comes_before(const struct request *a, const struct request *b)
{
    bool a_ran = a->num_preemptions > 0, b_ran = b->num_preemptions > 0;
    return a_ran != b_ran ? a_ran : a->order < b->order;
}

// Under FCFS nobody is admitted before one who comes before it, unless that one was let wait for a
// prefix under way or for the limit of partial prefills.
static void check_order(struct world *w, const struct scheduler_output *step)
{
    const struct scheduler *s = &w->scheduler;
    const struct request *last = NULL;
    for (int32_t i = 0; i < step->num_new_requests; i++) {
        const struct request *r =
            request_table_find(&s->requests, step->new_requests[i].request_id);
        if (!last || comes_before(last, r))
            last = r;
    }
    for (int32_t i = 0; i < MAX_LIVE; i++) {
        struct client_request *r = &w->requests[i];
        const struct request *inside = r->live ? request_table_find(&s->requests, r->id) : NULL;
        if (!inside || inside->state != REQUEST_WAITING)
            continue;
        int64_t num_held = inside->history->num_held_steps[HOLD_PARTIAL_PREFILLS] +
                           inside->history->num_held_steps[HOLD_SHARED_PREFIX];
        if (w->config.policy == SCHEDULING_POLICY_FCFS && last && comes_before(inside, last)) {
            assert_true(num_held > r->num_held);
            w->num_overtakings++;
        }
        r->num_held = num_held;
    }
}

static bool begin_step(struct world *w)
{
    struct scheduler *s = &w->scheduler;
    recorder_checkpoint(&w->recorder, s);
    if (s->in_flight > 0 && (!scheduler_can_schedule(s) || recorder_is_due(&w->recorder)))
        return false;
    w->num_overlaps += s->in_flight > 0;
    uint64_t decoding[16];
    int32_t num_decoding = 0;
    for (int32_t i = 0; i < s->num_running; i++) {
        const struct request *r = s->running[i];
        if (request_schedulable_tokens(r) == 1)
            decoding[num_decoding++] = r->request_id;
    }
    int64_t preemptions = s->stats.num_preemptions;
    struct scheduler_output step;
    bool runs = scheduler_schedule(s, w->now_ns, &step);
    recorder_step(&w->recorder, s, runs, &step, w->now_ns);
    check_step(w, &step, decoding, num_decoding, preemptions);
    check_order(w, &step);
    check_blocks(w);
    if (runs)
        w->steps[step.step % MAX_STEPS_IN_FLIGHT] = step;
    return runs;
}

// ---- nobody starves ----

// Whether the policy lets `a` go before `b` where both wait.
static bool is_favoured(const struct world *w, const struct request *a, const struct request *b)
{
    if (w->config.policy == SCHEDULING_POLICY_PRIORITY)
        return request_is_before(a, b);
    return comes_before(a, b);
}

static void count_work(const struct world *w, struct client_request *r, int32_t place)
{
    if (r->counted >> place & 1)
        return;
    r->counted |= (uint64_t)1 << place;
    r->allowance += steps_alone(w, &w->requests[place]);
}

// The bound on waiting. Of those who are before a request one always advances and never gives way,
// so it waits for no more than their work, and that counts once however often they are preempted:
// who runs while it waits, and whom the policy favours while both wait. Its own work comes on top.
static void check_patience(struct world *w)
{
    const struct request *inside[MAX_LIVE];
    for (int32_t i = 0; i < MAX_LIVE; i++) {
        const struct client_request *r = &w->requests[i];
        inside[i] = r->live ? request_table_find(&w->scheduler.requests, r->id) : NULL;
        if (inside[i] && inside[i]->state == REQUEST_FINISHED)
            inside[i] = NULL;
    }
    for (int32_t i = 0; i < MAX_LIVE; i++) {
        struct client_request *r = &w->requests[i];
        if (!inside[i])
            continue;
        bool waits = inside[i]->state == REQUEST_WAITING;
        for (int32_t k = 0; k < MAX_LIVE && waits; k++) {
            if (k != i && inside[k] &&
                (inside[k]->state == REQUEST_RUNNING || is_favoured(w, inside[k], inside[i])))
                count_work(w, r, k);
        }
        if (++r->age > r->allowance)
            fail_msg("request %llu has taken %lld steps, %lld are its bound",
                     (unsigned long long)r->id, (long long)r->age, (long long)r->allowance);
        w->longest_age = max_i64(w->longest_age, r->age);
        w->least_slack = min_i64(w->least_slack, r->allowance - r->age);
    }
}

// The worker runs the oldest step as late as it may: what the step points to must still be there.
static void end_step(struct world *w)
{
    struct scheduler *s = &w->scheduler;
    struct model_runner_output result = {0};
    struct engine_core_outputs outputs[MAX_API_SERVERS];
    const struct scheduler_output *step =
        s->in_flight > 0 ? &w->steps[(s->step - s->in_flight) % MAX_STEPS_IN_FLIGHT] : NULL;
    if (step)
        fake_worker_run(&w->worker, step, &result);
    scheduler_update(s, w->now_ns, step, step ? &result : NULL, outputs);
    const struct step_durations durations = {0};
    recorder_update(&w->recorder, s, w->now_ns, step, &result, outputs, &durations);
    check_blocks(w);
    for (int32_t c = 0; c < MAX_API_SERVERS; c++) {
        for (int32_t i = 0; i < outputs[c].num_outputs; i++)
            take_output(w, c, &outputs[c].outputs[i]);
    }
    check_patience(w);
}

// A turn of the engine's loop.
static void run_step(struct world *w)
{
    w->now_ns++;
    bool begun = begin_step(w);
    for (int32_t i = 0; i < w->num_pending; i++)
        abort_request(w, w->pending[i].v);
    w->num_pending = 0;
    if (!begun || !scheduler_can_schedule(&w->scheduler))
        end_step(w);
}

// What the recorder kept of the round gives the same decisions again.
static void replay_round(struct world *w)
{
    const struct recorder *rec = &w->recorder;
    const struct recorder_half *other = &rec->halves[1 - rec->current];
    const struct recorder_half *current = &rec->halves[rec->current];
    struct buf file = {0};
    buf_append(&file, (struct str){(const char *)rec->head, rec->head_bytes});
    if (rec->has_other)
        buf_append(&file, (struct str){(const char *)other->bytes, other->used});
    buf_append(&file, (struct str){(const char *)current->bytes, current->used});
    struct replay_report report;
    struct error err = {0};
    if (replay_run(buf_str(&file), 0, &report, &err) != STATUS_OK)
        fail_msg("replay: %s", err.message);
    assert_false(report.is_cut);
    w->num_replayed += report.num_steps;
    w->num_compared_snapshots += report.num_snapshots - 1;
    w->num_gaps += rec->num_gaps;
    buf_deinit(&file);
}

static void run_event(struct world *w, const struct event *e)
{
    switch (e->kind) {
    case 'a':
        for (int32_t child = 0; child < e->v[15]; child++)
            add_choice(w, e->v, child);
        return;
    case 'x':
        if (!e->v[3])
            abort_request(w, e->v);
        else if (w->num_pending < MAX_PENDING)
            w->pending[w->num_pending++] = *e;
        return;
    case 'r': {
        recorder_checkpoint(&w->recorder, &w->scheduler);
        bool is_free = block_pool_num_used(&w->scheduler.kv.pool) == 0;
        assert_int_equal(scheduler_reset_prefix_cache(&w->scheduler), is_free);
        recorder_reset(&w->recorder, is_free);
        return;
    }
    default:
        run_step(w);
    }
}

static void run_trace(struct world *w, const struct trace *t)
{
    memset(w->requests, 0, sizeof(w->requests));
    w->num_pending = 0;
    w->now_ns = 0;
    assert_int_equal(t->events[0].kind, 'c');
    configure(w, t->events[0].v);
    scheduler_init(&w->scheduler, &w->config);
    recorder_init(&w->recorder, &w->scheduler, 1 << 20);
    // Small halves of different sizes, so that they turn and overflow.
    w->recorder.capacity = (size_t)(1 + t->num_events % 24) * 16384;
    fake_worker_init(&w->worker, &w->kv, w->config.max_num_seqs);
    w->worker.salt_of = salt_of;
    w->worker.nan_one_in = t->events[0].v[17];
    for (int32_t i = 1; i < t->num_events; i++)
        run_event(w, &t->events[i]);
    // No more arrivals: everything ends, in a number of steps that the work bounds.
    for (int32_t left = MAX_LIVE * FAKE_MAX_LEN * 4; scheduler_has_work(&w->scheduler); left--) {
        assert_true(left > 0);
        run_step(w);
    }
    for (int32_t i = 0; i < MAX_LIVE; i++)
        assert_false(w->requests[i].live);
    assert_int_equal(w->scheduler.requests.len, 0);
    assert_int_equal(block_pool_num_used(&w->scheduler.kv.pool), 0);
    assert_true(scheduler_reset_prefix_cache(&w->scheduler));
    replay_round(w);
    w->num_hits += w->scheduler.stats.prefix_cache_hits;
    w->num_preemptions += w->scheduler.stats.num_preemptions;
    recorder_deinit(&w->recorder);
    scheduler_deinit(&w->scheduler);
    fake_worker_deinit(&w->worker);
}

// ---- making a trace smaller ----------------------------------------------------------------

static void print_trace(FILE *out, const struct trace *t)
{
    for (int32_t i = 0; i < t->num_events; i++) {
        const struct event *e = &t->events[i];
        int32_t num = e->kind == 'c' ? NUM_VALUES : e->kind == 'a' ? 16 : e->kind == 'x' ? 4 : 0;
        fputc(e->kind, out);
        for (int32_t k = 0; k < num; k++)
            fprintf(out, " %d", (int)e->v[k]);
        fputc('\n', out);
    }
}

// A failed assertion in a child goes back to cmocka, which starts the next test: that ends it.
static bool is_child;

// In a process of its own, since a broken invariant may be anything.
static bool breaks(const struct trace *t)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(0);
        alarm(20);
        is_child = true;
        run_trace(xcalloc(1, sizeof(struct world)), t);
        _exit(0);
    }
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status != 0;
}

static bool without(const struct trace *t, int32_t first, int32_t num, struct trace *out)
{
    out->num_events = 0;
    for (int32_t i = 0; i < t->num_events; i++) {
        if (i < first || i >= first + num)
            *trace_add(out, 's') = t->events[i];
    }
    return breaks(out);
}

// Leaves events out while what is left still breaks: halves first, single ones last.
static void shrink(struct trace *t)
{
    struct trace smaller = {0};
    for (int32_t num = t->num_events / 2; num >= 1; num /= 2) {
        for (int32_t first = 1; first + num <= t->num_events;) {
            if (!without(t, first, num, &smaller)) {
                first += num;
                continue;
            }
            struct trace swap = *t;
            *t = smaller;
            smaller = swap;
        }
    }
    free(smaller.events);
}

// cmocka leaves the test by longjmp when it fails, so what failed is told from the outside.
static struct trace current_trace;
static bool is_done;

static int shrink_what_failed(void **state)
{
    (void)state;
    if (is_done || current_trace.num_events == 0)
        return 0;
    is_done = true; // in the processes that try smaller ones
    if (!breaks(&current_trace))
        return 0;
    shrink(&current_trace);
    printf("the smallest trace that breaks it, for a file under tests/engine/traces/:\n");
    print_trace(stdout, &current_trace);
    return 0;
}

static void random_traffic_keeps_every_invariant(void **state)
{
    (void)state;
    if (is_child)
        _exit(1);
    const char *text = getenv("VLLM_PROPERTY_STEPS"), *first = getenv("VLLM_PROPERTY_SEED");
    int64_t num_steps = text ? atoll(text) : DEFAULT_STEPS;
    struct world *w = xcalloc(1, sizeof(*w));
    w->least_slack = INT64_MAX;
    for (int64_t round = 0; round * STEPS_A_ROUND < num_steps; round++) {
        make_trace(&current_trace, (first ? strtoull(first, NULL, 10) : 1) + (uint64_t)round);
        run_trace(w, &current_trace);
    }
    is_done = true;
    print_message("%lld requests, %lld tokens, %lld hits, %lld preemptions, %lld overtakings\n",
                  (long long)w->num_finished, (long long)w->num_tokens, (long long)w->num_hits,
                  (long long)w->num_preemptions, (long long)w->num_overtakings);
    print_message("the longest life: %lld steps; the least left to a bound: %lld\n",
                  (long long)w->longest_age, (long long)w->least_slack);
    print_message(
        "%lld steps replayed, %lld snapshots compared, %lld gaps, %lld steps overlapped\n",
        (long long)w->num_replayed, (long long)w->num_compared_snapshots, (long long)w->num_gaps,
        (long long)w->num_overlaps);
    assert_true(w->num_overlaps > num_steps / 20);
    assert_true(w->num_finished > num_steps / 100);
    assert_true(w->num_replayed > num_steps / 10 && w->num_compared_snapshots > 0);
    assert_true(w->num_hits > 0 && w->num_preemptions > 0 && w->num_overtakings > 0);
    assert_true(w->num_pooled > 0);
    free(w);
    free(current_trace.events);
    current_trace = (struct trace){0};
}

// ---- kept traces ---------------------------------------------------------------------------

// Lines of a letter and numbers; what follows a # is for people.
static void read_trace(struct trace *t, struct str text)
{
    t->num_events = 0;
    while (text.len > 0) {
        struct str line = str_split(&text, '\n');
        line = str_trim(str_split(&line, '#'));
        if (line.len == 0)
            continue;
        struct event *e = trace_add(t, line.ptr[0]);
        struct str rest = str_slice(line, 1, line.len);
        for (int32_t k = 0; (rest = str_trim(rest)).len > 0; k++) {
            char number[16] = "";
            struct str word = str_split(&rest, ' ');
            assert_true(k < NUM_VALUES && word.len < sizeof(number));
            memcpy(number, word.ptr, word.len);
            e->v[k] = atoi(number);
        }
    }
    assert_true(t->num_events > 1 && t->events[0].kind == 'c');
}

static void kept_traces_keep_every_invariant(void **state)
{
    (void)state;
    struct trace t = {0};
    struct world *w = xcalloc(1, sizeof(*w));
    DIR *dir = opendir(TESTS_DIR "/engine/traces");
    assert_non_null(dir);
    int num_traces = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        char path[4096];
        snprintf(path, sizeof(path), "%s/engine/traces/%s", TESTS_DIR, entry->d_name);
        struct mapped_file file;
        struct error err;
        assert_int_equal(mapped_file_open(&file, path, &err), STATUS_OK);
        read_trace(&t, mapped_file_str(&file));
        mapped_file_close(&file);
        run_trace(w, &t);
        num_traces++;
    }
    closedir(dir);
    assert_true(num_traces >= 2);
    print_message("%lld preemptions, %lld hits, %lld overtakings\n", (long long)w->num_preemptions,
                  (long long)w->num_hits, (long long)w->num_overtakings);
    assert_true(w->num_preemptions > 0 && w->num_hits > 0 && w->num_overtakings > 0);
    free(t.events);
    free(w);
}

// A worker that says nonsense stands for a broken invariant: few events are enough to show it.
static void a_trace_that_breaks_shrinks_to_a_few_events(void **state)
{
    (void)state;
    struct trace t = {0};
    make_trace(&t, 4);
    t.num_events = min_i32(t.num_events, 60);
    assert_false(breaks(&t));
    for (int32_t i = 1; i < t.num_events; i++) {
        if (t.events[i].kind == 'a' && i > t.num_events / 2) {
            t.events[i].v[1] = MAX_API_SERVERS; // no such client: adding it fails
            break;
        }
    }
    assert_true(breaks(&t));
    shrink(&t);
    assert_int_equal(t.num_events, 2);
    assert_int_equal(t.events[1].kind, 'a');
    free(t.events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_traces_keep_every_invariant),
        cmocka_unit_test(a_trace_that_breaks_shrinks_to_a_few_events),
        cmocka_unit_test_teardown(random_traffic_keeps_every_invariant, shrink_what_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
