// Root-mean-square normalisation: see rms_norm.h.
#include "layers/rms_norm.h"

#include <stdio.h>

enum status rms_norm_load(struct rms_norm *norm, const struct weights *w, const char *name,
                          const struct rms_norm_options *options, struct error *err)
{
    char full[128];
    snprintf(full, sizeof(full), "%s.weight", name);
    *norm = (struct rms_norm){
        .params = {.eps = (float)options->eps, .weight_offset = options->weight_offset},
        .size = options->size,
    };
    return weights_vector(w, full, options->size, &norm->params.weight, err);
}

void rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor out,
                      struct tensor x)
{
    assert(x.shape[1] == norm->size);
    op_rms_norm(fwd->dev, out, x, norm->params);
}

void add_rms_norm_forward(const struct rms_norm *norm, struct forward *fwd, struct tensor x,
                          struct tensor residual)
{
    assert(x.shape[1] == norm->size);
    op_add_rms_norm(fwd->dev, x, residual, norm->params);
}

void add_post_norm_forward(const struct rms_norm *post, const struct rms_norm *pre,
                           struct forward *fwd, struct tensor x, struct tensor residual)
{
    const struct norm_params none = {0};
    assert(x.shape[1] == post->size && (!pre || x.shape[1] == pre->size));
    op_add_post_norm(fwd->dev, x, residual, post->params, pre ? pre->params : none);
}
