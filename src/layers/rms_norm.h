// Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467):
// y = x / sqrt(mean(x^2) + eps) * w, or (1 + w) where checkpoints hold the distance from one.
#pragma once

#include "layers/forward.h"
#include "model_loader/weights.h"

struct rms_norm_options {
    int64_t size;
    double eps;
    float weight_offset; // 0 or 1: what is added to the weight
};

struct rms_norm {
    struct norm_params params; // its weight: [size]
    int64_t size;
};

/** Loads `name`.weight [size]. Errors: as weights_vector(). */
NODISCARD enum status rms_norm_load(struct rms_norm *norm, const struct weights *w,
                                    const char *name, const struct rms_norm_options *options,
                                    struct error *err);

/** out, x: [rows, size] with any row stride. Needs no scratch, as all below. */
void rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor out,
                      struct tensor x);

/** residual += x, then x = norm(residual); both [rows, size]. */
void add_rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor x,
                          struct tensor residual);

/** residual += post(x), then x = pre(residual); `pre` NULL: x is undefined afterwards. Both
 *  [rows, size]. */
void add_post_norm_forward(const struct rms_norm *post, const struct rms_norm *pre,
                           struct forward *fwd, struct tensor x, struct tensor residual);
