// What the files of the dataset share. Internal to them.
#pragma once

#include "benchmarks/dataset.h"
#include "benchmarks/dice.h"

/** A dataset in the making. */
struct maker {
    struct dataset *dataset;
    const struct bench_options *options;
    const struct dataset_use *use;
    struct dice dice;
    int32_t *pool; // the ids that random prompts are made of: no special tokens
    int32_t pool_len;
    int32_t num_special; // tokens that the tokenizer adds to every prompt
    int32_t capacity;
    struct arena scratch; // released after each prompt
};

/** Adds a prompt; text and ids already live in the dataset's arena. False: there are enough. */
bool maker_add(struct maker *maker, const struct bench_prompt *prompt);

/** Adds a prompt by its ids (copied), turned into text where text is wanted: with a tokenizer
 *  mended until it encodes to as many tokens again. */
bool maker_add_ids(struct maker *maker, int32_t *ids, int32_t num, int32_t output_len, double at_s);

/** Adds a text (copied). */
bool maker_add_text(struct maker *maker, struct str text, int32_t output_len);

/** Tokens of a text; without a tokenizer an estimate of four bytes a token. */
int32_t maker_count(struct maker *maker, struct str text);

/** An id of the pool for any number. */
int32_t maker_id(const struct maker *maker, int64_t number);

// dataset_random.c
void make_random(struct maker *maker);
void make_prefix_repetition(struct maker *maker);

// dataset_files.c; errors: NOT_FOUND, INVALID
NODISCARD enum status make_sharegpt(struct maker *maker, struct error *err);
NODISCARD enum status make_custom(struct maker *maker, struct error *err);
NODISCARD enum status make_sonnet(struct maker *maker, struct error *err);
NODISCARD enum status make_timed_trace(struct maker *maker, struct error *err);

// dataset_burstgpt.c; likewise
NODISCARD enum status make_burstgpt(struct maker *maker, struct error *err);
