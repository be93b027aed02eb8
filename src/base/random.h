// Bytes from the operating system's generator: ids and seeds, not sampling.
#pragma once

#include <stddef.h>
#include <stdint.h>

void random_bytes(void *out, size_t size_bytes);
uint64_t random_u64(void);

/** Writes `num_digits` hexadecimal digits and a terminating zero. */
void random_hex(char *out, size_t num_digits);
