// The body of /v1/chat/completions.
#include <string.h>

#include "api_server/json_body.h"
#include "api_server/openai_protocol.h"
#include "base/memory.h"

static enum status parse_max_tokens(struct sampling_fields *f, const json_t *body,
                                    struct api_error *err)
{
    int64_t newer, older;
    bool has_newer, has_older;
    TRY(json_field_int(body, "max_completion_tokens", &newer, &has_newer, err));
    TRY(json_field_int(body, "max_tokens", &older, &has_older, err));
    f->has_max_tokens = has_newer || has_older;
    f->max_tokens = has_newer ? newer : has_older ? older : 0;
    f->max_tokens_field = has_newer ? "max_completion_tokens" : "max_tokens";
    return STATUS_OK;
}

static enum status parse_logprobs(struct generation_fields *common, const json_t *body,
                                  struct api_error *err)
{
    bool logprobs = false, given;
    int64_t top = 0;
    TRY(prompt_logprobs_parse(body, common->stream, &common->sampling.num_prompt_logprobs, err));
    TRY(json_field_int(body, "top_logprobs", &top, &given, err));
    TRY(json_field_bool(body, "logprobs", &logprobs, NULL, err));
    if (top < -1)
        return api_error_validator(err, "top_logprobs",
                                   "`top_logprobs` must be a positive value or -1.");
    if (top != 0 && !logprobs)
        return api_error_validator(err, "top_logprobs",
                                   "when using `top_logprobs`, `logprobs` must be set to true.");
    if (logprobs)
        common->sampling.num_logprobs =
            top == -1 ? NUM_LOGPROBS_ALL : (int32_t)min_i64(top, INT32_MAX);
    return STATUS_OK;
}

static bool names_a_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *known = json_string_value(json_object_get(function, "name"));
        if (known && strcmp(known, name) == 0)
            return true;
    }
    return false;
}

static enum status check_tool_list(const json_t *tools, struct api_error *err)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        char loc[96];
        snprintf(loc, sizeof(loc), "body.tools.%zu", i);
        if (!json_is_object(tool))
            return api_error_schema(err, "model_attributes_type", loc, NULL,
                                    "Input should be a valid dictionary");
        const json_t *function = json_object_get(tool, "function");
        if (!json_is_object(function)) {
            snprintf(loc, sizeof(loc), "body.tools.%zu.function", i);
            return api_error_schema(err, function ? "model_attributes_type" : "missing", loc, NULL,
                                    function ? "Input should be a valid dictionary"
                                             : "Field required");
        }
        if (!json_is_string(json_object_get(function, "name"))) {
            snprintf(loc, sizeof(loc), "body.tools.%zu.function.name", i);
            return api_error_schema(err, "missing", loc, NULL, "Field required");
        }
    }
    return STATUS_OK;
}

/** Tools may stand in the prompt; calling them needs a parser for the answer, which is not here. */
static enum status parse_tools(struct chat_request *r, const json_t *body, struct api_error *err)
{
    bool flag;
    TRY(json_field_bool(body, "parallel_tool_calls", &flag, NULL, err));
    TRY(json_field_array(body, "tools", &r->tools, err));
    if (r->tools && json_array_size(r->tools) == 0)
        return api_error_validator(err, "tools",
                                   "`tools` must not be an empty array. Either provide at least "
                                   "one tool or omit the field entirely.");
    TRY(check_tool_list(r->tools, err));
    struct json_field choice = json_field_get(body, "tool_choice");
    const char *word = json_string_value(choice.value);
    if (!choice.value && !r->tools)
        return STATUS_OK;
    if (word && strcmp(word, "none") == 0)
        return STATUS_OK;
    if (!r->tools)
        return api_error_validator(err, "tool_choice",
                                   "When using `tool_choice`, `tools` must be set.");
    if (!choice.value || (word && strcmp(word, "auto") == 0))
        return api_error_set(err, API_ERROR_VALUE,
                             "\"auto\" tool choice requires --enable-auto-tool-choice and "
                             "--tool-call-parser to be set");
    if (word && strcmp(word, "required") == 0)
        return api_error_set(err, API_ERROR_VALUE,
                             "tool_choice=\"required\" requires --tool-call-parser to be set");
    if (word || !json_is_object(choice.value))
        return api_error_schema(err, "literal_error", "body.tool_choice", NULL,
                                "Input should be 'none', 'auto', 'required' or a named tool "
                                "choice");
    const char *name =
        json_string_value(json_object_get(json_object_get(choice.value, "function"), "name"));
    if (!name)
        return api_error_validator(err, "tool_choice",
                                   "Expected field `function.name` in `tool_choice`");
    if (!names_a_tool(r->tools, name))
        return api_error_validator(err, "tool_choice",
                                   "The tool specified in `tool_choice` does not match any of the "
                                   "specified `tools`");
    return api_error_set(err, API_ERROR_VALUE,
                         "a named tool_choice requires --tool-call-parser to be set");
}

enum status template_fields_parse(struct chat_request *r, const json_t *body,
                                  bool adds_generation_prompt, const struct protocol_config *config,
                                  struct api_error *err)
{
    bool generation_given;
    r->add_generation_prompt = adds_generation_prompt;
    TRY(json_field_bool(body, "add_generation_prompt", &r->add_generation_prompt, &generation_given,
                        err));
    TRY(json_field_bool(body, "continue_final_message", &r->continue_final_message, NULL, err));
    if (r->continue_final_message && generation_given && r->add_generation_prompt)
        return api_error_validator(err, NULL,
                                   "Cannot set both `continue_final_message` and "
                                   "`add_generation_prompt` to True.");
    if (r->continue_final_message)
        r->add_generation_prompt = false;
    TRY(json_field_object(body, "chat_template_kwargs", &r->chat_template_kwargs, err));
    TRY(json_field_str(body, "chat_template", &r->chat_template, err));
    const json_t *in_kwargs = json_object_get(r->chat_template_kwargs, "chat_template");
    if (json_is_string(in_kwargs))
        r->chat_template = json_str(in_kwargs);
    if (r->chat_template.ptr && !config->trust_request_chat_template)
        return api_error_set(err, API_ERROR_VALUE,
                             "Chat template is passed with request, but "
                             "--trust-request-chat-template is not set. Refused request with "
                             "untrusted chat template.");
    return STATUS_OK;
}

static enum status parse_reasoning_effort(struct chat_request *r, const json_t *body,
                                          struct api_error *err)
{
    TRY(json_field_str(body, "reasoning_effort", &r->reasoning_effort, err));
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    bool known = !r->reasoning_effort.ptr;
    for (size_t i = 0; i < ARRAY_LEN(efforts); i++)
        known = known || str_eq_c(r->reasoning_effort, efforts[i]);
    if (!known)
        return api_error_schema(err, "literal_error", "body.reasoning_effort", NULL,
                                "Input should be 'none', 'minimal', 'low', 'medium', 'high', "
                                "'xhigh' or 'max'");
    return STATUS_OK;
}

enum status chat_request_parse(struct chat_request *r, const json_t *body,
                               const struct protocol_config *config, struct arena *arena,
                               struct api_error *err)
{
    *r = (struct chat_request){0};
    TRY(body_require_object(body, err));
    TRY(json_field_array(body, "messages", &r->messages, err));
    if (!r->messages) {
        char input[160];
        json_summary(body, input, sizeof(input));
        return api_error_schema(err, "missing", "body.messages", input, "Field required");
    }
    TRY(generation_fields_parse(&r->common, body, config, arena, err));
    TRY(json_field_bool(body, "add_special_tokens", &r->common.add_special_tokens, NULL, err));
    TRY(parse_max_tokens(&r->common.sampling, body, err));
    TRY(parse_logprobs(&r->common, body, err));
    // Without a reasoning parser there is no reasoning to leave out: both values agree.
    bool flag;
    TRY(json_field_bool(body, "include_reasoning", &flag, NULL, err));
    TRY(json_field_array(body, "documents", &r->documents, err));
    TRY(template_fields_parse(r, body, true, config, err));
    TRY(parse_reasoning_effort(r, body, err));
    return parse_tools(r, body, err);
}
