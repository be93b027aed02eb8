// A scheduler with a fake worker, stepped by hand, for tests in small scenarios.
#pragma once

#include "engine/fake_worker.h"

#include "engine/scheduler.h"

enum { MAX_OUTPUTS = 64 };

struct world {
    struct scheduler scheduler;
    struct fake_worker worker;
    struct kv_cache_config kv;
    int64_t now_ns;
    struct scheduler_output step; // the last one
    int32_t num_outputs;          // of the last update
    struct engine_core_output outputs[MAX_OUTPUTS];
    int32_t clients[MAX_OUTPUTS];
    int32_t forced_token; // >= 0: every row draws it; -2: no finite logits
};

__attribute__((unused)) static const struct scheduler_config DEFAULTS = {
    .max_num_batched_tokens = 32,
    .max_num_seqs = 4,
    .max_model_len = 128,
    .vocab_size = FAKE_VOCAB_SIZE,
    .enable_chunked_prefill = true,
    .enable_prefix_caching = true,
    .max_num_partial_prefills = 1,
    .max_long_partial_prefills = 1,
    .reserve_full_isl = true,
};

// Blocks of 4 tokens.
static inline void init(struct world *w, struct scheduler_config config, int32_t num_blocks)
{
    memset(w, 0, sizeof(*w));
    w->kv = (struct kv_cache_config){.block_size = 4, .num_blocks = num_blocks, .num_groups = 1};
    config.kv_cache = &w->kv;
    scheduler_init(&w->scheduler, &config);
    fake_worker_init(&w->worker, &w->kv, config.max_num_seqs);
    w->now_ns = 1000;
    w->forced_token = -1;
}

static inline void deinit(struct world *w)
{
    scheduler_deinit(&w->scheduler);
    fake_worker_deinit(&w->worker);
}

static inline struct sampling_params sampling(int32_t max_tokens)
{
    return (struct sampling_params){.max_tokens = max_tokens,
                                    .eos_token_id = -1,
                                    .num_logprobs = -1,
                                    .num_prompt_logprobs = -1};
}

// Tokens depend on `family` alone, so that equal families share prefixes.
static inline struct engine_core_request request(uint64_t id, int32_t num_prompt, int32_t family,
                                                 int32_t *tokens)
{
    for (int32_t i = 0; i < num_prompt; i++)
        tokens[i] = (family * 17 + i * 5) % FAKE_VOCAB_SIZE;
    return (struct engine_core_request){.request_id = id,
                                        .arrival_time_ns = (int64_t)id,
                                        .num_prompt_tokens = num_prompt,
                                        .prompt_token_ids = tokens,
                                        .sampling = sampling(8)};
}

static inline void add_message(struct world *w, const struct engine_core_request *message)
{
    struct error err = {0};
    assert_int_equal(scheduler_add(&w->scheduler, message, w->now_ns, &err), STATUS_OK);
}

static inline void add(struct world *w, uint64_t id, int32_t num_prompt, int32_t family,
                       int32_t max_tokens)
{
    int32_t tokens[FAKE_MAX_LEN];
    struct engine_core_request message = request(id, num_prompt, family, tokens);
    message.sampling.max_tokens = max_tokens;
    add_message(w, &message);
}

static inline void finish_step(struct world *w, bool runs)
{
    struct model_runner_output result = {0};
    struct engine_core_outputs outputs[MAX_API_SERVERS];
    if (runs)
        fake_worker_run(&w->worker, &w->step, &result);
    for (int32_t i = 0; i < result.num_rows && w->forced_token != -1; i++) {
        struct row_output *row = &w->worker.outputs[i];
        if (!w->step.rows[i].samples)
            continue;
        row->token_id = max_i32(w->forced_token, -1);
        struct fake_row *fake = &w->worker.rows[row->row];
        fake->token_ids[fake->num_tokens - 1] = max_i32(w->forced_token, 0);
    }
    w->now_ns += 1000;
    scheduler_update(&w->scheduler, w->now_ns, runs ? &w->step : NULL, runs ? &result : NULL,
                     outputs);
    w->num_outputs = 0;
    for (int32_t c = 0; c < MAX_API_SERVERS; c++) {
        for (int32_t i = 0; i < outputs[c].num_outputs; i++) {
            assert_true(w->num_outputs < MAX_OUTPUTS);
            w->clients[w->num_outputs] = c;
            w->outputs[w->num_outputs++] = outputs[c].outputs[i];
        }
    }
}

static inline bool begin_step(struct world *w)
{
    return scheduler_schedule(&w->scheduler, w->now_ns, &w->step);
}

static inline void run_step(struct world *w)
{
    finish_step(w, begin_step(w));
}

// Tokens that the request got in the last step; 0: it was not in it.
static inline int32_t tokens_of(const struct world *w, uint64_t id)
{
    for (int32_t i = 0; i < w->step.num_rows; i++) {
        if (w->scheduler.row_requests[i]->request_id == id)
            return w->step.rows[i].num_scheduled_tokens;
    }
    return 0;
}

static const struct engine_core_output *output_of(const struct world *w, uint64_t id)
{
    for (int32_t i = 0; i < w->num_outputs; i++) {
        if (w->outputs[i].request_id == id)
            return &w->outputs[i];
    }
    return NULL;
}

static inline enum finish_reason run_to_end(struct world *w, uint64_t id)
{
    for (int32_t i = 0; i < 1000; i++) {
        run_step(w);
        const struct engine_core_output *output = output_of(w, id);
        if (output && output->finish_reason != FINISH_REASON_NONE)
            return output->finish_reason;
    }
    fail_msg("request %llu does not end", (unsigned long long)id);
    return FINISH_REASON_NONE;
}

static inline bool is_running(const struct world *w, uint64_t id)
{
    const struct request *r = request_table_find(&w->scheduler.requests, id);
    return r && r->state == REQUEST_RUNNING;
}
