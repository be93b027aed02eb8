// What the experts' products on warpgroup instructions share: tiles, the ring of stages, the
// gathering of x by slot, and descriptions of the weights.
#pragma once

#include "ops/cuda/moe.cuh"
#include "ops/cuda/wgmma.cuh"

enum { GROUP = 8, PANEL = 64, PANEL_ROW_BYTES = PANEL * 2, UNITS = PANEL_ROW_BYTES / 16 };
enum { GATHER_THREADS = 64, GATHER_FROM = 64, MAX_STAGES = 12 };

struct stream_args {
    struct expert_matmul_args a;
    CUtensorMap weights; // of five dimensions, k the first one
};

/** Slots of a tile, blocks of 64 rows to a consumer, consumers, panels of 64 of k to a stage,
 *  stages of the ring, and how many of them the gathering runs ahead of itself. */
template <int SLOTS_, int BLOCKS_, int CONSUMERS_, int PANELS_, int STAGES_, int LAG_>
struct stream_tile {
    static constexpr int SLOTS = SLOTS_, BLOCKS = BLOCKS_, CONSUMERS = CONSUMERS_;
    static constexpr int PANELS = PANELS_, STAGES = STAGES_, LAG = LAG_;
    static constexpr int ROWS = 64 * BLOCKS * CONSUMERS, THREADS = (CONSUMERS + 1) * 128;
    static constexpr int WEIGHT_BYTES = PANELS * ROWS * PANEL_ROW_BYTES;
    static constexpr int STAGE_BYTES = WEIGHT_BYTES + PANELS * SLOTS * PANEL_ROW_BYTES;
    static constexpr int BYTES = STAGES * STAGE_BYTES + 1024; // aligned to the swizzle's 1024
    // A stage is free once the next one is being read: it must not wait for the freed one.
    static_assert(STAGES <= MAX_STAGES && LAG < STAGES - 1);
};

struct stream_barriers {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
};

/** One tile: an expert's slots [first, end) and rows from `group` on, in eights of gate and up or
 *  of the plain weight. */
struct stream_work {
    int expert, first, end, group;
};

template <class TILE, bool SWIGLU> DEVICE int groups_of_tile()
{
    return TILE::ROWS / GROUP / (SWIGLU ? 2 : 1);
}

template <class TILE, bool SWIGLU> DEVICE int num_column_tiles(const struct expert_matmul_args &a)
{
    int groups = a.n / GROUP / (SWIGLU ? 2 : 1), step = groups_of_tile<TILE, SWIGLU>();
    return (groups + step - 1) / step;
}

template <class TILE, bool SWIGLU>
DEVICE struct stream_work work_at(const struct expert_matmul_args &a, int at)
{
    int columns = num_column_tiles<TILE, SWIGLU>(a), tile = at / columns;
    struct stream_work w;
    w.expert = a.routes.tiles[1 + 2 * tile];
    w.first = a.routes.tiles[2 + 2 * tile];
    w.end = min(a.routes.expert_start[w.expert + 1], w.first + TILE::SLOTS);
    w.group = at % columns * groups_of_tile<TILE, SWIGLU>();
    return w;
}

/** This thread's part of stage `use` is in shared memory. */
DEVICE void finish_gather(struct stream_barriers *b, int stage)
{
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(&b->full[stage]);
}

/** Rows of x by slot, swizzled as bulk copies do it. Rows past the end stay what they were: a
 *  column of the product depends on its own slot alone, and theirs are dropped. */
template <typename T, class TILE, bool SWIGLU>
DEVICE void gather_slots(const struct expert_matmul_args &a, struct stream_barriers *b,
                         uint32_t base, int num_tiles)
{
    constexpr int ROWS = (TILE::SLOTS + GATHER_THREADS / UNITS - 1) / (GATHER_THREADS / UNITS);
    int thread = (int)threadIdx.x - GATHER_FROM, unit = thread % UNITS, row = thread / UNITS;
    int use = 0;
    for (int at = (int)blockIdx.x; at < num_tiles; at += (int)gridDim.x) {
        struct stream_work w = work_at<TILE, SWIGLU>(a, at);
        int rows[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int slot = w.first + row + i * (GATHER_THREADS / UNITS);
            rows[i] = slot >= w.end ? -1 : a.is_by_token ? a.routes.tokens[slot] : slot;
        }
        for (int k = 0; k < a.k; k += TILE::PANELS * PANEL, use++) {
            int stage = use % TILE::STAGES;
            uint32_t to = base + stage * TILE::STAGE_BYTES + TILE::WEIGHT_BYTES +
                          row * PANEL_ROW_BYTES + (unit ^ row % 8) * 16;
            barrier_wait(&b->empty[stage], (uint32_t)(use / TILE::STAGES + 1) & 1);
#pragma unroll
            for (int panel = 0; panel < TILE::PANELS; panel++) {
                int from = k + panel * PANEL + unit * 8;
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    uint32_t offset =
                        (panel * TILE::SLOTS + i * (GATHER_THREADS / UNITS)) * PANEL_ROW_BYTES;
                    if (rows[i] >= 0)
                        cp_async16(to + offset,
                                   (const T *)a.x + (size_t)rows[i] * a.k + (from < a.k ? from : 0),
                                   from < a.k ? 16 : 0);
                }
            }
            cp_async_commit();
            if (use >= TILE::LAG) {
                cp_async_wait<TILE::LAG>();
                finish_gather(b, (use - TILE::LAG) % TILE::STAGES);
            }
        }
    }
    cp_async_wait<0>();
    for (int i = max(use - TILE::LAG, 0); i < use; i++)
        finish_gather(b, i % TILE::STAGES);
}

// ---- Descriptions of the weights -----------------------------------------------------------

typedef CUresult encode_function(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                 const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                 const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/** The weights as five dimensions, `strides` of all but the first in bytes, of which a copy takes
 *  `box`; in shared memory in rows of 128 bytes swizzled by 128. */
static inline void encode_experts(struct stream_args *s, bool is_f16, const cuuint64_t shape[5],
                                  const cuuint64_t strides[4], const cuuint32_t box[5])
{
    const cuuint32_t step[5] = {1, 1, 1, 1, 1};
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault, &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess &&
        ((encode_function *)encode)(
            &s->weights,
            is_f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5,
            (void *)(uintptr_t)s->a.stacked, shape, strides, box, step,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS)
        return;
    fprintf(stderr, "the driver refuses to describe the experts' weights\n");
    abort(); // shapes were checked before, and no result may come of it
}

// ---- The frame of a kernel -----------------------------------------------------------------

/** The barriers, and the order of things on the stream: the next product on it reads the routes
 *  before it waits, so they must be there before it may start. Of settled routes that was seen to
 *  by the product before. */
template <class TILE>
DEVICE void start_stream(const struct stream_args &s, struct stream_barriers *b)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILE::STAGES; i++) {
            barrier_init(&b->full[i], 1 + GATHER_THREADS / 32);
            barrier_init(&b->empty[i], TILE::CONSUMERS);
        }
        fence_async_proxy();
        prefetch_map(&s.weights);
    }
    __syncthreads();
    if (!s.a.is_settled)
        dependency_wait();
    dependents_launch();
}

/** A CTA to each multiprocessor, or to each tile that there can be. */
template <class TILE>
static inline void launch_stream_kernel(const struct cuda_launch *launch, const void *kernel,
                                        struct stream_args *s)
{
    int groups = s->a.n / GROUP, step = TILE::ROWS / GROUP;
    int64_t tiles = (int64_t)expert_max_tiles(s->a.routes) * ((groups + step - 1) / step);
    launch_kernel(launch, kernel,
                  dim3((unsigned)(tiles < launch->num_sms ? tiles : launch->num_sms)),
                  TILE::THREADS, TILE::BYTES, s);
}

/** Products of many slots an expert, moe_prefill.cu: false where it does not take them. */
bool launch_expert_prefill(const struct cuda_launch *launch, struct stream_args *s);
