// Hidden states of a prompt → one vector: the last token's, or the mean over all of them.
//
// A prompt may be computed in several steps. The last token is in the last one; a mean is summed up
// from step to step, in the order of positions and in float64, so that the result does not depend
// on how the prompt was cut. For a mean no token may be skipped, so the scheduler gives such
// requests no cached prefix; and one that was preempted starts again at its first token.
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "message/message.h"
#include "ops/ops.h"
#include "ops/tensor.h"
#include "worker/input_batch.h"

struct pooler_options {
    enum pooling_type type; // of all requests; NONE: there is no pooler
    int32_t max_num_seqs, max_num_batched_tokens, hidden_size;
    struct device *dev; // outlives the pooler
};

/** `= {0}` is no pooler. Belongs to the worker's thread. */
struct pooler {
    struct pooler_options options;
    double *sums;        // [max_num_seqs, hidden_size], by the batch's rows; NULL without means
    int32_t *num_summed; // [max_num_seqs]: tokens in each of them
    float *vectors;      // [max_num_seqs, hidden_size], by the step's sequences
    char *staging; // the step's hidden states that are needed, of a device with its own memory
};

/** Bytes of host memory that pooler_init() takes, but for staging memory, and bytes of that. */
size_t pooler_bytes(const struct pooler_options *options);
size_t pooler_staging_bytes(const struct pooler_options *options);

/** Errors: OUT_OF_MEMORY. */
NODISCARD enum status pooler_init(struct pooler *pooler, const struct pooler_options *options,
                                  struct error *err);
void pooler_deinit(struct pooler *pooler);

/** Takes the step's hidden states [num_tokens, hidden_size] over, in order with the operations;
 *  nothing without a pooler. */
void pooler_take(struct pooler *pooler, struct tensor hidden, const struct input_batch *batch,
                 const struct scheduler_output *step);

/** What pooler_take() began, once the device is done: outputs[i] of row i gets its vector, which
 *  lives until the next step, unless it is not finite. */
void pooler_finish(struct pooler *pooler, const struct input_batch *batch,
                   const struct scheduler_output *step, struct row_output *outputs);
