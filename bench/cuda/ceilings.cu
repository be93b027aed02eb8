// Measures a GPU's limits: see ceilings.h. cuBLASLt is loaded as the backend does it, at run time.
#include "cuda/ceilings.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "cuda/ceiling_kernels.cuh"

enum { ROUNDS = 7, LAUNCHES = 8, SIZE = 8192, WORKSPACE_BYTES = 32 << 20 };
static const size_t POOL_BYTES = (size_t)2 << 30;

struct limits {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char *pool;      // of random numbers
    void *workspace; // and where a kernel that only reads would write
    void *library;
};

typedef void launch_function(struct limits *l, void *context);

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/** Median seconds of one launch among some back to back. */
static double time_launches(struct limits *l, launch_function *launch, void *context)
{
    double seconds[ROUNDS];
    launch(l, context);
    for (int i = 0; i < ROUNDS; i++) {
        float ms = 0;
        cudaEventRecord(l->begin, l->stream);
        for (int j = 0; j < LAUNCHES; j++)
            launch(l, context);
        cudaEventRecord(l->end, l->stream);
        cudaEventSynchronize(l->end);
        cudaEventElapsedTime(&ms, l->begin, l->end);
        seconds[i] = ms * 1e-3 / LAUNCHES;
    }
    qsort(seconds, ROUNDS, sizeof(double), compare_doubles);
    return seconds[ROUNDS / 2];
}

static void launch_read(struct limits *l, void *context)
{
    (void)context;
    read_kernel<<<132 * 16, 512, 0, l->stream>>>((const uint4 *)l->pool, POOL_BYTES / 16,
                                                 (uint32_t *)l->workspace);
}

static void launch_copy(struct limits *l, void *context)
{
    (void)context;
    copy_kernel<<<132 * 16, 512, 0, l->stream>>>((uint4 *)(l->pool + POOL_BYTES / 2),
                                                 (const uint4 *)l->pool, POOL_BYTES / 2 / 16);
}

/** A square product of cuBLASLt and the functions that it takes. */
struct product {
    __typeof__(cublasLtCreate) *create;
    __typeof__(cublasLtDestroy) *destroy;
    __typeof__(cublasLtMatmul) *matmul;
    __typeof__(cublasLtMatmulDescCreate) *desc_create;
    __typeof__(cublasLtMatmulDescDestroy) *desc_destroy;
    __typeof__(cublasLtMatmulDescSetAttribute) *desc_set;
    __typeof__(cublasLtMatrixLayoutCreate) *layout_create;
    __typeof__(cublasLtMatrixLayoutDestroy) *layout_destroy;
    __typeof__(cublasLtMatmulPreferenceCreate) *preference_create;
    __typeof__(cublasLtMatmulPreferenceDestroy) *preference_destroy;
    __typeof__(cublasLtMatmulPreferenceSetAttribute) *preference_set;
    __typeof__(cublasLtMatmulAlgoGetHeuristic) *heuristic;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t in, out;
    cublasLtMatmulAlgo_t algo;
};

template <typename F> static bool find(void *library, F **out, const char *name)
{
    *out = (F *)dlsym(library, name);
    return *out != NULL;
}

static bool find_functions(void *library, struct product *p)
{
    return find(library, &p->create, "cublasLtCreate") &&
           find(library, &p->destroy, "cublasLtDestroy") &&
           find(library, &p->matmul, "cublasLtMatmul") &&
           find(library, &p->desc_create, "cublasLtMatmulDescCreate") &&
           find(library, &p->desc_destroy, "cublasLtMatmulDescDestroy") &&
           find(library, &p->desc_set, "cublasLtMatmulDescSetAttribute") &&
           find(library, &p->layout_create, "cublasLtMatrixLayoutCreate") &&
           find(library, &p->layout_destroy, "cublasLtMatrixLayoutDestroy") &&
           find(library, &p->preference_create, "cublasLtMatmulPreferenceCreate") &&
           find(library, &p->preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           find(library, &p->preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           find(library, &p->heuristic, "cublasLtMatmulAlgoGetHeuristic");
}

static void launch_product(struct limits *l, void *context)
{
    const struct product *p = (const struct product *)context;
    const size_t bytes = (size_t)SIZE * SIZE * 2;
    const float one = 1, zero = 0;
    void *out = l->pool + 2 * bytes;
    p->matmul(p->handle, p->desc, &one, l->pool, p->in, l->pool + bytes, p->in, &zero, out, p->out,
              out, p->out, &p->algo, l->workspace, WORKSPACE_BYTES, l->stream);
}

/** Operations per second; 0 if the library does not do it. */
static double measure_product(struct limits *l, struct product *p, cudaDataType_t type)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const size_t workspace_bytes = WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    p->desc_create(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    p->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    p->layout_create(&p->in, type, SIZE, SIZE, SIZE);
    p->layout_create(&p->out, CUDA_R_16BF, SIZE, SIZE, SIZE);
    p->preference_create(&preference);
    p->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                      sizeof(workspace_bytes));
    p->heuristic(p->handle, p->desc, p->in, p->in, p->out, p->out, preference, 1, &result, &found);
    double rate = 0;
    if (found > 0) {
        p->algo = result.algo;
        rate = 2.0 * SIZE * SIZE * SIZE / time_launches(l, launch_product, p);
    }
    p->preference_destroy(preference);
    p->layout_destroy(p->in);
    p->layout_destroy(p->out);
    p->desc_destroy(p->desc);
    return rate;
}

static void measure_products(struct limits *l, struct ceilings *out)
{
    struct product p = {};
    l->library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!l->library)
        l->library = dlopen("/usr/local/cuda/lib64/libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!l->library || !find_functions(l->library, &p) ||
        p.create(&p.handle) != CUBLAS_STATUS_SUCCESS)
        return;
    out->bf16 = measure_product(l, &p, CUDA_R_16BF);
    // Any byte is an e4m3 number or not one; the sums' values do not matter to the clock.
    out->fp8 = measure_product(l, &p, CUDA_R_8F_E4M3);
    p.destroy(p.handle);
}

bool ceilings_measure(struct ceilings *out)
{
    struct limits l = {};
    *out = (struct ceilings){};
    bool is_there = cudaMalloc((void **)&l.pool, POOL_BYTES) == cudaSuccess &&
                    cudaMalloc(&l.workspace, WORKSPACE_BYTES) == cudaSuccess &&
                    cudaStreamCreate(&l.stream) == cudaSuccess &&
                    cudaEventCreate(&l.begin) == cudaSuccess &&
                    cudaEventCreate(&l.end) == cudaSuccess;
    if (is_there) {
        random_kernel<<<132 * 16, 512, 0, l.stream>>>((uint32_t *)l.pool, POOL_BYTES / 4);
        out->read = (double)POOL_BYTES / time_launches(&l, launch_read, NULL);
        out->copy = (double)POOL_BYTES / time_launches(&l, launch_copy, NULL);
        measure_products(&l, out);
        is_there = cudaStreamSynchronize(l.stream) == cudaSuccess;
    }
    cudaFree(l.pool);
    cudaFree(l.workspace);
    if (l.begin)
        cudaEventDestroy(l.begin);
    if (l.end)
        cudaEventDestroy(l.end);
    if (l.stream)
        cudaStreamDestroy(l.stream);
    (void)cudaGetLastError(); // the engine starts from a clean state
    return is_there;
}

int64_t ceilings_used_bytes(void)
{
    size_t free_now = 0, total = 0;
    if (cudaMemGetInfo(&free_now, &total) != cudaSuccess)
        return 0;
    return (int64_t)(total - free_now);
}
