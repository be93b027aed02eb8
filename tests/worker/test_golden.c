// Whole models through the executor against values that other implementations computed.
#include <math.h>

#include "worker/golden.h"
#include "worker/step_driver.h"

enum { VOCAB_SIZE = 512, NUM_GREEDY = 24 };

static const char *const MODELS[] = {
    "llama",         "llama_bias_tied", "mistral",   "qwen2",       "qwen2_sliding",
    "qwen3",         "qwen3_tied",      "gemma2",    "gemma3_text", "phi3",
    "phi3_longrope", "olmo2",           "qwen3_moe", "mixtral"};
// The references multiply the stored elements times their scales in float32, as a CPU does.
static const char *const QUANTIZED[] = {"fp8", "fp8_block", "ct_fp8_channel"};
static const char *const ISAS[] = {"scalar", "auto"};

static const double TOLERANCE = 1e-3;

static void expect_close(double found, double expected, const char *what, int32_t index)
{
    if (!(fabs(found - expected) <= TOLERANCE))
        fail_msg("%s %d: found %.6f, expected %.6f", what, index, found, expected);
}

static double log_sum_exp(const json_t *logits)
{
    double largest = -INFINITY, sum = 0;
    for (int32_t i = 0; i < (int32_t)json_array_size(logits); i++)
        largest = fmax(largest, golden_number(logits, i));
    for (int32_t i = 0; i < (int32_t)json_array_size(logits); i++)
        sum += exp(golden_number(logits, i) - largest);
    return largest + log(sum);
}

/** All log-probabilities of the first drawn token are the last logits but for one constant. */
static void check_last_logits(const struct run *run, const json_t *expected)
{
    const struct token_logprobs *first = &run->logprobs[0];
    assert_int_equal(first->num_entries, 1 + VOCAB_SIZE);
    assert_int_equal(json_array_size(expected), VOCAB_SIZE);
    double constant = log_sum_exp(expected);
    bool is_seen[VOCAB_SIZE] = {false};
    for (int32_t i = 1; i < first->num_entries; i++) {
        int32_t id = first->token_ids[i];
        assert_in_range(id, 0, VOCAB_SIZE - 1);
        assert_false(is_seen[id]);
        is_seen[id] = true;
        expect_close(first->logprobs[i], golden_number(expected, id) - constant, "logit", id);
    }
}

static void check_greedy(const struct run *run, const json_t *greedy)
{
    const json_t *ids = golden_get(greedy, "token_ids"), *logprobs = golden_get(greedy, "logprobs");
    assert_int_equal(json_array_size(ids), NUM_GREEDY);
    for (int32_t i = 0; i < NUM_GREEDY; i++) {
        int32_t token_id = run->tokens[run->num_prompt + i];
        assert_int_equal(token_id, json_integer_value(json_array_get(ids, (size_t)i)));
        assert_int_equal(run->logprobs[i].token_ids[0], token_id);
        expect_close(run->logprobs[i].logprobs[0], golden_number(logprobs, i), "greedy logprob", i);
    }
}

static void check_prompt_logprobs(const struct run *run, const json_t *expected)
{
    assert_int_equal(json_array_size(expected), run->num_prompt);
    assert_int_equal(run->prompt_logprobs[0].num_entries, 0);
    for (int32_t p = 1; p < run->num_prompt; p++) {
        assert_int_equal(run->prompt_logprobs[p].num_entries, 1 + 5);
        assert_int_equal(run->prompt_logprobs[p].token_ids[0], run->prompt[p]);
        expect_close(run->prompt_logprobs[p].logprobs[0], golden_number(expected, p),
                     "prompt logprob", p);
    }
}

/** `expected[p]` is about the token after position p, so it stands at p + 1 of the prompt. */
static void check_top5(const struct run *run, const json_t *expected)
{
    for (int32_t p = 0; p + 1 < run->num_prompt; p++) {
        const json_t *top = json_array_get(expected, (size_t)p);
        const struct token_logprobs *found = &run->prompt_logprobs[p + 1];
        for (int32_t k = 0; k < 5; k++) {
            const json_t *id = json_array_get(golden_get(top, "ids"), (size_t)k);
            assert_int_equal(found->token_ids[1 + k], json_integer_value(id));
            expect_close(found->logprobs[1 + k], golden_number(golden_get(top, "logprobs"), k),
                         "top 5", p);
        }
    }
}

static void check_prompt(struct driver *driver, const json_t *prompt, int32_t chunk)
{
    struct run run = {.num_outputs = NUM_GREEDY, .chunk = chunk, .sampling = driver_greedy()};
    run.prompt = golden_ids(golden_get(prompt, "input_ids"), &driver->arena, &run.num_prompt);
    run.sampling.num_logprobs = VOCAB_SIZE;
    run.sampling.num_prompt_logprobs = 5;
    driver_run(driver, &run, 1, 0);
    check_last_logits(&run, golden_get(prompt, "last_logits"));
    check_greedy(&run, golden_get(prompt, "greedy"));
    if (json_object_get(prompt, "prompt_logprobs"))
        check_prompt_logprobs(&run, golden_get(prompt, "prompt_logprobs"));
    if (json_object_get(prompt, "top5"))
        check_top5(&run, golden_get(prompt, "top5"));
    arena_reset(&driver->arena);
}

static void check_model(const char *folder, const char *name, const char *isa, const char *dtype)
{
    char dir[512], path[600];
    snprintf(dir, sizeof(dir), "%s/%s/%s", FIXTURES_DIR, folder, name);
    snprintf(path, sizeof(path), "%s/expected.json", dir);
    json_t *expected = golden_load(path);
    struct serve_options options = driver_options(dir);
    options.cpu_isa = isa;
    options.dtype = dtype;
    options.max_model_len = 256; // the references go beyond what qwen3_tied says it is made for
    options.allow_long_max_model_len = true;
    struct driver driver;
    driver_start(&driver, &options);
    const json_t *prompts = golden_get(expected, "prompts");
    assert_int_equal(json_array_size(prompts), 3);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        check_prompt(&driver, json_array_get(prompts, i), 0);
        check_prompt(&driver, json_array_get(prompts, i), 16);
    }
    driver_stop(&driver);
    json_decref(expected);
}

static void fixture_models_give_the_reference_values(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(MODELS); m++) {
        for (size_t i = 0; i < ARRAY_LEN(ISAS); i++)
            check_model("models", MODELS[m], ISAS[i], "auto");
    }
}

static void quantized_models_give_the_reference_values(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(QUANTIZED); m++) {
        for (size_t i = 0; i < ARRAY_LEN(ISAS); i++)
            check_model("quant", QUANTIZED[m], ISAS[i], "auto");
        check_model("quant", QUANTIZED[m], "auto", "float32"); // what is quantised stays so
    }
}

// Every bfloat16 value is a float32 value: widening the weights changes no result.
static void weights_widened_to_float32_give_the_same_values(void **state)
{
    (void)state;
    check_model("models", "llama_bias_tied", "auto", "float32");
    check_model("models", "qwen3", "auto", "float32");
}

static void check_demo_case(struct driver *driver, const json_t *json)
{
    int32_t num_expected;
    const int32_t *expected =
        golden_ids(golden_get(json, "output_token_ids"), &driver->arena, &num_expected);
    struct run run = {.num_outputs = num_expected, .sampling = driver_greedy()};
    run.prompt = golden_ids(golden_get(json, "prompt_token_ids"), &driver->arena, &run.num_prompt);
    run.sampling.num_logprobs = 10;
    driver_run(driver, &run, 1, 0);
    const json_t *top10 = golden_get(json, "first_step_top10");
    double first = 0;
    for (int32_t k = 0; k < 10; k++) {
        const json_t *entry = json_array_get(top10, (size_t)k);
        double logit = json_number_value(golden_get(entry, "logit"));
        first = k == 0 ? logit : first;
        assert_int_equal(run.logprobs[0].token_ids[1 + k],
                         json_integer_value(golden_get(entry, "id")));
        expect_close(run.logprobs[0].logprobs[1 + k] - run.logprobs[0].logprobs[1], logit - first,
                     "logit", k);
    }
    for (int32_t i = 0; i < num_expected; i++)
        assert_int_equal(run.tokens[run.num_prompt + i], expected[i]);
}

static void demo_model_continues_as_the_reference_does(void **state)
{
    (void)state;
    json_t *expected = golden_load(MODELS_DIR "/demo/expected.json");
    struct serve_options options = driver_options(MODELS_DIR "/demo");
    struct driver driver;
    driver_start(&driver, &options);
    const json_t *cases = golden_get(expected, "cases");
    assert_true(json_array_size(cases) >= 10);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_demo_case(&driver, json_array_get(cases, i));
    driver_stop(&driver);
    json_decref(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixture_models_give_the_reference_values),
        cmocka_unit_test(quantized_models_give_the_reference_values),
        cmocka_unit_test(weights_widened_to_float32_give_the_same_values),
        cmocka_unit_test(demo_model_continues_as_the_reference_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
