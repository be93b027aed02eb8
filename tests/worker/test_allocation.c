// After warm-up a step asks the heap for nothing.
#include <malloc.h>

#include "worker/step_driver.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAN_COUNT 0
#else
#define CAN_COUNT 1
#endif

enum { NUM_RUNS = 8, PROMPT = 40, OUTPUTS = 30 };

#if CAN_COUNT
static _Atomic int64_t num_allocations;

// The C library's own functions, behind the ones that this program puts in their place.
void *__libc_malloc(size_t size_bytes);
void *__libc_calloc(size_t count, size_t size_bytes);
void *__libc_realloc(void *ptr, size_t size_bytes);
void *__libc_memalign(size_t alignment, size_t size_bytes);

void *malloc(size_t size_bytes)
{
    num_allocations++;
    return __libc_malloc(size_bytes);
}

void *calloc(size_t count, size_t size_bytes)
{
    num_allocations++;
    return __libc_calloc(count, size_bytes);
}

void *realloc(void *ptr, size_t size_bytes)
{
    num_allocations++;
    return __libc_realloc(ptr, size_bytes);
}

void *aligned_alloc(size_t alignment, size_t size_bytes)
{
    num_allocations++;
    return __libc_memalign(alignment, size_bytes);
}
#endif

/** Steps of NUM_RUNS running requests, one token each. */
static void decode(struct executor *executor, const int32_t *starts, int32_t num_steps)
{
    for (int32_t s = 0; s < num_steps; s++) {
        struct scheduled_row rows[NUM_RUNS];
        for (int32_t i = 0; i < NUM_RUNS; i++)
            rows[i] = (struct scheduled_row){.row = i,
                                             .num_computed_tokens = starts[i] + s,
                                             .num_scheduled_tokens = 1,
                                             .samples = true};
        struct scheduler_output step = {
            .num_rows = NUM_RUNS, .rows = rows, .num_scheduled_tokens = NUM_RUNS};
        struct model_runner_output result;
        executor_submit(executor, &step);
        DRIVER_OK(executor_collect(executor, &result, &err));
        for (int32_t i = 0; i < NUM_RUNS; i++)
            assert_true(result.rows[i].token_id >= 0);
    }
}

static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    if (!CAN_COUNT)
        skip();
    struct serve_options options = driver_options(FIXTURES_DIR "/models/llama");
    struct driver driver;
    driver_start(&driver, &options);
    int32_t prompt[PROMPT], blocks[NUM_RUNS][8], starts[NUM_RUNS];
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[i] = i + 3;
    struct scheduled_new_request requests[NUM_RUNS];
    struct scheduled_row rows[NUM_RUNS];
    struct sampling_params sampling[NUM_RUNS];
    for (int32_t i = 0; i < NUM_RUNS; i++) {
        sampling[i] = driver_greedy();
        sampling[i].temperature = i % 2 ? 0.8f : 0.0f;
        sampling[i].top_p = 0.9f;
        sampling[i].num_logprobs = i % 4 ? 5 : -1;
        requests[i] = (struct scheduled_new_request){.row = i,
                                                     .request_id = (uint64_t)i + 1,
                                                     .num_prompt_tokens = PROMPT,
                                                     .num_tokens = PROMPT,
                                                     .token_ids = prompt,
                                                     .sampling = &sampling[i]};
        rows[i] = (struct scheduled_row){
            .row = i, .num_scheduled_tokens = PROMPT, .samples = true, .num_new_blocks = {8}};
        for (int32_t b = 0; b < 8; b++)
            blocks[i][b] = i * 8 + b;
        rows[i].new_blocks[0] = blocks[i];
        starts[i] = PROMPT;
    }
    struct scheduler_output prefill = {.num_new_requests = NUM_RUNS,
                                       .new_requests = requests,
                                       .num_rows = NUM_RUNS,
                                       .rows = rows,
                                       .num_scheduled_tokens = NUM_RUNS * PROMPT};
    struct model_runner_output result;
    executor_submit(driver.executor, &prefill);
    DRIVER_OK(executor_collect(driver.executor, &result, &err));
    decode(driver.executor, starts, 10);
    for (int32_t i = 0; i < NUM_RUNS; i++)
        starts[i] += 10;
#if CAN_COUNT
    int64_t before = num_allocations;
    assert_true(before > 0); // the counter counts
    decode(driver.executor, starts, OUTPUTS);
    assert_int_equal(num_allocations - before, 0);
#endif
    driver_stop(&driver);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
