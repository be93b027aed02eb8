// Text that is borrowed: a pointer and a length, not terminated, any bytes.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct str {
    const char *ptr;
    size_t len;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})
#define STR_FORMAT "%.*s" // with STR_ARG(s) as its argument
#define STR_ARG(s) (int)(s).len, (s).ptr

static inline struct str str_from(const char *text)
{
    return (struct str){text, text ? strlen(text) : 0};
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static inline bool str_eq_c(struct str a, const char *b)
{
    return str_eq(a, str_from(b));
}

static inline bool str_starts_with(struct str s, struct str prefix)
{
    return s.len >= prefix.len && (prefix.len == 0 || memcmp(s.ptr, prefix.ptr, prefix.len) == 0);
}

static inline bool str_ends_with(struct str s, struct str suffix)
{
    return s.len >= suffix.len &&
           (suffix.len == 0 || memcmp(s.ptr + s.len - suffix.len, suffix.ptr, suffix.len) == 0);
}

/** The part [start, end), both clamped to the length. */
static inline struct str str_slice(struct str s, size_t start, size_t end)
{
    if (end > s.len)
        end = s.len;
    if (start > end)
        start = end;
    return (struct str){start > 0 ? s.ptr + start : s.ptr, end - start}; // NULL + 0 is undefined
}

#define STR_NOT_FOUND SIZE_MAX

/** Position of the first `needle` at or after `from`, or STR_NOT_FOUND. */
size_t str_find(struct str s, struct str needle, size_t from);

/** Without ASCII white space at both ends. */
struct str str_trim(struct str s);

/** Equal but for ASCII letter case. */
bool str_eq_ignore_case(struct str a, struct str b);

/** Splits `*rest` at the first `separator`: returns what stands before it, leaves what follows. */
struct str str_split(struct str *rest, char separator);

/** 64-bit hash (FNV-1a with a final mix); for tables, not for secrets. */
uint64_t str_hash(struct str s);
