// The experts' products of prompts: tiles of 128 slots by 256 rows of the weight. Here the slots
// are the first operand, 64 to each of two warpgroups, and all 256 rows the second: an instruction
// of that width reads least of shared memory for its work. What is left of an expert's slots may
// leave the second warpgroup nothing to multiply.
//
// The rows of 32 columns lie in shared memory in the order in which a thread's sums make eight
// neighbours: it writes 16 bytes at a time. With SwiGLU the tile holds 128 rows of the gate, then
// those of up, so that gate and up of a column meet in one thread.
//
// Sums run over k as in moe_wgmma.cu.
#include "ops/cuda/moe_stream.cuh"

typedef stream_tile<128, 2, 2, 1, 4, 1> tile;

enum { WIDE = 32, WIDE_GROUPS = WIDE / GROUP }; // rows that are ordered together

DEVICE void copy_ordered(uint32_t dst, const CUtensorMap *map, int k, int group, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %5, %5, %5, %4}], [%2];" ::"r"(dst),
                 "l"(map), "r"(smem_address(barrier)), "r"(k), "r"(group), "r"(0)
                 : "memory");
}

/** One thread. Behind an expert's last row a tile has the next one's, which no column asks for. */
template <bool SWIGLU>
DEVICE void produce_weights(const struct stream_args &s, struct stream_barriers *b, uint32_t base,
                            int num_tiles)
{
    int use = 0, wide = s.a.n / WIDE;
    for (int at = (int)blockIdx.x; at < num_tiles; at += (int)gridDim.x) {
        struct stream_work w = work_at<tile, SWIGLU>(s.a, at);
        int group = w.expert * wide + w.group / WIDE_GROUPS;
        for (int k = 0; k < s.a.k; k += PANEL, use++) {
            int stage = use % tile::STAGES;
            uint32_t dst = base + stage * tile::STAGE_BYTES;
            barrier_wait(&b->empty[stage], (uint32_t)(use / tile::STAGES + 1) & 1);
            barrier_arrive_expect(&b->full[stage], tile::WEIGHT_BYTES);
            copy_ordered(dst, &s.weights, k, group, &b->full[stage]);
            if (SWIGLU)
                copy_ordered(dst + tile::WEIGHT_BYTES / 2, &s.weights, k, group + wide / 2,
                             &b->full[stage]);
        }
    }
}

/** Eight neighbouring columns of one slot. */
template <typename T, bool SWIGLU>
DEVICE uint4 eight_columns(const float acc[32][4], int group, int half)
{
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *v = &acc[4 * group + i][2 * half];
        if (SWIGLU) {
            const float *up = &acc[16 + 4 * group + i][2 * half];
            words[i] = pack_pair<T>(silu(v[0]) * up[0], silu(v[1]) * up[1]);
        } else {
            words[i] = pack_pair<T>(v[0], v[1]);
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

template <typename T, bool SWIGLU>
DEVICE void store_tile(const struct expert_matmul_args &a, const struct stream_work &w,
                       const float acc[32][4], int first)
{
    int lane = threadIdx.x % 32, n = SWIGLU ? a.n / 2 : a.n;
    int row = (int)threadIdx.x % 128 / 32 * 16 + lane / 4, col = w.group * GROUP + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int slot = first + row + 8 * half;
        T *to = (T *)a.out + (size_t)slot * n + col;
#pragma unroll
        for (int group = 0; group < (SWIGLU ? 4 : 8); group++) {
            uint4 v = eight_columns<T, SWIGLU>(acc, group, half);
            if (slot < w.end && col + group * WIDE < n)
                *(uint4 *)(to + group * WIDE) = v;
        }
    }
}

template <typename T, bool SWIGLU>
DEVICE void consume(const struct expert_matmul_args &a, struct stream_barriers *b, uint32_t base,
                    int num_tiles)
{
    constexpr int STAGES = tile::STAGES;
    int consumer = (int)threadIdx.x / 128 - 1, use = 0;
    bool is_speaker = threadIdx.x % 128 == 0;
    uint32_t x_offset = tile::WEIGHT_BYTES + consumer * 64 * PANEL_ROW_BYTES;
    for (int at = (int)blockIdx.x; at < num_tiles; at += (int)gridDim.x) {
        struct stream_work w = work_at<tile, SWIGLU>(a, at);
        int first = w.first + consumer * 64, first_use = use;
        bool has_slots = first < w.end;
        float acc[32][4] = {};
#pragma unroll 1
        for (int k = 0; k < a.k; k += PANEL, use++) {
            int stage = use % STAGES;
            uint32_t weights = base + stage * tile::STAGE_BYTES, x = weights + x_offset;
            barrier_wait(&b->full[stage], (uint32_t)(use / STAGES) & 1);
            if (has_slots) {
                hold<32>(acc);
                wgmma_fence();
#pragma unroll
                for (int kk = 0; kk < PANEL / 16; kk++)
                    wgmma_shared<256, IS_F16<T>>(acc, matrix_descriptor(x + kk * 32, 16),
                                                 matrix_descriptor(weights + kk * 32, 16),
                                                 use == first_use && kk == 0);
                wgmma_commit();
                wgmma_wait<1>();
            }
            if (use > first_use && is_speaker) // the stage before is read
                barrier_arrive(&b->empty[(use - 1) % STAGES]);
        }
        wgmma_wait<0>();
        hold<32>(acc);
        if (is_speaker)
            barrier_arrive(&b->empty[(use - 1) % STAGES]);
        if (has_slots)
            store_tile<T, SWIGLU>(a, w, acc, first);
    }
}

template <typename T, bool SWIGLU>
static __global__
__launch_bounds__(tile::THREADS,
                  1) void expert_prefill_kernel(const __grid_constant__ struct stream_args s)
{
    extern __shared__ char unaligned[];
    __shared__ struct stream_barriers b;
    uint32_t base = (smem_address(unaligned) + 1023) / 1024 * 1024;
    start_stream<tile>(s, &b);
    int num_tiles = s.a.routes.tiles[0] * num_column_tiles<tile, SWIGLU>(s.a);
    if (threadIdx.x < 128) {
        registers_give<56>();
        if (threadIdx.x == 0) {
            produce_weights<SWIGLU>(s, &b, base, num_tiles);
        } else if (threadIdx.x >= GATHER_FROM) {
            dependency_wait();
            gather_slots<T, tile, SWIGLU>(s.a, &b, base, num_tiles);
        }
    } else {
        registers_take<216>();
        dependency_wait();
        consume<T, SWIGLU>(s.a, &b, base, num_tiles);
    }
}

/** All experts' rows in the order of their tiles: k; pairs of rows; every eighth, and every second
 *  pair of 32; 32 rows. */
static void encode_ordered(struct stream_args *s, bool is_f16)
{
    const struct expert_matmul_args *a = &s->a;
    const cuuint64_t row_bytes = (cuuint64_t)a->k * 2;
    const cuuint64_t wide = (cuuint64_t)a->routes.num_experts * (cuuint64_t)(a->n / WIDE);
    const cuuint64_t shape[5] = {(cuuint64_t)a->k, 2, 4, 4, wide};
    const cuuint64_t strides[4] = {row_bytes, 8 * row_bytes, 2 * row_bytes, WIDE * row_bytes};
    const cuuint32_t box[5] = {PANEL, 2, 4, 4,
                               (cuuint32_t)(tile::ROWS / WIDE / (a->is_swiglu ? 2 : 1))};
    encode_experts(s, is_f16, shape, strides, box);
}

template <typename T> static const void *prefill_kernel_of(bool is_swiglu)
{
    return is_swiglu ? (const void *)expert_prefill_kernel<T, true>
                     : (const void *)expert_prefill_kernel<T, false>;
}

bool launch_expert_prefill(const struct cuda_launch *launch, struct stream_args *s)
{
    if (s->a.n % (s->a.is_swiglu ? 2 * WIDE : WIDE) != 0)
        return false;
    encode_ordered(s, launch->is_f16);
    launch_stream_kernel<tile>(launch,
                               launch->is_f16 ? prefill_kernel_of<__half>(s->a.is_swiglu)
                                              : prefill_kernel_of<__nv_bfloat16>(s->a.is_swiglu),
                               s);
    return true;
}
