// Random traffic through the real scheduler and KV cache with a fake worker. The seed of a round is
// printed when it fails; VLLM_PROPERTY_STEPS raises the number of steps.
#include "engine/fake_worker.h"

#include "base/buf.h"
#include "engine/recorder.h"
#include "engine/replay.h"
#include "engine/scheduler.h"

enum { MAX_LIVE = 48, DEFAULT_STEPS = 400000, MAX_PROMPT = 90, NUM_CLIENTS = 3 };

struct client_request {
    bool live, aborted;
    uint64_t id;
    int32_t client_index;
    int32_t num_prompt, num_tokens, num_given; // given: prompt and what a resume brought along
    int32_t tokens[FAKE_MAX_LEN];
    struct sampling_params sampling;
    int32_t stop_ids[2];
    bool refusable; // so large that an error is right
};

struct world {
    uint64_t random;
    struct kv_cache_config kv;
    struct scheduler_config config;
    struct scheduler scheduler;
    struct recorder recorder;
    struct fake_worker worker;
    struct client_request requests[MAX_LIVE];
    uint64_t next_id;
    int64_t now_ns;
    int64_t num_finished, num_hits, num_preemptions, num_tokens;
    int64_t num_replayed, num_compared_snapshots, num_gaps;
};

static uint64_t next_random(struct world *w)
{
    w->random += 0x9E3779B97F4A7C15u;
    return fake_mix(w->random, 7);
}

static int32_t pick(struct world *w, int32_t low, int32_t high)
{
    return low + (int32_t)(next_random(w) % (uint64_t)(high - low + 1));
}

static bool one_in(struct world *w, int32_t n)
{
    return pick(w, 1, n) == 1;
}

// The salt stands in the id, so that the worker can tell.
static uint64_t salt_of(uint64_t id)
{
    return id % 3;
}

static void choose_config(struct world *w)
{
    static const int32_t block_sizes[] = {1, 2, 4, 8, 16};
    w->kv = (struct kv_cache_config){.block_size = block_sizes[pick(w, 0, 4)]};
    w->kv.num_groups = pick(w, 1, 3);
    for (int32_t g = 0; g < w->kv.num_groups; g++) {
        w->kv.groups[g].kind = one_in(w, 2) ? KV_CACHE_GROUP_SLIDING : KV_CACHE_GROUP_FULL;
        w->kv.groups[g].window = pick(w, 2, 40);
    }
    int32_t max_model_len = pick(w, 8, 160);
    int32_t per_sequence = (max_model_len + w->kv.block_size - 1) / w->kv.block_size;
    // From pools that hold less than one longest request to roomy ones.
    w->kv.num_blocks =
        max_i32(per_sequence * w->kv.num_groups * pick(w, 2, one_in(w, 2) ? 6 : 20) / 4, 4);
    int32_t max_num_seqs = pick(w, 1, 8);
    w->config = (struct scheduler_config){
        .max_num_seqs = max_num_seqs,
        .max_num_batched_tokens = max_num_seqs + pick(w, 0, 64),
        .max_model_len = max_model_len,
        .vocab_size = FAKE_VOCAB_SIZE,
        .enable_chunked_prefill = !one_in(w, 4),
        .enable_prefix_caching = !one_in(w, 4),
        .long_prefill_token_threshold = one_in(w, 3) ? pick(w, 1, 20) : 0,
        .max_num_partial_prefills = one_in(w, 3) ? pick(w, 2, 3) : 1,
        .max_long_partial_prefills = pick(w, 1, 2),
        .policy = one_in(w, 2) ? SCHEDULING_POLICY_PRIORITY : SCHEDULING_POLICY_FCFS,
        .reserve_full_isl = !one_in(w, 3),
        .watermark = one_in(w, 3) ? 0.1 : 0,
        .kv_cache = &w->kv,
    };
    if (!w->config.enable_chunked_prefill)
        w->config.max_num_batched_tokens =
            max_i32(w->config.max_num_batched_tokens, one_in(w, 2) ? max_model_len : 1);
}

static void add_request(struct world *w)
{
    struct client_request *r = w->requests;
    while (r < w->requests + MAX_LIVE && r->live)
        r++;
    if (r == w->requests + MAX_LIVE)
        return;
    *r = (struct client_request){.live = true, .id = ++w->next_id};
    r->client_index = pick(w, 0, NUM_CLIENTS - 1);
    // Few different prompts, so that prefixes repeat: a family, and where it leaves the family.
    uint64_t family = next_random(w) % 4;
    r->num_prompt = pick(w, 1, one_in(w, 30) ? MAX_PROMPT * 2 : MAX_PROMPT);
    if (!one_in(w, 10))
        r->num_prompt = min_i32(r->num_prompt, max_i32(w->config.max_model_len - 1, 1));
    int32_t leaves_at = one_in(w, 2) ? r->num_prompt : pick(w, 0, r->num_prompt);
    for (int32_t i = 0; i < r->num_prompt; i++) {
        uint64_t source = i < leaves_at ? fake_mix(family, (uint64_t)i) : next_random(w);
        r->tokens[i] = (int32_t)(source % FAKE_VOCAB_SIZE);
    }
    r->num_tokens = r->num_prompt;
    r->sampling = (struct sampling_params){
        .max_tokens = one_in(w, 8) ? INT32_MAX : pick(w, 1, 40),
        .min_tokens = 0,
        .eos_token_id = one_in(w, 3) ? pick(w, 0, FAKE_VOCAB_SIZE - 1) : -1,
        .num_stop_token_ids = pick(w, 0, 2),
        .stop_token_ids = r->stop_ids,
        .num_logprobs = -1,
        .num_prompt_logprobs = one_in(w, 10) ? 0 : -1,
    };
    if (one_in(w, 4))
        r->sampling.min_tokens = pick(w, 1, min_i32(r->sampling.max_tokens, 20));
    for (int32_t i = 0; i < 2; i++)
        r->stop_ids[i] = pick(w, 0, FAKE_VOCAB_SIZE - 1);
    if (one_in(w, 5)) { // resumed: an earlier engine got this far
        int32_t num_outputs = pick(w, 1, 12);
        for (int32_t i = 0; i < num_outputs && i + 1 < r->sampling.max_tokens; i++) {
            r->tokens[r->num_tokens] =
                fake_next_token(&w->kv, r->tokens, r->num_tokens, salt_of(r->id));
            r->num_tokens++;
        }
    }
    r->num_given = r->num_tokens;
    r->refusable =
        r->num_prompt + 1 > w->config.max_model_len ||
        (!w->config.enable_chunked_prefill &&
         r->num_prompt + 1 > w->config.max_num_batched_tokens) ||
        kv_cache_manager_blocks_needed(&w->scheduler.kv, r->num_prompt + 1) > w->kv.num_blocks;
    static const char *const salts[] = {"", "a", "b"};
    const struct engine_core_request message = {
        .request_id = r->id,
        .client_index = r->client_index,
        .priority = pick(w, 0, 3),
        .arrival_time_ns = w->now_ns,
        .num_prompt_tokens = r->num_prompt,
        .prompt_token_ids = r->tokens,
        .num_output_tokens = r->num_tokens - r->num_prompt,
        .output_token_ids = r->tokens + r->num_prompt,
        .cache_salt = str_from(salts[salt_of(r->id)]),
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

static void abort_some(struct world *w, int32_t rarity)
{
    for (int32_t i = 0; i < MAX_LIVE; i++) {
        struct client_request *r = &w->requests[i];
        if (!r->live || r->aborted || !one_in(w, rarity))
            continue;
        bool reports = one_in(w, 4);
        enum finish_reason reason = reports ? FINISH_REASON_ABORT : FINISH_REASON_NONE;
        abort_one(w, (r->client_index + 1) % NUM_CLIENTS, r->id, reason);
        abort_one(w, r->client_index, r->id, reason);
        abort_one(w, r->client_index, r->id, reason);
        if (reports)
            r->aborted = true; // an output will say so
        else
            r->live = false;
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
        assert_true(num_outputs >= r->sampling.min_tokens && is_stop_token(r, last));
        assert_int_equal(out->stop_token_id, last == r->sampling.eos_token_id ? -1 : last);
        break;
    case FINISH_REASON_LENGTH:
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
    if (r->sampling.num_prompt_logprobs >= 0)
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
        num_partial += r->num_computed_tokens < r->num_tokens;
        num_long += r->num_computed_tokens < r->num_tokens &&
                    r->num_tokens > s->long_prefill_token_threshold;
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

static void run_step(struct world *w, int32_t abort_rarity)
{
    struct scheduler *s = &w->scheduler;
    uint64_t decoding[16];
    int32_t num_decoding = 0;
    for (int32_t i = 0; i < s->num_running; i++) {
        const struct request *r = s->running[i];
        if (r->num_tokens - r->num_computed_tokens == 1)
            decoding[num_decoding++] = r->request_id;
    }
    int64_t preemptions = s->stats.num_preemptions;
    struct scheduler_output step;
    struct model_runner_output result;
    struct engine_core_outputs outputs[MAX_API_SERVERS];
    w->now_ns++;
    recorder_checkpoint(&w->recorder, s);
    bool runs = scheduler_schedule(s, w->now_ns, &step);
    recorder_step(&w->recorder, s, runs, &step, w->now_ns);
    check_step(w, &step, decoding, num_decoding, preemptions);
    check_blocks(w);
    if (runs) {
        if (abort_rarity > 0 && one_in(w, 4))
            abort_some(w, abort_rarity);
        fake_worker_run(&w->worker, &step, &result);
    }
    scheduler_update(s, w->now_ns, runs ? &step : NULL, runs ? &result : NULL, outputs);
    const struct step_durations durations = {0};
    recorder_update(&w->recorder, s, w->now_ns, runs ? &step : NULL, &result, outputs, &durations);
    check_blocks(w);
    for (int32_t c = 0; c < MAX_API_SERVERS; c++) {
        for (int32_t i = 0; i < outputs[c].num_outputs; i++)
            take_output(w, c, &outputs[c].outputs[i]);
    }
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

static void run_round(struct world *w, uint64_t seed, int64_t num_steps)
{
    memset(w->requests, 0, sizeof(w->requests));
    w->random = seed;
    choose_config(w);
    scheduler_init(&w->scheduler, &w->config);
    recorder_init(&w->recorder, &w->scheduler);
    w->recorder.capacity = (size_t)pick(w, 1, 24) * 16384; // small halves, so that they turn
    fake_worker_init(&w->worker, &w->kv, w->config.max_num_seqs);
    w->worker.salt_of = salt_of;
    w->worker.random = seed;
    w->worker.nan_one_in = one_in(w, 4) ? 200 : 0;
    int32_t arrival_rarity = pick(w, 1, 12), abort_rarity = pick(w, 5, 200);
    for (int64_t i = 0; i < num_steps; i++) {
        while (one_in(w, arrival_rarity + 1))
            add_request(w);
        if (one_in(w, 20))
            abort_some(w, abort_rarity);
        run_step(w, abort_rarity);
        if (one_in(w, 100)) {
            recorder_checkpoint(&w->recorder, &w->scheduler);
            bool is_free = block_pool_num_used(&w->scheduler.kv.pool) == 0;
            assert_int_equal(scheduler_reset_prefix_cache(&w->scheduler), is_free);
            recorder_reset(&w->recorder, is_free);
        }
    }
    // No more arrivals: everything ends, in a number of steps that the work bounds.
    for (int32_t left = MAX_LIVE * FAKE_MAX_LEN * 4; scheduler_has_work(&w->scheduler); left--) {
        assert_true(left > 0);
        run_step(w, 0);
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

// cmocka leaves the test by longjmp when it fails, so the seed is told from the outside.
static uint64_t current_seed;

static int tell_seed(void **state)
{
    (void)state;
    print_message("last round: VLLM_PROPERTY_SEED=%llu\n", (unsigned long long)current_seed);
    return 0;
}

static void random_traffic_keeps_every_invariant(void **state)
{
    (void)state;
    const char *text = getenv("VLLM_PROPERTY_STEPS");
    int64_t num_steps = text ? atoll(text) : DEFAULT_STEPS;
    enum { STEPS_A_ROUND = 500 };
    struct world *w = xcalloc(1, sizeof(*w));
    for (int64_t round = 0; round * STEPS_A_ROUND < num_steps; round++) {
        const char *first = getenv("VLLM_PROPERTY_SEED");
        uint64_t seed = (first ? strtoull(first, NULL, 10) : 1) + (uint64_t)round;
        current_seed = seed;
        run_round(w, seed, STEPS_A_ROUND);
    }
    print_message("%lld requests, %lld tokens, %lld hits, %lld preemptions\n",
                  (long long)w->num_finished, (long long)w->num_tokens, (long long)w->num_hits,
                  (long long)w->num_preemptions);
    assert_true(w->num_finished > num_steps / 100);
    print_message("%lld steps replayed, %lld snapshots compared, %lld gaps\n",
                  (long long)w->num_replayed, (long long)w->num_compared_snapshots,
                  (long long)w->num_gaps);
    assert_true(w->num_replayed > num_steps / 10 && w->num_compared_snapshots > 0);
    assert_true(w->num_hits > 0 && w->num_preemptions > 0);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(random_traffic_keeps_every_invariant, tell_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
