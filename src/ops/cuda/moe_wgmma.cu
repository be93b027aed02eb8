// The experts' products on Hopper's warpgroup instructions, for any number of tokens. The weight is
// the first operand, 64 of its rows to an instruction, and the slots of a tile are the columns: 16
// where a step reads weights and little else, up to 128 where their reuse counts. A CTA stays for
// many tiles. One warp of its producers keeps a ring of weights filled by bulk tensor copies that
// run on across tiles; two more gather the rows of x by slot into the same stages.
//
// A tile of a SwiGLU takes eight rows of the gate, eight of up, and so on: gate and up of a column
// meet in one thread. A plain tile takes its rows as they lie. One description of all experts' rows
// serves both.
//
// The grid does not depend on where the tokens went. Every sum runs over k in steps of 16 from the
// first to the last, in tiles of every size: a row's result does not depend on the tile.
#include "ops/cuda/moe_stream.cuh"

typedef stream_tile<16, 1, 2, 2, 6, 3> stream_16;
typedef stream_tile<32, 1, 2, 1, 10, 4> stream_32;
typedef stream_tile<64, 2, 2, 1, 5, 2> stream_64;
typedef stream_tile<128, 2, 2, 1, 4, 1> stream_128;

DEVICE void copy_groups(uint32_t dst, const CUtensorMap *map, int k, int group, int expert,
                        uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %6, %6, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(smem_address(barrier)), "r"(k), "r"(group), "r"(expert), "r"(0)
                 : "memory");
}

/** One thread. */
template <class TILE, bool SWIGLU>
DEVICE void produce_weights(const struct stream_args &s, struct stream_barriers *b, uint32_t base,
                            int num_tiles)
{
    int use = 0;
    for (int at = (int)blockIdx.x; at < num_tiles; at += (int)gridDim.x) {
        struct stream_work w = work_at<TILE, SWIGLU>(s.a, at);
        for (int k = 0; k < s.a.k; k += TILE::PANELS * PANEL, use++) {
            int stage = use % TILE::STAGES;
            barrier_wait(&b->empty[stage], (uint32_t)(use / TILE::STAGES + 1) & 1);
            barrier_arrive_expect(&b->full[stage], TILE::WEIGHT_BYTES);
#pragma unroll
            for (int panel = 0; panel < TILE::PANELS; panel++)
                copy_groups(base + stage * TILE::STAGE_BYTES + panel * TILE::ROWS * PANEL_ROW_BYTES,
                            &s.weights, k + panel * PANEL, w.group, w.expert, &b->full[stage]);
        }
    }
}

/** Eight by eight elements of a warp, a pair to a thread, rows for columns. */
DEVICE uint32_t transpose_pairs(uint32_t v)
{
    uint32_t r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}

template <typename T, class TILE, bool SWIGLU>
DEVICE void store_tile(const struct expert_matmul_args &a, const struct stream_work &w,
                       const float acc[TILE::BLOCKS][TILE::SLOTS / 8][4])
{
    constexpr int COLUMNS = SWIGLU ? 8 : 16; // of a warp's 16 rows
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    int consumer = (int)threadIdx.x / 128 - 1, n = SWIGLU ? a.n / 2 : a.n;
#pragma unroll
    for (int block = 0; block < TILE::BLOCKS; block++) {
        int col = w.group * GROUP + ((consumer * TILE::BLOCKS + block) * 4 + warp) * COLUMNS;
#pragma unroll
        for (int i = 0; i < TILE::SLOTS / 8; i++) {
            const float *v = acc[block][i];
            uint32_t out[2];
            if (SWIGLU) {
                out[0] = pack_pair<T>(silu(v[0]) * v[2], silu(v[1]) * v[3]);
            } else {
                out[0] = pack_pair<T>(v[0], v[1]);
                out[1] = transpose_pairs(pack_pair<T>(v[2], v[3]));
            }
            out[0] = transpose_pairs(out[0]);
            int slot = w.first + i * 8 + lane / 4;
            T *to = (T *)a.out + (size_t)slot * n + col + lane % 4 * 2;
            if (slot < w.end && col < n)
                *(uint32_t *)to = out[0];
            if (!SWIGLU && slot < w.end && col + 8 < n)
                *(uint32_t *)(to + 8) = out[1];
        }
    }
}

template <typename T, class TILE, bool SWIGLU>
DEVICE void consume(const struct expert_matmul_args &a, struct stream_barriers *b, uint32_t base,
                    int num_tiles)
{
    constexpr int SLOTS = TILE::SLOTS, BLOCKS = TILE::BLOCKS, STAGES = TILE::STAGES;
    constexpr int BLOCK_BYTES = 64 * PANEL_ROW_BYTES;
    int consumer = (int)threadIdx.x / 128 - 1;
    bool is_speaker = threadIdx.x % 128 == 0;
    int use = 0;
    for (int at = (int)blockIdx.x; at < num_tiles; at += (int)gridDim.x) {
        struct stream_work w = work_at<TILE, SWIGLU>(a, at);
        float acc[BLOCKS][SLOTS / 8][4] = {};
        int first = use;
#pragma unroll 1
        for (int k = 0; k < a.k; k += TILE::PANELS * PANEL, use++) {
            int stage = use % STAGES;
            uint32_t weights = base + stage * TILE::STAGE_BYTES + consumer * BLOCKS * BLOCK_BYTES;
            uint32_t x = base + stage * TILE::STAGE_BYTES + TILE::WEIGHT_BYTES;
            barrier_wait(&b->full[stage], (uint32_t)(use / STAGES) & 1);
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
                hold<SLOTS / 8>(acc[block]);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < TILE::PANELS * PANEL / 16; kk++) {
                int panel = kk / 4, offset = kk % 4 * 32;
                uint64_t columns =
                    matrix_descriptor(x + panel * SLOTS * PANEL_ROW_BYTES + offset, 16);
#pragma unroll
                for (int block = 0; block < BLOCKS; block++)
                    wgmma_shared<SLOTS, IS_F16<T>>(
                        acc[block],
                        matrix_descriptor(weights + panel * TILE::ROWS * PANEL_ROW_BYTES +
                                              block * BLOCK_BYTES + offset,
                                          16),
                        columns, use == first && kk == 0);
            }
            wgmma_commit();
            if (use > first) { // the stage before is read
                wgmma_wait<1>();
                if (is_speaker)
                    barrier_arrive(&b->empty[(use - 1) % STAGES]);
            }
        }
        wgmma_wait<0>();
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
            hold<SLOTS / 8>(acc[block]);
        if (is_speaker)
            barrier_arrive(&b->empty[(use - 1) % STAGES]);
        store_tile<T, TILE, SWIGLU>(a, w, acc);
    }
}

template <typename T, class TILE, bool SWIGLU>
static __global__
__launch_bounds__(TILE::THREADS,
                  1) void expert_stream_kernel(const __grid_constant__ struct stream_args s)
{
    extern __shared__ char unaligned[];
    __shared__ struct stream_barriers b;
    uint32_t base = (smem_address(unaligned) + 1023) / 1024 * 1024;
    start_stream<TILE>(s, &b);
    int num_tiles = s.a.routes.tiles[0] * num_column_tiles<TILE, SWIGLU>(s.a);
    constexpr bool MOVES_REGISTERS = TILE::CONSUMERS == 2;
    if (threadIdx.x < 128) {
        if (MOVES_REGISTERS)
            registers_give<80>();
        if (threadIdx.x == 0) {
            produce_weights<TILE, SWIGLU>(s, &b, base, num_tiles);
        } else if (threadIdx.x >= GATHER_FROM) {
            dependency_wait();
            gather_slots<T, TILE, SWIGLU>(s.a, &b, base, num_tiles);
        }
    } else {
        if (MOVES_REGISTERS)
            registers_take<208>();
        dependency_wait();
        consume<T, TILE, SWIGLU>(s.a, &b, base, num_tiles);
    }
}

/** The experts' rows in eights, `rows` of them to a copy: k; rows of an eight; gate and up (without
 *  SwiGLU one); eights; experts. */
static void encode_weights(struct stream_args *s, int rows, bool is_f16)
{
    const struct expert_matmul_args *a = &s->a;
    const cuuint64_t halves = a->is_swiglu ? 2 : 1, row_bytes = (cuuint64_t)a->k * 2;
    const cuuint64_t matrix_bytes = (cuuint64_t)a->n * row_bytes;
    const cuuint64_t shape[5] = {(cuuint64_t)a->k, GROUP, halves, a->n / GROUP / halves,
                                 (cuuint64_t)a->routes.num_experts};
    const cuuint64_t strides[4] = {row_bytes, matrix_bytes / halves, GROUP * row_bytes,
                                   matrix_bytes};
    const cuuint32_t box[5] = {PANEL, GROUP, (cuuint32_t)halves,
                               (cuuint32_t)(rows / GROUP / halves), 1};
    encode_experts(s, is_f16, shape, strides, box);
}

template <typename T, class TILE>
static void launch_stream(const struct cuda_launch *launch, struct stream_args *s)
{
    encode_weights(s, TILE::ROWS, launch->is_f16);
    launch_stream_kernel<TILE>(launch,
                               s->a.is_swiglu ? (const void *)expert_stream_kernel<T, TILE, true>
                                              : (const void *)expert_stream_kernel<T, TILE, false>,
                               s);
}

template <typename T>
static void launch_for_slots(const struct cuda_launch *launch, struct stream_args *s)
{
    switch (expert_tile_rows(s->a.routes)) {
    case 16:
        launch_stream<T, stream_16>(launch, s);
        break;
    case 32:
        launch_stream<T, stream_32>(launch, s);
        break;
    case 64:
        launch_stream<T, stream_64>(launch, s);
        break;
    default:
        if (!launch_expert_prefill(launch, s))
            launch_stream<T, stream_128>(launch, s);
        break;
    }
}

bool cuda_streams_experts(const struct expert_matmul_args *args)
{
    return args->stacked && args->k % 8 == 0 &&
           args->n % (args->is_swiglu ? 2 * GROUP : GROUP) == 0;
}

void cuda_stream_experts(const struct cuda_launch *launch, const struct expert_matmul_args *args)
{
    struct stream_args s = {*args, {}};
    if (launch->is_f16)
        launch_for_slots<__half>(launch, &s);
    else
        launch_for_slots<__nv_bfloat16>(launch, &s);
}
