// UTF-8: reading, writing and checking code points.
#include "base/utf8.h"

// Length that the first byte announces, and the allowed range of the second byte
// (RFC 3629, section 4); 0 for a byte that cannot start a code point.
static size_t expected_len(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (first < 0x80)
        return 1;
    if (first >= 0xC2 && first <= 0xDF)
        return 2;
    if (first >= 0xE0 && first <= 0xEF) {
        if (first == 0xE0)
            *low = 0xA0;
        if (first == 0xED)
            *high = 0x9F;
        return 3;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        if (first == 0xF0)
            *low = 0x90;
        if (first == 0xF4)
            *high = 0x8F;
        return 4;
    }
    return 0;
}

// How many bytes of `text` are right for one code point that starts there; `*need` is its length.
static size_t matching_bytes(struct str text, size_t *need)
{
    unsigned char low, high;
    *need = expected_len((unsigned char)text.ptr[0], &low, &high);
    if (*need == 0)
        return 0;
    size_t i = 1;
    for (; i < *need && i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c < low || c > high)
            break;
        low = 0x80;
        high = 0xBF;
    }
    return i;
}

size_t utf8_valid_len(struct str text)
{
    if (text.len == 0)
        return 0;
    size_t need;
    size_t have = matching_bytes(text, &need);
    return have == need ? need : 0;
}

uint32_t utf8_decode(struct str text, size_t *len)
{
    size_t valid = utf8_valid_len(text);
    const unsigned char *p = (const unsigned char *)text.ptr;
    *len = valid ? valid : 1;
    switch (valid) {
    case 1:
        return p[0];
    case 2:
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    case 3:
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    case 4:
        return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
               (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
    default:
        return 0xFFFD;
    }
}

size_t utf8_encode(uint32_t code_point, char *out)
{
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xC0 | code_point >> 6);
        out[1] = (char)(0x80 | (code_point & 0x3F));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (char)(0xE0 | code_point >> 12);
        out[1] = (char)(0x80 | (code_point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code_point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code_point >> 18);
    out[1] = (char)(0x80 | (code_point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code_point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code_point & 0x3F));
    return 4;
}

bool utf8_is_valid(struct str text, size_t *bad_offset)
{
    for (size_t i = 0; i < text.len;) {
        size_t len = utf8_valid_len(str_slice(text, i, text.len));
        if (len == 0) {
            if (bad_offset)
                *bad_offset = i;
            return false;
        }
        i += len;
    }
    return true;
}

size_t utf8_complete_prefix(struct str text)
{
    size_t back = text.len < 3 ? text.len : 3;
    for (size_t i = text.len - back; i < text.len; i++) {
        size_t need;
        size_t have = matching_bytes(str_slice(text, i, text.len), &need);
        if (need > 1 && have < need && have == text.len - i)
            return i;
    }
    return text.len;
}

size_t utf8_count(struct str text)
{
    size_t count = 0;
    for (size_t i = 0, len; i < text.len; i += len, count++)
        utf8_decode(str_slice(text, i, text.len), &len);
    return count;
}
