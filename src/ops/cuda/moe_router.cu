// From the residual stream of few tokens to their experts: norm, router and choice in one launch, a
// cluster of eight CTAs to 16 tokens. Where one cluster does, it sorts as well.
//
// A CTA has an eighth of the columns: it normalises them, and multiplies them with its part of the
// router's rows, which come in while the kernel before still runs. Parts of the sums are exchanged
// through the cluster's shared memory and added up in the order of the ranks. Then a CTA chooses
// for two of the tokens.
#include <cooperative_groups.h>

#include "ops/cuda/moe.cuh"

namespace cg = cooperative_groups;

enum { RANKS = 8, WARPS = 8, THREADS = WARPS * 32, STEP = 32, AHEAD = 8 };
enum { TOKENS = 16, MAX_SORTED = 256 }; // of a cluster; choices that it sorts

/** What a CTA shows to the others, and what it keeps. */
struct router_memory {
    float logits[TOKENS][ROUTER_MAX_EXPERTS];              // its part of each sum
    int32_t ids[MAX_SORTED];                               // of the first CTA: filled by all
    float chosen_from[TOKENS / RANKS][ROUTER_MAX_EXPERTS]; // whole logits, a row to a choosing warp
    int warps[32];
};

/** The cluster's tokens, and what becomes of them. */
struct router_share {
    int first, num;
    bool sorts;
};

DEVICE struct router_share share_of(const struct router_args &a)
{
    struct router_share share;
    share.first = (int)blockIdx.x / RANKS * TOKENS;
    share.num = min(TOKENS, a.routes.num_tokens - share.first);
    share.sorts = gridDim.x == RANKS && a.routes.num_tokens * a.routes.top_k <= MAX_SORTED;
    return share;
}

/** A lane's part of a tile of 16 of the router's rows: two rows, eight columns to each step. */
struct router_part {
    uint4 lower[AHEAD], upper[AHEAD];
};

/** Steps from `step` on, of rows `tile` * 16 and up; zeros behind the end of either. */
template <typename T>
DEVICE void load_router(struct router_part *part, const struct router_args &a, int tile, int step,
                        int first_col, int num_cols)
{
    int lane = threadIdx.x % 32, row = tile * 16 + lane / 4;
    const T *weight = (const T *)a.weight + (size_t)row * a.n + first_col + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int at = (step + i) * STEP;
        part->lower[i] = part->upper[i] = make_uint4(0, 0, 0, 0);
        if (at < num_cols && row < a.routes.num_experts)
            part->lower[i] = __ldg((const uint4 *)(weight + at));
        if (at < num_cols && row + 8 < a.routes.num_experts)
            part->upper[i] = __ldg((const uint4 *)(weight + (size_t)8 * a.n + at));
    }
}

/** This CTA's columns of the norm of each row, to memory and to `normed` [TOKENS, pitch]. Every CTA
 *  adds up all of a row's squares: reading it takes less time than meeting the others. */
template <typename T>
DEVICE void normalise(const struct router_args &a, const struct router_share &share, T *normed,
                      int pitch, int first_col, int num_cols)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int token = warp; token < share.num; token += WARPS) {
        size_t row = (size_t)(share.first + token) * a.n;
        float squares = 0;
#pragma unroll 4
        for (int at = lane * 8; at < a.n; at += 256) {
            float v[8];
            load_unit<8>(v, (const T *)a.x + row + at);
#pragma unroll
            for (int i = 0; i < 8; i++)
                squares += v[i] * v[i];
        }
        squares = warp_sum(squares);
        row += first_col;
        float scale = rsqrtf(squares / (float)a.n + a.norm.eps);
        for (int at = lane * 8; at < num_cols; at += 256) {
            float v[8], w[8];
            load_unit<8>(v, (const T *)a.x + row + at);
            load_unit<8>(w, (const T *)a.norm.weight + first_col + at);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = (a.norm.offset + w[i]) * (v[i] * scale);
            uint4 stored = pack8<T>(v);
            *(uint4 *)((T *)a.out + row + at) = stored;
            *(uint4 *)(normed + token * pitch + at) = stored;
        }
    }
    __syncthreads();
}

/** This CTA's part of the logits. As the lanes of gemv(), a lane takes eight neighbours in k for
 *  what mma calls k, k + 1, k + 8, k + 9 of two products. */
template <typename T>
DEVICE void multiply_router(const struct router_args &a, int num_tokens, struct router_memory *m,
                            const T *normed, int pitch, int first_col, int num_cols,
                            struct router_part *part)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = num_cols / STEP;
    int num_experts = a.routes.num_experts;
    const T *x = normed + lane / 4 * pitch + lane % 4 * 8;
    for (int tile = warp; tile * 16 < num_experts; tile += WARPS) {
        float acc[2][4] = {};
        for (int step = 0; step < steps; step += AHEAD) {
            if (step > 0 || tile > warp)
                load_router<T>(part, a, tile, step, first_col, num_cols);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (step + i >= steps)
                    break;
                uint4 lower = part->lower[i], upper = part->upper[i];
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    uint4 v = make_uint4(0, 0, 0, 0);
                    if (lane / 4 + 8 * t < num_tokens)
                        v = *(const uint4 *)(x + 8 * t * pitch + (step + i) * STEP);
                    mma_16816<IS_F16<T>>(acc[t], lower.x, upper.x, lower.y, upper.y, v.x, v.y);
                    mma_16816<IS_F16<T>>(acc[t], lower.z, upper.z, lower.w, upper.w, v.z, v.w);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < 2; t++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int token = 8 * t + lane % 4 * 2 + c % 2, expert = tile * 16 + lane / 4 + c / 2 * 8;
                if (expert < num_experts)
                    m->logits[token][expert] = acc[t][c];
            }
        }
    }
}

/** Whole logits of this rank's tokens, and what they choose; ids go to the first CTA or, not sorted
 *  yet, where slots will be. */
DEVICE void choose_for_tokens(const struct router_args &a, const struct router_share &share,
                              struct router_memory *m)
{
    cg::cluster_group cluster = cg::this_cluster();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top_k = a.routes.top_k;
    int token = (int)cluster.block_rank() + warp * RANKS;
    if (token >= share.num)
        return;
    size_t choices = (size_t)(share.first + token) * top_k;
    int32_t *ids = a.routes.slots + choices;
    if (share.sorts)
        ids = cluster.map_shared_rank(m, 0)->ids + token * top_k;
    float *logits = m->chosen_from[warp];
    for (int e = lane; e < a.routes.num_experts; e += 32) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < RANKS; i++)
            sum += cluster.map_shared_rank(m, i)->logits[token][e];
        logits[e] = sum;
    }
    __syncwarp();
    choose_experts(logits, a.routes.num_experts, top_k, a.renormalises, ids,
                   a.routes.weights + choices);
}

/** A thread per choice, then per expert: with so few, counting all others is quickest. No expert
 *  has more slots than a tile takes. */
DEVICE void sort_choices(const struct router_args &a, struct router_memory *m)
{
    const struct cuda_expert_routes &r = a.routes;
    int num = r.num_tokens * r.top_k, thread = (int)threadIdx.x, count = 0, start = 0;
    if (thread < num) {
        int slot = 0, id = m->ids[thread];
        for (int i = 0; i < num; i++)
            slot += m->ids[i] < id || (m->ids[i] == id && i < thread);
        r.slots[thread] = slot;
        r.tokens[slot] = thread / r.top_k;
    }
    for (int i = 0; i < num; i++) {
        start += m->ids[i] < thread;
        count += m->ids[i] == thread;
    }
    if (thread < r.num_experts)
        r.expert_start[thread] = start;
    int has_tile = thread < r.num_experts && count > 0, tile = block_prefix(has_tile, m->warps);
    if (has_tile) {
        r.tiles[2 * tile - 1] = thread;
        r.tiles[2 * tile] = start;
    }
    if (thread == THREADS - 1) {
        r.expert_start[r.num_experts] = num;
        r.tiles[0] = tile;
    }
}

template <typename T>
static __global__
__launch_bounds__(THREADS) void router_kernel(const __grid_constant__ struct router_args a)
{
    extern __shared__ __align__(16) char normed_memory[];
    __shared__ struct router_memory m;
    cg::cluster_group cluster = cg::this_cluster();
    int rank = (int)cluster.block_rank(), num_cols = a.n / RANKS, first_col = rank * num_cols;
    int pitch = num_cols + 8; // eight rows in different banks
    struct router_share share = share_of(a);
    T *normed = (T *)normed_memory;
    struct router_part part;
    load_router<T>(&part, a, threadIdx.x / 32, 0, first_col, num_cols);
    dependents_launch();
    cluster.sync(); // every rank runs: its memory may be written
    dependency_wait();
    normalise<T>(a, share, normed, pitch, first_col, num_cols);
    multiply_router<T>(a, share.num, &m, normed, pitch, first_col, num_cols, &part);
    cluster.sync();
    choose_for_tokens(a, share, &m);
    cluster.sync(); // the choices are there, and no rank's memory is read any more
    if (share.sorts && rank == 0)
        sort_choices(a, &m);
}

bool cuda_routes_few(int32_t num_tokens, int32_t num_experts, int32_t n)
{
    enum { MAX_WIDTH = 8192 };
    return num_tokens <= ROUTER_MAX_TOKENS && num_experts <= ROUTER_MAX_EXPERTS &&
           n % (RANKS * STEP) == 0 && n <= MAX_WIDTH;
}

void cuda_route_few(const struct cuda_launch *launch, const struct router_args *args)
{
    struct router_args copy = *args;
    int num_tokens = args->routes.num_tokens, clusters = (num_tokens + TOKENS - 1) / TOKENS;
    size_t normed_bytes = (size_t)TOKENS * (size_t)(args->n / RANKS + 8) * 2;
    if (num_tokens == 0)
        return;
    launch_kernel(launch,
                  launch->is_f16 ? (const void *)router_kernel<__half>
                                 : (const void *)router_kernel<__nv_bfloat16>,
                  dim3((unsigned)(clusters * RANKS)), THREADS, normed_bytes, &copy, RANKS);
    if (clusters > 1 || num_tokens * args->routes.top_k > MAX_SORTED)
        sort_expert_choices(launch, &args->routes);
}
