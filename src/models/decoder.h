// The decoder that Llama and its descendants share: pre-norm layers of attention and gated MLP
// around one residual stream. What tells the architectures apart fits in struct decoder_options.
#pragma once

#include <stdbool.h>

#include "layers/attention.h"
#include "layers/embedding.h"
#include "layers/gated_mlp.h"
#include "layers/lm_head.h"
#include "layers/rms_norm.h"
#include "layers/rotary_embedding.h"
#include "models/model.h"

/** Where an architecture differs. */
struct decoder_options {
    bool has_qkv_bias, has_o_bias, has_mlp_bias;
    bool has_qk_norm; // RMS norms of query and key heads, before the rotary embedding
};

struct decoder_layer {
    struct rms_norm input_layernorm, post_attention_layernorm;
    struct attention self_attn;
    struct gated_mlp mlp;
};

struct decoder {
    struct embedding embed_tokens;
    struct rotary_embedding rotary;
    int32_t num_layers;
    struct decoder_layer *layers;
    struct rms_norm norm;
    struct lm_head lm_head;
};

/** Loads model.embed_tokens, model.layers.N, model.norm and lm_head into `model->impl`. */
NODISCARD enum status decoder_load(struct model *model, const struct weights *w,
                                   const struct decoder_options *options, struct error *err);

// The other entries of a model class whose impl is a struct decoder.
size_t decoder_scratch_bytes(const struct model *model, enum dtype dtype, int64_t num_tokens);
void decoder_embed(const struct model *model, struct forward *fwd, struct tensor residual);
void decoder_forward(const struct model *model, struct forward *fwd, struct tensor hidden,
                     struct tensor residual);
void decoder_compute_logits(const struct model *model, struct forward *fwd, struct tensor logits,
                            struct tensor hidden);

extern const struct model_class llama_model, mistral_model, qwen2_model, qwen3_model;
