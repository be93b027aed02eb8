// VLLM_CPU_OMP_THREADS_BIND: lists, ranks, and what is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "worker/cpu_threads.h"

/** The first core this process may use. */
static int32_t first_core(cpu_set_t *allowed)
{
    assert_int_equal(sched_getaffinity(0, sizeof(*allowed), allowed), 0);
    for (int32_t core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, allowed))
            return core;
    }
    fail();
    return -1;
}

static void a_list_gives_a_thread_to_each_core(void **state)
{
    (void)state;
    cpu_set_t allowed;
    int32_t core = first_core(&allowed);
    char text[64];
    snprintf(text, sizeof(text), "%d-%d|%d", core, core, core);
    struct error err = {0};
    for (int32_t rank = 0; rank < 2; rank++) {
        struct cpu_threads threads;
        assert_int_equal(cpu_threads_parse(&threads, text, rank, &err), STATUS_OK);
        assert_int_equal(threads.num_threads, 1);
        assert_int_equal(threads.cores[0], core);
        assert_true(threads.is_bound && threads.is_one_a_core);
        assert_int_equal(cpu_threads_start(&threads, &err), STATUS_OK);
        cpu_set_t now;
        assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
        assert_int_equal(CPU_COUNT(&now), 1);
        assert_true(CPU_ISSET(core, &now));
        assert_int_equal(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
    }
}

static void auto_and_nobind_need_no_list(void **state)
{
    (void)state;
    static const char *const BINDINGS[] = {NULL, "", "auto", "nobind"};
    struct error err = {0};
    for (size_t i = 0; i < sizeof(BINDINGS) / sizeof(BINDINGS[0]); i++) {
        struct cpu_threads threads;
        assert_int_equal(cpu_threads_parse(&threads, BINDINGS[i], 0, &err), STATUS_OK);
        assert_true(threads.num_threads >= 1);
        assert_false(threads.is_one_a_core);
        assert_int_equal(threads.is_bound, i < 3);
        assert_int_equal(cpu_threads_start(&threads, &err), STATUS_OK);
    }
}

static void what_is_no_list_of_usable_cores_is_refused(void **state)
{
    (void)state;
    static const char *const BINDINGS[] = {"all", "0-", "-1", "3-1",  "0,0",         "0,,1",
                                           "0 1", "|",  ",",  "1023", "99999999999", "0-1-2"};
    for (size_t i = 0; i < sizeof(BINDINGS) / sizeof(BINDINGS[0]); i++) {
        struct cpu_threads threads;
        struct error err = {0};
        if (cpu_threads_parse(&threads, BINDINGS[i], 0, &err) != STATUS_INVALID)
            fail_msg("\"%s\" was accepted", BINDINGS[i]);
        assert_non_null(strstr(err.message, BINDINGS[i]));
        assert_non_null(strstr(err.message, "VLLM_CPU_OMP_THREADS_BIND"));
    }
    struct cpu_threads threads;
    struct error err = {0};
    assert_int_equal(cpu_threads_parse(&threads, "0", 1, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "rank 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_gives_a_thread_to_each_core),
        cmocka_unit_test(auto_and_nobind_need_no_list),
        cmocka_unit_test(what_is_no_list_of_usable_cores_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
