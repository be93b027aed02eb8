// What tokenizer_config.json says beside tokenizer.json: the special tokens by role, the chat
// template, the length limit.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

/** A template that is chosen by name. */
struct named_chat_template {
    struct str name, source;
};

/** Texts live in `arena`; an absent one is empty (ptr NULL). `= {0}` is a valid empty object. */
struct tokenizer_config {
    struct str bos_token, eos_token, pad_token, unk_token;
    struct str chat_template;                         // the only one, or the one named "default"
    struct named_chat_template *named_chat_templates; // when the file lists several
    size_t num_named_chat_templates;
    json_t *special_tokens; // object of strings for templates: bos_token, eos_token ... as present
    int64_t model_max_length; // 0: none
    int add_bos_token;        // 0 or 1; -1: not said. tokenizer.json decides what encoding adds
    struct arena arena;
};

/**
 * Reads `dir`/tokenizer_config.json, then `dir`/special_tokens_map.json for tokens which that
 * lacks. Of chat templates, those in `dir`/chat_template.jinja (the default one) and
 * `dir`/additional_chat_templates/NAME.jinja win over `dir`/chat_template.json and that over
 * tokenizer_config.json. All are optional.
 * `dir` may also be the path of a tokenizer.json: then its folder is meant. INVALID: a malformed
 * file. The caller ends `config` with tokenizer_config_deinit(), on failure also.
 */
NODISCARD enum status tokenizer_config_load(struct tokenizer_config *config, const char *dir,
                                            struct error *err);
void tokenizer_config_deinit(struct tokenizer_config *config);

/** The template of that name, or the default one. */
struct str tokenizer_config_template(const struct tokenizer_config *config, struct str name);
