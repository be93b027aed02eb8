// Prefill attention on Hopper's warpgroup instructions, for bf16 caches with heads of 64 and 128
// (after FlashAttention-3, Shah et al. 2024). Two consumer warpgroups hold 64 rows each: queries,
// scores and outputs in registers, keys and values read from shared memory by wgmma. One producer
// warp fills two stages of 128 tokens with bulk tensor copies, a lane per page of 16 and panel of
// 64 columns, so the gather through the block table costs the consumers nothing. The scores of the
// next tile are multiplied while this tile's softmax runs, and tiles go from the last key to the
// first, so that masks and the ragged end come up once, at the start.
#include "ops/cuda/attention_prefill.cuh"
#include "ops/cuda/wgmma.cuh"

enum { PAGE = 16, TOKENS = 128, STAGES = 2, CONSUMERS = 2, THREADS = (CONSUMERS + 1) * 128 };
enum { PANEL_BYTES = TOKENS * 128, PANEL_COLUMNS = 64 };

struct wgmma_args {
    struct attention_prefill_args a;
    CUtensorMap k, v; // the pool as [rows, head_dim], boxes of a page by a panel
};

/** A barrier per stage for each of: keys here, keys used, values here, values used. */
struct barriers {
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

template <int D> struct prefill_stages {
    static constexpr int TILE_BYTES = D / PANEL_COLUMNS * PANEL_BYTES;
    static constexpr int BYTES = STAGES * 2 * TILE_BYTES + 1024; // aligned to the swizzle's 1024
};

template <int D>
DEVICE void produce(const struct wgmma_args &w, const struct prefill_tile &t, struct barriers *b,
                    uint32_t base, int head, int seq_len)
{
    constexpr int PANELS = D / PANEL_COLUMNS, TILE_BYTES = prefill_stages<D>::TILE_BYTES;
    const struct cuda_kv_cache &cache = w.a.cache;
    const int32_t *table = w.a.block_table + (size_t)t.seq * w.a.max_blocks;
    int lane = threadIdx.x % 32, page = lane % (TOKENS / PAGE), panel = lane / (TOKENS / PAGE);
    int use = 0;
    for (int tile = (t.end_key - 1) / TOKENS; tile >= t.first_key / TOKENS; tile--, use++) {
        int stage = use % STAGES;
        uint32_t parity = (uint32_t)(use / STAGES + 1) & 1;
        int num_pages = min(TOKENS / PAGE, (seq_len - tile * TOKENS + PAGE - 1) / PAGE);
        uint32_t size_bytes = (uint32_t)(num_pages * PAGE * D * 2);
        bool is_copying = panel < PANELS && page < num_pages;
        int row = 0;
        if (is_copying) {
            int token = tile * TOKENS + page * PAGE;
            row = (table[token / cache.block_size] * cache.num_kv_heads + head) * cache.block_size +
                  token % cache.block_size;
        }
        uint32_t dst = base + stage * 2 * TILE_BYTES + panel * PANEL_BYTES + page * PAGE * 128;
        barrier_wait(&b->k_empty[stage], parity);
        if (lane == 0)
            barrier_arrive_expect(&b->k_full[stage], size_bytes);
        __syncwarp();
        if (is_copying)
            copy_box(dst, &w.k, panel * PANEL_COLUMNS, row, &b->k_full[stage]);
        barrier_wait(&b->v_empty[stage], parity);
        if (lane == 0)
            barrier_arrive_expect(&b->v_full[stage], size_bytes);
        __syncwarp();
        if (is_copying)
            copy_box(dst + TILE_BYTES, &w.v, panel * PANEL_COLUMNS, row, &b->v_full[stage]);
    }
}

/** scores = q * k^T, not waited for. */
template <int D>
DEVICE void multiply_keys(float s[TOKENS / 8][4], const uint32_t q[D / 16][4], uint32_t tile)
{
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t addr = tile + kk / 4 * PANEL_BYTES + kk % 4 * 32;
        wgmma_m64n128k16<false>(s, q[kk], matrix_descriptor(addr, 16), kk == 0);
    }
}

/** o += p * v, not waited for. */
template <int D>
DEVICE void multiply_values(float o[D / 8][4], const uint32_t p[TOKENS / 16][4], uint32_t tile)
{
#pragma unroll
    for (int kk = 0; kk < TOKENS / 16; kk++) {
        uint64_t v = matrix_descriptor(tile + kk * 16 * 128, PANEL_BYTES);
        if constexpr (D == 64)
            wgmma_m64n64k16<true>(o, p[kk], v, false);
        else
            wgmma_m64n128k16<true>(o, p[kk], v, false);
    }
}

/** One thread's two rows: lane / 4 and lane / 4 + 8 of its warp's 16. */
struct softmax_state {
    float max[2], sum[2], shrink[2];
    int position[2];
};

/** Scores → weights below the running maximum; shrink: what earlier sums are to be multiplied by.
 */
DEVICE void softmax(float s[TOKENS / 8][4], struct softmax_state &r,
                    const struct attention_prefill_args &a, const struct prefill_tile &t, int first,
                    float scale)
{
    bool is_masked = needs_mask(a, t, first, TOKENS);
    if (is_masked) {
#pragma unroll
        for (int i = 0; i < TOKENS / 8; i++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int key = first + i * 8 + threadIdx.x % 4 * 2 + c % 2;
                if (!sees(a, t, r.position[c / 2], key))
                    s[i][c] = -INFINITY;
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = fmaxf(s[0][2 * h], s[0][2 * h + 1]);
#pragma unroll
        for (int i = 1; i < TOKENS / 8; i++)
            top = fmaxf(top, fmaxf(s[i][2 * h], s[i][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        top = fmaxf(r.max[h], top); // of unscaled scores: the scale is positive
        float base = top == -INFINITY ? 0.0f : top * scale;
        r.shrink[h] = exp2_fast(r.max[h] * scale - base);
        r.max[h] = top;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < TOKENS / 8; i++) {
            s[i][2 * h] = exp2_fast(s[i][2 * h] * scale - base);
            s[i][2 * h + 1] = exp2_fast(s[i][2 * h + 1] * scale - base);
            sum += s[i][2 * h] + s[i][2 * h + 1];
        }
        r.sum[h] = r.sum[h] * r.shrink[h] + sum;
    }
}

DEVICE void pack_weights(uint32_t p[TOKENS / 16][4], const float s[TOKENS / 8][4])
{
#pragma unroll
    for (int i = 0; i < TOKENS / 8; i++) {
        p[i / 2][i % 2 * 2] = pack_bf16(s[i][0], s[i][1]);
        p[i / 2][i % 2 * 2 + 1] = pack_bf16(s[i][2], s[i][3]);
    }
}

/** Rows past the sequence's end are stale memory, perhaps not numbers: zero times them is not zero.
 *  All consumers together, on the last tile of keys. */
template <int D> DEVICE void clear_values(char *tile, int num_valid)
{
    constexpr int UNITS = 128 / 16;
    int tid = (int)threadIdx.x - 128;
    for (int i = num_valid * UNITS + tid; i < TOKENS * UNITS; i += CONSUMERS * 128) {
#pragma unroll
        for (int panel = 0; panel < D / PANEL_COLUMNS; panel++)
            *(uint4 *)(tile + panel * PANEL_BYTES + i * 16) = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    named_barrier(1, CONSUMERS * 128);
}

template <int D>
DEVICE void load_queries(const struct attention_prefill_args &a, const struct prefill_tile &t,
                         int row, int head, uint32_t q[D / 16][4])
{
    int quad = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int at = t.first_row + row + 8 * h;
        const __nv_bfloat16 *src = (const __nv_bfloat16 *)a.q +
                                   (size_t)(t.query_start + at / t.group) * a.q_stride +
                                   (size_t)(head * t.group + at % t.group) * D + 2 * quad;
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            q[kk][h] = at < t.num_rows ? *(const uint32_t *)(src + 16 * kk) : 0;
            q[kk][h + 2] = at < t.num_rows ? *(const uint32_t *)(src + 16 * kk + 8) : 0;
        }
    }
}

template <int D>
DEVICE void consume(const struct attention_prefill_args &a, const struct prefill_tile &t,
                    struct barriers *b, char *smem, int head, int seq_len)
{
    constexpr int TILE_BYTES = prefill_stages<D>::TILE_BYTES;
    int group = (int)threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    int row = group * 64 + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    bool is_speaker = threadIdx.x % 128 == 0;
    uint32_t base = smem_address(smem);
    float scale = a.scale * LOG2E;
    struct softmax_state r = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.max[h] = -INFINITY;
        r.position[h] = t.num_cached + (t.first_row + row + 8 * h) / t.group;
    }
    uint32_t q[D / 16][4], p[TOKENS / 16][4];
    load_queries<D>(a, t, row, head, q);
    float o[D / 8][4] = {}, s[TOKENS / 8][4];

    int tile = (t.end_key - 1) / TOKENS, end = t.first_key / TOKENS;
    barrier_wait(&b->k_full[0], 0);
    wgmma_fence();
    multiply_keys<D>(s, q, base);
    wgmma_commit();
    wgmma_wait<0>();
    hold<TOKENS / 8>(s);
    if (is_speaker)
        barrier_arrive(&b->k_empty[0]);
    softmax(s, r, a, t, tile * TOKENS, scale);
    pack_weights(p, s);
    barrier_wait(&b->v_full[0], 0);
    if (seq_len - tile * TOKENS < TOKENS)
        clear_values<D>(smem + TILE_BYTES, seq_len - tile * TOKENS);

    int use = 0;
#pragma unroll 1
    for (; tile > end; tile--, use++) {
        int stage = use % STAGES, next = (use + 1) % STAGES;
        uint32_t next_parity = (uint32_t)((use + 1) / STAGES) & 1;
        barrier_wait(&b->k_full[next], next_parity);
        hold<TOKENS / 8>(s);
        hold<D / 8>(o);
        wgmma_fence();
        multiply_keys<D>(s, q, base + next * 2 * TILE_BYTES);
        wgmma_commit();
        multiply_values<D>(o, p, base + stage * 2 * TILE_BYTES + TILE_BYTES);
        wgmma_commit();
        wgmma_wait<1>();
        hold<TOKENS / 8>(s);
        if (is_speaker)
            barrier_arrive(&b->k_empty[next]);
        softmax(s, r, a, t, (tile - 1) * TOKENS, scale);
        wgmma_wait<0>();
        hold<D / 8>(o);
        if (is_speaker)
            barrier_arrive(&b->v_empty[stage]);
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            o[i][0] *= r.shrink[0];
            o[i][1] *= r.shrink[0];
            o[i][2] *= r.shrink[1];
            o[i][3] *= r.shrink[1];
        }
        pack_weights(p, s);
        barrier_wait(&b->v_full[next], next_parity);
    }
    hold<D / 8>(o);
    wgmma_fence();
    multiply_values<D>(o, p, base + use % STAGES * 2 * TILE_BYTES + TILE_BYTES);
    wgmma_commit();
    wgmma_wait<0>();
    hold<D / 8>(o);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.sum[h] += __shfl_xor_sync(0xffffffffu, r.sum[h], 1);
        r.sum[h] += __shfl_xor_sync(0xffffffffu, r.sum[h], 2);
        if (t.first_row + row + 8 * h >= t.num_rows)
            continue;
        __nv_bfloat16 *out = prefill_out_row<D>(a, t, row + 8 * h, head) + lane % 4 * 2;
        float sum = r.sum[h] > 0 ? r.sum[h] : 1; // padding sees no key
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *(uint32_t *)(out + 8 * i) = pack_bf16(o[i][2 * h] / sum, o[i][2 * h + 1] / sum);
    }
}

template <int D>
__global__
__launch_bounds__(THREADS, 1) void prefill_wgmma_kernel(const __grid_constant__ struct wgmma_args w)
{
    extern __shared__ char unaligned[];
    __shared__ struct barriers b;
    char *smem = unaligned + (1024 - smem_address(unaligned) % 1024) % 1024;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&b.k_full[i], 1);
            barrier_init(&b.v_full[i], 1);
            barrier_init(&b.k_empty[i], CONSUMERS);
            barrier_init(&b.v_empty[i], CONSUMERS);
        }
        fence_async_proxy();
    }
    __syncthreads();
    dependents_launch();
    dependency_wait();
    struct prefill_tile t;
    if (!find_prefill_tile(w.a, &t))
        return;
    int seq_len = w.a.seq_lens[t.seq];
    if (threadIdx.x < 128) {
        registers_give<24>();
        if (threadIdx.x < 32)
            produce<D>(w, t, &b, smem_address(smem), (int)blockIdx.y, seq_len);
    } else {
        registers_take<240>();
        consume<D>(w.a, t, &b, smem, (int)blockIdx.y, seq_len);
    }
}

typedef CUresult encode_function(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                 const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                 const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static bool encode_pool(encode_function *encode, CUtensorMap *map, void *pool,
                        const struct cuda_kv_cache *cache)
{
    const cuuint64_t shape[2] = {(cuuint64_t)cache->head_dim, (cuuint64_t)cache->num_blocks *
                                                                  cache->num_kv_heads *
                                                                  cache->block_size};
    const cuuint64_t stride[1] = {(cuuint64_t)cache->head_dim * 2};
    const cuuint32_t box[2] = {PANEL_COLUMNS, PAGE}, step[2] = {1, 1};
    return shape[1] <= INT32_MAX &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, pool, shape, stride, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool attention_prefill_wgmma(const struct cuda_launch *launch,
                             const struct attention_prefill_args *args)
{
    int head_dim = args->cache.head_dim;
    if (args->cache.is_fp8 || args->softcap > 0 || (head_dim != 64 && head_dim != 128))
        return false;
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return false;
    struct wgmma_args w = {*args, {}, {}};
    if (!encode_pool((encode_function *)encode, &w.k, args->cache.k, &args->cache) ||
        !encode_pool((encode_function *)encode, &w.v, args->cache.v, &args->cache))
        return false;
    launch_kernel(launch,
                  head_dim == 64 ? (const void *)prefill_wgmma_kernel<64>
                                 : (const void *)prefill_wgmma_kernel<128>,
                  prefill_grid(args), THREADS,
                  head_dim == 64 ? prefill_stages<64>::BYTES : prefill_stages<128>::BYTES, &w);
    return true;
}
