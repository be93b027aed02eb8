// Continuous batching: which requests compute how many tokens in the next step, and what its
// result means for them.
//
// There is no prefill phase and no decode phase. A request has num_tokens (prompt and outputs) and
// num_computed_tokens; each step moves the second towards the first within one token budget
// (Orca, OSDI 2022; chunked prefill, arXiv:2308.16369). What always holds between two calls:
//
//  1. The tokens of a step are at most max_num_batched_tokens, its rows at most max_num_seqs.
//  2. Running requests come before waiting ones; a step that took blocks away admits nobody.
//  3. A decoding request advances in every step, however long the prefills beside it are.
//  4. A request has a row and blocks exactly while it is RUNNING.
//  5. A request that was preempted comes back when it can get ahead (scheduler_preempt.c).
//  6. A request whose next block is being computed by a running one waits for it.
//  7. Every request that was added ends: with an output that has a finish reason, or silently when
//     its client aborted it.
//  8. After scheduler_add() has returned nothing is allocated until the next one.
//
// With async_scheduling a step may be decided while the one before it is in flight. A token that
// the latter draws is a placeholder then: it counts as a token, but nobody knows it. What holds in
// addition:
//
//  9. Blocks become findable up to the last known token, never with a placeholder.
// 10. A request whose last possible token is being drawn is not scheduled. One that ends by a stop
//     token while another step computes one token more ends at once: that token is dropped, and the
//     request's memory stays until that step is over.
// 11. A step may read and write blocks that were given back while it was in flight: whoever gets
//     them computes in a later step, and steps run in order.
//
// Time comes in as an argument, so that tests decide what time it is. One thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/request.h"
#include "worker/worker.h"

struct scheduler_config {
    int32_t max_num_batched_tokens, max_num_seqs, max_model_len;
    int32_t vocab_size; // token ids are checked against it
    bool enable_chunked_prefill;
    bool enable_prefix_caching;
    bool async_scheduling;                // a step is decided while another is in flight
    enum block_hash_algo hash_algo;       // NONE: SHA256
    int32_t long_prefill_token_threshold; // most tokens a prompt gets in a step; 0: no cap
    // Above 1: at most so many prompts are in partial prefill side by side, and at most
    // max_long_partial_prefills of them longer than the threshold (which is then 4 % of
    // max_model_len unless given); shorter prompts overtake those that must wait for this.
    // 1 or less: the token budget alone decides.
    int32_t max_num_partial_prefills, max_long_partial_prefills;
    enum scheduling_policy policy;
    bool reserve_full_isl; // admit only what fits with all its present tokens
    double watermark;      // share of the blocks that admission leaves free
    const struct kv_cache_config *kv_cache;
};

/** What the options and the plan come to. */
struct scheduler_config scheduler_config_from(const struct engine_config *engine);

enum { HIT_RATE_WINDOW = 1000 };

/** Counters since the start; none ever goes back. */
struct scheduler_stats {
    int64_t num_preemptions;
    int64_t prefix_cache_queries, prefix_cache_hits; // tokens, once a request
    int64_t num_computed_prompt_tokens;              // for the first time
    int64_t num_recomputed_tokens;                   // again, after a preemption
    int64_t num_generated_tokens;
};

/** What the last HIT_RATE_WINDOW requests asked of the prefix cache. */
struct hit_rate_window {
    int32_t queries[HIT_RATE_WINDOW], hits[HIT_RATE_WINDOW];
    int32_t next;
    int64_t sum_queries, sum_hits;
};

enum { MAX_OVERTAKEN_PREFILLS = 32, NUM_PAST_REQUESTS = 512 };

/** Who gave its blocks back in a step, and for whom. */
struct step_preemption {
    uint64_t victim_id, by_id;
};

enum { MAX_STEPS_IN_FLIGHT = 2 };

/** What a step in flight refers to; it stays until the step's update. */
struct scheduled_step {
    struct scheduled_row *rows;
    struct request **row_requests; // of rows
    struct scheduled_new_request *new_requests;
    int32_t *finished_rows;
    int32_t num_prompt_tokens; // computed for the first time
    int32_t num_pinned;        // of row_requests, which stay; 0: the step is over
};

struct scheduler {
    struct scheduler_config config;
    int32_t long_prefill_token_threshold; // the effective one
    int32_t watermark_blocks;
    struct kv_cache_manager kv;
    struct request_table requests;
    int64_t num_added; // ever
    struct request_queue waiting;
    struct request **running; // in the order of admission
    int32_t num_running;
    struct request_queue finished; // ended outside a step; their outputs go with the next update

    // Rows of the worker's batch.
    int32_t *free_rows, *given_back_rows;
    int32_t num_free_rows, num_given_back_rows;

    int32_t in_flight;                                // steps
    int64_t step;                                     // the next one's number
    struct scheduled_step steps[MAX_STEPS_IN_FLIGHT]; // by number

    // The step decided last: one of `steps`.
    struct scheduled_row *rows;
    struct request **row_requests;
    bool *row_commits; // of rows: commit_row() has something to do
    struct scheduled_new_request *new_requests;
    int32_t num_prompt_tokens_in_step;
    // Rows of the last update whose request ended or got a block of its tokens full, in order.
    int32_t *notable_rows;
    int32_t num_notable_rows;
    int32_t num_ended; // outputs of the last update with a finish reason
    struct request *overtaken[MAX_OVERTAKEN_PREFILLS];
    struct request **prefilling; // running ones whose prompt the step leaves unfinished
    int32_t num_prefilling;
    struct step_preemption *preemptions; // of the step
    int32_t num_preemptions;

    // A head of the queue that did not fit is looked at again when more blocks are free than then.
    const struct request *blocked;
    int32_t blocked_num_free;

    // Outputs, one segment per client: each live request has at most one.
    struct engine_core_output *outputs;
    int32_t outputs_capacity;
    int32_t num_live[MAX_API_SERVERS];
    int64_t num_automaton_words; // of all live requests

    struct scheduler_stats stats;
    struct hit_rate_window hit_rate;

    struct request_history *past; // [NUM_PAST_REQUESTS] of the last requests that ended, a ring
    int64_t num_past;             // ever
    int64_t now_ns;               // of the last call that knew
};

/** `config->kv_cache` is copied; its layer lists stay the caller's. */
void scheduler_init(struct scheduler *s, const struct scheduler_config *config);
void scheduler_deinit(struct scheduler *s);

/**
 * Takes a request in; everything is copied. One that has all its tokens already, or that can never
 * run here, ends with the next update. Errors: INVALID (the id is known, an impossible number),
 * then nothing changed.
 */
NODISCARD enum status scheduler_add(struct scheduler *s, const struct engine_core_request *request,
                                    int64_t now_ns, struct error *err);

/** Ends a client's requests; ids that it does not have are passed over. An output tells `reason`
 *  unless that is NONE: then they end silently. What a step in flight draws for them is dropped.
 */
void scheduler_abort(struct scheduler *s, int32_t client_index, const uint64_t *ids,
                     int32_t num_ids, enum finish_reason reason);

/** Ends all requests of a client (-1: of all clients). */
void scheduler_abort_client(struct scheduler *s, int32_t client_index, enum finish_reason reason);

/**
 * Decides the next step; scheduler_can_schedule() must hold. `out` points into the scheduler until
 * its scheduler_update(). False when there is nothing to compute now: no step is to be run.
 */
bool scheduler_schedule(struct scheduler *s, int64_t now_ns, struct scheduler_output *out);

/**
 * Applies the result of the oldest step in flight (both NULL: there is none) and reports what
 * became of the requests: `outputs[c]` for API server c, pointing into the scheduler and `result`
 * until the next scheduler_add() or scheduler_update().
 */
void scheduler_update(struct scheduler *s, int64_t now_ns, const struct scheduler_output *step,
                      const struct model_runner_output *result,
                      struct engine_core_outputs outputs[MAX_API_SERVERS]);

/** Forgets cached prefixes. False while blocks are in use. */
bool scheduler_reset_prefix_cache(struct scheduler *s);

/** Whether schedule or update have something to do. */
static inline bool scheduler_has_work(const struct scheduler *s)
{
    return s->num_running > 0 || s->waiting.len > 0 || s->finished.len > 0 || s->in_flight > 0;
}

/** Whether another step may be decided before the oldest one's result is there. */
static inline bool scheduler_can_schedule(const struct scheduler *s)
{
    return s->in_flight < (s->config.async_scheduling ? MAX_STEPS_IN_FLIGHT : 1);
}

/** What a step in flight, or the one whose update came last, refers to. */
static inline const struct scheduled_step *scheduler_step_of(const struct scheduler *s,
                                                             const struct scheduler_output *step)
{
    return &s->steps[step->step % MAX_STEPS_IN_FLIGHT];
}

/**
 * The histories of live and recently finished requests with this external id, latest first: at
 * most `max`. Returns how many.
 */
int32_t scheduler_find_histories(const struct scheduler *s, uint64_t external_id, int64_t now_ns,
                                 struct request_history *histories, int32_t max);

/** Hits over queries of the last requests, 0..1; 0 before any. */
double scheduler_prefix_hit_rate(const struct scheduler *s);

// ---- between the scheduler's files -------------------------------------------------------------

enum { PREFETCH_DISTANCE = 6 }; // requests ahead in a loop over them

/** Whether so many tokens could be computed if the request had the engine for itself. */
bool scheduler_can_ever_run(const struct scheduler *s, int64_t num_tokens);

/** The row of a request that does not run any more. */
void scheduler_give_row_back(struct scheduler *s, struct request *request);
void scheduler_remove_from_running(struct scheduler *s, int32_t index);

/** A step in flight with so many of the request's tokens is over. A request that is forgotten lives
 *  until the last such step. */
void scheduler_unpin(struct scheduler *s, struct request *request, int32_t num_tokens);

/** RUNNING → FINISHED: gives row and blocks back. The caller takes it out of `running`. */
void scheduler_finish_running(struct scheduler *s, struct request *request,
                              enum finish_reason reason);

/** WAITING → FINISHED, for one that was preempted while it was in flight. */
void scheduler_finish_waiting(struct scheduler *s, struct request *request,
                              enum finish_reason reason);

/** Ends a request that is in no queue and has no blocks; its output goes with the next update. */
void scheduler_finish_outside_step(struct scheduler *s, struct request *request,
                                   enum finish_reason reason);

/** Room for an output of every request. */
void scheduler_reserve_outputs(struct scheduler *s);

/** Drops a finished request. */
void scheduler_forget(struct scheduler *s, struct request *request, int64_t now_ns);

/** Index in `running` of the request that has to give its blocks back. */
int32_t scheduler_choose_victim(const struct scheduler *s);

/** RUNNING → WAITING, for the sake of `by`. */
void scheduler_preempt(struct scheduler *s, int32_t index, const struct request *by,
                       int64_t now_ns);

/** Adds to what the admission of `request` asks of the KV cache, so that it gets ahead. */
void scheduler_hold_back(const struct scheduler *s, const struct request *request,
                         struct kv_demand *demand);

/** Applies the stop rules after the last token of `request`; NONE: it goes on. */
enum finish_reason request_check_stop(struct request *request);
