// Requests that ask for everything through the real scheduler and a real model, in one mode or
// another, and the comparison of what they gave. Header-only.
#pragma once
#include <stdio.h>
#include <unistd.h>

#include "worker/step_driver.h"

#include "engine/scheduler.h"

enum { NUM_REQUESTS = 24, MAX_OUTPUTS = 40, MAX_PROMPT = 60, MAX_TOP = 25 };

/** What a request gave. */
struct answer {
    int32_t num_tokens;
    int32_t tokens[MAX_OUTPUTS];
    int32_t num_logprobs[MAX_OUTPUTS], ranks[MAX_OUTPUTS];
    int32_t top_ids[MAX_OUTPUTS][1 + MAX_TOP];
    float top[MAX_OUTPUTS][1 + MAX_TOP];
    float prompt_logprobs[MAX_PROMPT];
    enum finish_reason finish_reason;
};

struct mode {
    const char *name, *device;
    enum tristate async;
    bool enforce_eager;
    int32_t kv_blocks; // few: requests are preempted
    bool in_waves;     // eight come when the last have ended, and prompts are computed whole
};

struct world {
    struct driver driver;
    struct scheduler scheduler;
    struct scheduler_output steps[MAX_STEPS_IN_FLIGHT];
    struct answer answers[NUM_REQUESTS];
    int64_t num_overlaps;
};

static const int32_t STOPS[] = {40, 41, 42, 43, 44, 45, 46, 47, 48, 49}, LISTED[] = {7, 300, 2};
static const int32_t BAD[] = {1, 9, 2, 30, 31, 1, 300};
static int32_t allowed[200];
static const struct logit_bias BIAS[] = {{17, 3.0f}, {200, -50.0f}, {33, 2.5f}};

/** A mixture of everything that a request can ask of the sampler. */
static struct sampling_params sampling_of(int32_t i)
{
    struct sampling_params p = driver_greedy();
    p.max_tokens = 6 + i * 5 % (MAX_OUTPUTS - 6);
    p.seed = (uint64_t)i * 77 + 1;
    if (i % 3 == 1) {
        p.temperature = 0.9f;
        p.top_p = i % 2 ? 0.95f : 1.0f;
        p.top_k = i % 4 == 1 ? 50 : 0;
    }
    if (i % 4 == 2) {
        p.repetition_penalty = 1.3f;
        p.frequency_penalty = 0.3f;
        p.presence_penalty = 0.2f;
    }
    if (i % 5 == 3)
        p.num_logprobs = i % 2 ? 3 : 0;
    if (i == 8)
        p.num_logprobs = MAX_TOP; // more than the device gives
    if (i == 9) {
        p.num_logprobs = 2;
        p.num_logprob_token_ids = ARRAY_LEN(LISTED);
        p.logprob_token_ids = LISTED;
    }
    if (i == 10 || i == 17)
        p.num_prompt_logprobs = 2;
    if (i % 6 == 5) {
        p.num_logit_bias = ARRAY_LEN(BIAS);
        p.logit_bias = BIAS;
    }
    if (i % 7 == 4) {
        p.num_bad_word_ints = ARRAY_LEN(BAD);
        p.bad_words = BAD;
    }
    if (i % 8 == 7) {
        p.num_allowed_token_ids = ARRAY_LEN(allowed);
        p.allowed_token_ids = allowed;
    }
    if (i % 2 == 0) { // stops at different places
        p.num_stop_token_ids = ARRAY_LEN(STOPS);
        p.stop_token_ids = STOPS;
        p.eos_token_id = 100 + i;
        p.min_tokens = i % 3 * 3;
    }
    return p;
}

static void add_request(struct world *w, int32_t i)
{
    int32_t prompt[MAX_PROMPT], num_prompt = 3 + i * 11 % (MAX_PROMPT - 3);
    for (int32_t k = 0; k < num_prompt; k++) // some share their beginning
        prompt[k] = ((k < 20 ? i % 4 : i) * 131 + k * 37) % 500 + 2;
    const struct engine_core_request message = {.request_id = (uint64_t)i + 1,
                                                .arrival_time_ns = i,
                                                .num_prompt_tokens = num_prompt,
                                                .prompt_token_ids = prompt,
                                                .sampling = sampling_of(i)};
    w->answers[i].finish_reason = FINISH_REASON_NONE;
    DRIVER_OK(scheduler_add(&w->scheduler, &message, 1, &err));
}

static void take_output(struct world *w, const struct engine_core_output *out)
{
    struct answer *a = &w->answers[out->request_id - 1];
    for (int32_t i = 0; i < out->num_new_tokens; i++) {
        assert_true(a->num_tokens < MAX_OUTPUTS);
        int32_t at = a->num_tokens++;
        a->tokens[at] = out->new_token_ids[i];
        const struct token_logprobs *l = out->logprobs ? &out->logprobs[i] : NULL;
        a->num_logprobs[at] = l ? l->num_entries : 0;
        a->ranks[at] = l ? l->rank : 0;
        for (int32_t k = 0; l && k < l->num_entries; k++) {
            a->top_ids[at][k] = l->token_ids[k];
            a->top[at][k] = l->logprobs[k];
        }
    }
    for (int32_t i = 0; i < out->num_prompt_logprobs; i++)
        a->prompt_logprobs[out->first_prompt_logprob + i] = out->prompt_logprobs[i].logprobs[0];
    a->finish_reason = out->finish_reason;
}

/** A turn of the engine's loop. */
static void turn(struct world *w)
{
    struct scheduler *s = &w->scheduler;
    struct scheduler_output step;
    bool begun = false;
    if (scheduler_can_schedule(s)) {
        w->num_overlaps += s->in_flight > 0;
        begun = scheduler_schedule(s, 1, &step);
        if (begun) {
            struct scheduler_output *place = &w->steps[step.step % MAX_STEPS_IN_FLIGHT];
            *place = step;
            executor_submit(w->driver.executor, place);
        }
    }
    if (begun && scheduler_can_schedule(s))
        return;
    struct engine_core_outputs outputs[MAX_API_SERVERS];
    struct model_runner_output result = {0};
    const struct scheduler_output *oldest =
        s->in_flight > 0 ? &w->steps[(s->step - s->in_flight) % MAX_STEPS_IN_FLIGHT] : NULL;
    if (oldest)
        DRIVER_OK(executor_collect(w->driver.executor, &result, &err));
    scheduler_update(s, 1, oldest, oldest ? &result : NULL, outputs);
    for (int32_t i = 0; i < outputs[0].num_outputs; i++)
        take_output(w, &outputs[0].outputs[i]);
}

/** All requests, coming one by one. Returns how often somebody was preempted. */
static int64_t run(struct world *w, const char *model, const struct mode *mode)
{
    struct serve_options options = driver_options(model);
    options.dtype = options.kv_cache_dtype = "bfloat16";
    options.target_device = mode->device;
    options.async_scheduling = mode->async;
    options.enforce_eager = mode->enforce_eager;
    options.scheduler_reserve_full_isl = true;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = mode->in_waves ? 1024 : 48;
    options.batch_invariant = mode->in_waves;
    if (mode->in_waves)
        options.enable_prefix_caching = TRISTATE_FALSE;
    options.max_cudagraph_capture_size = 4;
    options.max_model_len = 128;
    options.block_size = 16;
    memset(w->answers, 0, sizeof(w->answers));
    w->num_overlaps = 0;
    driver_start(&w->driver, &options);
    struct scheduler_config config = scheduler_config_from(&w->driver.config);
    struct kv_cache_config kv_cache = w->driver.config.kv_cache;
    kv_cache.num_blocks = min_i32(kv_cache.num_blocks, mode->kv_blocks * kv_cache.num_groups);
    config.kv_cache = &kv_cache;
    scheduler_init(&w->scheduler, &config);
    int32_t num_added = 0;
    for (int32_t i = 0; num_added < NUM_REQUESTS || scheduler_has_work(&w->scheduler); i++) {
        assert_true(i < 10000);
        bool wave_begins = mode->in_waves && !scheduler_has_work(&w->scheduler);
        for (int32_t k = 0; wave_begins && k < 8; k++)
            add_request(w, num_added++);
        if (!mode->in_waves && num_added < NUM_REQUESTS && i % 3 != 1)
            add_request(w, num_added++);
        turn(w);
    }
    static_assert(NUM_REQUESTS % 8 == 0, "whole waves");
    int64_t num_preemptions = w->scheduler.stats.num_preemptions;
    assert_int_equal(block_pool_num_used(&w->scheduler.kv.pool), 0);
    scheduler_deinit(&w->scheduler);
    driver_stop(&w->driver);
    return num_preemptions;
}

static void compare(const struct answer *want, const struct answer *got, int32_t i)
{
    if (got->num_tokens != want->num_tokens ||
        memcmp(got->tokens, want->tokens, sizeof(got->tokens)) != 0)
        fail_msg("request %d: other tokens", i);
    assert_int_equal(got->finish_reason, want->finish_reason);
    assert_memory_equal(got->num_logprobs, want->num_logprobs, sizeof(got->num_logprobs));
    assert_memory_equal(got->ranks, want->ranks, sizeof(got->ranks));
    assert_memory_equal(got->top_ids, want->top_ids, sizeof(got->top_ids));
    assert_memory_equal(got->top, want->top, sizeof(got->top));
    assert_memory_equal(got->prompt_logprobs, want->prompt_logprobs, sizeof(got->prompt_logprobs));
}
