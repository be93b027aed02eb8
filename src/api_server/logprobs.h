// Log-probabilities as JSON, in the three shapes that answers use.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "api_server/output_processor.h"
#include "base/arena.h"
#include "base/buf.h"
#include "tokenizer/tokenizer.h"

/** Tokens with what is known about them. Position i of `list` belongs to ids[i]. */
struct logprob_range {
    const int32_t *ids; // from the first: earlier ones are context for half characters
    const struct logprob_list *list;
    int32_t first, end;
};

struct logprob_format {
    const struct tokenizer *tokenizer;
    bool as_token_ids; // "token_id:7" in place of text
    struct arena *scratch;
};

/** The text that `id` adds after ids[0..num_before): bytes of a character that is not whole yet
 *  give "", the token that completes it gives all of it. In `arena`. */
struct str logprob_token_text(const struct tokenizer *tokenizer, const int32_t *before,
                              int32_t num_before, int32_t id, struct arena *arena);

/** [...] with exactly `num_top` likeliest tokens each. */
void logprobs_write_list(struct buf *out, const struct logprob_format *format,
                         const struct logprob_range *range, int32_t num_top);

/** {"content":[...]} with exactly `num_top` likeliest tokens each. */
void logprobs_write_chat(struct buf *out, const struct logprob_format *format,
                         const struct logprob_range *range, int32_t num_top);

/**
 * {"text_offset":...,"token_logprobs":...,"tokens":...,"top_logprobs":...}: first the prompt's
 * tokens if `prompt` is not NULL (list position i belongs to ids[i + 1]; the first token has none),
 * then the answer's. `*text_offset`: code points before, moved on.
 */
void logprobs_write_completion(struct buf *out, const struct logprob_format *format,
                               const struct logprob_range *prompt,
                               const struct logprob_range *range, int32_t num_top,
                               int64_t *text_offset);

/** [null, {"ID":{"logprob":...,"rank":...,"decoded_token":...}, ...}, ...] for a whole prompt. */
void logprobs_write_prompt(struct buf *out, const struct logprob_format *format,
                           const int32_t *prompt_ids, int32_t num_prompt_ids,
                           const struct logprob_list *list);
