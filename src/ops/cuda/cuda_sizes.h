// How much memory the CUDA backend takes, as plain C: a plan for a GPU and the backend on one count
// with the same functions, so a plan can be made where there is no GPU.
#pragma once

#include "ops/ops.h"

enum {
    CUBLASLT_WORKSPACE_BYTES = 32 << 20,
    MAX_DECODE_PLANS = 8, // attention windows of one model
};

/** Bytes of a weight's elements on the GPU, and of its bias in float32 behind them; the bias in the
 *  elements' type follows. */
size_t cuda_matrix_bytes(const struct weight *w);
size_t cuda_f32_bias_bytes(const struct weight *w);

/** What libraries and kernels keep on a GPU of `num_sms` multiprocessors: cuBLASLt's workspace, and
 *  a decode plan and its scratch for each window. */
size_t cuda_backend_bytes(const struct attention_needs *needs, int32_t num_sms);
