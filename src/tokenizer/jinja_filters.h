// What the files of filters and tests share.
#pragma once

#include "tokenizer/jinja_value.h"

#define JINJA_FILTER(function)                                                                \
    static enum status function(struct jinja_runtime *rt, struct jinja_value self,            \
                                const struct jinja_value *arg, const struct jinja_args *args, \
                                struct jinja_value *out)

extern const struct jinja_function jinja_value_filters[];
extern const struct jinja_function jinja_sequence_filters[];

/** The pairs (key, value) of a dict. */
NODISCARD enum status jinja_pairs(struct jinja_runtime *rt, struct jinja_value dict,
                                  struct jinja_value *out);
