// The scheduler in small scenarios: budgets, order, preemption, stop rules, refusals.
#include "engine/scheduler_world.h"

// ---- budget and order ------------------------------------------------------------------------

static void a_long_prompt_is_computed_in_chunks_and_gives_one_token_at_the_end(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 64);
    add(&w, 1, 70, 0, 3);
    const int32_t chunks[] = {32, 32, 6, 1, 1};
    for (int32_t i = 0; i < 5; i++) {
        run_step(&w);
        assert_int_equal(tokens_of(&w, 1), chunks[i]);
        assert_int_equal(w.num_outputs, i >= 2 ? 1 : 0);
    }
    assert_int_equal(output_of(&w, 1)->finish_reason, FINISH_REASON_LENGTH);
    assert_int_equal(block_pool_num_used(&w.scheduler.kv.pool), 0);
    deinit(&w);
}

static void decodes_advance_in_every_step_beside_long_prefills(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.max_num_batched_tokens = 8;
    config.long_prefill_token_threshold = 8;
    init(&w, config, 100);
    add(&w, 1, 60, 0, 5); // first in the list, and long enough to eat every budget
    run_step(&w);
    add(&w, 2, 4, 1, 50);
    // The second gets in when the first leaves something over: at its last chunk.
    while (!is_running(&w, 2))
        run_step(&w);
    add(&w, 3, 60, 2, 5);
    for (int32_t i = 0; i < 5; i++) {
        run_step(&w);
        assert_int_equal(tokens_of(&w, 2), 1);
        assert_true(w.step.num_scheduled_tokens <= 8);
    }
    assert_true(tokens_of(&w, 3) > 0);
    deinit(&w);
}

static void a_decode_behind_a_prefill_in_the_list_keeps_its_token(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.max_num_batched_tokens = 8;
    config.long_prefill_token_threshold = 4;
    init(&w, config, 100);
    add(&w, 1, 60, 0, 5);
    add(&w, 2, 4, 1, 50);
    run_step(&w); // four tokens each
    w.scheduler.long_prefill_token_threshold = 0;
    for (int32_t i = 0; i < 4; i++) {
        run_step(&w);
        assert_int_equal(tokens_of(&w, 1), 7);
        assert_int_equal(tokens_of(&w, 2), 1);
    }
    deinit(&w);
}

static void a_request_without_a_row_waits(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 64);
    for (uint64_t id = 1; id <= 6; id++)
        add(&w, id, 2, (int32_t)id, 3);
    run_step(&w);
    assert_int_equal(w.step.num_new_requests, 4);
    assert_int_equal(w.scheduler.waiting.len, 2);
    for (int32_t i = 0; i < 3; i++)
        run_step(&w);
    assert_true(is_running(&w, 5) && is_running(&w, 6));
    assert_int_equal(w.step.num_finished_rows, 4);
    deinit(&w);
}

static void the_threshold_limits_running_and_waiting_chunks(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.long_prefill_token_threshold = 10;
    init(&w, config, 64);
    add(&w, 1, 25, 0, 3);
    add(&w, 2, 25, 1, 3);
    const int32_t chunks[] = {10, 10, 5};
    for (int32_t i = 0; i < 3; i++) {
        run_step(&w);
        assert_int_equal(tokens_of(&w, 1), chunks[i]);
        assert_int_equal(tokens_of(&w, 2), chunks[i]);
    }
    deinit(&w);
}

static void without_chunks_a_prompt_waits_for_a_step_that_holds_it(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.enable_chunked_prefill = false;
    init(&w, config, 64);
    add(&w, 1, 20, 0, 3);
    add(&w, 2, 20, 1, 3);
    add(&w, 3, 2, 2, 3); // would fit, but does not overtake
    add(&w, 4, 32, 3, 3);
    run_step(&w);
    assert_int_equal(tokens_of(&w, 1), 20);
    assert_int_equal(w.step.num_rows, 1);
    assert_int_equal(output_of(&w, 4)->finish_reason, FINISH_REASON_ERROR); // no step holds it
    run_step(&w);
    assert_int_equal(tokens_of(&w, 2), 20);
    assert_int_equal(tokens_of(&w, 3), 2);
    deinit(&w);
}

static void a_head_that_does_not_fit_holds_back_what_is_behind_it(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.max_num_batched_tokens = 64;
    init(&w, config, 10);
    add(&w, 1, 20, 0, 4);
    add(&w, 2, 24, 1, 4);
    add(&w, 3, 2, 2, 4);
    run_step(&w);
    assert_true(is_running(&w, 1));
    assert_false(is_running(&w, 2) || is_running(&w, 3));
    assert_int_equal(run_to_end(&w, 1), FINISH_REASON_LENGTH);
    run_step(&w);
    assert_true(is_running(&w, 2) && is_running(&w, 3));
    deinit(&w);
}

static void admission_leaves_the_watermark_free_unless_nobody_runs(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.watermark = 0.25;
    init(&w, config, 16);
    add(&w, 1, 32, 0, 8); // 8 blocks
    add(&w, 2, 20, 1, 8); // 5 more would leave 3
    run_step(&w);
    run_step(&w);
    assert_true(is_running(&w, 1));
    assert_false(is_running(&w, 2));
    assert_int_equal(run_to_end(&w, 1), FINISH_REASON_LENGTH);
    add(&w, 3, 56, 2, 4); // 14 blocks: alone it may take all
    assert_int_equal(run_to_end(&w, 2), FINISH_REASON_LENGTH);
    assert_int_equal(run_to_end(&w, 3), FINISH_REASON_LENGTH);
    deinit(&w);
}

static void short_prompts_overtake_long_ones_beyond_the_limit_of_partial_prefills(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.max_num_partial_prefills = 2;
    config.max_long_partial_prefills = 1;
    config.max_model_len = 250; // so the threshold is 10
    init(&w, config, 100);
    add(&w, 1, 60, 0, 4);
    add(&w, 2, 60, 1, 4);
    add(&w, 3, 5, 2, 4);
    add(&w, 4, 60, 3, 4);
    run_step(&w);
    assert_int_equal(tokens_of(&w, 1), 10);
    assert_int_equal(tokens_of(&w, 3), 5);
    assert_int_equal(w.step.num_rows, 2);
    assert_int_equal(request_queue_peek(&w.scheduler.waiting)->request_id, 2); // order kept
    for (int32_t i = 0; i < 5; i++)
        run_step(&w);
    run_step(&w);
    assert_true(is_running(&w, 2));
    assert_false(is_running(&w, 4));
    deinit(&w);
}

// ---- preemption ------------------------------------------------------------------------------

static void the_newest_gives_way_and_nobody_is_admitted_in_that_step(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 7);
    add(&w, 1, 11, 0, 16);
    add(&w, 2, 11, 1, 16);
    int32_t outputs[3] = {0};
    while (w.scheduler.stats.num_preemptions == 0) {
        run_step(&w);
        for (uint64_t id = 1; id <= 2; id++)
            outputs[id] += output_of(&w, id) ? output_of(&w, id)->num_new_tokens : 0;
        if (w.scheduler.kv.pool.num_free == 0 && w.scheduler.waiting.len == 0)
            add(&w, 3, 1, 2, 2); // would fit into what the victim gives back
    }
    assert_true(is_running(&w, 1));
    assert_false(is_running(&w, 2) || is_running(&w, 3));
    assert_int_equal(w.step.num_new_requests, 0);
    // It comes back before the third, continues where it was, and reads its own blocks again.
    assert_int_equal(request_queue_peek(&w.scheduler.waiting)->request_id, 2);
    while (outputs[2] < 16) {
        run_step(&w);
        if (output_of(&w, 2)) {
            assert_int_equal(output_of(&w, 2)->num_new_tokens, 1);
            outputs[2]++;
            assert_int_equal(output_of(&w, 2)->finish_reason == FINISH_REASON_LENGTH,
                             outputs[2] == 16);
        }
        assert_false(is_running(&w, 3) && !is_running(&w, 2) && outputs[2] < 16);
    }
    deinit(&w);
}

// Runs two requests with the given priorities until one is preempted; returns which.
static uint64_t who_is_preempted(int64_t first_priority, int64_t second_priority)
{
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.policy = SCHEDULING_POLICY_PRIORITY;
    init(&w, config, 7);
    int32_t tokens[FAKE_MAX_LEN];
    for (uint64_t id = 1; id <= 2; id++) {
        struct engine_core_request message = request(id, 11, (int32_t)id, tokens);
        message.priority = id == 1 ? first_priority : second_priority;
        message.sampling.max_tokens = 16;
        add_message(&w, &message);
    }
    while (w.scheduler.stats.num_preemptions == 0)
        run_step(&w);
    uint64_t victim = is_running(&w, 1) ? 2 : 1;
    assert_int_equal(run_to_end(&w, victim == 1 ? 2 : 1), FINISH_REASON_LENGTH);
    assert_int_equal(run_to_end(&w, victim), FINISH_REASON_LENGTH);
    deinit(&w);
    return victim;
}

static void the_least_urgent_gives_way_and_among_equals_the_latest(void **state)
{
    (void)state;
    assert_int_equal(who_is_preempted(0, 5), 2);
    assert_int_equal(who_is_preempted(5, 0), 1);
    assert_int_equal(who_is_preempted(3, 3), 2);
}

static void the_lowest_priority_value_runs_first(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.policy = SCHEDULING_POLICY_PRIORITY;
    config.max_num_seqs = 1;
    init(&w, config, 64);
    static const int64_t priorities[] = {3, -1, 7, 3};
    int32_t tokens[FAKE_MAX_LEN];
    for (uint64_t id = 1; id <= 4; id++) {
        struct engine_core_request message = request(id, 3, (int32_t)id, tokens);
        message.priority = priorities[id - 1];
        message.sampling.max_tokens = 1;
        add_message(&w, &message);
    }
    static const uint64_t expected[] = {2, 1, 4, 3};
    for (int32_t i = 0; i < 4; i++) {
        run_step(&w);
        assert_non_null(output_of(&w, expected[i]));
    }
    deinit(&w);
}

static void preempted_tokens_are_recomputed_and_counted_apart(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.enable_prefix_caching = false;
    init(&w, config, 7);
    add(&w, 1, 11, 0, 16);
    add(&w, 2, 11, 1, 16);
    assert_int_equal(run_to_end(&w, 1), FINISH_REASON_LENGTH);
    assert_int_equal(run_to_end(&w, 2), FINISH_REASON_LENGTH);
    assert_int_equal(output_of(&w, 2)->num_preemptions, w.scheduler.stats.num_preemptions);
    assert_int_equal(w.scheduler.stats.num_computed_prompt_tokens, 22);
    assert_int_equal(w.scheduler.stats.num_generated_tokens, 32);
    assert_true(w.scheduler.stats.num_recomputed_tokens >= 11);
    deinit(&w);
}

// The less urgent request stands first in the list, so it may have got its chunk when the urgent
// one takes its blocks: what it did not write must not be found when it comes back.
static void a_chunk_taken_back_in_the_same_step_leaves_nothing_in_the_cache(void **state)
{
    (void)state;
    int32_t num_taken_back = 0;
    for (int32_t num_urgent = 1; num_urgent < 24; num_urgent++) {
        struct world w;
        struct scheduler_config config = DEFAULTS;
        config.policy = SCHEDULING_POLICY_PRIORITY;
        config.long_prefill_token_threshold = 8; // two blocks
        config.reserve_full_isl = false;
        init(&w, config, 13);
        int32_t tokens[FAKE_MAX_LEN];
        struct engine_core_request patient = request(1, 44, 0, tokens);
        patient.priority = 9;
        add_message(&w, &patient);
        run_step(&w);
        struct engine_core_request urgent = request(2, num_urgent, 1, tokens);
        urgent.sampling.max_tokens = 2;
        add_message(&w, &urgent);
        request(1, 44, 0, tokens);
        int32_t num_tokens = 44;
        bool ended = false;
        for (int32_t i = 0; i < 100 && !ended; i++) {
            const struct request *r = request_table_find(&w.scheduler.requests, 1);
            bool was_prefilling = r->state == REQUEST_RUNNING && r->num_computed_tokens < 40;
            bool runs = begin_step(&w);
            num_taken_back += was_prefilling && r->state == REQUEST_WAITING;
            finish_step(&w, runs);
            const struct engine_core_output *output = output_of(&w, 1);
            if (!output)
                continue;
            assert_int_equal(output->new_token_ids[0],
                             fake_next_token(&w.kv, tokens, num_tokens, 0));
            tokens[num_tokens++] = output->new_token_ids[0];
            ended = output->finish_reason == FINISH_REASON_LENGTH;
        }
        assert_true(ended);
        deinit(&w);
    }
    assert_true(num_taken_back > 0);
}

// ---- prefix cache ----------------------------------------------------------------------------

static void hits_are_counted_once_and_told_with_the_output(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 64);
    add(&w, 1, 17, 0, 1);
    run_to_end(&w, 1);
    add(&w, 2, 17, 0, 2);
    run_step(&w);
    assert_int_equal(tokens_of(&w, 2), 1);
    assert_int_equal(output_of(&w, 2)->num_cached_tokens, 16);
    assert_int_equal(w.scheduler.stats.prefix_cache_queries, 34);
    assert_int_equal(w.scheduler.stats.prefix_cache_hits, 16);
    assert_true(scheduler_prefix_hit_rate(&w.scheduler) == 16.0 / 34.0);
    deinit(&w);
}

static void prompt_logprobs_read_nothing_from_the_cache_but_fill_it(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 64);
    int32_t tokens[FAKE_MAX_LEN];
    for (uint64_t id = 1; id <= 2; id++) {
        struct engine_core_request message = request(id, 17, 0, tokens);
        message.sampling.num_prompt_logprobs = 0;
        message.sampling.max_tokens = 1;
        add_message(&w, &message);
        run_step(&w);
        assert_int_equal(tokens_of(&w, id), 17);
        assert_int_equal(output_of(&w, id)->num_cached_tokens, 0);
    }
    assert_int_equal(w.scheduler.stats.prefix_cache_queries, 0);
    add(&w, 3, 17, 0, 1);
    run_step(&w);
    assert_int_equal(tokens_of(&w, 3), 1);
    deinit(&w);
}

static void requests_of_one_step_share_a_prefix_that_the_first_computes(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 64);
    for (uint64_t id = 1; id <= 3; id++)
        add(&w, id, 17, 0, 4);
    run_step(&w);
    assert_int_equal(tokens_of(&w, 1), 17);
    assert_int_equal(tokens_of(&w, 2), 1);
    assert_int_equal(tokens_of(&w, 3), 1);
    deinit(&w);
}

// ---- ends ------------------------------------------------------------------------------------

static void stop_rules_apply_in_order(void **state)
{
    (void)state;
    static const int32_t stops[] = {40, 41};
    const struct {
        int32_t token, max_tokens, min_tokens, eos;
        enum finish_reason reason;
        int32_t stop_token_id;
    } rows[] = {
        {40, 5, 0, 40, FINISH_REASON_STOP, -1},   // the EOS goes before the stop list
        {41, 5, 0, 40, FINISH_REASON_STOP, 41},   // a stop token is named
        {40, 1, 0, 40, FINISH_REASON_STOP, -1},   // also on the last allowed token
        {40, 5, 0, -1, FINISH_REASON_STOP, 40},   // ignore_eos leaves the list
        {40, 5, 1, 40, FINISH_REASON_STOP, -1},   // enough tokens
        {40, 5, 2, 40, FINISH_REASON_NONE, -1},   // too few
        {40, 1, 1, -1, FINISH_REASON_STOP, 40},   //
        {7, 1, 0, 40, FINISH_REASON_LENGTH, -1},  //
        {7, 2, 0, 40, FINISH_REASON_NONE, -1},    //
        {40, 1, 9, 40, FINISH_REASON_LENGTH, -1}, // min_tokens does not outlive max_tokens
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct world w;
        init(&w, DEFAULTS, 64);
        int32_t tokens[FAKE_MAX_LEN];
        struct engine_core_request message = request(1, 5, 0, tokens);
        message.sampling.max_tokens = rows[i].max_tokens;
        message.sampling.min_tokens = rows[i].min_tokens;
        message.sampling.eos_token_id = rows[i].eos;
        message.sampling.num_stop_token_ids = 2;
        message.sampling.stop_token_ids = stops;
        add_message(&w, &message);
        w.forced_token = rows[i].token;
        run_step(&w);
        assert_int_equal(output_of(&w, 1)->num_new_tokens, 1);
        assert_int_equal(output_of(&w, 1)->finish_reason, rows[i].reason);
        assert_int_equal(output_of(&w, 1)->stop_token_id, rows[i].stop_token_id);
        deinit(&w);
    }
}

static void what_can_never_run_is_refused_at_once_and_blocks_nobody(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 10);
    add(&w, 1, 128, 0, 4); // no room for one output in max_model_len
    add(&w, 2, 40, 1, 4);  // fills all blocks, none is left for the next token
    add(&w, 3, 39, 2, 1);
    add(&w, 5, 400, 3, 4); // nothing of this size is kept either
    assert_true(request_table_find(&w.scheduler.requests, 5)->memory_bytes < 400 * sizeof(int32_t));
    int32_t tokens[FAKE_MAX_LEN];
    struct engine_core_request message = request(4, 5, 0, tokens);
    tokens[3] = FAKE_VOCAB_SIZE;
    add_message(&w, &message);
    run_step(&w);
    assert_int_equal(output_of(&w, 1)->finish_reason, FINISH_REASON_ERROR);
    assert_int_equal(output_of(&w, 2)->finish_reason, FINISH_REASON_ERROR);
    assert_int_equal(output_of(&w, 4)->finish_reason, FINISH_REASON_ERROR);
    assert_int_equal(output_of(&w, 5)->finish_reason, FINISH_REASON_ERROR);
    assert_true(is_running(&w, 3));
    assert_int_equal(run_to_end(&w, 3), FINISH_REASON_LENGTH);
    assert_false(scheduler_has_work(&w.scheduler));
    deinit(&w);
}

static void a_request_that_outgrows_the_whole_cache_ends_with_length(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 5);
    add(&w, 1, 10, 0, 100);
    assert_int_equal(run_to_end(&w, 1), FINISH_REASON_LENGTH);
    // Twenty tokens have slots; the twenty-first was drawn and has none.
    assert_int_equal(w.scheduler.stats.num_generated_tokens, 11);
    assert_int_equal(block_pool_num_used(&w.scheduler.kv.pool), 0);
    deinit(&w);
}

static void a_resumed_request_continues_exactly(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 64);
    add(&w, 1, 9, 0, 12);
    int32_t tokens[FAKE_MAX_LEN];
    struct engine_core_request message = request(2, 9, 0, tokens);
    message.output_token_ids = tokens + 9;
    message.sampling.max_tokens = 12;
    for (int32_t i = 0; i < 7; i++) {
        run_step(&w);
        tokens[9 + message.num_output_tokens++] = output_of(&w, 1)->new_token_ids[0];
    }
    add_message(&w, &message);
    for (int32_t i = 7; i < 12; i++) {
        run_step(&w);
        assert_int_equal(output_of(&w, 2)->num_new_tokens, 1);
        assert_int_equal(output_of(&w, 1)->new_token_ids[0], output_of(&w, 2)->new_token_ids[0]);
    }
    assert_int_equal(output_of(&w, 1)->finish_reason, FINISH_REASON_LENGTH);
    assert_int_equal(output_of(&w, 2)->finish_reason, FINISH_REASON_LENGTH);
    // One that had ended already says so and computes nothing.
    message.request_id = 3;
    message.sampling.max_tokens = 7;
    add_message(&w, &message);
    run_step(&w);
    assert_int_equal(w.step.num_rows, 0);
    assert_int_equal(output_of(&w, 3)->finish_reason, FINISH_REASON_LENGTH);
    assert_int_equal(output_of(&w, 3)->num_new_tokens, 0);
    deinit(&w);
}

static void logits_that_are_not_finite_end_one_request_and_are_not_cached(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 64);
    add(&w, 1, 9, 0, 12);
    w.forced_token = -2;
    run_step(&w);
    assert_int_equal(output_of(&w, 1)->finish_reason, FINISH_REASON_ERROR);
    assert_int_equal(output_of(&w, 1)->num_new_tokens, 0);
    w.forced_token = -1;
    add(&w, 2, 9, 0, 1);
    run_step(&w);
    assert_int_equal(tokens_of(&w, 2), 9); // no hit
    deinit(&w);
}

static void an_abort_ends_a_request_wherever_it_is(void **state)
{
    (void)state;
    struct world w;
    struct scheduler_config config = DEFAULTS;
    config.max_num_seqs = 2;
    init(&w, config, 64);
    for (uint64_t id = 1; id <= 4; id++)
        add(&w, id, 5, (int32_t)id, 20);
    run_step(&w);
    const uint64_t waiting = 3, running = 1, in_flight = 2, told = 4, unknown = 99;
    scheduler_abort(&w.scheduler, 0, &waiting, 1, FINISH_REASON_NONE);
    scheduler_abort(&w.scheduler, 0, &running, 1, FINISH_REASON_NONE);
    scheduler_abort(&w.scheduler, 0, &unknown, 1, FINISH_REASON_NONE);
    scheduler_abort(&w.scheduler, 1, &in_flight, 1, FINISH_REASON_NONE); // another client's
    assert_int_equal(w.scheduler.num_running, 1);
    assert_true(begin_step(&w));
    assert_int_equal(w.step.num_rows, 2);
    scheduler_abort(&w.scheduler, 0, &in_flight, 1, FINISH_REASON_NONE);
    scheduler_abort(&w.scheduler, 0, &told, 1, FINISH_REASON_ABORT);
    finish_step(&w, true);
    assert_int_equal(w.num_outputs, 1);
    assert_int_equal(output_of(&w, 4)->finish_reason, FINISH_REASON_ABORT);
    assert_int_equal(output_of(&w, 4)->num_new_tokens, 0);
    assert_false(scheduler_has_work(&w.scheduler));
    assert_int_equal(w.scheduler.requests.len, 0);
    assert_int_equal(block_pool_num_used(&w.scheduler.kv.pool), 0);
    deinit(&w);
}

static void outputs_go_to_their_clients_with_the_times_of_their_life(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 64);
    int32_t tokens[FAKE_MAX_LEN];
    for (uint64_t id = 1; id <= 3; id++) {
        struct engine_core_request message = request(id, 5, (int32_t)id, tokens);
        message.client_index = id == 2 ? 7 : 0;
        message.sampling.max_tokens = 2;
        add_message(&w, &message);
    }
    w.now_ns = 2000;
    run_step(&w);
    assert_int_equal(w.num_outputs, 3);
    assert_int_equal(w.clients[0], 0);
    assert_int_equal(w.clients[1], 0);
    assert_int_equal(w.clients[2], 7);
    assert_int_equal(w.outputs[2].request_id, 2);
    w.now_ns = 5000;
    run_step(&w);
    const struct engine_core_output *last = output_of(&w, 2);
    assert_int_equal(last->queued_ns, 1000);
    assert_int_equal(last->scheduled_ns, 2000);
    assert_int_equal(last->first_token_ns, 3000);
    assert_int_equal(last->last_token_ns, 6000);
    deinit(&w);
}

static void impossible_messages_are_invalid_and_change_nothing(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 64);
    add(&w, 1, 5, 0, 4);
    int32_t tokens[FAKE_MAX_LEN];
    for (int32_t i = 0; i < 6; i++) {
        struct engine_core_request message = request(2, 5, 0, tokens);
        if (i == 0)
            message.request_id = 1;
        if (i == 1)
            message.client_index = MAX_API_SERVERS;
        if (i == 2)
            message.num_prompt_tokens = 0;
        if (i == 3)
            message.sampling.max_tokens = 0;
        if (i == 4)
            message.num_output_tokens = -1;
        if (i == 5)
            message.client_index = -1;
        struct error err = {0};
        assert_int_equal(scheduler_add(&w.scheduler, &message, 1, &err), STATUS_INVALID);
        assert_true(err.message[0] != '\0');
    }
    assert_int_equal(w.scheduler.requests.len, 1);
    deinit(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_is_computed_in_chunks_and_gives_one_token_at_the_end),
        cmocka_unit_test(decodes_advance_in_every_step_beside_long_prefills),
        cmocka_unit_test(a_decode_behind_a_prefill_in_the_list_keeps_its_token),
        cmocka_unit_test(a_request_without_a_row_waits),
        cmocka_unit_test(the_threshold_limits_running_and_waiting_chunks),
        cmocka_unit_test(without_chunks_a_prompt_waits_for_a_step_that_holds_it),
        cmocka_unit_test(a_head_that_does_not_fit_holds_back_what_is_behind_it),
        cmocka_unit_test(admission_leaves_the_watermark_free_unless_nobody_runs),
        cmocka_unit_test(short_prompts_overtake_long_ones_beyond_the_limit_of_partial_prefills),
        cmocka_unit_test(the_newest_gives_way_and_nobody_is_admitted_in_that_step),
        cmocka_unit_test(the_least_urgent_gives_way_and_among_equals_the_latest),
        cmocka_unit_test(the_lowest_priority_value_runs_first),
        cmocka_unit_test(preempted_tokens_are_recomputed_and_counted_apart),
        cmocka_unit_test(a_chunk_taken_back_in_the_same_step_leaves_nothing_in_the_cache),
        cmocka_unit_test(hits_are_counted_once_and_told_with_the_output),
        cmocka_unit_test(prompt_logprobs_read_nothing_from_the_cache_but_fill_it),
        cmocka_unit_test(requests_of_one_step_share_a_prefix_that_the_first_computes),
        cmocka_unit_test(stop_rules_apply_in_order),
        cmocka_unit_test(what_can_never_run_is_refused_at_once_and_blocks_nobody),
        cmocka_unit_test(a_request_that_outgrows_the_whole_cache_ends_with_length),
        cmocka_unit_test(a_resumed_request_continues_exactly),
        cmocka_unit_test(logits_that_are_not_finite_end_one_request_and_are_not_cached),
        cmocka_unit_test(an_abort_ends_a_request_wherever_it_is),
        cmocka_unit_test(outputs_go_to_their_clients_with_the_times_of_their_life),
        cmocka_unit_test(impossible_messages_are_invalid_and_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
