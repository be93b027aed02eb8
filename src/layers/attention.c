// Grouped-query self-attention: see attention.h.
#include "layers/attention.h"

#include <math.h>

#include "base/memory.h"

static int64_t q_size(const struct attention *attention)
{
    return (int64_t)attention->options.num_heads * attention->options.head_dim;
}

static int64_t kv_size(const struct attention *attention)
{
    return (int64_t)attention->options.num_kv_heads * attention->options.head_dim;
}

/** The scale of cached keys or values under the first of the names that exporters give it; 0: none
 *  of them is there. */
static enum status load_scale(const struct weights *w, const char *const names[4], float *out,
                              struct error *err)
{
    *out = 0;
    for (int i = 0; i < 4 && *out == 0; i++)
        TRY(weights_scalar(w, names[i], out, err));
    return STATUS_OK;
}

/** One of the two stands for both. */
static enum status load_cache_scales(struct attention *attention, const struct weights *w,
                                     struct error *err)
{
    static const char *const KEYS[] = {"k_scale", "attn.k_scale", "k_proj.k_scale",
                                       "k_proj.output_scale"};
    static const char *const VALUES[] = {"v_scale", "attn.v_scale", "v_proj.v_scale",
                                         "v_proj.output_scale"};
    float both = 0;
    TRY(load_scale(w, KEYS, &attention->k_scale, err));
    TRY(load_scale(w, VALUES, &attention->v_scale, err));
    TRY(weights_scalar(w, "kv_scale", &both, err));
    both = fmaxf(both, fmaxf(attention->k_scale, attention->v_scale));
    if (both == 0)
        both = 1;
    if (attention->k_scale == 0)
        attention->k_scale = both;
    if (attention->v_scale == 0)
        attention->v_scale = both;
    return STATUS_OK;
}

static enum status load_norms(struct attention *attention, const struct weights *w,
                              struct error *err)
{
    const struct attention_options *options = &attention->options;
    bool is_whole = options->qk_norm == QK_NORM_WHOLE;
    if (options->qk_norm == QK_NORM_NONE)
        return STATUS_OK;
    struct rms_norm_options norm = {
        .size = is_whole ? q_size(attention) : options->head_dim,
        .eps = options->rms_norm_eps,
        .weight_offset = options->norm_weight_offset,
    };
    TRY(rms_norm_load(&attention->q_norm, w, "q_norm", &norm, err));
    norm.size = is_whole ? kv_size(attention) : options->head_dim;
    return rms_norm_load(&attention->k_norm, w, "k_norm", &norm, err);
}

enum status attention_load(struct attention *attention, const struct weights *w,
                           const struct attention_options *options, struct error *err)
{
    *attention = (struct attention){.options = *options};
    attention->scale =
        (float)(options->scale != 0 ? options->scale : 1.0 / sqrt(options->head_dim));
    int64_t hidden = options->hidden_size, q = q_size(attention), kv = kv_size(attention);
    bool qkv_bias = options->has_qkv_bias;
    const struct weights_part parts[] = {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}};
    const struct weights_part fused = {"qkv_proj", q + 2 * kv};
    TRY(joined_linear_load(&attention->qkv_proj, w, options->is_fused ? &fused : parts,
                           options->is_fused ? 1 : ARRAY_LEN(parts), hidden, qkv_bias, err));
    TRY(linear_load(&attention->o_proj, w, "o_proj", hidden, q, options->has_o_bias, err));
    TRY(load_cache_scales(attention, w, err));
    return load_norms(attention, w, err);
}

static int64_t qkv_size(const struct attention *attention)
{
    return q_size(attention) + 2 * kv_size(attention);
}

size_t attention_scratch_bytes(const struct attention *attention, enum dtype dtype,
                               int64_t num_tokens)
{
    return workspace_tensor_bytes(dtype, num_tokens, qkv_size(attention)) +
           workspace_tensor_bytes(dtype, num_tokens, q_size(attention)); // attended values
}

/** Normalises (unless done), rotates and caches the step's queries, keys and values. */
static void prepare_qkv(const struct attention *attention, struct forward *fwd, struct tensor qkv,
                        const struct kv_cache *kv)
{
    const struct attention_options *options = &attention->options;
    const struct layer_cache *cache = &fwd->caches[options->layer];
    struct qkv_params params = {
        .num_heads = options->num_heads,
        .cos_sin = options->rotary->cos_sin,
        .rot_dim = options->rotary->rot_dim,
    };
    if (options->qk_norm == QK_NORM_HEADS) {
        params.q_norm = attention->q_norm.params.weight;
        params.k_norm = attention->k_norm.params.weight;
        params.eps = attention->q_norm.params.eps;
        params.norm_weight_offset = attention->q_norm.params.weight_offset;
    } else if (options->qk_norm == QK_NORM_WHOLE) {
        struct tensor q = tensor_columns(qkv, 0, q_size(attention));
        struct tensor k = tensor_columns(qkv, q_size(attention), kv_size(attention));
        rms_norm_forward(&attention->q_norm, fwd, q, q);
        rms_norm_forward(&attention->k_norm, fwd, k, k);
    }
    op_prepare_qkv(fwd->dev, qkv, kv, &params, fwd->positions,
                   fwd->groups[cache->group].slot_mapping);
}

/** attended: what the step's queries, keys and values in `qkv` come to. */
static void attend(const struct attention *attention, struct forward *fwd, struct tensor attended,
                   struct tensor qkv)
{
    const struct attention_options *options = &attention->options;
    const struct layer_cache *cache = &fwd->caches[options->layer];
    struct kv_cache kv = cache->kv;
    kv.k_scale = attention->k_scale;
    kv.v_scale = attention->v_scale;
    prepare_qkv(attention, fwd, qkv, &kv);
    const struct attention_params params = {
        .scale = attention->scale,
        .window = options->window,
        .num_heads = options->num_heads,
        .softcap = (float)options->softcap,
    };
    op_attention(fwd->dev, attended, tensor_columns(qkv, 0, q_size(attention)), &kv,
                 &fwd->groups[cache->group].batch, &params);
}

void attention_forward(const struct attention *attention, struct forward *fwd, struct tensor out,
                       struct tensor x)
{
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor qkv = forward_activation(fwd, qkv_size(attention));
    struct tensor attended = forward_activation(fwd, q_size(attention));
    joined_linear_forward(&attention->qkv_proj, fwd, qkv, x);
    attend(attention, fwd, attended, qkv);
    linear_forward(&attention->o_proj, fwd, out, attended);
    workspace_release(&fwd->workspace, mark);
}

static const struct matmul_fusion ADDS = {.adds = true};

bool attention_fuses(const struct attention *attention, const struct forward *fwd)
{
    return op_fuses_matmul(fwd->dev, fwd->num_tokens, &attention->o_proj.weight, &ADDS);
}

void attention_add(const struct attention *attention, const struct rms_norm *norm,
                   struct forward *fwd, struct tensor residual, struct tensor spare)
{
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor qkv = forward_activation(fwd, qkv_size(attention));
    struct tensor attended = forward_activation(fwd, q_size(attention));
    const struct joined_linear *qkv_proj = &attention->qkv_proj;
    const struct matmul_fusion normed = {.norm = norm->params};
    if (qkv_proj->num_parts == 1 &&
        op_fuses_matmul(fwd->dev, fwd->num_tokens, &qkv_proj->parts[0].weight, &normed)) {
        op_fused_matmul(fwd->dev, qkv, residual, &qkv_proj->parts[0].weight, &normed);
    } else { // the device does not, or parts share one norm
        rms_norm_forward(norm, fwd, spare, residual);
        joined_linear_forward(qkv_proj, fwd, qkv, spare);
    }
    attend(attention, fwd, attended, qkv);
    op_fused_matmul(fwd->dev, residual, attended, &attention->o_proj.weight, &ADDS);
    workspace_release(&fwd->workspace, mark);
}
