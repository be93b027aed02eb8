// Heap memory whose failure ends the process with a message, and arithmetic on sizes that checks.
//
// Sizes that come from outside are bounded before anything is allocated; what remains is running
// out of memory for good, which no caller could mend.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/** malloc, calloc, realloc, strndup that never return NULL. The caller frees with free(). */
void *xmalloc(size_t size_bytes);
void *xcalloc(size_t count, size_t size_bytes);
void *xrealloc(void *ptr, size_t size_bytes);

/** As xcalloc(), at a multiple of `alignment`, a power of two that divides `size_bytes`. */
void *xcalloc_aligned(size_t count, size_t size_bytes, size_t alignment);
char *xstrdup(const char *text);
char *xstrndup(const char *text, size_t len);

/** `*out = a * b` or false on overflow. */
static inline NODISCARD bool size_mul(size_t *out, size_t a, size_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}

/** `*out = a + b` or false on overflow. */
static inline NODISCARD bool size_add(size_t *out, size_t a, size_t b)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static inline int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/** ceil(a / b) for a >= 0, b > 0. */
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))
