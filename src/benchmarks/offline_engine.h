// An EngineCore of our own: a child process that is given token ids and gives token ids, through
// the same messages as from an API server, without HTTP and text.
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "benchmarks/dataset.h"
#include "config/options.h"

struct offline_engine;

/**
 * Starts the engine that `options` describe and waits until it is ready. Call it before this
 * process makes threads. Errors: IO, CLOSED (it could not start; it has logged why).
 */
NODISCARD enum status offline_engine_start(struct offline_engine **out,
                                           const struct serve_options *options, struct error *err);
void offline_engine_stop(struct offline_engine *engine);

/** The longest prompt plus answer that it takes. */
int32_t offline_engine_max_len(const struct offline_engine *engine);

/** What a batch cost. */
struct offline_times {
    double seconds; // from the first prompt sent to the last answer's end
    int64_t num_prompt_tokens, num_output_tokens;
};

/**
 * Gives the engine every prompt `n` times at once and waits for all answers, each of exactly its
 * output length. Errors: TOO_LARGE (a prompt and its answer do not fit), CLOSED (the engine ended
 * or the user interrupted), INTERNAL.
 */
NODISCARD enum status offline_engine_run(struct offline_engine *engine,
                                         const struct bench_prompt *prompts, int32_t num, int32_t n,
                                         struct offline_times *times, struct error *err);
