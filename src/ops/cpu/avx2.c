// The AVX2 backend's small operations and its table. Whole vectors and the masked rest of a row go
// through the same arithmetic.
#if defined(__x86_64__)
#include <math.h>

#include "ops/cpu/avx2_math.h"

void avx2_unpack(enum weight_form form, float *out, const void *data, int64_t n)
{
    int64_t whole = n / LANES * LANES;
    if (form == WEIGHT_BF16) {
        for (int64_t i = 0; i < whole; i += LANES)
            _mm256_storeu_ps(out + i, load8(WEIGHT_BF16, data, i));
    } else if (form == WEIGHT_F16) {
        for (int64_t i = 0; i < whole; i += LANES)
            _mm256_storeu_ps(out + i, load8(WEIGHT_F16, data, i));
    } else {
        memcpy(out, data, (size_t)whole * sizeof(float));
    }
    for (int64_t i = whole; i < n; i++)
        out[i] = cpu_load(form, data, i);
}

// Eight at a time: shifted into place, e4m3 numbers are f16 numbers of 2^-8 times the value,
// exactly, subnormal ones too.
void avx2_unpack_f8(float *out, const uint8_t *data, float scale, int64_t n)
{
    const __m256 factor = _mm256_set1_ps(256.0f * scale);
    const __m128i magnitude_bits = _mm_set1_epi16(0x7F);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i_u *)(data + i)));
        __m128i magnitude = _mm_and_si128(wide, magnitude_bits);
        __m128i sign = _mm_slli_epi16(_mm_andnot_si128(magnitude_bits, wide), 8);
        __m128i half = _mm_or_si128(sign, _mm_slli_epi16(magnitude, 7));
        half = _mm_or_si128(half, _mm_cmpeq_epi16(magnitude, magnitude_bits)); // NaN stays NaN
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_cvtph_ps(half), factor));
    }
    for (; i < n; i++)
        out[i] = f8_e4m3_to_f32(data[i]) * scale;
}

static void scale_row(float *x, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= scale;
}

static void avx2_embedding(struct device *dev, struct tensor out, struct tensor table,
                           const int32_t *ids, float scale)
{
    int64_t num_tokens = out.shape[0], hidden = out.shape[1];
    enum weight_form form = weight_form_of(table.dtype);
    int threads = cpu_threads_for(dev, num_tokens * hidden);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < num_tokens; t++) {
        CHECK(ids[t] >= 0 && ids[t] < table.shape[0]);
        float *row = (float *)out.data + t * hidden;
        avx2_unpack(form, row, (const char *)table.data + ids[t] * hidden * weight_form_bytes(form),
                    hidden);
        if (scale != 1.0f)
            scale_row(row, scale, hidden);
    }
}

/** Sum of squares in 32 lanes, folded in a fixed order. */
static float sum_of_squares(const float *x, int64_t n)
{
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        __m256 x0 = _mm256_loadu_ps(x + i), x1 = _mm256_loadu_ps(x + i + LANES);
        __m256 x2 = _mm256_loadu_ps(x + i + 2 * LANES), x3 = _mm256_loadu_ps(x + i + 3 * LANES);
        a = _mm256_fmadd_ps(x0, x0, a);
        b = _mm256_fmadd_ps(x1, x1, b);
        c = _mm256_fmadd_ps(x2, x2, c);
        d = _mm256_fmadd_ps(x3, x3, d);
    }
    for (; i < n; i += LANES) {
        __m256 x0 = _mm256_maskload_ps(x + i, lane_mask(n - i));
        a = _mm256_fmadd_ps(x0, x0, a);
    }
    return sum_lanes(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
}

static void norm_row(float *out, const float *x, int64_t n, struct norm_params norm)
{
    const float *weight = norm.weight;
    __m256 scale = _mm256_set1_ps(1.0f / sqrtf(sum_of_squares(x, n) / (float)n + norm.eps));
    __m256 offset = _mm256_set1_ps(norm.weight_offset);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale);
        __m256 w = _mm256_add_ps(offset, _mm256_loadu_ps(weight + i));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(y, w));
    }
    if (i < n) {
        __m256i mask = lane_mask(n - i);
        __m256 y = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), scale);
        y = _mm256_mul_ps(y, _mm256_add_ps(offset, _mm256_maskload_ps(weight + i, mask)));
        _mm256_maskstore_ps(out + i, mask, y);
    }
}

static void avx2_rms_norm(struct device *dev, struct tensor out, struct tensor x,
                          struct norm_params norm)
{
    int64_t rows = x.shape[0], n = x.shape[1];
    int threads = cpu_threads_for(dev, rows * n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++)
        norm_row((float *)out.data + r * out.row_stride, (const float *)x.data + r * x.row_stride,
                 n, norm);
}

static void add_row(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void avx2_add_rms_norm(struct device *dev, struct tensor x, struct tensor residual,
                              struct norm_params norm)
{
    int64_t rows = x.shape[0], n = x.shape[1];
    int threads = cpu_threads_for(dev, 2 * rows * n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        float *x_row = (float *)x.data + r * n, *residual_row = (float *)residual.data + r * n;
        add_row(residual_row, x_row, n);
        norm_row(x_row, residual_row, n, norm);
    }
}

static void avx2_add_post_norm(struct device *dev, struct tensor x, struct tensor residual,
                               struct norm_params post, struct norm_params pre)
{
    int64_t rows = x.shape[0], n = x.shape[1];
    int threads = cpu_threads_for(dev, 3 * rows * n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        float *x_row = (float *)x.data + r * n, *residual_row = (float *)residual.data + r * n;
        norm_row(x_row, x_row, n, post);
        add_row(residual_row, x_row, n);
        if (pre.weight)
            norm_row(x_row, residual_row, n, pre);
    }
}

static void avx2_head_rms_norm(struct device *dev, struct tensor x, int32_t head_dim,
                               struct norm_params norm)
{
    int64_t num_heads = x.shape[1] / head_dim, num_items = x.shape[0] * num_heads;
    int threads = cpu_threads_for(dev, num_items * head_dim);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < num_items; i++) {
        float *head = (float *)x.data + i / num_heads * x.row_stride + i % num_heads * head_dim;
        norm_row(head, head, head_dim, norm);
    }
}

static void write_f16(uint16_t *out, const float *src, int32_t n)
{
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm_storeu_si128((__m128i_u *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        out[i] = f32_to_f16(src[i]);
}

static void write_elements(void *dst, enum dtype dtype, float scale, const float *src, int32_t n)
{
    if (dtype == DTYPE_F8_E4M3) {
        cpu_write_f8(dst, src, scale, n);
    } else if (dtype == DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof(float));
    } else if (dtype == DTYPE_F16) {
        write_f16(dst, src, n);
    } else {
        uint16_t *out = dst;
        for (int32_t i = 0; i < n; i++)
            out[i] = f32_to_bf16(src[i]);
    }
}

static void avx2_prepare_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                             const struct qkv_params *params, const int32_t *positions,
                             const int64_t *slot_mapping)
{
    static const struct cpu_qkv_parts parts = {avx2_head_rms_norm, write_elements};
    cpu_prepare_qkv(dev, qkv, cache, params, positions, slot_mapping, &parts);
}

ALWAYS_INLINE __m256 silu_and_mul8(__m256 gate, __m256 up)
{
    __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), gate));
    __m256 silu = _mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
    return _mm256_mul_ps(silu, up);
}

/** x/2 (1 + tanh(y)) is x / (1 + e^(-2y)), which does not cancel where tanh is near -1. */
ALWAYS_INLINE __m256 gelu_and_mul8(__m256 gate, __m256 up)
{
    const float minus_two_roots = -1.5957691216057308f; // -2 sqrt(2 / pi)
    __m256 square = _mm256_mul_ps(gate, gate);
    __m256 inner = _mm256_fmadd_ps(_mm256_set1_ps(0.044715f), square, _mm256_set1_ps(1.0f));
    inner = _mm256_mul_ps(_mm256_mul_ps(gate, inner), _mm256_set1_ps(minus_two_roots));
    __m256 gelu = _mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(inner)));
    return _mm256_mul_ps(gelu, up);
}

ALWAYS_INLINE void act_and_mul(struct device *dev, struct tensor out, struct tensor gate_up,
                               __m256 (*act_and_mul8)(__m256 gate, __m256 up))
{
    int64_t rows = out.shape[0], n = out.shape[1];
    int threads = cpu_threads_for(dev, rows * n * 4);
    int64_t piece = 512, num_pieces = ceil_div(n, piece); // so that one row feeds every thread
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t item = 0; item < rows * num_pieces; item++) {
        int64_t row = item / num_pieces;
        int64_t i = item % num_pieces * piece, end = min_i64(i + piece, n);
        const float *gate = (const float *)gate_up.data + row * 2 * n, *up = gate + n;
        float *to = (float *)out.data + row * n;
        for (; i + LANES <= end; i += LANES)
            _mm256_storeu_ps(to + i,
                             act_and_mul8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
        if (i < end) {
            __m256i mask = lane_mask(end - i);
            _mm256_maskstore_ps(
                to + i, mask,
                act_and_mul8(_mm256_maskload_ps(gate + i, mask), _mm256_maskload_ps(up + i, mask)));
        }
    }
}

static void avx2_silu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    act_and_mul(dev, out, gate_up, silu_and_mul8);
}

static void avx2_gelu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    act_and_mul(dev, out, gate_up, gelu_and_mul8);
}

static void avx2_soft_cap(struct device *dev, struct tensor x, float cap)
{
    int64_t n = tensor_numel(x), piece = 4096, num_pieces = ceil_div(n, piece);
    float *values = x.data;
    int threads = cpu_threads_for(dev, n * 4);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t item = 0; item < num_pieces; item++) {
        int64_t i = item * piece, end = min_i64(i + piece, n);
        for (; i + LANES <= end; i += LANES)
            _mm256_storeu_ps(values + i, soft_cap8(_mm256_loadu_ps(values + i), cap));
        if (i < end) {
            __m256i mask = lane_mask(end - i);
            _mm256_maskstore_ps(values + i, mask,
                                soft_cap8(_mm256_maskload_ps(values + i, mask), cap));
        }
    }
}

void cpu_ops_avx2(struct ops *ops)
{
    ops->name = "cpu/avx2";
    ops->embedding = avx2_embedding;
    ops->rms_norm = avx2_rms_norm;
    ops->add_rms_norm = avx2_add_rms_norm;
    ops->add_post_norm = avx2_add_post_norm;
    ops->matmul = avx2_matmul;
    ops->prepare_qkv = avx2_prepare_qkv;
    ops->attention = avx2_attention;
    ops->silu_and_mul = avx2_silu_and_mul;
    ops->gelu_and_mul = avx2_gelu_and_mul;
    ops->soft_cap = avx2_soft_cap;
}
#else
typedef int avx2_is_for_x86_only; // a translation unit must not be empty
#endif
