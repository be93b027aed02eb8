// Prefill attention on Hopper's warpgroup instructions, for heads of 64, 128 and 256
// (after FlashAttention-3, Shah et al. 2024). Two consumer warpgroups hold 64 rows each: queries,
// scores and outputs in registers, keys and values read from shared memory by wgmma. One producer
// warp fills two stages of keys and values with bulk tensor copies, a lane per page of 16 tokens
// and panel of 64 columns, so the gather through the block table costs the consumers nothing. The
// scores of the next keys are multiplied while the softmax of these runs, and keys go from the last
// to the first, so that masks and the ragged end come up once, at the start.
//
// Heads of 256 leave registers for half as many keys at a time, and none for the queries, which
// wgmma then reads from shared memory.
//
// Of an e4m3 cache the producers are a whole warpgroup: they copy tiles as they are stored to a
// ring of their own, and widen them to f16 (exact) into the stages that wgmma reads; there all is
// f16, whatever type T the activations have.
#include "ops/cuda/attention_prefill.cuh"
#include "ops/cuda/tensor_map.cuh"
#include "ops/cuda/wgmma.cuh"

enum { PAGE = 16, STAGES = 2, CONSUMERS = 2, THREADS = (CONSUMERS + 1) * 128 };
enum { PANEL_COLUMNS = 64, QUERY_PANEL_BYTES = 64 * 128 };

/** Keys at a time. */
template <int D> constexpr int TOKENS = D > 128 ? 64 : 128;
template <int D> constexpr int PANEL_BYTES = TOKENS<D> * 128;
template <int D> constexpr bool QUERIES_ARE_SHARED = D > 128;

struct wgmma_args {
    struct attention_prefill_args a;
    CUtensorMap k, v; // the pool as [rows, head_dim], boxes of a page by a panel
};

/** A barrier per stage for each of: keys here, keys used, values here, values used. */
struct barriers {
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

enum { RAW_STAGES = 2 };

template <int D, bool FP8> struct prefill_stages {
    static constexpr int TILE_BYTES = D / PANEL_COLUMNS * PANEL_BYTES<D>;
    static constexpr int QUERY_OFFSET = STAGES * 2 * TILE_BYTES;
    static constexpr int QUERY_BYTES = // of a warpgroup
        QUERIES_ARE_SHARED<D> ? D / PANEL_COLUMNS * QUERY_PANEL_BYTES : 0;
    static constexpr int RAW_BYTES = TOKENS<D> * D; // of keys or values as an e4m3 cache has them
    static constexpr int RAW_OFFSET = QUERY_OFFSET + CONSUMERS * QUERY_BYTES;
    // One more, as the first is aligned to the swizzle's 1024.
    static constexpr int BYTES = RAW_OFFSET + (FP8 ? RAW_STAGES * 2 * RAW_BYTES : 0) + 1024;
};

template <int D>
DEVICE void produce(const struct wgmma_args &w, const struct prefill_tile &t, struct barriers *b,
                    uint32_t base, int head, int seq_len)
{
    constexpr int PANELS = D / PANEL_COLUMNS, TILE_BYTES = prefill_stages<D, false>::TILE_BYTES;
    const struct cuda_kv_cache &cache = w.a.cache;
    const int32_t *table = w.a.block_table + (size_t)t.seq * w.a.max_blocks;
    int lane = threadIdx.x % 32, page = lane % (TOKENS<D> / PAGE),
        panel = lane / (TOKENS<D> / PAGE);
    int use = 0;
    for (int tile = (t.end_key - 1) / TOKENS<D>; tile >= t.first_key / TOKENS<D>; tile--, use++) {
        int stage = use % STAGES;
        uint32_t parity = (uint32_t)(use / STAGES + 1) & 1;
        int num_pages = min(TOKENS<D> / PAGE, (seq_len - tile * TOKENS<D> + PAGE - 1) / PAGE);
        uint32_t size_bytes = (uint32_t)(num_pages * PAGE * D * 2);
        bool is_copying = panel < PANELS && page < num_pages;
        int row = 0;
        if (is_copying) {
            int token = tile * TOKENS<D> + page * PAGE;
            row = (table[token / cache.block_size] * cache.num_kv_heads + head) * cache.block_size +
                  token % cache.block_size;
        }
        uint32_t dst = base + stage * 2 * TILE_BYTES + panel * PANEL_BYTES<D> + page * PAGE * 128;
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

// A producer thread's part of an e4m3 tile: 16 elements of every 32nd token, of all panels. Four
// neighbours take a token's panel, so that eight of them write to all banks.

/** Starts copying a tile to the raw stage at `raw`; what lies behind the end
 *  or before the window becomes zeros. */
template <int D>
DEVICE void copy_raw(const struct attention_prefill_args &a, const struct prefill_tile &t,
                     uint32_t raw, int tile, int head, int seq_len)
{
    constexpr int PANELS = D / PANEL_COLUMNS, RAW_BYTES = prefill_stages<D, true>::RAW_BYTES;
    const int32_t *table = a.block_table + (size_t)t.seq * a.max_blocks;
    int row = (int)threadIdx.x / 4, column = threadIdx.x % 4 * 16;
#pragma unroll 1
    for (int i = 0; i < TOKENS<D> / 32; i++, row += 32) {
        int token = tile * TOKENS<D> + row;
        bool is_there = tile >= 0 && token >= t.first_key && token < seq_len;
        size_t at = 0;
        if (is_there)
            at = (((size_t)table[token / a.cache.block_size] * a.cache.num_kv_heads + head) *
                      a.cache.block_size +
                  token % a.cache.block_size) *
                     D +
                 column;
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            uint32_t dst = raw + (uint32_t)(panel * TOKENS<D> + row) * PANEL_COLUMNS + column;
            size_t from = at + (is_there ? panel * PANEL_COLUMNS : 0);
            cp_async16(dst, (const char *)a.cache.k + from, is_there ? 16 : 0);
            cp_async16(dst + RAW_BYTES, (const char *)a.cache.v + from, is_there ? 16 : 0);
        }
    }
    cp_async_commit();
}

/** Widens this thread's part of the raw keys or values into the swizzled tile. */
template <int D> DEVICE void widen(char *tile, const char *raw)
{
    int row = (int)threadIdx.x / 4, unit = threadIdx.x % 4;
#pragma unroll 2
    for (int i = 0; i < D / PANEL_COLUMNS * TOKENS<D> / 32; i++) {
        int at = i * 32 + row; // panel * TOKENS<D> + token
        uint4 v = *(const uint4 *)(raw + at * PANEL_COLUMNS + unit * 16);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        uint32_t wide[8];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            wide[2 * j] = e4m3x2_to_f16x2((uint16_t)words[j]);
            wide[2 * j + 1] = e4m3x2_to_f16x2((uint16_t)(words[j] >> 16));
        }
        char *to = tile + at * 128;
        *(uint4 *)(to + (2 * unit ^ at % 8) * 16) = make_uint4(wide[0], wide[1], wide[2], wide[3]);
        *(uint4 *)(to + ((2 * unit + 1) ^ at % 8) * 16) =
            make_uint4(wide[4], wide[5], wide[6], wide[7]);
    }
    fence_async_proxy();
}

template <int D>
DEVICE void produce_fp8(const struct attention_prefill_args &a, const struct prefill_tile &t,
                        struct barriers *b, char *smem, int head, int seq_len)
{
    typedef prefill_stages<D, true> s;
    char *raw = smem + s::RAW_OFFSET;
    int end = t.first_key / TOKENS<D>, tile = (t.end_key - 1) / TOKENS<D>;
    for (int i = 0; i < RAW_STAGES; i++)
        copy_raw<D>(a, t, smem_address(raw + i * 2 * s::RAW_BYTES), tile - i >= end ? tile - i : -1,
                    head, seq_len);
#pragma unroll 1
    for (int use = 0; tile >= end; tile--, use++) {
        int stage = use % STAGES;
        uint32_t parity = (uint32_t)(use / STAGES + 1) & 1;
        char *from = raw + use % RAW_STAGES * 2 * s::RAW_BYTES;
        char *to = smem + stage * 2 * s::TILE_BYTES;
        cp_async_wait<RAW_STAGES - 1>(); // each thread reads what it copied itself
        barrier_wait(&b->k_empty[stage], parity);
        widen<D>(to, from);
        barrier_arrive(&b->k_full[stage]);
        barrier_wait(&b->v_empty[stage], parity);
        widen<D>(to + s::TILE_BYTES, from + s::RAW_BYTES);
        barrier_arrive(&b->v_full[stage]);
        copy_raw<D>(a, t, smem_address(from), tile - RAW_STAGES >= end ? tile - RAW_STAGES : -1,
                    head, seq_len);
    }
    cp_async_wait<0>();
}

/** scores = q * k^T, not waited for. Queries are in registers, or the warpgroup's rows at
 *  `queries`. */
template <int D, bool F16>
DEVICE void multiply_keys(float s[TOKENS<D> / 8][4], const uint32_t q[][4], uint32_t queries,
                          uint32_t tile)
{
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint64_t k = matrix_descriptor(tile + kk / 4 * PANEL_BYTES<D> + kk % 4 * 32, 16);
        if constexpr (QUERIES_ARE_SHARED<D>)
            wgmma_shared<TOKENS<D>, F16>(
                s, matrix_descriptor(queries + kk / 4 * QUERY_PANEL_BYTES + kk % 4 * 32, 16), k,
                kk == 0);
        else
            wgmma_m64n128k16<false, F16>(s, q[kk], k, kk == 0);
    }
}

/** o += p * v, not waited for. */
template <int D, bool F16>
DEVICE void multiply_values(float o[D / 8][4], const uint32_t p[TOKENS<D> / 16][4], uint32_t tile)
{
#pragma unroll
    for (int kk = 0; kk < TOKENS<D> / 16; kk++) {
        uint32_t v = tile + kk * 16 * 128;
        if constexpr (D == 64) {
            wgmma_m64n64k16<true, F16>(o, p[kk], matrix_descriptor(v, PANEL_BYTES<D>), false);
        } else {
#pragma unroll
            for (int half = 0; half < D / 128; half++)
                wgmma_m64n128k16<true, F16>(
                    o + 16 * half, p[kk],
                    matrix_descriptor(v + half * 2 * PANEL_BYTES<D>, PANEL_BYTES<D>), false);
        }
    }
}

/** One thread's two rows: lane / 4 and lane / 4 + 8 of its warp's 16. */
struct softmax_state {
    float max[2], sum[2], shrink[2];
    int position[2];
};

/** Scores → weights below the running maximum; shrink: what earlier sums are to be multiplied by.
 */
template <int NUM, bool F16>
DEVICE void softmax(float s[NUM / 8][4], struct softmax_state &r,
                    const struct attention_prefill_args &a, const struct prefill_tile &t, int first,
                    float scale)
{
    bool is_masked = needs_mask(a, t, first, NUM);
    if (is_masked) {
#pragma unroll
        for (int i = 0; i < NUM / 8; i++) {
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
        for (int i = 1; i < NUM / 8; i++)
            top = fmaxf(top, fmaxf(s[i][2 * h], s[i][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        top = fmaxf(r.max[h], top); // of unscaled scores: the scale is positive
        float base = top == -INFINITY ? 0.0f : top * scale;
        r.shrink[h] = exp2_fast(r.max[h] * scale - base);
        base -= WEIGHT_LOG2<F16>;
        r.max[h] = top;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < NUM / 8; i++) {
            s[i][2 * h] = exp2_fast(s[i][2 * h] * scale - base);
            s[i][2 * h + 1] = exp2_fast(s[i][2 * h + 1] * scale - base);
            sum += s[i][2 * h] + s[i][2 * h + 1];
        }
        r.sum[h] = r.sum[h] * r.shrink[h] + sum;
    }
}

template <int NUM, bool F16>
DEVICE void pack_weights(uint32_t p[NUM / 16][4], const float s[NUM / 8][4])
{
#pragma unroll
    for (int i = 0; i < NUM / 8; i++) {
        p[i / 2][i % 2 * 2] = pack_half<F16>(s[i][0], s[i][1]);
        p[i / 2][i % 2 * 2 + 1] = pack_half<F16>(s[i][2], s[i][3]);
    }
}

/** Rows past the sequence's end are stale memory, perhaps not numbers: zero times them is not zero.
 *  All consumers together, on the last tile of keys. */
template <int D> DEVICE void clear_values(char *tile, int num_valid)
{
    constexpr int UNITS = 128 / 16;
    int tid = (int)threadIdx.x - 128;
    for (int i = num_valid * UNITS + tid; i < TOKENS<D> * UNITS; i += CONSUMERS * 128) {
#pragma unroll
        for (int panel = 0; panel < D / PANEL_COLUMNS; panel++)
            *(uint4 *)(tile + panel * PANEL_BYTES<D> + i * 16) = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    named_barrier(1, CONSUMERS * 128);
}

template <int D, typename T, bool FP8>
DEVICE void load_queries(const struct attention_prefill_args &a, const struct prefill_tile &t,
                         int row, int head, uint32_t q[D / 16][4])
{
    int quad = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int at = t.first_row + row + 8 * h;
        const T *src = (const T *)a.q + (size_t)(t.query_start + at / t.group) * a.q_stride +
                       (size_t)(head * t.group + at % t.group) * D + 2 * quad;
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            q[kk][h] = at < t.num_rows ? *(const uint32_t *)(src + 16 * kk) : 0;
            q[kk][h + 2] = at < t.num_rows ? *(const uint32_t *)(src + 16 * kk + 8) : 0;
            if (FP8) {
                q[kk][h] = pair_to_f16<T>(q[kk][h]);
                q[kk][h + 2] = pair_to_f16<T>(q[kk][h + 2]);
            }
        }
    }
}

/** The warpgroup's rows to shared memory, in units of 16 bytes. */
template <int D, typename T>
DEVICE void share_queries(const struct attention_prefill_args &a, const struct prefill_tile &t,
                          int first_row, int head, int barrier, uint32_t queries)
{
    constexpr int UNITS = D * 2 / 16;
#pragma unroll 4
    for (int i = (int)threadIdx.x % 128; i < 64 * UNITS; i += 128) {
        int row = i / UNITS, unit = i % UNITS, at = first_row + row;
        bool is_there = at < t.num_rows;
        const T *src = (const T *)a.q;
        if (is_there)
            src += (size_t)(t.query_start + at / t.group) * a.q_stride +
                   (size_t)(head * t.group + at % t.group) * D + unit * 8;
        cp_async16(queries + unit / 8 * QUERY_PANEL_BYTES + row * 128 + (unit % 8 ^ row % 8) * 16,
                   src, is_there ? 16 : 0);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_async_proxy();
    named_barrier(barrier, 128);
}

template <int D, typename T, bool FP8>
DEVICE void consume(const struct attention_prefill_args &a, const struct prefill_tile &t,
                    struct barriers *b, char *smem, int head, int seq_len)
{
    typedef prefill_stages<D, FP8> stages;
    constexpr int TILE_BYTES = stages::TILE_BYTES, NUM = TOKENS<D>;
    constexpr bool F16 = FP8 || IS_F16<T>;
    int group = (int)threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    int row = group * 64 + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    bool is_speaker = threadIdx.x % 128 == 0;
    uint32_t base = smem_address(smem);
    float scale = a.scale * LOG2E * (FP8 ? a.cache.k_scale : 1.0f);
    struct softmax_state r = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.max[h] = -INFINITY;
        r.position[h] = t.num_cached + (t.first_row + row + 8 * h) / t.group;
    }
    uint32_t q[QUERIES_ARE_SHARED<D> ? 1 : D / 16][4], p[NUM / 16][4];
    uint32_t queries = base + stages::QUERY_OFFSET + group * stages::QUERY_BYTES;
    if constexpr (QUERIES_ARE_SHARED<D>)
        share_queries<D, T>(a, t, t.first_row + group * 64, head, 2 + group, queries);
    else
        load_queries<D, T, FP8>(a, t, row, head, q);
    float o[D / 8][4] = {}, s[NUM / 8][4];

    int tile = (t.end_key - 1) / NUM, end = t.first_key / NUM;
    barrier_wait(&b->k_full[0], 0);
    wgmma_fence();
    multiply_keys<D, F16>(s, q, queries, base);
    wgmma_commit();
    wgmma_wait<0>();
    hold<NUM / 8>(s);
    if (is_speaker)
        barrier_arrive(&b->k_empty[0]);
    softmax<NUM, F16>(s, r, a, t, tile * NUM, scale);
    pack_weights<NUM, F16>(p, s);
    barrier_wait(&b->v_full[0], 0);
    if (!FP8 && seq_len - tile * NUM < NUM) // of e4m3 the producers see to it
        clear_values<D>(smem + TILE_BYTES, seq_len - tile * NUM);

    int use = 0;
#pragma unroll 1
    for (; tile > end; tile--, use++) {
        int stage = use % STAGES, next = (use + 1) % STAGES;
        uint32_t next_parity = (uint32_t)((use + 1) / STAGES) & 1;
        barrier_wait(&b->k_full[next], next_parity);
        hold<NUM / 8>(s);
        hold<D / 8>(o);
        wgmma_fence();
        multiply_keys<D, F16>(s, q, queries, base + next * 2 * TILE_BYTES);
        wgmma_commit();
        multiply_values<D, F16>(o, p, base + stage * 2 * TILE_BYTES + TILE_BYTES);
        wgmma_commit();
        wgmma_wait<1>();
        hold<NUM / 8>(s);
        if (is_speaker)
            barrier_arrive(&b->k_empty[next]);
        softmax<NUM, F16>(s, r, a, t, (tile - 1) * NUM, scale);
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
        pack_weights<NUM, F16>(p, s);
        barrier_wait(&b->v_full[next], next_parity);
    }
    hold<D / 8>(o);
    wgmma_fence();
    multiply_values<D, F16>(o, p, base + use % STAGES * 2 * TILE_BYTES + TILE_BYTES);
    wgmma_commit();
    wgmma_wait<0>();
    hold<D / 8>(o);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.sum[h] += __shfl_xor_sync(0xffffffffu, r.sum[h], 1);
        r.sum[h] += __shfl_xor_sync(0xffffffffu, r.sum[h], 2);
        if (t.first_row + row + 8 * h >= t.num_rows)
            continue;
        T *out = prefill_out_row<D, T>(a, t, row + 8 * h, head) + lane % 4 * 2;
        // Padding sees no key.
        float factor = (FP8 ? a.cache.v_scale : 1.0f) / (r.sum[h] > 0 ? r.sum[h] : 1);
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *(uint32_t *)(out + 8 * i) =
                pack_pair<T>(o[i][2 * h] * factor, o[i][2 * h + 1] * factor);
    }
}

template <int D, typename T, bool FP8>
__global__
__launch_bounds__(THREADS, 1) void prefill_wgmma_kernel(const __grid_constant__ struct wgmma_args w)
{
    extern __shared__ char unaligned[];
    __shared__ struct barriers b;
    char *smem = unaligned + (1024 - smem_address(unaligned) % 1024) % 1024;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&b.k_full[i], FP8 ? 128 : 1);
            barrier_init(&b.v_full[i], FP8 ? 128 : 1);
            barrier_init(&b.k_empty[i], CONSUMERS);
            barrier_init(&b.v_empty[i], CONSUMERS);
        }
        fence_async_proxy();
        if (!FP8) {
            prefetch_map(&w.k);
            prefetch_map(&w.v);
        }
    }
    __syncthreads();
    dependents_launch();
    dependency_wait();
    struct prefill_tile t;
    if (!find_prefill_tile(w.a, &t))
        return;
    int seq_len = w.a.seq_lens[t.seq];
    // Of 65,536 registers two warpgroups of consumers leave the producers few.
    if (threadIdx.x < 128) {
        registers_give<FP8 ? 40 : 24>();
        if constexpr (FP8)
            produce_fp8<D>(w.a, t, &b, smem, (int)blockIdx.y, seq_len);
        else if (threadIdx.x < 32)
            produce<D>(w, t, &b, smem_address(smem), (int)blockIdx.y, seq_len);
    } else {
        registers_take<FP8 ? 232 : 240>();
        consume<D, T, FP8>(w.a, t, &b, smem, (int)blockIdx.y, seq_len);
    }
}

/** Describes boxes of a page by a panel; false if there can be none. */
static bool encode_pool(CUtensorMap *map, void *pool, const struct cuda_kv_cache *cache,
                        bool is_f16)
{
    const struct mapped_matrix m = {
        pool,
        (int64_t)cache->num_blocks * cache->num_kv_heads * cache->block_size,
        cache->head_dim,
        cache->head_dim,
        is_f16,
        false,
    };
    return tensor_map_encode(map, &m, PAGE);
}

static bool encode_pools(struct wgmma_args *w, bool is_f16)
{
    return encode_pool(&w->k, w->a.cache.k, &w->a.cache, is_f16) &&
           encode_pool(&w->v, w->a.cache.v, &w->a.cache, is_f16);
}

template <int D, typename T, bool FP8>
static void launch_wgmma(const struct cuda_launch *launch, struct wgmma_args *w)
{
    launch_kernel(launch, (const void *)prefill_wgmma_kernel<D, T, FP8>, prefill_grid(&w->a),
                  THREADS, prefill_stages<D, FP8>::BYTES, w);
}

template <typename T> static bool launch_for(const struct cuda_launch *launch, struct wgmma_args *w)
{
    bool is_fp8 = w->a.cache.is_fp8;
    switch (w->a.cache.head_dim) {
    case 64:
        is_fp8 ? launch_wgmma<64, T, true>(launch, w) : launch_wgmma<64, T, false>(launch, w);
        return true;
    case 128:
        is_fp8 ? launch_wgmma<128, T, true>(launch, w) : launch_wgmma<128, T, false>(launch, w);
        return true;
    case 256:
        if (is_fp8) // stages and what they are widened from do not fit
            return false;
        launch_wgmma<256, T, false>(launch, w);
        return true;
    default:
        return false;
    }
}

bool attention_prefill_wgmma(const struct cuda_launch *launch,
                             const struct attention_prefill_args *args)
{
    struct wgmma_args w = {*args, {}, {}};
    if (args->softcap > 0 || (!args->cache.is_fp8 && !encode_pools(&w, launch->is_f16)))
        return false;
    return launch->is_f16 ? launch_for<__half>(launch, &w) : launch_for<__nv_bfloat16>(launch, &w);
}
