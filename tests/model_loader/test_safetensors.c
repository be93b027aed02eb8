// A safetensors header is believed only where it agrees with the file.
#include "model_loader/broken_files.h"
#include "model_loader/safetensors.h"

static void expect_refusal(struct str bytes, enum status expected, const char *part)
{
    struct safetensors file;
    struct error err = {0};
    // A copy of the exact size, so that a read past its end is seen.
    char *copy = malloc(bytes.len ? bytes.len : 1);
    memcpy(copy, bytes.ptr, bytes.len);
    enum status status =
        safetensors_parse(&file, (struct str){copy, bytes.len}, "t.safetensors", &err);
    free(copy);
    if (status != expected || !strstr(err.message, part) || !strstr(err.message, "t.safetensors"))
        fail_msg("status %d, \"%s\": expected status %d and \"%s\"", status, err.message, expected,
                 part);
}

static void headers_that_lie_are_refused(void **state)
{
    (void)state;
#define ENTRY(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header;
        size_t data_bytes;
        enum status status;
        const char *part;
    } CASES[] = {
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[2]", "[4,12]") "}", 12,
         STATUS_INVALID, "b: begins at byte 4, within a"},
        {"{" ENTRY("t", "BF16", "[1024,1024]", "[0,4]") "}", 4, STATUS_INVALID,
         "t: dtype and shape need 2097152 bytes"},
        {"{" ENTRY("t", "F32", "[2]", "[8,0]") "}", 8, STATUS_INVALID, "not a range"},
        {"{" ENTRY("t", "F32", "[2]", "[-8,0]") "}", 8, STATUS_INVALID, "not a range"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "F32", "[1]", "[8,12]") "}", 12,
         STATUS_INVALID, "a hole"},
        {"{" ENTRY("a", "F32", "[1]", "[4,8]") "}", 8, STATUS_INVALID, "a hole"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "}", 8, STATUS_INVALID,
         "end at byte 4 of a data section of 8"},
        {"{" ENTRY("a", "F32", "[4]", "[0,16]") "}", 8, STATUS_INVALID, "cut short"},
        {"{" ENTRY("t", "F32", "[4294967296,4294967296]", "[0,8]") "}", 8, STATUS_INVALID,
         "overflows"},
        {"{" ENTRY("t", "F32", "[-2]", "[0,8]") "}", 8, STATUS_INVALID, "negative dimension -2"},
        {"{" ENTRY("t", "F32", "[99999999999999999999]", "[0,8]") "}", 8, STATUS_INVALID, "t: "},
        {"{" ENTRY("t", "F32", "[2.5]", "[0,8]") "}", 8, STATUS_INVALID, "t: "},
        {"{" ENTRY("t", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, STATUS_UNSUPPORTED,
         "dimensions"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("a", "F32", "[1]", "[4,8]") "}", 8,
         STATUS_INVALID, "a: two tensors"},
        {"{" ENTRY("t", "F31", "[2]", "[0,8]") "}", 8, STATUS_INVALID, "unknown dtype \"F31\""},
        {"{" ENTRY("t", "F4", "[2]", "[0,1]") "}", 1, STATUS_UNSUPPORTED, "dtype F4"},
        {"{\"__metadata__\":5}", 0, STATUS_INVALID, "__metadata__"},
        {"{\"__metadata__\":{\"a\":5}}", 0, STATUS_INVALID, "__metadata__"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, STATUS_INVALID, "twice"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, STATUS_INVALID,
         "t: \"data_offsets\" is missing"},
        {"{\"t\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, STATUS_INVALID,
         "t: \"dtype\" is missing"},
        {"{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         STATUS_INVALID, "twice"},
        {"{" ENTRY("t", "F32", "[2]", "[0]") "}", 8, STATUS_INVALID, "instead of two"},
        {"{" ENTRY("t", "F32", "[2]", "[0,8,9]") "}", 8, STATUS_INVALID, "more than two"},
        {"{\"t\":[1]}", 8, STATUS_INVALID, "t: "},
        {"[]", 0, STATUS_INVALID, "object"},
        {"", 0, STATUS_INVALID, ""},
        {"{} x", 0, STATUS_INVALID, ""},
        {"{", 0, STATUS_INVALID, ""},
    };
    struct buf file = {0};
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        build_file(&file, CASES[i].header, CASES[i].data_bytes);
        expect_refusal(buf_str(&file), CASES[i].status, CASES[i].part);
    }
    buf_deinit(&file);
}

static void lengths_that_lie_are_refused(void **state)
{
    (void)state;
    expect_refusal(STR("\xff\xff\xff\xff\xff\xff\xff\xff"), STATUS_INVALID, "header has 1844");
    expect_refusal(STR("\x02\0\0\0\0\0\0"), STATUS_INVALID, "7 bytes are too few");
    expect_refusal(STR(""), STATUS_INVALID, "0 bytes are too few");
    expect_refusal(STR("\x03\0\0\0\0\0\0\0{}"), STATUS_INVALID, "header has 3 bytes");
    // A deep header neither overflows the stack nor is accepted.
    struct buf file = {0};
    append_u64_le(&file, 100000);
    for (int i = 0; i < 100000; i++)
        buf_append_char(&file, i == 0 ? '{' : '[');
    expect_refusal(buf_str(&file), STATUS_INVALID, "");
    buf_deinit(&file);
}

static void empty_tensors_and_scalars_are_legal(void **state)
{
    (void)state;
    struct buf bytes = {0};
    build_file(&bytes,
               "{\"__metadata__\":{\"format\":\"pt\"}," ENTRY("e", "F32", "[0]", "[0,0]") "," ENTRY(
                   "s", "F32", "[]", "[0,4]") "," ENTRY("m", "BF16", "[2,3]", "[4,16]") "}   ",
               16);
    struct safetensors file;
    struct error err = {0};
    assert_int_equal(safetensors_parse(&file, buf_str(&bytes), "t", &err), STATUS_OK);
    assert_int_equal(file.num_tensors, 3);
    assert_int_equal(safetensors_find(&file, STR("e"))->size_bytes, 0);
    const struct safetensor *scalar = safetensors_find(&file, STR("s"));
    assert_int_equal(scalar->ndim, 0);
    assert_int_equal(scalar->size_bytes, 4);
    assert_int_equal(*(const unsigned char *)scalar->data, 0);
    const struct safetensor *matrix = safetensors_find(&file, STR("m"));
    assert_int_equal(matrix->ndim, 2);
    assert_int_equal(matrix->shape[1], 3);
    assert_int_equal(*(const unsigned char *)matrix->data, 4);
    assert_string_equal(safetensor_describe(matrix, &file.arena), "BF16 [2, 3]");
    assert_null(safetensors_find(&file, STR("__metadata__")));
    safetensors_close(&file);
    buf_deinit(&bytes);
}

static void a_missing_file_and_a_folder_are_named(void **state)
{
    (void)state;
    struct safetensors file;
    struct error err = {0};
    assert_int_equal(safetensors_open(&file, "/nowhere/x.safetensors", &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nowhere/x.safetensors"));
    assert_int_equal(safetensors_open(&file, "/tmp", &err), STATUS_IO);
    safetensors_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_that_lie_are_refused),
        cmocka_unit_test(lengths_that_lie_are_refused),
        cmocka_unit_test(empty_tensors_and_scalars_are_legal),
        cmocka_unit_test(a_missing_file_and_a_folder_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
