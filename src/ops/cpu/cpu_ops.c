// The CPU device: which instruction set, how many threads, some scratch.
#include <omp.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "ops/cpu/cpu_ops.h"

/** More threads than this are a typing error. */
enum { MAX_THREADS = 1024, FIRST_SCRATCH_BYTES = 1024 * 1024 };

static const struct {
    enum cpu_isa isa;
    const char *name;
} isa_names[] = {
    {CPU_ISA_SCALAR, "scalar"},
    {CPU_ISA_AVX2, "avx2"},
    {CPU_ISA_AUTO, "auto"},
};

enum status cpu_isa_parse(struct str text, enum cpu_isa *out)
{
    for (size_t i = 0; i < ARRAY_LEN(isa_names); i++) {
        if (str_eq_c(text, isa_names[i].name)) {
            *out = isa_names[i].isa;
            return STATUS_OK;
        }
    }
    return STATUS_NOT_FOUND;
}

static bool has_avx2(void)
{
#if defined(__x86_64__)
    unsigned eax, ebx, ecx, edx;
    __builtin_cpu_init();
    // The builtin also asks whether the operating system saves the wide registers.
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
#else
    return false;
#endif
}

enum status cpu_device_init(struct device *dev, enum cpu_isa isa, int32_t num_threads,
                            struct error *err)
{
    *dev = (struct device){.kind = DEVICE_CPU,
                           .activation_dtype = DTYPE_F32,
                           .has_host_memory = true,
                           .is_batch_invariant = true};
    if (num_threads < 0 || num_threads > MAX_THREADS)
        return error_set(err, STATUS_INVALID, "%d CPU threads: expected 0 (automatic) to %d",
                         num_threads, MAX_THREADS);
    if (isa == CPU_ISA_AVX2 && !has_avx2())
        return error_set(err, STATUS_UNSUPPORTED,
                         "avx2: this machine does not have AVX2, FMA and F16C");
    dev->num_threads = num_threads > 0 ? num_threads : omp_get_max_threads();
    cpu_ops_scalar(&dev->ops);
#if defined(__x86_64__)
    if (isa != CPU_ISA_SCALAR && has_avx2())
        cpu_ops_avx2(&dev->ops);
#endif
    // A first chunk of usual size, so that operations soon find room without asking for more.
    arena_alloc(&dev->scratch, FIRST_SCRATCH_BYTES);
    arena_reset(&dev->scratch);
    return STATUS_OK;
}
