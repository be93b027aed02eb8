// When a refused client should come back.
#include "api_server/retry_after.h"

#include "base/memory.h"

void retry_after_sample(struct retry_after *ra, const struct progress_sample *now)
{
    if (ra->num_samples > 0) {
        int64_t last_ns = ra->samples[(ra->num_samples - 1) % RETRY_AFTER_SAMPLES].at_ns;
        if (now->at_ns - last_ns < RETRY_AFTER_SAMPLE_MS * 1000000LL)
            return;
    }
    ra->samples[ra->num_samples++ % RETRY_AFTER_SAMPLES] = *now;
}

// Seconds for `amount` at the pace of `done` in `elapsed_ns`.
static int64_t seconds_for(int64_t amount, int64_t done, int64_t elapsed_ns)
{
    if (amount <= 0)
        return 1;
    if (done <= 0)
        return MAX_RETRY_AFTER_S;
    double seconds = (double)amount * ((double)elapsed_ns / 1e9) / (double)done;
    return seconds >= MAX_RETRY_AFTER_S ? MAX_RETRY_AFTER_S : (int64_t)seconds + 1;
}

int32_t retry_after_seconds(const struct retry_after *ra, const struct progress_sample *now,
                            int64_t num_prompt_tokens, int64_t num_requests)
{
    if (ra->num_samples == 0)
        return 1;
    int64_t oldest = max_i64(ra->num_samples - RETRY_AFTER_SAMPLES, 0);
    const struct progress_sample *then = &ra->samples[oldest % RETRY_AFTER_SAMPLES];
    int64_t elapsed_ns = now->at_ns - then->at_ns;
    if (elapsed_ns < RETRY_AFTER_SAMPLE_MS * 1000000LL)
        return 1;
    int64_t tokens_s = seconds_for(num_prompt_tokens,
                                   now->num_prompt_tokens - then->num_prompt_tokens, elapsed_ns);
    int64_t requests_s = seconds_for(num_requests, now->num_ended - then->num_ended, elapsed_ns);
    return (int32_t)min_i64(max_i64(tokens_s, requests_s), MAX_RETRY_AFTER_S);
}
