// Products with weights of e4m3. Which way is taken depends on the number of rows:
//
//  - few: our own kernel, which widens elements on their way into the tensor cores and leaves the
//    activations as they are. Reading the weight is what bounds it;
//  - a batch that decodes: activations become e4m3 as well, and skinny_gemm_f8() multiplies both;
//  - more: cuBLASLt does;
//  - where activations are to stay as they are, or the library does not take the shape: a part of
//    the weight after the other is written out in full and multiplied as an ordinary one.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_sizes.h"

enum {
    MAX_WIDENING_ROWS = 64, // in groups of GEMV_MAX_ROWS, of which each reads the weight
    ROW_UNIT = 4,           // of products by blocks
};

// ---- Memory --------------------------------------------------------------------------------

static enum status take_scratch(struct cuda_backend *cuda, size_t size_bytes, struct error *err)
{
    if (size_bytes <= cuda->f8_scratch_bytes)
        return STATUS_OK;
    if (cuda->f8_scratch)
        cuda_note(cuda, cudaFree(cuda->f8_scratch)); // waits for what uses it
    cuda->f8_scratch = NULL;
    cuda->f8_scratch_bytes = 0;
    if (cudaMalloc(&cuda->f8_scratch, size_bytes) != cudaSuccess) {
        (void)cudaGetLastError(); // told by the status
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%zu bytes of GPU memory for products of 8 bits were refused", size_bytes);
    }
    cuda->f8_scratch_bytes = size_bytes;
    return STATUS_OK;
}

enum status cuda_f8_reserve(struct device *dev, const struct backend_needs *needs,
                            struct error *err)
{
    return take_scratch(cuda_backend_of(dev), cuda_f8_bytes(needs), err);
}

static enum sum_order order_of(const struct device *dev)
{
    return dev->is_batch_invariant ? SUM_ONE_KERNEL : SUM_ANY;
}

/** Memory for scales. They are small beside their elements, and CUDA allocates two megabytes at a
 *  time, of which an allocation of both would waste most. */
struct f8_chunk {
    struct f8_chunk *next;
    char *memory;
    size_t used_bytes;
};

enum { CHUNK_BYTES = 2 << 20 };

static char *take_scales(struct cuda_backend *cuda, size_t size_bytes)
{
    struct f8_chunk *chunk = cuda->f8_chunks;
    if (!chunk || size_bytes > CHUNK_BYTES - chunk->used_bytes) {
        void *memory = NULL;
        size_t chunk_bytes = size_bytes > CHUNK_BYTES ? size_bytes : CHUNK_BYTES;
        if (cudaMalloc(&memory, chunk_bytes) != cudaSuccess) {
            (void)cudaGetLastError(); // told by the NULL
            return NULL;
        }
        chunk = xmalloc(sizeof(*chunk));
        *chunk = (struct f8_chunk){.next = cuda->f8_chunks, .memory = memory};
        cuda->f8_chunks = chunk;
    }
    char *taken = chunk->memory + chunk->used_bytes;
    chunk->used_bytes = size_bytes > CHUNK_BYTES ? CHUNK_BYTES : chunk->used_bytes + size_bytes;
    return taken;
}

void cuda_f8_close(struct cuda_backend *cuda)
{
    while (cuda->f8_chunks) {
        struct f8_chunk *chunk = cuda->f8_chunks;
        cuda->f8_chunks = chunk->next;
        cudaFree(chunk->memory);
        free(chunk);
    }
    if (cuda->f8_scratch)
        cudaFree(cuda->f8_scratch);
}

enum status cuda_f8_prepare(struct device *dev, struct weight *w, struct error *err)
{
    const float *from = w->scales.values;
    size_t size_bytes = cuda_scale_bytes(w);
    char *to = take_scales(cuda_backend_of(dev), size_bytes);
    int32_t pitch = cuda_block_pitch(w), own_pitch = w->scales.block_pitch;
    if (!to)
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%zu bytes of GPU memory for a weight's scales were refused", size_bytes);
    if (pitch == 0) {
        dev->ops.copy_in(dev, to, from, (size_t)w->out_features * sizeof(float));
    } else {
        int64_t rows = ceil_div(w->out_features, WEIGHT_BLOCK);
        float *padded = xcalloc((size_t)(rows * pitch), sizeof(float));
        for (int64_t row = 0; row < rows; row++)
            memcpy(padded + row * pitch, from + row * own_pitch, (size_t)own_pitch * sizeof(float));
        dev->ops.copy_in(dev, to, padded, (size_t)(rows * pitch) * sizeof(float));
        free(padded);
    }
    w->scales.values = (const float *)to;
    w->scales.block_pitch = pitch;
    return STATUS_OK;
}

/** Scratch for one product; NULL and a failure noted if there is none. */
static char *scratch_for(struct cuda_backend *cuda, const struct f8_scratch_layout *layout)
{
    if (take_scratch(cuda, layout->size_bytes, NULL) != STATUS_OK)
        cuda_note(cuda, cudaErrorMemoryAllocation);
    return cuda->f8_scratch;
}

// ---- Products ------------------------------------------------------------------------------

static struct f8_scales scales_of(const struct weight *w)
{
    return (struct f8_scales){w->scales.values, w->scales.block_pitch};
}

/** The bias in the type of activations. */
static const char *narrow_bias(const struct weight *w)
{
    return w->bias ? (const char *)w->bias + cuda_f32_bias_bytes(w) : NULL;
}

/** Groups of rows, each of which reads the weight anew. */
static void multiply_widening(struct device *dev, struct tensor out, struct tensor x,
                              const struct weight *w)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    for (int64_t row = 0; row < x.shape[0]; row += GEMV_MAX_ROWS) {
        int64_t count = min_i64(GEMV_MAX_ROWS, x.shape[0] - row);
        const struct gemv_args args =
            cuda_product_args(tensor_rows(out, row, count), tensor_rows(x, row, count), w);
        gemv_f8(&launch, &args, scales_of(w));
    }
}

/** x as e4m3 in scratch. */
struct quantized {
    const char *codes;   // NULL: there is no scratch
    const float *scales; // [rows], or of blocks [ceil(k / 128), pitch]
};

static struct quantized quantize(struct device *dev, struct tensor x, const struct weight *w,
                                 const struct f8_scratch_layout *layout, int64_t pitch)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    char *scratch = scratch_for(cuda_backend_of(dev), layout);
    if (!scratch)
        return (struct quantized){NULL, NULL};
    const struct f8_quantize_args args = {
        .out = scratch,
        .scales = (float *)(scratch + layout->scales_at),
        .x = x.data,
        .scale = w->scales.input_scale,
        .rows = (int32_t)x.shape[0],
        .k = (int32_t)w->in_features,
        .scale_pitch = (int32_t)pitch,
        .is_grouped = w->scales.block_pitch > 0,
    };
    f8_quantize(&launch, &args);
    return (struct quantized){scratch, args.scales};
}

static bool takes_skinny_gemm(const struct device *dev, int64_t rows, const struct weight *w,
                              bool is_swiglu)
{
    return !dev->is_batch_invariant && w->scales.quantizes_input &&
           skinny_gemm_f8_supports((int32_t)rows, (int32_t)w->out_features, (int32_t)w->in_features,
                                   is_swiglu, w->scales.block_pitch > 0);
}

/** Quantises x, and multiplies it as `args` say besides x. */
static void multiply_skinny(struct device *dev, struct tensor x, const struct weight *w,
                            const struct gemv_args *args)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    int64_t rows = x.shape[0], pitch = ceil_div(rows, F8_SCALE_ROWS) * F8_SCALE_ROWS;
    const struct f8_scratch_layout layout = f8_scratch_layout(rows, w->in_features, args->n);
    const struct quantized q = quantize(dev, x, w, &layout, pitch);
    if (!q.codes)
        return;
    struct gemv_args product = *args;
    product.x = q.codes;
    product.x_stride = w->in_features;
    const struct f8_scales x_scales = {q.scales, w->scales.block_pitch > 0 ? (int32_t)pitch : 0};
    if (!skinny_gemm_f8(&launch, &product, scales_of(w), x_scales))
        cuda_note(cuda_backend_of(dev), cudaErrorNotSupported);
}

/** Quantises x and multiplies it; with blocks, as many rows as the library takes, of which what is
 *  more than x has goes to scratch. */
static void multiply_quantized(struct device *dev, struct tensor out, struct tensor x,
                               const struct weight *w)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    int64_t rows = x.shape[0], k = w->in_features;
    bool has_blocks = w->scales.block_pitch > 0;
    const struct f8_scratch_layout layout = f8_scratch_layout(rows, k, w->out_features);
    int64_t taken = has_blocks ? ceil_div(rows, ROW_UNIT) * ROW_UNIT : rows;
    const struct quantized q = quantize(dev, x, w, &layout, taken);
    if (!q.codes)
        return;
    const struct cublaslt_f8 f8 = {
        .weight = w->data,
        .x = q.codes,
        .weight_scales = w->scales.values,
        .x_scales = q.scales,
        .has_blocks = has_blocks,
    };
    struct tensor to = out;
    if (taken != rows)
        to = tensor_2d((char *)cuda->f8_scratch + layout.out_at, out.dtype, taken, out.shape[1]);
    cublaslt_matmul_f8(cuda, to, &f8, k, narrow_bias(w), order_of(dev));
    size_t row_bytes = (size_t)out.shape[1] * dtype_size(out.dtype);
    if (taken != rows)
        dev->ops.copy_rows(dev, out.data, (size_t)out.row_stride * dtype_size(out.dtype), to.data,
                           row_bytes, row_bytes, (size_t)rows);
}

/** Writes out as much of the weight as fits into scratch, multiplies it, and goes on. */
static void multiply_written_out(struct device *dev, struct tensor out, struct tensor x,
                                 const struct weight *w)
{
    enum { UNIT = 16 }; // weights, so that results and biases stay aligned
    struct cuda_backend *cuda = cuda_backend_of(dev);
    const struct cuda_launch launch = cuda_launch_of(dev);
    const struct f8_scratch_layout layout = {.size_bytes = F8_WIDE_BYTES};
    char *scratch = scratch_for(cuda, &layout);
    int64_t fitting = F8_WIDE_BYTES / (w->in_features * (int64_t)sizeof(uint16_t));
    const char *bias = narrow_bias(w);
    if (!scratch)
        return;
    fitting = max_i64(fitting / UNIT, 1) * UNIT;
    for (int64_t first = 0; first < w->out_features; first += fitting) {
        int64_t count = min_i64(fitting, w->out_features - first);
        f8_dequantize(&launch, scratch, w->data, scales_of(w), first, count, w->in_features);
        cublaslt_matmul(cuda, tensor_columns(out, first, count), x, scratch,
                        bias ? bias + first * (int64_t)sizeof(uint16_t) : NULL, order_of(dev));
    }
}

void cuda_f8_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    const struct gemv_args one_row =
        cuda_product_args(tensor_rows(out, 0, 1), tensor_rows(x, 0, 1), w);
    bool quantizes = w->scales.quantizes_input && cublaslt_supports_f8(out, w->in_features);
    bool widens =
        !dev->is_batch_invariant && tensor_is_dense(out) && gemv_f8_supports(&launch, &one_row);
    int64_t rows = x.shape[0];
    if (widens && rows <= GEMV_MAX_ROWS) {
        multiply_widening(dev, out, x, w);
    } else if (tensor_is_dense(out) && takes_skinny_gemm(dev, rows, w, false)) {
        const struct gemv_args args = cuda_product_args(out, x, w);
        multiply_skinny(dev, x, w, &args);
    } else if (widens && !quantizes && rows <= MAX_WIDENING_ROWS) {
        multiply_widening(dev, out, x, w);
    } else if (quantizes) {
        // What is left of many rows is multiplied by itself rather than all of them copied.
        bool has_blocks = w->scales.block_pitch > 0;
        int64_t whole = rows;
        if (has_blocks && rows > F8_MAX_PADDED_ROWS)
            whole = rows / ROW_UNIT * ROW_UNIT;
        multiply_quantized(dev, tensor_rows(out, 0, whole), tensor_rows(x, 0, whole), w);
        if (whole < rows)
            multiply_quantized(dev, tensor_rows(out, whole, rows - whole),
                               tensor_rows(x, whole, rows - whole), w);
    } else {
        multiply_written_out(dev, out, x, w);
    }
}

// ---- Fused products ------------------------------------------------------------------------

bool cuda_f8_fuses_matmul(const struct device *dev, int64_t rows, const struct weight *w,
                          const struct matmul_fusion *fusion)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    const struct tensor x = tensor_2d(NULL, dev->activation_dtype, rows, w->in_features);
    const struct tensor out = tensor_2d(NULL, dev->activation_dtype, rows, w->out_features);
    const struct gemv_args args = cuda_fused_product_args(out, x, w, fusion);
    if (dev->is_batch_invariant || fusion->norm.weight_offset != 0)
        return false;
    if (rows <= GEMV_MAX_ROWS)
        return gemv_f8_supports(&launch, &args);
    return !fusion->norm.weight && takes_skinny_gemm(dev, rows, w, fusion->is_swiglu);
}

void cuda_f8_fused_matmul(struct device *dev, struct tensor out, struct tensor x,
                          const struct weight *w, const struct matmul_fusion *fusion)
{
    const struct cuda_launch launch = cuda_launch_of(dev);
    const struct gemv_args args = cuda_fused_product_args(out, x, w, fusion);
    if (x.shape[0] <= GEMV_MAX_ROWS)
        gemv_f8(&launch, &args, scales_of(w));
    else
        multiply_skinny(dev, x, w, &args);
}
