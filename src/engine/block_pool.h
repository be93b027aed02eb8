// The KV cache's blocks: who holds them, which are free, which hold a known prefix.
//
// A block is in use (ref_count > 0) or in the free list, never both. A block that holds a full
// block of known tokens carries their hash and can be found by it, in use or free; allocating it
// for something else makes it forget. The free list is in order of reuse: blocks without a hash at
// its head, blocks with one behind them, least recently used first.
//
// All arrays are sized at start. Who holds a block decides what other requests read, so the counts
// are CHECKed in release builds too.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/block_hash.h"
#include "message/message.h"

struct block {
    struct block_hash hash; // valid while group >= 0
    int32_t group;          // the cache group it is findable for; -1: not findable
    int32_t ref_count;
    int32_t prev, next;           // in the free list
    int32_t chain_next;           // in its bucket: the first block of the next hash
    int32_t twin_prev, twin_next; // ring of blocks with the same hash and group, oldest first
};

/** `= {0}` is a valid empty pool. */
struct block_pool {
    int32_t num_blocks, num_free;
    struct block *blocks;
    int32_t free_head, free_tail;
    int32_t *buckets; // [num_buckets] the first block of a chain, or NO_BLOCK
    uint64_t num_buckets;
};

/** `num_blocks` free blocks, lowest id first. */
void block_pool_init(struct block_pool *pool, int32_t num_blocks);
void block_pool_deinit(struct block_pool *pool);

/** Takes the block at the head of the free list; it forgets its hash. NO_BLOCK: none is free. */
int32_t block_pool_allocate(struct block_pool *pool);

/** One more owner for a block found by its hash; takes it out of the free list if it is there. */
void block_pool_touch(struct block_pool *pool, int32_t block);

/**
 * One owner less for every block of a table (NO_BLOCK entries are passed over), last entry first:
 * later blocks of a prefix are useless without the earlier ones and so are evicted before them.
 */
void block_pool_free(struct block_pool *pool, const int32_t *blocks, int32_t num_blocks);

/** Makes a block in use findable. A block with the same hash may exist already; both are kept. */
void block_pool_cache(struct block_pool *pool, int32_t block, struct block_hash hash,
                      int32_t group);

/** Makes a block unfindable, if it is findable. */
void block_pool_uncache(struct block_pool *pool, int32_t block);

/** The first block cached under this hash for this group, or NO_BLOCK. */
int32_t block_pool_find(const struct block_pool *pool, struct block_hash hash, int32_t group);

/** Makes every block unfindable. False, and nothing done, while a block is in use. */
bool block_pool_reset_cache(struct block_pool *pool);

/**
 * Makes the free list consist of `ids` in this order, whatever it was. False, and the pool
 * unusable, unless these are the blocks without an owner, each once.
 */
bool block_pool_set_free_list(struct block_pool *pool, const int32_t *ids, int32_t num_ids);

static inline int32_t block_pool_num_used(const struct block_pool *pool)
{
    return pool->num_blocks - pool->num_free;
}
