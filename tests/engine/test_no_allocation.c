// After warm-up, deciding a step, applying its result and recording both allocates nothing.
#include "engine/fake_worker.h"

#include "engine/recorder.h"
#include "engine/scheduler.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0 // the sanitizers have malloc for themselves
#else
#define COUNTS_ALLOCATIONS 1
#endif

static bool counting;
static int64_t num_allocations;

#if COUNTS_ALLOCATIONS
// glibc's own names for its allocator, so that ours can stand in front of it.
extern void *__libc_malloc(size_t size_bytes);
extern void *__libc_calloc(size_t count, size_t size_bytes);
extern void *__libc_realloc(void *ptr, size_t size_bytes);

__attribute__((visibility("default"))) void *malloc(size_t size_bytes)
{
    num_allocations += counting;
    return __libc_malloc(size_bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size_bytes)
{
    num_allocations += counting;
    return __libc_calloc(count, size_bytes);
}

__attribute__((visibility("default"))) void *realloc(void *ptr, size_t size_bytes)
{
    num_allocations += counting;
    return __libc_realloc(ptr, size_bytes);
}
#endif

static void add(struct scheduler *s, uint64_t id)
{
    int32_t tokens[40];
    for (int32_t i = 0; i < 40; i++)
        tokens[i] = (int32_t)((id % 3 * 13 + (uint64_t)i) % FAKE_VOCAB_SIZE);
    const struct engine_core_request request = {
        .request_id = id,
        .client_index = (int32_t)(id % 3),
        .priority = (int64_t)(id % 5),
        .num_prompt_tokens = 20 + (int32_t)(id % 20),
        .prompt_token_ids = tokens,
        .sampling = {.max_tokens = 40,
                     .eos_token_id = 1,
                     .num_logprobs = -1,
                     .num_prompt_logprobs = -1},
    };
    struct error err = {0};
    assert_int_equal(scheduler_add(s, &request, 1, &err), STATUS_OK);
}

static void steps_allocate_nothing_with(enum scheduling_policy policy)
{
    const struct kv_cache_config kv_cache = {
        .block_size = 4,
        .num_blocks = 60,
        .num_groups = 2,
        .groups = {{.kind = KV_CACHE_GROUP_FULL}, {.kind = KV_CACHE_GROUP_SLIDING, .window = 9}},
    };
    const struct scheduler_config config = {
        .max_num_batched_tokens = 32,
        .max_num_seqs = 8,
        .max_model_len = 100,
        .vocab_size = FAKE_VOCAB_SIZE,
        .enable_chunked_prefill = true,
        .enable_prefix_caching = true,
        .policy = policy,
        .kv_cache = &kv_cache,
    };
    struct scheduler s;
    struct fake_worker worker;
    scheduler_init(&s, &config);
    fake_worker_init(&worker, &kv_cache, config.max_num_seqs);
    struct recorder recorder;
    recorder_init(&recorder, &s, 16384); // so small that it turns again and again
    const struct step_durations durations = {0};
    int64_t num_steps = 0;
    num_allocations = 0;
    for (uint64_t id = 1; id <= 60; id++)
        add(&s, id);
    while (scheduler_has_work(&s)) {
        struct scheduler_output step;
        struct model_runner_output result;
        struct engine_core_outputs outputs[MAX_API_SERVERS];
        counting = true;
        recorder_checkpoint(&recorder, &s);
        bool runs = scheduler_schedule(&s, 1, &step);
        recorder_step(&recorder, &s, runs, &step, 1);
        counting = false;
        if (runs)
            fake_worker_run(&worker, &step, &result);
        counting = true;
        scheduler_update(&s, 1, runs ? &step : NULL, runs ? &result : NULL, outputs);
        recorder_update(&recorder, &s, 1, runs ? &step : NULL, &result, outputs, &durations);
        counting = false;
        num_steps++;
    }
    assert_int_equal(num_allocations, 0);
    assert_true(recorder.has_other);
    assert_true(num_steps > 100 && s.stats.num_preemptions > 0 && s.stats.prefix_cache_hits > 0);
    // The hook does count.
    counting = true;
    add(&s, 1000);
    counting = false;
    void *block = xmalloc(16);
    counting = true;
    block = xrealloc(block, 1 << 20);
    counting = false;
    free(block);
    assert_true(num_allocations > 0 || !COUNTS_ALLOCATIONS);
    recorder_deinit(&recorder);
    scheduler_deinit(&s);
    fake_worker_deinit(&worker);
}

static void steps_allocate_nothing_under_both_policies(void **state)
{
    (void)state;
    steps_allocate_nothing_with(SCHEDULING_POLICY_FCFS);
    steps_allocate_nothing_with(SCHEDULING_POLICY_PRIORITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_allocate_nothing_under_both_policies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
