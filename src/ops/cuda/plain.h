// Launchers of the kernels that take any shape (plain.cu): what the faster ones leave over.
// Activations and weights are of the launch's type, float32 inside; every pointer is device memory,
// rows lie side by side unless a stride says otherwise.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/** out[i] = table[ids[i]] * scale, rows of n; an id outside [0, num_rows) gives zeros. */
void plain_gather_rows(const struct cuda_launch *launch, void *out, const void *table,
                       const int32_t *ids, float scale, int64_t num_ids, int64_t num_rows,
                       int64_t n);

/** residual (or NULL) += x, then out = rms_norm(the sum) * (offset + weight); out may be x. The
 * rows of the residual lie side by side. */
struct plain_norm {
    void *out, *residual;
    const void *x, *weight;
    float eps, offset;
    int64_t rows, n, out_stride, x_stride;
};
void plain_rms_norm(const struct cuda_launch *launch, const struct plain_norm *args);

/** prepare_qkv() of the operations table. */
struct plain_qkv {
    void *qkv;
    struct cuda_kv_cache cache;
    int64_t row_stride;
    int32_t num_tokens, num_heads, rot_dim;
    const void *q_norm, *k_norm;
    float eps, norm_offset;
    const float *cos_sin;
    const int32_t *positions;
    const int64_t *slot_mapping;
};
void plain_prepare_qkv(const struct cuda_launch *launch, const struct plain_qkv *args);

/** attention() of the operations table; a sequence of length 0 is padding and gives zeros. */
struct plain_attention {
    void *out;
    const void *q;
    struct cuda_kv_cache cache;
    int64_t q_stride;
    int32_t num_tokens, num_heads, max_blocks, window;
    float scale, softcap; // softcap 0: none
    const int32_t *block_table, *seq_lens, *token_seq, *positions;
};
void plain_attention(const struct cuda_launch *launch, const struct plain_attention *args);

/** out = silu(gate) * up; gate_up: [rows, 2n]. */
void plain_silu_and_mul(const struct cuda_launch *launch, void *out, const void *gate_up,
                        int64_t rows, int64_t n);

/** The same with gelu, as approximated with tanh. */
void plain_gelu_and_mul(const struct cuda_launch *launch, void *out, const void *gate_up,
                        int64_t rows, int64_t n);

/** make_up() of the operations table. dst: 16-byte aligned. */
void plain_make_up(const struct cuda_launch *launch, void *dst, const void *levels, uint64_t key,
                   size_t count);

/** token_ids[i] = drawn[indices[i]], or 0 where that is negative; left alone where the index is. */
void plain_take_tokens(const struct cuda_launch *launch, int32_t *token_ids, const int32_t *indices,
                       const int32_t *drawn, int32_t num_tokens);

#ifdef __cplusplus
}
#endif
