// Element types of tensors, and the conversions between the narrow floats and float.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_F8_E8M0,
    DTYPE_I8,
    DTYPE_U8,
    DTYPE_BOOL,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_I64,
    DTYPE_U64,
    DTYPE_F64,
};

/** Bytes of one element. */
size_t dtype_size(enum dtype dtype);

/** The name that vLLM and PyTorch print: "float32", "bfloat16", "float8_e4m3fn" ... */
const char *dtype_name(enum dtype dtype);

/** Reads "bfloat16", "torch.bfloat16", "half", "float16", "float", "float32"; NOT_FOUND otherwise.
 */
NODISCARD enum status dtype_parse(struct str text, enum dtype *out);

static inline float bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

/** Round to nearest even; a NaN stays a NaN. */
static inline uint16_t f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x0040u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

/** 1 sign, 4 exponent bits with bias 7, 3 of mantissa; no infinity, 0x7F and 0xFF are NaN (OCP
 * 8-bit floating point, E4M3). */
float f8_e4m3_to_f32(uint8_t bits);
/** Round to nearest even; beyond 448 and infinite: 448. */
uint8_t f32_to_f8_e4m3(float value);

float f16_to_f32(uint16_t bits);
/** Round to nearest even; overflow gives infinity. */
uint16_t f32_to_f16(float value);
