// A row's automaton and the tokens: where the outputs have led, and what may come next. The state
// is a function of the output tokens alone, so a request that was preempted, or that another engine
// continues, is where it was.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "worker/constraint_store.h"
#include "worker/input_batch.h"
#include "worker/sampler.h"

struct token_trie;

/** Moves the row's state over its tokens from `first` on. `tokens` NULL: to the dead state. */
void constraint_advance(struct batch_row *row, const struct token_trie *tokens, int32_t first);

/**
 * Finds the tokens that may come next. Those that end the answer are among them exactly where a
 * text may end. `stored`: the state's mask, NULL to make one. The result lives in `arena`. False:
 * none may.
 */
bool constraint_find(struct token_constraint *constraint, const struct token_trie *tokens,
                     const struct batch_row *row, const struct stored_mask *stored,
                     int32_t vocab_size, struct arena *arena);
