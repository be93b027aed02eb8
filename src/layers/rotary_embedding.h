// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) as a table of cosines and sines, and
// the ways in which checkpoints stretch it to longer contexts.
#pragma once

#include "config/hf_config.h"
#include "layers/forward.h"
#include "model_loader/weights.h"

struct rotary_embedding {
    int32_t rot_dim; // leading dimensions of a head that are rotated
    int32_t max_positions;
    const float *cos_sin; // [max_positions, rot_dim]: rot_dim/2 cosines, then as many sines
};

/** What the table is computed from. */
struct rotary_embedding_options {
    const struct rope_config *rope;
    int32_t head_dim;
    int32_t max_position_embeddings; // of the model's config; 0: not said
    int32_t max_positions;           // positions that will be used: max_model_len
};

/** Builds the table in the weight store's memory. Errors: INVALID (the configuration makes no
 *  sense), OUT_OF_MEMORY. */
NODISCARD enum status rotary_embedding_init(struct rotary_embedding *rotary,
                                            const struct weights *w,
                                            const struct rotary_embedding_options *options,
                                            struct error *err);

/**
 * The rot_dim / 2 angular frequencies and the factor on cosines and sines, in double precision.
 * Errors: INVALID.
 */
NODISCARD enum status rotary_frequencies(double *inv_freq, double *magnitude,
                                         const struct rotary_embedding_options *options,
                                         struct error *err);

/** Dimensions of a head that are rotated: int(head_dim * partial_rotary_factor). */
int32_t rotary_dim(const struct rotary_embedding_options *options);
