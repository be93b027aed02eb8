// Decode attention: one query token per sequence, split over the keys.
//
// The keys of all sequences, in pages of 16 tokens, are laid end to end and cut into equal runs,
// one per CTA of a kv head, so that every multiprocessor reads the same amount whatever the lengths
// are. A run covers segments: (sequence, pages). The plan lists them; it is built once a step and
// serves every kv head and layer. A warp takes every fourth page of a segment through its own ring
// of cp.async stages, which runs on into the next segment, and keeps its own softmax, so warps meet
// only at the end of a segment. The query heads of a kv head are the 16 rows of the matrix
// fragments: keys are read once for all of them.
//
// A sequence in one segment is written at once. Otherwise each segment leaves its partial result
// and the last of them to finish adds them up in the order of the keys, so the arrival order is not
// seen.
#include "ops/cuda/attention.cuh"

enum { WARPS = 4, PLAN_THREADS = 1024 };
enum { MERGE_ROWS = 4 }; // merged at a time, so that the rings may stay as they are

// ---- The plan ------------------------------------------------------------------------------

struct plan_args {
    struct attention_decode_plan plan;
    const int32_t *seq_lens;
    int32_t num_seqs, window;
};

DEVICE int pages_of(int num_keys, int window, int *first_key)
{
    *first_key = window > 0 && num_keys > window ? num_keys - window : 0;
    return (num_keys + PAGE - 1) / PAGE - *first_key / PAGE;
}

DEVICE int fixed_pages_per_split(int pages)
{
    int split = (pages + DECODE_MAX_FIXED_SPLITS - 1) / DECODE_MAX_FIXED_SPLITS;
    return max(16, (split + WARPS - 1) / WARPS * WARPS);
}

static __global__
__launch_bounds__(PLAN_THREADS) void plan_kernel(const __grid_constant__ struct plan_args a)
{
    __shared__ int warps[32];
    __shared__ int last;
    int num_ctas = a.plan.num_ctas, total = 0, first_key;
    int32_t *cta_first = a.plan.memory + 1;
    struct decode_segment *segments =
        (struct decode_segment *)(a.plan.memory + DECODE_PLAN_HEADER_WORDS(num_ctas));
    dependency_wait();
    dependents_launch();

    int sum = 0;
    for (int s = (int)threadIdx.x; s < a.num_seqs; s += PLAN_THREADS)
        sum += pages_of(a.seq_lens[s], a.window, &first_key);
    sum = block_prefix(sum, warps);
    if (threadIdx.x == PLAN_THREADS - 1)
        last = sum;
    __syncthreads();
    int num_pages = last;
    int run = max(WARPS, (num_pages + num_ctas - 1) / num_ctas); // pages per CTA

    int pages_before = 0;
    for (int base = 0; base < a.num_seqs; base += PLAN_THREADS) {
        int s = base + (int)threadIdx.x, keys = s < a.num_seqs ? a.seq_lens[s] : 0;
        int pages = pages_of(keys, a.window, &first_key);
        __syncthreads();
        int end = pages_before + block_prefix(pages, warps), begin = end - pages, num = 0;
        if (pages > 0)
            num = a.plan.fixed_splits ? (pages - 1) / fixed_pages_per_split(pages) + 1
                                      : (end - 1) / run - begin / run + 1;
        int slot_end = total + block_prefix(num, warps), slot = slot_end - num;
        for (int i = 0; i < num; i++) {
            int from, to; // counted from the sequence's first page
            if (a.plan.fixed_splits) {
                from = i * fixed_pages_per_split(pages);
                to = min(pages, from + fixed_pages_per_split(pages));
            } else {
                int cta = begin / run + i;
                from = max(0, cta * run - begin);
                to = min(pages, (cta + 1) * run - begin);
                if (begin + from == cta * run)
                    cta_first[cta] = slot + i;
            }
            struct decode_segment g = {
                s,  first_key / PAGE + from, first_key / PAGE + to, keys, first_key, slot + i, slot,
                num};
            segments[slot + i] = g;
        }
        if (threadIdx.x == PLAN_THREADS - 1)
            last = end;
        __syncthreads();
        pages_before = last;
        __syncthreads();
        if (threadIdx.x == PLAN_THREADS - 1)
            last = slot_end;
        __syncthreads();
        total = last;
    }
    int used = a.plan.fixed_splits ? 0 : (num_pages + run - 1) / run;
    for (int cta = used + (int)threadIdx.x; cta <= num_ctas; cta += PLAN_THREADS)
        cta_first[cta] = a.plan.fixed_splits ? (int)((int64_t)cta * total / num_ctas) : total;
    if (threadIdx.x == 0)
        a.plan.memory[0] = total;
}

// ---- The kernel ----------------------------------------------------------------------------

template <int D, bool FP8> struct ring {
    static constexpr int PAGE_BYTES = PAGE * kv_tile<D, FP8>::PITCH;
    static constexpr int STAGE_BYTES = 2 * PAGE_BYTES; // keys, values
    static constexpr int FIT = 104 * 1024 / (WARPS * STAGE_BYTES);
    static constexpr int STAGES = FIT > 8 ? 8 : FIT < 3 ? 3 : FIT;
    static constexpr int MERGE_BYTES = WARPS * MERGE_ROWS * (D + 2) * 4;
    static constexpr int RING_BYTES = WARPS * STAGES * STAGE_BYTES;
    static constexpr int BYTES = RING_BYTES + MERGE_BYTES;
};

template <int D, bool FP8>
DEVICE void load_page(const struct attention_decode_args &a, uint32_t stage, int block, int page,
                      int head, int num_keys)
{
    typedef kv_tile<D, FP8> tile;
    int lane = threadIdx.x % 32;
    size_t offset = page_offset(a.cache, block, page * PAGE, head, tile::ROW_BYTES);
    const char *k = (const char *)a.cache.k + offset, *v = (const char *)a.cache.v + offset;
#pragma unroll
    for (int i = 0; i < tile::UNITS / 2; i++) {
        int unit = lane + 32 * i, row = unit / tile::UNITS;
        uint32_t dst = stage + row * tile::PITCH + unit % tile::UNITS * 16;
        // Rows past the end are stale memory, perhaps not numbers: zero times them is not zero.
        int valid = page * PAGE + row < num_keys ? 16 : 0;
        cp_async16(dst, k + unit * 16, valid);
        cp_async16(dst + ring<D, FP8>::PAGE_BYTES, v + unit * 16, valid);
    }
}

/** One warp's softmax state over its pages: rows lane / 4 and lane / 4 + 8. Groups of at most eight
 *  heads leave the second one empty. */
template <int D> struct warp_state {
    float o[D / 8][4], max[2], sum[2];
};

template <int D, typename T, bool FP8>
DEVICE void add_page(struct warp_state<D> &w, const uint32_t q[D / 16][4], uint32_t stage,
                     int first_token, const struct decode_segment &g, struct score_scale scale,
                     bool has_upper)
{
    float s[2][4] = {};
    multiply_keys<D, T, FP8>(s, q, stage);
    scale_scores<2>(s, scale);
    bool is_whole = first_token + PAGE <= g.num_keys && first_token >= g.first_key;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (h == 1 && !has_upper)
            break; // its weights are products with zeros
        float best = -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &x = s[i / 2][2 * h + i % 2];
            int token = first_token + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
            x = is_whole || (token < g.num_keys && token >= g.first_key) ? x : -INFINITY;
            best = fmaxf(best, x);
        }
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
        best = fmaxf(best, w.max[h]);
        float base = best == -INFINITY ? 0.0f : best;
        float shrink = exp2_fast(w.max[h] - base), sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
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
    const uint32_t p[4] = {pack_half<F16>(s[0][0], s[0][1]), pack_half<F16>(s[0][2], s[0][3]),
                           pack_half<F16>(s[1][0], s[1][1]), pack_half<F16>(s[1][2], s[1][3])};
    multiply_values<D, T, FP8>(w.o, p, stage + ring<D, FP8>::PAGE_BYTES);
}

/** Where a warp's loads are: it takes pages warp, warp + WARPS, ... of each segment. */
struct cursor {
    const struct decode_segment *at, *end;
    int first, num, turn; // page of turn 0; turns in this segment; the next one
    int num_keys;
    const int32_t *table;
    int blocks, blocks_after; // of this round of 32 turns and the next, one per lane
    int num_issued;           // over all segments
    bool is_waiting;          // for the kernels before this one
};

DEVICE int first_page(const struct decode_segment &g)
{
    return g.page_begin + (int)threadIdx.x / 32;
}

DEVICE int num_turns(const struct decode_segment &g)
{
    return (g.page_end - first_page(g) + WARPS - 1) / WARPS;
}

DEVICE int block_of_turn(const struct attention_decode_args &a, const struct cursor &c, int turn)
{
    return turn < c.num ? c.table[(c.first + turn * WARPS) / (a.cache.block_size / PAGE)] : 0;
}

DEVICE void open_segment(const struct attention_decode_args &a, struct cursor &c)
{
    struct decode_segment g = *c.at;
    int lane = threadIdx.x % 32;
    c.first = first_page(g);
    c.num = num_turns(g);
    c.turn = 0;
    c.num_keys = g.num_keys;
    c.table = a.block_table + (size_t)g.seq * a.max_blocks;
    c.blocks = block_of_turn(a, c, lane);
    c.blocks_after = block_of_turn(a, c, 32 + lane);
}

/** Starts loading the next page, of this segment or a later one. */
template <int D, bool FP8>
DEVICE void issue_page(const struct attention_decode_args &a, struct cursor &c, uint32_t stages,
                       int head)
{
    typedef ring<D, FP8> r;
    while (c.turn >= c.num && c.at + 1 < c.end) {
        c.at++;
        open_segment(a, c);
    }
    if (c.turn < c.num) {
        if (c.turn > 0 && c.turn % 32 == 0) {
            c.blocks = c.blocks_after;
            c.blocks_after = block_of_turn(a, c, c.turn + 32 + (int)threadIdx.x % 32);
        }
        int block = __shfl_sync(0xffffffffu, c.blocks, c.turn % 32);
        if (c.is_waiting && (c.first + c.turn * WARPS + 1) * PAGE >= c.num_keys) {
            dependency_wait(); // the last page has this step's token
            c.is_waiting = false;
        }
        load_page<D, FP8>(a, stages + c.num_issued % r::STAGES * r::STAGE_BYTES, block,
                          c.first + c.turn * WARPS, head, c.num_keys);
        c.turn++;
    }
    cp_async_commit();
    c.num_issued++;
}

/** This warp's pages of a segment; `num_used`: pages it took before. */
template <int D, typename T, bool FP8>
DEVICE void walk_pages(const struct attention_decode_args &a, struct warp_state<D> &w,
                       struct cursor &c, const struct decode_segment &g, int head, int first_row,
                       uint32_t stages, int *num_used)
{
    typedef ring<D, FP8> r;
    int lane = threadIdx.x % 32, group = a.num_heads / a.cache.num_kv_heads;
    const T *rows[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = first_row + lane / 4 + 8 * h;
        rows[h] = row < group ? (const T *)a.q + (size_t)g.seq * a.q_stride +
                                    (size_t)(head * group + row) * D
                              : NULL;
        w.max[h] = -INFINITY;
        w.sum[h] = 0;
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        w.o[i][0] = w.o[i][1] = w.o[i][2] = w.o[i][3] = 0;
    uint32_t q[D / 16][4];
    load_q_fragments<D, T, FP8>(q, rows);
    struct score_scale scale =
        make_score_scale(a.scale * (FP8 ? a.cache.k_scale : 1.0f), a.softcap);
    int num = num_turns(g), first = first_page(g);
    bool has_upper = group - first_row > 8;
#pragma unroll 1
    for (int i = 0; i < num; i++) {
        cp_async_wait<r::STAGES - 2>();
        __syncwarp(); // the page is whole, and all lanes are done with the stage filled next
        issue_page<D, FP8>(a, c, stages, head);
        add_page<D, T, FP8>(w, q, stages + *num_used % r::STAGES * r::STAGE_BYTES,
                            (first + i * WARPS) * PAGE, g, scale, has_upper);
        ++*num_used;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.sum[h] += __shfl_xor_sync(0xffffffffu, w.sum[h], 1);
        w.sum[h] += __shfl_xor_sync(0xffffffffu, w.sum[h], 2);
    }
}

/** Scratch: arrival counters [max_seqs, num_heads], log-sums and sums of each slot. */
struct partials {
    uint32_t *counters;
    float *lse, *o;
};

/** The warps' results of rows [row_begin, row_begin + MERGE_ROWS) → the output or the slot. */
template <int D, typename T, bool FP8>
DEVICE void merge_rows(const struct attention_decode_args &a, const struct warp_state<D> &w,
                       const struct decode_segment &g, const struct partials &part, int first_head,
                       int num_rows, int row_begin, float *merge_o)
{
    float *merge_max = merge_o + WARPS * MERGE_ROWS * D,
          *merge_sum = merge_max + WARPS * MERGE_ROWS;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads(); // the last use of the memory is over
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = lane / 4 + 8 * h - row_begin;
        if (row < 0 || row >= MERGE_ROWS)
            continue;
        row += warp * MERGE_ROWS;
        if (lane % 4 == 0) {
            merge_max[row] = w.max[h];
            merge_sum[row] = w.sum[h];
        }
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            merge_o[row * D + output_dim<FP8>(i, 0)] = w.o[i][2 * h];
            merge_o[row * D + output_dim<FP8>(i, 1)] = w.o[i][2 * h + 1];
        }
    }
    __syncthreads();
    int end = min(MERGE_ROWS, num_rows - row_begin) * D;
    for (int e = (int)threadIdx.x; e < end; e += WARPS * 32) {
        int row = e / D, d = e % D, head = first_head + row_begin + row;
        float best = -INFINITY, sum = 0, o = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            best = fmaxf(best, merge_max[i * MERGE_ROWS + row]);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            float weight = exp2_fast(merge_max[i * MERGE_ROWS + row] - best);
            sum += weight * merge_sum[i * MERGE_ROWS + row];
            o += weight * merge_o[(i * MERGE_ROWS + row) * D + d];
        }
        o = o / sum * (FP8 ? a.cache.v_scale : 1.0f);
        if (g.num_slots == 1) {
            ((T *)a.out)[((size_t)g.seq * a.num_heads + head) * D + d] = from_f32<T>(o);
        } else {
            size_t slot = (size_t)g.slot * a.num_heads + head;
            part.o[slot * D + d] = o;
            if (d == 0)
                part.lse[slot] = best + __log2f(sum);
        }
    }
}

/** Adds up the partial results of one sequence and kv head, in the order of its keys. A warp per
 *  row: the slots' weights first, a lane each, then their sums. */
template <int D, typename T>
DEVICE void combine_slots(const struct attention_decode_args &a, const struct decode_segment &g,
                          const struct partials &part, int first_head, int num_rows)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int row = warp; row < num_rows; row += WARPS) {
        size_t at = (size_t)g.first_slot * a.num_heads + first_head + row;
        float best = -INFINITY, sum = 0, o[D / 32] = {};
        for (int i = lane; i < g.num_slots; i += 32)
            best = fmaxf(best, __ldcg(part.lse + at + (size_t)i * a.num_heads));
        best = warp_max(best);
        for (int first = 0; first < g.num_slots; first += 32) {
            int num = min(32, g.num_slots - first);
            const float *lse = part.lse + at + (size_t)(first + lane) * a.num_heads;
            float own = lane < num ? exp2_fast(__ldcg(lse) - best) : 0.0f;
            sum += own;
#pragma unroll 8
            for (int i = 0; i < num; i++) {
                float weight = __shfl_sync(0xffffffffu, own, i);
                const float *src = part.o + (at + (size_t)(first + i) * a.num_heads) * D + lane;
#pragma unroll
                for (int d = 0; d < D / 32; d++)
                    o[d] += weight * __ldcg(src + 32 * d);
            }
        }
        float factor = 1.0f / warp_sum(sum);
        T *out = (T *)a.out + ((size_t)g.seq * a.num_heads + first_head + row) * D + lane;
#pragma unroll
        for (int d = 0; d < D / 32; d++)
            out[32 * d] = from_f32<T>(o[d] * factor);
    }
}

template <int D, typename T, bool FP8>
__global__ __launch_bounds__(WARPS * 32, D > 128 ? 1 : 2) void decode_kernel(
    const __grid_constant__ struct attention_decode_args a)
{
    extern __shared__ __align__(128) char smem[];
    typedef ring<D, FP8> r;
    __shared__ bool is_last;
    int head = blockIdx.y, first_row = (int)blockIdx.z * 16;
    int group = a.num_heads / a.cache.num_kv_heads, num_rows = min(16, group - first_row);
    int first_head = head * group + first_row;
    const int32_t *cta_first = a.plan.memory + 1;
    const struct decode_segment *segments =
        (const struct decode_segment *)(a.plan.memory + DECODE_PLAN_HEADER_WORDS(a.plan.num_ctas));
    int num_slots = a.plan.fixed_splits ? a.plan.max_seqs * DECODE_MAX_FIXED_SPLITS
                                        : a.plan.max_seqs + a.plan.num_ctas;
    struct partials part;
    part.counters = (uint32_t *)a.scratch;
    part.lse = (float *)(part.counters + (size_t)a.plan.max_seqs * a.num_heads);
    part.o = part.lse + (size_t)num_slots * a.num_heads;

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
    const struct decode_segment *at = c.at, *end = c.end;
    uint32_t stages = smem_address(smem) + threadIdx.x / 32 * r::STAGES * r::STAGE_BYTES;
    int num_used = 0;
    open_segment(a, c);
#pragma unroll 1
    for (int i = 0; i < r::STAGES - 1; i++)
        issue_page<D, FP8>(a, c, stages, head);
    if (c.is_waiting)
        dependency_wait();
    c.is_waiting = false;
    dependents_launch();
#pragma unroll 1
    for (; at < end; at++) {
        struct decode_segment g = *at;
        struct warp_state<D> w;
        walk_pages<D, T, FP8>(a, w, c, g, head, first_row, stages, &num_used);
        for (int row = 0; row < num_rows; row += MERGE_ROWS)
            merge_rows<D, T, FP8>(a, w, g, part, first_head, num_rows, row,
                                  (float *)(smem + r::RING_BYTES));
        if (g.num_slots == 1)
            continue;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t *counter = part.counters + (size_t)g.seq * a.num_heads + first_head;
            is_last = atomicAdd(counter, 1u) == (uint32_t)g.num_slots - 1;
            if (is_last)
                *counter = 0; // for the next launch
        }
        __syncthreads();
        if (is_last) {
            __threadfence();
            combine_slots<D, T>(a, g, part, first_head, num_rows);
        }
    }
    cp_async_wait<0>();
}

// ---- Launchers -----------------------------------------------------------------------------

void attention_decode_plan_build(const struct cuda_launch *launch,
                                 const struct attention_decode_plan *plan, const int32_t *seq_lens,
                                 int32_t num_seqs, int32_t window)
{
    struct plan_args args = {*plan, seq_lens, num_seqs, window};
    launch_kernel(launch, (const void *)plan_kernel, dim3(1), PLAN_THREADS, 0, &args);
}

template <int D, typename T> static const void *decode_kernel_of(bool is_fp8, size_t *smem)
{
    *smem = is_fp8 ? ring<D, true>::BYTES : ring<D, false>::BYTES;
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
    struct attention_decode_args copy = *args;
    launch_kernel(launch, kernel, grid, WARPS * 32, smem, &copy);
}
