// Log-probabilities of the drawn token and of the likeliest ones under the logits that the
// row's mask leaves, a cluster of
// eight CTAs per row that asks. Each rank picks the likeliest of its own share, one at a time; rank
// 0 puts the ranks' picks in order.
#include "ops/cuda/sample.cuh"

struct logprob_args {
    int32_t *out_ids;
    float *out_logprobs;
    int32_t *out_ranks;
    const int32_t *token_ids;
    const float *logits;
    const struct cuda_sampling_row *rows;
    int64_t stride;
    int32_t vocab_size;
};

struct logprob_memory {
    struct ranked picks[CLUSTER][CUDA_MAX_LOGPROBS]; // rank 0's are used
    float max[CLUSTER];
    double sum[CLUSTER];
    int32_t num_above[CLUSTER];
    struct ranked warp_first[SAMPLE_WARPS];
    double warp_sum[SAMPLE_WARPS];
    int32_t warp_above[SAMPLE_WARPS];
};

/** This thread's first in rank; what was taken is NaN. */
DEVICE struct ranked scan_share(const float *x, int first_id, int num)
{
    struct ranked first = {0, INT32_MAX};
    for (int i = (int)threadIdx.x; i < num; i += SAMPLE_THREADS) {
        if (isnan(x[i]))
            continue;
        struct ranked v = {ordered_key(x[i]), first_id + i};
        if (v.key > first.key)
            first = v;
    }
    return first;
}

/** The row's sum of exponentials above its maximum, and how many logits reach `reference`. In
 * double precision, as the host sums: a token's log-probability is the same wherever it is drawn.
 */
DEVICE void sum_row(struct logprob_memory *m, const float *x, int num, int rank, float max,
                    float reference, double *sum, int32_t *num_above)
{
    cg::cluster_group cluster = cg::this_cluster();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double part = 0;
    int32_t above = 0;
    for (int i = (int)threadIdx.x; i < num; i += SAMPLE_THREADS) {
        part += exp((double)x[i] - max);
        above += x[i] >= reference;
    }
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        part += __shfl_xor_sync(0xffffffffu, part, i);
    above = __reduce_add_sync(0xffffffffu, above);
    if (lane == 0) {
        m->warp_sum[warp] = part;
        m->warp_above[warp] = above;
    }
    __syncthreads();
    part = 0;
    above = 0;
    for (int i = 0; i < SAMPLE_WARPS; i++) {
        part += m->warp_sum[i];
        above += m->warp_above[i];
    }
    if (threadIdx.x < CLUSTER) {
        struct logprob_memory *other = cluster.map_shared_rank(m, threadIdx.x);
        other->sum[rank] = part;
        other->num_above[rank] = above;
    }
    cluster.sync();
    *sum = 0;
    *num_above = 0;
    for (int i = 0; i < CLUSTER; i++) {
        *sum += m->sum[i];
        *num_above += m->num_above[i];
    }
}

static __global__
__launch_bounds__(SAMPLE_THREADS,
                  2) void logprob_kernel(const __grid_constant__ struct logprob_args a)
{
    extern __shared__ __align__(16) float x[];
    __shared__ struct logprob_memory memory;
    cg::cluster_group cluster = cg::this_cluster();
    int row = (int)blockIdx.x / CLUSTER, rank = (int)cluster.block_rank(), tid = (int)threadIdx.x;
    int share = share_of(a.vocab_size), first_id = rank * share;
    dependents_launch();
    dependency_wait();
    int token_id = a.token_ids[row], num_top = min(a.rows[row].num_logprobs, a.vocab_size);
    if (num_top < 0 || token_id < 0)
        return; // the whole cluster
    num_top = min(num_top, CUDA_MAX_LOGPROBS);

    const float *logits = a.logits + row * a.stride;
    load_share(x, logits, first_id, share, a.vocab_size);
    cluster.sync(); // every rank runs: its memory may be written
    if (a.rows[row].mask)
        apply_mask(x, a.rows[row].mask, first_id, share, a.vocab_size);
    int num = max(0, min(share, a.vocab_size - first_id));
    struct ranked own = scan_share(x, first_id, num);
    struct ranked first = block_first(own, memory.warp_first);
    if (tid < CLUSTER)
        cluster.map_shared_rank(&memory, tid)->max[rank] =
            first.key ? key_value(first.key) : -INFINITY;
    cluster.sync();
    float max = -INFINITY;
    for (int i = 0; i < CLUSTER; i++)
        max = fmaxf(max, memory.max[i]);
    double sum;
    int32_t num_above;
    sum_row(&memory, x, num, rank, max, __ldcg(logits + token_id), &sum, &num_above);

    struct logprob_memory *root = cluster.map_shared_rank(&memory, 0);
    for (int i = 0; i < num_top; i++) {
        if (i > 0)
            first = block_first(own, memory.warp_first);
        if (tid == 0)
            root->picks[rank][i] = first;
        if (first.key && own.id == first.id) {
            x[own.id - first_id] = NAN;
            own = scan_share(x, first_id, num);
        }
    }
    cluster.sync();
    if (rank != 0)
        return;
    double log_sum = log(sum) + max;
    size_t out = (size_t)row * (1 + CUDA_MAX_LOGPROBS);
    if (tid == 0) {
        a.out_ids[out] = token_id;
        a.out_logprobs[out] = (float)(__ldcg(logits + token_id) - log_sum);
        a.out_ranks[row] = num_above;
    }
    if (tid < CLUSTER * num_top) {
        struct ranked pick = memory.picks[tid / num_top][tid % num_top];
        int place = 0;
        for (int i = 0; i < CLUSTER * num_top; i++)
            place += ranks_before(memory.picks[i / num_top][i % num_top], pick);
        if (place < num_top && pick.key) {
            a.out_ids[out + 1 + place] = pick.id;
            a.out_logprobs[out + 1 + place] = (float)(key_value(pick.key) - log_sum);
        }
    }
}

void cuda_sample_logprobs(const struct cuda_launch *launch, int32_t *out_ids, float *out_logprobs,
                          int32_t *out_ranks, const int32_t *token_ids, const float *logits,
                          int64_t stride, const struct cuda_sampling_row *rows, int32_t num_rows,
                          int32_t vocab_size)
{
    if (num_rows == 0)
        return;
    struct logprob_args args = {out_ids, out_logprobs, out_ranks, token_ids,
                                logits,  rows,         stride,    vocab_size};
    launch_kernel(launch, (const void *)logprob_kernel, dim3((unsigned)(num_rows * CLUSTER)),
                  SAMPLE_THREADS, (size_t)share_of(vocab_size) * sizeof(float), &args, CLUSTER);
}
