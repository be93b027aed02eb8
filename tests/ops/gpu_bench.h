// What the tests of the CUDA backend's operations share: a GPU, the CPU backend to compare with,
// numbers, and their way there and back. Inputs are rounded to the activations' type first, so that
// only the operation's own rounding is left: a unit in the last of bfloat16's 8 bits (2^-8
// relative) or of float16's 11, and what float32 sums differ.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "ops/ops.h"

static const float eps = 1e-6f; // of norms

/** The GPU, the reference, and what the two share. */
struct bench {
    struct device gpu, cpu;
    uint64_t random;
    struct arena arena;
};

/** `*state` becomes a bench whose activations are of `dtype`; NULL where there is no GPU. `random`
 *  begins the numbers. */
static inline int start_bench(void **state, enum dtype dtype, enum cpu_isa isa, int32_t num_threads,
                              uint64_t random)
{
    static struct bench bench;
    *state = NULL;
    if (!cuda_is_available())
        return 0;
    struct error err = {0};
    bench = (struct bench){.random = random};
    if (cuda_device_init(&bench.gpu, 2, &err) != STATUS_OK ||
        cpu_device_init(&bench.cpu, isa, num_threads, &err) != STATUS_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    bench.gpu.activation_dtype = dtype;
    *state = &bench;
    return 0;
}

static inline int stop_bench(void **state)
{
    struct bench *b = *state;
    if (b) {
        device_deinit(&b->gpu);
        device_deinit(&b->cpu);
        arena_deinit(&b->arena);
    }
    return 0;
}

static inline int start_bf16(void **state)
{
    return start_bench(state, DTYPE_BF16, CPU_ISA_SCALAR, 0, 7);
}

static inline int start_f16(void **state)
{
    return start_bench(state, DTYPE_F16, CPU_ISA_SCALAR, 0, 7);
}

/** The group of `tests` in bfloat16, then in float16; returns how many failed. */
#define run_in_both_types(tests)                                              \
    (cmocka_run_group_tests_name("bfloat16", tests, start_bf16, stop_bench) + \
     cmocka_run_group_tests_name("float16", tests, start_f16, stop_bench))

/** The bench, or a skipped test that says why. */
static inline struct bench *bench_of(void **state)
{
    if (!*state) {
        print_message("no GPU, or no driver, on this machine\n");
        skip();
    }
    return *state;
}

// ---- Numbers -------------------------------------------------------------------------------

/** From [0, 1). */
static inline double uniform(struct bench *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(b->random >> 40) / (1 << 24);
}

/** Of one result of the activations' type, relative. */
static inline double rounding(const struct bench *b)
{
    return b->gpu.activation_dtype == DTYPE_F16 ? 1.0 / 2048 : 1.0 / 256;
}

static inline uint16_t to_bits(const struct bench *b, float x)
{
    return b->gpu.activation_dtype == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

static inline float from_bits(const struct bench *b, uint16_t bits)
{
    return b->gpu.activation_dtype == DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

static inline float rounded(const struct bench *b, float x)
{
    return from_bits(b, to_bits(b, x));
}

/** The form of weights in the activations' type. */
static inline enum weight_form form_of(const struct bench *b)
{
    return b->gpu.activation_dtype == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_BF16;
}

/** Roughly normal numbers that the activations' type holds. */
static inline float *randoms(struct bench *b, int64_t n)
{
    float *x = arena_array(&b->arena, float, n + 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = rounded(b, (float)(uniform(b) + uniform(b) + uniform(b) - 1.5) * 2);
    return x;
}

/** For results: what an operation forgets to write shows. */
static inline float *floats(struct bench *b, int64_t n)
{
    float *x = arena_array(&b->arena, float, n + 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = NAN;
    return x;
}

/** |a - b| <= relative * |b| + absolute. */
static inline void assert_close(const float *a, const float *b, int64_t n, double relative,
                                double absolute, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs((double)a[i] - b[i]) <= relative * fabs((double)b[i]) + absolute))
            fail_msg("%s: element %ld is %.9g, expected %.9g", what, (long)i, (double)a[i],
                     (double)b[i]);
    }
}

// ---- Copies --------------------------------------------------------------------------------

static inline void *to_gpu(struct bench *b, const void *data, size_t size_bytes)
{
    void *ptr = b->gpu.ops.alloc(&b->gpu, size_bytes);
    assert_non_null(ptr);
    b->gpu.ops.copy_in(&b->gpu, ptr, data, size_bytes);
    return ptr;
}

static inline uint16_t *bits_of(struct bench *b, const float *x, int64_t n)
{
    uint16_t *bits = arena_array(&b->arena, uint16_t, n + 1);
    for (int64_t i = 0; i < n; i++)
        bits[i] = to_bits(b, x[i]);
    return bits;
}

static inline void *rounded_to_gpu(struct bench *b, const float *x, int64_t n)
{
    return to_gpu(b, bits_of(b, x, n), (size_t)n * sizeof(uint16_t));
}

static inline struct tensor matrix_to_gpu(struct bench *b, const float *x, int64_t rows,
                                          int64_t cols)
{
    return tensor_2d(rounded_to_gpu(b, x, rows * cols), b->gpu.activation_dtype, rows, cols);
}

/** What all operations so far have left there. */
static inline void copy_from_gpu(struct bench *b, void *dst, const void *src, size_t size_bytes)
{
    struct error err = {0};
    if (b->gpu.ops.synchronize(&b->gpu, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    b->gpu.ops.copy_out(&b->gpu, dst, src, size_bytes);
}

/** All that lies between a tensor's rows as well, as float32. */
static inline float *from_gpu(struct bench *b, struct tensor t)
{
    int64_t n = t.shape[0] * t.row_stride;
    float *x = arena_array(&b->arena, float, n + 1);
    if (t.dtype == DTYPE_F32) {
        copy_from_gpu(b, x, t.data, (size_t)n * sizeof(float));
        return x;
    }
    uint16_t *bits = arena_array(&b->arena, uint16_t, n + 1);
    copy_from_gpu(b, bits, t.data, (size_t)n * sizeof(*bits));
    for (int64_t i = 0; i < n; i++)
        x[i] = from_bits(b, bits[i]);
    return x;
}

/** The next `n` words of 32 bits. */
static inline int32_t *words_from_gpu(struct bench *b, const int32_t *words, int64_t n)
{
    int32_t *copy = arena_array(&b->arena, int32_t, n + 1);
    copy_from_gpu(b, copy, words, (size_t)n * sizeof(*copy));
    return copy;
}

static inline void release(struct bench *b, const void *ptr)
{
    b->gpu.ops.free(&b->gpu, (void *)(uintptr_t)ptr);
}
