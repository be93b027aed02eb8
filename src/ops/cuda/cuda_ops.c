// The operations table of a GPU: which kernel or library call does what.
#include <stddef.h>
#include <stdlib.h>

#include "base/memory.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_sizes.h"
#include "ops/cuda/plain.h"

// ---- Weights -------------------------------------------------------------------------------

/** A bias lies behind its matrix twice: in float32, and in the matrix's type. */
static void copy_bias(struct device *dev, void *dst, const float *bias, int64_t n)
{
    uint16_t *rounded = xmalloc((size_t)n * sizeof(*rounded));
    for (int64_t i = 0; i < n; i++)
        rounded[i] =
            dev->activation_dtype == DTYPE_F16 ? f32_to_f16(bias[i]) : f32_to_bf16(bias[i]);
    dev->ops.copy_in(dev, dst, rounded, (size_t)n * sizeof(*rounded));
    free(rounded);
}

static enum status cuda_prepare_weight(struct device *dev, struct weight *w, struct error *err)
{
    if (w->form != cuda_dense_form(dev) && w->form != WEIGHT_F8_E4M3)
        return error_set(err, STATUS_UNSUPPORTED,
                         "this GPU multiplies %s weights, not those of form %d",
                         dtype_name(dev->activation_dtype), (int)w->form);
    size_t bias_bytes = cuda_f32_bias_bytes(w) + (size_t)w->out_features * sizeof(uint16_t);
    size_t size_bytes = cuda_matrix_bytes(w) + (w->bias ? bias_bytes : 0);
    char *memory = dev->ops.alloc(dev, size_bytes);
    if (!memory)
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%zu bytes of GPU memory for a weight were refused", size_bytes);
    if (w->data)
        dev->ops.copy_in(dev, memory, w->data,
                         (size_t)w->out_features * (size_t)w->in_features * cuda_element_bytes(w));
    if (w->bias) {
        dev->ops.copy_in(dev, memory + cuda_matrix_bytes(w), w->bias,
                         (size_t)w->out_features * sizeof(float));
        copy_bias(dev, memory + cuda_matrix_bytes(w) + cuda_f32_bias_bytes(w), w->bias,
                  w->out_features);
        w->bias = memory + cuda_matrix_bytes(w);
    }
    w->data = memory;
    w->is_packed = true;
    return w->form == WEIGHT_F8_E4M3 ? cuda_f8_prepare(dev, w, err) : STATUS_OK;
}

// ---- Operations ----------------------------------------------------------------------------

/** Rows of what the kernels load at a time. */
static bool is_vectors(int64_t n)
{
    return n % 8 == 0;
}

static void gather_scaled(struct device *dev, struct tensor out, struct tensor from,
                          const int32_t *ids, float scale)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    int64_t n = out.shape[1];
    if (is_vectors(n))
        cuda_gather_rows(&launch, out.data, from.data, ids, scale, (int32_t)out.shape[0],
                         (int32_t)from.shape[0], (int32_t)n);
    else
        plain_gather_rows(&launch, out.data, from.data, ids, scale, out.shape[0], from.shape[0], n);
}

static void table_gather_rows(struct device *dev, struct tensor out, struct tensor from,
                              const int32_t *rows)
{
    gather_scaled(dev, out, from, rows, 1.0f);
}

static void table_embedding(struct device *dev, struct tensor out, struct tensor table,
                            const int32_t *ids, float scale)
{
    assert(table.dtype == dev->activation_dtype);
    gather_scaled(dev, out, table, ids, scale);
}

static struct cuda_norm kernel_norm(struct norm_params norm)
{
    return (struct cuda_norm){norm.weight, norm.eps, norm.weight_offset};
}

/** residual (or NULL) += x, then out = rms_norm(the sum). */
static void apply_norm(struct device *dev, struct tensor out, struct tensor x, void *residual,
                       struct norm_params norm)
{
    enum { MAX_WIDTH = 32768 };
    const struct cuda_launch launch = cuda_launch_of(dev);
    int32_t rows = (int32_t)x.shape[0], n = (int32_t)x.shape[1];
    bool is_dense = tensor_is_dense(x) && tensor_is_dense(out);
    if (is_dense && is_vectors(n) && n <= MAX_WIDTH) {
        if (residual)
            cuda_add_rms_norm(&launch, out.data, x.data, residual, kernel_norm(norm), rows, n);
        else
            cuda_rms_norm(&launch, out.data, x.data, kernel_norm(norm), rows, n);
        return;
    }
    const struct plain_norm args = {
        .out = out.data,
        .residual = residual,
        .x = x.data,
        .weight = norm.weight,
        .eps = norm.eps,
        .offset = norm.weight_offset,
        .rows = rows,
        .n = n,
        .out_stride = out.row_stride,
        .x_stride = x.row_stride,
    };
    plain_rms_norm(&launch, &args);
}

static void table_rms_norm(struct device *dev, struct tensor out, struct tensor x,
                           struct norm_params norm)
{
    apply_norm(dev, out, x, NULL, norm);
}

static void table_add_rms_norm(struct device *dev, struct tensor x, struct tensor residual,
                               struct norm_params norm)
{
    apply_norm(dev, x, x, residual.data, norm);
}

static void table_add_post_norm(struct device *dev, struct tensor x, struct tensor residual,
                                struct norm_params post, struct norm_params pre)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    cuda_add_post_norm(&launch, x.data, residual.data, kernel_norm(post), kernel_norm(pre),
                       (int32_t)x.shape[0], (int32_t)x.shape[1]);
}

// Up to so many rows the kernel for few rows is the fastest, then the one for a batch that decodes,
// then cuBLASLt. Small matrices are read so fast that starting and ending is what counts: a launch
// less, of the norm that the first kernel does too, and the fewer copies of x that the third makes.
enum {
    MAX_GEMV_ROWS = 8,
    MAX_GEMV_ROWS_SMALL = GEMV_MAX_ROWS,
    MAX_SKINNY_ROWS = SKINNY_GEMM_MAX_ROWS,
    MAX_SKINNY_ROWS_SMALL = 64,
};

static bool is_small(const struct weight *w)
{
    enum { MAX_ELEMENTS = 8 << 20 };
    return w->out_features * w->in_features <= MAX_ELEMENTS;
}

static bool takes_gemv(int64_t rows, const struct weight *w, bool is_swiglu)
{
    return rows <= (is_small(w) ? MAX_GEMV_ROWS_SMALL : MAX_GEMV_ROWS) &&
           gemv_supports((int32_t)rows, (int32_t)w->out_features, (int32_t)w->in_features,
                         is_swiglu);
}

static bool takes_skinny_gemm(int64_t rows, const struct weight *w, bool is_swiglu)
{
    return rows <= (is_small(w) ? MAX_SKINNY_ROWS_SMALL : MAX_SKINNY_ROWS) &&
           skinny_gemm_supports((int32_t)rows, (int32_t)w->out_features, (int32_t)w->in_features,
                                is_swiglu);
}

struct gemv_args cuda_product_args(struct tensor out, struct tensor x, const struct weight *w)
{
    return (struct gemv_args){
        .out = out.data,
        .x = x.data,
        .weight = w->data,
        .bias = w->bias,
        .x_stride = x.shape[1],
        .num_rows = (int32_t)x.shape[0],
        .n = (int32_t)w->out_features,
        .k = (int32_t)w->in_features,
        .out_is_f32 = out.dtype == DTYPE_F32,
    };
}

struct gemv_args cuda_fused_product_args(struct tensor out, struct tensor x, const struct weight *w,
                                         const struct matmul_fusion *fusion)
{
    struct gemv_args args = cuda_product_args(out, x, w);
    args.residual = fusion->adds ? out.data : NULL;
    args.norm_weight = fusion->norm.weight;
    args.norm_eps = fusion->norm.eps;
    args.is_swiglu = fusion->is_swiglu;
    return args;
}

/** Rows that begin at odd addresses have cuBLASLt take kernels of older tensor cores, which add up
 *  in another order. */
static enum sum_order sum_order_of(const struct device *dev, struct tensor out,
                                   const struct weight *w)
{
    enum { BULK_BYTES = 16 };
    if (!dev->is_batch_invariant)
        return SUM_ANY;
    bool is_bulk = w->in_features * (int64_t)sizeof(uint16_t) % BULK_BYTES == 0 &&
                   out.row_stride * (int64_t)dtype_size(out.dtype) % BULK_BYTES == 0 &&
                   (uintptr_t)out.data % BULK_BYTES == 0;
    return is_bulk && cuda_backend_of(dev)->sums_agree ? SUM_WHOLE : SUM_ONE_KERNEL;
}

static void table_matmul(struct device *dev, struct tensor out, struct tensor x,
                         const struct weight *w)
{
    if (w->form == WEIGHT_F8_E4M3) {
        cuda_f8_matmul(dev, out, x, w);
        return;
    }
    assert(w->form == cuda_dense_form(dev));
    struct cuda_backend *cuda = cuda_backend_of(dev);
    const struct cuda_launch launch = cuda_launch_of(dev);
    struct gemv_args args = cuda_product_args(out, x, w);
    const enum sum_order order = sum_order_of(dev, out, w);
    args.is_whole = order == SUM_WHOLE;
    bool is_dense = tensor_is_dense(out);
    if (is_dense && order == SUM_ANY && takes_gemv(x.shape[0], w, false)) {
        gemv(&launch, &args);
        return;
    }
    if (is_dense && order != SUM_ONE_KERNEL && takes_skinny_gemm(x.shape[0], w, false) &&
        skinny_gemm(&launch, &args))
        return;
    const char *bias = w->bias;
    cublaslt_matmul(cuda, out, x, w->data, bias ? bias + cuda_f32_bias_bytes(w) : NULL, order);
}

static bool table_fuses_matmul(const struct device *dev, int64_t rows, const struct weight *w,
                               const struct matmul_fusion *fusion)
{
    if (w->form == WEIGHT_F8_E4M3)
        return cuda_f8_fuses_matmul(dev, rows, w, fusion);
    return !dev->is_batch_invariant && w->form == cuda_dense_form(dev) &&
           fusion->norm.weight_offset == 0 &&
           (takes_gemv(rows, w, fusion->is_swiglu) ||
            (!fusion->norm.weight && takes_skinny_gemm(rows, w, fusion->is_swiglu)));
}

static void table_fused_matmul(struct device *dev, struct tensor out, struct tensor x,
                               const struct weight *w, const struct matmul_fusion *fusion)
{
    assert(table_fuses_matmul(dev, x.shape[0], w, fusion));
    if (w->form == WEIGHT_F8_E4M3) {
        cuda_f8_fused_matmul(dev, out, x, w, fusion);
        return;
    }
    const struct cuda_launch launch = cuda_launch_of(dev);
    const struct gemv_args args = cuda_fused_product_args(out, x, w, fusion);
    if (takes_gemv(x.shape[0], w, fusion->is_swiglu))
        gemv(&launch, &args);
    else if (!skinny_gemm(&launch, &args))
        cuda_note(cuda_backend_of(dev), cudaErrorNotSupported);
}

static void table_silu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    int32_t rows = (int32_t)out.shape[0], n = (int32_t)out.shape[1];
    if (is_vectors(n))
        cuda_act_and_mul(&launch, out.data, gate_up.data, CUDA_ACTIVATION_SILU, rows, n);
    else
        plain_silu_and_mul(&launch, out.data, gate_up.data, rows, n);
}

static void table_gelu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    int32_t rows = (int32_t)out.shape[0], n = (int32_t)out.shape[1];
    if (is_vectors(n))
        cuda_act_and_mul(&launch, out.data, gate_up.data, CUDA_ACTIVATION_GELU_TANH, rows, n);
    else
        plain_gelu_and_mul(&launch, out.data, gate_up.data, rows, n);
}

static void table_soft_cap(struct device *dev, struct tensor x, float cap)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    cuda_soft_cap(&launch, x.data, cap, tensor_numel(x));
}

// What lies in the step's arrays is what the kernel reads.
static_assert(sizeof(struct sample_params) == sizeof(struct cuda_sampling_row) &&
                  offsetof(struct sample_params, seed) ==
                      offsetof(struct cuda_sampling_row, seed) &&
                  offsetof(struct sample_params, num_logprobs) ==
                      offsetof(struct cuda_sampling_row, num_logprobs) &&
                  offsetof(struct sample_params, num_tokens) ==
                      offsetof(struct cuda_sampling_row, num_tokens) &&
                  offsetof(struct sample_params, mask) == offsetof(struct cuda_sampling_row, mask),
              "struct sample_params and struct cuda_sampling_row are one");
static_assert((int)MAX_DEVICE_LOGPROBS == (int)CUDA_MAX_LOGPROBS, "what the kernel gives");

static void table_sample(struct device *dev, int32_t *token_ids, struct tensor logits,
                         const struct sample_params *params)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    cuda_sample(&launch, token_ids, logits.data, logits.row_stride,
                (const struct cuda_sampling_row *)params, (int32_t)logits.shape[0],
                (int32_t)logits.shape[1]);
}

static void table_sample_logprobs(struct device *dev, const struct sampled_logprobs *out,
                                  const int32_t *token_ids, struct tensor logits,
                                  const struct sample_params *params)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    cuda_sample_logprobs(&launch, out->token_ids, out->logprobs, out->ranks, token_ids, logits.data,
                         logits.row_stride, (const struct cuda_sampling_row *)params,
                         (int32_t)logits.shape[0], (int32_t)logits.shape[1]);
}

static void table_take_tokens(struct device *dev, int32_t *token_ids, const int32_t *indices,
                              const int32_t *drawn, int32_t num_tokens)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    plain_take_tokens(&launch, token_ids, indices, drawn, num_tokens);
}

static void table_make_up(struct device *dev, void *dst, const void *levels, uint64_t key,
                          size_t count)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    plain_make_up(&launch, dst, levels, key, count);
}

void cuda_ops_fill(struct ops *ops)
{
    ops->prepare_weight = cuda_prepare_weight;
    ops->embedding = table_embedding;
    ops->rms_norm = table_rms_norm;
    ops->add_rms_norm = table_add_rms_norm;
    ops->add_post_norm = table_add_post_norm;
    ops->matmul = table_matmul;
    ops->fuses_matmul = table_fuses_matmul;
    ops->fused_matmul = table_fused_matmul;
    ops->prepare_qkv = cuda_prepare_qkv;
    ops->attention = cuda_attention;
    ops->silu_and_mul = table_silu_and_mul;
    ops->gelu_and_mul = table_gelu_and_mul;
    ops->soft_cap = table_soft_cap;
    cuda_experts_fill(ops);
    ops->gather_rows = table_gather_rows;
    ops->sample = table_sample;
    ops->sample_logprobs = table_sample_logprobs;
    ops->take_tokens = table_take_tokens;
    ops->make_up = table_make_up;
}
