// Each step walks the pieces and cuts each into smaller ones. A cutter reports spans, matching or
// not, in order; the step's behaviour decides which side of a cut a match belongs to.
#include "tokenizer/pretokenizer.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/component.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

enum behavior {
    BEHAVIOR_ISOLATED,             // a match is a piece
    BEHAVIOR_REMOVED,              // a match is dropped
    BEHAVIOR_MERGED_WITH_PREVIOUS, // a match ends the piece before it
    BEHAVIOR_MERGED_WITH_NEXT,     // a match begins the piece after it
    BEHAVIOR_CONTIGUOUS,           // neighbouring matches are one piece
};

enum step_kind {
    STEP_SPLIT,      // by a pattern
    STEP_CLASS,      // by a class of characters
    STEP_BYTE_LEVEL, // to the byte alphabet; its own expression before it is a STEP_SPLIT
    STEP_METASPACE,  // blanks to a mark; the cut that follows it is a STEP_SPLIT
};

enum prepend_scheme { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

struct step {
    enum step_kind kind;
    enum behavior behavior;
    bool invert;
    struct pattern *pattern;            // of SPLIT
    bool (*is_member)(uint32_t c);      // of CLASS
    char mark[5];                       // of METASPACE
    enum prepend_scheme prepend_scheme; // of METASPACE
};

struct pretokenizer {
    struct step steps[COMPONENT_MAX_PARTS];
    int num_steps;
};

void pieces_deinit(struct pieces *pieces)
{
    free(pieces->items);
    *pieces = (struct pieces){0};
}

void pieces_append(struct pieces *pieces, struct piece piece)
{
    if (pieces->len == pieces->capacity) {
        pieces->capacity = pieces->capacity * 2 + 32;
        pieces->items = xrealloc(pieces->items, pieces->capacity * sizeof(*pieces->items));
    }
    pieces->items[pieces->len++] = piece;
}

// Reading

static enum status add_step(struct pretokenizer *pretokenizer, struct step **step,
                            struct error *err)
{
    if (pretokenizer->num_steps == COMPONENT_MAX_PARTS)
        return error_set(err, STATUS_TOO_LARGE, "more than %d pre-tokenizers", COMPONENT_MAX_PARTS);
    *step = &pretokenizer->steps[pretokenizer->num_steps++];
    **step = (struct step){0};
    return STATUS_OK;
}

static enum status read_behavior(struct step *step, const json_t *json, struct error *err)
{
    static const char *const names[] = {
        [BEHAVIOR_ISOLATED] = "Isolated",
        [BEHAVIOR_REMOVED] = "Removed",
        [BEHAVIOR_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [BEHAVIOR_MERGED_WITH_NEXT] = "MergedWithNext",
        [BEHAVIOR_CONTIGUOUS] = "Contiguous",
    };
    struct str name;
    TRY(component_string(json, "behavior", &name, err));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (str_eq_c(name, names[i])) {
            step->behavior = (enum behavior)i;
            return STATUS_OK;
        }
    }
    return error_set_field(err, STATUS_INVALID, "behavior",
                           "unknown behavior '" STR_FORMAT
                           "'; expected Isolated, Removed, MergedWithPrevious, MergedWithNext or "
                           "Contiguous",
                           STR_ARG(str_slice(name, 0, 100)));
}

static enum status read_split(struct pretokenizer *pretokenizer, const json_t *json,
                              struct error *err)
{
    struct step *step = NULL;
    TRY(add_step(pretokenizer, &step, err));
    step->kind = STEP_SPLIT;
    TRY(read_behavior(step, json, err));
    TRY(component_bool(json, "invert", &step->invert, err));
    return component_pattern(json, &step->pattern, err);
}

static enum status add_regex(struct pretokenizer *pretokenizer, const char *regex,
                             enum behavior behavior, bool invert, struct error *err)
{
    struct step *step = NULL;
    TRY(add_step(pretokenizer, &step, err));
    step->kind = STEP_SPLIT;
    step->behavior = behavior;
    step->invert = invert;
    return pattern_create_regex(&step->pattern, str_from(regex), err);
}

static enum status add_class(struct pretokenizer *pretokenizer, bool (*is_member)(uint32_t c),
                             enum behavior behavior, struct error *err)
{
    struct step *step = NULL;
    TRY(add_step(pretokenizer, &step, err));
    step->kind = STEP_CLASS;
    step->behavior = behavior;
    step->is_member = is_member;
    return STATUS_OK;
}

static enum status read_byte_level(struct pretokenizer *pretokenizer, const json_t *json,
                                   struct error *err)
{
    bool add_prefix_space = true, use_regex = true;
    TRY(component_bool(json, "add_prefix_space", &add_prefix_space, err));
    TRY(component_bool(json, "use_regex", &use_regex, err));
    struct step *step = NULL;
    if (add_prefix_space) { // a mark that is a blank: only puts one in front
        TRY(add_step(pretokenizer, &step, err));
        *step =
            (struct step){.kind = STEP_METASPACE, .mark = " ", .prepend_scheme = PREPEND_ALWAYS};
    }
    if (use_regex) // GPT-2's
        TRY(add_regex(pretokenizer,
                      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                      "\\s+(?!\\S)|\\s+",
                      BEHAVIOR_ISOLATED, false, err));
    TRY(add_step(pretokenizer, &step, err));
    step->kind = STEP_BYTE_LEVEL;
    return STATUS_OK;
}

static enum status read_prepend_scheme(const json_t *json, enum prepend_scheme *out,
                                       struct error *err)
{
    *out = PREPEND_ALWAYS;
    bool add_prefix_space = true; // the older spelling
    TRY(component_bool(json, "add_prefix_space", &add_prefix_space, err));
    if (!add_prefix_space)
        *out = PREPEND_NEVER;
    if (!json_object_get(json, "prepend_scheme"))
        return STATUS_OK;
    struct str name;
    TRY(component_string(json, "prepend_scheme", &name, err));
    if (str_eq_c(name, "always"))
        *out = PREPEND_ALWAYS;
    else if (str_eq_c(name, "first"))
        *out = PREPEND_FIRST;
    else if (str_eq_c(name, "never"))
        *out = PREPEND_NEVER;
    else
        return error_set_field(err, STATUS_INVALID, "prepend_scheme",
                               "unknown prepend_scheme '" STR_FORMAT
                               "'; expected always, first or never",
                               STR_ARG(str_slice(name, 0, 100)));
    return STATUS_OK;
}

static enum status read_metaspace(struct pretokenizer *pretokenizer, const json_t *json,
                                  struct error *err)
{
    struct step *step = NULL;
    TRY(add_step(pretokenizer, &step, err));
    step->kind = STEP_METASPACE;
    struct str mark;
    TRY(component_string(json, "replacement", &mark, err));
    if (mark.len == 0 || utf8_valid_len(mark) != mark.len)
        return error_set_field(err, STATUS_INVALID, "replacement",
                               "Metaspace replacement must be one character, found '" STR_FORMAT
                               "'",
                               STR_ARG(str_slice(mark, 0, 100)));
    memcpy(step->mark, mark.ptr, mark.len);
    TRY(read_prepend_scheme(json, &step->prepend_scheme, err));
    bool split = true;
    TRY(component_bool(json, "split", &split, err));
    if (!split)
        return STATUS_OK;
    TRY(add_step(pretokenizer, &step, err));
    step->kind = STEP_SPLIT;
    step->behavior = BEHAVIOR_MERGED_WITH_NEXT;
    return pattern_create_literal(&step->pattern, mark, err);
}

static enum status read_digits(struct pretokenizer *pretokenizer, const json_t *json,
                               struct error *err)
{
    bool individual = false;
    TRY(component_bool(json, "individual_digits", &individual, err));
    return add_class(pretokenizer, unicode_is_number,
                     individual ? BEHAVIOR_ISOLATED : BEHAVIOR_CONTIGUOUS, err);
}

static enum status read_punctuation(struct pretokenizer *pretokenizer, const json_t *json,
                                    struct error *err)
{
    TRY(add_class(pretokenizer, unicode_is_punctuation, BEHAVIOR_ISOLATED, err));
    if (!json_object_get(json, "behavior"))
        return STATUS_OK;
    return read_behavior(&pretokenizer->steps[pretokenizer->num_steps - 1], json, err);
}

static enum status read_whitespace(struct pretokenizer *pretokenizer, const json_t *json,
                                   struct error *err)
{
    (void)json;
    // Spelled out, since \w means less to PCRE2 than to the reference (UTS 18).
    return add_regex(pretokenizer,
                     "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}"
                     "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}]+|"
                     "[^\\s\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}"
                     "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}]+",
                     BEHAVIOR_REMOVED, true, err);
}

static enum status read_whitespace_split(struct pretokenizer *pretokenizer, const json_t *json,
                                         struct error *err)
{
    (void)json;
    return add_class(pretokenizer, unicode_is_white_space, BEHAVIOR_REMOVED, err);
}

static enum status read_bert(struct pretokenizer *pretokenizer, const json_t *json,
                             struct error *err)
{
    TRY(read_whitespace_split(pretokenizer, json, err));
    return add_class(pretokenizer, unicode_is_punctuation, BEHAVIOR_ISOLATED, err);
}

static enum status read_steps(struct pretokenizer *pretokenizer, const json_t *json, int depth,
                              struct error *err)
{
    static const struct {
        const char *name;
        enum status (*read)(struct pretokenizer *, const json_t *, struct error *);
    } kinds[] = {
        {"Split", read_split},
        {"ByteLevel", read_byte_level},
        {"Metaspace", read_metaspace},
        {"Digits", read_digits},
        {"Punctuation", read_punctuation},
        {"Whitespace", read_whitespace},
        {"WhitespaceSplit", read_whitespace_split},
        {"BertPreTokenizer", read_bert},
    };
    struct str type;
    TRY(component_type(json, &type, err));
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (str_eq_c(type, kinds[i].name))
            return kinds[i].read(pretokenizer, json, err);
    if (!str_eq_c(type, "Sequence"))
        return error_set_field(err, STATUS_UNSUPPORTED, "pre_tokenizer",
                               "pre-tokenizer '" STR_FORMAT
                               "' is not supported; supported are Split, ByteLevel, Metaspace, "
                               "Digits, Punctuation, Whitespace, WhitespaceSplit, "
                               "BertPreTokenizer, Sequence",
                               STR_ARG(str_slice(type, 0, 100)));
    if (depth == COMPONENT_MAX_DEPTH)
        return error_set(err, STATUS_TOO_LARGE,
                         "more than %d pre-tokenizer sequences in each other", COMPONENT_MAX_DEPTH);
    const json_t *array;
    TRY(component_array(json, "pretokenizers", &array, err));
    for (size_t i = 0; i < json_array_size(array); i++)
        TRY(read_steps(pretokenizer, json_array_get(array, i), depth + 1, err));
    return STATUS_OK;
}

enum status pretokenizer_create(struct pretokenizer **out, const json_t *json, struct error *err)
{
    struct pretokenizer *pretokenizer = xcalloc(1, sizeof(*pretokenizer));
    *out = NULL;
    if (json && !json_is_null(json)) {
        enum status status = read_steps(pretokenizer, json, 0, err);
        if (status != STATUS_OK) {
            pretokenizer_destroy(pretokenizer);
            return status;
        }
    }
    *out = pretokenizer;
    return STATUS_OK;
}

void pretokenizer_destroy(struct pretokenizer *pretokenizer)
{
    if (!pretokenizer)
        return;
    for (int i = 0; i < pretokenizer->num_steps; i++)
        pattern_destroy(pretokenizer->steps[i].pattern);
    free(pretokenizer);
}

// Cutting

/** Collects the spans of one piece; neighbouring ones join as the behaviour says. */
struct cutter {
    enum behavior behavior;
    bool invert;
    struct piece piece;
    struct pieces *out;
    size_t pending_start, pending_end; // the piece that may still grow
    bool has_pending, pending_dropped, previous_match;
};

static void flush_pending(struct cutter *cutter)
{
    if (cutter->has_pending && !cutter->pending_dropped &&
        cutter->pending_end > cutter->pending_start)
        pieces_append(cutter->out,
                      (struct piece){
                          str_slice(cutter->piece.text, cutter->pending_start, cutter->pending_end),
                          cutter->piece.at_start && cutter->pending_start == 0});
    cutter->has_pending = false;
}

static bool joins_pending(const struct cutter *cutter, bool is_match)
{
    switch (cutter->behavior) {
    case BEHAVIOR_CONTIGUOUS:
        return is_match == cutter->previous_match;
    case BEHAVIOR_MERGED_WITH_PREVIOUS:
        return is_match && !cutter->previous_match;
    case BEHAVIOR_MERGED_WITH_NEXT:
        return !is_match && cutter->previous_match;
    default:
        return false;
    }
}

static void cut(struct cutter *cutter, size_t start, size_t end, bool is_match)
{
    is_match = is_match != cutter->invert;
    if (cutter->has_pending && joins_pending(cutter, is_match)) {
        cutter->pending_end = end;
    } else {
        flush_pending(cutter);
        cutter->has_pending = true;
        cutter->pending_start = start;
        cutter->pending_end = end;
        cutter->pending_dropped = cutter->behavior == BEHAVIOR_REMOVED && is_match;
    }
    cutter->previous_match = is_match;
}

static void cut_by_pattern(struct cutter *cutter, struct pattern_search *search)
{
    struct str text = cutter->piece.text;
    size_t done = 0, start, end;
    pattern_search_start(search, text);
    while (pattern_search_next(search, &start, &end)) {
        if (start > done)
            cut(cutter, done, start, false);
        cut(cutter, start, end, true);
        done = end;
    }
    if (done < text.len)
        cut(cutter, done, text.len, false);
}

static void cut_by_class(struct cutter *cutter, bool (*is_member)(uint32_t c))
{
    struct str text = cutter->piece.text;
    size_t done = 0, len;
    for (size_t i = 0; i < text.len; i += len) {
        if (!is_member(utf8_decode(str_slice(text, i, text.len), &len)))
            continue;
        if (i > done)
            cut(cutter, done, i, false);
        cut(cutter, i, i + len, true);
        done = i + len;
    }
    if (done < text.len)
        cut(cutter, done, text.len, false);
}

static void apply_cuts(const struct step *step, const struct pieces *in, struct pieces *out)
{
    struct pattern_search search = {0};
    if (step->pattern)
        pattern_search_init(&search, step->pattern);
    for (size_t i = 0; i < in->len; i++) {
        struct cutter cutter = {
            .behavior = step->behavior, .invert = step->invert, .piece = in->items[i], .out = out};
        if (step->pattern)
            cut_by_pattern(&cutter, &search);
        else
            cut_by_class(&cutter, step->is_member);
        flush_pending(&cutter);
    }
    pattern_search_deinit(&search);
}

static void apply_byte_level(struct pieces *pieces, struct arena *arena)
{
    size_t total = 0;
    for (size_t i = 0; i < pieces->len; i++)
        total += pieces->items[i].text.len;
    char *out = arena_alloc(arena, total * 2);
    for (size_t i = 0; i < pieces->len; i++) {
        size_t len = byte_level_encode(pieces->items[i].text, out);
        pieces->items[i].text = (struct str){out, len};
        out += len;
    }
}

/** The text with each blank as the mark, and one in front if the scheme says so. */
static struct str mark_blanks(const struct step *step, struct piece piece, struct arena *arena)
{
    struct str text = piece.text, mark = str_from(step->mark);
    char *out = arena_alloc(arena, (text.len + 1) * mark.len);
    size_t len = 0;
    bool is_first = step->prepend_scheme == PREPEND_ALWAYS ||
                    (step->prepend_scheme == PREPEND_FIRST && piece.at_start);
    if (is_first && !str_starts_with(text, mark) && !str_starts_with(text, STR(" "))) {
        memcpy(out, mark.ptr, mark.len);
        len = mark.len;
    }
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] == ' ') {
            memcpy(out + len, mark.ptr, mark.len);
            len += mark.len;
        } else {
            out[len++] = text.ptr[i];
        }
    }
    return (struct str){out, len};
}

void pretokenizer_apply(const struct pretokenizer *pretokenizer, struct pieces *pieces,
                        struct arena *arena)
{
    for (int i = 0; i < pretokenizer->num_steps; i++) {
        const struct step *step = &pretokenizer->steps[i];
        if (step->kind == STEP_BYTE_LEVEL) {
            apply_byte_level(pieces, arena);
        } else if (step->kind == STEP_METASPACE) {
            for (size_t p = 0; p < pieces->len; p++)
                pieces->items[p].text = mark_blanks(step, pieces->items[p], arena);
        } else {
            struct pieces cut_pieces = {0};
            apply_cuts(step, pieces, &cut_pieces);
            pieces_deinit(pieces);
            *pieces = cut_pieces;
        }
    }
}
