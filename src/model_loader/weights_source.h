// What the files that load parameters share: finding a parameter, where its values come from, and
// who owns what was made of them. For this room alone.
#pragma once

#include "model_loader/weights.h"

enum { MAX_PARTS = 4 };

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

/** The same for a matrix of F8_E4M3. */
NODISCARD enum status weights_find_f8(const struct weights *w, struct full_name name, int64_t rows,
                                      int64_t cols, struct source *out, struct error *err);

/** A tensor of the checkpoint that may be there; NULL: it is not. Says that it is used. */
const struct safetensor *weights_find_tensor(const struct weights *w, struct full_name name);

/** Aligned host memory. Errors: OUT_OF_MEMORY. */
NODISCARD enum status weights_host_alloc(void **out, size_t size_bytes, struct error *err);

/** The dtype in which a parameter is kept. */
enum dtype weights_kept_dtype(const struct weight_store *store, const struct source *source);

/** The form of a matrix of F32, F16, BF16 or F8_E4M3. */
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

/** The biases of several layers under one another as float32; NULL in PLAN mode. Errors: as
 *  weights_vector(). */
NODISCARD enum status weights_load_bias(const struct weights *w, const struct weights_part *parts,
                                        size_t num_parts, const void **out, struct error *err);

/** Gives a matrix its elements, in place, joined or made up, and hands it to the backend. */
NODISCARD enum status weights_place(const struct weights *w, const struct source *sources,
                                    size_t num_sources, enum dtype dtype, struct weight *out,
                                    struct error *err);

/** Hands a weight to the backend and settles who owns its memory; `copy` (or NULL) is the host's
 *  copy of `size_bytes` behind its data. */
NODISCARD enum status weights_prepare(struct weight_store *store, enum weight_kind kind,
                                      struct weight *weight, void *copy, int64_t size_bytes,
                                      struct error *err);

/** How the store's quantization has a layer; NULL: unquantised. */
const struct quant_scheme *weights_scheme(const struct weights *w, const char *module);

/** weights_matrix() of parts whose elements are e4m3. */
NODISCARD enum status weights_matrix_f8(const struct weights *w, const struct weights_part *parts,
                                        size_t num_parts, int64_t in_features, bool has_bias,
                                        const struct quant_scheme *scheme, struct weight *out,
                                        struct error *err);

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
