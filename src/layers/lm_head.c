// Vectors to logits: see lm_head.h.
#include "layers/lm_head.h"

enum status lm_head_load(struct lm_head *head, const struct weights *w,
                         const struct embedding *embedding, bool is_tied, struct error *err)
{
    if (is_tied)
        return weights_matrix_from_table(w, embedding->table, &head->proj.weight, err);
    return linear_load(&head->proj, w, "lm_head", embedding->table.shape[0],
                       embedding->table.shape[1], false, err);
}

void lm_head_forward(const struct lm_head *head, struct forward *fwd, struct tensor logits,
                     struct tensor hidden)
{
    linear_forward(&head->proj, fwd, logits, hidden);
}
