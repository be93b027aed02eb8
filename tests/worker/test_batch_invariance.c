// A request's tokens and log-probabilities are the same to the bit whatever else is in the batch,
// however its prompt is cut, wherever its blocks lie, and if it was interrupted.
#include <stdio.h>

#include "worker/step_driver.h"

enum { NUM_PROMPT = 300, NUM_OUTPUTS = 12, NUM_OTHERS = 32 };

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static const int32_t *random_prompt(struct driver *driver, int32_t len, uint32_t seed)
{
    int32_t *prompt = arena_array(&driver->arena, int32_t, len);
    for (int32_t i = 0; i < len; i++)
        prompt[i] = (int32_t)(next_random(&seed) % (uint32_t)driver->model.vocab_size);
    return prompt;
}

static struct run subject(struct driver *driver)
{
    struct run run = {.prompt = random_prompt(driver, NUM_PROMPT, 7),
                      .num_prompt = NUM_PROMPT,
                      .num_outputs = NUM_OUTPUTS,
                      .sampling = driver_greedy()};
    run.sampling.temperature = 0.9f;
    run.sampling.top_p = 0.95f;
    run.sampling.presence_penalty = 0.5f;
    run.sampling.seed = 1234;
    run.sampling.num_logprobs = 3;
    run.sampling.num_prompt_logprobs = 2;
    return run;
}

/** `what`: the run that differs; `index`: of the token. */
static void expect_same_logprobs(const struct token_logprobs *a, const struct token_logprobs *b,
                                 const char *what, int32_t index)
{
    assert_int_equal(a->num_entries, b->num_entries);
    for (int32_t i = 0; i < a->num_entries; i++) {
        if (a->token_ids[i] != b->token_ids[i] ||
            memcmp(&a->logprobs[i], &b->logprobs[i], sizeof(float)) != 0)
            fail_msg("%s %d, entry %d: token %d of %.9g, alone token %d of %.9g", what, index, i,
                     b->token_ids[i], (double)b->logprobs[i], a->token_ids[i],
                     (double)a->logprobs[i]);
    }
    assert_int_equal(a->rank, b->rank);
}

static void expect_same(const struct run *a, const struct run *b, const char *what)
{
    char place[64];
    assert_int_equal(a->num_tokens, NUM_PROMPT + NUM_OUTPUTS);
    assert_int_equal(b->num_tokens, NUM_PROMPT + NUM_OUTPUTS);
    for (int32_t i = 1; i < NUM_PROMPT; i++) {
        assert_int_equal(a->prompt_logprobs[i].num_entries, 3);
        snprintf(place, sizeof(place), "%s, prompt token", what);
        expect_same_logprobs(&a->prompt_logprobs[i], &b->prompt_logprobs[i], place, i);
    }
    for (int32_t i = 0; i < NUM_OUTPUTS; i++) {
        snprintf(place, sizeof(place), "%s, output", what);
        expect_same_logprobs(&a->logprobs[i], &b->logprobs[i], place, i);
    }
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->num_tokens * sizeof(int32_t));
}

static void check_chunk(struct driver *driver, const struct run *alone, int32_t chunk)
{
    struct run run = subject(driver);
    run.chunk = chunk;
    driver_run(driver, &run, 1, chunk);
    char what[32];
    snprintf(what, sizeof(what), "chunks of %d", chunk);
    expect_same(alone, &run, what);
}

static void check_crowd(struct driver *driver, const struct run *alone)
{
    struct run runs[NUM_OTHERS + 1];
    for (int32_t i = 0; i <= NUM_OTHERS; i++) {
        uint32_t seed = (uint32_t)i * 77 + 5;
        int32_t len = 1 + (int32_t)(next_random(&seed) % 90);
        runs[i] = (struct run){.prompt = random_prompt(driver, len, seed),
                               .num_prompt = len,
                               .num_outputs = 1 + (int32_t)(next_random(&seed) % 20),
                               .chunk = i % 3 == 0 ? 11 : 0,
                               .sampling = driver_greedy()};
        runs[i].sampling.temperature = i % 2 ? 1.0f : 0.0f;
        runs[i].sampling.seed = seed;
    }
    enum { PLACE = 17 };
    runs[PLACE] = subject(driver);
    runs[PLACE].chunk = 50;
    driver_run(driver, runs, NUM_OTHERS + 1, 3);
    expect_same(alone, &runs[PLACE], "in a crowd");
}

static void check_resumed(struct driver *driver, const struct run *alone)
{
    struct run run = subject(driver);
    run.num_known = 5;
    run.known_outputs = alone->tokens + NUM_PROMPT;
    run.chunk = 33;
    driver_run(driver, &run, 1, 2);
    // What was drawn before the interruption is not drawn, and so not scored, again.
    for (int32_t i = 0; i < run.num_known; i++)
        run.logprobs[i] = alone->logprobs[i];
    expect_same(alone, &run, "resumed");
}

static void check_options(const struct serve_options *options)
{
    struct driver driver;
    driver_start(&driver, options);
    struct run alone = subject(&driver);
    driver_run(&driver, &alone, 1, 0);
    check_chunk(&driver, &alone, 1);
    check_chunk(&driver, &alone, 64);
    driver_shuffle_blocks(&driver, 99);
    check_chunk(&driver, &alone, 0);
    check_chunk(&driver, &alone, 7);
    check_crowd(&driver, &alone);
    check_resumed(&driver, &alone);
    driver_stop(&driver);
}

static struct serve_options model_options(const char *name, const char *kv_cache_dtype)
{
    static char dir[512];
    snprintf(dir, sizeof(dir), "%s/models/%s", FIXTURES_DIR, name);
    struct serve_options options = driver_options(dir);
    options.kv_cache_dtype = kv_cache_dtype;
    options.max_model_len = 512;
    options.allow_long_max_model_len = true;
    return options;
}

static void check_model(const char *name, const char *isa, const char *kv_cache_dtype)
{
    struct serve_options options = model_options(name, kv_cache_dtype);
    options.cpu_isa = isa;
    check_options(&options);
}

static void a_request_is_independent_of_batch_chunks_and_blocks(void **state)
{
    (void)state;
    static const char *const MODELS[] = {"llama",         "mistral", "qwen2_sliding",
                                         "qwen3_tied",    "gemma2",  "gemma3_text",
                                         "phi3_longrope", "olmo2",   "qwen3_moe"};
    for (size_t i = 0; i < ARRAY_LEN(MODELS); i++) {
        check_model(MODELS[i], "scalar", "auto");
        check_model(MODELS[i], "auto", "auto");
    }
}

static void a_narrow_cache_keeps_requests_independent(void **state)
{
    (void)state;
    check_model("qwen3", "auto", "bfloat16");
    check_model("llama", "auto", "float16");
    check_model("qwen3", "auto", "fp8");
}

static void the_demo_model_is_independent_of_chunks(void **state)
{
    (void)state;
    struct serve_options options = driver_options(MODELS_DIR "/demo");
    struct driver driver;
    driver_start(&driver, &options);
    enum { LEN = 50, OUTPUTS = 4 };
    struct run runs[3];
    for (int32_t i = 0; i < 3; i++) {
        runs[i] = (struct run){.prompt = random_prompt(&driver, LEN, 3),
                               .num_prompt = LEN,
                               .num_outputs = OUTPUTS,
                               .chunk = i * 13,
                               .sampling = driver_greedy()};
        runs[i].sampling.num_logprobs = 5;
    }
    driver_run(&driver, &runs[0], 1, 0);
    driver_run(&driver, &runs[1], 2, 5);
    for (int32_t i = 1; i < 3; i++) {
        assert_memory_equal(runs[0].tokens, runs[i].tokens, (LEN + OUTPUTS) * sizeof(int32_t));
        for (int32_t t = 0; t < OUTPUTS; t++)
            expect_same_logprobs(&runs[0].logprobs[t], &runs[i].logprobs[t], "demo, output", t);
    }
    driver_stop(&driver);
}

/** Tokens drawn by the device, in recorded steps of other sizes. */
static void check_recorded(const struct serve_options *options)
{
    struct driver driver;
    driver_start(&driver, options);
    enum { NUM = 11 };
    struct run runs[NUM], alone;
    for (int32_t i = 0; i < NUM; i++) {
        runs[i] = subject(&driver);
        runs[i].prompt = random_prompt(&driver, NUM_PROMPT, 7 + 13 * (uint32_t)(i / 2));
        runs[i].chunk = i % 2 ? 40 : 0;
        runs[i].num_outputs = 40;
        runs[i].sampling = driver_greedy();
        runs[i].sampling.temperature = 0.9f;
        runs[i].sampling.seed = 5;
    }
    alone = runs[0];
    driver_run(&driver, &alone, 1, 0);
    driver_run(&driver, runs, NUM, 3);
    size_t size_bytes = (size_t)alone.num_tokens * sizeof(int32_t);
    assert_memory_equal(alone.tokens, runs[0].tokens, size_bytes);
    assert_memory_equal(alone.tokens, runs[1].tokens, size_bytes); // the same, cut otherwise
    driver_stop(&driver);
}

static void a_gpu_that_is_told_so_keeps_requests_independent(void **state)
{
    (void)state;
    if (!cuda_is_available()) {
        print_message("no GPU, or no driver, on this machine\n");
        skip();
    }
    static const char *const MODELS[] = {"llama",  "mistral",     "qwen2_sliding", "qwen3_tied",
                                         "gemma2", "gemma3_text", "olmo2",         "qwen3_moe"};
    for (size_t i = 0; i < 2 * ARRAY_LEN(MODELS); i++) {
        struct serve_options options = model_options(MODELS[i / 2], i % 2 ? "fp8" : "auto");
        options.target_device = "cuda";
        options.batch_invariant = true;
        options.max_num_seqs = 64;
        options.max_cudagraph_capture_size = 16;
        print_message("%s, cache %s\n", MODELS[i / 2], options.kv_cache_dtype);
        check_options(&options);
        check_recorded(&options);
    }
    struct serve_options demo = driver_options(MODELS_DIR "/demo");
    demo.target_device = "cuda";
    demo.batch_invariant = true;
    demo.max_model_len = 512;
    demo.max_num_seqs = 64;
    check_options(&demo);
    check_recorded(&demo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_independent_of_batch_chunks_and_blocks),
        cmocka_unit_test(a_narrow_cache_keeps_requests_independent),
        cmocka_unit_test(the_demo_model_is_independent_of_chunks),
        cmocka_unit_test(a_gpu_that_is_told_so_keeps_requests_independent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
