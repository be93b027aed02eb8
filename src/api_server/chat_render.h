// A chat request's messages → the text of its prompt, by the template that applies.
#pragma once

#include "api_server/openai_protocol.h"
#include "api_server/server.h"

/**
 * Renders into `arena`. Any thread. `*last_text` (may be NULL) gets the last message's text and
 * `*last_role` its role, in `arena`. Errors: the client's, ready to send.
 */
NODISCARD enum status chat_render(const struct api_server *server,
                                  const struct chat_request *request, struct arena *arena,
                                  struct str *prompt, struct str *last_text, struct str *last_role,
                                  struct api_error *err);
