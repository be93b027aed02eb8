// Which layers share a block table, and how many blocks a request needs.
//
// Layers that see everything and layers that see a window keep different blocks, so each group
// holds layers of one kind. All groups draw from one pool whose blocks have room for
// layers_per_group layers.
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "message/message.h"

/**
 * Fills num_groups, groups and layers_per_group. `windows`: [num_layers], 0 for full attention; a
 * window of `max_model_len` or more counts as full. The layer lists are one allocation, freed by
 * layer_groups_deinit(). Errors: UNSUPPORTED (more kinds of layers than groups).
 */
NODISCARD enum status layer_groups_init(struct kv_cache_config *kv_cache, const int32_t *windows,
                                        int32_t num_layers, int32_t max_model_len,
                                        struct error *err);
void layer_groups_deinit(struct kv_cache_config *kv_cache);

/** Blocks that one request of `len` tokens holds at most, over all groups, when a step computes
 *  up to `max_num_batched_tokens` of them. Never falls when `len` grows. */
int64_t layer_groups_blocks(const struct kv_cache_config *kv_cache, int32_t len,
                            int32_t max_num_batched_tokens);

/** The longest request that fits into `num_blocks`, at most `max_len`; 0: none does. */
int32_t layer_groups_longest(const struct kv_cache_config *kv_cache, int64_t num_blocks,
                             int32_t max_len, int32_t max_num_batched_tokens);
