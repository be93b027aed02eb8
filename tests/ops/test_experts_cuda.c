// Mixtures of experts on the CUDA backend: the choice of experts, their products and the sum,
// against the portable reference.
#include "ops/gpu_bench.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_right_and_independent_of_other_tokens),
        cmocka_unit_test(few_tokens_are_routed_in_one_operation),
    };
    return run_in_both_types(tests);
}
