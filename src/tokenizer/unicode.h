// Character classes as tokenizer files mean them.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/** The Unicode property White_Space. */
bool unicode_is_white_space(uint32_t code_point);

/** What a word is made of (UTS 18, \w): letters, marks, decimal digits, connectors, joiners. */
bool unicode_is_word(uint32_t code_point);

/** Numbers of any kind (Nd, Nl, No). */
bool unicode_is_number(uint32_t code_point);

/** ASCII punctuation and symbols, and the Unicode categories P*. */
bool unicode_is_punctuation(uint32_t code_point);

/** The code point that ends at the end of `text`, which is well formed and not empty. */
uint32_t unicode_last(struct str text, size_t *len);
