// Token ids to vectors: see embedding.h.
#include "layers/embedding.h"

#include <stdio.h>

enum status embedding_load(struct embedding *embedding, const struct weights *w, const char *name,
                           int64_t vocab_size, int64_t hidden_size, struct error *err)
{
    char full[128];
    snprintf(full, sizeof(full), "%s.weight", name);
    return weights_table(w, full, vocab_size, hidden_size, &embedding->table, err);
}

void embedding_forward(const struct embedding *embedding, struct forward *fwd, struct tensor hidden)
{
    op_embedding(fwd->dev, hidden, embedding->table, fwd->token_ids);
}
