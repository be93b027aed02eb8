// The front door of the operations table: every shape is checked here, once for all backends. A
// wrong shape is a bug of the caller; nothing that comes from outside gets this far unchecked.
#include "ops/ops.h"

void device_deinit(struct device *dev)
{
    if (!dev)
        return;
    arena_deinit(&dev->scratch);
    *dev = (struct device){0};
}

static bool is_f32_matrix(struct tensor t)
{
    return t.dtype == DTYPE_F32 && t.ndim == 2 && t.shape[0] >= 0 && t.shape[1] > 0;
}

static bool are_apart(struct tensor a, struct tensor b)
{
    return a.data != b.data || tensor_numel(a) == 0;
}

void op_embedding(struct device *dev, struct tensor out, struct tensor table, const int32_t *ids)
{
    assert(is_f32_matrix(out));
    assert(table.ndim == 2 && table.shape[1] == out.shape[1]);
    assert(table.dtype == DTYPE_F32 || table.dtype == DTYPE_F16 || table.dtype == DTYPE_BF16);
    if (out.shape[0] > 0)
        dev->ops.embedding(dev, out, table, ids);
}

void op_rms_norm(struct device *dev, struct tensor out, struct tensor x, const float *weight,
                 float eps)
{
    assert(is_f32_matrix(out) && is_f32_matrix(x) && tensor_same_shape(out, x));
    if (x.shape[0] > 0)
        dev->ops.rms_norm(dev, out, x, weight, eps);
}

void op_add_rms_norm(struct device *dev, struct tensor x, struct tensor residual,
                     const float *weight, float eps)
{
    assert(is_f32_matrix(x) && is_f32_matrix(residual) && tensor_same_shape(x, residual));
    assert(are_apart(x, residual));
    if (x.shape[0] > 0)
        dev->ops.add_rms_norm(dev, x, residual, weight, eps);
}

void op_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w)
{
    assert(is_f32_matrix(out) && is_f32_matrix(x) && are_apart(out, x));
    assert(out.shape[0] == x.shape[0]);
    assert(x.shape[1] == w->in_features && out.shape[1] == w->out_features);
    assert(w->form == WEIGHT_F32 || w->form == WEIGHT_F16 || w->form == WEIGHT_BF16);
    if (x.shape[0] > 0)
        dev->ops.matmul(dev, out, x, w);
}

void op_rope(struct device *dev, float *x, int64_t row_stride, int32_t num_heads, int32_t head_dim,
             int32_t rot_dim, const float *cos_sin, const int32_t *positions, int32_t num_tokens)
{
    assert(num_heads > 0 && head_dim > 0 && row_stride >= (int64_t)num_heads * head_dim);
    assert(rot_dim >= 0 && rot_dim <= head_dim && rot_dim % 2 == 0);
    if (num_tokens > 0 && rot_dim > 0)
        dev->ops.rope(dev, x, row_stride, num_heads, head_dim, rot_dim, cos_sin, positions,
                      num_tokens);
}

void op_head_rms_norm(struct device *dev, float *x, int64_t row_stride, int32_t num_heads,
                      int32_t head_dim, const float *weight, float eps, int32_t num_tokens)
{
    assert(num_heads > 0 && head_dim > 0 && row_stride >= (int64_t)num_heads * head_dim);
    if (num_tokens > 0)
        dev->ops.head_rms_norm(dev, x, row_stride, num_heads, head_dim, weight, eps, num_tokens);
}

static bool is_kv_cache(const struct kv_cache *cache)
{
    return cache->num_blocks > 0 && cache->block_size > 0 && cache->num_kv_heads > 0 &&
           cache->head_dim > 0 &&
           (cache->dtype == DTYPE_F32 || cache->dtype == DTYPE_F16 || cache->dtype == DTYPE_BF16);
}

void op_kv_cache_write(struct device *dev, const struct kv_cache *cache, const float *k,
                       const float *v, int64_t row_stride, const int64_t *slot_mapping,
                       int32_t num_tokens)
{
    assert(is_kv_cache(cache));
    assert(row_stride >= (int64_t)cache->num_kv_heads * cache->head_dim);
    if (num_tokens > 0)
        dev->ops.kv_cache_write(dev, cache, k, v, row_stride, slot_mapping, num_tokens);
}

void op_attention(struct device *dev, struct tensor out, const float *q, int64_t row_stride,
                  const struct kv_cache *cache, const struct attention_batch *batch,
                  const struct attention_params *params)
{
    assert(is_f32_matrix(out) && is_kv_cache(cache));
    assert(params->num_heads > 0 && params->num_heads % cache->num_kv_heads == 0);
    assert(params->window >= 0);
    assert(out.shape[0] == batch->num_tokens);
    assert(out.shape[1] == (int64_t)params->num_heads * cache->head_dim);
    assert(row_stride >= out.shape[1]);
    assert((int64_t)batch->max_blocks * cache->block_size >= batch->max_seq_len);
    if (batch->num_tokens > 0)
        dev->ops.attention(dev, out, q, row_stride, cache, batch, params);
}

void op_silu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    assert(is_f32_matrix(out) && is_f32_matrix(gate_up) && are_apart(out, gate_up));
    assert(out.shape[0] == gate_up.shape[0] && 2 * out.shape[1] == gate_up.shape[1]);
    if (out.shape[0] > 0)
        dev->ops.silu_and_mul(dev, out, gate_up);
}

void op_gather_rows(struct device *dev, struct tensor out, struct tensor x, const int32_t *rows)
{
    assert(is_f32_matrix(out) && is_f32_matrix(x) && out.shape[1] == x.shape[1]);
    assert(are_apart(out, x));
    if (out.shape[0] > 0)
        dev->ops.gather_rows(dev, out, x, rows);
}
