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

static const struct str root_text = {"vllm-none-hash", 14}; // before every salt

void block_hasher_init(struct block_hasher *hasher, enum block_hash_algo algo, int32_t block_size)
{
    *hasher = (struct block_hasher){.algo = algo, .block_size = block_size};
    if (algo == BLOCK_HASH_NONE)
        return;
    hasher->input = xcalloc(1, sizeof(struct block_hash) + (size_t)block_size * sizeof(int32_t));
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
    size_t len = root_text.len + cache_salt.len;
    char *text = xmalloc(len);
    memcpy(text, root_text.ptr, root_text.len);
    if (cache_salt.len > 0)
        memcpy(text + root_text.len, cache_salt.ptr, cache_salt.len);
    struct block_hash hash = hash_bytes(hasher, text, len);
    free(text);
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
    memcpy(hasher->input, &before, sizeof(before));
    memcpy(hasher->input + sizeof(before), token_ids, tokens_bytes);
    return hash_bytes(hasher, hasher->input, sizeof(before) + tokens_bytes);
}
