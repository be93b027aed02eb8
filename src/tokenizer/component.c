#include "tokenizer/component.h"

static const char *kind_name(const json_t *value)
{
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

static enum status wrong_kind(const char *key, const char *expected, const json_t *found,
                              struct error *err)
{
    return error_set_field(err, STATUS_INVALID, key, "\"%s\" must be %s, found %s", key, expected,
                           kind_name(found));
}

struct str component_text(const json_t *text)
{
    return (struct str){json_string_value(text), json_string_length(text)};
}

enum status component_type(const json_t *component, struct str *type, struct error *err)
{
    if (!json_is_object(component))
        return error_set(err, STATUS_INVALID, "expected an object with a \"type\", found %s",
                         kind_name(component));
    return component_string(component, "type", type, err);
}

enum status component_string(const json_t *component, const char *key, struct str *out,
                             struct error *err)
{
    const json_t *value = json_object_get(component, key);
    if (!json_is_string(value))
        return wrong_kind(key, "a string", value, err);
    *out = component_text(value);
    return STATUS_OK;
}

enum status component_bool(const json_t *component, const char *key, bool *out, struct error *err)
{
    const json_t *value = json_object_get(component, key);
    if (!value || json_is_null(value))
        return STATUS_OK;
    if (!json_is_boolean(value))
        return wrong_kind(key, "a boolean", value, err);
    *out = json_is_true(value);
    return STATUS_OK;
}

enum status component_int(const json_t *component, const char *key, json_int_t max, json_int_t *out,
                          struct error *err)
{
    const json_t *value = json_object_get(component, key);
    if (!json_is_integer(value))
        return wrong_kind(key, "an integer", value, err);
    *out = json_integer_value(value);
    if (*out < 0 || *out > max)
        return error_set_field(err, STATUS_INVALID, key,
                               "\"%s\" is %" JSON_INTEGER_FORMAT
                               "; expected 0 to %" JSON_INTEGER_FORMAT,
                               key, *out, max);
    return STATUS_OK;
}

enum status component_array(const json_t *component, const char *key, const json_t **array,
                            struct error *err)
{
    *array = json_object_get(component, key);
    if (!json_is_array(*array))
        return wrong_kind(key, "an array", *array, err);
    return STATUS_OK;
}

enum status component_pattern(const json_t *component, struct pattern **out, struct error *err)
{
    const json_t *value = json_object_get(component, "pattern");
    const json_t *literal = json_object_get(value, "String");
    const json_t *regex = json_object_get(value, "Regex");
    if (json_is_string(literal) && !regex)
        return pattern_create_literal(out, component_text(literal), err);
    if (json_is_string(regex) && !literal)
        return pattern_create_regex(out, component_text(regex), err);
    return wrong_kind("pattern", "{\"String\": ...} or {\"Regex\": ...}", value, err);
}
