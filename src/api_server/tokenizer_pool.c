// Two lists under one lock: what waits and what is done. An eventfd wakes the loop.
#include "api_server/tokenizer_pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/memory.h"

enum { MAX_THREADS = 16, MAX_WAITING_JOBS = 4096 };

struct tokenizer_pool {
    pthread_mutex_t lock; // guards the lists and `stopping`
    pthread_cond_t work;
    struct pool_job *first, **last; // waiting, in order
    struct pool_job *done, **done_last;
    int32_t num_waiting;
    bool stopping;
    int event_fd;
    int32_t num_threads;
    pthread_t threads[MAX_THREADS];
};

static struct pool_job *take_job(struct tokenizer_pool *pool)
{
    struct pool_job *job = pool->first;
    if (job) {
        pool->first = job->next;
        if (!pool->first)
            pool->last = &pool->first;
        pool->num_waiting--;
    }
    return job;
}

static void add_done(struct tokenizer_pool *pool, struct pool_job *job)
{
    job->next = NULL;
    *pool->done_last = job;
    pool->done_last = &job->next;
}

static void *thread_main(void *context)
{
    struct tokenizer_pool *pool = context;
    pthread_mutex_lock(&pool->lock);
    while (!pool->stopping) {
        struct pool_job *job = take_job(pool);
        if (!job) {
            pthread_cond_wait(&pool->work, &pool->lock);
            continue;
        }
        pthread_mutex_unlock(&pool->lock);
        job->run(job);
        pthread_mutex_lock(&pool->lock);
        add_done(pool, job);
        uint64_t one = 1;
        ssize_t written = write(pool->event_fd, &one, sizeof(one));
        (void)written; // fails only when the counter is full, and then it is readable
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum status tokenizer_pool_create(struct tokenizer_pool **out, int32_t num_threads,
                                  struct error *err)
{
    struct tokenizer_pool *pool = xcalloc(1, sizeof(*pool));
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pool->last = &pool->first;
    pool->done_last = &pool->done;
    pool->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    // Signals are the loop's: threads start with all of them blocked.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pool->event_fd < 0 ? errno : 0;
    while (failure == 0 && pool->num_threads < num_threads && pool->num_threads < MAX_THREADS) {
        failure = pthread_create(&pool->threads[pool->num_threads], NULL, thread_main, pool);
        pool->num_threads += failure == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure == 0) {
        *out = pool;
        return STATUS_OK;
    }
    tokenizer_pool_destroy(pool);
    return error_set(err, STATUS_IO, "cannot start %d tokenizer threads: %s", num_threads,
                     strerror(failure));
}

void tokenizer_pool_destroy(struct tokenizer_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->num_threads; i++)
        pthread_join(pool->threads[i], NULL);
    for (struct pool_job *job; (job = take_job(pool)) != NULL;)
        add_done(pool, job);
    tokenizer_pool_collect(pool);
    if (pool->event_fd >= 0)
        close(pool->event_fd);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

bool tokenizer_pool_post(struct tokenizer_pool *pool, struct pool_job *job)
{
    pthread_mutex_lock(&pool->lock);
    bool room = pool->num_waiting < MAX_WAITING_JOBS;
    if (room) {
        job->next = NULL;
        *pool->last = job;
        pool->last = &job->next;
        pool->num_waiting++;
        pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
    return room;
}

int tokenizer_pool_fd(const struct tokenizer_pool *pool)
{
    return pool->event_fd;
}

void tokenizer_pool_collect(struct tokenizer_pool *pool)
{
    uint64_t count;
    ssize_t got = pool->event_fd < 0 ? 0 : read(pool->event_fd, &count, sizeof(count));
    (void)got; // nothing to read is fine
    pthread_mutex_lock(&pool->lock);
    struct pool_job *job = pool->done;
    pool->done = NULL;
    pool->done_last = &pool->done;
    pthread_mutex_unlock(&pool->lock);
    while (job) {
        struct pool_job *next = job->next; // done may free the job
        job->done(job);
        job = next;
    }
}
