// What the two prefill kernels share: which rows a CTA has, and which keys they see.
#pragma once

#include "ops/cuda/common.cuh"

constexpr int PREFILL_ROWS = 128; // (token, head) pairs per CTA

struct prefill_tile {
    int seq, query_start, num_cached; // num_cached: keys before the step's first
    int group, first_row, num_rows;   // rows are token * group + head; num_rows: of the sequence
    int first_key, end_key;           // that any row of the tile sees
};

/** The last sequence whose first tile is not behind `index`, by all lanes of a warp: 32 candidates
 *  at a time, since each look costs a trip to memory. */
DEVICE int find_sequence(const struct attention_prefill_args &a, int group, int index)
{
    int first = 0, num = a.num_seqs, lane = threadIdx.x % 32;
    while (num > 1) {
        int step = (num + 31) / 32, seq = first + lane * step;
        bool is_behind =
            lane * step >= num || a.query_start[seq] * group / PREFILL_ROWS + seq > index;
        unsigned behind = __ballot_sync(0xffffffffu, is_behind);
        int last =
            (behind ? __ffs((int)behind) - 1 : 32) - 1; // 0 at least: index 0 is sequence 0's
        first += max(last, 0) * step;
        num = min(step, a.num_seqs - first);
    }
    return first;
}

/** False for a surplus CTA. All threads together. */
DEVICE bool find_prefill_tile(const struct attention_prefill_args &a, struct prefill_tile *t)
{
    int index = (int)(gridDim.x - 1 - blockIdx.x);
    t->group = a.num_heads / a.cache.num_kv_heads;
    int low = find_sequence(a, t->group, index);
    t->seq = low;
    t->query_start = a.query_start[low];
    int num_queries = a.query_start[low + 1] - t->query_start;
    t->first_row = (index - t->query_start * t->group / PREFILL_ROWS - low) * PREFILL_ROWS;
    t->num_rows = num_queries * t->group;
    if (t->first_row >= t->num_rows)
        return false;
    t->num_cached = a.seq_lens[low] - num_queries;
    int first_token = t->first_row / t->group;
    int last_token = (min(t->num_rows, t->first_row + PREFILL_ROWS) - 1) / t->group;
    t->end_key = t->num_cached + last_token + 1;
    t->first_key = a.window > 0 ? max(0, t->num_cached + first_token - a.window + 1) : 0;
    return true;
}

/** Softmax weights multiplied in f16, whose normal numbers end at 2^-14: kept
 *  2^15 times as large, which the division by their sum undoes, they have all their bits down to
 *  2^-29. Nor can what a row does not see, weighed zero, come near them where tensor cores align
 *  the terms of a sum by their exponents: which keys that are differs with the chunk. */
template <bool F16> constexpr float WEIGHT_LOG2 = F16 ? 15.0f : 0.0f;

/** Whether the query at `position` sees `key`. */
DEVICE bool sees(const struct attention_prefill_args &a, const struct prefill_tile &t, int position,
                 int key)
{
    return key <= position && key < t.end_key && (a.window == 0 || position - key < a.window);
}

/** Whether some row of the tile does not see some of the keys [first, first + num). */
DEVICE bool needs_mask(const struct attention_prefill_args &a, const struct prefill_tile &t,
                       int first, int num)
{
    int first_token = t.first_row / t.group;
    return first + num - 1 > t.num_cached + first_token ||
           (a.window > 0 && t.end_key - 1 - first >= a.window);
}

template <int D, typename T>
DEVICE T *prefill_out_row(const struct attention_prefill_args &a, const struct prefill_tile &t,
                          int row, int head)
{
    int at = t.first_row + row;
    return (T *)a.out +
           ((size_t)(t.query_start + at / t.group) * a.num_heads + head * t.group + at % t.group) *
               D;
}

static inline dim3 prefill_grid(const struct attention_prefill_args *args)
{
    int group = args->num_heads / args->cache.num_kv_heads;
    int64_t tiles = (int64_t)args->num_tokens * group / PREFILL_ROWS + args->num_seqs;
    return dim3((unsigned)tiles, (unsigned)args->cache.num_kv_heads);
}

/** The Hopper kernel; false (and nothing launched) when it does not serve this cache. */
bool attention_prefill_wgmma(const struct cuda_launch *launch,
                             const struct attention_prefill_args *args);
