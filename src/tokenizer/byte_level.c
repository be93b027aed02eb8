#include "tokenizer/byte_level.h"

#include "base/utf8.h"

static bool is_printable(uint8_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

uint32_t byte_level_char(uint8_t byte)
{
    if (is_printable(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte <= 0xA0) // 0x7F to 0xA0
        return 0x121u + (byte - 0x7Fu);
    return 0x143; // the soft hyphen, 0xAD
}

int byte_level_byte(uint32_t c)
{
    if (c < 0x100)
        return is_printable((uint8_t)c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)c - 0x100;
    if (c <= 0x142)
        return (int)c - 0x121 + 0x7F;
    return c == 0x143 ? 0xAD : -1;
}

size_t byte_level_encode(struct str text, char *out)
{
    char *start = out;
    for (size_t i = 0; i < text.len; i++) {
        uint32_t c = byte_level_char((uint8_t)text.ptr[i]);
        if (c < 0x80) {
            *out++ = (char)c;
        } else {
            *out++ = (char)(0xC0 | c >> 6);
            *out++ = (char)(0x80 | (c & 0x3F));
        }
    }
    return (size_t)(out - start);
}

bool byte_level_decode(struct str token, char *out, size_t *len)
{
    *len = 0;
    for (size_t i = 0; i < token.len;) {
        unsigned char lead = (unsigned char)token.ptr[i];
        uint32_t c = lead;
        size_t size = 1;
        if (lead >= 0x80)
            c = utf8_decode(str_slice(token, i, token.len), &size);
        int byte = byte_level_byte(c);
        if (byte < 0)
            return false;
        out[(*len)++] = (char)byte;
        i += size;
    }
    return true;
}
