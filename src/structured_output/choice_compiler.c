// The automaton of a list of strings is their trie. In sorted order each string shares the longest
// possible beginning with the one before it: its states up to there exist, the rest are new.
#include "structured_output/choice_compiler.h"

#include <stdlib.h>

#include "base/memory.h"
#include "message/byte_automaton.h"

/** An edge before edges are grouped by the state they leave. */
struct trie_edge {
    int32_t from, to;
    uint8_t byte;
};

struct trie {
    struct trie_edge *edges; // one less than states: each state but the start has one that enters
    int32_t num_states, max_states;
    uint8_t *accepts; // [max_states]
};

static int compare_strings(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    int order = memcmp(x->ptr, y->ptr, x->len < y->len ? x->len : y->len);
    return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

static size_t common_len(struct str a, struct str b)
{
    size_t len = 0;
    while (len < a.len && len < b.len && a.ptr[len] == b.ptr[len])
        len++;
    return len;
}

/** `path[i]`: the state after i bytes of the string before; becomes that of `text`. */
static void add_string(struct trie *trie, int32_t *path, struct str text, size_t num_shared)
{
    for (size_t i = num_shared; i < text.len; i++) {
        int32_t state = trie->num_states++;
        trie->edges[state - 1] = (struct trie_edge){path[i], state, (uint8_t)text.ptr[i]};
        path[i + 1] = state;
    }
    trie->accepts[path[text.len]] = 1;
}

/** Groups the edges by state. Those of one state were made in order of their bytes, and stay so. */
static uint32_t *pack(const struct trie *trie, struct arena *arena, int32_t *num_words)
{
    int32_t num_states = trie->num_states, num_edges = num_states - 1;
    *num_words = num_states + 2 + num_edges;
    uint32_t *words = arena_calloc(arena, (size_t)*num_words, sizeof(*words));
    uint32_t *edges = words + num_states + 2;
    int32_t *next = xcalloc((size_t)num_states + 1, sizeof(*next));
    for (int32_t i = 0; i < num_edges; i++)
        next[trie->edges[i].from + 1]++;
    for (int32_t state = 0; state < num_states; state++)
        next[state + 1] += next[state];
    words[0] = (uint32_t)num_states;
    for (int32_t state = 0; state <= num_states; state++)
        words[1 + state] = (uint32_t)next[state] |
                           (state < num_states && trie->accepts[state] ? AUTOMATON_ACCEPTS : 0);
    for (int32_t i = 0; i < num_edges; i++) {
        const struct trie_edge *e = &trie->edges[i];
        edges[next[e->from]++] = automaton_edge(e->to, e->byte, e->byte);
    }
    free(next);
    return words;
}

enum status choice_compile(const struct str *choices, int32_t num_choices, struct arena *arena,
                           const uint32_t **words, int32_t *num_words, struct error *err)
{
    struct str *sorted = xcalloc((size_t)num_choices, sizeof(*sorted));
    memcpy(sorted, choices, (size_t)num_choices * sizeof(*sorted));
    qsort(sorted, (size_t)num_choices, sizeof(*sorted), compare_strings);
    size_t num_states = 1, longest = 0;
    for (int32_t i = 0; i < num_choices; i++) {
        num_states += sorted[i].len - (i > 0 ? common_len(sorted[i - 1], sorted[i]) : 0);
        longest = sorted[i].len > longest ? sorted[i].len : longest;
    }
    if (num_states > MAX_AUTOMATON_STATES) {
        free(sorted);
        return error_set(err, STATUS_TOO_LARGE,
                         "the choices have %zu bytes that they do not share, at most %d are "
                         "possible",
                         num_states - 1, MAX_AUTOMATON_STATES - 1);
    }
    struct trie trie = {
        .edges = xcalloc(num_states, sizeof(*trie.edges)),
        .accepts = xcalloc(num_states, 1),
        .num_states = 1,
        .max_states = (int32_t)num_states,
    };
    int32_t *path = xcalloc(longest + 1, sizeof(*path));
    for (int32_t i = 0; i < num_choices; i++)
        add_string(&trie, path, sorted[i], i > 0 ? common_len(sorted[i - 1], sorted[i]) : 0);
    CHECK(trie.num_states == trie.max_states);
    *words = pack(&trie, arena, num_words);
    free(path);
    free(trie.edges);
    free(trie.accepts);
    free(sorted);
    return STATUS_OK;
}
