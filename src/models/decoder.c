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

static enum status load_layer(struct decoder_layer *layer, const struct weights *w,
                              const struct model_config *config,
                              const struct attention_options *attention,
                              const struct gated_mlp_options *mlp, struct error *err)
{
    int32_t hidden_size = config->hidden_size;
    double eps = config->rms_norm_eps;
    struct weights inner = weights_at(w, "self_attn");
    TRY(rms_norm_load(&layer->input_layernorm, w, "input_layernorm", hidden_size, eps, err));
    TRY(attention_load(&layer->self_attn, &inner, attention, err));
    TRY(rms_norm_load(&layer->post_attention_layernorm, w, "post_attention_layernorm", hidden_size,
                      eps, err));
    inner = weights_at(w, "mlp");
    return gated_mlp_load(&layer->mlp, &inner, mlp, err);
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
        .has_qk_norm = options->has_qk_norm,
        .rms_norm_eps = config->rms_norm_eps,
        .rotary = &decoder->rotary,
    };
    const struct gated_mlp_options mlp = {
        .hidden_size = config->hidden_size,
        .intermediate_size = config->intermediate_size,
        .has_bias = options->has_mlp_bias,
        .hidden_act = config->hidden_act,
    };
    for (int32_t i = 0; i < decoder->num_layers; i++) {
        struct weights layer = weights_at(w, "layers.%d", i);
        attention.layer = i;
        attention.window = config->layer_windows[i];
        TRY(load_layer(&decoder->layers[i], &layer, config, &attention, &mlp, err));
    }
    return STATUS_OK;
}

enum status decoder_load(struct model *model, const struct weights *w,
                         const struct decoder_options *options, struct error *err)
{
    const struct model_config *config = model->config;
    TRY(check_config(config, err));
    struct arena *arena = &w->store->arena;
    struct decoder *decoder = arena_calloc(arena, 1, sizeof(*decoder));
    decoder->num_layers = config->num_hidden_layers;
    decoder->layers =
        arena_calloc(arena, (size_t)config->num_hidden_layers, sizeof(*decoder->layers));
    model->impl = decoder;

    const struct rotary_embedding_options rotary = {
        .rope = &config->rope,
        .head_dim = config->head_dim,
        .max_position_embeddings = config->max_position_embeddings,
        .max_positions = model->max_model_len,
    };
    TRY(rotary_embedding_init(&decoder->rotary, w, &rotary, err));
    struct weights inner = weights_at(w, "model");
    TRY(embedding_load(&decoder->embed_tokens, &inner, "embed_tokens", config->vocab_size,
                       config->hidden_size, err));
    TRY(load_layers(decoder, model, &inner, options, err));
    TRY(rms_norm_load(&decoder->norm, &inner, "norm", config->hidden_size, config->rms_norm_eps,
                      err));
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
        size_t mlp = gated_mlp_scratch_bytes(&layer->mlp, dtype, num_tokens);
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

void decoder_forward(const struct model *model, struct forward *fwd, struct tensor hidden,
                     struct tensor residual)
{
    const struct decoder *decoder = model->impl;
    for (int32_t i = 0; i < decoder->num_layers; i++) {
        const struct decoder_layer *layer = &decoder->layers[i];
        if (i == 0) // nothing to add yet
            rms_norm_forward(&layer->input_layernorm, fwd, hidden, residual);
        else
            add_rms_norm_forward(&layer->input_layernorm, fwd, hidden, residual);
        attention_forward(&layer->self_attn, fwd, hidden);
        add_rms_norm_forward(&layer->post_attention_layernorm, fwd, hidden, residual);
        gated_mlp_forward(&layer->mlp, fwd, hidden);
        if (fwd->progress)
            atomic_fetch_add_explicit(fwd->progress, 1, memory_order_relaxed);
    }
    add_rms_norm_forward(&decoder->norm, fwd, hidden, residual);
}

void decoder_compute_logits(const struct model *model, struct forward *fwd, struct tensor logits,
                            struct tensor hidden)
{
    const struct decoder *decoder = model->impl;
    lm_head_forward(&decoder->lm_head, fwd, logits, hidden);
}
