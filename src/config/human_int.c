// Integers as people write them: 32k = 32000, 32K = 32768, 25.6k = 25600.
#include "config/options.h"

#include <ctype.h>

#include "config/option_table.h"

/** A lower-case suffix is decimal, an upper-case one binary; 0: not a suffix. */
static int64_t suffix_multiplier(char suffix)
{
    static const char letters[] = "kmgt";
    const char *at = suffix ? strchr(letters, tolower((unsigned char)suffix)) : NULL;
    if (!at)
        return 0;
    int64_t base = islower((unsigned char)suffix) ? 1000 : 1024, multiplier = 1;
    for (const char *p = letters; p <= at; p++)
        multiplier *= base;
    return multiplier;
}

static enum status not_an_integer(struct str text, struct error *err)
{
    return error_set(err, STATUS_INVALID, "invalid integer value: '" STR_FORMAT "'",
                     (int)(text.len < 200 ? text.len : 200), text.ptr);
}

static enum status out_of_range(struct str text, struct error *err)
{
    return error_set(err, STATUS_INVALID, "'" STR_FORMAT "' is too large for a 64-bit integer",
                     (int)(text.len < 200 ? text.len : 200), text.ptr);
}

/** Adds `digit` at the right of `*number`. */
static bool push_digit(int64_t *number, char digit)
{
    return !__builtin_mul_overflow(*number, (int64_t)10, number) &&
           !__builtin_add_overflow(*number, (int64_t)(digit - '0'), number);
}

/** A Python integer: an optional sign, digits, single underscores between digits. */
enum status plain_int_parse(struct str text, int64_t *out, struct error *err)
{
    text = str_trim(text);
    size_t i = 0;
    bool negative = text.len > 0 && text.ptr[0] == '-';
    if (text.len > 0 && (text.ptr[0] == '-' || text.ptr[0] == '+'))
        i++;
    int64_t number = 0;
    bool after_digit = false;
    for (; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '_' && after_digit && i + 1 < text.len) {
            after_digit = false;
            continue;
        }
        if (c < '0' || c > '9')
            return not_an_integer(text, err);
        if (!push_digit(&number, c))
            return out_of_range(text, err);
        after_digit = true;
    }
    if (!after_digit)
        return not_an_integer(text, err);
    *out = negative ? -number : number;
    return STATUS_OK;
}

enum status human_int_parse(struct str text, int64_t *out, struct error *err)
{
    text = str_trim(text);
    int64_t multiplier = text.len > 0 ? suffix_multiplier(text.ptr[text.len - 1]) : 0;
    if (multiplier == 0)
        return plain_int_parse(text, out, err);

    struct str number = str_slice(text, 0, text.len - 1), fraction = number;
    struct str whole = str_split(&fraction, '.');
    bool has_point = whole.len < number.len;
    if (whole.len == 0 || (has_point && fraction.len == 0))
        return not_an_integer(text, err);
    int64_t value = 0;
    for (size_t i = 0; i < whole.len; i++) {
        if (whole.ptr[i] < '0' || whole.ptr[i] > '9')
            return not_an_integer(text, err);
        if (!push_digit(&value, whole.ptr[i]))
            return out_of_range(text, err);
    }
    for (size_t i = 0; i < fraction.len; i++) {
        if (fraction.ptr[i] < '0' || fraction.ptr[i] > '9')
            return not_an_integer(text, err);
    }
    char suffix = text.ptr[text.len - 1];
    if (has_point && isupper((unsigned char)suffix))
        return error_set(err, STATUS_INVALID,
                         "decimals are not allowed with binary suffixes like %c. Did you mean to "
                         "use " STR_FORMAT "%c instead?",
                         suffix, (int)(number.len < 200 ? number.len : 200), number.ptr,
                         tolower((unsigned char)suffix));
    if (__builtin_mul_overflow(value, multiplier, &value))
        return out_of_range(text, err);
    // Digits after the point in exact arithmetic: 2.3m is 2300000, which floats would miss by one.
    for (size_t i = 0; i < fraction.len && multiplier >= 10; i++) {
        multiplier /= 10;
        if (__builtin_add_overflow(value, multiplier * (fraction.ptr[i] - '0'), &value))
            return out_of_range(text, err);
    }
    *out = value;
    return STATUS_OK;
}
