// Between e4m3 and the type of activations: activations are quantised for products on tensor cores
// of eight bits, weights are written out in full where there are none for their shape.
#include "ops/cuda/common.cuh"

enum { THREADS = 256, GROUP = 128, GROUP_UNITS = GROUP / 8, BLOCK = 128 };
constexpr float MAX_E4M3 = 448.0f;
// The smallest scales: of a row as vLLM has it, of a group so that nothing is divided by zero.
constexpr float MIN_ROW_SCALE = 1.0f / (MAX_E4M3 * 512.0f), MIN_GROUP_MAX = 1e-10f;

DEVICE float magnitude8(const float v[8])
{
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        largest = fmaxf(largest, fabsf(v[i]));
    return largest;
}

/** Eight numbers to nearest even, those beyond 448 as 448. */
DEVICE uint2 pack_e4m3x8(const float v[8], float factor)
{
    uint32_t words[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t lo = __nv_cvt_float2_to_fp8x2(
            make_float2(v[4 * i] * factor, v[4 * i + 1] * factor), __NV_SATFINITE, __NV_E4M3);
        uint32_t hi = __nv_cvt_float2_to_fp8x2(
            make_float2(v[4 * i + 2] * factor, v[4 * i + 3] * factor), __NV_SATFINITE, __NV_E4M3);
        words[i] = lo | hi << 16;
    }
    return make_uint2(words[0], words[1]);
}

/** A CTA for each row; it is read twice, the second time from the first-level cache. */
template <typename T>
static __global__
__launch_bounds__(THREADS) void quantize_rows(const __grid_constant__ struct f8_quantize_args a)
{
    __shared__ float partial[32];
    size_t row = blockIdx.x;
    const uint4 *x = (const uint4 *)((const T *)a.x + row * a.k);
    uint2 *out = (uint2 *)((char *)a.out + row * a.k);
    float scale = a.scale, v[8];
    dependents_launch();
    dependency_wait();
    if (scale == 0) {
        float largest = 0;
        for (int at = (int)threadIdx.x; at < a.k / 8; at += THREADS) {
            unpack8<T>(x[at], v);
            largest = fmaxf(largest, magnitude8(v));
        }
        largest = block_max(largest, partial);
        scale = fmaxf(largest / MAX_E4M3, MIN_ROW_SCALE);
    }
    float factor = 1.0f / scale;
    for (int at = (int)threadIdx.x; at < a.k / 8; at += THREADS) {
        unpack8<T>(x[at], v);
        out[at] = pack_e4m3x8(v, factor);
    }
    if (threadIdx.x == 0)
        a.scales[row] = scale;
}

/** Sixteen lanes for each group of a row. */
template <typename T>
static __global__
__launch_bounds__(THREADS) void quantize_groups(const __grid_constant__ struct f8_quantize_args a)
{
    int64_t num_groups = (a.k + GROUP - 1) / GROUP;
    int64_t at = (int64_t)blockIdx.x * (THREADS / GROUP_UNITS) + threadIdx.x / GROUP_UNITS;
    int64_t row = at / num_groups, group = at % num_groups;
    int unit = (int)group * GROUP_UNITS + (int)threadIdx.x % GROUP_UNITS;
    bool is_inside = row < a.rows && unit < a.k / 8;
    float v[8] = {};
    dependents_launch();
    dependency_wait();
    if (is_inside)
        unpack8<T>(((const uint4 *)((const T *)a.x + row * a.k))[unit], v);
    float largest = magnitude8(v);
#pragma unroll
    for (int i = GROUP_UNITS / 2; i > 0; i >>= 1)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, i));
    float scale = fmaxf(largest, MIN_GROUP_MAX) / MAX_E4M3;
    if (is_inside)
        ((uint2 *)((char *)a.out + row * a.k))[unit] = pack_e4m3x8(v, 1.0f / scale);
    if (row < a.rows && threadIdx.x % GROUP_UNITS == 0)
        a.scales[group * a.scale_pitch + row] = scale;
}

void f8_quantize(const struct cuda_launch *launch, const struct f8_quantize_args *args)
{
    struct f8_quantize_args copy = *args;
    const void *rows = launch->is_f16 ? (const void *)quantize_rows<__half>
                                      : (const void *)quantize_rows<__nv_bfloat16>;
    const void *groups = launch->is_f16 ? (const void *)quantize_groups<__half>
                                        : (const void *)quantize_groups<__nv_bfloat16>;
    int64_t num_groups = (int64_t)args->rows * ((args->k + GROUP - 1) / GROUP);
    int64_t per_cta = THREADS / GROUP_UNITS;
    if (args->rows == 0)
        return;
    if (args->is_grouped)
        launch_kernel(launch, groups, dim3((unsigned)((num_groups + per_cta - 1) / per_cta)),
                      THREADS, 0, &copy);
    else
        launch_kernel(launch, rows, dim3((unsigned)args->rows), THREADS, 0, &copy);
}

struct dequantize_args {
    void *out;
    const uint8_t *weight;
    struct f8_scales scales;
    int64_t first, k, total; // total: units of all rows
};

template <typename T, int UNIT>
static __global__
__launch_bounds__(THREADS) void dequantize_kernel(const __grid_constant__ struct dequantize_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    dependents_launch();
    dependency_wait(); // `out` may still be read
    if (at >= a.total)
        return;
    int64_t row = a.first + at / (a.k / UNIT), col = at % (a.k / UNIT) * UNIT;
    const uint8_t *from = a.weight + row * a.k + col;
    float scale = a.scales.pitch > 0 ? a.scales.values[row / BLOCK * a.scales.pitch + col / BLOCK]
                                     : a.scales.values[row];
    float v[UNIT];
    if constexpr (UNIT == 8) {
        uint2 stored = *(const uint2 *)from;
        const uint32_t words[2] = {stored.x, stored.y};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t pair = e4m3x2_to_f16x2((uint16_t)(words[i / 2] >> i % 2 * 16));
            float2 two = unpack_pair<__half>(pair);
            v[2 * i] = two.x * scale;
            v[2 * i + 1] = two.y * scale;
        }
    } else {
        v[0] = unpack_pair<__half>(e4m3x2_to_f16x2(*from)).x * scale;
    }
    store_unit<UNIT>((T *)a.out + at * UNIT, v);
}

void f8_dequantize(const struct cuda_launch *launch, void *out, const void *weight,
                   struct f8_scales scales, int64_t first, int64_t rows, int64_t k)
{
    bool is_by_eight = k % 8 == 0;
    struct dequantize_args args = {out, (const uint8_t *)weight,         scales, first,
                                   k,   rows * k / (is_by_eight ? 8 : 1)};
    const void *f16 = is_by_eight ? (const void *)dequantize_kernel<__half, 8>
                                  : (const void *)dequantize_kernel<__half, 1>;
    const void *bf16 = is_by_eight ? (const void *)dequantize_kernel<__nv_bfloat16, 8>
                                   : (const void *)dequantize_kernel<__nv_bfloat16, 1>;
    if (args.total > 0)
        launch_kernel(launch, launch->is_f16 ? f16 : bf16,
                      dim3((unsigned)((args.total + THREADS - 1) / THREADS)), THREADS, 0, &args);
}
