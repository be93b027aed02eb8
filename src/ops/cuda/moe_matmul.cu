// The experts' products: which kernel takes which, and the one for any shape.
#include "ops/cuda/moe.cuh"

enum { THREADS = 256 };

/** A warp's, of `k` elements each. */
template <typename T> DEVICE float row_product(const T *x, const T *weight, int k)
{
    float sum = 0;
    for (int i = (int)threadIdx.x % 32; i < k; i += 32)
        sum += to_f32(x[i]) * to_f32(weight[i]);
    return warp_sum(sum);
}

/** A warp per slot and column. */
template <typename T>
static __global__ void
plain_expert_matmul_kernel(const __grid_constant__ struct expert_matmul_args a)
{
    int slot = (int)blockIdx.x, lane = (int)threadIdx.x % 32;
    dependency_wait();
    dependents_launch(); // that reads settled routes
    int expert = 0;
    while (slot >= a.routes.expert_start[expert + 1])
        expert++;
    int row = a.is_by_token ? a.routes.tokens[slot] : slot;
    const T *x = (const T *)a.x + (size_t)row * a.k;
    int num_cols = a.is_swiglu ? a.n / 2 : a.n;
    for (int col = (int)threadIdx.x / 32; col < num_cols; col += THREADS / 32) {
        const T *weight = (const T *)a.weights[expert] + (size_t)col * a.k;
        float v = row_product(x, weight, a.k);
        if (a.is_swiglu)
            v = silu(v) * row_product(x, weight + (size_t)num_cols * a.k, a.k);
        if (lane == 0)
            ((T *)a.out)[(size_t)slot * num_cols + col] = from_f32<T>(v);
    }
}

void cuda_matmul_experts(const struct cuda_launch *launch, const struct expert_matmul_args *args)
{
    struct expert_matmul_args copy = *args;
    int num_slots = args->routes.num_tokens * args->routes.top_k;
    if (num_slots == 0)
        return;
    if (cuda_streams_experts(args))
        cuda_stream_experts(launch, args);
    else
        launch_kernel(launch,
                      launch->is_f16 ? (const void *)plain_expert_matmul_kernel<__half>
                                     : (const void *)plain_expert_matmul_kernel<__nv_bfloat16>,
                      dim3((unsigned)num_slots), THREADS, 0, &copy);
}
