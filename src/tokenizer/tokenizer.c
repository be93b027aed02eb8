// Text → ids: added tokens are cut out of the raw text; what lies between is normalized, searched
// for those that stand in normalized text, split into words, and merged word by word.
#include "tokenizer/tokenizer.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_parts.h"

void tokenizer_destroy(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    vocabulary_deinit(&tokenizer->vocabulary);
    bpe_deinit(&tokenizer->bpe);
    normalizer_destroy(tokenizer->normalizer);
    pretokenizer_destroy(tokenizer->pretokenizer);
    decoder_destroy(tokenizer->decoder);
    post_processor_deinit(&tokenizer->post_processor);
    free(tokenizer->added_tokens);
    hashmap_deinit(&tokenizer->added_indices);
    added_token_trie_deinit(&tokenizer->raw_trie);
    added_token_trie_deinit(&tokenizer->normalized_trie);
    free(tokenizer->special_bits);
    free(tokenizer);
}

/** One call of tokenizer_encode(). */
struct encoding {
    const struct tokenizer *tokenizer;
    struct arena scratch;
    struct token_ids ids;
};

static void encode_words(struct encoding *encoding, struct str text, bool at_start)
{
    const struct tokenizer *tokenizer = encoding->tokenizer;
    struct pieces pieces = {0};
    pieces_append(&pieces, (struct piece){text, at_start});
    pretokenizer_apply(tokenizer->pretokenizer, &pieces, &encoding->scratch);
    for (size_t i = 0; i < pieces.len; i++)
        bpe_encode(&tokenizer->bpe, pieces.items[i].text, &encoding->scratch, &encoding->ids);
    pieces_deinit(&pieces);
}

/** Text between added tokens of the raw text. */
static void encode_raw_part(struct encoding *encoding, struct str text, bool at_start)
{
    const struct tokenizer *tokenizer = encoding->tokenizer;
    struct arena_mark mark = arena_mark(&encoding->scratch);
    text = normalizer_apply(tokenizer->normalizer, text, &encoding->scratch);
    struct added_token_scan scan;
    struct added_token_part part;
    added_token_scan_init(&scan, &tokenizer->normalized_trie, text);
    while (added_token_scan_next(&scan, &part)) {
        if (part.token)
            token_ids_append(&encoding->ids, part.token->id);
        else
            encode_words(encoding, str_slice(text, part.start, part.end),
                         at_start && part.start == 0);
    }
    arena_release(&encoding->scratch, mark);
}

/** `text` itself, or a copy with U+FFFD for each malformed byte. */
static struct str make_valid(struct str text, struct arena *arena)
{
    size_t bad_offset;
    if (utf8_is_valid(text, &bad_offset))
        return text;
    char *out = arena_alloc(arena, text.len * 3);
    memcpy(out, text.ptr, bad_offset);
    size_t out_len = bad_offset, len;
    for (size_t i = bad_offset; i < text.len; i += len)
        out_len += utf8_encode(utf8_decode(str_slice(text, i, text.len), &len), out + out_len);
    return (struct str){out, out_len};
}

static void append_all(struct token_ids *ids, const struct token_ids *more)
{
    for (size_t i = 0; i < more->len; i++)
        token_ids_append(ids, more->items[i]);
}

int32_t *tokenizer_encode(const struct tokenizer *tokenizer, struct str text,
                          bool add_special_tokens, struct arena *arena, int32_t *num_tokens)
{
    CHECK(text.len <= INT32_MAX); // ids are counted in 32 bits; requests are far smaller
    struct encoding encoding = {.tokenizer = tokenizer};
    if (add_special_tokens)
        append_all(&encoding.ids, &tokenizer->post_processor.prefix);

    text = make_valid(text, &encoding.scratch);
    struct added_token_scan scan;
    struct added_token_part part;
    added_token_scan_init(&scan, &tokenizer->raw_trie, text);
    while (added_token_scan_next(&scan, &part)) {
        if (part.token)
            token_ids_append(&encoding.ids, part.token->id);
        else
            encode_raw_part(&encoding, str_slice(text, part.start, part.end), part.start == 0);
    }

    if (add_special_tokens)
        append_all(&encoding.ids, &tokenizer->post_processor.suffix);
    CHECK(encoding.ids.len <= INT32_MAX);
    *num_tokens = (int32_t)encoding.ids.len;
    int32_t *ids = arena_array(arena, int32_t, encoding.ids.len);
    if (encoding.ids.len > 0)
        memcpy(ids, encoding.ids.items, encoding.ids.len * sizeof(*ids));
    token_ids_deinit(&encoding.ids);
    arena_deinit(&encoding.scratch);
    return ids;
}

struct str tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int32_t num_ids,
                            bool skip_special_tokens, struct arena *arena)
{
    struct str *tokens = arena_array(arena, struct str, num_ids);
    size_t num_tokens = 0;
    for (int32_t i = 0; i < num_ids; i++) {
        struct str token = tokenizer_id_to_token(tokenizer, ids[i]);
        if (token.len == 0 || (skip_special_tokens && tokenizer_is_special(tokenizer, ids[i])))
            continue;
        tokens[num_tokens++] = token;
    }
    return decoder_apply(tokenizer->decoder, tokens, num_tokens, arena);
}

int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary.size;
}

int32_t tokenizer_token_to_id(const struct tokenizer *tokenizer, struct str token)
{
    int64_t index;
    if (hashmap_get(&tokenizer->added_indices, token, &index))
        return tokenizer->added_tokens[index].id;
    return vocabulary_find(&tokenizer->vocabulary, token);
}

struct str tokenizer_id_to_token(const struct tokenizer *tokenizer, int32_t id)
{
    return vocabulary_token(&tokenizer->vocabulary, id);
}

struct str tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, struct arena *arena)
{
    struct str token = tokenizer_id_to_token(tokenizer, id);
    if (token.len == 0 || tokenizer_is_special(tokenizer, id))
        return (struct str){0};
    return decoder_token_bytes(tokenizer->decoder, token, arena);
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->vocabulary.size &&
           (tokenizer->special_bits[id / 8] >> (id % 8) & 1) != 0;
}

bool tokenizer_is_added(const struct tokenizer *tokenizer, int32_t id)
{
    for (size_t i = 0; i < tokenizer->num_added_tokens; i++) {
        if (tokenizer->added_tokens[i].id == id)
            return true;
    }
    return false;
}

int32_t tokenizer_max_token_bytes(const struct tokenizer *tokenizer)
{
    return tokenizer->max_token_bytes;
}
