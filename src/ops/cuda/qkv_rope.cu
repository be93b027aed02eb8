// Between the qkv product and attention: heads of q and k are normalised and rotated, q in place, k
// and v written to their slots of the cache. One warp per token and head; a lane holds neighbouring
// elements, and the other half of a rotated pair sits in another lane.
#include "ops/cuda/common.cuh"

enum { WARPS = 8 };

/** PER neighbouring elements; aligned for one access where PER is a power of two. */
template <int PER, typename T> DEVICE void load_elements(float v[PER], const T *src)
{
    struct __align__(PER % 3 ? 2 * PER : 2) aligned
    {
        T e[PER];
    }
    in = *(const struct aligned *)src;
#pragma unroll
    for (int i = 0; i < PER; i++)
        v[i] = to_f32(in.e[i]);
}

template <int PER, typename T> DEVICE void store_elements(T *dst, const float v[PER])
{
    struct __align__(PER % 3 ? 2 * PER : 2) aligned
    {
        T e[PER];
    }
    out;
#pragma unroll
    for (int i = 0; i < PER; i++)
        out.e[i] = from_f32<T>(v[i]);
    *(struct aligned *)dst = out;
}

template <int PER> DEVICE void store_fp8(uint8_t *dst, const float v[PER], float scale)
{
    struct __align__(PER % 3 ? PER : 1) aligned
    {
        uint8_t e[PER];
    }
    out;
#pragma unroll
    for (int i = 0; i < PER; i++)
        out.e[i] = __nv_cvt_float_to_fp8(v[i] / scale, __NV_SATFINITE, __NV_E4M3);
    *(struct aligned *)dst = out;
}

template <int PER, typename T>
DEVICE void normalise(float v[PER], const T *weight, float eps, float offset)
{
    float squares = 0, w[PER];
#pragma unroll
    for (int i = 0; i < PER; i++)
        squares += v[i] * v[i];
    float scale = rsqrtf(warp_sum(squares) / (32.0f * PER) + eps);
    load_elements<PER>(w, weight + threadIdx.x % 32 * PER);
#pragma unroll
    for (int i = 0; i < PER; i++)
        v[i] *= scale * (offset + w[i]);
}

/** Rotates the first rot_dim elements; element i pairs with i + rot_dim / 2. */
template <int PER> DEVICE void rotate(float v[PER], const float *cos_sin, int rot_dim)
{
    int lane = threadIdx.x % 32, lanes = rot_dim / 2 / PER; // per half
    bool is_second = lane >= lanes;
    int other = is_second ? lane - lanes : lane + lanes;
    int at = (is_second ? lane - lanes : lane) * PER;
    bool is_rotated = lane < 2 * lanes;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        float paired = __shfl_sync(0xffffffffu, v[i], other & 31);
        if (is_rotated) {
            float c = cos_sin[at + i], s = cos_sin[rot_dim / 2 + at + i];
            v[i] = is_second ? v[i] * c + paired * s : v[i] * c - paired * s;
        }
    }
}

template <typename T, int D>
static __global__
__launch_bounds__(WARPS * 32) void qkv_rope_kernel(const __grid_constant__ struct qkv_rope_args a)
{
    constexpr int PER = D / 32;
    int lane = threadIdx.x % 32;
    int num_kv = a.cache.num_kv_heads, num_heads = a.num_heads + 2 * num_kv;
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    dependents_launch();
    dependency_wait();
    if (item >= (int64_t)a.num_tokens * num_heads)
        return;
    int token = (int)(item / num_heads), head = (int)(item % num_heads);
    T *x = (T *)a.qkv + token * a.stride + head * D + lane * PER;
    float v[PER];
    load_elements<PER>(v, x);
    bool is_query = head < a.num_heads, is_value = head >= a.num_heads + num_kv;
    if (!is_value) {
        const void *norm = is_query ? a.q_norm : a.k_norm;
        if (norm)
            normalise<PER>(v, (const T *)norm, a.norm_eps, a.norm_offset);
        rotate<PER>(v, a.cos_sin + (size_t)a.positions[token] * a.rot_dim, a.rot_dim);
    }
    if (is_query) {
        store_elements<PER>(x, v);
        return;
    }
    int64_t slot = a.slot_mapping[token];
    if (slot < 0)
        return;
    int kv_head = (head - a.num_heads) % num_kv;
    size_t row = ((size_t)(slot / a.cache.block_size) * num_kv + kv_head) * a.cache.block_size +
                 (size_t)(slot % a.cache.block_size);
    void *pool = is_value ? a.cache.v : a.cache.k;
    if (a.cache.is_fp8)
        store_fp8<PER>((uint8_t *)pool + row * D + lane * PER, v,
                       is_value ? a.cache.v_scale : a.cache.k_scale);
    else
        store_elements<PER>((T *)pool + row * D + lane * PER, v);
}

/** NULL: refused by cuda_attention_supports(). */
template <typename T> static const void *kernel_of(int head_dim)
{
    switch (head_dim) {
    case 32:
        return (const void *)qkv_rope_kernel<T, 32>;
    case 64:
        return (const void *)qkv_rope_kernel<T, 64>;
    case 96:
        return (const void *)qkv_rope_kernel<T, 96>;
    case 128:
        return (const void *)qkv_rope_kernel<T, 128>;
    case 256:
        return (const void *)qkv_rope_kernel<T, 256>;
    default:
        return NULL;
    }
}

void qkv_rope_cache(const struct cuda_launch *launch, const struct qkv_rope_args *args)
{
    int head_dim = args->cache.head_dim;
    const void *kernel =
        launch->is_f16 ? kernel_of<__half>(head_dim) : kernel_of<__nv_bfloat16>(head_dim);
    int64_t items = (int64_t)args->num_tokens * (args->num_heads + 2 * args->cache.num_kv_heads);
    if (!kernel || items == 0)
        return;
    struct qkv_rope_args copy = *args;
    launch_kernel(launch, kernel, dim3((unsigned)((items + WARPS - 1) / WARPS)), WARPS * 32, 0,
                  &copy);
}
