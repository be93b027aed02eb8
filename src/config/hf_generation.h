// generation_config.json: sampling defaults and end-of-sequence ids. Room-internal.
#pragma once

#include "config/hf_config.h"
#include "config/hf_json.h"

/** Appends the ids of "eos_token_id" (an integer or a list) that are in the vocabulary and not yet
 *  known; one that is not is named in a warning. Errors: INVALID. */
NODISCARD enum status hf_eos_add(struct model_config *config, const struct hf_json *json,
                                 struct error *err);

/** As model_config_load() says, for the part after config.json. */
NODISCARD enum status hf_generation_load(struct model_config *config, const char *generation,
                                         const char *override_json, struct error *err);
