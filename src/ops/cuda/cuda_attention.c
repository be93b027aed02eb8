// Attention on a GPU: which kernel, and the plan that all layers of a decoding step share.
//
// How a batch's sequences are cut into equal work depends on their lengths alone, so the plan is
// made once a step (for each attention window) and kept until a copy may have changed the lengths.
// Its memory is taken when a shape is first seen, for the largest batch there will be: recordings
// hold its address.
#include "base/memory.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_sizes.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/plain.h"

struct decode_plan {
    int32_t num_heads, num_kv_heads, head_dim, window;
    struct attention_decode_plan plan;
    void *scratch;
    const int32_t *seq_lens; // of the step that it was made for; NULL: of none
    int32_t num_seqs;
};

struct cuda_plans {
    int32_t num;
    struct decode_plan plans[MAX_DECODE_PLANS];
};

struct cuda_plans *cuda_plans_create(void)
{
    return xcalloc(1, sizeof(struct cuda_plans));
}

void cuda_plans_destroy(struct cuda_plans *plans)
{
    for (int32_t i = 0; plans && i < plans->num; i++) {
        cudaFree(plans->plans[i].plan.memory);
        cudaFree(plans->plans[i].scratch);
    }
    free(plans);
}

void cuda_plans_forget(struct cuda_plans *plans)
{
    for (int32_t i = 0; i < plans->num; i++)
        plans->plans[i].seq_lens = NULL;
}

/** Memory for batches of up to `max_seqs`; false and a note if the GPU has none. */
static bool allocate_plan(struct cuda_backend *cuda, struct decode_plan *p, int32_t max_seqs)
{
    cudaFree(p->plan.memory);
    cudaFree(p->scratch);
    p->scratch = NULL;
    p->plan = (struct attention_decode_plan){
        .max_seqs = max_seqs,
        .num_ctas = attention_decode_num_ctas(cuda->properties.multiProcessorCount, p->num_kv_heads,
                                              p->num_heads)};
    size_t plan_bytes = attention_decode_plan_bytes(max_seqs, p->plan.num_ctas);
    size_t scratch_bytes = attention_decode_scratch_bytes(&p->plan, p->num_heads, p->head_dim);
    cudaError_t error = cudaMalloc((void **)&p->plan.memory, plan_bytes);
    if (error == cudaSuccess)
        error = cudaMalloc(&p->scratch, scratch_bytes);
    if (error == cudaSuccess) // counters of finished parts start at zero, and return to it
        error = cudaMemsetAsync(p->scratch, 0, scratch_bytes, cuda->stream);
    cuda_note(cuda, error);
    return error == cudaSuccess;
}

/** This step's plan; NULL when there is no room for one. */
static struct decode_plan *plan_of(struct device *dev, const struct kv_cache *cache,
                                   const struct attention_batch *batch,
                                   const struct attention_params *params)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    struct cuda_plans *plans = cuda->plans;
    int32_t max_seqs = max_i32(batch->max_seqs, batch->num_seqs);
    struct decode_plan *p = NULL;
    for (int32_t i = 0; i < plans->num && !p; i++) {
        struct decode_plan *other = &plans->plans[i];
        if (other->num_heads == params->num_heads && other->num_kv_heads == cache->num_kv_heads &&
            other->head_dim == cache->head_dim && other->window == params->window)
            p = other;
    }
    if (!p) {
        if (plans->num == MAX_DECODE_PLANS)
            return NULL;
        p = &plans->plans[plans->num++];
        *p = (struct decode_plan){.num_heads = params->num_heads,
                                  .num_kv_heads = cache->num_kv_heads,
                                  .head_dim = cache->head_dim,
                                  .window = params->window};
    }
    if (p->plan.max_seqs < max_seqs && !allocate_plan(cuda, p, max_seqs))
        return NULL;
    p->plan.is_settled = p->seq_lens == batch->seq_lens && p->num_seqs == batch->num_seqs;
    if (!p->plan.is_settled) {
        const struct cuda_launch launch = cuda_launch_of(dev);
        attention_decode_plan_build(&launch, &p->plan, batch->seq_lens, batch->num_seqs,
                                    params->window);
        p->seq_lens = batch->seq_lens;
        p->num_seqs = batch->num_seqs;
    }
    return p;
}

static struct cuda_kv_cache kernel_cache(const struct kv_cache *cache)
{
    return (struct cuda_kv_cache){
        .k = cache->k,
        .v = cache->v,
        .num_blocks = cache->num_blocks,
        .num_kv_heads = cache->num_kv_heads,
        .block_size = cache->block_size,
        .head_dim = cache->head_dim,
        .is_fp8 = cache->dtype == DTYPE_F8_E4M3,
        .k_scale = cache->k_scale,
        .v_scale = cache->v_scale,
    };
}

static void attend_any_shape(struct device *dev, struct tensor out, struct tensor q,
                             const struct kv_cache *cache, const struct attention_batch *batch,
                             const struct attention_params *params)
{
    const struct plain_attention args = {
        .out = out.data,
        .q = q.data,
        .cache = kernel_cache(cache),
        .q_stride = q.row_stride,
        .num_tokens = batch->num_tokens,
        .num_heads = params->num_heads,
        .max_blocks = batch->max_blocks,
        .window = params->window,
        .scale = params->scale,
        .softcap = params->softcap,
        .block_table = batch->block_table,
        .seq_lens = batch->seq_lens,
        .token_seq = batch->token_seq,
        .positions = batch->positions,
    };
    const struct cuda_launch launch = cuda_launch_of(dev);
    plain_attention(&launch, &args);
}

void cuda_attention(struct device *dev, struct tensor out, struct tensor q,
                    const struct kv_cache *cache, const struct attention_batch *batch,
                    const struct attention_params *params)
{
    assert(cache->dtype == dev->activation_dtype || cache->dtype == DTYPE_F8_E4M3);
    const struct cuda_launch launch = cuda_launch_of(dev);
    bool is_fast = cuda_attention_supports(cache->head_dim, cache->block_size);
    struct decode_plan *plan = NULL;
    // Where a sequence is cut for decoding depends on the batch; the other kernel cuts none, and
    // gives a token the same result alone, in a chunk and among others.
    if (is_fast && batch->max_query_len == 1 && !dev->is_batch_invariant)
        plan = plan_of(dev, cache, batch, params);
    if (plan) {
        const struct attention_decode_args args = {
            .out = out.data,
            .q = q.data,
            .q_stride = q.row_stride,
            .num_heads = params->num_heads,
            .max_blocks = batch->max_blocks,
            .block_table = batch->block_table,
            .scale = params->scale,
            .softcap = params->softcap,
            .cache = kernel_cache(cache),
            .plan = plan->plan,
            .scratch = plan->scratch,
        };
        attention_decode(&launch, &args);
    } else if (is_fast) {
        const struct attention_prefill_args args = {
            .out = out.data,
            .q = q.data,
            .q_stride = q.row_stride,
            .num_heads = params->num_heads,
            .num_seqs = batch->num_seqs,
            .num_tokens = batch->num_tokens,
            .max_blocks = batch->max_blocks,
            .query_start = batch->query_start,
            .seq_lens = batch->seq_lens,
            .block_table = batch->block_table,
            .scale = params->scale,
            .softcap = params->softcap,
            .window = params->window,
            .cache = kernel_cache(cache),
        };
        attention_prefill(&launch, &args);
    } else {
        attend_any_shape(dev, out, q, cache, batch, params);
    }
}

void cuda_prepare_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                      const struct qkv_params *params, const int32_t *positions,
                      const int64_t *slot_mapping)
{
    assert(cache->dtype == dev->activation_dtype || cache->dtype == DTYPE_F8_E4M3);
    const struct cuda_launch launch = cuda_launch_of(dev);
    if (cuda_attention_supports(cache->head_dim, cache->block_size) &&
        params->rot_dim / 2 % (cache->head_dim / 32) == 0) {
        const struct qkv_rope_args args = {
            .qkv = qkv.data,
            .stride = qkv.row_stride,
            .q_norm = params->q_norm,
            .k_norm = params->k_norm,
            .norm_eps = params->eps,
            .norm_offset = params->norm_weight_offset,
            .cos_sin = params->cos_sin,
            .rot_dim = params->rot_dim,
            .positions = positions,
            .slot_mapping = slot_mapping,
            .num_tokens = (int32_t)qkv.shape[0],
            .num_heads = params->num_heads,
            .cache = kernel_cache(cache),
        };
        qkv_rope_cache(&launch, &args);
        return;
    }
    const struct plain_qkv args = {
        .qkv = qkv.data,
        .cache = kernel_cache(cache),
        .row_stride = qkv.row_stride,
        .num_tokens = (int32_t)qkv.shape[0],
        .num_heads = params->num_heads,
        .rot_dim = params->rot_dim,
        .q_norm = params->q_norm,
        .k_norm = params->k_norm,
        .eps = params->eps,
        .norm_offset = params->norm_weight_offset,
        .cos_sin = params->cos_sin,
        .positions = positions,
        .slot_mapping = slot_mapping,
    };
    plain_prepare_qkv(&launch, &args);
}
