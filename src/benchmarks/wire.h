// A connection's bytes, plain or in TLS: what recv() and send() are, for a socket that does not
// block.
//
// TLS may need to write in order to read and to read in order to write (handshakes, new keys).
// Where a call returns EAGAIN, `wants` says which of the two the socket must become ready for.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"

struct ssl_st;
struct ssl_ctx_st;

/** How servers are believed to be who they say. `= {0}`: plain connections. */
struct wire_security {
    struct ssl_ctx_st *context; // NULL: plain
    char host[256];             // the name that the certificate must be for, and that is asked for
    bool is_address;            // it is an IP address
    bool is_insecure;           // whatever the certificate says
};

/** TLS with the certificates that this system trusts (SSL_CERT_FILE and SSL_CERT_DIR as OpenSSL
 *  reads them). Errors: INTERNAL (OpenSSL cannot start). End with wire_security_deinit(). */
NODISCARD enum status wire_security_init(struct wire_security *security, const char *host,
                                         bool is_insecure, struct error *err);
void wire_security_deinit(struct wire_security *security);

struct wire {
    int fd; // -1: closed
    struct ssl_st *tls;
    bool is_open;    // the handshake is over
    short wants;     // POLLIN or POLLOUT, after EAGAIN
    char fault[160]; // what TLS says went wrong, after EPROTO
};

/** Takes a connecting socket over. False with errno set: it is closed. */
NODISCARD bool wire_open(struct wire *wire, int fd, const struct wire_security *security);
void wire_close(struct wire *wire);

/** As recv() and send(): bytes, 0 for the peer's end, -1 with errno. EPROTO: `fault` says why. */
ssize_t wire_receive(struct wire *wire, void *bytes, size_t size);
ssize_t wire_send(struct wire *wire, const void *bytes, size_t size);

/** What an errno of the functions above means. */
const char *wire_error(const struct wire *wire, int why);
