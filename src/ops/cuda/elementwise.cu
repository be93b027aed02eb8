// What has no sum in it: gated activations, row gathers (embedding, last rows), widening of logits.
// Eight elements per thread, one access each way.
#include "ops/cuda/common.cuh"

enum { THREADS = 256 };

struct act_args {
    void *out;
    const void *gate_up;
    int32_t units; // of eight, per row
    int64_t total;
};

template <typename T, bool GELU>
static __global__
__launch_bounds__(THREADS) void act_kernel(const __grid_constant__ struct act_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    dependents_launch();
    dependency_wait();
    if (at >= a.total)
        return;
    const uint4 *gate = (const uint4 *)a.gate_up + at / a.units * 2 * a.units + at % a.units;
    float g[8], u[8];
    unpack8<T>(gate[0], g);
    unpack8<T>(gate[a.units], u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        u[i] *= GELU ? gelu_tanh(g[i]) : silu(g[i]);
    ((uint4 *)a.out)[at] = pack8<T>(u);
}

struct gather_args {
    void *out;
    const void *table;
    const int32_t *ids;
    float scale;
    int32_t num_rows, units;
    int64_t total;
};

template <typename T>
static __global__
__launch_bounds__(THREADS) void gather_kernel(const __grid_constant__ struct gather_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    dependents_launch();
    dependency_wait();
    if (at >= a.total)
        return;
    int32_t id = a.ids[at / a.units];
    uint4 v = make_uint4(0, 0, 0, 0);
    if (id >= 0 && id < a.num_rows)
        v = __ldg((const uint4 *)a.table + (size_t)id * a.units + at % a.units);
    if (a.scale != 1.0f) {
        float f[8];
        unpack8<T>(v, f);
#pragma unroll
        for (int i = 0; i < 8; i++)
            f[i] *= a.scale;
        v = pack8<T>(f);
    }
    ((uint4 *)a.out)[at] = v;
}

struct widen_args {
    float *out;
    const void *x;
    float cap;
    int64_t total;
};

template <typename T>
static __global__
__launch_bounds__(THREADS) void widen_kernel(const __grid_constant__ struct widen_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    dependents_launch();
    dependency_wait();
    if (at >= a.total)
        return;
    float f[8];
    unpack8<T>(((const uint4 *)a.x)[at], f);
#pragma unroll
    for (int i = 0; i < 8; i++)
        f[i] = a.cap > 0 ? a.cap * tanhf(f[i] / a.cap) : f[i];
    ((float4 *)a.out)[2 * at] = make_float4(f[0], f[1], f[2], f[3]);
    ((float4 *)a.out)[2 * at + 1] = make_float4(f[4], f[5], f[6], f[7]);
}

struct cap_args {
    float *x, cap;
    int64_t total;
};

static __global__
__launch_bounds__(THREADS) void cap_kernel(const __grid_constant__ struct cap_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    dependents_launch();
    dependency_wait();
    if (at < a.total)
        a.x[at] = a.cap * tanhf(a.x[at] / a.cap);
}

static void launch_flat(const struct cuda_launch *launch, const void *kernel, int64_t total,
                        void *args)
{
    if (total > 0)
        launch_kernel(launch, kernel, dim3((unsigned)((total + THREADS - 1) / THREADS)), THREADS, 0,
                      args);
}

template <typename T> static const void *act_kernel_of(enum cuda_activation act)
{
    return act == CUDA_ACTIVATION_SILU ? (const void *)act_kernel<T, false>
                                       : (const void *)act_kernel<T, true>;
}

void cuda_act_and_mul(const struct cuda_launch *launch, void *out, const void *gate_up,
                      enum cuda_activation act, int32_t rows, int32_t n)
{
    struct act_args args = {out, gate_up, n / 8, (int64_t)rows * (n / 8)};
    launch_flat(launch,
                launch->is_f16 ? act_kernel_of<__half>(act) : act_kernel_of<__nv_bfloat16>(act),
                args.total, &args);
}

void cuda_gather_rows(const struct cuda_launch *launch, void *out, const void *table,
                      const int32_t *ids, float scale, int32_t num_ids, int32_t num_rows, int32_t n)
{
    struct gather_args args = {out, table, ids, scale, num_rows, n / 8, (int64_t)num_ids * (n / 8)};
    launch_flat(launch,
                launch->is_f16 ? (const void *)gather_kernel<__half>
                               : (const void *)gather_kernel<__nv_bfloat16>,
                args.total, &args);
}

void cuda_logits_to_f32(const struct cuda_launch *launch, float *out, const void *x, float cap,
                        int64_t num_elements)
{
    struct widen_args args = {out, x, cap, num_elements / 8};
    launch_flat(launch,
                launch->is_f16 ? (const void *)widen_kernel<__half>
                               : (const void *)widen_kernel<__nv_bfloat16>,
                args.total, &args);
}

void cuda_soft_cap(const struct cuda_launch *launch, float *x, float cap, int64_t num_elements)
{
    struct cap_args args = {x, cap, num_elements};
    launch_flat(launch, (const void *)cap_kernel, args.total, &args);
}
