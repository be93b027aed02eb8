// The persistent batch: a row for each running request, from its admission until it finishes or is
// preempted, with its tokens, sampling parameters and block tables; and the arrays that one step's
// operations read. Everything is allocated once; pages that no request needs are never touched.
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
};

/** One running request. */
struct batch_row {
    bool is_used;
    uint64_t request_id;
    int32_t num_prompt_tokens, num_tokens;
    int32_t *token_ids;              // prompt, then outputs
    struct sampling_params sampling; // its arrays are the row's own
    int32_t automaton_state;         // after the outputs so far; moved by who knows their bytes
    // Of the few requests with bad words, an automaton or listed log-probabilities: taken when one
    // comes, kept for the next.
    char *extra;
    size_t extra_bytes;
    int32_t num_blocks[MAX_KV_CACHE_GROUPS];
    int32_t *block_table[MAX_KV_CACHE_GROUPS];
};

/** Belongs to the worker's thread. */
struct input_batch {
    struct input_batch_options options;
    int32_t max_blocks;     // of one request
    struct batch_row *rows; // [max_num_seqs]

    // This step's arrays.
    int32_t *token_ids, *positions, *token_seq; // [max_num_batched_tokens]
    int32_t *query_start, *seq_lens;            // [max_num_seqs + 1]
    int64_t *slot_mapping[MAX_KV_CACHE_GROUPS]; // [max_num_batched_tokens]
    int32_t *step_tables[MAX_KV_CACHE_GROUPS];  // [max_num_seqs, widest request of the step]

    char *memory; // behind all arrays
    size_t memory_bytes;
};

/** Bytes that input_batch_init() maps. */
size_t input_batch_bytes(const struct input_batch_options *options);

/** Errors: OUT_OF_MEMORY. */
NODISCARD enum status input_batch_init(struct input_batch *batch,
                                       const struct input_batch_options *options,
                                       struct error *err);
void input_batch_deinit(struct input_batch *batch);

/** Takes the step's finished rows out, puts its new requests in, and extends block tables. */
void input_batch_update(struct input_batch *batch, const struct scheduler_output *step);

/** Fills the step's arrays and points `fwd` at them. */
void input_batch_build(struct input_batch *batch, const struct scheduler_output *step,
                       struct forward *fwd);

/** A drawn token becomes part of its row. */
void input_batch_append(struct input_batch *batch, int32_t row, int32_t token_id);
