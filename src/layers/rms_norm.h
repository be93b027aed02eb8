// Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467):
// y = x / sqrt(mean(x^2) + eps) * w.
#pragma once

#include "layers/forward.h"
#include "model_loader/weights.h"

struct rms_norm {
    const void *weight; // [size], of the device's dtype
    int64_t size;
    float eps;
};

/** Loads `name`.weight [size]. Errors: as weights_vector(). */
NODISCARD enum status rms_norm_load(struct rms_norm *norm, const struct weights *w,
                                    const char *name, int64_t size, double eps, struct error *err);

/** out, x: [rows, size]. Needs no scratch, as all below. */
void rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor out,
                      struct tensor x);

/** residual += x, then x = norm(residual); both [rows, size]. */
void add_rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor x,
                          struct tensor residual);
