// What the scheduler costs a step: schedule and update, in microseconds, with so many requests
// decoding. No model runs; every row gets a token. Prefix caching is on, blocks have 16 tokens, so
// a row takes and hashes a new block every 16 steps, and in every step a sixteenth of the rows do.
// Exits with 1 when a target is missed.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory.h"
#include "engine/recorder.h"
#include "engine/scheduler.h"

enum { PROMPT_TOKENS = 64, WARM_UP_STEPS = 50, MEASURED_STEPS = 1000, VOCAB_SIZE = 150000 };

// CPU time: a machine that has other work to do does not change what a step costs.
static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int compare_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void add_requests(struct scheduler *s, int32_t count)
{
    int32_t prompt[PROMPT_TOKENS];
    for (int32_t i = 0; i < count; i++) {
        for (int32_t t = 0; t < PROMPT_TOKENS; t++)
            prompt[t] = (int32_t)(((int64_t)i * 7919 + t * 104729) % VOCAB_SIZE);
        const struct engine_core_request request = {
            .request_id = (uint64_t)i + 1,
            .client_index = i % 4,
            .num_prompt_tokens = PROMPT_TOKENS - i % 16,
            .prompt_token_ids = prompt,
            .sampling = {.max_tokens = 100000,
                         .eos_token_id = VOCAB_SIZE - 1,
                         .num_logprobs = -1,
                         .num_prompt_logprobs = -1},
        };
        struct error err = {0};
        if (scheduler_add(s, &request, 1, &err) != STATUS_OK) {
            fprintf(stderr, "%s\n", err.message);
            exit(1);
        }
    }
}

// Runs one step with a token for every row; returns what the scheduler took.
static int64_t step(struct scheduler *s, struct recorder *recorder, struct row_output *rows)
{
    struct scheduler_output out;
    struct engine_core_outputs outputs[MAX_API_SERVERS];
    int64_t start_ns = cpu_ns();
    bool runs = scheduler_schedule(s, start_ns, &out);
    if (recorder)
        recorder_step(recorder, s, runs, &out, start_ns);
    int64_t schedule_ns = cpu_ns() - start_ns;
    for (int32_t i = 0; i < out.num_rows; i++)
        rows[i] = (struct row_output){.row = out.rows[i].row,
                                      .token_id = (int32_t)((out.step * 31 + i) % 1000)};
    const struct model_runner_output result = {.num_rows = out.num_rows, .rows = rows};
    start_ns = cpu_ns();
    scheduler_update(s, start_ns, runs ? &out : NULL, runs ? &result : NULL, outputs);
    if (recorder) {
        const struct step_durations durations = {0};
        recorder_update(recorder, s, start_ns, runs ? &out : NULL, &result, outputs, &durations);
        recorder_checkpoint(recorder, s);
    }
    return schedule_ns + cpu_ns() - start_ns;
}

static bool measure(int32_t num_seqs, double target_us, bool records)
{
    const struct kv_cache_config kv_cache = {
        .block_size = 16,
        .num_blocks = num_seqs * (PROMPT_TOKENS + WARM_UP_STEPS + MEASURED_STEPS + 64) / 16,
        .num_groups = 1,
    };
    const struct scheduler_config config = {
        .max_num_batched_tokens = num_seqs * PROMPT_TOKENS,
        .max_num_seqs = num_seqs,
        .max_model_len = 8192,
        .vocab_size = VOCAB_SIZE,
        .enable_chunked_prefill = true,
        .enable_prefix_caching = true,
        .reserve_full_isl = true,
        .kv_cache = &kv_cache,
    };
    struct scheduler s;
    scheduler_init(&s, &config);
    struct recorder recorder = {0};
    if (records)
        recorder_init(&recorder, &s, 64 << 20);
    add_requests(&s, num_seqs);
    struct row_output *rows = xcalloc((size_t)num_seqs, sizeof(*rows));
    int64_t *took_ns = xcalloc(MEASURED_STEPS, sizeof(*took_ns));
    for (int32_t i = 0; i < WARM_UP_STEPS; i++)
        step(&s, records ? &recorder : NULL, rows);
    for (int32_t i = 0; i < MEASURED_STEPS; i++)
        took_ns[i] = step(&s, records ? &recorder : NULL, rows);
    qsort(took_ns, MEASURED_STEPS, sizeof(*took_ns), compare_ns);
    double median_us = (double)took_ns[MEASURED_STEPS / 2] / 1e3;
    bool met = s.num_running == num_seqs && median_us < target_us;
    printf("%5d decoding%s: median %7.1f us, p99 %7.1f us, %5.1f ns a row; target %.0f us %s\n",
           num_seqs, records ? ", recorded" : "", median_us,
           (double)took_ns[MEASURED_STEPS * 99 / 100] / 1e3, median_us * 1e3 / num_seqs, target_us,
           met ? "met" : "MISSED");
    free(took_ns);
    free(rows);
    recorder_deinit(&recorder);
    scheduler_deinit(&s);
    return met;
}

int main(void)
{
    bool met = true;
    for (int records = 0; records <= 1; records++) {
        met = measure(256, 30, records) && met;
        met = measure(1024, 120, records) && met;
        met = measure(4096, 600, records) && met;
    }
    return met ? 0 : 1;
}
