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
#include "worker/input_batch.h"
#include "worker/worker.h"

struct logits_row;
struct token_trie;

/** Bytes of a step's memory, as planned and as allocated. */
struct runner_sizes {
    int32_t logits_rows;     // computed at a time: a slice
    size_t activation_bytes; // hidden states, layers' scratch, a slice of logits
    size_t batch_bytes;      // the persistent batch
    size_t list_bytes;       // rows that need logits, outputs, prompt logprobs
    size_t sampler_bytes;    // of each thread
    int32_t num_threads;
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
    struct forward fwd;
    struct token_trie *tokens; // NULL until the first request with an automaton
    bool tokens_failed;        // they could not be read: such requests fail

    struct logits_row *logits_rows; // [max_num_batched_tokens]: this step's, in batch order
    int32_t num_logits_rows;
    int32_t *gather;                         // [sizes.logits_rows]
    struct row_output *outputs;              // [max_num_seqs]
    struct token_logprobs *sampled_logprobs; // [max_num_seqs]
    struct arena step_arena;                 // prompt logprobs of the step
    struct arena *thread_arenas;             // [dev.num_threads]: logprobs that a thread made
};

/** How a plan and a load open the weights of `options` and `model`. Errors: INVALID (--dtype). */
NODISCARD enum status model_runner_weight_options(struct weight_store_options *out,
                                                  const struct serve_options *options,
                                                  const struct model_config *model,
                                                  enum weights_mode mode, struct error *err);

/** The dtype of the KV cache: float32 for "auto". Errors: UNSUPPORTED (--kv-cache-dtype). */
NODISCARD enum status model_runner_kv_dtype(enum dtype *out, const struct serve_options *options,
                                            struct error *err);

/** What a step of `model` needs with the limits of `config`. */
struct runner_sizes model_runner_sizes(const struct engine_config *config,
                                       const struct model *model, int32_t num_threads);

/** All of it. */
int64_t runner_sizes_total(const struct runner_sizes *sizes);

/** Loads the model and allocates what was planned. Errors: see executor_create(). */
NODISCARD enum status model_runner_init(struct model_runner *runner,
                                        const struct engine_config *config, int32_t num_threads,
                                        _Atomic int64_t *progress, struct error *err);
void model_runner_deinit(struct model_runner *runner);

/** Runs one step. `*result` lives until the next call. Errors: INTERNAL (the device failed). */
NODISCARD enum status model_runner_execute(struct model_runner *runner,
                                           const struct scheduler_output *step,
                                           struct model_runner_output *result, struct error *err);
