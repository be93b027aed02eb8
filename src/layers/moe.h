// A sparse mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router picks a few of many
// gated MLPs for each token and adds their outputs up, weighted by its softmax.
#pragma once

#include "layers/forward.h"
#include "layers/gated_mlp.h"
#include "layers/linear.h"
#include "layers/rms_norm.h"
#include "model_loader/weights.h"

struct moe_options {
    int32_t hidden_size, intermediate_size; // of one expert
    int32_t num_experts, top_k;
    bool renormalises; // the chosen weights add up to one
    const char *hidden_act;
    const char *gate_name, *up_name, *down_name; // of an expert's matrices in the checkpoint
};

struct moe {
    struct moe_options options;
    struct linear router;
    struct expert_weights gate_up_proj; // gate's rows, then up's
    struct expert_weights down_proj;
    enum activation act;
};

/** Loads gate (the router) and experts.N of the given names. Errors: INVALID (counts),
 *  UNSUPPORTED (more than MAX_EXPERTS, another activation), and as weights_matrix(). */
NODISCARD enum status moe_load(struct moe *moe, const struct weights *w,
                               const struct moe_options *options, struct error *err);

/** Bytes of workspace for a step of `num_tokens` with activations of `dtype`. */
size_t moe_scratch_bytes(const struct moe *moe, enum dtype dtype, int64_t num_tokens);

/** out, x: [num_tokens, hidden_size], may be the same. */
void moe_forward(const struct moe *moe, struct forward *fwd, struct tensor out, struct tensor x);

/** residual += moe(norm(residual)), for steps of few tokens; `spare` is as large. */
void moe_add(const struct moe *moe, const struct rms_norm *norm, struct forward *fwd,
             struct tensor residual, struct tensor spare);
