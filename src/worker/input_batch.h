// The persistent batch: a row for each running request, from its admission until it finishes or is
// preempted, with its tokens, sampling parameters and block tables; and the arrays that one step's
// operations read. Everything is allocated once; pages that no request needs are never touched.
//
// The step's arrays are filled in host memory and lie in device memory for the operations: the same
// memory on the CPU. Elsewhere they are laid out anew for each step, one after the other without
// holes, so that one copy brings them over; where an array lies depends on the step's numbers of
// tokens, sequences and rows of logits alone, so that a recording finds it again. Block tables are
// packed in that copy and spread on the device to where every step finds them. There are as many
// such host memories as steps in flight.
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
    int32_t num_steps;                      // in flight at a time, at most MAX_BATCH_STEPS
};

enum { MAX_BATCH_STEPS = 2 };

/** One running request. */
struct batch_row {
    bool is_used;
    uint64_t request_id;
    uint64_t occupant; // which one since the start: differs for whoever takes the row next
    int32_t num_prompt_tokens, num_tokens;
    int32_t *token_ids; // prompt, then outputs
    // Tokens that steps in flight draw: they stand behind num_tokens, but only the device knows
    // them. The first of them is at this place among what the step submitted last draws.
    int32_t num_pending, drawn_index;
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

/** How many of each a step has, padding included. */
struct step_counts {
    int32_t num_tokens, num_seqs, num_logits;
    int32_t num_columns; // of block tables
};

/** What one step's operations read. */
struct step_arrays {
    int32_t *token_ids, *positions, *token_seq; // [num_tokens]
    int32_t *drawn_indices;          // likewise: what to put in place of the token id; -1: nothing
    int32_t *query_start, *seq_lens; // [num_seqs + 1]
    int32_t *logits_rows;            // [num_logits]: rows whose logits are read
    struct sample_params *samples;   // likewise
    int64_t *slot_mapping[MAX_KV_CACHE_GROUPS]; // [num_tokens]
    int32_t *packed[MAX_KV_CACHE_GROUPS];       // [num_seqs, num_columns]: block tables on the way
    int32_t *tables[MAX_KV_CACHE_GROUPS];       // [max_num_seqs, max_blocks]
    char *extra;                                // lists of tokens that samples point to
};

/** Belongs to the worker's thread. */
struct input_batch {
    struct input_batch_options options;
    int32_t max_blocks;     // of one request
    struct batch_row *rows; // [max_num_seqs]

    struct step_arrays host, device;      // of the step that was begun last
    struct step_counts counts;            // likewise
    char *host_memories[MAX_BATCH_STEPS]; // what is copied to the device, or all that there is
    char *host_memory;                    // the one in use
    char *device_memory;                  // tables, then what is copied
    size_t copied_bytes, table_bytes;     // at most
    size_t extra_bytes;                   // used
    uint64_t num_occupants;

    char *memory; // behind the rows
    size_t memory_bytes;
};

/** Bytes of host memory that input_batch_init() maps for its rows. */
size_t input_batch_bytes(const struct input_batch_options *options);

/** Bytes of the step's arrays in device memory. */
size_t input_batch_step_bytes(const struct input_batch_options *options);

/** What lies in host memory beside that of a device with memory of its own. */
size_t input_batch_staging_bytes(const struct input_batch_options *options);

/** Errors: OUT_OF_MEMORY. */
NODISCARD enum status input_batch_init(struct input_batch *batch,
                                       const struct input_batch_options *options,
                                       struct error *err);
void input_batch_deinit(struct input_batch *batch);

/** Takes the step's finished rows out, puts its new requests in, and extends block tables. */
void input_batch_update(struct input_batch *batch, const struct scheduler_output *step);

/** Lays the arrays of the next step out in the host memory number `slot`, which no step in flight
 *  uses. */
void input_batch_begin(struct input_batch *batch, int32_t slot, const struct step_counts *counts);

/** Fills the step's arrays in host memory and points `fwd` at those of the device. */
void input_batch_build(struct input_batch *batch, const struct scheduler_output *step,
                       struct forward *fwd);

/** Adds sequences without tokens until a step that only decodes has `num_seqs`, for which it was
 *  begun: they read and write nothing. */
void input_batch_pad(struct input_batch *batch, int32_t num_seqs, struct forward *fwd);

/**
 * Room for `size_bytes` in the list that is copied with the step's arrays; `*on_device` is where it
 * will lie. NULL: there is no room left.
 */
void *input_batch_extra(struct input_batch *batch, size_t size_bytes, const void **on_device);

/** Brings the arrays to the device, in order with the operations. */
void input_batch_upload(struct input_batch *batch, const struct forward *fwd);

/** A drawn token becomes part of its row. */
void input_batch_append(struct input_batch *batch, int32_t row, int32_t token_id);
