// Token ids to vectors, in some models multiplied by a constant.
#pragma once

#include "layers/forward.h"
#include "model_loader/weights.h"

struct embedding {
    struct tensor table; // [vocab_size, hidden_size]
    float scale;
};

/** Loads `name`.weight [vocab_size, hidden_size]. `scale` (1: none) is rounded to the table's
 *  dtype, as models are trained. Errors: as weights_table(). */
NODISCARD enum status embedding_load(struct embedding *embedding, const struct weights *w,
                                     const char *name, int64_t vocab_size, int64_t hidden_size,
                                     double scale, struct error *err);

/** hidden: [num_tokens, hidden_size]: the vectors of the step's tokens. Needs no scratch. */
void embedding_forward(const struct embedding *embedding, struct forward *fwd,
                       struct tensor hidden);
