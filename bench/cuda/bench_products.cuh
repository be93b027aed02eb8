// Times of products: a matrix times few rows, and times a decode batch, alone and as the chain of
// products that a model's layers are; beside cuBLASLt's and reading.
#pragma once

#include "timing.cuh"

struct product {
    struct gemv_args args;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algo;
};

static const void *weight_of_turn(struct bench *b, const struct gemv_args *a, int turn)
{
    size_t size = ((size_t)a->n * a->k * 2 + 255) / 256 * 256;
    size_t num = ((size_t)WEIGHT_POOL_MB << 20) / size;
    return b->pool + (size_t)turn % num * size;
}

static void launch_gemv(struct bench *b, void *context, int turn)
{
    struct gemv_args args = ((struct product *)context)->args;
    args.weight = weight_of_turn(b, &args, turn);
    gemv(&b->launch, &args);
}

static void launch_cublas(struct bench *b, void *context, int turn)
{
    struct product *p = (struct product *)context;
    const float one = 1, zero = 0;
    cublasLtMatmul(b->cublas, p->desc, &one, weight_of_turn(b, &p->args, turn), p->w, p->args.x,
                   p->x, &zero, p->args.out, p->y, p->args.out, p->y, &p->algo, b->workspace,
                   32 << 20, b->launch.stream);
}

static bool prepare_cublas(struct bench *b, struct product *p)
{
    int m = p->args.num_rows, n = p->args.n, k = p->args.k, found = 0;
    cublasOperation_t transposed = CUBLAS_OP_T;
    size_t workspace_bytes = 32 << 20;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                   sizeof(transposed));
    cublasLtMatrixLayoutCreate(&p->w, CUDA_R_16BF, (uint64_t)k, (uint64_t)n, k);
    cublasLtMatrixLayoutCreate(&p->x, CUDA_R_16BF, (uint64_t)k, (uint64_t)m, k);
    cublasLtMatrixLayoutCreate(&p->y, CUDA_R_16BF, (uint64_t)n, (uint64_t)m, n);
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace_bytes, sizeof(workspace_bytes));
    cublasLtMatmulAlgoGetHeuristic(b->cublas, p->desc, p->w, p->x, p->y, p->y, preference, 1,
                                   &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    p->algo = result.algo;
    return found > 0;
}

/** One cell of a table of products: ours beside cuBLASLt's. */
static void print_product(struct bench *b, struct product *p,
                          void (*launch)(struct bench *b, void *context, int turn))
{
    double bytes = (double)p->args.n * p->args.k * 2;
    int turns = bytes > 5e8 ? 4 : 40;
    double own = time_launches(b, launch, p, turns), cublas = NAN;
    if (prepare_cublas(b, p))
        cublas = time_launches(b, launch_cublas, p, turns);
    printf(" %7.2f %3.0f%% %5.2fx   ", own * 1e6, 100 * bytes / own / b->read_rate, own / cublas);
}

static void bench_products(struct bench *b)
{
    static const struct {
        const char *name;
        int n, k;
        bool norm, swiglu, residual;
    } shapes[] = {
        {"8B qkv (norm)", 6144, 4096, true, false, false},
        {"8B o (residual)", 4096, 4096, false, false, true},
        {"8B gate_up (norm, swiglu)", 24576, 4096, true, true, false},
        {"8B down (residual)", 4096, 12288, false, false, true},
        {"8B head", 151936, 4096, false, false, false},
        {"0.6B qkv (norm)", 4096, 1024, true, false, false},
        {"0.6B o (residual)", 1024, 2048, false, false, true},
        {"0.6B gate_up (norm, swiglu)", 6144, 1024, true, true, false},
        {"0.6B down (residual)", 1024, 3072, false, false, true},
        {"0.6B head", 151936, 1024, false, false, false},
    };
    static const int rows[] = {1, 4, 8, 16};
    void *x = b->pool, *out = device_alloc(16 * 151936 * 4);
    printf("\ngemv: us, share of read ceiling, times cuBLASLt's time\n%-28s", "");
    for (int r = 0; r < 4; r++)
        printf("  %9s%-2d         ", "rows ", rows[r]);
    printf("\n");
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        printf("%-28s", shapes[s].name);
        for (int r = 0; r < 4; r++) {
            struct product p = {};
            p.args.out = out;
            p.args.x = x;
            p.args.norm_weight = shapes[s].norm ? b->pool : NULL;
            p.args.residual = shapes[s].residual ? out : NULL;
            p.args.norm_eps = 1e-6f;
            p.args.x_stride = p.args.k = shapes[s].k;
            p.args.n = shapes[s].n;
            p.args.num_rows = rows[r];
            p.args.is_swiglu = shapes[s].swiglu;
            print_product(b, &p, launch_gemv);
        }
        printf("\n");
    }
    cudaFree(out);
}

// ---- A batch that decodes ------------------------------------------------------------------

static const int BATCHES[] = {16, 32, 64, 96, 128};
enum { NUM_BATCHES = sizeof(BATCHES) / sizeof(BATCHES[0]), MAX_BATCH = 128 };

static void launch_skinny(struct bench *b, void *context, int turn)
{
    struct gemv_args args = ((struct product *)context)->args;
    args.weight = weight_of_turn(b, &args, turn);
    skinny_gemm(&b->launch, &args);
}

static void bench_skinny_products(struct bench *b)
{
    static const struct {
        const char *name;
        int n, k;
        bool swiglu, residual;
    } shapes[] = {
        {"8B qkv", 6144, 4096, false, false},
        {"8B o (residual)", 4096, 4096, false, true},
        {"8B gate_up (swiglu)", 24576, 4096, true, false},
        {"8B down (residual)", 4096, 12288, false, true},
        {"8B head", 151936, 4096, false, false},
        {"0.6B qkv", 4096, 1024, false, false},
        {"0.6B o (residual)", 1024, 2048, false, true},
        {"0.6B gate_up (swiglu)", 6144, 1024, true, false},
        {"0.6B down (residual)", 1024, 3072, false, true},
    };
    void *out = device_alloc((size_t)MAX_BATCH * 151936 * 2);
    printf("\nskinny_gemm: us, share of read ceiling, times cuBLASLt's time\n%-28s", "");
    for (int r = 0; r < NUM_BATCHES; r++)
        printf("  %9s%-3d        ", "rows ", BATCHES[r]);
    printf("\n");
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        printf("%-28s", shapes[s].name);
        for (int r = 0; r < NUM_BATCHES; r++) {
            struct product p = {};
            p.args.out = out;
            p.args.x = b->pool;
            p.args.residual = shapes[s].residual ? out : NULL;
            p.args.x_stride = p.args.k = shapes[s].k;
            p.args.n = shapes[s].n;
            p.args.num_rows = BATCHES[r];
            p.args.is_swiglu = shapes[s].swiglu;
            print_product(b, &p, launch_skinny);
        }
        printf("\n");
    }
    cudaFree(out);
}

enum { NUM_LAYERS = 36, HIDDEN = 4096, QKV = 6144, INNER = 12288 };

/** The products of Qwen3-8B's layers and the norms between them, each reading what the one before
 *  it wrote. */
struct layers {
    char *residual, *normed, *qkv, *inner;
    void *norm_weight;
    struct product products[4];
    bool is_cublas;
};

/** The product `index` of a layer, over the `turn`th of all weights. */
static void launch_product(struct bench *b, struct layers *l, int index, int turn)
{
    struct product *p = &l->products[index];
    if (l->is_cublas)
        launch_cublas(b, p, turn);
    else
        launch_skinny(b, p, turn);
}

static void launch_layers(struct bench *b, void *context, int turn)
{
    struct layers *l = (struct layers *)context;
    int rows = l->products[0].args.num_rows;
    const struct cuda_norm norm = {l->norm_weight, 1e-6f, 0};
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        for (int i = 0; i < 4; i++) {
            if (i % 2 == 0 && l->is_cublas)
                cuda_add_rms_norm(&b->launch, l->normed, l->normed, l->residual, norm, rows,
                                  HIDDEN);
            else if (i % 2 == 0)
                cuda_rms_norm(&b->launch, l->normed, l->residual, norm, rows, HIDDEN);
            // Every product starts elsewhere in the pool, far apart in time from the others there.
            launch_product(b, l, i, turn + layer + 9 * i);
            if (i == 2 && l->is_cublas)
                cuda_act_and_mul(&b->launch, l->inner, l->inner + MAX_BATCH * INNER * 2,
                                 CUDA_ACTIVATION_SILU, rows, INNER);
        }
    }
}

static void bench_layers(struct bench *b)
{
    struct layers l = {};
    l.residual = (char *)device_zeroed(MAX_BATCH * HIDDEN * 2);
    l.normed = (char *)device_zeroed(MAX_BATCH * HIDDEN * 2);
    l.qkv = (char *)device_zeroed(MAX_BATCH * QKV * 2);
    l.inner = (char *)device_zeroed(MAX_BATCH * INNER * 2 * 3);
    l.norm_weight = b->pool;
    double bytes = 2.0 * NUM_LAYERS * HIDDEN * (QKV + HIDDEN + 3 * INNER);
    printf("\nproducts and norms of Qwen3-8B's layers: ms, share of read ceiling, without the "
           "last product's head\n");
    for (int r = 0; r < NUM_BATCHES; r++) {
        double seconds[2];
        for (int kind = 0; kind < 2; kind++) {
            l.is_cublas = kind == 0;
            void *sums = l.is_cublas ? l.normed : l.residual; // cuBLASLt's are added by the norm
            const struct {
                void *out, *x;
                int n, k;
                bool adds, is_swiglu;
            } parts[4] = {
                {l.qkv, l.normed, QKV, HIDDEN, false, false},
                {sums, l.qkv, HIDDEN, HIDDEN, true, false},
                {l.is_cublas ? l.inner + MAX_BATCH * INNER * 2 : l.inner, l.normed, 2 * INNER,
                 HIDDEN, false, true},
                {sums, l.inner, HIDDEN, INNER, true, false},
            };
            for (int i = 0; i < 4; i++) {
                struct gemv_args *a = &l.products[i].args;
                *a = {};
                a->out = parts[i].out;
                a->x = parts[i].x;
                a->residual = parts[i].adds ? parts[i].out : NULL;
                a->n = parts[i].n;
                a->x_stride = a->k = parts[i].k;
                a->num_rows = BATCHES[r];
                a->is_swiglu = parts[i].is_swiglu;
                if (l.is_cublas && !prepare_cublas(b, &l.products[i])) {
                    fprintf(stderr, "cuBLASLt has no product of %d rows\n", BATCHES[r]);
                    exit(1);
                }
            }
            CUDA_CHECK(
                cudaMemcpy(l.residual, b->pool, MAX_BATCH * HIDDEN * 2, cudaMemcpyDeviceToDevice));
            seconds[kind] = time_launches(b, launch_layers, &l, 1);
        }
        printf("rows %-3d  own %7.3f %3.0f%%  cuBLASLt %7.3f %3.0f%%\n", BATCHES[r],
               seconds[1] * 1e3, 100 * bytes / seconds[1] / b->read_rate, seconds[0] * 1e3,
               100 * bytes / seconds[0] / b->read_rate);
    }
    cudaFree(l.residual);
    cudaFree(l.normed);
    cudaFree(l.qkv);
    cudaFree(l.inner);
}
