// Bulk conversion between float32, float16 and bfloat16, and random values in place of weights;
// both spread over OpenMP's threads.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/dtype.h"
#include "base/str.h"

/** Writes `count` values of `src` (any alignment) to `dst`, rounded to nearest even. False if a
 *  finite value became infinite. Both dtypes: F32, F16, BF16. */
NODISCARD bool convert_values(void *dst, enum dtype dst_dtype, const void *src,
                              enum dtype src_dtype, size_t count);

/**
 * Made-up values of the parameter called `name`: the same for the same name, whatever the number of
 * threads. Norm weights are 1, all others one of 256 values spread evenly over [-1/32, 1/32], so
 * that activations stay in a natural range.
 */
void dummy_values(void *dst, enum dtype dtype, size_t count, struct str name);
