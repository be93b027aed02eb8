// A step is decided while the one before it is in flight: placeholders, stops one step late,
// preemption and aborts in between.
#include "engine/scheduler_world.h"

/** Two steps in flight, by hand. */
struct overlap {
    struct world w;
    struct scheduler_output steps[MAX_STEPS_IN_FLIGHT];
};

static void start(struct overlap *o, struct scheduler_config config, int32_t num_blocks)
{
    config.async_scheduling = true;
    init(&o->w, config, num_blocks);
}

static bool begin(struct overlap *o)
{
    if (!begin_step(&o->w))
        return false;
    o->steps[o->w.step.step % MAX_STEPS_IN_FLIGHT] = o->w.step;
    return true;
}

static void end(struct overlap *o)
{
    struct scheduler *s = &o->w.scheduler;
    assert_true(s->in_flight > 0);
    o->w.step = o->steps[(s->step - s->in_flight) % MAX_STEPS_IN_FLIGHT];
    finish_step(&o->w, true);
}

static const struct request *find(const struct overlap *o, uint64_t id)
{
    return request_table_find(&o->w.scheduler.requests, id);
}

static void an_unknown_token_counts_as_one(void **state)
{
    (void)state;
    struct overlap o;
    start(&o, DEFAULTS, 64);
    add(&o.w, 1, 5, 1, 8);
    assert_true(begin(&o));
    assert_true(begin(&o));
    assert_int_equal(o.w.step.num_rows, 1);
    assert_int_equal(o.w.step.rows[0].num_computed_tokens, 5); // the prompt is in flight
    assert_int_equal(o.w.step.rows[0].num_scheduled_tokens, 1);
    assert_true(o.w.step.rows[0].samples);
    assert_false(scheduler_can_schedule(&o.w.scheduler));
    assert_int_equal(find(&o, 1)->num_tokens, 5);
    assert_int_equal(find(&o, 1)->num_placeholders, 2);
    end(&o);
    assert_int_equal(find(&o, 1)->num_tokens, 6);
    assert_int_equal(find(&o, 1)->num_placeholders, 1);
    end(&o);
    assert_int_equal(find(&o, 1)->num_placeholders, 0);
    deinit(&o.w);
}

static void the_last_token_allowed_is_not_followed_by_a_step(void **state)
{
    (void)state;
    struct overlap o;
    start(&o, DEFAULTS, 64);
    add(&o.w, 1, 5, 1, 2);
    assert_true(begin(&o));
    assert_true(begin(&o)); // draws the second and last
    end(&o);
    assert_false(begin(&o));
    end(&o);
    assert_int_equal(output_of(&o.w, 1)->finish_reason, FINISH_REASON_LENGTH);
    assert_false(scheduler_has_work(&o.w.scheduler));
    deinit(&o.w);
}

static void no_row_is_computed_whose_end_by_length_is_certain(void **state)
{
    (void)state;
    struct overlap o;
    struct scheduler_config config = DEFAULTS;
    config.max_num_seqs = 5;
    config.max_model_len = 16;
    const int32_t max_tokens[] = {1, 2, 3, 7, 100}; // the last ends with max_model_len
    int32_t num_rows = 0, num_expected = 0, num_overlaps = 0;
    start(&o, config, 64);
    for (int32_t i = 0; i < (int32_t)ARRAY_LEN(max_tokens); i++) {
        add(&o.w, (uint64_t)i + 1, 5, i + 1, max_tokens[i]);
        num_expected += min_i32(max_tokens[i], config.max_model_len - 5); // a row for each token
    }
    for (int32_t i = 0; i < 100 && scheduler_has_work(&o.w.scheduler); i++) {
        while (scheduler_can_schedule(&o.w.scheduler) && begin(&o)) {
            num_rows += o.w.step.num_rows;
            num_overlaps += o.w.scheduler.in_flight == 2;
        }
        end(&o);
    }
    assert_false(scheduler_has_work(&o.w.scheduler));
    assert_int_equal(num_rows, num_expected);
    assert_int_equal(num_overlaps, 10); // all steps but the first
    deinit(&o.w);
}

static void what_is_drawn_after_a_stop_token_is_dropped(void **state)
{
    (void)state;
    struct overlap o;
    start(&o, DEFAULTS, 64);
    int32_t tokens[FAKE_MAX_LEN];
    struct engine_core_request message = request(1, 7, 1, tokens);
    message.sampling.eos_token_id = 9;
    add_message(&o.w, &message);
    assert_true(begin(&o));
    assert_true(begin(&o));
    o.w.forced_token = 9;
    end(&o);
    assert_int_equal(output_of(&o.w, 1)->finish_reason, FINISH_REASON_STOP);
    assert_int_equal(output_of(&o.w, 1)->num_new_tokens, 1);
    // Its blocks are free at once. The eighth token fills a block, which nobody may find: it was
    // never computed where the request was not run ahead.
    assert_int_equal(block_pool_num_used(&o.w.scheduler.kv.pool), 0);
    assert_null(find(&o, 1));
    assert_true(scheduler_has_work(&o.w.scheduler)); // the step in flight is still to be collected
    end(&o);
    assert_int_equal(o.w.num_outputs, 0);
    assert_false(scheduler_has_work(&o.w.scheduler));
    o.w.forced_token = -1;
    tokens[7] = 9;
    message.request_id = 2;
    message.num_prompt_tokens = 9;
    tokens[8] = 3;
    add_message(&o.w, &message);
    assert_true(begin(&o));
    assert_int_equal(o.w.step.rows[0].num_computed_tokens, 4);
    end(&o);
    deinit(&o.w);
}

static void blocks_become_findable_once_their_tokens_are_known(void **state)
{
    (void)state;
    struct overlap o;
    start(&o, DEFAULTS, 64);
    add(&o.w, 1, 7, 1, 20);
    assert_true(begin(&o));
    assert_true(begin(&o)); // computes position 7, which fills a block with an unknown token
    assert_int_equal(find(&o, 1)->kv.tables[0].num_cached, 1);
    end(&o);
    assert_int_equal(find(&o, 1)->kv.tables[0].num_cached, 2);
    end(&o);
    deinit(&o.w);
}

static void a_request_that_is_preempted_in_flight_keeps_the_token_that_it_draws(void **state)
{
    (void)state;
    struct overlap o;
    struct scheduler_config config = DEFAULTS;
    config.reserve_full_isl = false;
    start(&o, config, 4);
    add(&o.w, 1, 7, 1, 8);
    add(&o.w, 2, 7, 2, 8);
    assert_true(begin(&o)); // two blocks each
    assert_true(begin(&o)); // position 7: still in them
    end(&o);
    assert_true(begin(&o)); // position 8: the second gives way to the first
    assert_int_equal(o.w.step.num_rows, 1);
    assert_false(is_running(&o.w, 2));
    assert_int_equal(find(&o, 2)->num_tokens, 8);
    assert_int_equal(find(&o, 2)->num_in_flight, 1);
    end(&o);
    assert_int_equal(output_of(&o.w, 2)->num_new_tokens, 1);
    assert_int_equal(find(&o, 2)->num_tokens, 9);
    assert_int_equal(find(&o, 2)->num_placeholders, 0);
    end(&o);
    for (int32_t i = 0; i < 100 && scheduler_has_work(&o.w.scheduler); i++) {
        bool begun = begin(&o);
        if (!begun || !scheduler_can_schedule(&o.w.scheduler))
            end(&o);
    }
    assert_false(scheduler_has_work(&o.w.scheduler));
    deinit(&o.w);
}

static void an_id_is_free_as_soon_as_its_request_is_aborted_in_flight(void **state)
{
    (void)state;
    struct overlap o;
    start(&o, DEFAULTS, 64);
    add(&o.w, 1, 5, 1, 8);
    assert_true(begin(&o));
    assert_true(begin(&o));
    scheduler_abort_client(&o.w.scheduler, 0, FINISH_REASON_NONE);
    assert_int_equal(o.w.scheduler.num_running, 0);
    add(&o.w, 1, 6, 2, 8); // the client sends it again
    end(&o);
    assert_int_equal(o.w.num_outputs, 0);
    assert_true(begin(&o));
    assert_int_equal(o.w.step.num_new_requests, 1);
    end(&o);
    assert_int_equal(o.w.num_outputs, 0);
    end(&o);
    assert_int_equal(output_of(&o.w, 1)->num_new_tokens, 1);
    deinit(&o.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_token_counts_as_one),
        cmocka_unit_test(the_last_token_allowed_is_not_followed_by_a_step),
        cmocka_unit_test(no_row_is_computed_whose_end_by_length_is_certain),
        cmocka_unit_test(what_is_drawn_after_a_stop_token_is_dropped),
        cmocka_unit_test(blocks_become_findable_once_their_tokens_are_known),
        cmocka_unit_test(a_request_that_is_preempted_in_flight_keeps_the_token_that_it_draws),
        cmocka_unit_test(an_id_is_free_as_soon_as_its_request_is_aborted_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
