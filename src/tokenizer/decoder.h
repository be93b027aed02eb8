// Token spellings → text, as the "decoder" of a tokenizer.json says.
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

/** Immutable: any thread may use it. */
struct decoder;

/** NULL or JSON null: spellings are joined by blanks. */
NODISCARD enum status decoder_create(struct decoder **out, const json_t *json, struct error *err);
void decoder_destroy(struct decoder *decoder);

/** Decodes `tokens`, which is used as scratch. The text lives in `arena`; it is well formed. */
struct str decoder_apply(const struct decoder *decoder, struct str *tokens, size_t num_tokens,
                         struct arena *arena);

/** The bytes that a token spelled in this way adds inside a text, though they may be no whole
 *  characters. In `arena`. */
struct str decoder_token_bytes(const struct decoder *decoder, struct str token,
                               struct arena *arena);

/** The most bytes of text that a token spelled in this way can stand for. */
size_t decoder_max_bytes(const struct decoder *decoder, struct str token);
