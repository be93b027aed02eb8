// A step to every rank. There is one rank, in this process: submitting a step computes it, or
// leaves it to a GPU, and collecting hands over what it gave.
//
// With async_scheduling on a CPU a thread of its own loads the model and computes the steps, in
// order, so that the caller decides the next one meanwhile. What the two share are the places
// below, under one lock that neither holds while it works.
#include "worker/worker.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/cpu_threads.h"
#include "worker/host_memory.h"
#include "worker/model_runner.h"

/** What the thread is asked for and gives back. */
struct step_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const struct scheduler_output *steps[MAX_RUNNER_STEPS]; // asked for, by turns
    struct model_runner_output results[MAX_RUNNER_STEPS];
    enum status statuses[MAX_RUNNER_STEPS];
    struct error errors[MAX_RUNNER_STEPS];
    int64_t num_asked, num_done, num_collected;
    bool is_started; // the model is loaded, or cannot be
    bool stops;
};

struct executor {
    struct model_runner runner;
    const struct engine_config *config;
    struct cpu_threads cpu_threads;
    _Atomic int64_t *progress;
    bool has_thread;
    struct step_thread own;
};

/** Everything up to the first step, on the thread that computes steps. */
static enum status load(struct executor *executor, struct error *err)
{
    TRY(cpu_threads_start(&executor->cpu_threads, err));
    return model_runner_init(&executor->runner, executor->config, executor->cpu_threads.num_threads,
                             executor->progress, err);
}

// ---- the thread ------------------------------------------------------------------------------

static void run_asked_step(struct executor *executor, int32_t slot)
{
    struct step_thread *own = &executor->own;
    model_runner_submit(&executor->runner, own->steps[slot]);
    own->statuses[slot] =
        model_runner_collect(&executor->runner, &own->results[slot], &own->errors[slot]);
}

static void *compute_steps(void *argument)
{
    struct executor *executor = argument;
    struct step_thread *own = &executor->own;
    enum status status = load(executor, &own->errors[0]);
    pthread_mutex_lock(&own->lock);
    own->statuses[0] = status;
    own->is_started = true;
    pthread_cond_broadcast(&own->changed);
    while (status == STATUS_OK) {
        while (own->num_asked == own->num_done && !own->stops)
            pthread_cond_wait(&own->changed, &own->lock);
        if (own->num_asked == own->num_done)
            break;
        pthread_mutex_unlock(&own->lock);
        run_asked_step(executor, (int32_t)(own->num_done % MAX_RUNNER_STEPS));
        pthread_mutex_lock(&own->lock);
        own->num_done++;
        pthread_cond_broadcast(&own->changed);
    }
    pthread_mutex_unlock(&own->lock);
    return NULL;
}

static enum status start_thread(struct executor *executor, struct error *err)
{
    struct step_thread *own = &executor->own;
    pthread_mutex_init(&own->lock, NULL);
    pthread_cond_init(&own->changed, NULL);
    int code = pthread_create(&own->thread, NULL, compute_steps, executor);
    if (code != 0) {
        pthread_cond_destroy(&own->changed);
        pthread_mutex_destroy(&own->lock);
        return error_set(err, STATUS_OUT_OF_MEMORY, "a thread for the model was refused: %s",
                         strerror(code));
    }
    executor->has_thread = true;
    pthread_mutex_lock(&own->lock);
    while (!own->is_started)
        pthread_cond_wait(&own->changed, &own->lock);
    pthread_mutex_unlock(&own->lock);
    if (own->statuses[0] != STATUS_OK && err)
        *err = own->errors[0];
    return own->statuses[0];
}

static void stop_thread(struct executor *executor)
{
    struct step_thread *own = &executor->own;
    if (!executor->has_thread)
        return;
    pthread_mutex_lock(&own->lock);
    own->stops = true;
    pthread_cond_broadcast(&own->changed);
    pthread_mutex_unlock(&own->lock);
    pthread_join(own->thread, NULL);
    pthread_cond_destroy(&own->changed);
    pthread_mutex_destroy(&own->lock);
}

// ---- the executor ----------------------------------------------------------------------------

enum status executor_create(struct executor **out, const struct engine_config *config,
                            _Atomic int64_t *progress, struct error *err)
{
    *out = NULL;
    int64_t start_ns = clock_monotonic_ns();
    struct executor *executor = xcalloc(1, sizeof(*executor));
    executor->config = config;
    executor->progress = progress;
    enum status status =
        cpu_threads_parse(&executor->cpu_threads, config->options->omp_threads_bind, 0, err);
    if (status == STATUS_OK)
        status = config->async_scheduling && config->device == DEVICE_CPU
                     ? start_thread(executor, err)
                     : load(executor, err);
    if (status != STATUS_OK) {
        stop_thread(executor);
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
    stop_thread(executor);
    model_runner_deinit(&executor->runner);
    free(executor);
}

enum tokens_state executor_poll_tokens(struct executor *executor)
{
    return model_runner_poll_tokens(&executor->runner);
}

void executor_submit(struct executor *executor, const struct scheduler_output *step)
{
    struct step_thread *own = &executor->own;
    if (!executor->has_thread) {
        model_runner_submit(&executor->runner, step);
        return;
    }
    pthread_mutex_lock(&own->lock);
    CHECK(own->num_asked - own->num_collected < MAX_RUNNER_STEPS);
    own->steps[own->num_asked++ % MAX_RUNNER_STEPS] = step;
    pthread_cond_broadcast(&own->changed);
    pthread_mutex_unlock(&own->lock);
}

bool executor_has_ended(struct executor *executor)
{
    struct step_thread *own = &executor->own;
    if (!executor->has_thread)
        return model_runner_has_ended(&executor->runner);
    pthread_mutex_lock(&own->lock);
    bool has_ended = own->num_done > own->num_collected || own->num_collected == own->num_asked;
    pthread_mutex_unlock(&own->lock);
    return has_ended;
}

enum status executor_collect(struct executor *executor, struct model_runner_output *result,
                             struct error *err)
{
    struct step_thread *own = &executor->own;
    if (!executor->has_thread)
        return model_runner_collect(&executor->runner, result, err);
    pthread_mutex_lock(&own->lock);
    CHECK(own->num_collected < own->num_asked);
    while (own->num_done == own->num_collected)
        pthread_cond_wait(&own->changed, &own->lock);
    int32_t slot = (int32_t)(own->num_collected++ % MAX_RUNNER_STEPS);
    *result = own->results[slot];
    enum status status = own->statuses[slot];
    if (status != STATUS_OK && err)
        *err = own->errors[slot];
    pthread_mutex_unlock(&own->lock);
    return status;
}
