// One request and its answer: what a handler reads, and what goes out, in one piece or as a stream.
#include "api_server/http_connection.h"

#include <assert.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>

#include "api_server/http_faults.h"
#include "base/log.h"
#include "base/memory.h"

// ---- the life of an exchange ---------------------------------------------------------------

void http_exchange_forget(struct http_exchange *x)
{
    x->connection->exchange = NULL;
    x->connection->counts->num_exchanges--;
    free(x->path);
    free(x);
}

/** While an answer is being computed: notice the client's leaving, let nothing else in. */
static void watch_for_close(struct connection *connection)
{
    bufferevent_data_cb write_cb;
    bufferevent_event_cb event_cb;
    void *context;
    bufferevent_getcb(connection->bev, NULL, &write_cb, &event_cb, &context);
    bufferevent_setcb(connection->bev, NULL, write_cb, event_cb, context);
    bufferevent_setwatermark(connection->bev, EV_READ, 0, 0);
    http_connection_set_timeouts(connection, 0, 0);
    bufferevent_enable(connection->bev, EV_READ);
}

/** The last byte of an answer is written; the connection closes or waits for another request. */
static void on_answer_written(struct evhttp_request *request, void *context)
{
    (void)request;
    struct connection *connection = context;
    const struct http_server_options *options = connection->options;
    connection->counts->num_unwritten -= connection->writing;
    connection->writing = connection->ours = false;
    connection->idle = evbuffer_get_length(bufferevent_get_input(connection->bev)) == 0;
    bufferevent_setwatermark(connection->bev, EV_READ, 0,
                             (size_t)options->max_body_bytes + MAX_EARLY_BYTES);
    http_connection_set_timeouts(
        connection, connection->idle ? options->keep_alive_timeout_s : options->body_timeout_s,
        options->body_timeout_s);
}

/** evhttp reads no body after HEAD: what follows must not be taken for a request. */
static bool has_unread_body(struct evhttp_request *request)
{
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(request);
    return evhttp_request_get_command(request) == EVHTTP_REQ_HEAD &&
           (evhttp_find_header(headers, "Content-Length") ||
            evhttp_find_header(headers, "Transfer-Encoding"));
}

static void close_after_answer(struct evhttp_request *request)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    if (!evhttp_find_header(headers, "Connection"))
        evhttp_add_header(headers, "Connection", "close");
}

static void decode_path(struct http_exchange *x)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(x->request);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    x->path = evhttp_uridecode(path ? path : "", 0, &x->path_len);
}

void http_exchange_start(struct connection *connection, struct evhttp_request *request)
{
    const struct http_server_options *options = connection->options;
    struct http_exchange *x = xcalloc(1, sizeof(*x));
    x->connection = connection;
    x->request = request;
    connection->exchange = x;
    connection->idle = false;
    connection->ours = true;
    connection->counts->num_exchanges++;
    decode_path(x);
    watch_for_close(connection);
    evhttp_request_set_on_complete_cb(request, on_answer_written, connection);
    evhttp_add_header(evhttp_request_get_output_headers(request), "Server", "vllm.c");

    const char *fault = http_faults_of_head(request, options->max_header_count);
    if (fault || has_unread_body(request))
        close_after_answer(request);
    if (fault) {
        struct buf body = {0};
        options->on_fault(options->context, http_exchange_peer(x), 400, fault, &body);
        http_exchange_reply(x, 400, "application/json", buf_str(&body));
        buf_deinit(&body);
        return;
    }
    options->on_request(options->context, x);
}

// ---- the request ---------------------------------------------------------------------------

struct str http_exchange_method(const struct http_exchange *x)
{
    switch (evhttp_request_get_command(x->request)) {
    case EVHTTP_REQ_GET:
        return STR("GET");
    case EVHTTP_REQ_POST:
        return STR("POST");
    case EVHTTP_REQ_HEAD:
        return STR("HEAD");
    case EVHTTP_REQ_PUT:
        return STR("PUT");
    case EVHTTP_REQ_DELETE:
        return STR("DELETE");
    case EVHTTP_REQ_OPTIONS:
        return STR("OPTIONS");
    case EVHTTP_REQ_PATCH:
        return STR("PATCH");
    default: // not among the allowed methods: never gets here
        return STR("");
    }
}

struct str http_exchange_path(const struct http_exchange *x)
{
    return x->path ? (struct str){x->path, x->path_len} : STR("");
}

struct str http_exchange_query(const struct http_exchange *x)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(x->request);
    const char *query = uri ? evhttp_uri_get_query(uri) : NULL;
    return query ? str_from(query) : STR("");
}

struct str http_exchange_body(const struct http_exchange *x)
{
    struct evbuffer *input = evhttp_request_get_input_buffer(x->request);
    size_t len = evbuffer_get_length(input);
    if (len == 0)
        return STR("");
    const unsigned char *bytes = evbuffer_pullup(input, -1);
    CHECK(bytes);
    return (struct str){(const char *)bytes, len};
}

struct str http_exchange_header(const struct http_exchange *x, const char *name)
{
    return str_from(evhttp_find_header(evhttp_request_get_input_headers(x->request), name));
}

int32_t http_exchange_header_count(const struct http_exchange *x, const char *name)
{
    int32_t count = 0;
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(x->request);
    for (const struct evkeyval *h = headers->tqh_first; h; h = h->next.tqe_next)
        count += strcasecmp(h->key, name) == 0;
    return count;
}

struct str http_exchange_peer(const struct http_exchange *x)
{
    return str_from(x->connection->peer);
}

// ---- answers -------------------------------------------------------------------------------

const char *http_status_phrase(int32_t status)
{
    static const struct {
        int32_t status;
        const char *phrase;
    } rows[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Request Entity Too Large"},
        {415, "Unsupported Media Type"},
        {422, "Unprocessable Entity"},
        {429, "Too Many Requests"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].status == status)
            return rows[i].phrase;
    }
    return "Unknown";
}

void http_exchange_add_header(struct http_exchange *x, const char *name, const char *value)
{
    // evhttp refuses line breaks: a value taken from a request cannot forge another header.
    if (evhttp_add_header(evhttp_request_get_output_headers(x->request), name, value) != 0)
        log_warning("header %s: a value with line breaks is left out", name);
}

static void start_answer(struct http_exchange *x, int32_t status, const char *content_type)
{
    assert(!x->streaming);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(x->request);
    if (content_type && !evhttp_find_header(headers, "Content-Type"))
        evhttp_add_header(headers, "Content-Type", content_type);
    x->has_body = evhttp_request_get_command(x->request) != EVHTTP_REQ_HEAD && status != 204 &&
                  status != 304 && status >= 200;
}

static void on_written(struct bufferevent *bev, void *context)
{
    struct connection *connection = context;
    if (evbuffer_get_length(bufferevent_get_output(bev)) == 0)
        connection->evhttp_written(bev, connection->evcon);
}

static void on_fault(struct bufferevent *bev, short what, void *context)
{
    struct connection *connection = context;
    connection->evhttp_event(bev, what, connection->evcon);
}

/** In TLS the word that output was written comes a turn of the loop late, when the end of the
 * answer may have joined it: evhttp, which would then stop writing, hears of it once nothing is
 * left. */
static void expect_end(struct connection *connection)
{
    bufferevent_getcb(connection->bev, NULL, &connection->evhttp_written, &connection->evhttp_event,
                      NULL);
    bufferevent_setcb(connection->bev, NULL, on_written, on_fault, connection);
}

/** The answer is queued in full: only writing it is left, and that must not take for ever. What the
 *  client does to its sending side no longer matters. */
static void finish_answer(struct connection *connection)
{
    if (connection->options->tls)
        expect_end(connection);
    connection->writing = true;
    connection->counts->num_unwritten++;
    http_connection_set_timeouts(connection, 0, connection->options->body_timeout_s);
    bufferevent_disable(connection->bev, EV_READ);
}

void http_exchange_reply(struct http_exchange *x, int32_t status, const char *content_type,
                         struct str body)
{
    struct connection *connection = x->connection;
    struct evhttp_request *request = x->request;
    start_answer(x, status, content_type);
    if (body.len > 0 && x->has_body)
        evbuffer_add(evhttp_request_get_output_buffer(request), body.ptr, body.len);
    http_exchange_forget(x);
    evhttp_send_reply(request, status, http_status_phrase(status), NULL);
    finish_answer(connection);
}

void http_exchange_begin_stream(struct http_exchange *x, int32_t status, const char *content_type)
{
    start_answer(x, status, content_type);
    if (x->request->major == 1 && x->request->minor == 0) {
        // Such a client knows no chunks: the end of the connection is the end of the stream.
        evhttp_remove_header(evhttp_request_get_input_headers(x->request), "Connection");
        close_after_answer(x->request);
    }
    x->streaming = true;
    evhttp_send_reply_start(x->request, status, http_status_phrase(status));
}

void http_exchange_write(struct http_exchange *x, struct str bytes)
{
    assert(x->streaming);
    if (bytes.len == 0 || !x->has_body)
        return;
    // Writing is enabled since the headers went out: everything that is added before the loop turns
    // leaves in one system call.
    struct evbuffer *output = bufferevent_get_output(x->connection->bev);
    if (x->request->chunked)
        evbuffer_add_printf(output, "%zx\r\n", bytes.len);
    evbuffer_add(output, bytes.ptr, bytes.len);
    if (x->request->chunked)
        evbuffer_add(output, "\r\n", 2);
}

size_t http_exchange_pending_bytes(const struct http_exchange *x)
{
    return evbuffer_get_length(bufferevent_get_output(x->connection->bev));
}

uint64_t http_exchange_taken_bytes(const struct http_exchange *x)
{
    return x->connection->num_taken;
}

void http_exchange_end(struct http_exchange *x)
{
    assert(x->streaming);
    struct connection *connection = x->connection;
    struct evhttp_request *request = x->request;
    http_exchange_forget(x);
    // Last touch of the connection: where nothing is left to write, evhttp may close it at once.
    bool chunked = request->chunked;
    if (!chunked)
        finish_answer(connection);
    evhttp_send_reply_end(request);
    if (chunked)
        finish_answer(connection);
}

void http_exchange_abort(struct http_exchange *x)
{
    struct connection *connection = x->connection;
    x->on_close = NULL;
    // A reset rather than an orderly end, so that nobody takes a cut answer for a whole one.
    struct linger linger = {.l_onoff = 1};
    setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    evhttp_connection_free(connection->evcon);
}

void http_exchange_on_close(struct http_exchange *x, void (*fn)(void *context), void *context)
{
    x->on_close = fn;
    x->on_close_context = context;
}
