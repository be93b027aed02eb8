// What the kernels around the experts agree on: into how many rows at a time an expert's slots are
// cut, and how a token chooses.
#pragma once

#include "ops/cuda/common.cuh"

// ---- Tiles ---------------------------------------------------------------------------------

/** Few rows an expert: small tiles, which read weights and little else; many: tiles that reuse
 * them.
 */
static inline int expert_tile_rows(const struct cuda_expert_routes &routes)
{
    int rows = routes.num_tokens * routes.top_k / routes.num_experts;
    return rows <= 5 ? 16 : rows <= 20 ? 32 : rows <= 48 ? 64 : 128;
}

/** At most so many tiles come of it. */
static inline int expert_max_tiles(const struct cuda_expert_routes &routes)
{
    int slots = routes.num_tokens * routes.top_k;
    return slots / expert_tile_rows(routes) +
           (slots < routes.num_experts ? slots : routes.num_experts);
}

// ---- Choosing ------------------------------------------------------------------------------

/** A broken logit is chosen last. */
DEVICE float rank_of(float logit)
{
    return isnan(logit) ? -INFINITY : logit;
}

/** Words in the order of the numbers, and above 0. */
DEVICE uint32_t ordered_word(float v)
{
    uint32_t bits = __float_as_uint(v + 0.0f); // both zeros are one
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/** The best expert behind (`value`, `id`) in the order of falling logits and rising ids. */
DEVICE int next_choice(const float *logits, int num_experts, float value, int id)
{
    int best_id = INT32_MAX;
    float best = -INFINITY;
    for (int e = (int)threadIdx.x % 32; e < num_experts; e += 32) {
        float v = rank_of(logits[e]);
        bool is_behind = v < value || (v == value && e > id);
        if (is_behind && (v > best || best_id == INT32_MAX)) {
            best = v;
            best_id = e;
        }
    }
    uint32_t word = best_id == INT32_MAX ? 0 : ordered_word(best);
    bool is_best = word == __reduce_max_sync(0xffffffffu, word);
    return __reduce_min_sync(0xffffffffu, is_best ? best_id : INT32_MAX);
}

/** A warp chooses for one token: ids and weights, [top_k] each. */
DEVICE void choose_experts(const float *logits, int num_experts, int top_k, bool renormalises,
                           int32_t *ids, float *weights)
{
    int lane = (int)threadIdx.x % 32, last = (top_k - 1) / 32 * 32;
    float value = INFINITY, largest = 0, sum = 0, weight = 0;
    int id = -1, mine = -1; // a lane has one of each 32 choices
    for (int k = 0; k < top_k; k++) {
        id = next_choice(logits, num_experts, value, id);
        value = rank_of(logits[id]);
        largest = k == 0 ? value : largest;
        float of_choice = expf(logits[id] - largest);
        sum += of_choice;
        if (lane == k % 32) {
            mine = id;
            weight = of_choice;
        }
        if (k % 32 == 31 && k < last) {
            ids[k - 31 + lane] = mine;
            weights[k - 31 + lane] = weight;
        }
    }
    if (!renormalises) {
        sum = 0;
        for (int e = lane; e < num_experts; e += 32)
            sum += expf(logits[e] - largest);
        sum = warp_sum(sum);
    }
    for (int k = lane; k < last; k += 32)
        weights[k] /= sum;
    if (last + lane < top_k) {
        ids[last + lane] = mine;
        weights[last + lane] = weight / sum;
    }
}

/** Turns routes.slots from experts' ids into slots, and fills what depends on them. */
void sort_expert_choices(const struct cuda_launch *launch, const struct cuda_expert_routes *routes);

// ---- Products ------------------------------------------------------------------------------

/** Whether cuda_stream_experts() takes these products. */
bool cuda_streams_experts(const struct expert_matmul_args *args);
void cuda_stream_experts(const struct cuda_launch *launch, const struct expert_matmul_args *args);
