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
