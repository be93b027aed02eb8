// Strict JSON in, through jansson. Depth and encoding are checked in one pass before the parser
// runs, so that no input can recurse deeply and errors can say what is wrong.
#include "api_server/json_body.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/utf8.h"

static enum status json_invalid(struct api_error *err, const char *what, size_t offset,
                                const char *reason)
{
    if (what)
        return api_error_set(err, API_ERROR_VALUE, "%s is not valid JSON: %s at byte %zu", what,
                             reason, offset);
    char loc[48];
    snprintf(loc, sizeof(loc), "body.%zu", offset);
    return api_error_schema(err, "json_invalid", loc, NULL, "JSON decode error: %s at byte %zu",
                            reason, offset);
}

/** Offset of the bracket that opens one level too many, or SIZE_MAX. */
static size_t too_deep_at(struct str text)
{
    int depth = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '"') {
            for (i++; i < text.len && text.ptr[i] != '"'; i++)
                i += text.ptr[i] == '\\';
        } else if (c == '[' || c == '{') {
            if (++depth > JSON_MAX_DEPTH)
                return i;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return SIZE_MAX;
}

/** The key in front of the number or word that ends at `end`; empty when there is none. */
static struct str key_before(struct str text, size_t end)
{
    size_t i = end < text.len ? end : text.len;
    while (i > 0 && (isalnum((unsigned char)text.ptr[i - 1]) || strchr("+-.", text.ptr[i - 1])))
        i--;
    while (i > 0 && strchr(" \t\r\n:", text.ptr[i - 1]))
        i--;
    if (i == 0 || text.ptr[i - 1] != '"')
        return (struct str){0};
    size_t key_end = --i;
    while (i > 0 && text.ptr[i - 1] != '"')
        i--;
    return str_slice(text, i, key_end);
}

static enum status parse(json_t **out, struct str text, const char *what, struct api_error *err)
{
    *out = NULL;
    if (str_starts_with(text, STR("\xEF\xBB\xBF")))
        text = str_slice(text, 3, text.len);
    size_t offset;
    if (!utf8_is_valid(text, &offset))
        return json_invalid(err, what, offset, "not UTF-8");
    if (str_trim(text).len == 0)
        return json_invalid(err, what, 0, "expected a value, got nothing");
    if ((offset = too_deep_at(text)) != SIZE_MAX) {
        char reason[64];
        snprintf(reason, sizeof(reason), "nested deeper than the limit of %d levels",
                 JSON_MAX_DEPTH);
        return json_invalid(err, what, offset, reason);
    }
    json_error_t failure;
    *out = json_loadb(text.ptr, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &failure);
    if (*out)
        return STATUS_OK;
    size_t position = failure.position < 0 ? 0 : (size_t)failure.position;
    char reason[JSON_ERROR_TEXT_LENGTH];
    snprintf(reason, sizeof(reason), "%s", failure.text);
    for (char *c = reason; *c; c++) { // the message is quoted with '
        if (*c == '\'' || (unsigned char)*c < ' ')
            *c = ' ';
    }
    struct str key = key_before(text, position);
    if (key.len > 0 && key.len < 64 && !what) {
        char loc[96];
        snprintf(loc, sizeof(loc), "body." STR_FORMAT, STR_ARG(key));
        if (json_error_code(&failure) == json_error_numeric_overflow)
            return api_error_schema(err, "number_out_of_range", loc, NULL,
                                    "`" STR_FORMAT "` is out of range: integers must fit in 64 "
                                    "bits, numbers must be finite",
                                    STR_ARG(key));
        return api_error_schema(err, "json_invalid", loc, NULL,
                                "JSON decode error: %s at byte %zu, in the value of `" STR_FORMAT
                                "`",
                                reason, position, STR_ARG(key));
    }
    return json_invalid(err, what, position, reason);
}

enum status json_body_parse(json_t **out, struct str text, struct api_error *err)
{
    return parse(out, text, NULL, err);
}

enum status json_text_parse(json_t **out, struct str text, const char *what, struct api_error *err)
{
    return parse(out, text, what, err);
}

void json_summary(const json_t *value, char *out, size_t size)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT:
        snprintf(out, size, "'<dict of %zu items>'", json_object_size(value));
        break;
    case JSON_ARRAY:
        snprintf(out, size, "'<list of %zu items>'", json_array_size(value));
        break;
    case JSON_STRING: {
        struct str text = str_slice(json_str(value), 0, 100);
        text.len = utf8_complete_prefix(text);
        snprintf(out, size, "'" STR_FORMAT "%s'", STR_ARG(text),
                 json_string_length(value) > text.len ? "..." : "");
        break;
    }
    case JSON_INTEGER:
        snprintf(out, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(out, size, "%.17g", json_real_value(value));
        break;
    case JSON_TRUE:
        snprintf(out, size, "True");
        break;
    case JSON_FALSE:
        snprintf(out, size, "False");
        break;
    default:
        snprintf(out, size, "None");
    }
}

static enum status type_error(struct api_error *err, const char *type, const char *loc,
                              const json_t *value, const char *msg)
{
    char input[160];
    json_summary(value, input, sizeof(input));
    return api_error_schema(err, type, loc, input, "%s", msg);
}

struct json_field json_field_get(const json_t *object, const char *key)
{
    struct json_field field = {.value = json_object_get(object, key)};
    if (json_is_null(field.value))
        field.value = NULL;
    snprintf(field.loc, sizeof(field.loc), "body.%s", key);
    return field;
}

/** A whole trimmed number in a terminated copy; false when it is no number at all. */
static bool number_text(struct str text, char *out, size_t size)
{
    text = str_trim(text);
    if (text.len == 0 || text.len >= size)
        return false;
    for (size_t i = 0; i < text.len; i++) { // no hexadecimal, no "nan", no "inf"
        if (!strchr("0123456789+-.eE", text.ptr[i]))
            return false;
    }
    memcpy(out, text.ptr, text.len);
    out[text.len] = '\0';
    return true;
}

enum status json_value_int(const json_t *value, const char *loc, int64_t *out,
                           struct api_error *err)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return STATUS_OK;
    }
    if (json_is_boolean(value)) {
        *out = json_is_true(value);
        return STATUS_OK;
    }
    if (json_is_real(value)) {
        double real = json_real_value(value);
        if (real != floor(real))
            return type_error(err, "int_from_float", loc, value,
                              "Input should be a valid integer, got a number with a fractional "
                              "part");
        if (real < -9.2e18 || real > 9.2e18)
            return type_error(err, "int_parsing_size", loc, value,
                              "Input should be an integer that fits in 64 bits");
        *out = (int64_t)real;
        return STATUS_OK;
    }
    if (json_is_string(value)) {
        char text[64], *end;
        if (number_text(json_str(value), text, sizeof(text))) {
            errno = 0;
            long long number = strtoll(text, &end, 10);
            if (*end == '\0' && errno == 0) {
                *out = number;
                return STATUS_OK;
            }
        }
        return type_error(err, "int_parsing", loc, value,
                          "Input should be a valid integer, unable to parse string as an integer");
    }
    return type_error(err, "int_type", loc, value, "Input should be a valid integer");
}

enum status json_value_double(const json_t *value, const char *loc, double *out,
                              struct api_error *err)
{
    if (json_is_number(value)) {
        *out = json_number_value(value);
        return STATUS_OK;
    }
    if (json_is_boolean(value)) {
        *out = json_is_true(value);
        return STATUS_OK;
    }
    if (json_is_string(value)) {
        char text[64], *end;
        if (number_text(json_str(value), text, sizeof(text))) {
            double number = strtod(text, &end);
            if (*end == '\0' && isfinite(number)) {
                *out = number;
                return STATUS_OK;
            }
        }
        return type_error(err, "float_parsing", loc, value,
                          "Input should be a valid number, unable to parse string as a number");
    }
    return type_error(err, "float_type", loc, value, "Input should be a valid number");
}

static bool set_given(bool *given, bool value)
{
    if (given)
        *given = value;
    return value;
}

enum status json_field_int(const json_t *object, const char *key, int64_t *out, bool *given,
                           struct api_error *err)
{
    struct json_field field = json_field_get(object, key);
    if (!set_given(given, field.value != NULL))
        return STATUS_OK;
    return json_value_int(field.value, field.loc, out, err);
}

enum status json_field_double(const json_t *object, const char *key, double *out, bool *given,
                              struct api_error *err)
{
    struct json_field field = json_field_get(object, key);
    if (!set_given(given, field.value != NULL))
        return STATUS_OK;
    return json_value_double(field.value, field.loc, out, err);
}

enum status json_field_bool(const json_t *object, const char *key, bool *out, bool *given,
                            struct api_error *err)
{
    struct json_field field = json_field_get(object, key);
    if (!set_given(given, field.value != NULL))
        return STATUS_OK;
    if (json_is_boolean(field.value)) {
        *out = json_is_true(field.value);
        return STATUS_OK;
    }
    if (json_is_number(field.value)) {
        double number = json_number_value(field.value);
        if (number == 0 || number == 1) {
            *out = number == 1;
            return STATUS_OK;
        }
    }
    static const char *const words[2][5] = {{"0", "off", "f", "false", "no"},
                                            {"1", "on", "t", "true", "yes"}};
    if (json_is_string(field.value)) {
        struct str text = json_str(field.value);
        for (int i = 0; i < 5; i++) {
            for (int truth = 0; truth < 2; truth++) {
                if (str_eq_ignore_case(text, str_from(words[truth][i]))) {
                    *out = truth;
                    return STATUS_OK;
                }
            }
        }
    }
    return type_error(err, "bool_type", field.loc, field.value, "Input should be a valid boolean");
}

enum status json_field_str(const json_t *object, const char *key, struct str *out,
                           struct api_error *err)
{
    struct json_field field = json_field_get(object, key);
    *out = (struct str){0};
    if (!field.value)
        return STATUS_OK;
    if (!json_is_string(field.value))
        return type_error(err, "string_type", field.loc, field.value,
                          "Input should be a valid string");
    *out = json_str(field.value);
    return STATUS_OK;
}

enum status json_field_array(const json_t *object, const char *key, const json_t **out,
                             struct api_error *err)
{
    struct json_field field = json_field_get(object, key);
    *out = field.value;
    if (field.value && !json_is_array(field.value))
        return type_error(err, "list_type", field.loc, field.value, "Input should be a valid list");
    return STATUS_OK;
}

enum status json_field_object(const json_t *object, const char *key, const json_t **out,
                              struct api_error *err)
{
    struct json_field field = json_field_get(object, key);
    *out = field.value;
    if (field.value && !json_is_object(field.value))
        return type_error(err, "dict_type", field.loc, field.value,
                          "Input should be a valid dictionary");
    return STATUS_OK;
}
