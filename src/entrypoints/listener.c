// The listening sockets of `vllm serve`.
#include "entrypoints/listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/memory.h"

enum { BACKLOG = 2048 };

static enum status socket_failed(struct error *err, const char *what, const char *url)
{
    return error_set(err, STATUS_IO, "%s %s: %s", what, url, strerror(errno));
}

// ---- Unix ----------------------------------------------------------------------------------

/** Removes a socket file that an earlier server left behind. */
static enum status remove_stale(const struct sockaddr_un *address, struct error *err)
{
    struct stat info;
    if (lstat(address->sun_path, &info) != 0)
        return STATUS_OK;
    if (!S_ISSOCK(info.st_mode))
        return error_set_field(err, STATUS_UNAVAILABLE, "--uds",
                               "--uds %s: a file that is no socket is in the way",
                               address->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return socket_failed(err, "no socket for", address->sun_path);
    bool in_use = connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
                  errno != ECONNREFUSED;
    close(fd);
    if (in_use)
        return error_set_field(err, STATUS_UNAVAILABLE, "--uds",
                               "--uds %s: another server listens there", address->sun_path);
    if (unlink(address->sun_path) != 0)
        return socket_failed(err, "cannot remove", address->sun_path);
    return STATUS_OK;
}

static enum status open_uds(struct listeners *listeners, const char *path, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return error_set_field(err, STATUS_INVALID, "--uds",
                               "--uds %s: %zu bytes, a socket's path has at most %zu", path,
                               strlen(path), sizeof(address.sun_path) - 1);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    snprintf(listeners->url, sizeof(listeners->url), "unix:%s", path);
    TRY(remove_stale(&address, err));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return socket_failed(err, "no socket for", listeners->url);
    listeners->fds[0] = fd;
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        return socket_failed(err, "cannot listen on", listeners->url);
    listeners->uds = path;
    listeners->bound_uds = true;
    if (listen(fd, BACKLOG) != 0)
        return socket_failed(err, "cannot listen on", listeners->url);
    for (int32_t i = 1; i < listeners->num; i++)
        listeners->fds[i] = fd;
    return STATUS_OK;
}

// ---- TCP -----------------------------------------------------------------------------------

static enum status resolve(const char *host, int32_t port, struct sockaddr_storage *address,
                           socklen_t *len, struct error *err)
{
    const struct addrinfo hints = {
        .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
        .ai_family = host && strchr(host, ':') ? AF_INET6 : AF_INET,
        .ai_socktype = SOCK_STREAM,
    };
    char service[16];
    snprintf(service, sizeof(service), "%d", port);
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(host && *host ? host : NULL, service, &hints, &found);
    if (rc != 0)
        return error_set_field(err, STATUS_INVALID, "--host", "--host %s: %s", host ? host : "",
                               gai_strerror(rc));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    *len = found->ai_addrlen;
    freeaddrinfo(found);
    return STATUS_OK;
}

static int32_t port_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)address)->sin6_port)
                                          : ntohs(((const struct sockaddr_in *)address)->sin_port);
}

static void format_url(struct listeners *listeners, const char *host, int32_t port)
{
    snprintf(listeners->url, sizeof(listeners->url),
             host && strchr(host, ':') ? "http://[%s]:%d" : "http://%s:%d",
             host && *host ? host : "0.0.0.0", port);
}

/** A bound socket, which listens later. */
static enum status bind_tcp(int *out, const struct sockaddr_storage *address, socklen_t len,
                            bool reuse_port, const char *url, struct error *err)
{
    int on = 1, fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return socket_failed(err, "no socket for", url);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (reuse_port && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) != 0) {
        close(fd);
        return socket_failed(err, "cannot share the port of", url);
    }
    if (bind(fd, (const struct sockaddr *)address, len) != 0) {
        int failure = errno;
        close(fd);
        if (failure == EADDRINUSE)
            return error_set_field(err, STATUS_UNAVAILABLE, "--port",
                                   "%s: the address is in use; stop the other server or choose "
                                   "another --port",
                                   url);
        return error_set(err, STATUS_IO, "cannot listen on %s: %s", url, strerror(failure));
    }
    *out = fd;
    return STATUS_OK;
}

static enum status open_tcp(struct listeners *listeners, const char *host, int32_t port,
                            struct error *err)
{
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof(address);
    format_url(listeners, host, port);
    TRY(resolve(host, port, &address, &len, err));
    // Bound without SO_REUSEPORT first: sharing would let a foreign server on the same port pass.
    TRY(bind_tcp(&listeners->fds[0], &address, len, false, listeners->url, err));
    len = sizeof(address);
    if (getsockname(listeners->fds[0], (struct sockaddr *)&address, &len) != 0)
        return socket_failed(err, "no address of", listeners->url);
    format_url(listeners, host, port_of(&address));
    if (listeners->num > 1) {
        close(listeners->fds[0]);
        listeners->fds[0] = -1;
        for (int32_t i = 0; i < listeners->num; i++)
            TRY(bind_tcp(&listeners->fds[i], &address, len, true, listeners->url, err));
    }
    for (int32_t i = 0; i < listeners->num; i++) {
        if (listen(listeners->fds[i], BACKLOG) == 0)
            continue;
        if (errno == EADDRINUSE) // somebody bound it without listening before us
            return error_set_field(err, STATUS_UNAVAILABLE, "--port", "%s: the address is in use",
                                   listeners->url);
        return socket_failed(err, "cannot listen on", listeners->url);
    }
    return STATUS_OK;
}

enum status listeners_open(struct listeners *listeners, const char *host, int32_t port,
                           const char *uds, int32_t num, struct error *err)
{
    *listeners = (struct listeners){.num = num};
    if (num < 1 || num > MAX_API_SERVERS)
        return error_set_field(err, STATUS_INVALID, "--api-server-count",
                               "--api-server-count %d is not within [1, %d]", num, MAX_API_SERVERS);
    for (int32_t i = 0; i < num; i++)
        listeners->fds[i] = -1;
    enum status status = uds ? open_uds(listeners, uds, err) : open_tcp(listeners, host, port, err);
    if (status != STATUS_OK)
        listeners_close(listeners);
    return status;
}

void listeners_close(struct listeners *listeners)
{
    for (int32_t i = 0; i < listeners->num; i++) {
        bool shared = i > 0 && listeners->fds[i] == listeners->fds[0];
        if (listeners->fds[i] >= 0 && !shared)
            close(listeners->fds[i]);
    }
    if (listeners->bound_uds)
        unlink(listeners->uds);
    *listeners = (struct listeners){0};
}
