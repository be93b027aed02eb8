// Byte-pair merges (Sennrich et al. 2016, arXiv:1508.07909): of all neighbouring pairs in the word
// the one with the lowest rank is merged first, the leftmost of equals; until no pair can merge.
//
// Short words, which nearly all are, keep the rank of every pair in an array and scan it for the
// lowest. Long ones keep the pairs in a heap and the symbols in a linked list, so that a text
// without any blank takes n log n.
#include "tokenizer/bpe.h"

#include "base/memory.h"
#include "base/utf8.h"

#define MAX_SHORT_WORD 48
#define NO_RANK INT32_MAX
#define NO_SYMBOL UINT32_MAX

void token_ids_deinit(struct token_ids *ids)
{
    free(ids->items);
    *ids = (struct token_ids){0};
}

static void token_ids_reserve(struct token_ids *ids, size_t extra)
{
    if (ids->len + extra <= ids->capacity)
        return;
    ids->capacity = (ids->len + extra) * 2 + 32;
    ids->items = xrealloc(ids->items, ids->capacity * sizeof(*ids->items));
}

void token_ids_append(struct token_ids *ids, int32_t id)
{
    token_ids_reserve(ids, 1);
    ids->items[ids->len++] = id;
}

void bpe_deinit(struct bpe *bpe)
{
    free(bpe->merges);
    *bpe = (struct bpe){0};
}

static size_t hash_pair(int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    pair *= UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(pair >> 32 ^ pair >> 17);
}

/** The slot of a pair, or the empty one where it belongs. */
static struct merge *merge_slot(const struct bpe *bpe, int32_t left, int32_t right)
{
    size_t mask = bpe->num_merge_slots - 1;
    for (size_t at = hash_pair(left, right) & mask;; at = (at + 1) & mask) {
        struct merge *slot = &bpe->merges[at];
        if (slot->left < 0 || (slot->left == left && slot->right == right))
            return slot;
    }
}

void bpe_set_merges(struct bpe *bpe, const struct merge *merges, size_t num_merges)
{
    size_t num_slots = 16;
    while (num_merges * 3 > num_slots * 2)
        num_slots *= 2;
    free(bpe->merges);
    bpe->merges = xmalloc(num_slots * sizeof(*bpe->merges));
    bpe->num_merge_slots = num_slots;
    for (size_t i = 0; i < num_slots; i++)
        bpe->merges[i].left = -1;
    for (size_t i = 0; i < num_merges; i++)
        *merge_slot(bpe, merges[i].left, merges[i].right) = merges[i];
}

void bpe_prepare(struct bpe *bpe, const struct vocabulary *vocabulary)
{
    bpe->vocabulary = vocabulary;
    for (uint32_t c = 0; c < BPE_NUM_CHAR_IDS; c++) {
        char bytes[4];
        size_t len = utf8_encode(c, bytes);
        bpe->char_ids[c] = vocabulary_find(vocabulary, (struct str){bytes, len});
    }
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof(name), "<0x%02X>", byte);
        bpe->byte_ids[byte] = vocabulary_find(vocabulary, str_from(name));
    }
}

/** The id of the character at the start of `text` and its length; -1: not in the vocabulary. */
static int32_t char_id(const struct bpe *bpe, struct str text, size_t *len)
{
    unsigned char lead = (unsigned char)text.ptr[0];
    if (lead < 0x80) {
        *len = 1;
        return bpe->char_ids[lead];
    }
    uint32_t c = utf8_decode(text, len);
    if (c < BPE_NUM_CHAR_IDS)
        return bpe->char_ids[c];
    return vocabulary_find(bpe->vocabulary, str_slice(text, 0, *len));
}

/** Appends the byte tokens of a character; false, and nothing, if one of them is missing. */
static bool append_bytes(const struct bpe *bpe, struct str character, struct token_ids *ids)
{
    for (size_t i = 0; i < character.len; i++)
        if (bpe->byte_ids[(unsigned char)character.ptr[i]] < 0)
            return false;
    for (size_t i = 0; i < character.len; i++)
        token_ids_append(ids, bpe->byte_ids[(unsigned char)character.ptr[i]]);
    return true;
}

/** Appends the ids of the word's single characters: what merging starts from. */
static void append_characters(const struct bpe *bpe, struct str word, struct token_ids *ids)
{
    // An unknown token waits until a known one follows, so that further ones can join it. Byte
    // tokens do not end the wait: so does the reference.
    bool unk_waits = false;
    size_t len;
    for (size_t i = 0; i < word.len; i += len) {
        int32_t id = char_id(bpe, str_slice(word, i, word.len), &len);
        if (id >= 0) {
            if (unk_waits)
                token_ids_append(ids, bpe->unk_id);
            unk_waits = false;
            token_ids_append(ids, id);
            continue;
        }
        if (bpe->byte_fallback && append_bytes(bpe, str_slice(word, i, i + len), ids))
            continue;
        if (bpe->unk_id < 0)
            continue;
        if (unk_waits && !bpe->fuse_unk)
            token_ids_append(ids, bpe->unk_id);
        unk_waits = true;
    }
    if (unk_waits)
        token_ids_append(ids, bpe->unk_id);
}

static int32_t pair_rank(const struct bpe *bpe, int32_t left, int32_t right)
{
    const struct merge *merge = merge_slot(bpe, left, right);
    return merge->left < 0 ? NO_RANK : merge->rank;
}

/** Merges in place; returns the new number of ids. */
static size_t merge_short(const struct bpe *bpe, int32_t *ids, size_t num_ids)
{
    int32_t ranks[MAX_SHORT_WORD]; // of the pair (i, i + 1)
    for (size_t i = 0; i + 1 < num_ids; i++)
        ranks[i] = pair_rank(bpe, ids[i], ids[i + 1]);
    while (num_ids > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < num_ids; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == NO_RANK)
            break;
        ids[best] = merge_slot(bpe, ids[best], ids[best + 1])->merged;
        num_ids--;
        for (size_t i = best + 1; i < num_ids; i++)
            ids[i] = ids[i + 1];
        for (size_t i = best + 1; i + 1 < num_ids; i++)
            ranks[i] = ranks[i + 1];
        if (best > 0)
            ranks[best - 1] = pair_rank(bpe, ids[best - 1], ids[best]);
        if (best + 1 < num_ids)
            ranks[best] = pair_rank(bpe, ids[best], ids[best + 1]);
    }
    return num_ids;
}

/** A binary heap of (rank, position of the left symbol), lowest first. */
struct pair_heap {
    uint64_t *items;
    size_t len;
};

static void heap_push(struct pair_heap *heap, int32_t rank, uint32_t position)
{
    uint64_t item = (uint64_t)(uint32_t)rank << 32 | position;
    size_t at = heap->len++;
    for (; at > 0 && heap->items[(at - 1) / 2] > item; at = (at - 1) / 2)
        heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = item;
}

static void heap_sift_down(struct pair_heap *heap, size_t at, uint64_t item)
{
    for (size_t child; (child = 2 * at + 1) < heap->len; at = child) {
        if (child + 1 < heap->len && heap->items[child + 1] < heap->items[child])
            child++;
        if (heap->items[child] >= item)
            break;
        heap->items[at] = heap->items[child];
    }
    heap->items[at] = item;
}

static uint64_t heap_pop(struct pair_heap *heap)
{
    uint64_t lowest = heap->items[0];
    uint64_t last = heap->items[--heap->len];
    if (heap->len > 0)
        heap_sift_down(heap, 0, last);
    return lowest;
}

struct symbol {
    int32_t id; // -1: merged into its left neighbour
    uint32_t previous, next;
};

static void push_pair(const struct bpe *bpe, struct pair_heap *heap, const struct symbol *symbols,
                      uint32_t left)
{
    int32_t rank = pair_rank(bpe, symbols[left].id, symbols[symbols[left].next].id);
    if (rank != NO_RANK)
        heap_push(heap, rank, left);
}

static size_t merge_long(const struct bpe *bpe, int32_t *ids, size_t num_ids, struct arena *scratch)
{
    struct symbol *symbols = arena_array(scratch, struct symbol, num_ids);
    // One pair for each neighbourhood at first; each merge takes one away and adds two at most, and
    // there are fewer merges than symbols.
    struct pair_heap heap = {.items = arena_array(scratch, uint64_t, num_ids * 2)};
    uint32_t count = (uint32_t)num_ids;
    for (uint32_t i = 0; i < count; i++)
        symbols[i] = (struct symbol){.id = ids[i],
                                     .previous = i == 0 ? NO_SYMBOL : i - 1,
                                     .next = i + 1 == count ? NO_SYMBOL : i + 1};
    for (uint32_t i = 0; i + 1 < count; i++) {
        int32_t rank = pair_rank(bpe, ids[i], ids[i + 1]);
        if (rank != NO_RANK)
            heap.items[heap.len++] = (uint64_t)(uint32_t)rank << 32 | i;
    }
    for (size_t at = heap.len / 2; at-- > 0;)
        heap_sift_down(&heap, at, heap.items[at]);

    while (heap.len > 0) {
        uint64_t item = heap_pop(&heap);
        struct symbol *left = &symbols[(uint32_t)item];
        if (left->id < 0 || left->next == NO_SYMBOL)
            continue; // merged away meanwhile
        struct symbol *right = &symbols[left->next];
        const struct merge *merge = merge_slot(bpe, left->id, right->id);
        if (merge->left < 0 || merge->rank != (int32_t)(item >> 32))
            continue; // another pair stands here now
        left->id = merge->merged;
        left->next = right->next;
        right->id = -1;
        if (left->next != NO_SYMBOL) {
            symbols[left->next].previous = (uint32_t)item;
            push_pair(bpe, &heap, symbols, (uint32_t)item);
        }
        if (left->previous != NO_SYMBOL)
            push_pair(bpe, &heap, symbols, left->previous);
    }

    size_t num_merged = 0;
    for (uint32_t i = 0; i != NO_SYMBOL; i = symbols[i].next)
        ids[num_merged++] = symbols[i].id;
    return num_merged;
}

void bpe_encode(const struct bpe *bpe, struct str word, struct arena *scratch,
                struct token_ids *ids)
{
    if (word.len == 0)
        return;
    if (bpe->ignore_merges) {
        int32_t id = vocabulary_find(bpe->vocabulary, word);
        if (id >= 0) {
            token_ids_append(ids, id);
            return;
        }
    }
    size_t start = ids->len;
    append_characters(bpe, word, ids);
    size_t num_ids = ids->len - start;
    if (num_ids < 2)
        return;
    int32_t *items = ids->items + start;
    if (num_ids <= MAX_SHORT_WORD) {
        ids->len = start + merge_short(bpe, items, num_ids);
        return;
    }
    struct arena_mark mark = arena_mark(scratch);
    ids->len = start + merge_long(bpe, items, num_ids, scratch);
    arena_release(scratch, mark);
}
