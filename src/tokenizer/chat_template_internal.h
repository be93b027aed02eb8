// Rendering at a time of one's choice: what strftime_now() tells must not move in tests.
#pragma once

#include <time.h>

#include "tokenizer/chat_template.h"

/** As chat_template_render(), at `now` (NULL: the wall clock). */
NODISCARD enum status chat_template_render_at(const struct chat_template *chat_template,
                                              const struct chat_template_inputs *inputs,
                                              const struct tm *now, struct arena *arena,
                                              struct str *prompt, struct error *err);
