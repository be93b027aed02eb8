// Bytes from the operating system's generator.
#include "base/random.h"

#include <sys/random.h>

#include "base/status.h"

void random_bytes(void *out, size_t size_bytes)
{
    char *p = out;
    while (size_bytes > 0) {
        ssize_t got = getrandom(p, size_bytes, 0);
        if (got < 0)
            continue; // interrupted by a signal: nothing else can fail here
        p += got;
        size_bytes -= (size_t)got;
    }
}

uint64_t random_u64(void)
{
    uint64_t value;
    random_bytes(&value, sizeof(value));
    return value;
}

void random_hex(char *out, size_t num_digits)
{
    for (size_t i = 0; i < num_digits; i += 16) {
        uint64_t bits = random_u64();
        for (size_t j = i; j < num_digits && j < i + 16; j++, bits >>= 4)
            out[j] = "0123456789abcdef"[bits & 15];
    }
    out[num_digits] = '\0';
}
