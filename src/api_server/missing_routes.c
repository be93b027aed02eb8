#include "api_server/missing_routes.h"

#include "api_server/router.h"
#include "base/memory.h"

static const struct {
    const char *path;
    enum route_audience audience;
    bool dev_only;
    const char *instead; // what to do; NULL: nothing
} rows[] = {
    {"/pooling", ROUTE_POOLS, .instead = "a pooling model is served at /v1/embeddings"},
    {"/classify", ROUTE_POOLS, .instead = "a pooling model is served at /v1/embeddings"},
    {"/score", ROUTE_POOLS, .instead = "a pooling model is served at /v1/embeddings"},
    {"/v1/score", ROUTE_POOLS, .instead = "a pooling model is served at /v1/embeddings"},
    {"/rerank", ROUTE_POOLS, .instead = "a pooling model is served at /v1/embeddings"},
    {"/v1/rerank", ROUTE_POOLS, .instead = "a pooling model is served at /v1/embeddings"},
    {"/v2/rerank", ROUTE_POOLS, .instead = "a pooling model is served at /v1/embeddings"},
    {"/v2/embed", ROUTE_POOLS, .instead = "a pooling model is served at /v1/embeddings"},
    {"/v1/chat/completions/batch", ROUTE_GENERATES,
     .instead = "send one request to /v1/chat/completions for each conversation"},
    {"/inference/v1/generate", ROUTE_GENERATES,
     .instead = "/v1/completions takes token ids and answers with them (`return_token_ids`)"},
    {"/v1/load_lora_adapter", ROUTE_ALWAYS, .instead = NULL},
    {"/v1/unload_lora_adapter", ROUTE_ALWAYS, .instead = NULL},
    {"/start_profile", ROUTE_ALWAYS, .instead = "POST /debug/recording writes what was scheduled"},
    {"/stop_profile", ROUTE_ALWAYS, .instead = "POST /debug/recording writes what was scheduled"},
    {"/scale_elastic_ep", ROUTE_GENERATES, .instead = NULL},
    {"/is_scaling_elastic_ep", ROUTE_GENERATES, .instead = NULL},
    {"/sleep", ROUTE_ALWAYS, .dev_only = true},
    {"/wake_up", ROUTE_ALWAYS, .dev_only = true},
    {"/is_sleeping", ROUTE_ALWAYS, .dev_only = true},
    {"/reset_mm_cache", ROUTE_ALWAYS, .dev_only = true},
    {"/reset_encoder_cache", ROUTE_ALWAYS, .dev_only = true},
    {"/collective_rpc", ROUTE_ALWAYS, .dev_only = true},
    {"/pause", ROUTE_ALWAYS, .dev_only = true},
    {"/resume", ROUTE_ALWAYS, .dev_only = true},
    {"/is_paused", ROUTE_ALWAYS, .dev_only = true},
    {"/abort_requests", ROUTE_ALWAYS, .dev_only = true},
    {"/get_world_size", ROUTE_ALWAYS, .dev_only = true},
};

void missing_routes_explain(const struct api_server *server, struct str path, struct api_error *err)
{
    api_error_set(err, API_ERROR_NO_ROUTE, "Not Found");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        bool is_ours = rows[i].audience == ROUTE_ALWAYS ||
                       (rows[i].audience == ROUTE_POOLS) == api_server_pools(server);
        if (!is_ours || (rows[i].dev_only && !server->options->server_dev_mode) ||
            !str_eq_c(path, rows[i].path))
            continue;
        api_error_set(err, API_ERROR_UNSUPPORTED, "vllm.c does not support %s yet%s%s",
                      rows[i].path, rows[i].instead ? "; " : "",
                      rows[i].instead ? rows[i].instead : "");
    }
}
