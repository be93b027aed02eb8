// Reads a tokenizer.json. The vocabulary and the merges, which are nearly all of it, are streamed
// straight into their tables; the few small objects go through a JSON tree. Members may come in any
// order. "version", "truncation" and "padding" say nothing about how one text is encoded here: the
// server refuses what is too long and pads nothing.
#include <inttypes.h>

#include "base/buf.h"
#include "base/json_reader.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "tokenizer/component.h"
#include "tokenizer/tokenizer_parts.h"

#define MAX_FILE_BYTES (SIZE_MAX < ((size_t)1 << 30) ? SIZE_MAX : ((size_t)1 << 30))

/** What is read before it can be put in its place. */
struct loading {
    struct tokenizer *tokenizer;
    struct json_reader reader;
    struct arena arena;
    bool has_model, has_vocab;

    struct json_reader merges; // where they begin, in case they come before the vocabulary
    bool has_merges, merges_are_read;
    struct merge *merge_list;
    size_t num_merges, merges_capacity;
    struct buf joined;
    struct str unk_token; // ptr NULL: none

    struct raw_added_token *added;
    size_t num_added, added_capacity;
    struct str normalizer, pretokenizer, post_processor, decoder; // their JSON; empty: absent
};

struct raw_added_token {
    struct added_token token; // but for the id
    int64_t id;
};

// Added tokens

static enum status read_added_token(struct loading *loading, struct raw_added_token *added,
                                    struct error *err)
{
    struct json_reader *reader = &loading->reader;
    bool has_id = false, has_content = false, has_normalized = false;
    *added = (struct raw_added_token){0};
    struct added_token *token = &added->token;
    TRY(json_reader_expect(reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (str_eq_c(key, "id")) {
            TRY(json_reader_read_int(reader, &added->id, err));
            has_id = true;
        } else if (str_eq_c(key, "content")) {
            TRY(json_reader_read_string(reader, &token->content, err));
            has_content = true;
        } else if (str_eq_c(key, "special")) {
            TRY(json_reader_read_bool(reader, &token->special, err));
        } else if (str_eq_c(key, "normalized")) {
            TRY(json_reader_read_bool(reader, &token->normalized, err));
            has_normalized = true;
        } else if (str_eq_c(key, "lstrip")) {
            TRY(json_reader_read_bool(reader, &token->lstrip, err));
        } else if (str_eq_c(key, "rstrip")) {
            TRY(json_reader_read_bool(reader, &token->rstrip, err));
        } else if (str_eq_c(key, "single_word")) {
            TRY(json_reader_read_bool(reader, &token->single_word, err));
        } else {
            json_reader_skip_value(reader);
        }
    }
    TRY(json_reader_status(reader, err));
    if (!has_id || !has_content)
        return error_set(err, STATUS_INVALID,
                         "at byte %zu: an added token needs \"id\" and \"content\"",
                         reader->offset);
    if (!has_normalized)
        token->normalized = !token->special;
    return STATUS_OK;
}

static enum status read_added_tokens(struct loading *loading, struct error *err)
{
    TRY(json_reader_expect(&loading->reader, JSON_TOKEN_ARRAY_BEGIN, err));
    while (json_reader_next_element(&loading->reader)) {
        if (loading->num_added == loading->added_capacity) {
            loading->added_capacity = loading->added_capacity * 2 + 32;
            loading->added =
                xrealloc(loading->added, loading->added_capacity * sizeof(*loading->added));
        }
        TRY(read_added_token(loading, &loading->added[loading->num_added], err));
        if (loading->added[loading->num_added].token.content.len > 0)
            loading->num_added++; // an empty one is never found
    }
    return json_reader_status(&loading->reader, err);
}

// The model

static enum status read_vocab(struct loading *loading, struct error *err)
{
    if (loading->has_vocab)
        return error_set(err, STATUS_INVALID, "two vocabularies");
    loading->has_vocab = true;
    TRY(json_reader_expect(&loading->reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str token; json_reader_next_key(&loading->reader, &token);) {
        int64_t id;
        TRY(json_reader_read_int(&loading->reader, &id, err));
        TRY(vocabulary_add(&loading->tokenizer->vocabulary, token, id, err));
    }
    return json_reader_status(&loading->reader, err);
}

static enum status merge_id(const struct loading *loading, const char *what, struct str token,
                            size_t line, int32_t *id, struct error *err)
{
    *id = vocabulary_find(&loading->tokenizer->vocabulary, token);
    if (*id >= 0)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "line %zu of the merges: its %s '" STR_FORMAT "' is not in the vocabulary",
                     line, what, STR_ARG(str_slice(token, 0, 100)));
}

static enum status add_merge(struct loading *loading, struct str left, struct str right,
                             size_t line, struct error *err)
{
    struct merge merge = {.rank = (int32_t)loading->num_merges};
    TRY(merge_id(loading, "left part", left, line, &merge.left, err));
    TRY(merge_id(loading, "right part", right, line, &merge.right, err));
    buf_clear(&loading->joined);
    buf_append(&loading->joined, left);
    buf_append(&loading->joined, right);
    TRY(merge_id(loading, "result", buf_str(&loading->joined), line, &merge.merged, err));
    if (loading->num_merges == loading->merges_capacity) {
        loading->merges_capacity = loading->merges_capacity * 2 + 1024;
        loading->merge_list =
            xrealloc(loading->merge_list, loading->merges_capacity * sizeof(*loading->merge_list));
    }
    loading->merge_list[loading->num_merges++] = merge;
    return STATUS_OK;
}

/** "left right": parted by the one blank, and by nothing else that looks like one. */
static enum status add_merge_line(struct loading *loading, struct str text, size_t line,
                                  struct error *err)
{
    if (str_starts_with(text, STR("#version")))
        return STATUS_OK;
    size_t blank = str_find(text, STR(" "), 0);
    if (blank == STR_NOT_FOUND || str_find(text, STR(" "), blank + 1) != STR_NOT_FOUND)
        return error_set(err, STATUS_INVALID,
                         "line %zu of the merges: expected two parts with one blank between them, "
                         "found '" STR_FORMAT "'",
                         line, STR_ARG(str_slice(text, 0, 100)));
    return add_merge(loading, str_slice(text, 0, blank), str_slice(text, blank + 1, text.len), line,
                     err);
}

static enum status read_merge_pair(struct loading *loading, struct json_reader *reader, size_t line,
                                   struct error *err)
{
    struct str parts[2];
    size_t num_parts = 0;
    TRY(json_reader_expect(reader, JSON_TOKEN_ARRAY_BEGIN, err));
    for (; json_reader_next_element(reader); num_parts++) {
        struct str part;
        TRY(json_reader_read_string(reader, &part, err));
        if (num_parts < 2)
            parts[num_parts] = part;
    }
    TRY(json_reader_status(reader, err));
    if (num_parts != 2)
        return error_set(err, STATUS_INVALID,
                         "line %zu of the merges: expected a pair, found %zu parts", line,
                         num_parts);
    return add_merge(loading, parts[0], parts[1], line, err);
}

static enum status read_merges(struct loading *loading, struct json_reader *reader,
                               struct error *err)
{
    loading->merges_are_read = true;
    TRY(json_reader_expect(reader, JSON_TOKEN_ARRAY_BEGIN, err));
    for (size_t line = 1; json_reader_next_element(reader); line++) {
        if (json_reader_peek(reader) == JSON_TOKEN_STRING) {
            json_reader_next(reader);
            TRY(add_merge_line(loading, reader->string, line, err));
        } else {
            TRY(read_merge_pair(loading, reader, line, err));
        }
    }
    return json_reader_status(reader, err);
}

/** A string or null (then `*out` is left alone). */
static enum status read_optional_string(struct json_reader *reader, struct str *out,
                                        struct error *err)
{
    if (json_reader_peek(reader) == JSON_TOKEN_NULL) {
        json_reader_next(reader);
        return STATUS_OK;
    }
    return json_reader_read_string(reader, out, err);
}

static enum status refuse_affix(struct json_reader *reader, const char *name, struct error *err)
{
    struct str affix = {0};
    TRY(read_optional_string(reader, &affix, err));
    if (affix.len == 0)
        return STATUS_OK;
    return error_set_field(err, STATUS_UNSUPPORTED, name,
                           "%s '" STR_FORMAT "' is not supported; only an empty one is", name,
                           STR_ARG(str_slice(affix, 0, 100)));
}

static enum status refuse_dropout(struct json_reader *reader, struct error *err)
{
    enum json_token token = json_reader_next(reader);
    TRY(json_reader_status(reader, err));
    bool is_number = token == JSON_TOKEN_INTEGER || token == JSON_TOKEN_DOUBLE;
    if (token == JSON_TOKEN_NULL || (is_number && reader->number == 0))
        return STATUS_OK;
    return error_set_field(err, STATUS_UNSUPPORTED, "dropout",
                           "dropout must be null or 0: with it the same text has different tokens");
}

static enum status read_optional_bool(struct json_reader *reader, bool *out, struct error *err)
{
    if (json_reader_peek(reader) == JSON_TOKEN_NULL) {
        json_reader_next(reader);
        return STATUS_OK;
    }
    return json_reader_read_bool(reader, out, err);
}

static enum status read_model_type(struct json_reader *reader, struct error *err)
{
    struct str type;
    TRY(json_reader_read_string(reader, &type, err));
    if (str_eq_c(type, "BPE"))
        return STATUS_OK;
    return error_set_field(err, STATUS_UNSUPPORTED, "model",
                           "model type '" STR_FORMAT "' is not supported; supported is BPE",
                           STR_ARG(str_slice(type, 0, 100)));
}

static enum status read_model_member(struct loading *loading, struct str key, struct error *err)
{
    struct json_reader *reader = &loading->reader;
    struct bpe *bpe = &loading->tokenizer->bpe;
    if (str_eq_c(key, "type"))
        return read_model_type(reader, err);
    if (str_eq_c(key, "vocab"))
        return read_vocab(loading, err);
    if (str_eq_c(key, "merges")) {
        if (loading->has_merges)
            return error_set(err, STATUS_INVALID, "two lists of merges");
        loading->has_merges = true;
        if (loading->has_vocab)
            return read_merges(loading, reader, err);
        loading->merges = *reader;
        json_reader_skip_value(reader);
        return STATUS_OK;
    }
    if (str_eq_c(key, "dropout"))
        return refuse_dropout(reader, err);
    if (str_eq_c(key, "unk_token"))
        return read_optional_string(reader, &loading->unk_token, err);
    if (str_eq_c(key, "continuing_subword_prefix"))
        return refuse_affix(reader, "continuing_subword_prefix", err);
    if (str_eq_c(key, "end_of_word_suffix"))
        return refuse_affix(reader, "end_of_word_suffix", err);
    if (str_eq_c(key, "fuse_unk"))
        return read_optional_bool(reader, &bpe->fuse_unk, err);
    if (str_eq_c(key, "byte_fallback"))
        return read_optional_bool(reader, &bpe->byte_fallback, err);
    if (str_eq_c(key, "ignore_merges"))
        return read_optional_bool(reader, &bpe->ignore_merges, err);
    json_reader_skip_value(reader);
    return STATUS_OK;
}

static enum status read_model(struct loading *loading, struct error *err)
{
    if (loading->has_model)
        return error_set(err, STATUS_INVALID, "two models");
    loading->has_model = true;
    TRY(json_reader_expect(&loading->reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(&loading->reader, &key);)
        TRY(read_model_member(loading, key, err));
    TRY(json_reader_status(&loading->reader, err));
    if (!loading->has_vocab || !loading->has_merges)
        return error_set(err, STATUS_INVALID, "the model has no %s",
                         loading->has_vocab ? "merges" : "vocab");
    if (!loading->merges_are_read)
        TRY(read_merges(loading, &loading->merges, err));
    bpe_set_merges(&loading->tokenizer->bpe, loading->merge_list, loading->num_merges);
    return STATUS_OK;
}

// The file

/** The bytes of the next value. */
static struct str skip_slice(struct json_reader *reader)
{
    json_reader_peek(reader);
    size_t start = reader->token_offset;
    json_reader_skip_value(reader);
    return str_slice(reader->text, start, reader->offset);
}

static enum status read_members(struct loading *loading, struct error *err)
{
    struct json_reader *reader = &loading->reader;
    TRY(json_reader_expect(reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (str_eq_c(key, "added_tokens"))
            TRY(read_added_tokens(loading, err));
        else if (str_eq_c(key, "model"))
            TRY(read_model(loading, err));
        else if (str_eq_c(key, "normalizer"))
            loading->normalizer = skip_slice(reader);
        else if (str_eq_c(key, "pre_tokenizer"))
            loading->pretokenizer = skip_slice(reader);
        else if (str_eq_c(key, "post_processor"))
            loading->post_processor = skip_slice(reader);
        else if (str_eq_c(key, "decoder"))
            loading->decoder = skip_slice(reader);
        else
            json_reader_skip_value(reader);
    }
    TRY(json_reader_expect(reader, JSON_TOKEN_END, err));
    if (!loading->has_model)
        return error_set(err, STATUS_INVALID, "no \"model\" in it");
    return STATUS_OK;
}

/** Parses a component's JSON; empty: NULL. */
static enum status parse_component(struct str text, json_t **out, struct error *err)
{
    json_error_t json_error;
    *out = NULL;
    if (text.len == 0)
        return STATUS_OK;
    *out = json_loadb(text.ptr, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &json_error);
    if (!*out)
        return error_set(err, STATUS_INVALID, "malformed JSON: %s", json_error.text);
    return STATUS_OK;
}

static enum status build_components(struct loading *loading, struct error *err)
{
    struct tokenizer *tokenizer = loading->tokenizer;
    const struct {
        const char *name;
        struct str text;
    } parts[] = {{"normalizer", loading->normalizer},
                 {"pre_tokenizer", loading->pretokenizer},
                 {"post_processor", loading->post_processor},
                 {"decoder", loading->decoder}};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        json_t *json = NULL;
        enum status status = parse_component(parts[i].text, &json, err);
        if (status == STATUS_OK && i == 0)
            status = normalizer_create(&tokenizer->normalizer, json, err);
        else if (status == STATUS_OK && i == 1)
            status = pretokenizer_create(&tokenizer->pretokenizer, json, err);
        else if (status == STATUS_OK && i == 2)
            status = post_processor_init(&tokenizer->post_processor, json,
                                         tokenizer->vocabulary.size, err);
        else if (status == STATUS_OK)
            status = decoder_create(&tokenizer->decoder, json, err);
        json_decref(json);
        if (status != STATUS_OK) {
            error_prefix(err, "%s", parts[i].name);
            return status;
        }
    }
    return STATUS_OK;
}

/** Gives each added token its id: the model's own if it knows the spelling, else the file's. */
static enum status place_added_tokens(struct loading *loading, struct error *err)
{
    struct tokenizer *tokenizer = loading->tokenizer;
    struct vocabulary *vocabulary = &tokenizer->vocabulary;
    tokenizer->added_tokens = xcalloc(loading->num_added + 1, sizeof(*tokenizer->added_tokens));
    for (size_t i = 0; i < loading->num_added; i++) {
        struct added_token token = loading->added[i].token;
        int64_t index;
        if (hashmap_get(&tokenizer->added_indices, token.content, &index)) {
            token.id = tokenizer->added_tokens[index].id; // said twice: the last one counts
            tokenizer->added_tokens[index] = token;
            continue;
        }
        token.id = vocabulary_find(vocabulary, token.content);
        if (token.id < 0) {
            int64_t id = loading->added[i].id;
            struct str other = id >= 0 && id < vocabulary->size
                                   ? vocabulary_token(vocabulary, (int32_t)id)
                                   : (struct str){0};
            if (other.len > 0)
                return error_set(err, STATUS_INVALID,
                                 "added token '" STR_FORMAT "' has id %" PRId64
                                 ", which is that of '" STR_FORMAT "'",
                                 STR_ARG(str_slice(token.content, 0, 100)), id,
                                 STR_ARG(str_slice(other, 0, 100)));
            TRY(vocabulary_add_spelling(vocabulary, token.content, id, err));
            token.id = (int32_t)id;
        }
        tokenizer->added_tokens[tokenizer->num_added_tokens] = token;
        hashmap_set(&tokenizer->added_indices, token.content,
                    (int64_t)tokenizer->num_added_tokens++);
    }
    return STATUS_OK;
}

/** Points the contents at the vocabulary's block, which moves no more, and builds what needs it. */
static void index_added_tokens(struct tokenizer *tokenizer)
{
    tokenizer->special_bits = xcalloc((size_t)tokenizer->vocabulary.size / 8 + 1, 1);
    hashmap_deinit(&tokenizer->added_indices);
    hashmap_reserve(&tokenizer->added_indices, tokenizer->num_added_tokens);
    for (size_t i = 0; i < tokenizer->num_added_tokens; i++) {
        struct added_token *token = &tokenizer->added_tokens[i];
        token->content = vocabulary_token(&tokenizer->vocabulary, token->id);
        hashmap_set(&tokenizer->added_indices, token->content, (int64_t)i);
        if (token->special)
            tokenizer->special_bits[token->id / 8] |= (uint8_t)(1u << (token->id % 8));
    }
}

/** Special tokens first: of two with the same normalized spelling they are the ones found. */
static void build_tries(struct tokenizer *tokenizer)
{
    struct arena scratch = {0};
    for (int special = 1; special >= 0; special--) {
        for (size_t i = 0; i < tokenizer->num_added_tokens; i++) {
            const struct added_token *token = &tokenizer->added_tokens[i];
            if (token->special != (special == 1))
                continue;
            if (token->normalized)
                added_token_trie_add(
                    &tokenizer->normalized_trie,
                    normalizer_apply(tokenizer->normalizer, token->content, &scratch), token);
            else
                added_token_trie_add(&tokenizer->raw_trie, token->content, token);
        }
    }
    arena_deinit(&scratch);
}

static void measure_tokens(struct tokenizer *tokenizer)
{
    size_t longest = 1;
    for (int32_t id = 0; id < tokenizer->vocabulary.size; id++) {
        struct str token = vocabulary_token(&tokenizer->vocabulary, id);
        size_t bytes = decoder_max_bytes(tokenizer->decoder, token);
        longest = bytes > longest ? bytes : longest;
    }
    tokenizer->max_token_bytes = (int32_t)longest;
}

static enum status resolve_unk(struct loading *loading, struct error *err)
{
    struct tokenizer *tokenizer = loading->tokenizer;
    tokenizer->bpe.unk_id = -1;
    if (!loading->unk_token.ptr)
        return STATUS_OK;
    tokenizer->bpe.unk_id = tokenizer_token_to_id(tokenizer, loading->unk_token);
    if (tokenizer->bpe.unk_id >= 0)
        return STATUS_OK;
    return error_set_field(err, STATUS_INVALID, "unk_token",
                           "unk_token '" STR_FORMAT "' is not in the vocabulary",
                           STR_ARG(str_slice(loading->unk_token, 0, 100)));
}

static enum status load(struct loading *loading, struct error *err)
{
    TRY(read_members(loading, err));
    TRY(place_added_tokens(loading, err));
    index_added_tokens(loading->tokenizer);
    TRY(resolve_unk(loading, err));
    bpe_prepare(&loading->tokenizer->bpe, &loading->tokenizer->vocabulary);
    TRY(build_components(loading, err));
    build_tries(loading->tokenizer);
    measure_tokens(loading->tokenizer);
    return STATUS_OK;
}

enum status tokenizer_parse(struct tokenizer **out, struct str json, const char *name,
                            struct error *err)
{
    *out = NULL;
    if (json.len > MAX_FILE_BYTES)
        return error_set(err, STATUS_TOO_LARGE, "%s: %zu bytes; at most %zu", name, json.len,
                         MAX_FILE_BYTES);
    struct loading loading = {.tokenizer = xcalloc(1, sizeof(struct tokenizer))};
    json_reader_init(&loading.reader, json, &loading.arena);
    enum status status = load(&loading, err);
    free(loading.merge_list);
    free(loading.added);
    buf_deinit(&loading.joined);
    arena_deinit(&loading.arena);
    if (status != STATUS_OK) {
        error_prefix(err, "%s", name);
        tokenizer_destroy(loading.tokenizer);
        return status;
    }
    *out = loading.tokenizer;
    return STATUS_OK;
}

enum status tokenizer_load(struct tokenizer **out, const char *path, struct error *err)
{
    struct mapped_file file;
    *out = NULL;
    TRY(mapped_file_open(&file, path, err));
    enum status status = tokenizer_parse(out, mapped_file_str(&file), path, err);
    mapped_file_close(&file);
    return status;
}
