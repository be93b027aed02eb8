// Mixtures of experts on the CPU: choosing, sorting by expert, and one matmul() for each expert
// that was chosen. matmul() gives a row the same result in a batch of any size, so a token's result
// does not depend on who else chose its experts.
#include <math.h>
#include <string.h>

#include "ops/cpu/cpu_ops.h"

enum {
    MAX_GATHERED_ROWS = 192, // rows that are brought together at a time
    COMBINED_COLUMNS = 256,  // columns of a token that are added up at a time
};

/** A broken logit is chosen last. */
static float rank_of(float logit)
{
    return isnan(logit) ? -INFINITY : logit;
}

/** The best expert behind (`value`, `id`) in the order of falling logits and rising ids. */
static int32_t next_choice(const float *logits, int32_t num_experts, float value, int32_t id)
{
    int32_t best = -1;
    for (int32_t e = 0; e < num_experts; e++) {
        float v = rank_of(logits[e]);
        bool is_behind = v < value || (v == value && e > id);
        if (is_behind && (best < 0 || v > rank_of(logits[best])))
            best = e;
    }
    return best;
}

/** One token's choices, as ids, and their weights. */
static void choose(const float *logits, int32_t num_experts, int32_t top_k, bool renormalises,
                   int32_t *ids, float *weights)
{
    float value = INFINITY;
    int32_t id = -1;
    double sum = 0, chosen = 0;
    for (int32_t k = 0; k < top_k; k++) {
        id = next_choice(logits, num_experts, value, id);
        value = rank_of(logits[id]);
        ids[k] = id;
    }
    float largest = rank_of(logits[ids[0]]);
    for (int32_t e = 0; e < num_experts; e++)
        sum += exp((double)logits[e] - largest);
    for (int32_t k = 0; k < top_k; k++)
        chosen += exp((double)logits[ids[k]] - largest);
    for (int32_t k = 0; k < top_k; k++)
        weights[k] = (float)(exp((double)logits[ids[k]] - largest) / (renormalises ? chosen : sum));
}

/** Turns `slots` from experts' ids into slots. */
static void sort_by_expert(const struct expert_routes *routes)
{
    int64_t num_slots = (int64_t)routes->num_tokens * routes->top_k;
    int32_t *start = routes->expert_start, next[MAX_EXPERTS];
    memset(start, 0, ((size_t)routes->num_experts + 1) * sizeof(*start));
    for (int64_t i = 0; i < num_slots; i++)
        start[routes->slots[i] + 1]++;
    for (int32_t e = 0; e < routes->num_experts; e++)
        start[e + 1] += start[e];
    memcpy(next, start, (size_t)routes->num_experts * sizeof(*next));
    for (int64_t i = 0; i < num_slots; i++) {
        int32_t slot = next[routes->slots[i]]++;
        routes->slots[i] = slot;
        routes->tokens[slot] = (int32_t)(i / routes->top_k);
    }
}

void cpu_route_experts(struct device *dev, const struct expert_routes *routes, struct tensor logits,
                       bool renormalises)
{
    int32_t num_experts = routes->num_experts, top_k = routes->top_k;
    int threads = cpu_threads_for(dev, (int64_t)routes->num_tokens * num_experts * (top_k + 8));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int32_t t = 0; t < routes->num_tokens; t++)
        choose((const float *)logits.data + (int64_t)t * num_experts, num_experts, top_k,
               renormalises, routes->slots + (int64_t)t * top_k,
               routes->weights + (int64_t)t * top_k);
    sort_by_expert(routes);
}

bool cpu_fuses_router(const struct device *dev, int64_t num_tokens, const struct weight *router)
{
    enum { MAX_ROWS = 16 };
    (void)dev, (void)router;
    return num_tokens <= MAX_ROWS;
}

void cpu_fused_router(struct device *dev, const struct expert_routes *routes, struct tensor out,
                      struct tensor x, struct norm_params norm, const struct weight *router,
                      bool renormalises)
{
    struct arena_mark mark = arena_mark(&dev->scratch);
    int64_t count = (int64_t)routes->num_tokens * routes->num_experts;
    struct tensor logits = tensor_2d(arena_array(&dev->scratch, float, count), DTYPE_F32,
                                     routes->num_tokens, routes->num_experts);
    dev->ops.rms_norm(dev, out, x, norm);
    dev->ops.matmul(dev, logits, out, router);
    cpu_route_experts(dev, routes, logits, renormalises);
    cpu_scratch_end(&dev->scratch, mark);
}

void cpu_matmul_experts(struct device *dev, struct tensor out, struct tensor x,
                        const struct expert_weights *w, const struct expert_routes *routes,
                        struct expert_product product)
{
    struct arena_mark mark = arena_mark(&dev->scratch);
    int64_t cols = w->in_features, max_rows = min_i64(MAX_GATHERED_ROWS, out.shape[0]);
    float *gathered = NULL, *gate_up = NULL;
    if (product.is_by_token)
        gathered = arena_array(&dev->scratch, float, max_rows *cols);
    if (product.is_swiglu)
        gate_up = arena_array(&dev->scratch, float, max_rows * w->out_features);
    for (int32_t e = 0; e < w->num_experts; e++) {
        const struct weight expert = {.form = w->form,
                                      .out_features = w->out_features,
                                      .in_features = w->in_features,
                                      .data = w->data[e]};
        int32_t end = routes->expert_start[e + 1];
        for (int32_t slot = routes->expert_start[e]; slot < end; slot += MAX_GATHERED_ROWS) {
            int64_t rows = min_i32(MAX_GATHERED_ROWS, end - slot);
            struct tensor in = product.is_by_token ? tensor_2d(gathered, DTYPE_F32, rows, cols)
                                                   : tensor_rows(x, slot, rows);
            for (int64_t i = 0; product.is_by_token && i < rows; i++)
                memcpy(gathered + i * cols, (const float *)x.data + routes->tokens[slot + i] * cols,
                       (size_t)cols * sizeof(float));
            struct tensor to = tensor_rows(out, slot, rows);
            if (product.is_swiglu) {
                struct tensor both = tensor_2d(gate_up, DTYPE_F32, rows, w->out_features);
                dev->ops.matmul(dev, both, in, &expert);
                dev->ops.silu_and_mul(dev, to, both);
            } else {
                dev->ops.matmul(dev, to, in, &expert);
            }
        }
    }
    cpu_scratch_end(&dev->scratch, mark);
}

/** A token's sum in `num` columns from `first` on. */
static void combine_columns(float *out, const float *x, int64_t n, int64_t first, int64_t num,
                            const int32_t *slots, const float *weights, int32_t top_k, bool adds)
{
    float sum[COMBINED_COLUMNS] = {0};
    for (int32_t k = 0; k < top_k; k++) {
        const float *from = x + slots[k] * n + first;
        for (int64_t i = 0; i < num; i++)
            sum[i] += weights[k] * from[i];
    }
    for (int64_t i = 0; i < num; i++)
        out[first + i] = adds ? out[first + i] + sum[i] : sum[i];
}

void cpu_combine_experts(struct device *dev, struct tensor out, struct tensor x,
                         const struct expert_routes *routes, bool adds)
{
    int64_t n = out.shape[1];
    int32_t top_k = routes->top_k;
    int threads = cpu_threads_for(dev, tensor_numel(x));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int32_t t = 0; t < routes->num_tokens; t++) {
        int64_t choice = (int64_t)t * top_k;
        for (int64_t i = 0; i < n; i += COMBINED_COLUMNS)
            combine_columns((float *)out.data + t * n, x.data, n, i,
                            min_i64(COMBINED_COLUMNS, n - i), routes->slots + choice,
                            routes->weights + choice, top_k, adds);
    }
}
