// GET /v1/models.
#include "api_server/serving.h"
#include "base/clock.h"
#include "base/random.h"

void serving_models(struct api_call *call)
{
    const struct api_server *server = call->server;
    int64_t created = clock_wall_ns() / 1000000000;
    int32_t max_model_len = api_server_max_model_len(server);
    struct buf out = {0};
    buf_append_c(&out, "{\"object\":\"list\",\"data\":[");
    for (int32_t i = 0; i < server->options->served_model_names.len; i++) {
        char permission_id[33];
        random_hex(permission_id, 32);
        buf_append_c(&out, i > 0 ? ",{\"id\":" : "{\"id\":");
        buf_append_json_string(&out, str_from(server->options->served_model_names.items[i]));
        buf_append_c(&out, ",\"object\":\"model\",\"created\":");
        buf_append_int(&out, created);
        buf_append_c(&out, ",\"owned_by\":\"vllm\",\"root\":");
        buf_append_json_string(&out, str_from(server->options->model));
        buf_append_c(&out, ",\"parent\":null,\"max_model_len\":");
        if (max_model_len > 0)
            buf_append_int(&out, max_model_len);
        else
            buf_append_c(&out, "null"); // known once the engine is ready
        buf_printf(&out,
                   ",\"permission\":[{\"id\":\"modelperm-%s\",\"object\":\"model_permission\","
                   "\"created\":%lld,\"allow_create_engine\":false,\"allow_sampling\":true,"
                   "\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,"
                   "\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,"
                   "\"is_blocking\":false}]}",
                   permission_id, (long long)created);
    }
    buf_append_c(&out, "]}");
    api_call_reply_json(call, buf_str(&out));
    buf_deinit(&out);
}
