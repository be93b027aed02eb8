// Logits → token ids, a cluster of eight CTAs per row, in the order of worker/sampler.c: mask,
// allowed ids, bias, min_tokens, penalties; greedy, or temperature, min-p, top-k, top-p and a draw.
//
// The draw inverts the cumulative distribution in the order of ids: lanes, warps and ranks hold
// rising ids, and their sums are added in that order, in f64.
#include "ops/cuda/sample_adjust.cuh"
#include "ops/cuda/sample_cut.cuh"

struct sample_args {
    int32_t *token_ids;
    const float *logits;
    const struct cuda_sampling_row *rows;
    int64_t stride;
    int32_t vocab_size;
};

// ---- The draw ------------------------------------------------------------------------------

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
