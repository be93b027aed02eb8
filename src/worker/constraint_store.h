// What structured output keeps: one copy of each automaton, for all rows that have it and for the
// requests that bring it again, and masks of tokens by automaton and state. A mask that many tokens
// fit costs milliseconds to make; answers of one form, and choices of one request, pass the same
// states.
//
// Belongs to the worker's thread; a step's masks are found before its rows are looked at by several
// threads, and do not move until the next step.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message/message.h"

struct token_trie;

enum {
    NUM_STORED_MASKS = 256,
    MAX_STORED_AUTOMATA = 1024, // that nobody uses
};

struct stored_automaton {
    uint64_t hash;
    uint64_t id; // never given twice
    uint32_t *words;
    int32_t num_words;
    int32_t num_users; // rows
    int64_t last_used;
};

/** The tokens that go on from a state; what ends an answer is not among them. */
struct stored_mask {
    uint64_t automaton_id; // 0: free
    int32_t state;
    bool is_any;       // a bit is set
    bool is_new;       // still to be made
    int64_t last_used; // the step
    uint32_t *words;
};

/** `= {0}` is one that has never been used. */
struct constraint_store {
    struct stored_automaton *automata;
    int32_t num_automata, automata_capacity;
    int64_t num_words; // of all of them
    uint64_t last_id;
    int64_t clock; // of steps and uses
    int32_t vocab_size;
    struct stored_mask masks[NUM_STORED_MASKS];
    uint32_t *mask_words; // behind the masks; taken when the first is made
    int64_t num_found, num_made;
};

/** Most bytes that a store takes for a vocabulary of this size. */
size_t constraint_store_bytes(int32_t vocab_size);

void constraint_store_init(struct constraint_store *store, int32_t vocab_size);
void constraint_store_deinit(struct constraint_store *store);

/** The stored copy of an automaton, for one more user; its words stay until it is released. */
const uint32_t *constraint_store_acquire(struct constraint_store *store, const uint32_t *words,
                                         int32_t num_words, uint64_t *id);
void constraint_store_release(struct constraint_store *store, uint64_t id);

/** A new step begins: masks that it does not ask for may go. */
void constraint_store_begin_step(struct constraint_store *store);

/** The place of a state's mask in this step, made (by constraint_store_make) or to be made. NULL:
 *  all places are taken by the step. */
struct stored_mask *constraint_store_find(struct constraint_store *store, uint64_t automaton_id,
                                          int32_t state);

/** Makes a new mask. Several threads may make different ones. */
void constraint_store_make(const struct constraint_store *store, struct stored_mask *mask,
                           const uint32_t *automaton, const struct token_trie *tokens);
