// Checks of what touches the KV cache. The pool is NaN wherever no token was written, so a kernel
// that lets stale memory through fails.
#pragma once

#include "harness.cuh"

enum { MAX_CHECK_SEQS = 640 };

/** A random paged cache: what is stored, and the values it stands for. */
struct check_cache {
    struct cuda_kv_cache cache;
    int num_seqs, max_blocks;
    int32_t seq_lens[MAX_CHECK_SEQS];
    int32_t *block_table, *device_table, *device_lens;
    float *k, *v; // host: [seq][token][head][dim], tokens padded to max_blocks * block_size
};

static inline size_t cache_row(const struct check_cache *c, int seq, int token, int head)
{
    return (((size_t)seq * c->max_blocks * c->cache.block_size + token) * c->cache.num_kv_heads +
            head) *
           c->cache.head_dim;
}

static inline struct check_cache make_cache(const struct cuda_launch *launch, int head_dim,
                                            int num_kv_heads, int block_size, bool is_fp8,
                                            int num_seqs, const int32_t *seq_lens, uint64_t *seed)
{
    struct check_cache c = {};
    int longest = 1;
    c.num_seqs = num_seqs;
    for (int s = 0; s < num_seqs; s++) {
        c.seq_lens[s] = seq_lens[s];
        longest = seq_lens[s] > longest ? seq_lens[s] : longest;
    }
    c.max_blocks = (longest + block_size - 1) / block_size + 1;
    c.cache.num_blocks = num_seqs * c.max_blocks + 3;
    c.cache.num_kv_heads = num_kv_heads;
    c.cache.block_size = block_size;
    c.cache.head_dim = head_dim;
    c.cache.is_fp8 = is_fp8;
    c.cache.k_scale = is_fp8 ? 0.03f : 1.0f;
    c.cache.v_scale = is_fp8 ? 0.02f : 1.0f;
    // Blocks in a scrambled order; entries past a sequence's end point outside the pool.
    int table_size = num_seqs * c.max_blocks;
    c.block_table = (int32_t *)malloc((size_t)table_size * 4);
    for (int i = 0; i < table_size; i++)
        c.block_table[i] = i + 1;
    for (int i = table_size - 1; i > 0; i--) {
        int j = (int)(random_word(seed) % (uint64_t)(i + 1));
        int32_t swap = c.block_table[i];
        c.block_table[i] = c.block_table[j];
        c.block_table[j] = swap;
    }
    size_t element = is_fp8 ? 1 : 2;
    size_t pool_size = (size_t)c.cache.num_blocks * num_kv_heads * block_size * head_dim * element;
    uint8_t *pool[2];
    float **host[2] = {&c.k, &c.v};
    for (int i = 0; i < 2; i++) {
        pool[i] = (uint8_t *)malloc(pool_size);
        memset(pool[i], 0xff, pool_size);
        *host[i] = (float *)calloc(cache_row(&c, num_seqs, 0, 0), sizeof(float));
        float scale = i == 0 ? c.cache.k_scale : c.cache.v_scale;
        for (int s = 0; s < num_seqs; s++) {
            for (int t = 0; t < seq_lens[s]; t++) {
                int block = c.block_table[s * c.max_blocks + t / block_size];
                for (int h = 0; h < num_kv_heads; h++) {
                    size_t at = (((size_t)block * num_kv_heads + h) * block_size + t % block_size) *
                                head_dim;
                    float *to = *host[i] + cache_row(&c, s, t, h);
                    for (int d = 0; d < head_dim; d++) {
                        float x = random_normal(seed);
                        if (is_fp8) {
                            __nv_fp8_e4m3 stored(x / scale);
                            memcpy(pool[i] + at + d, &stored, 1);
                            to[d] = (float)stored * scale;
                        } else {
                            store_element(pool[i], at + d, x, launch->is_f16);
                            to[d] = element_value(pool[i], at + d, launch->is_f16);
                        }
                    }
                }
            }
        }
    }
    c.cache.k = device_copy_of(pool[0], pool_size);
    c.cache.v = device_copy_of(pool[1], pool_size);
    free(pool[0]);
    free(pool[1]);
    for (int s = 0; s < num_seqs; s++) {
        for (int b = (seq_lens[s] + block_size - 1) / block_size; b < c.max_blocks; b++)
            c.block_table[s * c.max_blocks + b] = 0x3fffffff;
    }
    c.device_table = (int32_t *)device_copy_of(c.block_table, (size_t)table_size * 4);
    c.device_lens = (int32_t *)device_copy_of(seq_lens, (size_t)num_seqs * 4);
    return c;
}

static inline void free_cache(struct check_cache *c)
{
    cudaFree(c->cache.k);
    cudaFree(c->cache.v);
    cudaFree(c->device_table);
    cudaFree(c->device_lens);
    free(c->block_table);
    free(c->k);
    free(c->v);
}

/** One query's output: softmax over the keys it sees. */
static inline void attend(const struct check_cache *c, int seq, int position, int kv_head,
                          const float *q, float scale, int window, double *out)
{
    int head_dim = c->cache.head_dim;
    int first = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
    double *p = (double *)malloc((size_t)(position + 1) * sizeof(*p)), best = -INFINITY, sum = 0;
    for (int t = first; t <= position; t++) {
        const float *k = c->k + cache_row(c, seq, t, kv_head);
        p[t] = 0;
        for (int d = 0; d < head_dim; d++)
            p[t] += (double)q[d] * k[d];
        p[t] *= scale;
        best = fmax(best, p[t]);
    }
    for (int d = 0; d < head_dim; d++)
        out[d] = 0;
    for (int t = first; t <= position; t++) {
        const float *v = c->v + cache_row(c, seq, t, kv_head);
        p[t] = exp(p[t] - best);
        sum += p[t];
        for (int d = 0; d < head_dim; d++)
            out[d] += p[t] * v[d];
    }
    for (int d = 0; d < head_dim; d++)
        out[d] /= sum;
    free(p);
}

struct attention_case {
    int head_dim, num_heads, num_kv_heads, block_size, window;
    bool is_fp8;
};

static const struct attention_case attention_cases[] = {
    {128, 8, 2, 16, 0, false},  {128, 4, 2, 16, 0, false},  {128, 8, 2, 16, 100, false},
    {128, 8, 1, 32, 0, true},   {64, 7, 1, 16, 0, false},   {64, 4, 4, 48, 0, true},
    {64, 8, 2, 16, 37, true},   {32, 6, 2, 16, 0, false},   {32, 6, 2, 16, 0, true},
    {96, 6, 2, 16, 0, false},   {96, 6, 3, 16, 64, true},   {256, 4, 1, 16, 0, false},
    {256, 4, 2, 16, 50, true},  {128, 20, 1, 16, 0, false}, {64, 40, 1, 16, 0, true},
    {128, 16, 8, 16, 0, false}, {128, 16, 2, 16, 0, true},  {96, 20, 2, 32, 0, false},
    {128, 9, 9, 16, 0, false},
};
enum { NUM_ATTENTION_CASES = sizeof(attention_cases) / sizeof(attention_cases[0]) };

/** Error that a result of the launch's type may have: of bfloat16 a rounding is 1e-3, of float16
 *  1.4e-4, rounded weights are as much again. */
static inline double error_limit(const struct cuda_launch *launch)
{
    return launch->is_f16 ? 1e-3 : 6e-3;
}

/** Adds one output row to the sums of squares; rows never written are NaN and stay so. */
static inline void add_error(const void *got, size_t first, const double *want, int n, bool is_f16,
                             double *diff, double *norm)
{
    for (int i = 0; i < n; i++) {
        double d = (double)element_value(got, first + (size_t)i, is_f16) - want[i];
        *diff += d * d;
        *norm += want[i] * want[i];
    }
}

struct decode_run {
    struct attention_decode_args args;
    int num_seqs;
};

static inline struct decode_run run_decode(const struct cuda_launch *launch,
                                           const struct check_cache *cache,
                                           const struct attention_case *c, int num_seqs,
                                           const int32_t *device_lens, const void *q)
{
    struct decode_run run = {};
    int width = c->num_heads * c->head_dim;
    run.num_seqs = num_seqs;
    run.args.out = device_poisoned((size_t)num_seqs * width * 2);
    run.args.q = q;
    run.args.q_stride = width + 8;
    run.args.num_heads = c->num_heads;
    run.args.max_blocks = cache->max_blocks;
    run.args.block_table = cache->device_table;
    run.args.scale = 0.5f / sqrtf((float)c->head_dim);
    run.args.cache = cache->cache;
    struct attention_decode_plan *plan = &run.args.plan;
    plan->max_seqs = num_seqs;
    plan->num_ctas = attention_decode_num_ctas(launch->num_sms, c->num_kv_heads, c->num_heads);
    plan->memory =
        (int32_t *)device_poisoned(attention_decode_plan_bytes(num_seqs, plan->num_ctas));
    run.args.scratch =
        device_zeroed(attention_decode_scratch_bytes(plan, c->num_heads, c->head_dim));
    attention_decode_plan_build(launch, plan, device_lens, num_seqs, c->window);
    for (int i = 0; i < 2; i++) // the second finds the counters as the first left them
        attention_decode(launch, &run.args);
    CUDA_CHECK(cudaDeviceSynchronize());
    return run;
}

static inline void free_decode(struct decode_run *run)
{
    cudaFree(run->args.out);
    cudaFree(run->args.plan.memory);
    cudaFree(run->args.scratch);
}

static const int32_t decode_lens[] = {1, 0, 15, 16, 17, 300, 1000, 64, 2049, 33};
enum { NUM_DECODE_SEQS = sizeof(decode_lens) / sizeof(decode_lens[0]) };

/** The worst error, in limits. */
static inline double check_decode(const struct cuda_launch *launch)
{
    uint64_t seed = 5;
    double worst = 0;
    for (int i = 0; i < NUM_ATTENTION_CASES; i++) {
        const struct attention_case *c = &attention_cases[i];
        int width = c->num_heads * c->head_dim, group = c->num_heads / c->num_kv_heads;
        struct check_cache cache = make_cache(launch, c->head_dim, c->num_kv_heads, c->block_size,
                                              c->is_fp8, NUM_DECODE_SEQS, decode_lens, &seed);
        struct element_array q =
            random_elements(launch, (size_t)NUM_DECODE_SEQS * (width + 8), 2, &seed);
        struct decode_run run =
            run_decode(launch, &cache, c, NUM_DECODE_SEQS, cache.device_lens, q.device);
        uint16_t *got = (uint16_t *)malloc((size_t)NUM_DECODE_SEQS * width * 2);
        copy_back(got, run.args.out, (size_t)NUM_DECODE_SEQS * width * 2);
        double diff = 0, norm = 0, limit = error_limit(launch), want[256];
        for (int s = 0; s < NUM_DECODE_SEQS; s++) {
            for (int h = 0; h < c->num_heads && decode_lens[s] > 0; h++) {
                attend(&cache, s, decode_lens[s] - 1, h / group,
                       q.host + (size_t)s * (width + 8) + h * c->head_dim, run.args.scale,
                       c->window, want);
                double before = diff;
                add_error(got, (size_t)s * width + h * c->head_dim, want, c->head_dim,
                          launch->is_f16, &diff, &norm);
                if (!(diff - before < 1e-3 * c->head_dim) && !isnan(before))
                    printf("  decode case %d: sequence %d, head %d is far off\n", i, s, h);
            }
        }
        double error = sqrt(diff / norm);
        if (!(error < limit))
            printf("  decode case %d (head %d, fp8 %d): error %.2e\n", i, c->head_dim, c->is_fp8,
                   error);
        worst = worse_of(worst, error / limit);
        free(got);
        free_decode(&run);
        free_elements(q);
        free_cache(&cache);
    }
    return worst;
}

/** Many sequences to a CTA, of few pages and many: the same bits from every launch. */
static inline double check_decode_repeats(const struct cuda_launch *launch)
{
    static const struct attention_case cases[] = {
        {128, 4, 1, 16, 0, false}, {128, 8, 1, 16, 0, true}, {256, 4, 1, 16, 60, false}};
    enum { NUM = 640 };
    uint64_t seed = 6;
    double worst = 0;
    int32_t lens[NUM];
    for (int s = 0; s < NUM; s++)
        lens[s] = (int32_t)(random_word(&seed) % (s % 3 == 0 ? 200 : 20));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct attention_case *c = &cases[i];
        int width = c->num_heads * c->head_dim;
        size_t size = (size_t)NUM * width * 2;
        struct check_cache cache = make_cache(launch, c->head_dim, c->num_kv_heads, c->block_size,
                                              c->is_fp8, NUM, lens, &seed);
        struct element_array q = random_elements(launch, (size_t)NUM * (width + 8), 2, &seed);
        struct decode_run run = run_decode(launch, &cache, c, NUM, cache.device_lens, q.device);
        uint16_t *first = (uint16_t *)malloc(size), *got = (uint16_t *)malloc(size);
        copy_back(first, run.args.out, size);
        for (int repeat = 0; repeat < 20; repeat++) {
            run.args.plan.is_settled = repeat % 2;
            for (int j = 0; j < 3; j++)
                attention_decode(launch, &run.args);
            CUDA_CHECK(cudaDeviceSynchronize());
            copy_back(got, run.args.out, size);
            if (memcmp(first, got, size) != 0)
                worst = INFINITY;
        }
        double diff = 0, norm = 0, want[256];
        for (int s = 0; s < NUM; s++) {
            int h = s % c->num_heads;
            if (lens[s] == 0)
                continue;
            attend(&cache, s, lens[s] - 1, h * c->num_kv_heads / c->num_heads,
                   q.host + (size_t)s * (width + 8) + h * c->head_dim, run.args.scale, c->window,
                   want);
            add_error(first, (size_t)s * width + h * c->head_dim, want, c->head_dim, launch->is_f16,
                      &diff, &norm);
        }
        double error = sqrt(diff / norm);
        if (!(error < error_limit(launch)) || isinf(worst))
            printf("  many sequences, case %zu: error %.2e, repeats differ: %d\n", i, error,
                   isinf(worst) != 0);
        worst = worse_of(worst, error / error_limit(launch));
        free(first);
        free(got);
        free_decode(&run);
        free_elements(q);
        free_cache(&cache);
    }
    return worst;
}

static inline double check_prefill(const struct cuda_launch *launch)
{
    static const int32_t query_lens[] = {1, 0, 37, 128, 300, 1, 65};
    static const int32_t seq_lens[] = {500, 0, 37, 141, 400, 1, 700};
    enum { NUM = 7 };
    int32_t start[NUM + 1] = {0};
    for (int s = 0; s < NUM; s++)
        start[s + 1] = start[s] + query_lens[s];
    uint64_t seed = 7;
    double worst = 0;
    for (int i = 0; i < NUM_ATTENTION_CASES; i++) {
        const struct attention_case *c = &attention_cases[i];
        int width = c->num_heads * c->head_dim, group = c->num_heads / c->num_kv_heads;
        int num_tokens = start[NUM];
        struct check_cache cache = make_cache(launch, c->head_dim, c->num_kv_heads, c->block_size,
                                              c->is_fp8, NUM, seq_lens, &seed);
        struct element_array q =
            random_elements(launch, (size_t)num_tokens * (width + 8), 2, &seed);
        struct attention_prefill_args args = {};
        args.out = device_poisoned((size_t)num_tokens * width * 2);
        args.q = q.device;
        args.q_stride = width + 8;
        args.num_heads = c->num_heads;
        args.num_seqs = NUM;
        args.num_tokens = num_tokens;
        args.max_blocks = cache.max_blocks;
        int32_t *device_start = (int32_t *)device_copy_of(start, sizeof(start));
        args.query_start = device_start;
        args.seq_lens = cache.device_lens;
        args.block_table = cache.device_table;
        args.scale = 0.5f / sqrtf((float)c->head_dim);
        args.window = c->window;
        args.cache = cache.cache;
        attention_prefill(launch, &args);
        CUDA_CHECK(cudaDeviceSynchronize());
        uint16_t *got = (uint16_t *)malloc((size_t)num_tokens * width * 2);
        copy_back(got, args.out, (size_t)num_tokens * width * 2);
        double diff = 0, norm = 0, limit = error_limit(launch), want[256];
        for (int s = 0; s < NUM; s++) {
            for (int j = 0; j < query_lens[s]; j++) {
                size_t row = (size_t)(start[s] + j);
                int h = (int)(row % (size_t)c->num_heads); // every token, one head of each
                attend(&cache, s, seq_lens[s] - query_lens[s] + j, h / group,
                       q.host + row * (width + 8) + h * c->head_dim, args.scale, c->window, want);
                double before = diff;
                add_error(got, row * width + h * c->head_dim, want, c->head_dim, launch->is_f16,
                          &diff, &norm);
                if (!(diff - before < 1e-3 * c->head_dim) && !isnan(before))
                    printf("  prefill case %d: sequence %d, query %d, head %d is far off\n", i, s,
                           j, h);
            }
        }
        double error = sqrt(diff / norm);
        if (!(error < limit))
            printf("  prefill case %d (head %d, fp8 %d): error %.2e\n", i, c->head_dim, c->is_fp8,
                   error);
        worst = worse_of(worst, error / limit);
        free(got);
        cudaFree(args.out);
        cudaFree(device_start);
        free_elements(q);
        free_cache(&cache);
    }
    return worst;
}

static inline double check_qkv_rope(const struct cuda_launch *launch)
{
    static const struct {
        int head_dim, num_heads, num_kv_heads, rot_dim;
        bool has_norm, is_fp8;
    } cases[] = {{128, 8, 2, 128, true, false}, {64, 4, 4, 64, false, false},
                 {96, 6, 2, 96, true, false},   {128, 4, 1, 64, true, true},
                 {256, 2, 1, 256, false, true}, {32, 3, 1, 32, true, false}};
    enum { TOKENS = 21, BLOCK = 16, BLOCKS = 5, POSITIONS = 200 };
    uint64_t seed = 8;
    double worst = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int dim = cases[i].head_dim, heads = cases[i].num_heads, kv = cases[i].num_kv_heads;
        int rot = cases[i].rot_dim, all = heads + 2 * kv, stride = all * dim + 8;
        struct bf16_array x = random_bf16((size_t)TOKENS * stride, 1, &seed);
        struct bf16_array w[2] = {random_bf16((size_t)dim, 1, &seed),
                                  random_bf16((size_t)dim, 1, &seed)};
        float *cos_sin = (float *)malloc((size_t)POSITIONS * rot * 4);
        for (int p = 0; p < POSITIONS; p++) {
            for (int j = 0; j < rot / 2; j++) {
                double angle = p * pow(10000, -2.0 * j / rot);
                cos_sin[p * rot + j] = (float)cos(angle);
                cos_sin[p * rot + rot / 2 + j] = (float)sin(angle);
            }
        }
        int32_t positions[TOKENS];
        int64_t slots[TOKENS];
        for (int t = 0; t < TOKENS; t++) {
            positions[t] = (int32_t)(random_word(&seed) % POSITIONS);
            slots[t] = t == 3 ? -1 : (t * 3) % (BLOCK * BLOCKS);
        }
        struct qkv_rope_args args = {};
        args.qkv = x.device;
        args.stride = stride;
        args.q_norm = cases[i].has_norm ? w[0].device : NULL;
        args.k_norm = cases[i].has_norm ? w[1].device : NULL;
        args.norm_eps = 1e-6f;
        void *device_cos_sin = device_copy_of(cos_sin, (size_t)POSITIONS * rot * 4);
        void *device_positions = device_copy_of(positions, sizeof(positions));
        void *device_slots = device_copy_of(slots, sizeof(slots));
        args.cos_sin = (const float *)device_cos_sin;
        args.rot_dim = rot;
        args.positions = (const int32_t *)device_positions;
        args.slot_mapping = (const int64_t *)device_slots;
        args.num_tokens = TOKENS;
        args.num_heads = heads;
        size_t pool_size = (size_t)BLOCKS * kv * BLOCK * dim * 2;
        args.cache = {device_poisoned(pool_size),
                      device_poisoned(pool_size),
                      cases[i].is_fp8,
                      0.03f,
                      0.02f,
                      BLOCKS,
                      kv,
                      BLOCK,
                      dim};
        qkv_rope_cache(launch, &args);
        CUDA_CHECK(cudaDeviceSynchronize());
        __nv_bfloat16 *got = (__nv_bfloat16 *)malloc((size_t)TOKENS * stride * 2);
        uint8_t *pools[2] = {(uint8_t *)malloc(pool_size), (uint8_t *)malloc(pool_size)};
        copy_back(got, x.device, (size_t)TOKENS * stride * 2);
        copy_back(pools[0], args.cache.k, pool_size);
        copy_back(pools[1], args.cache.v, pool_size);
        double diff = 0, norm = 0, want[256], before[256], diff_fp8 = 0, norm_fp8 = 0;
        for (int t = 0; t < TOKENS; t++) {
            for (int h = 0; h < all; h++) {
                const float *src = x.host + (size_t)t * stride + h * dim;
                bool is_value = h >= heads + kv, is_query = h < heads;
                double squares = 0;
                for (int d = 0; d < dim; d++)
                    squares += (double)src[d] * src[d];
                for (int d = 0; d < dim; d++)
                    before[d] = is_value || !cases[i].has_norm
                                    ? src[d]
                                    : src[d] / sqrt(squares / dim + 1e-6) * w[!is_query].host[d];
                for (int d = 0; d < dim; d++) {
                    const float *cs = cos_sin + positions[t] * rot;
                    int half = rot / 2, pair = d % half;
                    want[d] = is_value || d >= rot ? before[d]
                              : d < half
                                  ? before[d] * cs[pair] - before[d + half] * cs[half + pair]
                                  : before[d] * cs[pair] + before[d - half] * cs[half + pair];
                }
                if (is_query) {
                    add_error(got, (size_t)t * stride + h * dim, want, dim, false, &diff, &norm);
                    continue;
                }
                if (slots[t] < 0)
                    continue;
                const uint8_t *pool = pools[is_value];
                size_t row = ((size_t)(slots[t] / BLOCK) * kv + (size_t)(h - heads) % kv) * BLOCK +
                             (size_t)(slots[t] % BLOCK);
                if (!cases[i].is_fp8) {
                    add_error(pool, row * dim, want, dim, false, &diff, &norm);
                    continue;
                }
                for (int d = 0; d < dim; d++) {
                    __nv_fp8_e4m3 stored;
                    memcpy(&stored, pool + row * dim + d, 1);
                    double value = (double)(float)stored * (is_value ? 0.02f : 0.03f);
                    diff_fp8 += pow(value - want[d], 2);
                    norm_fp8 += want[d] * want[d];
                }
            }
        }
        double error = sqrt(diff / norm);
        if (cases[i].is_fp8 && !(sqrt(diff_fp8 / norm_fp8) < 0.04)) // 3 bits of mantissa
            error = 1;
        if (!(error < 6e-3))
            printf("  qkv case %zu: error %.2e, fp8 %.2e\n", i, error, sqrt(diff_fp8 / norm_fp8));
        worst = worse_of(worst, error);
        free(got);
        free(pools[0]);
        free(pools[1]);
        free(cos_sin);
        cudaFree(args.cache.k);
        cudaFree(args.cache.v);
        cudaFree(device_cos_sin);
        cudaFree(device_positions);
        cudaFree(device_slots);
        free_bf16(x);
        free_bf16(w[0]);
        free_bf16(w[1]);
    }
    return worst;
}
