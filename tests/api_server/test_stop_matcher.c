// Stop strings: whatever way the text is cut into pieces, the answer is the same.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api_server/stop_matcher.h"
#include "base/buf.h"
#include "base/memory.h"
#include "base/utf8.h"

struct scenario {
    const char *text;
    const char *stops[4];
    bool include;
    const char *expected; // what the client sees
    int32_t matched;      // index, or -1
};

static const struct scenario scenarios[] = {
    {"Hello world", {"wor"}, false, "Hello ", 0},
    {"Hello world", {"wor"}, true, "Hello wor", 0},
    {"Hello world", {"xyz"}, false, "Hello world", -1},
    {"abcabd", {"abd"}, false, "abc", 0},
    {"aaab", {"aab"}, false, "a", 0},
    {"Hello", {"Hello"}, false, "", 0},
    {"one two three", {"three", "two"}, false, "one ", 1},
    {"xabcdef", {"abcdef", "cd"}, false, "xab", 1}, // ends first
    {"xabc", {"bc", "abc"}, false, "xa", 0},        // a tie: listed first
    {"xabc", {"abc", "bc"}, false, "x", 0},         // the other way round
    {"a\n\nUser: b", {"\nUser:", "###"}, false, "a\n", 0},
    {"gr\xC3\xBC\xC3\x9F"
     "e",
     {"\xC3\x9F"},
     false,
     "gr\xC3\xBC",
     0},
    {"\xF0\x9F\xA6\x8A\xE8\xAA\x9E!", {"\xE8\xAA\x9E!"}, false, "\xF0\x9F\xA6\x8A", 0},
    {"\xF0\x9F\xA6\x8A\xE8\xAA\x9E", {"\xE8\xAA\x9E?"}, false, "\xF0\x9F\xA6\x8A\xE8\xAA\x9E", -1},
    {"ababab", {"abab"}, false, "", 0},
    {"", {"x"}, false, "", -1},
};

/** Feeds the pieces that end at `cuts`; checks that what is shown never has to be taken back. */
static void feed(const struct scenario *s, const size_t *cuts, size_t num_cuts)
{
    struct str stops[4];
    int32_t num_stops = 0;
    for (; num_stops < 4 && s->stops[num_stops]; num_stops++)
        stops[num_stops] = str_from(s->stops[num_stops]);
    struct stop_matcher m = stop_matcher_make(stops, num_stops, s->include);
    struct buf text = {0}, shown = {0};
    int32_t matched = -1;
    size_t total = strlen(s->text);
    for (size_t i = 0; i <= num_cuts && matched < 0; i++) {
        size_t from = i == 0 ? 0 : cuts[i - 1], to = i == num_cuts ? total : cuts[i], cut;
        buf_append(&text, (struct str){s->text + from, to - from});
        if (to > from)
            matched = stop_matcher_find(&m, buf_str(&text), to - from, &cut);
        if (matched >= 0)
            text.len = cut;
        size_t visible =
            matched >= 0 || i == num_cuts ? text.len : stop_matcher_visible(&m, buf_str(&text));
        assert_true(visible >= shown.len); // never taken back
        buf_append(&shown, str_slice(buf_str(&text), shown.len, visible));
        assert_true(utf8_is_valid(buf_str(&shown), NULL));
    }
    if (matched != s->matched || !str_eq_c(buf_str(&shown), s->expected))
        fail_msg("\"%s\" with %zu cuts (%zu %zu): matched %d, shown \"%.*s\", expected \"%s\"",
                 s->text, num_cuts, num_cuts > 0 ? cuts[0] : 0, num_cuts > 1 ? cuts[1] : 0, matched,
                 (int)shown.len, shown.ptr ? shown.ptr : "", s->expected);
    buf_deinit(&text);
    buf_deinit(&shown);
}

static bool is_boundary(const char *text, size_t at)
{
    return ((unsigned char)text[at] & 0xC0) != 0x80;
}

static void any_cut_into_two_pieces_gives_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(scenarios); i++) {
        feed(&scenarios[i], NULL, 0);
        for (size_t cut = 0; cut <= strlen(scenarios[i].text); cut++) {
            if (is_boundary(scenarios[i].text, cut))
                feed(&scenarios[i], &cut, 1);
        }
    }
}

static void any_cut_into_three_pieces_gives_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(scenarios); i++) {
        size_t len = strlen(scenarios[i].text);
        for (size_t a = 0; a <= len; a++) {
            for (size_t b = a; b <= len; b++) {
                if (is_boundary(scenarios[i].text, a) && is_boundary(scenarios[i].text, b))
                    feed(&scenarios[i], (size_t[]){a, b}, 2);
            }
        }
    }
}

static void text_that_comes_character_by_character_gives_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(scenarios); i++) {
        size_t cuts[64], count = 0;
        for (size_t at = 1; scenarios[i].text[0] && at < strlen(scenarios[i].text); at++) {
            if (is_boundary(scenarios[i].text, at))
                cuts[count++] = at;
        }
        feed(&scenarios[i], cuts, count);
    }
}

static void only_matches_that_end_in_the_new_part_count(void **state)
{
    (void)state;
    struct str stop = STR("\n");
    struct stop_matcher m = stop_matcher_make(&stop, 1, false);
    size_t cut;
    assert_int_equal(stop_matcher_find(&m, STR("a\n\nb"), 1, &cut), -1); // min_tokens skipped them
    assert_int_equal(stop_matcher_find(&m, STR("a\n\n"), 1, &cut), 0);
    assert_int_equal(cut, 2);
}

static void as_many_characters_are_held_back_as_the_longest_stop_has_less_one(void **state)
{
    (void)state;
    struct str stops[] = {STR("ab"), STR("\xC3\xA9\xC3\xA9\xC3\xA9")}; // three characters
    struct stop_matcher m = stop_matcher_make(stops, 2, false);
    assert_int_equal(m.hold_back, 2);
    assert_int_equal(stop_matcher_visible(&m, STR("xy\xC3\xA9z")), 2);
    assert_int_equal(stop_matcher_visible(&m, STR("x")), 0);
    m = stop_matcher_make(stops, 2, true);
    assert_int_equal(stop_matcher_visible(&m, STR("xyz")), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_into_two_pieces_gives_the_same),
        cmocka_unit_test(any_cut_into_three_pieces_gives_the_same),
        cmocka_unit_test(text_that_comes_character_by_character_gives_the_same),
        cmocka_unit_test(only_matches_that_end_in_the_new_part_count),
        cmocka_unit_test(as_many_characters_are_held_back_as_the_longest_stop_has_less_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
