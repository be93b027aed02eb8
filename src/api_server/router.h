// From an exchange to the function that answers it: paths and methods, keys, CORS, media types; and
// back: answers, with their access-log line and their counts.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "api_server/api_error.h"
#include "api_server/metrics.h"
#include "api_server/server.h"
#include "base/arena.h"

struct api_call;

/** On which servers a route is there. */
enum route_audience { ROUTE_ALWAYS, ROUTE_GENERATES, ROUTE_POOLS };

struct route {
    const char *path;    // may have one {name}, which stands for any text
    const char *methods; // "GET" or "GET, POST"
    void (*handle)(struct api_call *call);
    enum metric_handler handler;
    enum route_audience audience;
    bool takes_json;
    bool counts_as_load; // in /load
    bool dev_only;       // only with VLLM_SERVER_DEV_MODE
    bool is_docs;        // not with --disable-fastapi-docs
    bool says_anthropic; // errors in Anthropic's shape
    const char *summary; // for people, in the API's description
    const char *request; // name of the body's schema there; NULL: no body
};

/** One request on its way through the server. Ends with its answer, or when the client leaves. */
struct api_call {
    struct api_server *server;
    struct http_exchange *exchange;
    const struct route *route; // NULL: no such path
    struct str path_value;     // what stands where the route's path has {name}
    struct arena arena;        // lives as long as the call
    int64_t start_ns;
    int32_t status;
    size_t request_bytes, response_bytes;
    void (*on_close)(void *context);
    void *context;
};

/** The http server's callback; context is the api_server. */
void router_on_request(void *context, struct http_exchange *exchange);

/** The http server's other callback: a request that never became one. */
void router_on_fault(void *context, struct str peer, int32_t status, const char *reason,
                     struct buf *body);

/** Logs the routes that are there. */
void router_log_routes(const struct api_server *server);

/** The routes that are there, one after the other; NULL after the last one. `*at` starts as 0. */
const struct route *router_next_route(const struct api_server *server, size_t *at);

/** Whether `path` is behind --api-key. */
bool router_needs_key(const struct api_server *server, struct str path);

struct str api_call_body(const struct api_call *call);
struct str api_call_header(const struct api_call *call, const char *name);

// Each of these ends the call: the pointer is void afterwards.
void api_call_reply(struct api_call *call, int32_t status, const char *content_type,
                    struct str body);
void api_call_reply_json(struct api_call *call, struct str json);
void api_call_fail(struct api_call *call, const struct api_error *err);
void api_call_end_stream(struct api_call *call);
/** Cuts the connection: the client does not read. */
void api_call_drop(struct api_call *call);

void api_call_begin_stream(struct api_call *call);
void api_call_write(struct api_call *call, struct str bytes);

/** `fn` is called if the client leaves; the call is void afterwards. */
void api_call_on_close(struct api_call *call, void (*fn)(void *context), void *context);
