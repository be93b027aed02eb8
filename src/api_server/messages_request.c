// One message of blocks becomes up to several chat messages: results of tools are messages of their
// own there, calls of tools and thinking stand beside the content.
#include "api_server/messages_request.h"

#include <string.h>

#include "api_server/json_body.h"
#include "api_server/openai_protocol.h"
#include "base/memory.h"

/** Where a block stands: "body.messages.2.content.0", or "body.system.0". */
struct place {
    char loc[96];
};

static enum status bad_type(struct api_error *err, const char *loc, const char *type,
                            const char *msg)
{
    return api_error_schema(err, type, loc, NULL, "%s", msg);
}

static enum status refuse_block(struct api_error *err, const struct place *at, const char *type)
{
    return api_error_param(err, at->loc, NULL,
                           "vllm.c does not support content blocks of type "
                           "`%.60s` yet",
                           type);
}

/** A string that a block must have. */
static enum status block_text(const json_t *block, const struct place *at, const char *key,
                              const json_t **out, struct api_error *err)
{
    char loc[112];
    snprintf(loc, sizeof(loc), "%s.%s", at->loc, key);
    *out = json_object_get(block, key);
    if (json_is_string(*out))
        return STATUS_OK;
    bool given = *out && !json_is_null(*out);
    return bad_type(err, loc, given ? "string_type" : "missing",
                    given ? "Input should be a valid string" : "Field required");
}

static enum status block_type(const json_t *block, const struct place *at, const char **type,
                              struct api_error *err)
{
    *type = "";
    if (!json_is_object(block))
        return bad_type(err, at->loc, "model_attributes_type",
                        "Input should be a content block: an object with a type");
    const json_t *value;
    TRY(block_text(block, at, "type", &value, err));
    *type = json_string_value(value);
    return STATUS_OK;
}

static void append_text_part(json_t *parts, const json_t *text)
{
    json_t *part = json_object();
    json_object_set_new(part, "type", json_string("text"));
    json_object_set(part, "text", (json_t *)text);
    json_array_append_new(parts, part);
}

/** Content that can only be text: a system prompt, or what a tool returned. */
static enum status read_text_blocks(json_t **out, const json_t *content, const char *loc,
                                    struct api_error *err)
{
    *out = NULL;
    if (!content || json_is_null(content) || json_is_string(content)) {
        *out = json_is_string(content) ? json_incref((json_t *)content) : json_string("");
        return STATUS_OK;
    }
    if (!json_is_array(content))
        return bad_type(err, loc, "string_type",
                        "Input should be a string or a list of content blocks");
    json_t *parts = json_array();
    enum status status = STATUS_OK;
    for (size_t i = 0; i < json_array_size(content) && status == STATUS_OK; i++) {
        const json_t *block = json_array_get(content, i), *text = NULL;
        const char *type = NULL;
        struct place at;
        snprintf(at.loc, sizeof(at.loc), "%.70s.%zu", loc, i);
        status = block_type(block, &at, &type, err);
        if (status == STATUS_OK && strcmp(type, "text") != 0)
            status = refuse_block(err, &at, type);
        if (status == STATUS_OK)
            status = block_text(block, &at, "text", &text, err);
        if (status == STATUS_OK)
            append_text_part(parts, text);
    }
    if (status == STATUS_OK)
        *out = parts;
    else
        json_decref(parts);
    return status;
}

/** What the blocks of one message add up to. */
struct gathered {
    json_t *results;   // whole messages of the role tool
    json_t *parts;     // text
    json_t *calls;     // of tools
    json_t *reasoning; // thinking, one string; NULL: none
};

static enum status add_call(struct gathered *all, const json_t *block, const struct place *at,
                            struct api_error *err)
{
    const json_t *id, *name, *input = json_object_get(block, "input");
    TRY(block_text(block, at, "id", &id, err));
    TRY(block_text(block, at, "name", &name, err));
    if (input && !json_is_null(input) && !json_is_object(input)) {
        char loc[112];
        snprintf(loc, sizeof(loc), "%s.input", at->loc);
        return bad_type(err, loc, "dict_type", "Input should be a valid dictionary");
    }
    json_t *function = json_object(), *call = json_object();
    json_object_set(function, "name", (json_t *)name);
    json_object_set(function, "arguments", (json_t *)input);
    json_object_set(call, "id", (json_t *)id);
    json_object_set_new(call, "type", json_string("function"));
    json_object_set_new(call, "function", function);
    json_array_append_new(all->calls, call);
    return STATUS_OK;
}

static enum status add_result(struct gathered *all, const json_t *block, const struct place *at,
                              struct api_error *err)
{
    const json_t *id;
    json_t *content;
    char loc[112];
    snprintf(loc, sizeof(loc), "%s.content", at->loc);
    TRY(block_text(block, at, "tool_use_id", &id, err));
    TRY(read_text_blocks(&content, json_object_get(block, "content"), loc, err));
    json_t *message = json_object();
    json_object_set_new(message, "role", json_string("tool"));
    json_object_set(message, "tool_call_id", (json_t *)id);
    json_object_set_new(message, "content", content);
    json_array_append_new(all->results, message);
    return STATUS_OK;
}

static void add_thinking(struct gathered *all, const json_t *text)
{
    struct buf joined = {0};
    if (all->reasoning) {
        buf_append(&joined, json_str(all->reasoning));
        buf_append_char(&joined, '\n');
        json_decref(all->reasoning);
    }
    buf_append(&joined, json_str(text));
    all->reasoning = json_stringn(joined.ptr ? joined.ptr : "", joined.len);
    buf_deinit(&joined);
}

static enum status read_block(struct gathered *all, const json_t *block, bool is_assistant,
                              const struct place *at, struct api_error *err)
{
    const char *type = NULL;
    const json_t *text = NULL;
    TRY(block_type(block, at, &type, err));
    if (strcmp(type, "text") == 0) {
        TRY(block_text(block, at, "text", &text, err));
        append_text_part(all->parts, text);
        return STATUS_OK;
    }
    if (strcmp(type, "tool_result") == 0 && !is_assistant)
        return add_result(all, block, at, err);
    if (strcmp(type, "tool_use") == 0 && is_assistant)
        return add_call(all, block, at, err);
    if (strcmp(type, "thinking") == 0 && is_assistant) {
        TRY(block_text(block, at, "thinking", &text, err));
        add_thinking(all, text);
        return STATUS_OK;
    }
    // Encrypted by whoever wrote it, for himself: no template could show it to a model.
    if (strcmp(type, "redacted_thinking") == 0 && is_assistant)
        return STATUS_OK;
    static const char *const others[] = {"tool_result", "tool_use", "thinking",
                                         "redacted_thinking"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        if (strcmp(type, others[i]) == 0)
            return api_error_param(err, at->loc, NULL,
                                   "A content block of type `%s` cannot stand in a message of "
                                   "this role",
                                   type);
    }
    return refuse_block(err, at, type);
}

/** Appends what was gathered from one message to the chat's messages. */
static void append_gathered(json_t *messages, const struct gathered *all, json_t *role)
{
    json_array_extend(messages, all->results);
    bool has_rest = json_array_size(all->parts) > 0 || json_array_size(all->calls) > 0 ||
                    all->reasoning || json_array_size(all->results) == 0;
    if (!has_rest)
        return;
    json_t *message = json_object();
    json_object_set(message, "role", role);
    json_object_set(message, "content", all->parts);
    if (json_array_size(all->calls) > 0)
        json_object_set(message, "tool_calls", all->calls);
    if (all->reasoning)
        json_object_set(message, "reasoning", all->reasoning);
    json_array_append_new(messages, message);
}

static enum status read_blocks(json_t *messages, const json_t *blocks, json_t *role, size_t index,
                               struct api_error *err)
{
    struct gathered all = {.results = json_array(), .parts = json_array(), .calls = json_array()};
    bool is_assistant = strcmp(json_string_value(role), "assistant") == 0;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < json_array_size(blocks) && status == STATUS_OK; i++) {
        struct place at;
        snprintf(at.loc, sizeof(at.loc), "body.messages.%zu.content.%zu", index, i);
        status = read_block(&all, json_array_get(blocks, i), is_assistant, &at, err);
    }
    if (status == STATUS_OK)
        append_gathered(messages, &all, role);
    json_decref(all.results);
    json_decref(all.parts);
    json_decref(all.calls);
    json_decref(all.reasoning);
    return status;
}

static enum status read_message(json_t *messages, const json_t *in, size_t index,
                                struct api_error *err)
{
    char loc[64];
    snprintf(loc, sizeof(loc), "body.messages.%zu", index);
    if (!json_is_object(in))
        return bad_type(err, loc, "model_attributes_type", "Input should be a valid dictionary");
    json_t *role = json_object_get(in, "role");
    const char *name = json_string_value(role);
    if (!name || (strcmp(name, "user") != 0 && strcmp(name, "assistant") != 0 &&
                  strcmp(name, "system") != 0)) {
        snprintf(loc, sizeof(loc), "body.messages.%zu.role", index);
        return bad_type(err, loc, role ? "literal_error" : "missing",
                        role ? "Input should be 'user', 'assistant' or 'system'"
                             : "Field required");
    }
    json_t *content = json_object_get(in, "content");
    if (json_is_array(content))
        return read_blocks(messages, content, role, index, err);
    if (!json_is_string(content)) {
        snprintf(loc, sizeof(loc), "body.messages.%zu.content", index);
        return bad_type(err, loc, content ? "string_type" : "missing",
                        content ? "Input should be a string or a list of content blocks"
                                : "Field required");
    }
    json_t *message = json_object();
    json_object_set(message, "role", role);
    json_object_set(message, "content", content);
    json_array_append_new(messages, message);
    return STATUS_OK;
}

static enum status read_messages(json_t *chat, const json_t *body, struct api_error *err)
{
    const json_t *list;
    TRY(json_field_array(body, "messages", &list, err));
    if (!list)
        return bad_type(err, "body.messages", "missing", "Field required");
    json_t *messages = json_array();
    json_object_set_new(chat, "messages", messages);
    const json_t *system = json_field_get(body, "system").value;
    if (system) {
        json_t *content;
        TRY(read_text_blocks(&content, system, "body.system", err));
        json_t *message = json_object();
        json_object_set_new(message, "role", json_string("system"));
        json_object_set_new(message, "content", content);
        json_array_append_new(messages, message);
    }
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(read_message(messages, json_array_get(list, i), i, err));
    return STATUS_OK;
}

static enum status read_tools(json_t *chat, const json_t *body, struct api_error *err)
{
    const json_t *list;
    TRY(json_field_array(body, "tools", &list, err));
    if (json_array_size(list) == 0)
        return STATUS_OK;
    json_t *tools = json_array();
    json_object_set_new(chat, "tools", tools);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *in = json_array_get(list, i), *name;
        struct place at;
        snprintf(at.loc, sizeof(at.loc), "body.tools.%zu", i);
        if (!json_is_object(in))
            return bad_type(err, at.loc, "model_attributes_type",
                            "Input should be a valid dictionary");
        TRY(block_text(in, &at, "name", &name, err));
        json_t *function = json_object(), *tool = json_object();
        json_object_set(function, "name", (json_t *)name);
        json_object_set(function, "description", json_object_get(in, "description"));
        json_object_set(function, "parameters", json_object_get(in, "input_schema"));
        json_object_set_new(tool, "type", json_string("function"));
        json_object_set_new(tool, "function", function);
        json_array_append_new(tools, tool);
    }
    return STATUS_OK;
}

static enum status read_tool_choice(json_t *chat, const json_t *body, struct api_error *err)
{
    const json_t *choice;
    TRY(json_field_object(body, "tool_choice", &choice, err));
    if (!choice || !json_object_get(chat, "tools"))
        return STATUS_OK;
    struct place at = {"body.tool_choice"};
    const char *type;
    TRY(block_type(choice, &at, &type, err));
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (strcmp(type, words[i][0]) == 0)
            json_object_set_new(chat, "tool_choice", json_string(words[i][1]));
    }
    if (json_object_get(chat, "tool_choice"))
        return STATUS_OK;
    if (strcmp(type, "tool") != 0)
        return bad_type(err, "body.tool_choice.type", "literal_error",
                        "Input should be 'auto', 'any', 'tool' or 'none'");
    const json_t *name;
    TRY(block_text(choice, &at, "name", &name, err));
    json_t *named = json_object(), *function = json_object();
    json_object_set(function, "name", (json_t *)name);
    json_object_set_new(named, "type", json_string("function"));
    json_object_set_new(named, "function", function);
    json_object_set_new(chat, "tool_choice", named);
    return STATUS_OK;
}

/** How much to think, and the form that the answer must have. */
static enum status read_output_config(json_t *chat, const json_t *body, struct api_error *err)
{
    const json_t *config, *format;
    TRY(json_field_object(body, "output_config", &config, err));
    if (!config)
        return STATUS_OK;
    json_object_set(chat, "reasoning_effort", json_object_get(config, "effort"));
    TRY(json_field_object(config, "format", &format, err));
    if (!format)
        return STATUS_OK;
    json_t *schema = json_object(), *wrapped = json_object();
    json_object_set_new(schema, "name", json_string("output"));
    json_object_set(schema, "schema", json_object_get(format, "schema"));
    json_object_set(wrapped, "type", json_object_get(format, "type"));
    json_object_set_new(wrapped, "json_schema", schema);
    json_object_set_new(chat, "response_format", wrapped);
    return STATUS_OK;
}

static enum status read_limits(json_t *chat, const json_t *body, struct api_error *err)
{
    int64_t max_tokens;
    bool given;
    TRY(json_field_int(body, "max_tokens", &max_tokens, &given, err));
    if (!given)
        return bad_type(err, "body.max_tokens", "missing", "Field required");
    if (max_tokens <= 0)
        return api_error_validator(err, "max_tokens", "max_tokens must be positive");
    json_object_set_new(chat, "max_tokens", json_integer(max_tokens));
    json_object_set(chat, "stop", json_object_get(body, "stop_sequences"));
    static const char *const same[] = {"stream", "temperature", "top_p", "top_k"};
    for (size_t i = 0; i < ARRAY_LEN(same); i++)
        json_object_set(chat, same[i], json_object_get(body, same[i]));
    return STATUS_OK;
}

static enum status translate(json_t *chat, const json_t *body, bool counts_only,
                             struct api_error *err)
{
    struct str model;
    const json_t *sequences;
    TRY(body_require_object(body, err));
    TRY(json_field_str(body, "model", &model, err));
    if (!model.ptr)
        return bad_type(err, "body.model", "missing", "Field required");
    if (model.len == 0)
        return api_error_validator(err, "model", "Model is required");
    json_object_set(chat, "model", json_object_get(body, "model"));
    TRY(json_field_array(body, "stop_sequences", &sequences, err));
    TRY(read_messages(chat, body, err));
    if (!counts_only)
        TRY(read_limits(chat, body, err));
    json_object_set(chat, "chat_template_kwargs", json_object_get(body, "chat_template_kwargs"));
    TRY(read_tools(chat, body, err));
    TRY(read_tool_choice(chat, body, err));
    // Tools are a part of the prompt, and counting does not read calls from any answer.
    if (counts_only && json_object_get(chat, "tools"))
        json_object_set_new(chat, "tool_choice", json_string("none"));
    return read_output_config(chat, body, err);
}

enum status messages_request_to_chat(json_t **chat, const json_t *body, bool counts_only,
                                     struct api_error *err)
{
    *chat = json_object();
    enum status status = translate(*chat, body, counts_only, err);
    if (status != STATUS_OK) {
        json_decref(*chat);
        *chat = NULL;
    }
    return status;
}
