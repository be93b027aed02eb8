// The page that processes share, and what counts as a healthy engine.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "message/shared_page.h"

#define SECOND INT64_C(1000000000)

static void a_child_writes_what_its_parent_reads(void **state)
{
    (void)state;
    struct shared_page *page;
    assert_int_equal(shared_page_create(&page, 2, NULL), STATUS_OK);
    assert_int_equal(page->num_api_servers, 2);
    assert_int_equal(atomic_load(&page->engine.state), ENGINE_STATE_STARTING);
    pid_t pid = fork();
    if (pid == 0) {
        atomic_store(&page->engine.num_running, 42);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(atomic_load(&page->engine.num_running), 42);
    shared_page_destroy(page);
    shared_page_destroy(NULL);
}

static void a_count_of_api_servers_out_of_range_is_refused(void **state)
{
    (void)state;
    struct shared_page *page;
    assert_int_equal(shared_page_create(&page, 0, NULL), STATUS_INVALID);
    assert_int_equal(shared_page_create(&page, MAX_API_SERVERS + 1, NULL), STATUS_INVALID);
}

static void health_follows_beat_and_progress(void **state)
{
    (void)state;
    static const struct {
        enum engine_state state;
        int64_t heartbeat_s, step_start_s, progress_s, now_s;
        bool healthy;
    } cases[] = {
        {ENGINE_STATE_STARTING, 100, 0, 0, 100, false},
        {ENGINE_STATE_DEAD, 100, 0, 0, 100, false},
        {ENGINE_STATE_READY, 100, 0, 0, 100, true},
        {ENGINE_STATE_READY, 100, 0, 0, 104, true},
        {ENGINE_STATE_READY, 100, 0, 0, 105, false},
        {ENGINE_STATE_READY, 100, 0, 104, 105, false},   // progress counts within a step alone
        {ENGINE_STATE_READY, 100, 100, 118, 120, true},  // a long prefill
        {ENGINE_STATE_READY, 100, 100, 110, 120, false}, // a step that hangs
        {ENGINE_STATE_READY, 101, 0, 0, 100, true},      // a beat after the clock was read
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct engine_page page = {0};
        page.state = cases[i].state;
        page.heartbeat_ns = cases[i].heartbeat_s * SECOND;
        page.step_start_ns = cases[i].step_start_s * SECOND;
        page.progress_ns = cases[i].progress_s * SECOND;
        assert_int_equal(engine_page_is_healthy(&page, cases[i].now_s * SECOND), cases[i].healthy);
    }
}

static void watching_tells_a_long_step_from_a_hanging_one(void **state)
{
    (void)state;
    struct engine_page page = {0};
    page.state = ENGINE_STATE_READY;
    page.heartbeat_ns = page.step_start_ns = 100 * SECOND;
    int64_t now_s = 100;
    for (; now_s < 130; now_s++) {
        page.progress++;
        engine_page_watch(&page, now_s * SECOND);
        assert_true(engine_page_is_healthy(&page, now_s * SECOND));
    }
    for (; now_s < 140; now_s++)
        engine_page_watch(&page, now_s * SECOND);
    assert_false(engine_page_is_healthy(&page, now_s * SECOND));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_writes_what_its_parent_reads),
        cmocka_unit_test(a_count_of_api_servers_out_of_range_is_refused),
        cmocka_unit_test(health_follows_beat_and_progress),
        cmocka_unit_test(watching_tells_a_long_step_from_a_hanging_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
