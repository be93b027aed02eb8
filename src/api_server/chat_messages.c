// Messages in, messages out. Only what templates know is passed on: role, content, name,
// tool_call_id, tool_calls and reasoning. Null, absent and empty content all become the same.
#include "api_server/chat_messages.h"

#include <string.h>

#include "api_server/json_body.h"
#include "base/buf.h"

static enum status message_error(struct api_error *err, size_t index, const char *key,
                                 const char *type, const char *msg)
{
    char loc[128];
    snprintf(loc, sizeof(loc), "body.messages.%zu%s%s", index, key[0] ? "." : "", key);
    return api_error_schema(err, type, loc, NULL, "%s", msg);
}

/** The key that holds a part's text, by the part's type; NULL: not a text part. */
static const char *text_key(const char *type)
{
    static const char *const keys[][2] = {
        {"text", "text"},       {"input_text", "text"},   {"output_text", "text"},
        {"refusal", "refusal"}, {"thinking", "thinking"},
    };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (strcmp(type, keys[i][0]) == 0)
            return keys[i][1];
    }
    return NULL;
}

static bool is_media_type(const char *type)
{
    static const char *const types[] = {"image_url",   "image_pil", "image_embeds", "input_image",
                                        "input_audio", "audio_url", "audio_embeds", "video_url",
                                        "input_video", "file"};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(type, types[i]) == 0)
            return true;
    }
    return false;
}

static enum status part_text(const json_t *part, size_t message, size_t index, struct str *out,
                             struct api_error *err)
{
    char key[48], msg[256];
    snprintf(key, sizeof(key), "content.%zu", index);
    if (json_is_string(part)) {
        *out = json_str(part);
        return STATUS_OK;
    }
    if (!json_is_object(part))
        return message_error(err, message, key, "model_attributes_type",
                             "A content part should be a string or an object with a type");
    const json_t *type_value = json_object_get(part, "type");
    const char *type = json_string_value(type_value);
    if (type_value && !type)
        return message_error(err, message, key, "string_type",
                             "The type of a content part should be a string");
    if (!type && !json_object_get(part, "text"))
        return message_error(err, message, key, "missing", "A content part needs a type");
    type = type ? type : "text";
    if (is_media_type(type)) {
        snprintf(msg, sizeof(msg), "messages[%zu].content[%zu]: %s", message, index, type);
        enum status status = api_error_unsupported(err, msg);
        snprintf(err->param, sizeof(err->param), "messages");
        return status;
    }
    const char *text = text_key(type);
    if (!text) {
        snprintf(msg, sizeof(msg), "Unknown content part type `%.60s`", type);
        return message_error(err, message, key, "value_error", msg);
    }
    const json_t *value = json_object_get(part, text);
    if (!json_is_string(value)) {
        snprintf(msg, sizeof(msg), "A content part of type `%s` needs a string `%s`", type, text);
        return message_error(err, message, key, "missing", msg);
    }
    *out = json_str(value);
    return STATUS_OK;
}

static void append_part(json_t *parts, struct str text)
{
    json_t *part = json_object();
    json_object_set_new(part, "type", json_string("text"));
    json_object_set_new(part, "text", json_stringn(text.ptr ? text.ptr : "", text.len));
    json_array_append_new(parts, part);
}

static enum status normalize_content(json_t *out, const json_t *in, size_t index, bool as_parts,
                                     struct api_error *err)
{
    const json_t *content = json_object_get(in, "content");
    if (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content))
        return message_error(err, index, "content", "string_type",
                             "Input should be a string, a list of content parts, or null");
    bool is_list = json_is_array(content);
    size_t count = is_list ? json_array_size(content) : json_string_length(content) > 0;
    json_t *parts = as_parts ? json_array() : NULL;
    struct buf text = {0};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        struct str piece = {0};
        status = is_list ? part_text(json_array_get(content, i), index, i, &piece, err) : STATUS_OK;
        if (!is_list)
            piece = json_str(content);
        if (as_parts) {
            append_part(parts, piece);
        } else {
            if (i > 0)
                buf_append_char(&text, '\n');
            buf_append(&text, piece);
        }
    }
    if (status == STATUS_OK)
        json_object_set_new(out, "content",
                            as_parts ? json_incref(parts)
                                     : json_stringn(text.ptr ? text.ptr : "", text.len));
    json_decref(parts);
    buf_deinit(&text);
    return status;
}

/** The arguments of one call as an object: from a JSON text, an object, or nothing. */
static enum status normalize_arguments(json_t **out, const json_t *in, size_t message, size_t call,
                                       struct api_error *err)
{
    char key[64], what[96];
    snprintf(key, sizeof(key), "tool_calls.%zu.function.arguments", call);
    snprintf(what, sizeof(what), "messages[%zu].%s", message, key);
    *out = NULL;
    if (!in || json_is_null(in) || (json_is_string(in) && str_trim(json_str(in)).len == 0)) {
        *out = json_object();
        return STATUS_OK;
    }
    if (json_is_string(in)) {
        TRY(json_text_parse(out, json_str(in), what, err));
    } else {
        *out = json_incref((json_t *)in);
    }
    if (json_is_object(*out))
        return STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return message_error(err, message, key, "dict_type",
                         "Tool-call arguments should be a JSON object");
}

static enum status normalize_call(json_t *calls, const json_t *in, size_t message, size_t index,
                                  struct api_error *err)
{
    char key[64];
    snprintf(key, sizeof(key), "tool_calls.%zu", index);
    if (!json_is_object(in))
        return message_error(err, message, key, "model_attributes_type",
                             "Input should be a valid dictionary");
    const json_t *function = json_object_get(in, "function");
    if (!json_is_object(function) || !json_is_string(json_object_get(function, "name"))) {
        snprintf(key, sizeof(key), "tool_calls.%zu.function.name", index);
        return message_error(err, message, key, "missing", "Field required");
    }
    json_t *arguments;
    TRY(normalize_arguments(&arguments, json_object_get(function, "arguments"), message, index,
                            err));
    json_t *call = json_copy((json_t *)in);
    json_t *copy = json_copy((json_t *)function);
    json_object_set_new(copy, "arguments", arguments);
    json_object_set_new(call, "function", copy);
    json_array_append_new(calls, call);
    return STATUS_OK;
}

static enum status normalize_calls(json_t *out, const json_t *in, size_t index,
                                   struct api_error *err)
{
    const json_t *tool_calls = json_object_get(in, "tool_calls");
    if (!tool_calls || json_is_null(tool_calls))
        return STATUS_OK;
    if (!json_is_array(tool_calls))
        return message_error(err, index, "tool_calls", "list_type", "Input should be a valid list");
    if (json_array_size(tool_calls) == 0)
        return STATUS_OK;
    json_t *calls = json_array();
    enum status status = STATUS_OK;
    for (size_t i = 0; i < json_array_size(tool_calls) && status == STATUS_OK; i++)
        status = normalize_call(calls, json_array_get(tool_calls, i), index, i, err);
    if (status == STATUS_OK)
        json_object_set(out, "tool_calls", calls);
    json_decref(calls);
    return status;
}

static enum status copy_text_key(json_t *out, const json_t *in, size_t index, const char *from,
                                 const char *to, struct api_error *err)
{
    json_t *value = json_object_get(in, from);
    if (!value || json_is_null(value))
        return STATUS_OK;
    if (!json_is_string(value))
        return message_error(err, index, from, "string_type", "Input should be a valid string");
    json_object_set(out, to, value);
    return STATUS_OK;
}

static enum status normalize_message(json_t *out, const json_t *in, size_t index, bool as_parts,
                                     struct api_error *err)
{
    if (!json_is_object(in))
        return message_error(err, index, "", "model_attributes_type",
                             "Input should be a valid dictionary");
    json_t *role = json_object_get(in, "role");
    if (!json_is_string(role))
        return message_error(err, index, "role", role ? "string_type" : "missing",
                             role ? "Input should be a valid string" : "Field required");
    json_object_set(out, "role", role);
    TRY(normalize_content(out, in, index, as_parts, err));
    TRY(normalize_calls(out, in, index, err));
    TRY(copy_text_key(out, in, index, "name", "name", err));
    TRY(copy_text_key(out, in, index, "tool_call_id", "tool_call_id", err));
    // Templates ask for either name; the newer one wins.
    static const char *const reasoning[] = {"reasoning_content", "reasoning"};
    for (int i = 0; i < 2; i++) {
        TRY(copy_text_key(out, in, index, reasoning[i], "reasoning", err));
        TRY(copy_text_key(out, in, index, reasoning[i], "reasoning_content", err));
    }
    return STATUS_OK;
}

enum status chat_messages_normalize(json_t **out, const json_t *messages, bool as_parts,
                                    struct api_error *err)
{
    json_t *list = json_array();
    enum status status = STATUS_OK;
    for (size_t i = 0; i < json_array_size(messages) && status == STATUS_OK; i++) {
        json_t *message = json_object();
        status = normalize_message(message, json_array_get(messages, i), i, as_parts, err);
        json_array_append_new(list, message);
    }
    if (status != STATUS_OK) {
        json_decref(list);
        list = NULL;
    }
    *out = list;
    return status;
}

struct str chat_message_text(const json_t *message, struct arena *arena)
{
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content))
        return arena_str(arena, json_str(content));
    struct buf text = {0};
    for (size_t i = 0; i < json_array_size(content); i++) {
        if (i > 0)
            buf_append_char(&text, '\n');
        buf_append(&text, json_str(json_object_get(json_array_get(content, i), "text")));
    }
    struct str out = arena_str(arena, buf_str(&text));
    buf_deinit(&text);
    return out;
}
