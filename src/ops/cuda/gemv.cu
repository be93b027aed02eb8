// A weight matrix times up to 16 rows, at the speed of reading the weight once.
//
// A CTA takes tiles of 16 weight rows (8 where the matrix is so narrow that 16 would leave
// multiprocessors idle), one after the other. A producer warp keeps a ring of spans, 512 of k for
// all rows of the tile, filled by bulk copies that run on across tiles; it starts before the
// previous kernel has ended, as a weight never depends on it. Eight consumer warps share out each
// span in steps of 64, and add up at the end of the tile in the order of the warps.
//
// The weight is the first operand of mma.m16n8k16 and the rows of x are its 8 columns, so that one
// kernel serves 1 to 16 rows with the same sums. Both are read 16 bytes per lane: a lane's eight
// neighbours in k become what the instruction calls k, k + 1, k + 8, k + 9 of two products; the sum
// over k does not care, as long as both operands agree.
//
// RMSNorm costs little here: the sum of squares is collected from the fragments, and its root, one
// number per row, is applied to the finished sums. In float16 x times the norm's weight may be too
// much before that, so the weight is made smaller than one by a power of two, which the finished
// sums get back; the power is found before the previous kernel has ended. With SwiGLU the upper
// half of a tile's rows comes from up's half of the weight, so gate and up meet in one thread.
#include "ops/cuda/gemv.cuh"

enum { SPAN = WARPS * STEP };
// 64 bytes of padding put the two rows that a quarter warp reads into different halves of the
// banks.
enum { PITCH = SPAN * 2 + 64 };

/** A power of two that makes every element of a float16 norm's weight smaller than one; one where
 *  that is so. */
DEVICE float norm_shrink(const struct gemv_args &a, float largest_of[WARPS])
{
    float largest = 0;
    for (int k = (int)threadIdx.x * 8; k < a.k; k += WARPS * 32 * 8) {
        float w[8];
        unpack8<__half>(__ldg((const uint4 *)((const uint16_t *)a.norm_weight + k)), w);
#pragma unroll
        for (int i = 0; i < 8; i++)
            largest = fmaxf(largest, fabsf(w[i]));
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0)
        largest_of[threadIdx.x / 32] = largest;
    named_barrier(1, WARPS * 32);
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        largest = fmaxf(largest, largest_of[i]);
    uint32_t exponent = __float_as_uint(largest) >> 23; // of one: 127
    return exponent < 127 ? 1.0f : __uint_as_float((253 - exponent) << 23);
}

/** x * norm_weight (* shrink, in float16), and the squares of x added to `squares`. */
template <typename T>
DEVICE uint4 apply_norm_weight(uint4 x, uint4 norm_weight, float shrink, float &squares)
{
    float a[8], b[8];
    unpack8<T>(x, a);
#pragma unroll
    for (int i = 0; i < 8; i++)
        squares += a[i] * a[i];
    if constexpr (IS_F16<T>) {
        const __half2 factor = __float2half2_rn(shrink);
        __half2 *pairs = (__half2 *)&x;
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = __hmul2(pairs[i], __hmul2(((const __half2 *)&norm_weight)[i], factor));
        return x;
    }
    unpack8<T>(norm_weight, b);
#pragma unroll
    for (int i = 0; i < 8; i++)
        a[i] *= b[i];
    return pack8<T>(a);
}

/** What a step multiplies with: two spans of 32 in k. */
template <int TILES> struct step_inputs {
    uint4 x[2][TILES], norm_weight[2];
};

/** For the step at `k`; past the end: leaves them. */
template <int TILES, bool NORM>
DEVICE void load_inputs(struct step_inputs<TILES> &in, const struct gemv_args &a, int k)
{
    int lane = threadIdx.x % 32;
    if (k >= a.k)
        return;
    k += lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (NORM)
            in.norm_weight[i] =
                __ldg((const uint4 *)((const uint16_t *)a.norm_weight + k + i * 32));
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            int row = lane / 4 + 8 * t;
            in.x[i][t] = make_uint4(0, 0, 0, 0);
            if (row < a.num_rows)
                in.x[i][t] =
                    *(const uint4 *)((const uint16_t *)a.x + row * a.x_stride + k + i * 32);
        }
    }
}

template <typename T, int ROWS, int TILES, bool NORM>
DEVICE void multiply_step(float acc[TILES][4], float squares[TILES], const char *weight,
                          const struct step_inputs<TILES> &in, float shrink)
{
    int lane = threadIdx.x % 32;
    weight += lane / 4 * PITCH + lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 lower = *(const uint4 *)(weight + i * 64), upper = make_uint4(0, 0, 0, 0);
        if (ROWS == 16)
            upper = *(const uint4 *)(weight + i * 64 + 8 * PITCH);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            uint4 x = in.x[i][t];
            if (NORM)
                x = apply_norm_weight<T>(x, in.norm_weight[i], shrink, squares[t]);
            mma_16816<IS_F16<T>>(acc[t], lower.x, upper.x, lower.y, upper.y, x.x, x.y);
            mma_16816<IS_F16<T>>(acc[t], lower.z, upper.z, lower.w, upper.w, x.z, x.w);
        }
    }
}

/** The warps' sums of one tile. Two sets, so that a warp may start the next tile while others still
 *  add up this one. */
template <int ROWS, int COLS> struct tile_sums {
    float products[WARPS][COLS][ROWS + 1];
    float squares[WARPS][COLS];
};

template <typename T, int ROWS, int TILES, bool NORM, bool SWIGLU>
DEVICE void finish_tile(const struct gemv_args &a, struct tile_sums<ROWS, 8 * TILES> *sums,
                        const float acc[TILES][4], float squares[TILES], int tile, float shrink)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int c = 0; c < (ROWS == 16 ? 4 : 2); c++)
            sums->products[warp][8 * t + lane % 4 * 2 + c % 2][lane / 4 + c / 2 * 8] = acc[t][c];
        if (NORM) {
            squares[t] += __shfl_xor_sync(0xffffffffu, squares[t], 1);
            squares[t] += __shfl_xor_sync(0xffffffffu, squares[t], 2);
            if (lane % 4 == 0)
                sums->squares[warp][8 * t + lane / 4] = squares[t];
        }
    }
    named_barrier(1, WARPS * 32);

    constexpr int OUT = SWIGLU ? 8 : ROWS;
    int at = (int)threadIdx.x % OUT, row = (int)threadIdx.x / OUT, col = tile * OUT + at;
    int num_cols = SWIGLU ? a.n / 2 : a.n;
    if (row >= a.num_rows || row >= 8 * TILES || col >= num_cols)
        return;
    float v = 0, up = 0, squares_of_row = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        v += sums->products[i][row][at];
        if (SWIGLU)
            up += sums->products[i][row][at + 8];
        if (NORM)
            squares_of_row += sums->squares[i][row];
    }
    if (NORM) {
        float scale = rsqrtf(squares_of_row / (float)a.k + a.norm_eps);
        if (IS_F16<T>)
            scale /= shrink;
        v *= scale;
        up *= scale;
    }
    if (a.bias) {
        v += a.bias[col];
        if (SWIGLU)
            up += a.bias[num_cols + col];
    }
    store<T>(a, row, col, num_cols, SWIGLU ? silu(v) * up : v);
}

template <typename T, int ROWS, int TILES, bool NORM, bool SWIGLU>
__global__
__launch_bounds__(THREADS, CTAS_PER_SM) void gemv_kernel(const __grid_constant__ struct gemv_args a)
{
    extern __shared__ __align__(128) char ring[];
    __shared__ struct ring_barriers b;
    __shared__ struct tile_sums<ROWS, 8 * TILES> sums[2];
    constexpr int STAGE_BYTES = weight_ring<ROWS, PITCH>::STAGE_BYTES, OUT = SWIGLU ? 8 : ROWS;
    int warp = threadIdx.x / 32;
    int num_tiles = ((SWIGLU ? a.n / 2 : a.n) + OUT - 1) / OUT;
    if (threadIdx.x == 0)
        init_ring(&b);
    __syncthreads();
    dependents_launch();
    if (warp == WARPS) {
        produce<uint16_t, SPAN, ROWS, PITCH, SWIGLU>(a, num_tiles, &b, smem_address(ring));
        return;
    }
    float shrink = 1.0f;
    if (NORM && IS_F16<T>)
        shrink = norm_shrink(a, sums[1].squares[0]); // the second tile's, long before it
    dependency_wait();
    int use = 0, turn = 0;
    struct step_inputs<TILES> in = {
    };
    load_inputs<TILES, NORM>(in, a, warp * STEP);
    for (int tile = (int)blockIdx.x; tile < num_tiles; tile += (int)gridDim.x, turn ^= 1) {
        float acc[TILES][4] = {}, squares[TILES] = {};
        for (int at = 0; at < a.k; at += SPAN, use++) {
            int stage = use % STAGES, k = at + warp * STEP;
            struct step_inputs<TILES> now = in;
            load_inputs<TILES, NORM>(in, a, at + SPAN < a.k ? k + SPAN : warp * STEP); // for later
            barrier_wait(&b.full[stage], (uint32_t)(use / STAGES) & 1);
            if (k < a.k)
                multiply_step<T, ROWS, TILES, NORM>(
                    acc, squares, ring + stage * STAGE_BYTES + warp * STEP * 2, now, shrink);
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                barrier_arrive(&b.empty[stage]);
        }
        finish_tile<T, ROWS, TILES, NORM, SWIGLU>(a, &sums[turn], acc, squares, tile, shrink);
    }
}

bool gemv_supports(int32_t num_rows, int32_t n, int32_t k, bool is_swiglu)
{
    return num_rows > 0 && num_rows <= GEMV_MAX_ROWS && n > 0 && k > 0 && k % STEP == 0 &&
           (!is_swiglu || n % 2 == 0);
}

template <typename T, int ROWS, int TILES>
static const void *kernel_of(bool has_norm, bool is_swiglu)
{
    if (is_swiglu)
        return has_norm ? (const void *)gemv_kernel<T, 16, TILES, true, true>
                        : (const void *)gemv_kernel<T, 16, TILES, false, true>;
    return has_norm ? (const void *)gemv_kernel<T, ROWS, TILES, true, false>
                    : (const void *)gemv_kernel<T, ROWS, TILES, false, false>;
}

template <typename T> static const void *kernel_for(const struct gemv_args *args, int rows)
{
    bool has_norm = args->norm_weight != NULL;
    if (args->num_rows <= 8)
        return rows == 16 ? kernel_of<T, 16, 1>(has_norm, args->is_swiglu)
                          : kernel_of<T, 8, 1>(has_norm, false);
    return rows == 16 ? kernel_of<T, 16, 2>(has_norm, args->is_swiglu)
                      : kernel_of<T, 8, 2>(has_norm, false);
}

void gemv(const struct cuda_launch *launch, const struct gemv_args *args)
{
    // The cut of k and of the rows depends on the weight's shape alone: so does every sum.
    int rows = args->is_swiglu || args->n > NARROW ? 16 : 8;
    const void *kernel =
        launch->is_f16 ? kernel_for<__half>(args, rows) : kernel_for<__nv_bfloat16>(args, rows);
    int per_tile = args->is_swiglu ? 8 : rows, cols = args->is_swiglu ? args->n / 2 : args->n;
    struct gemv_args copy = *args;
    launch_kernel(launch, kernel, gemv_grid(launch, cols, per_tile), THREADS,
                  rows == 16 ? weight_ring<16, PITCH>::BYTES : weight_ring<8, PITCH>::BYTES, &copy);
}
