// Prompts with their lengths, from a generator or a file.
#pragma once

#include "base/arena.h"
#include "benchmarks/bench_options.h"
#include "tokenizer/tokenizer.h"

struct bench_prompt {
    struct str text;         // empty when only ids were asked for
    const struct str *batch; // [num_batch] texts of one request instead; NULL: the text alone
    int32_t num_batch;
    const int32_t *ids; // NULL when only text was asked for
    int32_t num_tokens; // an estimate without a tokenizer
    int32_t output_len;
    double at_s; // time stamp of a trace, seconds after its beginning
};

/** Everything lives in `arena`. `= {0}` is a valid empty object. */
struct dataset {
    struct bench_prompt *prompts;
    int32_t num;
    struct arena arena;
};

/** What prompts are made for. */
struct dataset_use {
    const struct tokenizer *tokenizer; // NULL: none
    int32_t vocab_size;                // of the model, for ids without a tokenizer
    bool wants_ids;                    // for an engine; else text, for a server
    const char *template_dir;          // whose chat template wraps custom prompts; NULL: none
};

/**
 * Makes the prompts that the options ask for. Errors: NOT_FOUND, INVALID (a malformed file, no
 * usable prompt), UNSUPPORTED (a file's texts as ids without a tokenizer). End with
 * dataset_deinit() in any case.
 */
NODISCARD enum status dataset_make(struct dataset *dataset, const struct bench_options *options,
                                   const struct dataset_use *use, struct error *err);
void dataset_deinit(struct dataset *dataset);
