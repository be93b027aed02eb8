// The persistent batch: a row for each running request, from its admission until it finishes or is
// preempted, with its tokens, sampling parameters and block tables; and the arrays that one step's
// operations read. Everything is allocated once; pages that no request needs are never touched.
//
// The step's arrays are filled in host memory and lie in device memory for the operations: the same
// memory on the CPU, elsewhere one copy a step.
//
// The scheduler's words are CHECKed here: a wrong row or block would show one user another's text.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "layers/forward.h"
#include "message/message.h"

struct input_batch_options {
    int32_t max_num_seqs, max_model_len, max_num_batched_tokens;
    const struct kv_cache_config *kv_cache; // outlives the batch
    struct device *dev;                     // likewise
};

/** One running request. */
struct batch_row {
    bool is_used;
    uint64_t request_id;
    int32_t num_prompt_tokens, num_tokens;
    int32_t *token_ids;              // prompt, then outputs
    struct sampling_params sampling; // its arrays are the row's own, but for the automaton
    struct pooling_params pooling;
    int32_t automaton_state; // after the outputs so far; moved by who knows their bytes
    uint64_t automaton_id;   // of the stored one that sampling.automaton is; 0: none yet
    // Of the few requests with bad words or listed log-probabilities: taken when one comes, kept
    // for the next.
    char *extra;
    size_t extra_bytes;
    int32_t num_blocks[MAX_KV_CACHE_GROUPS];
    int32_t *block_table[MAX_KV_CACHE_GROUPS];
};

/** What one step's operations read. */
struct step_arrays {
    int32_t *token_ids, *positions, *token_seq; // [max_num_batched_tokens]
    int32_t *logits_rows;                       // likewise: rows whose logits are read
    int32_t *query_start, *seq_lens;            // [max_num_seqs + 1]
    struct sample_params *samples;              // [max_num_batched_tokens]: of logits_rows
    int64_t *slot_mapping[MAX_KV_CACHE_GROUPS]; // [max_num_batched_tokens]
    int32_t *tables[MAX_KV_CACHE_GROUPS];       // [max_num_seqs, max_blocks]
};

/** Belongs to the worker's thread. */
struct input_batch {
    struct input_batch_options options;
    int32_t max_blocks;     // of one request
    struct batch_row *rows; // [max_num_seqs]

    struct step_arrays host, device;
    char *host_memory, *device_memory; // behind them
    size_t step_bytes;                 // all of them
    size_t list_bytes;                 // up to the tables

    char *memory; // behind the rows
    size_t memory_bytes;
};

/** Bytes of host memory that input_batch_init() maps for its rows. */
size_t input_batch_bytes(const struct input_batch_options *options);

/** Bytes of the step's arrays: of device memory, and elsewhere than on the CPU of the host's as
 *  well. */
size_t input_batch_step_bytes(const struct input_batch_options *options);

/** Errors: OUT_OF_MEMORY. */
NODISCARD enum status input_batch_init(struct input_batch *batch,
                                       const struct input_batch_options *options,
                                       struct error *err);
void input_batch_deinit(struct input_batch *batch);

/** Takes the step's finished rows out, puts its new requests in, and extends block tables. */
void input_batch_update(struct input_batch *batch, const struct scheduler_output *step);

/** Fills the step's arrays in host memory and points `fwd` at those of the device. */
void input_batch_build(struct input_batch *batch, const struct scheduler_output *step,
                       struct forward *fwd);

/** Adds sequences without tokens until a step that only decodes has `num_seqs`: they read and
 *  write nothing. */
void input_batch_pad(struct input_batch *batch, int32_t num_seqs, struct forward *fwd);

/** Brings the arrays to the device, in order with the operations. */
void input_batch_upload(struct input_batch *batch, const struct forward *fwd);

/** A drawn token becomes part of its row. */
void input_batch_append(struct input_batch *batch, int32_t row, int32_t token_id);
