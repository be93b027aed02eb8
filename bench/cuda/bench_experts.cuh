// A layer's experts as Qwen3-30B-A3B has them: 128, of which 8 a token, hidden 2048, intermediate
// 768. Ratios of few tokens are to reading the weights of the experts that are met.
#pragma once

#include "check_experts.cuh"

enum { EXPERTS = 128, EXPERTS_TOP_K = 8, EXPERTS_HIDDEN = 2048, EXPERTS_INTER = 768 };

struct experts_bench {
    struct cuda_expert_routes routes;
    const float *logits;
    char *x, *normed, *activated, *products, *out;
};

static size_t expert_bytes(int rows_of_inter)
{
    return (size_t)rows_of_inter * EXPERTS_INTER * EXPERTS_HIDDEN * 2;
}

/** The weights of a layer in turn, gate and up before down. */
static const char *experts_of_turn(const struct bench *b, int turn)
{
    size_t layer = expert_bytes(3) * EXPERTS;
    return b->pool + (size_t)turn % (((size_t)WEIGHT_POOL_MB << 20) / layer) * layer;
}

static void launch_route_experts(struct bench *b, void *context, int turn)
{
    (void)turn;
    struct experts_bench *e = (struct experts_bench *)context;
    cuda_route_experts(&b->launch, &e->routes, e->logits, true);
}

/** Norm, router, choice and sort in one. */
static void launch_router(struct bench *b, void *context, int turn)
{
    struct experts_bench *e = (struct experts_bench *)context;
    struct router_args args = {};
    args.routes = e->routes;
    args.out = e->normed;
    args.x = e->x;
    args.norm = {b->pool, 1e-6f, 0};
    args.weight = experts_of_turn(b, turn); // as many rows are small enough
    args.n = EXPERTS_HIDDEN;
    args.renormalises = true;
    cuda_route_few(&b->launch, &args);
}

static void launch_gate_up(struct bench *b, void *context, int turn)
{
    struct experts_bench *e = (struct experts_bench *)context;
    struct expert_matmul_args args = {};
    args.out = e->activated;
    args.x = e->x;
    args.stacked = experts_of_turn(b, turn);
    args.routes = e->routes;
    args.n = 2 * EXPERTS_INTER;
    args.k = EXPERTS_HIDDEN;
    args.is_by_token = args.is_swiglu = true;
    cuda_matmul_experts(&b->launch, &args);
}

static void launch_down(struct bench *b, void *context, int turn)
{
    struct experts_bench *e = (struct experts_bench *)context;
    struct expert_matmul_args args = {};
    args.out = e->products;
    args.x = e->activated;
    args.stacked = experts_of_turn(b, turn) + expert_bytes(2) * EXPERTS;
    args.routes = e->routes;
    args.n = EXPERTS_HIDDEN;
    args.k = EXPERTS_INTER;
    args.is_settled = true;
    cuda_matmul_experts(&b->launch, &args);
}

static void launch_combine(struct bench *b, void *context, int turn)
{
    (void)turn;
    struct experts_bench *e = (struct experts_bench *)context;
    cuda_combine_experts(&b->launch, e->out, e->products, &e->routes, EXPERTS_HIDDEN, true);
}

static void launch_experts_layer(struct bench *b, void *context, int turn)
{
    launch_route_experts(b, context, turn);
    launch_gate_up(b, context, turn);
    launch_down(b, context, turn);
    launch_combine(b, context, turn);
}

static int experts_met(const struct cuda_expert_routes *routes)
{
    int32_t *start = words_of(routes->expert_start, EXPERTS + 1);
    int met = 0;
    for (int e = 0; e < EXPERTS; e++)
        met += start[e + 1] > start[e];
    free(start);
    return met;
}

static void bench_experts_of(struct bench *b, int tokens)
{
    uint64_t seed = 3;
    size_t slots = (size_t)tokens * EXPERTS_TOP_K;
    float *logits = (float *)malloc((size_t)tokens * EXPERTS * 4);
    for (int i = 0; i < tokens * EXPERTS; i++)
        logits[i] = random_normal(&seed);
    struct experts_bench e = {alloc_routes(tokens, EXPERTS_TOP_K, EXPERTS),
                              (float *)device_copy_of(logits, (size_t)tokens * EXPERTS * 4),
                              (char *)device_alloc((size_t)tokens * EXPERTS_HIDDEN * 2),
                              (char *)device_alloc((size_t)tokens * EXPERTS_HIDDEN * 2),
                              (char *)device_alloc(slots * EXPERTS_INTER * 2),
                              (char *)device_alloc(slots * EXPERTS_HIDDEN * 2),
                              (char *)device_alloc((size_t)tokens * EXPERTS_HIDDEN * 2)};
    random_kernel<<<132 * 8, 512, 0, b->launch.stream>>>((uint32_t *)e.x,
                                                         (size_t)tokens * EXPERTS_HIDDEN / 2);
    int turns = tokens > 1024 ? 2 : 16;
    const struct {
        const char *name;
        launch_function *launch;
        double weights; // of an expert, in halves of the intermediate size by hidden
    } parts[] = {{"route", launch_route_experts, 0},
                 {"gate_up, SwiGLU", launch_gate_up, 2},
                 {"down", launch_down, 1},
                 {"combine", launch_combine, 0},
                 {"all four", launch_experts_layer, 3}};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        double seconds = time_launches(b, parts[i].launch, &e, turns);
        double bytes = parts[i].weights * (double)expert_bytes(1) * experts_met(&e.routes);
        double flops = parts[i].weights * (double)expert_bytes(1) * (double)slots;
        printf("experts %4d tokens %-16s %8.1f us", tokens, parts[i].name, seconds * 1e6);
        if (bytes > 0)
            printf(", %4.0f%% of reading %d experts, %6.1f TFLOP/s",
                   100 * bytes / seconds / b->read_rate, experts_met(&e.routes),
                   flops / seconds / 1e12);
        printf("\n");
    }
    if (cuda_routes_few(tokens, EXPERTS, EXPERTS_HIDDEN))
        printf("experts %4d tokens %-16s %8.1f us\n", tokens, "norm and route",
               time_launches(b, launch_router, &e, turns) * 1e6);
    free(logits);
    free_routes(e.routes);
    cudaFree((void *)e.logits);
    cudaFree(e.x);
    cudaFree(e.normed);
    cudaFree(e.activated);
    cudaFree(e.products);
    cudaFree(e.out);
}

static void bench_experts(struct bench *b)
{
    static const int tokens[] = {1, 2, 4, 8, 16, 64, 256, 512, 1024, 8192};
    printf("\nexperts of Qwen3-30B-A3B\n");
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++)
        bench_experts_of(b, tokens[i]);
}
