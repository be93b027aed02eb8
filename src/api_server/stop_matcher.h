// Finds the end of an answer: stop strings in text that grows, and how much of it may be shown.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/** Immutable while a request lives. Strings are borrowed and not empty. */
struct stop_matcher {
    const struct str *strings;
    int32_t num_strings;
    bool include_in_output;
    size_t hold_back; // characters at the end that may be the start of a stop string
};

struct stop_matcher stop_matcher_make(const struct str *strings, int32_t num_strings,
                                      bool include_in_output);

/**
 * Looks for stop strings that end within the last `num_new` bytes of `text`. The match that ends
 * first wins, then the one listed first. Returns its index and the length to cut the text to, or
 * -1.
 */
int32_t stop_matcher_find(const struct stop_matcher *matcher, struct str text, size_t num_new,
                          size_t *cut_len);

/** How many bytes of an unfinished `text` may be shown. */
size_t stop_matcher_visible(const struct stop_matcher *matcher, struct str text);
