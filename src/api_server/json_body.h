// Request bodies: strict JSON, bounded in depth, with errors that say where.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api_server/api_error.h"
#include "base/str.h"

enum { JSON_MAX_DEPTH = 512 }; // levels of arrays and objects

/**
 * Parses one JSON text: UTF-8 (a byte-order mark is skipped), nothing after the value, numbers
 * within double and int64, at most JSON_MAX_DEPTH levels; of repeated keys the last wins. The
 * caller owns `*out` (json_decref). Errors name the byte offset or the field.
 */
NODISCARD enum status json_body_parse(json_t **out, struct str text, struct api_error *err);

/** As json_body_parse() for JSON inside a string field: errors name `what`. */
NODISCARD enum status json_text_parse(json_t **out, struct str text, const char *what,
                                      struct api_error *err);

// ---- fields: lenient as the reference's schema is: "3" and 3.0 are integers, null is absent ----

/** Where a value stands, for error messages: "body" and a key. */
struct json_field {
    const json_t *value; // NULL: absent or null
    char loc[96];        // "body.temperature"
};

struct json_field json_field_get(const json_t *object, const char *key);

/** Each leaves `*out` alone and `*given` false when the field is absent. `given` may be NULL. */
NODISCARD enum status json_field_int(const json_t *object, const char *key, int64_t *out,
                                     bool *given, struct api_error *err);
NODISCARD enum status json_field_double(const json_t *object, const char *key, double *out,
                                        bool *given, struct api_error *err);
NODISCARD enum status json_field_bool(const json_t *object, const char *key, bool *out, bool *given,
                                      struct api_error *err);
/** Text is borrowed from the JSON value; ptr is NULL when absent. */
NODISCARD enum status json_field_str(const json_t *object, const char *key, struct str *out,
                                     struct api_error *err);
/** NULL when absent. */
NODISCARD enum status json_field_array(const json_t *object, const char *key, const json_t **out,
                                       struct api_error *err);
NODISCARD enum status json_field_object(const json_t *object, const char *key, const json_t **out,
                                        struct api_error *err);

/** A value that should be an integer, at `loc`. */
NODISCARD enum status json_value_int(const json_t *value, const char *loc, int64_t *out,
                                     struct api_error *err);
NODISCARD enum status json_value_double(const json_t *value, const char *loc, double *out,
                                        struct api_error *err);

static inline struct str json_str(const json_t *value)
{
    return (struct str){json_string_value(value), json_string_length(value)};
}

/** A short picture of a value for error messages: strings cut, containers counted. */
void json_summary(const json_t *value, char *out, size_t size);
