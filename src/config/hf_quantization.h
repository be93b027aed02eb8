// "quantization_config" of config.json. For this room alone.
#pragma once

#include "base/arena.h"
#include "config/hf_json.h"
#include "config/quantization.h"

/**
 * Reads "quantization_config" (or "compression_config", its older name); `*out` is NULL without
 * one, else lives in `arena` and ends with hf_quantization_destroy(), also after an error. The JSON
 * must stay. Errors: INVALID, UNSUPPORTED, naming what was found.
 */
NODISCARD enum status hf_quantization_parse(struct quantization **out, const struct hf_json *json,
                                            struct arena *arena, struct error *err);
void hf_quantization_destroy(struct quantization *quantization);
