// Products with weights of e4m3 on a GPU, over odd shapes and numbers of rows, against the portable
// reference. Where the activations are quantised as well, the reference is given what that leaves
// of them, computed here in the same float32 steps.
#include "ops/gpu_bench.h"

// Up to so many rows, activations stay as they are; where they always do, the weight is read for
// each 16 rows up to the second number. Up to the third number of rows our own kernel multiplies
// quantised activations.
enum { FEW_ROWS = 16, SOME_ROWS = 64, SKINNY_ROWS = 128, SKINNY_ROWS_BLOCKS = 64 };

enum { MAX_TOLD = 8 };

static int num_failed; // cases of one test; the elements of the first MAX_TOLD are shown

static int start(void **state)
{
    return start_bench(state, DTYPE_BF16, CPU_ISA_AUTO, 2, 11);
}

static uint16_t *bits_from_gpu(struct bench *b, struct tensor t)
{
    uint16_t *bits = arena_array(&b->arena, uint16_t, tensor_numel(t) + 1);
    copy_from_gpu(b, bits, t.data, tensor_bytes(t));
    return bits;
}

// ---- Weights -------------------------------------------------------------------------------

enum scheme { BY_ROW, BY_BLOCK };
enum inputs { KEPT, BY_TOKEN, STATIC };

static const float INPUT_SCALE = 1.0f / 32;

/** All codes but those of no number, and scales of different sizes. */
static struct weight random_weight(struct bench *b, int64_t n, int64_t k, enum scheme scheme,
                                   enum inputs inputs, bool has_bias)
{
    uint8_t *codes = arena_alloc(&b->arena, (size_t)(n * k));
    for (int64_t i = 0; i < n * k; i++)
        codes[i] = f32_to_f8_e4m3((float)(uniform(b) - 0.5) * 4);
    int64_t pitch = scheme == BY_BLOCK ? ceil_div(k, WEIGHT_BLOCK) : 0;
    int64_t count = pitch > 0 ? ceil_div(n, WEIGHT_BLOCK) * pitch : n;
    float *scales = arena_array(&b->arena, float, count);
    for (int64_t i = 0; i < count; i++)
        scales[i] = (float)(0.5 + uniform(b));
    return (struct weight){.form = WEIGHT_F8_E4M3,
                           .out_features = n,
                           .in_features = k,
                           .data = codes,
                           .bias = has_bias ? randoms(b, n) : NULL,
                           .scales = {.values = scales,
                                      .block_pitch = (int32_t)pitch,
                                      .quantizes_input = inputs != KEPT,
                                      .input_scale = inputs == STATIC ? INPUT_SCALE : 0}};
}

/** What quantisation leaves of a run of numbers with one scale (0: by the largest). */
static void requantise(float *x, int64_t n, float scale, float smallest)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    if (scale == 0)
        scale = fmaxf(largest / 448, smallest);
    float factor = 1 / scale;
    for (int64_t i = 0; i < n; i++)
        x[i] = f8_e4m3_to_f32(f32_to_f8_e4m3(x[i] * factor)) * scale;
}

/** The way that a product takes: see cuda_f8.c. */
enum way { WIDENED, QUANTISED, WRITTEN_OUT };

static enum way way_of(const struct bench *b, const struct weight *w, int64_t rows)
{
    bool is_invariant = b->gpu.is_batch_invariant;
    bool widens = !is_invariant && w->in_features % 64 == 0;
    if (widens && rows <= FEW_ROWS)
        return WIDENED;
    int64_t most = w->scales.block_pitch > 0 ? SKINNY_ROWS_BLOCKS : SKINNY_ROWS;
    bool is_taken = (!is_invariant && rows <= most) || w->out_features % 16 == 0;
    if (w->scales.quantizes_input && w->in_features % 16 == 0 && is_taken)
        return QUANTISED;
    return widens && rows <= SOME_ROWS ? WIDENED : WRITTEN_OUT;
}

/** x as it is multiplied with the weight. */
static const float *inputs_of(struct bench *b, const float *x, int64_t rows, const struct weight *w)
{
    int64_t k = w->in_features;
    if (way_of(b, w, rows) != QUANTISED)
        return x;
    float *left = arena_array(&b->arena, float, rows *k);
    memcpy(left, x, (size_t)(rows * k) * sizeof(float));
    int64_t run = w->scales.block_pitch > 0 ? WEIGHT_BLOCK : k;
    float smallest = w->scales.block_pitch > 0 ? 1e-10f / 448 : 1.0f / (448 * 512);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < k; i += run)
            requantise(left + row * k + i, min_i64(run, k - i), w->scales.input_scale, smallest);
    }
    return left;
}

/** The weight as it is multiplied: written out in full, it is rounded to the activations' type. */
static struct weight reference_of(struct bench *b, const struct weight *w, int64_t rows)
{
    if (way_of(b, w, rows) != WRITTEN_OUT)
        return *w;
    int64_t n = w->out_features, k = w->in_features;
    float *full = arena_array(&b->arena, float, n *k);
    for (int64_t i = 0; i < n * k; i++)
        full[i] = from_bits(b, to_bits(b, f8_e4m3_to_f32(((const uint8_t *)w->data)[i]) *
                                              weight_scale(&w->scales, i / k, i % k)));
    return (struct weight){
        .form = WEIGHT_F32, .out_features = n, .in_features = k, .data = full, .bias = w->bias};
}

static void prepare(struct bench *b, struct weight *w)
{
    struct error err = {0};
    size_t bytes = b->gpu.ops.prepared_weight_bytes(&b->gpu, w);
    assert_true(bytes >= (size_t)(w->out_features * w->in_features));
    assert_true(bytes < (size_t)(w->out_features * w->in_features) * 2 + 8192);
    if (b->gpu.ops.prepare_weight(&b->gpu, w, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    assert_true(w->is_packed);
}

// ---- Products ------------------------------------------------------------------------------

struct product_case {
    int64_t rows, k, n;
    enum scheme scheme;
    enum inputs inputs;
    bool has_bias;
};

/** Shows elements of a product that are wrong, each beside what the plain sum of x and the weight
 *  is, of neither rounded. */
static void tell_wrong(const float *x, const struct weight *w, const float *got,
                       const float *expected, const bool *is_wrong, int64_t rows)
{
    enum { MAX_SHOWN = 6 };
    int64_t n = w->out_features, k = w->in_features, num_shown = 0;
    for (int64_t i = 0; i < rows * n && num_shown < MAX_SHOWN; i++) {
        double plain = 0;
        if (!is_wrong[i])
            continue;
        for (int64_t j = 0; j < k; j++)
            plain += (double)x[i / n * k + j] *
                     f8_e4m3_to_f32(((const uint8_t *)w->data)[i % n * k + j]) *
                     weight_scale(&w->scales, i % n, j);
        print_message("    [%ld, %ld]: %.9g, expected %.9g, plain %.9g\n", (long)(i / n),
                      (long)(i % n), (double)got[i], (double)expected[i],
                      plain + (w->bias ? ((const float *)w->bias)[i % n] : 0));
        num_shown++;
    }
}

static void check_product(struct bench *b, const struct product_case *c)
{
    int64_t rows = c->rows, k = c->k, n = c->n;
    struct weight w = random_weight(b, n, k, c->scheme, c->inputs, c->has_bias);
    const struct weight host = w;
    float *x = randoms(b, rows * k);
    memset(x, 0, (size_t)k * sizeof(float)); // a row of nothing
    const float *inputs = inputs_of(b, x, rows, &w);
    const struct weight reference = reference_of(b, &w, rows);
    float *expected = arena_array(&b->arena, float, rows *n);
    op_matmul(&b->cpu, tensor_2d(expected, DTYPE_F32, rows, n),
              tensor_2d((void *)(uintptr_t)inputs, DTYPE_F32, rows, k), &reference);
    struct tensor gpu_x = matrix_to_gpu(b, x, rows, k);
    struct tensor out = matrix_to_gpu(b, floats(b, rows * n), rows, n);
    prepare(b, &w);
    op_matmul(&b->gpu, out, gpu_x, &w);
    const uint16_t *first = bits_from_gpu(b, out);
    const float *got = from_gpu(b, out);
    char what[160];
    snprintf(what, sizeof(what), "%ld rows of %ld by %ld, scales %d, inputs %d, bias %d",
             (long)rows, (long)k, (long)n, (int)c->scheme, (int)c->inputs, c->has_bias);
    // A result is rounded once; where the library adds a bias, the product before it as well. Sums
    // of e4m3 have 14 bits of mantissa in the tensor cores.
    enum way way = way_of(b, &w, rows);
    const float *bias = host.bias;
    double size = sqrt((double)k), absolute = (way == QUANTISED ? 0.02 : 1e-4) * size;
    int64_t num_wrong = 0;
    bool *is_wrong = arena_array(&b->arena, bool, rows *n);
    for (int64_t i = 0; i < rows * n; i++) {
        double limit = rounding(b) * fabs((double)expected[i]) + absolute;
        if (bias && way != WIDENED)
            limit += rounding(b) * (1 + rounding(b)) * fabs((double)expected[i] - bias[i % n]);
        is_wrong[i] = !(fabs((double)got[i] - expected[i]) <= limit);
        num_wrong += is_wrong[i];
    }
    if (num_wrong > 0 && num_failed++ < MAX_TOLD) {
        print_message("  %s, way %d: %ld elements are off\n", what, (int)way, (long)num_wrong);
        tell_wrong(x, &host, got, expected, is_wrong, rows);
    }
    op_matmul(&b->gpu, out, gpu_x, &w);
    if (memcmp(first, bits_from_gpu(b, out), (size_t)(rows * n) * sizeof(*first)) != 0)
        fail_msg("%s: another result the second time", what);
    release(b, w.data);
    release(b, gpu_x.data);
    release(b, out.data);
    arena_reset(&b->arena);
}

static void check_products(struct bench *b)
{
    num_failed = 0;
    static const int64_t rows[] = {1,  2,  5,  8,  9,   16,  17,  18, 20,
                                   33, 64, 65, 97, 128, 130, 514, 517};
    static const struct {
        int64_t k, n;
    } shapes[] = {{64, 128},   {384, 1152}, {1024, 512}, {128, 24}, {200, 264},
                  {1040, 656}, {192, 2304}, {33, 10},    {7, 3},    {2064, 26}};
    int turn = 0;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        for (size_t j = 0; j < ARRAY_LEN(rows); j++) {
            for (int scheme = BY_ROW; scheme <= BY_BLOCK; scheme++) {
                const enum inputs inputs[] = {KEPT, BY_TOKEN, scheme == BY_ROW ? STATIC : BY_TOKEN};
                struct product_case c = {rows[j],          shapes[i].k,
                                         shapes[i].n,      (enum scheme)scheme,
                                         inputs[turn % 3], turn % 2};
                check_product(b, &c);
                c.inputs = BY_TOKEN;
                check_product(b, &c);
                turn++;
            }
        }
    }
    // A weight that is written out in more than one part.
    check_product(b, &(struct product_case){1, 8200, 4200, BY_ROW, BY_TOKEN, true});
    assert_int_equal(num_failed, 0);
}

static void products_are_right_whatever_the_shape(void **state)
{
    check_products(bench_of(state));
}

static void products_in_float16_are_right(void **state)
{
    struct bench *b = bench_of(state);
    b->gpu.activation_dtype = DTYPE_F16;
    check_products(b);
    b->gpu.activation_dtype = DTYPE_BF16;
}

/** What a fused product gives: with a norm, x times its weight is rounded before it is multiplied.
 */
static void check_fused(struct bench *b, int64_t rows, int64_t k, int64_t n, int flags,
                        enum scheme scheme)
{
    bool is_swiglu = flags & 2, adds = flags & 4;
    int64_t cols = is_swiglu ? n / 2 : n;
    struct weight w = random_weight(b, n, k, scheme, BY_TOKEN, flags & 8), plain = w;
    float *x = randoms(b, rows * k), *norm = randoms(b, k), *out = randoms(b, rows * cols);
    float *inputs = arena_array(&b->arena, float, rows *k);
    float *products = arena_array(&b->arena, float, rows *n);
    float *results = arena_array(&b->arena, float, rows *cols);
    struct tensor gpu_x = matrix_to_gpu(b, x, rows, k), gpu_out = matrix_to_gpu(b, out, rows, cols);
    bool is_quantised = way_of(b, &w, rows) == QUANTISED;
    for (int64_t i = 0; i < rows * k; i++)
        inputs[i] = flags & 1 ? from_bits(b, to_bits(b, x[i] * norm[i % k])) : x[i];
    if (is_quantised)
        inputs = (float *)(uintptr_t)inputs_of(b, inputs, rows, &w);
    plain.bias = NULL;
    op_matmul(&b->cpu, tensor_2d(products, DTYPE_F32, rows, n),
              tensor_2d(inputs, DTYPE_F32, rows, k), &plain);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t i = 0; i < k; i++)
            squares += (double)x[r * k + i] * x[r * k + i];
        float scale = flags & 1 ? (float)(1 / sqrt(squares / (double)k + eps)) : 1;
        for (int64_t i = 0; i < n; i++)
            products[r * n + i] =
                products[r * n + i] * scale + (w.bias ? ((const float *)w.bias)[i] : 0);
    }
    if (is_swiglu)
        op_silu_and_mul(&b->cpu, tensor_2d(results, DTYPE_F32, rows, cols),
                        tensor_2d(products, DTYPE_F32, rows, n));
    for (int64_t i = 0; i < rows * cols; i++)
        out[i] = (is_swiglu ? results[i] : products[i]) + (adds ? out[i] : 0);
    prepare(b, &w);
    struct tensor gpu_norm = matrix_to_gpu(b, norm, 1, k);
    const struct matmul_fusion fusion = {
        {flags & 1 ? gpu_norm.data : NULL, eps, 0}, is_swiglu, adds};
    if (op_fuses_matmul(&b->gpu, rows, &w, &fusion)) {
        op_fused_matmul(&b->gpu, gpu_out, gpu_x, &w, &fusion);
        double size = sqrt((double)k), exact = is_quantised ? 0.02 : 4e-5;
        char what[128];
        snprintf(what, sizeof(what), "fused, %ld rows of %ld by %ld, flags %d, scales %d",
                 (long)rows, (long)k, (long)n, flags, (int)scheme);
        assert_close(from_gpu(b, gpu_out), out, rows * cols, rounding(b),
                     exact * size * (is_swiglu ? 4 * size : 1), what);
    } else {
        // A norm in float16 or before many rows, or more rows than blocks may have.
        bool has_norm = flags & 1, has_too_many = scheme == BY_BLOCK && rows > SKINNY_ROWS_BLOCKS;
        assert_true((has_norm && (rows > FEW_ROWS || b->gpu.activation_dtype == DTYPE_F16)) ||
                    has_too_many);
    }
    release(b, w.data);
    release(b, gpu_norm.data);
    release(b, gpu_x.data);
    release(b, gpu_out.data);
    arena_reset(&b->arena);
}

static void fused_products_are_right(void **state)
{
    struct bench *b = bench_of(state);
    static const int64_t rows[] = {1, 2, 8, 9, 16, 17, 33, 70, 128};
    for (int is_f16 = 0; is_f16 <= 1; is_f16++) {
        b->gpu.activation_dtype = is_f16 ? DTYPE_F16 : DTYPE_BF16;
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            for (int flags = 0; flags < 16; flags++) {
                check_fused(b, rows[i], 64, 48, flags, BY_ROW);
                check_fused(b, rows[i], 576, 3104, flags, flags % 3 ? BY_BLOCK : BY_ROW);
                check_fused(b, rows[i], 1088, 512, flags, BY_BLOCK);
                if (rows[i] > FEW_ROWS)
                    check_fused(b, rows[i], 2048, 1042, flags, flags % 3 ? BY_ROW : BY_BLOCK);
            }
        }
    }
    b->gpu.activation_dtype = DTYPE_BF16;
}

static void a_row_does_not_depend_on_the_others_where_that_is_asked_for(void **state)
{
    enum { ROWS = 600, K = 512, N = 384 };
    struct bench *b = bench_of(state);
    static const int64_t counts[] = {1, 3, 4, 16, 17, 64, 301, 513, 518};
    b->gpu.is_batch_invariant = true;
    for (int scheme = BY_ROW; scheme <= BY_BLOCK; scheme++) {
        for (int inputs = KEPT; inputs <= BY_TOKEN; inputs++) {
            struct weight w =
                random_weight(b, N, K, (enum scheme)scheme, (enum inputs)inputs, inputs == KEPT);
            struct tensor x = matrix_to_gpu(b, randoms(b, (int64_t)ROWS * K), ROWS, K);
            struct tensor out = matrix_to_gpu(b, randoms(b, (int64_t)ROWS * N), ROWS, N);
            prepare(b, &w);
            op_matmul(&b->gpu, out, x, &w);
            const uint16_t *all = bits_from_gpu(b, out);
            for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
                int64_t first = ROWS - counts[i]; // also at another place
                op_matmul(&b->gpu, tensor_rows(out, 0, counts[i]), tensor_rows(x, first, counts[i]),
                          &w);
                const uint16_t *some = bits_from_gpu(b, tensor_rows(out, 0, counts[i]));
                for (int64_t e = 0; e < counts[i] * N; e++) {
                    if (some[e] != all[first * N + e])
                        fail_msg("scales %d, inputs %d, %ld rows: element %ld differs", scheme,
                                 inputs, (long)counts[i], (long)e);
                }
            }
            release(b, w.data);
            release(b, x.data);
            release(b, out.data);
            arena_reset(&b->arena);
        }
    }
    b->gpu.is_batch_invariant = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right_whatever_the_shape),
        cmocka_unit_test(products_in_float16_are_right),
        cmocka_unit_test(fused_products_are_right),
        cmocka_unit_test(a_row_does_not_depend_on_the_others_where_that_is_asked_for),
    };
    return cmocka_run_group_tests(tests, start, stop_bench);
}
