// Parts that decode and prefill attention share: tiles of the paged cache in shared memory, and
// matrix fragments made from them.
//
// A page, 16 tokens of one head, lies in shared memory as panels of up to 128 bytes of every row,
// and 16-byte units are swizzled within rows as the bulk tensor copies do it: the eight rows that
// an ldmatrix reads lie in different banks. Caches of the activations' type T, bf16 or f16,
// multiply in it; e4m3 caches are widened to f16 (exact) in registers. There a unit holds 16
// elements, and what ldmatrix hands each lane is four neighbours; the dot product does not care
// about the order of its terms, so q is laid out to match, and output columns come out interleaved.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/decode_layout.h"

constexpr int PAGE = CUDA_PAGE; // tokens; the unit of work, always inside one cache block

template <int D, bool FP8> struct kv_page {
    static constexpr int ROW_BYTES = D * (FP8 ? 1 : 2);
    static constexpr int BYTES = PAGE * ROW_BYTES;
    static constexpr int UNITS = ROW_BYTES / 16; // per row
    static constexpr int PANEL_BYTES = ROW_BYTES % 128 == 0 ? 128 : ROW_BYTES % 64 == 0 ? 64 : 32;
    static constexpr int PANEL_UNITS = PANEL_BYTES / 16;
    static constexpr int PANELS = ROW_BYTES / PANEL_BYTES;
};

/** Address of a row's unit 0 or 1 in the page at `page`, a multiple of the swizzle's pattern. */
template <int D, bool FP8> DEVICE uint32_t row_address(uint32_t page, int row, int unit)
{
    typedef kv_page<D, FP8> p;
    return page + row * p::PANEL_BYTES + (unit ^ row * p::PANEL_BYTES / 128 % p::PANEL_UNITS) * 16;
}

/** The unit that lies an even number of `units` behind the row_address(). */
template <int D, bool FP8> DEVICE uint32_t unit_address(uint32_t row, int units)
{
    typedef kv_page<D, FP8> p;
    return (row ^ units % p::PANEL_UNITS * 16) + units / p::PANEL_UNITS * (PAGE * p::PANEL_BYTES);
}

/** Products of queries and keys to scores in units of log2(e), capped if the model says so. */
struct score_scale {
    float scale, cap;
};

DEVICE struct score_scale make_score_scale(float scale, float softcap)
{
    if (softcap > 0)
        return {scale / softcap, softcap * LOG2E};
    return {scale * LOG2E, 0.0f};
}

/** Turns products into scores; the question is asked once for all of them. */
template <int TILES> DEVICE void scale_scores(float s[TILES][4], struct score_scale scale)
{
    if (scale.cap > 0) {
#pragma unroll
        for (int i = 0; i < 4 * TILES; i++)
            s[i / 4][i % 4] = scale.cap * tanhf(s[i / 4][i % 4] * scale.scale);
    } else {
#pragma unroll
        for (int i = 0; i < 4 * TILES; i++)
            s[i / 4][i % 4] *= scale.scale;
    }
}

/** Where the 16 tokens of a page lie for one head: rows back to back. */
DEVICE size_t page_offset(const struct cuda_kv_cache &cache, int block, int first_token, int head,
                          int row_bytes)
{
    size_t row = ((size_t)block * cache.num_kv_heads + head) * cache.block_size +
                 (unsigned)first_token % (unsigned)cache.block_size;
    return row * row_bytes;
}

/** Query fragments of 16 rows; `row_ptr[h]` is row lane / 4 + 8h, or NULL for zeros. */
template <int D, typename T, bool FP8>
DEVICE void load_q_fragments(uint32_t q[D / 16][4], const T *const row_ptr[2])
{
    int quad = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            uint2 v = make_uint2(0, 0);
            if (row_ptr[h]) {
                if constexpr (FP8) {
                    v = *(const uint2 *)(row_ptr[h] + 16 * kk + 4 * quad);
                    v.x = pair_to_f16<T>(v.x);
                    v.y = pair_to_f16<T>(v.y);
                } else {
                    v.x = *(const uint32_t *)(row_ptr[h] + 16 * kk + 2 * quad);
                    v.y = *(const uint32_t *)(row_ptr[h] + 16 * kk + 2 * quad + 8);
                }
            }
            q[kk][h] = v.x;
            q[kk][h + 2] = v.y;
        }
    }
}

/** s[16 tokens] += q * k^T for the page of keys at `page`: two 8-token tiles. */
template <int D, typename T, bool FP8>
DEVICE void multiply_keys(float s[2][4], const uint32_t q[D / 16][4], uint32_t page)
{
    int lane = threadIdx.x % 32;
    if constexpr (FP8) {
        uint32_t row = row_address<D, FP8>(page, lane & 15, lane >> 4);
#pragma unroll
        for (int kk = 0; kk < D / 16; kk += 2) {
            uint32_t r[4]; // tokens 0-7 and 8-15 of unit kk, then of unit kk + 1
            ldmatrix_x4(r, unit_address<D, FP8>(row, kk));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t *a = q[kk + i / 2];
                mma_16816<true>(s[i % 2], a[0], a[1], a[2], a[3], e4m3x2_to_f16x2((uint16_t)r[i]),
                                e4m3x2_to_f16x2((uint16_t)(r[i] >> 16)));
            }
        }
    } else {
        uint32_t row = row_address<D, FP8>(page, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            uint32_t r[4];
            ldmatrix_x4(r, unit_address<D, FP8>(row, 2 * kk));
            mma_16816<IS_F16<T>>(s[0], q[kk][0], q[kk][1], q[kk][2], q[kk][3], r[0], r[1]);
            mma_16816<IS_F16<T>>(s[1], q[kk][0], q[kk][1], q[kk][2], q[kk][3], r[2], r[3]);
        }
    }
}

/** o += p * v for the page of values at `page`; p: fragment of 16 rows by 16 tokens. */
template <int D, typename T, bool FP8>
DEVICE void multiply_values(float o[D / 8][4], const uint32_t p[4], uint32_t page)
{
    int lane = threadIdx.x % 32;
    uint32_t row = row_address<D, FP8>(page, lane & 15, lane >> 4);
    if constexpr (FP8) {
#pragma unroll
        for (int unit = 0; unit < D / 16; unit += 2) {
            uint32_t r[4]; // tokens 0-7 and 8-15 of this unit, then of the next
            ldmatrix_x4_trans(r, unit_address<D, FP8>(row, unit));
#pragma unroll
            for (int i = 0; i < 4; i++) // (t, d) (t, d+1) (t+1, d) (t+1, d+1) → by d, then t
                r[i] = __byte_perm(r[i], 0, 0x3120);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int shift = i % 2 * 16;
                mma_16816<true>(o[2 * unit + i], p[0], p[1], p[2], p[3],
                                e4m3x2_to_f16x2((uint16_t)(r[i / 2 * 2] >> shift)),
                                e4m3x2_to_f16x2((uint16_t)(r[i / 2 * 2 + 1] >> shift)));
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            uint32_t r[4];
            ldmatrix_x4_trans(r, unit_address<D, FP8>(row, 2 * j));
            mma_16816<IS_F16<T>>(o[2 * j], p[0], p[1], p[2], p[3], r[0], r[1]);
            mma_16816<IS_F16<T>>(o[2 * j + 1], p[0], p[1], p[2], p[3], r[2], r[3]);
        }
    }
}

/** The head dimension that o[tile][c] of this lane holds (c and c + 2 differ in the row only). */
template <bool FP8> DEVICE int output_dim(int tile, int c)
{
    int n = 2 * (threadIdx.x % 4) + c % 2;
    return FP8 ? tile / 2 * 16 + 2 * n + tile % 2 : tile * 8 + n;
}
