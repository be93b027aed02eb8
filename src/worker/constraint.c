// A row's automaton and the tokens: see constraint.h.
#include "worker/constraint.h"

#include <string.h>

#include "structured_output/token_trie.h"

void constraint_advance(struct batch_row *row, const struct token_trie *tokens, int32_t first)
{
    if (!tokens)
        row->automaton_state = AUTOMATON_DEAD;
    for (int32_t i = first; i < row->num_tokens && row->automaton_state != AUTOMATON_DEAD; i++)
        row->automaton_state = token_trie_step(tokens, row->sampling.automaton,
                                               row->automaton_state, row->token_ids[i]);
}

/** Allows a token that ends the answer. One that stands for text is not such: it is walked as text
 *  is. Returns whether it was allowed. */
static bool allow_end(uint32_t *mask, const struct token_trie *tokens, int32_t token_id,
                      int32_t vocab_size)
{
    if (token_id < 0 || token_id >= vocab_size || token_trie_has_text(tokens, token_id))
        return false;
    mask[token_id / 32] |= 1u << (token_id % 32);
    return true;
}

bool constraint_find(struct token_constraint *constraint, const struct token_trie *tokens,
                     const struct batch_row *row, const struct stored_mask *stored,
                     int32_t vocab_size, struct arena *arena)
{
    const struct sampling_params *s = &row->sampling;
    if (row->automaton_state == AUTOMATON_DEAD)
        return false;
    uint32_t *mask = arena_array(arena, uint32_t, token_mask_words(vocab_size));
    bool goes_on;
    if (stored) { // copied: what ends an answer is the row's own
        memcpy(mask, stored->words, token_mask_words(vocab_size) * sizeof(*mask));
        goes_on = stored->is_any;
    } else {
        goes_on = token_trie_mask(tokens, s->automaton, row->automaton_state, mask, vocab_size);
    }
    bool ends = false;
    if (byte_automaton_accepts(s->automaton, row->automaton_state)) {
        ends = allow_end(mask, tokens, s->eos_token_id, vocab_size);
        for (int32_t i = 0; i < s->num_stop_token_ids; i++)
            ends |= allow_end(mask, tokens, s->stop_token_ids[i], vocab_size);
    }
    *constraint = (struct token_constraint){mask, ends && !goes_on};
    return goes_on || ends;
}
