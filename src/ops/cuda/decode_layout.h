// What a decode plan looks like in memory, for the kernels that write and read it and for the C
// code that makes room for it.
#pragma once

#include <stdint.h>

enum {
    CUDA_PAGE = 16,   // tokens of the cache that the attention kernels load at a time
    DECODE_WARPS = 4, // of a CTA, which take pages in turn
};

/** A part of one sequence's keys that one CTA of decoding attention reads. */
struct decode_segment {
    int32_t seq, page_begin, page_end, num_keys;
    int32_t first_key; // of the window
    int32_t slot, first_slot, num_slots;
};

// A plan's memory: the number of segments, the first segment of each CTA, one end, padding to 8
// words; then the segments. A macro, since host and device code use it.
#define DECODE_PLAN_HEADER_WORDS(num_ctas) (((num_ctas) + 2 + 7) / 8 * 8)

// Scratch: a counter for each sequence and head, a log-sum for each slot and head, then, from this
// word on and aligned to 16 bytes, the slots' sums.
#define DECODE_SUMS_OFFSET(max_seqs, num_ctas, num_heads) \
    (((2 * (size_t)(max_seqs) + (size_t)(num_ctas)) * (size_t)(num_heads) + 3) / 4 * 4)

#ifdef __cplusplus
extern "C" {
#endif

/** Groups of 16 query heads of a kv head. */
int32_t decode_row_groups(int32_t num_heads, int32_t num_kv_heads);

#ifdef __cplusplus
}
#endif
