// The gated feed-forward block (SwiGLU and GeGLU, Shazeer 2020, arXiv:2002.05202):
// y = down(act(gate(x)) * up(x)).
#pragma once

#include "layers/forward.h"
#include "layers/linear.h"
#include "layers/rms_norm.h"
#include "model_loader/weights.h"

enum activation { ACTIVATION_SILU, ACTIVATION_GELU_TANH };

struct gated_mlp_options {
    int32_t hidden_size, intermediate_size;
    bool has_bias;
    bool is_fused;          // the checkpoint has one gate_up_proj
    const char *hidden_act; // "silu", "gelu_pytorch_tanh"
};

struct gated_mlp {
    struct linear gate_up_proj; // gate's rows, then up's
    struct linear down_proj;
    int64_t intermediate_size;
    enum activation act;
};

/** The activation of that name. Errors: UNSUPPORTED. */
NODISCARD enum status activation_parse(enum activation *out, const char *hidden_act,
                                       struct error *err);

/** out = act(gate) * up; gate_up: [rows, 2n], out: [rows, n]. */
void activation_forward(enum activation act, struct forward *fwd, struct tensor out,
                        struct tensor gate_up);

/** Loads gate_proj, up_proj (or gate_up_proj), down_proj. Errors: UNSUPPORTED (another activation),
 * and as weights_matrix(). */
NODISCARD enum status gated_mlp_load(struct gated_mlp *mlp, const struct weights *w,
                                     const struct gated_mlp_options *options, struct error *err);

/** Bytes of workspace for a step of `num_tokens` with activations of `dtype`. */
size_t gated_mlp_scratch_bytes(const struct gated_mlp *mlp, enum dtype dtype, int64_t num_tokens);

/** out, x: [num_tokens, hidden_size], may be the same. */
void gated_mlp_forward(const struct gated_mlp *mlp, struct forward *fwd, struct tensor out,
                       struct tensor x);

/** Whether gated_mlp_add() can be called for this step. */
bool gated_mlp_fuses(const struct gated_mlp *mlp, const struct rms_norm *norm,
                     const struct forward *fwd);

/** residual += mlp(norm(residual)) with fused products, for steps of few tokens; the norm by itself
 *  where the device does not fuse it too. `spare`: [num_tokens, hidden_size], undefined
 *  afterwards. */
void gated_mlp_add(const struct gated_mlp *mlp, const struct rms_norm *norm, struct forward *fwd,
                   struct tensor residual, struct tensor spare);
