// Mixtures of experts against float64 sums: routes, products in tiles of every size with and
// without SwiGLU, in both types, and each result to the bit whatever else is in the batch.
#pragma once

#include "harness.cuh"

static inline struct cuda_expert_routes alloc_routes(int tokens, int top_k, int experts)
{
    size_t slots = (size_t)tokens * top_k;
    struct cuda_expert_routes r = {};
    r.num_tokens = tokens;
    r.top_k = top_k;
    r.num_experts = experts;
    r.weights = (float *)device_poisoned(slots * 4);
    r.slots = (int32_t *)device_poisoned(slots * 4);
    r.tokens = (int32_t *)device_poisoned(slots * 4);
    r.expert_start = (int32_t *)device_poisoned((experts + 1) * 4);
    r.tiles = (int32_t *)device_poisoned((1 + 2 * (slots / 16 + experts)) * 4);
    return r;
}

static inline void free_routes(struct cuda_expert_routes r)
{
    cudaFree(r.weights);
    cudaFree(r.slots);
    cudaFree(r.tokens);
    cudaFree(r.expert_start);
    cudaFree(r.tiles);
}

static inline int32_t *words_of(const int32_t *device, size_t n)
{
    int32_t *words = (int32_t *)malloc(n * 4);
    copy_back(words, device, n * 4);
    return words;
}

struct experts_case {
    int tokens, top_k, experts, k, n;
    bool is_swiglu;
};

/** One case's inputs. */
struct experts_inputs {
    struct element_array weights, x;
    float *logits; // on the device
    bool is_f16;
};

/** The rows of `tokens` tokens from `first` on through the experts, in the order of choices. */
static inline uint16_t *choices_of(const struct cuda_launch *launch, const struct experts_case *c,
                                   const struct experts_inputs *in, int first, int tokens)
{
    struct cuda_expert_routes routes = alloc_routes(tokens, c->top_k, c->experts);
    size_t cols = c->is_swiglu ? c->n / 2 : c->n, slots = (size_t)tokens * c->top_k;
    cuda_route_experts(launch, &routes, in->logits + (size_t)first * c->experts, false);
    struct expert_matmul_args args = {};
    args.out = device_poisoned(slots * cols * 2);
    const char *x = (const char *)in->x.device + (size_t)first * c->k * 2;
    args.x = x;
    args.stacked = in->weights.device;
    args.routes = routes;
    args.n = c->n;
    args.k = c->k;
    args.is_swiglu = c->is_swiglu;
    args.is_by_token = true;
    cuda_matmul_experts(launch, &args);
    CUDA_CHECK(cudaDeviceSynchronize());
    uint16_t *by_slot = (uint16_t *)malloc(slots * cols * 2);
    uint16_t *by_choice = (uint16_t *)malloc(slots * cols * 2);
    copy_back(by_slot, args.out, slots * cols * 2);
    int32_t *slot_of = words_of(routes.slots, slots), *token_of = words_of(routes.tokens, slots);

    // The same rows, a slot each, over settled routes.
    size_t row_bytes = (size_t)c->k * 2;
    char *rows = (char *)device_alloc(slots * row_bytes);
    for (size_t slot = 0; slot < slots; slot++)
        CUDA_CHECK(cudaMemcpy(rows + slot * row_bytes, x + (size_t)token_of[slot] * row_bytes,
                              row_bytes, cudaMemcpyDeviceToDevice));
    CUDA_CHECK(cudaMemset(args.out, 0xff, slots * cols * 2));
    args.x = rows;
    args.is_by_token = false;
    args.is_settled = true;
    cuda_matmul_experts(launch, &args);
    CUDA_CHECK(cudaDeviceSynchronize());
    copy_back(by_choice, args.out, slots * cols * 2);
    if (memcmp(by_slot, by_choice, slots * cols * 2) != 0) {
        size_t at = 0;
        while (by_slot[at] == by_choice[at])
            at++;
        printf("  slot %zu column %zu differs when rows come by slot\n", at / cols, at % cols);
        by_slot[0] = 0x7fff; // NaN
    }
    for (size_t i = 0; i < slots; i++)
        memcpy(by_choice + i * cols, by_slot + slot_of[i] * cols, cols * 2);
    free(by_slot);
    free(slot_of);
    free(token_of);
    cudaFree(rows);
    cudaFree(args.out);
    free_routes(routes);
    return by_choice;
}

/** The choice's expert: the `choice`-th of the token's logits, from the largest on. */
static inline int expert_of_choice(const float *logits, int experts, int choice)
{
    for (int e = 0; e < experts; e++) {
        int rank = 0;
        for (int other = 0; other < experts; other++)
            rank += logits[other] > logits[e] || (logits[other] == logits[e] && other < e);
        if (rank == choice)
            return e;
    }
    return -1;
}

static inline double choice_sum(const struct experts_case *c, const struct experts_inputs *in,
                                int token, int expert, int row)
{
    const float *x = in->x.host + (size_t)token * c->k;
    const float *w = in->weights.host + ((size_t)expert * c->n + row) * c->k;
    double sum = 0;
    for (int i = 0; i < c->k; i++)
        sum += (double)x[i] * w[i];
    return sum;
}

static inline double check_experts_case(const struct cuda_launch *launch,
                                        const struct experts_case *c)
{
    uint64_t seed = 11;
    bool is_f16 = launch->is_f16;
    int cols = c->is_swiglu ? c->n / 2 : c->n;
    float *logits = (float *)malloc((size_t)c->tokens * c->experts * 4);
    for (int i = 0; i < c->tokens * c->experts; i++)
        logits[i] = random_normal(&seed);
    struct experts_inputs in = {
        random_elements(launch, (size_t)c->experts * c->n * c->k, 0.05f, &seed),
        random_elements(launch, (size_t)c->tokens * c->k, 1, &seed),
        (float *)device_copy_of(logits, (size_t)c->tokens * c->experts * 4),
        is_f16,
    };
    uint16_t *got = choices_of(launch, c, &in, 0, c->tokens);
    int choices = c->tokens * c->top_k, step = 1 + choices / 64;
    double diff = 0, norm = 0, worst = 0;
    int worst_choice = 0, worst_col = 0;
    for (int i = 0; i < choices; i += step) {
        int token = i / c->top_k;
        int e = expert_of_choice(logits + (size_t)token * c->experts, c->experts, i % c->top_k);
        for (int col = 0; col < cols; col++) {
            double want = choice_sum(c, &in, token, e, col);
            if (c->is_swiglu)
                want = want / (1 + exp(-want)) * choice_sum(c, &in, token, e, cols + col);
            double d = fabs(element_value(got, (size_t)i * cols + col, is_f16) - want);
            diff += d * d;
            norm += want * want;
            if (!(d <= worst)) {
                worst = d;
                worst_choice = i;
                worst_col = col;
            }
        }
    }
    double error = sqrt(diff / norm);
    if (!(error <= 6e-3))
        printf("  %s %d tokens, %d of %d experts, k %d, n %d%s: error %.2e, worst %.3g at choice "
               "%d column %d\n",
               is_f16 ? "f16" : "bf16", c->tokens, c->top_k, c->experts, c->k, c->n,
               c->is_swiglu ? " SwiGLU" : "", error, worst, worst_choice, worst_col);
    for (int i = 0; i < 3; i++) { // alone, and among few
        int tokens = i == 0 ? 1 : (c->tokens + 2 * i - 1) / (2 * i), first = c->tokens - tokens;
        uint16_t *some = choices_of(launch, c, &in, first, tokens);
        size_t from = (size_t)first * c->top_k * cols, n = (size_t)tokens * c->top_k * cols;
        for (size_t at = 0; at < n; at++) {
            if (some[at] != got[from + at]) {
                printf("  %d of %d tokens: choice %zu column %zu differs from the whole batch's\n",
                       tokens, c->tokens, at / cols, at % cols);
                error = 1;
                break;
            }
        }
        free(some);
    }
    free(got);
    free(logits);
    free_elements(in.weights);
    free_elements(in.x);
    cudaFree(in.logits);
    return error;
}

struct router_case {
    int tokens, top_k, experts, n;
    bool renormalises;
};

/** Whether a token's choices are those of `logits` but for near ties, and its weights theirs. */
static inline bool are_choices(const struct router_case *c, const double *logits, const int *ids,
                               const float *weights)
{
    double sum = 0, chosen = 0;
    for (int e = 0; e < c->experts; e++)
        sum += exp(logits[e]);
    for (int k = 0; k < c->top_k; k++)
        chosen += exp(logits[ids[k]]);
    for (int k = 0; k < c->top_k; k++) {
        int better = 0;
        for (int e = 0; e < c->experts; e++)
            better += logits[e] > logits[ids[k]] + 1e-4;
        for (int other = 0; other < k; other++)
            better += ids[other] == ids[k] ? c->experts : 0;
        double want = exp(logits[ids[k]]) / (c->renormalises ? chosen : sum);
        if (better > k || !(fabs(weights[k] - want) <= 1e-3 * want))
            return false;
    }
    return true;
}

static inline double check_router_case(const struct cuda_launch *launch,
                                       const struct router_case *c)
{
    uint64_t seed = 5;
    bool is_f16 = launch->is_f16, is_right = true;
    size_t slots = (size_t)c->tokens * c->top_k, n = (size_t)c->n;
    struct element_array x = random_elements(launch, c->tokens * n, 2, &seed);
    struct element_array norm = random_elements(launch, n, 0.3f, &seed);
    struct element_array weight = random_elements(launch, c->experts * n, 0.04f, &seed);
    struct router_args args = {};
    args.routes = alloc_routes(c->tokens, c->top_k, c->experts);
    args.out = device_poisoned(c->tokens * n * 2);
    args.x = x.device;
    args.norm = {norm.device, 1e-5f, 1.0f};
    args.weight = weight.device;
    args.n = c->n;
    args.renormalises = c->renormalises;
    cuda_route_few(launch, &args);
    CUDA_CHECK(cudaDeviceSynchronize());
    uint16_t *normed = (uint16_t *)malloc(c->tokens * n * 2);
    float *weights = (float *)malloc(slots * 4);
    copy_back(normed, args.out, c->tokens * n * 2);
    copy_back(weights, args.routes.weights, slots * 4);
    int32_t *slot_of = words_of(args.routes.slots, slots);
    int32_t *token_of = words_of(args.routes.tokens, slots);
    int32_t *start = words_of(args.routes.expert_start, c->experts + 1);
    int32_t *tiles = words_of(args.routes.tiles, 1 + 2 * (slots / 16 + c->experts));
    double *logits = (double *)malloc(c->experts * sizeof(double));
    double diff = 0, total = 0;
    for (int t = 0; t < c->tokens; t++) {
        double squares = 0;
        for (size_t i = 0; i < n; i++)
            squares += pow(x.host[t * n + i], 2);
        for (size_t i = 0; i < n; i++) {
            double want = x.host[t * n + i] / sqrt(squares / c->n + 1e-5) * (1 + norm.host[i]);
            diff += pow(element_value(normed, t * n + i, is_f16) - want, 2);
            total += want * want;
        }
        for (int e = 0; e < c->experts; e++) {
            logits[e] = 0;
            for (size_t i = 0; i < n; i++)
                logits[e] +=
                    (double)element_value(normed, t * n + i, is_f16) * weight.host[e * n + i];
        }
        int ids[ROUTER_MAX_EXPERTS];
        for (int k = 0; k < c->top_k && is_right; k++) {
            int slot = slot_of[t * c->top_k + k];
            is_right = slot >= 0 && slot < (int)slots && token_of[slot] == t;
            ids[k] = 0;
            while (is_right && ids[k] < c->experts - 1 && slot >= start[ids[k] + 1])
                ids[k]++;
        }
        is_right = is_right && are_choices(c, logits, ids, weights + t * c->top_k);
    }
    int num_tiles = 0;
    for (int e = 0; e < c->experts && is_right; e++) {
        if (start[e + 1] == start[e])
            continue;
        int end = start[e + 1]; // of tiles of some size, the first of each expert
        is_right = tiles[1 + 2 * num_tiles] == e && tiles[2 + 2 * num_tiles] == start[e];
        num_tiles++;
        while (num_tiles < tiles[0] && tiles[1 + 2 * num_tiles] == e)
            is_right = is_right && tiles[2 + 2 * num_tiles++] < end;
    }
    is_right = is_right && tiles[0] == num_tiles && start[c->experts] == (int)slots;
    double error = sqrt(diff / total);
    if (!is_right || !(error <= 6e-3))
        printf("  router %s %d tokens, %d of %d, n %d: norm's error %.2e, routes %s\n",
               is_f16 ? "f16" : "bf16", c->tokens, c->top_k, c->experts, c->n, error,
               is_right ? "right" : "wrong");
    free(normed);
    free(weights);
    free(slot_of);
    free(token_of);
    free(start);
    free(tiles);
    free(logits);
    free_elements(x);
    free_elements(norm);
    free_elements(weight);
    cudaFree(args.out);
    free_routes(args.routes);
    return is_right ? error : 1;
}

static inline double check_router(const struct cuda_launch *launch)
{
    static const struct router_case cases[] = {
        {1, 8, 128, 2048, true}, {16, 8, 128, 2048, true},  {7, 2, 8, 4096, false},
        {3, 1, 1, 256, false},   {13, 16, 256, 768, false}, {16, 4, 60, 8192, true},
        {16, 17, 64, 512, true}, {75, 8, 128, 2048, true},  {9, 16, 17, 512, true},
    };
    double worst = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        worst = worse_of(worst, check_router_case(launch, &cases[i]));
    return worst;
}

static inline double check_experts(const struct cuda_launch *launch)
{
    static const struct experts_case cases[] = {
        {1, 8, 128, 256, 96, false},  {1, 8, 128, 256, 96, true},    {5, 3, 8, 64, 64, true},
        {64, 2, 4, 32, 208, true},    {300, 2, 4, 136, 136, false},  {600, 2, 4, 256, 272, true},
        {700, 1, 1, 72, 1552, true},  {1, 1, 1, 8, 8, false},        {17, 6, 1024, 64, 16, true},
        {40, 4, 60, 520, 128, false}, {80, 8, 16, 2048, 512, true},  {200, 4, 8, 768, 2048, false},
        {900, 2, 5, 200, 528, true},  {900, 2, 5, 200, 576, true},   {700, 1, 1, 72, 1536, true},
        {300, 2, 4, 136, 160, false}, {400, 2, 4, 768, 2048, false},
    };
    double worst = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        worst = worse_of(worst, check_experts_case(launch, &cases[i]));
    return worst;
}
