// Barriers in shared memory that count arrivals and the bytes of bulk copies (PTX ISA 8: mbarrier,
// cp.async.bulk).
#pragma once

#include "ops/cuda/common.cuh"

DEVICE void barrier_init(uint64_t *barrier, int num_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(barrier)),
                 "r"(num_arrivals)
                 : "memory");
}

DEVICE void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(barrier))
                 : "memory");
}

/** Arrives; the phase ends when `size_bytes` of bulk copies have come in as well. */
DEVICE void barrier_arrive_expect(uint64_t *barrier, uint32_t size_bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(barrier)),
        "r"(size_bytes)
        : "memory");
}

DEVICE void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "WAIT%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE%=;\n"
                 "bra WAIT%=;\n"
                 "DONE%=:\n}" ::"r"(smem_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/** Threads of some warps; id 0 is __syncthreads()'s. */
DEVICE void named_barrier(int id, int num_threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

/** Makes ordinary writes to shared memory visible to wgmma and bulk copies. */
DEVICE void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

constexpr uint64_t EVICT_FIRST = 0x12F0000000000000u; // createpolicy's encoding

/** Copies `size_bytes`, a multiple of 16, read once; `barrier` counts them. */
DEVICE void copy_bulk_streaming(uint32_t dst, const void *src, uint32_t size_bytes,
                                uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(size_bytes), "r"(smem_address(barrier)), "l"(EVICT_FIRST)
                 : "memory");
}

// ---- Clusters ------------------------------------------------------------------------------

/** All threads of the cluster; what they wrote to shared memory is visible to each other. */
DEVICE void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/** Where another CTA of the cluster has what this one has at `addr`. */
DEVICE uint32_t cluster_address(uint32_t addr, int rank)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
    return r;
}

DEVICE float4 load_cluster(uint32_t addr)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(addr)
                 : "memory");
    return v;
}
