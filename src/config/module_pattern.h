// What a configuration names modules with: a full path, or "re:" and a regular expression.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "config/hf_json.h"

struct module_pattern {
    const char *text; // borrowed from the JSON value
    void *regex;      // compiled; NULL: `text` is a path
};

struct module_patterns {
    struct module_pattern *items;
    size_t count;
};

/** Reads a list of strings; none when the key is absent. End with module_patterns_deinit() also
 *  after an error. Errors: INVALID (no such list, a bad expression). */
NODISCARD enum status module_patterns_parse(struct module_patterns *out, const struct hf_json *json,
                                            const char *key, struct arena *arena,
                                            struct error *err);
void module_patterns_deinit(struct module_patterns *patterns);

/** Whether one of them is the path, or an expression that matches from the path's start. */
bool module_patterns_match(const struct module_patterns *patterns, const char *path);

/** Whether one of them is exactly this text. */
bool module_patterns_have(const struct module_patterns *patterns, const char *text);
