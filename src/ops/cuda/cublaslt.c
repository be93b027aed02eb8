// Matrix products by cuBLASLt, which is loaded when a GPU is: machines without one need not have
// it.
//
// The library stores matrices by column. A row-major out [rows, n] = x [rows, k] * weight [n, k]^T
// is, read by column, out' [n, rows] = weight'^T [n, k] * x' [k, rows]. How a shape is computed is
// asked of the library once and kept; many rows share the answer with close numbers of rows.
//
// Batch-invariant products get kernels that walk k from its start to its end and add nothing up
// afterwards (neither split-k nor stream-k, which need another reduction or memory for partial
// sums). Where the sums of different kernels are not known to agree, one answer serves all numbers
// of rows: one kernel with one tile.
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_sizes.h"

enum {
    NUM_CHOICES = 16384, // a power of two
    MAX_CHOICES = NUM_CHOICES / 2,
    MAX_EXACT_ROWS = 2048, // that have an answer each
    SHARED_ROWS = 64,      // so many neighbours share one
    INVARIANT_ROWS = 256,  // whose answer serves all numbers of rows
};

/** What an answer depends on. */
struct shape {
    int64_t rows, n, k, row_stride;
    int32_t alignment; // bytes that all addresses are multiples of
    enum sum_order order;
    bool is_f16, is_f32, has_bias; // is_f32: of the result
    bool is_f8, has_blocks;        // operands of e4m3, and how they are scaled
};

struct choice {
    struct shape shape;
    cublasLtMatmulAlgo_t algo;
    bool is_used;
};

struct cublaslt {
    void *library;
    cublasLtHandle_t handle;
    void *workspace;
    int32_t num_choices;
    struct choice choices[NUM_CHOICES]; // open addressing

    __typeof__(cublasLtCreate) *create;
    __typeof__(cublasLtDestroy) *destroy;
    __typeof__(cublasLtMatmul) *matmul;
    __typeof__(cublasLtMatmulAlgoGetHeuristic) *get_heuristic;
    __typeof__(cublasLtMatmulDescInit_internal) *desc_init;
    __typeof__(cublasLtMatmulDescSetAttribute) *desc_set;
    __typeof__(cublasLtMatrixLayoutInit_internal) *layout_init;
    __typeof__(cublasLtMatmulPreferenceInit_internal) *preference_init;
    __typeof__(cublasLtMatmulPreferenceSetAttribute) *preference_set;
};

static void *open_library(struct error *err)
{
    static const char *const NAMES[] = {
        "libcublasLt.so.13",
        "/usr/local/cuda/lib64/libcublasLt.so.13",
    };
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        void *library = dlopen(NAMES[i], RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
    }
    (void)error_set(err, STATUS_UNSUPPORTED,
                    "libcublasLt.so.13 was not found in the library path or in "
                    "/usr/local/cuda/lib64: install cuBLAS of CUDA 13, or add its folder to "
                    "LD_LIBRARY_PATH");
    return NULL;
}

/** One function; false and a message if the library lacks it. */
static bool load_symbol(void *library, const char *name, void *out, struct error *err)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        (void)error_set(err, STATUS_UNSUPPORTED, "libcublasLt.so.13 lacks %s", name);
        return false;
    }
    memcpy(out, &symbol, sizeof(symbol)); // a pointer to an object is none to a function
    return true;
}

static bool load_symbols(struct cublaslt *lt, struct error *err)
{
    void *library = lt->library;
    return load_symbol(library, "cublasLtCreate", &lt->create, err) &&
           load_symbol(library, "cublasLtDestroy", &lt->destroy, err) &&
           load_symbol(library, "cublasLtMatmul", &lt->matmul, err) &&
           load_symbol(library, "cublasLtMatmulAlgoGetHeuristic", &lt->get_heuristic, err) &&
           load_symbol(library, "cublasLtMatmulDescInit_internal", &lt->desc_init, err) &&
           load_symbol(library, "cublasLtMatmulDescSetAttribute", &lt->desc_set, err) &&
           load_symbol(library, "cublasLtMatrixLayoutInit_internal", &lt->layout_init, err) &&
           load_symbol(library, "cublasLtMatmulPreferenceInit_internal", &lt->preference_init,
                       err) &&
           load_symbol(library, "cublasLtMatmulPreferenceSetAttribute", &lt->preference_set, err);
}

enum status cublaslt_open(struct cublaslt **out, struct error *err)
{
    struct cublaslt *lt = xcalloc(1, sizeof(*lt));
    *out = lt;
    lt->library = open_library(err);
    if (!lt->library || !load_symbols(lt, err))
        return STATUS_UNSUPPORTED;
    cublasStatus_t status = lt->create(&lt->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return error_set(err, STATUS_UNSUPPORTED, "cuBLASLt cannot start: status %d", (int)status);
    if (cudaMalloc(&lt->workspace, CUBLASLT_WORKSPACE_BYTES) != cudaSuccess)
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%d bytes of GPU memory for cuBLASLt were refused",
                         CUBLASLT_WORKSPACE_BYTES);
    return STATUS_OK;
}

void cublaslt_close(struct cublaslt *lt)
{
    if (!lt)
        return;
    if (lt->workspace)
        cudaFree(lt->workspace);
    if (lt->handle)
        lt->destroy(lt->handle);
    if (lt->library)
        dlclose(lt->library);
    free(lt);
}

/** What a product reads besides what its shape says. */
struct operands {
    const void *weight, *x, *bias;
    const float *weight_scales, *x_scales; // of e4m3
};

/** One product as the library wants it described. */
struct product {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t weight, x, out;
};

/** How operands of e4m3 are scaled. Sums of rows may be kept in the tensor cores' own 14 bits of
 *  mantissa, which is within what e4m3 itself rounds; those of blocks leave them every 128 of k. */
static int describe_scales(const struct cublaslt *lt, struct product *p, const struct shape *shape,
                           const struct operands *operands)
{
    cublasLtMatmulDesc_t desc = (cublasLtMatmulDesc_t)&p->desc;
    const int32_t weight_mode = shape->has_blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                                  : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const int32_t x_mode = shape->has_blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                             : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const int8_t fast_sums = !shape->has_blocks;
    int status =
        lt->desc_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &weight_mode, sizeof(weight_mode));
    status |= lt->desc_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &x_mode, sizeof(x_mode));
    status |= lt->desc_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &operands->weight_scales,
                           sizeof(operands->weight_scales));
    status |= lt->desc_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &operands->x_scales,
                           sizeof(operands->x_scales));
    status |= lt->desc_set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast_sums, sizeof(fast_sums));
    return status;
}

static cublasStatus_t describe(const struct cublaslt *lt, struct product *p,
                               const struct shape *shape, const struct operands *operands)
{
    const void *bias = operands->bias;
    const cudaDataType_t type = shape->is_f16 ? CUDA_R_16F : CUDA_R_16BF;
    const cudaDataType_t in_type = shape->is_f8 ? CUDA_R_8F_E4M3 : type;
    cudaDataType_t out_type = shape->is_f32 ? CUDA_R_32F : type;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    uint64_t n = (uint64_t)shape->n, k = (uint64_t)shape->k, rows = (uint64_t)shape->rows;
    int status = lt->desc_init((cublasLtMatmulDesc_t)&p->desc, sizeof(p->desc), CUBLAS_COMPUTE_32F,
                               CUDA_R_32F);
    status |= lt->desc_set((cublasLtMatmulDesc_t)&p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                           sizeof(transposed));
    if (bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        status |= lt->desc_set((cublasLtMatmulDesc_t)&p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                               &epilogue, sizeof(epilogue));
        status |= lt->desc_set((cublasLtMatmulDesc_t)&p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                               &bias, sizeof(bias));
        status |= lt->desc_set((cublasLtMatmulDesc_t)&p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                               &type, sizeof(type));
    }
    if (shape->is_f8)
        status |= describe_scales(lt, p, shape, operands);
    status |= lt->layout_init((cublasLtMatrixLayout_t)&p->weight, sizeof(p->weight), in_type, k, n,
                              shape->k);
    status |=
        lt->layout_init((cublasLtMatrixLayout_t)&p->x, sizeof(p->x), in_type, k, rows, shape->k);
    status |= lt->layout_init((cublasLtMatrixLayout_t)&p->out, sizeof(p->out), out_type, n, rows,
                              shape->row_stride);
    return (cublasStatus_t)status; // of one kind is enough: only zero is success
}

/** Up to MAX_EXACT_ROWS each number of rows has its own answer, as tiles that fit one leave the
 * next half empty: a layer of Qwen3-8B takes 543 us with 1,027 rows and 648 with 1,152. More rows
 * share an answer with their neighbours. */
static int64_t representative(int64_t rows)
{
    return rows <= MAX_EXACT_ROWS ? rows : ceil_div(rows, SHARED_ROWS) * SHARED_ROWS;
}

static uint64_t shape_hash(const struct shape *shape)
{
    uint64_t hash = (uint64_t)shape->rows;
    hash = hash * 0x9E3779B97F4A7C15u + (uint64_t)shape->n;
    hash = hash * 0x9E3779B97F4A7C15u + (uint64_t)shape->k;
    hash = hash * 0x9E3779B97F4A7C15u + (uint64_t)shape->row_stride;
    hash =
        hash * 0x9E3779B97F4A7C15u +
        (uint64_t)(shape->alignment * 128 + (int32_t)shape->order * 32 + shape->is_f8 * 16 +
                   shape->has_blocks * 8 + shape->is_f16 * 4 + shape->is_f32 * 2 + shape->has_bias);
    return hash ^ hash >> 29;
}

static bool same_shape(const struct shape *a, const struct shape *b)
{
    return a->rows == b->rows && a->n == b->n && a->k == b->k && a->row_stride == b->row_stride &&
           a->alignment == b->alignment && a->is_f32 == b->is_f32 && a->has_bias == b->has_bias &&
           a->is_f8 == b->is_f8 && a->has_blocks == b->has_blocks && a->is_f16 == b->is_f16 &&
           a->order == b->order;
}

/** Asks the library how to compute `shape`; false if it cannot. */
static bool ask(const struct cublaslt *lt, const struct shape *shape,
                const struct operands *operands, cublasLtMatmulAlgo_t *out)
{
    struct product p;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulPreference_t pref = (cublasLtMatmulPreference_t)&preference;
    const size_t workspace_bytes = shape->order != SUM_ANY ? 0 : CUBLASLT_WORKSPACE_BYTES;
    const uint32_t alignment = (uint32_t)shape->alignment;
    static const cublasLtMatmulPreferenceAttributes_t ALIGNMENTS[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    int status = describe(lt, &p, shape, operands);
    status |= lt->preference_init(pref, sizeof(preference));
    status |= lt->preference_set(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                 sizeof(workspace_bytes));
    // Parts of a sum are added in float32, never in the type of the operands.
    const uint32_t reductions = shape->order != SUM_ANY ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                        : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    status |= lt->preference_set(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                 sizeof(reductions));
    for (size_t i = 0; i < ARRAY_LEN(ALIGNMENTS); i++)
        status |= lt->preference_set(pref, ALIGNMENTS[i], &alignment, sizeof(alignment));
    if (status != 0)
        return false;
    cublasLtMatmulHeuristicResult_t result;
    int count = 0;
    cublasLtMatrixLayout_t d = (cublasLtMatrixLayout_t)&p.out;
    status = lt->get_heuristic(lt->handle, (cublasLtMatmulDesc_t)&p.desc,
                               (cublasLtMatrixLayout_t)&p.weight, (cublasLtMatrixLayout_t)&p.x, d,
                               d, pref, 1, &result, &count);
    if (status != 0 || count < 1)
        return false;
    *out = result.algo;
    return true;
}

/** NULL: the library has none. */
static const cublasLtMatmulAlgo_t *choose(struct cublaslt *lt, const struct shape *shape,
                                          const struct operands *operands)
{
    struct shape key = *shape;
    key.rows = shape->order == SUM_ONE_KERNEL ? INVARIANT_ROWS : representative(shape->rows);
    uint64_t at = shape_hash(&key);
    for (;; at++) {
        struct choice *choice = &lt->choices[at % NUM_CHOICES];
        if (choice->is_used && same_shape(&choice->shape, &key))
            return &choice->algo;
        if (choice->is_used)
            continue;
        // A full table (more shapes than a model has) keeps what it has and asks anew.
        bool is_kept = lt->num_choices < MAX_CHOICES;
        if (!ask(lt, &key, operands, &choice->algo))
            return NULL;
        choice->shape = key;
        choice->is_used = is_kept;
        lt->num_choices += is_kept;
        return &choice->algo;
    }
}

static int32_t alignment_of(uintptr_t address)
{
    int32_t alignment = 16;
    while (address % (uintptr_t)alignment != 0)
        alignment /= 2;
    return alignment;
}

static void multiply(struct cuda_backend *cuda, struct tensor out, const struct shape *shape,
                     const struct operands *operands)
{
    struct cublaslt *lt = cuda->cublaslt;
    struct product p;
    const cublasLtMatmulAlgo_t *algo = choose(lt, shape, operands);
    if (!algo || describe(lt, &p, shape, operands) != CUBLAS_STATUS_SUCCESS) {
        cuda_note(cuda, cudaErrorNotSupported);
        return;
    }
    const float one = 1, zero = 0;
    void *workspace = shape->order != SUM_ANY ? NULL : lt->workspace;
    size_t workspace_bytes = shape->order != SUM_ANY ? 0 : CUBLASLT_WORKSPACE_BYTES;
    cublasLtMatrixLayout_t d = (cublasLtMatrixLayout_t)&p.out;
    cublasStatus_t status =
        lt->matmul(lt->handle, (cublasLtMatmulDesc_t)&p.desc, &one, operands->weight,
                   (cublasLtMatrixLayout_t)&p.weight, operands->x, (cublasLtMatrixLayout_t)&p.x,
                   &zero, out.data, d, out.data, d, algo, workspace, workspace_bytes, cuda->stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        cuda_note(cuda, cudaErrorLaunchFailure);
}

static struct shape shape_of(struct tensor out, int64_t k, const struct operands *operands,
                             enum sum_order order)
{
    return (struct shape){
        .rows = out.shape[0],
        .n = out.shape[1],
        .k = k,
        .row_stride = out.row_stride,
        .alignment = alignment_of((uintptr_t)out.data | (uintptr_t)operands->x |
                                  (uintptr_t)operands->weight),
        .is_f32 = out.dtype == DTYPE_F32,
        .has_bias = operands->bias != NULL,
        .order = order,
    };
}

void cublaslt_matmul(struct cuda_backend *cuda, struct tensor out, struct tensor x,
                     const void *weight, const void *bias, enum sum_order order)
{
    const struct operands operands = {.weight = weight, .x = x.data, .bias = bias};
    struct shape shape = shape_of(out, x.shape[1], &operands, order);
    shape.is_f16 = x.dtype == DTYPE_F16;
    multiply(cuda, out, &shape, &operands);
}

bool cublaslt_supports_f8(struct tensor out, int64_t k)
{
    return k % 16 == 0 && out.shape[1] % 16 == 0 && out.row_stride % 8 == 0 &&
           out.dtype != DTYPE_F32 && alignment_of((uintptr_t)out.data) == 16;
}

void cublaslt_matmul_f8(struct cuda_backend *cuda, struct tensor out, const struct cublaslt_f8 *f8,
                        int64_t k, const void *bias, enum sum_order order)
{
    const struct operands operands = {.weight = f8->weight,
                                      .x = f8->x,
                                      .bias = bias,
                                      .weight_scales = f8->weight_scales,
                                      .x_scales = f8->x_scales};
    struct shape shape = shape_of(out, k, &operands, order);
    shape.is_f16 = out.dtype == DTYPE_F16;
    shape.is_f8 = true;
    shape.has_blocks = f8->has_blocks;
    multiply(cuda, out, &shape, &operands);
}
