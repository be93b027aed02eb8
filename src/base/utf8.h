// UTF-8: reading, writing and checking code points.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/** Bytes of the code point at the start of `text` if it is well formed (RFC 3629: no surrogates, no
 *  overlong forms, at most U+10FFFF), else 0. 0 for empty text. */
size_t utf8_valid_len(struct str text);

/** Reads the code point at `text`; `*len` is its length. Malformed: returns U+FFFD and `*len` = 1.
 *  `text` must not be empty. */
uint32_t utf8_decode(struct str text, size_t *len);

/** Writes a code point to `out` (room for 4); returns the number of bytes. */
size_t utf8_encode(uint32_t code_point, char *out);

/** Whether all of `text` is well formed; `*bad_offset` (may be NULL) is where it is not. */
bool utf8_is_valid(struct str text, size_t *bad_offset);

/** Length of the longest prefix that does not end inside a code point: what follows may yet become
 *  one when more bytes come. Malformed bytes count as complete. */
size_t utf8_complete_prefix(struct str text);

/** Number of code points; a malformed byte counts as one. */
size_t utf8_count(struct str text);
