// The HTTP server over loopback: the server runs in a thread, a raw socket plays the client.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api_server/http_server.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/memory.h"

enum {
    MAX_BODY_BYTES = 1 << 20,
    MAX_HEADERS = 50,
    MAX_HEADER_BYTES = 8192,
    KEEP_ALIVE_S = 2,
    BODY_TIMEOUT_S = 3, // longer than this test's own threads are kept from running
    DELAY_MS = 30,
    WAIT_MS = 30000, // for whatever must happen
};

static struct {
    struct http_server *server;
    pthread_t thread;
    int listen_fd, port, wake_fds[2];
    struct http_exchange *delayed; // answered by the timer
    struct http_exchange *flooded; // looked at by the timer
    _Atomic int num_requests, num_closed, num_exchanges, num_unwritten;
    _Atomic size_t pending_bytes;
    _Atomic uint64_t taken_bytes;
    _Atomic int64_t closed_ns;
} env;

// ---- the application, in the server's thread -----------------------------------------------

static void on_closed(void *context)
{
    if (context == env.delayed)
        env.delayed = NULL;
    if (context == env.flooded)
        env.flooded = NULL;
    env.closed_ns = clock_monotonic_ns();
    env.num_closed++;
}

static void reply_info(struct http_exchange *x)
{
    struct buf text = {0};
    buf_append(&text, http_exchange_method(x));
    buf_append_c(&text, "|");
    buf_append(&text, http_exchange_path(x));
    buf_append_c(&text, "|");
    buf_append(&text, http_exchange_query(x));
    buf_printf(&text, "|%d|", (int)http_exchange_header_count(x, "x-test"));
    struct str value = http_exchange_header(x, "X-TEST");
    buf_append(&text, value.ptr ? value : STR("none"));
    buf_append_c(&text, "|");
    buf_append(&text, http_exchange_peer(x));
    http_exchange_add_header(x, "X-Answer", "yes");
    if (str_eq_c(http_exchange_path(x), "/forged"))
        http_exchange_add_header(x, "X-Forged", "a\r\nX-Injected: b");
    http_exchange_reply(x, 200, "text/plain", buf_str(&text));
    buf_deinit(&text);
}

static void flood(struct http_exchange *x)
{
    char *piece = xcalloc(1, 1 << 20);
    http_exchange_begin_stream(x, 200, "application/octet-stream");
    for (int i = 0; i < 16; i++)
        http_exchange_write(x, (struct str){piece, 1 << 20});
    env.pending_bytes = http_exchange_pending_bytes(x);
    env.flooded = x;
    free(piece);
    http_exchange_on_close(x, on_closed, x);
}

static void on_fault(void *context, struct str peer, int32_t status, const char *reason,
                     struct buf *body)
{
    (void)context;
    buf_printf(body, "{\"peer\":%d,\"status\":%d,\"reason\":\"%s\"}", peer.len > 1, (int)status,
               reason);
}

static void on_request(void *context, struct http_exchange *x)
{
    (void)context;
    env.num_requests++;
    struct str path = http_exchange_path(x);
    if (str_eq_c(path, "/echo")) {
        http_exchange_reply(x, 200, "application/octet-stream", http_exchange_body(x));
    } else if (str_eq_c(path, "/delayed")) {
        http_exchange_on_close(x, on_closed, x);
        env.delayed = x;
    } else if (str_eq_c(path, "/hold")) {
        http_exchange_on_close(x, on_closed, x);
    } else if (str_eq_c(path, "/hold-stream")) {
        http_exchange_on_close(x, on_closed, x);
        http_exchange_begin_stream(x, 200, "text/event-stream");
        http_exchange_write(x, STR("data: 1\n\n"));
    } else if (str_eq_c(path, "/stream")) {
        http_exchange_begin_stream(x, 200, "text/event-stream");
        http_exchange_write(x, STR("data: 1\n\n"));
        http_exchange_write(x, STR("data: 2\n\n"));
        http_exchange_end(x);
    } else if (str_eq_c(path, "/abort")) {
        http_exchange_on_close(x, on_closed, x);
        http_exchange_begin_stream(x, 200, "text/event-stream");
        http_exchange_write(x, STR("data: 1\n\n"));
        http_exchange_abort(x);
    } else if (str_eq_c(path, "/abort-at-once")) {
        http_exchange_abort(x);
    } else if (str_eq_c(path, "/large")) {
        char *large = xcalloc(1, 16 << 20);
        http_exchange_reply(x, 200, "application/octet-stream", (struct str){large, 16 << 20});
        free(large);
    } else if (str_eq_c(path, "/flood")) {
        flood(x);
    } else {
        reply_info(x);
    }
    env.num_exchanges = http_server_num_exchanges(env.server);
    env.num_unwritten = http_server_num_unwritten(env.server);
}

static void on_tick(void *context)
{
    (void)context;
    struct http_exchange *x = env.delayed;
    env.delayed = NULL;
    if (x)
        http_exchange_reply(x, 200, "text/plain", STR("delayed"));
    if (env.flooded)
        env.taken_bytes = http_exchange_taken_bytes(env.flooded);
    env.num_exchanges = http_server_num_exchanges(env.server);
    env.num_unwritten = http_server_num_unwritten(env.server);
}

static void on_wake(void *context)
{
    (void)context;
    http_server_stop(env.server);
}

static void *run_server(void *context)
{
    http_server_run(env.server);
    return context;
}

static int start(void **state)
{
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    env.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(env.listen_fd, (struct sockaddr *)&address, len) != 0 ||
        listen(env.listen_fd, 128) != 0 || pipe(env.wake_fds) != 0 ||
        getsockname(env.listen_fd, (struct sockaddr *)&address, &len) != 0)
        return -1;
    env.port = ntohs(address.sin_port);
    const struct http_server_options options = {
        .max_header_count = MAX_HEADERS,
        .max_header_bytes = MAX_HEADER_BYTES,
        .max_body_bytes = MAX_BODY_BYTES,
        .keep_alive_timeout_s = KEEP_ALIVE_S,
        .body_timeout_s = BODY_TIMEOUT_S,
        .on_request = on_request,
        .on_fault = on_fault,
    };
    if (http_server_create(&env.server, env.listen_fd, &options, NULL) != STATUS_OK ||
        http_server_every(env.server, DELAY_MS, on_tick, NULL) != STATUS_OK ||
        http_server_watch(env.server, env.wake_fds[0], on_wake, NULL) != STATUS_OK)
        return -1;
    return pthread_create(&env.thread, NULL, run_server, NULL);
}

static int stop(void **state)
{
    (void)state;
    if (write(env.wake_fds[1], "x", 1) != 1 || pthread_join(env.thread, NULL) != 0)
        return -1;
    http_server_destroy(env.server);
    close(env.listen_fd);
    close(env.wake_fds[0]);
    close(env.wake_fds[1]);
    return 0;
}

// ---- the client ----------------------------------------------------------------------------

static int connect_client(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)env.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/** Sends what the peer takes; it may close at any time. */
static void send_bytes(int fd, struct str bytes)
{
    while (bytes.len > 0) {
        ssize_t sent = send(fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        bytes = str_slice(bytes, (size_t)sent, bytes.len);
    }
}

static void send_text(int fd, const char *text)
{
    send_bytes(fd, str_from(text));
}

/** Adds what comes within `timeout_ms` to `in`; false at the connection's end or the timeout. */
static bool receive_more(int fd, struct buf *in, int timeout_ms)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    if (poll(&item, 1, timeout_ms) != 1)
        return false;
    ssize_t got = recv(fd, buf_reserve(in, 65536), 65536, 0);
    if (got <= 0)
        return false;
    in->len += (size_t)got;
    return true;
}

static bool contains(const struct buf *in, const char *text)
{
    return str_find(buf_str(in), str_from(text), 0) != STR_NOT_FOUND;
}

static void expect_text(int fd, struct buf *in, const char *text)
{
    while (!contains(in, text)) {
        if (!receive_more(fd, in, WAIT_MS)) {
            print_error("expected \"%s\", got \"%.*s\"\n", text, (int)in->len, in->ptr);
            fail();
        }
    }
}

/** Whether the peer closes in time; what it still sends goes to `in`. */
static bool ends(int fd, struct buf *in)
{
    int64_t deadline_ns = clock_monotonic_ns() + (int64_t)WAIT_MS * 1000000;
    while (receive_more(fd, in, WAIT_MS))
        ;
    return clock_monotonic_ns() < deadline_ns;
}

/** Takes one answer with a Content-Length off the front of `in`; returns its status. */
static int take_answer(int fd, struct buf *in, char *body, size_t size)
{
    size_t head_end;
    while ((head_end = str_find(buf_str(in), STR("\r\n\r\n"), 0)) == STR_NOT_FOUND)
        assert_true(receive_more(fd, in, WAIT_MS));
    size_t at = str_find(buf_str(in), STR("Content-Length: "), 0);
    assert_true(at < head_end);
    size_t len = (size_t)atoi(in->ptr + at + 16), total = head_end + 4 + len;
    while (in->len < total)
        assert_true(receive_more(fd, in, WAIT_MS));
    assert_true(len < size);
    memcpy(body, in->ptr + head_end + 4, len);
    body[len] = '\0';
    int status = atoi(in->ptr + 9);
    memmove(in->ptr, in->ptr + total, in->len - total);
    in->len -= total;
    return status;
}

static void wait_for(_Atomic int *counter, int value)
{
    for (int i = 0; *counter != value && i < WAIT_MS; i++)
        usleep(1000);
    assert_int_equal(*counter, value);
}

/** The server answers a plain request: whatever came before did no harm. */
static void assert_serving(void)
{
    int fd = connect_client();
    struct buf in = {0};
    char body[256];
    send_text(fd, "GET /alive HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(take_answer(fd, &in, body, sizeof(body)), 200);
    assert_int_equal(strncmp(body, "GET|/alive|", 11), 0);
    buf_deinit(&in);
    close(fd);
}

// ---- tests ---------------------------------------------------------------------------------

static void a_request_is_presented_whole_and_answered(void **state)
{
    (void)state;
    int fd = connect_client();
    struct buf in = {0};
    send_text(fd,
              "GET /a%20b%2Fc?x=1&y=%20 HTTP/1.1\r\nHost: h\r\nx-Test: one\r\nX-test: two\r\n\r\n");
    expect_text(fd, &in, "GET|/a b/c|x=1&y=%20|2|one|127.0.0.1:");
    assert_true(contains(&in, "HTTP/1.1 200 OK\r\n"));
    assert_true(contains(&in, "X-Answer: yes\r\n"));
    assert_true(contains(&in, "Server: vllm.c\r\n"));
    assert_true(contains(&in, "Date: "));
    assert_true(contains(&in, "Content-Type: text/plain\r\n"));
    assert_false(contains(&in, "X-Injected"));
    buf_clear(&in);
    send_text(fd, "GET /forged HTTP/1.1\r\nHost: h\r\n\r\n");
    expect_text(fd, &in, "GET|/forged|");
    assert_false(contains(&in, "X-Injected"));
    buf_deinit(&in);
    close(fd);
}

static void every_method_of_the_api_reaches_the_application(void **state)
{
    (void)state;
    static const char *const methods[] = {"GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"};
    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        int fd = connect_client();
        struct buf in = {0};
        char text[128], body[256];
        snprintf(text, sizeof(text), "%s /m HTTP/1.1\r\nHost: h\r\n\r\n", methods[i]);
        send_text(fd, text);
        assert_int_equal(take_answer(fd, &in, body, sizeof(body)), 200);
        assert_int_equal(strncmp(body, methods[i], strlen(methods[i])), 0);
        buf_deinit(&in);
        close(fd);
    }
}

static void head_gets_headers_alone(void **state)
{
    (void)state;
    int fd = connect_client();
    struct buf in = {0};
    send_text(fd, "HEAD /m HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert_true(ends(fd, &in));
    assert_true(contains(&in, "HTTP/1.1 200 OK\r\n"));
    assert_true(str_ends_with(buf_str(&in), STR("\r\n\r\n")));
    buf_deinit(&in);
    close(fd);
}

static void a_connection_serves_a_hundred_requests(void **state)
{
    (void)state;
    int fd = connect_client();
    struct buf in = {0};
    for (int i = 0; i < 100; i++) {
        char text[128], body[256], number[24];
        snprintf(number, sizeof(number), "number %d", i);
        snprintf(text, sizeof(text),
                 "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n%s", strlen(number),
                 number);
        send_text(fd, text);
        assert_int_equal(take_answer(fd, &in, body, sizeof(body)), 200);
        assert_string_equal(body, number);
    }
    buf_deinit(&in);
    close(fd);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    int fd = connect_client();
    struct buf in = {0}, out = {0};
    char body[256];
    for (int i = 0; i < 20; i++)
        buf_printf(&out,
                   i % 5 == 0 ? "GET /delayed HTTP/1.1\r\nHost: h\r\n\r\n"
                              : "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n%02d",
                   i);
    send_bytes(fd, buf_str(&out));
    for (int i = 0; i < 20; i++) {
        char expected[16];
        snprintf(expected, sizeof(expected), "%02d", i);
        assert_int_equal(take_answer(fd, &in, body, sizeof(body)), 200);
        assert_string_equal(body, i % 5 == 0 ? "delayed" : expected);
    }
    buf_deinit(&in);
    buf_deinit(&out);
    close(fd);
}

static void a_request_may_come_byte_by_byte(void **state)
{
    (void)state;
    static const char text[] =
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\nB\r\n, the world\r\n0\r\nTrailer: x\r\n\r\n";
    int fd = connect_client();
    struct buf in = {0};
    char body[256];
    for (const char *p = text; *p; p++) {
        send_bytes(fd, (struct str){p, 1});
        usleep(500);
    }
    assert_int_equal(take_answer(fd, &in, body, sizeof(body)), 200);
    assert_string_equal(body, "hello, the world");
    buf_deinit(&in);
    close(fd);
}

static void a_client_that_expects_is_told_to_continue(void **state)
{
    (void)state;
    int fd = connect_client();
    struct buf in = {0};
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n"
                  "Expect: 100-continue\r\n\r\n");
    expect_text(fd, &in, "HTTP/1.1 100 Continue\r\n\r\n");
    send_text(fd, "body");
    expect_text(fd, &in, "\r\n\r\nbody");
    buf_deinit(&in);
    close(fd);
}

static void a_body_over_the_limit_is_answered_with_413(void **state)
{
    (void)state;
    static const struct {
        bool chunked, expects, sends; // `sends`: all of it, before it reads
    } rows[] = {
        {.chunked = false},
        {.expects = true},
        {.sends = true},
        {.chunked = true},
        {.chunked = true, .sends = true},
    };
    enum { LEN = 16 * MAX_BODY_BYTES }; // more than the system's buffers hold
    char *big = xcalloc(1, LEN);
    int before = env.num_requests;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int is_second = 0; is_second < 2; is_second++) {
            int fd = connect_client();
            struct buf in = {0};
            if (is_second) {
                send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
                expect_text(fd, &in, "\r\n\r\nbody");
                before++;
            }
            char head[160];
            snprintf(head, sizeof(head),
                     rows[i].chunked
                         ? "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n%s\r\n%x\r\n"
                         : "POST /echo HTTP/1.1\r\nHost: h\r\n%sContent-Length: %u\r\n\r\n",
                     rows[i].expects ? "Expect: 100-continue\r\n" : "", (unsigned)LEN);
            send_text(fd, head);
            if (rows[i].sends)
                send_bytes(fd, (struct str){big, LEN});
            assert_true(ends(fd, &in));
            assert_true(contains(&in, "HTTP/1.1 413 "));
            assert_true(
                contains(&in, "{\"peer\":1,\"status\":413,\"reason\":\"a body over its limit\"}"));
            assert_false(contains(&in, "100 Continue"));
            buf_deinit(&in);
            close(fd);
        }
    }
    assert_int_equal(env.num_requests, before);
    free(big);
    assert_serving();
}

static void a_body_of_exactly_the_limit_is_taken(void **state)
{
    (void)state;
    char *big = xmalloc(MAX_BODY_BYTES + 1), *body = xmalloc(MAX_BODY_BYTES + 2);
    memset(big, 'x', MAX_BODY_BYTES);
    big[MAX_BODY_BYTES] = '\0';
    int fd = connect_client();
    struct buf in = {0};
    char head[128];
    snprintf(head, sizeof(head), "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n",
             MAX_BODY_BYTES);
    send_text(fd, head);
    send_bytes(fd, (struct str){big, MAX_BODY_BYTES});
    assert_int_equal(take_answer(fd, &in, body, MAX_BODY_BYTES + 2), 200);
    assert_string_equal(body, big);
    buf_deinit(&in);
    close(fd);
    free(big);
    free(body);
}

static void streams_are_chunked_and_end(void **state)
{
    (void)state;
    int fd = connect_client();
    struct buf in = {0};
    for (int i = 0; i < 3; i++) { // the connection stays usable
        buf_clear(&in);
        send_text(fd, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
        expect_text(fd, &in, "9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n");
        assert_true(contains(&in, "Transfer-Encoding: chunked\r\n"));
    }
    buf_deinit(&in);
    close(fd);
}

static void an_old_client_gets_a_stream_without_chunks(void **state)
{
    (void)state;
    static const char *const heads[] = {
        "GET /stream HTTP/1.0\r\n\r\n",
        "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        int fd = connect_client();
        struct buf in = {0};
        send_text(fd, heads[i]);
        assert_true(ends(fd, &in));
        assert_true(str_ends_with(buf_str(&in), STR("\r\n\r\ndata: 1\n\ndata: 2\n\n")));
        assert_false(contains(&in, "chunked"));
        buf_deinit(&in);
        close(fd);
    }
}

static void an_aborted_stream_has_no_final_chunk(void **state)
{
    (void)state;
    int closed = env.num_closed;
    static const char *const paths[] = {"/abort", "/abort-at-once"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        int fd = connect_client();
        struct buf in = {0};
        char text[96];
        snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", paths[i]);
        send_text(fd, text);
        assert_true(ends(fd, &in));
        assert_false(contains(&in, "0\r\n\r\n"));
        buf_deinit(&in);
        close(fd);
    }
    assert_int_equal(env.num_closed, closed);
    assert_serving();
}

enum leaving { LEAVE_CLOSE, LEAVE_RESET, LEAVE_HALF_CLOSE };

static void leave(int fd, enum leaving how)
{
    struct linger linger = {.l_onoff = 1};
    if (how == LEAVE_HALF_CLOSE) {
        shutdown(fd, SHUT_WR);
        return;
    }
    if (how == LEAVE_RESET)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    close(fd);
}

static void a_client_that_leaves_is_noticed_at_once(void **state)
{
    (void)state;
    static const char *const requests[] = {
        "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab",
        "POST /hold HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        "GET /hold-stream HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /hold HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
    };
    int64_t worst_ns = 0;
    for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
        for (enum leaving how = LEAVE_CLOSE; how <= LEAVE_HALF_CLOSE; how++) {
            int closed = env.num_closed, before = env.num_requests;
            int fd = connect_client();
            send_text(fd, requests[i]);
            wait_for(&env.num_requests, before + 1);
            int64_t start_ns = clock_monotonic_ns();
            leave(fd, how);
            wait_for(&env.num_closed, closed + 1);
            worst_ns = max_i64(worst_ns, env.closed_ns - start_ns);
            if (how == LEAVE_HALF_CLOSE)
                close(fd);
        }
    }
    wait_for(&env.num_exchanges, 0);
    print_message("noticed within %.2f ms\n", (double)worst_ns / 1e6);
    assert_true(worst_ns < 500000000); // milliseconds when the machine is not busy
    assert_serving();
}

static void a_slow_reader_shows_as_pending_bytes_and_its_reading_as_taken_ones(void **state)
{
    (void)state;
    int closed = env.num_closed, before = env.num_requests;
    int fd = connect_client();
    send_text(fd, "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_for(&env.num_requests, before + 1);
    for (int i = 0; env.pending_bytes == 0 && i < WAIT_MS; i++)
        usleep(1000);
    assert_true(env.pending_bytes >= 16u << 20);
    usleep((BODY_TIMEOUT_S * 1000 + 300) * 1000); // no timeout runs during a stream
    assert_int_equal(env.num_closed, closed);
    uint64_t taken_bytes = env.taken_bytes; // what the sockets hold
    assert_true(taken_bytes < 16u << 20);
    struct buf in = {0};
    while (in.len < 12u << 20)
        assert_true(receive_more(fd, &in, WAIT_MS));
    for (int i = 0; env.taken_bytes < in.len && i < WAIT_MS; i++)
        usleep(1000);
    assert_true(env.taken_bytes > taken_bytes && env.taken_bytes >= in.len);
    buf_deinit(&in);
    close(fd);
    wait_for(&env.num_closed, closed + 1);
}

static void a_request_that_stalls_is_cut_off(void **state)
{
    (void)state;
    static const char *const starts[] = {
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc",
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "GET / HTTP/1.1\r\nHos",
        // On a connection that has served before.
        "GET / HTTP/1.1\r\nHost: h\r\n\r\nPOST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
    };
    int fds[ARRAY_LEN(starts)];
    for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
        fds[i] = connect_client();
        send_text(fds[i], starts[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
        struct buf in = {0};
        assert_true(ends(fds[i], &in));
        buf_deinit(&in);
        close(fds[i]);
    }
    assert_serving();
}

static void an_idle_connection_is_closed_and_a_waiting_one_is_not(void **state)
{
    (void)state;
    int closed = env.num_closed, before = env.num_requests;
    int idle = connect_client(), waiting = connect_client();
    struct buf in = {0};
    send_text(waiting, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    send_text(idle, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_for(&env.num_requests, before + 2);
    int64_t start_ns = clock_monotonic_ns();
    assert_true(ends(idle, &in));
    int64_t took_ms = (clock_monotonic_ns() - start_ns) / 1000000;
    assert_true(took_ms > KEEP_ALIVE_S * 1000 - 300);
    assert_true(contains(&in, "200 OK"));
    usleep(300000);
    assert_int_equal(env.num_closed, closed);
    close(waiting);
    wait_for(&env.num_closed, closed + 1);
    close(idle);
    buf_deinit(&in);
}

static void malformed_requests_do_no_harm(void **state)
{
    (void)state;
    static const struct {
        struct str bytes;
        const char *status; // NULL: an answer or a closed connection
    } cases[] = {
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n"
             "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
         " 400 "},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: "
             "4\r\n\r\nabcd"),
         " 400 "},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"), NULL},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
             "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
         " 400 "},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length : 3\r\n\r\nabc"), " 400 "},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: +3\r\n\r\nabc"), " 400 "},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: -3\r\n\r\nabc"), " 400 "},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: "
             "99999999999999999999999\r\n\r\nabc"),
         NULL},
        {STR("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), " 400 "},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc"),
         NULL},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc"),
         NULL},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
             "FFFFFFFFFFFFFFFF\r\nabc"),
         NULL},
        {STR("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
             "7FFFFFFFFFFFFFFF\r\nabc"),
         NULL},
        {STR("BREW /pot HTTP/1.1\r\nHost: h\r\n\r\n"), " 501 "},
        {STR("TRACE / HTTP/1.1\r\nHost: h\r\n\r\n"), " 501 "},
        {STR("CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n"), NULL},
        {STR("GET\r\n\r\n"), " 400 "},
        {STR("GET / HTTP/9.9\r\nHost: h\r\n\r\n"), NULL},
        {STR("GET / FTP/1.1\r\nHost: h\r\n\r\n"), " 400 "},
        {STR("GET / HTTP/1.1\r\nno colon here\r\n\r\n"), " 400 "},
        {STR("GET / HTTP/1.1\r\n: no name\r\n\r\n"), " 400 "},
        {STR("GET / HTTP/1.1\r\n folded first\r\n\r\n"), " 400 "},
        {STR("GET /a\0b HTTP/1.1\r\nHost: h\r\n\r\n"), NULL},
        {STR("GET / HTTP/1.1\r\nHo\0st: h\r\n\r\n"), NULL},
        {STR("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\r\n\r\n"), " 400 "},
        {STR("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), " 400 "}, // TLS
        {STR("HEAD / HTTP/1.1\r\nHost: h\r\nContent-Length: 25\r\n\r\nGET /smuggled "
             "HTTP/1.1\r\n\r\n"),
         " 200 "},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int fd = connect_client();
        struct buf in = {0};
        send_bytes(fd, cases[i].bytes);
        if (!cases[i].status)
            shutdown(fd, SHUT_WR);
        bool ended = ends(fd, &in);
        bool is_error = contains(&in, " 400 ") || contains(&in, " 501 ") || contains(&in, " 413 ");
        bool is_json = contains(&in, "\r\nContent-Type: application/json\r\n") &&
                       contains(&in, "\r\n\r\n{\"peer\":") && !contains(&in, "<HTML>");
        if (!ended || (cases[i].status && !contains(&in, cases[i].status)) ||
            contains(&in, "smuggled") || (is_error && !is_json)) {
            print_error("case %zu: ended %d: %.*s\n", i, ended, (int)in.len, in.ptr ? in.ptr : "");
            fail();
        }
        buf_deinit(&in);
        close(fd);
        assert_serving();
    }
}

static void a_fault_after_good_requests_names_the_peer(void **state)
{
    (void)state;
    int fd = connect_client();
    struct buf in = {0};
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    expect_text(fd, &in, "\r\n\r\nbody");
    send_text(fd, "no HTTP at all\r\n\r\n");
    assert_true(ends(fd, &in));
    assert_true(contains(&in, "HTTP/1.1 400 Bad Request\r\n"));
    assert_true(contains(&in, "{\"peer\":1,\"status\":400,\"reason\":\"a malformed request"));
    assert_false(contains(&in, "HTML"));
    buf_deinit(&in);
    close(fd);
    assert_serving();
}

static void heads_over_their_limits_are_refused(void **state)
{
    (void)state;
    struct buf many = {0}, longer = {0}, endless = {0};
    buf_append_c(&many, "GET / HTTP/1.1\r\n");
    for (int i = 0; i <= MAX_HEADERS; i++)
        buf_printf(&many, "X-%d: y\r\n", i);
    buf_append_c(&many, "\r\n");
    buf_append_c(&longer, "GET / HTTP/1.1\r\nX: ");
    buf_append_c(&endless, "GET /");
    for (int i = 0; i < MAX_HEADER_BYTES + 10; i++) {
        buf_append_char(&longer, 'a');
        buf_append_char(&endless, 'a');
    }
    buf_append_c(&longer, "\r\n\r\n");
    const struct buf *cases[] = {&many, &longer, &endless};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int fd = connect_client();
        struct buf in = {0};
        send_bytes(fd, buf_str(cases[i]));
        assert_true(ends(fd, &in));
        assert_true(contains(&in, " 400 ") || contains(&in, " 413 "));
        assert_true(contains(&in, "\r\n\r\n{\"peer\":"));
        buf_deinit(&in);
        close(fd);
    }
    buf_deinit(&many);
    buf_deinit(&longer);
    buf_deinit(&endless);
    assert_serving();
}

static void an_answer_counts_until_its_last_byte_is_taken(void **state)
{
    (void)state;
    wait_for(&env.num_unwritten, 0);
    int fds[2];
    for (int i = 0; i < 2; i++) {
        fds[i] = connect_client();
        send_text(fds[i], "GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    }
    wait_for(&env.num_unwritten, 2);
    wait_for(&env.num_exchanges, 0);
    leave(fds[0], LEAVE_RESET);
    struct buf in = {0};
    assert_true(ends(fds[1], &in)); // takes all of it
    assert_true(in.len > 16u << 20);
    wait_for(&env.num_unwritten, 0); // the other one left, or its time was over
    buf_deinit(&in);
    close(fds[1]);
}

static void random_bytes_do_no_harm(void **state)
{
    (void)state;
    static const char *const pieces[] = {
        "GET ",
        "POST ",
        "/echo",
        " HTTP/1.1",
        "\r\n",
        "\r\n\r\n",
        "Content-Length: ",
        "3",
        "abc",
        "Transfer-Encoding: chunked",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        ":",
        "\n",
        "Expect: 100-continue",
        "Host: h",
        "\t",
        "HEAD /hold HTTP/1.0\r\n\r\n",
        "GET /delayed HTTP/1.1\r\n\r\n",
        "GET /stream HTTP/1.1\r\n\r\n",
        "GET /hold-stream HTTP/1.1\r\n\r\n",
        "\xFF\x00",
    };
    uint32_t seed = 88172645u;
    for (int round = 0; round < 1500; round++) {
        struct buf out = {0}, in = {0};
        for (int i = 0; i < 12; i++) {
            seed ^= seed << 13, seed ^= seed >> 17, seed ^= seed << 5;
            buf_append_c(&out, pieces[seed % ARRAY_LEN(pieces)]);
        }
        int fd = connect_client();
        send_bytes(fd, buf_str(&out));
        receive_more(fd, &in, (int)(seed % 3));
        leave(fd, seed % 2 ? LEAVE_CLOSE : LEAVE_RESET);
        buf_deinit(&in);
        buf_deinit(&out);
    }
    assert_serving();
    wait_for(&env.num_exchanges, 0);
}

static void nothing_spins_while_exchanges_wait(void **state)
{
    (void)state;
    int before = env.num_requests, fds[4];
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = connect_client();
        send_text(fds[i], "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    int closed = env.num_closed;
    wait_for(&env.num_requests, before + 4);
    send_text(fds[0], "GET /next HTTP/1.1\r\n"); // read ahead, and left alone
    struct timespec start, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    usleep(500000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    int64_t cpu_ms = (end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000;
    assert_true(cpu_ms < 100);
    assert_int_equal(env.num_closed, closed);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        leave(fds[i], LEAVE_RESET);
    wait_for(&env.num_closed, closed + 4);
}

static void a_client_far_ahead_of_its_answer_is_closed(void **state)
{
    (void)state;
    int closed = env.num_closed, before = env.num_requests;
    int fd = connect_client();
    struct buf in = {0};
    char *ahead = xcalloc(1, 4 << 20);
    send_text(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_for(&env.num_requests, before + 1);
    send_bytes(fd, (struct str){ahead, 4 << 20});
    assert_true(ends(fd, &in));
    wait_for(&env.num_closed, closed + 1);
    assert_int_equal(in.len, 0);
    buf_deinit(&in);
    free(ahead);
    close(fd);
}

static void a_server_out_of_descriptors_waits_and_goes_on(void **state)
{
    (void)state;
    int probe = dup(env.listen_fd); // the next free descriptor
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    close(probe);
    pid_t pid = fork(); // the clients have descriptors of their own
    if (pid == 0) {
        usleep(100000);
        for (int i = 0; i < 30; i++)
            connect_client();
        usleep(700000);
        _exit(0);
    }
    struct rlimit low = {(rlim_t)probe + 5, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    struct timespec start, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int64_t cpu_ms = (end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000;
    assert_true(cpu_ms < 300);
    assert_serving();
}

static void on_signal(void *context)
{
    http_server_stop(context);
}

/** A server over a Unix socket, in this thread: one request, answered and then the loop ends. */
static void answer_and_stop(void *context, struct http_exchange *x)
{
    struct http_server **server = context;
    http_server_stop_listening(*server);
    http_server_stop_listening(*server); // twice does no harm
    http_exchange_begin_stream(x, 200, "text/plain");
    http_exchange_write(x, http_exchange_peer(x));
    http_exchange_end(x);
    http_server_stop(*server);
}

static void a_unix_socket_serves_too(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_http.XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", dir);
    int listen_fd = socket(AF_UNIX, SOCK_STREAM, 0), fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listen_fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listen_fd, 8), 0);
    struct http_server *server;
    const struct http_server_options options = {
        .max_header_count = MAX_HEADERS,
        .max_header_bytes = MAX_HEADER_BYTES,
        .max_body_bytes = MAX_BODY_BYTES,
        .keep_alive_timeout_s = KEEP_ALIVE_S,
        .body_timeout_s = BODY_TIMEOUT_S,
        .on_request = answer_and_stop,
        .on_fault = on_fault,
        .context = &server,
    };
    assert_int_equal(http_server_create(&server, listen_fd, &options, NULL), STATUS_OK);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    send_text(fd, "GET / HTTP/1.0\r\n\r\n");
    http_server_run(server);
    struct buf in = {0};
    http_server_destroy(server); // with an answer that is not yet written
    assert_true(ends(fd, &in));
    buf_deinit(&in);

    assert_int_equal(http_server_create(&server, listen_fd, &options, NULL), STATUS_OK);
    assert_int_equal(http_server_on_signal(server, SIGALRM, on_signal, server), STATUS_OK);
    close(fd);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    send_text(fd, "GET / HTTP/1.0\r\n\r\n");
    http_server_run(server);
    alarm(1);
    http_server_run(server); // until the signal: meanwhile the answer is written
    assert_true(ends(fd, &in));
    assert_true(str_ends_with(buf_str(&in), STR("\r\n\r\nunix")));
    http_server_destroy(server);
    buf_deinit(&in);
    close(fd);
    close(listen_fd);
    unlink(address.sun_path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_presented_whole_and_answered),
        cmocka_unit_test(every_method_of_the_api_reaches_the_application),
        cmocka_unit_test(head_gets_headers_alone),
        cmocka_unit_test(a_connection_serves_a_hundred_requests),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_request_may_come_byte_by_byte),
        cmocka_unit_test(a_client_that_expects_is_told_to_continue),
        cmocka_unit_test(a_body_over_the_limit_is_answered_with_413),
        cmocka_unit_test(a_body_of_exactly_the_limit_is_taken),
        cmocka_unit_test(streams_are_chunked_and_end),
        cmocka_unit_test(an_old_client_gets_a_stream_without_chunks),
        cmocka_unit_test(an_aborted_stream_has_no_final_chunk),
        cmocka_unit_test(a_client_that_leaves_is_noticed_at_once),
        cmocka_unit_test(a_slow_reader_shows_as_pending_bytes_and_its_reading_as_taken_ones),
        cmocka_unit_test(a_request_that_stalls_is_cut_off),
        cmocka_unit_test(an_idle_connection_is_closed_and_a_waiting_one_is_not),
        cmocka_unit_test(malformed_requests_do_no_harm),
        cmocka_unit_test(a_fault_after_good_requests_names_the_peer),
        cmocka_unit_test(heads_over_their_limits_are_refused),
        cmocka_unit_test(an_answer_counts_until_its_last_byte_is_taken),
        cmocka_unit_test(random_bytes_do_no_harm),
        cmocka_unit_test(a_client_far_ahead_of_its_answer_is_closed),
        cmocka_unit_test(a_server_out_of_descriptors_waits_and_goes_on),
        cmocka_unit_test(a_unix_socket_serves_too),
        cmocka_unit_test(nothing_spins_while_exchanges_wait),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
