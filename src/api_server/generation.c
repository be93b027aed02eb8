// Runs on the event loop, but for generation_prepare(). A generation belongs to its call until the
// answer is complete; when the client leaves first, its engine requests are aborted at once.
#include "api_server/generation.h"

#include <inttypes.h>
#include <string.h>

#include "api_server/constraint_conflicts.h"
#include "api_server/debug_requests.h"
#include "api_server/load_report.h"
#include "api_server/response_events.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    INLINE_BODY_BYTES = 16 * 1024, // longer bodies go to the pool
};

static struct choice *choice_of(struct engine_request *request)
{
    return (struct choice *)((char *)request - offsetof(struct choice, out.engine));
}

// ---- beginning and end ----

static void link_generation(struct generation *g)
{
    g->next = g->server->generations;
    if (g->next)
        g->next->previous = g;
    g->server->generations = g;
    g->is_linked = true;
}

static void leave_queue(struct choice *c)
{
    if (c->is_queued)
        atomic_fetch_sub(&api_server_front(c->generation->server)->num_queued_prompt_tokens,
                         c->prompt->num_ids);
    c->is_queued = false;
}

static void destroy(struct generation *g)
{
    if (g->is_linked) {
        if (g->previous)
            g->previous->next = g->next;
        else
            g->server->generations = g->next;
        if (g->next)
            g->next->previous = g->previous;
    }
    for (int32_t i = 0; i < g->num_choices; i++)
        output_processor_deinit(&g->choices[i].out);
    free(g->choices);
    event_log_release(g->events);
    json_decref(g->json);
    arena_deinit(&g->arena);
    free(g);
}

/** Takes all choices that still run away from the engine. */
static void abort_choices(struct generation *g)
{
    for (int32_t i = 0; i < g->num_choices; i++)
        engine_client_abort(g->server->engine, &g->choices[i].out.engine);
    engine_client_flush(g->server->engine);
}

static void choice_finished(struct choice *c)
{
    leave_queue(c);
    generation_count_finish(c);
    c->generation->num_unfinished--;
}

/** Ends the choices that have not ended. */
static void finish_choices(struct generation *g, enum finish_reason reason)
{
    for (int32_t i = 0; i < g->num_choices; i++) {
        struct choice *c = &g->choices[i];
        if (c->out.finish_reason != FINISH_REASON_NONE)
            continue;
        output_processor_finish(&c->out, reason);
        choice_finished(c);
    }
}

static void on_client_gone(void *context)
{
    struct generation *g = context;
    g->call = NULL;
    if (g->in_pool)
        return; // seen when the pool is done with it
    abort_choices(g);
    finish_choices(g, FINISH_REASON_ABORT);
    destroy(g);
}

static void write_stream(struct generation *g, struct buf *out)
{
    if (g->is_background)
        event_log_append(g->events, buf_str(out));
    else
        api_call_write(g->call, buf_str(out));
    g->last_write_ns = clock_monotonic_ns();
}

/** Answers with an error: as HTTP where nothing was sent yet, else as an event. */
static void fail(struct generation *g, const struct api_error *err)
{
    struct api_call *call = g->call;
    abort_choices(g);
    finish_choices(g, FINISH_REASON_ERROR);
    if (g->stream_begun) {
        struct buf *out = &g->server->scratch;
        buf_clear(out);
        g->kind->write_stream_error(g, err, out);
        write_stream(g, out);
        if (call)
            api_call_end_stream(call);
    } else if (call) {
        api_call_fail(call, err);
    }
    if (g->kind->on_end)
        g->kind->on_end(g, err);
    destroy(g);
}

// ---- answering ----

/** Whether a vector will not come: its request was aborted by a server or an engine that stops. */
static bool lacks_vectors(const struct generation *g)
{
    for (int32_t i = 0; g->kind->pools && i < g->num_choices; i++) {
        if (g->choices[i].num_pooled == 0)
            return true;
    }
    return false;
}

/** Ends the answer once nothing is left to come. Returns true if the generation is gone. */
static bool complete(struct generation *g)
{
    if (g->num_unfinished > 0)
        return false;
    struct api_call *call = g->call;
    struct buf *out = &g->server->scratch;
    for (int32_t i = 0; g->fields->stream && i < g->num_choices; i++) {
        if (!g->choices[i].out.taken_finish)
            return false; // a slow reader: the timer goes on
    }
    if (lacks_vectors(g)) {
        struct api_error err;
        api_error_set(&err, API_ERROR_OVERLOADED,
                      "The server stopped before all embeddings were computed. Please try again.");
        fail(g, &err);
        return true;
    }
    buf_clear(out);
    if (g->stream_begun) {
        g->kind->write_stream_end(g, out);
        write_stream(g, out);
        if (call)
            api_call_end_stream(call);
    } else if (call) {
        g->kind->write_answer(g, out);
        load_report_add(call);
        api_call_reply_json(call, buf_str(out));
    }
    if (g->kind->on_end)
        g->kind->on_end(g, NULL);
    destroy(g);
    return true;
}

static bool is_worth_a_chunk(const struct choice *c)
{
    const struct output_processor *p = &c->out;
    if (p->finish_reason != FINISH_REASON_NONE)
        return true;
    if (!p->has_output)
        return false; // a step of a long prefill
    if (!c->has_chunk)
        return true;
    return output_processor_pending_text(p) > 0 &&
           p->num_tokens - p->taken_tokens >= c->generation->server->options->stream_interval;
}

static void stream_choice(struct choice *c)
{
    struct generation *g = c->generation;
    if (!is_worth_a_chunk(c) || c->out.taken_finish)
        return;
    // What a background generation publishes is kept for its readers, however slow they are.
    size_t pending = g->is_background ? 0 : http_exchange_pending_bytes(g->call->exchange);
    c->is_deferred = pending > MAX_PENDING_BYTES;
    if (c->is_deferred) {
        if (g->stall.since_ns == 0)
            g->stall = (struct stall_watch){clock_monotonic_ns(),
                                            http_exchange_taken_bytes(g->call->exchange)};
        return;
    }
    struct buf *out = &g->server->scratch;
    buf_clear(out);
    // The first chunk may come before its text is certain: tokens then wait for their text.
    struct output_delta delta = {0};
    if (c->out.finish_reason != FINISH_REASON_NONE || output_processor_pending_text(&c->out) > 0)
        delta = output_processor_take(&c->out);
    g->kind->write_chunk(g, c, &delta, out);
    if (out->len == 0)
        return;
    c->has_chunk = true;
    write_stream(g, out);
}

static void keep_vector(struct choice *c, const struct engine_core_output *o)
{
    if (o->num_pooled == 0)
        return;
    float *copy = arena_array(&c->generation->arena, float, o->num_pooled);
    memcpy(copy, o->pooled, (size_t)o->num_pooled * sizeof(*copy));
    c->pooled = copy;
    c->num_pooled = o->num_pooled;
}

static void on_output(struct engine_request *request, const struct engine_core_output *o,
                      int64_t timestamp_ns)
{
    struct choice *c = choice_of(request);
    struct generation *g = c->generation;
    arena_reset(&g->server->scratch_arena);
    generation_count_output(c, o, timestamp_ns);
    keep_vector(c, o);
    if (o->num_new_tokens > 0)
        leave_queue(c);
    if (o->finish_reason == FINISH_REASON_ERROR) {
        struct api_error err;
        bool dead = atomic_load(&g->server->page->engine.state) == ENGINE_STATE_DEAD;
        if (o->refusal.kind == REFUSAL_NO_TOKEN)
            constraint_conflicts_explain(&g->fields->sampling, o->refusal.num_tokens, &err);
        else if (!refusal_explain(&o->refusal, &err))
            api_error_set(&err, API_ERROR_INTERNAL,
                          dead ? "The engine is dead and was not restarted"
                               : "Generation failed inside the engine");
        fail(g, &err);
        return;
    }
    if (output_processor_update(&c->out, o))
        engine_client_abort(g->server->engine, request);
    if (c->out.finish_reason != FINISH_REASON_NONE)
        choice_finished(c);
    if (g->fields->stream)
        stream_choice(c);
    complete(g);
}

// ---- starting ----

static void start_choice(struct generation *g, struct prompt *p, int32_t index, int32_t of_prompt)
{
    struct choice *c = &g->choices[index];
    c->generation = g;
    c->prompt = p;
    c->index = index;
    struct engine_core_request *core = &c->out.engine.core;
    core->priority = g->fields->priority;
    core->external_id = str_hash(str_from(g->id));
    core->arrival_time_ns = clock_wall_ns();
    core->num_prompt_tokens = p->num_ids;
    core->prompt_token_ids = p->ids;
    core->cache_salt = g->fields->cache_salt;
    core->pooling = g->pooling;
    core->sampling = p->sampling;
    core->sampling.seed += (uint64_t)of_prompt; // each choice its own stream
    c->out.engine.on_output = on_output;
    const struct sampling_fields *s = &g->fields->sampling;
    output_processor_init(&c->out,
                          &(struct output_processor_options){
                              .tokenizer = g->server->facts.tokenizer,
                              .stops = &g->stops,
                              .min_tokens = p->sampling.min_tokens,
                              .skip_special_tokens = g->fields->skip_special_tokens,
                              .joins_added_tokens = !g->fields->skip_special_tokens &&
                                                    !g->fields->spaces_between_special_tokens,
                              .repetition = s->repetition,
                              .drop_tokens = s->has_max_tokens && s->max_tokens == 0,
                          });
    c->is_queued = true;
    atomic_fetch_add(&api_server_front(g->server)->num_queued_prompt_tokens, p->num_ids);
}

static void make_chunk_head(struct generation *g)
{
    if (!g->kind->chunk_object)
        return;
    struct buf head = {0};
    buf_append_c(&head, "data: {\"id\":");
    buf_append_json_string(&head, str_from(g->id));
    buf_printf(&head,
               ",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", g->kind->chunk_object,
               g->created);
    buf_append_json_string(&head, str_from(g->model));
    buf_append_c(&head, ",\"choices\":[");
    g->chunk_head = arena_str(&g->arena, buf_str(&head));
    buf_deinit(&head);
}

/** What is sent before the first token: a stream's first events, or the answer of a background
 *  generation, which then goes on without its client. */
static void announce(struct generation *g)
{
    struct buf *out = &g->server->scratch;
    buf_clear(out);
    if (g->kind->on_start)
        g->kind->on_start(g, out);
    if (g->is_background && g->call) {
        buf_clear(out);
        g->kind->write_answer(g, out);
        api_call_reply_json(g->call, buf_str(out));
        g->call = NULL;
    } else if (out->len > 0) {
        write_stream(g, out);
    }
}

static void run(struct generation *g)
{
    int32_t n = (int32_t)g->fields->sampling.n;
    g->num_choices = g->num_unfinished = n * g->num_prompts;
    g->choices = xcalloc((size_t)g->num_choices, sizeof(*g->choices));
    g->created = clock_wall_ns() / 1000000000;
    const struct sampling_fields *s = &g->fields->sampling;
    g->stops = stop_matcher_make(s->stop, s->num_stop, g->fields->include_stop_str_in_output);
    generation_log(g);
    for (int32_t p = 0; p < g->num_prompts; p++) {
        g->prompts[p].num_unfinished = n;
        for (int32_t i = 0; i < n; i++)
            start_choice(g, &g->prompts[p], p * n + i, i);
    }
    if (g->fields->stream) {
        make_chunk_head(g);
        if (!g->is_background)
            api_call_begin_stream(g->call);
        g->stream_begun = true;
        g->last_write_ns = clock_monotonic_ns();
    }
    announce(g);
    metrics_count(&g->server->metrics, METRIC_REQUESTS_RECEIVED, g->num_choices);
    for (int32_t i = 0; i < g->num_choices; i++)
        engine_client_add(g->server->engine, &g->choices[i].out.engine);
}

/** After preparing, on the loop. */
static void start(struct generation *g)
{
    struct api_error *err = &g->error;
    enum status status = g->prepare_status;
    if (status == STATUS_OK && g->kind->answer_prepared) {
        struct buf *out = &g->server->scratch;
        buf_clear(out);
        g->kind->answer_prepared(g, out);
        api_call_reply_json(g->call, buf_str(out));
        destroy(g);
        return;
    }
    if (status == STATUS_OK)
        status = generation_admit(g, g->fields->sampling.n * g->num_prompts, err);
    if (status != STATUS_OK) {
        fail(g, err);
        return;
    }
    run(g);
}

static void run_job(struct pool_job *job)
{
    generation_prepare((struct generation *)job);
}

static void job_done(struct pool_job *job)
{
    struct generation *g = (struct generation *)job;
    g->in_pool = false;
    if (g->call)
        start(g);
    else
        destroy(g);
}

void generation_begin(struct api_call *call, const struct generation_kind *kind)
{
    struct api_server *server = call->server;
    struct generation *g = xcalloc(1, sizeof(*g));
    g->server = server;
    g->call = call;
    g->kind = kind;
    g->arrival_ns = call->start_ns;
    g->header_request_id = arena_str(&g->arena, api_call_header(call, "X-Request-Id"));
    g->data_parallel_rank = arena_str(&g->arena, api_call_header(call, "X-data-parallel-rank"));
    link_generation(g);
    api_call_on_close(call, on_client_gone, g);
    g->body = api_call_body(call);
    if (g->body.len <= INLINE_BODY_BYTES) {
        generation_prepare(g);
        start(g);
        return;
    }
    // The client may leave, and its body with it, while the pool works.
    g->body = arena_str(&g->arena, g->body);
    g->job = (struct pool_job){.run = run_job, .done = job_done};
    g->in_pool = true;
    if (tokenizer_pool_post(server->pool, &g->job))
        return;
    g->in_pool = false;
    g->prepare_status = api_error_set(&g->error, API_ERROR_OVERLOADED,
                                      "Too many long prompts wait. Please try again later.");
    start(g);
}

// ---- timers ----

bool stall_watch_is_over(struct stall_watch *watch, size_t pending_bytes, uint64_t taken_bytes,
                         int64_t now_ns)
{
    if (pending_bytes <= MAX_PENDING_BYTES) {
        *watch = (struct stall_watch){0};
        return false;
    }
    if (watch->since_ns == 0 || taken_bytes != watch->taken_bytes)
        *watch = (struct stall_watch){now_ns, taken_bytes};
    return now_ns - watch->since_ns > MAX_STALL_S * 1000000000LL;
}

/** Writes what gathered while the client did not read. Returns true if the generation is gone. */
static bool resume_stalled(struct generation *g, int64_t now_ns)
{
    size_t pending = http_exchange_pending_bytes(g->call->exchange);
    uint64_t taken = http_exchange_taken_bytes(g->call->exchange);
    if (stall_watch_is_over(&g->stall, pending, taken, now_ns)) {
        log_warning("%s: the client has read nothing for %d s and %zu bytes wait: cut off", g->id,
                    MAX_STALL_S, pending);
        struct api_call *call = g->call;
        abort_choices(g);
        finish_choices(g, FINISH_REASON_ABORT);
        api_call_drop(call);
        destroy(g);
        return true;
    }
    if (g->stall.since_ns != 0)
        return false;
    for (int32_t i = 0; i < g->num_choices; i++) {
        if (g->choices[i].is_deferred)
            stream_choice(&g->choices[i]);
    }
    return complete(g);
}

void generation_tick_all(struct api_server *server)
{
    int64_t now_ns = clock_monotonic_ns();
    int64_t keep_alive_ns = server->options->sse_keep_alive_interval_s * 1000000000LL;
    arena_reset(&server->scratch_arena);
    for (struct generation *g = server->generations, *next; g; g = next) {
        next = g->next;
        if (!g->stream_begun || !g->call)
            continue;
        if (g->stall.since_ns != 0 && resume_stalled(g, now_ns))
            continue;
        if (keep_alive_ns > 0 && now_ns - g->last_write_ns >= keep_alive_ns) {
            api_call_write(g->call, STR(": keep-alive\n\n"));
            g->last_write_ns = now_ns;
        }
    }
}

/** Every choice ends with "abort", and so does the answer, if anybody is there for it. */
static void end_early(struct generation *g)
{
    abort_choices(g);
    finish_choices(g, FINISH_REASON_ABORT);
    for (int32_t i = 0; g->stream_begun && i < g->num_choices; i++)
        stream_choice(&g->choices[i]);
    complete(g);
}

void generation_cancel(struct generation *g)
{
    arena_reset(&g->server->scratch_arena);
    end_early(g);
}

void generation_drop_all(struct api_server *server)
{
    for (struct generation *g = server->generations, *next; g; g = next) {
        next = g->next;
        struct api_call *call = g->call;
        abort_choices(g);
        finish_choices(g, FINISH_REASON_ABORT);
        if (call)
            api_call_drop(call);
        destroy(g);
    }
}

void generation_abort_all(struct api_server *server)
{
    arena_reset(&server->scratch_arena);
    for (struct generation *g = server->generations, *next; g; g = next) {
        next = g->next;
        if (!g->in_pool && (g->call || g->stream_begun))
            end_early(g);
    }
}
