// Element types of tensors, and the conversions between the 16-bit floats and float.
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

float f16_to_f32(uint16_t bits)
{
    _Float16 half;
    memcpy(&half, &bits, sizeof(half));
    return (float)half;
}

uint16_t f32_to_f16(float value)
{
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof(bits));
    return bits;
}
