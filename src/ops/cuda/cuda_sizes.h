// How much memory the CUDA backend takes, as plain C: a plan for a GPU and the backend on one count
// with the same functions, so a plan can be made where there is no GPU.
#pragma once

#include "ops/ops.h"

enum {
    CUBLASLT_WORKSPACE_BYTES = 32 << 20,
    MAX_DECODE_PLANS = 8, // attention windows of one model
    F8_MAX_PADDED_ROWS = 512,
    F8_SCALE_ROWS = 32,       // a block's scales of rows of x are read in so many
    F8_WIDE_BYTES = 64 << 20, // of a weight of e4m3 that is written out in full
};

size_t cuda_element_bytes(const struct weight *w);

/** Bytes of the scales of e4m3 on the GPU, and how many a row of blocks has there: a multiple of
 *  four, as cuBLASLt reads them; 0: each row has one. */
size_t cuda_scale_bytes(const struct weight *w);
int32_t cuda_block_pitch(const struct weight *w);

/** Bytes of a weight's elements on the GPU, and of its bias in float32 behind them; the
 *  bias in the type of activations follows. */
size_t cuda_matrix_bytes(const struct weight *w);
size_t cuda_f32_bias_bytes(const struct weight *w);

/** Scratch of a product of e4m3: the activations' codes, their scales, and for a number of rows
 *  that the library does not take a result of a few more; or part of the weight in full. */
struct f8_scratch_layout {
    size_t scales_at, out_at, size_bytes;
};
struct f8_scratch_layout f8_scratch_layout(int64_t rows, int64_t in_features, int64_t out_features);
size_t cuda_f8_bytes(const struct backend_needs *needs);

/** What libraries and kernels keep on a GPU of `num_sms` multiprocessors: cuBLASLt's workspace,
 *  scratch for products of e4m3, a decode plan and its scratch for each window. */
size_t cuda_backend_bytes(const struct backend_needs *needs, int32_t num_sms);
