// The trie lies in one array in preorder: a node is followed by its first child, and `skip` leads
// to the node behind all that begins with it. A walk that meets a forbidden byte goes there, so it
// touches only what is allowed and its immediate neighbours.
#include "structured_output/token_trie.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "message/byte_automaton.h"

enum { MAX_TOKEN_BYTES = 4096 }; // longer ones are no words, and never needed to spell a text

struct trie_node {
    uint8_t byte;
    uint16_t depth;      // bytes up to and with this one
    int32_t skip;        // the next node that does not begin with this one
    int32_t first_token; // in `ordered`, of those with exactly these bytes
    int32_t num_tokens;
};

/** Where a token's bytes are. */
struct token_text {
    uint32_t offset, len;
};

struct token_trie {
    struct trie_node *nodes;
    int32_t num_nodes;
    int32_t *ordered; // ids of all tokens with bytes, in order of these
    int32_t num_ordered;
    struct token_text *texts; // by id
    int32_t num_tokens;
    char *bytes; // of all tokens
    size_t num_bytes;
    int32_t max_depth;
};

/** An id with its bytes, for sorting. */
struct entry {
    const char *ptr;
    uint32_t len;
    int32_t id;
};

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = memcmp(x->ptr, y->ptr, x->len < y->len ? x->len : y->len);
    if (order != 0)
        return order;
    return x->len != y->len ? (x->len > y->len) - (x->len < y->len)
                            : (x->id > y->id) - (x->id < y->id);
}

static void collect_bytes(struct token_trie *trie, const struct tokenizer *tokenizer)
{
    size_t capacity = 0;
    struct arena arena = {0};
    trie->texts = xcalloc((size_t)trie->num_tokens + 1, sizeof(*trie->texts));
    for (int32_t id = 0; id < trie->num_tokens; id++) {
        struct str bytes = tokenizer_token_bytes(tokenizer, id, &arena);
        bytes.len = bytes.len > MAX_TOKEN_BYTES ? 0 : bytes.len;
        if (trie->num_bytes + bytes.len > capacity) {
            capacity = 2 * capacity + bytes.len + 65536;
            trie->bytes = xrealloc(trie->bytes, capacity);
        }
        if (bytes.len > 0)
            memcpy(trie->bytes + trie->num_bytes, bytes.ptr, bytes.len);
        trie->texts[id] = (struct token_text){(uint32_t)trie->num_bytes, (uint32_t)bytes.len};
        trie->num_bytes += bytes.len;
        trie->num_ordered += bytes.len > 0;
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}

static struct entry *sort_tokens(struct token_trie *trie)
{
    struct entry *entries = xcalloc((size_t)trie->num_ordered + 1, sizeof(*entries));
    int32_t n = 0;
    for (int32_t id = 0; id < trie->num_tokens; id++) {
        struct token_text text = trie->texts[id];
        if (text.len > 0)
            entries[n++] = (struct entry){trie->bytes + text.offset, text.len, id};
    }
    qsort(entries, (size_t)n, sizeof(*entries), compare_entries);
    trie->ordered = xcalloc((size_t)n + 1, sizeof(*trie->ordered));
    for (int32_t i = 0; i < n; i++)
        trie->ordered[i] = entries[i].id;
    return entries;
}

static uint32_t shared_len(const struct entry *a, const struct entry *b)
{
    uint32_t len = 0;
    while (len < a->len && len < b->len && a->ptr[len] == b->ptr[len])
        len++;
    return len;
}

/** Closes the nodes on `path` deeper than `depth`: whatever comes now does not begin with them. */
static void close_nodes(struct token_trie *trie, const int32_t *path, int32_t from, int32_t depth)
{
    for (int32_t d = from; d > depth; d--)
        trie->nodes[path[d]].skip = trie->num_nodes;
}

static void build_nodes(struct token_trie *trie, const struct entry *entries)
{
    size_t num_nodes = 0;
    for (int32_t i = 0; i < trie->num_ordered; i++) {
        num_nodes += entries[i].len - (i > 0 ? shared_len(&entries[i - 1], &entries[i]) : 0);
        trie->max_depth = max_i32(trie->max_depth, (int32_t)entries[i].len);
    }
    CHECK(num_nodes <= INT32_MAX);
    trie->nodes = xcalloc(num_nodes + 1, sizeof(*trie->nodes));
    int32_t *path = xcalloc((size_t)trie->max_depth + 1, sizeof(*path));
    int32_t depth = 0;
    for (int32_t i = 0; i < trie->num_ordered; i++) {
        const struct entry *e = &entries[i];
        int32_t shared = i > 0 ? (int32_t)shared_len(e - 1, e) : 0;
        close_nodes(trie, path, depth, shared);
        for (depth = shared; depth < (int32_t)e->len;) {
            trie->nodes[trie->num_nodes] = (struct trie_node){
                .byte = (uint8_t)e->ptr[depth], .depth = (uint16_t)(depth + 1), .first_token = i};
            path[++depth] = trie->num_nodes++;
        }
        struct trie_node *node = &trie->nodes[path[depth]];
        node->first_token = node->num_tokens == 0 ? i : node->first_token;
        node->num_tokens++;
    }
    close_nodes(trie, path, depth, 0);
    free(path);
}

struct token_trie *token_trie_create(const struct tokenizer *tokenizer)
{
    struct token_trie *trie = xcalloc(1, sizeof(*trie));
    trie->num_tokens = tokenizer_vocab_size(tokenizer);
    collect_bytes(trie, tokenizer);
    struct entry *entries = sort_tokens(trie);
    build_nodes(trie, entries);
    free(entries);
    return trie;
}

enum status token_trie_load(struct token_trie **out, const char *path, struct error *err)
{
    *out = NULL;
    struct stat info;
    char file[4096];
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    snprintf(file, sizeof(file), is_folder ? "%s/tokenizer.json" : "%s", path);
    struct tokenizer *tokenizer;
    TRY(tokenizer_load(&tokenizer, file, err));
    *out = token_trie_create(tokenizer);
    tokenizer_destroy(tokenizer);
    return STATUS_OK;
}

void token_trie_destroy(struct token_trie *trie)
{
    if (!trie)
        return;
    free(trie->nodes);
    free(trie->ordered);
    free(trie->texts);
    free(trie->bytes);
    free(trie);
}

int32_t token_trie_num_tokens(const struct token_trie *trie)
{
    return trie->num_ordered;
}

size_t token_trie_bytes(const struct token_trie *trie)
{
    return (size_t)trie->num_nodes * sizeof(*trie->nodes) +
           (size_t)trie->num_ordered * sizeof(*trie->ordered) +
           (size_t)trie->num_tokens * sizeof(*trie->texts) + trie->num_bytes;
}

bool token_trie_has_text(const struct token_trie *trie, int32_t token_id)
{
    return token_id >= 0 && token_id < trie->num_tokens && trie->texts[token_id].len > 0;
}

int32_t token_trie_step(const struct token_trie *trie, const uint32_t *automaton, int32_t state,
                        int32_t token_id)
{
    if (!token_trie_has_text(trie, token_id))
        return AUTOMATON_DEAD;
    struct token_text text = trie->texts[token_id];
    for (uint32_t i = 0; i < text.len && state != AUTOMATON_DEAD; i++)
        state = byte_automaton_step(automaton, state, (uint8_t)trie->bytes[text.offset + i]);
    return state;
}

bool token_trie_mask(const struct token_trie *trie, const uint32_t *automaton, int32_t state,
                     uint32_t *mask, int32_t vocab_size)
{
    memset(mask, 0, token_mask_words(vocab_size) * sizeof(*mask));
    if (state == AUTOMATON_DEAD)
        return false;
    bool any = false;
    int32_t states[MAX_TOKEN_BYTES + 1]; // [depth]: after the bytes down to there
    states[0] = state;
    for (int32_t at = 0; at < trie->num_nodes;) {
        const struct trie_node *node = &trie->nodes[at];
        int32_t next = byte_automaton_step(automaton, states[node->depth - 1], node->byte);
        if (next == AUTOMATON_DEAD) {
            at = node->skip;
            continue;
        }
        states[node->depth] = next;
        for (int32_t i = 0; i < node->num_tokens; i++) {
            int32_t id = trie->ordered[node->first_token + i];
            if (id < vocab_size) {
                mask[id / 32] |= 1u << (id % 32);
                any = true;
            }
        }
        at++;
    }
    return any;
}
