// Every operation of the CUDA backend against the portable reference, over odd shapes, in bfloat16
// and in float16. Inputs are rounded to that type first, so that only the operation's own rounding
// is left: a unit in the last of 8 bits (2^-8 relative) or of 11, and what float32 sums differ.
#include "ops/gpu_bench.h"

static const float eps = 1e-6f;

static int start_bf16(void **state)
{
    return start_bench(state, DTYPE_BF16, CPU_ISA_SCALAR, 0, 7);
}

static int start_f16(void **state)
{
    return start_bench(state, DTYPE_F16, CPU_ISA_SCALAR, 0, 7);
}

static enum weight_form form_of(const struct bench *b)
{
    return b->gpu.activation_dtype == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_BF16;
}

static float *floats(struct bench *b, int64_t n)
{
    float *x = arena_array(&b->arena, float, n + 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = NAN; // what an operation forgets to write shows
    return x;
}

// ---- Memory --------------------------------------------------------------------------------

static void copies_bring_back_what_they_took(void **state)
{
    struct bench *b = bench_of(state);
    struct device *dev = &b->gpu;
    struct error err = {0};
    enum { ROWS = 5, ROW = 300, PITCH = 512 };
    char *staging = dev->ops.alloc_staging(dev, ROWS * PITCH);
    char *memory = dev->ops.alloc(dev, ROWS * PITCH);
    assert_non_null(staging);
    assert_int_equal((uintptr_t)memory % 256, 0);
    memset(staging, 1, ROWS * PITCH);
    dev->ops.copy_in(dev, memory, staging, ROWS * PITCH);
    for (int i = 0; i < ROWS * ROW; i++)
        staging[i] = (char)(i * 7);
    char *packed = dev->ops.alloc(dev, ROWS * ROW);
    dev->ops.upload(dev, packed, staging, ROWS * ROW);
    dev->ops.copy_rows(dev, memory, PITCH, packed, ROW, ROW, ROWS);
    dev->ops.set_mark(dev, 1);
    assert_int_equal(dev->ops.wait_mark(dev, 1, &err), STATUS_OK);
    assert_true(dev->ops.passed_mark(dev, 1));
    memset(staging, 0, ROWS * PITCH);
    dev->ops.download(dev, staging, memory, ROWS * PITCH);
    assert_int_equal(dev->ops.synchronize(dev, &err), STATUS_OK);
    for (int i = 0; i < ROWS * PITCH; i++)
        assert_int_equal(staging[i],
                         i % PITCH < ROW ? (char)((i / PITCH * ROW + i % PITCH) * 7) : 1);
    dev->ops.free(dev, packed);
    int64_t total = 0, free_now = 0;
    dev->ops.memory_info(dev, &total, &free_now);
    assert_true(free_now > 0 && free_now < total);
    dev->ops.free(dev, memory);
    dev->ops.free(dev, NULL);
    dev->ops.free_staging(dev, staging);
    assert_null(dev->ops.alloc(dev, (size_t)total * 2)); // and is no failure
    assert_int_equal(dev->ops.synchronize(dev, &err), STATUS_OK);
}

// ---- Rows ----------------------------------------------------------------------------------

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

// ---- Matrix multiplication -----------------------------------------------------------------

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

// ---- Mixtures of experts -------------------------------------------------------------------

/** One layer's experts and where tokens went, on both devices. */
struct experts_run {
    int32_t num_tokens, top_k, num_experts;
    int64_t k, n;
    struct expert_routes cpu, gpu;
    struct expert_weights cpu_weights, gpu_weights;
    char *stacked; // on the GPU
};

static struct expert_routes cpu_routes(struct bench *b, const struct experts_run *run)
{
    int64_t slots = (int64_t)run->num_tokens * run->top_k;
    return (struct expert_routes){
        .num_tokens = run->num_tokens,
        .top_k = run->top_k,
        .num_experts = run->num_experts,
        .weights = floats(b, slots),
        .slots = arena_array(&b->arena, int32_t, slots + 1),
        .tokens = arena_array(&b->arena, int32_t, slots + 1),
        .expert_start = arena_array(&b->arena, int32_t, run->num_experts + 1),
        .tiles = arena_array(&b->arena, int32_t, expert_tile_words(slots, run->num_experts)),
    };
}

static struct expert_routes gpu_routes(struct bench *b, const struct experts_run *run)
{
    struct device *dev = &b->gpu;
    size_t slots = (size_t)run->num_tokens * (size_t)run->top_k;
    size_t words = (size_t)expert_tile_words((int64_t)slots, run->num_experts);
    return (struct expert_routes){
        .num_tokens = run->num_tokens,
        .top_k = run->top_k,
        .num_experts = run->num_experts,
        .weights = dev->ops.alloc(dev, slots * 4),
        .slots = dev->ops.alloc(dev, slots * 4),
        .tokens = dev->ops.alloc(dev, slots * 4),
        .expert_start = dev->ops.alloc(dev, ((size_t)run->num_experts + 1) * 4),
        .tiles = dev->ops.alloc(dev, words * 4),
    };
}

static void release_routes(struct bench *b, const struct expert_routes *routes)
{
    release(b, routes->weights);
    release(b, routes->slots);
    release(b, routes->tokens);
    release(b, routes->expert_start);
    release(b, routes->tiles);
}

static void start_experts(struct bench *b, struct experts_run *run)
{
    int32_t num = run->num_experts;
    const void **cpu = arena_array(&b->arena, const void *, num);
    const void **gpu = arena_array(&b->arena, const void *, num);
    int64_t count = run->n * run->k;
    const float *data = randoms(b, num * count);
    const uint16_t *bits = bits_of(b, data, num * count);
    run->stacked = to_gpu(b, bits, (size_t)(num * count) * sizeof(*bits));
    for (int32_t e = 0; e < num; e++) {
        cpu[e] = bits + e * count;
        gpu[e] = run->stacked + e * count * (int64_t)sizeof(*bits);
    }
    run->cpu_weights = (struct expert_weights){
        .form = form_of(b),
        .num_experts = num,
        .out_features = run->n,
        .in_features = run->k,
        .data = cpu,
    };
    run->gpu_weights = run->cpu_weights;
    run->gpu_weights.data = to_gpu(b, gpu, (size_t)num * sizeof(*gpu));
    run->gpu_weights.stacked = run->stacked;
}

static void stop_experts(struct bench *b, struct experts_run *run)
{
    release(b, run->stacked);
    release(b, (void *)(uintptr_t)run->gpu_weights.data);
    arena_reset(&b->arena);
}

static int32_t *words_from_gpu(struct bench *b, const int32_t *words, int64_t n)
{
    int32_t *copy = arena_array(&b->arena, int32_t, n + 1);
    struct error err = {0};
    if (b->gpu.ops.synchronize(&b->gpu, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    b->gpu.ops.copy_out(&b->gpu, copy, words, (size_t)n * 4);
    return copy;
}

/** Rows [first, first + num) of logits and x through the experts; each choice's product, in the
 *  order of choices, and the sums. Checks the routes against the reference's. */
static void run_experts(struct bench *b, struct experts_run *run, const float *logits,
                        const float *x, float **products, float **sums)
{
    int32_t tokens = run->num_tokens, slots = tokens * run->top_k;
    struct expert_routes cpu = cpu_routes(b, run), gpu = gpu_routes(b, run);
    struct tensor gpu_logits = tensor_2d(NULL, DTYPE_F32, tokens, run->num_experts);
    gpu_logits.data = to_gpu(b, logits, (size_t)tensor_numel(gpu_logits) * sizeof(float));
    bool renormalises = run->top_k > 2;
    op_route_experts(&b->gpu, &gpu, gpu_logits, renormalises);
    op_route_experts(&b->cpu, &cpu,
                     tensor_2d((void *)(uintptr_t)logits, DTYPE_F32, tokens, run->num_experts),
                     renormalises);
    const int32_t *gpu_slots = words_from_gpu(b, gpu.slots, slots);
    const int32_t *gpu_tokens = words_from_gpu(b, gpu.tokens, slots);
    const int32_t *gpu_start = words_from_gpu(b, gpu.expert_start, run->num_experts + 1);
    const float *weights = from_gpu(b, tensor_2d(gpu.weights, DTYPE_F32, 1, slots));
    assert_memory_equal(gpu_start, cpu.expert_start, ((size_t)run->num_experts + 1) * 4);
    assert_close(weights, cpu.weights, slots, 1e-5, 1e-7, "route_experts");
    for (int32_t c = 0; c < slots; c++) {
        assert_in_range(gpu_slots[c], 0, slots - 1);
        assert_int_equal(gpu_tokens[gpu_slots[c]], c / run->top_k);
        int32_t e = 0; // the expert's slots are the same set, in some order
        while (cpu.slots[c] >= gpu_start[e + 1])
            e++;
        assert_in_range(gpu_slots[c], gpu_start[e], gpu_start[e + 1] - 1);
    }

    const struct expert_product by_token = {.is_by_token = true};
    struct tensor gpu_x = matrix_to_gpu(b, x, tokens, run->k);
    struct tensor out = matrix_to_gpu(b, floats(b, slots * run->n), slots, run->n);
    struct tensor sum = matrix_to_gpu(b, floats(b, tokens * run->n), tokens, run->n);
    op_matmul_experts(&b->gpu, out, gpu_x, &run->gpu_weights, &gpu, by_token);
    op_combine_experts(&b->gpu, sum, out, &gpu, false);
    const float *got = from_gpu(b, out);
    *sums = from_gpu(b, sum);
    *products = floats(b, slots * run->n);
    for (int32_t c = 0; c < slots; c++)
        memcpy(*products + c * run->n, got + gpu_slots[c] * run->n, (size_t)run->n * sizeof(float));

    float *expected = floats(b, slots * run->n), *expected_sum = floats(b, tokens * run->n);
    struct tensor cpu_out = tensor_2d(expected, DTYPE_F32, slots, run->n);
    op_matmul_experts(&b->cpu, cpu_out, tensor_2d((void *)(uintptr_t)x, DTYPE_F32, tokens, run->k),
                      &run->cpu_weights, &cpu, by_token);
    for (int32_t c = 0; c < slots; c++)
        assert_close(*products + c * run->n, expected + cpu.slots[c] * run->n, run->n, rounding(b),
                     sqrt((double)run->k) * 2e-5, "matmul_experts");
    op_combine_experts(&b->cpu, tensor_2d(expected_sum, DTYPE_F32, tokens, run->n), cpu_out, &cpu,
                       false);
    assert_close(*sums, expected_sum, tokens * run->n, 2 * rounding(b),
                 13 * rounding(b) * sqrt((double)run->k), "combine_experts");

    // The same rows, a slot each.
    float *sorted = floats(b, slots * run->k);
    for (int32_t slot = 0; slot < slots; slot++)
        memcpy(sorted + slot * run->k, x + gpu_tokens[slot] * run->k,
               (size_t)run->k * sizeof(float));
    struct tensor gpu_sorted = matrix_to_gpu(b, sorted, slots, run->k);
    struct tensor again = matrix_to_gpu(b, floats(b, slots * run->n), slots, run->n);
    op_matmul_experts(&b->gpu, again, gpu_sorted, &run->gpu_weights, &gpu,
                      (struct expert_product){0});
    assert_close(from_gpu(b, again), got, slots * run->n, 0, 0, "matmul_experts of slots");
    release(b, gpu_logits.data);
    release(b, gpu_x.data);
    release(b, out.data);
    release(b, sum.data);
    release(b, gpu_sorted.data);
    release(b, again.data);
    release_routes(b, &gpu);
}

/** Gate, up and their product in one, added up on top of what is there: against the reference, and
 *  among products that are taken where weights lie apart. */
static void check_gated_experts(struct bench *b, struct experts_run *run, const float *logits,
                                const float *x)
{
    const struct expert_product swiglu = {.is_by_token = true, .is_swiglu = true};
    int32_t tokens = run->num_tokens, slots = tokens * run->top_k;
    int64_t cols = run->n / 2;
    struct expert_routes cpu = cpu_routes(b, run), gpu = gpu_routes(b, run);
    struct tensor gpu_logits = tensor_2d(NULL, DTYPE_F32, tokens, run->num_experts);
    gpu_logits.data = to_gpu(b, logits, (size_t)tensor_numel(gpu_logits) * sizeof(float));
    op_route_experts(&b->gpu, &gpu, gpu_logits, true);
    op_route_experts(&b->cpu, &cpu,
                     tensor_2d((void *)(uintptr_t)logits, DTYPE_F32, tokens, run->num_experts),
                     true);
    struct tensor gpu_x = matrix_to_gpu(b, x, tokens, run->k);
    struct tensor out = matrix_to_gpu(b, floats(b, slots * cols), slots, cols);
    float *residual = randoms(b, tokens * cols);
    struct tensor sum = matrix_to_gpu(b, residual, tokens, cols);
    op_matmul_experts(&b->gpu, out, gpu_x, &run->gpu_weights, &gpu, swiglu);
    op_combine_experts(&b->gpu, sum, out, &gpu, true);
    const float *got = from_gpu(b, out);
    float *expected = floats(b, slots * cols);
    struct tensor cpu_out = tensor_2d(expected, DTYPE_F32, slots, cols);
    op_matmul_experts(&b->cpu, cpu_out, tensor_2d((void *)(uintptr_t)x, DTYPE_F32, tokens, run->k),
                      &run->cpu_weights, &cpu, swiglu);
    op_combine_experts(&b->cpu, tensor_2d(residual, DTYPE_F32, tokens, cols), cpu_out, &cpu, true);
    const int32_t *gpu_slots = words_from_gpu(b, gpu.slots, slots);
    double noise = (double)run->k * 2e-5;
    for (int32_t c = 0; c < slots; c++)
        assert_close(got + gpu_slots[c] * cols, expected + cpu.slots[c] * cols, cols,
                     2 * rounding(b), noise, "matmul_experts with SwiGLU");
    assert_close(from_gpu(b, sum), residual, tokens * cols, 2 * rounding(b),
                 13 * rounding(b) * (double)run->k, "combine_experts on top");

    struct expert_weights apart = run->gpu_weights;
    apart.stacked = NULL;
    struct tensor again = matrix_to_gpu(b, floats(b, slots * cols), slots, cols);
    op_matmul_experts(&b->gpu, again, gpu_x, &apart, &gpu, swiglu);
    assert_close(from_gpu(b, again), got, slots * cols, 2 * rounding(b), noise, "weights apart");
    release(b, gpu_logits.data);
    release(b, gpu_x.data);
    release(b, out.data);
    release(b, sum.data);
    release(b, again.data);
    release_routes(b, &gpu);
}

/** Tiles of every size, shapes that fill none, and each token by itself to the bit. */
static void experts_are_right_and_independent_of_other_tokens(void **state)
{
    struct bench *b = bench_of(state);
    static const struct {
        int32_t num_tokens, top_k, num_experts;
        int64_t k, n;
    } cases[] = {
        {1, 8, 128, 256, 96},  {5, 3, 8, 64, 64},    {64, 2, 4, 32, 200}, {300, 2, 4, 136, 130},
        {600, 2, 4, 256, 264}, {40, 4, 60, 512, 64}, {9, 2, 5, 33, 7},    {1, 1, 1, 8, 2},
        {700, 1, 1, 72, 128},  {17, 6, 1024, 64, 8},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct experts_run run = {.num_tokens = cases[i].num_tokens,
                                  .top_k = cases[i].top_k,
                                  .num_experts = cases[i].num_experts,
                                  .k = cases[i].k,
                                  .n = cases[i].n};
        start_experts(b, &run);
        float *logits = randoms(b, (int64_t)run.num_tokens * run.num_experts);
        float *x = randoms(b, run.num_tokens * run.k), *all, *all_sums, *one, *one_sum;
        run_experts(b, &run, logits, x, &all, &all_sums);
        int32_t token = run.num_tokens / 2, num_products = (int32_t)(run.top_k * run.n);
        run.num_tokens = 1;
        run_experts(b, &run, logits + (int64_t)token * run.num_experts, x + token * run.k, &one,
                    &one_sum);
        assert_close(one, all + (int64_t)token * num_products, num_products, 0, 0, "alone");
        assert_close(one_sum, all_sums + token * run.n, run.n, 0, 0, "the sum alone");
        run.num_tokens = cases[i].num_tokens;
        if (run.n % 2 == 0)
            check_gated_experts(b, &run, logits, x);
        stop_experts(b, &run);
    }
}

/** Norm, router, choice and sort in one give the experts what they give one after the other. */
static void few_tokens_are_routed_in_one_operation(void **state)
{
    struct bench *b = bench_of(state);
    static const struct {
        int32_t num_tokens, top_k, num_experts;
        int64_t n;
    } cases[] = {
        {1, 8, 128, 2048}, {16, 8, 128, 512}, {5, 2, 8, 256}, {16, 17, 250, 768}, {70, 3, 40, 256}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct experts_run run = {.num_tokens = cases[i].num_tokens,
                                  .top_k = cases[i].top_k,
                                  .num_experts = cases[i].num_experts};
        int32_t tokens = run.num_tokens, slots = tokens * run.top_k, experts = run.num_experts;
        int64_t n = cases[i].n;
        const float *x = randoms(b, tokens * n), *weights = randoms(b, n);
        const float *rows = randoms(b, experts * n);
        const struct norm_params cpu_norm = {weights, eps, 0.0f};
        const struct norm_params gpu_norm = {rounded_to_gpu(b, weights, n), eps, 0.0f};
        struct tensor gpu_rows = matrix_to_gpu(b, rows, experts, n);
        const struct weight router = {
            .form = form_of(b),
            .out_features = experts,
            .in_features = n,
            .data = gpu_rows.data,
        };
        assert_true(op_fuses_router(&b->gpu, tokens, &router));
        struct expert_routes routes = gpu_routes(b, &run), expected = cpu_routes(b, &run);
        struct tensor gpu_x = matrix_to_gpu(b, x, tokens, n);
        struct tensor out = matrix_to_gpu(b, floats(b, tokens * n), tokens, n);
        op_fused_router(&b->gpu, &routes, out, gpu_x, gpu_norm, &router, true);

        float *normed = floats(b, tokens * n), *got = from_gpu(b, out);
        op_rms_norm(&b->cpu, tensor_2d(normed, DTYPE_F32, tokens, n),
                    tensor_2d((void *)(uintptr_t)x, DTYPE_F32, tokens, n), cpu_norm);
        assert_close(got, normed, tokens * n, rounding(b), 1e-5, "fused_router's norm");
        float *logits = floats(b, (int64_t)tokens * experts);
        const struct weight cpu_router = {
            .form = WEIGHT_F32, .out_features = experts, .in_features = n, .data = rows};
        struct tensor cpu_logits = tensor_2d(logits, DTYPE_F32, tokens, experts);
        op_matmul(&b->cpu, cpu_logits, tensor_2d(got, DTYPE_F32, tokens, n), &cpu_router);
        op_route_experts(&b->cpu, &expected, cpu_logits, true);
        assert_memory_equal(words_from_gpu(b, routes.expert_start, experts + 1),
                            expected.expert_start, ((size_t)experts + 1) * 4);
        const int32_t *gpu_slots = words_from_gpu(b, routes.slots, slots);
        const int32_t *gpu_tokens = words_from_gpu(b, routes.tokens, slots);
        for (int32_t c = 0; c < slots; c++) { // an expert's slots are the same, in some order
            int32_t e = 0;
            while (expected.slots[c] >= expected.expert_start[e + 1])
                e++;
            assert_in_range(gpu_slots[c], expected.expert_start[e],
                            expected.expert_start[e + 1] - 1);
            assert_int_equal(gpu_tokens[gpu_slots[c]], c / run.top_k);
        }
        assert_close(from_gpu(b, tensor_2d(routes.weights, DTYPE_F32, 1, slots)), expected.weights,
                     slots, 1e-2, 1e-6, "fused_router's weights");
        release(b, (void *)(uintptr_t)gpu_norm.weight);
        release(b, gpu_rows.data);
        release(b, gpu_x.data);
        release(b, out.data);
        release_routes(b, &routes);
        arena_reset(&b->arena);
    }
}

// ---- Cache and attention -------------------------------------------------------------------

struct attention_case {
    int32_t num_heads, num_kv_heads, head_dim, rot_dim;
    int32_t window, block_size;
    bool has_norm, is_fp8;
    float softcap, norm_offset;
};

enum { NUM_SEQS = 5, MAX_LEN = 700 };
static const int32_t seq_lens[NUM_SEQS] = {37, 1, 150, 64, 651};

/** Both devices' caches and the arrays of one step. */
struct attention_run {
    const struct attention_case *shape;
    struct kv_cache gpu, cpu;
    int32_t max_blocks;
    float *cos_sin, *q_norm, *k_norm;
    void *gpu_cos_sin, *gpu_q_norm, *gpu_k_norm;
};

static void start_run(struct bench *b, struct attention_run *run, const struct attention_case *c)
{
    *run = (struct attention_run){.shape = c};
    run->max_blocks = (int32_t)ceil_div(MAX_LEN, c->block_size) + 1;
    run->cpu = (struct kv_cache){.dtype = c->is_fp8 ? DTYPE_F8_E4M3 : b->gpu.activation_dtype,
                                 .num_blocks = NUM_SEQS * run->max_blocks,
                                 .block_size = c->block_size,
                                 .num_kv_heads = c->num_kv_heads,
                                 .head_dim = c->head_dim,
                                 .k_scale = 0.02f,
                                 .v_scale = 0.5f};
    size_t bytes = (size_t)run->cpu.num_blocks * (size_t)c->block_size * (size_t)c->num_kv_heads *
                   (size_t)c->head_dim * dtype_size(run->cpu.dtype);
    run->cpu.k = arena_alloc(&b->arena, bytes);
    run->cpu.v = arena_alloc(&b->arena, bytes);
    memset(run->cpu.k, 0xFF, bytes); // NaN: a key that must not be read shows
    memset(run->cpu.v, 0xFF, bytes);
    run->gpu = run->cpu;
    run->gpu.k = to_gpu(b, run->cpu.k, bytes);
    run->gpu.v = to_gpu(b, run->cpu.v, bytes);
    run->cos_sin = randoms(b, (int64_t)MAX_LEN * c->rot_dim);
    run->gpu_cos_sin =
        to_gpu(b, run->cos_sin, (size_t)MAX_LEN * (size_t)c->rot_dim * sizeof(float) + 4);
    if (c->has_norm) {
        run->q_norm = randoms(b, c->head_dim);
        run->k_norm = randoms(b, c->head_dim);
        run->gpu_q_norm = rounded_to_gpu(b, run->q_norm, c->head_dim);
        run->gpu_k_norm = rounded_to_gpu(b, run->k_norm, c->head_dim);
    }
}

static void stop_run(struct bench *b, struct attention_run *run)
{
    release(b, run->gpu.k);
    release(b, run->gpu.v);
    release(b, run->gpu_cos_sin);
    release(b, run->gpu_q_norm);
    release(b, run->gpu_k_norm);
    arena_reset(&b->arena);
}

/** One step: the tokens [from[s], to[s]) of each sequence, and `num_padding` sequences of none. */
static void check_step(struct bench *b, struct attention_run *run, const int32_t *from,
                       const int32_t *to, int32_t num_padding)
{
    const struct attention_case *c = run->shape;
    enum { MAX_ROWS = NUM_SEQS * MAX_LEN };
    int32_t *positions = arena_array(&b->arena, int32_t, MAX_ROWS);
    int32_t *token_seq = arena_array(&b->arena, int32_t, MAX_ROWS);
    int64_t *slots = arena_array(&b->arena, int64_t, MAX_ROWS);
    int32_t query_start[NUM_SEQS + 4] = {0}, lens[NUM_SEQS + 4] = {0};
    int32_t *table =
        arena_calloc(&b->arena, (size_t)(NUM_SEQS + 4) * (size_t)run->max_blocks, sizeof(int32_t));
    struct attention_batch batch = {.max_blocks = run->max_blocks};
    int32_t num_real = 0;
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        if (from[s] >= to[s])
            continue;
        int32_t i = batch.num_seqs++;
        for (int32_t c2 = 0; c2 < run->max_blocks; c2++)
            table[i * run->max_blocks + c2] = (c2 * NUM_SEQS + s);
        // Blocks that slid out of the window are not there: far outside the pool.
        for (int32_t c2 = 0; c->window > 0 && (c2 + 1) * c->block_size <= from[s] + 1 - c->window;
             c2++)
            table[i * run->max_blocks + c2] = -(1 << 19);
        for (int32_t p = from[s]; p < to[s]; p++) {
            int32_t row = batch.num_tokens++;
            positions[row] = p;
            token_seq[row] = i;
            slots[row] = (int64_t)table[i * run->max_blocks + p / c->block_size] * c->block_size +
                         p % c->block_size;
        }
        lens[i] = to[s];
        query_start[i + 1] = batch.num_tokens;
        batch.max_seq_len = max_i32(batch.max_seq_len, to[s]);
        batch.max_query_len = max_i32(batch.max_query_len, to[s] - from[s]);
    }
    num_real = batch.num_tokens;
    for (int32_t i = 0; i < num_padding; i++) {
        int32_t row = batch.num_tokens++, seq = batch.num_seqs++;
        positions[row] = 0;
        token_seq[row] = seq;
        slots[row] = -1;
        query_start[seq + 1] = batch.num_tokens;
    }
    int64_t rows = batch.num_tokens;
    int64_t q_cols = (int64_t)c->num_heads * c->head_dim;
    int64_t cols = q_cols + 2 * (int64_t)c->num_kv_heads * c->head_dim;
    float *qkv = randoms(b, rows * cols);
    struct tensor gpu_qkv = matrix_to_gpu(b, qkv, rows, cols);
    struct tensor cpu_qkv = tensor_2d(qkv, DTYPE_F32, num_real, cols);
    struct tensor gpu_out = matrix_to_gpu(b, floats(b, rows * q_cols), rows, q_cols);
    float *expected = floats(b, rows * q_cols);

    struct qkv_params params = {.num_heads = c->num_heads,
                                .q_norm = run->q_norm,
                                .k_norm = run->k_norm,
                                .eps = eps,
                                .norm_weight_offset = c->norm_offset,
                                .cos_sin = run->cos_sin,
                                .rot_dim = c->rot_dim};
    struct attention_params attention = {.scale = 1.0f / sqrtf((float)c->head_dim),
                                         .window = c->window,
                                         .num_heads = c->num_heads,
                                         .softcap = c->softcap};
    op_prepare_qkv(&b->cpu, cpu_qkv, &run->cpu, &params, positions, slots);
    for (int64_t i = 0; i < num_real * cols; i++)
        qkv[i] = rounded(b, qkv[i]); // as the GPU keeps the queries
    struct attention_batch cpu_batch = batch;
    cpu_batch.num_tokens = num_real;
    cpu_batch.num_seqs -= num_padding;
    cpu_batch.query_start = query_start;
    cpu_batch.seq_lens = lens;
    cpu_batch.block_table = table;
    cpu_batch.token_seq = token_seq;
    cpu_batch.positions = positions;
    op_attention(&b->cpu, tensor_2d(expected, DTYPE_F32, num_real, q_cols),
                 tensor_columns(cpu_qkv, 0, q_cols), &run->cpu, &cpu_batch, &attention);

    int32_t *gpu_positions = to_gpu(b, positions, (size_t)rows * 4);
    int32_t *gpu_token_seq = to_gpu(b, token_seq, (size_t)rows * 4);
    int64_t *gpu_slots = to_gpu(b, slots, (size_t)rows * 8);
    int32_t *gpu_query_start = to_gpu(b, query_start, sizeof(query_start));
    int32_t *gpu_lens = to_gpu(b, lens, sizeof(lens));
    int32_t *gpu_table =
        to_gpu(b, table, (size_t)(NUM_SEQS + 4) * (size_t)run->max_blocks * sizeof(int32_t));
    batch.query_start = gpu_query_start;
    batch.seq_lens = gpu_lens;
    batch.block_table = gpu_table;
    batch.token_seq = gpu_token_seq;
    batch.positions = gpu_positions;
    params.q_norm = run->gpu_q_norm;
    params.k_norm = run->gpu_k_norm;
    params.cos_sin = run->gpu_cos_sin;
    op_prepare_qkv(&b->gpu, gpu_qkv, &run->gpu, &params, gpu_positions, gpu_slots);
    op_attention(&b->gpu, gpu_out, tensor_columns(gpu_qkv, 0, q_cols), &run->gpu, &batch,
                 &attention);
    const float *got_qkv = from_gpu(b, gpu_qkv);
    for (int64_t r = 0; r < num_real; r++) // twice the rounding: it may fall to either side
        assert_close(got_qkv + r * cols, qkv + r * cols, q_cols, 2 * rounding(b), rounding(b) / 2,
                     "queries");
    // A key that lies between two e4m3 numbers may fall to either side: an eighth of it.
    assert_close(from_gpu(b, gpu_out), expected, num_real * q_cols, 4 * rounding(b),
                 c->is_fp8 ? 0.15 : 6 * rounding(b), "attention");
    release(b, gpu_qkv.data);
    release(b, gpu_out.data);
    release(b, gpu_positions);
    release(b, gpu_token_seq);
    release(b, gpu_slots);
    release(b, gpu_query_start);
    release(b, gpu_lens);
    release(b, gpu_table);
}

static void attention_is_right_for_prompts_chunks_decoding_and_mixtures(void **state)
{
    struct bench *b = bench_of(state);
    static const struct attention_case cases[] = {
        {4, 2, 32, 32, 0, 16, true, false, 0, 0},
        {32, 8, 128, 128, 0, 16, true, false, 0, 0},
        {16, 8, 128, 128, 0, 16, true, false, 0, 0},
        {6, 2, 64, 64, 0, 16, false, false, 0, 0},
        {4, 1, 16, 16, 0, 16, true, false, 0, 0},
        {8, 2, 64, 64, 32, 16, false, false, 0, 0},
        {3, 3, 20, 10, 0, 8, false, false, 0, 0},
        {28, 4, 128, 128, 45, 32, false, false, 0, 0},
        {8, 1, 256, 256, 0, 16, true, false, 0, 0},
        {12, 12, 96, 96, 0, 16, false, false, 0, 0},
        {4, 2, 64, 32, 0, 16, true, false, 0, 0},
        {40, 8, 128, 128, 100, 16, false, false, 0, 0},
        {32, 8, 128, 128, 0, 16, true, true, 0, 0},
        {6, 2, 64, 64, 0, 16, false, true, 0, 0},
        {8, 1, 256, 256, 0, 16, true, true, 0, 0},
        {28, 4, 128, 128, 45, 32, false, true, 0, 0},
        {3, 3, 20, 10, 0, 8, false, true, 0, 0},
        {4, 2, 32, 32, 0, 16, true, true, 0, 0},
        {8, 4, 256, 256, 64, 16, false, false, 2, 0},
        {4, 2, 128, 128, 0, 16, true, false, 3, 1},
        {4, 1, 16, 16, 24, 16, true, false, 2, 1},
        {8, 4, 128, 128, 0, 16, true, true, 3, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct attention_run run;
        print_message("heads %d/%d of %d, window %d, block %d%s\n", cases[i].num_heads,
                      cases[i].num_kv_heads, cases[i].head_dim, cases[i].window,
                      cases[i].block_size, cases[i].is_fp8 ? ", e4m3" : "");
        start_run(b, &run, &cases[i]);
        int32_t from[NUM_SEQS] = {0}, to[NUM_SEQS];
        for (int s = 0; s < NUM_SEQS; s++) // whole prompts, the long one in part
            to[s] = min_i32(seq_lens[s], 320);
        check_step(b, &run, from, to, 0);
        for (int s = 0; s < NUM_SEQS; s++) // decoding beside a chunk
            from[s] = to[s], to[s] = s == 4 ? seq_lens[s] : to[s] + 1;
        check_step(b, &run, from, to, 0);
        for (int turn = 0; turn < 3; turn++) { // decoding alone, some of it padding
            for (int s = 0; s < NUM_SEQS; s++)
                from[s] = to[s], to[s]++;
            check_step(b, &run, from, to, turn);
        }
        for (int s = 0; s < NUM_SEQS; s++) // one sequence alone
            from[s] = to[s], to[s] += s == 4;
        check_step(b, &run, from, to, 0);
        stop_run(b, &run);
    }
}

// ---- Drawing and recording -----------------------------------------------------------------

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

static void a_recording_runs_over_what_memory_holds_then(void **state)
{
    struct bench *b = bench_of(state);
    struct device *dev = &b->gpu;
    enum { N = 64 };
    float *first = randoms(b, N), *second = randoms(b, N), *weight = randoms(b, N);
    void *gpu_weight = rounded_to_gpu(b, weight, N);
    const struct norm_params norm = {gpu_weight, eps, 0}, cpu_norm = {weight, eps, 0};
    struct tensor x = matrix_to_gpu(b, first, 1, N), out = matrix_to_gpu(b, first, 1, N);
    op_rms_norm(dev, out, x, norm);
    dev->ops.record_begin(dev);
    op_rms_norm(dev, out, x, norm);
    void *recording = dev->ops.record_end(dev);
    assert_non_null(recording);
    void *other = rounded_to_gpu(b, second, N);
    uint16_t bits[N];
    dev->ops.copy_out(dev, bits, other, sizeof(bits));
    dev->ops.copy_in(dev, x.data, bits, sizeof(bits));
    dev->ops.replay(dev, recording);
    float *expected = floats(b, N);
    op_rms_norm(&b->cpu, tensor_2d(expected, DTYPE_F32, 1, N), tensor_2d(second, DTYPE_F32, 1, N),
                cpu_norm);
    assert_close(from_gpu(b, out), expected, N, rounding(b), 1e-5, "replayed rms_norm");
    dev->ops.free_recording(dev, recording);
    release(b, gpu_weight);
    release(b, other);
    release(b, x.data);
    release(b, out.data);
}

static void a_device_that_is_not_there_is_refused_in_words(void **state)
{
    (void)state;
    if (cuda_is_available()) {
        print_message("this machine has a GPU\n");
        skip();
    }
    struct device dev;
    struct error err = {0};
    assert_int_equal(cuda_device_init(&dev, 1, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.message, "VLLM_TARGET_DEVICE=cpu"));
    device_deinit(&dev); // a device that never came to be
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_is_not_there_is_refused_in_words),
        cmocka_unit_test(copies_bring_back_what_they_took),
        cmocka_unit_test(rows_are_gathered_exactly),
        cmocka_unit_test(norms_and_activations_are_right),
        cmocka_unit_test(norms_behind_blocks_are_right),
        cmocka_unit_test(columns_are_normalised_in_place),
        cmocka_unit_test(sums_beyond_the_largest_number_become_it),
        cmocka_unit_test(logits_are_capped_softly),
        cmocka_unit_test(products_are_right_whatever_the_shape),
        cmocka_unit_test(experts_are_right_and_independent_of_other_tokens),
        cmocka_unit_test(few_tokens_are_routed_in_one_operation),
        cmocka_unit_test(fused_products_are_right),
        cmocka_unit_test(products_in_a_recording_give_the_same_bits_as_alone),
        cmocka_unit_test(attention_is_right_for_prompts_chunks_decoding_and_mixtures),
        cmocka_unit_test(greedy_draws_take_the_first_of_the_largest),
        cmocka_unit_test(a_recording_runs_over_what_memory_holds_then),
    };
    int num_failed = cmocka_run_group_tests_name("bfloat16", tests, start_bf16, stop_bench);
    return num_failed + cmocka_run_group_tests_name("float16", tests, start_f16, stop_bench);
}
