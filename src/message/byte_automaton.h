// A deterministic automaton over bytes: which texts an answer may be. API servers compile it,
// engines walk it; it crosses between them as one array of 32-bit words.
//
//   word 0               number of states n
//   words 1 .. n + 1     where each state's edges begin among all edges, and their total; the top
//                        bit says that a text may end in the state
//   words n + 2 ..       edges: target state << 16 | last byte << 8 | first byte; those of a state
//                        in order of bytes, without overlap
//
// State 0 is the start. A byte without an edge is forbidden.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum {
    MAX_AUTOMATON_STATES = 1 << 16,
    MAX_AUTOMATON_WORDS = 1 << 18, // 1 MiB
    // Of all requests that an engine has taken in; those beyond wait for others to end.
    MAX_LIVE_AUTOMATON_WORDS = 1 << 21,
    AUTOMATON_DEAD = -1, // no state: nothing that follows can be right
};

#define AUTOMATON_ACCEPTS 0x80000000u // of a state's word

static inline uint32_t automaton_edge(int32_t target, uint8_t first, uint8_t last)
{
    return (uint32_t)target << 16 | (uint32_t)last << 8 | first;
}

/** Whether `words` are such an array. All that comes from outside goes through it; the functions
 *  below believe what they read. Errors: INVALID. */
NODISCARD enum status byte_automaton_check(const uint32_t *words, int32_t num_words,
                                           struct error *err);

/** The state after `byte`, or AUTOMATON_DEAD. */
int32_t byte_automaton_step(const uint32_t *words, int32_t state, uint8_t byte);

/** Whether a text may end in `state`. */
static inline bool byte_automaton_accepts(const uint32_t *words, int32_t state)
{
    return (words[1 + state] & AUTOMATON_ACCEPTS) != 0;
}
