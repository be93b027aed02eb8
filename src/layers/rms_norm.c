// Root-mean-square normalisation: see rms_norm.h.
#include "layers/rms_norm.h"

#include <stdio.h>

enum status rms_norm_load(struct rms_norm *norm, const struct weights *w, const char *name,
                          int64_t size, double eps, struct error *err)
{
    char full[128];
    snprintf(full, sizeof(full), "%s.weight", name);
    norm->size = size;
    norm->eps = (float)eps;
    return weights_vector(w, full, size, &norm->weight, err);
}

void rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor out,
                      struct tensor x)
{
    assert(x.shape[1] == norm->size);
    op_rms_norm(fwd->dev, out, x, norm->weight, norm->eps);
}

void add_rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor x,
                          struct tensor residual)
{
    assert(x.shape[1] == norm->size);
    op_add_rms_norm(fwd->dev, x, residual, norm->weight, norm->eps);
}
