// Byte-pair merges: a word's characters → token ids.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"
#include "tokenizer/vocabulary.h"

/** A growing list of ids. `= {0}` is a valid empty one. */
struct token_ids {
    int32_t *items;
    size_t len, capacity;
};

void token_ids_deinit(struct token_ids *ids);
void token_ids_append(struct token_ids *ids, int32_t id);

/** The pair (left, right) becomes `merged`; the lower the rank, the earlier. */
struct merge {
    int32_t left, right; // left -1: an empty slot
    int32_t rank, merged;
};

/** Code points below this have their ids in a table; the others are looked up by spelling. */
#define BPE_NUM_CHAR_IDS 0x180

/** Immutable once bpe_prepare() was called. The vocabulary is borrowed. */
struct bpe {
    const struct vocabulary *vocabulary;
    struct merge *merges; // open addressing
    size_t num_merge_slots;
    int32_t unk_id;     // -1: characters that the vocabulary lacks are left out
    bool byte_fallback; // such characters become byte tokens <0x00> ... <0xFF>
    bool fuse_unk;      // neighbouring unknown characters become one unknown token
    bool ignore_merges; // a word that is itself a token is that token
    int32_t char_ids[BPE_NUM_CHAR_IDS];
    int32_t byte_ids[256]; // of <0x00> ...; -1: none
};

void bpe_deinit(struct bpe *bpe);

/** Builds the merge table; of equal pairs the last one counts. */
void bpe_set_merges(struct bpe *bpe, const struct merge *merges, size_t num_merges);

/** Fills the tables of single characters, once the vocabulary is complete. */
void bpe_prepare(struct bpe *bpe, const struct vocabulary *vocabulary);

/** Appends the ids of one word, which is well formed UTF-8. Time is n log n. */
void bpe_encode(const struct bpe *bpe, struct str word, struct arena *scratch,
                struct token_ids *ids);
