// What happens to text before it is split: Unicode normal forms, replacements.
#pragma once

#include <jansson.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

/** Immutable: any thread may use it. */
struct normalizer;

/** Reads the "normalizer" of a tokenizer.json; NULL or JSON null: one that changes nothing. */
NODISCARD enum status normalizer_create(struct normalizer **out, const json_t *json,
                                        struct error *err);
void normalizer_destroy(struct normalizer *normalizer);

/** `text` is well formed UTF-8; so is the result, which lives in `arena` or is `text` itself. */
struct str normalizer_apply(const struct normalizer *normalizer, struct str text,
                            struct arena *arena);
