// Vectors to one logit per token of the vocabulary, by a matrix of its own or by the embedding's.
#pragma once

#include "layers/embedding.h"
#include "layers/forward.h"
#include "layers/linear.h"
#include "model_loader/weights.h"

struct lm_head {
    struct linear proj;
};

/** Loads lm_head.weight [vocab_size, hidden_size] of `embedding`'s shape; with `is_tied` the
 *  embedding's table is used, whatever the checkpoint holds. Errors: as weights_matrix(). */
NODISCARD enum status lm_head_load(struct lm_head *head, const struct weights *w,
                                   const struct embedding *embedding, bool is_tied,
                                   struct error *err);

/** logits: [rows, vocab_size] f32, hidden: [rows, hidden_size]. Needs no scratch. */
void lm_head_forward(const struct lm_head *head, struct forward *fwd, struct tensor logits,
                     struct tensor hidden);
