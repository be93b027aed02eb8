// The order of checks is the reference's: CORS pre-flight, key, path, method, media type.
#include "api_server/router.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api_server/debug_requests.h"
#include "api_server/missing_routes.h"
#include "api_server/serving.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"

static const struct route routes[] = {
    {"/health", "GET", serving_health, HANDLER_EXCLUDED,
     .summary = "200 while requests reach the engine, else 503"},
    {"/ping", "GET, POST", serving_health, HANDLER_EXCLUDED, .summary = "As /health"},
    {"/load", "GET", serving_load, HANDLER_EXCLUDED, .summary = "Requests under way"},
    {"/version", "GET", serving_version, HANDLER_EXCLUDED, .summary = "The version of the API"},
    {"/metrics", "GET", serving_metrics, HANDLER_EXCLUDED, .summary = "Metrics for Prometheus"},
    {"/metrics/", "GET", serving_metrics, HANDLER_EXCLUDED, .summary = "As /metrics"},
    {"/tokenize", "POST", serving_tokenize, HANDLER_TOKENIZE, .takes_json = true,
     .summary = "Text or a chat to token ids", .request = "TokenizeRequest"},
    {"/detokenize", "POST", serving_detokenize, HANDLER_DETOKENIZE, .takes_json = true,
     .summary = "Token ids to text", .request = "DetokenizeRequest"},
    {"/v1/tokenize", "POST", serving_tokenize, HANDLER_TOKENIZE, .takes_json = true,
     .summary = "As /tokenize, behind the key", .request = "TokenizeRequest"},
    {"/v1/detokenize", "POST", serving_detokenize, HANDLER_DETOKENIZE, .takes_json = true,
     .summary = "As /detokenize, behind the key", .request = "DetokenizeRequest"},
    {"/v1/models", "GET", serving_models, HANDLER_MODELS, .summary = "The served names"},
    {"/v1/chat/completions", "POST", serving_chat, HANDLER_CHAT, .audience = ROUTE_GENERATES,
     .takes_json = true, .counts_as_load = true, .summary = "Answer a chat",
     .request = "ChatCompletionRequest"},
    {"/v1/chat/completions/render", "POST", serving_chat_render, HANDLER_CHAT_RENDER,
     .audience = ROUTE_GENERATES, .takes_json = true,
     .summary = "A chat's prompt, without an answer", .request = "ChatCompletionRequest"},
    {"/v1/completions", "POST", serving_completion, HANDLER_COMPLETIONS,
     .audience = ROUTE_GENERATES, .takes_json = true, .counts_as_load = true,
     .summary = "Continue a text", .request = "CompletionRequest"},
    {"/v1/completions/render", "POST", serving_completion_render, HANDLER_COMPLETION_RENDER,
     .audience = ROUTE_GENERATES, .takes_json = true,
     .summary = "A completion's prompts, without an answer", .request = "CompletionRequest"},
    {"/v1/embeddings", "POST", serving_embedding, HANDLER_EMBEDDINGS, .audience = ROUTE_POOLS,
     .takes_json = true, .counts_as_load = true, .summary = "Turn texts into vectors",
     .request = "EmbeddingRequest"},
    {"/v1/responses", "POST", serving_responses, HANDLER_RESPONSES, .audience = ROUTE_GENERATES,
     .takes_json = true, .counts_as_load = true, .summary = "Make a response",
     .request = "ResponsesRequest"},
    {"/v1/responses/{response_id}/cancel", "POST", serving_response_cancel, HANDLER_RESPONSE_CANCEL,
     .audience = ROUTE_GENERATES, .summary = "Cancel a response that is made in the background"},
    {"/v1/responses/{response_id}", "GET", serving_response_get, HANDLER_RESPONSE,
     .audience = ROUTE_GENERATES, .summary = "A stored response"},
    {"/v1/messages", "POST", serving_messages, HANDLER_MESSAGES, .audience = ROUTE_GENERATES,
     .takes_json = true, .counts_as_load = true, .says_anthropic = true,
     .summary = "Answer a chat, as Anthropic does", .request = "MessagesRequest"},
    {"/v1/messages/count_tokens", "POST", serving_count_tokens, HANDLER_COUNT_TOKENS,
     .audience = ROUTE_GENERATES, .takes_json = true, .says_anthropic = true,
     .summary = "The length of a chat's prompt", .request = "CountTokensRequest"},
    {"/invocations", "POST", serving_invocations, HANDLER_INVOCATIONS, .takes_json = true,
     .counts_as_load = true, .summary = "Whichever of the above the body is for"},
    {"/debug/requests/{request_id}", "GET", serving_debug_request, HANDLER_EXCLUDED,
     .summary = "Where a request's time went"},
    {"/debug/recording", "POST", serving_debug_recording, HANDLER_EXCLUDED,
     .summary = "Write the scheduler's recording to a file"},
    {"/reset_prefix_cache", "POST", serving_reset_prefix_cache, HANDLER_RESET_PREFIX_CACHE,
     .dev_only = true, .summary = "Forget cached prefixes"},
    {"/server_info", "GET", serving_server_info, HANDLER_EXCLUDED, .dev_only = true,
     .summary = "Options, environment and machine"},
    {"/openapi.json", "GET", serving_openapi, HANDLER_EXCLUDED, .is_docs = true,
     .summary = "This description"},
    {"/docs", "GET", serving_docs, HANDLER_EXCLUDED, .is_docs = true,
     .summary = "This description, for people"},
    {"/redoc", "GET", serving_docs, HANDLER_EXCLUDED, .is_docs = true, .summary = "As /docs"},
};

static bool is_present(const struct api_server *server, const struct route *route)
{
    const struct serve_options *o = server->options;
    if (route->audience != ROUTE_ALWAYS &&
        (route->audience == ROUTE_POOLS) != api_server_pools(server))
        return false;
    return (!route->dev_only || o->server_dev_mode) &&
           (!route->is_docs || !o->disable_fastapi_docs);
}

const struct route *router_next_route(const struct api_server *server, size_t *at)
{
    while (*at < ARRAY_LEN(routes)) {
        const struct route *route = &routes[(*at)++];
        if (is_present(server, route))
            return route;
    }
    return NULL;
}

void router_log_routes(const struct api_server *server)
{
    log_info("Available routes are:");
    const struct route *route;
    for (size_t at = 0; (route = router_next_route(server, &at));)
        log_info("Route: %s, Methods: %s", route->path, route->methods);
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

static bool logs_access(const struct api_server *server)
{
    const struct serve_options *options = server->options;
    return !options->disable_uvicorn_access_log && options->uvicorn_log_level <= LOG_LEVEL_INFO;
}

static void begin_log_line(struct buf *line, struct str peer)
{
    buf_printf(line, "%s" STR_FORMAT " - \"",
               log_get_format() == LOG_FORMAT_JSON ? "" : "INFO:     ", STR_ARG(peer));
}

static void end_log_line(struct buf *line, int32_t status)
{
    buf_printf(line, " HTTP/1.1\" %d %s", (int)status, http_status_phrase(status));
    if (log_get_format() == LOG_FORMAT_JSON) {
        log_write(LOG_LEVEL_INFO, __FILE__, __LINE__, STR_FORMAT, STR_ARG(buf_str(line)));
    } else {
        buf_append_char(line, '\n');
        ssize_t written = write(STDOUT_FILENO, line->ptr, line->len);
        (void)written; // nowhere to say that the log cannot be written
    }
    buf_deinit(line);
}

static void log_access(const struct api_call *call)
{
    struct str path = http_exchange_path(call->exchange);
    if (!logs_access(call->server) || is_log_excluded(call->server, path))
        return;
    struct buf line = {0};
    begin_log_line(&line, http_exchange_peer(call->exchange));
    append_log_text(&line, http_exchange_method(call->exchange));
    buf_append_char(&line, ' ');
    append_log_text(&line, path);
    struct str query = http_exchange_query(call->exchange);
    if (query.len > 0) {
        buf_append_char(&line, '?');
        append_log_text(&line, query);
    }
    end_log_line(&line, call->status);
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
        atomic_fetch_sub(&api_server_front(server)->server_load, 1);
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
    else if (call->route && call->route->says_anthropic)
        api_error_write_anthropic(&body, err);
    else
        api_error_write(&body, err);
    if (err->kind == API_ERROR_OVERLOADED) {
        int seconds = err->retry_after_s > 0 ? err->retry_after_s : 1;
        http_exchange_add_header(call->exchange, "Retry-After",
                                 arena_printf(&call->arena, "%d", seconds));
    }
    api_call_reply(call, api_error_http_status(err->kind), "application/json", buf_str(&body));
    buf_deinit(&body);
}

void api_call_begin_stream(struct api_call *call)
{
    call->status = 200;
    log_access(call);
    // nginx gathers answers unless it is told otherwise.
    http_exchange_add_header(call->exchange, "X-Accel-Buffering", "no");
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

// Headers that a browser may always send (Fetch standard, CORS-safelisted request headers).
#define SAFELISTED_HEADERS "Accept, Accept-Language, Content-Language, Content-Type"

static bool headers_allowed(const struct cors *cors, struct str headers)
{
    while (headers.len > 0 && !cors->all_headers) {
        struct str name = str_trim(str_split(&headers, ','));
        bool is_safe = false;
        for (struct str safe = STR(SAFELISTED_HEADERS); safe.len > 0 && !is_safe;)
            is_safe = str_eq_ignore_case(str_trim(str_split(&safe, ',')), name);
        if (!is_safe && !list_has(cors->headers, name))
            return false;
    }
    return true;
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
    if (!headers_allowed(cors, headers)) {
        api_call_reply(call, 400, "text/plain; charset=utf-8", STR("Disallowed CORS headers"));
        return;
    }
    http_exchange_add_header(call->exchange, "access-control-allow-methods",
                             cors->all_methods ? "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
                                               : join_list(call, cors->methods));
    http_exchange_add_header(call->exchange, "access-control-max-age", "600");
    if (!cors->all_headers)
        http_exchange_add_header(call->exchange, "access-control-allow-headers",
                                 arena_printf(&call->arena, SAFELISTED_HEADERS "%s%s",
                                              json_array_size(cors->headers) > 0 ? ", " : "",
                                              join_list(call, cors->headers)));
    else if (headers.len > 0)
        http_exchange_add_header(call->exchange, "access-control-allow-headers",
                                 arena_strdup(&call->arena, headers));
    api_call_reply(call, 200, "text/plain; charset=utf-8", STR("OK"));
}

// ---- keys ----

bool router_needs_key(const struct api_server *server, struct str path)
{
    static const char *const open_paths[] = {"/health", "/ping"};
    static const char *const metrics_paths[] = {"/metrics", "/metrics/"};
    if (server->options->api_keys.len == 0)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(open_paths); i++) {
        if (str_eq_c(path, open_paths[i]))
            return false;
    }
    for (size_t i = 0; i < ARRAY_LEN(metrics_paths); i++) {
        if (str_eq_c(path, metrics_paths[i]))
            return server->options->api_key_for_metrics;
    }
    return true;
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
    struct key_digest digest = key_digest_of(key);
    bool found = false;
    for (int32_t i = 0; i < server->options->api_keys.len; i++) // all of them: same time for any
        found |= key_digest_equal(&digest, &server->key_digests[i]);
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

/** Whether `path` is the route's; `*value` becomes what its {name} stands for. */
static bool path_matches(const struct route *route, struct str path, struct str *value)
{
    struct str pattern = str_from(route->path);
    size_t open = str_find(pattern, STR("{"), 0);
    if (open == STR_NOT_FOUND)
        return str_eq(path, pattern);
    struct str before = str_slice(pattern, 0, open);
    struct str after = str_slice(pattern, str_find(pattern, STR("}"), open) + 1, pattern.len);
    if (path.len <= before.len + after.len || !str_starts_with(path, before) ||
        !str_ends_with(path, after))
        return false;
    *value = str_slice(path, before.len, path.len - after.len);
    return true;
}

static const struct route *find_route(struct api_call *call, struct str path)
{
    const struct route *route;
    for (size_t at = 0; (route = router_next_route(call->server, &at));) {
        if (path_matches(route, path, &call->path_value))
            return route;
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

/** Bodies are taken as they are: nothing unpacks them. */
static bool is_encoded(const struct api_call *call)
{
    struct str encoding = api_call_header(call, "Content-Encoding");
    return encoding.len > 0 && !str_eq_ignore_case(str_trim(encoding), STR("identity"));
}

static void dispatch(struct api_call *call, struct str path, struct str method)
{
    struct api_error err;
    call->route = find_route(call, path);
    if (!call->route) {
        missing_routes_explain(call->server, path, &err);
        api_call_fail(call, &err);
        return;
    }
    if (call->route->counts_as_load)
        atomic_fetch_add(&api_server_front(call->server)->server_load, 1);
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
    if (call->route->takes_json && is_encoded(call)) {
        api_error_set(&err, API_ERROR_SCHEMA,
                      "Unsupported Content-Encoding: '" STR_FORMAT
                      "'. Bodies have to come unpacked ('identity').",
                      STR_ARG(str_slice(api_call_header(call, "Content-Encoding"), 0, 100)));
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
    if (!is_options && router_needs_key(server, path) && !has_key(call)) {
        struct api_error err;
        api_error_set(&err, API_ERROR_UNAUTHORIZED, "Unauthorized");
        api_call_fail(call, &err);
        return;
    }
    dispatch(call, path, method);
}

void router_on_fault(void *context, struct str peer, int32_t status, const char *reason,
                     struct buf *body)
{
    struct api_server *server = context;
    char message[256];
    snprintf(message, sizeof(message), "Invalid HTTP request received: %s.", reason);
    api_error_write_status(body, status, http_status_phrase(status), message);
    metrics_http(&server->metrics, HANDLER_NONE, status, 0, 0, body->len);
    if (!logs_access(server))
        return;
    struct buf line = {0};
    begin_log_line(&line, peer);
    buf_append_char(&line, '-'); // what was asked for is not to be believed
    end_log_line(&line, status);
}
