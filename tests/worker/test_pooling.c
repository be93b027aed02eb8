// Prompts to vectors through the executor: against the hidden states that another implementation
// computed, and to the bit against itself however a prompt is cut and whatever is beside it.
#include "worker/pooling_golden.h"

static const char *const MODELS[] = {"llama",         "llama_bias_tied", "mistral",   "qwen2",
                                     "qwen2_sliding", "qwen3",           "qwen3_tied"};
static const double TOLERANCE = 1e-4; // beside the length, or the largest hidden state

static void check_golden(struct driver *driver, const struct golden *golden, const json_t *ids,
                         const struct pooling_params *pooling, int32_t chunk)
{
    int32_t num_ids;
    const int32_t *prompt = golden_ids(ids, &driver->arena, &num_ids);
    assert_int_equal(num_ids, golden->num_tokens);
    struct run run = pooling_run(pooling->type, prompt, num_ids);
    run.pooling = *pooling;
    run.chunk = chunk;
    driver_run(driver, &run, 1, chunk % 3);
    double *expected = arena_array(&driver->arena, double, golden->hidden_size);
    golden_vector(golden, pooling, expected);
    assert_int_equal(run.num_pooled,
                     pooling->dimensions > 0 ? pooling->dimensions : golden->hidden_size);
    double scale = pooling->use_activation ? 1 : golden->largest;
    for (int32_t i = 0; i < run.num_pooled; i++) {
        if (!(fabs((double)run.pooled[i] - expected[i]) <= TOLERANCE * scale))
            fail_msg("%d: found %.7f, expected %.7f", i, (double)run.pooled[i], expected[i]);
    }
    arena_reset(&driver->arena);
}

static void check_model(const char *name, enum pooling_type type)
{
    char dir[512], path[600];
    snprintf(dir, sizeof(dir), "%s/models/%s", FIXTURES_DIR, name);
    snprintf(path, sizeof(path), "%s/expected.json", dir);
    json_t *expected = golden_load(path);
    const json_t *ids = golden_get(json_array_get(golden_get(expected, "prompts"), 1), "input_ids");
    struct golden golden = {0};
    golden_open(&golden, dir);
    struct serve_options options = pooling_options(dir, type);
    struct driver driver;
    driver_start(&driver, &options);
    const struct pooling_params variants[] = {
        {type, true, 0}, {type, false, 0}, {type, true, 16}, {type, false, 1}};
    for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
        check_golden(&driver, &golden, ids, &variants[i], 0);
        check_golden(&driver, &golden, ids, &variants[i], 5);
        check_golden(&driver, &golden, ids, &variants[i], 1);
    }
    driver_stop(&driver);
    golden_close(&golden);
    json_decref(expected);
}

static void vectors_are_those_of_the_reference_hidden_states(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(MODELS); i++) {
        check_model(MODELS[i], POOLING_LAST);
        check_model(MODELS[i], POOLING_MEAN);
    }
}

// ---- invariance ----

enum { NUM_TOKENS = 150, NUM_OTHERS = 12 };

static const int32_t *make_prompt(struct driver *driver, int32_t len, uint32_t seed)
{
    int32_t *prompt = arena_array(&driver->arena, int32_t, len);
    for (int32_t i = 0; i < len; i++) {
        seed = seed * 1664525u + 1013904223u;
        prompt[i] = (int32_t)((seed >> 8) % (uint32_t)driver->model.vocab_size);
    }
    return prompt;
}

static void expect_same(const struct run *a, const struct run *b)
{
    assert_int_equal(a->num_pooled, b->num_pooled);
    assert_memory_equal(a->pooled, b->pooled, (size_t)a->num_pooled * sizeof(float));
}

static void check_invariance(enum pooling_type type)
{
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/models/qwen3", FIXTURES_DIR);
    struct serve_options options = pooling_options(dir, type);
    struct driver driver;
    driver_start(&driver, &options);
    const int32_t *prompt = make_prompt(&driver, NUM_TOKENS, 1);
    struct run alone = pooling_run(type, prompt, NUM_TOKENS);
    driver_run(&driver, &alone, 1, 0);
    static const int32_t chunks[] = {1, 7, 16, 64, 149};
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        struct run cut = pooling_run(type, prompt, NUM_TOKENS);
        cut.chunk = chunks[i];
        driver_run(&driver, &cut, 1, (int32_t)i);
        expect_same(&alone, &cut);
    }
    struct run runs[NUM_OTHERS];
    for (int32_t i = 0; i < NUM_OTHERS; i++) {
        int32_t len = 1 + i * 9;
        runs[i] = pooling_run(type, make_prompt(&driver, len, (uint32_t)i + 2), len);
        runs[i].chunk = i % 4 * 5;
    }
    enum { PLACE = 5 };
    runs[PLACE] = pooling_run(type, prompt, NUM_TOKENS);
    runs[PLACE].chunk = 33;
    driver_shuffle_blocks(&driver, 3);
    driver_run(&driver, runs, NUM_OTHERS, 2);
    expect_same(&alone, &runs[PLACE]);
    driver_stop(&driver);
}

static void a_vector_is_the_same_to_the_bit_in_pieces_and_in_company(void **state)
{
    (void)state;
    check_invariance(POOLING_LAST);
    check_invariance(POOLING_MEAN);
}

// ---- what is planned ----

static void a_pooling_plan_has_memory_for_vectors_and_none_for_drawing(void **state)
{
    (void)state;
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/models/qwen3", FIXTURES_DIR);
    int64_t pooler_bytes[2];
    for (int i = 0; i < 2; i++) {
        struct serve_options options = pooling_options(dir, i ? POOLING_MEAN : POOLING_LAST);
        struct driver driver;
        driver_start(&driver, &options);
        pooler_bytes[i] = driver.config.workspace_part_bytes[WORKSPACE_POOLER];
        int64_t vectors = (int64_t)driver.config.max_num_seqs * driver.model.hidden_size * 4;
        assert_true(pooler_bytes[i] >= 2 * vectors);
        assert_int_equal(driver.config.workspace_part_bytes[WORKSPACE_SAMPLER], 0);
        driver_stop(&driver);
    }
    assert_true(pooler_bytes[1] > pooler_bytes[0]);
    struct serve_options options = driver_options(dir);
    struct driver driver;
    driver_start(&driver, &options);
    assert_int_equal(driver.config.workspace_part_bytes[WORKSPACE_POOLER], 0);
    assert_true(driver.config.workspace_part_bytes[WORKSPACE_SAMPLER] > 0);
    driver_stop(&driver);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_those_of_the_reference_hidden_states),
        cmocka_unit_test(a_vector_is_the_same_to_the_bit_in_pieces_and_in_company),
        cmocka_unit_test(a_pooling_plan_has_memory_for_vectors_and_none_for_drawing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
