// Around the experts' products: which experts a token goes to, the choices sorted by expert and cut
// into tiles, and the weighted sum of what came back. Nothing here waits for the host or depends on
// it but for the number of tokens, so that it can be captured in a graph.
#include "ops/cuda/moe.cuh"

enum { WARPS = 8, SORT_THREADS = 1024, COMBINE_THREADS = 256 };

// ---- Choosing ------------------------------------------------------------------------------

struct choose_args {
    struct cuda_expert_routes routes;
    const float *logits;
    bool renormalises;
};

/** A broken logit is chosen last. */
DEVICE float rank_of(float logit)
{
    return isnan(logit) ? -INFINITY : logit;
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
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, best, i);
        int other_id = __shfl_xor_sync(0xffffffffu, best_id, i);
        if (other > best || (other == best && other_id < best_id)) {
            best = other;
            best_id = other_id;
        }
    }
    return best_id;
}

/** A warp per token. Leaves experts' ids where slots will be. */
static __global__
__launch_bounds__(WARPS * 32) void choose_kernel(const __grid_constant__ struct choose_args a)
{
    int token = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int num_experts = a.routes.num_experts, top_k = a.routes.top_k;
    dependents_launch();
    dependency_wait();
    if (token >= a.routes.num_tokens)
        return;
    const float *logits = a.logits + (size_t)token * num_experts;
    int32_t *ids = a.routes.slots + (size_t)token * top_k;
    float *weights = a.routes.weights + (size_t)token * top_k;
    float value = INFINITY, largest = 0, chosen = 0;
    int id = -1;
    for (int k = 0; k < top_k; k++) {
        id = next_choice(logits, num_experts, value, id);
        value = rank_of(logits[id]);
        largest = k == 0 ? value : largest;
        float weight = expf(logits[id] - largest);
        chosen += weight;
        if (lane == 0) {
            ids[k] = id;
            weights[k] = weight;
        }
    }
    float sum = 0;
    for (int e = lane; e < num_experts; e += 32)
        sum += expf(logits[e] - largest);
    sum = a.renormalises ? chosen : warp_sum(sum);
    __syncwarp();
    for (int k = lane; k < top_k; k += 32)
        weights[k] /= sum;
}

// ---- Sorting -------------------------------------------------------------------------------

struct sort_args {
    struct cuda_expert_routes routes;
    int32_t tile_rows;
};

/** One block: counts, adds up, and hands out slots; a thread per expert in between. */
static __global__
__launch_bounds__(SORT_THREADS) void sort_kernel(const __grid_constant__ struct sort_args a)
{
    __shared__ int count[SORT_THREADS], next[SORT_THREADS], warps[32];
    const struct cuda_expert_routes &r = a.routes;
    int thread = (int)threadIdx.x, num_slots = r.num_tokens * r.top_k;
    count[thread] = 0;
    dependents_launch();
    dependency_wait();
    __syncthreads();
    for (int i = thread; i < num_slots; i += SORT_THREADS)
        atomicAdd(&count[r.slots[i]], 1);
    __syncthreads();
    int num = count[thread], end = block_prefix(num, warps), start = end - num;
    next[thread] = start;
    if (thread <= r.num_experts) // the one behind the last counts nothing and starts at the end
        r.expert_start[thread] = start;
    if (thread == SORT_THREADS - 1 && r.num_experts == SORT_THREADS)
        r.expert_start[SORT_THREADS] = end;
    int tiles = (num + a.tile_rows - 1) / a.tile_rows, tile_end = block_prefix(tiles, warps);
    for (int i = 0; i < tiles; i++) {
        r.tiles[1 + 2 * (tile_end - tiles + i)] = thread;
        r.tiles[2 + 2 * (tile_end - tiles + i)] = start + i * a.tile_rows;
    }
    if (thread == SORT_THREADS - 1)
        r.tiles[0] = tile_end;
    __syncthreads();
    for (int i = thread; i < num_slots; i += SORT_THREADS) {
        int slot = atomicAdd(&next[r.slots[i]], 1);
        r.slots[i] = slot;
        r.tokens[slot] = i / r.top_k;
    }
}

void cuda_route_experts(const struct cuda_launch *launch, const struct cuda_expert_routes *routes,
                        const float *logits, bool renormalises)
{
    if (routes->num_tokens == 0)
        return;
    struct choose_args choose = {*routes, logits, renormalises};
    launch_kernel(launch, (const void *)choose_kernel,
                  dim3((unsigned)((routes->num_tokens + WARPS - 1) / WARPS)), WARPS * 32, 0,
                  &choose);
    struct sort_args sort = {*routes, expert_tile_rows(*routes)};
    launch_kernel(launch, (const void *)sort_kernel, dim3(1), SORT_THREADS, 0, &sort);
}

// ---- Adding up -----------------------------------------------------------------------------

struct combine_args {
    __nv_bfloat16 *out;
    const __nv_bfloat16 *x;
    struct cuda_expert_routes routes;
    int32_t n;
    int64_t total; // units
};

template <int UNIT>
static __global__ __launch_bounds__(COMBINE_THREADS) void combine_kernel(
    const __grid_constant__ struct combine_args a)
{
    int64_t at = (int64_t)blockIdx.x * COMBINE_THREADS + threadIdx.x;
    int units = a.n / UNIT, top_k = a.routes.top_k;
    dependents_launch();
    dependency_wait();
    if (at >= a.total)
        return;
    int64_t token = at / units, column = at % units * UNIT;
    float sum[UNIT] = {}, v[UNIT];
    for (int k = 0; k < top_k; k++) {
        float weight = a.routes.weights[token * top_k + k];
        load_unit<UNIT>(v, a.x + (size_t)a.routes.slots[token * top_k + k] * a.n + column);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            sum[i] += weight * v[i];
    }
    store_unit<UNIT>(a.out + token * a.n + column, sum);
}

void cuda_combine_experts(const struct cuda_launch *launch, void *out, const void *x,
                          const struct cuda_expert_routes *routes, int32_t n)
{
    bool is_vectors = n % 8 == 0;
    struct combine_args args = {(__nv_bfloat16 *)out, (const __nv_bfloat16 *)x, *routes, n,
                                (int64_t)routes->num_tokens * (is_vectors ? n / 8 : n)};
    if (args.total == 0)
        return;
    launch_kernel(launch,
                  is_vectors ? (const void *)combine_kernel<8> : (const void *)combine_kernel<1>,
                  dim3((unsigned)((args.total + COMBINE_THREADS - 1) / COMBINE_THREADS)),
                  COMBINE_THREADS, 0, &args);
}
