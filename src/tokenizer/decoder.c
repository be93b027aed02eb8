// A decoder is a chain of steps; each turns the list of spellings into another list, and what is
// left in the end is joined.
#include "tokenizer/decoder.h"

#include "base/buf.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/component.h"
#include "tokenizer/pattern.h"

enum step_kind {
    STEP_BYTE_LEVEL,
    STEP_BYTE_FALLBACK,
    STEP_FUSE,
    STEP_STRIP,
    STEP_REPLACE,
    STEP_METASPACE,
    STEP_BPE_SUFFIX,
};

struct step {
    enum step_kind kind;
    char *content; // what STRIP removes, REPLACE puts in, METASPACE and BPE_SUFFIX look for
    size_t content_len;
    size_t start, stop; // of STRIP: how many at either end
    bool keeps_first;   // of METASPACE: a mark at the very start is a blank, too
    struct pattern *pattern;
};

struct decoder {
    struct step steps[COMPONENT_MAX_PARTS];
    int num_steps;
    bool joins_with_blanks;
};

// Replacements may lengthen the text up to this: a chain of them could otherwise double it without
// end. Beyond it the rest is left as it is.
static size_t max_replaced_len(size_t len)
{
    return len * 64 + 64 * 1024;
}

/** The spellings between two steps. */
struct spellings {
    struct str *items;
    size_t len;
    struct arena *arena;
};

static struct str step_content(const struct step *step)
{
    return (struct str){step->content, step->content_len};
}

// Reading

static enum status read_content(struct step *step, const json_t *json, const char *key,
                                struct error *err)
{
    struct str content;
    TRY(component_string(json, key, &content, err));
    step->content = xstrndup(content.ptr, content.len);
    step->content_len = content.len;
    return STATUS_OK;
}

static enum status check_character(const struct step *step, const char *key, struct error *err)
{
    struct str content = step_content(step);
    if (content.len > 0 && utf8_valid_len(content) == content.len)
        return STATUS_OK;
    return error_set_field(err, STATUS_INVALID, key,
                           "decoder: \"%s\" must be one character, found '" STR_FORMAT "'", key,
                           STR_ARG(str_slice(content, 0, 100)));
}

static enum status read_strip(struct step *step, const json_t *json, struct error *err)
{
    json_int_t start, stop;
    TRY(read_content(step, json, "content", err));
    TRY(check_character(step, "content", err));
    TRY(component_int(json, "start", INT32_MAX, &start, err));
    TRY(component_int(json, "stop", INT32_MAX, &stop, err));
    step->start = (size_t)start;
    step->stop = (size_t)stop;
    return STATUS_OK;
}

static enum status read_metaspace(struct step *step, const json_t *json, struct error *err)
{
    TRY(read_content(step, json, "replacement", err));
    TRY(check_character(step, "replacement", err));
    bool add_prefix_space = true; // the older spelling
    TRY(component_bool(json, "add_prefix_space", &add_prefix_space, err));
    step->keeps_first = !add_prefix_space;
    if (!json_object_get(json, "prepend_scheme"))
        return STATUS_OK;
    struct str scheme;
    TRY(component_string(json, "prepend_scheme", &scheme, err));
    step->keeps_first = str_eq_c(scheme, "never");
    if (!step->keeps_first && !str_eq_c(scheme, "always") && !str_eq_c(scheme, "first"))
        return error_set_field(err, STATUS_INVALID, "prepend_scheme",
                               "unknown prepend_scheme '" STR_FORMAT
                               "'; expected always, first or never",
                               STR_ARG(str_slice(scheme, 0, 100)));
    return STATUS_OK;
}

static enum status read_step(struct step *step, const json_t *json, struct str type,
                             struct error *err)
{
    *step = (struct step){0};
    if (str_eq_c(type, "ByteLevel")) {
        step->kind = STEP_BYTE_LEVEL;
        return STATUS_OK;
    }
    if (str_eq_c(type, "ByteFallback")) {
        step->kind = STEP_BYTE_FALLBACK;
        return STATUS_OK;
    }
    if (str_eq_c(type, "Fuse")) {
        step->kind = STEP_FUSE;
        return STATUS_OK;
    }
    if (str_eq_c(type, "Strip")) {
        step->kind = STEP_STRIP;
        return read_strip(step, json, err);
    }
    if (str_eq_c(type, "Metaspace")) {
        step->kind = STEP_METASPACE;
        return read_metaspace(step, json, err);
    }
    if (str_eq_c(type, "Replace")) {
        step->kind = STEP_REPLACE;
        TRY(read_content(step, json, "content", err));
        return component_pattern(json, &step->pattern, err);
    }
    if (str_eq_c(type, "BPEDecoder")) {
        step->kind = STEP_BPE_SUFFIX;
        TRY(read_content(step, json, "suffix", err));
        if (step->content_len == 0)
            return error_set_field(err, STATUS_INVALID, "suffix",
                                   "decoder: \"suffix\" must not be empty");
        return pattern_create_literal(&step->pattern, step_content(step), err);
    }
    return error_set_field(err, STATUS_UNSUPPORTED, "decoder",
                           "decoder '" STR_FORMAT
                           "' is not supported; supported are ByteLevel, ByteFallback, Fuse, "
                           "Strip, Replace, Metaspace, BPEDecoder, Sequence",
                           STR_ARG(str_slice(type, 0, 100)));
}

static enum status read_steps(struct decoder *decoder, const json_t *json, int depth,
                              struct error *err)
{
    struct str type;
    TRY(component_type(json, &type, err));
    if (!str_eq_c(type, "Sequence")) {
        if (decoder->num_steps == COMPONENT_MAX_PARTS)
            return error_set(err, STATUS_TOO_LARGE, "more than %d decoders", COMPONENT_MAX_PARTS);
        return read_step(&decoder->steps[decoder->num_steps++], json, type, err);
    }
    if (depth == COMPONENT_MAX_DEPTH)
        return error_set(err, STATUS_TOO_LARGE, "more than %d decoder sequences in each other",
                         COMPONENT_MAX_DEPTH);
    const json_t *array;
    TRY(component_array(json, "decoders", &array, err));
    for (size_t i = 0; i < json_array_size(array); i++)
        TRY(read_steps(decoder, json_array_get(array, i), depth + 1, err));
    return STATUS_OK;
}

enum status decoder_create(struct decoder **out, const json_t *json, struct error *err)
{
    struct decoder *decoder = xcalloc(1, sizeof(*decoder));
    *out = NULL;
    decoder->joins_with_blanks = !json || json_is_null(json);
    if (!decoder->joins_with_blanks) {
        enum status status = read_steps(decoder, json, 0, err);
        if (status != STATUS_OK) {
            decoder_destroy(decoder);
            return status;
        }
    }
    *out = decoder;
    return STATUS_OK;
}

void decoder_destroy(struct decoder *decoder)
{
    if (!decoder)
        return;
    for (int i = 0; i < decoder->num_steps; i++) {
        pattern_destroy(decoder->steps[i].pattern);
        free(decoder->steps[i].content);
    }
    free(decoder);
}

// Applying

/** Bytes as text: each longest part that could have begun a character becomes one U+FFFD. */
static struct str bytes_to_text(struct str bytes, struct arena *arena)
{
    if (utf8_is_valid(bytes, NULL))
        return bytes;
    char *out = arena_alloc(arena, bytes.len * 3);
    size_t len = 0;
    for (size_t i = 0; i < bytes.len;) {
        struct str rest = str_slice(bytes, i, bytes.len);
        size_t valid = utf8_valid_len(rest);
        if (valid > 0) {
            memcpy(out + len, rest.ptr, valid);
            len += valid;
            i += valid;
            continue;
        }
        // The longest beginning that is incomplete rather than wrong: up to three bytes.
        size_t skip = 1;
        for (size_t n = 2; n <= 3 && n <= rest.len; n++)
            if (utf8_complete_prefix(str_slice(rest, 0, n)) == 0)
                skip = n;
        len += utf8_encode(0xFFFD, out + len);
        i += skip;
    }
    return (struct str){out, len};
}

static size_t total_len(const struct spellings *spellings)
{
    size_t total = 0;
    for (size_t i = 0; i < spellings->len; i++)
        total += spellings->items[i].len;
    return total;
}

static void set_single(struct spellings *spellings, struct str text)
{
    // An empty list stays one: nothing was decoded.
    if (spellings->len == 0)
        return;
    spellings->items[0] = text;
    spellings->len = 1;
}

static void apply_byte_level(struct spellings *spellings)
{
    char *bytes = arena_alloc(spellings->arena, total_len(spellings));
    size_t len = 0, token_len;
    for (size_t i = 0; i < spellings->len; i++) {
        struct str token = spellings->items[i];
        if (byte_level_decode(token, bytes + len, &token_len)) {
            len += token_len;
        } else { // not of the alphabet: stands for itself
            memcpy(bytes + len, token.ptr, token.len);
            len += token.len;
        }
    }
    set_single(spellings, bytes_to_text((struct str){bytes, len}, spellings->arena));
}

/** The byte that <0x41> names; -1: it is another token. */
static int byte_token(struct str token)
{
    if (token.len != 6 || memcmp(token.ptr, "<0x", 3) != 0 || token.ptr[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = token.ptr[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/** A run of byte tokens is the text that its bytes spell; if they spell none, a U+FFFD each. */
static struct str run_to_text(struct str bytes, struct arena *arena)
{
    if (utf8_is_valid(bytes, NULL))
        return bytes;
    char *out = arena_alloc(arena, bytes.len * 3);
    for (size_t i = 0; i < bytes.len; i++)
        utf8_encode(0xFFFD, out + 3 * i);
    return (struct str){out, bytes.len * 3};
}

static void apply_byte_fallback(struct spellings *spellings)
{
    char *bytes = arena_alloc(spellings->arena, spellings->len);
    size_t num_bytes = 0, run_start = 0, num_out = 0;
    for (size_t i = 0; i <= spellings->len; i++) {
        int byte = i < spellings->len ? byte_token(spellings->items[i]) : -1;
        if (byte >= 0) {
            bytes[num_bytes++] = (char)byte;
            continue;
        }
        if (num_bytes > run_start)
            spellings->items[num_out++] = run_to_text(
                (struct str){bytes + run_start, num_bytes - run_start}, spellings->arena);
        run_start = num_bytes;
        if (i < spellings->len)
            spellings->items[num_out++] = spellings->items[i];
    }
    spellings->len = num_out;
}

static struct str join(const struct spellings *spellings, struct str separator)
{
    if (spellings->len == 1)
        return spellings->items[0];
    char *out =
        arena_alloc(spellings->arena, total_len(spellings) + spellings->len * separator.len);
    size_t len = 0;
    for (size_t i = 0; i < spellings->len; i++) {
        if (i > 0 && separator.len > 0) {
            memcpy(out + len, separator.ptr, separator.len);
            len += separator.len;
        }
        if (spellings->items[i].len > 0)
            memcpy(out + len, spellings->items[i].ptr, spellings->items[i].len);
        len += spellings->items[i].len;
    }
    return (struct str){out, len};
}

static struct str strip(const struct step *step, struct str token)
{
    struct str content = step_content(step);
    for (size_t i = 0; i < step->start && str_starts_with(token, content); i++)
        token = str_slice(token, content.len, token.len);
    for (size_t i = 0; i < step->stop && str_ends_with(token, content); i++)
        token.len -= content.len;
    return token;
}

/** REPLACE puts its content in place of each match; BPE_SUFFIX a blank, but nothing at the end. */
static void replace_all(const struct step *step, struct spellings *spellings)
{
    struct pattern_search search;
    pattern_search_init(&search, step->pattern);
    struct buf out = {0};
    for (size_t i = 0; i < spellings->len; i++) {
        struct str token = spellings->items[i];
        struct str content = step_content(step);
        if (step->kind == STEP_BPE_SUFFIX)
            content = i + 1 < spellings->len ? STR(" ") : (struct str){0};
        size_t copied = 0, start, end;
        size_t max_len = max_replaced_len(token.len);
        bool found = false;
        pattern_search_start(&search, token);
        buf_clear(&out);
        while (out.len < max_len && pattern_search_next(&search, &start, &end)) {
            found = true;
            buf_append(&out, str_slice(token, copied, start));
            buf_append(&out, content);
            copied = end;
        }
        if (!found)
            continue;
        buf_append(&out, str_slice(token, copied, token.len));
        spellings->items[i] = arena_str(spellings->arena, buf_str(&out));
    }
    buf_deinit(&out);
    pattern_search_deinit(&search);
}

/** Marks become blanks; in the first token they vanish unless `keeps_first`. */
static struct str unmark(const struct step *step, struct str token, bool first, struct arena *arena)
{
    struct str mark = step_content(step);
    if (str_find(token, mark, 0) == STR_NOT_FOUND)
        return token;
    char *out = arena_alloc(arena, token.len);
    size_t len = 0;
    for (size_t i = 0; i < token.len;) {
        if (!str_starts_with(str_slice(token, i, token.len), mark)) {
            out[len++] = token.ptr[i++];
            continue;
        }
        if (!first || step->keeps_first)
            out[len++] = ' ';
        i += mark.len;
    }
    return (struct str){out, len};
}

static void apply_step(const struct step *step, struct spellings *spellings)
{
    switch (step->kind) {
    case STEP_BYTE_LEVEL:
        apply_byte_level(spellings);
        break;
    case STEP_BYTE_FALLBACK:
        apply_byte_fallback(spellings);
        break;
    case STEP_FUSE:
        set_single(spellings, join(spellings, (struct str){0}));
        break;
    case STEP_STRIP:
        for (size_t i = 0; i < spellings->len; i++)
            spellings->items[i] = strip(step, spellings->items[i]);
        break;
    case STEP_REPLACE:
    case STEP_BPE_SUFFIX:
        replace_all(step, spellings);
        break;
    case STEP_METASPACE:
        for (size_t i = 0; i < spellings->len; i++)
            spellings->items[i] = unmark(step, spellings->items[i], i == 0, spellings->arena);
        break;
    }
}

struct str decoder_apply(const struct decoder *decoder, struct str *tokens, size_t num_tokens,
                         struct arena *arena)
{
    struct spellings spellings = {tokens, num_tokens, arena};
    size_t max_len = max_replaced_len(total_len(&spellings));
    for (int i = 0; i < decoder->num_steps && total_len(&spellings) <= max_len; i++)
        apply_step(&decoder->steps[i], &spellings);
    return join(&spellings, decoder->joins_with_blanks ? STR(" ") : (struct str){0});
}

size_t decoder_max_bytes(const struct decoder *decoder, struct str token)
{
    size_t max_bytes = token.len + decoder->joins_with_blanks;
    for (int i = 0; i < decoder->num_steps; i++) {
        const struct step *step = &decoder->steps[i];
        if (step->kind == STEP_BYTE_LEVEL) {
            char small[256]; // one byte a character
            size_t len;
            if (i == 0 && token.len <= sizeof(small) && byte_level_decode(token, small, &len))
                max_bytes = len;
        } else if (step->kind == STEP_REPLACE) {
            size_t literal_len = pattern_literal_len(step->pattern);
            if (literal_len == 0) // at most one a byte of the spelling, and one behind the last
                max_bytes += (max_bytes + 1) * step->content_len;
            else if (step->content_len > literal_len)
                max_bytes += max_bytes / literal_len * (step->content_len - literal_len);
        }
    }
    return max_bytes < INT32_MAX ? max_bytes : INT32_MAX;
}

struct str decoder_token_bytes(const struct decoder *decoder, struct str token, struct arena *arena)
{
    // Between two others, so that no rule for either end of a text applies.
    struct str three[3] = {STR("a"), token, STR("a")};
    struct spellings spellings = {three, 3, arena};
    char *bytes;
    size_t len;
    for (int i = 0; i < decoder->num_steps; i++) {
        const struct step *step = &decoder->steps[i];
        if (step->kind == STEP_FUSE)
            break; // what follows sees the whole text
        if (step->kind == STEP_BYTE_LEVEL) {
            bytes = arena_alloc(arena, three[1].len + 1);
            if (byte_level_decode(three[1], bytes, &len))
                three[1] = (struct str){bytes, len};
        } else if (step->kind == STEP_BYTE_FALLBACK) {
            if (byte_token(three[1]) < 0)
                continue;
            bytes = arena_alloc(arena, 1);
            bytes[0] = (char)byte_token(three[1]);
            return (struct str){bytes, 1};
        } else {
            apply_step(step, &spellings);
        }
    }
    if (!decoder->joins_with_blanks)
        return three[1];
    return join(&(struct spellings){(struct str[]){(struct str){0}, three[1]}, 2, arena}, STR(" "));
}
