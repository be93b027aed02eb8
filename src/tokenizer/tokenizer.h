// Text to token ids and back, for one vocabulary. Immutable once loaded: any thread may use it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

struct tokenizer;

/**
 * Loads a Hugging Face tokenizer.json. The caller owns `*out`; end with tokenizer_destroy().
 * Errors: NOT_FOUND, INVALID (malformed file), UNSUPPORTED (a model other than BPE, an unknown
 * normalizer ...); the message names the file and the part.
 */
NODISCARD enum status tokenizer_load(struct tokenizer **out, const char *path, struct error *err);

/** The same from the file's bytes (not kept); `name` stands in messages. */
NODISCARD enum status tokenizer_parse(struct tokenizer **out, struct str json, const char *name,
                                      struct error *err);
void tokenizer_destroy(struct tokenizer *tokenizer);

/**
 * Encodes UTF-8 `text` by byte-pair merges (Sennrich et al. 2016, arXiv:1508.07909); with
 * `add_special_tokens` the post-processor's template (BOS, EOS) is applied. Malformed bytes count
 * as U+FFFD. Returns `*num_tokens` ids that live in `arena`. Cannot fail: bytes that the vocabulary
 * lacks become byte tokens or its unknown token. Time is n log n in the length of the text, which
 * is 2 GiB at most.
 */
int32_t *tokenizer_encode(const struct tokenizer *tokenizer, struct str text,
                          bool add_special_tokens, struct arena *arena, int32_t *num_tokens);

/** Decodes ids as the decoder of tokenizer.json says; ids outside the vocabulary are skipped. Bytes
 *  that are not UTF-8 become U+FFFD. The text lives in `arena`. */
struct str tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int32_t num_ids,
                            bool skip_special_tokens, struct arena *arena);

/** Highest id + 1. */
int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);

/** The id of a token by its exact spelling in the vocabulary or the added tokens; -1: none. */
int32_t tokenizer_token_to_id(const struct tokenizer *tokenizer, struct str token);

/** The spelling of a token as tokenizer.json has it; empty for an unknown id. */
struct str tokenizer_id_to_token(const struct tokenizer *tokenizer, int32_t id);

/**
 * The bytes that a token adds inside a text: of a character that is spread over several tokens only
 * its part. Empty for special and for unknown tokens, which stand for no text. In `arena`.
 */
struct str tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id,
                                 struct arena *arena);

/** Whether the id is an added token marked special. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);

/** Whether the id is an added token, special or not. */
bool tokenizer_is_added(const struct tokenizer *tokenizer, int32_t id);

/** The most bytes of text that one token can stand for: a text of n bytes has at least n / this. */
int32_t tokenizer_max_token_bytes(const struct tokenizer *tokenizer);

/**
 * Token ids → text, whole characters at a time: the concatenation of all pieces equals the decoding
 * of the whole (prefix-offset method). What ends in U+FFFD is held back, since it may be the
 * beginning of a character, though no more than a few hundred tokens. Belongs to one request.
 */
struct detokenizer;

/** `prompt_ids` prime it (their text is not emitted); only the last few are looked at. */
struct detokenizer *detokenizer_create(const struct tokenizer *tokenizer, const int32_t *prompt_ids,
                                       int32_t num_prompt_ids, bool skip_special_tokens);
void detokenizer_destroy(struct detokenizer *detokenizer);

/** Puts no blank between added tokens that follow each other, which only vocabularies do that join
 *  tokens by blanks (as those without a decoder in tokenizer.json). */
void detokenizer_join_added_tokens(struct detokenizer *detokenizer);

/** Appends to `out` the text that has become certain with this token; maybe none. */
void detokenizer_step(struct detokenizer *detokenizer, int32_t id, struct buf *out);

/** Appends what an incomplete character at the end still holds back (as U+FFFD). */
void detokenizer_finish(struct detokenizer *detokenizer, struct buf *out);
