// tokenizer_config.json and chat_template.jinja: what a model's folder says beside its vocabulary.
#pragma once

#include <jansson.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

struct tokenizer_files {
    struct arena arena;
    struct str chat_template; // empty: none; chat_template.jinja wins over the JSON's
    struct str eos_token;     // empty: none
    json_t *special_tokens;   // object of strings: bos_token, eos_token ...
};

/** Reads `dir`; files that are absent leave their parts empty. Errors: INVALID, IO, naming the
 * file. End with tokenizer_files_deinit(), also after an error. */
NODISCARD enum status tokenizer_files_load(struct tokenizer_files *files, const char *dir,
                                           struct error *err);
void tokenizer_files_deinit(struct tokenizer_files *files);
