// The sizes of the CUDA backend: see cuda_sizes.h.
#include "ops/cuda/cuda_sizes.h"

#include "base/memory.h"
#include "ops/cuda/decode_layout.h"
#include "ops/cuda/kernels.h"

enum {
    BIAS_ALIGNMENT = 256,
    // CUDA allocates in such units.
    ALLOCATION_ALIGNMENT = 512,
    HOPPER_SMS = 132, // of an H100 SXM, H200
    // What the driver keeps for an instantiated graph of one decoding step.
    GRAPH_BYTES = 4 << 20,
};

static size_t aligned(size_t size_bytes, size_t alignment)
{
    return (size_bytes + alignment - 1) & ~(alignment - 1);
}

// ---- Weights -------------------------------------------------------------------------------

size_t cuda_element_bytes(const struct weight *w)
{
    return w->form == WEIGHT_F8_E4M3 ? 1 : sizeof(uint16_t);
}

size_t cuda_matrix_bytes(const struct weight *w)
{
    return aligned((size_t)w->out_features * (size_t)w->in_features * cuda_element_bytes(w),
                   BIAS_ALIGNMENT);
}

int32_t cuda_block_pitch(const struct weight *w)
{
    if (w->scales.block_pitch == 0)
        return 0;
    return (int32_t)(ceil_div(ceil_div(w->in_features, WEIGHT_BLOCK), 4) * 4);
}

size_t cuda_scale_bytes(const struct weight *w)
{
    size_t rows = (size_t)w->out_features, pitch = (size_t)cuda_block_pitch(w);
    if (w->form != WEIGHT_F8_E4M3)
        return 0;
    if (pitch > 0)
        rows = (rows + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK * pitch;
    return aligned(rows * sizeof(float), BIAS_ALIGNMENT);
}

size_t cuda_f32_bias_bytes(const struct weight *w)
{
    return aligned((size_t)w->out_features * sizeof(float), BIAS_ALIGNMENT);
}

static size_t prepared_weight_bytes(const struct device *dev, const struct weight *w)
{
    (void)dev;
    return cuda_matrix_bytes(w) + cuda_scale_bytes(w); // the store counts the bias, as float32
}

// ---- Attention -----------------------------------------------------------------------------

bool cuda_attention_supports(int32_t head_dim, int32_t block_size)
{
    return (head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128 ||
            head_dim == 256) &&
           block_size > 0 && block_size % CUDA_PAGE == 0;
}

int32_t decode_row_groups(int32_t num_heads, int32_t num_kv_heads)
{
    return (num_heads / num_kv_heads + 15) / 16;
}

int32_t attention_decode_num_ctas(int32_t num_sms, int32_t num_kv_heads, int32_t num_heads)
{
    return max_i32(1, 2 * num_sms / (num_kv_heads * decode_row_groups(num_heads, num_kv_heads)));
}

static size_t max_segments(int32_t max_seqs, int32_t num_ctas)
{
    return (size_t)max_seqs + (size_t)num_ctas;
}

size_t attention_decode_plan_bytes(int32_t max_seqs, int32_t num_ctas)
{
    return (size_t)DECODE_PLAN_HEADER_WORDS(num_ctas) * sizeof(int32_t) +
           max_segments(max_seqs, num_ctas) * sizeof(struct decode_segment);
}

size_t attention_decode_scratch_bytes(const struct attention_decode_plan *plan, int32_t num_heads,
                                      int32_t head_dim)
{
    size_t sums = max_segments(plan->max_seqs, plan->num_ctas) * (size_t)num_heads;
    return sizeof(float) * (DECODE_SUMS_OFFSET(plan->max_seqs, plan->num_ctas, num_heads) +
                            sums * (size_t)head_dim);
}

struct f8_scratch_layout f8_scratch_layout(int64_t rows, int64_t in_features, int64_t out_features)
{
    size_t padded_rows = (size_t)ceil_div(rows, 4) * 4, cols = (size_t)in_features;
    size_t groups = (size_t)ceil_div(in_features, WEIGHT_BLOCK);
    size_t scale_rows = (size_t)ceil_div(rows, F8_SCALE_ROWS) * F8_SCALE_ROWS;
    struct f8_scratch_layout layout = {.scales_at =
                                           aligned(padded_rows * cols, ALLOCATION_ALIGNMENT)};
    layout.out_at =
        layout.scales_at + aligned(scale_rows * groups * sizeof(float), ALLOCATION_ALIGNMENT);
    size_t out_rows = (size_t)min_i64((int64_t)padded_rows, F8_MAX_PADDED_ROWS);
    layout.size_bytes = layout.out_at + aligned(out_rows * (size_t)out_features * sizeof(uint16_t),
                                                ALLOCATION_ALIGNMENT);
    if (layout.size_bytes < F8_WIDE_BYTES)
        layout.size_bytes = F8_WIDE_BYTES;
    return layout;
}

size_t cuda_f8_bytes(const struct backend_needs *needs)
{
    if (needs->f8_in_features == 0)
        return 0;
    return f8_scratch_layout(needs->max_tokens, needs->f8_in_features, needs->f8_out_features)
        .size_bytes;
}

size_t cuda_backend_bytes(const struct backend_needs *needs, int32_t num_sms)
{
    size_t bytes = CUBLASLT_WORKSPACE_BYTES + cuda_f8_bytes(needs);
    if (!cuda_attention_supports(needs->head_dim, needs->block_size))
        return bytes; // kernels for any shape keep nothing
    const struct attention_decode_plan plan = {
        .max_seqs = needs->max_seqs,
        .num_ctas = attention_decode_num_ctas(num_sms, needs->num_kv_heads, needs->num_heads),
    };
    size_t plan_bytes = attention_decode_plan_bytes(plan.max_seqs, plan.num_ctas);
    size_t scratch_bytes = attention_decode_scratch_bytes(&plan, needs->num_heads, needs->head_dim);
    return bytes + (size_t)min_i32(needs->num_windows, MAX_DECODE_PLANS) *
                       (aligned(plan_bytes, ALLOCATION_ALIGNMENT) +
                        aligned(scratch_bytes, ALLOCATION_ALIGNMENT));
}

// ---- A GPU to plan for ---------------------------------------------------------------------

static size_t own_bytes(const struct device *dev, const struct backend_needs *needs)
{
    (void)dev;
    return cuda_backend_bytes(needs, HOPPER_SMS);
}

void cuda_device_init_planned(struct device *dev, int32_t num_threads)
{
    *dev = (struct device){
        .kind = DEVICE_CUDA,
        .activation_dtype = DTYPE_BF16,
        .num_threads = max_i32(num_threads, 1),
        .max_sampled_vocab = CUDA_MAX_SAMPLED_VOCAB,
        .recording_bytes = GRAPH_BYTES,
        .ops = {.name = "cuda/planned",
                .own_bytes = own_bytes,
                .prepared_weight_bytes = prepared_weight_bytes},
    };
}
