// The limits of an engine before memory is looked at: context length, tokens and requests a step.
#pragma once

#include "base/status.h"
#include "worker/worker.h"

/**
 * Settles max_model_len from --max-model-len and what the model and its tokenizer say; with "auto"
 * (-1) it is the longest that the model is made for, for the caller to shorten.
 * Errors: INVALID (longer than the model's; a malformed tokenizer_config.json).
 */
NODISCARD enum status limits_settle_length(struct engine_config *config, struct error *err);

/** Settles max_num_batched_tokens and max_num_seqs for config->max_model_len. Errors: INVALID (the
 *  flags contradict each other), naming both and their values. */
NODISCARD enum status limits_settle_batch(struct engine_config *config, struct error *err);
