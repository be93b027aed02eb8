// The order of checks is the reference's: CORS pre-flight, key, path, method, media type.
#include "api_server/router.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api_server/debug_requests.h"
#include "api_server/serving.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"

static const struct route routes[] = {
    {"/health", "GET", serving_health, HANDLER_EXCLUDED, .takes_json = false},
    {"/ping", "GET, POST", serving_health, HANDLER_EXCLUDED, .takes_json = false},
    {"/load", "GET", serving_load, HANDLER_EXCLUDED, .takes_json = false},
    {"/version", "GET", serving_version, HANDLER_EXCLUDED, .takes_json = false},
    {"/metrics", "GET", serving_metrics, HANDLER_EXCLUDED, .takes_json = false},
    {"/metrics/", "GET", serving_metrics, HANDLER_EXCLUDED, .takes_json = false},
    {"/tokenize", "POST", serving_tokenize, HANDLER_TOKENIZE, .takes_json = true},
    {"/detokenize", "POST", serving_detokenize, HANDLER_DETOKENIZE, .takes_json = true},
    {"/v1/models", "GET", serving_models, HANDLER_MODELS, .takes_json = false},
    {"/v1/chat/completions", "POST", serving_chat, HANDLER_CHAT, .takes_json = true,
     .counts_as_load = true},
    {"/v1/completions", "POST", serving_completion, HANDLER_COMPLETIONS, .takes_json = true,
     .counts_as_load = true},
    {DEBUG_REQUESTS_PATH, "GET", serving_debug_request, HANDLER_EXCLUDED, .takes_json = false,
     .is_prefix = true},
    {"/debug/recording", "POST", serving_debug_recording, HANDLER_EXCLUDED, .takes_json = false},
    {"/reset_prefix_cache", "POST", serving_reset_prefix_cache, HANDLER_RESET_PREFIX_CACHE,
     .dev_only = true},
};

static bool is_present(const struct api_server *server, const struct route *route)
{
    return !route->dev_only || server->options->server_dev_mode;
}

void router_log_routes(const struct api_server *server)
{
    log_info("Available routes are:");
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        if (is_present(server, &routes[i]))
            log_info("Route: %s, Methods: %s", routes[i].path, routes[i].methods);
    }
}

// ---- answers ----

static bool is_log_excluded(const struct api_server *server, struct str path)
{
    const struct str_list *excluded = &server->options->access_log_excluded;
    for (int32_t i = 0; i < excluded->len; i++) {
        if (str_eq_c(path, excluded->items[i]))
            return true;
    }
    return false;
}

/** A path as it may stand in a log: what is not printable ASCII as %XX. */
static void append_log_text(struct buf *out, struct str text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c <= ' ' || c >= 0x7F || c == '"')
            buf_printf(out, "%%%02X", c);
        else
            buf_append_char(out, (char)c);
    }
}

static void log_access(const struct api_call *call)
{
    const struct serve_options *options = call->server->options;
    struct str path = http_exchange_path(call->exchange);
    if (options->disable_uvicorn_access_log || options->uvicorn_log_level > LOG_LEVEL_INFO ||
        is_log_excluded(call->server, path))
        return;
    bool is_json = log_get_format() == LOG_FORMAT_JSON;
    struct buf line = {0};
    buf_printf(&line, "%s" STR_FORMAT " - \"",
               is_json ? "" : "INFO:     ", STR_ARG(http_exchange_peer(call->exchange)));
    append_log_text(&line, http_exchange_method(call->exchange));
    buf_append_char(&line, ' ');
    append_log_text(&line, path);
    struct str query = http_exchange_query(call->exchange);
    if (query.len > 0) {
        buf_append_char(&line, '?');
        append_log_text(&line, query);
    }
    buf_printf(&line, " HTTP/1.1\" %d %s", call->status, http_status_phrase(call->status));
    if (is_json) {
        log_write(LOG_LEVEL_INFO, __FILE__, __LINE__, STR_FORMAT, STR_ARG(buf_str(&line)));
    } else {
        buf_append_char(&line, '\n');
        ssize_t written = write(STDOUT_FILENO, line.ptr, line.len);
        (void)written; // nowhere to say that the log cannot be written
    }
    buf_deinit(&line);
}

/** Counts the call and gives its memory back. */
static void finish(struct api_call *call)
{
    struct api_server *server = call->server;
    enum metric_handler handler = call->route ? call->route->handler : HANDLER_NONE;
    metrics_http(&server->metrics, handler, call->status,
                 (double)(clock_monotonic_ns() - call->start_ns) / 1e9, call->request_bytes,
                 call->response_bytes);
    if (call->route && call->route->counts_as_load)
        server->server_load--;
    arena_deinit(&call->arena);
    free(call);
}

void api_call_reply(struct api_call *call, int32_t status, const char *content_type,
                    struct str body)
{
    call->status = status;
    call->response_bytes += body.len;
    log_access(call);
    http_exchange_on_close(call->exchange, NULL, NULL);
    http_exchange_reply(call->exchange, status, content_type, body);
    finish(call);
}

void api_call_reply_json(struct api_call *call, struct str json)
{
    api_call_reply(call, 200, "application/json", json);
}

void api_call_fail(struct api_call *call, const struct api_error *err)
{
    struct buf body = {0};
    if (err->kind == API_ERROR_UNAUTHORIZED)
        buf_append_c(&body, "{\"error\":\"Unauthorized\"}");
    else
        api_error_write(&body, err);
    if (err->kind == API_ERROR_OVERLOADED)
        http_exchange_add_header(call->exchange, "Retry-After", "1");
    api_call_reply(call, api_error_http_status(err->kind), "application/json", buf_str(&body));
    buf_deinit(&body);
}

void api_call_begin_stream(struct api_call *call)
{
    call->status = 200;
    log_access(call);
    http_exchange_begin_stream(call->exchange, 200, "text/event-stream; charset=utf-8");
}

void api_call_write(struct api_call *call, struct str bytes)
{
    call->response_bytes += bytes.len;
    http_exchange_write(call->exchange, bytes);
}

void api_call_end_stream(struct api_call *call)
{
    http_exchange_on_close(call->exchange, NULL, NULL);
    http_exchange_end(call->exchange);
    finish(call);
}

void api_call_drop(struct api_call *call)
{
    http_exchange_abort(call->exchange);
    finish(call);
}

static void on_exchange_close(void *context)
{
    struct api_call *call = context;
    if (call->on_close)
        call->on_close(call->context);
    if (call->status == 0)
        call->status = 499; // nobody reads it; counted with the client's faults
    finish(call);
}

void api_call_on_close(struct api_call *call, void (*fn)(void *context), void *context)
{
    call->on_close = fn;
    call->context = context;
    http_exchange_on_close(call->exchange, on_exchange_close, call);
}

struct str api_call_body(const struct api_call *call)
{
    return http_exchange_body(call->exchange);
}

struct str api_call_header(const struct api_call *call, const char *name)
{
    return http_exchange_header(call->exchange, name);
}

// ---- CORS ----

static bool list_has(const json_t *list, struct str text)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        struct str name = {json_string_value(item), json_string_length(item)};
        if (str_eq_ignore_case(name, text))
            return true;
    }
    return false;
}

static bool origin_allowed(const struct cors *cors, struct str origin)
{
    return cors->all_origins || list_has(cors->origins, origin);
}

static void add_origin_headers(struct api_call *call, struct str origin)
{
    const struct cors *cors = &call->server->cors;
    if (cors->all_origins && !cors->credentials) {
        http_exchange_add_header(call->exchange, "access-control-allow-origin", "*");
        return;
    }
    http_exchange_add_header(call->exchange, "access-control-allow-origin",
                             arena_strdup(&call->arena, origin));
    http_exchange_add_header(call->exchange, "vary", "Origin");
    if (cors->credentials)
        http_exchange_add_header(call->exchange, "access-control-allow-credentials", "true");
}

static const char *join_list(struct api_call *call, const json_t *list)
{
    struct buf text = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *item = json_string_value(json_array_get(list, i));
        buf_printf(&text, "%s%s", i > 0 ? ", " : "", item ? item : "");
    }
    const char *joined = arena_strdup(&call->arena, buf_str(&text));
    buf_deinit(&text);
    return joined;
}

static void answer_preflight(struct api_call *call, struct str origin)
{
    const struct cors *cors = &call->server->cors;
    struct str method = api_call_header(call, "Access-Control-Request-Method");
    struct str headers = api_call_header(call, "Access-Control-Request-Headers");
    if (!origin_allowed(cors, origin)) {
        api_call_reply(call, 400, "text/plain; charset=utf-8", STR("Disallowed CORS origin"));
        return;
    }
    add_origin_headers(call, origin);
    if (!cors->all_methods && !list_has(cors->methods, method)) {
        api_call_reply(call, 400, "text/plain; charset=utf-8", STR("Disallowed CORS method"));
        return;
    }
    http_exchange_add_header(call->exchange, "access-control-allow-methods",
                             cors->all_methods ? "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
                                               : join_list(call, cors->methods));
    http_exchange_add_header(call->exchange, "access-control-max-age", "600");
    if (!cors->all_headers)
        http_exchange_add_header(call->exchange, "access-control-allow-headers",
                                 join_list(call, cors->headers));
    else if (headers.len > 0)
        http_exchange_add_header(call->exchange, "access-control-allow-headers",
                                 arena_strdup(&call->arena, headers));
    api_call_reply(call, 200, "text/plain; charset=utf-8", STR("OK"));
}

// ---- keys ----

static bool is_guarded(struct str path)
{
    return str_starts_with(path, STR("/v1")) || str_starts_with(path, STR("/v2")) ||
           str_starts_with(path, STR("/inference")) || str_starts_with(path, STR("/debug"));
}

static bool has_key(const struct api_call *call)
{
    const struct api_server *server = call->server;
    if (http_exchange_header_count(call->exchange, "Authorization") != 1)
        return false;
    struct str key = api_call_header(call, "Authorization");
    struct str scheme = str_split(&key, ' ');
    if (!str_eq_ignore_case(scheme, STR("Bearer")))
        return false;
    struct sha256 digest = sha256_of(key);
    bool found = false;
    for (int32_t i = 0; i < server->options->api_keys.len; i++) // all of them: same time for any
        found |= sha256_equal(&digest, &server->key_digests[i]);
    return found;
}

// ---- routing ----

static bool method_allowed(const struct route *route, struct str method)
{
    struct str rest = str_from(route->methods);
    while (rest.len > 0) {
        if (str_eq(str_trim(str_split(&rest, ',')), method))
            return true;
    }
    return false;
}

static const struct route *find_route(const struct api_server *server, struct str path)
{
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        struct str route_path = str_from(routes[i].path);
        bool matches = routes[i].is_prefix
                           ? path.len > route_path.len && str_starts_with(path, route_path)
                           : str_eq(path, route_path);
        if (matches && is_present(server, &routes[i]))
            return &routes[i];
    }
    return NULL;
}

static bool is_json_type(struct str type)
{
    return str_eq_ignore_case(str_trim(str_split(&type, ';')), STR("application/json"));
}

static struct str strip_root(const struct api_server *server, struct str path)
{
    struct str root = str_from(server->options->root_path);
    if (root.len > 0 && str_starts_with(path, root) &&
        (path.len == root.len || path.ptr[root.len] == '/'))
        return str_slice(path, root.len, path.len);
    return path;
}

static void add_request_id(struct api_call *call)
{
    if (!call->server->options->enable_request_id_headers)
        return;
    struct str id = api_call_header(call, "X-Request-Id");
    char fresh[33];
    random_hex(fresh, 32);
    http_exchange_add_header(call->exchange, "X-Request-Id",
                             id.len > 0 ? arena_strdup(&call->arena, id) : fresh);
}

static void dispatch(struct api_call *call, struct str path, struct str method)
{
    struct api_error err;
    call->route = find_route(call->server, path);
    if (!call->route) {
        api_error_set(&err, API_ERROR_NO_ROUTE, "Not Found");
        api_call_fail(call, &err);
        return;
    }
    if (call->route->counts_as_load)
        call->server->server_load++;
    if (!method_allowed(call->route, method)) {
        http_exchange_add_header(call->exchange, "Allow", call->route->methods);
        api_error_set(&err, API_ERROR_METHOD, "Method Not Allowed");
        api_call_fail(call, &err);
        return;
    }
    if (call->route->takes_json && !is_json_type(api_call_header(call, "Content-Type"))) {
        api_error_set(&err, API_ERROR_SCHEMA,
                      "Unsupported Media Type: Only 'application/json' is allowed in the "
                      "Content-Type header");
        api_call_fail(call, &err);
        return;
    }
    call->route->handle(call);
}

void router_on_request(void *context, struct http_exchange *exchange)
{
    struct api_server *server = context;
    struct api_call *call = xcalloc(1, sizeof(*call));
    call->server = server;
    call->exchange = exchange;
    call->start_ns = clock_monotonic_ns();
    call->request_bytes = http_exchange_body(exchange).len;
    struct str method = http_exchange_method(exchange);
    struct str path = strip_root(server, http_exchange_path(exchange));
    struct str origin = api_call_header(call, "Origin");
    bool is_options = str_eq(method, STR("OPTIONS"));
    if (is_options && origin.ptr && api_call_header(call, "Access-Control-Request-Method").ptr) {
        answer_preflight(call, origin);
        return;
    }
    if (origin.ptr && origin_allowed(&server->cors, origin))
        add_origin_headers(call, origin);
    add_request_id(call);
    if (server->options->api_keys.len > 0 && !is_options && is_guarded(path) && !has_key(call)) {
        struct api_error err;
        api_error_set(&err, API_ERROR_UNAUTHORIZED, "Unauthorized");
        api_call_fail(call, &err);
        return;
    }
    dispatch(call, path, method);
}
