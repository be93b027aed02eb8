// The alphabet of byte-level vocabularies: each byte is written as one printable character, so that
// a vocabulary of arbitrary bytes can stand in a text file (GPT-2's scheme). Printable Latin-1
// bytes stand for themselves; the other 68 are U+0100 and following, in order.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/** All characters of the alphabet lie below this. */
#define BYTE_LEVEL_END 0x144

/** The code point that stands for `byte`. */
uint32_t byte_level_char(uint8_t byte);

/** The byte that `code_point` stands for; -1: it is not of the alphabet. */
int byte_level_byte(uint32_t code_point);

/** Writes `text` in the alphabet to `out` (room for 2 bytes a byte); returns the length. */
size_t byte_level_encode(struct str text, char *out);

/**
 * Writes the bytes that `token` spells to `out` (room for token.len); false if it holds a character
 * outside the alphabet.
 */
bool byte_level_decode(struct str token, char *out, size_t *len);
