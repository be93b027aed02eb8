// Causal attention of prompts, chunks and decode rows over the paged cache, in one launch.
//
// Rows are (token, head of the kv head's group) pairs: a CTA takes 128 of one sequence and kv head,
// so that keys are read once for the whole group. Sequence s owns the tiles from
// query_start[s] * group / 128 + s on: a count that grows with s and never falls short, so a CTA
// finds its sequence by bisection and the host needs to know no length. Surplus CTAs leave at once.
// Tiles run from the last to the first: the long ones start first.
//
// This kernel (FlashAttention-2, Dao 2023) multiplies with mma.m16n8k16 and serves every head size;
// what attention_prefill_wgmma.cu takes goes there.
#include "ops/cuda/attention.cuh"
#include "ops/cuda/attention_prefill.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, TOKENS = 64, STAGES = 2 };

template <int D, bool FP8> struct prefill_smem {
    static constexpr int TILE_BYTES = TOKENS / PAGE * kv_page<D, FP8>::BYTES;
    static constexpr int BYTES = STAGES * 2 * TILE_BYTES;
};

template <int D, bool FP8>
DEVICE void load_tile(const struct attention_prefill_args &a, const struct prefill_tile &t,
                      uint32_t dst, const void *pool, const int32_t *table, int first, int head)
{
    typedef kv_page<D, FP8> p;
#pragma unroll
    for (int i = 0; i < (TOKENS * p::UNITS + THREADS - 1) / THREADS; i++) {
        int unit = (int)threadIdx.x + i * THREADS, row = unit / p::UNITS;
        if (row >= TOKENS)
            break;
        int token = first + row, at = unit % p::UNITS;
        const char *src = (const char *)pool;
        // Past the end zeros, as zero times stale memory may not be zero; before the window there
        // may be no block.
        int valid = 0;
        if (token >= t.first_key && token < t.end_key) {
            int block = table[token / a.cache.block_size];
            src += page_offset(a.cache, block, token, head, p::ROW_BYTES) + at * 16;
            valid = 16;
        }
        uint32_t page = dst + row / PAGE * p::BYTES;
        cp_async16(unit_address<D, FP8>(row_address<D, FP8>(page, row % PAGE, at & 1), at & ~1),
                   src, valid);
    }
    cp_async_commit();
}

template <int D, typename T, bool FP8>
__global__
__launch_bounds__(THREADS,
                  1) void prefill_kernel(const __grid_constant__ struct attention_prefill_args a)
{
    extern __shared__ __align__(1024) char smem[]; // the swizzle's pattern
    constexpr bool F16 = FP8 || IS_F16<T>;
    constexpr int SUB = D > 128 ? 16 : TOKENS; // tokens per softmax step, as registers allow
    constexpr int PAGE_BYTES = kv_page<D, FP8>::BYTES,
                  TILE_BYTES = prefill_smem<D, FP8>::TILE_BYTES;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
    dependents_launch();
    dependency_wait();
    struct prefill_tile t;
    if (!find_prefill_tile(a, &t))
        return;
    const int32_t *table = a.block_table + (size_t)t.seq * a.max_blocks;

    const T *rows[2];
    int position[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = t.first_row + warp * 16 + lane / 4 + 8 * h;
        int token = row / t.group;
        position[h] = t.num_cached + token;
        rows[h] = row < t.num_rows ? (const T *)a.q + (size_t)(t.query_start + token) * a.q_stride +
                                         (size_t)(head * t.group + row % t.group) * D
                                   : NULL;
    }
    uint32_t q[D / 16][4];
    load_q_fragments<D, T, FP8>(q, rows);
    float o[D / 8][4] = {}, best[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    struct score_scale scale =
        make_score_scale(a.scale * (FP8 ? a.cache.k_scale : 1.0f), a.softcap);

    uint32_t base = smem_address(smem);
    int begin = t.first_key / TOKENS * TOKENS;
    load_tile<D, FP8>(a, t, base, a.cache.k, table, begin, head);
    load_tile<D, FP8>(a, t, base + TILE_BYTES, a.cache.v, table, begin, head);
    int stage = 0;
#pragma unroll 1
    for (int first = begin; first < t.end_key; first += TOKENS, stage ^= 1) {
        uint32_t k = base + stage * 2 * TILE_BYTES, v = k + TILE_BYTES;
        uint32_t next = base + (stage ^ 1) * 2 * TILE_BYTES;
        cp_async_wait<1>();
        __syncthreads(); // keys are here; the other stage is free
        if (first + TOKENS < t.end_key)
            load_tile<D, FP8>(a, t, next, a.cache.k, table, first + TOKENS, head);
        else
            cp_async_commit();
        bool is_masked = needs_mask(a, t, first, TOKENS);
#pragma unroll
        for (int sub = 0; sub < TOKENS; sub += SUB) {
            float s[SUB / 8][4] = {};
#pragma unroll
            for (int page = 0; page < SUB / PAGE; page++)
                multiply_keys<D, T, FP8>(s + 2 * page, q, k + (sub / PAGE + page) * PAGE_BYTES);
            scale_scores<SUB / 8>(s, scale);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float top = best[h];
#pragma unroll
                for (int i = 0; i < SUB / 4; i++) {
                    float &x = s[i / 2][2 * h + i % 2];
                    if (is_masked) {
                        int key = first + sub + i / 2 * 8 + lane % 4 * 2 + i % 2;
                        x = sees(a, t, position[h], key) ? x : -INFINITY;
                    }
                    top = fmaxf(top, x);
                }
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                float base = top == -INFINITY ? 0.0f : top;
                float shrink = exp2_fast(best[h] - base), subtract = base - WEIGHT_LOG2<F16>;
                best[h] = top;
                sum[h] *= shrink;
#pragma unroll
                for (int i = 0; i < SUB / 4; i++) {
                    float &x = s[i / 2][2 * h + i % 2];
                    x = exp2_fast(x - subtract);
                    sum[h] += x;
                }
#pragma unroll
                for (int i = 0; i < D / 8; i++) {
                    o[i][2 * h] *= shrink;
                    o[i][2 * h + 1] *= shrink;
                }
            }
            if (sub == 0) {
                cp_async_wait<1>();
                __syncthreads(); // values are here
                if (first + TOKENS < t.end_key)
                    load_tile<D, FP8>(a, t, next + TILE_BYTES, a.cache.v, table, first + TOKENS,
                                      head);
                else
                    cp_async_commit();
            }
#pragma unroll
            for (int page = 0; page < SUB / PAGE; page++) {
                const float(*p)[4] = s + 2 * page;
                const uint32_t fragment[4] = {
                    pack_half<F16>(p[0][0], p[0][1]), pack_half<F16>(p[0][2], p[0][3]),
                    pack_half<F16>(p[1][0], p[1][1]), pack_half<F16>(p[1][2], p[1][3])};
                multiply_values<D, T, FP8>(o, fragment, v + (sub / PAGE + page) * PAGE_BYTES);
            }
        }
    }

#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        if (!rows[h])
            continue;
        float factor = (FP8 ? a.cache.v_scale : 1.0f) / (sum[h] > 0 ? sum[h] : 1); // none: padding
        T *out = prefill_out_row<D, T>(a, t, warp * 16 + lane / 4 + 8 * h, head);
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            float x = o[i][2 * h] * factor, y = o[i][2 * h + 1] * factor;
            if (FP8) {
                out[output_dim<FP8>(i, 0)] = from_f32<T>(x);
                out[output_dim<FP8>(i, 1)] = from_f32<T>(y);
            } else {
                *(uint32_t *)(out + output_dim<FP8>(i, 0)) = pack_pair<T>(x, y);
            }
        }
    }
}

template <int D, typename T> static const void *kernel_of(bool is_fp8, size_t *smem)
{
    *smem = is_fp8 ? prefill_smem<D, true>::BYTES : prefill_smem<D, false>::BYTES;
    return is_fp8 ? (const void *)prefill_kernel<D, T, true>
                  : (const void *)prefill_kernel<D, T, false>;
}

/** NULL: refused by cuda_attention_supports(). */
template <typename T> static const void *kernel_for(const struct cuda_kv_cache *cache, size_t *smem)
{
    switch (cache->head_dim) {
    case 32:
        return kernel_of<32, T>(cache->is_fp8, smem);
    case 64:
        return kernel_of<64, T>(cache->is_fp8, smem);
    case 96:
        return kernel_of<96, T>(cache->is_fp8, smem);
    case 128:
        return kernel_of<128, T>(cache->is_fp8, smem);
    case 256:
        return kernel_of<256, T>(cache->is_fp8, smem);
    default:
        return NULL;
    }
}

void attention_prefill(const struct cuda_launch *launch, const struct attention_prefill_args *args)
{
    if (args->num_tokens == 0 || attention_prefill_wgmma(launch, args))
        return;
    size_t smem = 0;
    const void *kernel = launch->is_f16 ? kernel_for<__half>(&args->cache, &smem)
                                        : kernel_for<__nv_bfloat16>(&args->cache, &smem);
    if (!kernel)
        return;
    struct attention_prefill_args copy = *args;
    launch_kernel(launch, kernel, prefill_grid(args), THREADS, smem, &copy);
}
