// What the files that load parameters share: finding a parameter, where its values come from, and
// who owns what was made of them. For this room alone.
#pragma once

#include "model_loader/weights.h"

/** A full tensor name: prefix, module, ".weight" or ".bias". */
struct full_name {
    char text[256];
};

struct full_name weights_full_name(const struct weights *w, const char *name, const char *suffix);

/** Where a parameter comes from: a tensor of the checkpoint, or its name's random values. */
struct source {
    struct full_name name;
    const struct safetensor *tensor; // NULL: dummy
    enum dtype dtype;
    size_t count; // elements
};

/** Finds a parameter and checks its shape [rows, cols], or [cols] when rows is negative.
 *  Errors: NOT_FOUND, INVALID (shape), UNSUPPORTED (dtype). */
NODISCARD enum status weights_find_source(const struct weights *w, struct full_name name,
                                          int64_t rows, int64_t cols, struct source *out,
                                          struct error *err);

/** The dtype in which a parameter is kept. */
enum dtype weights_kept_dtype(const struct weight_store *store, const struct source *source);

/** The form of a matrix of F32, F16 or BF16. */
enum weight_form weights_form_of(enum dtype dtype);

/** Values of one or more parameters in a row: in place where they lie so, else a copy, which the
 *  caller frees as `*copy`. In PLAN mode a copy is not made and the result is NULL. */
NODISCARD enum status weights_join_sources(const struct weights *w, const struct source *sources,
                                           size_t num_sources, enum dtype dtype, const void **out,
                                           void **copy, struct error *err);

/** Whether the device makes dummy values itself: copying as many takes longer. */
bool weights_makes_up(const struct weight_store *store, enum dtype dtype);

/** The dummy values of one or more parameters in a row, in device memory; all but the last are of a
 *  multiple of eight elements. */
void weights_make_up(const struct weight_store *store, void *dst, const struct source *sources,
                     size_t num_sources, enum dtype dtype);

/** "model.layers.3.self_attn.q_norm.weight" is a norm: the innermost module decides first. */
enum weight_kind weights_kind_of(const char *name);

void weights_count_bytes(struct weight_store *store, enum weight_kind kind, int64_t copied,
                         int64_t mapped);

/** Memory that the store gives back when it closes: the backend's, or the host's heap. */
void weights_keep_allocation(struct weight_store *store, void *ptr, bool is_device);

/** A copy of host memory on the device, kept by the store; NULL: memory that is still to be filled.
 *  Errors: OUT_OF_MEMORY. */
NODISCARD enum status weights_keep_on_device(struct weight_store *store, const void *values,
                                             size_t size_bytes, void **out, struct error *err);
