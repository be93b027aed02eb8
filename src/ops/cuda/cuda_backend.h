// What the files of the CUDA backend share: the state behind struct device, and the launchers of
// the kernels that take any shape.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "ops/cuda/kernels.h"
#include "ops/ops.h"

struct cublaslt;
struct f8_chunk;
struct cuda_plans;

/** Behind dev->backend. */
struct cuda_backend {
    cudaStream_t stream; // of everything that a step does
    cudaEvent_t marks[MAX_MARKS];
    cudaError_t failure; // the first one since the last synchronize()
    struct cublaslt *cublaslt;
    bool sums_agree;          // all kernels of products add up in one order (cuda_sum_order.c)
    struct cuda_plans *plans; // of decoding attention
    void *f8_scratch;         // of products of e4m3
    size_t f8_scratch_bytes;
    struct f8_chunk *f8_chunks; // of weights' scales
    struct cudaDeviceProp properties;
};

static inline struct cuda_backend *cuda_backend_of(const struct device *dev)
{
    return dev->backend;
}

/** What the launchers in kernels.h are given. */
static inline struct cuda_launch cuda_launch_of(const struct device *dev)
{
    const struct cuda_backend *cuda = cuda_backend_of(dev);
    return (struct cuda_launch){
        .stream = cuda->stream,
        .num_sms = cuda->properties.multiProcessorCount,
        .is_f16 = dev->activation_dtype == DTYPE_F16,
    };
}

/** The form of a weight whose elements are of the activations' type. */
static inline enum weight_form cuda_dense_form(const struct device *dev)
{
    return dev->activation_dtype == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_BF16;
}

/** Keeps the first failure for synchronize(). */
static inline void cuda_note(struct cuda_backend *cuda, cudaError_t error)
{
    if (error != cudaSuccess && cuda->failure == cudaSuccess)
        cuda->failure = error;
}

/** A product of few rows as the kernels in kernels.h are given it; also with what is fused to it.
 */
struct gemv_args cuda_product_args(struct tensor out, struct tensor x, const struct weight *w);
struct gemv_args cuda_fused_product_args(struct tensor out, struct tensor x, const struct weight *w,
                                         const struct matmul_fusion *fusion);

/** Fills the table. */
void cuda_ops_fill(struct ops *ops);

// ---- Weights of e4m3 (cuda_f8.c)
// -----------------------------------------------------------------

/** Takes scratch for products of this size, if more than there is. Errors: OUT_OF_MEMORY. */
NODISCARD enum status cuda_f8_reserve(struct device *dev, const struct backend_needs *needs,
                                      struct error *err);

/** Copies a weight's scales to the GPU, where they stay until cuda_f8_close(). Errors:
 *  OUT_OF_MEMORY. */
NODISCARD enum status cuda_f8_prepare(struct device *dev, struct weight *w, struct error *err);

/** Gives back everything that is kept for weights of e4m3. */
void cuda_f8_close(struct cuda_backend *cuda);

void cuda_f8_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w);
bool cuda_f8_fuses_matmul(const struct device *dev, int64_t rows, const struct weight *w,
                          const struct matmul_fusion *fusion);
void cuda_f8_fused_matmul(struct device *dev, struct tensor out, struct tensor x,
                          const struct weight *w, const struct matmul_fusion *fusion);

/** Its part for mixtures of experts. */
void cuda_experts_fill(struct ops *ops);

// ---- cuBLASLt ------------------------------------------------------------------------------

/** Loads the library and takes a workspace on the device. Errors: UNSUPPORTED (no library of a
 *  version that will do), OUT_OF_MEMORY. */
NODISCARD enum status cublaslt_open(struct cublaslt **out, struct error *err);
void cublaslt_close(struct cublaslt *lt);

/** How a row of a product is added up. */
enum sum_order {
    SUM_ANY,        // as is fastest
    SUM_WHOLE,      // from the start of k to its end
    SUM_ONE_KERNEL, // so, and by one kernel for any number of rows
};

/** out [rows, n] of x's type or f32, with any row stride, = x [rows, k] bf16 or f16 *
 *  weight [n, k]^T + bias [n] (or NULL), both of x's type. */
void cublaslt_matmul(struct cuda_backend *cuda, struct tensor out, struct tensor x,
                     const void *weight, const void *bias, enum sum_order order);

/** Matrices of e4m3 and their scales, in device memory: of the weight's and of x's rows, or with
 *  `has_blocks` of 128 x 128 elements of the weight, [ceil(n / 128), cuda_block_pitch()], and of
 *  128 of a row of x, [ceil(k / 128), rows]. */
struct cublaslt_f8 {
    const void *weight, *x; // [n, k], [rows, k]
    const float *weight_scales, *x_scales;
    bool has_blocks;
};

/** Whether cublaslt_matmul_f8() takes such a product; of blocks, rows a multiple of 4. */
bool cublaslt_supports_f8(struct tensor out, int64_t k);

/** out [rows, n] of bfloat16 or float16 = x * weight^T + bias of out's type (or NULL). */
void cublaslt_matmul_f8(struct cuda_backend *cuda, struct tensor out, const struct cublaslt_f8 *f8,
                        int64_t k, const void *bias, enum sum_order order);

// ---- Batch-invariant products (cuda_sum_order.c) ---------------------------------------------

/** Multiplies numbers of rows with the kernels that they get and compares bits; sets `sums_agree`.
 *  Errors: OUT_OF_MEMORY; what synchronize() tells. */
NODISCARD enum status cuda_try_sum_order(struct device *dev, struct error *err);

// ---- Attention (cuda_attention.c) ----------------------------------------------------------

struct cuda_plans *cuda_plans_create(void);
void cuda_plans_destroy(struct cuda_plans *plans);

/** Memory that the plans were made from may have changed. */
void cuda_plans_forget(struct cuda_plans *plans);

void cuda_prepare_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                      const struct qkv_params *params, const int32_t *positions,
                      const int64_t *slot_mapping);
void cuda_attention(struct device *dev, struct tensor out, struct tensor q,
                    const struct kv_cache *cache, const struct attention_batch *batch,
                    const struct attention_params *params);
