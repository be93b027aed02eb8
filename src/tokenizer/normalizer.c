#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include "base/buf.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/component.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_normal_form.h"

enum step_kind {
    STEP_NORMAL_FORM,
    STEP_LOWERCASE,
    STEP_STRIP,
    STEP_STRIP_ACCENTS,
    STEP_PREPEND,
    STEP_REPLACE,
    STEP_BYTE_LEVEL,
};

struct step {
    enum step_kind kind;
    enum unicode_normal_form form;
    bool strip_left, strip_right;
    struct pattern *pattern;
    char *content; // of PREPEND and REPLACE
    size_t content_len;
};

struct normalizer {
    struct step steps[COMPONENT_MAX_PARTS];
    int num_steps;
};

// A replacement may lengthen the text up to this: a chain of them could otherwise double it
// without end. Beyond it the rest is left as it is.
static size_t max_replaced_len(size_t len)
{
    return len * 64 + 64 * 1024;
}

static enum status read_content(struct step *step, const json_t *json, const char *key,
                                struct error *err)
{
    struct str content;
    TRY(component_string(json, key, &content, err));
    step->content = xstrndup(content.ptr, content.len);
    step->content_len = content.len;
    return STATUS_OK;
}

static enum status read_step(struct step *step, const json_t *json, struct str type,
                             struct error *err)
{
    static const struct {
        const char *name;
        enum step_kind kind;
        enum unicode_normal_form form;
    } kinds[] = {
        {"NFC", STEP_NORMAL_FORM, UNICODE_NORMAL_FORM_C},
        {"NFD", STEP_NORMAL_FORM, UNICODE_NORMAL_FORM_D},
        {"NFKC", STEP_NORMAL_FORM, UNICODE_NORMAL_FORM_KC},
        {"NFKD", STEP_NORMAL_FORM, UNICODE_NORMAL_FORM_KD},
        {"Lowercase", STEP_LOWERCASE, UNICODE_NORMAL_FORM_C},
        {"Strip", STEP_STRIP, UNICODE_NORMAL_FORM_C},
        {"StripAccents", STEP_STRIP_ACCENTS, UNICODE_NORMAL_FORM_C},
        {"Prepend", STEP_PREPEND, UNICODE_NORMAL_FORM_C},
        {"Replace", STEP_REPLACE, UNICODE_NORMAL_FORM_C},
        {"ByteLevel", STEP_BYTE_LEVEL, UNICODE_NORMAL_FORM_C},
    };
    size_t i = 0;
    while (i < ARRAY_LEN(kinds) && !str_eq_c(type, kinds[i].name))
        i++;
    if (i == ARRAY_LEN(kinds))
        return error_set_field(err, STATUS_UNSUPPORTED, "normalizer",
                               "normalizer '" STR_FORMAT
                               "' is not supported; supported are NFC, NFD, NFKC, NFKD, Lowercase, "
                               "Strip, StripAccents, Prepend, Replace, ByteLevel, Sequence",
                               STR_ARG(str_slice(type, 0, 100)));
    *step = (struct step){.kind = kinds[i].kind, .form = kinds[i].form};
    switch (step->kind) {
    case STEP_STRIP:
        step->strip_left = step->strip_right = true;
        TRY(component_bool(json, "strip_left", &step->strip_left, err));
        return component_bool(json, "strip_right", &step->strip_right, err);
    case STEP_PREPEND:
        return read_content(step, json, "prepend", err);
    case STEP_REPLACE:
        TRY(read_content(step, json, "content", err));
        return component_pattern(json, &step->pattern, err);
    default:
        return STATUS_OK;
    }
}

static enum status read_steps(struct normalizer *normalizer, const json_t *json, int depth,
                              struct error *err)
{
    struct str type;
    TRY(component_type(json, &type, err));
    if (!str_eq_c(type, "Sequence")) {
        if (normalizer->num_steps == COMPONENT_MAX_PARTS)
            return error_set(err, STATUS_TOO_LARGE, "more than %d normalizers",
                             COMPONENT_MAX_PARTS);
        return read_step(&normalizer->steps[normalizer->num_steps++], json, type, err);
    }
    if (depth == COMPONENT_MAX_DEPTH)
        return error_set(err, STATUS_TOO_LARGE, "more than %d normalizer sequences in each other",
                         COMPONENT_MAX_DEPTH);
    const json_t *array;
    TRY(component_array(json, "normalizers", &array, err));
    for (size_t i = 0; i < json_array_size(array); i++)
        TRY(read_steps(normalizer, json_array_get(array, i), depth + 1, err));
    return STATUS_OK;
}

enum status normalizer_create(struct normalizer **out, const json_t *json, struct error *err)
{
    struct normalizer *normalizer = xcalloc(1, sizeof(*normalizer));
    *out = NULL;
    if (json && !json_is_null(json)) {
        enum status status = read_steps(normalizer, json, 0, err);
        if (status != STATUS_OK) {
            normalizer_destroy(normalizer);
            return status;
        }
    }
    *out = normalizer;
    return STATUS_OK;
}

void normalizer_destroy(struct normalizer *normalizer)
{
    if (!normalizer)
        return;
    for (int i = 0; i < normalizer->num_steps; i++) {
        pattern_destroy(normalizer->steps[i].pattern);
        free(normalizer->steps[i].content);
    }
    free(normalizer);
}

static struct str strip(struct str text, bool left, bool right)
{
    size_t len;
    while (left && text.len > 0 && unicode_is_white_space(utf8_decode(text, &len)))
        text = str_slice(text, len, text.len);
    while (right && text.len > 0 && unicode_is_white_space(unicode_last(text, &len)))
        text.len -= len;
    return text;
}

static struct str lowercase(struct str text, struct arena *arena)
{
    char *out = arena_alloc(arena, text.len * 2 + 4); // U+0130: 2 bytes become 3
    size_t out_len = 0, len;
    for (size_t i = 0; i < text.len; i += len) {
        uint32_t c = utf8_decode(str_slice(text, i, text.len), &len);
        if (c == 0x130) { // the one character whose lower case is two: i with a dot above
            out[out_len++] = 'i';
            out_len += utf8_encode(0x307, out + out_len);
            continue;
        }
        out_len += utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)c), out + out_len);
    }
    return (struct str){out, out_len};
}

static struct str strip_accents(struct str text, struct arena *arena)
{
    char *out = arena_alloc(arena, text.len);
    size_t out_len = 0, len;
    for (size_t i = 0; i < text.len; i += len) {
        uint32_t c = utf8_decode(str_slice(text, i, text.len), &len);
        if (c >= 0x300 && utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN)
            continue;
        memcpy(out + out_len, text.ptr + i, len);
        out_len += len;
    }
    return (struct str){out, out_len};
}

static struct str prepend(struct str text, struct str content, struct arena *arena)
{
    if (text.len == 0)
        return text;
    char *out = arena_alloc(arena, content.len + text.len);
    if (content.len > 0)
        memcpy(out, content.ptr, content.len);
    memcpy(out + content.len, text.ptr, text.len);
    return (struct str){out, content.len + text.len};
}

static struct str replace(struct str text, const struct step *step, struct arena *arena)
{
    struct pattern_search search;
    pattern_search_init(&search, step->pattern);
    pattern_search_start(&search, text);
    struct buf out = {0};
    size_t copied = 0, start, end;
    size_t max_len = max_replaced_len(text.len);
    bool found = false;
    while (out.len < max_len && pattern_search_next(&search, &start, &end)) {
        found = true;
        buf_append(&out, str_slice(text, copied, start));
        buf_append(&out, (struct str){step->content, step->content_len});
        copied = end;
    }
    pattern_search_deinit(&search);
    if (found) {
        buf_append(&out, str_slice(text, copied, text.len));
        text = arena_str(arena, buf_str(&out));
    }
    buf_deinit(&out);
    return text;
}

static struct str apply_step(const struct step *step, struct str text, struct arena *arena)
{
    switch (step->kind) {
    case STEP_NORMAL_FORM:
        return unicode_normalize(step->form, text, arena);
    case STEP_LOWERCASE:
        return lowercase(text, arena);
    case STEP_STRIP:
        return strip(text, step->strip_left, step->strip_right);
    case STEP_STRIP_ACCENTS:
        return strip_accents(text, arena);
    case STEP_PREPEND:
        return prepend(text, (struct str){step->content, step->content_len}, arena);
    case STEP_REPLACE:
        return replace(text, step, arena);
    case STEP_BYTE_LEVEL: {
        char *out = arena_alloc(arena, text.len * 2);
        return (struct str){out, byte_level_encode(text, out)};
    }
    }
    return text;
}

struct str normalizer_apply(const struct normalizer *normalizer, struct str text,
                            struct arena *arena)
{
    size_t max_len = max_replaced_len(text.len);
    for (int i = 0; i < normalizer->num_steps && text.len <= max_len; i++)
        text = apply_step(&normalizer->steps[i], text, arena);
    return text;
}
