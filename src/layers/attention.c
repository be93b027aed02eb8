// Grouped-query self-attention: see attention.h.
#include "layers/attention.h"

#include <math.h>

static int64_t q_size(const struct attention *attention)
{
    return (int64_t)attention->options.num_heads * attention->options.head_dim;
}

static int64_t kv_size(const struct attention *attention)
{
    return (int64_t)attention->options.num_kv_heads * attention->options.head_dim;
}

enum status attention_load(struct attention *attention, const struct weights *w,
                           const struct attention_options *options, struct error *err)
{
    *attention = (struct attention){.options = *options};
    attention->scale = (float)(1.0 / sqrt(options->head_dim));
    int64_t hidden = options->hidden_size, q = q_size(attention), kv = kv_size(attention);
    bool qkv_bias = options->has_qkv_bias;
    TRY(linear_load(&attention->q_proj, w, "q_proj", q, hidden, qkv_bias, err));
    TRY(linear_load(&attention->k_proj, w, "k_proj", kv, hidden, qkv_bias, err));
    TRY(linear_load(&attention->v_proj, w, "v_proj", kv, hidden, qkv_bias, err));
    TRY(linear_load(&attention->o_proj, w, "o_proj", hidden, q, options->has_o_bias, err));
    if (!options->has_qk_norm)
        return STATUS_OK;
    double eps = options->rms_norm_eps;
    TRY(rms_norm_load(&attention->q_norm, w, "q_norm", options->head_dim, eps, err));
    return rms_norm_load(&attention->k_norm, w, "k_norm", options->head_dim, eps, err);
}

size_t attention_scratch_bytes(const struct attention *attention, int64_t num_tokens)
{
    return 2 * workspace_f32_bytes(num_tokens, q_size(attention)) + // queries, attended values
           2 * workspace_f32_bytes(num_tokens, kv_size(attention)); // keys, values
}

void attention_forward(const struct attention *attention, struct forward *fwd, struct tensor hidden)
{
    const struct attention_options *options = &attention->options;
    const struct layer_cache *cache = &fwd->caches[options->layer];
    const struct cache_group_step *group = &fwd->groups[cache->group];
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor q = workspace_f32(&fwd->workspace, fwd->num_tokens, q_size(attention));
    struct tensor k = workspace_f32(&fwd->workspace, fwd->num_tokens, kv_size(attention));
    struct tensor v = workspace_f32(&fwd->workspace, fwd->num_tokens, kv_size(attention));
    struct tensor attended = workspace_f32(&fwd->workspace, fwd->num_tokens, q_size(attention));

    linear_forward(&attention->q_proj, fwd, q, hidden);
    linear_forward(&attention->k_proj, fwd, k, hidden);
    linear_forward(&attention->v_proj, fwd, v, hidden);
    if (options->has_qk_norm) {
        head_rms_norm_forward(&attention->q_norm, fwd, q);
        head_rms_norm_forward(&attention->k_norm, fwd, k);
    }
    rotary_embedding_forward(options->rotary, fwd, q, options->head_dim);
    rotary_embedding_forward(options->rotary, fwd, k, options->head_dim);
    op_kv_cache_write(fwd->dev, &cache->kv, k.data, v.data, kv_size(attention), group->slot_mapping,
                      fwd->num_tokens);
    const struct attention_params params = {attention->scale, options->window, options->num_heads};
    op_attention(fwd->dev, attended, q.data, q_size(attention), &cache->kv, &group->batch, &params);
    linear_forward(&attention->o_proj, fwd, hidden, attended);
    workspace_release(&fwd->workspace, mark);
}
