// The base room: text, UTF-8, buffers, arenas, hash tables, 16-bit floats, errors.
#include "cmocka_setup.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/dtype.h"
#include "base/hashmap.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"

#define BYTES(literal) STR(literal)

static void assert_str(struct str actual, const char *expected)
{
    assert_int_equal(actual.len, strlen(expected));
    assert_memory_equal(actual.ptr, expected, actual.len);
}

static void utf8_length_is_that_of_well_formed_code_points_only(void **state)
{
    (void)state;
    static const struct {
        struct str text;
        size_t len;
    } rows[] = {
        {BYTES(""), 0},
        {BYTES("a"), 1},
        {BYTES("\xC3\xA9"), 2},
        {BYTES("\xE6\xBC\xA2"), 3},
        {BYTES("\xF0\x9F\xA6\x8A"), 4},
        {BYTES("\x80"), 0},             // a continuation byte alone
        {BYTES("\xC0\x80"), 0},         // overlong
        {BYTES("\xE0\x80\x80"), 0},     // overlong
        {BYTES("\xED\xA0\x80"), 0},     // a surrogate
        {BYTES("\xF4\x90\x80\x80"), 0}, // above U+10FFFF
        {BYTES("\xF0\x9F\xA6"), 0},     // cut
        {BYTES("\xFF"), 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(utf8_valid_len(rows[i].text), rows[i].len);
}

static void utf8_decode_and_encode_are_inverse(void **state)
{
    (void)state;
    static const uint32_t code_points[] = {0,      0x7F,   0x80,   0x7FF,   0x800,
                                           0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF};
    for (size_t i = 0; i < ARRAY_LEN(code_points); i++) {
        char bytes[4];
        size_t wrote = utf8_encode(code_points[i], bytes), read;
        assert_int_equal(utf8_decode((struct str){bytes, wrote}, &read), code_points[i]);
        assert_int_equal(read, wrote);
    }
}

static void complete_prefix_leaves_a_cut_character_off(void **state)
{
    (void)state;
    assert_int_equal(utf8_complete_prefix(BYTES("ab")), 2);
    assert_int_equal(utf8_complete_prefix(BYTES("ab\xF0\x9F\xA6")), 2);
    assert_int_equal(utf8_complete_prefix(BYTES("ab\xF0")), 2);
    assert_int_equal(utf8_complete_prefix(BYTES("\xF0\x9F\xA6\x8A")), 4);
    assert_int_equal(utf8_complete_prefix(BYTES("a\xFF")), 2); // never becomes one
    assert_int_equal(utf8_complete_prefix(BYTES("")), 0);
}

static void json_strings_are_escaped_and_always_valid_utf8(void **state)
{
    (void)state;
    struct buf buf = {0};
    buf_append_json_string(&buf, BYTES("a\"\\\n\x01\x7F\xC3\xA9\xFF\xF0\x9F"));
    assert_str(buf_str(&buf),
               "\"a\\\"\\\\\\n\\u0001\x7F\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
    assert_true(utf8_is_valid(buf_str(&buf), NULL));
    buf_deinit(&buf);
}

static void json_doubles_are_the_shortest_that_read_back(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0.1, "0.1"},       {1, "1.0"},    {-0.12345678901234568, "-0.12345678901234568"},
                {1e300, "1e+300"},  {NAN, "null"}, {INFINITY, "null"},
                {-9999, "-9999.0"}, {0, "0.0"}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf buf = {0};
        buf_append_json_double(&buf, rows[i].value);
        assert_str(buf_str(&buf), rows[i].text);
        buf_deinit(&buf);
    }
}

static void integers_print_in_full_range(void **state)
{
    (void)state;
    struct buf buf = {0};
    buf_append_int(&buf, INT64_MIN);
    buf_append_char(&buf, ' ');
    buf_append_int(&buf, 0);
    buf_append_char(&buf, ' ');
    buf_append_int(&buf, INT64_MAX);
    assert_str(buf_str(&buf), "-9223372036854775808 0 9223372036854775807");
    buf_deinit(&buf);
}

static void arena_gives_back_to_a_mark_and_reuses_memory(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct arena_mark empty = arena_mark(&arena);
    char *kept = arena_strdup(&arena, STR("kept"));
    struct arena_mark mark = arena_mark(&arena);
    char *first = arena_alloc(&arena, 100);
    memset(first, 1, 100);
    for (int i = 0; i < 100; i++)
        memset(arena_alloc(&arena, 10000), 2, 10000);
    arena_release(&arena, mark);
    assert_ptr_equal(arena_alloc(&arena, 100), first);
    assert_string_equal(kept, "kept");
    arena_release(&arena, empty);
    assert_ptr_equal(arena_strdup(&arena, STR("kept")), kept);
    arena_deinit(&arena);
}

static void arena_aligns_large_blocks_to_a_cache_line(void **state)
{
    (void)state;
    struct arena arena = {0};
    for (size_t size = 1; size < 300; size += 7) {
        uintptr_t address = (uintptr_t)arena_alloc(&arena, size);
        assert_int_equal(address % (size >= 64 ? 64 : 16), 0);
    }
    arena_reset(&arena);
    arena_deinit(&arena);
}

static void hashmap_finds_what_was_set_and_only_that(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct hashmap map = {0};
    int64_t value;
    assert_false(hashmap_get(&map, STR("x"), &value));
    for (int i = 0; i < 5000; i++)
        assert_true(hashmap_set(&map, str_from(arena_printf(&arena, "key%d", i)), i));
    assert_false(hashmap_set(&map, STR("key7"), -7));
    for (int i = 0; i < 5000; i++) {
        assert_true(hashmap_get(&map, str_from(arena_printf(&arena, "key%d", i)), &value));
        assert_int_equal(value, i == 7 ? -7 : i);
    }
    assert_false(hashmap_get(&map, STR("key5000"), &value));
    hashmap_deinit(&map);
    arena_deinit(&arena);
}

static void eight_bit_floats_round_to_nearest_even_and_saturate(void **state)
{
    (void)state;
    static const struct {
        uint8_t bits;
        float value;
    } CASES[] = {{0x00, 0}, {0x01, 0x1p-9f}, {0x07, 7 * 0x1p-9f}, {0x08, 0x1p-6f},
                 {0x38, 1}, {0x3C, 1.5f},    {0xB8, -1},          {0x7E, 448}};
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++)
        assert_true(f8_e4m3_to_f32(CASES[i].bits) == CASES[i].value);
    for (uint32_t bits = 0; bits < 0x100; bits++) { // and half-way between neighbours: to even
        float value = f8_e4m3_to_f32((uint8_t)bits);
        if (isnan(value)) {
            assert_int_equal(bits & 0x7F, 0x7F);
            assert_true(isnan(f8_e4m3_to_f32(f32_to_f8_e4m3(value))));
            continue;
        }
        assert_int_equal(f32_to_f8_e4m3(value), bits);
        float next = f8_e4m3_to_f32((uint8_t)(bits + 1));
        if ((bits & 0x7F) < 0x7E)
            assert_int_equal(f32_to_f8_e4m3(value / 2 + next / 2), bits + (bits & 1));
    }
    assert_int_equal(f32_to_f8_e4m3(464.0f), 0x7E);
    assert_int_equal(f32_to_f8_e4m3(-INFINITY), 0xFE);
    assert_int_equal(f32_to_f8_e4m3(0x1p-11f), 0x00);
}

static void sixteen_bit_floats_round_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(f32_to_bf16(1.0f), 0x3F80);
    assert_int_equal(f32_to_bf16(1.00390625f), 0x3F80); // half-way: to even
    assert_int_equal(f32_to_bf16(1.01171875f), 0x3F82); // half-way: to even
    assert_true(isnan(bf16_to_f32(f32_to_bf16(NAN))));
    assert_int_equal(f32_to_f16(65520.0f), 0x7C00); // overflow
    assert_true(f16_to_f32(0x3555) == 0.333251953125f);
    assert_true(f16_to_f32(0x0001) == 5.9604644775390625e-8f);
    for (uint32_t bits = 0; bits < 0x10000; bits++) { // and half-way between neighbours: to even
        float value = f16_to_f32((uint16_t)bits);
        if (isnan(value)) {
            assert_true(isnan(f16_to_f32(f32_to_f16(value))));
            continue;
        }
        assert_int_equal(f32_to_f16(value), bits);
        float next = f16_to_f32((uint16_t)(bits + 1));
        if ((bits & 0x7FFF) < 0x7BFF)
            assert_int_equal(f32_to_f16(value / 2 + next / 2), bits + (bits & 1));
    }
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = bf16_to_f32((uint16_t)bits);
        if (!isnan(value))
            assert_int_equal(f32_to_bf16(value), bits);
    }
}

static void dtype_names_parse_in_every_spelling(void **state)
{
    (void)state;
    enum dtype dtype;
    assert_int_equal(dtype_parse(STR("torch.bfloat16"), &dtype), STATUS_OK);
    assert_int_equal(dtype, DTYPE_BF16);
    assert_int_equal(dtype_parse(STR("half"), &dtype), STATUS_OK);
    assert_int_equal(dtype, DTYPE_F16);
    assert_int_equal(dtype_parse(STR("float"), &dtype), STATUS_OK);
    assert_int_equal(dtype, DTYPE_F32);
    assert_int_equal(dtype_parse(STR("float17"), &dtype), STATUS_NOT_FOUND);
}

static void str_helpers_cut_and_find(void **state)
{
    (void)state;
    struct str rest = STR("a,b,,c");
    assert_str(str_split(&rest, ','), "a");
    assert_str(str_split(&rest, ','), "b");
    assert_str(str_split(&rest, ','), "");
    assert_str(str_split(&rest, ','), "c");
    assert_int_equal(rest.len, 0);
    assert_str(str_trim(STR(" \t x y\n")), "x y");
    assert_int_equal(str_find(STR("hello"), STR("l"), 3), 3);
    assert_true(str_find(STR("hello"), STR("l"), 4) == STR_NOT_FOUND);
    assert_true(str_find(STR("hello"), STR(""), 9) == STR_NOT_FOUND);
    assert_true(str_eq_ignore_case(STR("BeArEr"), STR("bearer")));
    assert_str(str_slice(STR("hello"), 3, 99), "lo");
}

static void errors_keep_the_field_and_take_a_prefix(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(error_set_field(&err, STATUS_INVALID, "top_p", "must be %d", 1),
                     STATUS_INVALID);
    assert_string_equal(err.field, "top_p");
    error_prefix(&err, "%s line %d", "f.json", 3);
    assert_string_equal(err.message, "f.json line 3: must be 1");
    assert_int_equal(error_set(NULL, STATUS_IO, "no one reads this"), STATUS_IO);
    error_set(&err, STATUS_INVALID, "again: %s", err.message); // an argument from the error itself
    assert_string_equal(err.message, "again: f.json line 3: must be 1");
}

static void a_missing_file_and_a_folder_are_refused_by_name(void **state)
{
    (void)state;
    struct mapped_file file;
    struct error err;
    assert_int_equal(mapped_file_open(&file, "/nonexistent/file", &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent/file"));
    assert_int_equal(mapped_file_open(&file, "/tmp", &err), STATUS_IO);
    assert_non_null(strstr(err.message, "/tmp"));
}

static void random_hex_has_the_length_asked_for(void **state)
{
    (void)state;
    char a[33], b[33];
    random_hex(a, 32);
    random_hex(b, 32);
    assert_int_equal(strlen(a), 32);
    assert_int_equal(strspn(a, "0123456789abcdef"), 32);
    assert_string_not_equal(a, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(utf8_length_is_that_of_well_formed_code_points_only),
        cmocka_unit_test(utf8_decode_and_encode_are_inverse),
        cmocka_unit_test(complete_prefix_leaves_a_cut_character_off),
        cmocka_unit_test(json_strings_are_escaped_and_always_valid_utf8),
        cmocka_unit_test(json_doubles_are_the_shortest_that_read_back),
        cmocka_unit_test(integers_print_in_full_range),
        cmocka_unit_test(arena_gives_back_to_a_mark_and_reuses_memory),
        cmocka_unit_test(arena_aligns_large_blocks_to_a_cache_line),
        cmocka_unit_test(hashmap_finds_what_was_set_and_only_that),
        cmocka_unit_test(eight_bit_floats_round_to_nearest_even_and_saturate),
        cmocka_unit_test(sixteen_bit_floats_round_to_nearest_even),
        cmocka_unit_test(dtype_names_parse_in_every_spelling),
        cmocka_unit_test(str_helpers_cut_and_find),
        cmocka_unit_test(errors_keep_the_field_and_take_a_prefix),
        cmocka_unit_test(a_missing_file_and_a_folder_are_refused_by_name),
        cmocka_unit_test(random_hex_has_the_length_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
