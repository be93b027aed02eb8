// Prompts to vectors on a GPU. In bfloat16 and float16 they are judged by their direction.
#include "worker/pooling_golden.h"

static const char *const MODELS[] = {"llama", "qwen2", "qwen3", "qwen3_tied"};

// Hidden states differ by a few percent in bfloat16, and by an eighth of that in float16.
static const double LEAST_COSINE = 0.995, LEAST_COSINE_F16 = 0.9999;

static void check_direction(const struct run *run, const double *expected, int32_t hidden_size,
                            double least_cosine)
{
    assert_int_equal(run->num_pooled, hidden_size);
    double product = 0, squares = 0;
    for (int32_t i = 0; i < hidden_size; i++) {
        product += (double)run->pooled[i] * expected[i]; // of length 1
        squares += (double)run->pooled[i] * (double)run->pooled[i];
    }
    if (!(fabs(squares - 1) < 1e-4) || !(product >= least_cosine))
        fail_msg("length %.6f, cosine %.6f", sqrt(squares), product);
}

static void check_model(const char *name, enum pooling_type type, const char *dtype)
{
    bool is_f16 = strcmp(dtype, "float16") == 0;
    char dir[512], path[600];
    snprintf(dir, sizeof(dir), "%s/models/%s", FIXTURES_DIR, name);
    snprintf(path, sizeof(path), "%s/expected.json", dir);
    json_t *expected = golden_load(path);
    struct golden golden = {0};
    golden_open(&golden, dir);
    struct serve_options options = pooling_options(dir, type);
    options.target_device = "cuda";
    options.dtype = dtype;
    options.max_num_seqs = 16;
    struct driver driver;
    driver_start(&driver, &options);
    int32_t num_ids;
    const int32_t *ids =
        golden_ids(golden_get(json_array_get(golden_get(expected, "prompts"), 1), "input_ids"),
                   &driver.arena, &num_ids);
    const struct pooling_params pooling = {type, true, 0};
    double *vector = arena_array(&driver.arena, double, golden.hidden_size);
    golden_vector(&golden, &pooling, vector);
    struct run runs[8]; // whole and in pieces, side by side
    for (int32_t i = 0; i < (int32_t)ARRAY_LEN(runs); i++) {
        runs[i] = pooling_run(type, ids, num_ids);
        runs[i].chunk = i * 3;
    }
    driver_run(&driver, runs, ARRAY_LEN(runs), 3);
    for (size_t i = 0; i < ARRAY_LEN(runs); i++)
        check_direction(&runs[i], vector, golden.hidden_size,
                        is_f16 ? LEAST_COSINE_F16 : LEAST_COSINE);
    driver_stop(&driver);
    golden_close(&golden);
    json_decref(expected);
}

static void vectors_point_where_the_reference_ones_do(void **state)
{
    (void)state;
    if (!cuda_is_available()) {
        print_message("no GPU, or no driver, on this machine\n");
        skip();
    }
    for (size_t i = 0; i < ARRAY_LEN(MODELS); i++) {
        check_model(MODELS[i], POOLING_LAST, "bfloat16");
        check_model(MODELS[i], POOLING_MEAN, "bfloat16");
        check_model(MODELS[i], POOLING_LAST, "float16");
        check_model(MODELS[i], POOLING_MEAN, "float16");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_point_where_the_reference_ones_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
