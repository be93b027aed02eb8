// Parts of decode attention: what a CTA has in shared memory, and how the results of its warps, and
// of the CTAs that share a sequence, are added up.
#pragma once

#include "ops/cuda/attention.cuh"
#include "ops/cuda/barrier.cuh"

constexpr int WARPS = DECODE_WARPS;
constexpr int MERGE_ROWS = 4; // added up at a time, so that most shared memory is left to the rings

/** Shared memory of a CTA; two of them fit a multiprocessor but for the longest rows. */
template <int D, bool FP8> struct decode_memory {
    static constexpr int STAGE_BYTES = 2 * kv_page<D, FP8>::BYTES; // keys, values
    static constexpr int FIT = 96 * 1024 / (WARPS * STAGE_BYTES);
    static constexpr int STAGES = FIT > 8 ? 8 : FIT < 3 ? 3 : FIT;
    char stages[WARPS][STAGES][STAGE_BYTES];
    float o[WARPS][MERGE_ROWS][D + 8]; // the warps' results: see warp_state
    float max[WARPS][MERGE_ROWS], sum[WARPS][MERGE_ROWS];
    uint64_t full[WARPS][STAGES];
    uint32_t num_left, num_merged; // results left by warps; segments whose results are added up
    bool is_last;
};

/** One warp's softmax state over its pages: rows lane / 4 and lane / 4 + 8. Groups of at most eight
 *  heads leave the second one empty. */
template <int D> struct warp_state {
    float o[D / 8][4], max[2], sum[2];
};

// ---- Adding up -----------------------------------------------------------------------------

// By a team of one warp or of all, a warp per row.

template <int TEAM> DEVICE void team_sync()
{
    if constexpr (TEAM == 1)
        __syncwarp();
    else
        __syncthreads();
}

template <int TEAM> DEVICE int team_warp()
{
    return TEAM == 1 ? 0 : (int)threadIdx.x / 32;
}

/** What the CTA's rows are of, and its scratch: arrival counters [max_seqs, num_heads], log-sums
 *  and sums of each slot. */
struct decode_rows {
    int first_head, num_rows;
    uint32_t *counters;
    float *lse, *o;
};

/** This warp's result of rows [row_begin, row_begin + MERGE_ROWS). */
template <int D, bool FP8>
DEVICE void leave_result(const struct warp_state<D> &w, int row_begin,
                         struct decode_memory<D, FP8> *m)
{
    int lane = threadIdx.x % 32, warp = (int)threadIdx.x / 32, quad = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = lane / 4 + 8 * h - row_begin;
        if (row < 0 || row >= MERGE_ROWS)
            continue;
        if (quad == 0) {
            m->max[warp][row] = w.max[h];
            m->sum[warp][row] = w.sum[h];
        }
        float *to = m->o[warp][row];
        if constexpr (FP8) {
#pragma unroll
            for (int i = 0; i < D / 8; i += 2)
                *(float4 *)(to + 8 * i + 4 * quad) = make_float4(
                    w.o[i][2 * h], w.o[i + 1][2 * h], w.o[i][2 * h + 1], w.o[i + 1][2 * h + 1]);
        } else {
#pragma unroll
            for (int i = 0; i < D / 8; i++)
                *(float2 *)(to + 8 * i + 2 * quad) = make_float2(w.o[i][2 * h], w.o[i][2 * h + 1]);
        }
    }
}

/** The warps' results of rows [row_begin, row_begin + MERGE_ROWS) → the output or the slot. */
template <int TEAM, int D, typename T, bool FP8>
DEVICE void merge_results(const struct attention_decode_args &a, const struct decode_segment &g,
                          const struct decode_rows &r, int row_begin,
                          const struct decode_memory<D, FP8> *m)
{
    int lane = threadIdx.x % 32, end = min((int)MERGE_ROWS, r.num_rows - row_begin);
    for (int row = team_warp<TEAM>(); row < end; row += TEAM) {
        float weights[WARPS], best = -INFINITY, sum = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            best = fmaxf(best, m->max[i][row]);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            weights[i] = exp2_fast(m->max[i][row] - best);
            sum += weights[i] * m->sum[i][row];
        }
        float factor = (FP8 ? a.cache.v_scale : 1.0f) / sum;
        int head = r.first_head + row_begin + row;
        size_t slot = (size_t)g.slot * a.num_heads + head;
        T *out = (T *)a.out + ((size_t)g.seq * a.num_heads + head) * D;
#pragma unroll
        for (int d = 2 * lane; d < D; d += 64) {
            float2 o = make_float2(0, 0);
#pragma unroll
            for (int i = 0; i < WARPS; i++) {
                float2 v = *(const float2 *)&m->o[i][row][d];
                o.x += weights[i] * v.x;
                o.y += weights[i] * v.y;
            }
            o.x *= factor;
            o.y *= factor;
            if (g.num_slots == 1)
                *(uint32_t *)(out + d) = pack_pair<T>(o.x, o.y);
            else
                *(float2 *)(r.o + slot * D + d) = o;
        }
        if (g.num_slots > 1 && lane == 0)
            r.lse[slot] = best + __log2f(sum);
    }
}

/** VEC neighbouring numbers that other CTAs wrote. */
template <int VEC> DEVICE void load_partial(float v[VEC], const float *src)
{
    if constexpr (VEC == 4) {
        float4 x = __ldcg((const float4 *)src);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else if constexpr (VEC == 2) {
        float2 x = __ldcg((const float2 *)src);
        v[0] = x.x, v[1] = x.y;
    } else {
        v[0] = __ldcg(src);
    }
}

/** Adds up the partial results of one sequence and kv head, in the order of its keys. The loads of
 *  as many slots as registers hold come first, and the slots' weights, a lane each, meanwhile. */
template <int TEAM, int D, typename T>
DEVICE void combine_slots(const struct attention_decode_args &a, const struct decode_segment &g,
                          const struct decode_rows &r)
{
    constexpr int VEC = D % 128 == 0 ? 4 : D % 64 == 0 ? 2 : 1, PARTS = D / 32 / VEC;
    constexpr int SLOTS = D > 128 ? 8 : 16;
    int lane = threadIdx.x % 32;
    for (int row = team_warp<TEAM>(); row < r.num_rows; row += TEAM) {
        size_t at = (size_t)g.first_slot * a.num_heads + r.first_head + row;
        float best = -INFINITY, sum = 0, o[PARTS][VEC] = {};
        for (int first = 0; first < g.num_slots; first += SLOTS) {
            int num = min(SLOTS, g.num_slots - first);
            float v[SLOTS][PARTS][VEC], own = -INFINITY;
            if (lane < num)
                own = __ldcg(r.lse + at + (size_t)(first + lane) * a.num_heads);
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                const float *src = r.o + (at + (size_t)(first + min(i, num - 1)) * a.num_heads) * D;
#pragma unroll
                for (int d = 0; d < PARTS; d++)
                    load_partial<VEC>(v[i][d], src + (d * 32 + lane) * VEC);
            }
            if (first == 0) {
                best = own;
                for (int i = SLOTS + lane; i < g.num_slots; i += 32)
                    best = fmaxf(best, __ldcg(r.lse + at + (size_t)i * a.num_heads));
                best = warp_max(best);
            }
            own = exp2_fast(own - best);
            sum += own;
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                float weight = __shfl_sync(0xffffffffu, own, i); // zero past the last
#pragma unroll
                for (int d = 0; d < PARTS * VEC; d++)
                    o[d / VEC][d % VEC] += weight * v[i][d / VEC][d % VEC];
            }
        }
        float factor = 1.0f / warp_sum(sum);
        T *out = (T *)a.out + ((size_t)g.seq * a.num_heads + r.first_head + row) * D;
#pragma unroll
        for (int d = 0; d < PARTS; d++) {
            T *to = out + (d * 32 + lane) * VEC;
            if constexpr (VEC == 1) {
                *to = from_f32<T>(o[d][0] * factor);
            } else {
#pragma unroll
                for (int i = 0; i < VEC; i += 2)
                    *(uint32_t *)(to + i) = pack_pair<T>(o[d][i] * factor, o[d][i + 1] * factor);
            }
        }
    }
}

/** Adds one, orders what the team wrote before it and what it reads after it. */
DEVICE uint32_t count_arrival(uint32_t *counter)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

/** After merge_results(): if this was the sequence's last segment to arrive, its output. */
template <int TEAM, int D, typename T, bool FP8>
DEVICE void finish_segment(const struct attention_decode_args &a, const struct decode_segment &g,
                           const struct decode_rows &r, struct decode_memory<D, FP8> *m)
{
    if (g.num_slots == 1)
        return;
    team_sync<TEAM>();
    if (team_warp<TEAM>() == 0 && threadIdx.x % 32 == 0) {
        uint32_t *counter = r.counters + (size_t)g.seq * a.num_heads + r.first_head;
        m->is_last = count_arrival(counter) == (uint32_t)g.num_slots - 1;
        if (m->is_last)
            *counter = 0; // for the next launch
    }
    team_sync<TEAM>();
    if (m->is_last)
        combine_slots<TEAM, D, T>(a, g, r);
}

/** All warps together, which wait for each other. */
template <int D, typename T, bool FP8>
DEVICE void add_up(const struct attention_decode_args &a, const struct warp_state<D> &w,
                   const struct decode_segment &g, const struct decode_rows &r,
                   struct decode_memory<D, FP8> *m)
{
    for (int row = 0; row < r.num_rows; row += MERGE_ROWS) {
        __syncthreads(); // the last use of the memory is over
        leave_result<D, FP8>(w, row, m);
        __syncthreads();
        merge_results<WARPS, D, T, FP8>(a, g, r, row, m);
    }
    finish_segment<WARPS, D, T, FP8>(a, g, r, m);
}

/** By the last warp to come, of the run's `index`th segment; the others go on. */
template <int D, typename T, bool FP8>
DEVICE void add_up_when_last(const struct attention_decode_args &a, const struct warp_state<D> &w,
                             const struct decode_segment &g, const struct decode_rows &r,
                             uint32_t index, struct decode_memory<D, FP8> *m)
{
    int lane = threadIdx.x % 32;
    while (*(volatile uint32_t *)&m->num_merged < index) // the memory is in use
        ;
    __syncwarp();
    leave_result<D, FP8>(w, 0, m);
    __syncwarp();
    uint32_t num_left = 0;
    if (lane == 0) {
        __threadfence_block();
        num_left = atomicAdd(&m->num_left, 1u) + 1;
        __threadfence_block();
    }
    num_left = __shfl_sync(0xffffffffu, num_left, 0);
    if (num_left != WARPS * (index + 1))
        return;
    merge_results<1, D, T, FP8>(a, g, r, 0, m);
    finish_segment<1, D, T, FP8>(a, g, r, m);
    __syncwarp();
    if (lane == 0) {
        __threadfence_block();
        *(volatile uint32_t *)&m->num_merged = index + 1;
    }
}
