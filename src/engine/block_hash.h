// What identifies a block of the KV cache: a hash chain over its tokens and all before them.
//
// A hash is the first 16 bytes of H(one of these), numbers little-endian:
//
//   root     00, "vllm-none-hash", length of the cache salt (8 bytes), the cache salt
//   block    01, hash of the block before or the root (16 bytes), its tokens (4 bytes each)
//
// so two different things are never the same input: not a root and a block, not two salts, and
// blocks of one hasher all have one length. No salt and an empty one are the same. H is one of
//
//   sha256   SHA-256 (FIPS 180-4) by libcrypto. No two prompts that collide can be made. The same
//            tokens have the same hash in every process.
//   xxhash   XXH3-128 over a 192-byte secret drawn at random when the hasher starts: several times
//            faster, and since the secret never leaves the process nobody can prepare a collision.
//   given    no function: the hashes come from a recording, which holds them instead of tokens.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/** 16 bytes: the first eight as a little-endian number, then the others. */
struct block_hash {
    uint64_t low, high;
};

enum block_hash_algo { BLOCK_HASH_NONE, BLOCK_HASH_SHA256, BLOCK_HASH_XXHASH, BLOCK_HASH_GIVEN };

enum { BLOCK_HASH_SECRET_BYTES = 192 };

/** `= {0}` is a valid empty hasher, which must not be asked for hashes. */
struct block_hasher {
    enum block_hash_algo algo;
    int32_t block_size;
    unsigned char *input; // of a block
    unsigned char secret[BLOCK_HASH_SECRET_BYTES];
    // GIVEN: the next hashes, the caller's. Where they end too early the hash is zero and
    // `is_short` tells.
    const struct block_hash *given;
    int32_t num_given;
    bool is_short;
};

void block_hasher_init(struct block_hasher *hasher, enum block_hash_algo algo, int32_t block_size);
void block_hasher_deinit(struct block_hasher *hasher);

/** What stands before the first block: sequences with different salts share nothing. */
struct block_hash block_hasher_root(const struct block_hasher *hasher, struct str cache_salt);

/** The hash of the block_size tokens behind `before`. */
struct block_hash block_hasher_next(struct block_hasher *hasher, struct block_hash before,
                                    const int32_t *token_ids);
