// The EngineCore's state and its parts: messages in, a step, messages out, what it tells of itself.
//
// A client (an API server) is UNKNOWN until it says HELLO; what it sends before that was meant for
// an earlier engine and comes again afterwards. It is so again once a message to it is lost, which
// the page tells it. A client that sends what cannot be read is REFUSED:
// its requests end with an error, and so does whatever it adds, until it says HELLO again.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "engine/held_requests.h"
#include "engine/recorder.h"
#include "engine/scheduler.h"
#include "engine/step_pacer.h"
#include "message/channel.h"
#include "message/codec.h"
#include "message/shared_page.h"
#include "worker/worker.h"

enum client_state { CLIENT_UNKNOWN = 0, CLIENT_GREETED, CLIENT_REFUSED };

/** What was last told to the page and to the log. */
struct engine_reports {
    struct scheduler_stats published;
    struct scheduler_stats logged;
    int64_t logged_ns;
    bool was_idle;
};

/** `= {0}` is a valid empty one. One thread. */
struct engine_core {
    const struct serve_options *options;
    struct engine_page *page;
    struct scheduler scheduler;
    struct executor *executor;
    struct channel *channel;
    enum client_state clients[MAX_API_SERVERS];
    enum pooling_type pooling_type; // of all requests
    int32_t hidden_size;
    bool stopping;                                      // no new requests
    struct scheduler_output steps[MAX_STEPS_IN_FLIGHT]; // in flight, by number
    int64_t submitted_ns[MAX_STEPS_IN_FLIGHT];
    int64_t collected_ns; // the step before
    bool paces_steps; // on a CPU, a host that keeps waking up would take its cores from the step
    struct step_pacer pacer;
    struct engine_core_outputs outputs[MAX_API_SERVERS];
    struct held_requests held; // not yet the scheduler's
    struct engine_reports reports;
    struct recorder recorder;
    struct dump_thread *dump_thread; // set by the caller, or NULL
    struct step_durations durations; // of the step that ended last
    struct arena arena;              // of the message being read
    struct buf frame;                // of the message being written
};

/** Makes the scheduler for a planned engine. Executor and channel are set by the caller. */
void engine_core_init(struct engine_core *core, const struct engine_config *config,
                      struct engine_page *page);

/** Destroys executor, channel and dump thread too. */
void engine_core_deinit(struct engine_core *core);

/** Takes in one frame from a client. Nothing that it may contain is an error of the engine. */
void engine_core_handle(struct engine_core *core, int32_t client_index, struct str frame);

/** Takes in what the channel has, up to a bound so that steps go on under a flood, and gives the
 *  scheduler those of the requests held back that can run now. */
void engine_core_receive(struct engine_core *core);

/** Whether any request has not ended. */
bool engine_core_has_work(const struct engine_core *core);

/**
 * Schedules the next step and gives it to the executor. False: there is nothing to run, or not
 * before the step in flight has ended. When it is true and another step may follow
 * (scheduler_can_schedule()), that one comes before engine_core_end_step().
 */
bool engine_core_begin_step(struct engine_core *core);

/** Waits for the oldest step in flight, if any, and fills `core->outputs`. Errors: the executor's.
 */
NODISCARD enum status engine_core_end_step(struct engine_core *core, struct error *err);

/** One turn of the loop: a step is begun, or ended, or both, or the engine idles until a message
 *  comes, a tenth of a second at most. Errors: the executor's. */
NODISCARD enum status engine_core_turn(struct engine_core *core, struct error *err);

/** Sends `core->outputs`, one message per API server that has any. */
void engine_core_send_outputs(struct engine_core *core);

/** Ends every request with an output that says "abort". */
void engine_core_abort_all(struct engine_core *core);

/** Writes the flight recorder to a new file in VLLM_RECORDING_DIR (/tmp when it is not set) and its
 *  path to `path`. Errors: IO. */
NODISCARD enum status engine_core_dump_recording(struct engine_core *core, char *path,
                                                 size_t path_size, struct error *err);

// ---- engine_reports.c: page and log --------------------------------------------------------

/** Writes the facts of the plan to the page. */
void engine_core_publish_facts(struct engine_core *core, const struct engine_config *config);

/** Beats, and brings the page's gauges and counters up to date. */
void engine_core_publish(struct engine_core *core, int64_t now_ns);

/** Counts a step: its tokens, and the time of its phases. */
void engine_core_count_step(struct engine_core *core, int64_t num_tokens);

/** The line of throughput and cache use, when its time has come. */
void engine_core_log_stats(struct engine_core *core, int64_t now_ns);
