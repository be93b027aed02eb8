// Bulk conversion between float32, float16 and bfloat16, and random values in place of weights;
// both spread over OpenMP's threads.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/str.h"

#define DUMMY_F8_SCALE (1.0f / (32 * 448))

/** Writes `count` values of `src` (any alignment) to `dst`, rounded to nearest even. False if a
 *  finite value became infinite. Both dtypes: F32, F16, BF16. */
NODISCARD bool convert_values(void *dst, enum dtype dst_dtype, const void *src,
                              enum dtype src_dtype, size_t count);

/**
 * Made-up values of the parameter called `name`: the same for the same name, whatever the number of
 * threads. Norm weights are 1, all others one of 256 values spread evenly over [-1/32, 1/32], so
 * that activations stay in a natural range; of F8_E4M3 those values times DUMMY_F8_SCALE are.
 */
void dummy_values(void *dst, enum dtype dtype, size_t count, struct str name);

/** What they are made from: element i of eight that begin at a multiple of eight, e, is the level
 *  that byte i of mix(key + e) picks. Elements of F8_E4M3 are made in pairs. */
struct dummy_source {
    uint64_t key;
    char levels[256 * sizeof(float)]; // as elements of the dtype
};
struct dummy_source dummy_source(enum dtype dtype, struct str name);
