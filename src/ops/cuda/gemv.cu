// A weight matrix times up to 16 rows, at the speed of reading the weight once.
//
// A CTA owns 16 weight rows (8 where the matrix is so narrow that 16 would leave multiprocessors
// idle); its eight warps share out k in steps of 64 and add up at the end in the order of the warps.
// The weight is the first operand of mma.m16n8k16 and the rows of x are its 8 columns, so that one
// kernel serves 1 to 16 rows with the same sums. Both are read from memory straight into fragments,
// 16 bytes per lane: a lane's eight neighbours in k become what the instruction calls k, k + 1,
// k + 8, k + 9 of two products; the sum over k does not care, as long as both operands agree.
//
// Weight loads run three or four steps ahead, and the first start before the previous kernel has ended: a
// weight never depends on it. RMSNorm costs nothing here: the sum of squares is collected from the
// fragments, and its root, one number per row, is applied to the finished sums. With SwiGLU the
// upper half of a CTA's rows comes from up's half of the weight, so gate and up meet in one thread.
#include "ops/cuda/common.cuh"

enum { WARPS = 8, STEP = 64, NARROW = 2048 };

struct weight_step {
    uint4 lower[2], upper[2]; // rows lane / 4 and lane / 4 + 8; two spans of 32 in k
};

template <int ROWS>
DEVICE void load_weight(struct weight_step &w, const __nv_bfloat16 *lower,
                        const __nv_bfloat16 *upper, int step)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        w.lower[i] = load_streaming(lower + step * STEP + i * 32);
        if (ROWS == 16)
            w.upper[i] = load_streaming(upper + step * STEP + i * 32);
    }
}

/** x * norm_weight, and its squares added to `squares`. */
DEVICE uint4 apply_norm_weight(uint4 x, uint4 norm_weight, float &squares)
{
    float a[8], b[8];
    unpack_bf16x8(x, a);
    unpack_bf16x8(norm_weight, b);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        squares += a[i] * a[i];
        a[i] *= b[i];
    }
    return pack_bf16x8(a);
}

template <int ROWS, int TILES, bool NORM>
DEVICE void multiply_step(float acc[TILES][4], float squares[TILES], const struct weight_step &w,
                          const struct gemv_args &a, int step)
{
    int lane = threadIdx.x % 32, at = step * STEP + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 norm_weight = make_uint4(0, 0, 0, 0);
        if (NORM)
            norm_weight = __ldg((const uint4 *)((const __nv_bfloat16 *)a.norm_weight + at + i * 32));
        uint4 lower = w.lower[i], upper = ROWS == 16 ? w.upper[i] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            int row = lane / 4 + 8 * t;
            uint4 x = make_uint4(0, 0, 0, 0);
            if (row < a.num_rows)
                x = *(const uint4 *)((const __nv_bfloat16 *)a.x + row * a.x_stride + at + i * 32);
            if (NORM)
                x = apply_norm_weight(x, norm_weight, squares[t]);
            mma_16816<false>(acc[t], lower.x, upper.x, lower.y, upper.y, x.x, x.y);
            mma_16816<false>(acc[t], lower.z, upper.z, lower.w, upper.w, x.z, x.w);
        }
    }
}

DEVICE void store(const struct gemv_args &a, int row, int col, int num_cols, float v)
{
    size_t at = (size_t)row * num_cols + col;
    if (a.out_is_f32) {
        if (a.residual)
            v += ((const float *)a.residual)[at];
        ((float *)a.out)[at] = v;
    } else {
        if (a.residual)
            v += __bfloat162float(((const __nv_bfloat16 *)a.residual)[at]);
        ((__nv_bfloat16 *)a.out)[at] = __float2bfloat16(v);
    }
}

template <int ROWS, int TILES, bool NORM, bool SWIGLU>
__global__ __launch_bounds__(WARPS * 32, 2) void gemv_kernel(
    const __grid_constant__ struct gemv_args a)
{
    constexpr int COLS = 8 * TILES, RING = TILES == 1 ? 4 : 3; // as registers allow
    __shared__ float sums[WARPS][COLS][ROWS + 1];
    __shared__ float square_sums[WARPS][COLS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int base = (int)blockIdx.x * (SWIGLU ? 8 : ROWS), half = a.n / 2;
    int lower_row = min(base + lane / 4, (SWIGLU ? half : a.n) - 1);
    int upper_row = SWIGLU ? half + lower_row : min(base + 8 + lane / 4, a.n - 1);
    const __nv_bfloat16 *weight = (const __nv_bfloat16 *)a.weight + lane % 4 * 8;
    const __nv_bfloat16 *lower = weight + (size_t)lower_row * a.k;
    const __nv_bfloat16 *upper = weight + (size_t)upper_row * a.k;

    int num_steps = a.k / STEP;
    struct weight_step ring[RING];
#pragma unroll
    for (int i = 0; i < RING; i++) {
        if (warp + i * WARPS < num_steps)
            load_weight<ROWS>(ring[i], lower, upper, warp + i * WARPS);
    }
    dependents_launch();
    dependency_wait();

    float acc[TILES][4] = {}, squares[TILES] = {};
#pragma unroll 1
    for (int step = warp; step < num_steps; step += RING * WARPS) {
#pragma unroll
        for (int i = 0; i < RING; i++) {
            int now = step + i * WARPS, later = now + RING * WARPS;
            if (now >= num_steps)
                break;
            multiply_step<ROWS, TILES, NORM>(acc, squares, ring[i], a, now);
            if (later < num_steps)
                load_weight<ROWS>(ring[i], lower, upper, later);
        }
    }

#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int c = 0; c < (ROWS == 16 ? 4 : 2); c++)
            sums[warp][8 * t + lane % 4 * 2 + c % 2][lane / 4 + c / 2 * 8] = acc[t][c];
        if (NORM) {
            squares[t] += __shfl_xor_sync(0xffffffffu, squares[t], 1);
            squares[t] += __shfl_xor_sync(0xffffffffu, squares[t], 2);
            if (lane % 4 == 0)
                square_sums[warp][8 * t + lane / 4] = squares[t];
        }
    }
    __syncthreads();

    constexpr int OUT = SWIGLU ? 8 : ROWS;
    int at = (int)threadIdx.x % OUT, row = (int)threadIdx.x / OUT, col = base + at;
    int num_cols = SWIGLU ? half : a.n;
    if (row >= a.num_rows || row >= COLS || col >= num_cols)
        return;
    float v = 0, up = 0, squares_of_row = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        v += sums[i][row][at];
        if (SWIGLU)
            up += sums[i][row][at + 8];
        if (NORM)
            squares_of_row += square_sums[i][row];
    }
    if (NORM) {
        float scale = rsqrtf(squares_of_row / (float)a.k + a.norm_eps);
        v *= scale;
        up *= scale;
    }
    if (a.bias) {
        v += a.bias[col];
        if (SWIGLU)
            up += a.bias[half + col];
    }
    store(a, row, col, num_cols, SWIGLU ? silu(v) * up : v);
}

bool gemv_supports(int32_t num_rows, int32_t n, int32_t k, bool is_swiglu)
{
    return num_rows > 0 && num_rows <= GEMV_MAX_ROWS && n > 0 && k > 0 && k % STEP == 0 &&
           (!is_swiglu || n % 2 == 0);
}

template <int ROWS, int TILES> static const void *kernel_of(bool has_norm, bool is_swiglu)
{
    if (is_swiglu)
        return has_norm ? (const void *)gemv_kernel<16, TILES, true, true>
                        : (const void *)gemv_kernel<16, TILES, false, true>;
    return has_norm ? (const void *)gemv_kernel<ROWS, TILES, true, false>
                    : (const void *)gemv_kernel<ROWS, TILES, false, false>;
}

void gemv(const struct cuda_launch *launch, const struct gemv_args *args)
{
    // The cut of k and of the rows depends on the weight's shape alone: so does every sum.
    int rows = args->is_swiglu || args->n > NARROW ? 16 : 8;
    bool has_norm = args->norm_weight != NULL;
    const void *kernel;
    if (args->num_rows <= 8)
        kernel = rows == 16 ? kernel_of<16, 1>(has_norm, args->is_swiglu)
                            : kernel_of<8, 1>(has_norm, false);
    else
        kernel = rows == 16 ? kernel_of<16, 2>(has_norm, args->is_swiglu)
                            : kernel_of<8, 2>(has_norm, false);
    int out_per_cta = args->is_swiglu ? 8 : rows, cols = args->is_swiglu ? args->n / 2 : args->n;
    struct gemv_args copy = *args;
    launch_kernel(launch, kernel, dim3((unsigned)((cols + out_per_cta - 1) / out_per_cta)),
                  WARPS * 32, 0, &copy);
}
