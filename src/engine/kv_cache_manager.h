// Block tables and prefix caching: which blocks hold the keys and values of a sequence.
//
// A sequence has one block table per cache group; entry i holds tokens [i * block_size, (i + 1) *
// block_size). All tables of a sequence have the same length. In a sliding-window group the entries
// that no later token can see become NO_BLOCK and their blocks go back to the pool.
//
// A full block is known by its place in a hash chain (block_hash.h).
//
// A block becomes findable when the step that writes it is decided (kv_cache_manager_cache()). That
// is safe because steps run in order and, within a step, a layer writes all its keys and values
// before it reads any.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "engine/block_pool.h"
#include "message/message.h"

struct block_table {
    int32_t *blocks; // the owner's memory
    int32_t len;
    int32_t num_freed;  // the first entries, which slid out of the window
    int32_t num_cached; // entries that were made findable or were found
};

/** What the manager knows of one sequence. Its arrays are the owner's, with room for the longest
 *  that the sequence can become. */
struct kv_sequence {
    struct block_table tables[MAX_KV_CACHE_GROUPS];
    const int32_t *token_ids;
    struct block_hash root; // parent of the first block
    // Of the first num_hashes full blocks, computed or not; they outlive a preemption.
    struct block_hash *hashes;
    int32_t num_hashes;
};

/** `= {0}` is a valid empty manager. */
struct kv_cache_manager {
    struct kv_cache_config config;
    struct block_pool pool;
    bool enable_prefix_caching;
    bool has_sliding;
    int32_t max_blocks;                         // table entries of the longest sequence
    int32_t sliding_caps[MAX_KV_CACHE_GROUPS];  // most blocks a sequence holds in such a group
    int32_t *found_blocks[MAX_KV_CACHE_GROUPS]; // of the last find_prefix()
    struct block_hasher hasher;
};

/**
 * `max_num_batched_tokens` bounds the tokens of a step and so, with the window, the blocks that a
 * sequence holds in a sliding group. `hash_algo` NONE: no prefix caching. `config` is copied; its
 * layer lists stay the caller's.
 */
void kv_cache_manager_init(struct kv_cache_manager *kv, const struct kv_cache_config *config,
                           int32_t max_model_len, int32_t max_num_batched_tokens,
                           enum block_hash_algo hash_algo);
void kv_cache_manager_deinit(struct kv_cache_manager *kv);

/** What stands before the first block: sequences with different salts share nothing. */
struct block_hash kv_cache_manager_root(const struct kv_cache_manager *kv, struct str cache_salt);

/** Hashes the full blocks of the first `num_tokens` tokens that are not hashed yet, so that no
 *  step has to. The tokens must be known; nothing is made findable. */
void kv_cache_manager_extend_hashes(struct kv_cache_manager *kv, struct kv_sequence *sequence,
                                    int32_t num_tokens);

/** Blocks that a sequence of so many tokens holds at most, over all groups. */
int64_t kv_cache_manager_blocks_needed(const struct kv_cache_manager *kv, int64_t num_tokens);

/**
 * Looks for the longest cached prefix of the first `num_tokens` tokens that all groups have, and
 * leaves at least the last token to compute. Takes nothing. Returns its tokens, a multiple of the
 * block size; the blocks are remembered for the kv_cache_manager_allocate() that follows.
 */
int32_t kv_cache_manager_find_prefix(struct kv_cache_manager *kv, struct kv_sequence *sequence,
                                     int32_t num_tokens);

struct kv_demand {
    int32_t num_computed_tokens;  // whose blocks the sequence holds, those in flight included
    int32_t num_in_flight_tokens; // the last of them, whose steps may still read what they see
    int32_t num_found_tokens;     // what find_prefix() said just before, for a sequence without any
    int32_t num_new_tokens;       // to compute in this step
    int32_t num_reserved_tokens;  // a length that must fit as a whole; 0: none
    int32_t watermark_blocks;     // must stay free
};

/**
 * Gives the sequence the blocks for its next tokens, the found ones first, after freeing what slid
 * out of the windows. False, and nothing else changed, when they are not there.
 */
bool kv_cache_manager_allocate(struct kv_cache_manager *kv, struct kv_sequence *sequence,
                               const struct kv_demand *demand);

/** Makes the full blocks of the first `num_tokens` tokens findable. Call it when the step that
 *  computes them is certain to run. */
void kv_cache_manager_cache(struct kv_cache_manager *kv, struct kv_sequence *sequence,
                            int32_t num_tokens);

/** Gives all blocks back. `forget`: their values are not to be trusted, nobody shall find them. */
void kv_cache_manager_free(struct kv_cache_manager *kv, struct kv_sequence *sequence, bool forget);

/** Makes a sequence that holds no blocks unfindable: the values of those it had are not to be
 *  trusted. */
void kv_cache_manager_forget(struct kv_cache_manager *kv, const struct kv_sequence *sequence);

/** Forgets every cached prefix. False while blocks are in use. */
bool kv_cache_manager_reset_prefix_cache(struct kv_cache_manager *kv);
