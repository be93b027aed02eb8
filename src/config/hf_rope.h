// Rotary embedding settings out of config.json, old and new spellings. Room-internal.
#pragma once

#include "config/hf_config.h"
#include "config/hf_json.h"

/**
 * Fills `config->rope`; head_dim, model_type and max_position_embeddings are known by then. Arrays
 * live in the config's arena. Errors: INVALID, UNSUPPORTED (an unknown scaling type; layer types
 * that rotate differently).
 */
NODISCARD enum status hf_rope_parse(struct model_config *config, const struct hf_json *json,
                                    struct error *err);
