#include "benchmarks/target.h"

#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "benchmarks/answer_chunk.h"
#include "benchmarks/http_answer.h"

enum { CALL_TIMEOUT_MS = 10000, MAX_BODY_BYTES = 16 << 20 };

/** Splits "http://host:port/prefix" or "https://...". */
static enum status split_url(struct target *t, struct str url, char *host, size_t host_size,
                             char *port, size_t port_size, struct error *err)
{
    bool is_https = str_starts_with(url, STR("https://"));
    bool right = is_https || str_starts_with(url, STR("http://"));
    struct str rest = str_slice(url, is_https ? strlen("https://") : strlen("http://"), url.len);
    struct str path = rest, authority = str_split(&path, '/');
    struct str name, number;
    if (str_starts_with(authority, STR("["))) { // a literal IPv6 address
        number = str_slice(authority, 1, authority.len);
        name = str_split(&number, ']');
        right &= number.len == 0 || number.ptr[0] == ':';
        number = str_slice(number, 1, number.len);
    } else {
        number = authority;
        name = str_split(&number, ':');
    }
    while (str_ends_with(path, STR("/")))
        path.len--;
    right &= name.len > 0 && name.len < host_size && number.len < port_size &&
             path.len + 2 < sizeof(t->prefix) && url.len < sizeof(t->url);
    if (!right)
        return error_set(err, STATUS_INVALID,
                         "--base-url is '" STR_FORMAT "', expected http[s]://HOST[:PORT][/PREFIX]",
                         STR_ARG(str_slice(url, 0, 200)));
    snprintf(host, host_size, STR_FORMAT, STR_ARG(name));
    snprintf(port, port_size, STR_FORMAT,
             STR_ARG(number.len > 0 ? number
                     : is_https     ? STR("443")
                                    : STR("80")));
    snprintf(t->prefix, sizeof(t->prefix), "%s" STR_FORMAT, path.len > 0 ? "/" : "", STR_ARG(path));
    snprintf(t->url, sizeof(t->url), STR_FORMAT, STR_ARG(url));
    for (size_t len = strlen(t->url); len > 0 && t->url[len - 1] == '/'; len--)
        t->url[len - 1] = '\0';
    buf_printf(&t->headers, "Host: " STR_FORMAT "\r\n", STR_ARG(authority));
    return STATUS_OK;
}

static void add_headers(struct target *t, const struct bench_options *o)
{
    buf_append_c(&t->headers, "User-Agent: vllm-bench/" VLLM_VERSION "\r\n");
    if (o->api_key)
        buf_printf(&t->headers, "Authorization: Bearer %s\r\n", o->api_key);
    for (int32_t i = 0; i < o->headers.len; i++) {
        struct str value = str_from(o->headers.items[i]), name = str_split(&value, '=');
        buf_printf(&t->headers, STR_FORMAT ": " STR_FORMAT "\r\n", STR_ARG(name), STR_ARG(value));
    }
}

enum status target_init(struct target *t, const struct bench_options *o, struct error *err)
{
    *t = (struct target){0};
    char url[512], host[256], port[16];
    bool is_ipv6 = strchr(o->host, ':') != NULL;
    int len = o->base_url ? snprintf(url, sizeof(url), "%s", o->base_url)
                          : snprintf(url, sizeof(url), "http://%s%s%s:%d", is_ipv6 ? "[" : "",
                                     o->host, is_ipv6 ? "]" : "", o->port);
    if (len >= (int)sizeof(url))
        return error_set(err, STATUS_INVALID, "the URL of the server has more than %zu bytes",
                         sizeof(url) - 1);
    if (strpbrk(url, " \t\r\n"))
        return error_set(err, STATUS_INVALID, "the URL of the server holds white space");
    TRY(split_url(t, str_from(url), host, sizeof(host), port, sizeof(port), err));
    add_headers(t, o);
    if (str_starts_with(str_from(url), STR("https://")))
        TRY(wire_security_init(&t->security, host, o->insecure, err));
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int why = getaddrinfo(host, port, &hints, &found);
    if (why != 0)
        return error_set(err, STATUS_NOT_FOUND, "%s: %s", t->url, gai_strerror(why));
    t->address_len = found->ai_addrlen;
    memcpy(&t->address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return STATUS_OK;
}

void target_deinit(struct target *t)
{
    buf_deinit(&t->headers);
    wire_security_deinit(&t->security);
    *t = (struct target){0};
}

bool target_connect(const struct target *t, struct wire *wire)
{
    int fd = socket(t->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *wire = (struct wire){.fd = -1};
    if (fd < 0)
        return false;
    int on = 1; // a request leaves at once
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(fd, (const struct sockaddr *)&t->address, t->address_len) == 0 ||
        errno == EINPROGRESS)
        return wire_open(wire, fd, &t->security);
    int why = errno;
    close(fd);
    errno = why;
    return false;
}

// ---- a call that waits ---------------------------------------------------------------------

static bool wait_for(int fd, short events, int64_t until_ns)
{
    struct pollfd item = {.fd = fd, .events = events};
    for (;;) {
        int64_t left_ms = (until_ns - clock_monotonic_ns()) / 1000000;
        if (left_ms <= 0)
            return false;
        int num = poll(&item, 1, (int)left_ms);
        if (num != 0 && !(num < 0 && errno == EINTR))
            return num > 0;
    }
}

static enum status too_late(const char *url, struct error *err)
{
    return error_set(err, STATUS_TIMEOUT, "%s: no answer within %d s", url, CALL_TIMEOUT_MS / 1000);
}

static enum status send_all(struct wire *wire, struct str request, int64_t until_ns,
                            const char *url, struct error *err)
{
    if (!wait_for(wire->fd, POLLOUT, until_ns)) // connected
        return too_late(url, err);
    while (request.len > 0) {
        ssize_t len = wire_send(wire, request.ptr, request.len);
        if (len >= 0) {
            request = str_slice(request, (size_t)len, request.len);
            continue;
        }
        if (errno != EAGAIN && errno != EINTR)
            return error_set(err, STATUS_UNAVAILABLE, "no server answers at %s: %s", url,
                             wire_error(wire, errno));
        if (!wait_for(wire->fd, wire->wants, until_ns))
            return too_late(url, err);
    }
    return STATUS_OK;
}

static enum status append_body(void *context, struct str bytes, struct error *err)
{
    struct buf *body = context;
    if (body->len + bytes.len > MAX_BODY_BYTES)
        return error_set(err, STATUS_TOO_LARGE, "an answer of more than %d bytes", MAX_BODY_BYTES);
    buf_append(body, bytes);
    return STATUS_OK;
}

static enum status receive_all(struct wire *wire, struct http_answer *answer, struct buf *body,
                               int64_t until_ns, const char *url, struct error *err)
{
    char bytes[16384];
    while (answer->state != HTTP_ANSWER_DONE) {
        ssize_t len = wire_receive(wire, bytes, sizeof(bytes));
        if (len < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!wait_for(wire->fd, wire->wants, until_ns))
                return too_late(url, err);
            continue;
        }
        if (len < 0)
            return error_set(err, STATUS_UNAVAILABLE, "%s: %s", url, wire_error(wire, errno));
        size_t num_used;
        TRY(len == 0 ? http_answer_end(answer, err)
                     : http_answer_feed(answer, (struct str){bytes, (size_t)len}, &num_used,
                                        append_body, body, err));
    }
    return STATUS_OK;
}

enum status target_call(const struct target *t, const char *method, const char *path, int *code,
                        struct buf *body, struct error *err)
{
    int64_t until_ns = clock_monotonic_ns() + CALL_TIMEOUT_MS * INT64_C(1000000);
    struct wire wire;
    if (!target_connect(t, &wire))
        return error_set(err, STATUS_UNAVAILABLE, "no server answers at %s: %s", t->url,
                         strerror(errno));
    struct buf request = {0};
    struct http_answer answer = {0};
    buf_printf(&request, "%s %s%s HTTP/1.1\r\n", method, t->prefix, path);
    buf_append(&request, buf_str(&t->headers));
    buf_append_c(&request, "Content-Length: 0\r\nConnection: close\r\n\r\n");
    enum status status = send_all(&wire, buf_str(&request), until_ns, t->url, err);
    if (status == STATUS_OK)
        status = receive_all(&wire, &answer, body, until_ns, t->url, err);
    *code = answer.code;
    http_answer_deinit(&answer);
    buf_deinit(&request);
    wire_close(&wire);
    return status;
}

void target_reset_cache(const struct target *t, bool *is_refused)
{
    struct buf body = {0};
    int code = 0;
    if (*is_refused)
        return;
    enum status status = target_call(t, "POST", "/reset_prefix_cache", &code, &body, NULL);
    if (status == STATUS_OK && code != 200) {
        *is_refused = true;
        printf("The server does not reset its prefix cache (POST /reset_prefix_cache answers %d): "
               "a run may find in it what the one before put there.\n",
               code);
    }
    buf_deinit(&body);
}

enum status target_find_model(const struct target *t, struct arena *arena, const char **id,
                              const char **root, struct error *err)
{
    struct buf body = {0};
    int code = 0;
    enum status status = target_call(t, "GET", "/v1/models", &code, &body, err);
    if (status == STATUS_OK && code != 200) {
        struct str message = answer_error_message(buf_str(&body), arena);
        status = error_set(err, STATUS_INVALID, "%s/v1/models answers %d: " STR_FORMAT, t->url,
                           code, STR_ARG(message));
    }
    json_t *answer =
        status == STATUS_OK ? json_loadb(body.ptr ? body.ptr : "", body.len, 0, NULL) : NULL;
    const json_t *first = json_array_get(json_object_get(answer, "data"), 0);
    const char *name = json_string_value(json_object_get(first, "id"));
    const char *folder = json_string_value(json_object_get(first, "root"));
    if (status == STATUS_OK && !name)
        status = error_set(err, STATUS_INVALID, "%s/v1/models lists no model; see --model", t->url);
    if (status == STATUS_OK) {
        *id = arena_strdup(arena, str_from(name));
        *root = folder ? arena_strdup(arena, str_from(folder)) : NULL;
    }
    json_decref(answer);
    buf_deinit(&body);
    return status;
}
