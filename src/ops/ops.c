// The front door of the operations table: every shape is checked here, once for all backends. A
// wrong shape is a bug of the caller; nothing that comes from outside gets this far unchecked.
#include "ops/ops.h"

void device_deinit(struct device *dev)
{
    if (!dev)
        return;
    if (dev->ops.close)
        dev->ops.close(dev);
    arena_deinit(&dev->scratch);
    *dev = (struct device){0};
}

static bool is_matrix(struct tensor t)
{
    return t.ndim == 2 && t.shape[0] >= 0 && t.shape[1] > 0 && t.row_stride >= t.shape[1];
}

static bool is_activation(const struct device *dev, struct tensor t)
{
    return is_matrix(t) && t.dtype == dev->activation_dtype;
}

static bool is_dense_activation(const struct device *dev, struct tensor t)
{
    return is_activation(dev, t) && tensor_is_dense(t);
}

static bool are_apart(struct tensor a, struct tensor b)
{
    return a.data != b.data || tensor_numel(a) == 0;
}

void op_embedding(struct device *dev, struct tensor out, struct tensor table, const int32_t *ids,
                  float scale)
{
    assert(is_dense_activation(dev, out));
    assert(table.ndim == 2 && table.shape[1] == out.shape[1]);
    assert(table.dtype == DTYPE_F32 || table.dtype == DTYPE_F16 || table.dtype == DTYPE_BF16);
    if (out.shape[0] > 0)
        dev->ops.embedding(dev, out, table, ids, scale);
}

void op_rms_norm(struct device *dev, struct tensor out, struct tensor x, struct norm_params norm)
{
    assert(is_activation(dev, out) && is_activation(dev, x));
    assert(tensor_same_shape(out, x));
    if (x.shape[0] > 0)
        dev->ops.rms_norm(dev, out, x, norm);
}

void op_add_rms_norm(struct device *dev, struct tensor x, struct tensor residual,
                     struct norm_params norm)
{
    assert(is_dense_activation(dev, x) && is_dense_activation(dev, residual));
    assert(tensor_same_shape(x, residual) && are_apart(x, residual));
    if (x.shape[0] > 0)
        dev->ops.add_rms_norm(dev, x, residual, norm);
}

void op_add_post_norm(struct device *dev, struct tensor x, struct tensor residual,
                      struct norm_params post, struct norm_params pre)
{
    assert(is_dense_activation(dev, x) && is_dense_activation(dev, residual));
    assert(tensor_same_shape(x, residual) && are_apart(x, residual));
    if (x.shape[0] > 0)
        dev->ops.add_post_norm(dev, x, residual, post, pre);
}

void op_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w)
{
    assert(is_dense_activation(dev, x) && are_apart(out, x));
    assert(is_activation(dev, out) || (is_matrix(out) && out.dtype == DTYPE_F32));
    assert(out.shape[0] == x.shape[0]);
    assert(x.shape[1] == w->in_features && out.shape[1] == w->out_features);
    assert(w->form != WEIGHT_F8_E4M3 || w->scales.values);
    if (x.shape[0] > 0)
        dev->ops.matmul(dev, out, x, w);
}

bool op_fuses_matmul(const struct device *dev, int64_t rows, const struct weight *w,
                     const struct matmul_fusion *fusion)
{
    return dev->ops.fuses_matmul(dev, rows, w, fusion);
}

void op_fused_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w,
                     const struct matmul_fusion *fusion)
{
    assert(is_dense_activation(dev, x) && is_dense_activation(dev, out) && are_apart(out, x));
    assert(out.shape[0] == x.shape[0] && x.shape[1] == w->in_features);
    assert(out.shape[1] * (fusion->is_swiglu ? 2 : 1) == w->out_features);
    if (x.shape[0] > 0)
        dev->ops.fused_matmul(dev, out, x, w, fusion);
}

static bool is_kv_cache(const struct kv_cache *cache)
{
    return cache->num_blocks > 0 && cache->block_size > 0 && cache->num_kv_heads > 0 &&
           cache->head_dim > 0 &&
           (cache->dtype == DTYPE_F32 || cache->dtype == DTYPE_F16 || cache->dtype == DTYPE_BF16 ||
            (cache->dtype == DTYPE_F8_E4M3 && cache->k_scale > 0 && cache->v_scale > 0));
}

void op_prepare_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                    const struct qkv_params *params, const int32_t *positions,
                    const int64_t *slot_mapping)
{
    assert(is_activation(dev, qkv) && is_kv_cache(cache));
    assert(params->num_heads > 0 && params->num_heads % cache->num_kv_heads == 0);
    assert(qkv.shape[1] ==
           (params->num_heads + 2 * (int64_t)cache->num_kv_heads) * cache->head_dim);
    assert(params->rot_dim >= 0 && params->rot_dim <= cache->head_dim && params->rot_dim % 2 == 0);
    assert(!params->q_norm == !params->k_norm);
    if (qkv.shape[0] > 0)
        dev->ops.prepare_qkv(dev, qkv, cache, params, positions, slot_mapping);
}

void op_attention(struct device *dev, struct tensor out, struct tensor q,
                  const struct kv_cache *cache, const struct attention_batch *batch,
                  const struct attention_params *params)
{
    assert(is_dense_activation(dev, out) && is_activation(dev, q) && is_kv_cache(cache));
    assert(params->num_heads > 0 && params->num_heads % cache->num_kv_heads == 0);
    assert(params->window >= 0 && params->softcap >= 0);
    assert(out.shape[0] == batch->num_tokens && tensor_same_shape(out, q));
    assert(out.shape[1] == (int64_t)params->num_heads * cache->head_dim);
    assert((int64_t)batch->max_blocks * cache->block_size >= batch->max_seq_len);
    if (batch->num_tokens > 0)
        dev->ops.attention(dev, out, q, cache, batch, params);
}

static bool is_gated(const struct device *dev, struct tensor out, struct tensor gate_up)
{
    return is_dense_activation(dev, out) && is_dense_activation(dev, gate_up) &&
           are_apart(out, gate_up) && out.shape[0] == gate_up.shape[0] &&
           2 * out.shape[1] == gate_up.shape[1];
}

void op_silu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    assert(is_gated(dev, out, gate_up));
    if (out.shape[0] > 0)
        dev->ops.silu_and_mul(dev, out, gate_up);
}

void op_gelu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    assert(is_gated(dev, out, gate_up));
    if (out.shape[0] > 0)
        dev->ops.gelu_and_mul(dev, out, gate_up);
}

void op_soft_cap(struct device *dev, struct tensor x, float cap)
{
    assert(is_matrix(x) && tensor_is_dense(x) && x.dtype == DTYPE_F32 && cap > 0);
    if (x.shape[0] > 0)
        dev->ops.soft_cap(dev, x, cap);
}

static bool are_routes(const struct expert_routes *routes)
{
    return routes->num_tokens >= 0 && routes->top_k > 0 && routes->top_k <= routes->num_experts &&
           routes->num_experts <= MAX_EXPERTS;
}

void op_route_experts(struct device *dev, const struct expert_routes *routes, struct tensor logits,
                      bool renormalises)
{
    assert(are_routes(routes) && is_matrix(logits) && tensor_is_dense(logits));
    assert(logits.dtype == DTYPE_F32 && logits.shape[0] == routes->num_tokens &&
           logits.shape[1] == routes->num_experts);
    if (routes->num_tokens > 0)
        dev->ops.route_experts(dev, routes, logits, renormalises);
}

bool op_fuses_router(const struct device *dev, int64_t num_tokens, const struct weight *router)
{
    return dev->ops.fuses_router(dev, num_tokens, router);
}

void op_fused_router(struct device *dev, const struct expert_routes *routes, struct tensor out,
                     struct tensor x, struct norm_params norm, const struct weight *router,
                     bool renormalises)
{
    assert(are_routes(routes) && router->out_features == routes->num_experts);
    assert(is_dense_activation(dev, out) && is_dense_activation(dev, x) && are_apart(out, x));
    assert(x.shape[0] == routes->num_tokens && x.shape[1] == router->in_features);
    assert(out.shape[0] == x.shape[0] && out.shape[1] == x.shape[1]);
    if (routes->num_tokens > 0)
        dev->ops.fused_router(dev, routes, out, x, norm, router, renormalises);
}

void op_matmul_experts(struct device *dev, struct tensor out, struct tensor x,
                       const struct expert_weights *w, const struct expert_routes *routes,
                       struct expert_product product)
{
    assert(is_dense_activation(dev, out) && is_dense_activation(dev, x) && are_apart(out, x));
    assert(are_routes(routes) && w->num_experts == routes->num_experts);
    assert(out.shape[0] == (int64_t)routes->num_tokens * routes->top_k);
    assert(x.shape[0] == (product.is_by_token ? routes->num_tokens : out.shape[0]));
    assert(x.shape[1] == w->in_features);
    assert(out.shape[1] * (product.is_swiglu ? 2 : 1) == w->out_features);
    if (routes->num_tokens > 0)
        dev->ops.matmul_experts(dev, out, x, w, routes, product);
}

void op_combine_experts(struct device *dev, struct tensor out, struct tensor x,
                        const struct expert_routes *routes, bool adds)
{
    assert(is_dense_activation(dev, out) && is_dense_activation(dev, x) && are_apart(out, x));
    assert(are_routes(routes) && out.shape[0] == routes->num_tokens);
    assert(x.shape[0] == (int64_t)routes->num_tokens * routes->top_k);
    assert(out.shape[1] == x.shape[1]);
    if (routes->num_tokens > 0)
        dev->ops.combine_experts(dev, out, x, routes, adds);
}

void op_gather_rows(struct device *dev, struct tensor out, struct tensor x, const int32_t *rows)
{
    assert(is_dense_activation(dev, out) && is_dense_activation(dev, x));
    assert(out.shape[1] == x.shape[1] && are_apart(out, x));
    if (out.shape[0] > 0)
        dev->ops.gather_rows(dev, out, x, rows);
}

void op_sample(struct device *dev, int32_t *token_ids, struct tensor logits,
               const struct sample_params *params)
{
    assert(dev->ops.sample && is_matrix(logits) && logits.dtype == DTYPE_F32);
    if (logits.shape[0] > 0)
        dev->ops.sample(dev, token_ids, logits, params);
}

void op_sample_logprobs(struct device *dev, const struct sampled_logprobs *out,
                        const int32_t *token_ids, struct tensor logits,
                        const struct sample_params *params)
{
    assert(dev->ops.sample_logprobs && is_matrix(logits) && logits.dtype == DTYPE_F32);
    if (logits.shape[0] > 0)
        dev->ops.sample_logprobs(dev, out, token_ids, logits, params);
}

void op_take_tokens(struct device *dev, int32_t *token_ids, const int32_t *indices,
                    const int32_t *drawn, int32_t num_tokens)
{
    assert(dev->ops.take_tokens && num_tokens >= 0);
    if (num_tokens > 0)
        dev->ops.take_tokens(dev, token_ids, indices, drawn, num_tokens);
}
