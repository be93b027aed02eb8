// Keys, compared without telling how far they agree.
#include "api_server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

struct key_digest key_digest_of(struct str key)
{
    struct key_digest digest;
    SHA256((const unsigned char *)key.ptr, key.len, digest.bytes);
    return digest;
}

bool key_digest_equal(const struct key_digest *a, const struct key_digest *b)
{
    return CRYPTO_memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}
