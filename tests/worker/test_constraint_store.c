// Automata are kept once and by their content alone, masks by automaton and state; neither grows
// beyond its bound.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "structured_output/token_trie.h"
#include "worker/constraint_store.h"
#include "worker/token_loader.h"

#define DEMO MODELS_DIR "/demo"

// "a" or "b", again and again.
static const uint32_t AB[] = {1, 0 | AUTOMATON_ACCEPTS, 1, 0x6261};
static const uint32_t ANY[] = {1, 0 | AUTOMATON_ACCEPTS, 1, 0xff00};

static void equal_automata_are_one(void **state)
{
    (void)state;
    struct constraint_store store;
    uint64_t first, second, other;
    constraint_store_init(&store, 300);
    const uint32_t *a = constraint_store_acquire(&store, AB, ARRAY_LEN(AB), &first);
    const uint32_t *b = constraint_store_acquire(&store, AB, ARRAY_LEN(AB), &second);
    const uint32_t *c = constraint_store_acquire(&store, ANY, ARRAY_LEN(ANY), &other);
    assert_ptr_equal(a, b);
    assert_int_equal(first, second);
    assert_true(other != first && c != a);
    assert_memory_equal(a, AB, sizeof(AB));
    constraint_store_release(&store, first);
    constraint_store_release(&store, second);
    // Nobody uses it now; who brings it again finds it, and so its masks.
    assert_ptr_equal(constraint_store_acquire(&store, AB, ARRAY_LEN(AB), &second), a);
    assert_int_equal(first, second);
    constraint_store_deinit(&store);
}

static void unused_automata_make_room_and_used_ones_stay(void **state)
{
    (void)state;
    enum { NUM_WORDS = MAX_AUTOMATON_WORDS, NUM = 3 * MAX_LIVE_AUTOMATON_WORDS / NUM_WORDS };
    struct constraint_store store;
    uint64_t kept, id;
    constraint_store_init(&store, 300);
    const uint32_t *words = constraint_store_acquire(&store, AB, ARRAY_LEN(AB), &kept);
    uint32_t *large = xcalloc(NUM_WORDS, sizeof(*large));
    for (uint32_t i = 0; i < NUM; i++) {
        large[0] = i;
        constraint_store_acquire(&store, large, NUM_WORDS, &id);
        constraint_store_release(&store, id);
        assert_true(store.num_words <= MAX_LIVE_AUTOMATON_WORDS);
    }
    free(large);
    assert_memory_equal(words, AB, sizeof(AB));
    for (uint32_t i = 0; i < 2 * MAX_STORED_AUTOMATA; i++) {
        constraint_store_acquire(&store, &i, 1, &id);
        constraint_store_release(&store, id);
    }
    assert_true(store.num_automata <= MAX_STORED_AUTOMATA + 1);
    constraint_store_deinit(&store);
}

static void a_steps_masks_stay_and_older_ones_give_way(void **state)
{
    (void)state;
    struct constraint_store store;
    constraint_store_init(&store, 300);
    constraint_store_begin_step(&store);
    struct stored_mask *first = constraint_store_find(&store, 7, 0);
    assert_true(first->is_new);
    first->is_new = false;
    assert_ptr_equal(constraint_store_find(&store, 7, 0), first);
    for (int32_t i = 1; i < NUM_STORED_MASKS; i++)
        assert_non_null(constraint_store_find(&store, 7, i));
    assert_null(constraint_store_find(&store, 7, NUM_STORED_MASKS)); // all are this step's
    assert_null(constraint_store_find(&store, 8, 0));
    constraint_store_begin_step(&store);
    assert_ptr_equal(constraint_store_find(&store, 7, 0), first);
    for (int32_t i = 1; i < NUM_STORED_MASKS; i++)
        assert_ptr_not_equal(constraint_store_find(&store, 8, i), first);
    assert_false(first->is_new);
    constraint_store_deinit(&store);
}

static void a_stored_mask_is_that_of_the_trie(void **state)
{
    (void)state;
    struct token_loader loader = {0};
    const struct token_trie *tokens = token_loader_wait(&loader, DEMO, 4096);
    assert_non_null(tokens);
    assert_int_equal(token_loader_poll(&loader, DEMO, 4096), TOKENS_READY);
    assert_true(token_trie_bytes(tokens) <= token_loader_max_bytes(4096));
    struct constraint_store store;
    constraint_store_init(&store, 4096);
    uint64_t id;
    uint32_t expected[128];
    const uint32_t *words = constraint_store_acquire(&store, AB, ARRAY_LEN(AB), &id);
    constraint_store_begin_step(&store);
    struct stored_mask *mask = constraint_store_find(&store, id, 0);
    constraint_store_make(&store, mask, words, tokens);
    assert_true(mask->is_any && token_trie_mask(tokens, AB, 0, expected, 4096));
    assert_memory_equal(mask->words, expected, sizeof(expected));
    constraint_store_deinit(&store);
    token_loader_deinit(&loader);
}

static void tokens_that_cannot_be_read_fail_once_and_for_all(void **state)
{
    (void)state;
    struct token_loader loader = {0};
    assert_null(token_loader_wait(&loader, DEMO "/nothing.json", 4096));
    assert_int_equal(token_loader_poll(&loader, DEMO "/nothing.json", 4096), TOKENS_FAILED);
    token_loader_deinit(&loader);
    assert_null(token_loader_wait(&loader, DEMO, 1)); // more than the plan allows for
    assert_int_equal(token_loader_poll(&loader, DEMO, 1), TOKENS_FAILED);
    token_loader_deinit(&loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_automata_are_one),
        cmocka_unit_test(unused_automata_make_room_and_used_ones_stay),
        cmocka_unit_test(a_steps_masks_stay_and_older_ones_give_way),
        cmocka_unit_test(a_stored_mask_is_that_of_the_trie),
        cmocka_unit_test(tokens_that_cannot_be_read_fail_once_and_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
