// A few threads for work that would stall the event loop: long prompts.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct tokenizer_pool;

/** One piece of work; embedded in its owner, who leaves it alone between post and done. */
struct pool_job {
    void (*run)(struct pool_job *job);  // on a thread of the pool
    void (*done)(struct pool_job *job); // on the loop's thread, in tokenizer_pool_collect()
    struct pool_job *next;
};

NODISCARD enum status tokenizer_pool_create(struct tokenizer_pool **out, int32_t num_threads,
                                            struct error *err);
/** Waits for what runs; jobs that wait are run no more, their done is called. */
void tokenizer_pool_destroy(struct tokenizer_pool *pool);

/** Queues a job. False: too many wait already. */
NODISCARD bool tokenizer_pool_post(struct tokenizer_pool *pool, struct pool_job *job);

/** Readable when jobs are done. */
int tokenizer_pool_fd(const struct tokenizer_pool *pool);
/** Calls done for each finished job. */
void tokenizer_pool_collect(struct tokenizer_pool *pool);
