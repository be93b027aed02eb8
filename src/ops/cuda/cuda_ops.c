// The operations table of a GPU: which kernel or library call does what.
#include <stdlib.h>

#include "base/memory.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/plain.h"

// ---- Weights: bf16 as they are, the bias behind them in bf16
// -------------------------------------

enum { BIAS_ALIGNMENT = 256 };

static size_t matrix_bytes(const struct weight *w)
{
    size_t bytes = (size_t)w->out_features * (size_t)w->in_features * sizeof(uint16_t);
    return (bytes + BIAS_ALIGNMENT - 1) & ~(size_t)(BIAS_ALIGNMENT - 1);
}

static size_t cuda_prepared_weight_bytes(const struct device *dev, const struct weight *w)
{
    (void)dev;
    return matrix_bytes(w); // the store counts the bias, as float32
}

static void copy_bias(struct device *dev, void *dst, const float *bias, int64_t n)
{
    uint16_t *rounded = xmalloc((size_t)n * sizeof(*rounded));
    for (int64_t i = 0; i < n; i++)
        rounded[i] = f32_to_bf16(bias[i]);
    dev->ops.copy_in(dev, dst, rounded, (size_t)n * sizeof(*rounded));
    free(rounded);
}

static enum status cuda_prepare_weight(struct device *dev, struct weight *w, struct error *err)
{
    if (w->form != WEIGHT_BF16)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the GPU multiplies bfloat16 weights, not those of form %d", (int)w->form);
    size_t bias_bytes = w->bias ? (size_t)w->out_features * sizeof(uint16_t) : 0;
    size_t size_bytes = matrix_bytes(w) + bias_bytes;
    char *memory = dev->ops.alloc(dev, size_bytes);
    if (!memory)
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%zu bytes of GPU memory for a weight were refused", size_bytes);
    dev->ops.copy_in(dev, memory, w->data,
                     (size_t)w->out_features * (size_t)w->in_features * sizeof(uint16_t));
    if (w->bias) {
        copy_bias(dev, memory + matrix_bytes(w), w->bias, w->out_features);
        w->bias = memory + matrix_bytes(w);
    }
    w->data = memory;
    w->is_packed = true;
    return STATUS_OK;
}

// ---- Operations ----------------------------------------------------------------------------

static cudaStream_t stream_of(const struct device *dev)
{
    return cuda_backend_of(dev)->stream;
}

static void cuda_embedding(struct device *dev, struct tensor out, struct tensor table,
                           const int32_t *ids)
{
    assert(table.dtype == DTYPE_BF16);
    plain_gather_rows(stream_of(dev), out.data, table.data, ids, out.shape[0], table.shape[0],
                      out.shape[1]);
}

static void cuda_rms_norm(struct device *dev, struct tensor out, struct tensor x,
                          const void *weight, float eps)
{
    plain_rms_norm(stream_of(dev), out.data, x.data, NULL, weight, eps, x.shape[0], x.shape[1]);
}

static void cuda_add_rms_norm(struct device *dev, struct tensor x, struct tensor residual,
                              const void *weight, float eps)
{
    plain_rms_norm(stream_of(dev), x.data, x.data, residual.data, weight, eps, x.shape[0],
                   x.shape[1]);
}

static void cuda_matmul(struct device *dev, struct tensor out, struct tensor x,
                        const struct weight *w)
{
    assert(w->form == WEIGHT_BF16);
    cublaslt_matmul(cuda_backend_of(dev), out, x, w->data, w->bias);
}

static void cuda_prepare_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                             const struct qkv_params *params, const int32_t *positions,
                             const int64_t *slot_mapping)
{
    assert(cache->dtype == DTYPE_BF16);
    const struct plain_qkv args = {
        .qkv = qkv.data,
        .k_cache = cache->k,
        .v_cache = cache->v,
        .row_stride = qkv.row_stride,
        .num_tokens = (int32_t)qkv.shape[0],
        .num_heads = params->num_heads,
        .num_kv_heads = cache->num_kv_heads,
        .head_dim = cache->head_dim,
        .rot_dim = params->rot_dim,
        .block_size = cache->block_size,
        .q_norm = params->q_norm,
        .k_norm = params->k_norm,
        .eps = params->eps,
        .cos_sin = params->cos_sin,
        .positions = positions,
        .slot_mapping = slot_mapping,
    };
    plain_prepare_qkv(stream_of(dev), &args);
}

static void cuda_attention(struct device *dev, struct tensor out, struct tensor q,
                           const struct kv_cache *cache, const struct attention_batch *batch,
                           const struct attention_params *params)
{
    assert(cache->dtype == DTYPE_BF16);
    const struct plain_attention args = {
        .out = out.data,
        .q = q.data,
        .k_cache = cache->k,
        .v_cache = cache->v,
        .q_stride = q.row_stride,
        .num_tokens = batch->num_tokens,
        .num_heads = params->num_heads,
        .num_kv_heads = cache->num_kv_heads,
        .head_dim = cache->head_dim,
        .block_size = cache->block_size,
        .max_blocks = batch->max_blocks,
        .window = params->window,
        .scale = params->scale,
        .block_table = batch->block_table,
        .seq_lens = batch->seq_lens,
        .token_seq = batch->token_seq,
        .positions = batch->positions,
    };
    plain_attention(stream_of(dev), &args);
}

static void cuda_silu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    plain_silu_and_mul(stream_of(dev), out.data, gate_up.data, out.shape[0], out.shape[1]);
}

static void cuda_gather_rows(struct device *dev, struct tensor out, struct tensor x,
                             const int32_t *rows)
{
    plain_gather_rows(stream_of(dev), out.data, x.data, rows, out.shape[0], x.shape[0],
                      out.shape[1]);
}

static void cuda_sample(struct device *dev, int32_t *token_ids, struct tensor logits,
                        const struct sample_params *params)
{
    (void)params;
    plain_greedy(stream_of(dev), token_ids, logits.data, logits.row_stride, logits.shape[0],
                 logits.shape[1]);
}

void cuda_ops_fill(struct ops *ops)
{
    ops->prepared_weight_bytes = cuda_prepared_weight_bytes;
    ops->prepare_weight = cuda_prepare_weight;
    ops->embedding = cuda_embedding;
    ops->rms_norm = cuda_rms_norm;
    ops->add_rms_norm = cuda_add_rms_norm;
    ops->matmul = cuda_matmul;
    ops->prepare_qkv = cuda_prepare_qkv;
    ops->attention = cuda_attention;
    ops->silu_and_mul = cuda_silu_and_mul;
    ops->gather_rows = cuda_gather_rows;
    ops->sample = cuda_sample;
}
