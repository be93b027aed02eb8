// The KV cache's blocks: who holds them, which are free, which hold a known prefix.
#include "engine/block_pool.h"

#include <assert.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/status.h"

void block_pool_init(struct block_pool *pool, int32_t num_blocks)
{
    *pool = (struct block_pool){.num_blocks = num_blocks, .num_free = num_blocks};
    pool->blocks = xcalloc((size_t)num_blocks + 1, sizeof(*pool->blocks));
    for (int32_t i = 0; i < num_blocks; i++) {
        pool->blocks[i] = (struct block){
            .group = -1, .prev = i - 1, .next = i + 1 < num_blocks ? i + 1 : NO_BLOCK};
    }
    pool->free_head = num_blocks > 0 ? 0 : NO_BLOCK;
    pool->free_tail = num_blocks - 1;
    pool->num_buckets = 16;
    while (pool->num_buckets < (uint64_t)num_blocks * 2)
        pool->num_buckets *= 2;
    pool->buckets = xmalloc(pool->num_buckets * sizeof(*pool->buckets));
    for (uint64_t i = 0; i < pool->num_buckets; i++)
        pool->buckets[i] = NO_BLOCK;
}

void block_pool_deinit(struct block_pool *pool)
{
    free(pool->blocks);
    free(pool->buckets);
    *pool = (struct block_pool){0};
}

// ---- free list -----------------------------------------------------------------------------

static void free_list_remove(struct block_pool *pool, int32_t id)
{
    struct block *block = &pool->blocks[id];
    if (block->prev != NO_BLOCK)
        pool->blocks[block->prev].next = block->next;
    else
        pool->free_head = block->next;
    if (block->next != NO_BLOCK)
        pool->blocks[block->next].prev = block->prev;
    else
        pool->free_tail = block->prev;
    block->prev = block->next = NO_BLOCK;
    pool->num_free--;
}

// Puts the block behind `after`; NO_BLOCK: at the head.
static void free_list_insert(struct block_pool *pool, int32_t id, int32_t after)
{
    struct block *block = &pool->blocks[id];
    block->prev = after;
    block->next = after == NO_BLOCK ? pool->free_head : pool->blocks[after].next;
    if (after == NO_BLOCK)
        pool->free_head = id;
    else
        pool->blocks[after].next = id;
    if (block->next == NO_BLOCK)
        pool->free_tail = id;
    else
        pool->blocks[block->next].prev = id;
    pool->num_free++;
}

int32_t block_pool_allocate(struct block_pool *pool)
{
    int32_t id = pool->free_head;
    if (id == NO_BLOCK)
        return NO_BLOCK;
    CHECK(pool->blocks[id].ref_count == 0);
    free_list_remove(pool, id);
    block_pool_uncache(pool, id);
    pool->blocks[id].ref_count = 1;
    return id;
}

void block_pool_touch(struct block_pool *pool, int32_t id)
{
    CHECK(id >= 0 && id < pool->num_blocks);
    struct block *block = &pool->blocks[id];
    if (block->ref_count == 0)
        free_list_remove(pool, id);
    block->ref_count++;
}

void block_pool_free(struct block_pool *pool, const int32_t *blocks, int32_t num_blocks)
{
    int32_t last_front = NO_BLOCK; // the blocks without a hash go to the head, in this order
    for (int32_t i = num_blocks - 1; i >= 0; i--) {
        int32_t id = blocks[i];
        if (id == NO_BLOCK)
            continue;
        CHECK(id >= 0 && id < pool->num_blocks);
        struct block *block = &pool->blocks[id];
        CHECK(block->ref_count > 0);
        if (--block->ref_count > 0)
            continue;
        if (block->group >= 0) {
            free_list_insert(pool, id, pool->free_tail);
        } else {
            free_list_insert(pool, id, last_front);
            last_front = id;
        }
    }
}

bool block_pool_set_free_list(struct block_pool *pool, const int32_t *ids, int32_t num_ids)
{
    int32_t num_owned = 0;
    for (int32_t id = 0; id < pool->num_blocks; id++) {
        pool->blocks[id].prev = pool->blocks[id].next = NO_BLOCK;
        num_owned += pool->blocks[id].ref_count > 0;
    }
    pool->num_free = 0;
    pool->free_head = pool->free_tail = NO_BLOCK;
    for (int32_t i = 0; i < num_ids; i++) {
        const struct block *block = &pool->blocks[ids[i]];
        bool is_listed = block->prev != NO_BLOCK || pool->free_head == ids[i];
        if (block->ref_count > 0 || is_listed)
            return false;
        free_list_insert(pool, ids[i], pool->free_tail);
    }
    return num_owned + num_ids == pool->num_blocks;
}

// ---- hash → block --------------------------------------------------------------------------

static bool same_key(const struct block *block, struct block_hash hash, int32_t group)
{
    return block->hash.low == hash.low && block->hash.high == hash.high && block->group == group;
}

static int32_t *bucket_of(const struct block_pool *pool, struct block_hash hash, int32_t group)
{
    return &pool->buckets[(hash.low + (uint64_t)group * 0x9E3779B97F4A7C15u) &
                          (pool->num_buckets - 1)];
}

int32_t block_pool_find(const struct block_pool *pool, struct block_hash hash, int32_t group)
{
    int32_t id = *bucket_of(pool, hash, group);
    while (id != NO_BLOCK && !same_key(&pool->blocks[id], hash, group))
        id = pool->blocks[id].chain_next;
    return id;
}

void block_pool_cache(struct block_pool *pool, int32_t id, struct block_hash hash, int32_t group)
{
    CHECK(id >= 0 && id < pool->num_blocks);
    struct block *block = &pool->blocks[id];
    CHECK(block->ref_count > 0 && block->group < 0 && group >= 0);
    int32_t first = block_pool_find(pool, hash, group);
    block->hash = hash;
    block->group = group;
    block->twin_prev = block->twin_next = id;
    if (first == NO_BLOCK) {
        int32_t *bucket = bucket_of(pool, hash, group);
        block->chain_next = *bucket;
        *bucket = id;
        return;
    }
    // Only the oldest of equal blocks stands in the chain, so that chains stay short however often
    // the same prompt comes; the others wait in its ring.
    int32_t last = pool->blocks[first].twin_prev;
    block->chain_next = NO_BLOCK;
    block->twin_prev = last;
    block->twin_next = first;
    pool->blocks[last].twin_next = id;
    pool->blocks[first].twin_prev = id;
}

void block_pool_uncache(struct block_pool *pool, int32_t id)
{
    struct block *block = &pool->blocks[id];
    if (block->group < 0)
        return;
    int32_t *link = bucket_of(pool, block->hash, block->group);
    while (*link != NO_BLOCK && !same_key(&pool->blocks[*link], block->hash, block->group))
        link = &pool->blocks[*link].chain_next;
    assert(*link != NO_BLOCK);
    if (*link == id) { // the oldest: the next in age takes its place
        if (block->twin_next == id) {
            *link = block->chain_next;
        } else {
            pool->blocks[block->twin_next].chain_next = block->chain_next;
            *link = block->twin_next;
        }
    }
    pool->blocks[block->twin_prev].twin_next = block->twin_next;
    pool->blocks[block->twin_next].twin_prev = block->twin_prev;
    block->group = -1;
}

bool block_pool_reset_cache(struct block_pool *pool)
{
    if (pool->num_free != pool->num_blocks)
        return false;
    for (uint64_t i = 0; i < pool->num_buckets; i++)
        pool->buckets[i] = NO_BLOCK;
    for (int32_t i = 0; i < pool->num_blocks; i++)
        pool->blocks[i].group = -1;
    return true;
}
