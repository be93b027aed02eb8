// How long the parts of a request took: see request_timings.h.
#include "api_server/request_timings.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

static double seconds(int64_t from_ns, int64_t to_ns)
{
    return from_ns > 0 && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

struct request_timings request_timings_of(const struct choice *choice)
{
    int32_t generated = choice->out.engine.core.num_output_tokens;
    double inference = seconds(choice->scheduled_ns, choice->last_token_ns);
    struct request_timings timings = {
        .queue = seconds(choice->queued_ns, choice->scheduled_ns),
        .prefill = seconds(choice->scheduled_ns, choice->first_token_ns),
        .decode = seconds(choice->first_token_ns, choice->last_token_ns),
    };
    timings.mean_itl = generated > 1 ? timings.decode / (generated - 1) : 0;
    timings.tokens_per_second = inference > 0 ? generated / inference : 0;
    return timings;
}

void request_timings_log(const struct choice *choice)
{
    static const char *const reasons[] = {
        [FINISH_REASON_STOP] = "stop",
        [FINISH_REASON_LENGTH] = "length",
        [FINISH_REASON_ABORT] = "abort",
        [FINISH_REASON_ERROR] = "error",
        [FINISH_REASON_REPETITION] = "repetition",
    };
    const struct generation *g = choice->generation;
    const struct output_processor *p = &choice->out;
    if (!g->server->options->enable_log_request_timings || p->finish_reason == FINISH_REASON_NONE)
        return;
    struct request_timings t = request_timings_of(choice);
    log_info("Finished request %s: choice: %d, finish_reason: %s, num_prompt_tokens: %d, "
             "num_cached_tokens: %d, num_generation_tokens: %d, queue: %.3f s, prefill: %.3f s, "
             "decode: %.3f s, e2e: %.3f s, mean ITL: %.2f ms, %.1f tokens/s",
             g->id, choice->index, reasons[p->finish_reason], choice->prompt->num_ids,
             min_i32(max_i32(p->num_cached_tokens, 0), choice->prompt->num_ids),
             p->engine.core.num_output_tokens, t.queue, t.prefill, t.decode,
             seconds(g->arrival_ns, clock_monotonic_ns()), t.mean_itl * 1e3, t.tokens_per_second);
}

bool request_timings_are_shown(const struct generation *g)
{
    return g->server->options->enable_per_request_metrics && g->num_choices == 1 &&
           g->choices[0].first_token_ns > 0;
}

static void write_field(struct buf *out, const char *name, double value)
{
    buf_append_c(out, name);
    buf_append_json_double(out, value);
}

void request_timings_write(struct buf *out, const struct generation *g)
{
    if (!request_timings_are_shown(g)) {
        buf_append_c(out, "null");
        return;
    }
    struct request_timings t = request_timings_of(&g->choices[0]);
    write_field(out, "{\"time_to_first_token_ms\":", t.prefill * 1e3);
    write_field(out, ",\"generation_time_ms\":", t.decode * 1e3);
    write_field(out, ",\"queue_time_ms\":", t.queue * 1e3);
    write_field(out, ",\"mean_itl_ms\":", t.mean_itl * 1e3);
    write_field(out, ",\"tokens_per_second\":", t.tokens_per_second);
    buf_append_char(out, '}');
}
