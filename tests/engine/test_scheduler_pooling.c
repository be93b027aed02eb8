// Requests that pool: computed like prefills, ended with their vector.
#include "engine/scheduler_world.h"

static void add_pooling(struct world *w, uint64_t id, int32_t num_prompt, int32_t family,
                        enum pooling_type type)
{
    int32_t tokens[FAKE_MAX_LEN];
    struct engine_core_request message = request(id, num_prompt, family, tokens);
    message.pooling = (struct pooling_params){type, true, 0};
    add_message(w, &message);
}

static void a_prompt_in_pieces_ends_with_its_vector(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 60);
    add_pooling(&w, 1, 70, 0, POOLING_MEAN);
    for (int32_t i = 0; i < 2; i++) {
        run_step(&w);
        assert_int_equal(tokens_of(&w, 1), 32);
        assert_int_equal(w.num_outputs, 0);
    }
    run_step(&w);
    const struct engine_core_output *output = output_of(&w, 1);
    assert_non_null(output);
    assert_int_equal(output->finish_reason, FINISH_REASON_STOP);
    assert_int_equal(output->stop_token_id, -1);
    assert_int_equal(output->num_new_tokens, 0);
    assert_int_equal(output->num_pooled, 1);
    assert_true(output->first_token_ns == w.now_ns && output->last_token_ns == w.now_ns);
    assert_false(scheduler_has_work(&w.scheduler));
    assert_int_equal(block_pool_num_used(&w.scheduler.kv.pool), 0);
    assert_int_equal(w.scheduler.stats.num_generated_tokens, 0);
    assert_int_equal(w.scheduler.stats.num_computed_prompt_tokens, 70);
    deinit(&w);
}

static void a_prompt_may_fill_the_whole_context(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 32); // 32 blocks of 4 tokens: exactly one such prompt
    add_pooling(&w, 1, DEFAULTS.max_model_len, 0, POOLING_LAST);
    assert_int_equal(run_to_end(&w, 1), FINISH_REASON_STOP);
    add_pooling(&w, 2, DEFAULTS.max_model_len + 1, 0, POOLING_LAST);
    run_step(&w);
    const struct engine_core_output *output = output_of(&w, 2);
    assert_int_equal(output->finish_reason, FINISH_REASON_ERROR);
    assert_int_equal(output->refusal.kind, REFUSAL_MODEL_LEN);
    assert_int_equal(output->refusal.limit, DEFAULTS.max_model_len);
    deinit(&w);
}

static void without_chunks_a_prompt_may_fill_the_whole_step(void **state)
{
    (void)state;
    struct scheduler_config config = DEFAULTS;
    config.enable_chunked_prefill = false;
    struct world w;
    init(&w, config, 60);
    add_pooling(&w, 1, 32, 0, POOLING_LAST);
    add_pooling(&w, 2, 33, 1, POOLING_LAST);
    run_step(&w);
    assert_int_equal(output_of(&w, 1)->finish_reason, FINISH_REASON_STOP);
    assert_int_equal(output_of(&w, 2)->finish_reason, FINISH_REASON_ERROR);
    assert_int_equal(output_of(&w, 2)->refusal.kind, REFUSAL_STEP);
    assert_int_equal(output_of(&w, 2)->refusal.limit, 32);
    deinit(&w);
}

static void only_the_last_token_s_vector_uses_the_prefix_cache(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 60);
    add_pooling(&w, 1, 21, 0, POOLING_MEAN);
    run_to_end(&w, 1);
    add_pooling(&w, 2, 21, 0, POOLING_LAST);
    run_step(&w);
    assert_int_equal(tokens_of(&w, 2), 1); // what the mean wrote is found
    assert_int_equal(output_of(&w, 2)->num_cached_tokens, 20);
    add_pooling(&w, 3, 21, 0, POOLING_MEAN);
    run_step(&w);
    assert_int_equal(tokens_of(&w, 3), 21); // the fake worker refuses to start later
    assert_int_equal(output_of(&w, 3)->num_cached_tokens, 0);
    deinit(&w);
}

static void a_vector_that_is_not_finite_is_an_error(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 60);
    w.worker.nan_one_in = 1;
    add_pooling(&w, 1, 9, 0, POOLING_LAST);
    run_step(&w);
    assert_int_equal(output_of(&w, 1)->finish_reason, FINISH_REASON_ERROR);
    assert_int_equal(output_of(&w, 1)->num_pooled, 0);
    deinit(&w);
}

static void an_abort_in_flight_keeps_the_vector_back(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 60);
    add_pooling(&w, 1, 9, 0, POOLING_LAST);
    add_pooling(&w, 2, 9, 1, POOLING_LAST);
    assert_true(begin_step(&w));
    const uint64_t id = 1;
    scheduler_abort(&w.scheduler, 0, &id, 1, FINISH_REASON_ABORT);
    finish_step(&w, true);
    assert_int_equal(output_of(&w, 1)->finish_reason, FINISH_REASON_ABORT);
    assert_int_equal(output_of(&w, 1)->num_pooled, 0);
    assert_int_equal(output_of(&w, 2)->num_pooled, 1);
    deinit(&w);
}

static void preempted_ones_start_again_and_end(void **state)
{
    (void)state;
    struct scheduler_config config = DEFAULTS;
    config.reserve_full_isl = false;
    config.long_prefill_token_threshold = 8; // side by side
    struct world w;
    init(&w, config, 40);
    for (uint64_t id = 1; id <= 4; id++)
        add_pooling(&w, id, 100, (int32_t)id, id % 2 ? POOLING_MEAN : POOLING_LAST);
    int32_t num_vectors = 0;
    for (int32_t i = 0; i < 200 && scheduler_has_work(&w.scheduler); i++) {
        run_step(&w);
        for (int32_t k = 0; k < w.num_outputs; k++)
            num_vectors += w.outputs[k].num_pooled;
    }
    assert_int_equal(num_vectors, 4);
    assert_true(w.scheduler.stats.num_preemptions > 0);
    deinit(&w);
}

static void outputs_and_log_probabilities_are_refused(void **state)
{
    (void)state;
    struct world w;
    init(&w, DEFAULTS, 60);
    int32_t tokens[FAKE_MAX_LEN];
    struct error err = {0};
    struct engine_core_request message = request(1, 9, 0, tokens);
    message.pooling.type = POOLING_LAST;
    message.num_output_tokens = 1;
    message.output_token_ids = tokens;
    assert_int_equal(scheduler_add(&w.scheduler, &message, 0, &err), STATUS_INVALID);
    message.num_output_tokens = 0;
    message.sampling.num_prompt_logprobs = 0;
    assert_int_equal(scheduler_add(&w.scheduler, &message, 0, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "pools"));
    assert_false(scheduler_has_work(&w.scheduler));
    deinit(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_in_pieces_ends_with_its_vector),
        cmocka_unit_test(a_prompt_may_fill_the_whole_context),
        cmocka_unit_test(without_chunks_a_prompt_may_fill_the_whole_step),
        cmocka_unit_test(only_the_last_token_s_vector_uses_the_prefix_cache),
        cmocka_unit_test(a_vector_that_is_not_finite_is_an_error),
        cmocka_unit_test(an_abort_in_flight_keeps_the_vector_back),
        cmocka_unit_test(preempted_ones_start_again_and_end),
        cmocka_unit_test(outputs_and_log_probabilities_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
