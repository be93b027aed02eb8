// Hopper's warpgroup matrix instructions and bulk tensor copies (PTX ISA 8: wgmma,
// cp.async.bulk.tensor).
#pragma once

#include <cuda.h> // CUtensorMap

#include "ops/cuda/barrier.cuh"

// ---- Bulk tensor copies ---------------------------------------------------------------------

/** A box of the tensor to shared memory; `barrier` counts its bytes. */
DEVICE void copy_box(uint32_t dst, const CUtensorMap *map, int column, int row, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(dst),
                 "l"(map), "r"(smem_address(barrier)), "r"(column), "r"(row)
                 : "memory");
}

/** The same, of what is read once. */
DEVICE void copy_box_streaming(uint32_t dst, const CUtensorMap *map, int column, int row,
                               uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes."
                 "L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(map), "r"(smem_address(barrier)), "r"(column), "r"(row), "l"(EVICT_FIRST)
                 : "memory");
}

/** A page of the cache, which is the last of the map's four dimensions; read once. */
DEVICE void copy_page_streaming(uint32_t dst, const CUtensorMap *map, int page, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes."
                 "L2::cache_hint [%0], [%1, {%3, %3, %3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(map), "r"(smem_address(barrier)), "r"(0), "r"(page), "l"(EVICT_FIRST)
                 : "memory");
}

/** Fetches the description ahead of its first use. */
DEVICE void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- Registers between warpgroups ----------------------------------------------------------

template <int REGISTERS> DEVICE void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> DEVICE void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- wgmma ---------------------------------------------------------------------------------

/** Shared memory in rows of 128 bytes swizzled by 128: groups of eight rows 1024 bytes apart, and
 *  for operands whose rows are k, panels of 64 columns `panel_bytes` apart. */
DEVICE uint64_t matrix_descriptor(uint32_t addr, uint32_t panel_bytes)
{
    return (uint64_t)(addr >> 4 & 0x3fff) | (uint64_t)(panel_bytes >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

DEVICE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> DEVICE void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/** Keeps the compiler from moving uses of accumulators across the instructions that own them. */
template <int TILES> DEVICE void hold(float d[TILES][4])
{
#pragma unroll
    for (int i = 0; i < TILES; i++)
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

// The instruction for 64 and 128 columns: operands are the sums, a's four registers, b's
// descriptor, whether the sums start from zero, and whether b is transposed.
#define WGMMA(n, type, sums, a, b, is_first, trans_b)                                         \
    "{\n.reg .pred p;\nsetp.eq.b32 p, " is_first ", 0;\n"                                     \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" sums "}, {" a "}, " b \
    ", p, 1, 1, " trans_b ";\n}"

#define WGMMA_SUMS_64                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

#define WGMMA_SUMS_128                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define WGMMA_TILE(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WGMMA_TILES_8(d, i)                                                             \
    WGMMA_TILE(d, i), WGMMA_TILE(d, i + 1), WGMMA_TILE(d, i + 2), WGMMA_TILE(d, i + 3), \
        WGMMA_TILE(d, i + 4), WGMMA_TILE(d, i + 5), WGMMA_TILE(d, i + 6), WGMMA_TILE(d, i + 7)
#define WGMMA_INPUTS(a, b, is_first, trans_b) \
    "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)is_first), "n"((int)trans_b)

/** d[64 rows, 64] (+)= a * b, operands f16 or bf16; is_first: d starts from zero. */
template <bool TRANS_B, bool F16>
DEVICE void wgmma_m64n64k16(float d[8][4], const uint32_t a[4], uint64_t b, bool is_first)
{
    if constexpr (F16)
        asm volatile(WGMMA("64", "f16", WGMMA_SUMS_64, "%32, %33, %34, %35", "%36", "%37", "%38")
                     : WGMMA_TILES_8(d, 0)
                     : WGMMA_INPUTS(a, b, is_first, TRANS_B));
    else
        asm volatile(WGMMA("64", "bf16", WGMMA_SUMS_64, "%32, %33, %34, %35", "%36", "%37", "%38")
                     : WGMMA_TILES_8(d, 0)
                     : WGMMA_INPUTS(a, b, is_first, TRANS_B));
}

/** d[64 rows, 128] (+)= a * b, operands f16 or bf16; is_first: d starts from zero. */
template <bool TRANS_B, bool F16>
DEVICE void wgmma_m64n128k16(float d[16][4], const uint32_t a[4], uint64_t b, bool is_first)
{
    if constexpr (F16)
        asm volatile(WGMMA("128", "f16", WGMMA_SUMS_128, "%64, %65, %66, %67", "%68", "%69", "%70")
                     : WGMMA_TILES_8(d, 0), WGMMA_TILES_8(d, 8)
                     : WGMMA_INPUTS(a, b, is_first, TRANS_B));
    else
        asm volatile(WGMMA("128", "bf16", WGMMA_SUMS_128, "%64, %65, %66, %67", "%68", "%69", "%70")
                     : WGMMA_TILES_8(d, 0), WGMMA_TILES_8(d, 8)
                     : WGMMA_INPUTS(a, b, is_first, TRANS_B));
}

// ---- wgmma of two operands in shared memory ------------------------------------------------

// For 16, 32, 96 columns as above; operands are the sums, the descriptors, and whether the sums
// start from zero.
#define WGMMA_SHARED(n, type, sums, a, b, is_first)                                         \
    "{\n.reg .pred p;\nsetp.eq.b32 p, " is_first ", 0;\n"                                   \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" sums "}, " a ", " b \
    ", p, 1, 1, 0, 0;\n}"

#define WGMMA_SUMS_16 "%0, %1, %2, %3, %4, %5, %6, %7"

#define WGMMA_SUMS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"

#define WGMMA_SUMS_96                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"

#define WGMMA_SUMS_256                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127"

#define WGMMA_TILES_2(d, i) WGMMA_TILE(d, i), WGMMA_TILE(d, i + 1)
#define WGMMA_TILES_4(d, i) WGMMA_TILES_2(d, i), WGMMA_TILES_2(d, i + 2)

#define WGMMA_SHARED_OF(n, sums, a_at, b_at, first_at, ...)              \
    if constexpr (F16)                                                   \
        asm volatile(WGMMA_SHARED(n, "f16", sums, a_at, b_at, first_at)  \
                     : __VA_ARGS__                                       \
                     : "l"(a), "l"(b), "r"((int)is_first));              \
    else                                                                 \
        asm volatile(WGMMA_SHARED(n, "bf16", sums, a_at, b_at, first_at) \
                     : __VA_ARGS__                                       \
                     : "l"(a), "l"(b), "r"((int)is_first))

/** d[64 rows, COLUMNS] (+)= a * b^T, both with k along their rows; is_first: d starts from zero. */
template <int COLUMNS, bool F16>
DEVICE void wgmma_shared(float d[COLUMNS / 8][4], uint64_t a, uint64_t b, bool is_first)
{
    static_assert(COLUMNS == 16 || COLUMNS == 32 || COLUMNS == 64 || COLUMNS == 96 ||
                  COLUMNS == 128 || COLUMNS == 256);
    if constexpr (COLUMNS == 16) {
        WGMMA_SHARED_OF("16", WGMMA_SUMS_16, "%8", "%9", "%10", WGMMA_TILES_2(d, 0));
    } else if constexpr (COLUMNS == 32) {
        WGMMA_SHARED_OF("32", WGMMA_SUMS_32, "%16", "%17", "%18", WGMMA_TILES_4(d, 0));
    } else if constexpr (COLUMNS == 64) {
        WGMMA_SHARED_OF("64", WGMMA_SUMS_64, "%32", "%33", "%34", WGMMA_TILES_8(d, 0));
    } else if constexpr (COLUMNS == 96) {
        WGMMA_SHARED_OF("96", WGMMA_SUMS_96, "%48", "%49", "%50", WGMMA_TILES_8(d, 0),
                        WGMMA_TILES_4(d, 8));
    } else if constexpr (COLUMNS == 256) {
        WGMMA_SHARED_OF("256", WGMMA_SUMS_256, "%128", "%129", "%130", WGMMA_TILES_8(d, 0),
                        WGMMA_TILES_8(d, 8), WGMMA_TILES_8(d, 16), WGMMA_TILES_8(d, 24));
    } else {
        WGMMA_SHARED_OF("128", WGMMA_SUMS_128, "%64", "%65", "%66", WGMMA_TILES_8(d, 0),
                        WGMMA_TILES_8(d, 8));
    }
}

// The same of e4m3, whose sums have about 14 bits of mantissa while they are in the tensor cores.
#define WGMMA_SHARED_F8(n, sums, a, b, is_first)                                               \
    "{\n.reg .pred p;\nsetp.eq.b32 p, " is_first ", 0;\n"                                      \
    "wgmma.mma_async.sync.aligned.m64n" n "k32.f32.e4m3.e4m3 {" sums "}, " a ", " b ", p, 1, " \
    "1;\n}"

#define WGMMA_SHARED_F8_OF(n, sums, a_at, b_at, first_at, ...)  \
    asm volatile(WGMMA_SHARED_F8(n, sums, a_at, b_at, first_at) \
                 : __VA_ARGS__                                  \
                 : "l"(a), "l"(b), "r"((int)is_first))

/** d[64 rows, COLUMNS] (+)= a * b^T of 32 of k, both e4m3. */
template <int COLUMNS>
DEVICE void wgmma_shared_f8(float d[COLUMNS / 8][4], uint64_t a, uint64_t b, bool is_first)
{
    static_assert(COLUMNS == 32 || COLUMNS == 64 || COLUMNS == 96 || COLUMNS == 128);
    if constexpr (COLUMNS == 32)
        WGMMA_SHARED_F8_OF("32", WGMMA_SUMS_32, "%16", "%17", "%18", WGMMA_TILES_4(d, 0));
    else if constexpr (COLUMNS == 64)
        WGMMA_SHARED_F8_OF("64", WGMMA_SUMS_64, "%32", "%33", "%34", WGMMA_TILES_8(d, 0));
    else if constexpr (COLUMNS == 96)
        WGMMA_SHARED_F8_OF("96", WGMMA_SUMS_96, "%48", "%49", "%50", WGMMA_TILES_8(d, 0),
                           WGMMA_TILES_4(d, 8));
    else
        WGMMA_SHARED_F8_OF("128", WGMMA_SUMS_128, "%64", "%65", "%66", WGMMA_TILES_8(d, 0),
                           WGMMA_TILES_8(d, 8));
}
