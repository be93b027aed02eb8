// Every entry of the operations table, for every instruction set of this machine: against the
// portable reference within a stated error, and against itself to the bit.
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"

static const float eps = 1e-6f;

/** What a check works with: the device under test with one thread and with several, and the
 *  reference. */
struct bench {
    struct device one, many, reference;
    uint64_t random;
    struct arena arena;
};

static double uniform(struct bench *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(b->random >> 40) / (1 << 24);
}

/** Roughly normal numbers. */
static void fill(struct bench *b, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(uniform(b) + uniform(b) + uniform(b) - 1.5) * 2;
}

static float *random_floats(struct bench *b, int64_t n)
{
    float *x = arena_array(&b->arena, float, n);
    fill(b, x, n);
    return x;
}

static float *floats(struct bench *b, int64_t n)
{
    float *x = arena_array(&b->arena, float, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = NAN; // what an operation forgets to write shows
    return x;
}

/** Random elements of a dtype that start `misalign` bytes behind the start of an allocation and end
 *  with it. */
static void *random_elements(struct bench *b, enum dtype dtype, int64_t n, int64_t misalign)
{
    size_t size = dtype_size(dtype);
    char *data = (char *)arena_alloc(&b->arena, (size_t)n * size + (size_t)misalign) + misalign;
    for (int64_t i = 0; i < n; i++) {
        float value;
        fill(b, &value, 1);
        uint16_t bits = dtype == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
        if (dtype == DTYPE_F8_E4M3)
            bits = f32_to_f8_e4m3(value); // the lower byte counts
        memcpy(data + (size_t)i * size, size == 4 ? (void *)&value : (void *)&bits, size);
    }
    return data;
}

static void assert_same_bits(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            fail_msg("%s: element %ld is %a, expected %a", what, (long)i, (double)a[i],
                     (double)b[i]);
    }
}

/** |a - b| <= tolerance * magnitude, the magnitude being at least that of b. */
static void assert_close(const float *a, const float *b, int64_t n, double tolerance,
                         double magnitude, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs((double)a[i] - b[i]) <= tolerance * fmax(magnitude, fabs((double)b[i]))))
            fail_msg("%s: element %ld is %.9g, expected %.9g", what, (long)i, (double)a[i],
                     (double)b[i]);
    }
}

// ---- Memory --------------------------------------------------------------------------------

static void check_memory(struct bench *b)
{
    struct device *dev = &b->one;
    static const size_t sizes[] = {0, 1, 63, 4096, 5 * 1024 * 1024 + 3};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        char *from = arena_alloc(&b->arena, sizes[i]), *to = arena_alloc(&b->arena, sizes[i]);
        for (size_t j = 0; j < sizes[i]; j++)
            from[j] = (char)(j * 7);
        void *memory = dev->ops.alloc(dev, sizes[i]);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        dev->ops.copy_in(dev, memory, from, sizes[i]);
        dev->ops.copy_out(dev, to, memory, sizes[i]);
        assert_memory_equal(from, to, sizes[i]);
        char *staging = dev->ops.alloc_staging(dev, sizes[i]);
        memcpy(staging, from, sizes[i]);
        memset(to, 0, sizes[i]);
        dev->ops.upload(dev, memory, staging, sizes[i]);
        struct error err = {0};
        assert_int_equal(dev->ops.synchronize(dev, &err), STATUS_OK);
        memset(staging, 0, sizes[i]);
        dev->ops.download(dev, staging, memory, sizes[i]);
        assert_int_equal(dev->ops.synchronize(dev, &err), STATUS_OK);
        assert_memory_equal(from, staging, sizes[i]);
        dev->ops.free_staging(dev, staging);
        dev->ops.free(dev, memory);
    }
    dev->ops.free(dev, NULL);
    struct error err = {0};
    assert_int_equal(dev->ops.synchronize(dev, &err), STATUS_OK);
}

// ---- Rows ----------------------------------------------------------------------------------

// The last one is enough work for several threads.
static const int64_t row_sizes[] = {1, 7, 8, 9, 31, 32, 33, 100, 1027, 40003};
enum { NUM_ROWS = 5 };

static void check_embedding(struct bench *b)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const int32_t ids[NUM_ROWS] = {0, 10, 3, 3, 7};
    for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
        for (size_t i = 0; i < ARRAY_LEN(row_sizes); i++) {
            float scale = i % 2 ? 1.0f : 33.75f;
            int64_t n = row_sizes[i];
            void *data = random_elements(b, dtypes[d], 11 * n, 2);
            struct tensor table = tensor_2d(data, dtypes[d], 11, n);
            float *expected = floats(b, NUM_ROWS * n), *out = floats(b, NUM_ROWS * n);
            op_embedding(&b->reference, tensor_2d(expected, DTYPE_F32, NUM_ROWS, n), table, ids,
                         scale);
            op_embedding(&b->many, tensor_2d(out, DTYPE_F32, NUM_ROWS, n), table, ids, scale);
            assert_same_bits(out, expected, NUM_ROWS * n, "embedding");
        }
    }
}

static void check_norms(struct bench *b)
{
    for (size_t i = 0; i < ARRAY_LEN(row_sizes); i++) {
        int64_t n = row_sizes[i], size = NUM_ROWS * n;
        float *x = random_floats(b, size), *weight = random_floats(b, n);
        float *expected = floats(b, size), *out = floats(b, size), *row = floats(b, n);
        struct tensor in = tensor_2d(x, DTYPE_F32, NUM_ROWS, n);
        const struct norm_params norm = {weight, eps, i % 2 ? 1.0f : 0.0f};
        op_rms_norm(&b->reference, tensor_2d(expected, DTYPE_F32, NUM_ROWS, n), in, norm);
        op_rms_norm(&b->many, tensor_2d(out, DTYPE_F32, NUM_ROWS, n), in, norm);
        assert_close(out, expected, size, 1e-6, 0.1, "rms_norm");
        for (int64_t r = 0; r < NUM_ROWS; r++) {
            op_rms_norm(&b->one, tensor_2d(row, DTYPE_F32, 1, n), tensor_rows(in, r, 1), norm);
            assert_same_bits(row, out + r * n, n, "rms_norm alone");
        }

        // add_rms_norm is an addition, then the same norm.
        float *residual = random_floats(b, size), *sum = floats(b, size);
        for (int64_t j = 0; j < size; j++)
            sum[j] = residual[j] + x[j];
        op_rms_norm(&b->one, tensor_2d(out, DTYPE_F32, NUM_ROWS, n),
                    tensor_2d(sum, DTYPE_F32, NUM_ROWS, n), norm);
        op_add_rms_norm(&b->many, in, tensor_2d(residual, DTYPE_F32, NUM_ROWS, n), norm);
        assert_same_bits(residual, sum, size, "add_rms_norm residual");
        assert_same_bits(x, out, size, "add_rms_norm");
    }
}

/** add_post_norm is a norm, an addition and, where it is asked for, another norm. */
static void check_post_norm(struct bench *b)
{
    for (size_t i = 0; i < ARRAY_LEN(row_sizes); i++) {
        int64_t n = row_sizes[i], size = NUM_ROWS * n;
        float *x = random_floats(b, size), *residual = random_floats(b, size);
        const struct norm_params post = {random_floats(b, n), eps, 1.0f};
        const struct norm_params pre = {random_floats(b, n), eps, 0.0f}, none = {0};
        float *normed = floats(b, size), *sum = floats(b, size), *out = floats(b, size);
        op_rms_norm(&b->one, tensor_2d(normed, DTYPE_F32, NUM_ROWS, n),
                    tensor_2d(x, DTYPE_F32, NUM_ROWS, n), post);
        for (int64_t j = 0; j < size; j++)
            sum[j] = residual[j] + normed[j];
        op_rms_norm(&b->one, tensor_2d(out, DTYPE_F32, NUM_ROWS, n),
                    tensor_2d(sum, DTYPE_F32, NUM_ROWS, n), pre);
        float *again = arena_array(&b->arena, float, size),
              *x2 = arena_array(&b->arena, float, size);
        memcpy(again, residual, (size_t)size * sizeof(float));
        memcpy(x2, x, (size_t)size * sizeof(float));
        op_add_post_norm(&b->many, tensor_2d(x, DTYPE_F32, NUM_ROWS, n),
                         tensor_2d(residual, DTYPE_F32, NUM_ROWS, n), post, pre);
        assert_same_bits(residual, sum, size, "add_post_norm residual");
        assert_same_bits(x, out, size, "add_post_norm");
        op_add_post_norm(&b->many, tensor_2d(x2, DTYPE_F32, NUM_ROWS, n),
                         tensor_2d(again, DTYPE_F32, NUM_ROWS, n), post, none);
        assert_same_bits(again, sum, size, "add_post_norm without a second norm");
    }
}

/** Columns of a wider matrix, in place; what stands beside them stays. */
static void check_strided_norm(struct bench *b)
{
    enum { COLS = 37, GAP = 6, STRIDE = COLS + 2 * GAP };
    float *x = random_floats(b, NUM_ROWS * STRIDE), *before = floats(b, NUM_ROWS * STRIDE);
    float *dense = floats(b, NUM_ROWS * COLS);
    const struct norm_params norm = {random_floats(b, COLS), eps, 0.0f};
    memcpy(before, x, NUM_ROWS * STRIDE * sizeof(float));
    for (int64_t r = 0; r < NUM_ROWS; r++)
        memcpy(dense + r * COLS, x + r * STRIDE + GAP, COLS * sizeof(float));
    struct tensor columns = tensor_columns(tensor_2d(x, DTYPE_F32, NUM_ROWS, STRIDE), GAP, COLS);
    op_rms_norm(&b->many, columns, columns, norm);
    struct tensor rows = tensor_2d(dense, DTYPE_F32, NUM_ROWS, COLS);
    op_rms_norm(&b->one, rows, rows, norm);
    for (int64_t r = 0; r < NUM_ROWS; r++) {
        assert_same_bits(x + r * STRIDE + GAP, dense + r * COLS, COLS, "rms_norm of columns");
        assert_same_bits(x + r * STRIDE, before + r * STRIDE, GAP, "before the columns");
        assert_same_bits(x + r * STRIDE + GAP + COLS, before + r * STRIDE + GAP + COLS, GAP,
                         "behind the columns");
    }
}

/** Sizes of what prepare_qkv() works on. */
struct qkv_case {
    int32_t num_heads, num_kv_heads, head_dim, rot_dim;
    bool has_norm;
    enum dtype dtype; // of the cache
    float norm_weight_offset;
};

/** The cache filled with NaN: a key that must not be read shows. */
static struct kv_cache make_cache(struct bench *b, int32_t num_kv_heads, int32_t head_dim,
                                  enum dtype dtype, int32_t block_size, int32_t num_blocks)
{
    struct kv_cache cache = {.dtype = dtype,
                             .num_blocks = num_blocks,
                             .block_size = block_size,
                             .num_kv_heads = num_kv_heads,
                             .head_dim = head_dim,
                             .k_scale = 0.37f,
                             .v_scale = 1.5f};
    size_t bytes = (size_t)num_blocks * (size_t)block_size * (size_t)num_kv_heads *
                   (size_t)head_dim * dtype_size(dtype);
    cache.k = arena_alloc(&b->arena, bytes);
    cache.v = arena_alloc(&b->arena, bytes);
    memset(cache.k, 0xFF, bytes);
    memset(cache.v, 0xFF, bytes);
    return cache;
}

static float cache_element(enum dtype dtype, float scale, const void *data, int64_t i)
{
    if (dtype == DTYPE_F32)
        return ((const float *)data)[i];
    if (dtype == DTYPE_F8_E4M3)
        return f8_e4m3_to_f32(((const uint8_t *)data)[i]) * scale;
    uint16_t bits = ((const uint16_t *)data)[i];
    return dtype == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static float rounded_to(enum dtype dtype, float scale, float value)
{
    if (dtype == DTYPE_F32)
        return value;
    if (dtype == DTYPE_F8_E4M3)
        return f8_e4m3_to_f32(f32_to_f8_e4m3(value / scale)) * scale;
    return dtype == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(value)) : f16_to_f32(f32_to_f16(value));
}

/** A head in double precision: normalised, then rotated. */
static void expect_head(double *out, const float *x, const struct qkv_case *c, const float *norm,
                        const float *cos_sin)
{
    double sum = 0;
    for (int32_t i = 0; i < c->head_dim; i++)
        sum += (double)x[i] * x[i];
    double scale = 1 / sqrt(sum / c->head_dim + (double)eps);
    for (int32_t i = 0; i < c->head_dim; i++)
        out[i] = norm ? x[i] * scale * (c->norm_weight_offset + norm[i]) : x[i];
    int32_t half = c->rot_dim / 2;
    for (int32_t i = 0; i < half; i++) {
        double first = out[i], second = out[half + i];
        out[i] = first * cos_sin[i] - second * cos_sin[half + i];
        out[half + i] = second * cos_sin[i] + first * cos_sin[half + i];
    }
}

enum { QKV_GAP = 5, QKV_BLOCK = 4, QKV_BLOCKS = 3, QKV_POSITIONS = 10 };

static void check_qkv_case(struct bench *b, const struct qkv_case *c)
{
    static const int32_t positions[NUM_ROWS] = {0, 5, 2, 2, 9};
    static const int64_t slots[NUM_ROWS] = {9, -1, 2, 11, 0};
    int32_t dim = c->head_dim, kv_heads = c->num_kv_heads, heads = c->num_heads;
    int64_t cols = (heads + 2 * (int64_t)kv_heads) * dim, stride = cols + QKV_GAP;
    float *x = random_floats(b, NUM_ROWS * stride), *before = floats(b, NUM_ROWS * stride);
    float *alone = floats(b, NUM_ROWS * stride);
    memcpy(before, x, (size_t)(NUM_ROWS * stride) * sizeof(float));
    memcpy(alone, x, (size_t)(NUM_ROWS * stride) * sizeof(float));
    const struct qkv_params params = {
        .num_heads = heads,
        .q_norm = c->has_norm ? random_floats(b, dim) : NULL,
        .k_norm = c->has_norm ? random_floats(b, dim) : NULL,
        .eps = eps,
        .norm_weight_offset = c->norm_weight_offset,
        .cos_sin = random_floats(b, QKV_POSITIONS * (int64_t)c->rot_dim + 1),
        .rot_dim = c->rot_dim,
    };
    struct kv_cache cache = make_cache(b, kv_heads, dim, c->dtype, QKV_BLOCK, QKV_BLOCKS);
    struct kv_cache other = make_cache(b, kv_heads, dim, c->dtype, QKV_BLOCK, QKV_BLOCKS);
    struct tensor qkv = tensor_2d(x, DTYPE_F32, NUM_ROWS, cols);
    struct tensor qkv_alone = tensor_2d(alone, DTYPE_F32, NUM_ROWS, cols);
    qkv.row_stride = qkv_alone.row_stride = stride;
    op_prepare_qkv(&b->many, qkv, &cache, &params, positions, slots);
    for (int64_t r = 0; r < NUM_ROWS; r++)
        op_prepare_qkv(&b->one, tensor_rows(qkv_alone, r, 1), &other, &params, positions + r,
                       slots + r);

    double *expected = arena_array(&b->arena, double, dim);
    double tolerance = c->dtype == DTYPE_F32    ? 2e-6
                       : c->dtype == DTYPE_F16  ? 1e-3
                       : c->dtype == DTYPE_BF16 ? 8e-3
                                                : 1.0 / 16;
    size_t num_written = 0;
    for (int64_t r = 0; r < NUM_ROWS; r++) {
        const float *row = before + r * stride;
        const float *cos_sin = params.cos_sin + positions[r] * (int64_t)c->rot_dim;
        assert_same_bits(x + r * stride, alone + r * stride, (int64_t)heads * dim, "queries alone");
        assert_same_bits(x + r * stride + cols, row + cols, QKV_GAP, "between rows");
        for (int32_t h = 0; h < heads; h++) {
            expect_head(expected, row + (int64_t)h * dim, c, params.q_norm, cos_sin);
            for (int32_t i = 0; i < dim; i++) {
                if (!(fabs(x[r * stride + (int64_t)h * dim + i] - expected[i]) <=
                      2e-6 * fmax(1, fabs(expected[i]))))
                    fail_msg("query %d of row %d", h, (int)r);
            }
        }
        for (int32_t h = 0; h < kv_heads && slots[r] >= 0; h++) {
            const float *k = row + (int64_t)(heads + h) * dim, *v = k + (int64_t)kv_heads * dim;
            int64_t at =
                ((slots[r] / QKV_BLOCK * kv_heads + h) * QKV_BLOCK + slots[r] % QKV_BLOCK) * dim;
            expect_head(expected, k, c, params.k_norm, cos_sin);
            for (int32_t i = 0; i < dim; i++) {
                assert_true(fabs(cache_element(c->dtype, cache.k_scale, cache.k, at + i) -
                                 expected[i]) <= tolerance * fmax(1, fabs(expected[i])));
                assert_true(cache_element(c->dtype, cache.v_scale, cache.v, at + i) ==
                            rounded_to(c->dtype, cache.v_scale, v[i]));
            }
        }
    }
    int64_t size = (int64_t)QKV_BLOCKS * kv_heads * QKV_BLOCK * dim;
    assert_memory_equal(cache.k, other.k, (size_t)size * dtype_size(c->dtype));
    assert_memory_equal(cache.v, other.v, (size_t)size * dtype_size(c->dtype));
    for (int64_t i = 0; i < size; i++)
        num_written += !isnan(cache_element(c->dtype, cache.v_scale, cache.v, i));
    assert_int_equal(num_written, 4 * kv_heads * dim); // a negative slot writes nothing
}

static void check_prepare_qkv(struct bench *b)
{
    static const struct qkv_case cases[] = {
        {3, 3, 4, 4, true, DTYPE_F32, 0},       {3, 1, 20, 10, true, DTYPE_BF16, 0},
        {2, 1, 96, 32, false, DTYPE_F16, 0},    {300, 100, 128, 128, true, DTYPE_BF16, 0},
        {4, 2, 11, 0, false, DTYPE_BF16, 0},    {2, 2, 8, 8, false, DTYPE_F32, 0},
        {4, 2, 33, 22, true, DTYPE_F8_E4M3, 0}, {4, 2, 21, 8, true, DTYPE_F32, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_qkv_case(b, &cases[i]);
}

typedef void act_and_mul(struct device *dev, struct tensor out, struct tensor gate_up);

static void check_act_and_mul(struct bench *b, act_and_mul *op, const char *what)
{
    for (size_t i = 0; i < ARRAY_LEN(row_sizes); i++) {
        int64_t n = row_sizes[i], size = NUM_ROWS * n;
        float *in = random_floats(b, 2 * size);
        for (int64_t j = 0; j < 2 * size; j++)
            in[j] *= j % 5 == 0 ? 60.0f : 1.0f; // far into both tails
        float *expected = floats(b, size), *out = floats(b, size), *row = floats(b, n);
        struct tensor gate_up = tensor_2d(in, DTYPE_F32, NUM_ROWS, 2 * n);
        op(&b->reference, tensor_2d(expected, DTYPE_F32, NUM_ROWS, n), gate_up);
        op(&b->many, tensor_2d(out, DTYPE_F32, NUM_ROWS, n), gate_up);
        // The reference's double precision rounds the far negative tail of gelu away.
        assert_close(out, expected, size, 1e-6, op == op_gelu_and_mul ? 1.0 : 1e-36, what);
        for (int64_t r = 0; r < NUM_ROWS; r++) {
            op(&b->one, tensor_2d(row, DTYPE_F32, 1, n), tensor_rows(gate_up, r, 1));
            assert_same_bits(row, out + r * n, n, what);
        }
    }
}

static void check_activations(struct bench *b)
{
    check_act_and_mul(b, op_silu_and_mul, "silu_and_mul");
    check_act_and_mul(b, op_gelu_and_mul, "gelu_and_mul");
}

static void check_soft_cap(struct bench *b)
{
    for (size_t i = 0; i < ARRAY_LEN(row_sizes); i++) {
        int64_t n = row_sizes[i], size = NUM_ROWS * n;
        float *x = random_floats(b, size), *expected = floats(b, size), *row = floats(b, n);
        for (int64_t j = 0; j < size; j++)
            expected[j] = x[j] *= j % 3 == 0 ? 40.0f : j % 3 == 1 ? 1.0f : 0.01f;
        memcpy(row, x + n, (size_t)n * sizeof(float));
        op_soft_cap(&b->reference, tensor_2d(expected, DTYPE_F32, NUM_ROWS, n), 30);
        op_soft_cap(&b->many, tensor_2d(x, DTYPE_F32, NUM_ROWS, n), 30);
        op_soft_cap(&b->one, tensor_2d(row, DTYPE_F32, 1, n), 30);
        assert_close(x, expected, size, 5e-7, 1e-6, "soft_cap");
        assert_same_bits(row, x + n, n, "soft_cap alone");
    }
}

static void check_gather_rows(struct bench *b)
{
    static const int32_t rows[] = {4, 0, 4};
    enum { COLS = 13 };
    float *x = random_floats(b, NUM_ROWS * COLS), *out = floats(b, 3 * COLS);
    op_gather_rows(&b->many, tensor_2d(out, DTYPE_F32, 3, COLS),
                   tensor_2d(x, DTYPE_F32, NUM_ROWS, COLS), rows);
    for (int i = 0; i < 3; i++)
        assert_same_bits(out + i * COLS, x + rows[i] * COLS, COLS, "gather_rows");
}

// ---- Matrix multiplication -----------------------------------------------------------------

/** Of rows or of blocks, by turns. */
static struct weight_scales random_scales(struct bench *b, const struct weight *w)
{
    static int turn;
    int64_t block_cols = ceil_div(w->in_features, WEIGHT_BLOCK);
    int64_t count = w->out_features;
    struct weight_scales scales = {0};
    if (turn++ % 2 == 0) {
        scales.block_pitch = (int32_t)block_cols;
        count = ceil_div(count, WEIGHT_BLOCK) * block_cols;
    }
    float *values = random_floats(b, count);
    for (int64_t i = 0; i < count; i++)
        values[i] = 0.25f + fabsf(values[i]) / 2;
    scales.values = values;
    return scales;
}

static void check_matmul_shape(struct bench *b, enum weight_form form, int64_t rows, int64_t k,
                               int64_t n, bool has_bias)
{
    static const enum dtype dtypes[] = {[WEIGHT_F32] = DTYPE_F32,
                                        [WEIGHT_F16] = DTYPE_F16,
                                        [WEIGHT_BF16] = DTYPE_BF16,
                                        [WEIGHT_F8_E4M3] = DTYPE_F8_E4M3};
    struct weight w = {
        .form = form,
        .out_features = n,
        .in_features = k,
        .data = random_elements(b, dtypes[form], n * k, 2),
        .bias = has_bias ? random_floats(b, n) : NULL,
    };
    if (form == WEIGHT_F8_E4M3)
        w.scales = random_scales(b, &w);
    struct error err;
    assert_int_equal(b->one.ops.prepared_weight_bytes(&b->one, &w), 0);
    assert_int_equal(b->one.ops.prepare_weight(&b->one, &w, &err), STATUS_OK);
    struct tensor x = tensor_2d(random_floats(b, rows * k), DTYPE_F32, rows, k);
    float *expected = floats(b, rows * n), *out = floats(b, rows * n);
    float *single = floats(b, rows * n);
    op_matmul(&b->reference, tensor_2d(expected, DTYPE_F32, rows, n), x, &w);
    op_matmul(&b->many, tensor_2d(out, DTYPE_F32, rows, n), x, &w);
    op_matmul(&b->one, tensor_2d(single, DTYPE_F32, rows, n), x, &w);
    // Products are of size 1; errors of a chain of k / 8 of them grow no faster than this.
    assert_close(out, expected, rows * n, 1e-7 * (4 + sqrt((double)k)), sqrt((double)k), "matmul");
    assert_same_bits(single, out, rows * n, "matmul on one thread");
    float *wide = floats(b, rows * (n + 3)); // the columns of a wider matrix
    struct tensor columns = tensor_columns(tensor_2d(wide, DTYPE_F32, rows, n + 3), 2, n);
    op_matmul(&b->many, columns, x, &w);
    for (int64_t r = 0; r < rows; r++) {
        assert_same_bits(wide + r * (n + 3) + 2, out + r * n, n, "matmul into columns");
        assert_true(isnan(wide[r * (n + 3) + 1]) && isnan(wide[r * (n + 3) + n + 2]));
    }
    static const int64_t part_sizes[] = {1, 2, 3, 4, 5, 97};
    for (size_t i = 0; i < ARRAY_LEN(part_sizes); i++) {
        for (int64_t r = 0; r < rows; r += part_sizes[i]) {
            int64_t part = min_i64(part_sizes[i], rows - r);
            op_matmul(&b->one, tensor_2d(single, DTYPE_F32, part, n), tensor_rows(x, r, part), &w);
            assert_same_bits(single, out + r * n, part * n, "matmul of some rows");
        }
    }
}

/** Infinite weights of one product must not show in the next, whose rows end within a vector. */
static void check_matmul_forgets(struct bench *b)
{
    enum { ROWS = 20, COLS = 8, K = 1024 };
    float *infinite = arena_array(&b->arena, float, COLS *K);
    for (int i = 0; i < COLS * K; i++)
        infinite[i] = INFINITY;
    struct weight w = {
        .form = WEIGHT_F32, .out_features = COLS, .in_features = K, .data = infinite};
    float *out = floats(b, ROWS * COLS);
    op_matmul(&b->one, tensor_2d(out, DTYPE_F32, ROWS, COLS),
              tensor_2d(random_floats(b, ROWS * K), DTYPE_F32, ROWS, K), &w);
    check_matmul_shape(b, WEIGHT_F32, ROWS, 13, COLS, false);
}

static void check_matmul(struct bench *b)
{
    static const int64_t ks[] = {1, 7, 8, 9, 65, 512, 515, 1030};
    static const int64_t ns[] = {1, 3, 4, 5, 9, 34};
    static const int64_t rows[] = {1, 3, 4, 7, 20};
    static const enum weight_form forms[] = {WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16, WEIGHT_F8_E4M3};
    check_matmul_forgets(b);
    for (size_t f = 0; f < ARRAY_LEN(forms); f++) {
        for (size_t i = 0; i < ARRAY_LEN(ks); i++) {
            for (size_t j = 0; j < ARRAY_LEN(ns); j++) {
                int64_t m = rows[(i * ARRAY_LEN(ns) + j) % ARRAY_LEN(rows)];
                check_matmul_shape(b, forms[f], m, ks[i], ns[j], (i + j) % 2);
                arena_reset(&b->arena);
            }
        }
        check_matmul_shape(b, forms[f], 200, 130, 17, true); // several blocks of rows
        check_matmul_shape(b, forms[f], 2, 64, 1500, false); // several threads
        arena_reset(&b->arena);
    }
}

static void check_fused_matmul_case(struct bench *b, int64_t rows, int64_t k, int64_t n,
                                    const struct matmul_fusion *fusion)
{
    struct weight w = {.form = WEIGHT_BF16,
                       .out_features = n,
                       .in_features = k,
                       .data = random_elements(b, DTYPE_BF16, n * k, 2),
                       .bias = random_floats(b, n)};
    int64_t cols = fusion->is_swiglu ? n / 2 : n;
    float *x = random_floats(b, rows * k), *out = random_floats(b, rows * cols);
    float *expected = floats(b, rows * cols), *product = floats(b, rows * n);
    float *normed = floats(b, rows * k), *before = floats(b, rows * cols);
    memcpy(before, out, (size_t)(rows * cols) * sizeof(float));
    struct tensor in = tensor_2d(x, DTYPE_F32, rows, k);
    if (fusion->norm.weight) {
        op_rms_norm(&b->one, tensor_2d(normed, DTYPE_F32, rows, k), in, fusion->norm);
        in.data = normed;
    }
    op_matmul(&b->one, tensor_2d(product, DTYPE_F32, rows, n), in, &w);
    if (fusion->is_swiglu)
        op_silu_and_mul(&b->one, tensor_2d(expected, DTYPE_F32, rows, cols),
                        tensor_2d(product, DTYPE_F32, rows, n));
    else
        memcpy(expected, product, (size_t)(rows * n) * sizeof(float));
    for (int64_t i = 0; fusion->adds && i < rows * cols; i++)
        expected[i] += before[i];
    assert_true(op_fuses_matmul(&b->many, rows, &w, fusion));
    op_fused_matmul(&b->many, tensor_2d(out, DTYPE_F32, rows, cols),
                    tensor_2d(x, DTYPE_F32, rows, k), &w, fusion);
    assert_same_bits(out, expected, rows * cols, "fused_matmul");
}

/** A fused product gives the bits of its parts. */
static void check_fused_matmul(struct bench *b)
{
    static const int64_t rows[] = {1, 2, 5, 16};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int flags = 0; flags < 8; flags++) {
            const struct matmul_fusion fusion = {
                .norm = {flags & 1 ? random_floats(b, 65) : NULL, eps, 0.5f},
                .is_swiglu = flags & 2,
                .adds = flags & 4,
            };
            if (flags & 1 && rows[i] > 8)
                continue;
            check_fused_matmul_case(b, rows[i], 65, 34, &fusion);
            arena_reset(&b->arena);
        }
    }
    const struct weight w = {.form = WEIGHT_F32, .out_features = 8, .in_features = 8};
    const struct matmul_fusion plain = {0}, normed = {.norm = {random_floats(b, 8), eps, 0}};
    assert_false(op_fuses_matmul(&b->one, 17, &w, &plain));
    assert_false(op_fuses_matmul(&b->one, 9, &w, &normed));
}

// ---- Mixtures of experts -------------------------------------------------------------------

static struct expert_routes make_routes(struct bench *b, int32_t num_tokens, int32_t top_k,
                                        int32_t num_experts)
{
    int64_t slots = (int64_t)num_tokens * top_k;
    return (struct expert_routes){
        .num_tokens = num_tokens,
        .top_k = top_k,
        .num_experts = num_experts,
        .weights = floats(b, slots),
        .slots = arena_array(&b->arena, int32_t, slots + 1),
        .tokens = arena_array(&b->arena, int32_t, slots + 1),
        .expert_start = arena_array(&b->arena, int32_t, num_experts + 1),
        .tiles = arena_array(&b->arena, int32_t, expert_tile_words(slots, num_experts)),
    };
}

static int32_t expert_of(const struct expert_routes *routes, int32_t slot)
{
    int32_t e = 0;
    while (slot >= routes->expert_start[e + 1])
        e++;
    return e;
}

/** Each token's choices are its largest logits, and every slot belongs to one choice. */
static void expect_routes(struct bench *b, const struct expert_routes *routes, const float *logits,
                          bool renormalises)
{
    int32_t num_slots = routes->num_tokens * routes->top_k, num_experts = routes->num_experts;
    bool *is_taken = arena_calloc(&b->arena, (size_t)num_slots + 1, sizeof(bool));
    assert_int_equal(routes->expert_start[0], 0);
    assert_int_equal(routes->expert_start[num_experts], num_slots);
    for (int32_t t = 0; t < routes->num_tokens; t++) {
        const float *row = logits + (int64_t)t * num_experts;
        bool *is_chosen = arena_calloc(&b->arena, (size_t)num_experts, sizeof(bool));
        double all = 0, chosen = 0;
        for (int32_t e = 0; e < num_experts; e++)
            all += exp(row[e]);
        for (int32_t k = 0; k < routes->top_k; k++) {
            int32_t best = -1;
            for (int32_t e = 0; e < num_experts; e++) {
                if (!is_chosen[e] && (best < 0 || row[e] > row[best]))
                    best = e;
            }
            is_chosen[best] = true;
            chosen += exp(row[best]);
            int32_t slot = routes->slots[t * routes->top_k + k];
            assert_in_range(slot, 0, num_slots - 1);
            assert_false(is_taken[slot]);
            is_taken[slot] = true;
            assert_int_equal(routes->tokens[slot], t);
            assert_int_equal(expert_of(routes, slot), best);
        }
        double total = renormalises ? chosen : all;
        for (int32_t k = 0; k < routes->top_k; k++) {
            int32_t choice = t * routes->top_k + k, e = expert_of(routes, routes->slots[choice]);
            assert_true(fabs(routes->weights[choice] - exp(row[e]) / total) < 1e-6);
        }
    }
}

static void check_experts_shape(struct bench *b, int32_t num_tokens, int32_t top_k,
                                int32_t num_experts, int64_t k, int64_t n, enum dtype dtype)
{
    int32_t num_slots = num_tokens * top_k;
    float *logits = random_floats(b, (int64_t)num_tokens * num_experts);
    float *x = random_floats(b, num_tokens * k);
    struct expert_routes routes = make_routes(b, num_tokens, top_k, num_experts);
    bool renormalises = num_tokens % 2;
    op_route_experts(&b->many, &routes, tensor_2d(logits, DTYPE_F32, num_tokens, num_experts),
                     renormalises);
    expect_routes(b, &routes, logits, renormalises);

    struct expert_weights w = {.form = dtype == DTYPE_F32 ? WEIGHT_F32 : WEIGHT_BF16,
                               .num_experts = num_experts,
                               .out_features = n,
                               .in_features = k};
    const void **data = arena_array(&b->arena, const void *, num_experts);
    for (int32_t e = 0; e < num_experts; e++)
        data[e] = random_elements(b, dtype, n * k, 2);
    w.data = data;
    float *out = floats(b, num_slots * n), *sorted = floats(b, num_slots * k);
    float *again = floats(b, num_slots * n), *row = floats(b, n), *sum = floats(b, num_tokens * n);
    struct tensor x_rows = tensor_2d(x, DTYPE_F32, num_tokens, k);
    op_matmul_experts(&b->many, tensor_2d(out, DTYPE_F32, num_slots, n), x_rows, &w, &routes,
                      (struct expert_product){.is_by_token = true});
    for (int32_t slot = 0; slot < num_slots; slot++) {
        memcpy(sorted + slot * k, x + routes.tokens[slot] * k, (size_t)k * sizeof(float));
        struct weight expert = {.form = w.form,
                                .out_features = n,
                                .in_features = k,
                                .data = data[expert_of(&routes, slot)]};
        op_matmul(&b->one, tensor_2d(row, DTYPE_F32, 1, n),
                  tensor_rows(x_rows, routes.tokens[slot], 1), &expert);
        assert_same_bits(out + slot * n, row, n, "matmul_experts alone");
    }
    op_matmul_experts(&b->one, tensor_2d(again, DTYPE_F32, num_slots, n),
                      tensor_2d(sorted, DTYPE_F32, num_slots, k), &w, &routes,
                      (struct expert_product){0});
    assert_same_bits(again, out, num_slots * n, "matmul_experts of slots");

    op_combine_experts(&b->many, tensor_2d(sum, DTYPE_F32, num_tokens, n),
                       tensor_2d(out, DTYPE_F32, num_slots, n), &routes, false);
    for (int32_t t = 0; t < num_tokens; t++) {
        for (int64_t i = 0; i < n; i++) {
            double expected = 0, size = 1;
            for (int32_t c = t * top_k; c < (t + 1) * top_k; c++) {
                double term = (double)routes.weights[c] * out[routes.slots[c] * n + i];
                expected += term;
                size += fabs(term);
            }
            assert_true(fabs(sum[t * n + i] - expected) <= 1e-6 * size);
        }
    }
    arena_reset(&b->arena);
}

/** Fused operations of experts give the bits of their parts. */
static void check_fused_experts(struct bench *b)
{
    enum { TOKENS = 13, TOP_K = 3, EXPERTS = 9, K = 40, INNER = 22, SLOTS = TOKENS * TOP_K };
    const struct norm_params norm = {random_floats(b, K), 1e-6f, 0};
    struct tensor x = tensor_2d(random_floats(b, TOKENS * K), DTYPE_F32, TOKENS, K);
    const struct weight router = {.form = WEIGHT_F32,
                                  .out_features = EXPERTS,
                                  .in_features = K,
                                  .data = random_floats(b, EXPERTS * K)};
    struct tensor normed = tensor_2d(floats(b, TOKENS * K), DTYPE_F32, TOKENS, K);
    struct tensor logits = tensor_2d(floats(b, TOKENS * EXPERTS), DTYPE_F32, TOKENS, EXPERTS);
    struct expert_routes routes = make_routes(b, TOKENS, TOP_K, EXPERTS);
    op_rms_norm(&b->one, normed, x, norm);
    op_matmul(&b->one, logits, normed, &router);
    op_route_experts(&b->one, &routes, logits, true);
    struct tensor fused = tensor_2d(floats(b, TOKENS * K), DTYPE_F32, TOKENS, K);
    struct expert_routes fused_routes = make_routes(b, TOKENS, TOP_K, EXPERTS);
    assert_true(op_fuses_router(&b->many, TOKENS, &router));
    assert_false(op_fuses_router(&b->many, 17, &router));
    op_fused_router(&b->many, &fused_routes, fused, x, norm, &router, true);
    assert_same_bits(fused.data, normed.data, TOKENS * K, "fused_router's norm");
    assert_same_bits(fused_routes.weights, routes.weights, SLOTS, "fused_router's weights");
    assert_memory_equal(fused_routes.slots, routes.slots, SLOTS * sizeof(int32_t));

    const void *data[EXPERTS];
    for (int32_t e = 0; e < EXPERTS; e++)
        data[e] = random_floats(b, 2 * INNER * K);
    const struct expert_weights w = {.form = WEIGHT_F32,
                                     .num_experts = EXPERTS,
                                     .out_features = 2 * INNER,
                                     .in_features = K,
                                     .data = data};
    struct expert_product product = {.is_by_token = true};
    struct tensor gate_up = tensor_2d(floats(b, SLOTS * 2 * INNER), DTYPE_F32, SLOTS, 2 * INNER);
    struct tensor parts = tensor_2d(floats(b, SLOTS * INNER), DTYPE_F32, SLOTS, INNER);
    struct tensor whole = tensor_2d(floats(b, SLOTS * INNER), DTYPE_F32, SLOTS, INNER);
    op_matmul_experts(&b->one, gate_up, normed, &w, &routes, product);
    op_silu_and_mul(&b->one, parts, gate_up);
    product.is_swiglu = true;
    op_matmul_experts(&b->many, whole, normed, &w, &routes, product);
    assert_same_bits(whole.data, parts.data, SLOTS * INNER, "matmul_experts with SwiGLU");

    struct tensor sum = tensor_2d(floats(b, TOKENS * INNER), DTYPE_F32, TOKENS, INNER);
    float *total = random_floats(b, TOKENS * INNER), *expected = floats(b, TOKENS * INNER);
    op_combine_experts(&b->one, sum, parts, &routes, false);
    for (int32_t i = 0; i < TOKENS * INNER; i++)
        expected[i] = total[i] + ((const float *)sum.data)[i];
    op_combine_experts(&b->many, tensor_2d(total, DTYPE_F32, TOKENS, INNER), parts, &routes, true);
    assert_same_bits(total, expected, TOKENS * INNER, "combine_experts on top");
    arena_reset(&b->arena);
}

static void check_experts(struct bench *b)
{
    check_experts_shape(b, 1, 1, 1, 7, 3, DTYPE_F32);
    check_experts_shape(b, 1, 8, 16, 40, 24, DTYPE_BF16);
    check_experts_shape(b, 37, 3, 8, 64, 33, DTYPE_BF16);
    check_experts_shape(b, 230, 2, 2, 24, 9, DTYPE_F32); // an expert with several pieces of rows
    check_experts_shape(b, 20, 4, 100, 64, 32, DTYPE_BF16);
}

// ---- Cache and attention -------------------------------------------------------------------

struct attention_case {
    int32_t num_heads, num_kv_heads, head_dim;
    enum dtype dtype;
    int32_t window;
    float softcap;
};

enum { NUM_SEQS = 4, SEQ_GAP = 4 };
static const int32_t seq_lens[NUM_SEQS] = {37, 1, 150, 64};

/** Queries, keys and values of all sequences, whatever the way they are computed. */
struct attention_input {
    const struct attention_case *shape;
    int64_t stride; // of a row: queries, keys, values, a gap
    const float *qkv;
    int32_t seq_start[NUM_SEQS + 1];
};

/** A way to lay out the cache and to cut the prompts. */
struct layout {
    int32_t block_size, chunk; // chunk: tokens of a sequence in one step
    bool is_batched;           // all sequences in one step, else one after the other
    bool is_reversed;          // block ids fall instead of rise
};

/** One step for sequences [first_seq, end_seq): the tokens from `start` on, at most a chunk. */
static void run_step(struct bench *b, struct device *dev, const struct attention_input *in,
                     const struct layout *layout, const struct kv_cache *cache, int32_t max_blocks,
                     int32_t first_seq, int32_t end_seq, int32_t start, float *out)
{
    const struct attention_case *shape = in->shape;
    int32_t rows[256 * NUM_SEQS], positions[256 * NUM_SEQS], token_seq[256 * NUM_SEQS];
    int64_t slots[256 * NUM_SEQS];
    int32_t query_start[NUM_SEQS + 1] = {0}, lens[NUM_SEQS];
    struct attention_batch batch = {.query_start = query_start,
                                    .seq_lens = lens,
                                    .max_blocks = max_blocks,
                                    .token_seq = token_seq,
                                    .positions = positions};
    int32_t *table = arena_array(&b->arena, int32_t, NUM_SEQS * max_blocks);
    for (int32_t seq = first_seq; seq < end_seq; seq++) {
        int32_t end = min_i32(seq_lens[seq], start + layout->chunk), i = batch.num_seqs;
        if (start >= end)
            continue;
        for (int32_t c = 0; c < max_blocks; c++) {
            int32_t block = layout->is_reversed ? cache->num_blocks - 1 - (seq * max_blocks + c)
                                                : seq * max_blocks + c;
            // Blocks that no query of this step sees, on either side, are not there.
            bool is_past =
                shape->window > 0 && (c + 1) * layout->block_size <= start + 1 - shape->window;
            table[i * max_blocks + c] = is_past || c * layout->block_size >= end ? -1 : block;
        }
        for (int32_t p = start; p < end; p++) {
            int32_t row = batch.num_tokens++;
            rows[row] = in->seq_start[seq] + p;
            positions[row] = p;
            token_seq[row] = i;
            slots[row] =
                (int64_t)table[i * max_blocks + p / layout->block_size] * layout->block_size +
                p % layout->block_size;
        }
        lens[i] = end;
        batch.num_seqs++;
        query_start[i + 1] = batch.num_tokens;
        batch.max_seq_len = max_i32(batch.max_seq_len, end);
        batch.max_query_len = max_i32(batch.max_query_len, end - start);
    }
    batch.block_table = table;
    int64_t cols = (int64_t)shape->num_heads * shape->head_dim;
    float *qkv = floats(b, batch.num_tokens * in->stride);
    for (int32_t row = 0; row < batch.num_tokens; row++)
        memcpy(qkv + row * in->stride, in->qkv + rows[row] * in->stride,
               (size_t)in->stride * sizeof(float));
    struct tensor steps = tensor_2d(qkv, DTYPE_F32, batch.num_tokens, in->stride);
    const struct qkv_params qkv_params = {.num_heads = shape->num_heads};
    op_prepare_qkv(dev, tensor_columns(steps, 0, in->stride - SEQ_GAP), cache, &qkv_params,
                   positions, slots);
    float *step_out = floats(b, batch.num_tokens * cols);
    struct attention_params params = {.scale = 1.0f / sqrtf((float)shape->head_dim),
                                      .window = shape->window,
                                      .softcap = shape->softcap,
                                      .num_heads = shape->num_heads};
    op_attention(dev, tensor_2d(step_out, DTYPE_F32, batch.num_tokens, cols),
                 tensor_columns(steps, 0, cols), cache, &batch, &params);
    for (int32_t row = 0; row < batch.num_tokens; row++)
        memcpy(out + rows[row] * cols, step_out + row * cols, (size_t)cols * sizeof(float));
}

/** All sequences from nothing; returns one row per token of each. */
static float *run_layout(struct bench *b, struct device *dev, const struct attention_input *in,
                         const struct layout *layout)
{
    int32_t longest = 0;
    for (int32_t seq = 0; seq < NUM_SEQS; seq++)
        longest = max_i32(longest, seq_lens[seq]);
    int32_t max_blocks = (int32_t)ceil_div(longest, layout->block_size) + 1;
    struct kv_cache cache = make_cache(b, in->shape->num_kv_heads, in->shape->head_dim,
                                       in->shape->dtype, layout->block_size, NUM_SEQS * max_blocks);
    float *out =
        floats(b, in->seq_start[NUM_SEQS] * (int64_t)in->shape->num_heads * in->shape->head_dim);
    int32_t group = layout->is_batched ? NUM_SEQS : 1;
    for (int32_t seq = 0; seq < NUM_SEQS; seq += group) {
        int32_t end = layout->is_batched ? longest : seq_lens[seq];
        for (int32_t start = 0; start < end; start += layout->chunk)
            run_step(b, dev, in, layout, &cache, max_blocks, seq, seq + group, start, out);
    }
    return out;
}

static void check_attention(struct bench *b)
{
    static const struct attention_case cases[] = {
        {4, 2, 32, DTYPE_F32, 0, 0},      {4, 2, 32, DTYPE_BF16, 0, 0},
        {6, 1, 64, DTYPE_F16, 0, 0},      {3, 3, 20, DTYPE_F32, 0, 0},
        {2, 1, 13, DTYPE_BF16, 11, 0},    {4, 2, 16, DTYPE_F32, 32, 0},
        {2, 2, 128, DTYPE_BF16, 1, 0},    {8, 2, 40, DTYPE_F16, 45, 0},
        {50, 1, 8, DTYPE_F32, 0, 0},      {4, 2, 64, DTYPE_F8_E4M3, 0, 0},
        {3, 1, 21, DTYPE_F8_E4M3, 40, 0}, {4, 2, 24, DTYPE_F32, 19, 2},
    };
    static const struct layout layouts[] = {
        {16, 256, true, true}, {16, 1, false, false}, {8, 7, true, false},
        {32, 64, false, true}, {7, 64, true, true},   {256, 1, true, false},
    };
    static const struct layout plain = {16, 256, true, false};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct attention_input in = {.shape = &cases[i]};
        for (int32_t seq = 0; seq < NUM_SEQS; seq++)
            in.seq_start[seq + 1] = in.seq_start[seq] + seq_lens[seq];
        int64_t num_tokens = in.seq_start[NUM_SEQS];
        in.stride = (cases[i].num_heads + 2 * cases[i].num_kv_heads) * cases[i].head_dim + SEQ_GAP;
        in.qkv = random_floats(b, num_tokens * in.stride);
        int64_t size = num_tokens * cases[i].num_heads * cases[i].head_dim;
        float *expected = run_layout(b, &b->reference, &in, &plain);
        float *out = run_layout(b, &b->one, &in, &plain);
        assert_close(out, expected, size, 2e-6, 1.0, "attention");
        for (size_t j = 0; j < ARRAY_LEN(layouts); j++)
            assert_same_bits(run_layout(b, &b->many, &in, &layouts[j]), out, size,
                             "attention in another layout");
        arena_reset(&b->arena);
    }
}

// ---- The walk ------------------------------------------------------------------------------

static const struct {
    const char *name;
    void (*run)(struct bench *b);
} checks[] = {
    {"alloc, free, copies, synchronize", check_memory},
    {"embedding", check_embedding},
    {"rms_norm, add_rms_norm", check_norms},
    {"rms_norm of columns", check_strided_norm},
    {"add_post_norm", check_post_norm},
    {"prepare_qkv", check_prepare_qkv},
    {"silu_and_mul, gelu_and_mul", check_activations},
    {"soft_cap", check_soft_cap},
    {"gather_rows", check_gather_rows},
    {"prepare_weight, matmul", check_matmul},
    {"route_experts, matmul_experts, combine_experts", check_experts},
    {"fused_router, matmul_experts with SwiGLU, combine_experts on top", check_fused_experts},
    {"fused_matmul", check_fused_matmul},
    {"attention", check_attention},
};

static void every_operation_is_right_and_batch_invariant_on_every_instruction_set(void **state)
{
    (void)state;
    int num_isas = 0;
    for (enum cpu_isa isa = CPU_ISA_SCALAR; isa < CPU_ISA_AUTO; isa++) {
        struct bench b = {.random = 1};
        struct error err = {0};
        enum status status = cpu_device_init(&b.one, isa, 1, &err);
        if (status == STATUS_UNSUPPORTED)
            continue;
        assert_int_equal(status, STATUS_OK);
        assert_int_equal(cpu_device_init(&b.many, isa, 4, &err), STATUS_OK);
        assert_int_equal(cpu_device_init(&b.reference, CPU_ISA_SCALAR, 2, &err), STATUS_OK);
        for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
            print_message("%s: %s\n", b.one.ops.name, checks[i].name);
            checks[i].run(&b);
            arena_reset(&b.arena);
        }
        device_deinit(&b.one);
        device_deinit(&b.many);
        device_deinit(&b.reference);
        arena_deinit(&b.arena);
        num_isas++;
    }
    assert_true(num_isas > 0);
}

// ---- Known answers -------------------------------------------------------------------------

static void rope_turns_half_split_pairs(void **state)
{
    (void)state;
    struct device dev;
    struct error err;
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_AUTO, 1, &err), STATUS_OK);
    // Position 1: the first pair by a quarter turn, the second not at all; the rest is left alone.
    static const float cos_sin[] = {9, 9, 9, 9, 0, 1, 1, 0};
    static const int32_t positions[] = {1};
    float x[18] = {1, 2, 3, 4, 5, 6}, keys[6], values[6];
    static const int64_t slots[] = {-1};
    const struct kv_cache cache = {keys, values, DTYPE_F32, 1, 1, 1, 6, 0, 0};
    const struct qkv_params params = {.num_heads = 1, .cos_sin = cos_sin, .rot_dim = 4};
    op_prepare_qkv(&dev, tensor_2d(x, DTYPE_F32, 1, 18), &cache, &params, positions, slots);
    static const float expected[] = {-3, 2, 1, 4, 5, 6};
    assert_same_bits(x, expected, 6, "rope");
    device_deinit(&dev);
}

static void rms_norm_divides_by_the_root_of_the_mean_square(void **state)
{
    (void)state;
    struct device dev;
    struct error err;
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_AUTO, 1, &err), STATUS_OK);
    float x[] = {1, 7, 5, 5}, weight[] = {1, 2, -1, 0}; // mean square 25
    op_rms_norm(&dev, tensor_2d(x, DTYPE_F32, 1, 4), tensor_2d(x, DTYPE_F32, 1, 4),
                (struct norm_params){weight, 0.0f, 0.0f});
    static const float expected[] = {0.2f, 2.8f, -1.0f, 0.0f};
    assert_close(x, expected, 4, 1e-6, 1.0, "rms_norm");
    float y[] = {0, 0}; // eps keeps zero from dividing zero
    op_rms_norm(&dev, tensor_2d(y, DTYPE_F32, 1, 2), tensor_2d(y, DTYPE_F32, 1, 2),
                (struct norm_params){weight, 1e-6f, 0.0f});
    assert_true(y[0] == 0 && y[1] == 0);
    device_deinit(&dev);
}

static void silu_is_right_at_its_extremes(void **state)
{
    (void)state;
    struct device dev;
    struct error err;
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_AUTO, 1, &err), STATUS_OK);
    float in[] = {0, 1, 200, -200, -88, NAN, /* up: */ 1, 1, 1, 1, 1, 1}, out[6];
    op_silu_and_mul(&dev, tensor_2d(out, DTYPE_F32, 1, 6), tensor_2d(in, DTYPE_F32, 1, 12));
    assert_true(out[0] == 0);
    assert_true(fabsf(out[1] - 0.7310585786f) < 1e-7f);
    assert_true(out[2] == 200);
    assert_true(out[3] == 0);
    assert_true(fabs(out[4] / (-88.0 * exp(-88.0)) - 1) < 1e-6);
    assert_true(isnan(out[5]));
    device_deinit(&dev);
}

static void broken_logits_are_chosen_last_and_equal_ones_by_their_ids(void **state)
{
    (void)state;
    struct device dev;
    struct error err;
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_AUTO, 1, &err), STATUS_OK);
    float logits[] = {NAN, 2, 1, 2, NAN, NAN, NAN, NAN, 0, -INFINITY};
    float weights[6];
    int32_t slots[6], tokens[6], start[6], tiles[32];
    const struct expert_routes routes = {.num_tokens = 2,
                                         .top_k = 3,
                                         .num_experts = 5,
                                         .weights = weights,
                                         .slots = slots,
                                         .tokens = tokens,
                                         .expert_start = start,
                                         .tiles = tiles};
    op_route_experts(&dev, &routes, tensor_2d(logits, DTYPE_F32, 2, 5), true);
    static const int32_t expected_start[] = {0, 1, 3, 4, 6, 6}; // 1, 3, 2; then 3, 0, 1
    assert_memory_equal(start, expected_start, sizeof(expected_start));
    assert_true(slots[0] == 1 && slots[1] == 4 && slots[2] == 3);
    assert_true(slots[3] == 5 && slots[4] == 0 && slots[5] == 2);
    device_deinit(&dev);
}

static void no_rows_are_no_work(void **state)
{
    (void)state;
    struct device dev;
    struct error err;
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_AUTO, 1, &err), STATUS_OK);
    struct tensor none = tensor_2d(NULL, DTYPE_F32, 0, 8);
    struct weight w = {.form = WEIGHT_F32, .out_features = 8, .in_features = 8};
    op_matmul(&dev, none, none, &w);
    const struct norm_params norm = {NULL, eps, 0.0f};
    op_rms_norm(&dev, none, none, norm);
    op_add_rms_norm(&dev, none, none, norm);
    op_add_post_norm(&dev, none, none, norm, norm);
    op_soft_cap(&dev, none, 1);
    op_gather_rows(&dev, none, none, NULL);
    device_deinit(&dev);
}

static void instruction_sets_are_found_by_name(void **state)
{
    (void)state;
    enum cpu_isa isa = CPU_ISA_AUTO;
    assert_int_equal(cpu_isa_parse(STR("scalar"), &isa), STATUS_OK);
    assert_int_equal(isa, CPU_ISA_SCALAR);
    assert_int_equal(cpu_isa_parse(STR("avx2"), &isa), STATUS_OK);
    assert_int_equal(isa, CPU_ISA_AVX2);
    assert_int_equal(cpu_isa_parse(STR("auto"), &isa), STATUS_OK);
    assert_int_equal(isa, CPU_ISA_AUTO);
    assert_int_equal(cpu_isa_parse(STR("avx9"), &isa), STATUS_NOT_FOUND);
    assert_int_equal(cpu_isa_parse(STR(""), &isa), STATUS_NOT_FOUND);
}

static void a_forced_instruction_set_is_taken(void **state)
{
    (void)state;
    struct device dev;
    struct error err = {0};
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_SCALAR, 3, &err), STATUS_OK);
    assert_string_equal(dev.ops.name, "cpu/scalar");
    assert_int_equal(dev.num_threads, 3);
    device_deinit(&dev);
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_AUTO, 0, &err), STATUS_OK);
    assert_true(dev.num_threads >= 1);
    device_deinit(&dev);
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_AUTO, -1, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "-1"));
    device_deinit(&dev); // a device that never came to be
    device_deinit(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_right_and_batch_invariant_on_every_instruction_set),
        cmocka_unit_test(rope_turns_half_split_pairs),
        cmocka_unit_test(rms_norm_divides_by_the_root_of_the_mean_square),
        cmocka_unit_test(silu_is_right_at_its_extremes),
        cmocka_unit_test(broken_logits_are_chosen_last_and_equal_ones_by_their_ids),
        cmocka_unit_test(no_rows_are_no_work),
        cmocka_unit_test(instruction_sets_are_found_by_name),
        cmocka_unit_test(a_forced_instruction_set_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
