// Repeatable random numbers: the same seed gives the same prompts and arrival times on any machine.
#pragma once

#include <stdint.h>

/** xoshiro256** (Blackman and Vigna 2018). */
struct dice {
    uint64_t state[4];
};

struct dice dice_make(uint64_t seed);
uint64_t dice_u64(struct dice *dice);

/** Uniform in [0, bound), bound >= 1. */
int64_t dice_below(struct dice *dice, int64_t bound);

/** Uniform in [low, high]. */
int64_t dice_between(struct dice *dice, int64_t low, int64_t high);

/** Uniform in (0, 1). */
double dice_real(struct dice *dice);

/** Gamma-distributed with scale 1 and shape > 0 (Marsaglia and Tsang 2000). */
double dice_gamma(struct dice *dice, double shape);
