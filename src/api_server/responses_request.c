// Items of the input become chat messages: messages as they are, a call of a tool as a message of
// the assistant, its output as one of the tool, reasoning beside the message that follows it.
#include "api_server/responses_request.h"

#include <string.h>

#include "api_server/json_body.h"
#include "api_server/openai_protocol.h"
#include "base/memory.h"
#include "base/random.h"

static enum status bad_type(struct api_error *err, const char *loc, const char *type,
                            const char *msg)
{
    return api_error_schema(err, type, loc, NULL, "%s", msg);
}

static void append_message(json_t *messages, const char *role, json_t *content)
{
    json_t *message = json_object();
    json_object_set_new(message, "role", json_string(role));
    json_object_set(message, "content", content);
    json_array_append_new(messages, message);
}

/** A string that an item must have. */
static enum status item_text(const json_t *item, size_t index, const char *key, json_t **out,
                             struct api_error *err)
{
    char loc[64];
    snprintf(loc, sizeof(loc), "body.input.%zu.%s", index, key);
    *out = json_object_get(item, key);
    if (json_is_string(*out))
        return STATUS_OK;
    bool given = *out && !json_is_null(*out);
    return bad_type(err, loc, given ? "string_type" : "missing",
                    given ? "Input should be a valid string" : "Field required");
}

// ---- items ----

/** Reasoning waits here for the assistant's message that it belongs to. */
struct input_state {
    json_t *messages;
    json_t *reasoning; // NULL: none
};

static void attach_reasoning(struct input_state *s, json_t *message)
{
    if (s->reasoning)
        json_object_set_new(message, "reasoning", s->reasoning);
    s->reasoning = NULL;
}

static enum status read_message(struct input_state *s, const json_t *item, size_t index,
                                struct api_error *err)
{
    json_t *role, *content = json_object_get(item, "content");
    TRY(item_text(item, index, "role", &role, err));
    char loc[64];
    snprintf(loc, sizeof(loc), "body.input.%zu.content", index);
    if (!json_is_string(content) && !json_is_array(content))
        return bad_type(err, loc, content ? "string_type" : "missing",
                        content ? "Input should be a string or a list of content parts"
                                : "Field required");
    append_message(s->messages, json_string_value(role), content);
    if (strcmp(json_string_value(role), "assistant") == 0)
        attach_reasoning(s, json_array_get(s->messages, json_array_size(s->messages) - 1));
    return STATUS_OK;
}

static enum status read_reasoning(struct input_state *s, const json_t *item, size_t index,
                                  struct api_error *err)
{
    char loc[64];
    snprintf(loc, sizeof(loc), "body.input.%zu.content", index);
    const json_t *content = json_object_get(item, "content");
    const json_t *sealed = json_object_get(item, "encrypted_content");
    if (sealed && !json_is_null(sealed))
        return api_error_param(err, "input", NULL,
                               "input[%zu]: vllm.c cannot read `encrypted_content`", index);
    struct buf text = {0};
    enum status status = STATUS_OK;
    if (content && !json_is_null(content) && !json_is_array(content))
        status = bad_type(err, loc, "list_type", "Input should be a valid list");
    for (size_t i = 0; i < json_array_size(content) && status == STATUS_OK; i++) {
        const json_t *piece = json_object_get(json_array_get(content, i), "text");
        if (!json_is_string(piece))
            status = bad_type(err, loc, "missing", "A part of reasoning needs a string `text`");
        buf_append(&text, json_is_string(piece) ? json_str(piece) : (struct str){0});
    }
    json_decref(s->reasoning);
    s->reasoning = text.len > 0 && status == STATUS_OK ? json_stringn(text.ptr, text.len) : NULL;
    buf_deinit(&text);
    return status;
}

/** Calls that follow each other are one message's. */
static enum status read_call(struct input_state *s, const json_t *item, size_t index,
                             struct api_error *err)
{
    json_t *name, *id, *arguments;
    TRY(item_text(item, index, "name", &name, err));
    TRY(item_text(item, index, "call_id", &id, err));
    TRY(item_text(item, index, "arguments", &arguments, err));
    size_t count = json_array_size(s->messages);
    json_t *last = count > 0 ? json_array_get(s->messages, count - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") != 0) {
        json_t *empty = json_string("");
        append_message(s->messages, "assistant", empty);
        json_decref(empty);
        last = json_array_get(s->messages, count);
    }
    attach_reasoning(s, last);
    json_t *calls = json_object_get(last, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(last, "tool_calls", calls);
    }
    json_t *call = json_object(), *function = json_object();
    json_object_set(function, "name", name);
    json_object_set(function, "arguments", arguments);
    json_object_set(call, "id", id);
    json_object_set_new(call, "type", json_string("function"));
    json_object_set_new(call, "function", function);
    json_array_append_new(calls, call);
    return STATUS_OK;
}

static enum status read_call_output(struct input_state *s, const json_t *item, size_t index,
                                    struct api_error *err)
{
    json_t *id, *output = json_object_get(item, "output");
    TRY(item_text(item, index, "call_id", &id, err));
    char loc[64];
    snprintf(loc, sizeof(loc), "body.input.%zu.output", index);
    if (!json_is_string(output) && !json_is_array(output))
        return bad_type(err, loc, output ? "string_type" : "missing",
                        output ? "Input should be a string or a list of content parts"
                               : "Field required");
    append_message(s->messages, "tool", output);
    json_object_set(json_array_get(s->messages, json_array_size(s->messages) - 1), "tool_call_id",
                    id);
    return STATUS_OK;
}

static enum status read_item(struct input_state *s, const json_t *item, size_t index,
                             struct api_error *err)
{
    char loc[64];
    snprintf(loc, sizeof(loc), "body.input.%zu", index);
    if (!json_is_object(item))
        return bad_type(err, loc, "model_attributes_type", "Input should be a valid dictionary");
    const json_t *type = json_object_get(item, "type");
    const char *name = json_string_value(type);
    if (!type && json_object_get(item, "role"))
        name = "message"; // the short form
    if (!name)
        return bad_type(err, loc, "missing", "An input item needs a type");
    static const struct {
        const char *name;
        enum status (*read)(struct input_state *s, const json_t *item, size_t index,
                            struct api_error *err);
    } types[] = {
        {"message", read_message},
        {"reasoning", read_reasoning},
        {"function_call", read_call},
        {"function_call_output", read_call_output},
    };
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (strcmp(name, types[i].name) == 0)
            return types[i].read(s, item, index, err);
    }
    return api_error_param(err, "input", NULL,
                           "input[%zu]: vllm.c does not support items of type `%.60s` yet", index,
                           name);
}

static enum status read_input(json_t *chat, struct response *r, const json_t *body,
                              struct api_error *err)
{
    json_t *messages = json_array();
    json_object_set_new(chat, "messages", messages);
    struct str text;
    TRY(json_field_str(body, "instructions", &text, err));
    r->has_instructions = text.ptr != NULL;
    if (r->has_instructions)
        append_message(messages, "system", json_object_get(body, "instructions"));
    json_t *input = json_object_get(body, "input");
    if (json_is_string(input)) {
        append_message(messages, "user", input);
        return STATUS_OK;
    }
    if (!json_is_array(input))
        return bad_type(err, "body.input", input ? "string_type" : "missing",
                        input ? "Input should be a string or a list of items" : "Field required");
    struct input_state state = {.messages = messages};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < json_array_size(input) && status == STATUS_OK; i++)
        status = read_item(&state, json_array_get(input, i), i, err);
    if (status == STATUS_OK && state.reasoning) { // at the end: a message of its own
        json_t *empty = json_string("");
        append_message(messages, "assistant", empty);
        json_decref(empty);
        attach_reasoning(&state, json_array_get(messages, json_array_size(messages) - 1));
    }
    json_decref(state.reasoning);
    return status;
}

// ---- fields ----

static enum status check_choice(const json_t *body, const char *key, const char *const *words,
                                size_t num_words, struct api_error *err)
{
    struct str value;
    TRY(json_field_str(body, key, &value, err));
    if (!value.ptr)
        return STATUS_OK;
    for (size_t i = 0; i < num_words; i++) {
        if (str_eq_c(value, words[i]))
            return STATUS_OK;
    }
    char loc[64];
    snprintf(loc, sizeof(loc), "body.%s", key);
    return api_error_schema(err, "literal_error", loc, NULL,
                            "Input should be one of the known words, got `%.60s`", value.ptr);
}

/** What only makes sense for servers that keep responses. */
static enum status read_storage(struct response *r, const json_t *body, bool can_store,
                                struct arena *arena, struct api_error *err)
{
    struct str previous;
    r->store = true;
    TRY(json_field_bool(body, "store", &r->store, NULL, err));
    TRY(json_field_bool(body, "background", &r->background, NULL, err));
    TRY(json_field_str(body, "previous_response_id", &previous, err));
    if (r->background && !r->store)
        return api_error_validator(err, "background",
                                   "background can only be used when `store` is true");
    if (r->background && !can_store)
        return api_error_set(err, API_ERROR_RESPONSE,
                             "This vLLM engine does not support `store=True` and therefore does "
                             "not support the background mode. To enable these features, set the "
                             "environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when "
                             "launching the vLLM server.");
    r->store = r->store && can_store;
    if (previous.ptr)
        r->previous_id = arena_str(arena, previous);
    return STATUS_OK;
}

static enum status read_logprobs(json_t *chat, const json_t *body, struct api_error *err)
{
    const json_t *include;
    int64_t top = 0;
    bool wanted = false;
    TRY(json_field_int(body, "top_logprobs", &top, NULL, err));
    TRY(json_field_array(body, "include", &include, err));
    // The others name what tools and encrypted reasoning would add: there is never any.
    static const char *const known[] = {"message.output_text.logprobs",
                                        "reasoning.encrypted_content",
                                        "message.input_image.image_url",
                                        "file_search_call.results",
                                        "web_search_call.results",
                                        "web_search_call.action.sources",
                                        "computer_call_output.output.image_url",
                                        "code_interpreter_call.outputs"};
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *word = json_string_value(json_array_get(include, i));
        size_t k = 0;
        while (k < ARRAY_LEN(known) && !(word && strcmp(word, known[k]) == 0))
            k++;
        if (k == ARRAY_LEN(known))
            return api_error_schema(err, "literal_error", "body.include", NULL,
                                    "Input should be one of the known words, got `%.60s`",
                                    word ? word : "something that is no string");
        wanted = wanted || k == 0;
    }
    if (!wanted)
        return STATUS_OK;
    json_object_set_new(chat, "logprobs", json_true());
    json_object_set_new(chat, "top_logprobs", json_integer(top));
    return STATUS_OK;
}

static enum status read_text_format(json_t *chat, const json_t *body, struct api_error *err)
{
    const json_t *text, *format;
    TRY(json_field_object(body, "text", &text, err));
    if (!text)
        return STATUS_OK;
    TRY(json_field_object(text, "format", &format, err));
    if (!format)
        return STATUS_OK;
    json_t *wrapped = json_object();
    json_object_set(wrapped, "type", json_object_get(format, "type"));
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type && strcmp(type, "json_schema") == 0)
        json_object_set(wrapped, "json_schema", (json_t *)format);
    json_object_set_new(chat, "response_format", wrapped);
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
        json_t *in = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(in, "type"));
        char loc[64];
        snprintf(loc, sizeof(loc), "body.tools.%zu.type", i);
        if (!type)
            return bad_type(err, loc, "missing", "Field required");
        if (strcmp(type, "function") != 0)
            return api_error_param(err, "tools", NULL,
                                   "tools[%zu]: vllm.c does not support tools of type `%.60s`", i,
                                   type);
        json_t *tool = json_object(), *function = json_copy(in);
        json_object_del(function, "type");
        json_object_set_new(tool, "type", json_string("function"));
        json_object_set_new(tool, "function", function);
        json_array_append_new(tools, tool);
    }
    json_t *choice = json_object_get(body, "tool_choice");
    if (json_is_object(choice)) { // {"type":"function","name":N}
        json_t *named = json_object(), *function = json_object();
        json_object_set(function, "name", json_object_get(choice, "name"));
        json_object_set_new(named, "type", json_string("function"));
        json_object_set_new(named, "function", function);
        json_object_set_new(chat, "tool_choice", named);
    } else {
        json_object_set(chat, "tool_choice", choice);
    }
    return STATUS_OK;
}

/** Fields that this server cannot honour: given and not null is an error. */
static enum status refuse_fields(const json_t *body, struct api_error *err)
{
    if (json_field_get(body, "prompt").value)
        return api_error_set(err, API_ERROR_RESPONSE, "prompt template is not supported");
    static const char *const lacking[] = {"conversation", "previous_input_messages"};
    for (size_t i = 0; i < ARRAY_LEN(lacking); i++) {
        if (json_field_get(body, lacking[i]).value)
            return api_error_unsupported(err, lacking[i]);
    }
    bool flag = false;
    TRY(json_field_bool(body, "enable_response_messages", &flag, NULL, err));
    if (flag)
        return api_error_unsupported(err, "enable_response_messages");
    struct str truncation;
    TRY(json_field_str(body, "truncation", &truncation, err));
    if (str_eq_c(truncation, "auto"))
        return api_error_param(err, "truncation", NULL, "truncation `auto` is not supported");
    static const char *const truncations[] = {"disabled"};
    static const char *const tiers[] = {"auto", "default", "flex", "scale", "priority"};
    TRY(check_choice(body, "truncation", truncations, ARRAY_LEN(truncations), err));
    return check_choice(body, "service_tier", tiers, ARRAY_LEN(tiers), err);
}

static enum status copy_fields(json_t *chat, const json_t *body, struct api_error *err)
{
    static const char *const same[] = {
        "model",
        "temperature",
        "top_p",
        "top_k",
        "stop",
        "seed",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "repetition_penalty",
        "ignore_eos",
        "stream",
        "skip_special_tokens",
        "priority",
        "cache_salt",
        "include_reasoning",
        "chat_template_kwargs",
        "structured_outputs",
        "request_id",
        "vllm_xargs",
    };
    for (size_t i = 0; i < ARRAY_LEN(same); i++)
        json_object_set(chat, same[i], json_object_get(body, same[i]));
    int64_t most;
    bool given, flag;
    TRY(json_field_int(body, "max_output_tokens", &most, &given, err));
    if (given)
        json_object_set_new(chat, "max_completion_tokens", json_integer(most));
    TRY(json_field_int(body, "max_tool_calls", &most, NULL, err));
    TRY(json_field_bool(body, "parallel_tool_calls", &flag, NULL, err));
    const json_t *object;
    TRY(json_field_object(body, "metadata", &object, err));
    TRY(json_field_object(body, "reasoning", &object, err));
    json_object_set(chat, "reasoning_effort", json_object_get(object, "effort"));
    return STATUS_OK;
}

/** The members of the answer that say what was asked, in one piece. */
static struct str make_echo(const json_t *body, struct arena *arena)
{
    static const struct {
        const char *key, *otherwise;
    } members[] = {
        {"instructions", "null"},         {"metadata", "null"}, {"parallel_tool_calls", "true"},
        {"tool_choice", "\"auto\""},      {"tools", "[]"},      {"max_tool_calls", "null"},
        {"previous_response_id", "null"}, {"prompt", "null"},   {"reasoning", "null"},
        {"service_tier", "\"auto\""},     {"text", "null"},     {"top_logprobs", "null"},
        {"truncation", "\"disabled\""},   {"user", "null"},
    };
    struct buf out = {0};
    for (size_t i = 0; i < ARRAY_LEN(members); i++) {
        const json_t *value = json_field_get(body, members[i].key).value;
        char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        buf_printf(&out, "%s\"%s\":", i > 0 ? "," : "", members[i].key);
        buf_append_c(&out, text ? text : members[i].otherwise);
        free(text);
    }
    struct str echo = arena_str(arena, buf_str(&out));
    buf_deinit(&out);
    return echo;
}

static enum status translate(json_t *chat, struct response *r, const json_t *body, bool can_store,
                             struct arena *arena, struct api_error *err)
{
    TRY(body_require_object(body, err));
    TRY(refuse_fields(body, err));
    TRY(read_input(chat, r, body, err));
    TRY(copy_fields(chat, body, err));
    TRY(read_logprobs(chat, body, err));
    TRY(read_text_format(chat, body, err));
    TRY(read_tools(chat, body, err));
    TRY(read_storage(r, body, can_store, arena, err));
    r->echo = make_echo(body, arena);
    return STATUS_OK;
}

enum status responses_request_to_chat(json_t **chat, struct response *r, const json_t *body,
                                      bool can_store, struct arena *arena, struct api_error *err)
{
    *r = (struct response){0};
    char hex[33];
    random_hex(hex, 32);
    snprintf(r->item_id, sizeof(r->item_id), "msg_%s", hex);
    *chat = json_object();
    enum status status = translate(*chat, r, body, can_store, arena, err);
    if (status != STATUS_OK) {
        json_decref(*chat);
        *chat = NULL;
    }
    return status;
}
