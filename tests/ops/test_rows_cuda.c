// Operations of the CUDA backend that take rows one by one: gathering, norms, activations, and what
// is done to logits, against the portable reference.
#include "ops/gpu_bench.h"

static const int64_t row_sizes[] = {1, 7, 8, 33, 64, 100, 384, 1024, 4096, 5120, 12288};
enum { NUM_ROWS = 5 };

static void rows_are_gathered_exactly(void **state)
{
    struct bench *b = bench_of(state);
    static const int32_t ids[NUM_ROWS] = {0, 10, 3, 3, 7};
    int32_t *gpu_ids = to_gpu(b, ids, sizeof(ids));
    for (size_t i = 0; i < ARRAY_LEN(row_sizes); i++) {
        int64_t n = row_sizes[i];
        const float *table = randoms(b, 11 * n);
        struct tensor gpu_table = matrix_to_gpu(b, table, 11, n);
        struct tensor out = matrix_to_gpu(b, floats(b, NUM_ROWS * n), NUM_ROWS, n);
        struct tensor out2 = matrix_to_gpu(b, floats(b, NUM_ROWS * n), NUM_ROWS, n);
        op_embedding(&b->gpu, out, gpu_table, gpu_ids, 2.0f); // exact
        op_gather_rows(&b->gpu, out2, gpu_table, gpu_ids);
        const float *got = from_gpu(b, out), *got2 = from_gpu(b, out2);
        for (int r = 0; r < NUM_ROWS; r++) {
            for (int64_t j = 0; j < n; j++)
                assert_true(got[r * n + j] == 2 * table[ids[r] * n + j]);
            assert_close(got2 + r * n, table + ids[r] * n, n, 0, 0, "gather_rows");
        }
        release(b, gpu_table.data);
        release(b, out.data);
        release(b, out2.data);
    }
    release(b, gpu_ids);
}

static void norms_and_activations_are_right(void **state)
{
    struct bench *b = bench_of(state);
    for (size_t i = 0; i < ARRAY_LEN(row_sizes); i++) {
        int64_t n = row_sizes[i], size = NUM_ROWS * n;
        float *x = randoms(b, size), *residual = randoms(b, size), *weight = randoms(b, n);
        void *gpu_weight = rounded_to_gpu(b, weight, n);
        struct tensor gpu_x = matrix_to_gpu(b, x, NUM_ROWS, n);
        struct tensor gpu_residual = matrix_to_gpu(b, residual, NUM_ROWS, n);
        struct tensor out = matrix_to_gpu(b, floats(b, size), NUM_ROWS, n);
        float *expected = floats(b, size);
        const struct norm_params norm = {weight, eps, i % 2 ? 1.0f : 0.0f};
        const struct norm_params gpu_norm = {gpu_weight, eps, norm.weight_offset};
        op_rms_norm(&b->gpu, out, gpu_x, gpu_norm);
        op_rms_norm(&b->cpu, tensor_2d(expected, DTYPE_F32, NUM_ROWS, n),
                    tensor_2d(x, DTYPE_F32, NUM_ROWS, n), norm);
        assert_close(from_gpu(b, out), expected, size, rounding(b), 1e-5, "rms_norm");

        // The sum is rounded before it is normalised.
        op_add_rms_norm(&b->gpu, gpu_x, gpu_residual, gpu_norm);
        for (int64_t j = 0; j < size; j++)
            residual[j] = rounded(b, residual[j] + x[j]);
        assert_close(from_gpu(b, gpu_residual), residual, size, 0, 0, "residual");
        op_rms_norm(&b->cpu, tensor_2d(expected, DTYPE_F32, NUM_ROWS, n),
                    tensor_2d(residual, DTYPE_F32, NUM_ROWS, n), norm);
        assert_close(from_gpu(b, gpu_x), expected, size, rounding(b), 1e-5, "add_rms_norm");

        float *gate_up = randoms(b, 2 * size);
        for (int64_t j = 0; j < 2 * size; j++)
            gate_up[j] *= j % 5 == 0 ? 32.0f : 1.0f; // far into both tails
        struct tensor gpu_gate_up = matrix_to_gpu(b, gate_up, NUM_ROWS, 2 * n);
        op_silu_and_mul(&b->gpu, out, gpu_gate_up);
        op_silu_and_mul(&b->cpu, tensor_2d(expected, DTYPE_F32, NUM_ROWS, n),
                        tensor_2d(gate_up, DTYPE_F32, NUM_ROWS, 2 * n));
        assert_close(from_gpu(b, out), expected, size, rounding(b), 1e-5, "silu_and_mul");
        op_gelu_and_mul(&b->gpu, out, gpu_gate_up);
        op_gelu_and_mul(&b->cpu, tensor_2d(expected, DTYPE_F32, NUM_ROWS, n),
                        tensor_2d(gate_up, DTYPE_F32, NUM_ROWS, 2 * n));
        assert_close(from_gpu(b, out), expected, size, rounding(b), 1e-4, "gelu_and_mul");
        release(b, gpu_weight);
        release(b, gpu_x.data);
        release(b, gpu_residual.data);
        release(b, out.data);
        release(b, gpu_gate_up.data);
        arena_reset(&b->arena);
    }
}

static void norms_behind_blocks_are_right(void **state)
{
    struct bench *b = bench_of(state);
    for (size_t i = 0; i < ARRAY_LEN(row_sizes); i++) {
        int64_t n = row_sizes[i], size = NUM_ROWS * n;
        float *x = randoms(b, size), *residual = randoms(b, size), *normed = floats(b, size);
        float *expected = floats(b, size);
        const struct norm_params post = {randoms(b, n), eps, 1.0f},
                                 pre = {randoms(b, n), eps, 0.0f};
        const struct norm_params gpu_post = {rounded_to_gpu(b, post.weight, n), eps, 1.0f};
        struct norm_params gpu_pre = {rounded_to_gpu(b, pre.weight, n), eps, 0.0f};
        for (int has_pre = 1; has_pre >= 0; has_pre--) {
            struct tensor gpu_x = matrix_to_gpu(b, x, NUM_ROWS, n);
            struct tensor gpu_residual = matrix_to_gpu(b, residual, NUM_ROWS, n);
            void *weight = (void *)(uintptr_t)gpu_pre.weight;
            gpu_pre.weight = has_pre ? weight : NULL;
            op_add_post_norm(&b->gpu, gpu_x, gpu_residual, gpu_post, gpu_pre);
            op_rms_norm(&b->cpu, tensor_2d(normed, DTYPE_F32, NUM_ROWS, n),
                        tensor_2d(x, DTYPE_F32, NUM_ROWS, n), post);
            float *sum = from_gpu(b, gpu_residual);
            for (int64_t j = 0; j < size; j++) // two roundings: of the norm, of the sum
                normed[j] += residual[j];
            assert_close(sum, normed, size, 2 * rounding(b), 4 * rounding(b),
                         "add_post_norm residual");
            op_rms_norm(&b->cpu, tensor_2d(expected, DTYPE_F32, NUM_ROWS, n),
                        tensor_2d(sum, DTYPE_F32, NUM_ROWS, n), pre);
            if (has_pre)
                assert_close(from_gpu(b, gpu_x), expected, size, rounding(b), 1e-5,
                             "add_post_norm");
            release(b, gpu_x.data);
            release(b, gpu_residual.data);
            if (!has_pre)
                release(b, weight);
        }
        release(b, (void *)(uintptr_t)gpu_post.weight);
        arena_reset(&b->arena);
    }
}

/** In float16; bfloat16 has numbers enough. */
static void sums_beyond_the_largest_number_become_it(void **state)
{
    struct bench *b = bench_of(state);
    enum { COLS = 64 };
    if (b->gpu.activation_dtype != DTYPE_F16)
        skip();
    float x[COLS], residual[COLS];
    for (int i = 0; i < COLS; i++)
        x[i] = residual[i] = i % 2 ? 60000 : -60000;
    const struct norm_params norm = {rounded_to_gpu(b, randoms(b, COLS), COLS), eps, 0.0f};
    struct tensor gpu_x = matrix_to_gpu(b, x, 1, COLS);
    struct tensor gpu_residual = matrix_to_gpu(b, residual, 1, COLS);
    op_add_rms_norm(&b->gpu, gpu_x, gpu_residual, norm);
    const float *sums = from_gpu(b, gpu_residual), *normed = from_gpu(b, gpu_x);
    for (int i = 0; i < COLS; i++) {
        assert_true(sums[i] == (i % 2 ? 65504.0f : -65504.0f));
        assert_true(isfinite(normed[i]));
    }
    release(b, gpu_x.data);
    release(b, gpu_residual.data);
    release(b, (void *)(uintptr_t)norm.weight);
}

static void columns_are_normalised_in_place(void **state)
{
    struct bench *b = bench_of(state);
    enum { COLS = 64, GAP = 24, STRIDE = COLS + 2 * GAP };
    float *x = randoms(b, NUM_ROWS * STRIDE);
    const struct norm_params norm = {randoms(b, COLS), eps, 0.0f};
    const struct norm_params gpu_norm = {rounded_to_gpu(b, norm.weight, COLS), eps, 0.0f};
    struct tensor all = matrix_to_gpu(b, x, NUM_ROWS, STRIDE);
    op_rms_norm(&b->gpu, tensor_columns(all, GAP, COLS), tensor_columns(all, GAP, COLS), gpu_norm);
    struct tensor columns = tensor_columns(tensor_2d(x, DTYPE_F32, NUM_ROWS, STRIDE), GAP, COLS);
    op_rms_norm(&b->cpu, columns, columns, norm);
    const float *got = from_gpu(b, all);
    for (int r = 0; r < NUM_ROWS; r++) {
        const float *row = x + r * STRIDE, *got_row = got + r * STRIDE;
        assert_close(got_row, row, GAP, 0, 0, "before the columns");
        assert_close(got_row + GAP, row + GAP, COLS, rounding(b), 1e-5, "rms_norm of columns");
        assert_close(got_row + GAP + COLS, row + GAP + COLS, GAP, 0, 0, "behind the columns");
    }
    release(b, all.data);
    release(b, (void *)(uintptr_t)gpu_norm.weight);
}

static void logits_are_capped_softly(void **state)
{
    struct bench *b = bench_of(state);
    enum { COLS = 1003 };
    float *x = randoms(b, NUM_ROWS * COLS);
    for (int i = 0; i < NUM_ROWS * COLS; i++)
        x[i] *= 20;
    struct tensor cpu = tensor_2d(x, DTYPE_F32, NUM_ROWS, COLS), gpu = cpu;
    gpu.data = to_gpu(b, x, NUM_ROWS * COLS * sizeof(float));
    op_soft_cap(&b->gpu, gpu, 30);
    op_soft_cap(&b->cpu, cpu, 30);
    assert_close(from_gpu(b, gpu), x, NUM_ROWS * COLS, 2e-6, 1e-6, "soft_cap");
    release(b, gpu.data);
}

static void greedy_draws_take_the_first_of_the_largest(void **state)
{
    struct bench *b = bench_of(state);
    enum { ROWS = 5, VOCAB = 5003 };
    float *logits = randoms(b, ROWS * VOCAB);
    logits[17] = logits[4000] = 50;
    logits[VOCAB + VOCAB - 1] = 50;
    logits[2 * VOCAB + 9] = NAN;
    logits[3 * VOCAB + 9] = INFINITY;
    for (int i = 0; i < VOCAB; i++)
        logits[4 * VOCAB + i] = -INFINITY;
    struct sample_params params[ROWS] = {0};
    for (int i = 0; i < ROWS; i++)
        params[i] = (struct sample_params){.top_p = 1, .repetition_penalty = 1, .num_logprobs = -1};
    struct sample_params *gpu_params = to_gpu(b, params, sizeof(params));
    struct tensor gpu_logits =
        tensor_2d(to_gpu(b, logits, ROWS * VOCAB * sizeof(float)), DTYPE_F32, ROWS, VOCAB);
    int32_t ids[ROWS] = {7, 7, 7, 7, 7};
    int32_t *gpu_ids = to_gpu(b, ids, sizeof(ids));
    op_sample(&b->gpu, gpu_ids, gpu_logits, gpu_params);
    b->gpu.ops.copy_out(&b->gpu, ids, gpu_ids, sizeof(ids));
    static const int32_t expected[ROWS] = {17, VOCAB - 1, -1, -1, -1};
    for (int i = 0; i < ROWS; i++)
        assert_int_equal(ids[i], expected[i]);
    release(b, gpu_params);
    release(b, gpu_logits.data);
    release(b, gpu_ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_gathered_exactly),
        cmocka_unit_test(norms_and_activations_are_right),
        cmocka_unit_test(norms_behind_blocks_are_right),
        cmocka_unit_test(columns_are_normalised_in_place),
        cmocka_unit_test(sums_beyond_the_largest_number_become_it),
        cmocka_unit_test(logits_are_capped_softly),
        cmocka_unit_test(greedy_draws_take_the_first_of_the_largest),
    };
    return run_in_both_types(tests);
}
