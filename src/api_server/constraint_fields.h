// Fields that narrow an answer down: structured_outputs, bad_words, logprob_token_ids,
// repetition_detection.
#pragma once

#include <jansson.h>

#include "api_server/api_error.h"
#include "api_server/openai_protocol.h"
#include "base/arena.h"
#include "tokenizer/tokenizer.h"

/** Reads them; texts are copied into `arena`. */
NODISCARD enum status constraint_fields_parse(struct sampling_fields *fields, const json_t *body,
                                              struct arena *arena, struct api_error *err);

/**
 * Turns them into what the engine samples with: the automaton, token sequences, ids. Fills only
 * these members of `params`, whose arrays live in `arena`.
 */
NODISCARD enum status constraint_fields_resolve(const struct sampling_fields *fields,
                                                const struct protocol_config *config,
                                                const struct tokenizer *tokenizer,
                                                struct arena *arena, struct sampling_params *params,
                                                struct api_error *err);
