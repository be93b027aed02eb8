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

/** Who turns a row of logits into a token. The device does, where it can draw at all, but for
 *  log-probabilities of prompt tokens, of more than MAX_DEVICE_LOGPROBS tokens or of listed ones,
 * and for lists of tokens that find no room in what a step copies. */
enum draw_place {
    DRAW_ON_HOST,
    DRAW_ON_DEVICE,
    DRAW_NOTHING, // the request's constraints leave no token
};

/** A position whose logits are read: for the token after it. */
struct logits_row {
    int32_t hidden_row;              // in the step
    int32_t seq;                     // in the step
    struct token_logprobs *logprobs; // of the prompt token after it; NULL: draw a token
    int32_t token_id;                // that prompt token
    enum draw_place place;
    const struct stored_mask *mask; // of the row's automaton; NULL: made when it is looked at
    int32_t batch_row;
    uint64_t occupant;    // of the batch's row
    int32_t num_logprobs; // that the device gives with its token; -1: none
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
    struct tensor logits[MAX_GRAPHS]; // where a replay leaves them
};

/** Bytes of a step's memory, as planned and as allocated. */
struct runner_sizes {
    int32_t logits_rows;     // computed at a time: a slice
    size_t activation_bytes; // hidden states, layers' scratch, a slice of logits
    size_t step_bytes;       // the step's arrays
    size_t batch_bytes;      // the persistent batch
    size_t list_bytes;       // of each step in flight: rows that need logits, outputs, logprobs
    size_t products_bytes;   // what the backend's operations keep: without attention,
    size_t decoding_bytes;   // and for attention
    size_t sampler_bytes;    // of each step in flight and thread
    size_t constraint_bytes; // of structured output, once somebody asks for it
    size_t pooler_bytes, pooler_staging_bytes; // of a pooling model
    int32_t num_threads;
    int32_t num_steps; // in flight
    // For a device with memory of its own, to bring drawn tokens and logits to the host.
    size_t staging_bytes, drawn_bytes, logprob_bytes, host_logits_bytes;
};

enum { MAX_RUNNER_STEPS = 2 };

/** A step between its submit and the end of its result's life. */
struct runner_step {
    const struct scheduler_output *step; // until it is collected
    struct logits_row *logits_rows;      // [max_num_batched_tokens], in batch order
    int32_t num_logits_rows;
    bool draws_on_device;                    // all rows
    bool wants_logprobs;                     // of tokens that the device draws
    bool is_settled;                         // its tokens are part of the batch
    enum status status;                      // of the device
    struct error err;                        // its words
    int32_t *drawn;                          // [max_num_batched_tokens], staging memory
    struct sampled_logprobs logprobs;        // [max_num_seqs], likewise
    struct row_output *outputs;              // [max_num_seqs]
    struct token_logprobs *sampled_logprobs; // [max_num_seqs]
    struct arena arena;                      // prompt logprobs of the step
    struct arena *thread_arenas;             // [dev.num_threads]: logprobs that a thread made
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
    struct forward fwd;
    struct token_loader token_loader;
    const struct token_trie *tokens; // NULL until the first request with an automaton runs
    struct constraint_store constraints;

    struct runner_step steps[MAX_RUNNER_STEPS]; // by turns
    struct runner_step *now;                    // the one submitted last
    int64_t num_submitted, num_collected;
    int32_t *drawn;                   // [max_num_batched_tokens], device memory
    struct sampled_logprobs logprobs; // [max_num_seqs], device memory
    float *host_logits;               // [MAX_HOST_LOGITS, vocab_size]: staging memory
    struct tensor last_logits;        // of the last slice that was computed
    struct step_graphs graphs;
};

// ---- runner_sizes.c ------------------------------------------------------------------------

/** The persistent batch of an engine. */
struct input_batch_options runner_batch_options(const struct engine_config *config,
                                                struct device *dev);

/** What pools for an engine. */
struct pooler_options runner_pooler_options(const struct engine_config *config, struct device *dev);

/** What a backend is to have memory of its own for. */
struct backend_needs runner_needs(const struct engine_config *config);

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

/** Starts a step, of which sizes.num_steps may be in flight. `step` stays as it is until its
 *  model_runner_collect(). Tokens that the step before it draws need not be known. */
void model_runner_submit(struct model_runner *runner, const struct scheduler_output *step);

/** Whether the oldest step in flight, if any, can be collected without waiting for the device. */
bool model_runner_has_ended(struct model_runner *runner);

/** Waits for the oldest one. `*result` lives until sizes.num_steps more were submitted. Errors:
 *  INTERNAL (the device failed). */
NODISCARD enum status model_runner_collect(struct model_runner *runner,
                                           struct model_runner_output *result, struct error *err);

// ---- step_rows.c: which logits are read, and how tokens are drawn from them -------------------

/** Starts the step's outputs and lists the positions whose logits are read. */
void step_rows_list(struct model_runner *runner, struct runner_step *own);

/** How many that will be. */
int32_t step_rows_count(const struct model_runner *runner, const struct scheduler_output *step);

/** Whether a row needs its tokens on the host although one is still being drawn. */
bool step_rows_need_history(const struct model_runner *runner, const struct scheduler_output *step);

/** Decides who draws, and tells the device how. */
void step_rows_fill(struct model_runner *runner, struct runner_step *own);

/** Turns `count` rows of logits in host memory into what was asked of them. */
void step_rows_use(struct model_runner *runner, struct runner_step *own,
                   const struct logits_row *const *rows, float *logits, int32_t count);

/** What the device gave for one row. */
void step_rows_take(const struct model_runner *runner, struct runner_step *own, int32_t index);

// ---- model_runner_step.c -------------------------------------------------------------------

/** From the step's arrays on the device to drawn tokens. */
void model_runner_forward(struct model_runner *runner, struct runner_step *own);

// ---- step_graphs.c -------------------------------------------------------------------------

/** The largest number of sequences with a recording (0: none), and how many recordings there are.
 */
int32_t step_graphs_max_size(const struct engine_config *config);
int32_t step_graphs_count(const struct engine_config *config);

/** The recording for a step of so many sequences: of the smallest size that holds it. -1: none. */
int32_t step_graphs_find(const struct step_graphs *graphs, int32_t num_seqs);

/** Records decoding steps of a ladder of sizes. Errors: INTERNAL (the device failed). */
NODISCARD enum status step_graphs_record(struct model_runner *runner, struct error *err);
void step_graphs_free(struct model_runner *runner);
