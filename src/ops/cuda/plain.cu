// Kernels that take any shape: simple, and right. bfloat16 in and out, float32 inside.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>

#include "ops/cuda/plain.h"

#include <string.h>

using bf16 = __nv_bfloat16;

static const int THREADS = 256;
static const int WARP = 32;

static __device__ __forceinline__ float warp_sum(float v)
{
    for (int i = WARP / 2; i > 0; i /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/** The sum over a block of THREADS, in a fixed order, for every thread. */
static __device__ float block_sum(float v)
{
    __shared__ float sums[THREADS / WARP];
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = v;
    __syncthreads();
    float total = 0;
    for (int i = 0; i < THREADS / WARP; i++)
        total += sums[i];
    __syncthreads();
    return total;
}

// ---- Rows ----------------------------------------------------------------------------------

static __global__ void embedding_kernel(bf16 *out, const bf16 *table, const int32_t *ids,
                                        float scale, int64_t vocab_size, int64_t n)
{
    int64_t id = ids[blockIdx.x];
    bool is_known = id >= 0 && id < vocab_size;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        out[blockIdx.x * n + i] =
            __float2bfloat16(is_known ? __bfloat162float(table[id * n + i]) * scale : 0.0f);
}

static __global__ void rms_norm_kernel(struct plain_norm s)
{
    const bf16 *x = (const bf16 *)s.x + blockIdx.x * s.x_stride, *from = x;
    bf16 *out = (bf16 *)s.out + blockIdx.x * s.out_stride;
    bf16 *residual = s.residual ? (bf16 *)s.residual + blockIdx.x * s.n : NULL;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < s.n; i += THREADS) {
        bf16 value = x[i];
        if (residual) {
            value = __float2bfloat16(__bfloat162float(residual[i]) + __bfloat162float(value));
            residual[i] = value;
        }
        float v = __bfloat162float(value);
        sum += v * v;
    }
    float scale = rsqrtf(block_sum(sum) / (float)s.n + s.eps);
    if (residual)
        from = residual;
    for (int64_t i = threadIdx.x; i < s.n; i += THREADS)
        out[i] = __float2bfloat16(__bfloat162float(from[i]) * scale *
                                  (s.offset + __bfloat162float(((const bf16 *)s.weight)[i])));
}

static __device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + expf(-x));
}

static __device__ __forceinline__ float gelu_tanh(float x)
{
    return x / (1.0f + expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

template <bool GELU>
static __global__ void act_and_mul_kernel(bf16 *out, const bf16 *gate_up, int64_t n)
{
    int64_t i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x, row = blockIdx.x;
    if (i >= n)
        return;
    float gate = __bfloat162float(gate_up[row * 2 * n + i]);
    float up = __bfloat162float(gate_up[row * 2 * n + n + i]);
    out[row * n + i] = __float2bfloat16((GELU ? gelu_tanh(gate) : silu(gate)) * up);
}

/** The largest logit, of the lowest id on a tie; -1 when one is NaN or +infinity, or none finite.
 */
static __global__ void greedy_kernel(int32_t *token_ids, const float *logits, int64_t stride,
                                     int32_t vocab_size)
{
    const float *row = logits + blockIdx.x * stride;
    float best = -INFINITY;
    int32_t best_id = -1;
    bool is_broken = false;
    for (int32_t id = threadIdx.x; id < vocab_size; id += blockDim.x) {
        float v = row[id];
        is_broken |= isnan(v) || v == INFINITY;
        if (v > best) {
            best = v;
            best_id = id;
        }
    }
    is_broken = __syncthreads_or(is_broken);
    __shared__ float bests[1024];
    __shared__ int32_t best_ids[1024];
    bests[threadIdx.x] = best;
    best_ids[threadIdx.x] = best_id;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x >= half)
            continue;
        float other = bests[threadIdx.x + half];
        int32_t other_id = best_ids[threadIdx.x + half], id = best_ids[threadIdx.x];
        bool is_better = other_id >= 0 && (id < 0 || other > bests[threadIdx.x] ||
                                           (other == bests[threadIdx.x] && other_id < id));
        if (is_better) {
            bests[threadIdx.x] = other;
            best_ids[threadIdx.x] = other_id;
        }
    }
    if (threadIdx.x == 0)
        token_ids[blockIdx.x] = is_broken ? -1 : best_ids[0];
}

// ---- Queries, keys, values -----------------------------------------------------------------

/** One warp for each head of each token; `head` of shared memory: [head_dim] f32. */
static __global__ void prepare_qkv_kernel(struct plain_qkv s)
{
    extern __shared__ float head[];
    int32_t token = blockIdx.x, index = blockIdx.y, lane = threadIdx.x;
    bool is_query = index < s.num_heads;
    bool is_value = index >= s.num_heads + s.cache.num_kv_heads;
    bf16 *x = (bf16 *)s.qkv + token * s.row_stride + (int64_t)index * s.cache.head_dim;
    float sum = 0;
    for (int32_t i = lane; i < s.cache.head_dim; i += WARP) {
        head[i] = __bfloat162float(x[i]);
        sum += head[i] * head[i];
    }
    const bf16 *norm = (const bf16 *)(is_query ? s.q_norm : s.k_norm);
    if (!is_value && norm) {
        float scale = rsqrtf(warp_sum(sum) / (float)s.cache.head_dim + s.eps);
        for (int32_t i = lane; i < s.cache.head_dim; i += WARP)
            head[i] = head[i] * scale * (s.norm_offset + __bfloat162float(norm[i]));
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
            x[i] = __float2bfloat16(head[i]);
        else if (s.cache.is_fp8)
            ((uint8_t *)pool)[at + i] =
                __nv_cvt_float_to_fp8(head[i] / cache_scale, __NV_SATFINITE, __NV_E4M3);
        else
            ((bf16 *)pool)[at + i] = __float2bfloat16(head[i]);
    }
}

/** Element i of the keys or values; an e4m3 one still to be multiplied by its scale. */
static __device__ float load_cached(const struct cuda_kv_cache &cache, const void *pool, int64_t i)
{
    if (!cache.is_fp8)
        return __bfloat162float(((const bf16 *)pool)[i]);
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(((const uint8_t *)pool)[i], __NV_E4M3)));
}

/** One block for each head of each token. Each warp takes every n-th key and keeps its own running
 *  softmax; at the end they are joined. Shared memory: q, then each warp's sums, [head_dim] f32. */
static __global__ void attention_kernel(struct plain_attention s)
{
    extern __shared__ float shared[];
    const int num_warps = THREADS / WARP;
    __shared__ float warp_max[num_warps], warp_total[num_warps];
    int32_t token = blockIdx.x, head = blockIdx.y;
    int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int32_t seq = s.token_seq[token], position = s.positions[token];
    bf16 *out = (bf16 *)s.out + ((int64_t)token * s.num_heads + head) * s.cache.head_dim;
    if (s.seq_lens[seq] == 0) { // padding
        for (int32_t i = threadIdx.x; i < s.cache.head_dim; i += THREADS)
            out[i] = __float2bfloat16(0.0f);
        return;
    }
    float *q = shared, *sums = shared + (1 + warp) * s.cache.head_dim;
    for (int32_t i = threadIdx.x; i < s.cache.head_dim; i += THREADS)
        q[i] = __bfloat162float(
                   ((const bf16 *)s.q)[token * s.q_stride + (int64_t)head * s.cache.head_dim + i]) *
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
            dot += q[i] * load_cached(s.cache, s.cache.k, at + i);
        dot = warp_sum(dot);
        if (s.softcap > 0)
            dot = s.softcap * tanhf(dot / s.softcap);
        float new_max = fmaxf(max_score, dot);
        float keep = expf(max_score - new_max), p = expf(dot - new_max);
        total = total * keep + p;
        for (int32_t i = lane; i < s.cache.head_dim; i += WARP)
            sums[i] = sums[i] * keep + p * load_cached(s.cache, s.cache.v, at + i);
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
        out[i] = __float2bfloat16(value / all_total * (s.cache.is_fp8 ? s.cache.v_scale : 1.0f));
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

void plain_gather_rows(cudaStream_t stream, void *out, const void *table, const int32_t *ids,
                       float scale, int64_t num_ids, int64_t num_rows, int64_t n)
{
    embedding_kernel<<<(unsigned)num_ids, THREADS, 0, stream>>>((bf16 *)out, (const bf16 *)table,
                                                                ids, scale, num_rows, n);
}

void plain_rms_norm(cudaStream_t stream, const struct plain_norm *args)
{
    rms_norm_kernel<<<(unsigned)args->rows, THREADS, 0, stream>>>(*args);
}

void plain_prepare_qkv(cudaStream_t stream, const struct plain_qkv *args)
{
    dim3 grid((unsigned)args->num_tokens,
              (unsigned)(args->num_heads + 2 * args->cache.num_kv_heads));
    prepare_qkv_kernel<<<grid, WARP, (size_t)args->cache.head_dim * sizeof(float), stream>>>(*args);
}

void plain_attention(cudaStream_t stream, const struct plain_attention *args)
{
    dim3 grid((unsigned)args->num_tokens, (unsigned)args->num_heads);
    size_t shared = (size_t)(1 + THREADS / WARP) * (size_t)args->cache.head_dim * sizeof(float);
    attention_kernel<<<grid, THREADS, shared, stream>>>(*args);
}

static dim3 flat_grid(int64_t rows, int64_t n)
{
    return dim3((unsigned)rows, (unsigned)((n + THREADS - 1) / THREADS));
}

void plain_silu_and_mul(cudaStream_t stream, void *out, const void *gate_up, int64_t rows,
                        int64_t n)
{
    act_and_mul_kernel<false>
        <<<flat_grid(rows, n), THREADS, 0, stream>>>((bf16 *)out, (const bf16 *)gate_up, n);
}

void plain_gelu_and_mul(cudaStream_t stream, void *out, const void *gate_up, int64_t rows,
                        int64_t n)
{
    act_and_mul_kernel<true>
        <<<flat_grid(rows, n), THREADS, 0, stream>>>((bf16 *)out, (const bf16 *)gate_up, n);
}

void plain_greedy(cudaStream_t stream, int32_t *token_ids, const float *logits, int64_t stride,
                  int64_t rows, int64_t vocab_size)
{
    greedy_kernel<<<(unsigned)rows, 1024, 0, stream>>>(token_ids, logits, stride,
                                                       (int32_t)vocab_size);
}

void plain_take_tokens(cudaStream_t stream, int32_t *token_ids, const int32_t *indices,
                       const int32_t *drawn, int32_t num_tokens)
{
    unsigned num_blocks = (unsigned)((num_tokens + THREADS - 1) / THREADS);
    take_tokens_kernel<<<num_blocks, THREADS, 0, stream>>>(token_ids, indices, drawn, num_tokens);
}

void plain_make_up(cudaStream_t stream, void *dst, const void *levels, uint64_t key, size_t count)
{
    struct levels copy;
    memcpy(&copy, levels, sizeof(copy));
    size_t num_groups = (count + 7) / 8;
    if (count > 0)
        make_up_kernel<<<(unsigned)((num_groups + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
            (uint16_t *)dst, copy, key, count);
}
