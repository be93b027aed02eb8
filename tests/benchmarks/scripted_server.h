// A server for tests: one thread, any number of connections, answers at known times.
//
// Request number n (the digits at the end of its X-Request-Id) gets script n % num_scripts: pieces
// of bytes, each sent so many milliseconds after the request was read. When a piece really left is
// written down, so that a test can tell the client's delay from the server's.
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/memory.h"

enum { SCRIPT_MAX_STEPS = 64, SCRIPTED_MAX_CONNECTIONS = 1100 };

struct script_step {
    int at_ms;
    const char *bytes; // NULL: close the connection
};

struct script {
    int num_steps;
    struct script_step steps[SCRIPT_MAX_STEPS];
};

struct scripted_connection {
    int fd; // -1: free
    struct buf in;
    int request; // -1: none under way
    int next_step;
    int64_t due_ns, read_ns;
};

struct scripted_server {
    const struct script *scripts;
    int num_scripts, max_requests;
    int64_t *sent_ns; // [max_requests * SCRIPT_MAX_STEPS]
    int listen_fd, port, epoll_fd;
    pthread_t thread;
    atomic_bool stop;
    atomic_int num_requests, num_connections, num_active, most_active;
    struct buf last_request; // read it after scripted_server_stop()
    struct scripted_connection connections[SCRIPTED_MAX_CONNECTIONS];
};

static void scripted_close(struct scripted_connection *c)
{
    close(c->fd);
    c->fd = -1;
    buf_deinit(&c->in);
}

static void scripted_accept(struct scripted_server *s)
{
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    for (int i = 0; i < SCRIPTED_MAX_CONNECTIONS; i++) {
        struct scripted_connection *c = &s->connections[i];
        if (c->fd >= 0)
            continue;
        *c = (struct scripted_connection){.fd = fd, .request = -1};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event);
        atomic_fetch_add(&s->num_connections, 1);
        return;
    }
    close(fd);
}

static const struct script *script_of(const struct scripted_server *s, int request)
{
    return &s->scripts[request % s->num_scripts];
}

/** A whole request in `in`: starts its script. */
static void scripted_parse(struct scripted_server *s, struct scripted_connection *c)
{
    struct str text = buf_str(&c->in);
    size_t head = str_find(text, STR("\r\n\r\n"), 0);
    size_t length_at = str_find(text, STR("Content-Length: "), 0);
    size_t id_at = str_find(text, STR("X-Request-Id: "), 0);
    if (head == STR_NOT_FOUND || length_at > head || id_at > head)
        return;
    size_t body_len = strtoul(text.ptr + length_at + 16, NULL, 10);
    if (text.len < head + 4 + body_len)
        return;
    const char *end = memchr(text.ptr + id_at, '\r', head - id_at + 4), *digits = end;
    while (digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    c->request = (int)strtol(digits, NULL, 10) % s->max_requests;
    buf_clear(&s->last_request);
    buf_append(&s->last_request, text);
    buf_clear(&c->in);
    c->next_step = 0;
    c->read_ns = clock_monotonic_ns();
    c->due_ns = c->read_ns + script_of(s, c->request)->steps[0].at_ms * INT64_C(1000000);
    atomic_fetch_add(&s->num_requests, 1);
    int active = atomic_fetch_add(&s->num_active, 1) + 1;
    if (active > atomic_load(&s->most_active))
        atomic_store(&s->most_active, active);
}

static void scripted_read(struct scripted_server *s, struct scripted_connection *c)
{
    char bytes[16384];
    ssize_t len = recv(c->fd, bytes, sizeof(bytes), 0);
    if (len < 0 && errno == EAGAIN)
        return;
    if (len <= 0) {
        if (c->request >= 0)
            atomic_fetch_sub(&s->num_active, 1);
        scripted_close(c);
        return;
    }
    buf_append(&c->in, (struct str){bytes, (size_t)len});
    if (c->request < 0)
        scripted_parse(s, c);
}

/** Sends what is due on all connections; returns when the next piece is. */
static int64_t scripted_send_due(struct scripted_server *s)
{
    int64_t next_ns = INT64_MAX;
    for (int i = 0; i < SCRIPTED_MAX_CONNECTIONS; i++) {
        struct scripted_connection *c = &s->connections[i];
        if (c->fd < 0 || c->request < 0)
            continue;
        const struct script *script = script_of(s, c->request);
        while (c->request >= 0 && c->due_ns <= clock_monotonic_ns()) {
            const char *bytes = script->steps[c->next_step].bytes;
            s->sent_ns[c->request * SCRIPT_MAX_STEPS + c->next_step] = clock_monotonic_ns();
            bool ends = !bytes || c->next_step + 1 == script->num_steps;
            if (ends) // before the client can know it
                atomic_fetch_sub(&s->num_active, 1);
            if (bytes && send(c->fd, bytes, strlen(bytes), MSG_NOSIGNAL) < 0 && errno != EPIPE)
                fprintf(stderr, "scripted server: %s\n", strerror(errno));
            c->next_step++;
            if (ends)
                c->request = -1;
            else
                c->due_ns = c->read_ns + script->steps[c->next_step].at_ms * INT64_C(1000000);
            if (!bytes)
                scripted_close(c);
        }
        if (c->fd >= 0 && c->request >= 0)
            next_ns = min_i64(next_ns, c->due_ns);
    }
    return next_ns;
}

static void *scripted_run(void *context)
{
    struct scripted_server *s = context;
    struct epoll_event events[256];
    while (!atomic_load(&s->stop)) {
        int64_t next_ns = scripted_send_due(s);
        int64_t left_ns = next_ns - clock_monotonic_ns();
        struct timespec wait = {0, (long)max_i64(0, min_i64(left_ns, 20000000))};
        int num = epoll_pwait2(s->epoll_fd, events, 256, &wait, NULL);
        for (int i = 0; i < num; i++) {
            if (events[i].data.ptr == s)
                scripted_accept(s);
            else
                scripted_read(s, events[i].data.ptr);
        }
    }
    return NULL;
}

/** Answers on a free port of 127.0.0.1 until scripted_server_stop(). */
static struct scripted_server *scripted_server_start(const struct script *scripts, int num_scripts,
                                                     int max_requests)
{
    struct scripted_server *s = xcalloc(1, sizeof(*s));
    s->scripts = scripts;
    s->num_scripts = num_scripts;
    s->max_requests = max_requests;
    s->sent_ns = xcalloc((size_t)max_requests * SCRIPT_MAX_STEPS, sizeof(*s->sent_ns));
    for (int i = 0; i < SCRIPTED_MAX_CONNECTIONS; i++)
        s->connections[i].fd = -1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->listen_fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(s->listen_fd, SCRIPTED_MAX_CONNECTIONS), 0);
    getsockname(s->listen_fd, (struct sockaddr *)&address, &len);
    s->port = ntohs(address.sin_port);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->listen_fd, &event);
    assert_int_equal(pthread_create(&s->thread, NULL, scripted_run, s), 0);
    return s;
}

/** Ends the thread; the records stay readable until scripted_server_free(). */
static void scripted_server_stop(struct scripted_server *s)
{
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    for (int i = 0; i < SCRIPTED_MAX_CONNECTIONS; i++) {
        if (s->connections[i].fd >= 0)
            scripted_close(&s->connections[i]);
    }
    close(s->listen_fd);
    close(s->epoll_fd);
    buf_append_char(&s->last_request, '\0');
}

static void scripted_server_free(struct scripted_server *s)
{
    free(s->sent_ns);
    buf_deinit(&s->last_request);
    free(s);
}
