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

/** Columns of what a slot holds before and after its expert's second half, one memory for both. */
static int64_t wide_cols(const struct moe_options *options)
{
    return max_i64(2 * (int64_t)options->intermediate_size, options->hidden_size);
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
           workspace_tensor_bytes(dtype, slots, wide_cols(options));
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

void moe_forward(const struct moe *moe, struct forward *fwd, struct tensor out, struct tensor x)
{
    const struct moe_options *options = &moe->options;
    enum dtype dtype = fwd->dev->activation_dtype;
    int64_t slots = (int64_t)fwd->num_tokens * options->top_k;
    size_t mark = workspace_mark(&fwd->workspace);
    struct expert_routes routes = take_routes(options, fwd);
    struct tensor logits =
        workspace_tensor(&fwd->workspace, DTYPE_F32, fwd->num_tokens, options->num_experts);
    linear_forward(&moe->router, fwd, logits, x);
    op_route_experts(fwd->dev, &routes, logits, options->renormalises);

    struct tensor activated =
        workspace_tensor(&fwd->workspace, dtype, slots, options->intermediate_size);
    struct tensor wide = workspace_tensor(&fwd->workspace, dtype, slots, wide_cols(options));
    struct tensor gate_up =
        tensor_2d(wide.data, dtype, slots, 2 * (int64_t)options->intermediate_size);
    struct tensor expert_out = tensor_2d(wide.data, dtype, slots, options->hidden_size);
    op_matmul_experts(fwd->dev, gate_up, x, &moe->gate_up_proj, &routes, true);
    activation_forward(moe->act, fwd, activated, gate_up);
    op_matmul_experts(fwd->dev, expert_out, activated, &moe->down_proj, &routes, false);
    op_combine_experts(fwd->dev, out, expert_out, &routes);
    workspace_release(&fwd->workspace, mark);
}
