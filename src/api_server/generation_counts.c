// What a generation adds to the counters and histograms of /metrics, and when.
#include "api_server/generation.h"
#include "api_server/request_timings.h"
#include "base/clock.h"
#include "base/memory.h"

static double seconds(int64_t from_ns, int64_t to_ns)
{
    return from_ns > 0 && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

void generation_count_output(struct choice *c, const struct engine_core_output *o,
                             int64_t timestamp)
{
    struct metrics *m = &c->generation->server->metrics;
    c->queued_ns = o->queued_ns ? o->queued_ns : c->queued_ns;
    c->scheduled_ns = o->scheduled_ns ? o->scheduled_ns : c->scheduled_ns;
    c->first_token_ns = o->first_token_ns ? o->first_token_ns : c->first_token_ns;
    c->last_token_ns = o->last_token_ns ? o->last_token_ns : c->last_token_ns;
    if (o->num_new_tokens == 0 && o->num_pooled == 0)
        return;
    metrics_count(m, METRIC_GENERATION_TOKENS, o->num_new_tokens);
    if (c->last_timestamp_ns == 0) {
        int32_t cached = min_i32(max_i32(o->num_cached_tokens, 0), c->prompt->num_ids);
        metrics_observe(m, METRIC_TIME_TO_FIRST_TOKEN,
                        seconds(c->generation->arrival_ns, clock_monotonic_ns()));
        metrics_count(m, METRIC_PROMPT_TOKENS, c->prompt->num_ids);
        metrics_count(m, METRIC_PROMPT_TOKENS_CACHED, cached);
        metrics_count(m, METRIC_PROMPT_TOKENS_COMPUTED, c->prompt->num_ids - cached);
    } else {
        metrics_observe(m, METRIC_INTER_TOKEN_LATENCY, seconds(c->last_timestamp_ns, timestamp));
    }
    c->last_timestamp_ns = timestamp;
}

void generation_count_finish(struct choice *c)
{
    struct metrics *m = &c->generation->server->metrics;
    const struct output_processor *p = &c->out;
    int32_t generated = p->engine.core.num_output_tokens;
    int32_t cached = min_i32(max_i32(p->num_cached_tokens, 0), c->prompt->num_ids);
    struct request_timings timings = request_timings_of(c);
    request_timings_log(c);
    metrics_success(m, p->finish_reason);
    metrics_observe(m, METRIC_E2E_LATENCY,
                    seconds(c->generation->arrival_ns, clock_monotonic_ns()));
    metrics_observe(m, METRIC_QUEUE_TIME, timings.queue);
    metrics_observe(m, METRIC_PREFILL_TIME, timings.prefill);
    metrics_observe(m, METRIC_DECODE_TIME, timings.decode);
    metrics_observe(m, METRIC_INFERENCE_TIME, seconds(c->scheduled_ns, c->last_token_ns));
    metrics_observe(m, METRIC_TIME_PER_OUTPUT_TOKEN, timings.mean_itl);
    metrics_observe(m, METRIC_REQUEST_PROMPT_TOKENS, c->prompt->num_ids);
    metrics_observe(m, METRIC_REQUEST_GENERATION_TOKENS, generated);
    if (!c->generation->kind->pools)
        metrics_observe(m, METRIC_PARAMS_MAX_TOKENS, c->prompt->sampling.max_tokens);
    metrics_observe(m, METRIC_PREFILL_KV_COMPUTED_TOKENS, c->prompt->num_ids - cached);
    c->prompt->max_generated = max_i32(c->prompt->max_generated, generated);
    if (--c->prompt->num_unfinished == 0) {
        metrics_observe(m, METRIC_MAX_NUM_GENERATION_TOKENS, c->prompt->max_generated);
        metrics_observe(m, METRIC_PARAMS_N,
                        (double)c->generation->num_choices / c->generation->num_prompts);
    }
}
