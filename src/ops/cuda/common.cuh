// What the kernels share: asynchronous copies, matrix fragments, conversions, reductions, launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/cuda/kernels.h"

#define DEVICE static __device__ __forceinline__

constexpr float LOG2E = 1.44269504088896340736f;

// ---- Launches ------------------------------------------------------------------------------

/** Launches with programmatic stream serialisation: the grid may start before its predecessor ends,
 *  and waits for it in dependency_wait(). `args`: the kernel's one argument. */
static inline void launch_kernel(const struct cuda_launch *launch, const void *kernel, dim3 grid,
                                 int block, size_t smem, void *args, int cluster = 1)
{
    if (smem > 16 * 1024) // with what a kernel declares itself, 48 KiB are free of asking
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    cudaLaunchAttribute attrs[2] = {};
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeClusterDimension;
    attrs[1].val.clusterDim.x = (unsigned)cluster;
    attrs[1].val.clusterDim.y = attrs[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)block);
    config.dynamicSmemBytes = smem;
    config.stream = launch->stream;
    config.attrs = attrs;
    config.numAttrs = cluster > 1 ? 2 : 1;
    void *params[] = {args};
    cudaError_t status = cudaLaunchKernelExC(&config, kernel, params);
    if (status != cudaSuccess) { // shapes were checked before: a bug, and no result may come of it
        fprintf(stderr, "kernel launch failed: %s\n", cudaGetErrorString(status));
        abort();
    }
}

/** Until the grids before this one on the stream are done and their writes visible. Nothing that
 *  they write may be read, and nothing at all written, before it. */
DEVICE void dependency_wait()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/** Lets the next grid on the stream start its prologue as multiprocessors become free. */
DEVICE void dependents_launch()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- Copies to shared memory ---------------------------------------------------------------

DEVICE uint32_t smem_address(const void *ptr)
{
    return (uint32_t)__cvta_generic_to_shared(ptr);
}

/** 16 bytes; the ones past `num_valid` (0 or 16) become zero. */
DEVICE void cp_async16(uint32_t dst, const void *src, int num_valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(num_valid)
                 : "memory");
}

DEVICE void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> DEVICE void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/** Weights are read once: past L1. */
DEVICE uint4 load_streaming(const void *ptr)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(ptr));
    return v;
}

// ---- Tensor core fragments (PTX ISA, mma.m16n8k16) -----------------------------------------

DEVICE void ldmatrix_x4(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

DEVICE void ldmatrix_x4_trans(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

template <bool F16>
DEVICE void mma_16816(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                      uint32_t b1)
{
    if constexpr (F16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- Conversions ---------------------------------------------------------------------------

DEVICE uint32_t pack_bf16(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

DEVICE uint32_t pack_f16(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

template <bool F16> DEVICE uint32_t pack_half(float lo, float hi)
{
    return F16 ? pack_f16(lo, hi) : pack_bf16(lo, hi);
}

DEVICE float bf16_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

DEVICE float bf16_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

/** Whether T, the type of activations and weights (__nv_bfloat16 or __half), is the latter. */
template <typename T> constexpr bool IS_F16 = false;
template <> constexpr bool IS_F16<__half> = true;

DEVICE float to_f32(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

DEVICE float to_f32(__half v)
{
    return __half2float(v);
}

/** Rounded; what float16 cannot hold becomes its largest number. */
template <typename T> DEVICE T from_f32(float v)
{
    if constexpr (IS_F16<T>)
        return __ushort_as_half((unsigned short)pack_f16(v, 0.0f));
    else
        return __float2bfloat16(v);
}

/** Two elements in a word, the first in its lower half. */
template <typename T> DEVICE uint32_t pack_pair(float lo, float hi)
{
    return pack_half<IS_F16<T>>(lo, hi);
}

template <typename T> DEVICE float2 unpack_pair(uint32_t pair)
{
    if constexpr (IS_F16<T>)
        return __half22float2(*(const __half2 *)&pair);
    else
        return make_float2(bf16_low(pair), bf16_high(pair));
}

/** As f16; what that cannot hold becomes its largest number. */
template <typename T> DEVICE uint32_t pair_to_f16(uint32_t pair)
{
    if constexpr (IS_F16<T>)
        return pair;
    float2 v = unpack_pair<T>(pair);
    return pack_f16(v.x, v.y);
}

template <typename T> DEVICE void unpack8(uint4 v, float out[8])
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = unpack_pair<T>(words[i]);
        out[2 * i] = pair.x;
        out[2 * i + 1] = pair.y;
    }
}

template <typename T> DEVICE uint4 pack8(const float in[8])
{
    return make_uint4(pack_pair<T>(in[0], in[1]), pack_pair<T>(in[2], in[3]),
                      pack_pair<T>(in[4], in[5]), pack_pair<T>(in[6], in[7]));
}

DEVICE void unpack_bf16x8(uint4 v, float out[8])
{
    unpack8<__nv_bfloat16>(v, out);
}

DEVICE uint4 pack_bf16x8(const float in[8])
{
    return pack8<__nv_bfloat16>(in);
}

/** UNIT neighbouring elements: one access where rows consist of eights, else one by one. */
template <int UNIT, typename T> DEVICE void load_unit(float v[UNIT], const T *src)
{
    if constexpr (UNIT == 8)
        unpack8<T>(*(const uint4 *)src, v);
    else
        v[0] = to_f32(*src);
}

template <int UNIT, typename T> DEVICE void store_unit(T *dst, const float v[UNIT])
{
    if constexpr (UNIT == 8)
        *(uint4 *)dst = pack8<T>(v);
    else
        *dst = from_f32<T>(*v);
}

/** Two e4m3 numbers (low byte first) as f16x2; exact. */
DEVICE uint32_t e4m3x2_to_f16x2(uint16_t pair)
{
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(pair));
    return r;
}

DEVICE float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

DEVICE float silu(float x)
{
    return __fdividef(x, 1.0f + exp2_fast(-LOG2E * x));
}

/** x/2 (1 + tanh(y)) is x / (1 + e^(-2y)), which does not cancel where tanh is near -1. */
DEVICE float gelu_tanh(float x)
{
    float twice = 1.5957691216f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1.0f + exp2_fast(-LOG2E * twice));
}

// ---- Reductions ----------------------------------------------------------------------------

DEVICE float warp_sum(float v)
{
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

DEVICE float warp_max(float v)
{
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, i));
    return v;
}

/** Of all threads, in a fixed order. `shared`: 32 floats. Every thread gets the sum. */
DEVICE float block_sum(float v, float *shared)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f;
    return warp_sum(sum);
}

/** Of all threads. `shared`: 32 floats. Every thread gets the largest; none is below zero. */
DEVICE float block_max(float v, float *shared)
{
    v = warp_max(v);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f);
}

/** Inclusive prefix sum over the block; `warps` holds 32 words. */
DEVICE int block_prefix(int v, int *warps)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        int below = __shfl_up_sync(0xffffffffu, v, i);
        v += lane >= i ? below : 0;
    }
    if (lane == 31)
        warps[warp] = v;
    __syncthreads();
    int sum = warps[lane];
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        int below = __shfl_up_sync(0xffffffffu, sum, i);
        sum += lane >= i ? below : 0;
    }
    sum = __shfl_sync(0xffffffffu, sum, warp > 0 ? warp - 1 : 0);
    __syncthreads();
    return v + (warp > 0 ? sum : 0);
}
