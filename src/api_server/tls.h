// TLS for the HTTP server: its certificate and key, and whose certificates it wants to see.
#pragma once

#include "base/status.h"
#include "config/options.h"

struct ssl_st; // OpenSSL's
struct tls;

/**
 * Reads what --ssl-certfile, --ssl-keyfile, --ssl-ca-certs, --ssl-cert-reqs and --ssl-ciphers name.
 * `*out` is NULL when no certificate is given: plain HTTP. Errors name the flag: NOT_FOUND, INVALID
 * (no certificate, no key, a key that belongs to another certificate, unknown ciphers).
 */
NODISCARD enum status tls_create(struct tls **out, const struct serve_options *options,
                                 struct error *err);
void tls_destroy(struct tls *tls);

/** A session for one connection that comes in; the caller frees it. NULL: out of memory. */
struct ssl_st *tls_session(struct tls *tls);
