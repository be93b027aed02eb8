// Lists of strings as automata: exactly the strings are accepted, whatever their order.
#include "cmocka_setup.h"

#include <stdlib.h>
#include <string.h>

#include "message/byte_automaton.h"
#include "structured_output/choice_compiler.h"

/** The state after `text`. */
static int32_t walk(const uint32_t *words, const char *text)
{
    int32_t state = 0;
    for (; *text && state != AUTOMATON_DEAD; text++)
        state = byte_automaton_step(words, state, (uint8_t)*text);
    return state;
}

static bool accepts(const uint32_t *words, const char *text)
{
    int32_t state = walk(words, text);
    return state != AUTOMATON_DEAD && byte_automaton_accepts(words, state);
}

static const uint32_t *compile(const char *const *texts, int32_t num, struct arena *arena)
{
    struct str choices[16];
    const uint32_t *words;
    int32_t num_words;
    struct error err = {0};
    for (int32_t i = 0; i < num; i++)
        choices[i] = str_from(texts[i]);
    assert_int_equal(choice_compile(choices, num, arena, &words, &num_words, &err), STATUS_OK);
    assert_int_equal(byte_automaton_check(words, num_words, &err), STATUS_OK);
    return words;
}

static void exactly_the_choices_are_accepted(void **state)
{
    (void)state;
    struct arena arena = {0};
    const char *const choices[] = {"yes", "größe", "no", "yesterday", "東京", "no", "\xFF\x01"};
    const uint32_t *words = compile(choices, 7, &arena);
    for (int i = 0; i < 7; i++)
        assert_true(accepts(words, choices[i]));
    const char *const others[] = {"",   "y",      "ye", "yest",         "yesterdays",
                                  "gr", "gr\xC3", "nö", "\xE6\x9D\xB1", "\xFF"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_false(accepts(words, others[i]));
    arena_deinit(&arena);
}

static void the_order_of_choices_changes_nothing(void **state)
{
    (void)state;
    struct arena arena = {0};
    const char *const one[] = {"a", "ab", "b"}, *const other[] = {"b", "ab", "a", "ab"};
    const uint32_t *x = compile(one, 3, &arena), *y = compile(other, 4, &arena);
    assert_int_equal(x[0], 4);
    assert_memory_equal(x, y, (2 + 4 + 3) * sizeof(*x));
    arena_deinit(&arena);
}

static void an_empty_choice_is_a_text(void **state)
{
    (void)state;
    struct arena arena = {0};
    const char *const choices[] = {""};
    const uint32_t *words = compile(choices, 1, &arena);
    assert_true(accepts(words, ""));
    assert_int_equal(walk(words, "a"), AUTOMATON_DEAD);
    arena_deinit(&arena);
}

static void five_thousand_choices_fit_and_too_many_bytes_are_refused(void **state)
{
    (void)state;
    enum { NUM = 5000 };
    struct arena arena = {0};
    struct str *choices = calloc(NUM, sizeof(*choices));
    for (int i = 0; i < NUM; i++)
        choices[i] = str_from(arena_printf(&arena, "s%d", i));
    const uint32_t *words;
    int32_t num_words;
    struct error err = {0};
    assert_int_equal(choice_compile(choices, NUM, &arena, &words, &num_words, &err), STATUS_OK);
    assert_true(accepts(words, "s4999"));
    assert_false(accepts(words, "s5000"));

    char *longest = malloc(MAX_AUTOMATON_STATES + 1);
    memset(longest, 'x', MAX_AUTOMATON_STATES);
    struct str text = {longest, MAX_AUTOMATON_STATES - 1};
    assert_int_equal(choice_compile(&text, 1, &arena, &words, &num_words, &err), STATUS_OK);
    assert_int_equal(byte_automaton_check(words, num_words, &err), STATUS_OK);
    text.len++;
    assert_int_equal(choice_compile(&text, 1, &arena, &words, &num_words, &err), STATUS_TOO_LARGE);
    free(longest);
    free(choices);
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exactly_the_choices_are_accepted),
        cmocka_unit_test(the_order_of_choices_changes_nothing),
        cmocka_unit_test(an_empty_choice_is_a_text),
        cmocka_unit_test(five_thousand_choices_fit_and_too_many_bytes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
