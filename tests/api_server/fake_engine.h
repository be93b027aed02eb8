// An engine for tests: a thread that speaks channel and codec and emits the tokens of a script.
//
// The token at output position i of a request with seed s is script[(i + s) % num_script]; a
// request ends at eos or max_tokens. It resumes from whatever outputs come with ADD.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/memory.h"
#include "message/channel.h"
#include "message/codec.h"
#include "message/shared_page.h"

enum { FAKE_MAX_REQUESTS = 64, FAKE_MAX_SCRIPT = 256, FAKE_MAX_LEN = 4096, FAKE_MODEL_LEN = 512 };

struct fake_request {
    bool used, prompt_scored;
    struct engine_core_request core; // arrays are not kept
    int32_t num_prompt, prompt[FAKE_MAX_LEN];
    int32_t num_outputs, stop_token_ids[MAX_STOP_TOKEN_IDS];
};

struct fake_engine {
    struct shared_page *page;
    const char *ipc_dir;
    pthread_t thread;
    atomic_bool stop, paused, fail_next;
    atomic_int step_ms, tokens_per_step;
    atomic_int num_adds, num_aborts, num_resumed, num_live, last_resumed_outputs;
    pthread_mutex_t script_lock; // = {0}: unlocked
    int32_t script[FAKE_MAX_SCRIPT], num_script;
    // The thread's.
    struct channel *channel;
    struct fake_request requests[FAKE_MAX_REQUESTS];
    struct buf frame;
    struct arena arena;
};

static void fake_send(struct fake_engine *e, int32_t client, const struct message *message)
{
    struct error err;
    buf_clear(&e->frame);
    message_encode(&e->frame, message);
    if (channel_send(e->channel, client, buf_str(&e->frame), &err) != STATUS_OK)
        fprintf(stderr, "fake engine: %s\n", err.message);
}

static void fake_add(struct fake_engine *e, const struct engine_core_request *add)
{
    for (int i = 0; i < FAKE_MAX_REQUESTS; i++) {
        struct fake_request *r = &e->requests[i];
        if (r->used)
            continue;
        *r = (struct fake_request){.used = true, .core = *add};
        r->num_prompt = min_i32(add->num_prompt_tokens, FAKE_MAX_LEN);
        memcpy(r->prompt, add->prompt_token_ids, (size_t)r->num_prompt * sizeof(int32_t));
        r->num_outputs = add->num_output_tokens;
        if (add->sampling.num_stop_token_ids > 0)
            memcpy(r->stop_token_ids, add->sampling.stop_token_ids,
                   (size_t)add->sampling.num_stop_token_ids * sizeof(int32_t));
        r->core.sampling.stop_token_ids = r->stop_token_ids;
        atomic_fetch_add(&e->num_adds, 1);
        atomic_fetch_add(&e->num_live, 1);
        if (add->num_output_tokens > 0) {
            atomic_fetch_add(&e->num_resumed, 1);
            atomic_store(&e->last_resumed_outputs, add->num_output_tokens);
        }
        return;
    }
    fprintf(stderr, "fake engine: too many requests\n");
}

static void fake_drop(struct fake_engine *e, struct fake_request *r)
{
    if (r->used)
        atomic_fetch_sub(&e->num_live, 1);
    r->used = false;
}

static void fake_receive(struct fake_engine *e)
{
    struct str frame;
    int32_t client;
    while (channel_receive(e->channel, &client, &frame)) {
        struct message m;
        struct error err;
        arena_reset(&e->arena);
        if (message_decode(&m, frame, &e->arena, &err) != STATUS_OK) {
            fprintf(stderr, "fake engine: %s\n", err.message);
            continue;
        }
        if (m.kind == MESSAGE_HELLO) {
            for (int i = 0; i < FAKE_MAX_REQUESTS; i++)
                fake_drop(e, &e->requests[i]);
            struct message welcome = {.kind = MESSAGE_WELCOME};
            welcome.welcome.version = MESSAGE_VERSION;
            welcome.welcome.generation = atomic_load(&e->page->engine.generation);
            welcome.welcome.num_losses = atomic_load(&e->page->engine.num_losses[client]);
            fake_send(e, client, &welcome);
        } else if (m.kind == MESSAGE_ADD) {
            fake_add(e, &m.add);
        } else if (m.kind == MESSAGE_ABORT) {
            for (int32_t a = 0; a < m.abort.num_ids; a++) {
                for (int i = 0; i < FAKE_MAX_REQUESTS; i++) {
                    struct fake_request *r = &e->requests[i];
                    if (!r->used || r->core.request_id != m.abort.ids[a])
                        continue;
                    atomic_fetch_add(&e->num_aborts, 1); // before anybody sees it gone
                    fake_drop(e, r);
                }
            }
        } else if (m.kind == MESSAGE_RESET_PREFIX_CACHE) {
            struct message reply = {.kind = MESSAGE_REPLY};
            reply.reply.call_id = m.reset_prefix_cache.call_id;
            reply.reply.ok = true;
            fake_send(e, client, &reply);
        }
    }
}

/** The token itself, then ids 10, 11, 12 ... with falling probability. */
static struct token_logprobs fake_logprobs(struct fake_engine *e, int32_t id, int32_t num_top)
{
    int32_t *ids = arena_array(&e->arena, int32_t, num_top + 1);
    float *values = arena_array(&e->arena, float, num_top + 1);
    ids[0] = id;
    values[0] = -0.5f;
    for (int32_t k = 1; k <= num_top; k++) {
        ids[k] = 300 + k;
        values[k] = -(float)k;
    }
    return (struct token_logprobs){num_top + 1, ids, values, 1};
}

static void fake_score_prompt(struct fake_engine *e, struct fake_request *r,
                              struct engine_core_output *o)
{
    if (r->prompt_scored || r->core.sampling.num_prompt_logprobs < 0)
        return;
    r->prompt_scored = true;
    int32_t count = r->num_prompt - 1;
    struct token_logprobs *rows = arena_array(&e->arena, struct token_logprobs, count + 1);
    for (int32_t i = 0; i < count; i++)
        rows[i] = fake_logprobs(e, r->prompt[i + 1], r->core.sampling.num_prompt_logprobs);
    o->first_prompt_logprob = 1;
    o->num_prompt_logprobs = count;
    o->prompt_logprobs = rows;
}

static void fake_step_one(struct fake_engine *e, struct fake_request *r,
                          struct engine_core_output *o)
{
    const struct sampling_params *s = &r->core.sampling;
    int64_t now = clock_monotonic_ns();
    int32_t count = 0, most = atomic_load(&e->tokens_per_step);
    int32_t *ids = arena_array(&e->arena, int32_t, most);
    struct token_logprobs *logprobs = arena_array(&e->arena, struct token_logprobs, most);
    *o = (struct engine_core_output){.request_id = r->core.request_id,
                                     .finish_reason = FINISH_REASON_NONE,
                                     .stop_token_id = -1,
                                     .queued_ns = now - 3000000,
                                     .scheduled_ns = now - 2000000,
                                     .first_token_ns = now - 1000000,
                                     .last_token_ns = now};
    if (atomic_exchange(&e->fail_next, false))
        o->finish_reason = FINISH_REASON_ERROR;
    fake_score_prompt(e, r, o);
    while (count < most && o->finish_reason == FINISH_REASON_NONE) {
        int32_t at = (int32_t)(((uint64_t)r->num_outputs + s->seed) % (uint64_t)e->num_script);
        int32_t id = e->script[at];
        ids[count] = id;
        if (s->num_logprobs >= 0)
            logprobs[count] = fake_logprobs(e, id, s->num_logprobs);
        count++;
        r->num_outputs++;
        if (r->num_outputs > s->min_tokens && id == s->eos_token_id)
            o->finish_reason = FINISH_REASON_STOP;
        for (int32_t i = 0; i < s->num_stop_token_ids; i++) {
            if (id == s->stop_token_ids[i]) {
                o->finish_reason = FINISH_REASON_STOP;
                o->stop_token_id = id;
            }
        }
        if (o->finish_reason == FINISH_REASON_NONE && r->num_outputs >= s->max_tokens)
            o->finish_reason = FINISH_REASON_LENGTH;
    }
    o->num_new_tokens = count;
    o->new_token_ids = ids;
    o->logprobs = s->num_logprobs >= 0 ? logprobs : NULL;
    if (o->finish_reason != FINISH_REASON_NONE)
        fake_drop(e, r);
}

static void fake_step(struct fake_engine *e)
{
    struct engine_core_output outputs[FAKE_MAX_REQUESTS];
    int32_t count = 0, client = 0;
    arena_reset(&e->arena);
    for (int i = 0; i < FAKE_MAX_REQUESTS; i++) {
        struct fake_request *r = &e->requests[i];
        if (!r->used)
            continue;
        client = r->core.client_index;
        pthread_mutex_lock(&e->script_lock);
        fake_step_one(e, r, &outputs[count++]);
        pthread_mutex_unlock(&e->script_lock);
    }
    if (count == 0)
        return;
    struct message m = {.kind = MESSAGE_OUTPUTS};
    m.outputs = (struct engine_core_outputs){
        .timestamp_ns = clock_monotonic_ns(), .num_outputs = count, .outputs = outputs};
    fake_send(e, client, &m);
}

static void *fake_main(void *context)
{
    struct fake_engine *e = context;
    struct engine_page *page = &e->page->engine;
    int64_t next_step_ns = 0;
    while (!atomic_load(&e->stop)) {
        int64_t now = clock_monotonic_ns();
        atomic_store(&page->heartbeat_ns, now);
        fake_receive(e);
        if (!atomic_load(&e->paused) && now >= next_step_ns) {
            fake_step(e);
            next_step_ns = now + atomic_load(&e->step_ms) * 1000000LL;
        }
        channel_wait(e->channel, 1000000);
    }
    return NULL;
}

/** Starts (again): binds, and tells the page that it is ready. */
static bool fake_engine_start(struct fake_engine *e)
{
    struct error err;
    struct engine_page *page = &e->page->engine;
    if (channel_bind(&e->channel, e->ipc_dir, &err) != STATUS_OK) {
        fprintf(stderr, "fake engine: %s\n", err.message);
        return false;
    }
    for (int i = 0; i < FAKE_MAX_REQUESTS; i++)
        e->requests[i].used = false;
    atomic_store(&e->num_live, 0);
    atomic_store(&e->stop, false);
    if (atomic_load(&e->tokens_per_step) == 0)
        atomic_store(&e->tokens_per_step, 1);
    atomic_store(&page->max_model_len, FAKE_MODEL_LEN);
    atomic_store(&page->block_size, 16);
    atomic_store(&page->num_blocks, 100);
    atomic_store(&page->heartbeat_ns, clock_monotonic_ns());
    atomic_fetch_add(&page->generation, 1);
    atomic_store(&page->state, ENGINE_STATE_READY);
    return pthread_create(&e->thread, NULL, fake_main, e) == 0;
}

/** Stops as a killed engine does: without a word. `state`: what the launcher writes then. */
static void fake_engine_stop(struct fake_engine *e, enum engine_state state)
{
    atomic_store(&e->stop, true);
    pthread_join(e->thread, NULL);
    channel_close(e->channel);
    atomic_store(&e->page->engine.state, state);
}

static void fake_engine_free(struct fake_engine *e)
{
    buf_deinit(&e->frame);
    arena_deinit(&e->arena);
}
