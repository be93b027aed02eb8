// The structs that cross a process boundary, and nothing else.
//
// API server → EngineCore: engine_core_request, abort. EngineCore → API server:
// engine_core_outputs. EngineCore → worker ranks: scheduler_output, and back: model_runner_output.
// A request is its tokens: prompt, outputs so far, sampling parameters, seed. Any engine can
// continue it from there.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "config/pooling_config.h"
#include "message/byte_automaton.h"

enum {
    MESSAGE_VERSION = 5, // in the handshake; a peer with another one is refused
    MAX_API_SERVERS = 64,
    MAX_STOP_TOKEN_IDS = 256,
    MAX_LOGIT_BIAS = 1024,
    MAX_ALLOWED_TOKEN_IDS = 4096,
    MAX_BAD_WORD_INTS = 8192,
    MAX_LOGPROB_TOKEN_IDS = 128,
    MAX_KV_CACHE_GROUPS = 8,
};

struct logit_bias {
    int32_t token_id;
    float bias;
};

/** How the next token is drawn. Checked by the API server, bounded again by the codec. */
struct sampling_params {
    float temperature;                         // < 1e-5: greedy
    float top_p;                               // (0, 1]; 1: off
    float min_p;                               // [0, 1]; 0: off
    int32_t top_k;                             // 0: off
    float presence_penalty, frequency_penalty; // 0: off; output tokens only
    float repetition_penalty;                  // 1: off; prompt and output tokens
    uint64_t seed;        // always set: drawn by the API server when the client gave none
    int32_t max_tokens;   // >= 1
    int32_t min_tokens;   // until then no stop token is possible
    int32_t eos_token_id; // -1: none (ignore_eos); stop_token_id of the output stays -1 for it
    int32_t num_stop_token_ids;
    const int32_t *stop_token_ids;
    int32_t num_logit_bias;
    const struct logit_bias *logit_bias;
    int32_t num_allowed_token_ids; // 0: all
    const int32_t *allowed_token_ids;
    // Token sequences that must not come: each as its length and its ids, one after the other.
    int32_t num_bad_word_ints;
    const int32_t *bad_words;
    // Which texts are allowed, see byte_automaton.h. Where nothing but the end is allowed, that
    // comes even before min_tokens.
    int32_t num_automaton_words; // 0: all texts
    const uint32_t *automaton;
    // With num_logprobs: these in place of the likeliest, in this order.
    int32_t num_logprob_token_ids;
    const int32_t *logprob_token_ids;
    int32_t num_logprobs;        // -1: none; 0: the sampled token's alone; k: the top k as well
    int32_t num_prompt_logprobs; // likewise for every prompt token
};

/** How a request's prompt becomes one vector. */
struct pooling_params {
    enum pooling_type type; // NONE: the request generates
    bool use_activation;    // the vector is scaled to length 1
    int32_t dimensions;     // the first so many; 0: all
};

/** A request as it enters (or re-enters) an engine. */
struct engine_core_request {
    uint64_t request_id;     // unique over all API servers and their restarts
    uint64_t external_id;    // str_hash() of the id that the client reads; its choices share it
    int32_t client_index;    // which API server gets the outputs
    int64_t priority;        // lower runs sooner
    int64_t arrival_time_ns; // wall clock
    int32_t num_prompt_tokens;
    const int32_t *prompt_token_ids;
    int32_t num_output_tokens; // 0, or what a resumed request has already produced
    const int32_t *output_token_ids;
    struct str cache_salt; // empty: none
    // One that pools draws no token: it ends (STOP) with its vector once its prompt is computed.
    struct pooling_params pooling;
    struct sampling_params sampling;
};

/** The most tokens that a request can come to have. */
static inline int32_t engine_core_request_max_tokens(const struct engine_core_request *request,
                                                     int32_t max_model_len)
{
    int64_t room = request->pooling.type == POOLING_NONE ? request->sampling.max_tokens : 0;
    int64_t limit = request->num_prompt_tokens + room;
    return limit < max_model_len ? (int32_t)limit : max_model_len;
}

enum finish_reason {
    FINISH_REASON_NONE = -1, // goes on
    FINISH_REASON_STOP = 0,
    FINISH_REASON_LENGTH = 1,
    FINISH_REASON_ABORT = 2,
    FINISH_REASON_ERROR = 3,
    FINISH_REASON_REPETITION = 4, // seen by the API server; engines never give it
};

/** Log-probabilities at one position: the token that stands there first, then the most likely. */
struct token_logprobs {
    int32_t num_entries; // 1 + k
    const int32_t *token_ids;
    const float *logprobs;
    int32_t rank; // of the first entry, from 1
};

/** Why a request can never run here. */
enum refusal_kind {
    REFUSAL_NONE,
    REFUSAL_TOKEN_IDS, // an id outside the vocabulary of `limit` ids
    REFUSAL_MODEL_LEN, // the prompt leaves no room for an output
    REFUSAL_STEP,      // without chunked prefill a prompt must fit into one step
    REFUSAL_KV_CACHE,  // its blocks would not fit into the whole cache
    REFUSAL_NO_TOKEN,  // after num_tokens outputs its constraints left no token to draw
    NUM_REFUSAL_KINDS,
};

struct request_refusal {
    enum refusal_kind kind;
    int32_t num_tokens; // of the request
    int32_t limit;      // the most that could run
};

/** What a step did for one request. */
struct engine_core_output {
    uint64_t request_id;
    int32_t num_new_tokens;
    const int32_t *new_token_ids;
    const struct token_logprobs *logprobs; // [num_new_tokens] or NULL
    // Prompt positions [first, first + num) that this step scored; position 0 has none. After a
    // preemption positions come again: take each once.
    int32_t first_prompt_logprob, num_prompt_logprobs;
    const struct token_logprobs *prompt_logprobs;
    int32_t num_pooled; // 0: no vector
    const float *pooled;
    enum finish_reason finish_reason;
    struct request_refusal refusal; // with finish_reason ERROR
    int32_t stop_token_id;     // the stop token that ended it; -1: the main EOS, or no stop token
    int32_t num_cached_tokens; // of the first admission
    int32_t num_preemptions;
    // Engine's monotonic clock (one clock per host); 0: not yet.
    int64_t queued_ns, scheduled_ns, first_token_ns, last_token_ns;
};

/** One message from an engine to one API server, at most one a step. */
struct engine_core_outputs {
    int32_t engine_index;
    int64_t timestamp_ns; // monotonic, at the end of the step
    int32_t num_outputs;
    const struct engine_core_output *outputs;
};

// ---- where a request's time went -------------------------------------------------------------

enum request_state { REQUEST_WAITING, REQUEST_RUNNING, REQUEST_FINISHED, NUM_REQUEST_STATES };

/** Why the request at the head of the queue, or one that others overtook, was not admitted. */
enum hold_reason {
    HOLD_SEATS,            // max_num_seqs requests run
    HOLD_BUDGET,           // the step's tokens went to others
    HOLD_BLOCKS,           // too few KV blocks are free
    HOLD_AFTER_PREEMPTION, // not yet enough free blocks to get ahead once it is back
    HOLD_PARTIAL_PREFILLS, // as many prompts as allowed are in prefill
    HOLD_GRAMMAR,          // what its automaton needs is being read, or others' take the room
    HOLD_SHARED_PREFIX,    // a running request computes blocks that it can share
    NUM_HOLD_REASONS,
};

enum { MAX_HISTORY_CHUNKS = 32, MAX_HISTORY_PREEMPTIONS = 8, MAX_HISTORIES = 256 };

/** A part of the prompt (after a preemption: of all tokens) that one step computed. */
struct prefill_chunk {
    int64_t step, at_ns;
    int32_t first_token, num_tokens;
};

struct preemption {
    int64_t step, at_ns;
    int64_t resumed_ns;     // 0: not yet
    uint64_t by_request_id; // who needed the blocks; the request itself if no one else was left
    uint64_t by_external_id;
    int32_t num_lost_tokens; // to compute again unless they are found in the prefix cache
};

/** The life of one request in the engine. Times are the monotonic clock's; 0: not yet. Where there
 *  were more chunks or preemptions than places, the first ones are kept. */
struct request_history {
    uint64_t request_id, external_id;
    enum request_state state;
    enum finish_reason finish_reason;
    int32_t num_prompt_tokens, num_output_tokens, num_cached_tokens;
    int32_t num_ahead, num_running_ahead; // waiting and running requests when it arrived
    int64_t now_ns, queued_ns, scheduled_ns, first_token_ns, last_token_ns, finished_ns;
    int64_t num_held_steps[NUM_HOLD_REASONS];
    int32_t num_preemptions, num_chunks;
    struct preemption preemptions[MAX_HISTORY_PREEMPTIONS];
    struct prefill_chunk chunks[MAX_HISTORY_CHUNKS];
    int64_t num_intervals, sum_interval_ns, min_interval_ns, max_interval_ns; // between tokens
};

// ---- EngineCore → worker -------------------------------------------------------------------

/** How the layers of a group use their block table. The KV cache manager has rules for FULL,
 *  SLIDING and LATENT and refuses the others. */
enum kv_cache_group_kind {
    KV_CACHE_GROUP_FULL,       // keys and values of every token
    KV_CACHE_GROUP_SLIDING,    // of the last `window` tokens
    KV_CACHE_GROUP_LATENT,     // one latent vector a token (MLA); blocks as FULL
    KV_CACHE_GROUP_COMPRESSED, // an entry for several tokens
    KV_CACHE_GROUP_RECURRENT,  // one state for all tokens before it
};

/** Layers that share one block table. */
struct kv_cache_group {
    enum kv_cache_group_kind kind;
    int32_t window;     // tokens, for SLIDING
    int32_t num_layers; // at most the config's layers_per_group
    const int32_t *layers;
};

/**
 * One pool of blocks for all groups: block b of group g holds block_size tokens of each of that
 * group's layers, so every block has room for layers_per_group layers.
 */
struct kv_cache_config {
    int32_t block_size; // tokens
    int32_t num_blocks;
    int64_t block_bytes; // all layers of a group
    int32_t layers_per_group;
    int32_t num_groups;
    struct kv_cache_group groups[MAX_KV_CACHE_GROUPS];
};

enum { NO_BLOCK = -1 }; // in a block table: a block that slid out of the window

/** A request that takes a row of the persistent batch in this step (new, or resumed). */
struct scheduled_new_request {
    int32_t row; // [0, max_num_seqs): its place until it finishes or is preempted
    uint64_t request_id;
    int32_t num_prompt_tokens; // the first of token_ids; the rest are outputs
    int32_t num_tokens;
    const int32_t *token_ids;               // valid until the step is collected
    const struct sampling_params *sampling; // likewise
    struct pooling_params pooling;
};

/** How far one row goes in this step. */
struct scheduled_row {
    int32_t row;
    int32_t num_computed_tokens; // before the step
    int32_t num_scheduled_tokens;
    bool samples; // after this step all its tokens are computed: a token is drawn, or a vector made
    // Block-table entries to append, per group; the first append for a new row starts at entry 0.
    int32_t num_new_blocks[MAX_KV_CACHE_GROUPS];
    const int32_t *new_blocks[MAX_KV_CACHE_GROUPS];
    // Table entries [0, num_freed_blocks[g]) are gone (slid out) and must not be read.
    int32_t num_freed_blocks[MAX_KV_CACHE_GROUPS];
};

/** One step's work. Pointers stay valid until it is collected. */
struct scheduler_output {
    int64_t step;
    int32_t num_finished_rows; // rows given back since the last step, before new ones take them
    const int32_t *finished_rows;
    int32_t num_new_requests;
    const struct scheduled_new_request *new_requests;
    int32_t num_rows; // in batch order
    const struct scheduled_row *rows;
    int32_t num_scheduled_tokens; // sum over rows
};

/** Why a row got no token. */
enum {
    TOKEN_ID_NONE = -1, // not asked for (an unfinished prefill), or logits that are no numbers
    TOKEN_ID_FORBIDDEN = -2
}; // the request's constraints left none

/** What one row got. */
struct row_output {
    int32_t row;
    int32_t token_id;                      // or one of the above
    const struct token_logprobs *logprobs; // NULL: not asked for
    int32_t first_prompt_logprob, num_prompt_logprobs;
    const struct token_logprobs *prompt_logprobs;
    int32_t num_pooled; // 0: no vector (an unfinished prompt, or one that is not finite)
    const float *pooled;
};

/** One step's result, rows in the order of the scheduler_output. Lives until the next submit. */
struct model_runner_output {
    int32_t num_rows;
    const struct row_output *rows;
};
