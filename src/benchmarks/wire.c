#include "benchmarks/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CALL_BYTES = 1 << 30 }; // OpenSSL counts in int

static bool is_ip_address(const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

enum status wire_security_init(struct wire_security *security, const char *host, bool is_insecure,
                               struct error *err)
{
    *security =
        (struct wire_security){.is_insecure = is_insecure, .is_address = is_ip_address(host)};
    snprintf(security->host, sizeof(security->host), "%s", host);
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    security->context = context;
    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
        (!is_insecure && SSL_CTX_set_default_verify_paths(context) != 1))
        return error_set(err, STATUS_INTERNAL, "TLS cannot start: %s",
                         ERR_error_string(ERR_get_error(), NULL));
    SSL_CTX_set_verify(context, is_insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    // A request is sent as far as it goes, and goes on from where it then lies.
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    signal(SIGPIPE, SIG_IGN); // OpenSSL writes without MSG_NOSIGNAL
    return STATUS_OK;
}

void wire_security_deinit(struct wire_security *security)
{
    SSL_CTX_free(security->context);
    *security = (struct wire_security){0};
}

/** Who must be at the other end, in the handshake that the first byte begins. */
static SSL *make_tls(int fd, const struct wire_security *security)
{
    SSL *tls = SSL_new(security->context);
    const char *host = security->host;
    bool right = tls && SSL_set_fd(tls, fd) == 1;
    if (right && security->is_address)
        right = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), host) == 1;
    else if (right)
        right = SSL_set1_host(tls, host) == 1 && SSL_set_tlsext_host_name(tls, host) == 1;
    if (right) {
        SSL_set_connect_state(tls);
        return tls;
    }
    SSL_free(tls);
    return NULL;
}

bool wire_open(struct wire *wire, int fd, const struct wire_security *security)
{
    *wire = (struct wire){.fd = fd};
    if (!security->context)
        return true;
    wire->tls = make_tls(fd, security);
    if (wire->tls)
        return true;
    wire_close(wire);
    errno = ENOMEM;
    return false;
}

void wire_close(struct wire *wire)
{
    SSL_free(wire->tls);
    wire->tls = NULL;
    if (wire->fd >= 0)
        close(wire->fd);
    wire->fd = -1;
}

/** What a failed call means, as errno. */
static ssize_t tls_failure(struct wire *wire, int result)
{
    int system = errno, kind = SSL_get_error(wire->tls, result);
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) {
        wire->wants = kind == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        errno = EAGAIN;
        return -1;
    }
    unsigned long code = ERR_get_error();
    long verdict = SSL_get_verify_result(wire->tls);
    bool is_end = kind == SSL_ERROR_ZERO_RETURN || (kind == SSL_ERROR_SYSCALL && system == 0) ||
                  ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    if (is_end && wire->is_open)
        return 0;
    if (kind == SSL_ERROR_SYSCALL && system != 0) {
        errno = system;
        return -1;
    }
    if (verdict != X509_V_OK && ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED)
        snprintf(wire->fault, sizeof(wire->fault),
                 "the server's certificate is not trusted (%s); --insecure accepts any",
                 X509_verify_cert_error_string(verdict));
    else
        snprintf(wire->fault, sizeof(wire->fault), "TLS failed: %s",
                 is_end ? "the server ended the handshake" : ERR_reason_error_string(code));
    errno = EPROTO;
    return -1;
}

ssize_t wire_receive(struct wire *wire, void *bytes, size_t size)
{
    if (!wire->tls) {
        wire->wants = POLLIN;
        return recv(wire->fd, bytes, size, 0);
    }
    ERR_clear_error();
    errno = 0;
    int result = SSL_read(wire->tls, bytes, size < MAX_CALL_BYTES ? (int)size : MAX_CALL_BYTES);
    if (result <= 0)
        return tls_failure(wire, result);
    wire->is_open = true;
    return result;
}

ssize_t wire_send(struct wire *wire, const void *bytes, size_t size)
{
    if (!wire->tls) {
        wire->wants = POLLOUT;
        return send(wire->fd, bytes, size, MSG_NOSIGNAL);
    }
    ERR_clear_error();
    errno = 0;
    int result = SSL_write(wire->tls, bytes, size < MAX_CALL_BYTES ? (int)size : MAX_CALL_BYTES);
    if (result > 0) {
        wire->is_open = true;
        return result;
    }
    ssize_t failure = tls_failure(wire, result);
    if (failure == 0) { // an end where there is more to say
        errno = EPIPE;
        return -1;
    }
    return failure;
}

const char *wire_error(const struct wire *wire, int why)
{
    return why == EPROTO && wire->fault[0] ? wire->fault : strerror(why);
}
