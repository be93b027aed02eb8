// y = x W^T + b.
#pragma once

#include "layers/forward.h"
#include "model_loader/weights.h"

struct linear {
    struct weight weight;
};

/** Loads `name`.weight [out_features, in_features] and, when `has_bias`, `name`.bias.
 *  Errors: as weights_matrix(). */
NODISCARD enum status linear_load(struct linear *linear, const struct weights *w, const char *name,
                                  int64_t out_features, int64_t in_features, bool has_bias,
                                  struct error *err);

/** out: [num_tokens, out_features], x: [num_tokens, in_features], f32. Needs no scratch. */
void linear_forward(const struct linear *linear, struct forward *fwd, struct tensor out,
                    struct tensor x);
