// The body of Anthropic's /v1/messages, said in the words of a chat request: what a message may be,
// and everything that sampling checks, is then written once.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "api_server/api_error.h"

/**
 * Checks the body and makes the chat request that means the same. `counts_only`: the body of
 * count_tokens, which has no max_tokens. The caller owns `*chat` (json_decref). Errors name the
 * field as Anthropic spells it.
 */
NODISCARD enum status messages_request_to_chat(json_t **chat, const json_t *body, bool counts_only,
                                               struct api_error *err);
