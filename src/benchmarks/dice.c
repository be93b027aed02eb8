#include "benchmarks/dice.h"

#include <math.h>

struct dice dice_make(uint64_t seed)
{
    struct dice dice;
    for (int i = 0; i < 4; i++) { // splitmix64 spreads the seed over the state
        seed += UINT64_C(0x9E3779B97F4A7C15);
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
        dice.state[i] = z ^ (z >> 31);
    }
    return dice;
}

static uint64_t rotate(uint64_t x, int bits)
{
    return (x << bits) | (x >> (64 - bits));
}

uint64_t dice_u64(struct dice *dice)
{
    uint64_t *s = dice->state;
    uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

int64_t dice_below(struct dice *dice, int64_t bound)
{
    // The high half of a 128-bit product; the bias of 2^-40 for these bounds matters to nobody.
    return (int64_t)(((unsigned __int128)dice_u64(dice) * (uint64_t)bound) >> 64);
}

int64_t dice_between(struct dice *dice, int64_t low, int64_t high)
{
    return low + dice_below(dice, high - low + 1);
}

double dice_real(struct dice *dice)
{
    return ((double)(dice_u64(dice) >> 11) + 0.5) * 0x1p-53;
}

/** Box and Muller's method, one of the two values. */
static double normal(struct dice *dice)
{
    double radius = sqrt(-2 * log(dice_real(dice)));
    return radius * cos(2 * M_PI * dice_real(dice));
}

double dice_gamma(struct dice *dice, double shape)
{
    if (shape < 1) // a larger shape, scaled down
        return dice_gamma(dice, shape + 1) * pow(dice_real(dice), 1 / shape);
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(dice), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        if (log(dice_real(dice)) < 0.5 * x * x + d - d * v + d * log(v))
            return d * v;
    }
}
