// One engine's devices: load a model, run the steps that the scheduler decided.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "config/hf_config.h"
#include "config/options.h"
#include "config/pooling_config.h"
#include "message/message.h"
#include "model_loader/weights.h"
#include "ops/ops.h"

struct executor;

/** What the memory of a step is for. */
enum workspace_part {
    WORKSPACE_ACTIVATIONS, // hidden states, layers' temporaries, a slice of logits
    WORKSPACE_BATCH,       // the persistent batch and the step's arrays: token ids, block tables
    WORKSPACE_LISTS,       // rows that need logits, outputs, prompt logprobs
    WORKSPACE_SAMPLER,     // of all threads
    WORKSPACE_PRODUCTS,    // what the backend's matrix products work in
    WORKSPACE_DECODING,    // its plans of decoding attention, and their partial results
    WORKSPACE_CONSTRAINTS, // of structured output: tokens by their bytes, automata, masks
    WORKSPACE_POOLER,      // of a pooling model: hidden states, sums, vectors
    NUM_WORKSPACE_PARTS,
};

/** What the engine has settled after reading options and model; every size is final. */
struct engine_config {
    const struct serve_options *options;
    const struct model_config *model;
    int32_t max_model_len;
    int32_t max_num_seqs;
    int32_t max_num_batched_tokens;
    struct kv_cache_config kv_cache;
    struct pooling_config pooling; // type NONE: the model generates
    enum device_kind device;
    bool async_scheduling;   // the next step is decided, and submitted, while one runs
    int64_t graph_bytes;     // set aside for CUDA graphs
    int64_t workspace_bytes; // activations, logits, tables: all that a step needs
    int64_t weight_bytes;    // prepared copies on the device
    int64_t mapped_bytes;    // weights used in place from the mapped files
    int64_t recorder_bytes;  // the flight recorder's ring, in the host's memory
    int64_t available_bytes; // what the KV cache could be given

    // For the table: what the sums above consist of, and out of what memory.
    int64_t weight_kind_bytes[NUM_WEIGHT_KINDS];
    int64_t workspace_part_bytes[NUM_WORKSPACE_PARTS];
    int64_t host_bytes, pinned_bytes; // of the host beside a GPU; the second is part of the first
    bool has_given_memory;            // not this machine's, but as the caller said
    int64_t memory_total_bytes, memory_free_bytes;
};

/** Most tokens that steps in flight compute. */
static inline int32_t engine_config_tokens_in_flight(const struct engine_config *config)
{
    int64_t tokens = (int64_t)config->max_num_batched_tokens * (config->async_scheduling ? 2 : 1);
    return tokens < INT32_MAX ? (int32_t)tokens : INT32_MAX;
}

/**
 * Derives all sizes from the options and the model without reading a weight: layer groups, bytes
 * per block, workspace, number of blocks, and checks that one request of max_model_len fits.
 * Errors: INVALID, UNSUPPORTED (an architecture, a flag), OUT_OF_MEMORY: the message has the
 * numbers and the smallest flag change that fits.
 */
NODISCARD enum status engine_config_plan(struct engine_config *config,
                                         const struct serve_options *options,
                                         const struct model_config *model, struct error *err);

/**
 * As engine_config_plan() for a machine that has `memory_bytes` of memory, all of it free (0: this
 * machine as it is). After OUT_OF_MEMORY `config` keeps what was settled, for a report. It is to be
 * deinitialised in any case.
 */
NODISCARD enum status engine_config_plan_for(struct engine_config *config,
                                             const struct serve_options *options,
                                             const struct model_config *model, int64_t memory_bytes,
                                             struct error *err);

/** Frees what planning allocated (layer lists). */
void engine_config_deinit(struct engine_config *config);

/** Logs the plan as a table, before a weight is read. */
void engine_config_log(const struct engine_config *config);

/** Logs the size of the cache as operators' scripts look for it, once it is there. */
void engine_config_log_cache(const struct engine_config *config);

/**
 * Maps the checkpoint, builds the model and allocates exactly what was planned. `config`, its
 * options and its model outlive the executor. `progress` (may be NULL) grows while a long step
 * computes, for the watchdog. Errors: NOT_FOUND, INVALID, UNSUPPORTED, OUT_OF_MEMORY, naming file
 * and tensor.
 */
NODISCARD enum status executor_create(struct executor **out, const struct engine_config *config,
                                      _Atomic int64_t *progress, struct error *err);
void executor_destroy(struct executor *executor);

/** What a request with an automaton needs to run. */
enum tokens_state {
    TOKENS_LOADING, // a step with such a request would wait for it
    TOKENS_READY,
    TOKENS_FAILED, // the log says why; such requests get no token
};

/** Whether the bytes of the vocabulary's tokens are there. The first call begins to read them, on a
 *  thread of its own. */
enum tokens_state executor_poll_tokens(struct executor *executor);

/** Starts a step: the next one with async_scheduling while one is in flight, else after it. The
 *  output's memory must stay until executor_collect(). */
void executor_submit(struct executor *executor, const struct scheduler_output *step);

/** Whether collecting the oldest step in flight (if any) would not have to wait for it. */
bool executor_has_ended(struct executor *executor);

/** Waits for the oldest step in flight. `*result` lives until the next collect. Errors: INTERNAL
 *  (the device failed). */
NODISCARD enum status executor_collect(struct executor *executor,
                                       struct model_runner_output *result, struct error *err);
