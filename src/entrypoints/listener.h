// The listening sockets of `vllm serve`, bound before anything is loaded so that an address in use
// is told at once.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "message/message.h"

/** `= {0}` holds nothing. */
struct listeners {
    int32_t num; // API servers
    int fds[MAX_API_SERVERS];
    const char *uds; // removed by listeners_close(); NULL: TCP
    bool bound_uds;
    char url[320]; // "http://0.0.0.0:8000", "unix:/path"
};

/**
 * Binds and listens, one socket for each of `num` API servers: with several on TCP they share the
 * port by SO_REUSEPORT, on a Unix socket they share the socket. `host` NULL: all IPv4 interfaces; a
 * literal with ':' is IPv6. Port 0: any free one; `url` tells. `uds` (may be NULL) goes before host
 * and port and is borrowed; a socket file that nobody listens on is replaced.
 * Errors: INVALID (a host that does not resolve, a path too long), UNAVAILABLE (in use), IO.
 */
NODISCARD enum status listeners_open(struct listeners *listeners, const char *host, int32_t port,
                                     const char *uds, int32_t num, struct error *err);
void listeners_close(struct listeners *listeners);
