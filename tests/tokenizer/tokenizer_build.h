// Small tokenizers for tests, written as JSON with ' for ".
#pragma once

#include "base/buf.h"
#include "tokenizer/tokenizer.h"

/** Parses `json` in which ' stands for " . */
static inline enum status parse_quoted(struct tokenizer **out, const char *json, struct error *err)
{
    struct buf text = {0};
    for (const char *c = json; *c; c++)
        buf_append_char(&text, *c == '\'' ? '"' : *c);
    enum status status = tokenizer_parse(out, buf_str(&text), "test.json", err);
    buf_deinit(&text);
    return status;
}

/** The tokens of `text` by their spellings, with '|' between them. */
static inline void show_tokens(const struct tokenizer *tokenizer, struct str text, bool special,
                               struct buf *out)
{
    struct arena arena = {0};
    int32_t num_ids;
    int32_t *ids = tokenizer_encode(tokenizer, text, special, &arena, &num_ids);
    buf_clear(out);
    for (int32_t i = 0; i < num_ids; i++) {
        if (i > 0)
            buf_append_char(out, '|');
        buf_append(out, tokenizer_id_to_token(tokenizer, ids[i]));
    }
    arena_deinit(&arena);
}
