// Fields that each make sense and together leave nothing to say.
#pragma once

#include "api_server/api_error.h"
#include "api_server/openai_protocol.h"
#include "base/arena.h"
#include "message/message.h"
#include "tokenizer/tokenizer.h"

/**
 * Refuses constraints of which no answer can be right, where that is certain before one is drawn.
 * `params` are resolved. The error names both fields.
 */
NODISCARD enum status constraint_conflicts_check(const struct sampling_fields *fields,
                                                 const struct tokenizer *tokenizer,
                                                 const struct sampling_params *params,
                                                 struct arena *arena, struct api_error *err);

/** The error for an answer that its constraints left without a next token after `num_outputs`. */
void constraint_conflicts_explain(const struct sampling_fields *fields, int32_t num_outputs,
                                  struct api_error *err);
