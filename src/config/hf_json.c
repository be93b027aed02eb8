// Typed reading of JSON objects, with messages for a person.
#include "config/hf_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { MAX_SHOWN_BYTES = 80 };

const json_t *hf_json_find(const struct hf_json *json, const char *key)
{
    const json_t *value = json_object_get(json->object, key);
    if ((!value || json_is_null(value)) && json->fallback)
        value = json_object_get(json->fallback, key);
    return value && !json_is_null(value) ? value : NULL;
}

static const char *kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}

void hf_json_describe(struct buf *out, const json_t *value)
{
    // Containers are named, not shown: they may be long, and dumping them recurses.
    if (json_is_object(value) || json_is_array(value)) {
        buf_append_c(out, kind_of(value));
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    struct str shown = str_from(text ? text : "?");
    if (shown.len > MAX_SHOWN_BYTES) {
        size_t end = MAX_SHOWN_BYTES;
        while (end > 0 && ((unsigned char)shown.ptr[end] & 0xC0) == 0x80)
            end--; // not within a character
        buf_append(out, str_slice(shown, 0, end));
        buf_append_c(out, "...");
    } else {
        buf_append(out, shown);
    }
    free(text);
    if (!json_is_null(value))
        buf_printf(out, " (%s)", kind_of(value));
}

enum status hf_json_wrong(const struct hf_json *json, const char *key, const json_t *value,
                          const char *expected, struct error *err)
{
    struct buf found = {0};
    hf_json_describe(&found, value);
    enum status status =
        error_set_field(err, STATUS_INVALID, key, "%s: \"%s\" is " STR_FORMAT ", expected %s",
                        json->name, key, STR_ARG(buf_str(&found)), expected);
    buf_deinit(&found);
    return status;
}

static enum status missing(const struct hf_json *json, const char *key, const char *expected,
                           struct error *err)
{
    return error_set_field(err, STATUS_INVALID, key, "%s: \"%s\" is missing, expected %s",
                           json->name, key, expected);
}

enum status hf_json_int(const struct hf_json *json, const char *key, int64_t min, int64_t max,
                        enum hf_json_need need, int32_t *out, struct error *err)
{
    char expected[96];
    snprintf(expected, sizeof(expected), "an integer from %" PRId64 " to %" PRId64, min, max);
    const json_t *value = hf_json_find(json, key);
    if (!value)
        return need == HF_JSON_REQUIRED ? missing(json, key, expected, err) : STATUS_OK;
    int64_t number = 0;
    if (json_is_integer(value)) {
        number = json_integer_value(value);
    } else if (json_is_real(value)) { // 4096.0 is written by some converters
        double real = json_real_value(value);
        if (floor(real) != real || fabs(real) > 9e15)
            return hf_json_wrong(json, key, value, expected, err);
        number = (int64_t)real;
    } else {
        return hf_json_wrong(json, key, value, expected, err);
    }
    if (number < min || number > max)
        return hf_json_wrong(json, key, value, expected, err);
    *out = (int32_t)number;
    return STATUS_OK;
}

enum status hf_json_double(const struct hf_json *json, const char *key, double min, double max,
                           enum hf_json_need need, double *out, struct error *err)
{
    char expected[96];
    snprintf(expected, sizeof(expected), "a number from %g to %g", min, max);
    const json_t *value = hf_json_find(json, key);
    if (!value)
        return need == HF_JSON_REQUIRED ? missing(json, key, expected, err) : STATUS_OK;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= min && number <= max))
        return hf_json_wrong(json, key, value, expected, err);
    *out = number;
    return STATUS_OK;
}

enum status hf_json_bool(const struct hf_json *json, const char *key, bool *out, struct error *err)
{
    const json_t *value = hf_json_find(json, key);
    if (!value)
        return STATUS_OK;
    if (!json_is_boolean(value))
        return hf_json_wrong(json, key, value, "true or false", err);
    *out = json_is_true(value);
    return STATUS_OK;
}

enum status hf_json_ints(const struct hf_json *json, const char *key, int64_t min, int64_t max,
                         int32_t max_count, int32_t *out, int32_t *count, struct error *err)
{
    const json_t *value = hf_json_find(json, key);
    if (!value)
        return STATUS_OK;
    size_t len = json_array_size(value);
    bool is_fine = json_is_array(value) && len <= (size_t)max_count;
    for (size_t i = 0; i < len && is_fine; i++) {
        const json_t *item = json_array_get(value, i);
        is_fine = json_is_integer(item) && json_integer_value(item) >= min &&
                  json_integer_value(item) <= max;
        out[i] = (int32_t)json_integer_value(item);
    }
    if (!is_fine) {
        char expected[80];
        snprintf(expected, sizeof(expected), "a list of at most %d integers from %lld on",
                 max_count, (long long)min);
        return hf_json_wrong(json, key, value, expected, err);
    }
    *count = (int32_t)len;
    return STATUS_OK;
}

enum status hf_json_string(const struct hf_json *json, const char *key, enum hf_json_need need,
                           const char **out, struct error *err)
{
    const json_t *value = hf_json_find(json, key);
    if (!value)
        return need == HF_JSON_REQUIRED ? missing(json, key, "a string", err) : STATUS_OK;
    if (!json_is_string(value))
        return hf_json_wrong(json, key, value, "a string", err);
    *out = json_string_value(value);
    return STATUS_OK;
}

enum status hf_json_object(const struct hf_json *json, const char *key, const json_t **out,
                           struct error *err)
{
    const json_t *value = hf_json_find(json, key);
    if (!value)
        return STATUS_OK;
    if (!json_is_object(value))
        return hf_json_wrong(json, key, value, "an object", err);
    *out = value;
    return STATUS_OK;
}

enum status hf_json_parse_object(json_t **out, struct str text, const char *name, struct error *err)
{
    *out = NULL;
    if (text.len > HF_JSON_MAX_BYTES)
        return error_set(err, STATUS_TOO_LARGE, "%s: %zu bytes, expected at most %d", name,
                         text.len, HF_JSON_MAX_BYTES);
    json_error_t why;
    json_t *value = json_loadb(text.ptr ? text.ptr : "", text.len, 0, &why); // bounds its depth
    if (!value)
        return error_set(err, STATUS_INVALID, "%s: not valid JSON: line %d, column %d: %s", name,
                         why.line, why.column, why.text);
    if (!json_is_object(value)) {
        enum status status = error_set(err, STATUS_INVALID, "%s: found %s, expected an object",
                                       name, kind_of(value));
        json_decref(value);
        return status;
    }
    *out = value;
    return STATUS_OK;
}
