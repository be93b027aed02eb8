// The limits of a GPU, measured on it: what figures are compared with.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes and floating-point operations per second; 0: could not be measured. */
struct ceilings {
    double read, copy; // copy counts what is read and what is written
    double bf16, fp8;  // products of cuBLASLt, of large matrices of random numbers
};

/** Takes about a second and 3 GiB of the GPU's memory, which it gives back. False: there is no GPU
 *  or it has no room. */
bool ceilings_measure(struct ceilings *out);

/** Bytes of the GPU's memory in use now, by anybody. */
int64_t ceilings_used_bytes(void);

#ifdef __cplusplus
}
#endif
