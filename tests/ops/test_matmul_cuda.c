// Products of the CUDA backend, alone, fused with their neighbours and in a recording, against the
// portable reference.
#include "ops/gpu_bench.h"

static void check_matmul(struct bench *b, int64_t rows, int64_t k, int64_t n, bool has_bias,
                         enum dtype out_dtype, int64_t gap)
{
    float *x = randoms(b, rows * k), *data = randoms(b, n * k);
    struct weight w = {.form = form_of(b), .out_features = n, .in_features = k};
    w.data = bits_of(b, data, n * k);
    w.bias = has_bias ? randoms(b, n) : NULL;
    float *expected = floats(b, rows * n);
    op_matmul(&b->cpu, tensor_2d(expected, DTYPE_F32, rows, n), tensor_2d(x, DTYPE_F32, rows, k),
              &w);

    struct error err = {0};
    assert_true(b->gpu.ops.prepared_weight_bytes(&b->gpu, &w) >= (size_t)(n * k) * 2);
    assert_int_equal(b->gpu.ops.prepare_weight(&b->gpu, &w, &err), STATUS_OK);
    assert_true(w.is_packed);
    struct tensor gpu_x = matrix_to_gpu(b, x, rows, k);
    float *poison = floats(b, rows * (n + gap));
    struct tensor out = tensor_2d(NULL, out_dtype, rows, n + gap);
    out.data = out_dtype == DTYPE_F32
                   ? to_gpu(b, poison, (size_t)(rows * (n + gap)) * sizeof(float))
                   : rounded_to_gpu(b, poison, rows * (n + gap));
    op_matmul(&b->gpu, tensor_columns(out, gap, n), gpu_x, &w);
    const float *got = from_gpu(b, out);
    // With a bias cuBLASLt rounds twice: the product, of size up to a few times sqrt(k), then the
    // sum.
    double relative = out_dtype == DTYPE_F32 ? 1e-5 : rounding(b);
    double absolute = sqrt((double)k) * (has_bias ? 2 * rounding(b) : 2e-5);
    for (int64_t r = 0; r < rows; r++) {
        assert_close(got + r * (n + gap) + gap, expected + r * n, n, relative, absolute, "matmul");
        for (int64_t i = 0; i < gap; i++)
            assert_true(isnan(got[r * (n + gap) + i]));
    }
    release(b, (void *)(uintptr_t)w.data);
    release(b, gpu_x.data);
    release(b, out.data);
    arena_reset(&b->arena);
}

static void products_are_right_whatever_the_shape(void **state)
{
    struct bench *b = bench_of(state);
    static const int64_t rows[] = {1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 100, 128, 130, 300};
    static const struct {
        int64_t k, n;
    } shapes[] = {{64, 128}, {384, 1152}, {1024, 512}, {128, 24}, {200, 264}, {33, 10}, {7, 3}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        for (size_t j = 0; j < ARRAY_LEN(rows); j++) {
            check_matmul(b, rows[j], shapes[i].k, shapes[i].n, j % 2, b->gpu.activation_dtype, 0);
            check_matmul(b, rows[j], shapes[i].k, shapes[i].n, false, DTYPE_F32, 0);
        }
        check_matmul(b, 9, shapes[i].k, shapes[i].n, true, b->gpu.activation_dtype, 8);
    }
}

/** What a fused product gives, in float32 but for x * norm, which it multiplies rounded: the
 *  rounding of a product's inputs would hide anything else. Adds to `out` where `fusion` says so.
 */
static void expect_fused(struct bench *b, struct tensor out, const float *x, const struct weight *w,
                         const struct matmul_fusion *fusion)
{
    int64_t rows = out.shape[0], cols = out.shape[1], k = w->in_features, n = w->out_features;
    const float *norm = fusion->norm.weight, *bias = w->bias;
    float *inputs = floats(b, rows * k), *products = floats(b, rows * n);
    float *results = floats(b, rows * cols);
    for (int64_t i = 0; i < rows * k; i++)
        inputs[i] = norm ? rounded(b, x[i] * norm[i % k]) : x[i];
    struct weight plain = *w;
    plain.bias = NULL;
    op_matmul(&b->cpu, tensor_2d(products, DTYPE_F32, rows, n),
              tensor_2d(inputs, DTYPE_F32, rows, k), &plain);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t i = 0; i < k; i++)
            squares += (double)x[r * k + i] * x[r * k + i];
        float scale = norm ? (float)(1 / sqrt(squares / (double)k + fusion->norm.eps)) : 1;
        for (int64_t i = 0; i < n; i++)
            products[r * n + i] = products[r * n + i] * scale + (bias ? bias[i] : 0);
    }
    if (fusion->is_swiglu)
        op_silu_and_mul(&b->cpu, tensor_2d(results, DTYPE_F32, rows, cols),
                        tensor_2d(products, DTYPE_F32, rows, n));
    for (int64_t i = 0; i < rows * cols; i++)
        ((float *)out.data)[i] = (fusion->is_swiglu ? results[i] : products[i]) +
                                 (fusion->adds ? ((float *)out.data)[i] : 0);
}

static void check_fused(struct bench *b, int64_t rows, int64_t k, int64_t n, int flags)
{
    bool is_swiglu = flags & 2, adds = flags & 4;
    float *data = randoms(b, n * k), *x = randoms(b, rows * k), *norm = randoms(b, k);
    struct weight w = {.form = form_of(b), .out_features = n, .in_features = k};
    w.data = bits_of(b, data, n * k);
    w.bias = flags & 8 ? randoms(b, n) : NULL;
    int64_t cols = is_swiglu ? n / 2 : n;
    float *out = randoms(b, rows * cols);
    struct tensor gpu_out = matrix_to_gpu(b, out, rows, cols);
    struct matmul_fusion fusion = {{flags & 1 ? norm : NULL, eps, 0}, is_swiglu, adds};
    expect_fused(b, tensor_2d(out, DTYPE_F32, rows, cols), x, &w, &fusion);
    // What a norm undoes; with its weight before that, more than float16 holds.
    for (int64_t i = 0; flags & 1 && i < rows * k; i++)
        x[i] *= 8192;
    struct tensor gpu_x = matrix_to_gpu(b, x, rows, k);
    struct error err = {0};
    assert_int_equal(b->gpu.ops.prepare_weight(&b->gpu, &w, &err), STATUS_OK);
    void *gpu_norm = rounded_to_gpu(b, norm, k);
    fusion.norm.weight = flags & 1 ? gpu_norm : NULL;
    assert_true(op_fuses_matmul(&b->gpu, rows, &w, &fusion));
    op_fused_matmul(&b->gpu, gpu_out, gpu_x, &w, &fusion);
    // A result is rounded once; sums of k terms of size one differ in float32's last bits, and a
    // SwiGLU multiplies them by numbers of up to a few times sqrt(k).
    double scale = sqrt((double)k);
    char what[128];
    snprintf(what, sizeof(what),
             "fused_matmul of %ld rows of %ld by %ld, norm %d, SwiGLU %d, adds %d, bias %d",
             (long)rows, (long)k, (long)n, flags & 1, is_swiglu, adds, flags >> 3);
    const float *got = from_gpu(b, gpu_out);
    for (int64_t r = 0; r < rows; r++) {
        char place[160];
        snprintf(place, sizeof(place), "%s, row %ld", what, (long)r);
        assert_close(got + r * cols, out + r * cols, cols, rounding(b),
                     2e-5 * scale * (is_swiglu ? 4 * scale : 1), place);
    }
    release(b, (void *)(uintptr_t)w.data);
    release(b, gpu_norm);
    release(b, gpu_x.data);
    release(b, gpu_out.data);
    arena_reset(&b->arena);
}

static void fused_products_are_right(void **state)
{
    struct bench *b = bench_of(state);
    static const int64_t rows[] = {1, 2, 5, 8, 9, 16, 17, 33, 64};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int flags = 0; flags < 16; flags++) {
            bool has_norm = flags & 1;
            if (has_norm && rows[i] > 16)
                continue; // fused for few rows alone
            check_fused(b, rows[i], 64, 48, flags);
            if (rows[i] == 1 || rows[i] == 9)
                check_fused(b, rows[i], 1024, 3080, flags);
            if (!has_norm)
                check_fused(b, rows[i], 520, 1002, flags);
        }
    }
    check_fused(b, 65, 2056, 4100, 4); // for more rows, of large matrices alone
    check_fused(b, 100, 2056, 4100, 2 | 8);
}

/** A feed-forward block behind its norm. */
static void queue_block(struct device *dev, struct tensor residual, struct tensor x,
                        struct tensor activated, const struct weight weights[2],
                        struct norm_params norm)
{
    static const struct matmul_fusion swiglu = {.is_swiglu = true}, adds = {.adds = true};
    op_rms_norm(dev, x, residual, norm);
    op_fused_matmul(dev, activated, x, &weights[0], &swiglu);
    op_fused_matmul(dev, residual, activated, &weights[1], &adds);
}

static void products_in_a_recording_give_the_same_bits_as_alone(void **state)
{
    struct bench *b = bench_of(state);
    struct device *dev = &b->gpu;
    enum { ROWS = 40, WIDTH = 1024, INNER = 3072, NUM_BLOCKS = 6 };
    struct error err = {0};
    struct weight weights[2] = {
        {.form = form_of(b), .out_features = 2 * INNER, .in_features = WIDTH},
        {.form = form_of(b), .out_features = WIDTH, .in_features = INNER},
    };
    for (int i = 0; i < 2; i++) {
        int64_t n = weights[i].out_features * weights[i].in_features;
        float *values = floats(b, n);
        for (int64_t j = 0; j < n; j++)
            values[j] = (float)(uniform(b) - 0.5) / 16;
        weights[i].data = bits_of(b, values, n);
        assert_int_equal(dev->ops.prepare_weight(dev, &weights[i], &err), STATUS_OK);
    }
    float *first = randoms(b, ROWS * WIDTH);
    const struct norm_params norm = {rounded_to_gpu(b, randoms(b, WIDTH), WIDTH), eps, 0};
    struct tensor residual = matrix_to_gpu(b, first, ROWS, WIDTH);
    struct tensor x = matrix_to_gpu(b, floats(b, ROWS * WIDTH), ROWS, WIDTH);
    struct tensor activated = matrix_to_gpu(b, floats(b, ROWS * INNER), ROWS, INNER);
    for (int i = 0; i < NUM_BLOCKS; i++) {
        queue_block(dev, residual, x, activated, weights, norm);
        assert_int_equal(dev->ops.synchronize(dev, &err), STATUS_OK);
    }
    const float *alone = from_gpu(b, residual);
    dev->ops.record_begin(dev);
    for (int i = 0; i < NUM_BLOCKS; i++)
        queue_block(dev, residual, x, activated, weights, norm);
    void *recording = dev->ops.record_end(dev);
    assert_non_null(recording);
    struct tensor again = matrix_to_gpu(b, first, ROWS, WIDTH);
    for (int i = 0; i < 20; i++) {
        dev->ops.copy_rows(dev, residual.data, WIDTH * 2, again.data, WIDTH * 2, WIDTH * 2, ROWS);
        dev->ops.replay(dev, recording);
        assert_memory_equal(from_gpu(b, residual), alone, ROWS * WIDTH * sizeof(*alone));
    }
    dev->ops.free_recording(dev, recording);
    void *const memory[] = {(void *)(uintptr_t)weights[0].data,
                            (void *)(uintptr_t)weights[1].data,
                            (void *)(uintptr_t)norm.weight,
                            residual.data,
                            x.data,
                            activated.data,
                            again.data};
    for (size_t i = 0; i < ARRAY_LEN(memory); i++)
        release(b, memory[i]);
    arena_reset(&b->arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right_whatever_the_shape),
        cmocka_unit_test(fused_products_are_right),
        cmocka_unit_test(products_in_a_recording_give_the_same_bits_as_alone),
    };
    return run_in_both_types(tests);
}
