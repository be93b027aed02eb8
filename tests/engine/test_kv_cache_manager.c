// Block tables and prefix caching, for one group and for hybrids.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/kv_cache_manager.h"

enum { BLOCK_SIZE = 4, MAX_LEN = 64, MAX_BLOCKS = MAX_LEN / BLOCK_SIZE, MAX_BATCHED = 16 };

/** A sequence with room for everything; its tokens count up from `first`. */
struct sample {
    struct kv_sequence kv;
    int32_t tokens[MAX_LEN];
    struct block_hash hashes[MAX_BLOCKS];
    int32_t tables[MAX_KV_CACHE_GROUPS][MAX_BLOCKS];
};

static void sample_init(struct sample *s, const struct kv_cache_manager *kv, int32_t first,
                        const char *salt)
{
    memset(s, 0, sizeof(*s));
    for (int32_t i = 0; i < MAX_LEN; i++)
        s->tokens[i] = first + i;
    s->kv.token_ids = s->tokens;
    s->kv.hashes = s->hashes;
    s->kv.root = kv_cache_manager_root(kv, str_from(salt));
    for (int32_t g = 0; g < MAX_KV_CACHE_GROUPS; g++)
        s->kv.tables[g].blocks = s->tables[g];
}

static void init(struct kv_cache_manager *kv, int32_t num_blocks, int32_t num_groups,
                 const int32_t *windows)
{
    struct kv_cache_config config = {
        .block_size = BLOCK_SIZE, .num_blocks = num_blocks, .num_groups = num_groups};
    for (int32_t g = 0; g < num_groups; g++) {
        config.groups[g].kind = windows[g] > 0 ? KV_CACHE_GROUP_SLIDING : KV_CACHE_GROUP_FULL;
        config.groups[g].window = windows[g];
    }
    kv_cache_manager_init(kv, &config, MAX_LEN, MAX_BATCHED, BLOCK_HASH_XXHASH);
}

static const int32_t FULL[] = {0};

// Computes the first `num_tokens` tokens from the cached prefix; returns that prefix's length.
static int32_t compute(struct kv_cache_manager *kv, struct sample *s, int32_t num_tokens)
{
    int32_t num_found = kv_cache_manager_find_prefix(kv, &s->kv, num_tokens);
    const struct kv_demand demand = {.num_found_tokens = num_found,
                                     .num_new_tokens = num_tokens - num_found,
                                     .num_reserved_tokens = num_tokens};
    assert_true(kv_cache_manager_allocate(kv, &s->kv, &demand));
    kv_cache_manager_cache(kv, &s->kv, num_tokens);
    return num_found;
}

static void at_least_the_last_token_is_computed_again(void **state)
{
    (void)state;
    const struct {
        int32_t num_tokens, num_found;
    } rows[] = {{16, 12}, {15, 12}, {17, 16}, {4, 0}, {3, 0}, {5, 4}, {1, 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kv_cache_manager kv;
        init(&kv, 40, 1, FULL);
        struct sample a, b;
        sample_init(&a, &kv, 0, "");
        sample_init(&b, &kv, 0, "");
        assert_int_equal(compute(&kv, &a, rows[i].num_tokens), 0);
        assert_int_equal(compute(&kv, &b, rows[i].num_tokens), rows[i].num_found);
        kv_cache_manager_free(&kv, &a.kv, false);
        kv_cache_manager_free(&kv, &b.kv, false);
        assert_int_equal(block_pool_num_used(&kv.pool), 0);
        kv_cache_manager_deinit(&kv);
    }
}

static void a_prefix_ends_at_the_first_block_that_differs(void **state)
{
    (void)state;
    struct kv_cache_manager kv;
    init(&kv, 40, 1, FULL);
    struct sample a, b;
    sample_init(&a, &kv, 0, "");
    sample_init(&b, &kv, 0, "");
    b.tokens[9] = 1000;
    compute(&kv, &a, 32);
    assert_int_equal(compute(&kv, &b, 32), 8);
    assert_memory_equal(a.tables[0], b.tables[0], 2 * sizeof(int32_t));
    // Later blocks hold equal tokens but stand behind another prefix.
    assert_int_not_equal(a.tables[0][5], b.tables[0][5]);
    kv_cache_manager_deinit(&kv);
}

static void salts_separate_caches(void **state)
{
    (void)state;
    struct kv_cache_manager kv;
    init(&kv, 60, 1, FULL);
    struct sample a, b, c;
    sample_init(&a, &kv, 0, "");
    sample_init(&b, &kv, 0, "tenant");
    sample_init(&c, &kv, 0, "tenant");
    compute(&kv, &a, 20);
    assert_int_equal(compute(&kv, &b, 20), 0);
    assert_int_equal(compute(&kv, &c, 20), 16);
    kv_cache_manager_deinit(&kv);
}

static void hashes_of_two_processes_differ(void **state)
{
    (void)state;
    struct kv_cache_manager a, b;
    init(&a, 4, 1, FULL);
    init(&b, 4, 1, FULL);
    struct block_hash root_a = kv_cache_manager_root(&a, STR("x"));
    struct block_hash root_b = kv_cache_manager_root(&b, STR("x"));
    assert_memory_not_equal(&root_a, &root_b, sizeof(root_a));
    kv_cache_manager_deinit(&a);
    kv_cache_manager_deinit(&b);
}

static void generated_tokens_become_hits_of_the_next_turn(void **state)
{
    (void)state;
    struct kv_cache_manager kv;
    init(&kv, 40, 1, FULL);
    struct sample a, b;
    sample_init(&a, &kv, 0, "");
    sample_init(&b, &kv, 0, "");
    compute(&kv, &a, 6);
    for (int32_t n = 6; n < 14; n++) { // one token at a time
        const struct kv_demand demand = {.num_computed_tokens = n, .num_new_tokens = 1};
        assert_true(kv_cache_manager_allocate(&kv, &a.kv, &demand));
        kv_cache_manager_cache(&kv, &a.kv, n + 1);
    }
    kv_cache_manager_free(&kv, &a.kv, false);
    assert_int_equal(compute(&kv, &b, 20), 12);
    kv_cache_manager_deinit(&kv);
}

static void the_whole_sequence_must_fit_even_if_its_first_chunk_would(void **state)
{
    (void)state;
    struct kv_cache_manager kv;
    init(&kv, 10, 1, FULL);
    struct sample a;
    sample_init(&a, &kv, 0, "");
    struct kv_demand demand = {.num_new_tokens = 4, .num_reserved_tokens = 41};
    assert_false(kv_cache_manager_allocate(&kv, &a.kv, &demand));
    assert_int_equal(block_pool_num_used(&kv.pool), 0);
    demand.num_reserved_tokens = 40;
    demand.watermark_blocks = 1;
    assert_false(kv_cache_manager_allocate(&kv, &a.kv, &demand));
    demand.watermark_blocks = 0;
    assert_true(kv_cache_manager_allocate(&kv, &a.kv, &demand));
    assert_int_equal(block_pool_num_used(&kv.pool), 1);
    kv_cache_manager_deinit(&kv);
}

static void found_blocks_that_nobody_holds_count_as_taken_from_the_free_ones(void **state)
{
    (void)state;
    struct kv_cache_manager kv;
    init(&kv, 6, 1, FULL);
    struct sample a, b;
    sample_init(&a, &kv, 0, "");
    sample_init(&b, &kv, 0, "");
    compute(&kv, &a, 16);
    kv_cache_manager_free(&kv, &a.kv, false);
    int32_t num_found = kv_cache_manager_find_prefix(&kv, &b.kv, 28);
    assert_int_equal(num_found, 16);
    // 7 blocks in all, 4 of them found: 3 more would be needed and 2 are left.
    struct kv_demand demand = {.num_found_tokens = num_found, .num_new_tokens = 12};
    assert_false(kv_cache_manager_allocate(&kv, &b.kv, &demand));
    demand.num_new_tokens = 8;
    assert_true(kv_cache_manager_allocate(&kv, &b.kv, &demand));
    assert_int_equal(kv.pool.num_free, 0);
    kv_cache_manager_deinit(&kv);
}

static void a_window_that_moved_on_gives_its_blocks_back(void **state)
{
    (void)state;
    static const int32_t windows[] = {6};
    struct kv_cache_manager kv;
    init(&kv, 20, 1, windows);
    struct sample a;
    sample_init(&a, &kv, 0, "");
    compute(&kv, &a, 12);
    assert_int_equal(block_pool_num_used(&kv.pool), 3);
    // Token 12 sees tokens 7 to 12: the block of tokens 0 to 3 has slid out, the next one not.
    const struct kv_demand demand = {.num_computed_tokens = 12, .num_new_tokens = 1};
    assert_true(kv_cache_manager_allocate(&kv, &a.kv, &demand));
    assert_int_equal(a.kv.tables[0].num_freed, 1);
    assert_int_equal(a.tables[0][0], NO_BLOCK);
    assert_int_not_equal(a.tables[0][1], NO_BLOCK);
    assert_int_equal(block_pool_num_used(&kv.pool), 3);
    kv_cache_manager_free(&kv, &a.kv, false);
    assert_int_equal(block_pool_num_used(&kv.pool), 0);
    kv_cache_manager_deinit(&kv);
}

// What a hybrid may hit: as far as the full group goes and the window's blocks are there.
static void a_hybrid_hits_what_all_its_groups_have(void **state)
{
    (void)state;
    static const int32_t windows[] = {0, 6};
    const struct {
        int32_t lost_full, lost_sliding; // a block index that was evicted, or -1
        int32_t num_found;
    } rows[] = {
        {-1, -1, 28}, // all
        {3, -1, 12},  // the full group ends there, the window's blocks before it are there
        {-1, 0, 28},  // long out of the window
        {-1, 6, 24},  // the window of 28 is broken, that of 24 is not
        {-1, 5, 20},  // 28 and 24 are broken
        {3, 1, 4},    // 12 wants blocks 1 and 2, 8 wants 0 and 1; only 4 is left
        {-1, 4, 28},  // two blocks reach back far enough
        {0, -1, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kv_cache_manager kv;
        init(&kv, 60, 2, windows);
        struct sample a, b;
        sample_init(&a, &kv, 0, "");
        sample_init(&b, &kv, 0, "");
        compute(&kv, &a, 32);
        if (rows[i].lost_full >= 0)
            block_pool_uncache(&kv.pool, a.tables[0][rows[i].lost_full]);
        if (rows[i].lost_sliding >= 0)
            block_pool_uncache(&kv.pool, a.tables[1][rows[i].lost_sliding]);
        assert_int_equal(compute(&kv, &b, 32), rows[i].num_found);
        int32_t num_blocks = rows[i].num_found / BLOCK_SIZE;
        for (int32_t k = 0; k < num_blocks; k++) {
            assert_int_equal(b.tables[0][k], a.tables[0][k]);
            assert_int_equal(b.tables[1][k], k < num_blocks - 2 ? NO_BLOCK : a.tables[1][k]);
        }
        kv_cache_manager_free(&kv, &a.kv, false);
        kv_cache_manager_free(&kv, &b.kv, false);
        assert_int_equal(block_pool_num_used(&kv.pool), 0);
        kv_cache_manager_deinit(&kv);
    }
}

static void a_sliding_group_needs_no_more_than_its_window_and_a_step(void **state)
{
    (void)state;
    static const int32_t windows[] = {0, 6};
    struct kv_cache_manager kv;
    init(&kv, 60, 2, windows);
    // 16 full blocks, and ceil((6 - 1 + 16) / 4) + 1 of the window.
    assert_int_equal(kv_cache_manager_blocks_needed(&kv, 64), 16 + 7);
    assert_int_equal(kv_cache_manager_blocks_needed(&kv, 8), 2 + 2);
    kv_cache_manager_deinit(&kv);
}

static void blocks_that_are_not_to_be_trusted_are_not_found_again(void **state)
{
    (void)state;
    struct kv_cache_manager kv;
    init(&kv, 20, 1, FULL);
    struct sample a, b;
    sample_init(&a, &kv, 0, "");
    sample_init(&b, &kv, 0, "");
    compute(&kv, &a, 16);
    kv_cache_manager_free(&kv, &a.kv, true);
    assert_int_equal(compute(&kv, &b, 16), 0);
    kv_cache_manager_deinit(&kv);
}

static void reset_makes_everything_miss(void **state)
{
    (void)state;
    struct kv_cache_manager kv;
    init(&kv, 20, 1, FULL);
    struct sample a;
    sample_init(&a, &kv, 0, "");
    compute(&kv, &a, 16);
    assert_false(kv_cache_manager_reset_prefix_cache(&kv));
    kv_cache_manager_free(&kv, &a.kv, false);
    assert_true(kv_cache_manager_reset_prefix_cache(&kv));
    assert_int_equal(compute(&kv, &a, 16), 0);
    kv_cache_manager_deinit(&kv);
}

static void without_prefix_caching_nothing_is_found(void **state)
{
    (void)state;
    struct kv_cache_config config = {.block_size = BLOCK_SIZE, .num_blocks = 20, .num_groups = 1};
    struct kv_cache_manager kv;
    kv_cache_manager_init(&kv, &config, MAX_LEN, MAX_BATCHED, BLOCK_HASH_NONE);
    struct sample a, b;
    sample_init(&a, &kv, 0, "");
    sample_init(&b, &kv, 0, "");
    compute(&kv, &a, 16);
    assert_int_equal(compute(&kv, &b, 16), 0);
    kv_cache_manager_deinit(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_least_the_last_token_is_computed_again),
        cmocka_unit_test(a_prefix_ends_at_the_first_block_that_differs),
        cmocka_unit_test(salts_separate_caches),
        cmocka_unit_test(hashes_of_two_processes_differ),
        cmocka_unit_test(generated_tokens_become_hits_of_the_next_turn),
        cmocka_unit_test(the_whole_sequence_must_fit_even_if_its_first_chunk_would),
        cmocka_unit_test(found_blocks_that_nobody_holds_count_as_taken_from_the_free_ones),
        cmocka_unit_test(a_window_that_moved_on_gives_its_blocks_back),
        cmocka_unit_test(a_hybrid_hits_what_all_its_groups_have),
        cmocka_unit_test(a_sliding_group_needs_no_more_than_its_window_and_a_step),
        cmocka_unit_test(blocks_that_are_not_to_be_trusted_are_not_found_again),
        cmocka_unit_test(reset_makes_everything_miss),
        cmocka_unit_test(without_prefix_caching_nothing_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
