// Requests through libcurl; answers as they arrive.
#include "entrypoints/sse_client.h"

#include <curl/curl.h>
#include <jansson.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"

enum { MAX_BODY_BYTES = 64 * 1024 * 1024, CONNECT_TIMEOUT_S = 30 };

struct sse_client {
    CURL *curl;
    struct curl_slist *headers;
    char *base_url; // without a final slash
};

enum status sse_client_create(struct sse_client **out, const char *base_url, const char *api_key,
                              struct error *err)
{
    *out = NULL;
    if (strncmp(base_url, "http://", 7) != 0 && strncmp(base_url, "https://", 8) != 0)
        return error_set(err, STATUS_INVALID,
                         "the URL is '%.200s', expected http://HOST:PORT/v1 or https://...",
                         base_url);
    if (api_key && strpbrk(api_key, "\r\n"))
        return error_set(err, STATUS_INVALID, "the API key holds a line break");
    struct sse_client *client = xcalloc(1, sizeof(*client));
    client->base_url = xstrdup(base_url);
    for (size_t len = strlen(base_url); len > 0 && client->base_url[len - 1] == '/'; len--)
        client->base_url[len - 1] = '\0';
    client->curl = curl_easy_init();
    client->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (api_key && api_key[0]) {
        struct arena arena = {0};
        client->headers = curl_slist_append(
            client->headers, arena_printf(&arena, "Authorization: Bearer %s", api_key));
        arena_deinit(&arena);
    }
    if (!client->curl || !client->headers) {
        sse_client_destroy(client);
        return error_set(err, STATUS_INTERNAL, "libcurl does not start");
    }
    *out = client;
    return STATUS_OK;
}

void sse_client_destroy(struct sse_client *client)
{
    if (!client)
        return;
    curl_easy_cleanup(client->curl);
    curl_slist_free_all(client->headers);
    free(client->base_url);
    free(client);
}

/** One exchange: a body that is collected, or, when `on_event` is set and the code is 200, events.
 */
struct exchange {
    CURL *curl;
    struct buf *body;
    struct sse_parser parser;
    sse_event_fn *on_event;
    void *context;
    enum status status;
    struct error *err;
};

static void append_error_text(struct buf *out, const json_t *root)
{
    const json_t *error = json_object_get(root, "error");
    const json_t *message = json_object_get(error, "message");
    if (!message)
        message = json_is_string(error) ? error : json_object_get(root, "message");
    if (!message)
        message = json_object_get(root, "detail");
    if (json_is_string(message))
        buf_append_c(out, json_string_value(message));
}

/** An event {"error": {"message": ...}} ends the stream; the others are passed on. */
static enum status pass_event(void *context, struct str data, struct error *err)
{
    struct exchange *exchange = context;
    if (str_find(data, STR("\"error\""), 0) != STR_NOT_FOUND) {
        json_t *root = json_loadb(data.ptr, data.len, 0, NULL);
        struct buf text = {0};
        if (json_is_object(json_object_get(root, "error")))
            append_error_text(&text, root);
        json_decref(root);
        enum status status = STATUS_OK;
        if (text.len > 0)
            status = error_set(err, STATUS_INVALID, "the server says: " STR_FORMAT,
                               STR_ARG(buf_str(&text)));
        buf_deinit(&text);
        TRY(status);
    }
    return exchange->on_event(exchange->context, data, err);
}

static size_t on_bytes(char *bytes, size_t size, size_t count, void *context)
{
    struct exchange *exchange = context;
    size_t len = size * count;
    long code = 0;
    curl_easy_getinfo(exchange->curl, CURLINFO_RESPONSE_CODE, &code);
    if (exchange->on_event && code == 200) {
        exchange->status = sse_parser_feed(&exchange->parser, (struct str){bytes, len}, pass_event,
                                           exchange, exchange->err);
    } else if (exchange->body->len + len > MAX_BODY_BYTES) {
        exchange->status = error_set(exchange->err, STATUS_TOO_LARGE,
                                     "an answer of more than %d bytes", MAX_BODY_BYTES);
    } else {
        buf_append(exchange->body, (struct str){bytes, len});
    }
    return exchange->status == STATUS_OK ? len : 0; // 0 makes libcurl stop
}

static enum status refuse_code(long code, const struct buf *body, const char *url,
                               struct error *err)
{
    struct buf text = {0};
    json_t *root = json_loadb(body->ptr ? body->ptr : "", body->len, 0, NULL);
    append_error_text(&text, root);
    json_decref(root);
    enum status status =
        text.len > 0
            ? error_set(err, STATUS_INVALID, "the server answers %ld: " STR_FORMAT, code,
                        STR_ARG(buf_str(&text)))
            : error_set(err, STATUS_INVALID, "the server answers %ld at %.300s", code, url);
    buf_deinit(&text);
    return status;
}

static enum status perform(struct sse_client *client, const char *path, const struct str *json,
                           struct exchange *exchange)
{
    CURL *curl = client->curl;
    struct error *err = exchange->err;
    struct arena arena = {0};
    const char *url = arena_printf(&arena, "%s%s", client->base_url, path);
    char why[CURL_ERROR_SIZE] = "";
    curl_easy_reset(curl); // keeps the connection
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, client->headers);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, exchange);
    if (json) {
        curl_easy_setopt(curl, CURLOPT_POST, 1L);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)json->len);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, json->ptr);
    }
    exchange->curl = curl;
    CURLcode result = curl_easy_perform(curl);
    long code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);

    enum status status = exchange->status;
    if (status == STATUS_OK && result == CURLE_COULDNT_CONNECT)
        status = error_set(err, STATUS_UNAVAILABLE, "no server answers at %.300s: %s", url,
                           why[0] ? why : curl_easy_strerror(result));
    else if (status == STATUS_OK && result != CURLE_OK)
        status = error_set(err, STATUS_CLOSED, "%.300s: %s", url,
                           why[0] ? why : curl_easy_strerror(result));
    else if (status == STATUS_OK && code != 200)
        status = refuse_code(code, exchange->body, url, err);
    else if (status == STATUS_OK && exchange->on_event && !exchange->parser.is_done)
        status = error_set(err, STATUS_CLOSED, "the server ended the answer before its end");
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, NULL);
    arena_deinit(&arena);
    return status;
}

enum status sse_client_get(struct sse_client *client, const char *path, struct buf *body,
                           struct error *err)
{
    struct exchange exchange = {.body = body, .err = err};
    return perform(client, path, NULL, &exchange);
}

enum status sse_client_post(struct sse_client *client, const char *path, struct str json,
                            sse_event_fn *on_event, void *context, struct error *err)
{
    struct buf body = {0};
    struct exchange exchange = {
        .body = &body, .on_event = on_event, .context = context, .err = err};
    enum status status = perform(client, path, &json, &exchange);
    sse_parser_deinit(&exchange.parser);
    buf_deinit(&body);
    return status;
}
