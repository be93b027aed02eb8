// Clocks.
#pragma once

#include <stdint.h>

/** CLOCK_MONOTONIC in nanoseconds; the same clock in every process of the host. */
int64_t clock_monotonic_ns(void);

/** Wall clock (CLOCK_REALTIME) in nanoseconds since 1970. */
int64_t clock_wall_ns(void);
