// A byte buffer that grows, and the JSON and text writers on top of it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

/** `= {0}` is a valid empty buffer. */
struct buf {
    char *ptr;
    size_t len, capacity;
};

void buf_deinit(struct buf *buf);

static inline void buf_clear(struct buf *buf)
{
    buf->len = 0;
}

static inline struct str buf_str(const struct buf *buf)
{
    return (struct str){buf->ptr, buf->len};
}

/** Room for `extra` more bytes; returns where they go (buf->len is not moved). */
char *buf_reserve(struct buf *buf, size_t extra);

void buf_append(struct buf *buf, struct str text);
void buf_append_c(struct buf *buf, const char *text);
void buf_append_char(struct buf *buf, char c);
void buf_append_int(struct buf *buf, int64_t value);
void buf_printf(struct buf *buf, const char *format, ...) PRINTF_FORMAT(2, 3);

/** `text` as a quoted JSON string. Invalid UTF-8 becomes U+FFFD, so the output is always valid. */
void buf_append_json_string(struct buf *buf, struct str text);

/** Bytes as base64 (RFC 4648) with padding, without quotes. */
void buf_append_base64(struct buf *buf, struct str bytes);

/** The shortest decimal that reads back as the same double; always with '.' or 'e' ("1.0").
 *  Not finite: null. */
void buf_append_json_double(struct buf *buf, double value);
