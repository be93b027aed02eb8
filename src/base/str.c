// Text that is borrowed: a pointer and a length.
#include "base/str.h"

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static char to_lower(char c)
{
    return (c >= 'A' && c <= 'Z') ? (char)(c - 'A' + 'a') : c;
}

size_t str_find(struct str s, struct str needle, size_t from)
{
    if (from > s.len || needle.len > s.len - from)
        return STR_NOT_FOUND;
    if (needle.len == 0)
        return from;
    const char *hit = memmem(s.ptr + from, s.len - from, needle.ptr, needle.len);
    return hit ? (size_t)(hit - s.ptr) : STR_NOT_FOUND;
}

struct str str_trim(struct str s)
{
    while (s.len > 0 && is_space(s.ptr[0]))
        s = str_slice(s, 1, s.len);
    while (s.len > 0 && is_space(s.ptr[s.len - 1]))
        s.len--;
    return s;
}

bool str_eq_ignore_case(struct str a, struct str b)
{
    if (a.len != b.len)
        return false;
    for (size_t i = 0; i < a.len; i++) {
        if (to_lower(a.ptr[i]) != to_lower(b.ptr[i]))
            return false;
    }
    return true;
}

struct str str_split(struct str *rest, char separator)
{
    const char *hit = rest->len > 0 ? memchr(rest->ptr, separator, rest->len) : NULL;
    struct str head = *rest;
    if (!hit) {
        *rest = str_slice(*rest, rest->len, rest->len);
        return head;
    }
    head.len = (size_t)(hit - rest->ptr);
    *rest = str_slice(*rest, head.len + 1, rest->len);
    return head;
}

uint64_t str_hash(struct str s)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.len; i++)
        hash = (hash ^ (uint8_t)s.ptr[i]) * 0x100000001b3u;
    hash ^= hash >> 32;
    hash *= 0xd6e8feb86659fd93u;
    return hash ^ (hash >> 32);
}
