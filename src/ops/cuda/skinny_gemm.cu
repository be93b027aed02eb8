// A weight matrix times 9 to 128 rows: a batch that decodes. At these sizes a product is the
// reading of its weight, so all is about keeping that going.
//
// The weight is the first operand of wgmma (64 of its rows to a warpgroup) and the rows of x are
// its columns, both read from shared memory, where one producer thread puts them by bulk tensor
// copies: a ring of steps of 128 bytes in k. Both are 16-bit, or both e4m3 with scales: those of
// rows come to the finished sums, those of blocks of 128 to the sums of each step. A CTA fills its
// ring with weights before the previous kernel has ended, as a weight never depends on it, and then
// waits for x.
//
// Tiles are as wide as gives every multiprocessor one, or the same number of turns: a multiple of
// 16 rows of the weight, of which a warpgroup's last 64 may be fewer. A matrix with fewer rows than
// that is worth is cut along k between two CTAs of a cluster (larger clusters would not find room
// on all multiprocessors); they add up each other's sums through shared memory, each of them half
// of the rows, in the order of k. With a single turn a ring takes all of the shared memory; else
// half of it, so that two CTAs of a multiprocessor take turns in finishing.
#include "ops/cuda/tensor_map.cuh"
#include "ops/cuda/wgmma.cuh"

enum { ROW_BYTES = 128, BLOCK = 128, MAX_STAGES = 20 };

/** What is multiplied. */
enum operands { WIDE, F8_ROWS, F8_BLOCKS };

// Of a multiprocessor's 228 KiB each CTA takes one for the system, and some for barriers.
enum { MAX_RING_BYTES = 227 * 1024 - 512, HALF_RING_BYTES = (228 / 2 - 1) * 1024 - 512 };

struct skinny_args {
    struct gemv_args a;
    CUtensorMap weight, x;
    int32_t tile_rows;  // of the weight, a multiple of 16
    int32_t num_splits; // CTAs that share a tile's k
    bool is_alone;      // a CTA has its multiprocessor to itself
    int32_t num_stages, stage_bytes;
    int32_t barriers_at; // behind the ring, and behind the sums that take its place
    int32_t step;        // elements of k in a row of a stage
    struct f8_scales weight_scales, x_scales; // of e4m3
};

struct skinny_barriers {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
};

/** ROWS of x, and up to 64 rows of the weight to each warpgroup. */
template <int ROWS, int WARPGROUPS> struct skinny_shape {
    static constexpr int CONSUMERS = WARPGROUPS * 128;
    // Of the sums; the padding spreads a warp's stores over all banks.
    static constexpr int PITCH = WARPGROUPS * 64 + 4;
    static constexpr int SUMS_BYTES = ROWS * PITCH * 4;
};

/** What one CTA does. */
struct skinny_part {
    int tile, split, first_step, num_steps;
};

DEVICE struct skinny_part part_of(const struct skinny_args &s)
{
    struct skinny_part p;
    int total = (s.a.k + s.step - 1) / s.step;
    p.split = (int)blockIdx.x % s.num_splits;
    p.tile = (int)blockIdx.x / s.num_splits;
    p.first_step = p.split * total / s.num_splits;
    p.num_steps = (p.split + 1) * total / s.num_splits - p.first_step;
    return p;
}

DEVICE void copy_weight(const struct skinny_args &s, const struct skinny_part &p, int step,
                        uint32_t stage, uint64_t *full)
{
    int k = (p.first_step + step) * s.step;
    barrier_arrive_expect(full, (uint32_t)s.stage_bytes);
    if (s.a.is_swiglu) { // the gate's rows and up's
        int half = s.tile_rows / 2;
        copy_box_streaming(stage, &s.weight, k, p.tile * half, full);
        copy_box_streaming(stage + (uint32_t)half * ROW_BYTES, &s.weight, k,
                           s.a.n / 2 + p.tile * half, full);
    } else {
        copy_box_streaming(stage, &s.weight, k, p.tile * s.tile_rows, full);
    }
}

DEVICE void copy_x(const struct skinny_args &s, const struct skinny_part &p, int step,
                   uint32_t stage, uint64_t *full)
{
    copy_box(stage + (uint32_t)s.tile_rows * ROW_BYTES, &s.x, (p.first_step + step) * s.step, 0,
             full);
}

/** Keeps the ring filled, from the stages on that hold weights already. One thread. */
DEVICE void produce(const struct skinny_args &s, const struct skinny_part &p,
                    struct skinny_barriers *b, uint32_t ring)
{
    int step = 0;
    for (; step < min(p.num_steps, s.num_stages); step++)
        copy_x(s, p, step, ring + (uint32_t)(step * s.stage_bytes), &b->full[step]);
    uint32_t parity = 0;
    for (int i = 0; step < p.num_steps; step++) {
        barrier_wait(&b->empty[i], parity);
        uint32_t stage = ring + (uint32_t)(i * s.stage_bytes);
        copy_weight(s, p, step, stage, &b->full[i]);
        copy_x(s, p, step, stage, &b->full[i]);
        if (++i == s.num_stages) {
            i = 0;
            parity ^= 1;
        }
    }
    dependents_launch();
}

/** The weight's row behind row `r` of a tile; past the end: the last. */
DEVICE int weight_row(const struct skinny_args &s, const struct skinny_part &p, int r)
{
    int half = s.tile_rows / 2, row = p.tile * s.tile_rows + r;
    if (s.a.is_swiglu)
        row = r < half ? p.tile * half + r : s.a.n / 2 + p.tile * half + r - half;
    return min(row, s.a.n - 1);
}

/** The scales of one step of e4m3, which are asked for before its elements are there: of two rows
 * of the weight, and of two rows of x in each eight. */
template <int ROWS> struct step_scales {
    float weight[2];
    float2 x[ROWS / 8];
};

template <int ROWS>
DEVICE void load_scales(struct step_scales<ROWS> &scales, const struct skinny_args &s,
                        const int row_blocks[2], int block)
{
    const float *x = s.x_scales.values + (size_t)block * s.x_scales.pitch + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++)
        scales.weight[i] =
            s.weight_scales.values[(size_t)row_blocks[i] * s.weight_scales.pitch + block];
#pragma unroll
    for (int t = 0; t < ROWS / 8; t++)
        scales.x[t] = *(const float2 *)(x + t * 8);
}

/** Adds a step's sums to all sums. */
template <int ROWS>
DEVICE void add_scaled(float sums[ROWS / 8][4], const float d[ROWS / 8][4],
                       const struct step_scales<ROWS> &scales)
{
#pragma unroll
    for (int t = 0; t < ROWS / 8; t++) {
        sums[t][0] += d[t][0] * (scales.x[t].x * scales.weight[0]);
        sums[t][1] += d[t][1] * (scales.x[t].y * scales.weight[0]);
        sums[t][2] += d[t][2] * (scales.x[t].x * scales.weight[1]);
        sums[t][3] += d[t][3] * (scales.x[t].y * scales.weight[1]);
    }
}

/** One warpgroup's sums over this CTA's part of k, left where the ring was. Of its 64 rows of the
 *  weight those past the tile's are what lies behind in memory, and nobody asks for their sums. */
template <typename T, enum operands OPERANDS, int ROWS, int WARPGROUPS>
DEVICE void consume(const struct skinny_args &s, const struct skinny_part &p,
                    struct skinny_barriers *b, char *ring)
{
    typedef skinny_shape<ROWS, WARPGROUPS> shape;
    int group = (int)threadIdx.x / 128, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
    int tile_row = group * 64 + thread / 32 * 16 + lane / 4;
    uint32_t base = smem_address(ring), parity = 0;
    float d[ROWS / 8][4] = {};
    float scaled[OPERANDS == F8_BLOCKS ? ROWS / 8 : 1][4] = {};
    step_scales<OPERANDS == F8_BLOCKS ? ROWS : 8> scales;
    const int row_blocks[2] = {weight_row(s, p, tile_row) / BLOCK,
                               weight_row(s, p, tile_row + 8) / BLOCK};
    int i = 0;
#pragma unroll 1
    for (int step = 0; step < p.num_steps; step++) {
        uint32_t stage = base + (uint32_t)(i * s.stage_bytes);
        uint32_t weight = stage + group * 64 * ROW_BYTES;
        uint32_t x = stage + (uint32_t)s.tile_rows * ROW_BYTES;
        if constexpr (OPERANDS == F8_BLOCKS)
            load_scales<ROWS>(scales, s, row_blocks, p.first_step + step);
        barrier_wait(&b->full[i], parity);
        hold<ROWS / 8>(d);
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < ROW_BYTES / 32; kk++) {
            uint64_t w_part = matrix_descriptor(weight + kk * 32, 16);
            uint64_t x_part = matrix_descriptor(x + kk * 32, 16);
            if constexpr (OPERANDS == WIDE)
                wgmma_shared<ROWS, IS_F16<T>>(d, w_part, x_part, false);
            else
                wgmma_shared_f8<ROWS>(d, w_part, x_part, OPERANDS == F8_BLOCKS && kk == 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        hold<ROWS / 8>(d);
        if (thread == 0)
            barrier_arrive(&b->empty[i]);
        if constexpr (OPERANDS == F8_BLOCKS)
            add_scaled<ROWS>(scaled, d, scales);
        if (++i == s.num_stages) {
            i = 0;
            parity ^= 1;
        }
    }
    named_barrier(1, shape::CONSUMERS); // nobody reads the ring any more
    float *sums = (float *)ring + tile_row;
#pragma unroll
    for (int t = 0; t < ROWS / 8; t++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float sum = d[t][c];
            if constexpr (OPERANDS == F8_BLOCKS)
                sum = scaled[t][c];
            sums[(t * 8 + lane % 4 * 2 + c % 2) * shape::PITCH + c / 2 * 8] = sum;
        }
    }
}

/** Four neighbours of a row from `at` on. */
template <typename T> DEVICE void load4(float v[4], const void *src, size_t at)
{
    if constexpr (sizeof(T) == 4) {
        float4 x = *(const float4 *)((const float *)src + at);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else {
        uint2 words = *(const uint2 *)((const T *)src + at);
        float2 low = unpack_pair<T>(words.x), high = unpack_pair<T>(words.y);
        v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
    }
}

template <typename T> DEVICE void store4(void *dst, const float v[4], size_t at)
{
    if constexpr (sizeof(T) == 4)
        *(float4 *)((float *)dst + at) = make_float4(v[0], v[1], v[2], v[3]);
    else
        *(uint2 *)((T *)dst + at) = make_uint2(pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]));
}

DEVICE float to_f32(float v)
{
    return v;
}

/** Four results, or as many as the row has, as elements of type T. */
template <typename T>
DEVICE void store_results(const struct gemv_args &a, const float v[4], int row, int col,
                          int num_cols)
{
    size_t at = (size_t)row * num_cols + col;
    float sums[4] = {v[0], v[1], v[2], v[3]}, before[4];
    if (num_cols % 4 == 0) {
        if (a.residual) {
            load4<T>(before, a.residual, at);
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[i] += before[i];
        }
        store4<T>(a.out, sums, at);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (col + i >= num_cols)
            return;
        if (a.residual)
            sums[i] += to_f32(((const T *)a.residual)[at + i]);
        if constexpr (sizeof(T) == 4)
            ((T *)a.out)[at + i] = sums[i];
        else
            ((T *)a.out)[at + i] = from_f32<T>(sums[i]);
    }
}

/** Four neighbouring sums of the whole of k. */
template <int PITCH>
DEVICE void add_splits(const struct skinny_args &s, uint32_t sums, int row, int at, float v[4])
{
    uint32_t addr = sums + (uint32_t)(row * PITCH + at) * 4;
    v[0] = v[1] = v[2] = v[3] = 0;
    for (int i = 0; i < s.num_splits; i++) {
        float4 part = load_cluster(cluster_address(addr, i));
        v[0] += part.x;
        v[1] += part.y;
        v[2] += part.z;
        v[3] += part.w;
    }
}

/** Multiplies sums of e4m3 by the scales of their rows. */
DEVICE void scale_rows(const struct skinny_args &s, float v[4], int row, int at, int end)
{
    float x = s.x_scales.values[row];
    for (int i = 0; i < 4 && at + i < end; i++)
        v[i] *= x * s.weight_scales.values[at + i];
}

DEVICE void add_bias(const struct gemv_args &a, float v[4], int at, int end)
{
    for (int i = 0; i < 4 && at + i < end; i++)
        v[i] += a.bias[at + i];
}

/** This CTA's share of the tile's rows of x: everything besides the product. */
template <typename T, enum operands OPERANDS, int ROWS, int WARPGROUPS>
DEVICE void finish(const struct skinny_args &s, const struct skinny_part &p, uint32_t sums)
{
    typedef skinny_shape<ROWS, WARPGROUPS> shape;
    const struct gemv_args &a = s.a;
    int width = a.is_swiglu ? s.tile_rows / 2 : s.tile_rows, quads = width / 4;
    int num_cols = a.is_swiglu ? a.n / 2 : a.n;
    for (int i = (int)threadIdx.x;; i += shape::CONSUMERS) {
        int row = p.split + s.num_splits * (i / quads), at = i % quads * 4;
        int col = p.tile * width + at;
        if (row >= a.num_rows)
            return;
        if (col >= num_cols)
            continue;
        float v[4], up[4];
        add_splits<shape::PITCH>(s, sums, row, at, v);
        if constexpr (OPERANDS == F8_ROWS)
            scale_rows(s, v, row, col, num_cols);
        if (a.bias)
            add_bias(a, v, col, num_cols);
        if (a.is_swiglu) {
            add_splits<shape::PITCH>(s, sums, row, at + width, up);
            if constexpr (OPERANDS == F8_ROWS)
                scale_rows(s, up, row, num_cols + col, a.n);
            if (a.bias)
                add_bias(a, up, num_cols + col, a.n);
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = silu(v[j]) * up[j];
        }
        if (a.out_is_f32)
            store_results<float>(a, v, row, col, num_cols);
        else
            store_results<T>(a, v, row, col, num_cols);
    }
}

/** CTAs that a multiprocessor has registers for; those of blocks keep their sums twice. */
template <enum operands OPERANDS, int ROWS, int WARPGROUPS>
constexpr int CTAS = (WARPGROUPS == 3 && ROWS > 64) || OPERANDS == F8_BLOCKS ? 1 : 2;

template <typename T, enum operands OPERANDS, int ROWS, int WARPGROUPS>
__global__
__launch_bounds__(WARPGROUPS * 128 + 32, (CTAS<OPERANDS, ROWS, WARPGROUPS>)) void skinny_kernel(
    const __grid_constant__ struct skinny_args s)
{
    typedef skinny_shape<ROWS, WARPGROUPS> shape;
    extern __shared__ __align__(1024) char ring[];
    struct skinny_barriers *b = (struct skinny_barriers *)(ring + s.barriers_at);
    bool is_consumer = threadIdx.x < shape::CONSUMERS;
    bool is_producer = threadIdx.x == shape::CONSUMERS;
    bool is_cluster = s.num_splits > 1;
    const struct skinny_part p = part_of(s);
    if (is_producer) {
        for (int i = 0; i < s.num_stages; i++) {
            barrier_init(&b->full[i], 1);
            barrier_init(&b->empty[i], WARPGROUPS);
        }
        fence_async_proxy();
        for (int i = 0; i < min(p.num_steps, s.num_stages); i++)
            copy_weight(s, p, i, smem_address(ring) + (uint32_t)(i * s.stage_bytes), &b->full[i]);
        prefetch_map(&s.x);
        if (p.num_steps <= s.num_stages)
            dependents_launch();
    }
    __syncthreads();
    dependency_wait();
    if (is_producer)
        produce(s, p, b, smem_address(ring));
    else if (is_consumer)
        consume<T, OPERANDS, ROWS, WARPGROUPS>(s, p, b, ring);
    __syncwarp();
    if (is_cluster)
        cluster_sync(); // both CTAs' sums are there
    else
        __syncthreads();
    if (is_consumer)
        finish<T, OPERANDS, ROWS, WARPGROUPS>(s, p, smem_address(ring));
    if (is_cluster)
        cluster_sync(); // nobody's shared memory goes away while the other reads it
}

bool skinny_gemm_supports(int32_t num_rows, int32_t n, int32_t k, bool is_swiglu)
{
    return num_rows > 0 && num_rows <= SKINNY_GEMM_MAX_ROWS && n > 0 && k > 0 && k % 8 == 0 &&
           (!is_swiglu || n % 2 == 0);
}

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/** Sets how the product is cut: so that all multiprocessors have the same to do. */
static void choose_cut(const struct cuda_launch *launch, struct skinny_args *s, int rows)
{
    int num_sms = launch->num_sms, n = s->a.n;
    bool is_cut = ceil_div(n, 64) < num_sms && s->a.k >= 8 * s->step && !s->a.is_whole;
    s->num_splits = is_cut ? 2 : 1;
    int num_turns = ceil_div(ceil_div(n, 192) * s->num_splits, num_sms);
    if (num_turns > 1 && rows > 64) // registers are too few for two CTAs of three warpgroups
        num_turns = ceil_div(ceil_div(n, 128) * s->num_splits, num_sms);
    s->tile_rows = ceil_div(ceil_div(n * s->num_splits, num_turns * num_sms), 16) * 16;
    s->is_alone = num_turns == 1 || s->weight_scales.pitch > 0;
}

template <typename T, enum operands OPERANDS, int ROWS, int WARPGROUPS>
static void launch_skinny(const struct cuda_launch *launch, struct skinny_args *s)
{
    typedef skinny_shape<ROWS, WARPGROUPS> shape;
    s->stage_bytes = (s->tile_rows + ROWS) * ROW_BYTES;
    // What wgmma reads behind a last stage whose rows are fewer than the warpgroups'.
    int excess = WARPGROUPS * 64 * ROW_BYTES - s->stage_bytes;
    excess = excess > 0 ? excess : 0;
    int most = s->is_alone ? MAX_RING_BYTES : HALF_RING_BYTES;
    s->num_stages = (most - excess) / s->stage_bytes;
    if (s->num_stages > MAX_STAGES)
        s->num_stages = MAX_STAGES;
    int ring = s->num_stages * s->stage_bytes;
    s->barriers_at = ring > shape::SUMS_BYTES ? ring : shape::SUMS_BYTES;
    int end = s->barriers_at + (int)sizeof(struct skinny_barriers);
    launch_kernel(launch, (const void *)skinny_kernel<T, OPERANDS, ROWS, WARPGROUPS>,
                  dim3((unsigned)(ceil_div(s->a.n, s->tile_rows) * s->num_splits)),
                  WARPGROUPS * 128 + 32, (size_t)(end > ring + excess ? end : ring + excess), s,
                  s->num_splits);
}

template <typename T, enum operands OPERANDS, int ROWS>
static void launch_rows(const struct cuda_launch *launch, struct skinny_args *s)
{
    if (s->tile_rows <= 64)
        launch_skinny<T, OPERANDS, ROWS, 1>(launch, s);
    else if (s->tile_rows <= 128)
        launch_skinny<T, OPERANDS, ROWS, 2>(launch, s);
    else
        launch_skinny<T, OPERANDS, ROWS, 3>(launch, s);
}

template <typename T, enum operands OPERANDS>
static void launch_operands(const struct cuda_launch *launch, struct skinny_args *s, int rows)
{
    if constexpr (OPERANDS == WIDE) {
        if (rows == 16) {
            launch_rows<T, WIDE, 16>(launch, s);
            return;
        }
    }
    if (rows == 32)
        launch_rows<T, OPERANDS, 32>(launch, s);
    else if (rows == 64)
        launch_rows<T, OPERANDS, 64>(launch, s);
    if constexpr (OPERANDS != F8_BLOCKS) { // with more rows, registers cannot keep sums twice
        if (rows == 96)
            launch_rows<T, OPERANDS, 96>(launch, s);
        else if (rows == 128)
            launch_rows<T, OPERANDS, 128>(launch, s);
    }
}

template <enum operands OPERANDS>
static bool launch_product(const struct cuda_launch *launch, struct skinny_args *s)
{
    bool is_f8 = OPERANDS != WIDE, is_f16 = launch->is_f16;
    const struct gemv_args *a = &s->a;
    int rows = a->num_rows <= 16 && !is_f8 ? 16 : ceil_div(a->num_rows, 32) * 32;
    s->step = is_f8 ? ROW_BYTES : ROW_BYTES / 2;
    choose_cut(launch, s, rows);
    const struct mapped_matrix weight = {(void *)a->weight, a->n, a->k, a->k, is_f16, is_f8};
    const struct mapped_matrix x = {(void *)a->x, a->num_rows, a->k, a->x_stride, is_f16, is_f8};
    int box_rows = a->is_swiglu ? s->tile_rows / 2 : s->tile_rows;
    if (!tensor_map_encode(&s->weight, &weight, box_rows) || !tensor_map_encode(&s->x, &x, rows))
        return false;
    if (is_f16)
        launch_operands<__half, OPERANDS>(launch, s, rows);
    else
        launch_operands<__nv_bfloat16, OPERANDS>(launch, s, rows);
    return true;
}

bool skinny_gemm(const struct cuda_launch *launch, const struct gemv_args *args)
{
    struct skinny_args s = {};
    s.a = *args;
    return launch_product<WIDE>(launch, &s);
}

bool skinny_gemm_f8_supports(int32_t num_rows, int32_t n, int32_t k, bool is_swiglu,
                             bool has_blocks)
{
    return skinny_gemm_supports(num_rows, n, k, is_swiglu) && k % 16 == 0 &&
           (!has_blocks || num_rows <= SKINNY_GEMM_MAX_ROWS_BLOCKS);
}

bool skinny_gemm_f8(const struct cuda_launch *launch, const struct gemv_args *args,
                    struct f8_scales weight_scales, struct f8_scales x_scales)
{
    struct skinny_args s = {};
    s.a = *args;
    s.weight_scales = weight_scales;
    s.x_scales = x_scales;
    return weight_scales.pitch > 0 ? launch_product<F8_BLOCKS>(launch, &s)
                                   : launch_product<F8_ROWS>(launch, &s);
}
