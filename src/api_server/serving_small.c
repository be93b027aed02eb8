// The small endpoints: health, version, load, metrics, and the prefix cache's reset.
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
