// Decode attention: one query token per sequence, split over the keys.
//
// The keys of all sequences, in pages of 16 tokens, are laid end to end and cut into equal runs,
// one per CTA of a kv head, so that every multiprocessor reads the same amount whatever the lengths
// are. A run covers segments: (sequence, pages). The plan lists them; it is built once a step and
// serves every kv head and layer. The query heads of a kv head are the 16 rows of the matrix
// fragments: keys are read once for all of them.
//
// The warps of a CTA take the pages of its run in turn, each through a ring of stages of its own
// that bulk tensor copies fill, and on into the next segment without waiting for each other: a warp
// leaves its result of a segment in shared memory, and the last one to do so adds them up. Only the
// run's last segment is added up by all of them together.
//
// A sequence in one segment is written at once. Otherwise each segment leaves its partial result
// and the last of them to finish adds them up in the order of the keys, so the arrival order is not
// seen.
#include "ops/cuda/attention_decode.cuh"
#include "ops/cuda/tensor_map.cuh"
#include "ops/cuda/wgmma.cuh"

// ---- The kernel ----------------------------------------------------------------------------

struct decode_params {
    struct attention_decode_args a;
    CUtensorMap k, v; // the pool by pages: see encode_pages()
};

/** Rows past the end of the last page are stale memory, perhaps not numbers: zero times them is not
 *  zero. */
template <int D, bool FP8> DEVICE void clear_values(char *page, int num_valid)
{
    typedef kv_page<D, FP8> p;
    for (int i = num_valid * p::PANEL_UNITS + threadIdx.x % 32; i < PAGE * p::PANEL_UNITS;
         i += 32) {
#pragma unroll
        for (int panel = 0; panel < p::PANELS; panel++)
            *(uint4 *)(page + panel * PAGE * p::PANEL_BYTES + i * 16) = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy(); // before the copy that fills the stage next
    __syncwarp();
}

/** Pages that a warp takes at a time, as registers allow: the products of one hide the latency of
 *  the other's. */
template <int D> constexpr int STEP = D > 128 ? 1 : 2;

template <int D, typename T, bool FP8, int NUM>
DEVICE void add_pages(struct warp_state<D> &w, const uint32_t q[D / 16][4], char *const stages[NUM],
                      const int first_tokens[NUM], const struct decode_segment &g,
                      struct score_scale scale, bool has_upper)
{
    constexpr int PAGE_BYTES = kv_page<D, FP8>::BYTES;
    float s[2 * NUM][4] = {};
#pragma unroll
    for (int page = 0; page < NUM; page++)
        multiply_keys<D, T, FP8>(s + 2 * page, q, smem_address(stages[page]));
    scale_scores<2 * NUM>(s, scale);
    bool is_whole = true;
#pragma unroll
    for (int page = 0; page < NUM; page++) {
        int num_valid = g.num_keys - first_tokens[page];
        is_whole = is_whole && num_valid >= PAGE && first_tokens[page] >= g.first_key;
        if (num_valid < PAGE)
            clear_values<D, FP8>(stages[page] + PAGE_BYTES, num_valid);
    }
    if (!is_whole) {
#pragma unroll
        for (int i = 0; i < 8 * NUM; i++) {
            int token = first_tokens[i / 8] + i / 4 % 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
            if (token >= g.num_keys || token < g.first_key)
                s[i / 4][i % 4] = -INFINITY;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (h == 1 && !has_upper)
            break; // its weights are products with zeros
        float best = w.max[h];
#pragma unroll
        for (int i = 0; i < 2 * NUM; i++)
            best = fmaxf(best, fmaxf(s[i][2 * h], s[i][2 * h + 1]));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
        float base = best == -INFINITY ? 0.0f : best;
        float shrink = exp2_fast(w.max[h] - base), sum = 0;
#pragma unroll
        for (int i = 0; i < 4 * NUM; i++) {
            float &x = s[i / 2][2 * h + i % 2];
            x = exp2_fast(x - base);
            sum += x;
        }
        w.sum[h] = w.sum[h] * shrink + sum;
        w.max[h] = best;
        if (!__any_sync(0xffffffffu, shrink != 1.0f))
            continue; // the maximum settles after a few pages
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            w.o[i][2 * h] *= shrink;
            w.o[i][2 * h + 1] *= shrink;
        }
    }
    constexpr bool F16 = FP8 || IS_F16<T>;
#pragma unroll
    for (int page = 0; page < NUM; page++) {
        const float(*x)[4] = s + 2 * page;
        const uint32_t p[4] = {pack_half<F16>(x[0][0], x[0][1]), pack_half<F16>(x[0][2], x[0][3]),
                               pack_half<F16>(x[1][0], x[1][1]), pack_half<F16>(x[1][2], x[1][3])};
        multiply_values<D, T, FP8>(w.o, p, smem_address(stages[page]) + PAGE_BYTES);
    }
}

/** Where a warp's loads are. */
struct cursor {
    const struct decode_segment *at, *end;
    int num_before;       // pages of the run before this segment
    int first, num, turn; // page of turn 0; turns in this segment; the next one
    int num_keys;
    const int32_t *table;
    int blocks, blocks_after; // of this round of 32 turns and the next, one per lane
    int stage;
    bool is_waiting; // for the kernels before this one
};

/** This warp's first page of a segment: it takes pages warp, warp + WARPS, ... of the run. */
DEVICE int first_page(const struct decode_segment &g, int num_before)
{
    return g.page_begin + (int)((threadIdx.x / 32 - (unsigned)num_before) % WARPS);
}

DEVICE int num_turns(const struct decode_segment &g, int first)
{
    return (g.page_end - first + WARPS - 1) / WARPS;
}

DEVICE int block_of_turn(const struct attention_decode_args &a, const struct cursor &c, int turn)
{
    return turn < c.num ? c.table[(c.first + turn * WARPS) / (a.cache.block_size / PAGE)] : 0;
}

DEVICE void open_segment(const struct attention_decode_args &a, struct cursor &c)
{
    struct decode_segment g = *c.at;
    int lane = threadIdx.x % 32;
    c.first = first_page(g, c.num_before);
    c.num = num_turns(g, c.first);
    c.turn = 0;
    c.num_keys = g.num_keys;
    c.table = a.block_table + (size_t)g.seq * a.max_blocks;
    c.blocks = block_of_turn(a, c, lane);
    c.blocks_after = block_of_turn(a, c, 32 + lane);
}

/** Starts loading the next page, of this segment or a later one, if there is one. */
template <int D, bool FP8>
DEVICE void issue_page(const struct decode_params &p, struct cursor &c,
                       struct decode_memory<D, FP8> *m, int head)
{
    typedef decode_memory<D, FP8> memory;
    while (c.turn >= c.num) {
        if (c.at + 1 >= c.end)
            return;
        c.num_before += c.at->page_end - c.at->page_begin;
        c.at++;
        open_segment(p.a, c);
    }
    if (c.turn > 0 && c.turn % 32 == 0) {
        c.blocks = c.blocks_after;
        c.blocks_after = block_of_turn(p.a, c, c.turn + 32 + (int)threadIdx.x % 32);
    }
    int block = __shfl_sync(0xffffffffu, c.blocks, c.turn % 32);
    int page = c.first + c.turn * WARPS, block_pages = p.a.cache.block_size / PAGE;
    if (c.is_waiting && (page + 1) * PAGE >= c.num_keys) {
        dependency_wait(); // the last page has this step's token
        c.is_waiting = false;
    }
    if (threadIdx.x % 32 == 0) {
        int warp = (int)threadIdx.x / 32;
        uint32_t stage = smem_address(m->stages[warp][c.stage]);
        uint64_t *full = &m->full[warp][c.stage];
        page = (block * p.a.cache.num_kv_heads + head) * block_pages + page % block_pages;
        barrier_arrive_expect(full, memory::STAGE_BYTES);
        copy_page_streaming(stage, &p.k, page, full);
        copy_page_streaming(stage + kv_page<D, FP8>::BYTES, &p.v, page, full);
    }
    c.stage = c.stage + 1 < memory::STAGES ? c.stage + 1 : 0;
    c.turn++;
}

template <int D, typename T, bool FP8>
DEVICE void load_queries(const struct attention_decode_args &a, int seq, int head, int first_row,
                         uint32_t q[D / 16][4])
{
    int group = a.num_heads / a.cache.num_kv_heads;
    const T *rows[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = first_row + threadIdx.x % 32 / 4 + 8 * h;
        rows[h] = row < group
                      ? (const T *)a.q + (size_t)seq * a.q_stride + (size_t)(head * group + row) * D
                      : NULL;
    }
    load_q_fragments<D, T, FP8>(q, rows);
}

template <int D, typename T, bool FP8>
__global__
__launch_bounds__(WARPS * 32, sizeof(decode_memory<D, FP8>) <= 115712 ? 2 : 1) void decode_kernel(
    const __grid_constant__ struct decode_params p)
{
    extern __shared__ __align__(1024) char smem[]; // the swizzle's pattern
    typedef decode_memory<D, FP8> memory;
    memory *m = (memory *)smem;
    const struct attention_decode_args &a = p.a;
    int head = blockIdx.y, first_row = (int)blockIdx.z * 16, warp = (int)threadIdx.x / 32;
    int group = a.num_heads / a.cache.num_kv_heads;
    const int32_t *cta_first = a.plan.memory + 1;
    const struct decode_segment *segments =
        (const struct decode_segment *)(a.plan.memory + DECODE_PLAN_HEADER_WORDS(a.plan.num_ctas));
    struct decode_rows r;
    r.first_head = head * group + first_row;
    r.num_rows = min(16, group - first_row);
    r.counters = (uint32_t *)a.scratch;
    r.lse = (float *)(r.counters + (size_t)a.plan.max_seqs * a.num_heads);
    r.o = (float *)a.scratch + DECODE_SUMS_OFFSET(a.plan.max_seqs, a.plan.num_ctas, a.num_heads);

    // What an earlier launch of this step has read, and pages of earlier steps, do not depend on
    // the kernels in between: loading begins while they end.
    struct cursor c = {};
    c.is_waiting = a.plan.is_settled;
    if (!c.is_waiting)
        dependency_wait();
    c.at = segments + cta_first[blockIdx.x];
    c.end = segments + cta_first[blockIdx.x + 1];
    if (c.at == c.end) {
        dependency_wait(); // the end of this grid says that those before it have ended
        return;
    }
    if (threadIdx.x % 32 == 0) {
        prefetch_map(&p.k);
        prefetch_map(&p.v);
        for (int i = 0; i < memory::STAGES; i++)
            barrier_init(&m->full[warp][i], 1);
        fence_async_proxy();
        if (warp == 0)
            m->num_left = m->num_merged = 0;
    }
    __syncthreads();
    const struct decode_segment *at = c.at, *end = c.end;
    open_segment(a, c);
#pragma unroll 1
    for (int i = 0; i < memory::STAGES; i++)
        issue_page<D, FP8>(p, c, m, head);
    if (c.is_waiting)
        dependency_wait();
    c.is_waiting = false;
    dependents_launch();

    constexpr bool LOADS_AHEAD = D <= 128; // registers allow
    struct score_scale scale =
        make_score_scale(a.scale * (FP8 ? a.cache.k_scale : 1.0f), a.softcap);
    uint32_t q[D / 16][4], parity = 0;
    int stage = 0, num_before = 0;
    load_queries<D, T, FP8>(a, at->seq, head, first_row, q);
#pragma unroll 1
    for (uint32_t index = 0; at < end; at++, index++) {
        struct decode_segment g = *at;
        struct warp_state<D> w = {
        };
        w.max[0] = w.max[1] = -INFINITY;
        uint32_t next_q[LOADS_AHEAD ? D / 16 : 1][4];
        if constexpr (LOADS_AHEAD)
            load_queries<D, T, FP8>(a, at[at + 1 < end].seq, head, first_row, next_q);
        int first = first_page(g, num_before), num = num_turns(g, first);
        num_before += g.page_end - g.page_begin;
#pragma unroll 1
        for (int i = 0; i < num; i += STEP<D>) {
            char *stages[STEP<D>];
            int first_tokens[STEP<D>], num_pages = 0;
#pragma unroll
            for (int page = 0; page < STEP<D>; page++) {
                if (i + page >= num)
                    break;
                barrier_wait(&m->full[warp][stage], parity);
                first_tokens[page] = (first + (i + page) * WARPS) * PAGE;
                stages[page] = m->stages[warp][stage];
                num_pages++;
                if (++stage == memory::STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            if (num_pages == STEP<D>)
                add_pages<D, T, FP8, STEP<D>>(w, q, stages, first_tokens, g, scale, r.num_rows > 8);
            else
                add_pages<D, T, FP8, 1>(w, q, stages, first_tokens, g, scale, r.num_rows > 8);
            __syncwarp(); // all lanes are done with the stages
            for (int page = 0; page < num_pages; page++)
                issue_page<D, FP8>(p, c, m, head);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            w.sum[h] += __shfl_xor_sync(0xffffffffu, w.sum[h], 1);
            w.sum[h] += __shfl_xor_sync(0xffffffffu, w.sum[h], 2);
        }
        if (r.num_rows > MERGE_ROWS || at + 1 == end)
            add_up<D, T, FP8>(a, w, g, r, m);
        else
            add_up_when_last<D, T, FP8>(a, w, g, r, index, m);
        if constexpr (LOADS_AHEAD) {
#pragma unroll
            for (int i = 0; i < D / 4; i++)
                q[i / 4][i % 4] = next_q[i / 4][i % 4];
        } else if (at + 1 < end) {
            load_queries<D, T, FP8>(a, at[1].seq, head, first_row, q);
        }
    }
}

// ---- Launchers -----------------------------------------------------------------------------

/** Describes the pool as [pages, panels, 16 tokens, a panel's bytes]; boxes are pages. */
static bool encode_pages(CUtensorMap *map, void *pool, const struct cuda_kv_cache *cache)
{
    tensor_map_encoder *encode = find_tensor_map_encoder();
    uint32_t row_bytes = (uint32_t)cache->head_dim * (cache->is_fp8 ? 1 : 2);
    uint32_t panel_bytes = row_bytes % 128 == 0 ? 128 : row_bytes % 64 == 0 ? 64 : 32;
    CUtensorMapSwizzle swizzle = panel_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : panel_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                     : CU_TENSOR_MAP_SWIZZLE_32B;
    const cuuint64_t shape[4] = {panel_bytes, PAGE, row_bytes / panel_bytes,
                                 (cuuint64_t)cache->num_blocks * cache->num_kv_heads *
                                     (cache->block_size / PAGE)};
    const cuuint64_t strides[3] = {row_bytes, panel_bytes, PAGE * row_bytes};
    const cuuint32_t box[4] = {panel_bytes, PAGE, row_bytes / panel_bytes, 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return shape[3] <= INT32_MAX && encode &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, pool, shape, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int D, typename T> static const void *decode_kernel_of(bool is_fp8, size_t *smem)
{
    *smem = is_fp8 ? sizeof(decode_memory<D, true>) : sizeof(decode_memory<D, false>);
    return is_fp8 ? (const void *)decode_kernel<D, T, true>
                  : (const void *)decode_kernel<D, T, false>;
}

/** NULL: refused by cuda_attention_supports(). */
template <typename T>
static const void *decode_kernel_for(const struct cuda_kv_cache *cache, size_t *smem)
{
    switch (cache->head_dim) {
    case 32:
        return decode_kernel_of<32, T>(cache->is_fp8, smem);
    case 64:
        return decode_kernel_of<64, T>(cache->is_fp8, smem);
    case 96:
        return decode_kernel_of<96, T>(cache->is_fp8, smem);
    case 128:
        return decode_kernel_of<128, T>(cache->is_fp8, smem);
    case 256:
        return decode_kernel_of<256, T>(cache->is_fp8, smem);
    default:
        return NULL;
    }
}

void attention_decode(const struct cuda_launch *launch, const struct attention_decode_args *args)
{
    size_t smem = 0;
    const void *kernel = launch->is_f16 ? decode_kernel_for<__half>(&args->cache, &smem)
                                        : decode_kernel_for<__nv_bfloat16>(&args->cache, &smem);
    if (!kernel)
        return;
    int num_kv_heads = args->cache.num_kv_heads;
    dim3 grid((unsigned)args->plan.num_ctas, (unsigned)num_kv_heads,
              (unsigned)decode_row_groups(args->num_heads, num_kv_heads));
    struct decode_params params = {*args, {}, {}};
    if (!encode_pages(&params.k, args->cache.k, &args->cache) ||
        !encode_pages(&params.v, args->cache.v, &args->cache)) {
        fprintf(stderr, "the KV cache cannot be described for bulk copies\n");
        abort(); // a bug, as a failed launch is
    }
    launch_kernel(launch, kernel, grid, WARPS * 32, smem, &params);
}
