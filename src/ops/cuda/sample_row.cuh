// What the ranks of a row's cluster keep while they choose its token: the row's logits, each rank
// its share, counters and what the ranks tell each other.
#pragma once

#include "ops/cuda/sample.cuh"

enum { SLICES_PER_NAT = 32, BINS = 1024, BINS_PER_RANK = BINS / CLUSTER };

static_assert(BINS_PER_RANK == 128, "a warp scans a rank's bins, four a lane");

/** What is kept: slices above `slice`, and in it keys from `key` on, of those equal to it the first
 *  `num_ties` by id. */
struct cut {
    int32_t slice;
    uint32_t key, num_ties;
};

constexpr uint32_t ALL_TIES = 0xffffffffu;

/** Where a running total reaches its target. bin -1: nowhere. */
struct crossing {
    int32_t bin;
    uint32_t count; // in the bin
    double before, mass;
};

struct block_memory {
    uint32_t count[BINS], mass_high[BINS], mass_low[BINS];
    uint32_t rank_count[BINS_PER_RANK];
    double rank_mass[BINS_PER_RANK];
    // Written by the other ranks, one entry each.
    struct ranked first[CLUSTER];
    uint32_t flags[CLUSTER]; // of the logits before the adjustments, bad ones after them too
    uint32_t num_ties[CLUSTER];
    double total[CLUSTER];
    struct crossing found;
    // Of this block's warps.
    struct ranked warp_first[SAMPLE_WARPS];
    double warp_total[SAMPLE_WARPS];
    uint32_t warp_ties[SAMPLE_WARPS];
};

/** One row's work on one rank. */
struct row_state {
    float *x; // [share] in shared memory
    struct block_memory *m;
    int32_t first_id, share, rank;
    float max, slices_per_logit; // slices_per_logit: SLICES_PER_NAT / temperature
    float floor; // what lies below is not kept: min-p's threshold, or near below a cut
    struct cut top_k, top_p;
};
