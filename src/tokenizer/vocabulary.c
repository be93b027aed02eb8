#include "tokenizer/vocabulary.h"

#include <inttypes.h>

#include "base/memory.h"

void vocabulary_deinit(struct vocabulary *vocabulary)
{
    free(vocabulary->strings);
    free(vocabulary->tokens);
    free(vocabulary->slots);
    *vocabulary = (struct vocabulary){0};
}

/** A hash that takes eight bytes a step: tables are built while the server's start waits. */
static uint32_t hash_spelling(struct str token)
{
    uint64_t hash = token.len * UINT64_C(0x9E3779B97F4A7C15);
    size_t i = 0;
    for (; i + 8 <= token.len; i += 8) {
        uint64_t word;
        memcpy(&word, token.ptr + i, 8);
        hash = (hash ^ word) * UINT64_C(0xD6E8FEB86659FD93);
        hash ^= hash >> 32;
    }
    uint64_t rest = 0;
    for (int shift = 0; i < token.len; i++, shift += 8)
        rest |= (uint64_t)(unsigned char)token.ptr[i] << shift;
    hash = (hash ^ rest) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(hash >> 32) ^ (uint32_t)(hash >> 15);
}

static void grow_slots(struct vocabulary *vocabulary, size_t num_slots)
{
    struct vocabulary_slot *slots = xcalloc(num_slots, sizeof(*slots));
    for (size_t i = 0; i < vocabulary->num_slots; i++) {
        struct vocabulary_slot slot = vocabulary->slots[i];
        if (slot.id_plus_one == 0)
            continue;
        size_t at = slot.hash & (num_slots - 1);
        while (slots[at].id_plus_one != 0)
            at = (at + 1) & (num_slots - 1);
        slots[at] = slot;
    }
    free(vocabulary->slots);
    vocabulary->slots = slots;
    vocabulary->num_slots = num_slots;
}

/** Keeps the table at most two thirds full. */
static void reserve_slots(struct vocabulary *vocabulary, size_t num_tokens)
{
    size_t num_slots = vocabulary->num_slots ? vocabulary->num_slots : 64;
    while (num_tokens * 3 > num_slots * 2)
        num_slots *= 2;
    if (num_slots != vocabulary->num_slots)
        grow_slots(vocabulary, num_slots);
}

static void reserve_strings(struct vocabulary *vocabulary, size_t num_bytes)
{
    if (num_bytes <= vocabulary->strings_capacity)
        return;
    vocabulary->strings = xrealloc(vocabulary->strings, num_bytes);
    vocabulary->strings_capacity = num_bytes;
}

static void reserve_ids(struct vocabulary *vocabulary, int32_t size)
{
    if (size <= vocabulary->tokens_capacity)
        return;
    vocabulary->tokens = xrealloc(vocabulary->tokens, (size_t)size * sizeof(*vocabulary->tokens));
    for (int32_t id = vocabulary->tokens_capacity; id < size; id++)
        vocabulary->tokens[id] = (struct vocabulary_token){0};
    vocabulary->tokens_capacity = size;
}

void vocabulary_reserve(struct vocabulary *vocabulary, size_t num_tokens, size_t num_bytes)
{
    reserve_slots(vocabulary, num_tokens);
    reserve_strings(vocabulary, num_bytes);
    if (num_tokens <= VOCABULARY_MAX_SIZE)
        reserve_ids(vocabulary, (int32_t)num_tokens);
}

enum status vocabulary_add_spelling(struct vocabulary *vocabulary, struct str token, int64_t id,
                                    struct error *err)
{
    if (id < 0 || id >= VOCABULARY_MAX_SIZE)
        return error_set(err, STATUS_INVALID,
                         "token '" STR_FORMAT "' has id %" PRId64 "; ids are 0 to %d",
                         STR_ARG(str_slice(token, 0, 100)), id, VOCABULARY_MAX_SIZE - 1);
    size_t end = vocabulary->strings_len + token.len;
    if (end > UINT32_MAX)
        return error_set(err, STATUS_TOO_LARGE, "the vocabulary's spellings exceed 4 GiB");
    if (end >= vocabulary->strings_capacity) // so that there is a block, even for an empty one
        reserve_strings(vocabulary, end + end / 2 + 64);
    if (id >= vocabulary->tokens_capacity)
        reserve_ids(vocabulary, min_i32((int32_t)id + (int32_t)id / 2 + 64, VOCABULARY_MAX_SIZE));
    if (token.len > 0)
        memcpy(vocabulary->strings + vocabulary->strings_len, token.ptr, token.len);
    vocabulary->tokens[id] =
        (struct vocabulary_token){(uint32_t)vocabulary->strings_len, (uint32_t)token.len};
    vocabulary->strings_len = end;
    vocabulary->size = max_i32(vocabulary->size, (int32_t)id + 1);
    return STATUS_OK;
}

/** The slot of `token`, or the empty one where it belongs. */
static struct vocabulary_slot *find_slot(const struct vocabulary *vocabulary, struct str token,
                                         uint32_t hash)
{
    size_t mask = vocabulary->num_slots - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
        struct vocabulary_slot *slot = &vocabulary->slots[at];
        if (slot->id_plus_one == 0 ||
            (slot->hash == hash &&
             str_eq(vocabulary_token(vocabulary, slot->id_plus_one - 1), token)))
            return slot;
    }
}

enum status vocabulary_add(struct vocabulary *vocabulary, struct str token, int64_t id,
                           struct error *err)
{
    if (id >= 0 && id < vocabulary->size) {
        struct str other = vocabulary_token(vocabulary, (int32_t)id);
        if (other.len > 0 && !str_eq(other, token))
            return error_set(
                err, STATUS_INVALID,
                "tokens '" STR_FORMAT "' and '" STR_FORMAT "' have the same id %" PRId64,
                STR_ARG(str_slice(other, 0, 100)), STR_ARG(str_slice(token, 0, 100)), id);
    }
    reserve_slots(vocabulary, vocabulary->num_used + 1);
    uint32_t hash = hash_spelling(token);
    struct vocabulary_slot *slot = find_slot(vocabulary, token, hash);
    TRY(vocabulary_add_spelling(vocabulary, token, id, err));
    vocabulary->num_used += slot->id_plus_one == 0;
    *slot = (struct vocabulary_slot){hash, (int32_t)id + 1};
    return STATUS_OK;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, struct str token)
{
    if (vocabulary->num_slots == 0)
        return -1;
    return find_slot(vocabulary, token, hash_spelling(token))->id_plus_one - 1;
}
