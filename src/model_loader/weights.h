// Where a model's layers get their parameters from: a checkpoint's tensors by name and expected
// shape, or random values of the right shape (`--load-format dummy`).
//
// A store is opened in one of two modes. PLAN looks every tensor up, checks shapes and dtypes, and
// adds up the memory that loading will take; it reads no weight. LOAD does the same and hands out
// the values. Both run the same model code, so what was planned is what is loaded.
//
// Weights stay where they are mapped when the backend can multiply them there; what must be
// converted, joined or packed is copied once and belongs to the store, which lives as long as the
// model.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/str.h"
#include "config/quantization.h"
#include "model_loader/checkpoint.h"
#include "ops/ops.h"
#include "ops/tensor.h"

enum weights_mode { WEIGHTS_PLAN, WEIGHTS_LOAD };

struct weight_store_options {
    enum weights_mode mode;
    const char *dir;                         // of the checkpoint; not used for dummy values
    bool is_dummy;                           // random values instead of a checkpoint
    bool keeps_dtype;                        // matrices keep the dtype they have on disk
    enum dtype model_dtype;                  // what they become otherwise; what dummy values are
    const struct quantization *quantization; // of linear layers; NULL: none
};

/** Memory that parameters take, in bytes. */
struct weight_bytes {
    int64_t mapped; // used in place from the mapped files
    int64_t copied; // converted, joined, packed or made up
};

/** What parameters are for, told from their names. */
enum weight_kind {
    WEIGHT_KIND_EMBEDDINGS,
    WEIGHT_KIND_ATTENTION,
    WEIGHT_KIND_MLP,
    WEIGHT_KIND_EXPERTS,
    WEIGHT_KIND_NORMS,
    WEIGHT_KIND_HEAD,
    WEIGHT_KIND_TABLES, // computed from the configuration
    WEIGHT_KIND_OTHER,
    NUM_WEIGHT_KINDS,
};

struct weight_allocation;

/** All parameters of one model. Filled by one thread; immutable once loaded. */
struct weight_store {
    struct weight_store_options options;
    struct device *dev;
    struct checkpoint checkpoint;
    bool *is_used; // [checkpoint.num_tensors]
    struct weight_bytes bytes;
    int64_t kind_bytes[NUM_WEIGHT_KINDS]; // of both sorts
    struct weight_allocation *allocations;
    struct arena arena; // vectors, names
};

/** A store and the prefix of the names that a part of the model asks for. Passed by pointer down
 *  the model's load functions. */
struct weights {
    struct weight_store *store;
    char prefix[160]; // "model.layers.3." or empty
};

/** Opens the checkpoint. Errors: as checkpoint_open(). `dev` must outlive the store. */
NODISCARD enum status weight_store_open(struct weight_store *store, struct device *dev,
                                        const struct weight_store_options *options,
                                        struct error *err);

/** Frees everything that was handed out. Accepts a half-open store. */
void weight_store_close(struct weight_store *store);

/**
 * After the model has taken what it needs: fails when the checkpoint holds tensors that it has no
 * place for, except those known to be harmless (buffers that older exporters wrote, and names that
 * start with one of `num_ignored` prefixes), which are logged. Errors: INVALID, listing names.
 */
NODISCARD enum status weight_store_check_unused(const struct weight_store *store,
                                                const char *const *ignored_prefixes,
                                                size_t num_ignored, struct error *err);

/** The weights under `prefix` + the formatted name + ".". */
struct weights weights_at(const struct weights *w, const char *format, ...) PRINTF_FORMAT(2, 3);

/** Whether the checkpoint has the tensor; always true for dummy values. */
bool weights_has(const struct weights *w, const char *name);

/** A vector [n] in device memory and the device's dtype for activations, from F32, F16 or BF16.
 *  NULL in PLAN mode. Lives in the store.
 *  Errors: NOT_FOUND, INVALID (shape), UNSUPPORTED (dtype); the message names tensor and shapes. */
NODISCARD enum status weights_vector(const struct weights *w, const char *name, int64_t n,
                                     const void **out, struct error *err);

/** A positive number, [] or [1] of F32, F16 or BF16, in host memory; 0 where there is none: in PLAN
 *  mode, with dummy values, and when the checkpoint lacks the tensor. Errors: INVALID (shape,
 *  value), UNSUPPORTED (dtype). */
NODISCARD enum status weights_scalar(const struct weights *w, const char *name, float *out,
                                     struct error *err);

/** One of the matrices that weights_matrix() joins. */
struct weights_part {
    const char *module; // "gate_proj": the tensors are module.weight and module.bias
    int64_t out_features;
};

/**
 * The rows of one or more matrices [out_features, in_features] under one another, prepared for the
 * backend, with their biases when `has_bias`. Parts that lie next to one another in the file are
 * used in place. Where the store's quantization has a scheme for them, they are of e4m3: the
 * checkpoint's, with its scales, or made of its values here.
 * Errors: NOT_FOUND, INVALID (shape, scales), UNSUPPORTED (dtype), OUT_OF_MEMORY.
 */
NODISCARD enum status weights_matrix(const struct weights *w, const struct weights_part *parts,
                                     size_t num_parts, int64_t in_features, bool has_bias,
                                     struct weight *out, struct error *err);

/**
 * The matrices of experts.0 to experts.N-1, each made of `parts` under one another. All become the
 * dtype of the first. Errors: as weights_matrix().
 */
NODISCARD enum status weights_experts(const struct weights *w, const struct weights_part *parts,
                                      size_t num_parts, int32_t num_experts, int64_t in_features,
                                      struct expert_weights *out, struct error *err);

/** A table [rows, cols] that is read by row, in F32, F16 or BF16; not packed. Errors: as above. */
NODISCARD enum status weights_table(const struct weights *w, const char *name, int64_t rows,
                                    int64_t cols, struct tensor *out, struct error *err);

/** A linear weight over a table's memory (tied embeddings), prepared for the backend. */
NODISCARD enum status weights_matrix_from_table(const struct weights *w, struct tensor table,
                                                struct weight *out, struct error *err);

/** Device memory of the store for a table that is computed from the configuration; NULL in PLAN
 *  mode. Errors: OUT_OF_MEMORY. */
NODISCARD enum status weights_reserve(const struct weights *w, size_t size_bytes, void **out,
                                      struct error *err);
