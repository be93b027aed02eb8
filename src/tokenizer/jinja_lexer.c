// Template source to tokens. White space control is decided here: trim_blocks (the line feed after
// a block tag goes), lstrip_blocks (blanks before a block tag at the start of a line go), and the
// signs -, + inside the tags.
#include "tokenizer/jinja_ast.h"

#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

enum { MAX_SOURCE_BYTES = 4 * 1024 * 1024, MAX_BRACES = 128 };

struct lexer {
    struct arena *arena;
    struct str source; // line ends are \n, the last one is gone
    size_t at;
    int line;
    bool line_starting; // the last match ended with a line feed, or nothing was matched yet
    struct jinja_tokens *out;
    struct error *err;
    char braces[MAX_BRACES]; // closing ones that are awaited
    int num_braces;
};

static enum status fail(struct lexer *lx, const char *message)
{
    return error_set(lx->err, STATUS_INVALID, "line %d: %s", lx->line, message);
}

static char peek(const struct lexer *lx, size_t offset)
{
    return offset < lx->source.len - lx->at ? lx->source.ptr[lx->at + offset] : '\0';
}

static bool at_text(const struct lexer *lx, size_t at, const char *text)
{
    size_t len = strlen(text);
    return lx->source.len - at >= len && memcmp(lx->source.ptr + at, text, len) == 0;
}

static void move_to(struct lexer *lx, size_t to)
{
    for (size_t i = lx->at; i < to; i++)
        lx->line += lx->source.ptr[i] == '\n';
    lx->line_starting = to > 0 && lx->source.ptr[to - 1] == '\n';
    lx->at = to;
}

static size_t skip_space(const struct lexer *lx, size_t at)
{
    struct str rest = str_slice(lx->source, at, lx->source.len);
    return lx->source.len - jinja_strip(rest, NULL, true, false).len;
}

static struct jinja_token *add_token(struct lexer *lx, enum jinja_token_kind kind, struct str text)
{
    struct jinja_tokens *tokens = lx->out;
    if (tokens->len == tokens->capacity) {
        size_t capacity = tokens->capacity ? tokens->capacity * 2 : 256;
        struct jinja_token *items = arena_array(lx->arena, struct jinja_token, capacity);
        if (tokens->len > 0)
            memcpy(items, tokens->items, tokens->len * sizeof(*items));
        tokens->items = items;
        tokens->capacity = capacity;
    }
    struct jinja_token *token = &tokens->items[tokens->len++];
    *token = (struct jinja_token){.kind = kind, .line = lx->line, .text = text};
    return token;
}

// --- text between the tags ---

/** The text before a tag, after what the tag's sign and lstrip_blocks take from its end. */
static struct str trim_before_tag(const struct lexer *lx, struct str text, char sign,
                                  bool is_variable)
{
    if (sign == '-')
        return jinja_strip(text, NULL, false, true);
    if (sign == '+' || is_variable)
        return text;
    size_t line_start = text.len;
    while (line_start > 0 && text.ptr[line_start - 1] != '\n')
        line_start--;
    if (line_start == 0 && !lx->line_starting)
        return text;
    struct str blanks = str_slice(text, line_start, text.len);
    return jinja_strip(blanks, NULL, true, false).len == 0 ? str_slice(text, 0, line_start) : text;
}

/** After the closing of a tag at `at`: -%} takes white space, %} one line feed if `trim`. Returns
 *  where the tag ends, or 0 if it does not close here. */
static size_t close_tag(const struct lexer *lx, size_t at, const char *closing, bool trim)
{
    char sign = at < lx->source.len ? lx->source.ptr[at] : '\0';
    bool has_sign = sign == '-' || (sign == '+' && trim);
    if (has_sign && at_text(lx, at + 1, closing)) {
        size_t end = at + 1 + strlen(closing);
        return sign == '-' ? skip_space(lx, end) : end;
    }
    if (!at_text(lx, at, closing))
        return 0;
    size_t end = at + strlen(closing);
    if (trim && end < lx->source.len && lx->source.ptr[end] == '\n')
        end++;
    return end;
}

/** Where `{% NAME %}` at `at` ends; 0: it is not that. `trim`: as other blocks close. */
static size_t match_word_block(const struct lexer *lx, size_t at, const char *name, bool trim)
{
    if (!at_text(lx, at, "{%"))
        return 0;
    at += 2;
    if (at < lx->source.len && (lx->source.ptr[at] == '-' || lx->source.ptr[at] == '+'))
        at++;
    at = skip_space(lx, at);
    if (!at_text(lx, at, name))
        return 0;
    at = skip_space(lx, at + strlen(name));
    return close_tag(lx, at, "%}", trim);
}

static char sign_after(const struct lexer *lx, size_t tag)
{
    char sign = tag + 2 < lx->source.len ? lx->source.ptr[tag + 2] : '\0';
    return sign == '-' || sign == '+' ? sign : '\0';
}

static void add_data(struct lexer *lx, struct str text)
{
    if (text.len > 0)
        add_token(lx, JINJA_TOKEN_DATA, text);
}

static enum status lex_comment(struct lexer *lx)
{
    size_t at = lx->at + 2;
    for (; at < lx->source.len; at++) {
        size_t end = close_tag(lx, at, "#}", true);
        if (end > 0) {
            move_to(lx, end);
            return STATUS_OK;
        }
    }
    return fail(lx, "Missing end of comment tag");
}

static enum status lex_raw(struct lexer *lx, size_t begin_end)
{
    int line = lx->line;
    move_to(lx, begin_end);
    for (size_t at = lx->at; at < lx->source.len; at++) {
        size_t end = match_word_block(lx, at, "endraw", true);
        if (end > 0) {
            struct str text = str_slice(lx->source, lx->at, at);
            add_data(lx, trim_before_tag(lx, text, sign_after(lx, at), false));
            move_to(lx, end);
            return STATUS_OK;
        }
    }
    lx->line = line;
    return fail(lx, "Missing end of raw directive");
}

// --- inside the tags ---

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static enum status read_escape(struct lexer *lx, struct str text, size_t *at, struct buf *out)
{
    static const char simple[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = text.ptr[(*at)++];
    if (c == '\n')
        return STATUS_OK; // a line that goes on
    const char *found = c ? strchr(simple, c) : NULL;
    for (; found && (found - simple) % 2 == 1; found = strchr(found + 1, c))
        ; // only the first of each pair counts
    if (found) {
        buf_append_char(out, found[1]);
        return STATUS_OK;
    }
    uint32_t code_point = 0;
    if (c >= '0' && c <= '7') {
        code_point = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < text.len && text.ptr[*at] >= '0' && text.ptr[*at] <= '7';
             i++)
            code_point = code_point * 8 + (uint32_t)(text.ptr[(*at)++] - '0');
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int num_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        for (int i = 0; i < num_digits; i++) {
            int digit = *at < text.len ? hex_digit(text.ptr[*at]) : -1;
            if (digit < 0)
                return fail(lx, "truncated \\x, \\u or \\U escape in a string");
            code_point = code_point << 4 | (uint32_t)digit;
            (*at)++;
        }
    } else if (c == 'N') {
        return error_set(lx->err, STATUS_UNSUPPORTED,
                         "line %d: \\N{...} escapes in strings are not supported", lx->line);
    } else { // unknown escapes stay as they are
        buf_append_char(out, '\\');
        (*at)--;
        return STATUS_OK;
    }
    if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000))
        return fail(lx, "an escape in a string is no Unicode character");
    char bytes[4];
    buf_append(out, (struct str){bytes, utf8_encode(code_point, bytes)});
    return STATUS_OK;
}

static enum status lex_string(struct lexer *lx)
{
    char quote = peek(lx, 0);
    size_t end = lx->at + 1;
    bool has_escape = false;
    while (end < lx->source.len && lx->source.ptr[end] != quote) {
        bool escape = lx->source.ptr[end] == '\\';
        has_escape = has_escape || escape;
        end += escape ? 2 : 1;
    }
    if (end >= lx->source.len)
        return fail(lx, "a string without end");
    struct str text = str_slice(lx->source, lx->at + 1, end);
    struct jinja_token *token =
        add_token(lx, JINJA_TOKEN_STRING, str_slice(lx->source, lx->at, end + 1));
    if (has_escape) {
        struct buf buf = {0};
        enum status status = STATUS_OK;
        for (size_t at = 0; at < text.len && status == STATUS_OK;) {
            if (text.ptr[at] != '\\')
                buf_append_char(&buf, text.ptr[at++]);
            else if (++at < text.len)
                status = read_escape(lx, text, &at, &buf);
        }
        text = arena_str(lx->arena, buf_str(&buf));
        buf_deinit(&buf);
        TRY(status);
    }
    token->value = jinja_string(text);
    move_to(lx, end + 1);
    return STATUS_OK;
}

static bool is_decimal(char c)
{
    return c >= '0' && c <= '9';
}

/** Digits with single underscores between them; returns where they end. */
static size_t skip_digits(const struct lexer *lx, size_t at, bool hex)
{
    while (at < lx->source.len) {
        char c = lx->source.ptr[at];
        char next = at + 1 < lx->source.len ? lx->source.ptr[at + 1] : '\0';
        bool digit = hex ? hex_digit(c) >= 0 : is_decimal(c);
        bool joint = c == '_' && (hex ? hex_digit(next) >= 0 : is_decimal(next));
        if (!digit && !joint)
            break;
        at++;
    }
    return at;
}

static enum status lex_number(struct lexer *lx)
{
    const char *text = lx->source.ptr;
    char letter = (char)(peek(lx, 1) | 0x20);
    size_t end;
    bool is_float = false;
    bool prefixed = peek(lx, 0) == '0' && (letter == 'x' || letter == 'o' || letter == 'b');
    if (prefixed) {
        end = skip_digits(lx, lx->at + 2, letter == 'x');
    } else {
        end = skip_digits(lx, lx->at, false);
        bool after_dot = lx->at > 0 && text[lx->at - 1] == '.'; // a.0.1 are two items
        char next = end + 1 < lx->source.len ? text[end + 1] : '\0';
        if (!after_dot && end < lx->source.len && text[end] == '.' && is_decimal(next)) {
            end = skip_digits(lx, end + 1, false);
            is_float = true;
        }
        size_t e = end + 1;
        if (!after_dot && end < lx->source.len && (text[end] | 0x20) == 'e') {
            if (e < lx->source.len && (text[e] == '+' || text[e] == '-'))
                e++;
            if (e < lx->source.len && is_decimal(text[e])) {
                end = skip_digits(lx, e, false);
                is_float = true;
            }
        }
    }
    struct str number = str_slice(lx->source, lx->at, end);
    struct jinja_token *token = add_token(lx, JINJA_TOKEN_NUMBER, number);
    if (is_float) {
        double value;
        if (!jinja_parse_float(number, &value))
            return fail(lx, "a number that is too long");
        token->value = jinja_float(value);
    } else {
        jinja_int_t value;
        bool leading_zero = !prefixed && number.ptr[0] == '0' && str_trim(number).len > 1 &&
                            strspn(number.ptr, "0_") < number.len;
        if (leading_zero || !jinja_parse_int(number, prefixed ? 0 : 10, &value))
            return fail(lx, "a malformed or too large integer");
        token->value = jinja_int(value);
    }
    move_to(lx, end);
    return STATUS_OK;
}

static enum status lex_operator(struct lexer *lx)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = peek(lx, 0);
    size_t len = 1;
    for (size_t i = 0; i < ARRAY_LEN(two); i++)
        if (at_text(lx, lx->at, two[i]))
            len = 2;
    if (len == 1 && (c == '\0' || !strchr("+-/*%~[](){}><=.:|,;", c))) {
        struct str rest = str_slice(lx->source, lx->at, lx->source.len);
        size_t shown = 1;
        utf8_decode(rest, &shown);
        return error_set(lx->err, STATUS_INVALID, "line %d: unexpected char '" STR_FORMAT "'",
                         lx->line, STR_ARG(str_slice(rest, 0, shown)));
    }
    if (c == '(' || c == '[' || c == '{') {
        if (lx->num_braces == MAX_BRACES)
            return error_set(lx->err, STATUS_TOO_LARGE, "line %d: more than %d nested brackets",
                             lx->line, MAX_BRACES);
        lx->braces[lx->num_braces++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (lx->num_braces == 0)
            return error_set(lx->err, STATUS_INVALID, "line %d: unexpected '%c'", lx->line, c);
        char expected = lx->braces[--lx->num_braces];
        if (c != expected)
            return error_set(lx->err, STATUS_INVALID, "line %d: unexpected '%c', expected '%c'",
                             lx->line, c, expected);
    }
    add_token(lx, JINJA_TOKEN_OPERATOR, str_slice(lx->source, lx->at, lx->at + len));
    move_to(lx, lx->at + len);
    return STATUS_OK;
}

static size_t skip_word(const struct lexer *lx, size_t at)
{
    while (at < lx->source.len) {
        size_t len;
        if (!jinja_is_word(utf8_decode(str_slice(lx->source, at, lx->source.len), &len)))
            break;
        at += len;
    }
    return at;
}

/** Tokens up to the end of a {{ or {% tag. */
static enum status lex_tag(struct lexer *lx, bool is_variable)
{
    add_token(lx, is_variable ? JINJA_TOKEN_VARIABLE_BEGIN : JINJA_TOKEN_BLOCK_BEGIN,
              str_slice(lx->source, lx->at, lx->at + 2));
    size_t begin = lx->at + 2;
    move_to(lx, sign_after(lx, lx->at) ? begin + 1 : begin);
    lx->num_braces = 0;
    for (;;) {
        if (lx->at >= lx->source.len)
            return STATUS_OK; // the parser meets the end and knows what it wanted
        size_t end = 0;
        if (lx->num_braces == 0)
            end = close_tag(lx, lx->at, is_variable ? "}}" : "%}", !is_variable);
        if (end > 0) {
            add_token(lx, is_variable ? JINJA_TOKEN_VARIABLE_END : JINJA_TOKEN_BLOCK_END,
                      str_slice(lx->source, lx->at, end));
            move_to(lx, end);
            return STATUS_OK;
        }
        size_t after_space = skip_space(lx, lx->at);
        if (after_space > lx->at) {
            move_to(lx, after_space);
            continue;
        }
        char c = peek(lx, 0);
        size_t word_end = skip_word(lx, lx->at);
        if (c == '\'' || c == '"') {
            TRY(lex_string(lx));
        } else if (is_decimal(c)) {
            TRY(lex_number(lx));
        } else if (word_end > lx->at) {
            add_token(lx, JINJA_TOKEN_NAME, str_slice(lx->source, lx->at, word_end));
            move_to(lx, word_end);
        } else {
            TRY(lex_operator(lx));
        }
    }
}

static enum status lex_all(struct lexer *lx)
{
    while (lx->at < lx->source.len) {
        size_t tag = lx->at;
        while (tag < lx->source.len &&
               !(at_text(lx, tag, "{%") || at_text(lx, tag, "{{") || at_text(lx, tag, "{#")))
            tag++;
        struct str text = str_slice(lx->source, lx->at, tag);
        if (tag == lx->source.len) {
            add_data(lx, text);
            move_to(lx, tag);
            break;
        }
        bool is_variable = lx->source.ptr[tag + 1] == '{';
        add_data(lx, trim_before_tag(lx, text, sign_after(lx, tag), is_variable));
        move_to(lx, tag);
        size_t raw = match_word_block(lx, tag, "raw", false);
        if (raw > 0)
            TRY(lex_raw(lx, raw));
        else if (lx->source.ptr[tag + 1] == '#')
            TRY(lex_comment(lx));
        else
            TRY(lex_tag(lx, is_variable));
    }
    add_token(lx, JINJA_TOKEN_EOF, STR(""));
    return STATUS_OK;
}

/** A copy whose line ends are all \n; the last one goes. */
static struct str normalise(struct arena *arena, struct str source)
{
    char *copy = arena_alloc(arena, source.len + 1);
    size_t len = 0;
    for (size_t i = 0; i < source.len; i++) {
        if (source.ptr[i] == '\r') {
            copy[len++] = '\n';
            if (i + 1 < source.len && source.ptr[i + 1] == '\n')
                i++;
        } else {
            copy[len++] = source.ptr[i];
        }
    }
    if (len > 0 && copy[len - 1] == '\n')
        len--;
    copy[len] = '\0';
    return (struct str){copy, len};
}

enum status jinja_tokenize(struct arena *arena, struct str source, struct jinja_tokens *out,
                           struct error *err)
{
    size_t bad;
    *out = (struct jinja_tokens){0};
    if (source.len > MAX_SOURCE_BYTES)
        return error_set(err, STATUS_TOO_LARGE, "a template of %zu bytes; at most %d are allowed",
                         source.len, MAX_SOURCE_BYTES);
    if (!utf8_is_valid(source, &bad))
        return error_set(err, STATUS_INVALID, "the template is not UTF-8 at byte %zu", bad);
    struct lexer lx = {
        .arena = arena,
        .source = normalise(arena, source),
        .line = 1,
        .line_starting = true,
        .out = out,
        .err = err,
    };
    return lex_all(&lx);
}
