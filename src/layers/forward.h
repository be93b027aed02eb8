// What every layer's forward pass is given: the device, the step's tokens, where their keys and
// values are cached, and memory for temporaries. Valid for one step.
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "message/message.h"
#include "ops/ops.h"
#include "ops/tensor.h"

/**
 * Device memory of fixed size for a step's temporaries, handed out from the bottom and given back
 * in reverse order. Its size is the sum of what the layers say they need, so running over is a bug.
 */
struct workspace {
    char *base;
    size_t capacity_bytes, used_bytes;
};

/** Bytes that workspace_tensor() takes for [rows, cols] of `dtype`. */
size_t workspace_tensor_bytes(enum dtype dtype, int64_t rows, int64_t cols);

/** An uninitialised matrix. */
struct tensor workspace_tensor(struct workspace *workspace, enum dtype dtype, int64_t rows,
                               int64_t cols);

static inline size_t workspace_mark(const struct workspace *workspace)
{
    return workspace->used_bytes;
}

static inline void workspace_release(struct workspace *workspace, size_t mark)
{
    workspace->used_bytes = mark;
}

/** Where one layer's keys and values are, and whose block table says so. */
struct layer_cache {
    struct kv_cache kv;
    int32_t group;
};

/** A group's block tables and slots in this step. */
struct cache_group_step {
    struct attention_batch batch;
    const int64_t *slot_mapping; // [num_tokens]
};

/** One step. Belongs to the worker's thread. */
struct forward {
    struct device *dev;
    struct workspace workspace;
    int32_t num_tokens;
    const int32_t *token_ids; // [num_tokens], device memory like all that follows
    const int32_t *positions; // [num_tokens]
    struct cache_group_step groups[MAX_KV_CACHE_GROUPS];
    const struct layer_cache *caches; // [num_layers]
    _Atomic int64_t *progress;        // NULL, or counted up after each layer
};

/** An uninitialised matrix [num_tokens, cols] of activations, from the step's workspace. */
static inline struct tensor forward_activation(struct forward *fwd, int64_t cols)
{
    return workspace_tensor(&fwd->workspace, fwd->dev->activation_dtype, fwd->num_tokens, cols);
}
