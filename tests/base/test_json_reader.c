#include "cmocka_setup.h"

#include "base/json_reader.h"
#include "base/memory.h"

/** Writes the tokens of `text` as one line, so that a table can say what is expected. */
static void trace(struct str text, struct arena *arena, char *out, size_t out_size)
{
    struct json_reader reader;
    json_reader_init(&reader, text, arena);
    size_t len = 0;
    out[0] = '\0';
    for (;;) {
        enum json_token token = json_reader_next(&reader);
        char piece[256] = "";
        switch (token) {
        case JSON_TOKEN_OBJECT_BEGIN:
            snprintf(piece, sizeof(piece), "{ ");
            break;
        case JSON_TOKEN_OBJECT_END:
            snprintf(piece, sizeof(piece), "} ");
            break;
        case JSON_TOKEN_ARRAY_BEGIN:
            snprintf(piece, sizeof(piece), "[ ");
            break;
        case JSON_TOKEN_ARRAY_END:
            snprintf(piece, sizeof(piece), "] ");
            break;
        case JSON_TOKEN_KEY:
            snprintf(piece, sizeof(piece), "k:" STR_FORMAT " ", STR_ARG(reader.string));
            break;
        case JSON_TOKEN_STRING:
            snprintf(piece, sizeof(piece), "s:" STR_FORMAT " ", STR_ARG(reader.string));
            break;
        case JSON_TOKEN_INTEGER:
            snprintf(piece, sizeof(piece), "i:%lld ", (long long)reader.integer);
            break;
        case JSON_TOKEN_DOUBLE:
            snprintf(piece, sizeof(piece), "d:%.17g ", reader.number);
            break;
        case JSON_TOKEN_BOOL:
            snprintf(piece, sizeof(piece), reader.boolean ? "true " : "false ");
            break;
        case JSON_TOKEN_NULL:
            snprintf(piece, sizeof(piece), "null ");
            break;
        case JSON_TOKEN_END:
            snprintf(piece, sizeof(piece), "end");
            break;
        case JSON_TOKEN_ERROR: {
            struct error err = {0};
            assert_int_equal(json_reader_status(&reader, &err), STATUS_INVALID);
            snprintf(piece, sizeof(piece), "E@%zu", reader.problem_offset);
            break;
        }
        }
        len += (size_t)snprintf(out + len, out_size - len, "%s", piece);
        if (token == JSON_TOKEN_END || token == JSON_TOKEN_ERROR)
            return;
    }
}

struct trace_case {
    const char *text, *expected;
};

static void check_traces(const struct trace_case *cases, size_t num_cases)
{
    struct arena arena = {0};
    for (size_t i = 0; i < num_cases; i++) {
        char out[1024];
        trace(str_from(cases[i].text), &arena, out, sizeof(out));
        if (strcmp(out, cases[i].expected) != 0)
            fail_msg("%s\n  expected %s\n  found    %s", cases[i].text, cases[i].expected, out);
    }
    arena_deinit(&arena);
}

static void well_formed_text_gives_its_tokens(void **state)
{
    (void)state;
    static const struct trace_case cases[] = {
        {"null", "null end"},
        {" [ ] ", "[ ] end"},
        {"{}", "{ } end"},
        {"[1, -2 ,3.5,1e2,-0]", "[ i:1 i:-2 d:3.5 d:100 i:0 ] end"},
        {"{\"a\":{\"b\":[true,false,null]},\"c\":\"d\"}",
         "{ k:a { k:b [ true false null ] } k:c s:d } end"},
        {"{\"a\":1,\"a\":2}", "{ k:a i:1 k:a i:2 } end"},
        {"9223372036854775807", "i:9223372036854775807 end"},
        {"-9223372036854775808", "i:-9223372036854775808 end"},
        {"9223372036854775808", "d:9.2233720368547758e+18 end"},
        {"\"\"", "s: end"},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "s:\"\\/\b\f\n\r\t end"},
        {"\"\\u00e9\\uD83E\\udd8A.\"", "s:\xC3\xA9\xF0\x9F\xA6\x8A. end"},
        {"\"\xC3\xA9\x7F\"", "s:\xC3\xA9\x7F end"},
        {"{\"\\u0041\":[[]]}", "{ k:A [ [ ] ] } end"},
    };
    check_traces(cases, ARRAY_LEN(cases));
}

static void malformed_text_is_an_error_with_its_offset(void **state)
{
    (void)state;
    static const struct trace_case cases[] = {
        {"", "E@0"},
        {"  ", "E@2"},
        {"[", "[ E@1"},
        {"[1", "[ i:1 E@2"},
        {"[1,]", "[ i:1 E@3"},
        {"[1,", "[ i:1 E@3"},
        {"[,1]", "[ E@1"},
        {"[1 2]", "[ i:1 E@3"},
        {"[1}", "[ i:1 E@2"},
        {"{\"a\" 1}", "{ E@5"},
        {"{\"a\":}", "{ k:a E@5"},
        {"{\"a\":1,}", "{ k:a i:1 E@7"},
        {"{\"a\":1]", "{ k:a i:1 E@6"},
        {"{a:1}", "{ E@1"},
        {"{1:1}", "{ E@1"},
        {"]", "E@0"},
        {"1 1", "i:1 E@2"},
        {"01", "E@0"},
        {"-", "E@0"},
        {"+1", "E@0"},
        {"1.", "E@0"},
        {".5", "E@0"},
        {"1e", "E@0"},
        {"1e+", "E@0"},
        {"1e999", "E@0"},
        {"NaN", "E@0"},
        {"tru", "E@0"},
        {"truex", "true E@4"},
        {"'a'", "E@0"},
        {"\"a", "E@0"},
        {"\"a\\", "E@0"},
        {"\"a\\\"", "E@0"},
        {"\"\\x\"", "E@1"},
        {"\"\\u12\"", "E@1"},
        {"\"\\u12g4\"", "E@1"},
        {"\"\\ud800\"", "E@1"},
        {"\"\\ud800\\u0041\"", "E@1"},
        {"\"\\udc00\"", "E@1"},
        {"\"a\nb\"", "E@2"},
        {"\"\xFF\"", "E@1"},
        {"\"\xED\xA0\x80\"", "E@1"},
        {"\"\xC0\xAF\"", "E@1"},
        {"\"\xE2\x82\"", "E@1"},
        {"\xEF\xBB\xBF{}", "E@0"},
        {"// no\n1", "E@0"},
    };
    check_traces(cases, ARRAY_LEN(cases));
}

static void zero_character_is_kept_in_strings_only(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct json_reader reader;
    struct str value;
    json_reader_init(&reader, STR("\"a\\u0000b\""), &arena);
    assert_int_equal(json_reader_read_string(&reader, &value, NULL), STATUS_OK);
    assert_true(str_eq(value, STR("a\0b")));
    json_reader_init(&reader, STR("1\0"), &arena);
    assert_int_equal(json_reader_next(&reader), JSON_TOKEN_INTEGER);
    assert_int_equal(json_reader_next(&reader), JSON_TOKEN_ERROR);
    arena_deinit(&arena);
}

static void string_without_escapes_is_a_slice_of_the_input(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct json_reader reader;
    struct str text = STR("\"plain\""), value;
    json_reader_init(&reader, text, &arena);
    assert_int_equal(json_reader_read_string(&reader, &value, NULL), STATUS_OK);
    assert_ptr_equal(value.ptr, text.ptr + 1);
    assert_null(arena.chunk);
}

static void depth_is_bounded(void **state)
{
    (void)state;
    struct arena arena = {0};
    for (int depth = JSON_READER_MAX_DEPTH; depth <= JSON_READER_MAX_DEPTH + 1; depth++) {
        char text[2 * JSON_READER_MAX_DEPTH + 2];
        for (int i = 0; i < depth; i++) {
            text[i] = '[';
            text[2 * depth - 1 - i] = ']';
        }
        struct json_reader reader;
        json_reader_init(&reader, (struct str){text, (size_t)depth * 2}, &arena);
        json_reader_skip_value(&reader);
        enum json_token last = json_reader_next(&reader);
        assert_int_equal(last, depth > JSON_READER_MAX_DEPTH ? JSON_TOKEN_ERROR : JSON_TOKEN_END);
    }
    arena_deinit(&arena);
}

static void keys_and_elements_are_walked_and_skipped(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct json_reader reader;
    json_reader_init(&reader, STR("{\"skip\":{\"x\":[1,{}]},\"list\":[1,2,3],\"on\":true}"),
                     &arena);
    struct error err = {0};
    assert_int_equal(json_reader_expect(&reader, JSON_TOKEN_OBJECT_BEGIN, &err), STATUS_OK);
    int64_t sum = 0, value;
    bool on = false;
    for (struct str key; json_reader_next_key(&reader, &key);) {
        if (str_eq_c(key, "list")) {
            assert_int_equal(json_reader_expect(&reader, JSON_TOKEN_ARRAY_BEGIN, &err), STATUS_OK);
            while (json_reader_next_element(&reader)) {
                assert_int_equal(json_reader_read_int(&reader, &value, &err), STATUS_OK);
                sum += value;
            }
        } else if (str_eq_c(key, "on")) {
            assert_int_equal(json_reader_read_bool(&reader, &on, &err), STATUS_OK);
        } else {
            json_reader_skip_value(&reader);
        }
    }
    assert_int_equal(json_reader_status(&reader, &err), STATUS_OK);
    assert_int_equal(json_reader_next(&reader), JSON_TOKEN_END);
    assert_int_equal(sum, 6);
    assert_true(on);
    arena_deinit(&arena);
}

static void wrong_kind_is_named_in_the_error(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct json_reader reader;
    struct error err = {0};
    struct str value;
    json_reader_init(&reader, STR("[null]"), &arena);
    assert_int_equal(json_reader_expect(&reader, JSON_TOKEN_ARRAY_BEGIN, &err), STATUS_OK);
    assert_int_equal(json_reader_read_string(&reader, &value, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "at byte 1: expected a string, found null"));
    json_reader_init(&reader, STR("[nul]"), &arena);
    assert_int_equal(json_reader_expect(&reader, JSON_TOKEN_ARRAY_BEGIN, &err), STATUS_OK);
    assert_int_equal(json_reader_read_string(&reader, &value, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "malformed JSON at byte 1"));
    arena_deinit(&arena);
}

static void peeked_token_is_read_once_more(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct json_reader reader;
    json_reader_init(&reader, STR("[7]"), &arena);
    assert_int_equal(json_reader_peek(&reader), JSON_TOKEN_ARRAY_BEGIN);
    assert_int_equal(json_reader_next(&reader), JSON_TOKEN_ARRAY_BEGIN);
    assert_int_equal(json_reader_peek(&reader), JSON_TOKEN_INTEGER);
    assert_int_equal(json_reader_next(&reader), JSON_TOKEN_INTEGER);
    assert_int_equal(reader.integer, 7);
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(well_formed_text_gives_its_tokens),
        cmocka_unit_test(malformed_text_is_an_error_with_its_offset),
        cmocka_unit_test(zero_character_is_kept_in_strings_only),
        cmocka_unit_test(string_without_escapes_is_a_slice_of_the_input),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(keys_and_elements_are_walked_and_skipped),
        cmocka_unit_test(wrong_kind_is_named_in_the_error),
        cmocka_unit_test(peeked_token_is_read_once_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
