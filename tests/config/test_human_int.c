// Integers with decimal and binary suffixes.
#include "cmocka_setup.h"
#include <inttypes.h>

#include "base/memory.h"
#include "config/options.h"

static void suffixes_multiply_decimal_or_binary(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } rows[] = {
        {"0", 0},
        {"4096", 4096},
        {" 4096 ", 4096},
        {"-1", -1},
        {"+7", 7},
        {"1_000", 1000},
        {"32k", 32000},
        {"32K", 32768},
        {"1m", 1000000},
        {"1M", 1048576},
        {"2g", 2000000000},
        {"2G", 2147483648},
        {"1t", 1000000000000},
        {"1T", 1099511627776},
        {"25.6k", 25600},
        {"2.3m", 2300000},
        {"0.5k", 500},
        {"1.2345k", 1234},
        {"1.00000000000000000000k", 1000},
        {"9223372036854775807", INT64_MAX},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int64_t value = -99;
        struct error err = {0};
        if (human_int_parse(str_from(rows[i].text), &value, &err) != STATUS_OK)
            fail_msg("'%s': %s", rows[i].text, err.message);
        if (value != rows[i].value)
            fail_msg("'%s' is %" PRId64 ", not %" PRId64, rows[i].text, value, rows[i].value);
    }
}

static void what_is_no_integer_is_refused(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",
        "k",
        "x",
        "1.5",
        "1.5K",
        "1.k",
        ".5k",
        "-1k",
        "1kk",
        "1 k",
        "1e3",
        "0x10",
        "1__0",
        "_1",
        "1_",
        "--1",
        "99999999999999999999",
        "9223372036854775807k",
        "9999999999999T",
        "1.2.3k",
        "1.-2k",
        "auto",
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int64_t value = 5;
        struct error err = {0};
        if (human_int_parse(str_from(rows[i]), &value, &err) != STATUS_INVALID)
            fail_msg("'%s' was taken for %" PRId64, rows[i], value);
        assert_true(err.message[0] != '\0');
        assert_int_equal(value, 5);
    }
}

static void a_decimal_point_before_a_binary_suffix_suggests_the_decimal_one(void **state)
{
    (void)state;
    int64_t value = 0;
    struct error err = {0};
    assert_int_equal(human_int_parse(STR("1.5K"), &value, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "1.5k"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(suffixes_multiply_decimal_or_binary),
        cmocka_unit_test(what_is_no_integer_is_refused),
        cmocka_unit_test(a_decimal_point_before_a_binary_suffix_suggests_the_decimal_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
