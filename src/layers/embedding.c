// Token ids to vectors: see embedding.h.
#include "layers/embedding.h"

#include <stdio.h>

enum status embedding_load(struct embedding *embedding, const struct weights *w, const char *name,
                           int64_t vocab_size, int64_t hidden_size, double scale, struct error *err)
{
    char full[128];
    snprintf(full, sizeof(full), "%s.weight", name);
    TRY(weights_table(w, full, vocab_size, hidden_size, &embedding->table, err));
    embedding->scale = (float)scale;
    if (embedding->table.dtype == DTYPE_BF16)
        embedding->scale = bf16_to_f32(f32_to_bf16(embedding->scale));
    else if (embedding->table.dtype == DTYPE_F16)
        embedding->scale = f16_to_f32(f32_to_f16(embedding->scale));
    return STATUS_OK;
}

void embedding_forward(const struct embedding *embedding, struct forward *fwd, struct tensor hidden)
{
    op_embedding(fwd->dev, hidden, embedding->table, fwd->token_ids, embedding->scale);
}
