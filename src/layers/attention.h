// Grouped-query self-attention (Ainslie et al. 2023, arXiv:2305.13245) over the paged KV cache,
// full or within a sliding window, with optional biases, optional RMS norms of queries and keys
// (each head by itself, or all heads of a token together), and an optional cap on the scores.
#pragma once

#include "layers/forward.h"
#include "layers/linear.h"
#include "layers/rms_norm.h"
#include "layers/rotary_embedding.h"
#include "model_loader/weights.h"

enum qk_norm { QK_NORM_NONE, QK_NORM_HEADS, QK_NORM_WHOLE };

struct attention_options {
    int32_t layer; // whose cache it uses
    int32_t hidden_size, num_heads, num_kv_heads, head_dim;
    int32_t window; // tokens; 0: full
    bool has_qkv_bias, has_o_bias;
    bool is_fused; // the checkpoint has one qkv_proj
    enum qk_norm qk_norm;
    double rms_norm_eps;
    float norm_weight_offset;              // of the norms of queries and keys
    double scale;                          // of the scores; 0: 1 / sqrt(head_dim)
    double softcap;                        // of the scaled scores; 0: none
    const struct rotary_embedding *rotary; // outlives the layer
};

struct attention {
    struct attention_options options;
    struct joined_linear qkv_proj;
    struct linear o_proj;
    struct rms_norm q_norm, k_norm; // unless QK_NORM_NONE
    float scale;
    float k_scale, v_scale; // of an e4m3 cache: the checkpoint's, or 1
};

/** Loads q_proj, k_proj, v_proj (or qkv_proj), o_proj, q_norm, k_norm, and the scales of the cache
 *  where the checkpoint has them. Errors: as weights_matrix(). */
NODISCARD enum status attention_load(struct attention *attention, const struct weights *w,
                                     const struct attention_options *options, struct error *err);

/** Bytes of workspace for a step of `num_tokens` with activations of `dtype`. */
size_t attention_scratch_bytes(const struct attention *attention, enum dtype dtype,
                               int64_t num_tokens);

/** out, x: [num_tokens, hidden_size], may be the same. Writes the step's keys and values to the
 *  cache first. */
void attention_forward(const struct attention *attention, struct forward *fwd, struct tensor out,
                       struct tensor x);

/** Whether attention_add() can be called for this step. */
bool attention_fuses(const struct attention *attention, const struct forward *fwd);

/** residual += attention(norm(residual)) with fused products, for steps of few tokens. `spare`:
 *  [num_tokens, hidden_size], undefined afterwards. */
void attention_add(const struct attention *attention, const struct rms_norm *norm,
                   struct forward *fwd, struct tensor residual, struct tensor spare);
