// A step to every rank. There is one rank, in this process: submitting a step computes it, or
// leaves it to a GPU, and collecting hands over what it gave.
#include "worker/worker.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/cpu_threads.h"
#include "worker/host_memory.h"
#include "worker/model_runner.h"

struct executor {
    struct model_runner runner;
    bool has_step; // submitted and not yet collected
};

enum status executor_create(struct executor **out, const struct engine_config *config,
                            _Atomic int64_t *progress, struct error *err)
{
    *out = NULL;
    int64_t start_ns = clock_monotonic_ns();
    struct cpu_threads threads;
    TRY(cpu_threads_parse(&threads, config->options->omp_threads_bind, 0, err));
    TRY(cpu_threads_start(&threads, err));
    struct executor *executor = xcalloc(1, sizeof(*executor));
    enum status status =
        model_runner_init(&executor->runner, config, threads.num_threads, progress, err);
    if (status != STATUS_OK) {
        free(executor);
        return status;
    }
    *out = executor;
    log_info("Loading weights took %.2f seconds", (double)executor->runner.load_ns / 1e9);
    log_info("Model loading took %.2f GiB and %.6f seconds (%s, %d threads)",
             (double)(config->weight_bytes + config->mapped_bytes) / (1024.0 * 1024 * 1024),
             (double)(clock_monotonic_ns() - start_ns) / 1e9, executor->runner.dev.ops.name,
             executor->runner.dev.num_threads);
    return STATUS_OK;
}

void executor_destroy(struct executor *executor)
{
    if (!executor)
        return;
    model_runner_deinit(&executor->runner);
    free(executor);
}

enum tokens_state executor_poll_tokens(struct executor *executor)
{
    return model_runner_poll_tokens(&executor->runner);
}

void executor_submit(struct executor *executor, const struct scheduler_output *step)
{
    CHECK(!executor->has_step);
    executor->has_step = true;
    model_runner_submit(&executor->runner, step);
}

enum status executor_collect(struct executor *executor, struct model_runner_output *result,
                             struct error *err)
{
    CHECK(executor->has_step);
    executor->has_step = false;
    return model_runner_collect(&executor->runner, result, err);
}
