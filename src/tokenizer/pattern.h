// What a Split or Replace looks for: a literal text or a regular expression.
//
// Expressions are written for Oniguruma and translated to PCRE2, which is a backtracking engine:
// steps and memory are limited. Where a limit is met, the text up to the next white space counts as
// no match and the search goes on behind it; after a few such failures the rest of that text has no
// matches. So text is always tokenized, if not always as the expression meant.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

/** Immutable: any thread may search with it. */
struct pattern;

/** INVALID: a syntax error; UNSUPPORTED: a construct that PCRE2 would read otherwise. */
NODISCARD enum status pattern_create_regex(struct pattern **out, struct str regex,
                                           struct error *err);
NODISCARD enum status pattern_create_literal(struct pattern **out, struct str literal,
                                             struct error *err);
void pattern_destroy(struct pattern *pattern);

/** The length of a literal; 0 for an expression. */
size_t pattern_literal_len(const struct pattern *pattern);

/** One search at a time, over one text after the other. */
struct pattern_search {
    const struct pattern *pattern;
    void *match_data, *match_context; // PCRE2's
    struct str text;
    struct buf stand_ins; // the text with older characters for those that PCRE2 does not know
    size_t position;
    size_t last_end; // of the last match; SIZE_MAX: none yet
    int num_failures;
};

void pattern_search_init(struct pattern_search *search, const struct pattern *pattern);
void pattern_search_deinit(struct pattern_search *search);

/** Goes to the start of a text, which is well formed UTF-8. */
void pattern_search_start(struct pattern_search *search, struct str text);

/** The next match [*start, *end), maybe empty; false: no more. */
bool pattern_search_next(struct pattern_search *search, size_t *start, size_t *end);
