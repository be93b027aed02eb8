// One event of a streamed answer, or a whole answer with embeddings, from any OpenAI-compatible
// server.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"

/** What an event says. Strings live in the arena given or in the event's own bytes. */
struct answer_chunk {
    bool has_choices; // a choices array that is not empty
    bool has_output;  // text, reasoning text or a tool call: a token arrived. A role alone is none
    bool is_finished; // a finish_reason
    bool has_embedding;                       // a vector in data: as numbers or as base64
    int64_t prompt_tokens, completion_tokens; // of usage; -1: not said
    bool has_error;
    struct str error_message;
};

/**
 * Reads the JSON of an event; appends its text (reasoning included) to `text`. Errors: INVALID (not
 * a JSON object).
 */
NODISCARD enum status answer_chunk_parse(struct answer_chunk *chunk, struct str json,
                                         struct arena *arena, struct buf *text, struct error *err);

/** The message in an error body of any of the usual shapes; the start of the body where there is
 *  none. Lives in the arena or in `body`. */
struct str answer_error_message(struct str body, struct arena *arena);
