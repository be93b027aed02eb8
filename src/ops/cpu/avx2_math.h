// AVX2 building blocks. Each gives a value that depends on its operands alone, so that operations
// made of them are batch-invariant: the same chain of additions whatever stands beside it.
#pragma once

#include <immintrin.h>

#include "ops/cpu/cpu_ops.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { LANES = 8, TILE_ROWS = 3, TILE_COLS = 4 };

ALWAYS_INLINE int64_t round_up_lanes(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/** The first n (1 to 8) lanes. */
ALWAYS_INLINE __m256i lane_mask(int64_t n)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), index);
}

/** Elements [i, i + 8) of any form, at any address. */
ALWAYS_INLINE __m256 load8(enum weight_form form, const void *data, int64_t i)
{
    if (form == WEIGHT_F32)
        // cppcheck-suppress invalidPointerCast ; an unaligned load of what is stored as floats
        return _mm256_loadu_ps((const float *)((const char *)data + i * 4));
    __m128i half = _mm_loadu_si128((const __m128i_u *)((const char *)data + i * 2));
    if (form == WEIGHT_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/** The same for the n < 8 elements before the end of a row; the other lanes are zero. */
ALWAYS_INLINE __m256 load8_tail(enum weight_form form, const void *data, int64_t i, int64_t n)
{
    int64_t size = weight_form_bytes(form);
    char copy[LANES * sizeof(float)] = {0}; // a load of eight would read past the mapped file
    memcpy(copy, (const char *)data + i * size, (size_t)(n * size));
    return load8(form, copy, 0);
}

/** ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7)) of each of four vectors. */
ALWAYS_INLINE __m128 sum_lanes_x4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m128 a4 = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 b4 = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    __m128 c4 = _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
    __m128 d4 = _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
    _MM_TRANSPOSE4_PS(a4, b4, c4, d4);
    return _mm_add_ps(_mm_add_ps(a4, c4), _mm_add_ps(b4, d4));
}

ALWAYS_INLINE float sum_lanes(__m256 a)
{
    return _mm_cvtss_f32(sum_lanes_x4(a, a, a, a));
}

ALWAYS_INLINE float max_lanes(__m256 a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}

/** e^x within 2 ulp; overflow gives infinity, NaN stays NaN. x = n ln 2 + r with |r| <= ln 2 / 2,
 *  where eight terms of the series leave less than 1e-8. */
ALWAYS_INLINE __m256 exp8(__m256 x)
{
    // x stands second: these return the second operand when one is NaN.
    x = _mm256_max_ps(_mm256_set1_ps(-110.0f), x);
    x = _mm256_min_ps(_mm256_set1_ps(90.0f), x);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // ln 2 in two parts; n times the first one, of 12 bits, is exact.
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62ep-1f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.0bfbe8p-15f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    // 2^n in two factors, so that both ends of the range (infinity, subnormals) come out right.
    __m256i whole = _mm256_cvtps_epi32(n);
    __m256i low = _mm256_srai_epi32(whole, 1), high = _mm256_sub_epi32(whole, low);
    const __m256i bias = _mm256_set1_epi32(127);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(low, bias), 23)));
    return _mm256_mul_ps(p,
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(high, bias), 23)));
}

/** tanh(x) within a few ulp of 1: (1 - e) / (1 + e) with e = e^(-2|x|), whose cancellation near
 *  zero gives way to the series there. */
ALWAYS_INLINE __m256 tanh8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    __m256 size = _mm256_andnot_ps(sign, x);
    __m256 e = exp8(_mm256_mul_ps(size, _mm256_set1_ps(-2.0f)));
    __m256 large = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    // x (1 - x^2/3 + 2x^4/15 - 17x^6/315 + 62x^8/2835): less than 1e-8 off up to 0.25.
    __m256 square = _mm256_mul_ps(x, x), p = _mm256_set1_ps(62.0f / 2835);
    p = _mm256_fmadd_ps(p, square, _mm256_set1_ps(-17.0f / 315));
    p = _mm256_fmadd_ps(p, square, _mm256_set1_ps(2.0f / 15));
    p = _mm256_fmadd_ps(p, square, _mm256_set1_ps(-1.0f / 3));
    p = _mm256_fmadd_ps(p, square, one);
    __m256 is_small = _mm256_cmp_ps(size, _mm256_set1_ps(0.25f), _CMP_LT_OQ);
    __m256 y = _mm256_blendv_ps(large, _mm256_mul_ps(size, p), is_small);
    return _mm256_or_ps(y, _mm256_and_ps(sign, x));
}

ALWAYS_INLINE __m256 soft_cap8(__m256 x, float cap)
{
    const __m256 c = _mm256_set1_ps(cap);
    return _mm256_mul_ps(c, tanh8(_mm256_div_ps(x, c)));
}

/** acc[r][c] += x[r] * w[c] over k in [0, num_k), num_k a multiple of 8. Twelve sums in registers;
 *  each is one chain of eight lanes, the same in a tile of any number of rows. */
ALWAYS_INLINE void dot_tile(int rows, enum weight_form form, __m256 acc[TILE_ROWS][TILE_COLS],
                            const float *x, int64_t x_stride, const char *const w[TILE_COLS],
                            int64_t num_k, int64_t prefetch_bytes)
{
    for (int64_t k = 0; k < num_k; k += LANES) {
        __m256 x8[TILE_ROWS];
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++)
            x8[r] = _mm256_loadu_ps(x + r * x_stride + k);
#pragma GCC unroll 4
        for (int c = 0; c < TILE_COLS; c++) {
            if (prefetch_bytes > 0)
                _mm_prefetch(w[c] + k * weight_form_bytes(form) + prefetch_bytes, _MM_HINT_T0);
            __m256 w8 = load8(form, w[c], k);
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++)
                acc[r][c] = _mm256_fmadd_ps(x8[r], w8, acc[r][c]);
        }
    }
}

// Files that hold the operations; avx2.c puts them into the table.
void avx2_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w);
void avx2_attention(struct device *dev, struct tensor out, struct tensor q,
                    const struct kv_cache *cache, const struct attention_batch *batch,
                    const struct attention_params *params);

/** Writes n e4m3 elements times `scale` as f32. */
void avx2_unpack_f8(float *out, const uint8_t *data, float scale, int64_t n);

/** Writes n elements of any other form as f32. */
void avx2_unpack(enum weight_form form, float *out, const void *data, int64_t n);
