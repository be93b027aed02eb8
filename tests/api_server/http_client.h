// A plain HTTP client for tests: one request a connection, everything with a time limit.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/memory.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CLIENT_TIMEOUT_MS = 160000 };
#else
enum { CLIENT_TIMEOUT_MS = 20000 };
#endif

/** Everything is terminated. */
struct http_answer {
    int status; // 0: none came
    char *head, *body;
    size_t body_len;
    bool complete; // the end of the body was seen
};

static inline void http_answer_free(struct http_answer *a)
{
    free(a->head);
    free(a->body);
}

static inline int http_connect(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline void http_send_all(int fd, struct str bytes)
{
    for (size_t done = 0; done < bytes.len;) {
        ssize_t n = send(fd, bytes.ptr + done, bytes.len - done, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        done += (size_t)n;
    }
}

/** Connects and sends; the caller reads and closes. `headers`: lines with \r\n, or "". */
static inline int http_start(int port, const char *method, const char *path, const char *headers,
                             struct str body)
{
    struct buf out = {0};
    buf_printf(&out, "%s %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n%s", method, path, headers);
    if (body.len > 0 || strcmp(method, "POST") == 0)
        buf_printf(&out, "Content-Length: %zu\r\n", body.len);
    if (strcmp(method, "POST") == 0 && !strstr(headers, "Content-Type"))
        buf_append_c(&out, "Content-Type: application/json\r\n");
    buf_append_c(&out, "\r\n");
    buf_append(&out, body);
    int fd = http_connect(port);
    if (fd >= 0)
        http_send_all(fd, buf_str(&out));
    buf_deinit(&out);
    return fd;
}

/** Reads once; false at the end, after an error or when the time is over. */
static inline bool http_read_some(int fd, struct buf *in, int64_t deadline_ns)
{
    int64_t left_ms = (deadline_ns - clock_monotonic_ns()) / 1000000;
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    if (left_ms <= 0 || poll(&poll_fd, 1, (int)left_ms) <= 0)
        return false;
    char *room = buf_reserve(in, 65536);
    ssize_t n = read(fd, room, 65536);
    if (n <= 0)
        return false;
    in->len += (size_t)n;
    return true;
}

/** Reads until `text` has come `count` times. */
static inline bool http_read_until(int fd, struct buf *in, const char *text, int count)
{
    int64_t deadline_ns = clock_monotonic_ns() + CLIENT_TIMEOUT_MS * 1000000LL;
    for (;;) {
        int found = 0;
        size_t at = 0;
        while ((at = str_find(buf_str(in), str_from(text), at)) != STR_NOT_FOUND) {
            found++;
            at++;
        }
        if (found >= count)
            return true;
        if (!http_read_some(fd, in, deadline_ns))
            return false;
    }
}

static inline void http_dechunk(struct http_answer *a, struct str rest)
{
    struct buf body = {0};
    while (rest.len > 0) {
        size_t line = str_find(rest, STR("\r\n"), 0);
        if (line == STR_NOT_FOUND)
            break;
        size_t size = strtoul(rest.ptr, NULL, 16);
        rest = str_slice(rest, line + 2, rest.len);
        if (size == 0) {
            a->complete = true;
            break;
        }
        buf_append(&body, str_slice(rest, 0, size));
        rest = str_slice(rest, size + 2, rest.len);
    }
    a->body = xstrndup(body.len ? body.ptr : "", body.len);
    a->body_len = body.len;
    buf_deinit(&body);
}

static inline struct http_answer http_parse(struct str in)
{
    struct http_answer a = {0};
    size_t end = str_find(in, STR("\r\n\r\n"), 0);
    if (end == STR_NOT_FOUND) {
        a.head = xstrdup("");
        a.body = xstrdup("");
        return a;
    }
    a.head = xstrndup(in.ptr, end + 2);
    sscanf(a.head, "HTTP/1.1 %d", &a.status);
    struct str rest = str_slice(in, end + 4, in.len);
    if (strstr(a.head, "ransfer-Encoding: chunked")) {
        http_dechunk(&a, rest);
        return a;
    }
    a.body = xstrndup(rest.len ? rest.ptr : "", rest.len);
    a.body_len = rest.len;
    a.complete = true;
    return a;
}

/** The whole answer, of which `in` holds what has been read; both are given up. */
static inline struct http_answer http_finish_after(int fd, struct buf *in)
{
    int64_t deadline_ns = clock_monotonic_ns() + CLIENT_TIMEOUT_MS * 1000000LL;
    while (fd >= 0 && http_read_some(fd, in, deadline_ns)) {
    }
    if (fd >= 0)
        close(fd);
    struct http_answer answer = http_parse(buf_str(in));
    buf_deinit(in);
    return answer;
}

static inline struct http_answer http_finish(int fd)
{
    struct buf in = {0};
    return http_finish_after(fd, &in);
}

static inline struct http_answer http_call(int port, const char *method, const char *path,
                                           const char *headers, const char *body)
{
    return http_finish(http_start(port, method, path, headers, str_from(body)));
}
