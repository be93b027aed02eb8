// A strict pull reader for JSON. What may come next is one of a few expectations; a bit per level
// remembers whether that level is an object or an array, so nothing recurses.
#include "base/json_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "base/memory.h"
#include "base/utf8.h"

enum expectation {
    EXPECT_VALUE,
    EXPECT_FIRST_ELEMENT, // a value or ']'
    EXPECT_FIRST_KEY,     // a key or '}'
    EXPECT_KEY,
    EXPECT_SEPARATOR, // ',' or the end of the object or array
    EXPECT_END,
};

void json_reader_init(struct json_reader *reader, struct str text, struct arena *arena)
{
    *reader = (struct json_reader){.text = text, .arena = arena, .expected = EXPECT_VALUE};
}

const char *json_token_name(enum json_token token)
{
    static const char *const names[] = {
        [JSON_TOKEN_ERROR] = "malformed JSON",
        [JSON_TOKEN_END] = "the end of the input",
        [JSON_TOKEN_OBJECT_BEGIN] = "an object",
        [JSON_TOKEN_OBJECT_END] = "the end of an object",
        [JSON_TOKEN_ARRAY_BEGIN] = "an array",
        [JSON_TOKEN_ARRAY_END] = "the end of an array",
        [JSON_TOKEN_KEY] = "a key",
        [JSON_TOKEN_STRING] = "a string",
        [JSON_TOKEN_INTEGER] = "an integer",
        [JSON_TOKEN_DOUBLE] = "a fractional number",
        [JSON_TOKEN_BOOL] = "a boolean",
        [JSON_TOKEN_NULL] = "null",
    };
    return names[token];
}

static enum json_token fail_at(struct json_reader *reader, size_t offset, const char *problem)
{
    if (!reader->problem) {
        reader->problem = problem;
        reader->problem_offset = offset;
    }
    return JSON_TOKEN_ERROR;
}

enum status json_reader_status(const struct json_reader *reader, struct error *err)
{
    if (!reader->problem)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID, "malformed JSON at byte %zu: %s", reader->problem_offset,
                     reader->problem);
}

static void skip_white_space(struct json_reader *reader)
{
    const char *ptr = reader->text.ptr;
    size_t i = reader->offset, len = reader->text.len;
    while (i < len && (ptr[i] == ' ' || ptr[i] == '\n' || ptr[i] == '\r' || ptr[i] == '\t'))
        i++;
    reader->offset = i;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/** The four hexadecimal digits at `at`; -1 if they are not. */
static int32_t read_hex4(struct str text, size_t at)
{
    if (at + 4 > text.len)
        return -1;
    int32_t value = 0;
    for (size_t i = at; i < at + 4; i++) {
        int digit = hex_digit(text.ptr[i]);
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/** Reads the escape whose backslash is at `*i` and moves `*i` past it; false: a problem is set. */
static bool unescape_one(struct json_reader *reader, size_t *i, char **out)
{
    struct str text = reader->text;
    size_t start = *i;
    char c = text.ptr[start + 1]; // there is one: the closing quote lies further on
    *i += 2;
    switch (c) {
    case '"':
    case '\\':
    case '/':
        *(*out)++ = c;
        return true;
    case 'b':
        *(*out)++ = '\b';
        return true;
    case 'f':
        *(*out)++ = '\f';
        return true;
    case 'n':
        *(*out)++ = '\n';
        return true;
    case 'r':
        *(*out)++ = '\r';
        return true;
    case 't':
        *(*out)++ = '\t';
        return true;
    case 'u':
        break;
    default:
        fail_at(reader, start, "unknown escape in a string");
        return false;
    }
    int32_t unit = read_hex4(text, *i);
    if (unit < 0) {
        fail_at(reader, start, "\\u without four hexadecimal digits");
        return false;
    }
    *i += 4;
    uint32_t code_point = (uint32_t)unit;
    if (unit >= 0xD800 && unit <= 0xDFFF) {
        int32_t low = -1;
        if (unit <= 0xDBFF && *i + 6 <= text.len && text.ptr[*i] == '\\' && text.ptr[*i + 1] == 'u')
            low = read_hex4(text, *i + 2);
        if (low < 0xDC00 || low > 0xDFFF) {
            fail_at(reader, start, "half of a surrogate pair");
            return false;
        }
        *i += 6;
        code_point = 0x10000 + (((uint32_t)unit - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
    }
    *out += utf8_encode(code_point, *out);
    return true;
}

/** Finds the closing quote of the string that starts at `start`; checks all but the escapes. */
static bool scan_string(struct json_reader *reader, size_t start, size_t *end, bool *has_escapes)
{
    struct str text = reader->text;
    size_t i = start;
    *has_escapes = false;
    while (i < text.len) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c == '"') {
            *end = i;
            return true;
        }
        if (c == '\\') {
            *has_escapes = true;
            i += 2;
        } else if (c < 0x20) {
            fail_at(reader, i, "control character in a string");
            return false;
        } else if (c < 0x80) {
            i++;
        } else {
            size_t len = utf8_valid_len(str_slice(text, i, text.len));
            if (len == 0) {
                fail_at(reader, i, "malformed UTF-8 in a string");
                return false;
            }
            i += len;
        }
    }
    fail_at(reader, start - 1, "string without end");
    return false;
}

/** Reads the string whose opening quote is the next byte. */
static bool read_string(struct json_reader *reader)
{
    size_t start = reader->offset + 1, end;
    bool has_escapes;
    if (!scan_string(reader, start, &end, &has_escapes))
        return false;
    reader->offset = end + 1;
    if (!has_escapes) {
        reader->string = str_slice(reader->text, start, end);
        return true;
    }
    char *copy = arena_alloc(reader->arena, end - start); // unescaping never lengthens
    char *out = copy;
    for (size_t i = start; i < end;) {
        if (reader->text.ptr[i] != '\\')
            *out++ = reader->text.ptr[i++];
        else if (!unescape_one(reader, &i, &out))
            return false;
    }
    reader->string = (struct str){copy, (size_t)(out - copy)};
    return true;
}

static bool is_digit(struct str text, size_t at)
{
    return at < text.len && text.ptr[at] >= '0' && text.ptr[at] <= '9';
}

/** Reads the digits at `*i`; false if there are none. */
static bool skip_digits(struct str text, size_t *i)
{
    size_t start = *i;
    while (is_digit(text, *i))
        (*i)++;
    return *i > start;
}

/** The integer of [start, end); false if 64 bits do not hold it. */
static bool parse_integer(struct str text, int64_t *out)
{
    bool negative = text.ptr[0] == '-';
    int64_t value = 0;
    for (size_t i = negative; i < text.len; i++) {
        int digit = text.ptr[i] - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, digit, &value)) // downwards, which also holds INT64_MIN
            return false;
    }
    return negative ? (*out = value, true) : !__builtin_sub_overflow((int64_t)0, value, out);
}

/** strtod() of a slice, through a terminated copy. */
static double parse_double(struct str text)
{
    char small[64];
    char *copy = text.len < sizeof(small) ? small : xmalloc(text.len + 1);
    for (size_t i = 0; i < text.len; i++)
        copy[i] = text.ptr[i];
    copy[text.len] = '\0';
    double value = strtod(copy, NULL);
    if (copy != small)
        free(copy);
    return value;
}

static enum json_token read_number(struct json_reader *reader)
{
    struct str text = reader->text;
    size_t start = reader->offset, i = start;
    if (text.ptr[i] == '-')
        i++;
    if (!is_digit(text, i))
        return fail_at(reader, start, "'-' without a number");
    if (text.ptr[i] == '0' && is_digit(text, i + 1))
        return fail_at(reader, start, "number with a leading zero");
    skip_digits(text, &i);
    bool whole = true;
    if (i < text.len && text.ptr[i] == '.') {
        whole = false;
        i++;
        if (!skip_digits(text, &i))
            return fail_at(reader, start, "number without digits after the point");
    }
    if (i < text.len && (text.ptr[i] == 'e' || text.ptr[i] == 'E')) {
        whole = false;
        i++;
        if (i < text.len && (text.ptr[i] == '+' || text.ptr[i] == '-'))
            i++;
        if (!skip_digits(text, &i))
            return fail_at(reader, start, "number without digits in the exponent");
    }
    reader->offset = i;
    struct str digits = str_slice(text, start, i);
    if (whole && parse_integer(digits, &reader->integer)) {
        reader->number = (double)reader->integer;
        return JSON_TOKEN_INTEGER;
    }
    reader->number = parse_double(digits);
    if (!isfinite(reader->number))
        return fail_at(reader, start, "number too large");
    return JSON_TOKEN_DOUBLE;
}

static bool read_word(struct json_reader *reader, struct str word)
{
    if (!str_starts_with(str_slice(reader->text, reader->offset, reader->text.len), word)) {
        fail_at(reader, reader->offset, "expected a value");
        return false;
    }
    reader->offset += word.len;
    return true;
}

static bool level_is_object(const struct json_reader *reader)
{
    int level = reader->depth - 1;
    return reader->in_object[level / 64] >> (level % 64) & 1;
}

/** After a value: what follows depends on where the value stands. */
static void expect_after_value(struct json_reader *reader)
{
    reader->expected = reader->depth == 0 ? EXPECT_END : EXPECT_SEPARATOR;
}

static enum json_token open_level(struct json_reader *reader, bool object)
{
    if (reader->depth == JSON_READER_MAX_DEPTH)
        return fail_at(reader, reader->offset, "more than 512 objects and arrays in each other");
    uint64_t bit = UINT64_C(1) << (reader->depth % 64);
    if (object)
        reader->in_object[reader->depth / 64] |= bit;
    else
        reader->in_object[reader->depth / 64] &= ~bit;
    reader->depth++;
    reader->offset++;
    reader->expected = object ? EXPECT_FIRST_KEY : EXPECT_FIRST_ELEMENT;
    return object ? JSON_TOKEN_OBJECT_BEGIN : JSON_TOKEN_ARRAY_BEGIN;
}

static enum json_token close_level(struct json_reader *reader)
{
    bool object = level_is_object(reader);
    reader->depth--;
    reader->offset++;
    expect_after_value(reader);
    return object ? JSON_TOKEN_OBJECT_END : JSON_TOKEN_ARRAY_END;
}

static enum json_token read_value(struct json_reader *reader)
{
    enum json_token token;
    switch (reader->text.ptr[reader->offset]) {
    case '{':
        return open_level(reader, true);
    case '[':
        return open_level(reader, false);
    case '"':
        token = read_string(reader) ? JSON_TOKEN_STRING : JSON_TOKEN_ERROR;
        break;
    case 't':
        token = read_word(reader, STR("true")) ? JSON_TOKEN_BOOL : JSON_TOKEN_ERROR;
        reader->boolean = true;
        break;
    case 'f':
        token = read_word(reader, STR("false")) ? JSON_TOKEN_BOOL : JSON_TOKEN_ERROR;
        reader->boolean = false;
        break;
    case 'n':
        token = read_word(reader, STR("null")) ? JSON_TOKEN_NULL : JSON_TOKEN_ERROR;
        break;
    case '-':
    case '0' ... '9':
        token = read_number(reader);
        break;
    default:
        return fail_at(reader, reader->offset, "expected a value");
    }
    expect_after_value(reader);
    return token;
}

static enum json_token read_key(struct json_reader *reader)
{
    if (reader->text.ptr[reader->offset] != '"')
        return fail_at(reader, reader->offset, "expected a key in quotes");
    if (!read_string(reader))
        return JSON_TOKEN_ERROR;
    skip_white_space(reader);
    if (reader->offset == reader->text.len || reader->text.ptr[reader->offset] != ':')
        return fail_at(reader, reader->offset, "expected ':' after a key");
    reader->offset++;
    reader->expected = EXPECT_VALUE;
    return JSON_TOKEN_KEY;
}

static enum json_token read_token(struct json_reader *reader)
{
    if (reader->problem)
        return JSON_TOKEN_ERROR;
    skip_white_space(reader);
    if (reader->expected == EXPECT_END)
        return reader->offset == reader->text.len
                   ? JSON_TOKEN_END
                   : fail_at(reader, reader->offset, "more text after the value");
    if (reader->offset == reader->text.len)
        return fail_at(reader, reader->offset, "the text ends too early");

    char c = reader->text.ptr[reader->offset];
    if (reader->expected == EXPECT_SEPARATOR) {
        bool object = level_is_object(reader);
        if (c == (object ? '}' : ']'))
            return close_level(reader);
        if (c != ',')
            return fail_at(reader, reader->offset,
                           object ? "expected ',' or '}'" : "expected ',' or ']'");
        reader->offset++;
        reader->expected = object ? EXPECT_KEY : EXPECT_VALUE;
        skip_white_space(reader);
        if (reader->offset == reader->text.len)
            return fail_at(reader, reader->offset, "the text ends too early");
        c = reader->text.ptr[reader->offset];
    }
    reader->token_offset = reader->offset;
    if ((reader->expected == EXPECT_FIRST_KEY && c == '}') ||
        (reader->expected == EXPECT_FIRST_ELEMENT && c == ']'))
        return close_level(reader);
    if (reader->expected == EXPECT_FIRST_KEY || reader->expected == EXPECT_KEY)
        return read_key(reader);
    return read_value(reader);
}

enum json_token json_reader_peek(struct json_reader *reader)
{
    if (!reader->has_peeked) {
        reader->peeked = read_token(reader);
        reader->has_peeked = true;
    }
    return reader->peeked;
}

enum json_token json_reader_next(struct json_reader *reader)
{
    enum json_token token = json_reader_peek(reader);
    reader->has_peeked = false;
    return token;
}

void json_reader_skip_value(struct json_reader *reader)
{
    int open = 0;
    do {
        switch (json_reader_next(reader)) {
        case JSON_TOKEN_OBJECT_BEGIN:
        case JSON_TOKEN_ARRAY_BEGIN:
            open++;
            break;
        case JSON_TOKEN_OBJECT_END:
        case JSON_TOKEN_ARRAY_END:
            open--;
            break;
        case JSON_TOKEN_ERROR:
        case JSON_TOKEN_END:
            return;
        default:
            break;
        }
    } while (open > 0);
}

bool json_reader_next_key(struct json_reader *reader, struct str *key)
{
    enum json_token token = json_reader_next(reader);
    if (token == JSON_TOKEN_KEY) {
        *key = reader->string;
        return true;
    }
    if (token != JSON_TOKEN_OBJECT_END)
        fail_at(reader, reader->offset, "expected a key");
    return false;
}

bool json_reader_next_element(struct json_reader *reader)
{
    enum json_token token = json_reader_peek(reader);
    if (token == JSON_TOKEN_ARRAY_END) {
        json_reader_next(reader);
        return false;
    }
    return token != JSON_TOKEN_ERROR && token != JSON_TOKEN_END;
}

enum status json_reader_expect(struct json_reader *reader, enum json_token token, struct error *err)
{
    enum json_token found = json_reader_next(reader);
    if (found == token)
        return STATUS_OK;
    TRY(json_reader_status(reader, err));
    return error_set(err, STATUS_INVALID, "at byte %zu: expected %s, found %s",
                     reader->token_offset, json_token_name(token), json_token_name(found));
}

enum status json_reader_read_string(struct json_reader *reader, struct str *out, struct error *err)
{
    TRY(json_reader_expect(reader, JSON_TOKEN_STRING, err));
    *out = reader->string;
    return STATUS_OK;
}

enum status json_reader_read_int(struct json_reader *reader, int64_t *out, struct error *err)
{
    TRY(json_reader_expect(reader, JSON_TOKEN_INTEGER, err));
    *out = reader->integer;
    return STATUS_OK;
}

enum status json_reader_read_bool(struct json_reader *reader, bool *out, struct error *err)
{
    TRY(json_reader_expect(reader, JSON_TOKEN_BOOL, err));
    *out = reader->boolean;
    return STATUS_OK;
}
