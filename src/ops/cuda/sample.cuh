// A row of logits spread over the shared memory of a cluster of eight CTAs: read from memory once,
// walked as often as sampling needs. Rank r holds ids [r * share, (r + 1) * share), so the order of
// ids is the order of ranks.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/common.cuh"

namespace cg = cooperative_groups;

constexpr int CLUSTER = 8, SAMPLE_THREADS = 512, SAMPLE_WARPS = SAMPLE_THREADS / 32;

/** Ids per rank: a multiple of four, for 16-byte loads. */
static __host__ __device__ inline int share_of(int vocab_size)
{
    return ((vocab_size + CLUSTER - 1) / CLUSTER + 3) / 4 * 4;
}

/** Floats in an order that unsigned integers keep; zeros compare equal; 0 is below every number. */
DEVICE uint32_t ordered_key(float x)
{
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE float key_value(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/** A logit and its id; the greatest is the largest logit, of the lowest id on a tie. */
struct ranked {
    uint32_t key;
    int32_t id;
};

DEVICE bool ranks_before(struct ranked a, struct ranked b)
{
    return a.key > b.key || (a.key == b.key && a.id < b.id);
}

DEVICE struct ranked warp_first(struct ranked v)
{
    struct ranked best;
    best.key = __reduce_max_sync(0xffffffffu, v.key);
    best.id = __reduce_min_sync(0xffffffffu, v.key == best.key ? v.id : INT32_MAX);
    return best;
}

/** First in rank over the block; `shared`: one per warp. Ends with a barrier before reuse. */
DEVICE struct ranked block_first(struct ranked v, struct ranked *shared)
{
    v = warp_first(v);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
    struct ranked best = {0, INT32_MAX};
    if (threadIdx.x % 32 < SAMPLE_WARPS)
        best = shared[threadIdx.x % 32];
    best = warp_first(best);
    __syncthreads();
    return best;
}

/** What a logit says about its row: not usable at all; a token that may be drawn. */
enum { FLAG_BAD = 1, FLAG_ANY = 2 };

DEVICE uint32_t logit_flags(float x)
{
    return (x < INFINITY ? 0 : FLAG_BAD) | (x > -INFINITY ? FLAG_ANY : 0);
}

/** Copies this rank's share of a row; past the vocabulary: -infinity. Returns the flags of what
 * this thread copied. */
DEVICE uint32_t load_share(float *x, const float *row, int first, int share, int vocab_size)
{
    int num = min(share, vocab_size - first);
    uint32_t flags = 0;
    if (num == share && ((uintptr_t)(row + first) & 15) == 0) {
        const float4 *src = (const float4 *)(row + first);
#pragma unroll 5
        for (int i = (int)threadIdx.x; i < share / 4; i += SAMPLE_THREADS) {
            float4 v = __ldcg(src + i);
            ((float4 *)x)[i] = v;
            flags |= logit_flags(v.x) | logit_flags(v.y) | logit_flags(v.z) | logit_flags(v.w);
        }
    } else {
        for (int i = (int)threadIdx.x; i < share; i += SAMPLE_THREADS) {
            x[i] = i < num ? __ldcg(row + first + i) : -INFINITY;
            flags |= logit_flags(x[i]);
        }
    }
    return flags;
}

/** Takes the ids away whose bit is not set; what is no number stays, to be seen. Ends with a
 *  barrier. */
DEVICE void apply_mask(float *x, const uint32_t *mask, int first, int share, int vocab_size)
{
    int num = min(share, vocab_size - first);
    for (int i = (int)threadIdx.x; i < num; i += SAMPLE_THREADS) {
        int id = first + i;
        if (!(mask[id / 32] >> id % 32 & 1) && x[i] < INFINITY)
            x[i] = -INFINITY;
    }
    __syncthreads();
}
