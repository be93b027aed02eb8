// RMSNorm, alone and with the residual added first. A CTA per row keeps it in registers, eight
// elements per thread and turn, so memory is touched once each way. The shape of the sum depends on
// the row's length alone.
#include "ops/cuda/common.cuh"

enum { MAX_TURNS = 4, MAX_THREADS = 1024 };

struct norm_args {
    void *out;
    const void *x;  // NULL with a residual: nothing is added
    void *residual; // NULL: x alone
    struct cuda_norm norm;
    int32_t n;
};

template <typename T, int TURNS>
static __global__
__launch_bounds__(MAX_THREADS) void norm_kernel(const __grid_constant__ struct norm_args a)
{
    __shared__ float partial[32];
    size_t row = (size_t)blockIdx.x * a.n;
    const T *x = (const T *)a.x + row;
    T *residual = (T *)a.residual + row, *out = (T *)a.out + row;
    float v[TURNS][8], squares = 0;
    dependents_launch();
    dependency_wait();
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        int at = ((int)threadIdx.x + t * (int)blockDim.x) * 8;
        if (at >= a.n)
            break;
        if (a.residual) {
            unpack8<T>(*(const uint4 *)(residual + at), v[t]);
            if (a.x) {
                float add[8];
                unpack8<T>(*(const uint4 *)(x + at), add);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[t][i] += add[i];
                // The sum goes on as it is stored, so that both readers see the same numbers.
                uint4 stored = pack8<T>(v[t]);
                *(uint4 *)(residual + at) = stored;
                unpack8<T>(stored, v[t]);
            }
        } else {
            unpack8<T>(*(const uint4 *)(x + at), v[t]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            squares += v[t][i] * v[t][i];
    }
    float scale = rsqrtf(block_sum(squares, partial) / (float)a.n + a.norm.eps);
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        int at = ((int)threadIdx.x + t * (int)blockDim.x) * 8;
        if (at >= a.n)
            break;
        float w[8];
        unpack8<T>(__ldg((const uint4 *)((const T *)a.norm.weight + at)), w);
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = (a.norm.offset + w[i]) * (v[t][i] * scale);
        *(uint4 *)(out + at) = pack8<T>(w);
    }
}

template <typename T> static const void *kernel_of(int turns)
{
    return turns == 1   ? (const void *)norm_kernel<T, 1>
           : turns == 2 ? (const void *)norm_kernel<T, 2>
                        : (const void *)norm_kernel<T, MAX_TURNS>;
}

static void launch_norm(const struct cuda_launch *launch, struct norm_args *args, int rows)
{
    if (rows == 0)
        return;
    int units = args->n / 8;
    int turns = units <= 256 ? 1 : units <= 1024 ? 2 : MAX_TURNS; // two in flight hide latency
    int threads = ((units + turns - 1) / turns + 31) / 32 * 32;
    launch_kernel(launch,
                  launch->is_f16 ? kernel_of<__half>(turns) : kernel_of<__nv_bfloat16>(turns),
                  dim3((unsigned)rows), threads, 0, args);
}

void cuda_add_rms_norm(const struct cuda_launch *launch, void *out, const void *x, void *residual,
                       struct cuda_norm norm, int32_t rows, int32_t n)
{
    struct norm_args args = {out, x, residual, norm, n};
    launch_norm(launch, &args, rows);
}

void cuda_rms_norm(const struct cuda_launch *launch, void *out, const void *x,
                   struct cuda_norm norm, int32_t rows, int32_t n)
{
    struct norm_args args = {out, x, NULL, norm, n};
    launch_norm(launch, &args, rows);
}
