// A view of memory as an array of numbers: dtype, shape, contiguous rows.
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

enum { MAX_DIMS = 4 };

/** Row-major and dense. Passed by value; owns nothing. */
struct tensor {
    void *data; // memory of the device that the tensor is used with
    enum dtype dtype;
    int32_t ndim;
    int64_t shape[MAX_DIMS];
};

static inline struct tensor tensor_1d(void *data, enum dtype dtype, int64_t n)
{
    return (struct tensor){data, dtype, 1, {n}};
}

static inline struct tensor tensor_2d(void *data, enum dtype dtype, int64_t rows, int64_t cols)
{
    return (struct tensor){data, dtype, 2, {rows, cols}};
}

static inline int64_t tensor_numel(struct tensor t)
{
    int64_t n = 1;
    for (int32_t i = 0; i < t.ndim; i++)
        n *= t.shape[i];
    return n;
}

static inline size_t tensor_bytes(struct tensor t)
{
    return (size_t)tensor_numel(t) * dtype_size(t.dtype);
}

static inline bool tensor_same_shape(struct tensor a, struct tensor b)
{
    if (a.ndim != b.ndim)
        return false;
    for (int32_t i = 0; i < a.ndim; i++) {
        if (a.shape[i] != b.shape[i])
            return false;
    }
    return true;
}

/** Rows [start, start + count) of a 2-d tensor. */
static inline struct tensor tensor_rows(struct tensor t, int64_t start, int64_t count)
{
    assert(t.ndim == 2 && start >= 0 && count >= 0 && start + count <= t.shape[0]);
    t.data = (char *)t.data + (size_t)(start * t.shape[1]) * dtype_size(t.dtype);
    t.shape[0] = count;
    return t;
}
