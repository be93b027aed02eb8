// Mixtures of experts on a GPU: the operations table's entries over the kernels.
#include "ops/cuda/cuda_backend.h"

static struct cuda_expert_routes kernel_routes(const struct expert_routes *routes)
{
    return (struct cuda_expert_routes){
        .num_tokens = routes->num_tokens,
        .top_k = routes->top_k,
        .num_experts = routes->num_experts,
        .weights = routes->weights,
        .slots = routes->slots,
        .tokens = routes->tokens,
        .expert_start = routes->expert_start,
        .tiles = routes->tiles,
    };
}

static void table_route_experts(struct device *dev, const struct expert_routes *routes,
                                struct tensor logits, bool renormalises)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    const struct cuda_expert_routes kernel = kernel_routes(routes);
    cuda_route_experts(&launch, &kernel, logits.data, renormalises);
}

/** Its sums have another order than those of a router's product alone. */
static bool table_fuses_router(const struct device *dev, int64_t num_tokens,
                               const struct weight *router)
{
    return !dev->is_batch_invariant && !router->bias && num_tokens <= ROUTER_MAX_TOKENS &&
           cuda_routes_few((int32_t)num_tokens, (int32_t)router->out_features,
                           (int32_t)router->in_features);
}

static void table_fused_router(struct device *dev, const struct expert_routes *routes,
                               struct tensor out, struct tensor x, struct norm_params norm,
                               const struct weight *router, bool renormalises)
{
    assert(table_fuses_router(dev, x.shape[0], router));
    const struct cuda_launch launch = cuda_launch_of(dev);
    const struct router_args args = {
        .routes = kernel_routes(routes),
        .out = out.data,
        .x = x.data,
        .norm = {norm.weight, norm.eps, norm.weight_offset},
        .weight = router->data,
        .n = (int32_t)x.shape[1],
        .renormalises = renormalises,
    };
    cuda_route_few(&launch, &args);
}

static void table_matmul_experts(struct device *dev, struct tensor out, struct tensor x,
                                 const struct expert_weights *w, const struct expert_routes *routes,
                                 struct expert_product product)
{
    assert(w->form == cuda_dense_form(dev));
    const struct cuda_launch launch = cuda_launch_of(dev);
    const struct expert_matmul_args args = {
        .out = out.data,
        .x = x.data,
        .weights = w->data,
        .stacked = w->stacked,
        .routes = kernel_routes(routes),
        .n = (int32_t)w->out_features,
        .k = (int32_t)w->in_features,
        .is_by_token = product.is_by_token,
        .is_swiglu = product.is_swiglu,
        .is_settled = !product.is_by_token,
    };
    cuda_matmul_experts(&launch, &args);
}

static void table_combine_experts(struct device *dev, struct tensor out, struct tensor x,
                                  const struct expert_routes *routes, bool adds)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    const struct cuda_expert_routes kernel = kernel_routes(routes);
    cuda_combine_experts(&launch, out.data, x.data, &kernel, (int32_t)out.shape[1], adds);
}

void cuda_experts_fill(struct ops *ops)
{
    ops->route_experts = table_route_experts;
    ops->fuses_router = table_fuses_router;
    ops->fused_router = table_fused_router;
    ops->matmul_experts = table_matmul_experts;
    ops->combine_experts = table_combine_experts;
}
