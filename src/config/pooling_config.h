// Whether a model pools prompts into vectors instead of generating, and how: out of the options,
// the model's config.json, and the files that Sentence Transformers puts beside it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "config/hf_config.h"
#include "config/options.h"

/** How a prompt becomes one vector: out of the hidden states behind the model's last norm. */
enum pooling_type {
    POOLING_NONE, // it does not: the model generates
    POOLING_LAST, // the last token's
    POOLING_MEAN, // the mean over all tokens
    NUM_POOLING_TYPES,
};

enum { MAX_MATRYOSHKA_DIMENSIONS = 64 };

struct pooling_config {
    enum pooling_type type;
    bool use_activation; // vectors have length 1, unless a request wants them as they are
    int32_t dimensions;  // of vectors, unless a request says; 0: hidden_size
    // Matryoshka models put what matters most into the first dimensions, so that vectors may be
    // cut: to any length, or, if there is a list, to one of its lengths.
    bool is_matryoshka;
    int32_t num_matryoshka_dimensions;
    int32_t matryoshka_dimensions[MAX_MATRYOSHKA_DIMENSIONS];
};

/**
 * Settles --runner, --convert, --pooler-config and --hf-overrides for `model`. Where nothing says
 * otherwise a decoder generates; one whose modules.json has a pooling module pools.
 * Errors: INVALID, UNSUPPORTED: they name the option or the file, the key and the value.
 */
NODISCARD enum status pooling_config_load(struct pooling_config *config,
                                          const struct serve_options *options,
                                          const struct model_config *model, struct error *err);

/**
 * Whether vectors may be cut to `dimensions`; if not, `why` says it as vLLM does, for the model
 * called `name`.
 */
bool pooling_config_allows(const struct pooling_config *config, int64_t dimensions,
                           int32_t hidden_size, const char *name, struct error *why);

/** "LAST", "MEAN". */
const char *pooling_type_name(enum pooling_type type);
