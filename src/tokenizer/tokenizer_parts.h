// What a tokenizer is made of; for the files that load it and that use it.
#pragma once

#include <stdint.h>

#include "base/hashmap.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"

struct tokenizer {
    struct vocabulary vocabulary; // knows added tokens by id, but finds only the model's own
    struct bpe bpe;
    struct normalizer *normalizer;
    struct pretokenizer *pretokenizer;
    struct decoder *decoder;
    struct post_processor post_processor;

    struct added_token *added_tokens;
    size_t num_added_tokens;
    struct hashmap added_indices; // content → index in added_tokens
    struct added_token_trie raw_trie, normalized_trie;
    uint8_t *special_bits; // by id
    int32_t max_token_bytes;
};
