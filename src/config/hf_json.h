// Typed reading of JSON objects, with messages that name file, key, what was found and what was
// expected. Room-internal: jansson goes no further.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

enum { HF_JSON_MAX_BYTES = 16 * 1024 * 1024 };

/** Where a value is looked for: `object` first, then `fallback` (NULL: nowhere else). */
struct hf_json {
    const char *name; // of the file, for messages
    const json_t *object, *fallback;
};

/** Whether a key has to be there. */
enum hf_json_need { HF_JSON_OPTIONAL, HF_JSON_REQUIRED };

/** The value of `key`, NULL when it is absent or null. */
const json_t *hf_json_find(const struct hf_json *json, const char *key);

/** `value` in a few words for a message: `"abc" (a string)`, `[1,2] (a list)`. */
void hf_json_describe(struct buf *out, const json_t *value);

/** INVALID: "NAME: "KEY" is FOUND, expected EXPECTED". */
NODISCARD enum status hf_json_wrong(const struct hf_json *json, const char *key,
                                    const json_t *value, const char *expected, struct error *err);

// Each leaves `*out` alone when the key is absent or null and HF_JSON_OPTIONAL. Errors: INVALID.
NODISCARD enum status hf_json_int(const struct hf_json *json, const char *key, int64_t min,
                                  int64_t max, enum hf_json_need need, int32_t *out,
                                  struct error *err);
NODISCARD enum status hf_json_double(const struct hf_json *json, const char *key, double min,
                                     double max, enum hf_json_need need, double *out,
                                     struct error *err);
NODISCARD enum status hf_json_bool(const struct hf_json *json, const char *key, bool *out,
                                   struct error *err);
/** A list of at most `max_count` integers. */
NODISCARD enum status hf_json_ints(const struct hf_json *json, const char *key, int64_t min,
                                   int64_t max, int32_t max_count, int32_t *out, int32_t *count,
                                   struct error *err);
/** `*out` is borrowed from the JSON value. */
NODISCARD enum status hf_json_string(const struct hf_json *json, const char *key,
                                     enum hf_json_need need, const char **out, struct error *err);
NODISCARD enum status hf_json_object(const struct hf_json *json, const char *key,
                                     const json_t **out, struct error *err);

/** Parses text that must be one JSON object; the caller owns `*out`. Errors: INVALID, TOO_LARGE. */
NODISCARD enum status hf_json_parse_object(json_t **out, struct str text, const char *name,
                                           struct error *err);
