// All tokens of a vocabulary by their bytes, so that the tokens which an automaton allows are found
// without looking at each of them. Immutable once made.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

struct token_trie;

/** Makes the trie of the vocabulary; tokens that stand for no text are not in it. The caller owns
 *  the result. */
struct token_trie *token_trie_create(const struct tokenizer *tokenizer);

/** The same from the tokenizer.json at `path`, a file or the folder that holds it. Errors: those of
 *  tokenizer_load(). */
NODISCARD enum status token_trie_load(struct token_trie **out, const char *path, struct error *err);
void token_trie_destroy(struct token_trie *trie);

int32_t token_trie_num_tokens(const struct token_trie *trie);
size_t token_trie_bytes(const struct token_trie *trie);

/** Whether the token stands for any text. */
bool token_trie_has_text(const struct token_trie *trie, int32_t token_id);

/** The automaton's state after `token_id`; AUTOMATON_DEAD if it forbids the token. */
int32_t token_trie_step(const struct token_trie *trie, const uint32_t *automaton, int32_t state,
                        int32_t token_id);

/** 32-bit words of a mask over `vocab_size` tokens. */
static inline size_t token_mask_words(int32_t vocab_size)
{
    return ((size_t)vocab_size + 31) / 32;
}

static inline bool token_mask_has(const uint32_t *mask, int32_t token_id)
{
    return (mask[token_id / 32] >> (token_id % 32) & 1) != 0;
}

/** Sets the bits of the tokens that the automaton allows in `state`, clears all others. Returns
 *  whether there is any. */
bool token_trie_mask(const struct token_trie *trie, const uint32_t *automaton, int32_t state,
                     uint32_t *mask, int32_t vocab_size);
