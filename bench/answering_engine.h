// An engine that computes nothing: it speaks the messages of an EngineCore and gives the tokens of
// a text at once, so that what a benchmark sees is the front end alone.
#pragma once

#include <stdint.h>

#include "message/shared_page.h"

/** What it answers with. Borrowed. */
struct answering_engine_options {
    const int32_t *tokens; // repeated as long as an answer lasts
    int32_t num_tokens;
    int32_t max_model_len;
    int64_t step_ns; // between two tokens of a stream; the first comes at once
};

/** Runs until SIGTERM; the process's exit status. */
int answering_engine_main(const struct answering_engine_options *options, const char *ipc_dir,
                          struct shared_page *page);
