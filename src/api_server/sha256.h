// SHA-256 (FIPS 180-4), for comparing keys without telling how far they agree.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

struct sha256 {
    uint8_t bytes[32];
};

struct sha256 sha256_of(struct str text);

/** Takes the same time whatever the digests are. */
bool sha256_equal(const struct sha256 *a, const struct sha256 *b);
