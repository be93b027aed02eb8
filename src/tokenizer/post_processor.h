// What is put around an encoded text: BOS, EOS and the like.
#pragma once

#include <jansson.h>

#include "base/status.h"
#include "tokenizer/bpe.h"
#include "tokenizer/vocabulary.h"

/** `= {0}` puts nothing around. */
struct post_processor {
    struct token_ids prefix, suffix;
};

/** Reads the "post_processor" of a tokenizer.json (may be NULL); ids must be below `vocab_size`. */
NODISCARD enum status post_processor_init(struct post_processor *processor, const json_t *json,
                                          int32_t vocab_size, struct error *err);
void post_processor_deinit(struct post_processor *processor);
