// Which cores OpenMP's threads run on (VLLM_CPU_OMP_THREADS_BIND).
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/** How many threads compute, and where. */
struct cpu_threads {
    int32_t num_threads;
    bool is_bound;      // to the cores below
    bool is_one_a_core; // thread i to the i-th core; else every thread to the whole set
    int32_t cores[CPU_SETSIZE];
    int32_t num_cores;
};

/**
 * Reads a binding: "auto" (or NULL) is one thread for each physical core of one NUMA node, all of
 * them free to move within it, and no more threads than the container's CPU quota pays for;
 * "nobind" leaves both to OpenMP; else a list of cores such as "0-3,8", one thread a core ("|"
 * separates ranks; `rank`'s part counts). Errors: INVALID (malformed; a core that this process may
 * not use; no part for the rank).
 */
NODISCARD enum status cpu_threads_parse(struct cpu_threads *threads, const char *binding,
                                        int32_t rank, struct error *err);

/** Starts OpenMP's threads and binds them, the calling one included. Errors: IO. */
NODISCARD enum status cpu_threads_start(const struct cpu_threads *threads, struct error *err);
