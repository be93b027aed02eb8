// A weight matrix of e4m3 times up to 16 rows, at the speed of reading the weight once: gemv.cu's
// way of working with elements of half the size, which become the type of x on their way from
// shared memory into the tensor cores. Activations are not quantised here.
//
// What differs from gemv.cu: a lane reads 16 elements of k at once; a scale of 128 x 128 elements
// is applied to the sums of each step, a row's to the finished ones; and as there is less time for
// each element, the squares of RMSNorm are collected during a CTA's first tile only, and the norm's
// weight is multiplied in pairs.
#include "ops/cuda/gemv.cuh"

// A span is two steps of each warp: bulk copies of half its size come too slowly.
enum { STRIDE = WARPS * STEP, SPAN = 2 * STRIDE, BLOCK = 128 };
// 64 bytes of padding put the two rows that a quarter warp reads into different halves of the
// banks.
enum { PITCH = SPAN + 64 };

struct gemv_f8_args {
    struct gemv_args product;
    struct f8_scales scales;
};

DEVICE uint32_t mad(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/** Four e4m3 numbers as two pairs of T; exact. */
template <typename T> DEVICE void widen4(uint32_t stored, uint32_t pairs[2])
{
    if constexpr (IS_F16<T>) {
        pairs[0] = e4m3x2_to_f16x2((uint16_t)stored);
        pairs[1] = e4m3x2_to_f16x2((uint16_t)(stored >> 16));
    } else {
        // Moved to where bfloat16 has exponent and mantissa, a number is 2^-120 of itself. Products
        // with whole numbers shift, as the pipe that does those has more time than the one that
        // masks; the sign has 4 places further to go.
        const uint32_t two_to_120 = 0x7B807B80u;
        const uint32_t spread[2] = {__byte_perm(stored, 0, 0x4140), __byte_perm(stored, 0, 0x4342)};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t bits = mad(spread[i] & 0x00800080u, 240, mad(spread[i], 16, 0));
            __nv_bfloat162 v =
                __hmul2(*(const __nv_bfloat162 *)&bits, *(const __nv_bfloat162 *)&two_to_120);
            pairs[i] = *(const uint32_t *)&v;
        }
    }
}

/** x * norm_weight, in pairs. */
DEVICE uint4 times(uint4 x, uint4 norm_weight)
{
    const __nv_bfloat162 *a = (const __nv_bfloat162 *)&x, *b = (const __nv_bfloat162 *)&norm_weight;
    uint4 r;
    __nv_bfloat162 *out = (__nv_bfloat162 *)&r;
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = __hmul2(a[i], b[i]);
    return r;
}

/** What a step multiplies with: a lane's 16 neighbours in k. */
template <int TILES> struct step_inputs {
    uint4 x[2][TILES], norm_weight[2];
    float lower, upper; // scales of the tile's first and second eight rows
};

/** For the step at `k` of a tile; past the end: leaves them. */
template <typename T, int ROWS, int TILES, bool NORM, bool SWIGLU>
DEVICE void load_inputs(struct step_inputs<TILES> &in, const struct gemv_f8_args &args, int tile,
                        int k)
{
    const struct gemv_args &a = args.product;
    int lane = threadIdx.x % 32;
    if (k >= a.k)
        return;
    in.lower = in.upper = 1;
    if (args.scales.pitch > 0) {
        const float *scales = args.scales.values + k / BLOCK;
        int lower = weight_row<ROWS, SWIGLU>(a.n, tile, 0) / BLOCK;
        int upper = weight_row<ROWS, SWIGLU>(a.n, tile, 8) / BLOCK;
        in.lower = __ldg(scales + (size_t)lower * args.scales.pitch);
        if (ROWS == 16)
            in.upper = __ldg(scales + (size_t)upper * args.scales.pitch);
    }
    k += lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (NORM)
            in.norm_weight[i] = __ldg((const uint4 *)((const T *)a.norm_weight + k + i * 8));
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            int row = lane / 4 + 8 * t;
            in.x[i][t] = make_uint4(0, 0, 0, 0);
            if (row < a.num_rows)
                in.x[i][t] = *(const uint4 *)((const T *)a.x + row * a.x_stride + k + i * 8);
        }
    }
}

template <typename T, int TILES>
DEVICE void add_squares(float squares[TILES], const struct step_inputs<TILES> &in)
{
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float v[8];
            unpack8<T>(in.x[i][t], v);
#pragma unroll
            for (int j = 0; j < 8; j++)
                squares[t] += v[j] * v[j];
        }
    }
}

template <typename T, int ROWS, int TILES, bool NORM>
DEVICE void multiply_step(float acc[TILES][4], const char *weight,
                          const struct step_inputs<TILES> &in)
{
    int lane = threadIdx.x % 32;
    weight += lane / 4 * PITCH + lane % 4 * 16;
    uint4 lower = *(const uint4 *)weight, upper = make_uint4(0, 0, 0, 0);
    if (ROWS == 16)
        upper = *(const uint4 *)(weight + 8 * PITCH);
    const uint32_t lower_words[4] = {lower.x, lower.y, lower.z, lower.w};
    const uint32_t upper_words[4] = {upper.x, upper.y, upper.z, upper.w};
    float sums[TILES][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 x[TILES];
#pragma unroll
        for (int t = 0; t < TILES; t++)
            x[t] = NORM ? times(in.x[i][t], in.norm_weight[i]) : in.x[i][t];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t low[2], high[2] = {0, 0};
            widen4<T>(lower_words[2 * i + j], low);
            if (ROWS == 16)
                widen4<T>(upper_words[2 * i + j], high);
#pragma unroll
            for (int t = 0; t < TILES; t++)
                mma_16816<IS_F16<T>>(sums[t], low[0], high[0], low[1], high[1],
                                     j == 0 ? x[t].x : x[t].z, j == 0 ? x[t].y : x[t].w);
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        acc[t][0] += sums[t][0] * in.lower;
        acc[t][1] += sums[t][1] * in.lower;
        acc[t][2] += sums[t][2] * in.upper;
        acc[t][3] += sums[t][3] * in.upper;
    }
}

/** The warps' sums of one tile. Two sets, so that a warp may start the next tile while others still
 *  add up this one. The squares stay from the first tile on. */
template <int ROWS, int COLS> struct tile_sums {
    float products[2][WARPS][COLS][ROWS + 1];
    float squares[WARPS][COLS];
};

template <typename T, int ROWS, int TILES, bool NORM, bool SWIGLU>
DEVICE void finish_tile(const struct gemv_f8_args &args, struct tile_sums<ROWS, 8 * TILES> *sums,
                        int turn, const float acc[TILES][4], int tile)
{
    const struct gemv_args &a = args.product;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int c = 0; c < (ROWS == 16 ? 4 : 2); c++)
            sums->products[turn][warp][8 * t + lane % 4 * 2 + c % 2][lane / 4 + c / 2 * 8] =
                acc[t][c];
    }
    named_barrier(1, WARPS * 32);

    constexpr int OUT = SWIGLU ? 8 : ROWS;
    int at = (int)threadIdx.x % OUT, row = (int)threadIdx.x / OUT, col = tile * OUT + at;
    int num_cols = SWIGLU ? a.n / 2 : a.n;
    if (row >= a.num_rows || row >= 8 * TILES || col >= num_cols)
        return;
    float v = 0, up = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        v += sums->products[turn][i][row][at];
        if (SWIGLU)
            up += sums->products[turn][i][row][at + 8];
        if (NORM)
            squares += sums->squares[i][row];
    }
    float scale = NORM ? rsqrtf(squares / (float)a.k + a.norm_eps) : 1.0f;
    bool by_row = args.scales.pitch == 0;
    v *= by_row ? scale * args.scales.values[col] : scale;
    if (SWIGLU)
        up *= by_row ? scale * args.scales.values[num_cols + col] : scale;
    if (a.bias) {
        v += a.bias[col];
        if (SWIGLU)
            up += a.bias[num_cols + col];
    }
    store<T>(a, row, col, num_cols, SWIGLU ? silu(v) * up : v);
}

template <typename T, int ROWS, int TILES, bool NORM, bool SWIGLU>
__global__
__launch_bounds__(THREADS,
                  CTAS_PER_SM) void gemv_f8_kernel(const __grid_constant__ struct gemv_f8_args args)
{
    extern __shared__ __align__(128) char ring[];
    __shared__ struct ring_barriers b;
    __shared__ struct tile_sums<ROWS, 8 * TILES> sums;
    const struct gemv_args &a = args.product;
    constexpr int STAGE_BYTES = weight_ring<ROWS, PITCH>::STAGE_BYTES, OUT = SWIGLU ? 8 : ROWS;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int num_tiles = ((SWIGLU ? a.n / 2 : a.n) + OUT - 1) / OUT;
    if (threadIdx.x == 0)
        init_ring(&b);
    __syncthreads();
    dependents_launch();
    if (warp == WARPS) {
        produce<uint8_t, SPAN, ROWS, PITCH, SWIGLU>(a, num_tiles, &b, smem_address(ring));
        return;
    }
    dependency_wait();
    int use = 0, turn = 0, first = (int)blockIdx.x;
    struct step_inputs<TILES> in = {
    };
    load_inputs<T, ROWS, TILES, NORM, SWIGLU>(in, args, first, warp * STEP);
    float squares[TILES] = {};
    for (int tile = first; tile < num_tiles; tile += (int)gridDim.x, turn ^= 1) {
        float acc[TILES][4] = {};
        for (int at = 0; at < a.k; at += SPAN, use++) {
            int stage = use % STAGES;
            const char *weight = ring + stage * STAGE_BYTES;
#pragma unroll
            for (int i = 0; i < SPAN; i += STRIDE) {
                int k = at + i + warp * STEP;
                if (i > 0 && at + i >= a.k)
                    break;
                bool ends = at + i + STRIDE >= a.k;
                struct step_inputs<TILES> now = in;
                load_inputs<T, ROWS, TILES, NORM, SWIGLU>( // for later
                    in, args, ends ? tile + (int)gridDim.x : tile, ends ? warp * STEP : k + STRIDE);
                if (NORM && tile == first && k < a.k)
                    add_squares<T, TILES>(squares, now);
                if (i == 0)
                    barrier_wait(&b.full[stage], (uint32_t)(use / STAGES) & 1);
                if (k < a.k)
                    multiply_step<T, ROWS, TILES, NORM>(acc, weight + i + warp * STEP, now);
            }
            __syncwarp();
            if (lane == 0)
                barrier_arrive(&b.empty[stage]);
        }
        if (NORM && tile == first) {
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                squares[t] += __shfl_xor_sync(0xffffffffu, squares[t], 1);
                squares[t] += __shfl_xor_sync(0xffffffffu, squares[t], 2);
                if (lane % 4 == 0)
                    sums.squares[warp][8 * t + lane / 4] = squares[t];
            }
        }
        finish_tile<T, ROWS, TILES, NORM, SWIGLU>(args, &sums, turn, acc, tile);
    }
}

bool gemv_f8_supports(const struct cuda_launch *launch, const struct gemv_args *args)
{
    // What a norm makes of float16 before it is divided by the root may be too large for it.
    return gemv_supports(args->num_rows, args->n, args->k, args->is_swiglu) &&
           (!args->is_swiglu || args->n % 16 == 0) && !(launch->is_f16 && args->norm_weight);
}

template <int ROWS, int TILES, bool SWIGLU> static const void *kernel_of(bool is_f16, bool has_norm)
{
    if (is_f16)
        return (const void *)gemv_f8_kernel<__half, ROWS, TILES, false, SWIGLU>;
    return has_norm ? (const void *)gemv_f8_kernel<__nv_bfloat16, ROWS, TILES, true, SWIGLU>
                    : (const void *)gemv_f8_kernel<__nv_bfloat16, ROWS, TILES, false, SWIGLU>;
}

template <int TILES> static const void *kernel_for(const struct gemv_args &a, int rows, bool is_f16)
{
    bool has_norm = a.norm_weight != NULL;
    if (a.is_swiglu)
        return kernel_of<16, TILES, true>(is_f16, has_norm);
    return rows == 16 ? kernel_of<16, TILES, false>(is_f16, has_norm)
                      : kernel_of<8, TILES, false>(is_f16, has_norm);
}

void gemv_f8(const struct cuda_launch *launch, const struct gemv_args *args,
             struct f8_scales scales)
{
    // The cut of k and of the rows depends on the weight's shape alone: so does every sum.
    int rows = args->is_swiglu || args->n > NARROW ? 16 : 8;
    const void *kernel = args->num_rows <= 8 ? kernel_for<1>(*args, rows, launch->is_f16)
                                             : kernel_for<2>(*args, rows, launch->is_f16);
    int per_tile = args->is_swiglu ? 8 : rows, cols = args->is_swiglu ? args->n / 2 : args->n;
    struct gemv_f8_args copy = {*args, scales};
    launch_kernel(launch, kernel, gemv_grid(launch, cols, per_tile), THREADS,
                  rows == 16 ? weight_ring<16, PITCH>::BYTES : weight_ring<8, PITCH>::BYTES, &copy);
}
