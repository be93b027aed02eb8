// A sparse mixture of experts: see moe.h.
#include "layers/moe.h"

#include "base/memory.h"

static enum status check_options(const struct moe_options *options, struct error *err)
{
    if (options->intermediate_size < 1)
        return error_set(err, STATUS_INVALID,
                         "config.json: the experts' intermediate size is %d: expected at least 1",
                         options->intermediate_size);
    if (options->num_experts < 1 || options->num_experts > MAX_EXPERTS)
        return error_set(err, STATUS_UNSUPPORTED,
                         "config.json: %d experts a layer: supported are 1 to %d",
                         options->num_experts, MAX_EXPERTS);
    if (options->top_k < 1 || options->top_k > options->num_experts)
        return error_set_field(err, STATUS_INVALID, "num_experts_per_tok",
                               "config.json: num_experts_per_tok is %d: expected 1 to the number "
                               "of experts, %d",
                               options->top_k, options->num_experts);
    return STATUS_OK;
}

enum status moe_load(struct moe *moe, const struct weights *w, const struct moe_options *options,
                     struct error *err)
{
    *moe = (struct moe){.options = *options};
    TRY(check_options(options, err));
    TRY(activation_parse(&moe->act, options->hidden_act, err));
    int64_t hidden = options->hidden_size, inner = options->intermediate_size;
    TRY(linear_load(&moe->router, w, "gate", options->num_experts, hidden, false, err));
    const struct weights_part gate_up[] = {{options->gate_name, inner}, {options->up_name, inner}};
    const struct weights_part down = {options->down_name, hidden};
    TRY(weights_experts(w, gate_up, ARRAY_LEN(gate_up), options->num_experts, hidden,
                        &moe->gate_up_proj, err));
    return weights_experts(w, &down, 1, options->num_experts, inner, &moe->down_proj, err);
}

/** Columns of what a slot holds before (unless that is one product with SwiGLU) and after its
 *  expert's second half, one memory for both. */
static int64_t wide_cols(const struct moe *moe)
{
    const struct moe_options *options = &moe->options;
    bool is_fused = moe->act == ACTIVATION_SILU;
    return max_i64(is_fused ? 0 : 2 * (int64_t)options->intermediate_size, options->hidden_size);
}

size_t moe_scratch_bytes(const struct moe *moe, enum dtype dtype, int64_t num_tokens)
{
    const struct moe_options *options = &moe->options;
    int64_t slots = num_tokens * options->top_k, experts = options->num_experts;
    return workspace_tensor_bytes(DTYPE_F32, num_tokens, experts) + // logits
           workspace_tensor_bytes(DTYPE_F32, 1, slots) +            // the routes' arrays
           2 * workspace_tensor_bytes(DTYPE_I32, 1, slots) +
           workspace_tensor_bytes(DTYPE_I32, 1, experts + 1) +
           workspace_tensor_bytes(DTYPE_I32, 1, expert_tile_words(slots, options->num_experts)) +
           workspace_tensor_bytes(dtype, slots, options->intermediate_size) +
           workspace_tensor_bytes(dtype, slots, wide_cols(moe));
}

static void *take(struct forward *fwd, enum dtype dtype, int64_t count)
{
    return workspace_tensor(&fwd->workspace, dtype, 1, count).data;
}

static struct expert_routes take_routes(const struct moe_options *options, struct forward *fwd)
{
    int64_t slots = (int64_t)fwd->num_tokens * options->top_k;
    return (struct expert_routes){
        .num_tokens = fwd->num_tokens,
        .top_k = options->top_k,
        .num_experts = options->num_experts,
        .weights = take(fwd, DTYPE_F32, slots),
        .slots = take(fwd, DTYPE_I32, slots),
        .tokens = take(fwd, DTYPE_I32, slots),
        .expert_start = take(fwd, DTYPE_I32, (int64_t)options->num_experts + 1),
        .tiles = take(fwd, DTYPE_I32, expert_tile_words(slots, options->num_experts)),
    };
}

/** out (+)= what the tokens' experts make of x. */
static void run_experts(const struct moe *moe, struct forward *fwd,
                        const struct expert_routes *routes, struct tensor out, struct tensor x,
                        bool adds)
{
    const struct moe_options *options = &moe->options;
    const struct expert_product by_token = {.is_by_token = true}, by_slot = {0};
    const struct expert_product swiglu = {.is_by_token = true, .is_swiglu = true};
    enum dtype dtype = fwd->dev->activation_dtype;
    int64_t slots = (int64_t)fwd->num_tokens * options->top_k, inner = options->intermediate_size;
    struct tensor activated = workspace_tensor(&fwd->workspace, dtype, slots, inner);
    struct tensor wide = workspace_tensor(&fwd->workspace, dtype, slots, wide_cols(moe));
    if (moe->act == ACTIVATION_SILU) {
        op_matmul_experts(fwd->dev, activated, x, &moe->gate_up_proj, routes, swiglu);
    } else {
        struct tensor gate_up = tensor_2d(wide.data, dtype, slots, 2 * inner);
        op_matmul_experts(fwd->dev, gate_up, x, &moe->gate_up_proj, routes, by_token);
        activation_forward(moe->act, fwd, activated, gate_up);
    }
    struct tensor expert_out = tensor_2d(wide.data, dtype, slots, options->hidden_size);
    op_matmul_experts(fwd->dev, expert_out, activated, &moe->down_proj, routes, by_slot);
    op_combine_experts(fwd->dev, out, expert_out, routes, adds);
}

static void route(const struct moe *moe, struct forward *fwd, const struct expert_routes *routes,
                  struct tensor x)
{
    struct tensor logits =
        workspace_tensor(&fwd->workspace, DTYPE_F32, fwd->num_tokens, moe->options.num_experts);
    linear_forward(&moe->router, fwd, logits, x);
    op_route_experts(fwd->dev, routes, logits, moe->options.renormalises);
}

void moe_forward(const struct moe *moe, struct forward *fwd, struct tensor out, struct tensor x)
{
    size_t mark = workspace_mark(&fwd->workspace);
    struct expert_routes routes = take_routes(&moe->options, fwd);
    route(moe, fwd, &routes, x);
    run_experts(moe, fwd, &routes, out, x, false);
    workspace_release(&fwd->workspace, mark);
}

void moe_add(const struct moe *moe, const struct rms_norm *norm, struct forward *fwd,
             struct tensor residual, struct tensor spare)
{
    size_t mark = workspace_mark(&fwd->workspace);
    struct expert_routes routes = take_routes(&moe->options, fwd);
    if (op_fuses_router(fwd->dev, fwd->num_tokens, &moe->router.weight)) {
        op_fused_router(fwd->dev, &routes, spare, residual, norm->params, &moe->router.weight,
                        moe->options.renormalises);
    } else {
        rms_norm_forward(norm, fwd, spare, residual);
        route(moe, fwd, &routes, spare);
    }
    run_experts(moe, fwd, &routes, residual, spare, true);
    workspace_release(&fwd->workspace, mark);
}
