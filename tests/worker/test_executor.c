// What an executor refuses at start, and what the watchdog sees of it.
#include <string.h>

#include "worker/step_driver.h"

static void progress_grows_with_every_layer_of_a_step(void **state)
{
    (void)state;
    struct serve_options options = driver_options(FIXTURES_DIR "/models/llama");
    struct driver driver = {.options = options};
    _Atomic int64_t progress = 0;
    DRIVER_OK(model_config_load(&driver.model, options.model, "vllm", NULL, &err));
    DRIVER_OK(engine_config_plan(&driver.config, &driver.options, &driver.model, &err));
    DRIVER_OK(executor_create(&driver.executor, &driver.config, &progress, &err));
    static const int32_t PROMPT[] = {5, 6, 7}, BLOCKS[] = {0};
    struct sampling_params sampling = driver_greedy();
    const struct scheduled_new_request request = {.request_id = 1,
                                                  .num_prompt_tokens = 3,
                                                  .num_tokens = 3,
                                                  .token_ids = PROMPT,
                                                  .sampling = &sampling};
    const struct scheduled_row row = {
        .row = 0, .num_scheduled_tokens = 2, .num_new_blocks = {1}, .new_blocks = {BLOCKS}};
    const struct scheduler_output step = {.num_new_requests = 1,
                                          .new_requests = &request,
                                          .num_rows = 1,
                                          .rows = &row,
                                          .num_scheduled_tokens = 2};
    struct model_runner_output result;
    executor_submit(driver.executor, &step);
    DRIVER_OK(executor_collect(driver.executor, &result, &err));
    assert_int_equal(progress, driver.model.num_hidden_layers);
    assert_int_equal(result.num_rows, 1);
    assert_int_equal(result.rows[0].token_id, -1); // its prompt is not done
    assert_null(result.rows[0].logprobs);
    assert_int_equal(result.rows[0].num_prompt_logprobs, 0);
    driver_stop(&driver);
}

static void a_checkpoint_that_changed_since_planning_is_refused(void **state)
{
    (void)state;
    struct serve_options options = driver_options(FIXTURES_DIR "/models/llama");
    struct driver driver = {.options = options};
    DRIVER_OK(model_config_load(&driver.model, options.model, "vllm", NULL, &err));
    DRIVER_OK(engine_config_plan(&driver.config, &driver.options, &driver.model, &err));
    driver.options.dtype = "float32"; // as if the file now held another dtype
    struct error err = {0};
    assert_int_equal(executor_create(&driver.executor, &driver.config, NULL, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "changed between planning and loading"));
    assert_null(driver.executor);
    driver_stop(&driver);
}

static void an_instruction_set_that_does_not_exist_is_refused(void **state)
{
    (void)state;
    struct serve_options options = driver_options(FIXTURES_DIR "/models/llama");
    options.cpu_isa = "mmx";
    struct driver driver = {.options = options};
    DRIVER_OK(model_config_load(&driver.model, options.model, "vllm", NULL, &err));
    struct error err = {0};
    assert_int_equal(engine_config_plan(&driver.config, &driver.options, &driver.model, &err),
                     STATUS_INVALID);
    assert_non_null(strstr(err.message, "mmx"));
    driver_stop(&driver);
}

static void a_missing_checkpoint_is_refused_before_anything_is_allocated(void **state)
{
    (void)state;
    struct serve_options options = driver_options(FIXTURES_DIR "/models/llama");
    struct driver driver = {.options = options};
    DRIVER_OK(model_config_load(&driver.model, options.model, "vllm", NULL, &err));
    driver.model.path = FIXTURES_DIR;
    struct error err = {0};
    assert_int_equal(engine_config_plan(&driver.config, &driver.options, &driver.model, &err),
                     STATUS_NOT_FOUND);
    assert_non_null(strstr(err.message, "model.safetensors"));
    driver_stop(&driver);
}

static void rows_of_one_batch_keep_their_own_parameters(void **state)
{
    (void)state;
    struct serve_options options = driver_options(FIXTURES_DIR "/models/llama");
    struct driver driver;
    driver_start(&driver, &options);
    static const int32_t PROMPT[] = {5, 6, 7, 8}, ALLOWED[] = {42}, STOP[] = {9};
    static const struct logit_bias BIAS[] = {{77, 1000.0f}};
    struct run runs[3];
    for (int32_t i = 0; i < 3; i++)
        runs[i] = (struct run){
            .prompt = PROMPT, .num_prompt = 4, .num_outputs = 5, .sampling = driver_greedy()};
    runs[0].sampling.allowed_token_ids = ALLOWED;
    runs[0].sampling.num_allowed_token_ids = 1;
    runs[1].sampling.logit_bias = BIAS;
    runs[1].sampling.num_logit_bias = 1;
    runs[2].sampling.stop_token_ids = STOP;
    runs[2].sampling.num_stop_token_ids = 1;
    runs[2].sampling.num_logprobs = 0;
    driver_run(&driver, runs, 3, 0);
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(runs[0].tokens[4 + i], 42);
        assert_int_equal(runs[1].tokens[4 + i], 77);
        assert_int_equal(runs[2].logprobs[i].num_entries, 1);
        assert_int_equal(runs[2].logprobs[i].rank, 1); // greedy
        assert_int_equal(runs[2].logprobs[i].token_ids[0], runs[2].tokens[4 + i]);
    }
    driver_stop(&driver);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_grows_with_every_layer_of_a_step),
        cmocka_unit_test(a_checkpoint_that_changed_since_planning_is_refused),
        cmocka_unit_test(an_instruction_set_that_does_not_exist_is_refused),
        cmocka_unit_test(a_missing_checkpoint_is_refused_before_anything_is_allocated),
        cmocka_unit_test(rows_of_one_batch_keep_their_own_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
