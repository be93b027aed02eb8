#include "tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_stand_in.h"

enum {
    MAX_REGEX_BYTES = 64 * 1024,
    MATCH_LIMIT = 1000 * 1000, // steps of one match, and so many more a byte of the text:
    MATCH_LIMIT_PER_BYTE = 16,
    HEAP_LIMIT_KIB = 64 * 1024,
    MAX_FAILURES = 8,
    MAX_SKIPPED_BYTES = 4096,
};

struct pattern {
    char *literal; // used when `code` is NULL
    size_t literal_len;
    pcre2_code *code;
    bool has_jit;
};

// White_Space, which is what \s means to Oniguruma; PCRE2's also has U+180E.
#define WHITE_SPACE                                                                         \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"

// What \w means to Oniguruma: PCRE2 lacks the marks and knows no connector but '_'.
#define WORD                                                                       \
    "\\p{L}\\p{M}\\p{N}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-" \
    "\\x{1f169}\\x{1f170}-\\x{1f189}"

static bool is_hex4(struct str text)
{
    if (text.len < 4)
        return false;
    for (size_t i = 0; i < 4; i++)
        if (!strchr("0123456789abcdefABCDEF", text.ptr[i]) || text.ptr[i] == '\0')
            return false;
    return true;
}

/** Translates the escape at the start of `rest`; returns its length. */
static size_t translate_escape(struct buf *out, struct str rest, bool in_class)
{
    char c = rest.len > 1 ? rest.ptr[1] : '\0';
    const char *set = NULL;
    bool negated = c == 'S' || c == 'H' || c == 'W';
    if (c == 's' || c == 'S')
        set = WHITE_SPACE;
    else if (c == 'w' || c == 'W')
        set = WORD;
    else if (c == 'h' || c == 'H')
        set = "0-9A-Fa-f"; // to PCRE2 it would be horizontal space
    if (set && !(in_class && negated)) {
        if (!in_class)
            buf_append_c(out, negated ? "[^" : "[");
        buf_append_c(out, set);
        if (!in_class)
            buf_append_char(out, ']');
        return 2;
    }
    if (c == 'u' && is_hex4(str_slice(rest, 2, rest.len))) {
        buf_printf(out, "\\x{%.4s}", rest.ptr + 2);
        return 6;
    }
    size_t len = rest.len < 2 ? rest.len : 2;
    buf_append(out, str_slice(rest, 0, len));
    return len;
}

/** Translates the character class at `*i`, whose '[' is there, and moves `*i` behind it. */
static enum status translate_class(struct buf *out, struct str regex, size_t *i, struct error *err)
{
    size_t at = *i + 1;
    buf_append_char(out, '[');
    if (at < regex.len && regex.ptr[at] == '^')
        buf_append_char(out, regex.ptr[at++]);
    bool first = true;
    for (; at < regex.len; first = false) {
        char c = regex.ptr[at];
        struct str rest = str_slice(regex, at, regex.len);
        if (c == ']' && !first) {
            buf_append_char(out, c);
            *i = at + 1;
            return STATUS_OK;
        }
        if (c == '\\') {
            if (rest.len > 1 && strchr("HSW", rest.ptr[1]) && rest.ptr[1] != '\0')
                return error_set(err, STATUS_UNSUPPORTED,
                                 "regular expression with '%.2s' within [...] at byte %zu",
                                 rest.ptr, at);
            at += translate_escape(out, rest, true);
            continue;
        }
        if (str_starts_with(rest, STR("[:"))) {
            size_t end = str_find(regex, STR(":]"), at + 2);
            if (end != STR_NOT_FOUND) {
                buf_append(out, str_slice(regex, at, end + 2));
                at = end + 2;
                continue;
            }
        }
        if (c == '[' || str_starts_with(rest, STR("&&")))
            return error_set(err, STATUS_UNSUPPORTED,
                             "regular expression with a set operation ('%s') within [...] at byte "
                             "%zu",
                             c == '[' ? "[" : "&&", at);
        buf_append_char(out, c);
        at++;
    }
    return error_set(err, STATUS_INVALID, "regular expression with a [ that is not closed");
}

/** Inline options such as (?i) or (?m:...): Oniguruma's m is PCRE2's s. Returns their length. */
static size_t translate_options(struct buf *out, struct str rest)
{
    size_t len = 2;
    while (len < rest.len && strchr("imx-", rest.ptr[len]) && rest.ptr[len] != '\0')
        len++;
    if (len == rest.len || (rest.ptr[len] != ':' && rest.ptr[len] != ')'))
        len = 2; // another kind of group: (?=, (?<name> ...
    for (size_t i = 0; i < len; i++)
        buf_append_char(out, rest.ptr[i] == 'm' ? 's' : rest.ptr[i]);
    return len;
}

/** From Oniguruma's syntax to PCRE2's, where they differ. */
static enum status translate_regex(struct buf *out, struct str regex, struct error *err)
{
    for (size_t i = 0; i < regex.len;) {
        struct str rest = str_slice(regex, i, regex.len);
        if (rest.ptr[0] == '\\') {
            i += translate_escape(out, rest, false);
        } else if (rest.ptr[0] == '[') {
            TRY(translate_class(out, regex, &i, err));
        } else if (str_starts_with(rest, STR("(?"))) {
            i += translate_options(out, rest);
        } else {
            buf_append_char(out, rest.ptr[0]);
            i++;
        }
    }
    return STATUS_OK;
}

static enum status compile(struct pattern *pattern, struct str regex, struct error *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    CHECK(context != NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 100);
    int code;
    size_t offset;
    pattern->code = pcre2_compile((PCRE2_SPTR)regex.ptr, regex.len,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                  &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!pattern->code) {
        PCRE2_UCHAR message[256];
        pcre2_get_error_message(code, message, sizeof(message));
        return error_set(err, STATUS_INVALID, "regular expression: %s near '" STR_FORMAT "'",
                         (const char *)message,
                         STR_ARG(str_slice(regex, offset < 20 ? 0 : offset - 20, offset + 20)));
    }
    pattern->has_jit = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
    return STATUS_OK;
}

enum status pattern_create_regex(struct pattern **out, struct str regex, struct error *err)
{
    *out = NULL;
    if (regex.len > MAX_REGEX_BYTES)
        return error_set(err, STATUS_TOO_LARGE, "regular expression of %zu bytes; at most %d",
                         regex.len, MAX_REGEX_BYTES);
    struct pattern *pattern = xcalloc(1, sizeof(*pattern));
    struct buf translated = {0};
    buf_reserve(&translated, 1); // so that an empty expression has an address
    enum status status = translate_regex(&translated, regex, err);
    if (status == STATUS_OK)
        status = compile(pattern, buf_str(&translated), err);
    buf_deinit(&translated);
    if (status != STATUS_OK) {
        pattern_destroy(pattern);
        return status;
    }
    *out = pattern;
    return STATUS_OK;
}

enum status pattern_create_literal(struct pattern **out, struct str literal, struct error *err)
{
    if (literal.len == 0)
        return pattern_create_regex(out, literal, err); // matches between all characters
    struct pattern *pattern = xcalloc(1, sizeof(*pattern));
    pattern->literal = xstrndup(literal.ptr, literal.len);
    pattern->literal_len = literal.len;
    *out = pattern;
    return STATUS_OK;
}

void pattern_destroy(struct pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    free(pattern->literal);
    free(pattern);
}

size_t pattern_literal_len(const struct pattern *pattern)
{
    return pattern->literal_len;
}

void pattern_search_init(struct pattern_search *search, const struct pattern *pattern)
{
    *search = (struct pattern_search){.pattern = pattern};
    if (pattern->code) {
        search->match_data = pcre2_match_data_create(1, NULL);
        search->match_context = pcre2_match_context_create(NULL);
        CHECK(search->match_data != NULL && search->match_context != NULL);
        pcre2_set_heap_limit(search->match_context, HEAP_LIMIT_KIB);
    }
}

void pattern_search_deinit(struct pattern_search *search)
{
    pcre2_match_data_free(search->match_data);
    pcre2_match_context_free(search->match_context);
    buf_deinit(&search->stand_ins);
    *search = (struct pattern_search){0};
}

/** Exchanges the characters that are too young for PCRE2, of which `text` has one at `at`. */
static struct str exchange_young(struct buf *copy, struct str text, size_t at)
{
    buf_clear(copy);
    buf_append(copy, text);
    do {
        size_t len;
        uint32_t c = utf8_decode(str_slice(text, at, text.len), &len);
        utf8_encode(unicode_stand_in(c), copy->ptr + at);
        at += len;
    } while (unicode_find_young(text, &at));
    return buf_str(copy);
}

void pattern_search_start(struct pattern_search *search, struct str text)
{
    size_t young = 0;
    if (search->pattern->code && unicode_find_young(text, &young))
        text = exchange_young(&search->stand_ins, text, young);
    if (search->pattern->code) {
        size_t limit = MATCH_LIMIT + text.len * MATCH_LIMIT_PER_BYTE;
        pcre2_set_match_limit(search->match_context,
                              limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    }
    search->text = text;
    search->position = 0;
    search->last_end = SIZE_MAX;
    search->num_failures = 0;
}

/** One match from `position` on: 1 found, 0 none, -1 a limit was met. */
static int match_once(struct pattern_search *search, size_t *start, size_t *end)
{
    const struct pattern *pattern = search->pattern;
    PCRE2_SPTR text = (PCRE2_SPTR)search->text.ptr;
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern->has_jit)
        found = pcre2_jit_match(pattern->code, text, search->text.len, search->position,
                                PCRE2_NO_UTF_CHECK, search->match_data, search->match_context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter keeps its stack in the heap
        found = pcre2_match(pattern->code, text, search->text.len, search->position,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, search->match_data,
                            search->match_context);
    if (found == PCRE2_ERROR_NOMATCH)
        return 0;
    if (found < 0)
        return -1;
    const size_t *offsets = pcre2_get_ovector_pointer(search->match_data);
    *start = offsets[0];
    *end = offsets[1];
    return *start >= search->position && *end >= *start ? 1 : -1; // \K can turn them around
}

/** After a failure: behind the next white space, or a few thousand bytes on. */
static size_t skip_failure(struct str text, size_t from)
{
    size_t at = from, len;
    while (at < text.len && at - from < MAX_SKIPPED_BYTES) {
        uint32_t c = utf8_decode(str_slice(text, at, text.len), &len);
        at += len;
        if (unicode_is_white_space(c))
            break;
    }
    return at;
}

static bool next_regex_match(struct pattern_search *search, size_t *start, size_t *end)
{
    while (search->position <= search->text.len) {
        int found = match_once(search, start, end);
        if (found == 0)
            return false;
        if (found < 0) {
            if (++search->num_failures == MAX_FAILURES || search->position == search->text.len)
                return false;
            search->position = skip_failure(search->text, search->position);
            continue;
        }
        if (*start != *end || *end != search->last_end) {
            search->position = search->last_end = *end;
            return true;
        }
        // An empty match right behind the last one: look one character further.
        size_t len = 1;
        if (search->position < search->text.len)
            utf8_decode(str_slice(search->text, search->position, search->text.len), &len);
        search->position += len;
    }
    return false;
}

bool pattern_search_next(struct pattern_search *search, size_t *start, size_t *end)
{
    const struct pattern *pattern = search->pattern;
    if (pattern->code)
        return search->text.len > 0 && next_regex_match(search, start, end);
    *start = str_find(search->text, (struct str){pattern->literal, pattern->literal_len},
                      search->position);
    if (*start == STR_NOT_FOUND)
        return false;
    *end = search->position = *start + pattern->literal_len;
    return true;
}
