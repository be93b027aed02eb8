// Around the experts' products: which experts a token goes to, the choices sorted by expert and cut
// into tiles, and the weighted sum of what came back. Nothing here waits for the host or depends on
// it but for the number of tokens, so that it can be captured in a graph.
#include <cooperative_groups.h>

#include "ops/cuda/moe.cuh"

namespace cg = cooperative_groups;

enum { WARPS = 8, SORT_THREADS = 1024, COMBINE_THREADS = 256 };
enum { SORTED_ALONE = 2048, SORT_RANKS = 8 }; // choices that one CTA sorts; else so many CTAs

// ---- Choosing ------------------------------------------------------------------------------

struct choose_args {
    struct cuda_expert_routes routes;
    const float *logits;
    bool renormalises;
};

/** A warp per token. Leaves experts' ids where slots will be. */
static __global__
__launch_bounds__(WARPS * 32) void choose_kernel(const __grid_constant__ struct choose_args a)
{
    int token = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    int num_experts = a.routes.num_experts, top_k = a.routes.top_k;
    dependents_launch();
    dependency_wait();
    if (token >= a.routes.num_tokens)
        return;
    const float *logits = a.logits + (size_t)token * num_experts;
    int32_t *ids = a.routes.slots + (size_t)token * top_k;
    float *weights = a.routes.weights + (size_t)token * top_k;
    choose_experts(logits, num_experts, top_k, a.renormalises, ids, weights);
}

// ---- Sorting -------------------------------------------------------------------------------

struct sort_args {
    struct cuda_expert_routes routes;
    int32_t tile_rows;
};

/** Where the experts' slots begin, and the tiles they are cut into; a thread has its expert's `num`
 *  slots from `start` on. */
DEVICE void describe_slots(const struct sort_args &a, int num, int start, int *warps)
{
    const struct cuda_expert_routes &r = a.routes;
    int thread = (int)threadIdx.x;
    if (thread <= r.num_experts) // the one behind the last counts nothing and starts at the end
        r.expert_start[thread] = start;
    if (thread == SORT_THREADS - 1 && r.num_experts == SORT_THREADS)
        r.expert_start[SORT_THREADS] = start + num;
    int tiles = (num + a.tile_rows - 1) / a.tile_rows, tile_end = block_prefix(tiles, warps);
    for (int i = 0; i < tiles; i++) {
        r.tiles[1 + 2 * (tile_end - tiles + i)] = thread;
        r.tiles[2 + 2 * (tile_end - tiles + i)] = start + i * a.tile_rows;
    }
    if (thread == SORT_THREADS - 1)
        r.tiles[0] = tile_end;
}

/** A cluster, each CTA for its share of the choices: counts them, learns where its share of each
 *  expert's slots begins, and hands these out; a thread per expert in between. */
static __global__
__launch_bounds__(SORT_THREADS) void sort_kernel(const __grid_constant__ struct sort_args a)
{
    __shared__ int count[SORT_THREADS], next[SORT_THREADS], warps[32];
    cg::cluster_group cluster = cg::this_cluster();
    const struct cuda_expert_routes &r = a.routes;
    int rank = (int)cluster.block_rank(), ranks = (int)cluster.num_blocks();
    int thread = (int)threadIdx.x, share = (r.num_tokens * r.top_k + ranks - 1) / ranks;
    int first = rank * share, end = min(first + share, r.num_tokens * r.top_k);
    count[thread] = 0;
    dependents_launch();
    dependency_wait();
    __syncthreads();
#pragma unroll 4
    for (int i = first + thread; i < end; i += SORT_THREADS)
        atomicAdd(&count[r.slots[i]], 1);
    cluster.sync();          // all counts are whole
    int num = 0, before = 0; // of all ranks, and of the lower ones
    for (int i = 0; i < ranks; i++) {
        int of_rank = *cluster.map_shared_rank(&count[thread], i);
        num += of_rank;
        before += i < rank ? of_rank : 0;
    }
    int start = block_prefix(num, warps) - num;
    next[thread] = start + before;
    if (rank == 0)
        describe_slots(a, num, start, warps);
    __syncthreads();
#pragma unroll 4
    for (int i = first + thread; i < end; i += SORT_THREADS) {
        int slot = atomicAdd(&next[r.slots[i]], 1);
        r.slots[i] = slot;
        r.tokens[slot] = i / r.top_k;
    }
    cluster.sync(); // nobody reads these counts any more
}

void sort_expert_choices(const struct cuda_launch *launch, const struct cuda_expert_routes *routes)
{
    struct sort_args args = {*routes, expert_tile_rows(*routes)};
    int ranks = routes->num_tokens * routes->top_k > SORTED_ALONE ? SORT_RANKS : 1;
    launch_kernel(launch, (const void *)sort_kernel, dim3((unsigned)ranks), SORT_THREADS, 0, &args,
                  ranks);
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
    sort_expert_choices(launch, routes);
}

// ---- Adding up -----------------------------------------------------------------------------

struct combine_args {
    void *out;
    const void *x;
    struct cuda_expert_routes routes;
    int32_t n;
    bool adds;     // to what `out` holds
    int64_t total; // units
};

template <typename T, int UNIT>
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
        load_unit<UNIT>(v,
                        (const T *)a.x + (size_t)a.routes.slots[token * top_k + k] * a.n + column);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            sum[i] += weight * v[i];
    }
    T *to = (T *)a.out + token * a.n + column;
    if (a.adds) {
        load_unit<UNIT>(v, to);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            sum[i] += v[i];
    }
    store_unit<UNIT>(to, sum);
}

template <typename T> static const void *combine_kernel_of(bool is_vectors)
{
    return is_vectors ? (const void *)combine_kernel<T, 8> : (const void *)combine_kernel<T, 1>;
}

void cuda_combine_experts(const struct cuda_launch *launch, void *out, const void *x,
                          const struct cuda_expert_routes *routes, int32_t n, bool adds)
{
    bool is_vectors = n % 8 == 0;
    struct combine_args args = {out, x,    *routes,
                                n,   adds, (int64_t)routes->num_tokens * (is_vectors ? n / 8 : n)};
    if (args.total == 0)
        return;
    launch_kernel(launch,
                  launch->is_f16 ? combine_kernel_of<__half>(is_vectors)
                                 : combine_kernel_of<__nv_bfloat16>(is_vectors),
                  dim3((unsigned)((args.total + COMBINE_THREADS - 1) / COMBINE_THREADS)),
                  COMBINE_THREADS, 0, &args);
}
