// Whole models on a GPU against values that other implementations computed in float32. In bfloat16
// logits are judged by their rms distance, about twice what the reference measured for its own
// bfloat16 run, and greedy tokens as long as the second-best logit is further away than rounding.
#include <math.h>

#include "worker/golden.h"
#include "worker/step_driver.h"

enum { VOCAB_SIZE = 512, NUM_GREEDY = 24 };

static const char *const MODELS[] = {
    "llama",         "llama_bias_tied", "mistral",   "qwen2",       "qwen2_sliding",
    "qwen3",         "qwen3_tied",      "gemma2",    "gemma3_text", "phi3",
    "phi3_longrope", "olmo2",           "qwen3_moe", "mixtral"};

static void need_gpu(void)
{
    if (!cuda_is_available()) {
        print_message("no GPU, or no driver, on this machine\n");
        skip();
    }
}

/** The rms distance of the first drawn token's log-probabilities from the reference's logits, both
 *  about their mean. */
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

/** How many greedy tokens agree before the first that differs; one may only differ where the
 *  margin is within `noise`. */
static int32_t check_greedy(const struct run *run, const json_t *greedy, double noise)
{
    const json_t *ids = golden_get(greedy, "token_ids"), *margins = golden_get(greedy, "margins");
    for (int32_t i = 0; i < NUM_GREEDY; i++) {
        if (run->tokens[run->num_prompt + i] == json_integer_value(json_array_get(ids, (size_t)i)))
            continue;
        if (golden_number(margins, i) > noise)
            fail_msg("greedy token %d differs, with a margin of %.3f over a noise of %.3f", i,
                     golden_number(margins, i), noise);
        return i;
    }
    return NUM_GREEDY;
}

static double recorded_rms(const json_t *prompt)
{
    return json_number_value(golden_get(golden_get(prompt, "bfloat16"), "rms_logit_diff"));
}

/** `noise`: how far apart rounding may bring two logits of this model; `factor`: the rms distance
 *  allowed, as a multiple of the reference's own in bfloat16. */
static void check_prompt(struct driver *driver, const json_t *prompt, int32_t chunk, double noise,
                         double factor)
{
    struct run run = {.num_outputs = NUM_GREEDY, .chunk = chunk, .sampling = driver_greedy()};
    run.prompt = golden_ids(golden_get(prompt, "input_ids"), &driver->arena, &run.num_prompt);
    run.sampling.num_logprobs = VOCAB_SIZE;
    run.sampling.num_prompt_logprobs = 5;
    driver_run(driver, &run, 1, 0);
    double recorded = recorded_rms(prompt);
    double rms = rms_of_last_logits(&run, golden_get(prompt, "last_logits"));
    const json_t *greedy = golden_get(prompt, "greedy");
    print_message("  %3d tokens, chunk %2d: rms %.4f (reference %.4f), greedy %d", run.num_prompt,
                  chunk, rms, recorded, check_greedy(&run, greedy, noise));
    if (!(rms <= factor * recorded))
        fail_msg("rms %.4f, the reference's is %.4f", rms, recorded);

    // Drawn on the device, where recorded steps are replayed.
    struct run plain = {.num_outputs = NUM_GREEDY, .chunk = chunk, .sampling = driver_greedy()};
    plain.prompt = run.prompt;
    plain.num_prompt = run.num_prompt;
    driver_run(driver, &plain, 1, 0);
    print_message(", recorded %d of %d\n", check_greedy(&plain, greedy, noise), NUM_GREEDY);

    // Side by side with itself: several sequences in a step, of different lengths.
    struct run many[5];
    for (int32_t i = 0; i < 5; i++) {
        many[i] = plain;
        many[i].chunk = i % 2 ? 7 : 0;
        many[i].num_outputs = NUM_GREEDY;
    }
    driver_run(driver, many, 5, 3);
    for (int32_t i = 0; i < 5; i++)
        check_greedy(&many[i], greedy, noise);
    arena_reset(&driver->arena);
}

static void check_model(const char *name, bool enforce_eager, const char *kv_cache_dtype)
{
    // Of eight bits, keys and values keep three of mantissa instead of seven.
    double factor = strcmp(kv_cache_dtype, "fp8") == 0 ? 20 : 2.5;
    char dir[512], path[600];
    snprintf(dir, sizeof(dir), "%s/models/%s", FIXTURES_DIR, name);
    snprintf(path, sizeof(path), "%s/expected.json", dir);
    json_t *expected = golden_load(path);
    struct serve_options options = driver_options(dir);
    options.target_device = "cuda";
    options.enforce_eager = enforce_eager;
    options.kv_cache_dtype = kv_cache_dtype;
    options.max_cudagraph_capture_size = 8;
    options.max_num_seqs = 64;
    options.max_model_len = 256; // the references go beyond what qwen3_tied says it is made for
    options.allow_long_max_model_len = true;
    struct driver driver;
    print_message("%s, cache %s%s\n", name, kv_cache_dtype, enforce_eager ? ", eager" : "");
    driver_start(&driver, &options);
    const json_t *prompts = golden_get(expected, "prompts");
    double largest = 0; // a short prompt's own measure is of few logits
    for (size_t i = 0; i < json_array_size(prompts); i++)
        largest = fmax(largest, recorded_rms(json_array_get(prompts, i)));
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        check_prompt(&driver, json_array_get(prompts, i), 0, 1.6 * factor * largest, factor);
        check_prompt(&driver, json_array_get(prompts, i), 16, 1.6 * factor * largest, factor);
    }
    driver_stop(&driver);
    json_decref(expected);
}

static void fixture_models_stay_within_bfloat16_of_the_reference(void **state)
{
    (void)state;
    need_gpu();
    for (size_t m = 0; m < ARRAY_LEN(MODELS); m++)
        check_model(MODELS[m], false, "auto");
    check_model("llama", true, "auto");
    check_model("qwen2_sliding", true, "auto");
}

static void an_eight_bit_cache_stays_close_to_the_reference(void **state)
{
    (void)state;
    need_gpu();
    for (size_t m = 0; m < ARRAY_LEN(MODELS); m++)
        check_model(MODELS[m], false, "fp8");
}

static void demo_model_continues_as_the_reference_does(void **state)
{
    (void)state;
    need_gpu();
    json_t *expected = golden_load(MODELS_DIR "/demo/expected.json");
    struct serve_options options = driver_options(MODELS_DIR "/demo");
    options.target_device = "cuda";
    struct driver driver;
    driver_start(&driver, &options);
    const json_t *cases = golden_get(expected, "cases");
    int32_t num_same = 0, num_cases = (int32_t)json_array_size(cases);
    for (int32_t i = 0; i < num_cases; i++) {
        const json_t *json = json_array_get(cases, (size_t)i);
        int32_t num_expected;
        const int32_t *tokens =
            golden_ids(golden_get(json, "output_token_ids"), &driver.arena, &num_expected);
        struct run run = {.num_outputs = num_expected, .sampling = driver_greedy()};
        run.prompt =
            golden_ids(golden_get(json, "prompt_token_ids"), &driver.arena, &run.num_prompt);
        driver_run(&driver, &run, 1, 0);
        num_same += memcmp(tokens, run.tokens + run.num_prompt,
                           (size_t)num_expected * sizeof(*tokens)) == 0;
    }
    print_message("%d of %d answers are the same\n", num_same, num_cases);
    assert_true(num_same * 4 >= num_cases * 3); // rounding may turn a close choice
    driver_stop(&driver);
    json_decref(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixture_models_stay_within_bfloat16_of_the_reference),
        cmocka_unit_test(an_eight_bit_cache_stays_close_to_the_reference),
        cmocka_unit_test(demo_model_continues_as_the_reference_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
