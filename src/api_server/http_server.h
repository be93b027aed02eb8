// HTTP: connections in, exchanges out. One event loop, one thread. libevent stays in http_*.c.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

struct http_server;
struct tls;

/** One request and its answer. Lives until http_exchange_end() or, if the client leaves first,
 * until its on_close callback has returned. */
struct http_exchange;

struct http_server_options {
    int32_t max_header_count;
    int64_t max_header_bytes;
    int64_t max_body_bytes; // 413 as soon as a longer one is announced or has come
    int32_t keep_alive_timeout_s;
    int32_t body_timeout_s; // a body that stalls longer is cut off
    struct tls *tls;        // NULL: plain HTTP; outlives the server
    /** Called for every complete request. It answers at once or keeps the exchange for later. */
    void (*on_request)(void *context, struct http_exchange *exchange);
    /** Called for every request that is refused before it is complete, or is no HTTP: appends the
     *  body of the answer, which is JSON. */
    void (*on_fault)(void *context, struct str peer, int32_t status, const char *reason,
                     struct buf *body);
    void *context;
};

/** Serves on `listen_fd` (bound and listening; stays the caller's). */
NODISCARD enum status http_server_create(struct http_server **out, int listen_fd,
                                         const struct http_server_options *options,
                                         struct error *err);
void http_server_destroy(struct http_server *server);

/** Runs the loop until http_server_stop(). */
void http_server_run(struct http_server *server);
/** Leaves the loop after the current callback. */
void http_server_stop(struct http_server *server);
/** Takes no new connections; those that are open go on. */
void http_server_stop_listening(struct http_server *server);
int32_t http_server_num_exchanges(const struct http_server *server);
/** Answers that have ended and whose last bytes the clients have not taken yet. When both counts
 * are zero the loop can stop and nothing is lost. */
int32_t http_server_num_unwritten(const struct http_server *server);

/** Calls `fn` whenever `fd` is readable (level-triggered). For the channel and for wake-ups. */
NODISCARD enum status http_server_watch(struct http_server *server, int fd,
                                        void (*fn)(void *context), void *context);
/** Calls `fn` every `interval_ms` (at least 1). */
NODISCARD enum status http_server_every(struct http_server *server, int32_t interval_ms,
                                        void (*fn)(void *context), void *context);
/** Calls `fn` when the process gets signal `signo`. */
NODISCARD enum status http_server_on_signal(struct http_server *server, int signo,
                                            void (*fn)(void *context), void *context);

// The request. Text is borrowed from the exchange.
struct str http_exchange_method(const struct http_exchange *x); // "GET"
struct str http_exchange_path(const struct http_exchange *x);   // decoded, without the query
struct str http_exchange_query(const struct http_exchange *x);  // raw, without '?'
struct str http_exchange_body(const struct http_exchange *x);
/** Value of a header, name in any case; ptr is NULL when absent; the first when repeated. */
struct str http_exchange_header(const struct http_exchange *x, const char *name);
int32_t http_exchange_header_count(const struct http_exchange *x, const char *name);
struct str http_exchange_peer(const struct http_exchange *x); // "127.0.0.1:51514"

// The answer: headers first, then either one reply or a stream.
void http_exchange_add_header(struct http_exchange *x, const char *name, const char *value);
/** Sends the whole answer and ends the exchange. */
void http_exchange_reply(struct http_exchange *x, int32_t status, const char *content_type,
                         struct str body);
/** Starts a chunked answer. */
void http_exchange_begin_stream(struct http_exchange *x, int32_t status, const char *content_type);
/** Queues bytes; never blocks. */
void http_exchange_write(struct http_exchange *x, struct str bytes);
/** Bytes queued and not yet taken by the client: a slow reader. No timeout runs during a stream. */
size_t http_exchange_pending_bytes(const struct http_exchange *x);
/** Bytes that the socket has taken, since the first answer of its connection: while this grows, the
 *  client reads. */
uint64_t http_exchange_taken_bytes(const struct http_exchange *x);
/** Ends a stream; the exchange is gone. */
void http_exchange_end(struct http_exchange *x);
/** Ends the connection at once, without a final chunk. The exchange is gone; on_close is not
 * called. */
void http_exchange_abort(struct http_exchange *x);
/** `fn` is called once if the client leaves before the exchange has ended; the exchange must not be
 *  used afterwards. NULL takes it back. */
void http_exchange_on_close(struct http_exchange *x, void (*fn)(void *context), void *context);

const char *http_status_phrase(int32_t status);
