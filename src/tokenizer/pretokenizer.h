// How text is cut into the words within which merging takes place.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

/** Immutable: any thread may use it. */
struct pretokenizer;

/** Reads the "pre_tokenizer" of a tokenizer.json; NULL or JSON null: one that cuts nothing. */
NODISCARD enum status pretokenizer_create(struct pretokenizer **out, const json_t *json,
                                          struct error *err);
void pretokenizer_destroy(struct pretokenizer *pretokenizer);

/** A word; `at_start`: the text of the request begins with it. */
struct piece {
    struct str text;
    bool at_start;
};

/** A growing list of words. `= {0}` is a valid empty one. */
struct pieces {
    struct piece *items;
    size_t len, capacity;
};

void pieces_deinit(struct pieces *pieces);
void pieces_append(struct pieces *pieces, struct piece piece);

/** Replaces the pieces by what they are cut into. Texts live in `arena` or are parts of the old. */
void pretokenizer_apply(const struct pretokenizer *pretokenizer, struct pieces *pieces,
                        struct arena *arena);
