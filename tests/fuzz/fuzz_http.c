// Bytes from an HTTP client, over a real connection to a real server in the same thread: whatever
// comes, the server's loop goes on, every exchange ends, and a plain request is answered
// afterwards.
//
// The first byte chooses how the client sends the rest: at once or in pieces, and how it leaves.
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api_server/http_server.h"
#include "base/buf.h"
#include "base/memory.h"

enum { MAX_TURNS = 20000 };

static const char last_request[] = "GET /last HTTP/1.1\r\nHost: h\r\n\r\n";

/** One run: the client is driven from the server's loop, a little at each turn. */
struct run {
    struct http_server *server;
    int fd, num_turns;
    struct str bytes;
    size_t step;
    bool half_close;
    enum { SENDING, WAITING, ASKING, DONE } phase;
    bool answered;
    int32_t num_open; // exchanges that the handler keeps
};

static struct sockaddr_in address = {.sin_family = AF_INET};

static void on_close(void *context)
{
    struct run *run = context;
    run->num_open--;
}

static void on_fault(void *context, struct str peer, int32_t status, const char *reason,
                     struct buf *body)
{
    (void)context;
    CHECK(status >= 400 && status < 600);
    buf_printf(body, "{\"peer\":%d,\"reason\":\"%s\"}", peer.len > 0, reason);
}

static void on_request(void *context, struct http_exchange *x)
{
    struct run *run = context;
    struct str path = http_exchange_path(x);
    if (str_eq_c(path, "/hold")) {
        run->num_open++;
        http_exchange_on_close(x, on_close, run);
    } else if (str_eq_c(path, "/stream")) {
        http_exchange_begin_stream(x, 200, "text/event-stream");
        http_exchange_write(x, http_exchange_body(x));
        http_exchange_write(x, STR("data: 1\n\n"));
        if (http_exchange_query(x).len > 0)
            http_exchange_abort(x);
        else
            http_exchange_end(x);
    } else if (str_eq_c(path, "/last")) {
        http_exchange_reply(x, 200, "text/plain", STR("last"));
    } else {
        http_exchange_reply(x, 200, "text/plain", http_exchange_body(x));
    }
}

static void connect_again(struct run *run)
{
    if (run->fd >= 0)
        close(run->fd);
    run->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int rc = connect(run->fd, (struct sockaddr *)&address, sizeof(address));
    CHECK(rc == 0 || errno == EINPROGRESS);
}

static void on_turn(void *context)
{
    struct run *run = context;
    char in[4096];
    CHECK(++run->num_turns < MAX_TURNS); // the server answers or closes
    struct pollfd item = {.fd = run->fd, .events = POLLOUT};
    ssize_t got = recv(run->fd, in, sizeof(in), MSG_DONTWAIT);
    switch (run->phase) {
    case SENDING:
        if (run->bytes.len == 0) {
            if (run->half_close)
                shutdown(run->fd, SHUT_WR);
            run->phase = WAITING;
            run->step = 0;
        } else if (poll(&item, 1, 0) == 1) {
            struct str piece = str_slice(run->bytes, 0, run->step);
            ssize_t sent = send(run->fd, piece.ptr, piece.len, MSG_NOSIGNAL);
            bool gone = sent < 0 && errno != EAGAIN;
            run->bytes = str_slice(run->bytes, gone ? run->bytes.len : (size_t)max_i64(sent, 0),
                                   run->bytes.len);
        }
        break;
    case WAITING: // a few turns, then the client leaves whatever it was given
        if (++run->step < 4)
            break;
        connect_again(run);
        run->bytes = STR(last_request);
        run->phase = ASKING;
        break;
    case ASKING:
        if (run->bytes.len > 0 && poll(&item, 1, 0) == 1) {
            ssize_t sent = send(run->fd, run->bytes.ptr, run->bytes.len, MSG_NOSIGNAL);
            run->bytes = str_slice(run->bytes, (size_t)max_i64(sent, 0), run->bytes.len);
        }
        if (got > 0) {
            run->answered = str_ends_with((struct str){in, (size_t)got}, STR("last"));
            run->phase = DONE;
        }
        break;
    case DONE:
        if (run->num_open == 0) // the first client's leaving has been noticed
            http_server_stop(run->server);
        break;
    }
}

static int listen_on_loopback(void)
{
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 16) == 0 &&
          getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int listen_fd = -1; // one for all runs: ports are few
    static int turn_fds[2];    // always readable: a turn of the client at every turn of the loop
    if (listen_fd < 0) {
        listen_fd = listen_on_loopback();
        CHECK(pipe(turn_fds) == 0 && write(turn_fds[1], "x", 1) == 1);
    }
    if (size < 1)
        return 0;
    struct run run = {
        .fd = -1,
        .bytes = {(const char *)data + 1, size - 1},
        .step = data[0] & 1 ? size : (size_t)(data[0] >> 2) + 1,
        .half_close = (data[0] & 2) != 0,
    };
    const struct http_server_options options = {
        .max_header_count = 16,
        .max_header_bytes = 1024,
        .max_body_bytes = 4096,
        .keep_alive_timeout_s = 5,
        .body_timeout_s = 5,
        .on_request = on_request,
        .on_fault = on_fault,
        .context = &run,
    };
    struct error err = {0};
    CHECK(http_server_create(&run.server, listen_fd, &options, &err) == STATUS_OK);
    CHECK(http_server_watch(run.server, turn_fds[0], on_turn, &run) == STATUS_OK);
    connect_again(&run);
    http_server_run(run.server);
    CHECK(run.answered);
    close(run.fd);
    http_server_destroy(run.server);
    CHECK(run.num_open == 0);
    return 0;
}
