// The flight recorder: what the scheduler was told and what it decided, in a ring that is always
// on.
//
// The ring has two halves. Each begins with a snapshot of the scheduler; when one is full the other
// is emptied and goes on, so that at least half of the ring can always be replayed. After
// recorder_init() nothing is allocated. The format is recording.h's.
//
// Call order: recorder_checkpoint() before anything changes the scheduler, then the change, then
// the function that tells of it; of aborts before they are made. One thread, but for what is under
// "to a file": records are only ever added, and to empty a half takes a lock that readers hold.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/recording.h"
#include "engine/scheduler.h"

/** How long the phases of a step took. */
struct step_durations {
    int64_t schedule_ns, execute_ns, update_ns;
    int64_t send_ns; // of the step before
};

struct recorder_half {
    uint8_t *bytes;
    _Atomic size_t used; // whole records
};

/** `= {0}` is a recorder that records nothing. */
struct recorder {
    struct recorder_half halves[2];
    size_t capacity; // bytes of a half
    int32_t current;
    bool has_other;    // the other half holds what came before
    bool has_gap;      // something was dropped: the next checkpoint takes a snapshot
    int64_t num_gaps;  // ever
    uint8_t head[256]; // magic, version, CONFIG
    size_t head_bytes;
    struct content_key key;
    pthread_mutex_t turning; // held to empty a half, and to read both
    atomic_int num_dumps;    // to files of our naming, so far
    // The rows of the step before, for steps that only go on.
    int32_t *last_rows;
    int32_t num_last_rows; // -1: not to be used
};

/** For this scheduler, whose state is recorded as it is, with a ring of `num_bytes`. */
void recorder_init(struct recorder *recorder, const struct scheduler *s, size_t num_bytes);
void recorder_deinit(struct recorder *recorder);

/** Whether the next recorder_checkpoint() without a step in flight turns to the other half. */
bool recorder_is_due(const struct recorder *recorder);

/** Turns to the other half when it is time and no step is in flight. */
void recorder_checkpoint(struct recorder *recorder, const struct scheduler *s);

/** `r`: what scheduler_add() made of the message, looked up by its id. */
void recorder_add(struct recorder *recorder, const struct scheduler *s, uint64_t request_id);
void recorder_abort(struct recorder *recorder, int32_t client_index, const uint64_t *ids,
                    int32_t num_ids, enum finish_reason reason);

/** What scheduler_abort_client() is about to do. */
void recorder_abort_client(struct recorder *recorder, const struct scheduler *s,
                           int32_t client_index, enum finish_reason reason);
void recorder_reset(struct recorder *recorder, bool ok);

/** What scheduler_schedule() decided; `runs` is what it returned. */
void recorder_step(struct recorder *recorder, const struct scheduler *s, bool runs,
                   const struct scheduler_output *step, int64_t now_ns);

/** What scheduler_update() made of it, with the arguments it had. */
void recorder_update(struct recorder *recorder, const struct scheduler *s, int64_t now_ns,
                     const struct scheduler_output *step, const struct model_runner_output *result,
                     const struct engine_core_outputs outputs[MAX_API_SERVERS],
                     const struct step_durations *durations);

// ---- recorder_dump.c: to a file ----------------------------------------------------------------

/** Writes the file. Any thread. Errors: IO. */
NODISCARD enum status recorder_dump(struct recorder *recorder, const char *path, struct error *err);

/** Writes a new file into `folder` (NULL: /tmp), says so in the log, and its path in `path`. Any
 *  thread. Errors: IO. */
NODISCARD enum status recorder_dump_to(struct recorder *recorder, const char *folder, char *path,
                                       size_t path_size, struct error *err);

/** Writes to a descriptor what is there now; for the handler of a fatal signal. False: it could
 *  not. */
bool recorder_dump_fd(const struct recorder *recorder, int fd);

struct dump_thread;

/** Blocks SIGUSR2 for this thread and those it starts from now on: it waits for a dump_thread. */
void dump_thread_block_signal(void);

/**
 * A thread that dumps the recorder to `folder` whenever SIGUSR2 comes, whatever the others do: even
 * while a step hangs. All threads must have blocked it. Ends before the recorder does. Errors: IO.
 */
NODISCARD enum status dump_thread_start(struct dump_thread **out, struct recorder *recorder,
                                        const char *folder, struct error *err);
void dump_thread_stop(struct dump_thread *thread);
