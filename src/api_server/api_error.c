// Error objects. The kinds and their HTTP codes stand in one table; everything else is wording.
#include "api_server/api_error.h"

#include <stdarg.h>
#include <string.h>

#include "base/memory.h"

static const struct {
    int32_t http_status;
    const char *type;
    enum status status;
} kinds[] = {
    [API_ERROR_SCHEMA] = {400, "Bad Request", STATUS_INVALID},
    [API_ERROR_VALUE] = {400, "BadRequestError", STATUS_INVALID},
    [API_ERROR_UNAUTHORIZED] = {401, "Unauthorized", STATUS_INVALID},
    [API_ERROR_NOT_FOUND] = {404, "NotFoundError", STATUS_NOT_FOUND},
    [API_ERROR_RESPONSE] = {400, "invalid_request_error", STATUS_INVALID},
    [API_ERROR_NO_RESPONSE] = {404, "invalid_request_error", STATUS_NOT_FOUND},
    [API_ERROR_NO_ROUTE] = {404, "Not Found", STATUS_NOT_FOUND},
    [API_ERROR_METHOD] = {405, "Method Not Allowed", STATUS_INVALID},
    [API_ERROR_TOO_LARGE] = {413, "Request Entity Too Large", STATUS_TOO_LARGE},
    [API_ERROR_UNSUPPORTED] = {501, "NotImplementedError", STATUS_UNSUPPORTED},
    [API_ERROR_OVERLOADED] = {503, "Service Unavailable", STATUS_UNAVAILABLE},
    [API_ERROR_INTERNAL] = {500, "InternalServerError", STATUS_INTERNAL},
};

static const enum api_error_kind kind_of_status[] = {
    [STATUS_INVALID] = API_ERROR_VALUE,       [STATUS_NOT_FOUND] = API_ERROR_NOT_FOUND,
    [STATUS_UNSUPPORTED] = API_ERROR_VALUE,   [STATUS_TOO_LARGE] = API_ERROR_VALUE,
    [STATUS_OUT_OF_MEMORY] = API_ERROR_VALUE, [STATUS_UNAVAILABLE] = API_ERROR_OVERLOADED,
    [STATUS_TIMEOUT] = API_ERROR_VALUE,       [STATUS_CLOSED] = API_ERROR_INTERNAL,
    [STATUS_IO] = API_ERROR_INTERNAL,         [STATUS_INTERNAL] = API_ERROR_INTERNAL,
};

static void set_text(struct api_error *err, enum api_error_kind kind, const char *param)
{
    err->kind = kind;
    err->retry_after_s = 0;
    err->param[0] = '\0';
    if (param)
        snprintf(err->param, sizeof(err->param), "%s", param);
}

static void append(struct api_error *err, const char *format, ...) PRINTF_FORMAT(2, 3);
static void append(struct api_error *err, const char *format, ...)
{
    size_t len = strlen(err->message);
    va_list args;
    va_start(args, format);
    vsnprintf(err->message + len, sizeof(err->message) - len, format, args);
    va_end(args);
}

enum status api_error_set(struct api_error *err, enum api_error_kind kind, const char *format, ...)
{
    set_text(err, kind, NULL);
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof(err->message), format, args);
    va_end(args);
    return kinds[kind].status;
}

enum status api_error_param(struct api_error *err, const char *param, const char *value,
                            const char *format, ...)
{
    set_text(err, API_ERROR_VALUE, param);
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof(err->message), format, args);
    va_end(args);
    if (value)
        append(err, " (parameter=%s, value=%.200s)", param, value);
    else
        append(err, " (parameter=%s)", param);
    return STATUS_INVALID;
}

enum status api_error_schema(struct api_error *err, const char *type, const char *loc,
                             const char *input, const char *format, ...)
{
    char msg[512];
    va_list args;
    va_start(args, format);
    vsnprintf(msg, sizeof(msg), format, args);
    va_end(args);
    set_text(err, API_ERROR_SCHEMA, loc);
    err->message[0] = '\0';
    append(err, "1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': '%s'", type, loc, msg);
    if (input)
        append(err, ", 'input': %.220s", input);
    append(err, "}");
    return STATUS_INVALID;
}

enum status api_error_validator(struct api_error *err, const char *param, const char *format, ...)
{
    char phrase[512];
    va_list args;
    va_start(args, format);
    vsnprintf(phrase, sizeof(phrase), format, args);
    va_end(args);
    set_text(err, API_ERROR_SCHEMA, param);
    err->message[0] = '\0';
    append(err,
           "1 validation error:\n  {'type': 'value_error', 'loc': 'body', 'msg': "
           "'Value error, %s",
           phrase);
    if (param)
        append(err, " (parameter=%s)", param);
    append(err, "'}");
    return STATUS_INVALID;
}

enum status api_error_unsupported(struct api_error *err, const char *param)
{
    set_text(err, API_ERROR_VALUE, param);
    snprintf(err->message, sizeof(err->message), "vllm.c does not support `%s` yet", param);
    return STATUS_INVALID;
}

static void rename_in(char *text, size_t size, const char *from, const char *to)
{
    struct buf out = {0};
    size_t len = strlen(from);
    for (const char *at = text; *at;) {
        bool is_name = strncmp(at, from, len) == 0;
        buf_append(&out, is_name ? str_from(to) : (struct str){at, 1});
        at += is_name ? len : 1;
    }
    snprintf(text, size, STR_FORMAT, STR_ARG(buf_str(&out)));
    buf_deinit(&out);
}

void api_error_rename(struct api_error *err, const char *from, const char *to)
{
    rename_in(err->param, sizeof(err->param), from, to);
    rename_in(err->message, sizeof(err->message), from, to);
}

enum status api_error_from(struct api_error *err, const struct error *cause)
{
    enum status status = cause->status;
    if (status <= STATUS_OK || (size_t)status >= ARRAY_LEN(kind_of_status))
        status = STATUS_INTERNAL;
    set_text(err, kind_of_status[status], cause->field[0] ? cause->field : NULL);
    snprintf(err->message, sizeof(err->message), "%s", cause->message);
    return status;
}

int32_t api_error_http_status(enum api_error_kind kind)
{
    return kinds[kind].http_status;
}

static void write_object(struct buf *out, const char *message, const char *type, const char *param,
                         int32_t code)
{
    buf_append_c(out, "{\"error\":{\"message\":");
    buf_append_json_string(out, str_from(message));
    buf_append_c(out, ",\"type\":");
    buf_append_json_string(out, str_from(type));
    buf_append_c(out, ",\"param\":");
    if (param[0])
        buf_append_json_string(out, str_from(param));
    else
        buf_append_c(out, "null");
    buf_append_c(out, ",\"code\":");
    buf_append_int(out, code);
    buf_append_c(out, "}}");
}

void api_error_write(struct buf *out, const struct api_error *err)
{
    write_object(out, err->message, kinds[err->kind].type, err->param,
                 kinds[err->kind].http_status);
}

void api_error_write_status(struct buf *out, int32_t status, const char *phrase,
                            const char *message)
{
    write_object(out, message, phrase, "", status);
}

void api_error_write_anthropic(struct buf *out, const struct api_error *err)
{
    bool is_internal = err->kind == API_ERROR_INTERNAL;
    buf_append_c(out, "{\"type\":\"error\",\"error\":{\"type\":");
    buf_append_json_string(out, str_from(is_internal ? "internal_error" : kinds[err->kind].type));
    buf_append_c(out, ",\"message\":");
    buf_append_json_string(out, str_from(err->message));
    buf_append_c(out, "}}");
}
