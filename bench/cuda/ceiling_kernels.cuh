// What a GPU's memory can do at most: kernels that only read, only copy, and that fill memory with
// numbers that cost what a model's do.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

static __global__ void read_kernel(const uint4 *src, size_t n, uint32_t *sink)
{
    uint32_t sum = 0;
    size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (; at < n; at += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = at + i * step < n ? __ldcs(src + at + i * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x12345678u)
        *sink = sum;
}

static __global__ void copy_kernel(uint4 *dst, const uint4 *src, size_t n)
{
    size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (; at < n; at += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = at + i * step < n ? __ldcs(src + at + i * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (at + i * step < n)
                __stcs(dst + at + i * step, v[i]);
    }
}

static __global__ void random_kernel(uint32_t *dst, size_t n)
{
    size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; at < n; at += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)at * 2654435761u;
        x = (x ^ x >> 15) * 2246822519u;
        x ^= x >> 13;
        dst[at] = (x & 0x807f807fu) | 0x3c803c80u; // two bf16 of ±0.016 to ±0.031
    }
}
