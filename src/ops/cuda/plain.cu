// Kernels that take any shape: simple, and right. Activations and weights of type T, bfloat16 or
// float16; float32 inside.
#include "ops/cuda/common.cuh"
#include "ops/cuda/plain.h"

#include <string.h>

static const int THREADS = 256;
static const int WARP = 32;

// ---- Rows ----------------------------------------------------------------------------------

template <typename T>
static __global__ void gather_kernel(void *out, const void *table, const int32_t *ids, float scale,
                                     int64_t num_rows, int64_t n)
{
    int64_t id = ids[blockIdx.x];
    bool is_known = id >= 0 && id < num_rows;
    const T *from = (const T *)table + id * n;
    T *to = (T *)out + blockIdx.x * n;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        to[i] = from_f32<T>(is_known ? to_f32(from[i]) * scale : 0.0f);
}

template <typename T> static __global__ void rms_norm_kernel(struct plain_norm s)
{
    __shared__ float partial[32];
    const T *x = (const T *)s.x + blockIdx.x * s.x_stride, *from = x;
    T *out = (T *)s.out + blockIdx.x * s.out_stride;
    T *residual = s.residual ? (T *)s.residual + blockIdx.x * s.n : NULL;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < s.n; i += THREADS) {
        T value = x[i];
        if (residual) {
            value = from_f32<T>(to_f32(residual[i]) + to_f32(value));
            residual[i] = value;
        }
        float v = to_f32(value);
        sum += v * v;
    }
    float scale = rsqrtf(block_sum(sum, partial) / (float)s.n + s.eps);
    if (residual)
        from = residual;
    for (int64_t i = threadIdx.x; i < s.n; i += THREADS)
        out[i] =
            from_f32<T>(to_f32(from[i]) * scale * (s.offset + to_f32(((const T *)s.weight)[i])));
}

template <typename T, bool GELU>
static __global__ void act_and_mul_kernel(void *out, const void *gate_up, int64_t n)
{
    int64_t i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x, row = blockIdx.x;
    if (i >= n)
        return;
    const T *from = (const T *)gate_up + row * 2 * n + i;
    float gate = to_f32(from[0]), up = to_f32(from[n]);
    ((T *)out)[row * n + i] = from_f32<T>((GELU ? gelu_tanh(gate) : silu(gate)) * up);
}

// ---- Queries, keys, values -----------------------------------------------------------------

/** One warp for each head of each token; `head` of shared memory: [head_dim] f32. */
template <typename T> static __global__ void prepare_qkv_kernel(struct plain_qkv s)
{
    extern __shared__ float head[];
    int32_t token = blockIdx.x, index = blockIdx.y, lane = threadIdx.x;
    bool is_query = index < s.num_heads;
    bool is_value = index >= s.num_heads + s.cache.num_kv_heads;
    T *x = (T *)s.qkv + token * s.row_stride + (int64_t)index * s.cache.head_dim;
    float sum = 0;
    for (int32_t i = lane; i < s.cache.head_dim; i += WARP) {
        head[i] = to_f32(x[i]);
        sum += head[i] * head[i];
    }
    const T *norm = (const T *)(is_query ? s.q_norm : s.k_norm);
    if (!is_value && norm) {
        float scale = rsqrtf(warp_sum(sum) / (float)s.cache.head_dim + s.eps);
        for (int32_t i = lane; i < s.cache.head_dim; i += WARP)
            head[i] = head[i] * scale * (s.norm_offset + to_f32(norm[i]));
    }
    __syncwarp();
    int32_t half = s.rot_dim / 2;
    const float *cosines = s.cos_sin + (int64_t)s.positions[token] * s.rot_dim;
    for (int32_t i = lane; i < half && !is_value; i += WARP) {
        float a = head[i], b = head[half + i];
        head[i] = a * cosines[i] - b * cosines[half + i];
        head[half + i] = b * cosines[i] + a * cosines[half + i];
    }
    __syncwarp();
    int64_t at = 0;
    if (!is_query) {
        int64_t slot = s.slot_mapping[token];
        if (slot < 0)
            return;
        int32_t kv_head = (index - s.num_heads) % s.cache.num_kv_heads;
        at = ((slot / s.cache.block_size * s.cache.num_kv_heads + kv_head) * s.cache.block_size +
              slot % s.cache.block_size) *
             s.cache.head_dim;
    }
    void *pool = is_value ? s.cache.v : s.cache.k;
    float cache_scale = is_value ? s.cache.v_scale : s.cache.k_scale;
    for (int32_t i = lane; i < s.cache.head_dim; i += WARP) {
        if (is_query)
            x[i] = from_f32<T>(head[i]);
        else if (s.cache.is_fp8)
            ((uint8_t *)pool)[at + i] =
                __nv_cvt_float_to_fp8(head[i] / cache_scale, __NV_SATFINITE, __NV_E4M3);
        else
            ((T *)pool)[at + i] = from_f32<T>(head[i]);
    }
}

/** Element i of the keys or values; an e4m3 one still to be multiplied by its scale. */
template <typename T>
DEVICE float load_cached(const struct cuda_kv_cache &cache, const void *pool, int64_t i)
{
    if (!cache.is_fp8)
        return to_f32(((const T *)pool)[i]);
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(((const uint8_t *)pool)[i], __NV_E4M3)));
}

/** One block for each head of each token. Each warp takes every n-th key and keeps its own running
 *  softmax; at the end they are joined. Shared memory: q, then each warp's sums, [head_dim] f32. */
template <typename T> static __global__ void attention_kernel(struct plain_attention s)
{
    extern __shared__ float shared[];
    const int num_warps = THREADS / WARP;
    __shared__ float warp_max[num_warps], warp_total[num_warps];
    int32_t token = blockIdx.x, head = blockIdx.y;
    int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int32_t seq = s.token_seq[token], position = s.positions[token];
    T *out = (T *)s.out + ((int64_t)token * s.num_heads + head) * s.cache.head_dim;
    if (s.seq_lens[seq] == 0) { // padding
        for (int32_t i = threadIdx.x; i < s.cache.head_dim; i += THREADS)
            out[i] = from_f32<T>(0.0f);
        return;
    }
    float *q = shared, *sums = shared + (1 + warp) * s.cache.head_dim;
    for (int32_t i = threadIdx.x; i < s.cache.head_dim; i += THREADS)
        q[i] = to_f32(((const T *)s.q)[token * s.q_stride + (int64_t)head * s.cache.head_dim + i]) *
               s.scale * (s.cache.is_fp8 ? s.cache.k_scale : 1.0f);
    for (int32_t i = lane; i < s.cache.head_dim; i += WARP)
        sums[i] = 0;
    __syncthreads();
    int32_t first = s.window > 0 ? max(0, position - s.window + 1) : 0;
    int32_t kv_head = head / (s.num_heads / s.cache.num_kv_heads);
    float max_score = -INFINITY, total = 0;
    for (int32_t key = first + warp; key <= position; key += num_warps) {
        int64_t block = s.block_table[(int64_t)seq * s.max_blocks + key / s.cache.block_size];
        int64_t at = ((block * s.cache.num_kv_heads + kv_head) * s.cache.block_size +
                      key % s.cache.block_size) *
                     s.cache.head_dim;
        float dot = 0;
        for (int32_t i = lane; i < s.cache.head_dim; i += WARP)
            dot += q[i] * load_cached<T>(s.cache, s.cache.k, at + i);
        dot = warp_sum(dot);
        if (s.softcap > 0)
            dot = s.softcap * tanhf(dot / s.softcap);
        float new_max = fmaxf(max_score, dot);
        float keep = expf(max_score - new_max), p = expf(dot - new_max);
        total = total * keep + p;
        for (int32_t i = lane; i < s.cache.head_dim; i += WARP)
            sums[i] = sums[i] * keep + p * load_cached<T>(s.cache, s.cache.v, at + i);
        max_score = new_max;
    }
    if (lane == 0) {
        warp_max[warp] = max_score;
        warp_total[warp] = total;
    }
    __syncthreads();
    float all_max = -INFINITY, all_total = 0;
    for (int w = 0; w < num_warps; w++)
        all_max = fmaxf(all_max, warp_max[w]);
    for (int w = 0; w < num_warps; w++)
        all_total += warp_total[w] * expf(warp_max[w] - all_max);
    for (int32_t i = threadIdx.x; i < s.cache.head_dim; i += THREADS) {
        float value = 0;
        for (int w = 0; w < num_warps; w++)
            value += shared[(1 + w) * s.cache.head_dim + i] * expf(warp_max[w] - all_max);
        out[i] = from_f32<T>(value / all_total * (s.cache.is_fp8 ? s.cache.v_scale : 1.0f));
    }
}

static __global__ void take_tokens_kernel(int32_t *token_ids, const int32_t *indices,
                                          const int32_t *drawn, int32_t num_tokens)
{
    int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    if (i < num_tokens && indices[i] >= 0)
        token_ids[i] = max(drawn[indices[i]], 0);
}

struct levels {
    uint16_t values[256];
};

static __global__ void make_up_kernel(uint16_t *dst, const __grid_constant__ struct levels levels,
                                      uint64_t key, size_t count)
{
    size_t first = ((size_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (first >= count)
        return;
    uint64_t x = key + first + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    __align__(16) uint16_t picked[8];
    for (int i = 0; i < 8; i++)
        picked[i] = levels.values[x >> 8 * i & 0xff];
    if (first + 8 <= count) {
        *(uint4 *)(dst + first) = *(const uint4 *)picked;
    } else {
        for (size_t i = first; i < count; i++)
            dst[i] = picked[i - first];
    }
}

// ---- Launchers -----------------------------------------------------------------------------

void plain_gather_rows(const struct cuda_launch *launch, void *out, const void *table,
                       const int32_t *ids, float scale, int64_t num_ids, int64_t num_rows,
                       int64_t n)
{
    (launch->is_f16
         ? gather_kernel<__half>
         : gather_kernel<__nv_bfloat16>)<<<(unsigned)num_ids, THREADS, 0, launch->stream>>>(
        out, table, ids, scale, num_rows, n);
}

void plain_rms_norm(const struct cuda_launch *launch, const struct plain_norm *args)
{
    (launch->is_f16
         ? rms_norm_kernel<__half>
         : rms_norm_kernel<__nv_bfloat16>)<<<(unsigned)args->rows, THREADS, 0, launch->stream>>>(
        *args);
}

void plain_prepare_qkv(const struct cuda_launch *launch, const struct plain_qkv *args)
{
    dim3 grid((unsigned)args->num_tokens,
              (unsigned)(args->num_heads + 2 * args->cache.num_kv_heads));
    size_t shared = (size_t)args->cache.head_dim * sizeof(float);
    (launch->is_f16
         ? prepare_qkv_kernel<__half>
         : prepare_qkv_kernel<__nv_bfloat16>)<<<grid, WARP, shared, launch->stream>>>(*args);
}

void plain_attention(const struct cuda_launch *launch, const struct plain_attention *args)
{
    dim3 grid((unsigned)args->num_tokens, (unsigned)args->num_heads);
    size_t shared = (size_t)(1 + THREADS / WARP) * (size_t)args->cache.head_dim * sizeof(float);
    (launch->is_f16
         ? attention_kernel<__half>
         : attention_kernel<__nv_bfloat16>)<<<grid, THREADS, shared, launch->stream>>>(*args);
}

template <bool GELU>
static void launch_act(const struct cuda_launch *launch, void *out, const void *gate_up,
                       int64_t rows, int64_t n)
{
    dim3 grid((unsigned)rows, (unsigned)((n + THREADS - 1) / THREADS));
    (launch->is_f16
         ? act_and_mul_kernel<__half, GELU>
         : act_and_mul_kernel<__nv_bfloat16, GELU>)<<<grid, THREADS, 0, launch->stream>>>(
        out, gate_up, n);
}

void plain_silu_and_mul(const struct cuda_launch *launch, void *out, const void *gate_up,
                        int64_t rows, int64_t n)
{
    launch_act<false>(launch, out, gate_up, rows, n);
}

void plain_gelu_and_mul(const struct cuda_launch *launch, void *out, const void *gate_up,
                        int64_t rows, int64_t n)
{
    launch_act<true>(launch, out, gate_up, rows, n);
}

void plain_take_tokens(const struct cuda_launch *launch, int32_t *token_ids, const int32_t *indices,
                       const int32_t *drawn, int32_t num_tokens)
{
    unsigned num_blocks = (unsigned)((num_tokens + THREADS - 1) / THREADS);
    take_tokens_kernel<<<num_blocks, THREADS, 0, launch->stream>>>(token_ids, indices, drawn,
                                                                   num_tokens);
}

void plain_make_up(const struct cuda_launch *launch, void *dst, const void *levels, uint64_t key,
                   size_t count)
{
    struct levels copy;
    memcpy(&copy, levels, sizeof(copy));
    size_t num_groups = (count + 7) / 8;
    unsigned num_blocks = (unsigned)((num_groups + THREADS - 1) / THREADS);
    if (count > 0)
        make_up_kernel<<<num_blocks, THREADS, 0, launch->stream>>>((uint16_t *)dst, copy, key,
                                                                   count);
}
