// Automata are found by a hash and then compared word by word: a mistaken one would show somebody
// an answer that another asked for. Places of masks are few, so looking through all is quick beside
// the work that a found one saves.
#include "worker/constraint_store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/str.h"
#include "structured_output/token_trie.h"

size_t constraint_store_bytes(int32_t vocab_size)
{
    return NUM_STORED_MASKS * token_mask_words(vocab_size) * sizeof(uint32_t) +
           (size_t)MAX_LIVE_AUTOMATON_WORDS * sizeof(uint32_t);
}

void constraint_store_init(struct constraint_store *store, int32_t vocab_size)
{
    *store = (struct constraint_store){.vocab_size = vocab_size};
}

void constraint_store_deinit(struct constraint_store *store)
{
    for (int32_t i = 0; i < store->num_automata; i++)
        free(store->automata[i].words);
    free(store->automata);
    free(store->mask_words);
    *store = (struct constraint_store){0};
}

static struct stored_automaton *find_id(struct constraint_store *store, uint64_t id)
{
    for (int32_t i = 0; i < store->num_automata; i++) {
        if (store->automata[i].id == id)
            return &store->automata[i];
    }
    return NULL;
}

/** Drops automata that nobody uses, the longest unused first, until there is room. */
static void make_room(struct constraint_store *store, int32_t num_words)
{
    for (;;) {
        int32_t oldest = -1, num_unused = 0;
        for (int32_t i = 0; i < store->num_automata; i++) {
            const struct stored_automaton *a = &store->automata[i];
            if (a->num_users > 0)
                continue;
            num_unused++;
            if (oldest < 0 || a->last_used < store->automata[oldest].last_used)
                oldest = i;
        }
        bool is_full = store->num_words + num_words > MAX_LIVE_AUTOMATON_WORDS ||
                       num_unused >= MAX_STORED_AUTOMATA;
        if (oldest < 0 || !is_full)
            return;
        store->num_words -= store->automata[oldest].num_words;
        free(store->automata[oldest].words);
        store->automata[oldest] = store->automata[--store->num_automata];
    }
}

const uint32_t *constraint_store_acquire(struct constraint_store *store, const uint32_t *words,
                                         int32_t num_words, uint64_t *id)
{
    size_t size = (size_t)num_words * sizeof(*words);
    uint64_t hash = str_hash((struct str){(const char *)words, size});
    for (int32_t i = 0; i < store->num_automata; i++) {
        struct stored_automaton *a = &store->automata[i];
        if (a->hash == hash && a->num_words == num_words && memcmp(a->words, words, size) == 0) {
            a->num_users++;
            *id = a->id;
            return a->words;
        }
    }
    uint32_t *copy = xmalloc(size);
    memcpy(copy, words, size);
    make_room(store, num_words);
    if (store->num_automata == store->automata_capacity) {
        store->automata_capacity = 2 * store->automata_capacity + 16;
        store->automata =
            xrealloc(store->automata, (size_t)store->automata_capacity * sizeof(*store->automata));
    }
    struct stored_automaton *a = &store->automata[store->num_automata++];
    *a = (struct stored_automaton){.hash = hash,
                                   .id = ++store->last_id,
                                   .words = copy,
                                   .num_words = num_words,
                                   .num_users = 1};
    store->num_words += num_words;
    *id = a->id;
    return copy;
}

void constraint_store_release(struct constraint_store *store, uint64_t id)
{
    struct stored_automaton *a = find_id(store, id);
    CHECK(a && a->num_users > 0);
    a->num_users--;
    a->last_used = ++store->clock;
}

void constraint_store_begin_step(struct constraint_store *store)
{
    store->clock++;
}

struct stored_mask *constraint_store_find(struct constraint_store *store, uint64_t automaton_id,
                                          int32_t state)
{
    struct stored_mask *oldest = &store->masks[0];
    for (int32_t i = 0; i < NUM_STORED_MASKS; i++) {
        struct stored_mask *mask = &store->masks[i];
        if (mask->automaton_id == automaton_id && mask->state == state) {
            mask->last_used = store->clock;
            store->num_found++;
            return mask;
        }
        if (mask->last_used < oldest->last_used)
            oldest = mask;
    }
    if (oldest->automaton_id != 0 && oldest->last_used == store->clock)
        return NULL;
    size_t num_words = token_mask_words(store->vocab_size);
    if (!store->mask_words) {
        store->mask_words = xcalloc(NUM_STORED_MASKS * num_words, sizeof(*store->mask_words));
        for (int32_t i = 0; i < NUM_STORED_MASKS; i++)
            store->masks[i].words = store->mask_words + (size_t)i * num_words;
    }
    oldest->automaton_id = automaton_id;
    oldest->state = state;
    oldest->is_new = true;
    oldest->last_used = store->clock;
    store->num_made++;
    return oldest;
}

void constraint_store_make(const struct constraint_store *store, struct stored_mask *mask,
                           const uint32_t *automaton, const struct token_trie *tokens)
{
    assert(mask->is_new);
    mask->is_any = token_trie_mask(tokens, automaton, mask->state, mask->words, store->vocab_size);
    mask->is_new = false;
}
