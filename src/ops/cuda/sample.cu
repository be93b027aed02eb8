// Logits → token ids, a cluster of eight CTAs per row, in the order of worker/sampler.c: mask,
// allowed ids, bias, min_tokens, penalties; greedy, or temperature, min-p, top-k, top-p and a draw.
//
// top-k and top-p both look for a cut in falling order of logits: where the count reaches k, or the
// mass reaches p. A histogram over slices of 1/32 nat finds the slice of the cut; histograms over
// ever smaller intervals of the float's bits find the logit inside it, usually in one more round.
// Counts and masses are integers (a weight relative to its slice's top has 28 bits, split over two
// counters), so that atomics may add them in any order with one result.
//
// The draw inverts the cumulative distribution in the order of ids: lanes, warps and ranks hold
// rising ids, and their sums are added in that order, in f64.
#include "ops/cuda/sample.cuh"

enum { SLICES_PER_NAT = 32, BINS = 1024, BINS_PER_RANK = BINS / CLUSTER };

static_assert(BINS_PER_RANK == 128, "a warp scans a rank's bins, four a lane");

/** What is kept: slices above `slice`, and in it keys from `key` on, of those equal to it the first
 *  `num_ties` by id. */
struct cut {
    int32_t slice;
    uint32_t key, num_ties;
};

constexpr uint32_t ALL_TIES = 0xffffffffu;

/** Where a running total reaches its target. bin -1: nowhere. */
struct crossing {
    int32_t bin;
    uint32_t count; // in the bin
    double before, mass;
};

struct block_memory {
    uint32_t count[BINS], mass_high[BINS], mass_low[BINS];
    uint32_t rank_count[BINS_PER_RANK];
    double rank_mass[BINS_PER_RANK];
    // Written by the other ranks, one entry each.
    struct ranked first[CLUSTER];
    uint32_t flags[CLUSTER]; // of the logits before the adjustments, bad ones after them too
    uint32_t num_ties[CLUSTER];
    double total[CLUSTER];
    struct crossing found;
    // Of this block's warps.
    struct ranked warp_first[SAMPLE_WARPS];
    double warp_total[SAMPLE_WARPS];
    uint32_t warp_ties[SAMPLE_WARPS];
};

struct sample_args {
    int32_t *token_ids;
    const float *logits;
    const struct cuda_sampling_row *rows;
    int64_t stride;
    int32_t vocab_size;
};

/** One row's work on one rank. */
struct row_state {
    float *x; // [share] in shared memory
    struct block_memory *m;
    int32_t first_id, share, rank;
    float max, slices_per_logit; // slices_per_logit: SLICES_PER_NAT / temperature
    float floor; // what lies below is not kept: min-p's threshold, or near below a cut
    struct cut top_k, top_p;
};

DEVICE double philox_uniform(uint64_t key, uint64_t counter)
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t even = (uint64_t)0xD2511F53u * c0, odd = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)odd;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)even;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return ((double)(c0 >> 5) * 0x1p26 + (double)(c1 >> 6)) * 0x1p-53;
}

// ---- Adjustments, each rank on its own ids -------------------------------------------------

DEVICE void keep_allowed(const struct row_state &r, const struct cuda_sampling_row &p)
{
    uint32_t *is_allowed = r.m->count; // a bit per id: count, mass_high and mass_low hold 98304
    for (int i = (int)threadIdx.x; i < (r.share + 31) / 32; i += SAMPLE_THREADS)
        is_allowed[i] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < p.num_allowed; i += SAMPLE_THREADS) {
        int at = p.allowed[i] - r.first_id;
        if (at >= 0 && at < r.share)
            atomicOr(&is_allowed[at / 32], 1u << at % 32);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < r.share; i += SAMPLE_THREADS) {
        if (!(is_allowed[i / 32] >> i % 32 & 1))
            r.x[i] = -INFINITY;
    }
    __syncthreads();
}

/** Each token of the history changes its logit once, by how often it came; they are counted for a
 *  part of the ids at a time. */
DEVICE void apply_penalties(const struct row_state &r, const struct cuda_sampling_row &p,
                            int vocab_size)
{
    constexpr uint32_t SEEN = 0x80000000u;
    constexpr int PART = 3 * BINS; // count, mass_high and mass_low
    uint32_t *counts = r.m->count;
    int num_listed = p.num_tokens - (p.last_token ? 1 : 0);
    int num_ids = min(r.share, vocab_size - r.first_id);
    for (int begin = 0; begin < num_ids; begin += PART) {
        int part = min(num_ids - begin, PART);
        for (int i = (int)threadIdx.x; i < part; i += SAMPLE_THREADS)
            counts[i] = 0;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < p.num_tokens; i += SAMPLE_THREADS) {
            int id = i < num_listed ? p.token_ids[i] : *p.last_token;
            int at = id - r.first_id - begin;
            if (at < 0 || at >= part)
                continue;
            if (i < p.num_prompt_tokens)
                atomicOr(&counts[at], SEEN);
            else
                atomicAdd(&counts[at], 1u);
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < part; i += SAMPLE_THREADS) {
            uint32_t count = counts[i];
            if (count == 0)
                continue;
            count &= ~SEEN;
            double logit = r.x[begin + i], penalty = p.repetition_penalty;
            logit = logit > 0 ? logit / penalty : logit * penalty;
            if (count > 0)
                logit = logit - (double)p.frequency_penalty * count - (double)p.presence_penalty;
            r.x[begin + i] = (float)logit;
        }
        __syncthreads();
    }
}

DEVICE void adjust_logits(const struct row_state &r, const struct cuda_sampling_row &p,
                          int vocab_size)
{
    if (p.num_allowed > 0)
        keep_allowed(r, p);
    for (int i = (int)threadIdx.x; i < p.num_logit_bias; i += SAMPLE_THREADS) {
        int at = p.logit_bias[i].token_id - r.first_id;
        if (at >= 0 && at < r.share && at + r.first_id < vocab_size)
            r.x[at] += p.logit_bias[i].bias;
    }
    __syncthreads();
    if (p.num_tokens - p.num_prompt_tokens < p.min_tokens) {
        for (int i = (int)threadIdx.x; i < p.num_forbidden; i += SAMPLE_THREADS) {
            int at = p.forbidden[i] - r.first_id;
            if (at >= 0 && at < r.share)
                r.x[at] = -INFINITY;
        }
        __syncthreads();
    }
    if (p.repetition_penalty != 1.0f || p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f)
        apply_penalties(r, p, vocab_size);
}

// ---- Cuts ----------------------------------------------------------------------------------

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

// ---- The draw ------------------------------------------------------------------------------

/** The weight of id first_id + i, 0 if it was removed. All lanes of a warp together, ids rising;
 *  `num_ties`: ties at the cut so far. */
DEVICE float weigh(const struct row_state &r, int i, int end, uint32_t *num_ties)
{
    float x = i < end ? r.x[i] : -INFINITY;
    bool is_in = x > -INFINITY && x >= r.floor;
    if (!__any_sync(0xffffffffu, is_in))
        return 0.0f;
    if (r.top_k.slice < BINS || r.top_p.slice < BINS) {
        int slice = slice_of(r, x);
        uint32_t key = ordered_key(x);
        is_in = is_in && slice < BINS - 1 && is_kept(r.top_k, slice, key) &&
                is_kept(r.top_p, slice, key);
        if (r.top_p.num_ties != ALL_TIES) {
            bool is_tie = is_in && slice == r.top_p.slice && key == r.top_p.key;
            unsigned ties = __ballot_sync(0xffffffffu, is_tie);
            uint32_t before = *num_ties + __popc(ties & ((1u << threadIdx.x % 32) - 1));
            is_in = is_in && !(is_tie && before >= r.top_p.num_ties);
            *num_ties += __popc(ties);
        }
    }
    return is_in ? exp2_fast(-LOG2E / SLICES_PER_NAT * ((r.max - x) * r.slices_per_logit)) : 0.0f;
}

/** How many ties at top-p's cut have lower ids than this warp's. */
DEVICE uint32_t ties_before(const struct row_state &r, int begin, int end)
{
    cg::cluster_group cluster = cg::this_cluster();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    struct row_state all = r;
    all.top_p.num_ties = ALL_TIES - 1;
    uint32_t num = 0;
    for (int i = begin; i < end; i += 32)
        weigh(all, i + lane, end, &num);
    if (lane == 0)
        r.m->warp_ties[warp] = num;
    __syncthreads();
    uint32_t before = 0, total = 0;
    for (int i = 0; i < SAMPLE_WARPS; i++) {
        before += i < warp ? r.m->warp_ties[i] : 0;
        total += r.m->warp_ties[i];
    }
    if (threadIdx.x < CLUSTER)
        cluster.map_shared_rank(r.m, threadIdx.x)->num_ties[r.rank] = total;
    cluster.sync();
    for (int i = 0; i < r.rank; i++)
        before += r.m->num_ties[i];
    return before;
}

/** Which of `num` parts in a row passes the target; the last with any weight, should rounding miss
 *  it. Adds what lies before it to `before`. */
DEVICE int last_below(const double *parts, int num, double target, double *before)
{
    int chosen = -1;
    double sum = *before;
    for (int i = 0; i < num; i++) {
        double part = parts[i];
        if (part > 0) {
            chosen = i;
            *before = sum;
        }
        sum += part;
        if (part > 0 && sum > target)
            break;
    }
    return chosen;
}

DEVICE void draw(const struct row_state &r, double uniform, int32_t *token_id)
{
    cg::cluster_group cluster = cg::this_cluster();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int per_warp = ((r.share + SAMPLE_WARPS - 1) / SAMPLE_WARPS + 31) / 32 * 32;
    int begin = warp * per_warp, end = min(r.share, begin + per_warp);
    uint32_t first_tie = 0;
    if (r.top_p.num_ties != ALL_TIES)
        first_tie = ties_before(r, begin, end);
    uint32_t num_ties = first_tie;
    double sum = 0;
    for (int i = begin; i < end; i += 32)
        sum += weigh(r, i + lane, end, &num_ties);
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (lane == 0)
        r.m->warp_total[warp] = sum;
    __syncthreads();
    double rank_total = 0;
    for (int i = 0; i < SAMPLE_WARPS; i++)
        rank_total += r.m->warp_total[i];
    if (threadIdx.x < CLUSTER)
        cluster.map_shared_rank(r.m, threadIdx.x)->total[r.rank] = rank_total;
    cluster.sync();

    double total = 0, before = 0;
    for (int i = 0; i < CLUSTER; i++)
        total += r.m->total[i];
    double target = uniform * total;
    int rank = last_below(r.m->total, CLUSTER, target, &before);
    if (rank != r.rank)
        return;
    int chosen = last_below(r.m->warp_total, SAMPLE_WARPS, target, &before);
    // All warps share the chosen one's ids out again, so that what is walked id by id is short.
    begin = chosen * per_warp;
    end = min(r.share, begin + per_warp);
    int per_part = (per_warp + SAMPLE_WARPS - 1) / SAMPLE_WARPS;
    per_part = (per_part + 31) / 32 * 32;
    int part_begin = begin + warp * per_part, part_end = min(end, part_begin + per_part);
    num_ties = 0;
    if (r.top_p.num_ties != ALL_TIES) {
        if (warp == chosen && lane == 0)
            r.m->warp_ties[0] = first_tie;
        __syncthreads();
        num_ties = r.m->warp_ties[0];
        for (int i = begin; i < part_begin; i += 32)
            weigh(r, i + lane, end, &num_ties);
    }
    first_tie = num_ties;
    sum = 0;
    for (int i = part_begin; i < part_end; i += 32)
        sum += weigh(r, i + lane, part_end, &num_ties);
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    __syncthreads(); // everyone has read the warps' totals
    if (lane == 0)
        r.m->warp_total[warp] = sum;
    __syncthreads();
    chosen = last_below(r.m->warp_total, SAMPLE_WARPS, target, &before);
    if (chosen != warp)
        return;
    int last = -1;
    num_ties = first_tie;
    for (int i = part_begin; i < part_end; i += 32) {
        double weight = weigh(r, i + lane, part_end, &num_ties), reached = weight;
#pragma unroll
        for (int j = 1; j < 32; j *= 2) {
            double below = __shfl_up_sync(0xffffffffu, reached, j);
            reached += lane >= j ? below : 0;
        }
        unsigned any = __ballot_sync(0xffffffffu, weight > 0);
        unsigned hits = __ballot_sync(0xffffffffu, weight > 0 && before + reached > target);
        before += __shfl_sync(0xffffffffu, reached, 31);
        if (hits) {
            last = i + __ffs(hits) - 1;
            break;
        }
        if (any)
            last = i + 31 - __clz(any);
    }
    if (lane == 0)
        *token_id = r.first_id + last;
}

// ---- The kernel ----------------------------------------------------------------------------

/** First in rank of the row; id -1 where the logits are of no use, -2 where none may be drawn. */
DEVICE struct ranked find_first(const struct row_state &r, uint32_t flags)
{
    cg::cluster_group cluster = cg::this_cluster();
    struct ranked first = {0, INT32_MAX};
    float best = -INFINITY;
    for (int i = 4 * (int)threadIdx.x; i < r.share; i += 4 * SAMPLE_THREADS) {
        float x[4];
        *(float4 *)x = *(const float4 *)(r.x + i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            flags |= x[j] < INFINITY ? 0 : FLAG_BAD;
            if (x[j] > best) {
                best = x[j];
                first.id = r.first_id + i + j;
            }
        }
    }
    first.key = ordered_key(best);
    flags = __reduce_or_sync(0xffffffffu, flags);
    if (threadIdx.x % 32 == 0)
        r.m->warp_ties[threadIdx.x / 32] = flags;
    __syncthreads();
    flags = __reduce_or_sync(0xffffffffu, r.m->warp_ties[threadIdx.x % SAMPLE_WARPS]);
    first = block_first(first, r.m->warp_first);
    if (threadIdx.x < CLUSTER) {
        struct block_memory *other = cluster.map_shared_rank(r.m, threadIdx.x);
        other->first[r.rank] = first;
        other->flags[r.rank] = flags;
    }
    cluster.sync();
    first.key = 0;
    flags = 0;
    for (int i = 0; i < CLUSTER; i++) {
        flags |= r.m->flags[i];
        if (ranks_before(r.m->first[i], first))
            first = r.m->first[i];
    }
    if (flags & FLAG_BAD || !(flags & FLAG_ANY))
        first.id = -1;
    else if (first.key <= ordered_key(-INFINITY))
        first.id = -2;
    return first;
}

DEVICE float min_p_logit(const struct cuda_sampling_row &p, float max)
{
    if (!(p.min_p > 0))
        return -INFINITY;
    double threshold = fmin((double)max, max + log((double)p.min_p) * (double)p.temperature);
    return __double2float_ru(threshold);
}

static __global__
__launch_bounds__(SAMPLE_THREADS,
                  2) void sample_kernel(const __grid_constant__ struct sample_args a)
{
    extern __shared__ __align__(16) float x[];
    __shared__ struct block_memory memory;
    cg::cluster_group cluster = cg::this_cluster();
    int row = (int)blockIdx.x / CLUSTER;
    struct row_state r = {};
    r.x = x;
    r.m = &memory;
    r.rank = (int)cluster.block_rank();
    r.share = share_of(a.vocab_size);
    r.first_id = r.rank * r.share;
    dependents_launch();
    dependency_wait();

    const struct cuda_sampling_row &p = a.rows[row];
    uint32_t flags = load_share(x, a.logits + row * a.stride, r.first_id, r.share, a.vocab_size);
    cluster.sync(); // the share is whole, and every rank runs: its memory may be written
    if (p.mask)
        apply_mask(x, p.mask, r.first_id, r.share, a.vocab_size);
    adjust_logits(r, p, a.vocab_size);
    struct ranked first = find_first(r, flags);
    bool is_greedy = !(p.temperature >= 1e-5f);
    if (is_greedy || first.id < 0) {
        if (r.rank == 0 && threadIdx.x == 0)
            a.token_ids[row] = first.id;
    } else {
        const struct cut none = {BINS, 0, ALL_TIES};
        r.max = key_value(first.key);
        r.slices_per_logit = SLICES_PER_NAT / p.temperature;
        r.floor = min_p_logit(p, r.max);
        r.top_k = r.top_p = none;
        if (p.top_k > 0 && p.top_k < a.vocab_size)
            r.top_k = find_cut(r, false, p.top_k);
        r.floor = fmaxf(r.floor, slice_floor(r, r.top_k.slice));
        if (p.top_p < 1.0f)
            r.top_p = find_cut(r, true, p.top_p);
        r.floor = fmaxf(r.floor, slice_floor(r, r.top_p.slice));
        draw(r, philox_uniform(p.seed, (uint64_t)(p.num_tokens - p.num_prompt_tokens)),
             &a.token_ids[row]);
    }
    cluster.sync(); // no rank's memory goes away while another writes to it
}

void cuda_sample(const struct cuda_launch *launch, int32_t *token_ids, const float *logits,
                 int64_t stride, const struct cuda_sampling_row *rows, int32_t num_rows,
                 int32_t vocab_size)
{
    if (num_rows == 0)
        return;
    struct sample_args args = {token_ids, logits, rows, stride, vocab_size};
    launch_kernel(launch, (const void *)sample_kernel, dim3((unsigned)(num_rows * CLUSTER)),
                  SAMPLE_THREADS, (size_t)share_of(vocab_size) * sizeof(float), &args, CLUSTER);
}
