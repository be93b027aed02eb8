// Code points as Python's str sees them: white space, classes, case mapping.
#include "tokenizer/jinja_value.h"

#include <utf8proc.h>

#include "base/utf8.h"

// Where upper or title case is more than one code point (Unicode SpecialCasing).
static const struct special_case {
    uint16_t code_point;
    uint16_t upper[3], title[3];
} special_cases[] = {
    {0x00DF, {0x0053, 0x0053}, {0x0053, 0x0073}},
    {0x0149, {0x02BC, 0x004E}, {0x02BC, 0x004E}},
    {0x01F0, {0x004A, 0x030C}, {0x004A, 0x030C}},
    {0x0390, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x03B0, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}},
    {0x0587, {0x0535, 0x0552}, {0x0535, 0x0582}},
    {0x1E96, {0x0048, 0x0331}, {0x0048, 0x0331}},
    {0x1E97, {0x0054, 0x0308}, {0x0054, 0x0308}},
    {0x1E98, {0x0057, 0x030A}, {0x0057, 0x030A}},
    {0x1E99, {0x0059, 0x030A}, {0x0059, 0x030A}},
    {0x1E9A, {0x0041, 0x02BE}, {0x0041, 0x02BE}},
    {0x1F50, {0x03A5, 0x0313}, {0x03A5, 0x0313}},
    {0x1F52, {0x03A5, 0x0313, 0x0300}, {0x03A5, 0x0313, 0x0300}},
    {0x1F54, {0x03A5, 0x0313, 0x0301}, {0x03A5, 0x0313, 0x0301}},
    {0x1F56, {0x03A5, 0x0313, 0x0342}, {0x03A5, 0x0313, 0x0342}},
    {0x1F80, {0x1F08, 0x0399}, {0x1F88}},
    {0x1F81, {0x1F09, 0x0399}, {0x1F89}},
    {0x1F82, {0x1F0A, 0x0399}, {0x1F8A}},
    {0x1F83, {0x1F0B, 0x0399}, {0x1F8B}},
    {0x1F84, {0x1F0C, 0x0399}, {0x1F8C}},
    {0x1F85, {0x1F0D, 0x0399}, {0x1F8D}},
    {0x1F86, {0x1F0E, 0x0399}, {0x1F8E}},
    {0x1F87, {0x1F0F, 0x0399}, {0x1F8F}},
    {0x1F88, {0x1F08, 0x0399}, {0x1F88}},
    {0x1F89, {0x1F09, 0x0399}, {0x1F89}},
    {0x1F8A, {0x1F0A, 0x0399}, {0x1F8A}},
    {0x1F8B, {0x1F0B, 0x0399}, {0x1F8B}},
    {0x1F8C, {0x1F0C, 0x0399}, {0x1F8C}},
    {0x1F8D, {0x1F0D, 0x0399}, {0x1F8D}},
    {0x1F8E, {0x1F0E, 0x0399}, {0x1F8E}},
    {0x1F8F, {0x1F0F, 0x0399}, {0x1F8F}},
    {0x1F90, {0x1F28, 0x0399}, {0x1F98}},
    {0x1F91, {0x1F29, 0x0399}, {0x1F99}},
    {0x1F92, {0x1F2A, 0x0399}, {0x1F9A}},
    {0x1F93, {0x1F2B, 0x0399}, {0x1F9B}},
    {0x1F94, {0x1F2C, 0x0399}, {0x1F9C}},
    {0x1F95, {0x1F2D, 0x0399}, {0x1F9D}},
    {0x1F96, {0x1F2E, 0x0399}, {0x1F9E}},
    {0x1F97, {0x1F2F, 0x0399}, {0x1F9F}},
    {0x1F98, {0x1F28, 0x0399}, {0x1F98}},
    {0x1F99, {0x1F29, 0x0399}, {0x1F99}},
    {0x1F9A, {0x1F2A, 0x0399}, {0x1F9A}},
    {0x1F9B, {0x1F2B, 0x0399}, {0x1F9B}},
    {0x1F9C, {0x1F2C, 0x0399}, {0x1F9C}},
    {0x1F9D, {0x1F2D, 0x0399}, {0x1F9D}},
    {0x1F9E, {0x1F2E, 0x0399}, {0x1F9E}},
    {0x1F9F, {0x1F2F, 0x0399}, {0x1F9F}},
    {0x1FA0, {0x1F68, 0x0399}, {0x1FA8}},
    {0x1FA1, {0x1F69, 0x0399}, {0x1FA9}},
    {0x1FA2, {0x1F6A, 0x0399}, {0x1FAA}},
    {0x1FA3, {0x1F6B, 0x0399}, {0x1FAB}},
    {0x1FA4, {0x1F6C, 0x0399}, {0x1FAC}},
    {0x1FA5, {0x1F6D, 0x0399}, {0x1FAD}},
    {0x1FA6, {0x1F6E, 0x0399}, {0x1FAE}},
    {0x1FA7, {0x1F6F, 0x0399}, {0x1FAF}},
    {0x1FA8, {0x1F68, 0x0399}, {0x1FA8}},
    {0x1FA9, {0x1F69, 0x0399}, {0x1FA9}},
    {0x1FAA, {0x1F6A, 0x0399}, {0x1FAA}},
    {0x1FAB, {0x1F6B, 0x0399}, {0x1FAB}},
    {0x1FAC, {0x1F6C, 0x0399}, {0x1FAC}},
    {0x1FAD, {0x1F6D, 0x0399}, {0x1FAD}},
    {0x1FAE, {0x1F6E, 0x0399}, {0x1FAE}},
    {0x1FAF, {0x1F6F, 0x0399}, {0x1FAF}},
    {0x1FB2, {0x1FBA, 0x0399}, {0x1FBA, 0x0345}},
    {0x1FB3, {0x0391, 0x0399}, {0x1FBC}},
    {0x1FB4, {0x0386, 0x0399}, {0x0386, 0x0345}},
    {0x1FB6, {0x0391, 0x0342}, {0x0391, 0x0342}},
    {0x1FB7, {0x0391, 0x0342, 0x0399}, {0x0391, 0x0342, 0x0345}},
    {0x1FBC, {0x0391, 0x0399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x0399}, {0x1FCA, 0x0345}},
    {0x1FC3, {0x0397, 0x0399}, {0x1FCC}},
    {0x1FC4, {0x0389, 0x0399}, {0x0389, 0x0345}},
    {0x1FC6, {0x0397, 0x0342}, {0x0397, 0x0342}},
    {0x1FC7, {0x0397, 0x0342, 0x0399}, {0x0397, 0x0342, 0x0345}},
    {0x1FCC, {0x0397, 0x0399}, {0x1FCC}},
    {0x1FD2, {0x0399, 0x0308, 0x0300}, {0x0399, 0x0308, 0x0300}},
    {0x1FD3, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x1FD6, {0x0399, 0x0342}, {0x0399, 0x0342}},
    {0x1FD7, {0x0399, 0x0308, 0x0342}, {0x0399, 0x0308, 0x0342}},
    {0x1FE2, {0x03A5, 0x0308, 0x0300}, {0x03A5, 0x0308, 0x0300}},
    {0x1FE3, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}},
    {0x1FE4, {0x03A1, 0x0313}, {0x03A1, 0x0313}},
    {0x1FE6, {0x03A5, 0x0342}, {0x03A5, 0x0342}},
    {0x1FE7, {0x03A5, 0x0308, 0x0342}, {0x03A5, 0x0308, 0x0342}},
    {0x1FF2, {0x1FFA, 0x0399}, {0x1FFA, 0x0345}},
    {0x1FF3, {0x03A9, 0x0399}, {0x1FFC}},
    {0x1FF4, {0x038F, 0x0399}, {0x038F, 0x0345}},
    {0x1FF6, {0x03A9, 0x0342}, {0x03A9, 0x0342}},
    {0x1FF7, {0x03A9, 0x0342, 0x0399}, {0x03A9, 0x0342, 0x0345}},
    {0x1FFC, {0x03A9, 0x0399}, {0x1FFC}},
    {0xFB00, {0x0046, 0x0046}, {0x0046, 0x0066}},
    {0xFB01, {0x0046, 0x0049}, {0x0046, 0x0069}},
    {0xFB02, {0x0046, 0x004C}, {0x0046, 0x006C}},
    {0xFB03, {0x0046, 0x0046, 0x0049}, {0x0046, 0x0066, 0x0069}},
    {0xFB04, {0x0046, 0x0046, 0x004C}, {0x0046, 0x0066, 0x006C}},
    {0xFB05, {0x0053, 0x0054}, {0x0053, 0x0074}},
    {0xFB06, {0x0053, 0x0054}, {0x0053, 0x0074}},
    {0xFB13, {0x0544, 0x0546}, {0x0544, 0x0576}},
    {0xFB14, {0x0544, 0x0535}, {0x0544, 0x0565}},
    {0xFB15, {0x0544, 0x053B}, {0x0544, 0x056B}},
    {0xFB16, {0x054E, 0x0546}, {0x054E, 0x0576}},
    {0xFB17, {0x0544, 0x053D}, {0x0544, 0x056D}},
};

static utf8proc_category_t category(uint32_t code_point)
{
    return utf8proc_category((utf8proc_int32_t)code_point);
}

bool jinja_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

bool jinja_is_printable(uint32_t c)
{
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

bool jinja_is_alpha(uint32_t c)
{
    utf8proc_category_t cat = category(c);
    return cat == UTF8PROC_CATEGORY_LU || cat == UTF8PROC_CATEGORY_LL ||
           cat == UTF8PROC_CATEGORY_LT || cat == UTF8PROC_CATEGORY_LM ||
           cat == UTF8PROC_CATEGORY_LO;
}

bool jinja_is_decimal(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_ND;
}

bool jinja_is_digit(uint32_t c)
{
    // Beyond decimals: superscripts, subscripts, circled and parenthesised single digits.
    return jinja_is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
           (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
           (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247C) ||
           (c >= 0x2488 && c <= 0x2490) || c == 0x24EA || (c >= 0x24F5 && c <= 0x24FD) ||
           c == 0x24FF || (c >= 0x2776 && c <= 0x277E) || (c >= 0x2780 && c <= 0x2788) ||
           (c >= 0x278A && c <= 0x2792);
}

bool jinja_is_numeric(uint32_t c)
{
    utf8proc_category_t cat = category(c);
    return cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_NL ||
           cat == UTF8PROC_CATEGORY_NO;
}

bool jinja_is_title(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LT;
}

bool jinja_is_upper(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F) ||
           (c >= 0x24B6 && c <= 0x24CF);
}

bool jinja_is_lower(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA ||
           (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9);
}

bool jinja_is_word(uint32_t c)
{
    return c == '_' || jinja_is_alpha(c) || jinja_is_numeric(c);
}

static bool is_cased(uint32_t c)
{
    return jinja_is_upper(c) || jinja_is_lower(c) || jinja_is_title(c);
}

static enum status put_special(struct jinja_runtime *rt, const uint16_t *code_points)
{
    for (int i = 0; i < 3 && code_points[i] != 0; i++)
        TRY(jinja_put_char(rt, code_points[i]));
    return STATUS_OK;
}

static enum status put_upper(struct jinja_runtime *rt, uint32_t c, bool title)
{
    if (c < 0x80)
        return jinja_put_char(rt, c >= 'a' && c <= 'z' ? c - 32 : c);
    for (size_t i = 0; i < sizeof(special_cases) / sizeof(special_cases[0]); i++) {
        if (special_cases[i].code_point == c)
            return put_special(rt, title ? special_cases[i].title : special_cases[i].upper);
    }
    utf8proc_int32_t mapped =
        title ? utf8proc_totitle((utf8proc_int32_t)c) : utf8proc_toupper((utf8proc_int32_t)c);
    return jinja_put_char(rt, (uint32_t)mapped);
}

static enum status put_folded(struct jinja_runtime *rt, uint32_t c)
{
    utf8proc_int32_t mapped[8];
    int boundary = 0;
    utf8proc_ssize_t len =
        utf8proc_decompose_char((utf8proc_int32_t)c, mapped, 8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < len && i < 8; i++)
        TRY(jinja_put_char(rt, (uint32_t)mapped[i]));
    return STATUS_OK;
}

/** A capital sigma is a final one after a letter and not before one. */
static bool is_final_sigma(struct str text, size_t at)
{
    bool before = false;
    for (size_t i = at; i > 0;) {
        do
            i--;
        while (i > 0 && ((unsigned char)text.ptr[i] & 0xC0) == 0x80);
        size_t len;
        uint32_t c = utf8_decode((struct str){text.ptr + i, text.len - i}, &len);
        if (is_cased(c)) {
            before = true;
            break;
        }
        if (c != '\'' && category(c) != UTF8PROC_CATEGORY_MN)
            break;
    }
    for (size_t i = at + 2; i < text.len;) {
        size_t len;
        uint32_t c = utf8_decode((struct str){text.ptr + i, text.len - i}, &len);
        if (is_cased(c))
            return false;
        if (c != '\'' && category(c) != UTF8PROC_CATEGORY_MN)
            break;
        i += len;
    }
    return before;
}

static enum status put_lower(struct jinja_runtime *rt, struct str text, size_t at, uint32_t c)
{
    if (c < 0x80)
        return jinja_put_char(rt, c >= 'A' && c <= 'Z' ? c + 32 : c);
    if (c == 0x0130) { // I with dot above
        TRY(jinja_put_char(rt, 'i'));
        return jinja_put_char(rt, 0x0307);
    }
    if (c == 0x03A3)
        return jinja_put_char(rt, is_final_sigma(text, at) ? 0x03C2 : 0x03C3);
    return jinja_put_char(rt, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

enum status jinja_put_case(struct jinja_runtime *rt, struct str text, enum jinja_case to)
{
    bool previous_cased = false;
    TRY(jinja_step(rt, text.len * JINJA_STEP_BYTES)); // code point by code point
    for (size_t at = 0; at < text.len;) {
        size_t len;
        uint32_t c = utf8_decode((struct str){text.ptr + at, text.len - at}, &len);
        if (to == JINJA_CASE_UPPER) {
            TRY(put_upper(rt, c, false));
        } else if (to == JINJA_CASE_FOLD) {
            TRY(put_folded(rt, c));
        } else if (to == JINJA_CASE_LOWER || previous_cased) {
            TRY(put_lower(rt, text, at, c));
        } else {
            TRY(put_upper(rt, c, true));
        }
        previous_cased = is_cased(c);
        at += len;
    }
    return STATUS_OK;
}

enum status jinja_put_capitalized(struct jinja_runtime *rt, struct str text)
{
    if (text.len == 0)
        return STATUS_OK;
    TRY(jinja_step(rt, text.len * JINJA_STEP_BYTES));
    size_t len;
    uint32_t first = utf8_decode(text, &len);
    TRY(put_upper(rt, first, true));
    for (size_t at = len; at < text.len; at += len) {
        uint32_t c = utf8_decode((struct str){text.ptr + at, text.len - at}, &len);
        TRY(put_lower(rt, text, at, c));
    }
    return STATUS_OK;
}

static bool is_stripped(const struct str *chars, uint32_t c)
{
    if (!chars)
        return jinja_is_space(c);
    for (size_t at = 0; at < chars->len;) {
        size_t len;
        if (utf8_decode((struct str){chars->ptr + at, chars->len - at}, &len) == c)
            return true;
        at += len;
    }
    return false;
}

struct str jinja_strip(struct str text, const struct str *chars, bool left, bool right)
{
    while (left && text.len > 0) {
        size_t len;
        if (!is_stripped(chars, utf8_decode(text, &len)))
            break;
        text.ptr += len;
        text.len -= len;
    }
    while (right && text.len > 0) {
        size_t at = text.len - 1;
        while (at > 0 && ((unsigned char)text.ptr[at] & 0xC0) == 0x80)
            at--;
        size_t len;
        if (!is_stripped(chars, utf8_decode((struct str){text.ptr + at, text.len - at}, &len)))
            break;
        text.len = at;
    }
    return text;
}
