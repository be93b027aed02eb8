// One API server process: puts the parts together, runs the loop, and ends it in order.
#include "api_server/api_server.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "api_server/generation.h"
#include "api_server/model_facts.h"
#include "api_server/response_events.h"
#include "api_server/response_store.h"
#include "api_server/router.h"
#include "api_server/server.h"
#include "api_server/tls.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    MAX_BODY_BYTES = 128 << 20, // 413 above it
    BODY_TIMEOUT_S = 60,
    TICK_MS = 20,       // engine restarts, unsent requests, shutdown
    SLOW_TICK_MS = 100, // slow readers, keep-alive comments
    GPU_TICK_MS = 5000, // readings of GPUs
    FLUSH_MS = 250,     // at most, for the last answers to leave the process
    NUM_POOL_THREADS = 4,
    MAX_RESPONSES = 1024, // stored ones; older ones are forgotten
    MAX_RESPONSE_BYTES = 64 << 20,
    EXIT_CANNOT_START = 3,
};

bool api_server_accepts(const struct api_server *server, struct api_error *err)
{
    const struct engine_page *engine = &server->page->engine;
    int32_t state = atomic_load(&engine->state);
    if (atomic_load(&server->page->stopping))
        api_error_set(err, API_ERROR_OVERLOADED, "The server is shutting down.");
    else if (state == ENGINE_STATE_DEAD)
        api_error_set(err, API_ERROR_OVERLOADED, "The engine is dead.");
    else if (state == ENGINE_STATE_STARTING)
        api_error_set(err, API_ERROR_OVERLOADED, "The engine is starting. Please try again later.");
    else if (!engine_page_is_healthy(engine, clock_monotonic_ns()))
        api_error_set(err, API_ERROR_OVERLOADED,
                      "The engine does not answer. Please try again later.");
    else
        return true;
    return false;
}

enum status api_server_check_model(const struct api_server *server, struct str model,
                                   struct api_error *err)
{
    const struct str_list *names = &server->options->served_model_names;
    if (model.len == 0)
        return STATUS_OK;
    for (int32_t i = 0; i < names->len; i++) {
        if (str_eq_c(model, names->items[i]))
            return STATUS_OK;
    }
    struct buf served = {0};
    for (int32_t i = 0; i < names->len; i++)
        buf_printf(&served, "%s`%s`", i > 0 ? ", " : "", names->items[i]);
    enum status status = api_error_set(
        err, API_ERROR_NOT_FOUND, "The model `" STR_FORMAT "` does not exist. Served here: %.*s.",
        STR_ARG(str_slice(model, 0, 200)), (int)min_i64((int64_t)served.len, 1000), served.ptr);
    buf_deinit(&served);
    snprintf(err->param, sizeof(err->param), "model");
    return status;
}

// ---- the loop's callbacks ----

static void on_engine_readable(void *context)
{
    struct api_server *server = context;
    uint64_t count;
    ssize_t done = read(server->again_fd, &count, sizeof(count)); // clears it, if it was set
    count = 1;
    if (engine_client_receive(server->engine))
        done = write(server->again_fd, &count, sizeof(count)); // after the other descriptors
    (void)done;
}

static void on_pool_readable(void *context)
{
    struct api_server *server = context;
    tokenizer_pool_collect(server->pool);
}

static void tick_shutdown(struct api_server *server)
{
    int64_t now_ns = clock_monotonic_ns();
    bool idle = http_server_num_exchanges(server->http) == 0;
    if (now_ns >= server->stop_deadline_ns)
        generation_abort_all(server);
    else if (!idle)
        return;
    if (server->flush_deadline_ns == 0)
        server->flush_deadline_ns = now_ns + FLUSH_MS * 1000000LL;
    bool written = http_server_num_exchanges(server->http) == 0 &&
                   http_server_num_unwritten(server->http) == 0;
    if (written || now_ns >= server->flush_deadline_ns)
        http_server_stop(server->http);
}

static void on_tick(void *context)
{
    struct api_server *server = context;
    engine_client_tick(server->engine);
    if (server->stopping)
        tick_shutdown(server);
}

struct progress_sample api_server_progress(const struct api_server *server)
{
    return (struct progress_sample){
        .at_ns = clock_monotonic_ns(),
        .num_prompt_tokens = atomic_load(&server->page->engine.num_computed_prompt_tokens),
        .num_ended = engine_client_num_ended(server->engine),
    };
}

static void on_slow_tick(void *context)
{
    struct api_server *server = context;
    struct progress_sample now = api_server_progress(server);
    retry_after_sample(&server->retry_after, &now);
    generation_tick_all(server);
    event_readers_tick(server);
}

static void on_gpu_tick(void *context)
{
    struct api_server *server = context;
    gpu_monitor_tick(&server->gpus, server->pool);
}

static void on_stop_signal(void *context)
{
    struct api_server *server = context;
    if (server->stopping)
        return;
    server->stopping = true;
    int32_t timeout_s = server->options->shutdown_timeout_s;
    log_info("[shutdown] API server: shutdown triggered, %d requests are unfinished and %s",
             engine_client_num_live(server->engine),
             timeout_s > 0 ? "have time to end" : "are aborted");
    http_server_stop_listening(server->http);
    server->stop_deadline_ns = clock_monotonic_ns() + timeout_s * 1000000000LL;
}

// ---- start and end ----

static enum status parse_cors_list(const char *flag, const char *text, json_t **list, bool *all,
                                   struct error *err)
{
    json_error_t failure;
    *list = json_loads(text ? text : "[\"*\"]", 0, &failure);
    bool valid = json_is_array(*list);
    for (size_t i = 0; valid && i < json_array_size(*list); i++) {
        const char *item = json_string_value(json_array_get(*list, i));
        valid = item != NULL;
        *all = *all || (item && strcmp(item, "*") == 0);
    }
    if (valid)
        return STATUS_OK;
    return error_set_field(err, STATUS_INVALID, flag,
                           "%s: expected a JSON list of strings, got %.200s", flag, text);
}

static enum status init_cors(struct api_server *server, struct error *err)
{
    const struct serve_options *o = server->options;
    struct cors *cors = &server->cors;
    cors->credentials = o->allow_credentials;
    TRY(parse_cors_list("--allowed-origins", o->allowed_origins, &cors->origins, &cors->all_origins,
                        err));
    TRY(parse_cors_list("--allowed-methods", o->allowed_methods, &cors->methods, &cors->all_methods,
                        err));
    return parse_cors_list("--allowed-headers", o->allowed_headers, &cors->headers,
                           &cors->all_headers, err);
}

static void init_keys(struct api_server *server)
{
    const struct str_list *keys = &server->options->api_keys;
    server->key_digests = xcalloc((size_t)keys->len + 1, sizeof(*server->key_digests));
    for (int32_t i = 0; i < keys->len; i++)
        server->key_digests[i] = key_digest_of(str_from(keys->items[i]));
}

static enum status watch(struct api_server *server)
{
    struct http_server *http = server->http;
    TRY(http_server_watch(http, engine_client_fd(server->engine), on_engine_readable, server));
    TRY(http_server_watch(http, server->again_fd, on_engine_readable, server));
    TRY(http_server_watch(http, tokenizer_pool_fd(server->pool), on_pool_readable, server));
    TRY(http_server_every(http, TICK_MS, on_tick, server));
    TRY(http_server_every(http, SLOW_TICK_MS, on_slow_tick, server));
    TRY(http_server_every(http, GPU_TICK_MS, on_gpu_tick, server));
    TRY(http_server_on_signal(http, SIGTERM, on_stop_signal, server));
    return http_server_on_signal(http, SIGINT, on_stop_signal, server);
}

static enum status start(struct api_server *server, int listen_fd, const char *ipc_dir,
                         struct error *err)
{
    const struct serve_options *o = server->options;
    TRY(init_cors(server, err));
    init_keys(server);
    TRY(tls_create(&server->tls, o, err));
    if (o->enable_responses_store)
        server->responses = response_store_create(MAX_RESPONSES, MAX_RESPONSE_BYTES);
    TRY(model_facts_load(&server->facts, o, err));
    TRY(engine_client_create(&server->engine, ipc_dir, server->client_index, server->page, err));
    server->again_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->again_fd < 0)
        return error_set(err, STATUS_IO, "cannot make an eventfd: %s", strerror(errno));
    int32_t cores = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    TRY(tokenizer_pool_create(&server->pool, max_i32(1, min_i32(cores, NUM_POOL_THREADS)), err));
    struct http_server_options http = {
        .max_header_count = o->max_header_count,
        .max_header_bytes = o->max_header_bytes,
        .max_body_bytes = MAX_BODY_BYTES,
        .keep_alive_timeout_s = o->keep_alive_timeout_s,
        .body_timeout_s = BODY_TIMEOUT_S,
        .tls = server->tls,
        .on_request = router_on_request,
        .on_fault = router_on_fault,
        .context = server,
    };
    TRY(http_server_create(&server->http, listen_fd, &http, err));
    if (watch(server) != STATUS_OK)
        return error_set(err, STATUS_IO, "cannot watch descriptors and signals: %s",
                         strerror(errno));
    return STATUS_OK;
}

/** The pool's last answers need the exchanges, these need the engine's client to abort on. */
static void stop(struct api_server *server)
{
    tokenizer_pool_destroy(server->pool);
    gpu_monitor_deinit(&server->gpus);
    if (server->engine && server->http)
        generation_drop_all(server);
    event_readers_drop_all(server);
    http_server_destroy(server->http);
    tls_destroy(server->tls);
    engine_client_destroy(server->engine);
    response_store_destroy(server->responses);
    model_facts_deinit(&server->facts);
    json_decref(server->cors.origins);
    json_decref(server->cors.methods);
    json_decref(server->cors.headers);
    free(server->key_digests);
    if (server->again_fd >= 0)
        close(server->again_fd);
    buf_deinit(&server->scratch);
    arena_deinit(&server->scratch_arena);
}

int api_server_main(const struct serve_options *options, int32_t client_index, int listen_fd,
                    const char *ipc_dir, struct shared_page *page)
{
    struct api_server server = {
        .options = options,
        .page = page,
        .client_index = client_index,
        .again_fd = -1,
        .metrics = {.page = page, .options = options, .client_index = client_index},
    };
    server.metrics.gpus = &server.gpus.shown;
    metrics_begin(&server.metrics);
    struct error err = {0};
    if (start(&server, listen_fd, ipc_dir, &err) != STATUS_OK) {
        log_error("the API server cannot start: %s", err.message);
        stop(&server);
        return EXIT_CANNOT_START;
    }
    if (client_index == 0) {
        model_facts_log(&server.facts, options);
        log_info("Supported tasks: ('%s',)", api_server_pools(&server) ? "embed" : "generate");
        router_log_routes(&server);
    }
    atomic_store(&page->fronts[client_index].pid, getpid()); // the launcher's sign of readiness
    http_server_run(server.http);
    bool stopped = server.stopping;
    stop(&server);
    return stopped ? 0 : 1;
}
