// What the products of few rows share: how a weight's rows come to shared memory, and how results
// leave.
#pragma once

#include "ops/cuda/barrier.cuh"

enum { WARPS = 8, THREADS = (WARPS + 1) * 32, STEP = 64, STAGES = 5 };
enum { NARROW = 2048, CTAS_PER_SM = 2 };

/** Stages of SPAN elements of k of a tile's rows, PITCH bytes apart. */
template <int ROWS, int PITCH> struct weight_ring {
    static constexpr int STAGE_BYTES = ROWS * PITCH;
    static constexpr int BYTES = STAGES * STAGE_BYTES;
};

struct ring_barriers {
    uint64_t full[STAGES], empty[STAGES];
};

/** By one thread, before the others touch them. */
DEVICE void init_ring(struct ring_barriers *b)
{
    for (int i = 0; i < STAGES; i++) {
        barrier_init(&b->full[i], 1);
        barrier_init(&b->empty[i], WARPS);
    }
    fence_async_proxy();
}

/** The weight row behind row `r` of a tile; past the end: the last, whose result is dropped. */
template <int ROWS, bool SWIGLU> DEVICE int weight_row(int n, int tile, int r)
{
    if (SWIGLU)
        return r % 8 + tile * 8 < n / 2 ? r / 8 * (n / 2) + tile * 8 + r % 8 : n - 1;
    return min(tile * ROWS + r, n - 1);
}

/** Fills the ring with all tiles of this CTA, one after the other. E: an element of the weight. */
template <typename E, int SPAN, int ROWS, int PITCH, bool SWIGLU>
DEVICE void produce(const struct gemv_args &a, int num_tiles, struct ring_barriers *b,
                    uint32_t ring)
{
    int lane = threadIdx.x % 32, use = 0;
    for (int tile = (int)blockIdx.x; tile < num_tiles; tile += (int)gridDim.x) {
        const E *row =
            (const E *)a.weight + (size_t)weight_row<ROWS, SWIGLU>(a.n, tile, lane % ROWS) * a.k;
        for (int at = 0; at < a.k; at += SPAN, use++) {
            int stage = use % STAGES;
            uint32_t row_bytes = (uint32_t)min(SPAN, a.k - at) * (uint32_t)sizeof(E);
            barrier_wait(&b->empty[stage], (uint32_t)(use / STAGES + 1) & 1);
            if (lane == 0)
                barrier_arrive_expect(&b->full[stage], row_bytes * ROWS);
            __syncwarp();
            if (lane < ROWS)
                copy_bulk_streaming(ring + stage * weight_ring<ROWS, PITCH>::STAGE_BYTES +
                                        lane * PITCH,
                                    row + at, row_bytes, &b->full[stage]);
        }
    }
}

/** One element of the result, with what it is added to. */
template <typename T>
DEVICE void store(const struct gemv_args &a, int row, int col, int num_cols, float v)
{
    size_t at = (size_t)row * num_cols + col;
    if (a.out_is_f32) {
        if (a.residual)
            v += ((const float *)a.residual)[at];
        ((float *)a.out)[at] = v;
    } else {
        if (a.residual)
            v += to_f32(((const T *)a.residual)[at]);
        ((T *)a.out)[at] = from_f32<T>(v);
    }
}

/** CTAs for tiles of `per_tile` of `cols` results. */
static inline dim3 gemv_grid(const struct cuda_launch *launch, int cols, int per_tile)
{
    int num_tiles = (cols + per_tile - 1) / per_tile, num_ctas = CTAS_PER_SM * launch->num_sms;
    return dim3((unsigned)(num_tiles < num_ctas ? num_tiles : num_ctas));
}
