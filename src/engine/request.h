// Requests inside an engine: their state, the queue they wait in, and the table that finds them.
//
//   WAITING ──admit──▶ RUNNING ──finish──▶ FINISHED
//      │ ▲                │
//      │ └────preempt─────┘        (it keeps its tokens, loses blocks and row)
//      └───────abort, or it can never run──────▶ FINISHED
//
// Memory for a request is taken when it is added, so that no step allocates. A struct request
// belongs to the engine's one thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/options.h"
#include "engine/kv_cache_manager.h"
#include "message/message.h"

enum { NO_ROW = -1, CACHE_LINE_BYTES = 64 };

struct request {
    // What every step reads or writes, in as few cache lines as can be: with thousands of requests
    // their number is what a step costs. kv.tables[0] still belongs to it.
    _Alignas(CACHE_LINE_BYTES) enum request_state state;
    int32_t row;            // in the worker's batch; NO_ROW unless running
    int32_t scheduled_slot; // index in the latest step's rows; -1: not in that step
    int32_t num_prompt_tokens;
    int32_t num_tokens; // prompt and outputs, as far as they are known
    int32_t num_computed_tokens;
    int32_t num_placeholders;     // outputs that steps in flight draw: not known yet
    int32_t num_in_flight;        // steps that it is part of
    int32_t num_in_flight_tokens; // what they compute
    int32_t max_tokens;           // prompt and outputs together, the model's limit included
    int32_t num_highest_computed; // by admissions before this one: what comes again is recomputed
    int32_t num_cached_tokens;    // of the first admission
    int32_t num_preemptions;
    int32_t client_index;
    int32_t stop_token_id;
    enum finish_reason finish_reason;
    bool pools;        // `pooling` has a type
    bool is_forgotten; // not in the table any more, but still in a step in flight
    uint64_t request_id;
    int32_t *token_ids; // [capacity for max_tokens]
    int64_t queued_ns, scheduled_ns, first_token_ns, last_token_ns;
    int64_t num_intervals, sum_interval_ns, min_interval_ns, max_interval_ns; // between tokens
    int32_t min_tokens, eos_token_id, num_stop_token_ids;                     // as in `sampling`
    struct kv_sequence kv;

    struct sampling_params sampling;
    struct pooling_params pooling;
    int64_t priority, arrival_time_ns;
    int64_t order;         // among all requests that were added
    int64_t admitted_step; // the last time
    struct request_refusal refusal;
    int32_t given_tokens, given_outputs; // prompt and outputs as they came, and the outputs of it

    struct request *prev, *next; // in the FCFS queue or the list of finished ones
    int32_t heap_index;          // in the priority queue
    struct request *hash_next;   // in the table's bucket, or the list of spare ones
    char *memory;                // of all arrays above
    size_t memory_bytes;
    struct request_history *history; // what the fields above do not tell
};

/** Asks for what a step needs of a request that comes soon: with thousands of them each would be a
 *  chain of cache misses. */
static inline void request_prefetch(const struct request *request)
{
    const char *at = (const char *)request;
    for (size_t offset = 0; offset < offsetof(struct request, kv.tables[1]);
         offset += CACHE_LINE_BYTES)
        __builtin_prefetch(at + offset, 1);
}

static inline bool request_pools(const struct request *request)
{
    return request->pools;
}

/** Whether a cached prefix spares it work. Prompt log-probabilities need the logits of every
 *  prompt token, and a mean over all tokens the hidden state of each: neither is in the cache. */
static inline bool request_reads_cache(const struct request *request)
{
    return request->sampling.num_prompt_logprobs < 0 && request->pooling.type != POOLING_MEAN;
}

static inline int32_t request_num_output_tokens(const struct request *request)
{
    return request->num_tokens - request->num_prompt_tokens;
}

/** Notes the limits and stop tokens of `request->sampling` where a step looks for them. */
static inline void request_settle_stops(struct request *request)
{
    request->min_tokens = request->sampling.min_tokens;
    request->eos_token_id = request->sampling.eos_token_id;
    request->num_stop_token_ids = request->sampling.num_stop_token_ids;
}

static inline int32_t request_remaining_tokens(const struct request *request)
{
    return request->num_tokens + request->num_placeholders - request->num_computed_tokens;
}

/** What a step may compute: nothing once a step in flight draws the last token that it may have. */
static inline int32_t request_schedulable_tokens(const struct request *request)
{
    bool ends = request->num_tokens + request->num_placeholders >= request->max_tokens;
    return ends && !request_pools(request) ? 0 : request_remaining_tokens(request);
}

// ---- queue -------------------------------------------------------------------------------

/** Who comes next: first come first served, or the lowest (priority, arrival time, id). `= {0}` is
 *  an empty FCFS queue. */
struct request_queue {
    enum scheduling_policy policy;
    int32_t len;
    struct request *head, *tail; // FCFS
    struct request **heap;       // PRIORITY: binary heap
    struct request **sorted;     // room for as many
    int32_t heap_capacity;
};

/** Room for `count` requests, so that pushing allocates nothing. */
void request_queue_reserve(struct request_queue *queue, int32_t count);
void request_queue_deinit(struct request_queue *queue);

void request_queue_push(struct request_queue *queue, struct request *request);

/** In front of all others (FCFS); the same as push under PRIORITY. */
void request_queue_push_front(struct request_queue *queue, struct request *request);

/** A preempted request comes back (FCFS): in front of all that never ran, behind preempted ones
 * that were added before it. The same as push under PRIORITY. */
void request_queue_push_again(struct request_queue *queue, struct request *request);

/** The next one, or NULL. */
struct request *request_queue_peek(const struct request_queue *queue);
void request_queue_remove(struct request_queue *queue, struct request *request);

/** All that wait under PRIORITY, who comes first first, until the queue changes. Allocates nothing.
 */
struct request *const *request_queue_sort(const struct request_queue *queue);

/** Whether `a` runs sooner than `b` under PRIORITY. */
bool request_is_before(const struct request *a, const struct request *b);

// ---- table -------------------------------------------------------------------------------

/** Owns all requests of an engine and finds them by id. `= {0}` is a valid empty table. */
struct request_table {
    struct request **buckets;
    uint64_t num_buckets; // 0 or a power of two
    int32_t len;
    struct request_slab *slabs; // where they lie, live or not, side by side
    struct request *spares;     // finished ones that keep their arrays for the next ones
    int32_t num_spares, max_spares;
    struct request *blanks; // without arrays
};

/** Keeps the arrays of up to `max_spares` finished requests for reuse. */
void request_table_init(struct request_table *table, int32_t max_spares);
void request_table_deinit(struct request_table *table);

struct request *request_table_find(const struct request_table *table, uint64_t request_id);

/**
 * A WAITING request with a copy of everything in `message`, with room for `max_tokens` tokens and
 * for tables of `max_blocks` entries in each of `num_groups` groups. The id must be new.
 */
struct request *request_table_add(struct request_table *table,
                                  const struct engine_core_request *message, int32_t max_tokens,
                                  int32_t max_blocks, int32_t num_groups);

/** Forgets a request. The caller hands it to request_table_recycle() when nothing refers to it. */
void request_table_remove(struct request_table *table, struct request *request);

/** Keeps the memory of a removed request for others; it stays as it is until the next
 *  request_table_add(). */
void request_table_recycle(struct request_table *table, struct request *request);
