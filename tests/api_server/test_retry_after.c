// When a refused client is told to come back.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api_server/retry_after.h"

static const int64_t SECOND = 1000000000;

static void the_time_is_the_excess_over_the_measured_pace(void **state)
{
    (void)state;
    struct retry_after ra = {0};
    struct progress_sample now = {.at_ns = 5 * SECOND};
    assert_int_equal(retry_after_seconds(&ra, &now, 100, 100), 1); // nothing measured
    for (int i = 0; i <= 40; i++) { // 200 tokens and half a request a second
        now = (struct progress_sample){(5 + i) * SECOND, 200 * i, i / 2};
        retry_after_sample(&ra, &now);
    }
    assert_int_equal(retry_after_seconds(&ra, &now, 0, 0), 1);
    assert_int_equal(retry_after_seconds(&ra, &now, 1900, 0), 10);
    assert_in_range(retry_after_seconds(&ra, &now, 0, 4), 8, 10);
    assert_int_equal(retry_after_seconds(&ra, &now, 1 << 30, 0), MAX_RETRY_AFTER_S);
}

static void an_engine_that_stands_still_promises_nothing(void **state)
{
    (void)state;
    struct retry_after ra = {0};
    struct progress_sample now = {0};
    for (int i = 0; i <= 20; i++) {
        now = (struct progress_sample){(1 + i) * SECOND, 700, 3};
        retry_after_sample(&ra, &now);
    }
    assert_int_equal(retry_after_seconds(&ra, &now, 10, 0), MAX_RETRY_AFTER_S);
    assert_int_equal(retry_after_seconds(&ra, &now, 0, 1), MAX_RETRY_AFTER_S);
}

static void an_old_pace_is_forgotten(void **state)
{
    (void)state;
    struct retry_after ra = {0};
    struct progress_sample now = {.at_ns = SECOND};
    for (int i = 1; i <= 100; i++) {
        now.at_ns += SECOND;
        now.num_prompt_tokens += i <= 50 ? 10 : 1000;
        retry_after_sample(&ra, &now);
    }
    assert_int_equal(retry_after_seconds(&ra, &now, 2900, 0), 3);
}

static void samples_closer_than_a_second_are_passed_over(void **state)
{
    (void)state;
    struct retry_after ra = {0};
    for (int i = 0; i < 1000; i++) {
        struct progress_sample now = {.at_ns = SECOND + i * (SECOND / 100)};
        retry_after_sample(&ra, &now);
    }
    assert_int_equal(ra.num_samples, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_time_is_the_excess_over_the_measured_pace),
        cmocka_unit_test(an_engine_that_stands_still_promises_nothing),
        cmocka_unit_test(an_old_pace_is_forgotten),
        cmocka_unit_test(samples_closer_than_a_second_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
