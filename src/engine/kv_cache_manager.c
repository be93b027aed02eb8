// Block tables and prefix caching: which blocks hold the keys and values of a sequence.
#include "engine/kv_cache_manager.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static int32_t num_blocks_for(const struct kv_cache_manager *kv, int64_t num_tokens)
{
    return (int32_t)ceil_div(num_tokens, kv->config.block_size);
}

static bool is_sliding(const struct kv_cache_manager *kv, int32_t group)
{
    return kv->config.groups[group].kind == KV_CACHE_GROUP_SLIDING;
}

void kv_cache_manager_init(struct kv_cache_manager *kv, const struct kv_cache_config *config,
                           int32_t max_model_len, int32_t max_num_batched_tokens,
                           enum block_hash_algo hash_algo)
{
    assert(config->block_size > 0 && config->num_groups > 0);
    assert(config->num_groups <= MAX_KV_CACHE_GROUPS);
    *kv = (struct kv_cache_manager){.config = *config,
                                    .enable_prefix_caching = hash_algo != BLOCK_HASH_NONE};
    block_pool_init(&kv->pool, config->num_blocks);
    kv->max_blocks = num_blocks_for(kv, max_model_len);
    for (int32_t g = 0; g < config->num_groups; g++) {
        CHECK(config->groups[g].kind <= KV_CACHE_GROUP_LATENT);
        kv->found_blocks[g] = xcalloc((size_t)kv->max_blocks + 1, sizeof(int32_t));
        if (!is_sliding(kv, g))
            continue;
        // The window behind the first new token, the step's tokens, and one block because neither
        // end need stand on a block's edge.
        int64_t span = (int64_t)config->groups[g].window - 1 + max_num_batched_tokens;
        kv->sliding_caps[g] = num_blocks_for(kv, min_i64(span, max_model_len)) + 1;
        kv->has_sliding = true;
    }
    block_hasher_init(&kv->hasher, hash_algo, config->block_size);
}

void kv_cache_manager_deinit(struct kv_cache_manager *kv)
{
    block_pool_deinit(&kv->pool);
    for (int32_t g = 0; g < MAX_KV_CACHE_GROUPS; g++)
        free(kv->found_blocks[g]);
    block_hasher_deinit(&kv->hasher);
    *kv = (struct kv_cache_manager){0};
}

int64_t kv_cache_manager_blocks_needed(const struct kv_cache_manager *kv, int64_t num_tokens)
{
    int64_t needed = 0;
    int64_t whole = ceil_div(num_tokens, kv->config.block_size);
    for (int32_t g = 0; g < kv->config.num_groups; g++)
        needed += is_sliding(kv, g) ? min_i64(whole, kv->sliding_caps[g]) : whole;
    return needed;
}

// ---- hashes --------------------------------------------------------------------------------

struct block_hash kv_cache_manager_root(const struct kv_cache_manager *kv, struct str cache_salt)
{
    return block_hasher_root(&kv->hasher, cache_salt);
}

void kv_cache_manager_extend_hashes(struct kv_cache_manager *kv, struct kv_sequence *sequence,
                                    int32_t num_tokens)
{
    if (!kv->enable_prefix_caching)
        return;
    int32_t num_blocks = num_tokens / kv->config.block_size;
    for (; sequence->num_hashes < num_blocks; sequence->num_hashes++) {
        int32_t i = sequence->num_hashes;
        sequence->hashes[i] =
            block_hasher_next(&kv->hasher, i == 0 ? sequence->root : sequence->hashes[i - 1],
                              sequence->token_ids + (int64_t)i * kv->config.block_size);
    }
}

// ---- lookup --------------------------------------------------------------------------------

// A full-attention group needs every block from the start.
static int32_t shorten_to_full(struct kv_cache_manager *kv, const struct kv_sequence *sequence,
                               int32_t group, int32_t num_blocks)
{
    int32_t i = 0;
    for (; i < num_blocks; i++) {
        int32_t block = block_pool_find(&kv->pool, sequence->hashes[i], group);
        if (block == NO_BLOCK)
            break;
        kv->found_blocks[group][i] = block;
    }
    return i;
}

static int32_t window_blocks(const struct kv_cache_manager *kv, int32_t group)
{
    return num_blocks_for(kv, kv->config.groups[group].window - 1);
}

// A sliding group needs the blocks that the next token's window reaches into, or all of them where
// the window reaches beyond the start.
static int32_t shorten_to_window(const struct kv_cache_manager *kv,
                                 const struct kv_sequence *sequence, int32_t group,
                                 int32_t num_blocks)
{
    int32_t wanted = window_blocks(kv, group);
    int32_t run = 0;
    for (int32_t i = num_blocks - 1; i >= 0 && run < wanted; i--) {
        if (block_pool_find(&kv->pool, sequence->hashes[i], group) != NO_BLOCK) {
            run++;
        } else {
            run = 0;
            num_blocks = i;
        }
    }
    return num_blocks;
}

int32_t kv_cache_manager_find_prefix(struct kv_cache_manager *kv, struct kv_sequence *sequence,
                                     int32_t num_tokens)
{
    if (!kv->enable_prefix_caching || num_tokens < 2)
        return 0;
    int32_t num_blocks = (num_tokens - 1) / kv->config.block_size;
    kv_cache_manager_extend_hashes(kv, sequence, num_tokens - 1);
    for (int32_t g = 0; g < kv->config.num_groups; g++) {
        if (!is_sliding(kv, g))
            num_blocks = shorten_to_full(kv, sequence, g, num_blocks);
    }
    // Each group can only shorten what the others allow; the end is what none shortens any more.
    for (int32_t before = -1; before != num_blocks;) {
        before = num_blocks;
        for (int32_t g = 0; g < kv->config.num_groups; g++) {
            if (is_sliding(kv, g))
                num_blocks = shorten_to_window(kv, sequence, g, num_blocks);
        }
    }
    for (int32_t g = 0; g < kv->config.num_groups; g++) {
        if (!is_sliding(kv, g))
            continue;
        int32_t first = max_i32(num_blocks - window_blocks(kv, g), 0);
        for (int32_t i = 0; i < num_blocks; i++) {
            kv->found_blocks[g][i] =
                i < first ? NO_BLOCK : block_pool_find(&kv->pool, sequence->hashes[i], g);
        }
    }
    return num_blocks * kv->config.block_size;
}

// ---- allocation ----------------------------------------------------------------------------

static void free_slid_out(struct kv_cache_manager *kv, struct kv_sequence *sequence,
                          int32_t num_computed_tokens)
{
    for (int32_t g = 0; g < kv->config.num_groups; g++) {
        if (!is_sliding(kv, g))
            continue;
        struct block_table *table = &sequence->tables[g];
        // The next token, at num_computed_tokens, sees itself and the window - 1 before it.
        int32_t unseen = max_i32(num_computed_tokens - kv->config.groups[g].window + 1, 0);
        int32_t num_freed = min_i32(unseen / kv->config.block_size, table->len);
        if (num_freed <= table->num_freed)
            continue;
        block_pool_free(&kv->pool, table->blocks + table->num_freed, num_freed - table->num_freed);
        for (int32_t i = table->num_freed; i < num_freed; i++)
            table->blocks[i] = NO_BLOCK;
        table->num_freed = num_freed;
    }
}

// Whether the pool has what the demand asks of it: now, and for the reserved length.
static bool is_available(const struct kv_cache_manager *kv, const struct kv_sequence *sequence,
                         const struct kv_demand *demand, int32_t num_required, int32_t num_found)
{
    int64_t now = 0, later = 0;
    int32_t whole = num_blocks_for(kv, demand->num_reserved_tokens);
    for (int32_t g = 0; g < kv->config.num_groups; g++) {
        int32_t have = max_i32(sequence->tables[g].len, num_found);
        // Found blocks that nobody holds stand in the free list: taking them uses it up.
        int32_t from_free = 0, held_by_others = 0;
        for (int32_t i = 0; i < num_found; i++) {
            int32_t block = kv->found_blocks[g][i];
            if (block == NO_BLOCK)
                continue;
            if (kv->pool.blocks[block].ref_count == 0)
                from_free++;
            else
                held_by_others++;
        }
        now += max_i32(num_required - have, 0) + from_free;
        int32_t grown = max_i32(whole - have, 0) + from_free;
        if (is_sliding(kv, g))
            grown = min_i32(grown, kv->sliding_caps[g] - held_by_others);
        later += grown;
    }
    int64_t available = (int64_t)kv->pool.num_free - demand->watermark_blocks;
    return now <= available && (demand->num_reserved_tokens == 0 || later <= available);
}

bool kv_cache_manager_allocate(struct kv_cache_manager *kv, struct kv_sequence *sequence,
                               const struct kv_demand *demand)
{
    int32_t num_tokens = demand->num_computed_tokens + demand->num_found_tokens;
    int32_t num_required = num_blocks_for(kv, num_tokens + demand->num_new_tokens);
    CHECK(num_required <= kv->max_blocks);
    if (kv->has_sliding)
        free_slid_out(kv, sequence, num_tokens - demand->num_in_flight_tokens);
    else if (demand->num_found_tokens == 0 && num_required <= sequence->tables[0].len)
        return true; // a decode within its last block, the most frequent case by far

    int32_t num_found = demand->num_found_tokens / kv->config.block_size;
    assert(num_found == 0 || sequence->tables[0].len == 0);
    if (!is_available(kv, sequence, demand, num_required, num_found))
        return false;
    // First adopt for all groups, then allocate: a fresh block for one group must not evict what
    // another has found.
    for (int32_t g = 0; g < kv->config.num_groups && num_found > 0; g++) {
        struct block_table *table = &sequence->tables[g];
        for (int32_t i = 0; i < num_found; i++) {
            int32_t block = kv->found_blocks[g][i];
            if (block == NO_BLOCK)
                table->num_freed = i + 1;
            else
                block_pool_touch(&kv->pool, block);
            table->blocks[i] = block;
        }
        table->len = table->num_cached = num_found;
    }
    for (int32_t g = 0; g < kv->config.num_groups; g++) {
        struct block_table *table = &sequence->tables[g];
        while (table->len < num_required) {
            int32_t block = block_pool_allocate(&kv->pool);
            CHECK(block != NO_BLOCK);
            table->blocks[table->len++] = block;
        }
    }
    return true;
}

void kv_cache_manager_cache(struct kv_cache_manager *kv, struct kv_sequence *sequence,
                            int32_t num_tokens)
{
    int32_t num_blocks = num_tokens / kv->config.block_size;
    if (!kv->enable_prefix_caching || num_blocks <= sequence->tables[0].num_cached)
        return;
    kv_cache_manager_extend_hashes(kv, sequence, num_tokens);
    for (int32_t g = 0; g < kv->config.num_groups; g++) {
        struct block_table *table = &sequence->tables[g];
        CHECK(num_blocks <= table->len);
        for (; table->num_cached < num_blocks; table->num_cached++) {
            int32_t block = table->blocks[table->num_cached];
            if (block != NO_BLOCK)
                block_pool_cache(&kv->pool, block, sequence->hashes[table->num_cached], g);
        }
    }
}

void kv_cache_manager_free(struct kv_cache_manager *kv, struct kv_sequence *sequence, bool forget)
{
    for (int32_t g = 0; g < kv->config.num_groups; g++) {
        struct block_table *table = &sequence->tables[g];
        for (int32_t i = 0; i < table->len && forget; i++) {
            if (table->blocks[i] != NO_BLOCK)
                block_pool_uncache(&kv->pool, table->blocks[i]);
        }
        block_pool_free(&kv->pool, table->blocks, table->len);
        table->len = table->num_freed = table->num_cached = 0;
    }
}

void kv_cache_manager_forget(struct kv_cache_manager *kv, const struct kv_sequence *sequence)
{
    if (!kv->enable_prefix_caching)
        return;
    for (int32_t g = 0; g < kv->config.num_groups; g++) {
        for (int32_t i = 0; i < sequence->num_hashes; i++) {
            int32_t block;
            while ((block = block_pool_find(&kv->pool, sequence->hashes[i], g)) != NO_BLOCK)
                block_pool_uncache(&kv->pool, block);
        }
    }
}

bool kv_cache_manager_reset_prefix_cache(struct kv_cache_manager *kv)
{
    return block_pool_reset_cache(&kv->pool);
}
