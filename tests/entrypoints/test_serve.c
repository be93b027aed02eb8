// The launcher, with an engine and API servers that only pretend: what it starts, mends and stops.
//
// The model's name tells the engine below how to behave.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api_server/api_server.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "entrypoints/entrypoints.h"
#include "entrypoints/listener.h"

enum { WAIT_MS = 20000 };

// ---- the pretenders ------------------------------------------------------------------------

static volatile sig_atomic_t stopped;

static void on_stop(int signo)
{
    (void)signo;
    stopped = 1;
}

static void serve_until_stopped(void)
{
    signal(SIGTERM, on_stop);
    while (!stopped)
        usleep(2000);
}

int engine_core_main(const struct serve_options *options, const char *ipc_dir,
                     struct shared_page *page)
{
    int32_t generation = atomic_load(&page->engine.generation);
    if (strcmp(options->model, "cannot-start") == 0)
        return 3;
    if (strcmp(options->model, "crash") == 0)
        abort();
    log_info("engine up, generation=%d dir=%s", generation, ipc_dir);
    atomic_store(&page->engine.heartbeat_ns, clock_monotonic_ns());
    atomic_store(&page->engine.state, ENGINE_STATE_READY);
    if (strcmp(options->model, "hang") == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    serve_until_stopped();
    log_info("engine down, stopping=%d", atomic_load(&page->stopping));
    return 0;
}

int api_server_main(const struct serve_options *options, int32_t client_index, int listen_fd,
                    const char *ipc_dir, struct shared_page *page)
{
    (void)options, (void)ipc_dir;
    log_info("server up, index=%d fd=%d", client_index, listen_fd);
    atomic_store(&page->fronts[client_index].pid, (int32_t)getpid());
    serve_until_stopped();
    log_info("server down, engine_state=%d", atomic_load(&page->engine.state));
    return 0;
}

// ---- a launcher in a process of its own ----------------------------------------------------

struct run {
    pid_t pid;
    int out_fd;
    struct buf out; // what it and its children printed
};

static void run_start(struct run *run, const struct serve_options *options)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    *run = (struct run){.out_fd = fds[0]};
    fflush(NULL);
    run->pid = fork();
    if (run->pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        close(fds[1]);
        alarm(60); // whatever happens to the test
        exit(serve_main(options));
    }
    close(fds[1]);
}

/** Waits for `text` in the output from `from` on; returns where the line goes on behind it. */
static size_t expect_line(struct run *run, const char *text, size_t from)
{
    int64_t deadline_ns = clock_monotonic_ns() + (int64_t)WAIT_MS * 1000000;
    size_t at;
    while ((at = str_find(buf_str(&run->out), str_from(text), from)) == STR_NOT_FOUND) {
        struct pollfd item = {.fd = run->out_fd, .events = POLLIN};
        ssize_t got = 0;
        if (poll(&item, 1, 100) == 1)
            got = read(run->out_fd, buf_reserve(&run->out, 4096), 4096);
        run->out.len += (size_t)max_i64(got, 0);
        if (clock_monotonic_ns() > deadline_ns || (item.revents && got <= 0)) {
            print_error("expected \"%s\" in:\n%.*s\n", text, (int)run->out.len, run->out.ptr);
            fail();
        }
    }
    return at + strlen(text);
}

/** The pid in front of the first line with `text` at or after `from`. */
static pid_t pid_of(struct run *run, const char *text, size_t from)
{
    size_t at = expect_line(run, text, from);
    while (at > 0 && run->out.ptr[at - 1] != '\n')
        at--;
    size_t pid_at = str_find(buf_str(&run->out), STR("pid="), at);
    return (pid_t)atoi(run->out.ptr + pid_at + 4);
}

static int run_finish(struct run *run)
{
    int wait_status;
    assert_int_equal(waitpid(run->pid, &wait_status, 0), run->pid);
    for (ssize_t got = 1; got > 0;) {
        got = read(run->out_fd, buf_reserve(&run->out, 4096), 4096);
        run->out.len += (size_t)max_i64(got, 0);
    }
    buf_append_char(&run->out, '\0');
    close(run->out_fd);
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -WTERMSIG(wait_status);
}

static void run_free(struct run *run)
{
    buf_deinit(&run->out);
}

static bool is_gone(pid_t pid)
{
    for (int i = 0; i < WAIT_MS; i++) {
        if (kill(pid, 0) != 0 && errno == ESRCH)
            return true;
        usleep(1000);
    }
    return false;
}

static struct serve_options options_for(const char *model, int32_t num_servers)
{
    return (struct serve_options){
        .host = "127.0.0.1", .model = model, .api_server_count = num_servers};
}

// ---- tests ---------------------------------------------------------------------------------

static void it_starts_announces_and_stops_in_order(void **state)
{
    (void)state;
    struct serve_options options = options_for("demo", 1);
    struct run run;
    int64_t start_ns = clock_monotonic_ns();
    run_start(&run, &options);
    size_t url = expect_line(&run, "Starting vLLM server on http://127.0.0.1:", 0);
    assert_true(atoi(run.out.ptr + url) > 0);
    expect_line(&run, "Application startup complete.", url);
    int64_t took_ms = (clock_monotonic_ns() - start_ns) / 1000000;
    print_message("started in %d ms\n", (int)took_ms);
    pid_t engine = pid_of(&run, "engine up", 0), server = pid_of(&run, "server up", 0);
    char dir[128];
    size_t at = expect_line(&run, "dir=", 0);
    assert_int_equal(sscanf(run.out.ptr + at, "%127s", dir), 1);
    assert_int_equal(access(dir, F_OK), 0);

    kill(run.pid, SIGTERM);
    assert_int_equal(run_finish(&run), 0);
    const char *server_down = strstr(run.out.ptr, "server down, engine_state=1");
    const char *engine_down = strstr(run.out.ptr, "engine down, stopping=1");
    assert_non_null(server_down);
    assert_non_null(engine_down);
    assert_true(server_down < engine_down); // the answers first
    assert_true(is_gone(engine) && is_gone(server));
    assert_int_not_equal(access(dir, F_OK), 0);
    assert_non_null(strstr(run.out.ptr, "vLLM server version 0.29.0 (vllm.c), serving model demo"));
    assert_non_null(strstr(run.out.ptr, "non-default args: {"));
    run_free(&run);
}

static void processes_say_what_they_are(void **state)
{
    (void)state;
    struct serve_options options = options_for("demo", 2);
    struct run run;
    run_start(&run, &options);
    expect_line(&run, "Application startup complete.", 0);
    const struct {
        const char *line, *title;
    } cases[] = {
        {"engine up", "vllm: EngineCore"},
        {"server up, index=0", "vllm: APIServer 0"},
        {"server up, index=1", "vllm: APIServer 1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[64], title[64] = "";
        snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid_of(&run, cases[i].line, 0));
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        assert_true(fread(title, 1, sizeof(title) - 1, file) > 0);
        fclose(file);
        assert_string_equal(title, cases[i].title);
    }
    expect_line(&run, "(EngineCore pid=", 0);
    expect_line(&run, "(ApiServer_1 pid=", 0);
    kill(run.pid, SIGINT);
    assert_int_equal(run_finish(&run), 0);
    run_free(&run);
}

static void a_killed_engine_comes_back_as_another_generation(void **state)
{
    (void)state;
    struct serve_options options = options_for("demo", 1);
    struct run run;
    run_start(&run, &options);
    expect_line(&run, "Application startup complete.", 0);
    for (int generation = 2; generation <= 4; generation++) {
        char before[32], after[32];
        snprintf(before, sizeof(before), "generation=%d", generation - 1);
        snprintf(after, sizeof(after), "generation=%d", generation);
        pid_t pid = pid_of(&run, before, 0);
        kill(pid, SIGKILL);
        expect_line(&run, "was killed by signal 9 (Killed); restarting it", 0);
        pid_t again = pid_of(&run, after, 0);
        assert_int_not_equal(pid, again);
    }
    kill(run.pid, SIGTERM);
    assert_int_equal(run_finish(&run), 0);
    run_free(&run);
}

static void a_killed_api_server_comes_back_on_its_socket(void **state)
{
    (void)state;
    struct serve_options options = options_for("demo", 2);
    struct run run;
    run_start(&run, &options);
    expect_line(&run, "Application startup complete.", 0);
    size_t line = expect_line(&run, "server up, index=1 fd=", 0);
    int fd = atoi(run.out.ptr + line);
    size_t from = run.out.len;
    kill(pid_of(&run, "server up, index=1", 0), SIGKILL);
    line = expect_line(&run, "server up, index=1 fd=", from);
    assert_int_equal(atoi(run.out.ptr + line), fd);
    kill(run.pid, SIGTERM);
    assert_int_equal(run_finish(&run), 0);
    run_free(&run);
}

static void an_engine_that_cannot_start_ends_the_whole(void **state)
{
    (void)state;
    static const struct {
        const char *model, *message;
    } cases[] = {
        {"cannot-start", "cannot start, the reason is above"},
        {"crash", "died 5 times in a row before it was ready"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct serve_options options = options_for(cases[i].model, 1);
        struct run run;
        run_start(&run, &options);
        assert_int_equal(run_finish(&run), 1);
        assert_non_null(strstr(run.out.ptr, cases[i].message));
        assert_null(strstr(run.out.ptr, "startup complete"));
        run_free(&run);
    }
}

static void a_port_in_use_is_told_before_anything_starts(void **state)
{
    (void)state;
    struct listeners other;
    assert_int_equal(listeners_open(&other, "127.0.0.1", 0, NULL, 1, NULL), STATUS_OK);
    struct serve_options options = options_for("demo", 1);
    options.port = atoi(strrchr(other.url, ':') + 1);
    struct run run;
    run_start(&run, &options);
    assert_int_equal(run_finish(&run), 1);
    assert_non_null(strstr(run.out.ptr, other.url));
    assert_non_null(strstr(run.out.ptr, "in use"));
    assert_null(strstr(run.out.ptr, "engine up"));
    run_free(&run);
    listeners_close(&other);
}

static void a_second_signal_stops_at_once(void **state)
{
    (void)state;
    struct serve_options options = options_for("hang", 1);
    struct run run;
    run_start(&run, &options);
    expect_line(&run, "Application startup complete.", 0);
    pid_t engine = pid_of(&run, "engine up", 0);
    kill(run.pid, SIGINT);
    expect_line(&run, "server down", 0);
    int64_t start_ns = clock_monotonic_ns();
    kill(run.pid, SIGINT);
    assert_int_equal(run_finish(&run), 0);
    assert_true(clock_monotonic_ns() - start_ns < 2000000000);
    assert_true(is_gone(engine));
    run_free(&run);
}

static void an_engine_that_hangs_is_killed_in_time(void **state)
{
    (void)state;
    struct serve_options options = options_for("hang", 1);
    struct run run;
    run_start(&run, &options);
    expect_line(&run, "Application startup complete.", 0);
    int64_t start_ns = clock_monotonic_ns();
    kill(run.pid, SIGTERM);
    assert_int_equal(run_finish(&run), 0);
    assert_true(clock_monotonic_ns() - start_ns < INT64_C(10000000000));
    assert_non_null(strstr(run.out.ptr, "did not stop in time and is killed"));
    run_free(&run);
}

static void a_killed_launcher_leaves_nothing_behind(void **state)
{
    (void)state;
    struct serve_options options = options_for("demo", 2);
    struct run run;
    run_start(&run, &options);
    expect_line(&run, "Application startup complete.", 0);
    pid_t engine = pid_of(&run, "engine up", 0);
    pid_t servers[] = {pid_of(&run, "server up, index=0", 0),
                       pid_of(&run, "server up, index=1", 0)};
    char dir[128];
    size_t at = expect_line(&run, "dir=", 0);
    assert_int_equal(sscanf(run.out.ptr + at, "%127s", dir), 1);
    kill(run.pid, SIGKILL);
    assert_int_equal(run_finish(&run), -SIGKILL);
    assert_true(is_gone(engine) && is_gone(servers[0]) && is_gone(servers[1]));
    rmdir(dir);
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_starts_announces_and_stops_in_order),
        cmocka_unit_test(processes_say_what_they_are),
        cmocka_unit_test(a_killed_engine_comes_back_as_another_generation),
        cmocka_unit_test(a_killed_api_server_comes_back_on_its_socket),
        cmocka_unit_test(an_engine_that_cannot_start_ends_the_whole),
        cmocka_unit_test(a_port_in_use_is_told_before_anything_starts),
        cmocka_unit_test(a_second_signal_stops_at_once),
        cmocka_unit_test(an_engine_that_hangs_is_killed_in_time),
        cmocka_unit_test(a_killed_launcher_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
