// The decoder that Llama and its descendants share: see decoder.h.
#include "models/decoder.h"

#include "base/memory.h"

/** Larger sizes are a mistake in the file; products of three of them fit into 64 bits. */
enum { MAX_SIZE = 1 << 20, MAX_VOCAB_SIZE = 1 << 24, MAX_LAYERS = 1 << 14 };

static enum status check_sizes(const struct model_config *config, struct error *err)
{
    const struct {
        const char *name;
        int32_t value, max;
    } sizes[] = {
        {"vocab_size", config->vocab_size, MAX_VOCAB_SIZE},
        {"hidden_size", config->hidden_size, MAX_SIZE},
        {"intermediate_size", config->intermediate_size, MAX_SIZE},
        {"num_hidden_layers", config->num_hidden_layers, MAX_LAYERS},
        {"num_attention_heads", config->num_attention_heads, MAX_SIZE},
        {"num_key_value_heads", config->num_key_value_heads, MAX_SIZE},
        {"head_dim", config->head_dim, MAX_SIZE},
    };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].max)
            return error_set_field(err, STATUS_INVALID, sizes[i].name,
                                   "config.json: %s is %d: expected 1 to %d", sizes[i].name,
                                   sizes[i].value, sizes[i].max);
    }
    return STATUS_OK;
}

static enum status check_config(const struct model_config *config, struct error *err)
{
    TRY(check_sizes(config, err));
    if (config->num_attention_heads % config->num_key_value_heads != 0)
        return error_set_field(err, STATUS_INVALID, "num_key_value_heads",
                               "config.json: num_attention_heads (%d) is not a multiple of "
                               "num_key_value_heads (%d)",
                               config->num_attention_heads, config->num_key_value_heads);
    return STATUS_OK;
}

/** The names of a layer's norms, by where they stand. */
static enum status load_norms(struct decoder_layer *layer, const struct weights *w,
                              const struct rms_norm_options *norm, enum norm_placement norms,
                              struct error *err)
{
    if (norms != NORMS_AFTER)
        TRY(rms_norm_load(&layer->input_layernorm, w, "input_layernorm", norm, err));
    TRY(rms_norm_load(&layer->post_attention_layernorm, w, "post_attention_layernorm", norm, err));
    if (norms == NORMS_AROUND)
        TRY(rms_norm_load(&layer->pre_feedforward_layernorm, w, "pre_feedforward_layernorm", norm,
                          err));
    if (norms == NORMS_BEFORE)
        return STATUS_OK;
    return rms_norm_load(&layer->post_feedforward_layernorm, w, "post_feedforward_layernorm", norm,
                         err);
}

static enum status load_layers(struct decoder *decoder, const struct model *model,
                               const struct weights *w, const struct decoder_options *options,
                               struct error *err)
{
    const struct model_config *config = model->config;
    struct attention_options attention = {
        .hidden_size = config->hidden_size,
        .num_heads = config->num_attention_heads,
        .num_kv_heads = config->num_key_value_heads,
        .head_dim = config->head_dim,
        .has_qkv_bias = options->has_qkv_bias,
        .has_o_bias = options->has_o_bias,
        .is_fused = options->has_fused_projections,
        .qk_norm = options->qk_norm,
        .rms_norm_eps = config->rms_norm_eps,
        .norm_weight_offset = options->norm_weight_offset,
        .scale = options->attention_scale,
        .softcap = options->attention_softcap,
    };
    const struct gated_mlp_options mlp = {
        .hidden_size = config->hidden_size,
        .intermediate_size = config->intermediate_size,
        .has_bias = options->has_mlp_bias,
        .is_fused = options->has_fused_projections,
        .hidden_act = config->hidden_act,
    };
    const struct rms_norm_options norm = {
        .size = config->hidden_size,
        .eps = config->rms_norm_eps,
        .weight_offset = options->norm_weight_offset,
    };
    for (int32_t i = 0; i < decoder->num_layers; i++) {
        struct decoder_layer *layer = &decoder->layers[i];
        struct weights outer = weights_at(w, "layers.%d", i);
        attention.layer = i;
        attention.window = config->layer_windows[i];
        attention.rotary = attention.window > 0 ? &decoder->sliding_rotary : &decoder->rotary;
        TRY(load_norms(layer, &outer, &norm, options->norms, err));
        struct weights inner = weights_at(&outer, "self_attn");
        TRY(attention_load(&layer->self_attn, &inner, &attention, err));
        layer->is_sparse = options->moe && (!options->is_sparse || options->is_sparse[i]);
        inner = weights_at(&outer, "%s", layer->is_sparse ? options->moe_name : "mlp");
        if (layer->is_sparse)
            TRY(moe_load(&layer->moe, &inner, options->moe, err));
        else
            TRY(gated_mlp_load(&layer->mlp, &inner, &mlp, err));
    }
    return STATUS_OK;
}

/** The tables of full and sliding layers: one where they are the same. */
static enum status load_rotary(struct decoder *decoder, const struct model *model,
                               const struct weights *w, struct error *err)
{
    const struct model_config *config = model->config;
    struct rotary_embedding_options rotary = {
        .rope = &config->rope,
        .head_dim = config->head_dim,
        .max_position_embeddings = config->max_position_embeddings,
        .max_positions = model->max_model_len,
    };
    TRY(rotary_embedding_init(&decoder->rotary, w, &rotary, err));
    decoder->sliding_rotary = decoder->rotary;
    if (!config->has_sliding_rope)
        return STATUS_OK;
    rotary.rope = &config->sliding_rope;
    return rotary_embedding_init(&decoder->sliding_rotary, w, &rotary, err);
}

/** Where the decoder's tensors are. Embedding models are often saved without what stands around
 *  their decoder, so that the first part of its names is missing. */
static struct weights inner_weights(const struct model *model, const struct weights *w)
{
    static const char embeddings[] = "embed_tokens.weight";
    struct weights inner = weights_at(w, "model");
    bool is_bare =
        model->use == MODEL_POOLS && !weights_has(&inner, embeddings) && weights_has(w, embeddings);
    return is_bare ? *w : inner;
}

enum status decoder_load(struct model *model, const struct weights *w,
                         const struct decoder_options *options, struct error *err)
{
    const struct model_config *config = model->config;
    TRY(check_config(config, err));
    struct arena *arena = &w->store->arena;
    struct decoder *decoder = arena_calloc(arena, 1, sizeof(*decoder));
    decoder->norms = options->norms;
    decoder->logits_softcap = (float)options->logits_softcap;
    decoder->num_layers = config->num_hidden_layers;
    decoder->layers =
        arena_calloc(arena, (size_t)config->num_hidden_layers, sizeof(*decoder->layers));
    model->impl = decoder;
    TRY(load_rotary(decoder, model, w, err));
    struct weights inner = inner_weights(model, w);
    double scale = options->embedding_scale != 0 ? options->embedding_scale : 1;
    TRY(embedding_load(&decoder->embed_tokens, &inner, "embed_tokens", config->vocab_size,
                       config->hidden_size, scale, err));
    TRY(load_layers(decoder, model, &inner, options, err));
    const struct rms_norm_options norm = {
        .size = config->hidden_size,
        .eps = config->rms_norm_eps,
        .weight_offset = options->norm_weight_offset,
    };
    TRY(rms_norm_load(&decoder->norm, &inner, "norm", &norm, err));
    if (model->use == MODEL_POOLS)
        return STATUS_OK;
    return lm_head_load(&decoder->lm_head, w, &decoder->embed_tokens, config->tie_word_embeddings,
                        err);
}

size_t decoder_scratch_bytes(const struct model *model, enum dtype dtype, int64_t num_tokens)
{
    const struct decoder *decoder = model->impl;
    size_t most = 0;
    for (int32_t i = 0; i < decoder->num_layers; i++) {
        const struct decoder_layer *layer = &decoder->layers[i];
        size_t attention = attention_scratch_bytes(&layer->self_attn, dtype, num_tokens);
        size_t mlp = layer->is_sparse ? moe_scratch_bytes(&layer->moe, dtype, num_tokens)
                                      : gated_mlp_scratch_bytes(&layer->mlp, dtype, num_tokens);
        most = attention > most ? attention : most;
        most = mlp > most ? mlp : most;
    }
    return most;
}

void decoder_embed(const struct model *model, struct forward *fwd, struct tensor residual)
{
    const struct decoder *decoder = model->impl;
    embedding_forward(&decoder->embed_tokens, fwd, residual);
}

static void feed_forward(const struct decoder_layer *layer, struct forward *fwd, struct tensor out,
                         struct tensor x)
{
    if (layer->is_sparse)
        moe_forward(&layer->moe, fwd, out, x);
    else
        gated_mlp_forward(&layer->mlp, fwd, out, x);
}

/** Tells the watchdog that a layer is done. */
static void count_layer(struct forward *fwd)
{
    if (fwd->progress)
        atomic_fetch_add_explicit(fwd->progress, 1, memory_order_relaxed);
}

/** Norms before each block, for few tokens: additions, and where the device does it the norms, are
 *  part of the products, and `residual` holds all sums. */
static void forward_fused(const struct decoder *decoder, struct forward *fwd, struct tensor hidden,
                          struct tensor residual)
{
    for (int32_t i = 0; i < decoder->num_layers; i++) {
        const struct decoder_layer *layer = &decoder->layers[i];
        attention_add(&layer->self_attn, &layer->input_layernorm, fwd, residual, hidden);
        if (layer->is_sparse)
            moe_add(&layer->moe, &layer->post_attention_layernorm, fwd, residual, hidden);
        else
            gated_mlp_add(&layer->mlp, &layer->post_attention_layernorm, fwd, residual, hidden);
        count_layer(fwd);
    }
    rms_norm_forward(&decoder->norm, fwd, hidden, residual);
}

static bool fuses(const struct decoder *decoder, const struct forward *fwd)
{
    if (decoder->norms != NORMS_BEFORE)
        return false;
    for (int32_t i = 0; i < decoder->num_layers; i++) {
        const struct decoder_layer *layer = &decoder->layers[i];
        bool is_fused = attention_fuses(&layer->self_attn, fwd) &&
                        (layer->is_sparse ||
                         gated_mlp_fuses(&layer->mlp, &layer->post_attention_layernorm, fwd));
        if (!is_fused)
            return false;
    }
    return true;
}

/** Normalises before each block; the addition of one block's output is fused with the next norm. */
static void forward_norms_before(const struct decoder *decoder, int32_t i, struct forward *fwd,
                                 struct tensor hidden, struct tensor residual)
{
    const struct decoder_layer *layer = &decoder->layers[i];
    if (i == 0) // nothing to add yet
        rms_norm_forward(&layer->input_layernorm, fwd, hidden, residual);
    else
        add_rms_norm_forward(&layer->input_layernorm, fwd, hidden, residual);
    attention_forward(&layer->self_attn, fwd, hidden, hidden);
    add_rms_norm_forward(&layer->post_attention_layernorm, fwd, hidden, residual);
    feed_forward(layer, fwd, hidden, hidden);
    if (i == decoder->num_layers - 1)
        add_rms_norm_forward(&decoder->norm, fwd, hidden, residual);
}

/** Blocks read the residual stream itself. */
static void forward_norms_after(const struct decoder *decoder, int32_t i, struct forward *fwd,
                                struct tensor hidden, struct tensor residual)
{
    const struct decoder_layer *layer = &decoder->layers[i];
    attention_forward(&layer->self_attn, fwd, hidden, residual);
    add_post_norm_forward(&layer->post_attention_layernorm, NULL, fwd, hidden, residual);
    feed_forward(layer, fwd, hidden, residual);
    bool is_last = i == decoder->num_layers - 1;
    add_post_norm_forward(&layer->post_feedforward_layernorm, is_last ? &decoder->norm : NULL, fwd,
                          hidden, residual);
}

/** A block's last norm, the addition and the next block's first norm are one operation. */
static void forward_norms_around(const struct decoder *decoder, int32_t i, struct forward *fwd,
                                 struct tensor hidden, struct tensor residual)
{
    const struct decoder_layer *layer = &decoder->layers[i];
    bool is_last = i == decoder->num_layers - 1;
    const struct rms_norm *next = is_last ? &decoder->norm : &layer[1].input_layernorm;
    if (i == 0)
        rms_norm_forward(&layer->input_layernorm, fwd, hidden, residual);
    attention_forward(&layer->self_attn, fwd, hidden, hidden);
    add_post_norm_forward(&layer->post_attention_layernorm, &layer->pre_feedforward_layernorm, fwd,
                          hidden, residual);
    feed_forward(layer, fwd, hidden, hidden);
    add_post_norm_forward(&layer->post_feedforward_layernorm, next, fwd, hidden, residual);
}

void decoder_forward(const struct model *model, struct forward *fwd, struct tensor hidden,
                     struct tensor residual)
{
    const struct decoder *decoder = model->impl;
    if (fuses(decoder, fwd)) {
        forward_fused(decoder, fwd, hidden, residual);
        return;
    }
    for (int32_t i = 0; i < decoder->num_layers; i++) {
        switch (decoder->norms) {
        case NORMS_BEFORE:
            forward_norms_before(decoder, i, fwd, hidden, residual);
            break;
        case NORMS_AFTER:
            forward_norms_after(decoder, i, fwd, hidden, residual);
            break;
        case NORMS_AROUND:
            forward_norms_around(decoder, i, fwd, hidden, residual);
            break;
        }
        count_layer(fwd);
    }
}

void decoder_compute_logits(const struct model *model, struct forward *fwd, struct tensor logits,
                            struct tensor hidden)
{
    const struct decoder *decoder = model->impl;
    lm_head_forward(&decoder->lm_head, fwd, logits, hidden);
    if (decoder->logits_softcap > 0)
        op_soft_cap(fwd->dev, logits, decoder->logits_softcap);
}
