// Runs steps on one device: scheduler_output -> batch -> forward -> sample -> model_runner_output.
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "layers/forward.h"
#include "model_loader/weights.h"
#include "models/model.h"
#include "ops/ops.h"
#include "worker/constraint_store.h"
#include "worker/input_batch.h"
#include "worker/pooler.h"
#include "worker/token_loader.h"
#include "worker/worker.h"

/** A position whose logits are read: for the token after it. */
struct logits_row {
    int32_t hidden_row;              // in the step
    int32_t seq;                     // in the step
    struct token_logprobs *logprobs; // of the prompt token after it; NULL: draw a token
    int32_t token_id;                // that prompt token
    bool is_plain;                   // the device draws it
    const struct stored_mask *mask;  // of the row's automaton; NULL: made when it is looked at
};

enum {
    MAX_GRAPHS = 256,
    MAX_HOST_LOGITS = 64, // rows that are fetched at a time
    MAX_SLICE_ROWS = 256, // whose logits are computed at a time where the host draws
};

/** Recordings of steps that only decode, by their number of sequences. */
struct step_graphs {
    int32_t num;
    int32_t sizes[MAX_GRAPHS]; // rising
    void *recordings[MAX_GRAPHS];
};

/** Bytes of a step's memory, as planned and as allocated. */
struct runner_sizes {
    int32_t logits_rows;                       // computed at a time: a slice
    size_t activation_bytes;                   // hidden states, layers' scratch, a slice of logits
    size_t step_bytes;                         // the step's arrays
    size_t batch_bytes;                        // the persistent batch
    size_t list_bytes;                         // rows that need logits, outputs, prompt logprobs
    size_t backend_bytes;                      // what the backend's operations keep
    size_t sampler_bytes;                      // of each thread
    size_t constraint_bytes;                   // of structured output, once somebody asks for it
    size_t pooler_bytes, pooler_staging_bytes; // of a pooling model
    int32_t num_threads;
    // For a device with memory of its own, to bring drawn tokens and logits to the host.
    size_t drawn_bytes, host_logits_bytes;
};

/** One rank's model and memory. Belongs to the worker's thread. */
struct model_runner {
    const struct engine_config *config;
    struct device dev;
    struct weight_store weights;
    struct model model;
    int64_t load_ns; // how long the weights took
    struct runner_sizes sizes;
    void *kv_pool;
    struct layer_cache *caches; // [num_hidden_layers]
    struct input_batch batch;
    struct pooler pooler;
    const struct scheduler_output *step; // in flight
    struct forward fwd;
    struct token_loader token_loader;
    const struct token_trie *tokens; // NULL until the first request with an automaton runs
    struct constraint_store constraints;

    struct logits_row *logits_rows; // [max_num_batched_tokens]: this step's, in batch order
    int32_t num_logits_rows;
    bool draws_on_device;             // all of this step's rows
    int32_t *drawn, *drawn_on_device; // [sizes.logits_rows]: staging and device memory
    float *host_logits;               // [MAX_HOST_LOGITS, vocab_size]: staging memory
    struct step_graphs graphs;
    struct row_output *outputs;              // [max_num_seqs]
    struct token_logprobs *sampled_logprobs; // [max_num_seqs]
    struct arena step_arena;                 // prompt logprobs of the step
    struct arena *thread_arenas;             // [dev.num_threads]: logprobs that a thread made
};

// ---- runner_sizes.c ------------------------------------------------------------------------

/** The persistent batch of an engine. */
struct input_batch_options runner_batch_options(const struct engine_config *config,
                                                struct device *dev);

/** What pools for an engine. */
struct pooler_options runner_pooler_options(const struct engine_config *config, struct device *dev);

/** What a step of `model` needs on `dev` with the limits of `config`. */
struct runner_sizes model_runner_sizes(const struct engine_config *config,
                                       const struct model *model, struct device *dev);

/** What of it lies in the memory of `dev`, by part [NUM_WORKSPACE_PARTS], and what beside a device
 *  with memory of its own lies in the host's. */
void runner_sizes_split(const struct runner_sizes *sizes, const struct device *dev,
                        int64_t *device_parts, int64_t *host_bytes);

/** What of the host's is pinned, for copies to and from the device. */
int64_t runner_sizes_pinned(const struct runner_sizes *sizes, const struct device *dev);

// ---- model_runner.c ------------------------------------------------------------------------

/** Loads the model and allocates what was planned. Errors: see executor_create(). */
NODISCARD enum status model_runner_init(struct model_runner *runner,
                                        const struct engine_config *config, int32_t num_threads,
                                        _Atomic int64_t *progress, struct error *err);
void model_runner_deinit(struct model_runner *runner);

/** Whether rows with an automaton can run without waiting; the first call begins to make it so. */
enum tokens_state model_runner_poll_tokens(struct model_runner *runner);

/** Starts a step. `step` stays as it is until model_runner_collect(). */
void model_runner_submit(struct model_runner *runner, const struct scheduler_output *step);

/** Waits for it. `*result` lives until the next submit. Errors: INTERNAL (the device failed). */
NODISCARD enum status model_runner_collect(struct model_runner *runner,
                                           struct model_runner_output *result, struct error *err);

// ---- between model_runner.c, model_runner_step.c and plan.c ------------------------------------

/** The largest number of sequences with a recording (0: none), and how many recordings there are.
 */
int32_t step_graphs_max_size(const struct engine_config *config);
int32_t step_graphs_count(const struct engine_config *config);

/** Records decoding steps of a ladder of sizes. Errors: INTERNAL (the device failed). */
NODISCARD enum status step_graphs_record(struct model_runner *runner, struct error *err);
void step_graphs_free(struct model_runner *runner);
