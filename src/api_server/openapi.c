// GET /openapi.json: the routes that are there as OpenAPI 3.1, made from the router's table. Bodies
// are described by their main fields; unknown ones are accepted and ignored, as in the reference.
#include <ctype.h>
#include <string.h>

#include "api_server/serving.h"
#include "base/memory.h"

/** A body: "name:type" words; '*' behind a name: it must be there; "a|b" is either type. */
static const struct {
    const char *name, *fields;
} schemas[] = {
    {"ChatCompletionRequest",
     "messages*:array model:string stream:boolean stream_options:object max_tokens:integer "
     "max_completion_tokens:integer n:integer temperature:number top_p:number top_k:integer "
     "min_p:number presence_penalty:number frequency_penalty:number repetition_penalty:number "
     "seed:integer stop:string|array stop_token_ids:array include_stop_str_in_output:boolean "
     "ignore_eos:boolean min_tokens:integer logit_bias:object logprobs:boolean "
     "top_logprobs:integer prompt_logprobs:integer bad_words:array allowed_token_ids:array "
     "skip_special_tokens:boolean truncate_prompt_tokens:integer echo:boolean "
     "add_generation_prompt:boolean continue_final_message:boolean chat_template:string "
     "chat_template_kwargs:object documents:array tools:array tool_choice:string|object "
     "response_format:object structured_outputs:object return_token_ids:boolean "
     "return_tokens_as_token_ids:boolean return_prompt_text:boolean logprob_token_ids:array "
     "repetition_detection:object reasoning_effort:string truncation_side:string priority:integer "
     "cache_salt:string request_id:string user:string metadata:object"},
    {"CompletionRequest",
     "prompt*:string|array model:string stream:boolean stream_options:object max_tokens:integer "
     "n:integer temperature:number top_p:number top_k:integer min_p:number "
     "presence_penalty:number frequency_penalty:number repetition_penalty:number seed:integer "
     "stop:string|array stop_token_ids:array include_stop_str_in_output:boolean "
     "ignore_eos:boolean min_tokens:integer logit_bias:object logprobs:integer "
     "prompt_logprobs:integer bad_words:array allowed_token_ids:array skip_special_tokens:boolean "
     "add_special_tokens:boolean truncate_prompt_tokens:integer echo:boolean "
     "response_format:object structured_outputs:object return_token_ids:boolean "
     "return_tokens_as_token_ids:boolean return_prompt_text:boolean logprob_token_ids:array "
     "repetition_detection:object truncation_side:string priority:integer cache_salt:string "
     "request_id:string user:string"},
    {"EmbeddingRequest",
     "input:string|array messages:array model:string encoding_format:string dimensions:integer "
     "embed_dtype:string endianness:string use_activation:boolean normalize:boolean "
     "truncate_prompt_tokens:integer truncation_side:string add_special_tokens:boolean "
     "add_generation_prompt:boolean continue_final_message:boolean chat_template:string "
     "chat_template_kwargs:object priority:integer cache_salt:string request_id:string "
     "user:string"},
    {"ResponsesRequest",
     "input*:string|array model:string instructions:string max_output_tokens:integer "
     "stream:boolean store:boolean background:boolean previous_response_id:string "
     "temperature:number top_p:number top_k:integer presence_penalty:number "
     "frequency_penalty:number repetition_penalty:number seed:integer stop:string|array "
     "logit_bias:object ignore_eos:boolean skip_special_tokens:boolean include:array "
     "top_logprobs:integer reasoning:object text:object tools:array tool_choice:string|object "
     "structured_outputs:object truncation:string metadata:object service_tier:string "
     "chat_template_kwargs:object priority:integer cache_salt:string request_id:string "
     "user:string"},
    {"MessagesRequest",
     "model*:string max_tokens*:integer messages*:array system:string|array "
     "stop_sequences:array stream:boolean temperature:number top_p:number top_k:integer "
     "tools:array tool_choice:object output_config:object metadata:object "
     "chat_template_kwargs:object"},
    {"CountTokensRequest",
     "model*:string messages*:array system:string|array tools:array tool_choice:object "
     "output_config:object chat_template_kwargs:object"},
    {"TokenizeRequest",
     "model:string prompt:string messages:array add_special_tokens:boolean "
     "return_token_strs:boolean add_generation_prompt:boolean continue_final_message:boolean "
     "chat_template:string chat_template_kwargs:object tools:array"},
    {"DetokenizeRequest", "tokens*:array model:string"},
};

// ---- schemas ----

static void write_type(struct buf *out, struct str types)
{
    bool is_either = str_find(types, STR("|"), 0) != STR_NOT_FOUND;
    buf_append_c(out, is_either ? "{\"type\":[" : "{\"type\":");
    for (bool is_first = true; types.len > 0; is_first = false) {
        buf_append_c(out, is_first ? "" : ",");
        buf_append_json_string(out, str_split(&types, '|'));
    }
    buf_append_c(out, is_either ? "]}" : "}");
}

static void write_schema(struct buf *out, struct str fields)
{
    struct buf required = {0};
    buf_append_c(out, "{\"type\":\"object\",\"properties\":{");
    for (bool is_first = true; fields.len > 0; is_first = false) {
        struct str types = str_split(&fields, ' ');
        struct str name = str_split(&types, ':');
        bool is_required = str_ends_with(name, STR("*"));
        name.len -= is_required;
        buf_append_c(out, is_first ? "" : ",");
        buf_append_json_string(out, name);
        buf_append_char(out, ':');
        write_type(out, types);
        if (is_required) {
            buf_append_c(&required, required.len > 0 ? "," : "");
            buf_append_json_string(&required, name);
        }
    }
    buf_append_char(out, '}');
    if (required.len > 0) {
        buf_append_c(out, ",\"required\":[");
        buf_append(out, buf_str(&required));
        buf_append_char(out, ']');
    }
    buf_append_c(out, ",\"additionalProperties\":true}");
    buf_deinit(&required);
}

static void write_components(struct buf *out)
{
    buf_append_c(out, "{\"schemas\":{");
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
        buf_append_json_string(out, str_from(schemas[i].name));
        buf_append_char(out, ':');
        write_schema(out, str_from(schemas[i].fields));
        buf_append_char(out, ',');
    }
    buf_append_c(out,
                 "\"Error\":{\"type\":\"object\",\"properties\":{\"error\":{\"type\":\"object\","
                 "\"properties\":{\"message\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"},"
                 "\"param\":{\"type\":[\"string\",\"null\"]},\"code\":{\"type\":\"integer\"}}}}}},"
                 "\"securitySchemes\":{\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"}}}");
}

// ---- routes ----

/** "/v1/chat/completions" and "POST" → v1_chat_completions_post. */
static void write_operation_id(struct buf *out, const struct route *route, struct str method)
{
    buf_append_char(out, '"');
    for (const char *p = route->path + 1; *p; p++)
        buf_append_char(out, isalnum((unsigned char)*p) ? *p : '_');
    buf_append_char(out, '_');
    for (size_t i = 0; i < method.len; i++)
        buf_append_char(out, (char)tolower((unsigned char)method.ptr[i]));
    buf_append_char(out, '"');
}

static void write_parameters(struct buf *out, const struct route *route)
{
    struct str path = str_from(route->path);
    size_t open = str_find(path, STR("{"), 0);
    if (open == STR_NOT_FOUND)
        return;
    buf_append_c(out, ",\"parameters\":[{\"in\":\"path\",\"required\":true,\"schema\":"
                      "{\"type\":\"string\"},\"name\":");
    buf_append_json_string(out, str_slice(path, open + 1, str_find(path, STR("}"), open)));
    buf_append_c(out, "}]");
}

static void write_operation(struct buf *out, const struct api_server *server,
                            const struct route *route, struct str method)
{
    buf_append_c(out, "{\"summary\":");
    buf_append_json_string(out, str_from(route->summary));
    buf_append_c(out, ",\"operationId\":");
    write_operation_id(out, route, method);
    write_parameters(out, route);
    if (route->request)
        buf_printf(out,
                   ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":"
                   "{\"schema\":{\"$ref\":\"#/components/schemas/%s\"}}}}",
                   route->request);
    if (router_needs_key(server, str_from(route->path)))
        buf_append_c(out, ",\"security\":[{\"bearer\":[]}]");
    buf_append_c(out, ",\"responses\":{\"200\":{\"description\":\"Success\"}");
    if (route->request)
        buf_append_c(out, ",\"400\":{\"description\":\"Bad request\",\"content\":"
                          "{\"application/json\":{\"schema\":"
                          "{\"$ref\":\"#/components/schemas/Error\"}}}}");
    buf_append_c(out, "}}");
}

static void write_path(struct buf *out, const struct api_server *server, const struct route *route)
{
    buf_append_json_string(out, str_from(route->path));
    buf_append_c(out, ":{");
    struct str methods = str_from(route->methods);
    for (bool is_first = true; methods.len > 0; is_first = false) {
        struct str method = str_trim(str_split(&methods, ','));
        buf_append_c(out, is_first ? "\"" : ",\"");
        for (size_t i = 0; i < method.len; i++)
            buf_append_char(out, (char)tolower((unsigned char)method.ptr[i]));
        buf_append_c(out, "\":");
        write_operation(out, server, route, method);
    }
    buf_append_char(out, '}');
}

void serving_openapi(struct api_call *call)
{
    const struct api_server *server = call->server;
    struct buf out = {0};
    buf_printf(&out,
               "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"vLLM API\",\"version\":\"%s\"},"
               "\"paths\":{",
               VLLM_VERSION);
    const struct route *route;
    bool is_first = true;
    for (size_t at = 0; (route = router_next_route(server, &at)); is_first = false) {
        buf_append_c(&out, is_first ? "" : ",");
        write_path(&out, server, route);
    }
    buf_append_c(&out, "},\"components\":");
    write_components(&out);
    buf_append_char(&out, '}');
    api_call_reply_json(call, buf_str(&out));
    buf_deinit(&out);
}

// ---- the page ----

void serving_docs(struct api_call *call)
{
    struct buf out = {0};
    buf_append_c(&out, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
                       "<title>vLLM API</title><h1>vLLM API " VLLM_VERSION "</h1>"
                       "<p>Described for programs in <a href=\"openapi.json\">openapi.json</a>."
                       "</p><table>");
    const struct route *route;
    for (size_t at = 0; (route = router_next_route(call->server, &at));)
        buf_printf(&out, "<tr><td>%s<td><code>%s</code><td>%s", route->methods, route->path,
                   route->summary); // the table's texts have no markup
    buf_append_c(&out, "</table></html>\n");
    api_call_reply(call, 200, "text/html; charset=utf-8", buf_str(&out));
    buf_deinit(&out);
}
