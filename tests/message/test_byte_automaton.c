// The check of automata that come from outside: what it lets through can be walked without care.
#include "cmocka_setup.h"

#include <string.h>

#include "base/memory.h"
#include "message/byte_automaton.h"

static const uint32_t good[] = {
    2,
    0,
    2 | AUTOMATON_ACCEPTS,
    2, // two states, the second accepts
    1u << 16 | 'c' << 8 | 'a',
    0u << 16 | 'z' << 8 | 'x',
};

static void ranges_are_walked_and_other_bytes_are_dead(void **state)
{
    (void)state;
    assert_int_equal(byte_automaton_check(good, ARRAY_LEN(good), NULL), STATUS_OK);
    const struct {
        uint8_t byte;
        int32_t next;
    } rows[] = {{'a', 1}, {'b', 1}, {'c', 1},  {'d', -1}, {'w', -1},
                {'x', 0}, {'z', 0}, {'`', -1}, {0, -1},   {255, -1}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(byte_automaton_step(good, 0, rows[i].byte), rows[i].next);
    assert_int_equal(byte_automaton_step(good, 1, 'a'), AUTOMATON_DEAD);
    assert_false(byte_automaton_accepts(good, 0));
    assert_true(byte_automaton_accepts(good, 1));
}

static void malformed_automata_are_refused(void **state)
{
    (void)state;
    const struct {
        size_t at;
        uint32_t word;
        int32_t num_words;
    } rows[] = {
        {0, 0, 6},                         // no states
        {0, 5, 6},                         // more states than words
        {0, 0xFFFFFFFF, 6},                //
        {1, 1, 6},                         // the first edge belongs to nobody
        {2, 3, 6},                         // beyond the end
        {3, 1, 6},                         // not all edges
        {2, 0x7FFFFFFF, 6},                //
        {4, 2u << 16 | 'c' << 8 | 'a', 6}, // no such state
        {4, 1u << 16 | 'a' << 8 | 'c', 6}, // backwards
        {5, 1u << 16 | 'z' << 8 | 'c', 6}, // overlap
        {0, 2, 5},                         // cut
        {0, 2, 2},                         //
        {0, 2, MAX_AUTOMATON_WORDS + 1},   // too long; not read
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint32_t words[ARRAY_LEN(good)];
        memcpy(words, good, sizeof(good));
        words[rows[i].at] = rows[i].word;
        struct error err = {0};
        assert_int_equal(byte_automaton_check(words, rows[i].num_words, &err), STATUS_INVALID);
        assert_true(strlen(err.message) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_walked_and_other_bytes_are_dead),
        cmocka_unit_test(malformed_automata_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
