// The gated feed-forward block: see gated_mlp.h.
#include "layers/gated_mlp.h"

#include "base/memory.h"

enum status activation_parse(enum activation *out, const char *hidden_act, struct error *err)
{
    static const struct {
        const char *name;
        enum activation act;
    } NAMES[] = {
        {"silu", ACTIVATION_SILU},
        {"swish", ACTIVATION_SILU},
        {"gelu_pytorch_tanh", ACTIVATION_GELU_TANH},
    };
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (str_eq_c(str_from(hidden_act), NAMES[i].name)) {
            *out = NAMES[i].act;
            return STATUS_OK;
        }
    }
    return error_set_field(err, STATUS_UNSUPPORTED, "hidden_act",
                           "hidden_act \"%s\" is not supported: expected \"silu\" or "
                           "\"gelu_pytorch_tanh\"",
                           hidden_act ? hidden_act : "");
}

void activation_forward(enum activation act, struct forward *fwd, struct tensor out,
                        struct tensor gate_up)
{
    if (act == ACTIVATION_GELU_TANH)
        op_gelu_and_mul(fwd->dev, out, gate_up);
    else
        op_silu_and_mul(fwd->dev, out, gate_up);
}

enum status gated_mlp_load(struct gated_mlp *mlp, const struct weights *w,
                           const struct gated_mlp_options *options, struct error *err)
{
    *mlp = (struct gated_mlp){.intermediate_size = options->intermediate_size};
    TRY(activation_parse(&mlp->act, options->hidden_act, err));
    int64_t size = options->intermediate_size;
    const struct weights_part gate_up[] = {{"gate_proj", size}, {"up_proj", size}};
    const struct weights_part fused = {"gate_up_proj", 2 * size};
    TRY(weights_matrix(w, options->is_fused ? &fused : gate_up,
                       options->is_fused ? 1 : ARRAY_LEN(gate_up), options->hidden_size,
                       options->has_bias, &mlp->gate_up_proj.weight, err));
    return linear_load(&mlp->down_proj, w, "down_proj", options->hidden_size,
                       options->intermediate_size, options->has_bias, err);
}

size_t gated_mlp_scratch_bytes(const struct gated_mlp *mlp, enum dtype dtype, int64_t num_tokens)
{
    return workspace_tensor_bytes(dtype, num_tokens, 2 * mlp->intermediate_size) +
           workspace_tensor_bytes(dtype, num_tokens, mlp->intermediate_size);
}

void gated_mlp_forward(const struct gated_mlp *mlp, struct forward *fwd, struct tensor out,
                       struct tensor x)
{
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor gate_up = forward_activation(fwd, 2 * mlp->intermediate_size);
    struct tensor activated = forward_activation(fwd, mlp->intermediate_size);
    linear_forward(&mlp->gate_up_proj, fwd, gate_up, x);
    activation_forward(mlp->act, fwd, activated, gate_up);
    linear_forward(&mlp->down_proj, fwd, out, activated);
    workspace_release(&fwd->workspace, mark);
}

static const struct matmul_fusion SWIGLU = {.is_swiglu = true}, ADDS = {.adds = true};

static bool fuses(const struct linear *linear, const struct forward *fwd,
                  const struct matmul_fusion *fusion)
{
    return op_fuses_matmul(fwd->dev, fwd->num_tokens, &linear->weight, fusion);
}

static struct matmul_fusion normed_swiglu(const struct rms_norm *norm)
{
    return (struct matmul_fusion){.norm = norm->params, .is_swiglu = true};
}

bool gated_mlp_fuses(const struct gated_mlp *mlp, const struct rms_norm *norm,
                     const struct forward *fwd)
{
    const struct matmul_fusion normed = normed_swiglu(norm);
    return mlp->act == ACTIVATION_SILU && fuses(&mlp->down_proj, fwd, &ADDS) &&
           (fuses(&mlp->gate_up_proj, fwd, &normed) || fuses(&mlp->gate_up_proj, fwd, &SWIGLU));
}

void gated_mlp_add(const struct gated_mlp *mlp, const struct rms_norm *norm, struct forward *fwd,
                   struct tensor residual, struct tensor spare)
{
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor activated = forward_activation(fwd, mlp->intermediate_size);
    const struct weight *gate_up = &mlp->gate_up_proj.weight;
    const struct matmul_fusion normed = normed_swiglu(norm);
    if (fuses(&mlp->gate_up_proj, fwd, &normed)) {
        op_fused_matmul(fwd->dev, activated, residual, gate_up, &normed);
    } else {
        rms_norm_forward(norm, fwd, spare, residual);
        op_fused_matmul(fwd->dev, activated, spare, gate_up, &SWIGLU);
    }
    op_fused_matmul(fwd->dev, residual, activated, &mlp->down_proj.weight, &ADDS);
    workspace_release(&fwd->workspace, mark);
}
