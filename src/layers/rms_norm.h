// Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467):
// y = x / sqrt(mean(x^2) + eps) * w.
#pragma once

#include "layers/forward.h"
#include "model_loader/weights.h"

struct rms_norm {
    const float *weight; // [size]
    int64_t size;
    float eps;
};

/** Loads `name`.weight [size]. Errors: as weights_vector(). */
NODISCARD enum status rms_norm_load(struct rms_norm *norm, const struct weights *w,
                                    const char *name, int64_t size, double eps, struct error *err);

/** out, x: [rows, size] f32. Needs no scratch, as all below. */
void rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor out,
                      struct tensor x);

/** residual += x, then x = norm(residual); both [rows, size] f32. */
void add_rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor x,
                          struct tensor residual);

/** Each of the heads of `size` values in x [num_tokens, num_heads * size], in place. */
void head_rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor x);
