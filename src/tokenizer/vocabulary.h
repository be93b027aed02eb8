// The tokens of a model: id → spelling and spelling → id. All spellings lie in one block.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

/** Ids are below this: 16 million, several times the largest vocabulary in use. */
#define VOCABULARY_MAX_SIZE (1 << 24)

struct vocabulary_token {
    uint32_t offset, len; // in `strings`
};

struct vocabulary_slot {
    uint32_t hash;
    int32_t id_plus_one; // 0: empty
};

/** `= {0}` is a valid empty vocabulary. */
struct vocabulary {
    char *strings;
    size_t strings_len, strings_capacity;
    struct vocabulary_token *tokens; // by id; len 0 where there is none
    int32_t size;                    // highest id + 1
    int32_t tokens_capacity;
    struct vocabulary_slot *slots; // open addressing
    size_t num_slots, num_used;
};

void vocabulary_deinit(struct vocabulary *vocabulary);

/** Makes room for `num_tokens` spellings of `num_bytes` in all. */
void vocabulary_reserve(struct vocabulary *vocabulary, size_t num_tokens, size_t num_bytes);

/**
 * Adds a token that is found both ways; a spelling that was there gets the new id. INVALID: an id
 * out of range, or that of another token.
 */
NODISCARD enum status vocabulary_add(struct vocabulary *vocabulary, struct str token, int64_t id,
                                     struct error *err);

/** Gives `id` a spelling that vocabulary_find() does not know. */
NODISCARD enum status vocabulary_add_spelling(struct vocabulary *vocabulary, struct str token,
                                              int64_t id, struct error *err);

/** The id of a spelling; -1: none. */
int32_t vocabulary_find(const struct vocabulary *vocabulary, struct str token);

/** The spelling of an id; empty for an unknown one. */
static inline struct str vocabulary_token(const struct vocabulary *vocabulary, int32_t id)
{
    if (id < 0 || id >= vocabulary->size)
        return (struct str){0};
    struct vocabulary_token token = vocabulary->tokens[id];
    return (struct str){vocabulary->strings + token.offset, token.len};
}
