// A byte buffer that grows, and the JSON and text writers on top of it.
#include "base/buf.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

void buf_deinit(struct buf *buf)
{
    free(buf->ptr);
    *buf = (struct buf){0};
}

char *buf_reserve(struct buf *buf, size_t extra)
{
    size_t need = 0;
    CHECK(size_add(&need, buf->len, extra));
    if (need > buf->capacity || !buf->ptr) {
        size_t capacity = buf->capacity ? buf->capacity : 64;
        while (capacity < need)
            capacity *= 2;
        buf->ptr = xrealloc(buf->ptr, capacity);
        buf->capacity = capacity;
    }
    return buf->ptr + buf->len;
}

void buf_append(struct buf *buf, struct str text)
{
    if (text.len == 0)
        return;
    memcpy(buf_reserve(buf, text.len), text.ptr, text.len);
    buf->len += text.len;
}

void buf_append_c(struct buf *buf, const char *text)
{
    buf_append(buf, str_from(text));
}

void buf_append_char(struct buf *buf, char c)
{
    *buf_reserve(buf, 1) = c;
    buf->len++;
}

void buf_append_int(struct buf *buf, int64_t value)
{
    char digits[24];
    char *end = digits + sizeof(digits), *p = end;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        *--p = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0)
        *--p = '-';
    buf_append(buf, (struct str){p, (size_t)(end - p)});
}

void buf_printf(struct buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(len >= 0);
    vsnprintf(buf_reserve(buf, (size_t)len + 1), (size_t)len + 1, format, again);
    va_end(again);
    buf->len += (size_t)len;
}

static void append_escaped(struct buf *buf, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    switch (c) {
    case '"':
        buf_append(buf, STR("\\\""));
        break;
    case '\\':
        buf_append(buf, STR("\\\\"));
        break;
    case '\n':
        buf_append(buf, STR("\\n"));
        break;
    case '\r':
        buf_append(buf, STR("\\r"));
        break;
    case '\t':
        buf_append(buf, STR("\\t"));
        break;
    case '\b':
        buf_append(buf, STR("\\b"));
        break;
    case '\f':
        buf_append(buf, STR("\\f"));
        break;
    default:
        buf_append(buf, (struct str){(char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6});
    }
}

void buf_append_json_string(struct buf *buf, struct str text)
{
    buf_append_char(buf, '"');
    size_t start = 0, i = 0; // [start, i) needs no change and is not written yet
    while (i < text.len) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c < 0x7f) {
            i++;
            continue;
        }
        size_t len = 1;
        if (c >= 0x80) {
            len = utf8_valid_len(str_slice(text, i, text.len));
            if (len > 0) {
                i += len;
                continue;
            }
        }
        buf_append(buf, str_slice(text, start, i));
        if (c >= 0x80)
            buf_append(buf, STR("\xEF\xBF\xBD"));
        else if (c == 0x7f)
            buf_append_char(buf, (char)c);
        else
            append_escaped(buf, c);
        start = ++i;
    }
    buf_append(buf, str_slice(text, start, i));
    buf_append_char(buf, '"');
}

void buf_append_base64(struct buf *buf, struct str bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = (const unsigned char *)bytes.ptr;
    char *to = buf_reserve(buf, (bytes.len + 2) / 3 * 4);
    for (size_t i = 0; i < bytes.len; i += 3) {
        size_t count = bytes.len - i < 3 ? bytes.len - i : 3;
        uint32_t group = (uint32_t)from[i] << 16;
        group |= count > 1 ? (uint32_t)from[i + 1] << 8 : 0;
        group |= count > 2 ? from[i + 2] : 0;
        to[0] = digits[group >> 18];
        to[1] = digits[group >> 12 & 63];
        to[2] = count > 1 ? digits[group >> 6 & 63] : '=';
        to[3] = count > 2 ? digits[group & 63] : '=';
        to += 4;
    }
    buf->len += (bytes.len + 2) / 3 * 4;
}

void buf_append_json_double(struct buf *buf, double value)
{
    if (!isfinite(value)) {
        buf_append(buf, STR("null"));
        return;
    }
    char digits[40];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof(digits), "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    buf_append_c(buf, digits);
    if (!strpbrk(digits, ".e"))
        buf_append(buf, STR(".0"));
}
