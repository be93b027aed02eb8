// HTTP on libevent's evhttp: connections in, exchanges out. What becomes of an exchange is in
// http_exchange.c.
//
// evhttp reads requests and frames answers. What it leaves to us:
//  1. A client that leaves while its answer is being computed. evhttp stops reading then; here
//     reading goes on, into a buffer of at most MAX_EARLY_BYTES, and without evhttp's read
//     callback, so that an end of file or a reset is noticed at once. A half-closed connection
//     counts as gone.
//  2. Framing that two readers could understand differently (both lengths, repeated lengths, other
//     codings, blanks in a header's name): answered with 400, and the connection is closed, so that
//     no byte of a doubtful body is ever taken for a request.
//  3. Timeouts. A request that stalls, an idle connection and an answer that nobody takes have one
//     each; none runs while an answer is being computed or streamed.
//  4. Faults that evhttp finds itself: a malformed request line, a head or a body over the limit.
//     It answers them before we hear of them, with the right status and an HTML page of its own
//     (version 2.1 has no hook for that): what it writes while no answer of ours is due is replaced
//     (http_faults.c). A body over the limit is refused as soon as its length is known; what the
//     client still sends is read and thrown away for a while (http_linger.c).
#include "api_server/http_server.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>

#include "api_server/http_connection.h"
#include "api_server/http_faults.h"
#include "api_server/http_linger.h"
#include "api_server/tls.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    ACCEPT_RETRY_S = 1,      // after the process has run out of descriptors
    KEEP_ALIVE_PROBE_S = 60, // TCP's own, for hosts that vanished
};

/** A callback that the owner of the server asked for. */
struct watch {
    struct watch *next;
    struct event *event;
    void (*fn)(void *context);
    void *context;
};

struct http_server {
    struct http_server_options options;
    struct event_base *base;
    struct evhttp *evhttp;
    struct evconnlistener *listener;
    struct evhttp_bound_socket *bound; // NULL: takes no new connections
    struct event *accept_tick;
    struct connection **connections; // [num_slots], by descriptor
    size_t num_slots;
    struct bufferevent **accepted; // [num_accepted], not wrapped by evhttp when they were made
    size_t num_accepted, max_accepted;
    struct event *adopt; // gives them their connections
    struct http_linger *lingering;
    struct watch *watches;
    struct http_counts counts;
};

// ---- connections ---------------------------------------------------------------------------

void http_connection_set_timeouts(struct connection *connection, int32_t read_s, int32_t write_s)
{
    struct timeval read = {.tv_sec = read_s}, write = {.tv_sec = write_s};
    bufferevent_set_timeouts(connection->bev, read_s > 0 ? &read : NULL,
                             write_s > 0 ? &write : NULL);
}

/** evhttp's word that a connection ends: the last that is heard of it. */
static void on_connection_close(struct evhttp_connection *evcon, void *context)
{
    (void)evcon;
    struct connection *connection = context;
    struct http_exchange *x = connection->exchange;
    if (x) {
        struct evhttp_request *request = x->request;
        // Where the client left, evhttp has cut the request loose and nobody else frees it.
        bool orphaned = evhttp_request_get_connection(request) == NULL;
        if (x->on_close)
            x->on_close(x->on_close_context);
        http_exchange_forget(x);
        if (orphaned)
            evhttp_request_free(request);
    }
    if (connection->refused)
        http_linger_add(connection->server->lingering, connection->fd);
    connection->counts->num_unwritten -= connection->writing;
    connection->server->connections[connection->fd] = NULL;
    free(connection);
}

/** Bytes have gone out or are about to: an answer of ours, or evhttp's word on a request that it
 *  refuses. */
static void on_output(struct evbuffer *output, const struct evbuffer_cb_info *info, void *context)
{
    struct connection *connection = context;
    connection->num_taken += info->n_deleted;
    if (!connection->ours &&
        http_faults_replace(output, info, connection->options, str_from(connection->peer)))
        connection->refused = true;
}

/** Bytes came in: a connection that waited for a request is now reading one. */
static void on_input(struct evbuffer *input, const struct evbuffer_cb_info *info, void *context)
{
    struct connection *connection = context;
    if (connection->exchange && evbuffer_get_length(input) > MAX_EARLY_BYTES)
        shutdown(connection->fd, SHUT_RDWR); // the next read tells evhttp
    if (info->n_added > 0 && connection->idle) {
        int32_t timeout_s = connection->options->body_timeout_s;
        connection->idle = false;
        http_connection_set_timeouts(connection, timeout_s, timeout_s);
    }
}

static void format_peer(struct connection *connection)
{
    char *address = NULL;
    ev_uint16_t port = 0;
    evhttp_connection_get_peer(connection->evcon, &address, &port);
    if (port == 0) // a Unix socket
        snprintf(connection->peer, sizeof(connection->peer), "unix");
    else
        snprintf(connection->peer, sizeof(connection->peer),
                 strchr(address, ':') ? "[%s]:%d" : "%s:%d", address, (int)port);
}

/** Makes the connection of a buffer that evhttp has wrapped. */
static void add_connection(struct http_server *server, struct bufferevent *bev)
{
    void *evcon;
    bufferevent_getcb(bev, NULL, NULL, NULL, &evcon); // evhttp's callbacks carry it
    int fd = bufferevent_getfd(bev);
    assert(evcon && fd >= 0);
    if ((size_t)fd >= server->num_slots) {
        size_t num_slots = (size_t)fd * 2 + 64;
        server->connections =
            xrealloc(server->connections, num_slots * sizeof(*server->connections));
        for (size_t i = server->num_slots; i < num_slots; i++)
            server->connections[i] = NULL;
        server->num_slots = num_slots;
    }
    struct connection *connection = xcalloc(1, sizeof(*connection));
    connection->server = server;
    connection->options = &server->options;
    connection->counts = &server->counts;
    connection->evcon = evcon;
    connection->bev = bev;
    connection->fd = fd;
    format_peer(connection);
    assert(!server->connections[fd]);
    server->connections[fd] = connection;
    evhttp_connection_set_closecb(evcon, on_connection_close, connection);
    evbuffer_add_cb(bufferevent_get_input(bev), on_input, connection);
    evbuffer_add_cb(bufferevent_get_output(bev), on_output, connection);
}

/** Later in the turn of the loop that accepted them, before anything is read from them. */
static void on_adopt(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct http_server *server = context;
    for (size_t i = 0; i < server->num_accepted; i++)
        add_connection(server, server->accepted[i]);
    server->num_accepted = 0;
}

/** The connection that a request came on. */
static struct connection *connection_of(struct http_server *server, struct evhttp_connection *evcon)
{
    int fd = bufferevent_getfd(evhttp_connection_get_bufferevent(evcon));
    assert(fd >= 0 && (size_t)fd < server->num_slots);
    struct connection *connection = server->connections[fd];
    assert(connection && connection->evcon == evcon && !connection->exchange);
    return connection;
}

/** evhttp's word that a request is complete. */
static void on_evhttp_request(struct evhttp_request *request, void *context)
{
    http_exchange_start(connection_of(context, evhttp_request_get_connection(request)), request);
}

// ---- the server ----------------------------------------------------------------------------

static void on_accept_error(struct evconnlistener *listener, void *context)
{
    (void)context; // evhttp's own
    log_error("cannot accept a connection, trying again within a second: %s", strerror(errno));
    // The listening socket stays readable: without a pause this would be a busy loop.
    evconnlistener_disable(listener);
}

static void on_accept_tick(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct http_server *server = context;
    if (server->bound)
        evconnlistener_enable(server->listener); // does nothing to one that is enabled
}

/** A new connection's buffer, which can hold the largest body and little more. */
static struct bufferevent *new_bufferevent(struct event_base *base, void *context)
{
    struct http_server *server = context;
    struct tls *tls = server->options.tls;
    struct ssl_st *session = tls ? tls_session(tls) : NULL;
    struct bufferevent *bev;
    if (!tls)
        bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    else if (session) // takes it
        bev = bufferevent_openssl_socket_new(base, -1, session, BUFFEREVENT_SSL_ACCEPTING,
                                             BEV_OPT_CLOSE_ON_FREE);
    else
        bev = NULL;
    if (bev && tls) // requests and answers say themselves where they end
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    if (bev) {
        bufferevent_setwatermark(bev, EV_READ, 0,
                                 (size_t)server->options.max_body_bytes + MAX_EARLY_BYTES);
        if (server->num_accepted == server->max_accepted) {
            server->max_accepted = server->max_accepted * 2 + 16;
            server->accepted =
                xrealloc(server->accepted, server->max_accepted * sizeof(*server->accepted));
        }
        server->accepted[server->num_accepted++] = bev;
        event_active(server->adopt, EV_TIMEOUT, 0);
    }
    return bev;
}

/** Options that accepted sockets inherit; a Unix socket has none of them. */
static void set_socket_options(int fd)
{
    int on = 1, probe_s = KEEP_ALIVE_PROBE_S;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &probe_s, sizeof(probe_s));
}

static bool listen_on(struct http_server *server, int listen_fd)
{
    if (evutil_make_socket_nonblocking(listen_fd) != 0)
        return false;
    set_socket_options(listen_fd);
    const struct timeval retry = {.tv_sec = ACCEPT_RETRY_S};
    server->accept_tick = event_new(server->base, -1, EV_PERSIST, on_accept_tick, server);
    if (!server->accept_tick || event_add(server->accept_tick, &retry) != 0)
        return false;
    server->listener =
        evconnlistener_new(server->base, NULL, NULL, LEV_OPT_CLOSE_ON_EXEC, 0, listen_fd);
    if (!server->listener)
        return false;
    evconnlistener_set_error_cb(server->listener, on_accept_error);
    server->bound = evhttp_bind_listener(server->evhttp, server->listener);
    if (!server->bound)
        evconnlistener_free(server->listener);
    return server->bound != NULL;
}

enum status http_server_create(struct http_server **out, int listen_fd,
                               const struct http_server_options *options, struct error *err)
{
    *out = NULL;
    struct http_server *server = xcalloc(1, sizeof(*server));
    server->options = *options;
    signal(SIGPIPE, SIG_IGN); // a client that left is an error of one write, not of the process
    server->base = event_base_new();
    server->evhttp = server->base ? evhttp_new(server->base) : NULL;
    server->adopt = server->base ? event_new(server->base, -1, 0, on_adopt, server) : NULL;
    server->lingering = server->base ? http_linger_create(server->base) : NULL;
    if (!server->evhttp || !server->adopt || !listen_on(server, listen_fd)) {
        http_server_destroy(server);
        return error_set(err, STATUS_IO, "cannot start the HTTP server: %s", strerror(errno));
    }
    evhttp_set_allowed_methods(server->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_PUT |
                                                   EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS |
                                                   EVHTTP_REQ_HEAD | EVHTTP_REQ_PATCH);
    evhttp_set_max_headers_size(server->evhttp, options->max_header_bytes);
    evhttp_set_max_body_size(server->evhttp, options->max_body_bytes);
    evhttp_set_timeout(server->evhttp, options->body_timeout_s);
    evhttp_set_default_content_type(server->evhttp, NULL);
    evhttp_set_bevcb(server->evhttp, new_bufferevent, server);
    evhttp_set_gencb(server->evhttp, on_evhttp_request, server);
    *out = server;
    return STATUS_OK;
}

void http_server_destroy(struct http_server *server)
{
    if (!server)
        return;
    for (struct watch *watch = server->watches, *next; watch; watch = next) {
        next = watch->next;
        event_free(watch->event);
        free(watch);
    }
    if (server->accept_tick)
        event_free(server->accept_tick);
    if (server->evhttp)
        evhttp_free(server->evhttp); // closes the connections, which tells the exchanges
    http_linger_destroy(server->lingering);
    if (server->adopt)
        event_free(server->adopt);
    if (server->base)
        event_base_free(server->base);
    free(server->accepted);
    free(server->connections);
    free(server);
}

void http_server_run(struct http_server *server)
{
    event_base_loop(server->base, EVLOOP_NO_EXIT_ON_EMPTY);
}

void http_server_stop(struct http_server *server)
{
    event_base_loopbreak(server->base);
}

void http_server_stop_listening(struct http_server *server)
{
    if (!server->bound)
        return;
    evhttp_del_accept_socket(server->evhttp, server->bound); // frees the listener
    server->bound = NULL;
    server->listener = NULL;
}

int32_t http_server_num_exchanges(const struct http_server *server)
{
    return server->counts.num_exchanges;
}

int32_t http_server_num_unwritten(const struct http_server *server)
{
    return server->counts.num_unwritten;
}

static void on_event(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    const struct watch *watch = context;
    watch->fn(watch->context);
}

static enum status add_watch(struct http_server *server, int fd, short what,
                             const struct timeval *interval, void (*fn)(void *context),
                             void *context)
{
    struct watch *watch = xcalloc(1, sizeof(*watch));
    watch->fn = fn;
    watch->context = context;
    watch->event = event_new(server->base, fd, what | EV_PERSIST, on_event, watch);
    if (!watch->event || event_add(watch->event, interval) != 0) {
        if (watch->event)
            event_free(watch->event);
        free(watch);
        return STATUS_IO;
    }
    watch->next = server->watches;
    server->watches = watch;
    return STATUS_OK;
}

enum status http_server_watch(struct http_server *server, int fd, void (*fn)(void *context),
                              void *context)
{
    return add_watch(server, fd, EV_READ, NULL, fn, context);
}

enum status http_server_every(struct http_server *server, int32_t interval_ms,
                              void (*fn)(void *context), void *context)
{
    assert(interval_ms > 0); // libevent would fire once
    struct timeval interval = {.tv_sec = interval_ms / 1000, .tv_usec = interval_ms % 1000 * 1000};
    return add_watch(server, -1, 0, &interval, fn, context);
}

enum status http_server_on_signal(struct http_server *server, int signo, void (*fn)(void *context),
                                  void *context)
{
    return add_watch(server, signo, EV_SIGNAL, NULL, fn, context);
}
