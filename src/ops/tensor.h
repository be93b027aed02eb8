// A view of memory as an array of numbers: dtype, shape, distance between rows.
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

enum { MAX_DIMS = 4 };

/** Row-major; elements of a row lie side by side. Passed by value; owns nothing. */
struct tensor {
    void *data; // memory of the device that the tensor is used with
    enum dtype dtype;
    int32_t ndim;
    int64_t shape[MAX_DIMS];
    int64_t row_stride; // of a 2-d tensor: elements from one row to the next
};

static inline struct tensor tensor_1d(void *data, enum dtype dtype, int64_t n)
{
    return (struct tensor){data, dtype, 1, {n}, n};
}

static inline struct tensor tensor_2d(void *data, enum dtype dtype, int64_t rows, int64_t cols)
{
    return (struct tensor){data, dtype, 2, {rows, cols}, cols};
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
    t.data = (char *)t.data + (size_t)(start * t.row_stride) * dtype_size(t.dtype);
    t.shape[0] = count;
    return t;
}

/** Columns [start, start + count) of a 2-d tensor. */
static inline struct tensor tensor_columns(struct tensor t, int64_t start, int64_t count)
{
    assert(t.ndim == 2 && start >= 0 && count >= 0 && start + count <= t.shape[1]);
    t.data = (char *)t.data + (size_t)start * dtype_size(t.dtype);
    t.shape[1] = count;
    return t;
}

/** Whether the rows of a 2-d tensor lie side by side. */
static inline bool tensor_is_dense(struct tensor t)
{
    return t.row_stride == t.shape[1];
}
