#include "tokenizer/added_tokens.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "tokenizer/unicode.h"

struct trie_node {
    const struct added_token *token;   // that ends here; NULL: none
    int32_t first_child, next_sibling; // 0: none
    unsigned char byte;
};

void added_token_trie_deinit(struct added_token_trie *trie)
{
    free(trie->nodes);
    *trie = (struct added_token_trie){0};
}

static int32_t add_node(struct added_token_trie *trie, unsigned char byte)
{
    if (trie->num_nodes == 0)
        trie->num_nodes = 1; // index 0 means none
    if (trie->num_nodes >= trie->capacity) {
        trie->capacity = trie->capacity * 2 + 64;
        trie->nodes = xrealloc(trie->nodes, trie->capacity * sizeof(*trie->nodes));
    }
    trie->nodes[trie->num_nodes] = (struct trie_node){.byte = byte};
    return (int32_t)trie->num_nodes++;
}

static int32_t find_child(const struct added_token_trie *trie, int32_t node, unsigned char byte)
{
    int32_t child = trie->nodes[node].first_child;
    while (child != 0 && trie->nodes[child].byte != byte)
        child = trie->nodes[child].next_sibling;
    return child;
}

void added_token_trie_add(struct added_token_trie *trie, struct str spelling,
                          const struct added_token *token)
{
    if (spelling.len == 0)
        return;
    unsigned char first = (unsigned char)spelling.ptr[0];
    int32_t node = trie->roots[first];
    if (node == 0)
        trie->roots[first] = node = add_node(trie, first);
    for (size_t i = 1; i < spelling.len; i++) {
        unsigned char byte = (unsigned char)spelling.ptr[i];
        int32_t child = find_child(trie, node, byte);
        if (child == 0) {
            child = add_node(trie, byte);
            trie->nodes[child].next_sibling = trie->nodes[node].first_child;
            trie->nodes[node].first_child = child;
        }
        node = child;
    }
    if (!trie->nodes[node].token)
        trie->nodes[node].token = token;
}

/** The longest token at `start`, and its end. */
static const struct added_token *longest_at(const struct added_token_trie *trie, struct str text,
                                            size_t start, size_t *end)
{
    const struct added_token *longest = NULL;
    int32_t node = trie->roots[(unsigned char)text.ptr[start]];
    for (size_t i = start + 1; node != 0; i++) {
        if (trie->nodes[node].token) {
            longest = trie->nodes[node].token;
            *end = i;
        }
        if (i == text.len)
            break;
        node = find_child(trie, node, (unsigned char)text.ptr[i]);
    }
    return longest;
}

static bool is_single_word(struct str text, size_t start, size_t end)
{
    size_t len;
    if (start > 0 && unicode_is_word(unicode_last(str_slice(text, 0, start), &len)))
        return false;
    return end == text.len || !unicode_is_word(utf8_decode(str_slice(text, end, text.len), &len));
}

static size_t strip_left(struct str text, size_t start, size_t floor)
{
    size_t len;
    while (start > floor && unicode_is_white_space(unicode_last(str_slice(text, 0, start), &len)))
        start -= len;
    return start > floor ? start : floor;
}

static size_t strip_right(struct str text, size_t end)
{
    size_t len;
    while (end < text.len &&
           unicode_is_white_space(utf8_decode(str_slice(text, end, text.len), &len)))
        end += len;
    return end;
}

void added_token_scan_init(struct added_token_scan *scan, const struct added_token_trie *trie,
                           struct str text)
{
    *scan = (struct added_token_scan){.trie = trie, .text = text};
}

/** Looks for the next token from `position` on. */
static bool find_token(struct added_token_scan *scan)
{
    struct str text = scan->text;
    while (scan->position < text.len) {
        size_t start = scan->position, end;
        const struct added_token *token = longest_at(scan->trie, text, start, &end);
        if (!token) {
            scan->position++;
            continue;
        }
        scan->position = end;
        if (token->single_word && !is_single_word(text, start, end))
            continue;
        if (token->lstrip)
            start = strip_left(text, start, scan->done);
        if (token->rstrip)
            end = strip_right(text, end);
        if (start >= end) // nothing but white space that the token before has taken
            continue;
        scan->token = (struct added_token_part){token, start, end};
        return true;
    }
    return false;
}

bool added_token_scan_next(struct added_token_scan *scan, struct added_token_part *part)
{
    if (!scan->has_token)
        scan->has_token = find_token(scan);
    size_t text_end = scan->has_token ? scan->token.start : scan->text.len;
    if (scan->done < text_end) {
        *part = (struct added_token_part){NULL, scan->done, text_end};
        scan->done = text_end;
        return true;
    }
    if (!scan->has_token)
        return false;
    *part = scan->token;
    if (scan->token.end > scan->done)
        scan->done = scan->token.end;
    scan->has_token = false;
    return true;
}
