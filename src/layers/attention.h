// Grouped-query self-attention (Ainslie et al. 2023, arXiv:2305.13245) over the paged KV cache,
// full or within a sliding window, with optional biases and optional RMS norms of query and key
// heads.
#pragma once

#include "layers/forward.h"
#include "layers/linear.h"
#include "layers/rms_norm.h"
#include "layers/rotary_embedding.h"
#include "model_loader/weights.h"

struct attention_options {
    int32_t layer; // whose cache it uses
    int32_t hidden_size, num_heads, num_kv_heads, head_dim;
    int32_t window; // tokens; 0: full
    bool has_qkv_bias, has_o_bias;
    bool has_qk_norm;
    double rms_norm_eps;
    const struct rotary_embedding *rotary; // outlives the layer
};

struct attention {
    struct attention_options options;
    struct joined_linear qkv_proj;
    struct linear o_proj;
    struct rms_norm q_norm, k_norm; // with has_qk_norm
    float scale;
    float k_scale, v_scale; // of an e4m3 cache: the checkpoint's, or 1
};

/** Loads q_proj, k_proj, v_proj, o_proj, q_norm, k_norm, and the scales of the cache where the
 *  checkpoint has them. Errors: as weights_matrix(). */
NODISCARD enum status attention_load(struct attention *attention, const struct weights *w,
                                     const struct attention_options *options, struct error *err);

/** Bytes of workspace for a step of `num_tokens` with activations of `dtype`. */
size_t attention_scratch_bytes(const struct attention *attention, enum dtype dtype,
                               int64_t num_tokens);

/** hidden: [num_tokens, hidden_size], in: the normalised input, out: what to add to the
 *  residual. Writes the step's keys and values to the cache first. */
void attention_forward(const struct attention *attention, struct forward *fwd,
                       struct tensor hidden);
