#include "benchmarks/arrival.h"

#include <math.h>

#include "benchmarks/dice.h"

static double rate_of(const struct bench_options *o, int32_t i, int32_t num)
{
    double share = num > 1 ? (double)i / (num - 1) : 0;
    double start = o->ramp_up_start_rps, end = o->ramp_up_end_rps;
    switch (o->ramp_up) {
    case RAMP_UP_LINEAR:
        return start + (end - start) * share;
    case RAMP_UP_EXPONENTIAL:
        return start * pow(end / start, share);
    case RAMP_UP_NONE:
        break;
    }
    return o->request_rate;
}

void arrival_times(const struct bench_options *o, int32_t num, double *times_s)
{
    struct dice dice = dice_make((uint64_t)o->seed ^ UINT64_C(0xA441BA1));
    double at = 0;
    for (int32_t i = 0; i < num; i++) {
        double rate = rate_of(o, i, num);
        // A ramp that begins at 0 per second: its first request opens it.
        bool at_once = isinf(rate) || rate <= 0;
        at += at_once ? 0 : dice_gamma(&dice, o->burstiness) / (rate * o->burstiness);
        times_s[i] = at;
    }
    if (o->ramp_up != RAMP_UP_NONE || isinf(o->request_rate) || at <= 0)
        return;
    double stretch = num / o->request_rate / at;
    for (int32_t i = 0; i < num; i++)
        times_s[i] *= stretch;
}
