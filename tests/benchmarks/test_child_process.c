// Commands beside us: how they end, what is left of them, and that their groups end with them.
#include "cmocka_setup.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "benchmarks/child_process.h"

#define GIVE_UP_NS INT64_C(60000000000)

static const char *log_path(void)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/vllm-child-%d.log", (int)getpid());
    return path;
}

static enum status start_shell(struct child_process *child, const char *script,
                               const char *environment, struct error *err)
{
    const char *items[] = {"sh", "-c", script};
    struct str_list words = {items, 3};
    return child_process_start(child, &words, log_path(), environment, err);
}

static void nap(void)
{
    nanosleep(&(struct timespec){0, 5000000}, NULL);
}

static void wait_until_ended(const struct child_process *child, char *how, size_t size)
{
    int64_t until_ns = clock_monotonic_ns() + GIVE_UP_NS;
    while (!child_process_has_ended(child, how, size)) {
        assert_true(clock_monotonic_ns() < until_ns);
        nap();
    }
}

/** The number that the child printed, waited for. */
static pid_t read_printed_pid(void)
{
    int64_t until_ns = clock_monotonic_ns() + GIVE_UP_NS;
    for (;;) {
        char line[32] = "";
        FILE *file = fopen(log_path(), "r");
        bool is_whole = file && fgets(line, sizeof(line), file) && strchr(line, '\n');
        if (file)
            fclose(file);
        if (is_whole)
            return (pid_t)strtol(line, NULL, 10);
        assert_true(clock_monotonic_ns() < until_ns);
        nap();
    }
}

/** Whether the process is there and no corpse. */
static bool is_running(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t len = fread(text, 1, sizeof(text) - 1, file);
    text[len] = '\0';
    fclose(file);
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] != '\0' && name_end[2] != 'Z';
}

static void wait_until_gone(pid_t pid)
{
    int64_t until_ns = clock_monotonic_ns() + GIVE_UP_NS;
    while (is_running(pid)) {
        assert_true(clock_monotonic_ns() < until_ns);
        nap();
    }
}

static void how_it_ended_and_what_it_said_last_can_be_told(void **state)
{
    (void)state;
    static const struct {
        const char *script, *how, *output;
        bool succeeded;
    } rows[] = {
        {"echo hello; exit 0", "exit status 0", "hello", true},
        {"echo first; echo last >&2; exit 3", "exit status 3", "first\nlast", false},
        {"kill -KILL $$", "signal 9", "it printed nothing", false},
        {"i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done", "exit status 0",
         "line 498\nline 499", true},
        {"cat; echo \"$VLLM_SERVER_DEV_MODE\"", "exit status 0", "\n1", true}, // no input
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct child_process child;
        struct error err = {0};
        struct arena arena = {0};
        char how[32];
        assert_int_equal(start_shell(&child, rows[i].script, "VLLM_SERVER_DEV_MODE=1", &err),
                         STATUS_OK);
        wait_until_ended(&child, how, sizeof(how));
        assert_string_equal(how, rows[i].how);
        assert_int_equal(child_process_has_succeeded(&child), rows[i].succeeded);
        const char *output = child_process_last_output(&child, &arena);
        if (!strstr(output, rows[i].output) || strstr(output, "line 1\n"))
            fail_msg("%s: %s", rows[i].script, output);
        child_process_stop(&child, SIGTERM, 60);
        assert_int_equal(child.pid, 0);
        child_process_stop(&child, SIGTERM, 60); // nothing to do
        arena_deinit(&arena);
    }
    unlink(log_path());
}

static void a_variable_that_is_set_stays(void **state)
{
    (void)state;
    struct child_process child;
    struct error err = {0};
    struct arena arena = {0};
    char how[32];
    setenv("VLLM_TEST_SETTING", "mine", 1);
    assert_int_equal(
        start_shell(&child, "echo \"<$VLLM_TEST_SETTING>\"", "VLLM_TEST_SETTING=other", &err),
        STATUS_OK);
    wait_until_ended(&child, how, sizeof(how));
    assert_non_null(strstr(child_process_last_output(&child, &arena), "<mine>"));
    child_process_stop(&child, SIGTERM, 60);
    arena_deinit(&arena);
    unlink(log_path());
}

static void a_command_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    struct child_process child;
    struct error err = {0};
    const char *items[] = {"/nowhere/vllm"};
    struct str_list words = {items, 1};
    assert_int_equal(child_process_start(&child, &words, log_path(), NULL, &err), STATUS_NOT_FOUND);
    assert_string_equal(err.message, "/nowhere/vllm cannot be run: No such file or directory");
    assert_int_equal(child.pid, 0);
    unlink(log_path());
    assert_int_equal(child_process_start(&child, &words, "/nowhere/log", NULL, &err), STATUS_IO);
    assert_non_null(strstr(err.message, "/nowhere/log"));
}

static void its_whole_group_ends_with_it(void **state)
{
    (void)state;
    // A grandchild that hears no SIGTERM, of a process that obeys, has ended, or hears none either.
    static const char *const scripts[] = {
        "(trap '' TERM; sleep 1000) & echo $!; wait",
        "(trap '' TERM; sleep 1000) & echo $!",
        "trap '' TERM; (sleep 1000) & echo $!; while :; do sleep 1; done",
    };
    for (size_t i = 0; i < ARRAY_LEN(scripts); i++) {
        struct child_process child;
        struct error err = {0};
        assert_int_equal(start_shell(&child, scripts[i], NULL, &err), STATUS_OK);
        pid_t leader = child.pid, grandchild = read_printed_pid();
        assert_true(grandchild > 1 && grandchild != leader);
        child_process_stop(&child, SIGTERM, i == 2 ? 0 : 60);
        wait_until_gone(grandchild);
        assert_false(is_running(leader));
    }
    unlink(log_path());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(how_it_ended_and_what_it_said_last_can_be_told),
        cmocka_unit_test(a_variable_that_is_set_stays),
        cmocka_unit_test(a_command_that_is_not_there_is_an_error),
        cmocka_unit_test(its_whole_group_ends_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
