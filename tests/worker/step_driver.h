// A tiny scheduler for tests: runs prompts through a real executor with chosen chunk sizes, rows
// and block ids, and keeps what comes out. Header-only; everything it returns lives in its arena.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/memory.h"
#include "config/hf_config.h"
#include "config/options.h"
#include "worker/worker.h"

enum { MAX_RUNS = 64 };

/** One request and what it gave. */
struct run {
    const int32_t *prompt;
    int32_t num_prompt;
    int32_t num_outputs; // wanted; nothing else ends it
    int32_t chunk;       // prompt tokens a step; 0: all that the step has room for
    struct sampling_params sampling;
    struct pooling_params pooling; // with a type it ends with its vector instead
    const int32_t *known_outputs;  // a resumed request's, already drawn
    int32_t num_known;

    int32_t *tokens; // prompt, then outputs
    int32_t num_tokens;
    struct token_logprobs *logprobs;        // [num_outputs], when asked for
    struct token_logprobs *prompt_logprobs; // [num_prompt]; the first is empty
    float *pooled;                          // its vector
    int32_t num_pooled;
    int32_t row, num_computed;
    int32_t *tables[MAX_KV_CACHE_GROUPS];
    int32_t num_blocks[MAX_KV_CACHE_GROUPS], num_freed[MAX_KV_CACHE_GROUPS];
    bool is_known; // to the executor
};

struct driver {
    struct serve_options options;
    struct model_config model;
    struct engine_config config;
    struct executor *executor;
    int32_t *free_blocks, num_free; // a stack
    struct arena arena;
    int64_t num_steps;
};

/** What `vllm serve DIR` would have, with little memory. */
static inline struct serve_options driver_options(const char *dir)
{
    return (struct serve_options){
        .model = dir,
        .dtype = "auto",
        .generation_config = "vllm",
        .load_format = LOAD_FORMAT_AUTO,
        .skip_tokenizer_init = true,
        .block_size = -1,
        .gpu_memory_utilization = 0.92,
        .kv_cache_memory_bytes = 256 << 20,
        .kv_cache_dtype = "auto",
        .num_gpu_blocks_override = -1,
        .enable_prefix_caching = TRISTATE_UNSET,
        .max_num_batched_tokens = -1,
        .max_num_seqs = -1,
        .enable_chunked_prefill = TRISTATE_UNSET,
        .target_device = "cpu",
        .max_cudagraph_capture_size = -1,
        .omp_threads_bind = "nobind",
        .cpu_isa = "auto",
    };
}

static inline struct sampling_params driver_greedy(void)
{
    return (struct sampling_params){
        .temperature = 0,
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 1 << 20,
        .eos_token_id = -1,
        .num_logprobs = -1,
        .num_prompt_logprobs = -1,
    };
}

#define DRIVER_OK(call)                             \
    do {                                            \
        struct error err = {0};                     \
        enum status status_ = (call);               \
        if (status_ != STATUS_OK)                   \
            fail_msg("%s: %s", #call, err.message); \
    } while (0)

static inline void driver_start(struct driver *driver, const struct serve_options *options)
{
    *driver = (struct driver){.options = *options};
    DRIVER_OK(model_config_load(&driver->model, options->model, "vllm", NULL, &err));
    DRIVER_OK(engine_config_plan(&driver->config, &driver->options, &driver->model, &err));
    DRIVER_OK(executor_create(&driver->executor, &driver->config, NULL, &err));
    int32_t num_blocks = driver->config.kv_cache.num_blocks;
    driver->free_blocks = xcalloc((size_t)num_blocks, sizeof(int32_t));
    for (int32_t i = 0; i < num_blocks; i++)
        driver->free_blocks[driver->num_free++] = num_blocks - 1 - i;
}

static inline void driver_stop(struct driver *driver)
{
    executor_destroy(driver->executor);
    engine_config_deinit(&driver->config);
    model_config_deinit(&driver->model);
    free(driver->free_blocks);
    arena_deinit(&driver->arena);
}

/** Mixes the order in which blocks are handed out. */
static inline void driver_shuffle_blocks(struct driver *driver, uint32_t seed)
{
    for (int32_t i = driver->num_free - 1; i > 0; i--) {
        seed = seed * 1664525u + 1013904223u;
        int32_t j = (int32_t)((uint64_t)seed * (uint64_t)(i + 1) >> 32);
        int32_t block = driver->free_blocks[i];
        driver->free_blocks[i] = driver->free_blocks[j];
        driver->free_blocks[j] = block;
    }
}

static inline void driver_init_run(struct driver *driver, struct run *run, int32_t row)
{
    size_t length = (size_t)(run->num_prompt + run->num_outputs);
    run->row = row;
    run->num_computed = 0;
    run->is_known = false;
    run->tokens = arena_array(&driver->arena, int32_t, length + 1);
    memcpy(run->tokens, run->prompt, (size_t)run->num_prompt * sizeof(int32_t));
    for (int32_t i = 0; i < run->num_known; i++)
        run->tokens[run->num_prompt + i] = run->known_outputs[i];
    run->num_tokens = run->num_prompt + run->num_known;
    run->logprobs =
        arena_calloc(&driver->arena, (size_t)run->num_outputs + 1, sizeof(*run->logprobs));
    run->prompt_logprobs =
        arena_calloc(&driver->arena, (size_t)run->num_prompt + 1, sizeof(*run->prompt_logprobs));
    for (int32_t g = 0; g < driver->config.kv_cache.num_groups; g++) {
        run->tables[g] = arena_array(&driver->arena, int32_t, length + 1);
        run->num_blocks[g] = run->num_freed[g] = 0;
    }
}

/** Blocks for the tokens up to `end`; those that slid out of a window go back. */
static inline void driver_extend(struct driver *driver, struct run *run, int32_t end,
                                 struct scheduled_row *scheduled)
{
    const struct kv_cache_config *kv_cache = &driver->config.kv_cache;
    for (int32_t g = 0; g < kv_cache->num_groups; g++) {
        const struct kv_cache_group *group = &kv_cache->groups[g];
        scheduled->new_blocks[g] = run->tables[g] + run->num_blocks[g];
        while (run->num_blocks[g] * kv_cache->block_size < end) {
            assert_true(driver->num_free > 0);
            run->tables[g][run->num_blocks[g]++] = driver->free_blocks[--driver->num_free];
            scheduled->num_new_blocks[g]++;
        }
        if (group->kind == KV_CACHE_GROUP_SLIDING) {
            int32_t first_seen = max_i32(0, run->num_computed - group->window + 1);
            for (; (run->num_freed[g] + 1) * kv_cache->block_size <= first_seen;
                 run->num_freed[g]++)
                driver->free_blocks[driver->num_free++] = run->tables[g][run->num_freed[g]];
        }
        scheduled->num_freed_blocks[g] = run->num_freed[g];
    }
}

static inline void driver_release(struct driver *driver, struct run *run)
{
    for (int32_t g = 0; g < driver->config.kv_cache.num_groups; g++) {
        for (int32_t i = run->num_freed[g]; i < run->num_blocks[g]; i++)
            driver->free_blocks[driver->num_free++] = run->tables[g][i];
    }
}

static inline struct token_logprobs driver_copy_logprobs(struct driver *driver,
                                                         const struct token_logprobs *from)
{
    struct token_logprobs copy = *from;
    size_t count = (size_t)from->num_entries;
    int32_t *ids = arena_array(&driver->arena, int32_t, count + 1);
    float *values = arena_array(&driver->arena, float, count + 1);
    memcpy(ids, from->token_ids, count * sizeof(*ids));
    memcpy(values, from->logprobs, count * sizeof(*values));
    copy.token_ids = ids;
    copy.logprobs = values;
    return copy;
}

static inline void driver_take(struct driver *driver, struct run *run,
                               const struct row_output *output, bool samples)
{
    assert_int_equal(output->row, run->row);
    for (int32_t i = 0; i < output->num_prompt_logprobs; i++)
        run->prompt_logprobs[output->first_prompt_logprob + i] =
            driver_copy_logprobs(driver, &output->prompt_logprobs[i]);
    bool pools = run->pooling.type != POOLING_NONE;
    assert_int_equal(samples && !pools, output->token_id >= 0);
    assert_int_equal(samples && pools, output->num_pooled > 0);
    if (!samples)
        return;
    if (pools) {
        run->num_pooled = output->num_pooled;
        run->pooled = arena_array(&driver->arena, float, output->num_pooled);
        memcpy(run->pooled, output->pooled, (size_t)output->num_pooled * sizeof(float));
        return;
    }
    if (run->sampling.num_logprobs >= 0) {
        assert_non_null(output->logprobs);
        run->logprobs[run->num_tokens - run->num_prompt] =
            driver_copy_logprobs(driver, output->logprobs);
    } else {
        assert_null(output->logprobs);
    }
    run->tokens[run->num_tokens++] = output->token_id;
}

static inline bool driver_is_done(const struct run *run)
{
    if (run->pooling.type != POOLING_NONE)
        return run->num_computed == run->num_prompt;
    return run->num_tokens - run->num_prompt == run->num_outputs;
}

/** Runs all requests side by side until each has its outputs. `first_row` says which rows they
 *  take: run i takes (first_row + i) modulo max_num_seqs. */
static inline void driver_run(struct driver *driver, struct run *runs, int32_t num_runs,
                              int32_t first_row)
{
    assert_true(num_runs <= MAX_RUNS && num_runs <= driver->config.max_num_seqs);
    int32_t finished[MAX_RUNS], num_finished = 0;
    for (int32_t i = 0; i < num_runs; i++)
        driver_init_run(driver, &runs[i], (first_row + i) % driver->config.max_num_seqs);
    for (bool is_done = false; !is_done;) {
        struct scheduled_new_request new_requests[MAX_RUNS];
        struct scheduled_row rows[MAX_RUNS];
        struct run *scheduled_runs[MAX_RUNS];
        struct scheduler_output step = {.step = driver->num_steps++,
                                        .num_finished_rows = num_finished,
                                        .finished_rows = finished,
                                        .new_requests = new_requests,
                                        .rows = rows};
        for (int32_t i = 0; i < num_runs; i++) {
            struct run *run = &runs[i];
            int32_t room = driver->config.max_num_batched_tokens - step.num_scheduled_tokens;
            int32_t count = min_i32(run->num_tokens - run->num_computed, room);
            if (run->chunk > 0)
                count = min_i32(count, run->chunk);
            if (driver_is_done(run) || count == 0)
                continue;
            if (!run->is_known)
                new_requests[step.num_new_requests++] =
                    (struct scheduled_new_request){.row = run->row,
                                                   .request_id = (uint64_t)i + 1,
                                                   .num_prompt_tokens = run->num_prompt,
                                                   .num_tokens = run->num_tokens,
                                                   .token_ids = run->tokens,
                                                   .sampling = &run->sampling,
                                                   .pooling = run->pooling};
            run->is_known = true;
            scheduled_runs[step.num_rows] = run;
            struct scheduled_row *row = &rows[step.num_rows++];
            *row = (struct scheduled_row){.row = run->row,
                                          .num_computed_tokens = run->num_computed,
                                          .num_scheduled_tokens = count,
                                          .samples = run->num_computed + count == run->num_tokens};
            driver_extend(driver, run, run->num_computed + count, row);
            step.num_scheduled_tokens += count;
        }
        struct model_runner_output result;
        executor_submit(driver->executor, &step);
        DRIVER_OK(executor_collect(driver->executor, &result, &err));
        assert_int_equal(result.num_rows, step.num_rows);
        num_finished = 0;
        for (int32_t i = 0; i < step.num_rows; i++) {
            struct run *run = scheduled_runs[i];
            driver_take(driver, run, &result.rows[i], rows[i].samples);
            run->num_computed += rows[i].num_scheduled_tokens;
            if (driver_is_done(run)) {
                finished[num_finished++] = run->row;
                driver_release(driver, run);
            }
        }
        is_done = step.num_rows == 0; // the last, empty step gives the rows back
    }
}
