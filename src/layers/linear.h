// y = x W^T + b.
#pragma once

#include "layers/forward.h"
#include "model_loader/weights.h"

struct linear {
    struct weight weight;
};

enum { MAX_JOINED = 3 };

/** Layers of one input whose outputs stand side by side in each row: one matrix where the device
 *  keeps its own copies of weights, else one for each part, where the file has it. */
struct joined_linear {
    int32_t num_parts;
    struct linear parts[MAX_JOINED];
};

/** Loads `name`.weight [out_features, in_features] and, when `has_bias`, `name`.bias.
 *  Errors: as weights_matrix(). */
NODISCARD enum status linear_load(struct linear *linear, const struct weights *w, const char *name,
                                  int64_t out_features, int64_t in_features, bool has_bias,
                                  struct error *err);

/** out: [num_tokens, out_features], x: [num_tokens, in_features]. Needs no scratch. */
void linear_forward(const struct linear *linear, struct forward *fwd, struct tensor out,
                    struct tensor x);

/** Loads `part`.weight [out_features, in_features] and, when `has_bias`, `part`.bias of each part.
 *  Errors: as weights_matrix(). */
NODISCARD enum status joined_linear_load(struct joined_linear *joined, const struct weights *w,
                                         const struct weights_part *parts, size_t num_parts,
                                         int64_t in_features, bool has_bias, struct error *err);

/** out: [num_tokens, sum of out_features], x: [num_tokens, in_features]. Needs no scratch. */
void joined_linear_forward(const struct joined_linear *joined, struct forward *fwd,
                           struct tensor out, struct tensor x);
