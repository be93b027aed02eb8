// Every kernel against a float64 reference on the CPU: odd shapes, seeded random inputs, poisoned
// outputs and cache. Prints one line per kernel; exits 1 if any failed.
// Usage: kernels_check [PREFIX]: only the kernels whose names begin with it.
#include "harness.cuh"

#include "check_attention.cuh"
#include "check_experts.cuh"
#include "check_sample.cuh"

static const double LIMIT = 6e-3; // bf16 results: a rounding is 1e-3, rounded inputs of sums more

/** ||got - want|| / ||want||; NaN where an element was not written. */
static double error_of_bf16(const void *device, const double *want, size_t n)
{
    __nv_bfloat16 *got = (__nv_bfloat16 *)malloc(n * sizeof(*got));
    copy_back(got, device, n * sizeof(*got));
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)__bfloat162float(got[i]) - want[i];
        diff += d * d;
        norm += want[i] * want[i];
    }
    free(got);
    return sqrt(diff / norm);
}

static double silu_of(double x)
{
    return x / (1 + exp(-x));
}

/** The kernel for few rows, or the one for a batch that decodes; with the cases that it takes. */
static double check_product(const struct cuda_launch *launch, bool is_skinny)
{
    static const struct {
        int rows, n, k;
        bool norm, bias, residual, swiglu, f32;
    } cases[] = {
        {1, 4096, 1024, true, false, false, false, false},
        {1, 100, 64, false, true, true, false, false},
        {3, 6145, 192, false, true, true, false, false},
        {8, 1024, 2048, false, false, true, false, false},
        {9, 1024, 3072, true, true, false, false, false},
        {16, 2500, 4096, true, false, true, false, true},
        {1, 6144, 1024, true, false, false, true, false},
        {5, 2054, 320, false, true, false, true, false},
        {16, 512, 1088, true, false, false, true, false},
        {2, 3000, 12288, false, false, false, false, true},
        {33, 6145, 200, false, true, true, false, false},
        {100, 1002, 520, false, true, true, true, false},
        {128, 330, 1088, false, true, true, false, true},
    };
    double worst = 0;
    uint64_t seed = 1;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        int m = cases[c].rows, n = cases[c].n, k = cases[c].k, cols = cases[c].swiglu ? n / 2 : n;
        int64_t stride = k + 8;
        if (is_skinny ? cases[c].norm || !skinny_gemm_supports(m, n, k, cases[c].swiglu)
                      : !gemv_supports(m, n, k, cases[c].swiglu))
            continue;
        struct bf16_array x = random_bf16((size_t)m * stride, 1.5f, &seed);
        struct bf16_array w = random_bf16((size_t)n * k, 0.05f, &seed);
        struct bf16_array norm = random_bf16((size_t)k, 1.0f, &seed);
        struct bf16_array residual = random_bf16((size_t)m * cols, 1.0f, &seed);
        float *bias = (float *)malloc((size_t)n * 4);
        for (int i = 0; i < n; i++)
            bias[i] = random_normal(&seed);
        void *device_bias = device_copy_of(bias, (size_t)n * 4);
        void *device_residual = residual.device;
        if (cases[c].f32)
            device_residual = device_copy_of(residual.host, (size_t)m * cols * 4);
        void *out = device_poisoned((size_t)m * cols * 4);
        struct gemv_args args = {};
        args.out = out;
        args.x = x.device;
        args.weight = w.device;
        args.bias = cases[c].bias ? (const float *)device_bias : NULL;
        args.residual = cases[c].residual ? device_residual : NULL;
        args.norm_weight = cases[c].norm ? norm.device : NULL;
        args.norm_eps = 1e-5f;
        args.x_stride = stride;
        args.num_rows = m;
        args.n = n;
        args.k = k;
        args.is_swiglu = cases[c].swiglu;
        args.out_is_f32 = cases[c].f32;
        if (!is_skinny)
            gemv(launch, &args);
        else if (!skinny_gemm(launch, &args))
            return NAN;
        CUDA_CHECK(cudaDeviceSynchronize());

        double *want = (double *)malloc((size_t)m * cols * sizeof(*want));
        for (int r = 0; r < m; r++) {
            double squares = 0, y[2];
            for (int i = 0; i < k; i++)
                squares += pow(x.host[r * stride + i], 2);
            double scale = cases[c].norm ? 1 / sqrt(squares / k + 1e-5) : 1;
            for (int j = 0; j < cols; j++) {
                for (int h = 0; h < (cases[c].swiglu ? 2 : 1); h++) {
                    const float *row = w.host + (size_t)(j + h * cols) * k;
                    y[h] = 0;
                    for (int i = 0; i < k; i++)
                        y[h] += (double)x.host[r * stride + i] * row[i] *
                                (cases[c].norm ? norm.host[i] : 1);
                    y[h] = y[h] * scale + (cases[c].bias ? bias[j + h * cols] : 0);
                }
                double v = cases[c].swiglu ? silu_of(y[0]) * y[1] : y[0];
                want[(size_t)r * cols + j] =
                    v + (cases[c].residual ? residual.host[(size_t)r * cols + j] : 0);
            }
        }
        double error;
        if (cases[c].f32) {
            float *got = (float *)malloc((size_t)m * cols * 4);
            copy_back(got, out, (size_t)m * cols * 4);
            double diff = 0, total = 0;
            for (size_t i = 0; i < (size_t)m * cols; i++) {
                diff += pow(got[i] - want[i], 2);
                total += want[i] * want[i];
            }
            error = sqrt(diff / total);
            free(got);
        } else {
            error = error_of_bf16(out, want, (size_t)m * cols);
        }
        if (!(error <= LIMIT))
            printf("  %s case %zu: error %.2e\n", is_skinny ? "skinny_gemm" : "gemv", c, error);
        worst = worse_of(worst, error);
        free(want);
        free(bias);
        free_bf16(x);
        free_bf16(w);
        free_bf16(norm);
        if (device_residual != residual.device)
            cudaFree(device_residual);
        free_bf16(residual);
        cudaFree(device_bias);
        cudaFree(out);
    }
    return worst;
}

static double check_gemv(const struct cuda_launch *launch)
{
    return check_product(launch, false);
}

static double check_skinny_gemm(const struct cuda_launch *launch)
{
    return check_product(launch, true);
}

/** A row in little company and in much: the same bits. */
static double check_skinny_gemm_invariance(const struct cuda_launch *launch)
{
    enum { N = 3000, K = 1024, ROWS = SKINNY_GEMM_MAX_ROWS };
    uint64_t seed = 2;
    struct bf16_array x = random_bf16(ROWS * K, 1, &seed), w = random_bf16(N * K, 0.05f, &seed);
    __nv_bfloat16 *out = (__nv_bfloat16 *)device_poisoned((ROWS + 9) * N * 2);
    struct gemv_args args = {};
    args.x = x.device;
    args.weight = w.device;
    args.x_stride = args.k = K;
    args.n = N;
    args.num_rows = ROWS;
    args.out = out;
    bool is_launched = skinny_gemm(launch, &args);
    args.num_rows = 9;
    args.x = x.device + 91 * K;
    args.out = out + ROWS * N;
    is_launched &= skinny_gemm(launch, &args);
    static uint16_t got[(ROWS + 9) * N];
    copy_back(got, out, sizeof(got));
    free_bf16(x);
    free_bf16(w);
    cudaFree(out);
    return is_launched && memcmp(got + 91 * N, got + ROWS * N, 9 * N * 2) == 0 ? 0 : 1;
}

/** A row alone and in company: the same bits. */
static double check_gemv_invariance(const struct cuda_launch *launch)
{
    enum { N = 3000, K = 1024 };
    uint64_t seed = 2;
    struct bf16_array x = random_bf16(16 * K, 1, &seed), w = random_bf16(N * K, 0.05f, &seed);
    __nv_bfloat16 *out = (__nv_bfloat16 *)device_poisoned(17 * N * 2);
    struct gemv_args args = {};
    args.x = x.device;
    args.weight = args.norm_weight = w.device;
    args.x_stride = args.k = K;
    args.n = N;
    args.num_rows = 16;
    args.out = out;
    gemv(launch, &args);
    args.num_rows = 1;
    args.x = x.device + 11 * K;
    args.out = out + 16 * N;
    gemv(launch, &args);
    static uint16_t got[17 * N];
    copy_back(got, out, sizeof(got));
    free_bf16(x);
    free_bf16(w);
    cudaFree(out);
    return memcmp(got + 11 * N, got + 16 * N, N * 2) == 0 ? 0 : 1;
}

static double check_norm(const struct cuda_launch *launch)
{
    static const int sizes[][2] = {{1, 1024}, {3, 4096}, {7, 8}, {5, 5120}, {2, 16392}, {2, 32768}};
    double worst = 0;
    uint64_t seed = 3;
    for (size_t c = 0; c < 2 * sizeof(sizes) / sizeof(sizes[0]); c++) {
        int rows = sizes[c / 2][0], n = sizes[c / 2][1];
        bool adds = c % 2;
        size_t total = (size_t)rows * n;
        struct bf16_array x = random_bf16(total, 1, &seed), r = random_bf16(total, 2, &seed);
        struct bf16_array w = random_bf16((size_t)n, 1, &seed);
        void *out = device_poisoned(total * 2);
        if (adds)
            cuda_add_rms_norm(launch, out, x.device, r.device, {w.device, 1e-6f, 0}, rows, n);
        else
            cuda_rms_norm(launch, out, x.device, {w.device, 1e-6f, 0}, rows, n);
        double *want = (double *)malloc(total * sizeof(*want)),
               *sum = (double *)malloc(total * sizeof(*sum));
        for (int i = 0; i < rows; i++) {
            double squares = 0;
            for (int j = 0; j < n; j++) {
                size_t at = (size_t)i * n + j;
                sum[at] = x.host[at] + (adds ? (double)r.host[at] : 0);
                squares += sum[at] * sum[at];
            }
            for (int j = 0; j < n; j++)
                want[(size_t)i * n + j] =
                    sum[(size_t)i * n + j] / sqrt(squares / n + 1e-6) * w.host[j];
        }
        double error = error_of_bf16(out, want, total);
        if (adds)
            error = worse_of(error, error_of_bf16(r.device, sum, total));
        if (!(error <= LIMIT))
            printf("  norm case %zu: error %.2e\n", c, error);
        worst = worse_of(worst, error);
        free(want);
        free(sum);
        free_bf16(x);
        free_bf16(r);
        free_bf16(w);
        cudaFree(out);
    }
    return worst;
}

static double check_elementwise(const struct cuda_launch *launch)
{
    enum { ROWS = 37, COLS = 264 };
    uint64_t seed = 4;
    struct bf16_array x = random_bf16(ROWS * 2 * COLS, 2, &seed);
    static double want[ROWS * 2 * COLS];
    double worst = 0;
    for (int gelu = 0; gelu < 2; gelu++) {
        void *out = device_poisoned(ROWS * COLS * 2);
        cuda_act_and_mul(launch, out, x.device,
                         gelu ? CUDA_ACTIVATION_GELU_TANH : CUDA_ACTIVATION_SILU, ROWS, COLS);
        for (int i = 0; i < ROWS * COLS; i++) {
            double g = x.host[i / COLS * 2 * COLS + i % COLS];
            double u = x.host[i / COLS * 2 * COLS + COLS + i % COLS];
            want[i] =
                u * (gelu ? 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))
                          : silu_of(g));
        }
        worst = worse_of(worst, error_of_bf16(out, want, ROWS * COLS));
        cudaFree(out);
    }
    static const int32_t ids[] = {36, 0, 5, -1, 5, 37};
    void *device_ids = device_copy_of(ids, sizeof(ids)), *out = device_poisoned(6 * 2 * COLS * 2);
    cuda_gather_rows(launch, out, x.device, (const int32_t *)device_ids, 1.5f, 6, ROWS, 2 * COLS);
    for (int i = 0; i < 6 * 2 * COLS; i++) {
        int32_t id = ids[i / (2 * COLS)];
        want[i] = id >= 0 && id < ROWS ? 1.5 * x.host[id * 2 * COLS + i % (2 * COLS)] : 0;
    }
    worst = worse_of(worst, error_of_bf16(out, want, 6 * 2 * COLS));
    static float wide[ROWS * 2 * COLS];
    float *device_wide = (float *)device_poisoned(sizeof(wide));
    cuda_logits_to_f32(launch, device_wide, x.device, 0, ROWS * 2 * COLS);
    copy_back(wide, device_wide, sizeof(wide));
    if (memcmp(wide, x.host, sizeof(wide)) != 0)
        worst = 1;
    free_bf16(x);
    cudaFree(device_ids);
    cudaFree(device_wide);
    cudaFree(out);
    return worst;
}

int main(int argc, char **argv)
{
    const char *prefix = argc > 1 ? argv[1] : "";
    struct cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    struct cuda_launch launch = {stream, properties.multiProcessorCount};
    static const struct {
        const char *name;
        double (*run)(const struct cuda_launch *);
        double limit;
        bool has_f16;
    } checks[] = {
        {"gemv", check_gemv, LIMIT, false},
        {"gemv invariance", check_gemv_invariance, LIMIT, false},
        {"skinny_gemm", check_skinny_gemm, LIMIT, false},
        {"skinny_gemm invariance", check_skinny_gemm_invariance, LIMIT, false},
        {"norm", check_norm, LIMIT, false},
        {"elementwise", check_elementwise, LIMIT, false},
        {"qkv rope cache", check_qkv_rope, LIMIT, false},
        {"attention decode", check_decode, 1, true},
        {"attention decode, repeated", check_decode_repeats, 1, true},
        {"attention prefill", check_prefill, 1, true},
        {"router of few tokens", check_router, LIMIT, true},
        {"experts", check_experts, LIMIT, true},
        {"sample", check_sample, LIMIT, false},
        {"sample logprobs", check_logprobs, LIMIT, false},
    };
    int num_failed = 0;
    for (size_t i = 0; i < 2 * sizeof(checks) / sizeof(checks[0]); i++) {
        launch.is_f16 = i % 2;
        if ((launch.is_f16 && !checks[i / 2].has_f16) ||
            strncmp(checks[i / 2].name, prefix, strlen(prefix)) != 0)
            continue;
        double error = checks[i / 2].run(&launch);
        CUDA_CHECK(cudaDeviceSynchronize());
        CUDA_CHECK(cudaGetLastError());
        bool is_ok = error <= checks[i / 2].limit;
        num_failed += !is_ok;
        printf("%s %-30s %s worst error %.2e\n", is_ok ? "PASS" : "FAIL", checks[i / 2].name,
               launch.is_f16 ? "f16 " : "bf16", error);
        fflush(stdout);
    }
    return num_failed > 0;
}
