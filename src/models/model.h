// A model as the worker sees it: an architecture's functions over parameters that live in a weight
// store. A model file knows no device, no instruction set and no dtype.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "config/hf_config.h"
#include "layers/forward.h"
#include "model_loader/weights.h"
#include "ops/tensor.h"

struct model_class;

/** What a model is loaded for. One that pools has no use for its output matrix. */
enum model_use { MODEL_GENERATES, MODEL_POOLS };

/** A loaded model. Its memory is the weight store's, which outlives it. */
struct model {
    const struct model_class *class;
    const struct model_config *config;
    enum model_use use;
    int32_t max_model_len; // positions that it will be asked for
    const void *impl;      // the architecture's own struct
};

/** One architecture. No entry is NULL. */
struct model_class {
    const char *architecture; // as in config.json
    bool outgrows_float16;    // activations of its checkpoints come to more than float16 can hold

    /**
     * Builds `model->impl` from `w`; all other fields are set. In PLAN mode nothing
     * is read and the result answers scratch_bytes() alone.
     * Errors: UNSUPPORTED (a variant that this code does not compute), and as weights_matrix().
     */
    enum status (*load)(struct model *model, const struct weights *w, struct error *err);

    /** Bytes of workspace that a step of `num_tokens` with activations of `dtype` needs at most,
     *  over all functions below. */
    size_t (*scratch_bytes)(const struct model *model, enum dtype dtype, int64_t num_tokens);

    /** residual: [num_tokens, hidden_size]: the step's tokens as vectors. */
    void (*embed)(const struct model *model, struct forward *fwd, struct tensor residual);

    /** hidden, residual: [num_tokens, hidden_size]. In: residual from embed(). Out: hidden is
     *  what compute_logits() takes, residual the stream after the last layer. */
    void (*forward)(const struct model *model, struct forward *fwd, struct tensor hidden,
                    struct tensor residual);

    /** logits: [rows, vocab_size] f32; hidden: any rows of forward()'s result. Not of a model that
     *  pools. */
    void (*compute_logits)(const struct model *model, struct forward *fwd, struct tensor logits,
                           struct tensor hidden);
};

/** The class of an architecture. Errors: UNSUPPORTED, naming it and what there is. */
NODISCARD enum status model_class_find(const struct model_class **out, const char *architecture,
                                       struct error *err);

/**
 * Builds the model of `config` over `store` and checks that the checkpoint holds nothing that it
 * has no place for. `config` and `store` outlive the model. Errors: as the class's load().
 */
NODISCARD enum status model_load(struct model *model, const struct model_config *config,
                                 enum model_use use, int32_t max_model_len,
                                 struct weight_store *store, struct error *err);
