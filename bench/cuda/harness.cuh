// What the check and the bench share: device memory, seeded random numbers, error handling.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/cuda/kernels.h"

#define CUDA_CHECK(call)                                                  \
    do {                                                                  \
        cudaError_t status_ = (call);                                     \
        if (status_ != cudaSuccess) {                                     \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                    cudaGetErrorString(status_));                         \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

static inline void *device_alloc(size_t size_bytes)
{
    void *ptr;
    CUDA_CHECK(cudaMalloc(&ptr, size_bytes));
    return ptr;
}

/** Device memory of all ones: NaN as bf16 and as f32. */
static inline void *device_poisoned(size_t size_bytes)
{
    void *ptr = device_alloc(size_bytes);
    CUDA_CHECK(cudaMemset(ptr, 0xff, size_bytes));
    return ptr;
}

static inline void *device_zeroed(size_t size_bytes)
{
    void *ptr = device_alloc(size_bytes);
    CUDA_CHECK(cudaMemset(ptr, 0, size_bytes));
    return ptr;
}

static inline void *device_copy_of(const void *host, size_t size_bytes)
{
    void *ptr = device_alloc(size_bytes > 0 ? size_bytes : 1);
    CUDA_CHECK(cudaMemcpy(ptr, host, size_bytes, cudaMemcpyHostToDevice));
    return ptr;
}

static inline void copy_back(void *host, const void *device, size_t size_bytes)
{
    CUDA_CHECK(cudaMemcpy(host, device, size_bytes, cudaMemcpyDeviceToHost));
}

/** splitmix64. */
static inline uint64_t random_word(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline double random_uniform(uint64_t *state)
{
    return (double)(random_word(state) >> 11) * 0x1p-53;
}

/** Roughly normal: mean 0, deviation 1. */
static inline float random_normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 6; i++)
        sum += random_uniform(state) - 0.5;
    return (float)(sum * 1.41421356);
}

static inline float bf16_round(float x)
{
    return __bfloat162float(__float2bfloat16(x));
}

/** `n` bf16 numbers on the device and, rounded alike, as floats on the host (freed by the caller).
 */
struct bf16_array {
    __nv_bfloat16 *device;
    float *host;
};

static inline struct bf16_array random_bf16(size_t n, float deviation, uint64_t *state)
{
    struct bf16_array a;
    __nv_bfloat16 *bits = (__nv_bfloat16 *)malloc(n * sizeof(*bits));
    a.host = (float *)malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        bits[i] = __float2bfloat16(random_normal(state) * deviation);
        a.host[i] = __bfloat162float(bits[i]);
    }
    a.device = (__nv_bfloat16 *)device_copy_of(bits, n * sizeof(*bits));
    free(bits);
    return a;
}

static inline void free_bf16(struct bf16_array a)
{
    cudaFree(a.device);
    free(a.host);
}

/** Numbers of the activations' type on the device and, rounded alike, as floats on the host. */
struct element_array {
    void *device;
    float *host;
};

static inline float element_value(const void *bits, size_t i, bool is_f16)
{
    return is_f16 ? __half2float(((const __half *)bits)[i])
                  : __bfloat162float(((const __nv_bfloat16 *)bits)[i]);
}

static inline void store_element(void *bits, size_t i, float x, bool is_f16)
{
    if (is_f16)
        ((__half *)bits)[i] = __float2half(x);
    else
        ((__nv_bfloat16 *)bits)[i] = __float2bfloat16(x);
}

static inline struct element_array random_elements(const struct cuda_launch *launch, size_t n,
                                                   float deviation, uint64_t *seed)
{
    struct element_array a;
    uint16_t *bits = (uint16_t *)malloc(n * sizeof(*bits));
    a.host = (float *)malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        store_element(bits, i, random_normal(seed) * deviation, launch->is_f16);
        a.host[i] = element_value(bits, i, launch->is_f16);
    }
    a.device = device_copy_of(bits, n * sizeof(*bits));
    free(bits);
    return a;
}

static inline void free_elements(struct element_array a)
{
    cudaFree(a.device);
    free(a.host);
}

/** The larger error; not a number is the largest, and stays. */
static inline double worse_of(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}
