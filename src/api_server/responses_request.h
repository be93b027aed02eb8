// The body of /v1/responses, said in the words of a chat request, and what its answer repeats.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api_server/api_error.h"
#include "base/arena.h"
#include "base/str.h"

/** What a response needs besides the chat. Text is in the arena. */
struct response {
    bool has_instructions; // they are the chat's first message
    bool store, background;
    struct str previous_id; // ptr NULL: none
    struct str echo;        // members of the answer that repeat the request: "a":1,"b":null
    struct str history;     // the conversation before the answer, as a JSON list; for the store
    char item_id[40];       // "msg_..."
    int64_t sequence_number;
};

/**
 * Checks the body, fills `response` and makes the chat request that means the same. `can_store`:
 * the server keeps responses. The caller owns `*chat` (json_decref).
 */
NODISCARD enum status responses_request_to_chat(json_t **chat, struct response *response,
                                                const json_t *body, bool can_store,
                                                struct arena *arena, struct api_error *err);
