// One choice of a request: tokens in, text and a finish reason out. Whatever way the engine's steps
// cut the tokens, and whatever way the pieces are taken, the whole is the same.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "api_server/engine_client.h"
#include "api_server/openai_protocol.h"
#include "api_server/stop_matcher.h"
#include "base/buf.h"
#include "tokenizer/tokenizer.h"

/** Log-probabilities of consecutive positions. `= {0}` is empty. */
struct logprob_list {
    int32_t num_positions, max_positions;
    struct logprob_position {
        int32_t first, num_entries; // into token_ids and logprobs; no entries: not known
        int32_t rank;               // of the first entry
    } * positions;
    int32_t *token_ids;
    float *logprobs;
    int32_t num_entries, max_entries;
};

void logprob_list_append(struct logprob_list *list, const struct token_logprobs *logprobs);
void logprob_list_deinit(struct logprob_list *list);

struct output_processor_options {
    const struct tokenizer *tokenizer;
    const struct stop_matcher *stops; // borrowed while the processor lives
    int32_t min_tokens;               // stop strings that end within so many tokens do not count
    struct repetition_rule repetition;
    bool skip_special_tokens;
    bool joins_added_tokens; // no blank between added tokens
    bool drop_tokens; // only the prompt is scored: the token that the engine draws is not shown
};

struct output_processor {
    struct engine_request engine; // the tokens are here
    struct output_processor_options options;
    struct detokenizer *detokenizer;
    struct buf text; // of the whole answer so far; cut at a stop string
    struct logprob_list logprobs, prompt_logprobs; // the prompt's from position 1 on
    int32_t num_tokens;                            // of the answer
    int32_t num_cached_tokens;
    enum finish_reason finish_reason;
    int32_t stop_token_id; // -1: none
    int32_t stop_string;   // index, -1: none
    size_t taken_text;
    int32_t taken_tokens;
    bool taken_finish, has_output;
};

/** What has become visible since the last take. Text is borrowed until the next update. */
struct output_delta {
    struct str text;
    int32_t first_token, num_tokens;
    bool is_finish;
};

/** The engine request's prompt must be set. */
void output_processor_init(struct output_processor *processor,
                           const struct output_processor_options *options);
void output_processor_deinit(struct output_processor *processor);

/** Takes over what a step did (its tokens already stand in engine.output_token_ids). Returns true
 *  if a stop string or a repetition ended the answer, so that the engine has to be told. */
bool output_processor_update(struct output_processor *processor,
                             const struct engine_core_output *output);

/** Ends an answer that the engine did not end. */
void output_processor_finish(struct output_processor *processor, enum finish_reason reason);

struct output_delta output_processor_take(struct output_processor *processor);

/** Visible text that has not been taken. */
size_t output_processor_pending_text(const struct output_processor *processor);
