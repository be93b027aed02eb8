// What a step's result means for its requests: tokens appended, stop rules, outputs.
#include <assert.h>

#include "base/memory.h"
#include "engine/scheduler.h"

enum finish_reason request_check_stop(struct request *r)
{
    int32_t num_outputs = request_num_output_tokens(r);
    int32_t last = r->token_ids[r->num_tokens - 1];
    // EOS and stop tokens come before the length: an answer that ends by itself on its last allowed
    // token is complete. Under an automaton an early one was the only choice left.
    if (num_outputs >= r->min_tokens || r->sampling.num_automaton_words > 0) {
        if (last == r->eos_token_id)
            return FINISH_REASON_STOP;
        for (int32_t i = 0; i < r->num_stop_token_ids; i++) {
            if (last == r->sampling.stop_token_ids[i]) {
                r->stop_token_id = last;
                return FINISH_REASON_STOP;
            }
        }
    }
    return r->num_tokens >= r->max_tokens ? FINISH_REASON_LENGTH : FINISH_REASON_NONE;
}

// Where the outputs of each client go: as many places as it has requests.
struct segments {
    struct engine_core_output *next[MAX_API_SERVERS];
};

static void lay_out_segments(struct scheduler *s, struct segments *segments, int64_t now_ns,
                             struct engine_core_outputs outputs[MAX_API_SERVERS])
{
    int32_t start = 0;
    for (int32_t c = 0; c < MAX_API_SERVERS; c++) {
        segments->next[c] = s->outputs ? s->outputs + start : NULL;
        outputs[c] =
            (struct engine_core_outputs){.timestamp_ns = now_ns, .outputs = segments->next[c]};
        start += s->num_live[c];
    }
    assert(start <= s->outputs_capacity);
}

static void report(struct segments *segments, const struct request *r, const struct row_output *got,
                   int32_t num_new_tokens, struct engine_core_outputs outputs[MAX_API_SERVERS])
{
    static const struct request_refusal no_refusal;
    outputs[r->client_index].num_outputs++;
    *segments->next[r->client_index]++ = (struct engine_core_output){
        .request_id = r->request_id,
        .num_new_tokens = num_new_tokens,
        .new_token_ids = r->token_ids + r->num_tokens - num_new_tokens,
        .logprobs = num_new_tokens > 0 ? got->logprobs : NULL,
        .first_prompt_logprob = got ? got->first_prompt_logprob : 0,
        .num_prompt_logprobs = got ? got->num_prompt_logprobs : 0,
        .prompt_logprobs = got ? got->prompt_logprobs : NULL,
        .num_pooled = got ? got->num_pooled : 0,
        .pooled = got ? got->pooled : NULL,
        .finish_reason = r->finish_reason,
        // Every field is named: zeroing 112 bytes first would take as long as all the rest.
        .refusal = r->finish_reason == FINISH_REASON_ERROR ? r->refusal : no_refusal,
        .stop_token_id = r->stop_token_id,
        .num_cached_tokens = r->num_cached_tokens,
        .num_preemptions = r->num_preemptions,
        .queued_ns = r->queued_ns,
        .scheduled_ns = r->scheduled_ns,
        .first_token_ns = r->first_token_ns,
        // Read back so soon after it was stored, it would be waited for.
        .last_token_ns =
            num_new_tokens > 0 ? outputs[r->client_index].timestamp_ns : r->last_token_ns,
    };
}

static void count_interval(struct request *r, int64_t interval_ns)
{
    if (r->num_intervals == 0 || interval_ns < r->min_interval_ns)
        r->min_interval_ns = interval_ns;
    r->max_interval_ns = max_i64(r->max_interval_ns, interval_ns);
    r->sum_interval_ns += interval_ns;
    r->num_intervals++;
}

static void finish(struct scheduler *s, struct request *r, enum finish_reason reason)
{
    if (r->state == REQUEST_WAITING) {
        scheduler_finish_waiting(s, r, reason);
        return;
    }
    // As much stays findable as if no step had been decided since: its last token was not computed.
    if (reason != FINISH_REASON_ERROR)
        kv_cache_manager_cache(&s->kv, &r->kv, min_i32(r->num_computed_tokens, r->num_tokens - 1));
    scheduler_finish_running(s, r, reason);
}

static void note_row(struct scheduler *s, int32_t slot)
{
    s->notable_rows[s->num_notable_rows++] = slot;
}

// Takes the token in that the row at `slot` of the step has drawn; returns how many are new.
static int32_t append_token(struct scheduler *s, struct request *r, int32_t slot, int32_t token_id,
                            int64_t now_ns)
{
    if (token_id < 0) { // nothing to draw from: this request alone ends
        if (token_id == TOKEN_ID_FORBIDDEN)
            r->refusal = (struct request_refusal){.kind = REFUSAL_NO_TOKEN,
                                                  .num_tokens = request_num_output_tokens(r)};
        finish(s, r, FINISH_REASON_ERROR);
        return 0;
    }
    CHECK(token_id < s->config.vocab_size && r->num_tokens < r->max_tokens);
    r->token_ids[r->num_tokens++] = token_id;
    s->stats.num_generated_tokens++;
    if (r->first_token_ns == 0)
        r->first_token_ns = now_ns;
    else
        count_interval(r, now_ns - r->last_token_ns);
    r->last_token_ns = now_ns;
    enum finish_reason reason = request_check_stop(r);
    if (reason != FINISH_REASON_NONE) {
        finish(s, r, reason);
    } else if (r->num_tokens % s->kv.config.block_size == 0) {
        kv_cache_manager_extend_hashes(&s->kv, &r->kv, r->num_tokens);
        if (r->state == REQUEST_RUNNING && r->num_computed_tokens >= r->num_tokens)
            kv_cache_manager_cache(&s->kv, &r->kv, r->num_tokens); // a step in flight computes it
        note_row(s, slot);
    }
    return 1;
}

// Its prompt is computed: a request that pools ends, with its vector unless that is not finite.
static void take_vector(struct scheduler *s, struct request *r, const struct row_output *got,
                        int64_t now_ns)
{
    r->first_token_ns = r->last_token_ns = now_ns;
    finish(s, r, got->num_pooled > 0 ? FINISH_REASON_STOP : FINISH_REASON_ERROR);
}

static void drop_finished_from_running(struct scheduler *s)
{
    int32_t num_kept = 0;
    for (int32_t i = 0; i < s->num_running; i++) {
        if (s->running[i]->state == REQUEST_RUNNING)
            s->running[num_kept++] = s->running[i];
    }
    s->num_running = num_kept;
}

// What the rows that come soon will want; the place of a token is known once its request is here.
static void prefetch_rows(const struct scheduled_step *step, int32_t slot, int32_t num_rows)
{
    if (slot + PREFETCH_DISTANCE < num_rows)
        request_prefetch(step->row_requests[slot + PREFETCH_DISTANCE]);
    if (slot + PREFETCH_DISTANCE / 2 < num_rows) {
        const struct request *r = step->row_requests[slot + PREFETCH_DISTANCE / 2];
        __builtin_prefetch(&r->token_ids[r->num_tokens], 1);
    }
}

static void update_rows(struct scheduler *s, int64_t now_ns, const struct scheduler_output *step,
                        const struct model_runner_output *result, struct segments *segments,
                        struct engine_core_outputs outputs[MAX_API_SERVERS])
{
    // A result for other rows would give one user another's tokens.
    CHECK(result->num_rows == step->num_rows);
    struct scheduled_step *own = &s->steps[step->step % MAX_STEPS_IN_FLIGHT];
    bool any_finished = false, is_latest = s->in_flight == 1;
    for (int32_t i = 0; i < step->num_rows; i++) {
        struct request *r = own->row_requests[i];
        prefetch_rows(own, i, step->num_rows);
        const struct row_output *got = &result->rows[i];
        CHECK(got->row == step->rows[i].row);
        CHECK(r->state != REQUEST_RUNNING || got->row == r->row);
        bool was_finished = r->state == REQUEST_FINISHED;
        r->num_placeholders -= step->rows[i].samples && !request_pools(r);
        if (is_latest)
            r->scheduled_slot = -1;
        scheduler_unpin(s, r, step->rows[i].num_scheduled_tokens);
        if (was_finished)
            continue; // by an abort, or one step ago: what it drew here is dropped
        int32_t num_new = 0;
        bool has_news = got->num_prompt_logprobs > 0;
        if (step->rows[i].samples) {
            if (request_pools(r))
                take_vector(s, r, got, now_ns);
            else
                num_new = append_token(s, r, i, got->token_id, now_ns);
            has_news = true;
        }
        if (has_news)
            report(segments, r, got, num_new, outputs);
        if (r->state == REQUEST_FINISHED) {
            scheduler_forget(s, r, now_ns); // its fields stay readable until the next add
            any_finished = true;
            note_row(s, i);
            s->num_ended += has_news;
        }
    }
    if (any_finished)
        drop_finished_from_running(s);
    own->num_pinned = 0;
    s->in_flight--;
}

void scheduler_update(struct scheduler *s, int64_t now_ns, const struct scheduler_output *step,
                      const struct model_runner_output *result,
                      struct engine_core_outputs outputs[MAX_API_SERVERS])
{
    s->now_ns = now_ns;
    s->num_notable_rows = s->num_ended = 0;
    struct segments segments;
    lay_out_segments(s, &segments, now_ns, outputs);
    if (step)
        update_rows(s, now_ns, step, result, &segments, outputs);
    for (struct request *r; (r = request_queue_peek(&s->finished));) {
        request_queue_remove(&s->finished, r);
        report(&segments, r, NULL, 0, outputs);
        s->num_ended++;
        scheduler_forget(s, r, now_ns);
    }
}
