// The block pool: order of reuse, hashes, twins.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/block_pool.h"

enum { NUM_BLOCKS = 10 };

static const struct block_hash HASH_A = {1, 1}, HASH_B = {2, 2}, HASH_C = {3, 3};

static int setup(void **state)
{
    static struct block_pool pool;
    block_pool_init(&pool, NUM_BLOCKS);
    *state = &pool;
    return 0;
}

static int teardown(void **state)
{
    block_pool_deinit(*state);
    return 0;
}

static void allocate(struct block_pool *pool, int32_t *blocks, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        blocks[i] = block_pool_allocate(pool);
}

static void fresh_blocks_come_in_order_and_then_none(void **state)
{
    struct block_pool *pool = *state;
    for (int32_t i = 0; i < NUM_BLOCKS; i++)
        assert_int_equal(block_pool_allocate(pool), i);
    assert_int_equal(block_pool_allocate(pool), NO_BLOCK);
    assert_int_equal(block_pool_num_used(pool), NUM_BLOCKS);
}

static void hashed_blocks_go_to_the_tail_last_first_and_unhashed_ones_to_the_head(void **state)
{
    struct block_pool *pool = *state;
    int32_t blocks[5];
    allocate(pool, blocks, 5); // three full blocks, two that are not
    block_pool_cache(pool, blocks[0], HASH_A, 0);
    block_pool_cache(pool, blocks[1], HASH_B, 0);
    block_pool_cache(pool, blocks[2], HASH_C, 0);
    block_pool_free(pool, blocks, 5);
    const int32_t expected[NUM_BLOCKS] = {4, 3, 5, 6, 7, 8, 9, 2, 1, 0};
    for (int32_t i = 0; i < NUM_BLOCKS; i++)
        assert_int_equal(block_pool_allocate(pool), expected[i]);
}

static void a_freed_block_keeps_its_hash_until_it_is_allocated_again(void **state)
{
    struct block_pool *pool = *state;
    int32_t block = block_pool_allocate(pool);
    block_pool_cache(pool, block, HASH_A, 0);
    block_pool_free(pool, &block, 1);
    assert_int_equal(block_pool_find(pool, HASH_A, 0), block);
    for (int32_t i = 0; i < NUM_BLOCKS; i++)
        assert_int_not_equal(block_pool_allocate(pool), NO_BLOCK);
    assert_int_equal(block_pool_find(pool, HASH_A, 0), NO_BLOCK);
}

static void a_found_block_is_shared_and_returns_with_its_last_owner(void **state)
{
    struct block_pool *pool = *state;
    int32_t block = block_pool_allocate(pool);
    block_pool_cache(pool, block, HASH_A, 0);
    block_pool_touch(pool, block);
    block_pool_free(pool, &block, 1);
    assert_int_equal(pool->num_free, NUM_BLOCKS - 1);
    block_pool_free(pool, &block, 1);
    assert_int_equal(pool->num_free, NUM_BLOCKS);
    block_pool_touch(pool, block); // from the free list
    assert_int_equal(pool->num_free, NUM_BLOCKS - 1);
    assert_int_equal(pool->blocks[block].ref_count, 1);
}

static void groups_do_not_find_each_others_blocks(void **state)
{
    struct block_pool *pool = *state;
    int32_t blocks[2];
    allocate(pool, blocks, 2);
    block_pool_cache(pool, blocks[0], HASH_A, 0);
    block_pool_cache(pool, blocks[1], HASH_A, 1);
    assert_int_equal(block_pool_find(pool, HASH_A, 0), blocks[0]);
    assert_int_equal(block_pool_find(pool, HASH_A, 1), blocks[1]);
    assert_int_equal(block_pool_find(pool, HASH_A, 2), NO_BLOCK);
    assert_int_equal(block_pool_find(pool, HASH_B, 0), NO_BLOCK);
}

// Blocks with equal content: the oldest is found, whichever of them leaves.
static void twins_are_found_in_the_order_they_came(void **state)
{
    struct block_pool *pool = *state;
    int32_t blocks[4];
    allocate(pool, blocks, 4);
    for (int32_t i = 0; i < 4; i++)
        block_pool_cache(pool, blocks[i], HASH_A, 0);
    block_pool_uncache(pool, blocks[2]);
    assert_int_equal(block_pool_find(pool, HASH_A, 0), blocks[0]);
    block_pool_uncache(pool, blocks[0]);
    assert_int_equal(block_pool_find(pool, HASH_A, 0), blocks[1]);
    block_pool_cache(pool, blocks[0], HASH_A, 0);
    block_pool_uncache(pool, blocks[1]);
    assert_int_equal(block_pool_find(pool, HASH_A, 0), blocks[3]);
    block_pool_uncache(pool, blocks[3]);
    assert_int_equal(block_pool_find(pool, HASH_A, 0), blocks[0]);
    block_pool_uncache(pool, blocks[0]);
    block_pool_uncache(pool, blocks[0]); // again: nothing to do
    assert_int_equal(block_pool_find(pool, HASH_A, 0), NO_BLOCK);
}

static void hashes_in_one_bucket_are_told_apart(void **state)
{
    struct block_pool *pool = *state;
    int32_t blocks[3];
    allocate(pool, blocks, 3);
    struct block_hash hashes[3];
    for (int32_t i = 0; i < 3; i++) {
        hashes[i] = (struct block_hash){.low = 5 + (uint64_t)i * pool->num_buckets, .high = 9};
        block_pool_cache(pool, blocks[i], hashes[i], 0);
    }
    block_pool_uncache(pool, blocks[1]); // from the middle of the chain
    assert_int_equal(block_pool_find(pool, hashes[0], 0), blocks[0]);
    assert_int_equal(block_pool_find(pool, hashes[1], 0), NO_BLOCK);
    assert_int_equal(block_pool_find(pool, hashes[2], 0), blocks[2]);
}

static void reset_forgets_all_hashes_but_only_when_nothing_is_used(void **state)
{
    struct block_pool *pool = *state;
    int32_t block = block_pool_allocate(pool);
    block_pool_cache(pool, block, HASH_A, 0);
    assert_false(block_pool_reset_cache(pool));
    assert_int_equal(block_pool_find(pool, HASH_A, 0), block);
    block_pool_free(pool, &block, 1);
    assert_true(block_pool_reset_cache(pool));
    assert_int_equal(block_pool_find(pool, HASH_A, 0), NO_BLOCK);
}

static void entries_without_a_block_are_passed_over_when_freed(void **state)
{
    struct block_pool *pool = *state;
    int32_t table[3] = {NO_BLOCK, block_pool_allocate(pool), NO_BLOCK};
    block_pool_free(pool, table, 3);
    assert_int_equal(pool->num_free, NUM_BLOCKS);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(fresh_blocks_come_in_order_and_then_none),
        TEST(hashed_blocks_go_to_the_tail_last_first_and_unhashed_ones_to_the_head),
        TEST(a_freed_block_keeps_its_hash_until_it_is_allocated_again),
        TEST(a_found_block_is_shared_and_returns_with_its_last_owner),
        TEST(groups_do_not_find_each_others_blocks),
        TEST(twins_are_found_in_the_order_they_came),
        TEST(hashes_in_one_bucket_are_told_apart),
        TEST(reset_forgets_all_hashes_but_only_when_nothing_is_used),
        TEST(entries_without_a_block_are_passed_over_when_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
