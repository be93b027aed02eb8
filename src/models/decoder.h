// The decoder that Llama and its descendants share: layers of attention and gated MLP around one
// residual stream. What tells the architectures apart fits in struct decoder_options.
#pragma once

#include <stdbool.h>

#include "layers/attention.h"
#include "layers/embedding.h"
#include "layers/gated_mlp.h"
#include "layers/lm_head.h"
#include "layers/moe.h"
#include "layers/rms_norm.h"
#include "layers/rotary_embedding.h"
#include "models/model.h"

/** Where a layer's norms stand. */
enum norm_placement {
    NORMS_BEFORE, // of each block's input
    NORMS_AFTER,  // of each block's output, before it is added to the residual stream
    NORMS_AROUND, // both
};

/** Where an architecture differs; a zero is what Llama does. */
struct decoder_options {
    enum norm_placement norms;
    float norm_weight_offset; // 1: norms multiply by 1 + weight
    bool has_qkv_bias, has_o_bias, has_mlp_bias;
    bool has_fused_projections; // the checkpoint joins queries, keys, values, and gate, up
    enum qk_norm qk_norm;       // before the rotary embedding
    double embedding_scale;     // 0: none
    double attention_scale;     // 0: 1 / sqrt(head_dim)
    double attention_softcap, logits_softcap; // 0: none
    const struct moe_options *moe;            // NULL: every layer has an MLP
    const bool *is_sparse; // [num_hidden_layers]: layers with experts; NULL: all, with `moe`
    const char *moe_name;  // of the module: "mlp"
};

/** Norms that a placement does not have stay empty. */
struct decoder_layer {
    struct rms_norm input_layernorm;
    struct rms_norm post_attention_layernorm; // NORMS_BEFORE: of the MLP's input
    struct rms_norm pre_feedforward_layernorm, post_feedforward_layernorm;
    struct attention self_attn;
    bool is_sparse;
    struct gated_mlp mlp; // of a layer that is not sparse
    struct moe moe;       // of one that is
};

struct decoder {
    struct embedding embed_tokens;
    struct rotary_embedding rotary, sliding_rotary; // of full and of sliding layers
    enum norm_placement norms;
    int32_t num_layers;
    struct decoder_layer *layers;
    struct rms_norm norm;
    struct lm_head lm_head;
    float logits_softcap;
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

extern const struct model_class llama_model, mistral_model, qwen2_model, qwen3_model, gemma2_model,
    gemma3_model, phi3_model, olmo2_model, qwen3_moe_model, mixtral_model;
