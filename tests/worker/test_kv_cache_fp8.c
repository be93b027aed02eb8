// Whole models with an 8-bit KV cache (e4m3) against the values that other implementations computed
// in float32. Keys and values keep 3 bits of mantissa: what that may do to logits is bounded here,
// for the last logits by their rms distance, for a prompt's likelihood by the mean of its
// log-probabilities, and for greedy tokens by the margin over the second-best logit.
#include <math.h>

#include "worker/golden.h"
#include "worker/step_driver.h"

enum { VOCAB_SIZE = 512, NUM_GREEDY = 24 };

static const char *const MODELS[] = {"llama",         "llama_bias_tied", "mistral",   "qwen2",
                                     "qwen2_sliding", "qwen3",           "qwen3_tied"};
static const char *const ISAS[] = {"scalar", "auto"};

static const double MAX_RMS = 0.8; // of logits; random weights, whose logits deviate by 2.5
static const double MAX_MEAN_DIFFERENCE = 0.1; // of a prompt's log-probabilities
static const double NOISE = 0.8;               // two logits may come so much closer

static double rms_of_last_logits(const struct run *run, const json_t *expected)
{
    const struct token_logprobs *first = &run->logprobs[0];
    assert_int_equal(first->num_entries, 1 + VOCAB_SIZE);
    double diff[VOCAB_SIZE] = {0}, mean = 0, sum = 0;
    for (int32_t i = 1; i < first->num_entries; i++) {
        int32_t id = first->token_ids[i];
        diff[id] = first->logprobs[i] - golden_number(expected, id);
        mean += diff[id] / VOCAB_SIZE;
    }
    for (int32_t id = 0; id < VOCAB_SIZE; id++)
        sum += (diff[id] - mean) * (diff[id] - mean);
    return sqrt(sum / VOCAB_SIZE);
}

static double mean_difference(const struct run *run, const json_t *expected)
{
    double sum = 0;
    for (int32_t p = 1; p < run->num_prompt; p++)
        sum += run->prompt_logprobs[p].logprobs[0] - golden_number(expected, p);
    return run->num_prompt > 1 ? sum / (run->num_prompt - 1) : 0;
}

/** Tokens that agree before the first that differs, which may only be where the choice was close.
 */
static int32_t check_greedy(const struct run *run, const json_t *greedy)
{
    const json_t *ids = golden_get(greedy, "token_ids"), *margins = golden_get(greedy, "margins");
    for (int32_t i = 0; i < NUM_GREEDY; i++) {
        if (run->tokens[run->num_prompt + i] == json_integer_value(json_array_get(ids, (size_t)i)))
            continue;
        if (golden_number(margins, i) > NOISE)
            fail_msg("greedy token %d differs, with a margin of %.3f", i,
                     golden_number(margins, i));
        return i;
    }
    return NUM_GREEDY;
}

static void check_prompt(struct driver *driver, const json_t *prompt)
{
    struct run run = {.num_outputs = NUM_GREEDY, .chunk = 16, .sampling = driver_greedy()};
    run.prompt = golden_ids(golden_get(prompt, "input_ids"), &driver->arena, &run.num_prompt);
    run.sampling.num_logprobs = VOCAB_SIZE;
    run.sampling.num_prompt_logprobs = 1;
    driver_run(driver, &run, 1, 0);
    double rms = rms_of_last_logits(&run, golden_get(prompt, "last_logits")), mean = 0;
    if (json_object_get(prompt, "prompt_logprobs"))
        mean = mean_difference(&run, golden_get(prompt, "prompt_logprobs"));
    print_message("  %3d tokens: rms %.4f, mean log-probability %+.5f, greedy %d of %d\n",
                  run.num_prompt, rms, mean, check_greedy(&run, golden_get(prompt, "greedy")),
                  NUM_GREEDY);
    assert_true(rms <= MAX_RMS);
    assert_true(rms > 1e-5 || run.num_prompt == 1); // the cache is not exact, or it was not used
    assert_true(fabs(mean) <= MAX_MEAN_DIFFERENCE);
    arena_reset(&driver->arena);
}

static void check_model(const char *name, const char *isa)
{
    char dir[512], path[600];
    snprintf(dir, sizeof(dir), "%s/models/%s", FIXTURES_DIR, name);
    snprintf(path, sizeof(path), "%s/expected.json", dir);
    json_t *expected = golden_load(path);
    struct serve_options options = driver_options(dir);
    options.cpu_isa = isa;
    options.kv_cache_dtype = "fp8";
    options.max_model_len = 256;
    options.allow_long_max_model_len = true;
    struct driver driver;
    print_message("%s, %s\n", name, isa);
    driver_start(&driver, &options);
    const json_t *prompts = golden_get(expected, "prompts");
    for (size_t i = 0; i < json_array_size(prompts); i++)
        check_prompt(&driver, json_array_get(prompts, i));
    driver_stop(&driver);
    json_decref(expected);
}

static void an_eight_bit_cache_stays_close_to_the_reference(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(MODELS); m++) {
        for (size_t i = 0; i < ARRAY_LEN(ISAS); i++)
            check_model(MODELS[m], ISAS[i]);
    }
}

/** The cache of one token in one layer takes a quarter of what float32 takes. */
static void an_eight_bit_cache_holds_four_times_the_tokens(void **state)
{
    (void)state;
    struct serve_options options = driver_options(FIXTURES_DIR "/models/llama");
    struct driver wide, narrow;
    driver_start(&wide, &options);
    options.kv_cache_dtype = "fp8_e4m3";
    driver_start(&narrow, &options);
    assert_int_equal(wide.config.kv_cache.block_bytes, 4 * narrow.config.kv_cache.block_bytes);
    driver_stop(&wide);
    driver_stop(&narrow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_eight_bit_cache_stays_close_to_the_reference),
        cmocka_unit_test(an_eight_bit_cache_holds_four_times_the_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
