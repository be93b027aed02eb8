// The parts of a tokenizer.json that are small JSON objects with a "type": normalizers,
// pre-tokenizers, post-processors, decoders. Readers for their fields.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"
#include "base/str.h"
#include "tokenizer/pattern.h"

/** Sequences within sequences, at most. */
#define COMPONENT_MAX_DEPTH 8
/** Parts of one kind in all. */
#define COMPONENT_MAX_PARTS 256

/** The "type" of a component. INVALID: not an object, or without it. */
NODISCARD enum status component_type(const json_t *component, struct str *type, struct error *err);

/** A required string. */
NODISCARD enum status component_string(const json_t *component, const char *key, struct str *out,
                                       struct error *err);

/** A boolean; absent or null: `*out` stays as it is. */
NODISCARD enum status component_bool(const json_t *component, const char *key, bool *out,
                                     struct error *err);

/** A required integer of 0 to `max`. */
NODISCARD enum status component_int(const json_t *component, const char *key, json_int_t max,
                                    json_int_t *out, struct error *err);

/** A required array. */
NODISCARD enum status component_array(const json_t *component, const char *key,
                                      const json_t **array, struct error *err);

/** The required "pattern": {"String": ...} or {"Regex": ...}. The caller owns `*out`. */
NODISCARD enum status component_pattern(const json_t *component, struct pattern **out,
                                        struct error *err);

/** A JSON string's text; `text` must be one. */
struct str component_text(const json_t *text);
