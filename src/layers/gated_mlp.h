// The gated feed-forward block (SwiGLU, Shazeer 2020, arXiv:2002.05202):
// y = down(silu(gate(x)) * up(x)).
#pragma once

#include "layers/forward.h"
#include "layers/linear.h"
#include "model_loader/weights.h"

struct gated_mlp_options {
    int32_t hidden_size, intermediate_size;
    bool has_bias;
    const char *hidden_act; // "silu"
};

struct gated_mlp {
    struct linear gate_up_proj; // gate's rows, then up's
    struct linear down_proj;
    int64_t intermediate_size;
};

/** Loads gate_proj, up_proj, down_proj. Errors: UNSUPPORTED (another activation), and as
 *  weights_matrix(). */
NODISCARD enum status gated_mlp_load(struct gated_mlp *mlp, const struct weights *w,
                                     const struct gated_mlp_options *options, struct error *err);

/** Bytes of workspace for a step of `num_tokens` with activations of `dtype`. */
size_t gated_mlp_scratch_bytes(const struct gated_mlp *mlp, enum dtype dtype, int64_t num_tokens);

/** hidden: [num_tokens, hidden_size], input and output. */
void gated_mlp_forward(const struct gated_mlp *mlp, struct forward *fwd, struct tensor hidden);
