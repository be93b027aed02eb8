// Characters that are younger than the Unicode tables of the libraries.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/**
 * An older character of the same general category and the same length in UTF-8, for one that came
 * with Unicode 15 or 16; any other character itself. Text in which they are exchanged can be
 * matched by libraries that know Unicode 14 only, and all offsets stay.
 */
uint32_t unicode_stand_in(uint32_t code_point);

/** Whether well formed text holds a character that has a stand-in, at or after `*at`, which is
 * moved there. */
bool unicode_find_young(struct str text, size_t *at);
