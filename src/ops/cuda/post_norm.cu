// Norms behind a block: its output is normalised, added to the residual stream, and the sum
// normalised again for the next block. A CTA per row; a thread comes back to the elements that it
// wrote itself, so that a row takes two reductions and no other barrier. The shape of the sums
// depends on the row's length alone.
#include "ops/cuda/common.cuh"

enum { MAX_THREADS = 512 };

struct post_norm_args {
    void *x, *residual;
    struct cuda_norm post, pre;
    int32_t n;
};

template <typename T> DEVICE float rounded(float v)
{
    return to_f32(from_f32<T>(v));
}

template <typename T, int UNIT>
static __global__ __launch_bounds__(MAX_THREADS) void post_norm_kernel(
    const __grid_constant__ struct post_norm_args a)
{
    __shared__ float partial[2][32];
    T *x = (T *)a.x + (size_t)blockIdx.x * a.n;
    T *residual = (T *)a.residual + (size_t)blockIdx.x * a.n;
    const int step = (int)blockDim.x * UNIT, first = (int)threadIdx.x * UNIT;
    float v[UNIT], w[UNIT], squares = 0;
    dependents_launch();
    dependency_wait();
    for (int at = first; at < a.n; at += step) {
        load_unit<UNIT>(v, x + at);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            squares += v[i] * v[i];
    }
    float scale = rsqrtf(block_sum(squares, partial[0]) / (float)a.n + a.post.eps);
    squares = 0;
    for (int at = first; at < a.n; at += step) {
        float sum[UNIT];
        load_unit<UNIT>(v, x + at);
        load_unit<UNIT>(w, (const T *)a.post.weight + at);
        load_unit<UNIT>(sum, residual + at);
#pragma unroll
        for (int i = 0; i < UNIT; i++) {
            // Both are rounded as they would be stored: readers see the same numbers.
            sum[i] = rounded<T>(sum[i] + rounded<T>(v[i] * scale * (a.post.offset + w[i])));
            squares += sum[i] * sum[i];
        }
        store_unit<UNIT>(residual + at, sum);
    }
    if (!a.pre.weight)
        return;
    scale = rsqrtf(block_sum(squares, partial[1]) / (float)a.n + a.pre.eps);
    for (int at = first; at < a.n; at += step) {
        load_unit<UNIT>(v, residual + at);
        load_unit<UNIT>(w, (const T *)a.pre.weight + at);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            v[i] = v[i] * scale * (a.pre.offset + w[i]);
        store_unit<UNIT>(x + at, v);
    }
}

template <typename T> static const void *kernel_of(bool is_vectors)
{
    return is_vectors ? (const void *)post_norm_kernel<T, 8> : (const void *)post_norm_kernel<T, 1>;
}

void cuda_add_post_norm(const struct cuda_launch *launch, void *x, void *residual,
                        struct cuda_norm post, struct cuda_norm pre, int32_t rows, int32_t n)
{
    if (rows == 0)
        return;
    struct post_norm_args args = {x, residual, post, pre, n};
    bool is_vectors = n % 8 == 0;
    int units = is_vectors ? n / 8 : n, threads = (units + 31) / 32 * 32;
    launch_kernel(launch,
                  launch->is_f16 ? kernel_of<__half>(is_vectors)
                                 : kernel_of<__nv_bfloat16>(is_vectors),
                  dim3((unsigned)rows), threads < MAX_THREADS ? threads : MAX_THREADS, 0, &args);
}
