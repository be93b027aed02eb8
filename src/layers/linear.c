// y = x W^T + b: see linear.h.
#include "layers/linear.h"

enum status linear_load(struct linear *linear, const struct weights *w, const char *name,
                        int64_t out_features, int64_t in_features, bool has_bias, struct error *err)
{
    struct weights_part part = {name, out_features};
    return weights_matrix(w, &part, 1, in_features, has_bias, &linear->weight, err);
}

void linear_forward(const struct linear *linear, struct forward *fwd, struct tensor out,
                    struct tensor x)
{
    op_matmul(fwd->dev, out, x, &linear->weight);
}

enum status joined_linear_load(struct joined_linear *joined, const struct weights *w,
                               const struct weights_part *parts, size_t num_parts,
                               int64_t in_features, bool has_bias, struct error *err)
{
    assert(num_parts > 0 && num_parts <= MAX_JOINED);
    if (!w->store->dev->has_host_memory) {
        joined->num_parts = 1;
        return weights_matrix(w, parts, num_parts, in_features, has_bias, &joined->parts[0].weight,
                              err);
    }
    joined->num_parts = (int32_t)num_parts;
    for (size_t i = 0; i < num_parts; i++)
        TRY(weights_matrix(w, &parts[i], 1, in_features, has_bias, &joined->parts[i].weight, err));
    return STATUS_OK;
}

void joined_linear_forward(const struct joined_linear *joined, struct forward *fwd,
                           struct tensor out, struct tensor x)
{
    int64_t column = 0;
    for (int32_t i = 0; i < joined->num_parts; i++) {
        int64_t count = joined->parts[i].weight.out_features;
        linear_forward(&joined->parts[i], fwd, tensor_columns(out, column, count), x);
        column += count;
    }
}
