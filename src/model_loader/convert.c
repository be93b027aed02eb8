// Bulk conversion between float dtypes, and made-up values: see convert.h.
#include "model_loader/convert.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 16384 }; // elements that one thread handles at a time

static float load_value(const char *src, enum dtype dtype, size_t i)
{
    if (dtype == DTYPE_F32) {
        float value;
        memcpy(&value, src + i * sizeof(value), sizeof(value));
        return value;
    }
    uint16_t bits;
    memcpy(&bits, src + i * sizeof(bits), sizeof(bits));
    return dtype == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/** False if a finite value became infinite. */
static bool store_value(char *dst, enum dtype dtype, size_t i, float value)
{
    if (dtype == DTYPE_F32) {
        memcpy(dst + i * sizeof(value), &value, sizeof(value));
        return true;
    }
    uint16_t bits = dtype == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
    memcpy(dst + i * sizeof(bits), &bits, sizeof(bits));
    uint16_t infinity = dtype == DTYPE_BF16 ? 0x7F80 : 0x7C00;
    return (bits & 0x7FFF) != infinity || isinf(value);
}

bool convert_values(void *dst, enum dtype dst_dtype, const void *src, enum dtype src_dtype,
                    size_t count)
{
    assert(dtype_size(src_dtype) == 2 || src_dtype == DTYPE_F32);
    assert(dtype_size(dst_dtype) == 2 || dst_dtype == DTYPE_F32);
    int64_t num_blocks = (int64_t)((count + BLOCK - 1) / BLOCK);
    int all_fit = 1;
#pragma omp parallel for reduction(& : all_fit) if (num_blocks > 1)
    for (int64_t block = 0; block < num_blocks; block++) {
        size_t begin = (size_t)block * BLOCK;
        size_t end = begin + BLOCK < count ? begin + BLOCK : count;
        if (src_dtype == dst_dtype) {
            size_t size = dtype_size(src_dtype);
            memcpy((char *)dst + begin * size, (const char *)src + begin * size,
                   (end - begin) * size);
            continue;
        }
        for (size_t i = begin; i < end; i++)
            all_fit &= store_value(dst, dst_dtype, i, load_value(src, src_dtype, i));
    }
    return all_fit;
}

/** A bijective mix of 64 bits (the finaliser of SplitMix64, Steele et al. 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/** Elements [begin, end) of 2 or 4 bytes: each mixed counter picks eight of the 256 levels. */
static void fill_from_levels(char *dst, const char *levels, size_t size, uint64_t key, size_t begin,
                             size_t end)
{
    for (size_t i = begin; i < end; i += 8) {
        uint64_t bits = mix(key + i);
        for (size_t j = i; j < i + 8 && j < end; j++, bits >>= 8)
            memcpy(dst + j * size, levels + (bits & 0xFF) * size, size);
    }
}

/** Pairs of e4m3, which are picked together. */
static void pair_levels(char *levels)
{
    for (int i = 0; i < 256; i++) {
        int second = i * 167 & 255; // another one for each first
        levels[2 * i] = (char)f32_to_f8_e4m3(((float)i - 127.5f) * (448 / 127.5f));
        levels[2 * i + 1] = (char)f32_to_f8_e4m3(((float)second - 127.5f) * (448 / 127.5f));
    }
}

struct dummy_source dummy_source(enum dtype dtype, struct str name)
{
    bool is_norm = str_ends_with(name, STR("norm.weight"));
    struct dummy_source source = {.key = str_hash(name)};
    if (dtype == DTYPE_F8_E4M3) {
        pair_levels(source.levels);
        return source;
    }
    for (int i = 0; i < 256; i++) {
        float value = ((float)i - 127.5f) / (128 * 32);
        (void)store_value(source.levels, dtype, (size_t)i, is_norm ? 1.0f : value);
    }
    return source;
}

void dummy_values(void *dst, enum dtype dtype, size_t count, struct str name)
{
    const struct dummy_source source = dummy_source(dtype, name);
    const char *levels = source.levels;
    uint64_t key = source.key;
    if (dtype == DTYPE_F8_E4M3) { // pairs are made up, and half of one more
        size_t pair = count / 2;
        if (count % 2 != 0)
            ((char *)dst)[count - 1] = levels[2 * (mix(key + pair / 8 * 8) >> pair % 8 * 8 & 0xFF)];
        count = pair;
    }
    int64_t num_blocks = (int64_t)((count + BLOCK - 1) / BLOCK);
#pragma omp parallel for if (num_blocks > 1)
    for (int64_t block = 0; block < num_blocks; block++) {
        size_t begin = (size_t)block * BLOCK;
        size_t end = begin + BLOCK < count ? begin + BLOCK : count;
        if (dtype == DTYPE_F32)
            fill_from_levels(dst, levels, 4, key, begin, end);
        else
            fill_from_levels(dst, levels, 2, key, begin, end);
    }
}
