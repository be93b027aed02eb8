// Portable C for every operation: the reference for all faster code, and the backend of machines
// that have none. Sums run in index order in double precision; each row is computed on its own.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>
#include <sys/mman.h>

#include "ops/cpu/cpu_ops.h"

enum { HUGE_PAGE_BYTES = 2 * 1024 * 1024, CACHE_LINE_BYTES = 64 };

static void *scalar_alloc(struct device *dev, size_t size_bytes)
{
    (void)dev;
    bool is_huge = size_bytes >= HUGE_PAGE_BYTES;
    void *ptr = NULL;
    if (posix_memalign(&ptr, is_huge ? HUGE_PAGE_BYTES : CACHE_LINE_BYTES,
                       size_bytes ? size_bytes : 1) != 0)
        return NULL;
    if (is_huge) // only advice: without huge pages it is slower and still right
        madvise(ptr, size_bytes, MADV_HUGEPAGE);
    return ptr;
}

static void scalar_free(struct device *dev, void *ptr)
{
    (void)dev;
    free(ptr);
}

static void scalar_copy_in(struct device *dev, void *dst, const void *host_src, size_t size_bytes)
{
    (void)dev;
    if (size_bytes > 0)
        memcpy(dst, host_src, size_bytes);
}

static void scalar_copy_out(struct device *dev, void *host_dst, const void *src, size_t size_bytes)
{
    (void)dev;
    if (size_bytes > 0)
        memcpy(host_dst, src, size_bytes);
}

static enum status scalar_synchronize(struct device *dev, struct error *err)
{
    (void)dev; // every operation has ended when its call returns
    (void)err;
    return STATUS_OK;
}

// Device memory is the host's: copies in the background are copies at once.
static void scalar_set_mark(struct device *dev, int32_t mark)
{
    (void)dev;
    (void)mark;
}

static enum status scalar_wait_mark(struct device *dev, int32_t mark, struct error *err)
{
    (void)mark;
    return scalar_synchronize(dev, err);
}

static bool scalar_passed_mark(struct device *dev, int32_t mark)
{
    (void)dev;
    (void)mark;
    return true; // work is done when it is asked for
}

// Float weights are multiplied where they lie, in the mapped file: nothing to allocate or repack.
static size_t scalar_prepared_weight_bytes(const struct device *dev, const struct weight *w)
{
    (void)dev;
    (void)w;
    return 0;
}

static enum status scalar_prepare_weight(struct device *dev, struct weight *w, struct error *err)
{
    (void)dev;
    (void)err;
    w->is_packed = false;
    return STATUS_OK;
}

static void scalar_embedding(struct device *dev, struct tensor out, struct tensor table,
                             const int32_t *ids, float scale)
{
    int64_t num_tokens = out.shape[0], hidden = out.shape[1];
    enum weight_form form = weight_form_of(table.dtype);
    int threads = cpu_threads_for(dev, num_tokens * hidden);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < num_tokens; t++) {
        CHECK(ids[t] >= 0 && ids[t] < table.shape[0]);
        float *row = (float *)out.data + t * hidden;
        for (int64_t i = 0; i < hidden; i++)
            row[i] = cpu_load(form, table.data, ids[t] * hidden + i) * scale;
    }
}

static void norm_row(float *out, const float *x, int64_t n, struct norm_params norm)
{
    const float *weight = norm.weight;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    float scale = (float)(1.0 / sqrt(sum / (double)n + norm.eps));
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] * scale * (norm.weight_offset + weight[i]);
}

static void scalar_rms_norm(struct device *dev, struct tensor out, struct tensor x,
                            struct norm_params norm)
{
    int64_t rows = x.shape[0], n = x.shape[1];
    int threads = cpu_threads_for(dev, rows * n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++)
        norm_row((float *)out.data + r * out.row_stride, (const float *)x.data + r * x.row_stride,
                 n, norm);
}

static void scalar_add_rms_norm(struct device *dev, struct tensor x, struct tensor residual,
                                struct norm_params norm)
{
    int64_t rows = x.shape[0], n = x.shape[1];
    int threads = cpu_threads_for(dev, rows * n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        float *x_row = (float *)x.data + r * n;
        float *residual_row = (float *)residual.data + r * n;
        for (int64_t i = 0; i < n; i++)
            residual_row[i] += x_row[i];
        norm_row(x_row, residual_row, n, norm);
    }
}

static void scalar_add_post_norm(struct device *dev, struct tensor x, struct tensor residual,
                                 struct norm_params post, struct norm_params pre)
{
    int64_t rows = x.shape[0], n = x.shape[1];
    int threads = cpu_threads_for(dev, rows * n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        float *x_row = (float *)x.data + r * n;
        float *residual_row = (float *)residual.data + r * n;
        norm_row(x_row, x_row, n, post);
        for (int64_t i = 0; i < n; i++)
            residual_row[i] += x_row[i];
        if (pre.weight)
            norm_row(x_row, residual_row, n, pre);
    }
}

static void scalar_head_rms_norm(struct device *dev, struct tensor x, int32_t head_dim,
                                 struct norm_params norm)
{
    int64_t num_heads = x.shape[1] / head_dim, num_tokens = x.shape[0];
    int64_t num_items = num_tokens * num_heads;
    int threads = cpu_threads_for(dev, num_items * head_dim);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < num_items; i++) {
        float *head = (float *)x.data + i / num_heads * x.row_stride + i % num_heads * head_dim;
        norm_row(head, head, head_dim, norm);
    }
}

static void scalar_matmul(struct device *dev, struct tensor out, struct tensor x,
                          const struct weight *w)
{
    int64_t rows = x.shape[0], k = w->in_features, n = w->out_features;
    const float *bias = w->bias;
    int threads = cpu_threads_for(dev, rows * n * k);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows * n; i++) {
        const float *x_row = (const float *)x.data + i / n * k;
        int64_t w_start = i % n * k;
        double sum = 0;
        for (int64_t j = 0; j < k; j++) {
            float element = cpu_load(w->form, w->data, w_start + j);
            if (w->form == WEIGHT_F8_E4M3)
                element *= weight_scale(&w->scales, i % n, j);
            sum += (double)x_row[j] * element;
        }
        ((float *)out.data)[i / n * out.row_stride + i % n] = (float)sum + (bias ? bias[i % n] : 0);
    }
}

// Fused products save launches, which cost nothing here; they are made of their parts, so that the
// same bits come out of every way. As on a GPU, norms are fused for fewer rows than the rest.
static bool scalar_fuses_matmul(const struct device *dev, int64_t rows, const struct weight *w,
                                const struct matmul_fusion *fusion)
{
    enum { MAX_ROWS = 16, MAX_NORMED_ROWS = 8 };
    (void)dev;
    return rows <= (fusion->norm.weight ? MAX_NORMED_ROWS : MAX_ROWS) &&
           (!fusion->is_swiglu || w->out_features % 2 == 0);
}

static struct tensor scratch_matrix(struct device *dev, int64_t rows, int64_t cols)
{
    return tensor_2d(arena_array(&dev->scratch, float, (size_t)(rows * cols)), DTYPE_F32, rows,
                     cols);
}

static void scalar_fused_matmul(struct device *dev, struct tensor out, struct tensor x,
                                const struct weight *w, const struct matmul_fusion *fusion)
{
    struct arena_mark mark = arena_mark(&dev->scratch);
    int64_t rows = x.shape[0];
    struct tensor result = out;
    if (fusion->norm.weight) {
        struct tensor normed = scratch_matrix(dev, rows, x.shape[1]);
        dev->ops.rms_norm(dev, normed, x, fusion->norm);
        x = normed;
    }
    if (fusion->adds)
        result = scratch_matrix(dev, rows, out.shape[1]);
    if (fusion->is_swiglu) {
        struct tensor gate_up = scratch_matrix(dev, rows, w->out_features);
        dev->ops.matmul(dev, gate_up, x, w);
        dev->ops.silu_and_mul(dev, result, gate_up);
    } else {
        dev->ops.matmul(dev, result, x, w);
    }
    for (int64_t i = 0; fusion->adds && i < tensor_numel(out); i++)
        ((float *)out.data)[i] += ((const float *)result.data)[i];
    cpu_scratch_end(&dev->scratch, mark);
}

/** Rotates the first rot_dim dimensions of each head in place, half-split pairs. */
static void rope(struct device *dev, struct tensor x, int32_t head_dim, int32_t rot_dim,
                 const float *cos_sin, const int32_t *positions)
{
    int64_t row_stride = x.row_stride;
    int32_t num_tokens = (int32_t)x.shape[0], num_heads = (int32_t)(x.shape[1] / head_dim);
    int32_t half = rot_dim / 2;
    int threads = cpu_threads_for(dev, (int64_t)num_tokens * num_heads * rot_dim);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int32_t t = 0; t < num_tokens; t++) {
        const float *cosines = cos_sin + (int64_t)positions[t] * rot_dim;
        const float *sines = cosines + half;
        for (int32_t h = 0; h < num_heads; h++) {
            float *first = (float *)x.data + t * row_stride + (int64_t)h * head_dim;
            float *second = first + half;
            for (int32_t i = 0; i < half; i++) {
                float a = first[i], b = second[i];
                first[i] = a * cosines[i] - b * sines[i];
                second[i] = b * cosines[i] + a * sines[i];
            }
        }
    }
}

static void write_elements(void *dst, enum dtype dtype, float scale, const float *src, int32_t n)
{
    if (dtype == DTYPE_F8_E4M3) {
        cpu_write_f8(dst, src, scale, n);
        return;
    }
    if (dtype == DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof(float));
        return;
    }
    uint16_t *out = dst;
    for (int32_t i = 0; i < n; i++)
        out[i] = dtype == DTYPE_BF16 ? f32_to_bf16(src[i]) : f32_to_f16(src[i]);
}

static void write_kv_cache(struct device *dev, const struct kv_cache *cache, struct tensor k,
                           struct tensor v, const int64_t *slot_mapping,
                           const struct cpu_qkv_parts *parts)
{
    int32_t num_tokens = (int32_t)k.shape[0];
    int32_t head_dim = cache->head_dim, block_size = cache->block_size;
    int64_t head_bytes = head_dim * (int64_t)dtype_size(cache->dtype);
    int threads = cpu_threads_for(dev, (int64_t)num_tokens * cache->num_kv_heads * head_dim);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int32_t t = 0; t < num_tokens; t++) {
        int64_t slot = slot_mapping[t];
        if (slot < 0)
            continue;
        int64_t block = slot / block_size, offset = slot % block_size;
        CHECK(block < cache->num_blocks);
        for (int32_t h = 0; h < cache->num_kv_heads; h++) {
            int64_t to = ((block * cache->num_kv_heads + h) * block_size + offset) * head_bytes;
            int64_t from = t * k.row_stride + (int64_t)h * head_dim;
            parts->write_elements((char *)cache->k + to, cache->dtype, cache->k_scale,
                                  (float *)k.data + from, head_dim);
            parts->write_elements((char *)cache->v + to, cache->dtype, cache->v_scale,
                                  (float *)v.data + from, head_dim);
        }
    }
}

void cpu_prepare_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                     const struct qkv_params *params, const int32_t *positions,
                     const int64_t *slot_mapping, const struct cpu_qkv_parts *parts)
{
    int32_t head_dim = cache->head_dim;
    int64_t q_size = (int64_t)params->num_heads * head_dim;
    int64_t kv_size = (int64_t)cache->num_kv_heads * head_dim;
    struct tensor q = tensor_columns(qkv, 0, q_size);
    struct tensor k = tensor_columns(qkv, q_size, kv_size);
    struct tensor v = tensor_columns(qkv, q_size + kv_size, kv_size);
    if (params->q_norm) {
        struct norm_params norm = {params->q_norm, params->eps, params->norm_weight_offset};
        parts->head_rms_norm(dev, q, head_dim, norm);
        norm.weight = params->k_norm;
        parts->head_rms_norm(dev, k, head_dim, norm);
    }
    rope(dev, q, head_dim, params->rot_dim, params->cos_sin, positions);
    rope(dev, k, head_dim, params->rot_dim, params->cos_sin, positions);
    write_kv_cache(dev, cache, k, v, slot_mapping, parts);
}

static void scalar_prepare_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                               const struct qkv_params *params, const int32_t *positions,
                               const int64_t *slot_mapping)
{
    static const struct cpu_qkv_parts parts = {scalar_head_rms_norm, write_elements};
    cpu_prepare_qkv(dev, qkv, cache, params, positions, slot_mapping, &parts);
}

struct scalar_attention {
    const struct kv_cache *cache;
    const struct attention_batch *batch;
    const struct attention_params *params;
};

/** Where element 0 of a key (and of its value) lies, in elements. */
static int64_t key_start(const struct scalar_attention *a, int32_t seq, int32_t kv_head,
                         int32_t key)
{
    int64_t block = cpu_block_of(a->cache, a->batch, seq, key);
    return ((block * a->cache->num_kv_heads + kv_head) * a->cache->block_size +
            key % a->cache->block_size) *
           a->cache->head_dim;
}

/** One query head: softmax over its keys in two passes, then the weighted sum of the values. */
static void attend(const struct scalar_attention *a, float *out, const float *q, int32_t seq,
                   int32_t kv_head, int32_t position, double *probs)
{
    const struct kv_cache *cache = a->cache;
    int32_t head_dim = cache->head_dim;
    int32_t first = cpu_first_key(a->params, position), num_keys = position + 1 - first;
    CHECK(position < a->batch->seq_lens[seq] && position < a->batch->max_seq_len);
    double max = -INFINITY, sum = 0;
    for (int32_t j = 0; j < num_keys; j++) {
        int64_t start = key_start(a, seq, kv_head, first + j);
        double dot = 0;
        for (int32_t i = 0; i < head_dim; i++)
            dot +=
                (double)q[i] * cpu_load_cached(cache->dtype, cache->k_scale, cache->k, start + i);
        probs[j] = dot * a->params->scale;
        if (a->params->softcap > 0)
            probs[j] = a->params->softcap * tanh(probs[j] / a->params->softcap);
        max = fmax(max, probs[j]);
    }
    for (int32_t j = 0; j < num_keys; j++) {
        probs[j] = exp(probs[j] - max);
        sum += probs[j];
    }
    for (int32_t i = 0; i < head_dim; i++) {
        double value = 0;
        for (int32_t j = 0; j < num_keys; j++)
            value += probs[j] * cpu_load_cached(cache->dtype, cache->v_scale, cache->v,
                                                key_start(a, seq, kv_head, first + j) + i);
        out[i] = (float)(value / sum);
    }
}

static void scalar_attention(struct device *dev, struct tensor out, struct tensor q,
                             const struct kv_cache *cache, const struct attention_batch *batch,
                             const struct attention_params *params)
{
    struct scalar_attention a = {cache, batch, params};
    int32_t head_dim = cache->head_dim, group = params->num_heads / cache->num_kv_heads;
    int64_t num_items = (int64_t)batch->num_tokens * params->num_heads;
    int threads = cpu_threads_for(dev, num_items * batch->max_seq_len * head_dim);
    struct arena_mark mark = arena_mark(&dev->scratch);
    double *probs = arena_array(&dev->scratch, double, (size_t)threads *(size_t)batch->max_seq_len);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < num_items; i++) {
        int64_t t = i / params->num_heads;
        int32_t head = (int32_t)(i % params->num_heads);
        attend(&a, (float *)out.data + i * head_dim,
               (const float *)q.data + t * q.row_stride + (int64_t)head * head_dim,
               batch->token_seq[t], head / group, batch->positions[t],
               probs + (int64_t)omp_get_thread_num() * batch->max_seq_len);
    }
    cpu_scratch_end(&dev->scratch, mark);
}

static void scalar_silu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    int64_t rows = out.shape[0], n = out.shape[1];
    int threads = cpu_threads_for(dev, rows * n * 8);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = (const float *)gate_up.data + r * 2 * n, *up = gate + n;
        float *row = (float *)out.data + r * n;
        for (int64_t i = 0; i < n; i++)
            row[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    }
}

static float gelu(float x)
{
    double inner = sqrt(2 / M_PI) * (x + 0.044715 * x * x * (double)x);
    return (float)(0.5 * x * (1 + tanh(inner)));
}

static void scalar_gelu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up)
{
    int64_t rows = out.shape[0], n = out.shape[1];
    int threads = cpu_threads_for(dev, rows * n * 8);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = (const float *)gate_up.data + r * 2 * n, *up = gate + n;
        float *row = (float *)out.data + r * n;
        for (int64_t i = 0; i < n; i++)
            row[i] = gelu(gate[i]) * up[i];
    }
}

static void scalar_soft_cap(struct device *dev, struct tensor x, float cap)
{
    int64_t n = tensor_numel(x);
    float *values = x.data;
    int threads = cpu_threads_for(dev, n * 8);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)(cap * tanh((double)values[i] / cap));
}

static void scalar_gather_rows(struct device *dev, struct tensor out, struct tensor x,
                               const int32_t *rows)
{
    (void)dev;
    size_t row_bytes = (size_t)x.shape[1] * sizeof(float);
    for (int64_t i = 0; i < out.shape[0]; i++) {
        CHECK(rows[i] >= 0 && rows[i] < x.shape[0]);
        memcpy((char *)out.data + (size_t)i * row_bytes,
               (const char *)x.data + (size_t)rows[i] * row_bytes, row_bytes);
    }
}

void cpu_ops_scalar(struct ops *ops)
{
    *ops = (struct ops){
        .name = "cpu/scalar",
        .alloc = scalar_alloc,
        .free = scalar_free,
        .copy_in = scalar_copy_in,
        .copy_out = scalar_copy_out,
        .alloc_staging = scalar_alloc,
        .free_staging = scalar_free,
        .upload = scalar_copy_in,
        .download = scalar_copy_out,
        .synchronize = scalar_synchronize,
        .set_mark = scalar_set_mark,
        .wait_mark = scalar_wait_mark,
        .passed_mark = scalar_passed_mark,
        .prepared_weight_bytes = scalar_prepared_weight_bytes,
        .prepare_weight = scalar_prepare_weight,
        .embedding = scalar_embedding,
        .rms_norm = scalar_rms_norm,
        .add_rms_norm = scalar_add_rms_norm,
        .add_post_norm = scalar_add_post_norm,
        .matmul = scalar_matmul,
        .fuses_matmul = scalar_fuses_matmul,
        .fused_matmul = scalar_fused_matmul,
        .prepare_qkv = scalar_prepare_qkv,
        .attention = scalar_attention,
        .silu_and_mul = scalar_silu_and_mul,
        .gelu_and_mul = scalar_gelu_and_mul,
        .soft_cap = scalar_soft_cap,
        .route_experts = cpu_route_experts,
        .fuses_router = cpu_fuses_router,
        .fused_router = cpu_fused_router,
        .matmul_experts = cpu_matmul_experts,
        .combine_experts = cpu_combine_experts,
        .gather_rows = scalar_gather_rows,
    };
}
