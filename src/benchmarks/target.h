// The server under test: where it is, and what every request to it begins with.
#pragma once

#include <sys/socket.h>

#include "base/buf.h"
#include "benchmarks/bench_options.h"
#include "benchmarks/wire.h"

struct target {
    struct sockaddr_storage address;
    socklen_t address_len;
    struct wire_security security;
    char url[512];      // "http://127.0.0.1:8000", without a final slash, for messages
    char prefix[256];   // a path before every endpoint, or empty
    struct buf headers; // Host and the lines that all requests share, each with its line end
};

/**
 * Resolves --base-url, or --host and --port. Errors: INVALID (no URL), NOT_FOUND (a name that does
 * not resolve), INTERNAL (no TLS for https). End with target_deinit() in any case.
 */
NODISCARD enum status target_init(struct target *target, const struct bench_options *options,
                                  struct error *err);
void target_deinit(struct target *target);

/** A connected or connecting wire over a socket that does not block. False with errno set: none. */
NODISCARD bool target_connect(const struct target *target, struct wire *wire);

/**
 * One request without body, waited for: `*code` and the body, which is appended. Errors:
 * UNAVAILABLE (no connection), TIMEOUT (10 s), CLOSED, INVALID.
 */
NODISCARD enum status target_call(const struct target *target, const char *method, const char *path,
                                  int *code, struct buf *body, struct error *err);

/** So that no run finds in the server's cache what the one before put there. Says once that the
 *  server does not do it, and sets `*is_refused`, with which it is not asked again. */
void target_reset_cache(const struct target *target, bool *is_refused);

/** The first model that the server lists: its id, and its root (maybe a folder here; NULL if not
 *  said), in `arena`. Errors: as target_call(), and INVALID (an answer of another kind). */
NODISCARD enum status target_find_model(const struct target *target, struct arena *arena,
                                        const char **id, const char **root, struct error *err);
