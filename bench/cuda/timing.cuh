// How the bench times: launches in a graph over buffers larger than the L2, replayed; the median
// counts.
#pragma once

#include <cublasLt.h>

#include "harness.cuh"

enum { REPLAYS = 15, WEIGHT_POOL_MB = 4608 };

struct bench {
    struct cuda_launch launch;
    cudaEvent_t begin, end;
    cublasLtHandle_t cublas;
    void *workspace;
    char *pool;                  // weights and caches: WEIGHT_POOL_MB of random bf16
    double read_rate, copy_rate; // bytes per second
};

/** Launches once more; `turn` chooses the buffers. */
typedef void launch_function(struct bench *b, void *context, int turn);

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/** Median seconds of one launch among `turns` back to back. */
static inline double time_launches(struct bench *b, launch_function *function, void *context,
                                   int turns)
{
    cudaStream_t stream = b->launch.stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    function(b, context, 0);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < turns; i++)
        function(b, context, i);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    double seconds[REPLAYS];
    for (int i = -2; i < REPLAYS; i++) {
        float ms;
        CUDA_CHECK(cudaEventRecord(b->begin, stream));
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
        CUDA_CHECK(cudaEventRecord(b->end, stream));
        CUDA_CHECK(cudaEventSynchronize(b->end));
        CUDA_CHECK(cudaEventElapsedTime(&ms, b->begin, b->end));
        if (i >= 0)
            seconds[i] = ms * 1e-3 / turns;
    }
    CUDA_CHECK(cudaGetLastError());
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    qsort(seconds, REPLAYS, sizeof(double), compare_doubles);
    return seconds[REPLAYS / 2];
}
