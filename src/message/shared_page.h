// One page of memory that the processes of a host share: health, facts and counters.
//
// The launcher makes it before it forks. Each part has one writer, named below; everybody reads.
// Counters outlive the process that counts, so they never go back when an engine restarts.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "message/message.h"

enum engine_state {
    ENGINE_STATE_STARTING = 0, // loads; a restart begins here again
    ENGINE_STATE_READY,
    ENGINE_STATE_DEAD, // gave up for good
};

enum {
    NUM_ITERATION_TOKEN_BUCKETS = 14, // 1 8 16 32 ... 16384, +Inf
    NUM_FRONT_COUNTERS = 1024,
};

/** What the time of a step goes into. */
enum step_phase {
    STEP_PHASE_SCHEDULE,
    STEP_PHASE_EXECUTE,
    STEP_PHASE_UPDATE,
    STEP_PHASE_SEND,
    NUM_STEP_PHASES,
};

/** Written by the EngineCore alone, but for state, pid and generation, which the launcher sets when
 *  it (re)starts one, and the two fields of engine_page_watch(). */
struct engine_page {
    _Atomic int32_t state; // enum engine_state
    _Atomic int32_t pid;
    _Atomic int32_t generation;    // counts starts
    _Atomic int64_t heartbeat_ns;  // monotonic; at least every 100 ms while the loop is alive
    _Atomic int64_t step_start_ns; // monotonic; 0: not in a step. A long step is not a stall ...
    _Atomic int64_t progress;      // ... while this grows: layers and chunks done, ever
    _Atomic int64_t num_steps;
    // How often a message to an API server found no way: its requests are dropped, and it greets
    // anew. Told here, as the queue that is full would not take it.
    _Atomic int32_t num_losses[MAX_API_SERVERS];
    // When the launcher last saw `progress` differ from what it had seen before.
    _Atomic int64_t watched_progress, progress_ns;

    // Facts, set before READY.
    _Atomic int32_t max_model_len, block_size, num_blocks, max_num_seqs, max_num_batched_tokens;
    _Atomic int64_t kv_cache_size_tokens;
    _Atomic double kv_cache_max_concurrency;
    _Atomic int32_t prefix_caching;

    // Gauges.
    _Atomic int32_t num_running, num_waiting, num_used_blocks;

    // Counters.
    _Atomic int64_t prefix_cache_queries, prefix_cache_hits, num_preemptions;
    _Atomic int64_t num_computed_prompt_tokens, num_recomputed_tokens, num_generated_tokens;
    _Atomic int64_t iteration_tokens_buckets[NUM_ITERATION_TOKEN_BUCKETS]; // not cumulative
    _Atomic int64_t iteration_tokens_sum;
    _Atomic int64_t step_phase_ns[NUM_STEP_PHASES];
};

/** Written by one API server alone, but for the first three, which the launcher clears when
 * it has ended. What each slot counts is the metrics table's business. */
struct front_page {
    _Atomic int32_t pid;                      // its own, set once it serves: how the launcher knows
    _Atomic int32_t num_unfinished;           // requests the engine works on for it
    _Atomic int32_t server_load;              // HTTP requests under way, for /load
    _Atomic int64_t num_queued_prompt_tokens; // of requests whose first token is still to come
    _Atomic double counters[NUM_FRONT_COUNTERS];
};

struct shared_page {
    _Atomic int32_t stopping; // set by the launcher: no new requests
    int32_t num_api_servers;
    int64_t start_wall_ns;
    struct engine_page engine;
    struct front_page fronts[MAX_API_SERVERS];
};

/** Anonymous shared memory, zeroed; children of a later fork() see it. Errors: INVALID (a count
 *  outside [1, MAX_API_SERVERS]), OUT_OF_MEMORY. */
NODISCARD enum status shared_page_create(struct shared_page **out, int32_t num_api_servers,
                                         struct error *err);
void shared_page_destroy(struct shared_page *page);

/** Seconds without a beat and without progress after which a READY engine counts as stalled. */
enum { ENGINE_STALL_S = 5 };

/** Notes whether `progress` has grown. The launcher calls it several times within ENGINE_STALL_S.
 */
void engine_page_watch(struct engine_page *page, int64_t now_ns);

/**
 * Whether the engine is READY and has beaten, or made progress within a step, in the last
 * ENGINE_STALL_S; what /health says. Looks and changes nothing.
 */
bool engine_page_is_healthy(const struct engine_page *page, int64_t now_ns);
