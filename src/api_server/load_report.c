#include "api_server/load_report.h"

#include "base/str.h"

void load_report_add(struct api_call *call)
{
    struct str format = api_call_header(call, "endpoint-load-metrics-format");
    bool is_text = str_eq_ignore_case(format, STR("text"));
    if (!is_text && !str_eq_ignore_case(format, STR("json")))
        return;
    const struct engine_page *engine = &call->server->page->engine;
    int32_t num_blocks = atomic_load(&engine->num_blocks);
    int32_t num_used = atomic_load(&engine->num_used_blocks);
    int32_t num_waiting = atomic_load(&engine->num_waiting);
    double usage = num_blocks > 0 ? (double)num_used / num_blocks : 0;
    const char *value =
        is_text ? arena_printf(&call->arena,
                               "TEXT named_metrics.kv_cache_usage_perc=%.6f, "
                               "named_metrics.num_requests_waiting=%d",
                               usage, (int)num_waiting)
                : arena_printf(&call->arena,
                               "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": %.6f, "
                               "\"num_requests_waiting\": %d}}",
                               usage, (int)num_waiting);
    http_exchange_add_header(call->exchange, "endpoint-load-metrics", value);
}
