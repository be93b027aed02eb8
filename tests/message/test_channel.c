// Frames between an engine and its API servers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "message/channel.h"

static char ipc_dir[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(ipc_dir, "/tmp/test_channel.XXXXXX");
    return mkdtemp(ipc_dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    char path[96];
    snprintf(path, sizeof(path), "%s/engine", ipc_dir);
    unlink(path);
    return rmdir(ipc_dir);
}

/** The next frame, or fails after five seconds. */
static struct str expect_frame(struct channel *channel, int32_t *client_index)
{
    struct str frame = {0};
    int64_t deadline_ns = clock_monotonic_ns() + INT64_C(5000000000);
    while (!channel_receive(channel, client_index, &frame)) {
        assert_true(clock_monotonic_ns() < deadline_ns);
        channel_wait(channel, 100000000);
    }
    return frame;
}

/** Sends until the peer is known. */
static void send_when_connected(struct channel *engine, int32_t client_index, struct str frame)
{
    int64_t deadline_ns = clock_monotonic_ns() + INT64_C(5000000000);
    int32_t sender;
    struct str ignored;
    while (channel_send(engine, client_index, frame, NULL) != STATUS_OK) {
        assert_true(clock_monotonic_ns() < deadline_ns);
        channel_wait(engine, 5000000);
        assert_false(channel_receive(engine, &sender, &ignored));
    }
}

static void frames_travel_both_ways_and_name_their_sender(void **state)
{
    (void)state;
    struct channel *engine, *clients[3];
    // API servers may connect before the engine is there.
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(channel_connect(&clients[i], ipc_dir, i, NULL), STATUS_OK);
    for (int32_t i = 0; i < 3; i++) {
        char text[8] = {'f', 'r', 'o', 'm', (char)('0' + i)};
        assert_int_equal(channel_send(clients[i], 0, str_from(text), NULL), STATUS_OK);
    }
    assert_int_equal(channel_bind(&engine, ipc_dir, NULL), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        int32_t sender = -1;
        struct str frame = expect_frame(engine, &sender);
        assert_int_equal(frame.len, 5);
        assert_int_equal(frame.ptr[4] - '0', sender);
        assert_int_equal(channel_send(engine, sender, frame, NULL), STATUS_OK);
    }
    for (int32_t i = 0; i < 3; i++) {
        int32_t sender;
        struct str frame = expect_frame(clients[i], &sender);
        assert_int_equal(frame.ptr[4] - '0', i);
        channel_close(clients[i]);
    }
    channel_close(engine);
}

static void a_frame_to_nobody_is_refused(void **state)
{
    (void)state;
    struct channel *engine;
    struct error err = {0};
    assert_int_equal(channel_bind(&engine, ipc_dir, NULL), STATUS_OK);
    assert_int_equal(channel_send(engine, 7, STR("x"), &err), STATUS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "API server 7"));
    channel_close(engine);
}

static void order_and_bytes_are_kept_over_many_frames(void **state)
{
    (void)state;
    enum { NUM_FRAMES = 20000 };
    struct channel *engine, *client;
    assert_int_equal(channel_bind(&engine, ipc_dir, NULL), STATUS_OK);
    assert_int_equal(channel_connect(&client, ipc_dir, 0, NULL), STATUS_OK);
    for (int32_t i = 0; i < NUM_FRAMES; i++)
        assert_int_equal(channel_send(client, 0, (struct str){(char *)&i, sizeof(i)}, NULL),
                         STATUS_OK);
    for (int32_t i = 0; i < NUM_FRAMES; i++) {
        int32_t sender, number;
        struct str frame = expect_frame(engine, &sender);
        assert_int_equal(frame.len, sizeof(number));
        memcpy(&number, frame.ptr, sizeof(number));
        assert_int_equal(number, i);
    }
    channel_close(client);
    channel_close(engine);
}

static void a_restarted_engine_is_found_again(void **state)
{
    (void)state;
    struct channel *engine, *client;
    int32_t sender;
    assert_int_equal(channel_bind(&engine, ipc_dir, NULL), STATUS_OK);
    assert_int_equal(channel_connect(&client, ipc_dir, 5, NULL), STATUS_OK);
    assert_int_equal(channel_send(client, 0, STR("one"), NULL), STATUS_OK);
    assert_true(str_eq(expect_frame(engine, &sender), STR("one")));
    channel_close(engine);
    assert_int_equal(channel_bind(&engine, ipc_dir, NULL), STATUS_OK);
    send_when_connected(engine, 5, STR("welcome"));
    assert_true(str_eq(expect_frame(client, &sender), STR("welcome")));
    channel_close(client);
    channel_close(engine);
}

static void a_restarted_api_server_takes_its_name_over(void **state)
{
    (void)state;
    struct channel *engine, *old, *new;
    int32_t sender;
    assert_int_equal(channel_bind(&engine, ipc_dir, NULL), STATUS_OK);
    assert_int_equal(channel_connect(&old, ipc_dir, 1, NULL), STATUS_OK);
    assert_int_equal(channel_send(old, 0, STR("old"), NULL), STATUS_OK);
    assert_true(str_eq(expect_frame(engine, &sender), STR("old")));
    assert_int_equal(channel_connect(&new, ipc_dir, 1, NULL), STATUS_OK); // old still lives
    assert_int_equal(channel_send(new, 0, STR("new"), NULL), STATUS_OK);
    assert_true(str_eq(expect_frame(engine, &sender), STR("new")));
    assert_int_equal(sender, 1);
    assert_int_equal(channel_send(engine, 1, STR("to the new one"), NULL), STATUS_OK);
    assert_true(str_eq(expect_frame(new, &sender), STR("to the new one")));
    channel_close(old);
    channel_close(new);
    channel_close(engine);
}

static bool readable_within(int fd, int timeout_ms)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    return poll(&item, 1, timeout_ms) == 1;
}

static void the_descriptor_tells_of_a_frame_that_came_in_during_a_send(void **state)
{
    (void)state;
    struct channel *engine, *client;
    int32_t sender;
    struct str frame;
    assert_int_equal(channel_bind(&engine, ipc_dir, NULL), STATUS_OK);
    assert_int_equal(channel_connect(&client, ipc_dir, 0, NULL), STATUS_OK);
    assert_int_equal(channel_send(client, 0, STR("hello"), NULL), STATUS_OK);
    assert_true(str_eq(expect_frame(engine, &sender), STR("hello")));
    assert_false(channel_receive(client, &sender, &frame));
    for (int round = 0; round < 200; round++) {
        assert_int_equal(channel_send(engine, 0, STR("news"), NULL), STATUS_OK);
        usleep(200);
        // This send looks at the socket, and so takes the edge that the news has raised.
        assert_int_equal(channel_send(client, 0, STR("question"), NULL), STATUS_OK);
        assert_true(readable_within(channel_fd(client), 5000));
        assert_true(str_eq(expect_frame(client, &sender), STR("news")));
        assert_false(channel_receive(client, &sender, &frame));
        assert_true(str_eq(expect_frame(engine, &sender), STR("question")));
    }
    assert_false(readable_within(channel_fd(client), 20)); // no busy loop
    channel_close(client);
    channel_close(engine);
}

static void a_full_queue_refuses_and_never_blocks(void **state)
{
    (void)state;
    struct channel *client; // connected to nobody
    assert_int_equal(channel_connect(&client, ipc_dir, 0, NULL), STATUS_OK);
    enum status status = STATUS_OK;
    int num_sent = 0;
    for (; status == STATUS_OK && num_sent < 1000000; num_sent++)
        status = channel_send(client, 0, STR("x"), NULL);
    assert_int_equal(status, STATUS_UNAVAILABLE);
    assert_true(num_sent > 10000);
    channel_close(client);
}

static void a_path_too_long_for_a_socket_is_refused(void **state)
{
    (void)state;
    char dir[300];
    memset(dir, 'd', sizeof(dir) - 1);
    dir[0] = '/';
    dir[sizeof(dir) - 1] = '\0';
    struct channel *channel;
    assert_int_equal(channel_bind(&channel, dir, NULL), STATUS_IO);
    assert_null(channel);
    assert_int_equal(channel_bind(&channel, "/nonexistent/folder", NULL), STATUS_IO);
    channel_close(NULL);
}

// More than the kernel's buffers hold, so that most of it is still queued when the engine closes.
static void an_engine_that_closes_loses_none_of_its_last_words(void **state)
{
    (void)state;
    enum { NUM_FRAMES = 500, FRAME_BYTES = 64 << 10 };
    struct channel *engine, *client;
    assert_int_equal(channel_bind(&engine, ipc_dir, NULL), STATUS_OK);
    assert_int_equal(channel_connect(&client, ipc_dir, 0, NULL), STATUS_OK);
    char *bytes = xcalloc(1, FRAME_BYTES);
    struct str frame = {bytes, FRAME_BYTES};
    send_when_connected(engine, 0, frame);
    for (int i = 1; i < NUM_FRAMES; i++) {
        bytes[0] = (char)(i % 100);
        assert_int_equal(channel_send(engine, 0, frame, NULL), STATUS_OK);
    }
    channel_close(engine);
    for (int i = 0; i < NUM_FRAMES; i++) {
        int32_t sender;
        struct str got = expect_frame(client, &sender);
        assert_int_equal(got.len, FRAME_BYTES);
        assert_int_equal(got.ptr[0], i % 100);
    }
    free(bytes);
    channel_close(client);
}

// A process that is stopped: its kernel's buffers fill up and nothing leaves any more.
static void an_engine_that_closes_does_not_wait_for_one_that_never_reads(void **state)
{
    (void)state;
    enum { NUM_FRAMES = 100, FRAME_BYTES = 1 << 20 };
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct channel *client;
        if (channel_connect(&client, ipc_dir, 0, NULL) != STATUS_OK)
            _exit(1);
        for (;;)
            pause();
    }
    struct channel *engine;
    assert_int_equal(channel_bind(&engine, ipc_dir, NULL), STATUS_OK);
    char *bytes = xcalloc(1, FRAME_BYTES);
    struct str frame = {bytes, FRAME_BYTES};
    send_when_connected(engine, 0, frame);
    kill(pid, SIGSTOP);
    for (int i = 0; i < NUM_FRAMES; i++)
        assert_int_equal(channel_send(engine, 0, frame, NULL), STATUS_OK);
    int64_t start_ns = clock_monotonic_ns();
    channel_close(engine);
    // It gives up by itself; a machine at its limit may take longer than a second to notice.
    assert_true(clock_monotonic_ns() - start_ns < INT64_C(30000000000));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_travel_both_ways_and_name_their_sender),
        cmocka_unit_test(a_frame_to_nobody_is_refused),
        cmocka_unit_test(order_and_bytes_are_kept_over_many_frames),
        cmocka_unit_test(a_restarted_engine_is_found_again),
        cmocka_unit_test(a_restarted_api_server_takes_its_name_over),
        cmocka_unit_test(the_descriptor_tells_of_a_frame_that_came_in_during_a_send),
        cmocka_unit_test(a_full_queue_refuses_and_never_blocks),
        cmocka_unit_test(an_engine_that_closes_loses_none_of_its_last_words),
        cmocka_unit_test(an_engine_that_closes_does_not_wait_for_one_that_never_reads),
        cmocka_unit_test(a_path_too_long_for_a_socket_is_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
