// How close the CPU operations come to the machine: matrix products of Qwen3-0.6B's shapes and
// attention, beside the streaming-read bandwidth and the fused multiply-add peak that the same
// number of threads reach in the same run. Each figure is the best of many short repeats.
//
//   ops_bench [threads] [isa]
#include <stdlib.h>
#include <string.h>

#include <omp.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"
#include "base/memory.h"
#include "ops/ops.h"

enum { MIB = 1024 * 1024, POOL_MIB = 1024, NUM_REPEATS = 40, MIN_NS = 5 * 1000 * 1000 };

/** A run's memory: larger than caches, so that each product reads weights that are not there. */
struct bench {
    struct device dev;
    char *pool;
    size_t pool_bytes, next;
    struct arena arena;
    double read_bytes_per_s, flop_per_s;
};

/** The best time of one call: what neighbours on the machine take is not ours to report. */
static double best_seconds(struct bench *b, void (*run)(struct bench *b, const void *what),
                           const void *what)
{
    double best = 0;
    run(b, what);
    for (int i = 0; i < NUM_REPEATS; i++) {
        int64_t start = clock_monotonic_ns(), now, calls = 0;
        do {
            run(b, what);
            calls++;
            now = clock_monotonic_ns();
        } while (now - start < MIN_NS);
        double seconds = (double)(now - start) * 1e-9 / (double)calls;
        if (i == 0 || seconds < best)
            best = seconds;
    }
    return best;
}

/** The next `bytes` of the pool, round and round. */
static void *take(struct bench *b, size_t bytes)
{
    if (b->next + bytes > b->pool_bytes)
        b->next = 0;
    void *ptr = b->pool + b->next;
    b->next += (bytes + 4095) / 4096 * 4096;
    return ptr;
}

// ---- Limits of the machine -----------------------------------------------------------------

static volatile float sink;

#if defined(__x86_64__)
__attribute__((target("avx2"))) static int64_t read_range(const char *from, const char *to)
{
    __m256i sums[4] = {0};
    for (; from < to; from += 128) {
        for (int i = 0; i < 4; i++)
            sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256((const void *)(from + i * 32)));
    }
    sums[0] =
        _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
    return _mm256_extract_epi64(sums[0], 0);
}

enum { FMA_ROUNDS = 1000 * 1000, FMA_CHAINS = 12 };

__attribute__((target("avx2,fma"))) static float multiply_add(void)
{
    __m256 sums[FMA_CHAINS];
    for (int i = 0; i < FMA_CHAINS; i++)
        sums[i] = _mm256_set1_ps((float)i);
    __m256 factor = _mm256_set1_ps(0.5f);
    for (int64_t round = 0; round < FMA_ROUNDS; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < FMA_CHAINS; i++)
            sums[i] = _mm256_fmadd_ps(sums[i], factor, factor);
    }
    for (int i = 1; i < FMA_CHAINS; i++)
        sums[0] = _mm256_add_ps(sums[0], sums[i]);
    return _mm256_cvtss_f32(sums[0]);
}

static double fma_flop(void)
{
    return 2.0 * 8 * FMA_CHAINS * FMA_ROUNDS;
}
#else
static int64_t read_range(const char *from, const char *to)
{
    int64_t sum = 0;
    for (; from < to; from += sizeof(int64_t))
        sum ^= *(const int64_t *)from;
    return sum;
}

static float multiply_add(void)
{
    float sums[16] = {0};
    for (int64_t round = 0; round < 1000 * 1000; round++) {
        for (int i = 0; i < 16; i++)
            sums[i] = sums[i] * 0.5f + 0.5f;
    }
    return sums[0] + sums[15];
}

static double fma_flop(void)
{
    return 2.0 * 16 * 1000 * 1000;
}
#endif

static void run_read(struct bench *b, const void *what)
{
    (void)what;
    int64_t sum = 0;
#pragma omp parallel num_threads(b->dev.num_threads) reduction(^ : sum)
    {
        size_t part = b->pool_bytes / (size_t)omp_get_num_threads() / 4096 * 4096;
        const char *from = b->pool + part * (size_t)omp_get_thread_num();
        sum ^= read_range(from, from + part);
    }
    sink = (float)sum;
}

static void run_multiply_add(struct bench *b, const void *what)
{
    (void)what;
    float sum = 0;
#pragma omp parallel num_threads(b->dev.num_threads) reduction(+ : sum)
    sum += multiply_add();
    sink = sum;
}

// ---- Operations ----------------------------------------------------------------------------

struct product {
    const char *name;
    int64_t out_features, in_features, max_rows;
    int64_t rows;
    float *x, *out;
};

static void run_matmul(struct bench *b, const void *what)
{
    const struct product *p = what;
    struct weight w = {.form = WEIGHT_BF16,
                       .out_features = p->out_features,
                       .in_features = p->in_features,
                       .data = take(b, (size_t)(p->out_features * p->in_features * 2))};
    op_matmul(&b->dev, tensor_2d(p->out, DTYPE_F32, p->rows, p->out_features),
              tensor_2d(p->x, DTYPE_F32, p->rows, p->in_features), &w);
}

static void bench_matmul(struct bench *b)
{
    static const struct product products[] = {
        {"qkv_proj", 4096, 1024, 256, 0, NULL, NULL},
        {"o_proj", 1024, 2048, 256, 0, NULL, NULL},
        {"gate_up_proj", 6144, 1024, 256, 0, NULL, NULL},
        {"down_proj", 1024, 3072, 256, 0, NULL, NULL},
        {"lm_head", 151936, 1024, 32, 0, NULL, NULL},
    };
    static const int64_t rows[] = {1, 4, 32, 256};
    printf("\n%-14s %14s %5s %10s %8s %8s %8s\n", "matmul (bf16)", "out x in", "rows", "GFLOP/s",
           "of peak", "GB/s", "of read");
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        double seconds = 0, flop = 0, bytes = 0;
        for (size_t i = 0; i < ARRAY_LEN(products); i++) {
            struct product p = products[i];
            if (rows[r] > p.max_rows)
                continue;
            p.rows = rows[r];
            p.x = arena_array(&b->arena, float, p.rows *p.in_features);
            p.out = arena_array(&b->arena, float, p.rows *p.out_features);
            for (int64_t j = 0; j < p.rows * p.in_features; j++)
                p.x[j] = (float)(j % 17) / 16 - 0.5f;
            double time = best_seconds(b, run_matmul, &p);
            double this_flop = 2.0 * (double)(p.rows * p.out_features * p.in_features);
            double this_bytes = 2.0 * (double)(p.out_features * p.in_features);
            printf("%-14s %7ld x %4ld %5ld %10.1f %7.0f%% %8.1f %7.0f%%\n", p.name,
                   (long)p.out_features, (long)p.in_features, (long)p.rows, this_flop / time * 1e-9,
                   100 * this_flop / time / b->flop_per_s, this_bytes / time * 1e-9,
                   100 * this_bytes / time / b->read_bytes_per_s);
            double weight = p.out_features > 100000 ? 1 : 28; // times per token of the model
            seconds += weight * time;
            flop += weight * this_flop;
            bytes += weight * this_bytes;
            arena_reset(&b->arena);
        }
        printf("%-14s %14s %5ld %10.1f %7.0f%% %8.1f %7.0f%%   %.1f tokens/s\n", "whole model", "",
               (long)rows[r], flop / seconds * 1e-9, 100 * flop / seconds / b->flop_per_s,
               bytes / seconds * 1e-9, 100 * bytes / seconds / b->read_bytes_per_s,
               (double)rows[r] / seconds);
    }
}

enum { NUM_HEADS = 16, NUM_KV_HEADS = 8, HEAD_DIM = 128, BLOCK_SIZE = 16 };

struct attention_run {
    int32_t query_len, context;
    float *q, *out;
    int32_t *block_table, *token_seq, *positions;
};

static void run_attention(struct bench *b, const void *what)
{
    const struct attention_run *r = what;
    int32_t query_start[] = {0, r->query_len}, seq_lens[] = {r->context};
    int32_t num_blocks = (int32_t)ceil_div(r->context, BLOCK_SIZE);
    size_t bytes = (size_t)num_blocks * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM * 2;
    struct kv_cache cache = {.k = take(b, bytes),
                             .v = take(b, bytes),
                             .dtype = DTYPE_BF16,
                             .num_blocks = num_blocks,
                             .block_size = BLOCK_SIZE,
                             .num_kv_heads = NUM_KV_HEADS,
                             .head_dim = HEAD_DIM};
    struct attention_batch batch = {.num_seqs = 1,
                                    .num_tokens = r->query_len,
                                    .query_start = query_start,
                                    .seq_lens = seq_lens,
                                    .block_table = r->block_table,
                                    .max_blocks = num_blocks,
                                    .token_seq = r->token_seq,
                                    .positions = r->positions,
                                    .max_query_len = r->query_len,
                                    .max_seq_len = r->context};
    struct attention_params params = {.scale = 0.088f, .num_heads = NUM_HEADS};
    const int64_t cols = NUM_HEADS * HEAD_DIM;
    op_attention(&b->dev, tensor_2d(r->out, DTYPE_F32, r->query_len, cols),
                 tensor_2d(r->q, DTYPE_F32, r->query_len, cols), &cache, &batch, &params);
}

static void bench_attention(struct bench *b)
{
    static const struct {
        int32_t query_len, context;
    } cases[] = {{1, 512}, {1, 4096}, {512, 512}, {512, 4096}};
    printf("\n%-14s %7s %7s %10s %8s %8s %8s\n", "attention", "queries", "context", "GFLOP/s",
           "of peak", "GB/s", "of read");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct attention_run r = {.query_len = cases[i].query_len, .context = cases[i].context};
        int64_t size = (int64_t)r.query_len * NUM_HEADS * HEAD_DIM;
        r.q = arena_calloc(&b->arena, (size_t)size, sizeof(float));
        r.out = arena_array(&b->arena, float, size);
        r.token_seq = arena_calloc(&b->arena, (size_t)r.query_len, sizeof(int32_t));
        r.positions = arena_array(&b->arena, int32_t, r.query_len);
        r.block_table = arena_array(&b->arena, int32_t, r.context);
        double num_pairs = 0;
        for (int32_t t = 0; t < r.query_len; t++) {
            r.positions[t] = r.context - r.query_len + t;
            num_pairs += r.positions[t] + 1;
        }
        for (int32_t j = 0; j < r.context; j++)
            r.block_table[j] = j;
        double time = best_seconds(b, run_attention, &r);
        double flop = 4.0 * num_pairs * NUM_HEADS * HEAD_DIM;
        double bytes = 4.0 * r.context * NUM_KV_HEADS * HEAD_DIM;
        printf("%-14s %7d %7d %10.1f %7.0f%% %8.1f %7.0f%%\n", "bf16 cache", r.query_len, r.context,
               flop / time * 1e-9, 100 * flop / time / b->flop_per_s, bytes / time * 1e-9,
               100 * bytes / time / b->read_bytes_per_s);
        arena_reset(&b->arena);
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.pool_bytes = (size_t)POOL_MIB * MIB};
    enum cpu_isa isa = CPU_ISA_AUTO;
    struct error err;
    if (argc > 2 && cpu_isa_parse(str_from(argv[2]), &isa) != STATUS_OK) {
        fprintf(stderr, "isa \"%s\": expected scalar, avx2 or auto\n", argv[2]);
        return 1;
    }
    if (cpu_device_init(&b.dev, isa, argc > 1 ? atoi(argv[1]) : 0, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    b.pool = b.dev.ops.alloc(&b.dev, b.pool_bytes);
    if (!b.pool) {
        fprintf(stderr, "no memory for a pool of %d MiB\n", POOL_MIB);
        return 1;
    }
    memset(b.pool, 0x3C, b.pool_bytes); // small numbers, as bf16 too
    b.read_bytes_per_s = (double)b.pool_bytes / best_seconds(&b, run_read, NULL);
    b.flop_per_s = fma_flop() * b.dev.num_threads / best_seconds(&b, run_multiply_add, NULL);
    printf("%s, %d threads: read %.1f GB/s, multiply-add %.1f GFLOP/s\n", b.dev.ops.name,
           b.dev.num_threads, b.read_bytes_per_s * 1e-9, b.flop_per_s * 1e-9);
    bench_matmul(&b);
    bench_attention(&b);
    b.dev.ops.free(&b.dev, b.pool);
    arena_deinit(&b.arena);
    device_deinit(&b.dev);
    return 0;
}
