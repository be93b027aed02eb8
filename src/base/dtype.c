// Element types of tensors, and the conversions between the narrow floats and float.
#include "base/dtype.h"

static const struct {
    size_t size;
    const char *name;
} dtypes[] = {
    [DTYPE_F32] = {4, "float32"},
    [DTYPE_F16] = {2, "float16"},
    [DTYPE_BF16] = {2, "bfloat16"},
    [DTYPE_F8_E4M3] = {1, "float8_e4m3fn"},
    [DTYPE_F8_E5M2] = {1, "float8_e5m2"},
    [DTYPE_F8_E8M0] = {1, "float8_e8m0fnu"},
    [DTYPE_I8] = {1, "int8"},
    [DTYPE_U8] = {1, "uint8"},
    [DTYPE_BOOL] = {1, "bool"},
    [DTYPE_I16] = {2, "int16"},
    [DTYPE_U16] = {2, "uint16"},
    [DTYPE_I32] = {4, "int32"},
    [DTYPE_U32] = {4, "uint32"},
    [DTYPE_I64] = {8, "int64"},
    [DTYPE_U64] = {8, "uint64"},
    [DTYPE_F64] = {8, "float64"},
};

size_t dtype_size(enum dtype dtype)
{
    return dtypes[dtype].size;
}

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

enum status dtype_parse(struct str text, enum dtype *out)
{
    if (str_starts_with(text, STR("torch.")))
        text = str_slice(text, 6, text.len);
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (str_eq_c(text, dtypes[i].name)) {
            *out = (enum dtype)i;
            return STATUS_OK;
        }
    }
    if (str_eq_c(text, "half"))
        *out = DTYPE_F16;
    else if (str_eq_c(text, "float"))
        *out = DTYPE_F32;
    else
        return STATUS_NOT_FOUND;
    return STATUS_OK;
}

float f8_e4m3_to_f32(uint8_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x80u) << 24, magnitude = bits & 0x7Fu;
    uint32_t wide;
    float value;
    if (magnitude == 0x7Fu) { // NaN
        wide = sign | 0x7FC00000u;
    } else if (magnitude >= 0x08u) {
        wide = sign | ((magnitude << 20) + 0x3C000000u); // 127 - 7 in the exponent
    } else { // zero, or a multiple of 2^-9 below the normal range
        value = (float)magnitude * 0x1p-9f;
        return sign ? -value : value;
    }
    memcpy(&value, &wide, sizeof(value));
    return value;
}

uint8_t f32_to_f8_e4m3(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof(wide));
    uint8_t sign = (uint8_t)(wide >> 24 & 0x80u);
    wide &= 0x7FFFFFFFu;
    if (wide > 0x7F800000u) // NaN
        return sign | 0x7Fu;
    if (wide >= 0x43E00000u) // 448 and more
        return sign | 0x7Eu;
    if (wide < 0x3C800000u) { // below the normal range: adding 2^14 leaves multiples of 2^-9
        float magnitude;
        memcpy(&magnitude, &wide, sizeof(magnitude));
        magnitude += 0x1p14f;
        memcpy(&wide, &magnitude, sizeof(wide));
        return (uint8_t)(sign | (wide - 0x46800000u));
    }
    wide -= 0x3C000000u;
    return (uint8_t)(sign | (wide + 0x7FFFFu + (wide >> 20 & 1)) >> 20);
}

float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
    uint32_t wide;
    float value;
    if (magnitude >= 0x7C00u) { // infinity, NaN
        wide = sign | 0x7F800000u | (magnitude & 0x3FFu) << 13;
    } else if (magnitude >= 0x0400u) {
        wide = sign | ((magnitude << 13) + 0x38000000u); // 127 - 15 in the exponent
    } else { // zero, or a multiple of 2^-24 below the normal range
        value = (float)magnitude * 0x1p-24f;
        return sign ? -value : value;
    }
    memcpy(&value, &wide, sizeof(value));
    return value;
}

uint16_t f32_to_f16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof(wide));
    uint16_t sign = (uint16_t)(wide >> 16 & 0x8000u);
    wide &= 0x7FFFFFFFu;
    if (wide > 0x7F800000u) // NaN
        return (uint16_t)(sign | 0x7E00u | (wide >> 13 & 0x3FFu));
    if (wide >= 0x477FF000u) // from half-way above the largest number on
        return sign | 0x7C00u;
    if (wide < 0x38800000u) { // below the normal range: adding 0.5 leaves multiples of 2^-24
        float magnitude;
        memcpy(&magnitude, &wide, sizeof(magnitude));
        magnitude += 0.5f;
        memcpy(&wide, &magnitude, sizeof(wide));
        return (uint16_t)(sign | (wide - 0x3F000000u));
    }
    wide -= 0x38000000u;
    return (uint16_t)(sign | (wide + 0xFFFu + (wide >> 13 & 1)) >> 13);
}
