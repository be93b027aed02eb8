// What identifies a block of the KV cache.
#include "engine/block_hash.h"

// Of libcrypto's two interfaces the newer one, EVP, allocates for every digest; a step must not.
#define OPENSSL_SUPPRESS_DEPRECATED

#include <assert.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "base/random.h"

_Static_assert(BLOCK_HASH_SECRET_BYTES >= XXH3_SECRET_SIZE_MIN, "XXH3 wants a longer secret");

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers go into the hash as they are");

// What the input of a hash is of: its first byte.
enum { KIND_ROOT, KIND_BLOCK };

static const char root_text[] = "vllm-none-hash";

enum { ROOT_TEXT_LEN = sizeof(root_text) - 1 };

void block_hasher_init(struct block_hasher *hasher, enum block_hash_algo algo, int32_t block_size)
{
    *hasher = (struct block_hasher){.algo = algo, .block_size = block_size};
    if (algo == BLOCK_HASH_NONE)
        return;
    hasher->input =
        xcalloc(1, 1 + sizeof(struct block_hash) + (size_t)block_size * sizeof(int32_t));
    hasher->input[0] = KIND_BLOCK;
    random_bytes(hasher->secret, sizeof(hasher->secret));
}

void block_hasher_deinit(struct block_hasher *hasher)
{
    free(hasher->input);
    *hasher = (struct block_hasher){0};
}

static struct block_hash hash_bytes(const struct block_hasher *hasher, const void *bytes,
                                    size_t len)
{
    struct block_hash hash;
    if (hasher->algo == BLOCK_HASH_SHA256) {
        unsigned char digest[SHA256_DIGEST_LENGTH];
        SHA256_CTX context;
        SHA256_Init(&context);
        SHA256_Update(&context, bytes, len);
        SHA256_Final(digest, &context);
        memcpy(&hash, digest, sizeof(hash));
        return hash;
    }
    XXH128_hash_t wide =
        XXH3_128bits_withSecret(bytes, len, hasher->secret, sizeof(hasher->secret));
    return (struct block_hash){wide.low64, wide.high64};
}

struct block_hash block_hasher_root(const struct block_hasher *hasher, struct str cache_salt)
{
    if (hasher->algo == BLOCK_HASH_NONE || hasher->algo == BLOCK_HASH_GIVEN)
        return (struct block_hash){0};
    uint64_t salt_len = cache_salt.len;
    size_t len = 1 + ROOT_TEXT_LEN + sizeof(salt_len) + cache_salt.len;
    char *input = xmalloc(len), *at = input;
    *at++ = KIND_ROOT;
    memcpy(at, root_text, ROOT_TEXT_LEN);
    at += ROOT_TEXT_LEN;
    memcpy(at, &salt_len, sizeof(salt_len));
    at += sizeof(salt_len);
    if (cache_salt.len > 0)
        memcpy(at, cache_salt.ptr, cache_salt.len);
    struct block_hash hash = hash_bytes(hasher, input, len);
    free(input);
    return hash;
}

struct block_hash block_hasher_next(struct block_hasher *hasher, struct block_hash before,
                                    const int32_t *token_ids)
{
    assert(hasher->algo != BLOCK_HASH_NONE);
    if (hasher->algo == BLOCK_HASH_GIVEN) {
        if (hasher->num_given == 0) {
            hasher->is_short = true;
            return (struct block_hash){0};
        }
        hasher->num_given--;
        return *hasher->given++;
    }
    size_t tokens_bytes = (size_t)hasher->block_size * sizeof(*token_ids);
    memcpy(hasher->input + 1, &before, sizeof(before));
    memcpy(hasher->input + 1 + sizeof(before), token_ids, tokens_bytes);
    return hash_bytes(hasher, hasher->input, 1 + sizeof(before) + tokens_bytes);
}
