// The gated feed-forward block: see gated_mlp.h.
#include "layers/gated_mlp.h"

#include "base/memory.h"

enum status gated_mlp_load(struct gated_mlp *mlp, const struct weights *w,
                           const struct gated_mlp_options *options, struct error *err)
{
    *mlp = (struct gated_mlp){.intermediate_size = options->intermediate_size};
    struct str act = str_from(options->hidden_act);
    if (!str_eq_c(act, "silu") && !str_eq_c(act, "swish"))
        return error_set_field(err, STATUS_UNSUPPORTED, "hidden_act",
                               "hidden_act \"%s\" is not supported: expected \"silu\"",
                               options->hidden_act ? options->hidden_act : "");
    const struct weights_part gate_up[] = {{"gate_proj", options->intermediate_size},
                                           {"up_proj", options->intermediate_size}};
    TRY(weights_matrix(w, gate_up, ARRAY_LEN(gate_up), options->hidden_size, options->has_bias,
                       &mlp->gate_up_proj.weight, err));
    return linear_load(&mlp->down_proj, w, "down_proj", options->hidden_size,
                       options->intermediate_size, options->has_bias, err);
}

size_t gated_mlp_scratch_bytes(const struct gated_mlp *mlp, enum dtype dtype, int64_t num_tokens)
{
    return workspace_tensor_bytes(dtype, num_tokens, 2 * mlp->intermediate_size) +
           workspace_tensor_bytes(dtype, num_tokens, mlp->intermediate_size);
}

void gated_mlp_forward(const struct gated_mlp *mlp, struct forward *fwd, struct tensor hidden)
{
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor gate_up = forward_activation(fwd, 2 * mlp->intermediate_size);
    struct tensor activated = forward_activation(fwd, mlp->intermediate_size);
    linear_forward(&mlp->gate_up_proj, fwd, gate_up, hidden);
    op_silu_and_mul(fwd->dev, activated, gate_up);
    linear_forward(&mlp->down_proj, fwd, hidden, activated);
    workspace_release(&fwd->workspace, mark);
}
