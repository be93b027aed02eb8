// Logits → token ids and log-probabilities, one row at a time, in vLLM's order: the mask of
// structured output; logprobs of the logits as they are then; allowed ids, logit bias, min_tokens,
// bad words; repetition, frequency and presence penalty; greedy or temperature, min-p, top-k,
// top-p; a draw from Philox keyed by the request's seed.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "message/message.h"

/** What structured output leaves of the vocabulary. */
struct token_constraint {
    const uint32_t *mask; // a bit for each token
    bool must_end;        // of all tokens only those that end the answer
};

/** A row's history: what penalties and the random stream depend on. */
struct sampler_history {
    const int32_t *token_ids; // prompt, then outputs
    int32_t num_prompt_tokens, num_tokens;
    const struct token_constraint *constraint; // NULL: none
};

/**
 * Draws the next token of one row. `logits`: [vocab_size] f32, overwritten. Depends on nothing but
 * its arguments: the random number is Philox4x32-10 with the seed as key and the output position
 * (num_tokens - num_prompt_tokens) as counter, its first two words make 53 bits of a uniform in
 * [0, 1), and the token is where the cumulative distribution, in order of token ids, passes it.
 * Fills `*logprobs` (in `arena`) when params->num_logprobs >= 0. Ids outside the vocabulary in
 * history and parameters are skipped. Returns TOKEN_ID_NONE (and fills nothing) when a logit is NaN
 * or +infinity, TOKEN_ID_FORBIDDEN when the request's constraints leave no token; -infinity alone
 * means that the token is impossible.
 */
int32_t sampler_sample(float *logits, int32_t vocab_size, const struct sampling_params *params,
                       const struct sampler_history *history, struct token_logprobs *logprobs,
                       struct arena *arena);

/** Lists the last tokens of the bad words whose tokens before it are those of the answer's end:
 * `ids` has room for num_bad_word_ints. Returns how many. */
int32_t sampler_bad_word_ends(const struct sampling_params *params,
                              const struct sampler_history *history, int32_t *ids);

/** Log-probabilities of `token_id` and the `num_top` likeliest tokens under raw logits
 *  (log-softmax, f32 in, f64 sums), equal ones by rising id; at most vocab_size of them. The rank
 *  counts the tokens that are at least as likely. */
void sampler_logprobs(const float *logits, int32_t vocab_size, int32_t token_id, int32_t num_top,
                      struct token_logprobs *out, struct arena *arena);

/** Applies everything up to the draw: on return `probs` [vocab_size] f64 is the distribution (zero:
 *  removed), or one-hot for greedy; all zero where sampler_sample() draws none. */
void sampler_distribution(float *logits, int32_t vocab_size, const struct sampling_params *params,
                          const struct sampler_history *history, double *probs,
                          struct arena *arena);

/** Philox4x32-10 (Salmon et al. 2011): four words from a 64-bit key and a 128-bit counter. */
void philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint32_t out[4]);
