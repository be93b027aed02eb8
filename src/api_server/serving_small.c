// The small endpoints: health, version, load, metrics, the prefix cache's reset, and the one that
// hands bodies on to others.
#include "api_server/json_body.h"
#include "api_server/serving.h"
#include "base/memory.h"

void serving_health(struct api_call *call)
{
    bool healthy = engine_client_is_ready(call->server->engine);
    api_call_reply(call, healthy ? 200 : 503, "application/json", STR(""));
}

void serving_version(struct api_call *call)
{
    api_call_reply_json(call, STR("{\"version\":\"" VLLM_VERSION "\"}"));
}

void serving_load(struct api_call *call)
{
    const struct api_server *server = call->server;
    struct buf out = {0};
    int32_t load = 0; // of all API servers of the host
    for (int32_t i = 0; i < server->page->num_api_servers; i++)
        load += atomic_load(&server->page->fronts[i].server_load);
    buf_printf(&out, "{\"server_load\":%d}",
               server->options->enable_server_load_tracking ? (int)load : 0);
    api_call_reply_json(call, buf_str(&out));
    buf_deinit(&out);
}

void serving_metrics(struct api_call *call)
{
    struct buf out = {0};
    gpu_monitor_refresh(&call->server->gpus, call->server->pool);
    metrics_render(&call->server->metrics, &out);
    api_call_reply(call, 200, "text/plain; version=0.0.4; charset=utf-8", buf_str(&out));
    buf_deinit(&out);
}

/** A call that waits for the engine's word; the client may leave before it comes. */
struct reset {
    struct api_call *call;
};

static void on_client_gone(void *context)
{
    struct reset *reset = context;
    reset->call = NULL;
}

static void on_reply(void *context, bool ok)
{
    struct reset *reset = context;
    if (reset->call)
        api_call_reply_json(reset->call,
                            ok ? STR("{\"success\":true}") : STR("{\"success\":false}"));
    free(reset);
}

void serving_reset_prefix_cache(struct api_call *call)
{
    struct reset *reset = xcalloc(1, sizeof(*reset));
    reset->call = call;
    api_call_on_close(call, on_client_gone, reset);
    engine_client_reset_prefix_cache(call->server->engine, on_reply, reset);
}

/** The route of hosts that know only one: a body goes to the endpoint whose input it has. */
void serving_invocations(struct api_call *call)
{
    static const struct {
        const char *field;
        void (*serve)(struct api_call *call);
        bool pools;
    } rows[] = {
        {"messages", serving_chat, false},
        {"prompt", serving_completion, false},
        {"prompt_embeds", serving_completion, false},
        {"input", serving_embedding, true},
        {"messages", serving_embedding, true},
    };
    json_t *body;
    struct api_error err;
    if (json_body_parse(&body, api_call_body(call), &err) != STATUS_OK) {
        api_call_fail(call, &err);
        return;
    }
    void (*serve)(struct api_call * call) = NULL;
    bool pools = api_server_pools(call->server);
    for (size_t i = 0; i < ARRAY_LEN(rows) && !serve; i++) {
        if (rows[i].pools == pools && json_field_get(body, rows[i].field).value)
            serve = rows[i].serve;
    }
    json_decref(body);
    if (serve) {
        serve(call);
        return;
    }
    api_error_set(&err, API_ERROR_VALUE,
                  "Cannot find suitable handler for request. Expected a body with %s.",
                  pools ? "`input` or `messages`" : "`messages` or `prompt`");
    api_call_fail(call, &err);
}
