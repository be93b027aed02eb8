// When a refused client should come back: what is too much, divided by how fast it goes away.
//
// Measured over the last seconds: prompt tokens that the engine computed (its counters on the
// shared page) and requests of this server that ended. The event loop's.
#pragma once

#include <stdint.h>

enum { RETRY_AFTER_SAMPLES = 16, RETRY_AFTER_SAMPLE_MS = 1000, MAX_RETRY_AFTER_S = 120 };

struct progress_sample {
    int64_t at_ns;
    int64_t num_prompt_tokens, num_ended; // since the start
};

/** `= {0}` is valid: nothing was measured yet. */
struct retry_after {
    struct progress_sample samples[RETRY_AFTER_SAMPLES]; // a ring
    int64_t num_samples;                                 // ever
};

/** Takes a sample if the last one is old enough. Call it more often than once a second. */
void retry_after_sample(struct retry_after *retry_after, const struct progress_sample *now);

/**
 * Seconds until so many prompt tokens are computed and so many requests have ended, at the pace
 * measured: 1 to MAX_RETRY_AFTER_S. With nothing measured yet 1; where nothing moves the most.
 */
int32_t retry_after_seconds(const struct retry_after *retry_after,
                            const struct progress_sample *now, int64_t num_prompt_tokens,
                            int64_t num_requests);
