// top-k and top-p both look for a cut in falling order of a row's logits: where the count reaches
// k, or the mass reaches p. A histogram over slices of 1/32 nat finds the slice of the cut;
// histograms over ever smaller intervals of the float's bits find the logit inside it, usually in
// one more round. Counts and masses are integers (a weight relative to its slice's top has 28 bits,
// split over two counters), so that atomics may add them in any order with one result.
#pragma once

#include "ops/cuda/sample_row.cuh"

DEVICE int slice_of(const struct row_state &r, float x)
{
    return (int)fminf((r.max - x) * r.slices_per_logit, BINS - 1);
}

/** A little below the slice's lowest logits; -infinity past the last slice. */
DEVICE float slice_floor(const struct row_state &r, int slice)
{
    if (slice >= BINS)
        return -INFINITY;
    float low = r.max - ((float)slice + 1.01f) / r.slices_per_logit;
    return low - 1e-6f * fabsf(low); // where a slice is narrower than the float's steps
}

/** Relative to the slice's top, 28 bits. */
DEVICE uint32_t weight_in_slice(const struct row_state &r, float x, int slice)
{
    float below_top = (r.max - x) * r.slices_per_logit - (float)slice;
    return (uint32_t)(exp2_fast(-LOG2E / SLICES_PER_NAT * below_top) * 0x1p28f);
}

DEVICE bool is_kept(const struct cut &c, int slice, uint32_t key)
{
    return slice < c.slice || (slice == c.slice && key >= c.key);
}

/** Sums the ranks' histograms and finds where the total, from bin 0 on, reaches `target`. `scale`
 *  gives a bin's mass from its sum, except in the first round, where it depends on the bin. A
 *  `target` given as a share becomes absolute in the first round. */
DEVICE struct crossing find_crossing(const struct row_state &r, bool by_mass, bool is_first_round,
                                     double scale, double before, double *target)
{
    cg::cluster_group cluster = cg::this_cluster();
    struct block_memory *m = r.m;
    int tid = (int)threadIdx.x, lane = tid % 32;
    cluster.sync(); // all histograms are whole
    if (tid < BINS_PER_RANK) {
        int bin = r.rank * BINS_PER_RANK + tid;
        uint32_t count = 0;
        uint64_t high = 0, low = 0;
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) {
            const struct block_memory *other = cluster.map_shared_rank(m, i);
            count += other->count[bin];
            if (by_mass) {
                high += other->mass_high[bin];
                low += other->mass_low[bin];
            }
        }
        if (is_first_round)
            scale = exp(-(double)bin / SLICES_PER_NAT);
        m->rank_count[tid] = count;
        m->rank_mass[tid] =
            by_mass ? (double)(high << 14) * 0x1p-28 * scale + (double)low * 0x1p-28 * scale
                    : (double)count;
    }
    __syncthreads();
    double sums[4], end = 0;
    if (tid < 32) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            end += m->rank_mass[4 * lane + i];
            sums[i] = end; // from the lane's first bin on
        }
        double own = end;
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            double below = __shfl_up_sync(0xffffffffu, end, i);
            end += lane >= i ? below : 0;
        }
        double total = __shfl_sync(0xffffffffu, end, 31);
        if (lane < CLUSTER)
            cluster.map_shared_rank(m, lane)->total[r.rank] = total;
        end -= own; // now: before the lane's first bin
    }
    if (tid == 0)
        m->found.bin = -1;
    cluster.sync();
    double all = 0, before_rank = before;
    for (int i = 0; i < CLUSTER; i++) {
        before_rank += i < r.rank ? m->total[i] : 0;
        all += m->total[i];
    }
    if (is_first_round && by_mass)
        *target *= all;
    if (tid < 32 && before_rank < *target && before_rank + m->total[r.rank] >= *target) {
        // The last bin that holds anything, should rounding leave the sum below the target.
        int hit = -1, last = -1;
        double hit_before = 0, last_before = 0;
#pragma unroll
        for (int i = 3; i >= 0; i--) {
            double start = before_rank + end + (i > 0 ? sums[i > 0 ? i - 1 : 0] : 0);
            if (m->rank_count[4 * lane + i] > 0) {
                if (last < 0) {
                    last = 4 * lane + i;
                    last_before = start;
                }
                if (before_rank + end + sums[i] >= *target) {
                    hit = 4 * lane + i;
                    hit_before = start;
                }
            }
        }
        unsigned hits = __ballot_sync(0xffffffffu, hit >= 0);
        unsigned lasts = __ballot_sync(0xffffffffu, last >= 0);
        bool is_owner = hits ? lane == __ffs(hits) - 1 : lasts && lane == 31 - __clz(lasts);
        if (is_owner) {
            int bin = hits ? hit : last;
            struct crossing c = {r.rank * BINS_PER_RANK + bin, m->rank_count[bin],
                                 hits ? hit_before : last_before, m->rank_mass[bin]};
            for (int i = 0; i < CLUSTER; i++)
                cluster.map_shared_rank(m, i)->found = c;
        }
    }
    cluster.sync();
    return m->found;
}

/** Adds a logit to a bin of this rank's histogram. */
DEVICE void add_to_bin(const struct row_state &r, int bin, bool by_mass, float x, int slice)
{
    atomicAdd(&r.m->count[bin], 1u);
    if (by_mass) {
        uint32_t weight = weight_in_slice(r, x, slice);
        atomicAdd(&r.m->mass_high[bin], weight >> 14);
        atomicAdd(&r.m->mass_low[bin], weight & 0x3fff);
    }
}

DEVICE void clear_bins(const struct row_state &r)
{
    __syncthreads(); // whoever read them is done
    for (int i = (int)threadIdx.x; i < BINS; i += SAMPLE_THREADS)
        r.m->count[i] = r.m->mass_high[i] = r.m->mass_low[i] = 0;
    __syncthreads();
}

/** The cut that keeps `target` tokens and ties with the last (count), or the fewest tokens whose
 *  share of what min-p and top-k left reaches `target` (mass). */
DEVICE struct cut find_cut(const struct row_state &r, bool by_mass, double target)
{
    const struct cut all_but_open = {BINS - 2, 0, ALL_TIES};
    clear_bins(r);
    float floor = by_mass ? r.floor : -INFINITY;
    for (int i = 4 * (int)threadIdx.x; i < r.share; i += 4 * SAMPLE_THREADS) {
        float x[4];
        *(float4 *)x = *(const float4 *)(r.x + i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (!(x[j] >= floor))
                continue;
            int slice = slice_of(r, x[j]);
            if (slice < BINS - 1 && (!by_mass || is_kept(r.top_k, slice, ordered_key(x[j]))))
                add_to_bin(r, slice, by_mass, x[j], slice);
        }
    }
    struct crossing c = find_crossing(r, by_mass, true, 1, 0, &target);
    if (c.bin < 0)
        return all_but_open;
    struct cut found = {c.bin, 0, ALL_TIES};
    int slice = c.bin;
    double scale = exp(-(double)slice / SLICES_PER_NAT);
    // Bounds of the slice's keys, a little wide: rounding in slice_of() stays inside.
    uint32_t low = ordered_key(slice_floor(r, slice)) - 2;
    uint32_t high = ordered_key(r.max - ((float)slice - 0.01f) / r.slices_per_logit) + 2;
    for (;;) {
        if (c.count == 1 || (!by_mass && c.before + c.mass == target))
            return found; // the bin stays whole
        int bits = 32 - __clz(high - low), shift = bits > 10 ? bits - 10 : 0;
        clear_bins(r);
        for (int i = 4 * (int)threadIdx.x; i < r.share; i += 4 * SAMPLE_THREADS) {
            float x[4];
            *(float4 *)x = *(const float4 *)(r.x + i);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t key = ordered_key(x[j]);
                if (key >= low && key <= high && slice_of(r, x[j]) == slice &&
                    (!by_mass || (x[j] >= r.floor && is_kept(r.top_k, slice, key))))
                    add_to_bin(r, (int)((high - key) >> shift), by_mass, x[j], slice);
            }
        }
        c = find_crossing(r, by_mass, false, scale, c.before, &target);
        if (c.bin < 0)
            return found; // reached but for rounding
        high -= (uint32_t)c.bin << shift;
        low = high - ((1u << shift) - 1);
        found.key = low;
        if (shift == 0) {
            if (by_mass) {
                double each = c.mass / c.count;
                found.num_ties =
                    (uint32_t)fmin(fmax(ceil((target - c.before) / each), 1.0), (double)c.count);
            }
            return found;
        }
    }
}
