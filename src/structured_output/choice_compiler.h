// A list of strings → the automaton that allows exactly them.
#pragma once

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

/**
 * Compiles `choices` (at least one; repeated ones count once) to an automaton as byte_automaton.h
 * describes it, in `arena`. Errors: TOO_LARGE (they need more than MAX_AUTOMATON_STATES).
 */
NODISCARD enum status choice_compile(const struct str *choices, int32_t num_choices,
                                     struct arena *arena, const uint32_t **words,
                                     int32_t *num_words, struct error *err);
