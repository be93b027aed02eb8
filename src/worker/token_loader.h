// Reads the bytes of all tokens beside the engine's steps, when the first request needs them: a
// start that nobody asks for structured output does not pay for it, and nobody's stream stalls.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/worker.h"

struct token_trie;

/** `= {0}` is one that has not begun. Belongs to the worker's thread. */
struct token_loader {
    bool has_begun, has_thread;
    pthread_t thread;
    const char *path;        // a tokenizer.json or the folder that holds it
    size_t max_bytes;        // of the trie
    _Atomic bool is_done;    // the thread writes nothing any more
    struct token_trie *trie; // NULL: not yet, or it failed
};

/** Most bytes of a trie of so many tokens that the plan allows for. */
size_t token_loader_max_bytes(int32_t vocab_size);

/** Begins at the first call, then tells how far it is. `path` is kept. */
enum tokens_state token_loader_poll(struct token_loader *loader, const char *path,
                                    int32_t vocab_size);

/** The trie, once it is there; NULL if it could not be read. */
const struct token_trie *token_loader_wait(struct token_loader *loader, const char *path,
                                           int32_t vocab_size);
void token_loader_deinit(struct token_loader *loader);
