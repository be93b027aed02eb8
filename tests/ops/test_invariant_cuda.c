// Batch-invariant products on a GPU: a row has the same bits among any number of rows, whether the
// kernels that multiply them are known to add up alike or not.
#include "ops/gpu_bench.h"

enum { MAX_ROWS = 2304 };

static int start(void **state)
{
    return start_bench(state, DTYPE_BF16, CPU_ISA_AUTO, 2, 29);
}

/** Numbers of very different sizes and both signs, so that the order of a sum shows. */
static uint16_t *uneven_numbers(struct bench *b, int64_t n)
{
    static const float sizes[] = {1.0f / 256, 1.0f / 64, 1.0f / 16, 1.0f / 8, 1, 2, 4, 16};
    uint16_t *bits = arena_array(&b->arena, uint16_t, n);
    for (int64_t i = 0; i < n; i++) {
        float x = (float)uniform(b);
        bits[i] = to_bits(b, (x - 0.5f) * sizes[(int)(x * 4096) % 8]);
    }
    return bits;
}

/** How many numbers of rows give a row other bits than all rows together do; each is told. */
static int count_differing(struct bench *b, const struct weight *w, enum dtype out_dtype)
{
    static const int64_t counts[] = {1,   2,   7,   8,    9,    16,   17,   32,   33,  64,
                                     65,  96,  100, 127,  128,  129,  192,  256,  257, 300,
                                     512, 513, 777, 1000, 1024, 1027, 1536, 2048, 2049};
    int64_t n = w->out_features, k = w->in_features;
    uint16_t *numbers = uneven_numbers(b, MAX_ROWS * k);
    struct tensor x = tensor_2d(to_gpu(b, numbers, (size_t)(MAX_ROWS * k) * sizeof(*numbers)),
                                b->gpu.activation_dtype, MAX_ROWS, k);
    struct tensor out = tensor_2d(NULL, out_dtype, MAX_ROWS, n);
    out.data = b->gpu.ops.alloc(&b->gpu, tensor_bytes(out));
    assert_non_null(out.data);
    op_matmul(&b->gpu, out, x, w);
    size_t row_bytes = tensor_bytes(out) / MAX_ROWS, size = row_bytes / (size_t)n;
    char *all = arena_alloc(&b->arena, tensor_bytes(out));
    char *bytes = arena_alloc(&b->arena, tensor_bytes(out));
    copy_from_gpu(b, all, out.data, tensor_bytes(out));
    int num_differing = 0;
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        int64_t first = MAX_ROWS - counts[i]; // at another place, too
        struct tensor some = tensor_rows(out, 0, counts[i]);
        op_matmul(&b->gpu, some, tensor_rows(x, first, counts[i]), w);
        copy_from_gpu(b, bytes, some.data, tensor_bytes(some));
        const char *expected = all + (size_t)first * row_bytes;
        if (memcmp(bytes, expected, tensor_bytes(some)) == 0)
            continue;
        size_t num_elements = 0;
        for (size_t at = 0; at < tensor_bytes(some); at += size)
            num_elements += memcmp(bytes + at, expected + at, size) != 0;
        print_error("%s, [%ld, %ld]%s, %ld rows: %zu elements differ\n",
                    b->gpu.activation_dtype == DTYPE_F16 ? "float16" : "bfloat16", (long)n, (long)k,
                    w->bias                  ? " with a bias"
                    : out_dtype == DTYPE_F32 ? " to float32"
                                             : "",
                    (long)counts[i], num_elements);
        num_differing++;
    }
    release(b, x.data);
    release(b, out.data);
    return num_differing;
}

/** Of all shapes, where each number of rows gets its kernel, or one kernel multiplies them all. */
static void expect_same_bits(struct bench *b, bool are_tried)
{
    static const struct {
        int64_t n, k;
        bool has_bias, to_f32;
    } shapes[] = {
        {6144, 4096, false, false},  {4096, 4096, false, false}, {24576, 4096, false, false},
        {4096, 12288, false, false}, {2048, 1024, false, false}, {1024, 2048, false, false},
        {6144, 1024, false, false},  {1024, 3072, false, false}, {33000, 1024, false, true},
        {1152, 896, true, false},    {4608, 3584, true, false},  {64, 64, false, false},
        {96, 64, true, false},       {33, 40, false, false},     {200, 328, true, false},
        {513, 1288, false, true},
    };
    int num_differing = 0;
    for (int is_f16 = 0; is_f16 <= 1; is_f16++) {
        struct device dev = {0};
        struct error err = {0};
        assert_int_equal(cuda_device_init(&dev, 2, &err), STATUS_OK);
        device_deinit(&b->gpu);
        b->gpu = dev;
        b->gpu.is_batch_invariant = true;
        b->gpu.activation_dtype = is_f16 ? DTYPE_F16 : DTYPE_BF16;
        if (are_tried) {
            const struct backend_needs needs = {0};
            assert_int_equal(b->gpu.ops.reserve(&b->gpu, &needs, &err), STATUS_OK);
        }
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            int64_t n = shapes[i].n, k = shapes[i].k;
            struct weight w = {.form = is_f16 ? WEIGHT_F16 : WEIGHT_BF16,
                               .out_features = n,
                               .in_features = k,
                               .data = uneven_numbers(b, n * k),
                               .bias = shapes[i].has_bias ? randoms(b, n) : NULL};
            assert_int_equal(b->gpu.ops.prepare_weight(&b->gpu, &w, &err), STATUS_OK);
            num_differing +=
                count_differing(b, &w, shapes[i].to_f32 ? DTYPE_F32 : b->gpu.activation_dtype);
            release(b, w.data);
            arena_reset(&b->arena);
        }
    }
    assert_int_equal(num_differing, 0);
}

static void a_row_has_the_same_bits_whichever_kernel_multiplies_it(void **state)
{
    expect_same_bits(bench_of(state), true);
}

static void one_kernel_gives_a_row_the_same_bits_among_any_number_of_rows(void **state)
{
    expect_same_bits(bench_of(state), false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_the_same_bits_whichever_kernel_multiplies_it),
        cmocka_unit_test(one_kernel_gives_a_row_the_same_bits_among_any_number_of_rows),
    };
    return cmocka_run_group_tests(tests, start, stop_bench);
}
