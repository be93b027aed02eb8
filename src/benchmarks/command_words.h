// A command line as words: read from one string, changed flag by flag, shown again.
#pragma once

#include <jansson.h>

#include "config/options.h"

/**
 * Splits `text` at white space; '...' and "..." hold it together and a backslash takes the next
 * character as it is (POSIX shell quoting, sh(1) 2.2). Nothing is expanded: no variables, patterns
 * or pipes. The words live in `arena`. Errors: INVALID (an open quote, no word), naming `option`.
 */
NODISCARD enum status command_words_split(struct str_list *words, const char *option,
                                          const char *text, struct arena *arena, struct error *err);

/** The last value of `--name VALUE` or `--name=VALUE`, where - and _ are the same; "" for a flag
 *  without one; NULL: it is not there. */
const char *command_words_find(const struct str_list *words, const char *name);

/**
 * Gives `--name` a value in the place of the one it has, or at the end: a string or number as one
 * word, a list as one word each, an object as JSON, true as `--name`, false as `--no-name`.
 */
void command_words_set(struct str_list *words, const char *name, const json_t *value,
                       struct arena *arena);

void command_words_append(struct str_list *words, const char *word, struct arena *arena);

/** A value as the text of a word; of a list or an object its JSON. Lives in `arena`. */
const char *command_value_text(const json_t *value, struct arena *arena);

/** The words as one line that a shell would split the same way. Lives in `arena`. */
const char *command_words_text(const struct str_list *words, struct arena *arena);
