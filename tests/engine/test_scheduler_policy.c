// Who gives way, who comes back when, who waits for whom, and what a refusal says.
#include "engine/scheduler_world.h"

static struct request *find(const struct world *w, uint64_t id)
{
    struct request *r = request_table_find(&w->scheduler.requests, id);
    assert_non_null(r);
    return r;
}

static int32_t held(const struct world *w, uint64_t id, enum hold_reason reason)
{
    return (int32_t)find(w, id)->history->num_held_steps[reason];
}

// ---- choices of one request ----------------------------------------------------------------

// Adds `n` requests with one prompt, as the API server does for n > 1.
static void add_choices(struct world *w, uint64_t first_id, int32_t n, int32_t num_prompt)
{
    for (int32_t i = 0; i < n; i++)
        add(w, first_id + (uint64_t)i, num_prompt, 5, 3);
}

static void choices_never_compute_a_full_block_of_their_prompt_twice(void **state)
{
    (void)state;
    // Whole prompt in a step; in chunks by the budget; in chunks by the threshold, so that budget
    // is left for the others beside each chunk; with partial prefills allowed side by side.
    static const struct {
        int32_t max_num_batched_tokens, threshold, max_partial, num_prompt;
    } cases[] = {
        {128, 0, 1, 50}, {16, 0, 1, 50}, {32, 7, 1, 50},
        {32, 5, 4, 50},  {32, 4, 1, 48}, {32, 6, 1, 49},
    };
    enum { N = 5 };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct scheduler_config config = DEFAULTS;
        config.max_num_seqs = 8;
        config.max_num_batched_tokens = cases[i].max_num_batched_tokens;
        config.long_prefill_token_threshold = cases[i].threshold;
        config.max_num_partial_prefills = cases[i].max_partial;
        config.max_long_partial_prefills = cases[i].max_partial;
        init(&w, config, 128);
        add_choices(&w, 1, N, cases[i].num_prompt);
        for (int32_t step = 0; scheduler_has_work(&w.scheduler); step++) {
            assert_true(step < 100);
            run_step(&w);
        }
        // What the others compute is what the cache can never give: the block of the last token.
        int32_t num_shared = (cases[i].num_prompt - 1) / 4 * 4;
        assert_int_equal(w.scheduler.stats.num_computed_prompt_tokens,
                         cases[i].num_prompt + (N - 1) * (cases[i].num_prompt - num_shared));
        assert_int_equal(w.scheduler.stats.prefix_cache_hits, (N - 1) * num_shared);
        deinit(&w);
    }
}

static void choices_hold_the_same_blocks_and_no_copies(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 128);
    add_choices(&w, 1, 4, 21);
    run_step(&w);
    for (uint64_t id = 2; id <= 4; id++)
        assert_memory_equal(find(&w, id)->kv.tables[0].blocks, find(&w, 1)->kv.tables[0].blocks,
                            5 * sizeof(int32_t));
    // Five shared blocks, and one of its own for each.
    assert_int_equal(block_pool_num_used(&w.scheduler.kv.pool), 5 + 4);
    deinit(&w);
}

static void
who_waits_for_a_prefix_lets_others_pass_and_takes_over_when_its_owner_leaves(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.long_prefill_token_threshold = 4;
    init(&w, config, 128);
    add_choices(&w, 1, 2, 60);
    add(&w, 3, 6, 1, 8); // another prompt
    run_step(&w);
    assert_true(is_running(&w, 1) && is_running(&w, 3));
    assert_false(is_running(&w, 2));
    assert_int_equal(held(&w, 2, HOLD_SHARED_PREFIX), 1);
    const uint64_t owner = 1;
    scheduler_abort(&w.scheduler, 0, &owner, 1, FINISH_REASON_NONE);
    run_step(&w);
    assert_true(is_running(&w, 2));
    assert_int_equal(find(&w, 2)->num_cached_tokens, 4); // what the first had computed
    assert_int_equal(run_to_end(&w, 2), FINISH_REASON_LENGTH);
    deinit(&w);
}

// ---- victims -------------------------------------------------------------------------------

static void among_those_admitted_together_the_one_that_loses_least_gives_way(void **state)
{
    (void)state;
    for (int32_t shorter = 1; shorter <= 2; shorter++) {
        struct world w;
        struct scheduler_config config = DEFAULTS;
        config.max_num_batched_tokens = 64;
        init(&w, config, 10);
        for (uint64_t id = 1; id <= 2; id++)
            add(&w, id, (int32_t)id == shorter ? 11 : 23, (int32_t)id, 40);
        run_step(&w);
        assert_true(is_running(&w, 1) && is_running(&w, 2));
        for (int32_t i = 0; w.scheduler.stats.num_preemptions == 0; i++) {
            assert_true(i < 100);
            run_step(&w);
        }
        assert_false(is_running(&w, (uint64_t)shorter));
        assert_true(is_running(&w, (uint64_t)(3 - shorter)));
        deinit(&w);
    }
}

static void what_a_victim_shares_with_others_is_not_lost(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.policy = SCHEDULING_POLICY_PRIORITY;
    config.max_num_batched_tokens = 128;
    init(&w, config, 22);
    int32_t tokens[FAKE_MAX_LEN];
    // Two choices of one long prompt, and a shorter prompt of its own; all equally urgent.
    static const int32_t lengths[] = {41, 41, 21}, families[] = {0, 0, 1};
    for (uint64_t id = 1; id <= 3; id++) {
        struct engine_core_request message = request(id, lengths[id - 1], families[id - 1], tokens);
        message.sampling.max_tokens = 60;
        message.arrival_time_ns = 7;
        add_message(&w, &message);
    }
    run_step(&w);
    for (int32_t i = 0; w.scheduler.stats.num_preemptions == 0; i++) {
        assert_true(i < 100);
        run_step(&w);
    }
    assert_true(is_running(&w, 3)); // 21 tokens of its own weigh more than a shared prompt
    assert_int_equal(w.scheduler.num_preemptions, 1);
    const struct preemption *p =
        &find(&w, w.scheduler.preemptions[0].victim_id)->history->preemptions[0];
    assert_true(p->num_lost_tokens < 41);
    assert_true(p->by_request_id >= 1 && p->by_request_id <= 3);
    deinit(&w);
}

// ---- coming back ---------------------------------------------------------------------------

static void a_preempted_request_comes_back_only_when_it_can_get_ahead(void **state)
{
    (void)state;
    for (int reserve = 0; reserve <= 1; reserve++) {
        struct world w;
        struct scheduler_config config = DEFAULTS;
        config.reserve_full_isl = reserve;
        config.max_num_batched_tokens = 64;
        init(&w, config, 14);
        add(&w, 1, 19, 0, 32);
        add(&w, 2, 15, 1, 30);
        int32_t num_steps = 0;
        while (scheduler_has_work(&w.scheduler)) {
            run_step(&w);
            assert_true(++num_steps < 200);
        }
        // The second gave way once and came back once, when the first had ended.
        assert_int_equal(w.scheduler.stats.num_preemptions, 1);
        deinit(&w);
    }
}

static void with_nobody_else_a_preempted_request_comes_back_at_once(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 8);
    add(&w, 1, 14, 0, 17);
    add(&w, 2, 14, 1, 17);
    while (w.scheduler.stats.num_preemptions == 0)
        run_step(&w);
    assert_int_equal(run_to_end(&w, 1), FINISH_REASON_LENGTH);
    run_step(&w);
    assert_true(is_running(&w, 2));
    assert_true(held(&w, 2, HOLD_AFTER_PREEMPTION) > 0);
    assert_int_equal(run_to_end(&w, 2), FINISH_REASON_LENGTH);
    deinit(&w);
}

// ---- refusals ------------------------------------------------------------------------------

static void a_refusal_says_what_was_asked_and_what_would_fit(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        int32_t num_prompt, num_blocks, max_num_batched_tokens;
        bool chunked;
        enum refusal_kind kind;
        int32_t limit;
    } cases[] = {
        {"the model's length", 128, 64, 32, true, REFUSAL_MODEL_LEN, 127},
        {"far beyond the model's length", 400, 64, 32, true, REFUSAL_MODEL_LEN, 127},
        {"the KV cache", 40, 10, 32, true, REFUSAL_KV_CACHE, 39},
        {"a step without chunks", 32, 64, 32, false, REFUSAL_STEP, 31},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (int is_limit = 0; is_limit <= 1; is_limit++) {
            struct world w;
            struct scheduler_config config = DEFAULTS;
            config.enable_chunked_prefill = cases[i].chunked;
            config.max_num_batched_tokens = cases[i].max_num_batched_tokens;
            init(&w, config, cases[i].num_blocks);
            add(&w, 1, is_limit ? cases[i].limit : cases[i].num_prompt, 0, 1);
            run_to_end(&w, 1);
            const struct engine_core_output *output = output_of(&w, 1);
            if (is_limit) {
                assert_int_equal(output->refusal.kind, REFUSAL_NONE);
                assert_int_equal(output->num_new_tokens, 1);
            } else {
                assert_int_equal(output->finish_reason, FINISH_REASON_ERROR);
                assert_int_equal(output->refusal.kind, cases[i].kind);
                assert_int_equal(output->refusal.num_tokens, cases[i].num_prompt);
                assert_int_equal(output->refusal.limit, cases[i].limit);
            }
            deinit(&w);
        }
    }
}

// ---- histories -----------------------------------------------------------------------------

static void a_history_tells_where_the_time_went(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.max_num_seqs = 1;
    init(&w, config, 64);
    add(&w, 1, 5, 0, 3);
    run_step(&w);
    int32_t tokens[FAKE_MAX_LEN];
    struct engine_core_request message = request(2, 70, 1, tokens);
    message.external_id = 99;
    message.sampling.max_tokens = 4;
    add_message(&w, &message);
    struct request_history h[4];
    assert_int_equal(scheduler_find_histories(&w.scheduler, 98, w.now_ns, h, 4), 0);
    assert_int_equal(scheduler_find_histories(&w.scheduler, 99, w.now_ns, h, 4), 1);
    assert_int_equal(h[0].state, REQUEST_WAITING);
    assert_int_equal(h[0].num_running_ahead, 1);
    assert_int_equal(h[0].scheduled_ns, 0);
    run_to_end(&w, 2);
    assert_int_equal(scheduler_find_histories(&w.scheduler, 99, w.now_ns, h, 4), 1);
    assert_int_equal(h[0].state, REQUEST_FINISHED);
    assert_int_equal(h[0].finish_reason, FINISH_REASON_LENGTH);
    assert_int_equal(h[0].num_held_steps[HOLD_SEATS], 2);
    assert_int_equal(h[0].num_chunks, 3); // 32, 32, 6
    assert_int_equal(h[0].chunks[1].first_token, 32);
    assert_int_equal(h[0].chunks[2].num_tokens, 6);
    assert_int_equal(h[0].num_output_tokens, 4);
    assert_int_equal(h[0].num_intervals, 3);
    assert_int_equal(h[0].sum_interval_ns, 3000);
    assert_int_equal(h[0].max_interval_ns, 1000);
    assert_true(h[0].queued_ns < h[0].scheduled_ns && h[0].scheduled_ns < h[0].first_token_ns);
    deinit(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_never_compute_a_full_block_of_their_prompt_twice),
        cmocka_unit_test(choices_hold_the_same_blocks_and_no_copies),
        cmocka_unit_test(
            who_waits_for_a_prefix_lets_others_pass_and_takes_over_when_its_owner_leaves),
        cmocka_unit_test(among_those_admitted_together_the_one_that_loses_least_gives_way),
        cmocka_unit_test(what_a_victim_shares_with_others_is_not_lost),
        cmocka_unit_test(a_preempted_request_comes_back_only_when_it_can_get_ahead),
        cmocka_unit_test(with_nobody_else_a_preempted_request_comes_back_at_once),
        cmocka_unit_test(a_refusal_says_what_was_asked_and_what_would_fit),
        cmocka_unit_test(a_history_tells_where_the_time_went),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
