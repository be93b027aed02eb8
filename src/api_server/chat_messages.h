// Chat messages as templates want them: content as text or as parts, tool-call arguments as
// objects.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "api_server/api_error.h"
#include "base/arena.h"

/**
 * Checks `messages` and makes what the template sees. `as_parts`: content becomes a list of
 * {"type":"text","text":...}, else one text whose parts are joined by line feeds. The caller owns
 * `*out` (json_decref). Errors name the message's index.
 */
NODISCARD enum status chat_messages_normalize(json_t **out, const json_t *messages, bool as_parts,
                                              struct api_error *err);

/** The text of a normalised message's content, in `arena`. */
struct str chat_message_text(const json_t *message, struct arena *arena);
