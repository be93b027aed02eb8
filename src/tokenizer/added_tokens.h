// Tokens that are found in the text before anything else is done to it: control tokens such as
// <|im_end|>, and words added to a finished vocabulary.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

struct added_token {
    int32_t id;
    struct str content;
    bool special;     // left out of decoded text when asked
    bool normalized;  // is looked for in the normalized text, else in the raw text
    bool lstrip;      // takes the white space before it along
    bool rstrip;      // takes the white space behind it along
    bool single_word; // only where no letter or digit touches it
};

/** A byte trie over the spellings. `= {0}` is a valid empty one. */
struct added_token_trie {
    struct trie_node *nodes;
    size_t num_nodes, capacity;
    int32_t roots[256]; // index of the node of a first byte; 0: none
};

void added_token_trie_deinit(struct added_token_trie *trie);

/** Adds `token` under a spelling; of equal spellings the first one counts. */
void added_token_trie_add(struct added_token_trie *trie, struct str spelling,
                          const struct added_token *token);

/** A part of a text: a token, or text without tokens (`token` NULL). */
struct added_token_part {
    const struct added_token *token;
    size_t start, end;
};

/** A walk over the parts of a text. */
struct added_token_scan {
    const struct added_token_trie *trie;
    struct str text;
    size_t position;               // where to look for the next token
    size_t done;                   // the end of the last part
    struct added_token_part token; // found, and due after the text before it
    bool has_token;
};

void added_token_scan_init(struct added_token_scan *scan, const struct added_token_trie *trie,
                           struct str text);

/** The next part; false: no more. Of tokens at the leftmost place the longest is taken. */
bool added_token_scan_next(struct added_token_scan *scan, struct added_token_part *part);
