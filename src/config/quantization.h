// Which of a model's linear layers are stored in eight bits, and how: "quantization_config" of
// config.json, and --quantization.
#pragma once

#include <stdbool.h>

#include "base/status.h"

/** How many elements of a weight [out, in] share a scale. */
enum quant_strategy {
    QUANT_TENSOR,
    QUANT_CHANNEL, // a row
    QUANT_BLOCK,   // 128 x 128
};

/** Whether what a weight is multiplied with becomes e4m3 as well, where the device can. */
enum quant_activations {
    QUANT_ACTIVATIONS_KEPT,
    QUANT_ACTIVATIONS_DYNAMIC, // scaled by token, with QUANT_BLOCK by each 128 of a token
    QUANT_ACTIVATIONS_STATIC,  // scaled by the checkpoint's input_scale
};

/** Elements of e4m3, times scales. */
struct quant_scheme {
    enum quant_strategy strategy;
    enum quant_activations activations;
    const char *scale_name; // "weight_scale": stands behind the module's name and "."
};

/** A checkpoint's quantization, or one to apply when its weights are read. Immutable. */
struct quantization;

/** "fp8", "compressed-tensors". */
const char *quantization_method(const struct quantization *quantization);

/** Whether weights are quantised as they are read, rather than in the checkpoint. */
bool quantization_is_online(const struct quantization *quantization);

/** Whether the checkpoint asks for an e4m3 KV cache. */
bool quantization_has_fp8_cache(const struct quantization *quantization);

/** How the weight of "model.layers.0.mlp.up_proj" is stored; NULL: as it is, which is also what a
 *  NULL `quantization` says. */
const struct quant_scheme *quantization_scheme(const struct quantization *quantization,
                                               const char *module);

/**
 * What applies under --quantization `option` (NULL: not given): the checkpoint's, or for one that
 * has none (`checkpoint` NULL) "fp8" and its kin, which are applied online.
 * Errors: INVALID (another method than the checkpoint's), UNSUPPORTED (unknown here).
 */
NODISCARD enum status quantization_choose(const struct quantization **out,
                                          const struct quantization *checkpoint, const char *option,
                                          struct error *err);
