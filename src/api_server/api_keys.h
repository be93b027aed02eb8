// Keys, compared without telling how far they agree: by their digests, in constant time.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

struct key_digest {
    uint8_t bytes[32]; // SHA-256
};

struct key_digest key_digest_of(struct str key);

/** Takes the same time whatever the digests are. */
bool key_digest_equal(const struct key_digest *a, const struct key_digest *b);
