// How a decode batch is cut into work: see attention_decode.cu. One CTA, once a step.
#include "ops/cuda/common.cuh"
#include "ops/cuda/decode_layout.h"

enum { PAGE = CUDA_PAGE, PLAN_THREADS = 1024 };

struct plan_args {
    struct attention_decode_plan plan;
    const int32_t *seq_lens;
    int32_t num_seqs, window;
};

DEVICE int pages_of(int num_keys, int window, int *first_key)
{
    *first_key = window > 0 && num_keys > window ? num_keys - window : 0;
    return (num_keys + PAGE - 1) / PAGE - *first_key / PAGE;
}

static __global__
__launch_bounds__(PLAN_THREADS) void plan_kernel(const __grid_constant__ struct plan_args a)
{
    __shared__ int warps[32];
    __shared__ int last;
    int num_ctas = a.plan.num_ctas, total = 0, first_key;
    int32_t *cta_first = a.plan.memory + 1;
    struct decode_segment *segments =
        (struct decode_segment *)(a.plan.memory + DECODE_PLAN_HEADER_WORDS(num_ctas));
    dependency_wait();
    dependents_launch();

    int sum = 0;
    for (int s = (int)threadIdx.x; s < a.num_seqs; s += PLAN_THREADS)
        sum += pages_of(a.seq_lens[s], a.window, &first_key);
    sum = block_prefix(sum, warps);
    if (threadIdx.x == PLAN_THREADS - 1)
        last = sum;
    __syncthreads();
    int num_pages = last;
    int run = max((int)DECODE_WARPS, (num_pages + num_ctas - 1) / num_ctas); // pages per CTA

    int pages_before = 0;
    for (int base = 0; base < a.num_seqs; base += PLAN_THREADS) {
        int s = base + (int)threadIdx.x, keys = s < a.num_seqs ? a.seq_lens[s] : 0;
        int pages = pages_of(keys, a.window, &first_key);
        __syncthreads();
        int end = pages_before + block_prefix(pages, warps), begin = end - pages, num = 0;
        if (pages > 0)
            num = (end - 1) / run - begin / run + 1;
        int slot_end = total + block_prefix(num, warps), slot = slot_end - num;
        for (int i = 0; i < num; i++) {
            int cta = begin / run + i; // from and to: counted from the sequence's first page
            int from = max(0, cta * run - begin), to = min(pages, (cta + 1) * run - begin);
            if (begin + from == cta * run)
                cta_first[cta] = slot + i;
            struct decode_segment g = {
                s,  first_key / PAGE + from, first_key / PAGE + to, keys, first_key, slot + i, slot,
                num};
            segments[slot + i] = g;
        }
        if (threadIdx.x == PLAN_THREADS - 1)
            last = end;
        __syncthreads();
        pages_before = last;
        __syncthreads();
        if (threadIdx.x == PLAN_THREADS - 1)
            last = slot_end;
        __syncthreads();
        total = last;
    }
    int used = (num_pages + run - 1) / run;
    for (int cta = used + (int)threadIdx.x; cta <= num_ctas; cta += PLAN_THREADS)
        cta_first[cta] = total;
    if (threadIdx.x == 0)
        a.plan.memory[0] = total;
}

void attention_decode_plan_build(const struct cuda_launch *launch,
                                 const struct attention_decode_plan *plan, const int32_t *seq_lens,
                                 int32_t num_seqs, int32_t window)
{
    struct plan_args args = {*plan, seq_lens, num_seqs, window};
    launch_kernel(launch, (const void *)plan_kernel, dim3(1), PLAN_THREADS, 0, &args);
}
