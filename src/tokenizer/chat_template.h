// Messages → prompt, by the model's own Jinja template.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

/** A compiled template. Immutable: any thread may render it. */
struct chat_template;

/**
 * Compiles Jinja source. Errors: INVALID (syntax), UNSUPPORTED (a construct we lack), each with the
 * line. The caller owns `*out`.
 */
NODISCARD enum status chat_template_compile(struct chat_template **out, struct str source,
                                            struct error *err);
void chat_template_destroy(struct chat_template *chat_template);

/** What the template sees. JSON values are borrowed. NULL: absent. */
struct chat_template_inputs {
    const json_t *messages;       // array
    const json_t *tools;          // array or NULL
    const json_t *documents;      // array or NULL
    const json_t *kwargs;         // object: further variables; win over special_tokens
    const json_t *special_tokens; // object of strings: bos_token, eos_token ...
    bool add_generation_prompt;
    bool continue_final_message; // cut the prompt after the last message's content
};

/**
 * Renders the prompt into `arena`. Bounded in steps, output bytes and nesting. Errors: INVALID
 * (raise_exception's own text, a type error ... with the line), TOO_LARGE, TIMEOUT (a bound).
 */
NODISCARD enum status chat_template_render(const struct chat_template *chat_template,
                                           const struct chat_template_inputs *inputs,
                                           struct arena *arena, struct str *prompt,
                                           struct error *err);

/** Whether the template loops over message.content (so it wants the list of parts, not text). */
bool chat_template_wants_content_parts(const struct chat_template *chat_template);
