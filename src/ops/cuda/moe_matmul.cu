// The experts' products: one launch for all experts of a layer. A CTA takes a tile of an expert's
// slots by a tile of its weight rows, both brought to shared memory by cp.async in a ring of stages
// of 64 of k, and multiplies with mma.m16n8k16. Rows of x are gathered by the slot's token on the
// way. The grid has as many tiles as there can be; those beyond what the sort made leave at once,
// so the host need not know where the tokens went.
//
// Every sum runs over k in steps of 16 from the first to the last, in tiles of every size: a row's
// result does not depend on the tile.
#include "ops/cuda/moe.cuh"

enum { STEP = 64, PITCH = STEP * 2 + 16, UNITS = STEP / 8 };

/** Rows by columns of a tile, warps along each, stages of the ring. */
template <int ROWS, int COLS, int WARPS_M, int WARPS_N, int STAGES> struct expert_tile {
    static constexpr int THREADS = WARPS_M * WARPS_N * 32;
    static constexpr int STAGE_BYTES = (ROWS + COLS) * PITCH;
    static constexpr int BYTES = STAGES * STAGE_BYTES;
    static constexpr int M = ROWS / WARPS_M / 16, N = COLS / WARPS_N / 16; // of a warp, in 16
};

typedef expert_tile<16, 64, 1, 4, 6> small_tile;
typedef expert_tile<64, 128, 2, 4, 4> middle_tile;
typedef expert_tile<128, 128, 4, 2, 3> large_tile;

template <int ROWS, int COLS, int WARPS_M, int WARPS_N, int STAGES>
static __global__
__launch_bounds__(WARPS_M *WARPS_N * 32,
                  2) void expert_matmul_kernel(const __grid_constant__ struct expert_matmul_args a)
{
    typedef expert_tile<ROWS, COLS, WARPS_M, WARPS_N, STAGES> tile;
    extern __shared__ __align__(128) char smem[];
    __shared__ int source[ROWS]; // row of x; -1: past the expert's last slot
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    dependents_launch();
    dependency_wait();
    if ((int)blockIdx.y >= a.routes.tiles[0])
        return;
    int expert = a.routes.tiles[1 + 2 * blockIdx.y], first = a.routes.tiles[2 + 2 * blockIdx.y];
    int end = min(a.routes.expert_start[expert + 1], first + ROWS);
    int first_col = (int)blockIdx.x * COLS;
    for (int i = (int)threadIdx.x; i < ROWS; i += tile::THREADS) {
        int slot = first + i;
        source[i] = slot >= end ? -1 : a.is_by_token ? a.routes.tokens[slot] : slot;
    }
    __syncthreads();
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)a.x;
    const __nv_bfloat16 *weight =
        (const __nv_bfloat16 *)a.weights[expert] + (size_t)first_col * a.k;
    uint32_t base = smem_address(smem);
    int num_steps = (a.k + STEP - 1) / STEP;

    auto load_stage = [&](int step) {
        uint32_t stage = base + step % STAGES * tile::STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < (ROWS + COLS) * UNITS / tile::THREADS; i++) {
            int unit = (int)threadIdx.x + i * tile::THREADS, row = unit / UNITS;
            int at = step * STEP + unit % UNITS * 8, col = row - ROWS;
            bool is_x = row < ROWS;
            bool is_valid = at < a.k && (is_x ? source[row] >= 0 : first_col + col < a.n);
            const __nv_bfloat16 *src = x;
            if (is_valid)
                src = is_x ? x + (size_t)source[row] * a.k + at : weight + (size_t)col * a.k + at;
            cp_async16(stage + row * PITCH + unit % UNITS * 16, src, is_valid ? 16 : 0);
        }
    };

    float acc[tile::M][2 * tile::N][4] = {};
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < num_steps)
            load_stage(step);
        cp_async_commit();
    }
    uint32_t x_row = (warp_m * tile::M * 16 + (lane & 15)) * PITCH + (lane >> 4) * 16;
    uint32_t weight_row = (ROWS + warp_n * tile::N * 16 + (lane & 7) + ((lane >> 4) << 3)) * PITCH +
                          ((lane >> 3) & 1) * 16;
#pragma unroll 1
    for (int step = 0; step < num_steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); // this stage is whole, and everybody is done with the one filled next
        if (step + STAGES - 1 < num_steps)
            load_stage(step + STAGES - 1);
        cp_async_commit();
        uint32_t stage = base + step % STAGES * tile::STAGE_BYTES;
#pragma unroll
        for (int kk = 0; kk < STEP / 16; kk++) {
            uint32_t rows[tile::M][4], cols[tile::N][4];
#pragma unroll
            for (int m = 0; m < tile::M; m++)
                ldmatrix_x4(rows[m], stage + x_row + m * 16 * PITCH + kk * 32);
#pragma unroll
            for (int n = 0; n < tile::N; n++)
                ldmatrix_x4(cols[n], stage + weight_row + n * 16 * PITCH + kk * 32);
#pragma unroll
            for (int m = 0; m < tile::M; m++) {
#pragma unroll
                for (int n = 0; n < 2 * tile::N; n++)
                    mma_16816<false>(acc[m][n], rows[m][0], rows[m][1], rows[m][2], rows[m][3],
                                     cols[n / 2][n % 2 * 2], cols[n / 2][n % 2 * 2 + 1]);
            }
        }
    }
    cp_async_wait<0>();

#pragma unroll
    for (int m = 0; m < tile::M; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int slot = first + (warp_m * tile::M + m) * 16 + lane / 4 + 8 * h;
            if (slot >= end)
                continue;
            __nv_bfloat16 *out = (__nv_bfloat16 *)a.out + (size_t)slot * a.n;
#pragma unroll
            for (int n = 0; n < 2 * tile::N; n++) {
                int col = first_col + warp_n * tile::N * 16 + n * 8 + lane % 4 * 2;
                if (col < a.n)
                    *(uint32_t *)(out + col) = pack_bf16(acc[m][n][2 * h], acc[m][n][2 * h + 1]);
            }
        }
    }
}

/** Any shape: a warp per slot and column. */
static __global__ void
plain_expert_matmul_kernel(const __grid_constant__ struct expert_matmul_args a)
{
    int slot = (int)blockIdx.x, lane = (int)threadIdx.x % 32;
    dependents_launch();
    dependency_wait();
    int expert = 0;
    while (slot >= a.routes.expert_start[expert + 1])
        expert++;
    int row = a.is_by_token ? a.routes.tokens[slot] : slot;
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)a.x + (size_t)row * a.k;
    for (int col = (int)threadIdx.x / 32; col < a.n; col += (int)blockDim.x / 32) {
        const __nv_bfloat16 *weight = (const __nv_bfloat16 *)a.weights[expert] + (size_t)col * a.k;
        float sum = 0;
        for (int i = lane; i < a.k; i += 32)
            sum += __bfloat162float(x[i]) * __bfloat162float(weight[i]);
        sum = warp_sum(sum);
        if (lane == 0)
            ((__nv_bfloat16 *)a.out)[(size_t)slot * a.n + col] = __float2bfloat16(sum);
    }
}

template <int ROWS, int COLS, int WARPS_M, int WARPS_N, int STAGES>
static void launch_tiles(const struct cuda_launch *launch, struct expert_matmul_args *args,
                         expert_tile<ROWS, COLS, WARPS_M, WARPS_N, STAGES>)
{
    typedef expert_tile<ROWS, COLS, WARPS_M, WARPS_N, STAGES> tile;
    dim3 grid((unsigned)((args->n + COLS - 1) / COLS), (unsigned)expert_max_tiles(args->routes));
    launch_kernel(launch, (const void *)expert_matmul_kernel<ROWS, COLS, WARPS_M, WARPS_N, STAGES>,
                  grid, tile::THREADS, tile::BYTES, args);
}

void cuda_matmul_experts(const struct cuda_launch *launch, const struct expert_matmul_args *args)
{
    struct expert_matmul_args copy = *args;
    int num_slots = args->routes.num_tokens * args->routes.top_k;
    if (num_slots == 0)
        return;
    if (args->k % 8 != 0 || args->n % 2 != 0) {
        launch_kernel(launch, (const void *)plain_expert_matmul_kernel, dim3((unsigned)num_slots),
                      256, 0, &copy);
        return;
    }
    switch (expert_tile_rows(args->routes)) {
    case 16:
        launch_tiles(launch, &copy, small_tile());
        break;
    case 64:
        launch_tiles(launch, &copy, middle_tile());
        break;
    default:
        launch_tiles(launch, &copy, large_tile());
        break;
    }
}
