// Times every kernel. Launches are captured in a graph over rotating buffers larger than the L2,
// the graph is replayed, and the median counts. Ratios are to ceilings measured in the same run:
// reading and copying memory, and cuBLASLt for products.
#include "bench_products.cuh"
#include "ceiling_kernels.cuh"
#include "timing.cuh"

#include "bench_experts.cuh"

// ---- Ceilings ------------------------------------------------------------------------------

static void launch_read(struct bench *b, void *context, int turn)
{
    (void)context, (void)turn;
    read_kernel<<<132 * 16, 512, 0, b->launch.stream>>>(
        (const uint4 *)b->pool, ((size_t)WEIGHT_POOL_MB << 20) / 16, (uint32_t *)b->workspace);
}

static void launch_copy(struct bench *b, void *context, int turn)
{
    (void)context, (void)turn;
    size_t half = (size_t)WEIGHT_POOL_MB << 19;
    copy_kernel<<<132 * 16, 512, 0, b->launch.stream>>>((uint4 *)(b->pool + half),
                                                        (const uint4 *)b->pool, half / 16);
}

// ---- Attention -----------------------------------------------------------------------------

struct attention_bench {
    struct attention_decode_args decode;
    struct attention_prefill_args prefill;
    size_t cache_bytes; // of k, and of v
    int num_layers;     // distinct caches to rotate over
};

static void rotate_cache(struct bench *b, struct attention_bench *a, struct cuda_kv_cache *cache,
                         int turn)
{
    cache->k = b->pool + (size_t)(turn % a->num_layers) * 2 * a->cache_bytes;
    cache->v = (char *)cache->k + a->cache_bytes;
}

static void launch_decode(struct bench *b, void *context, int turn)
{
    struct attention_bench *a = (struct attention_bench *)context;
    rotate_cache(b, a, &a->decode.cache, turn);
    attention_decode(&b->launch, &a->decode);
}

static void launch_prefill(struct bench *b, void *context, int turn)
{
    struct attention_bench *a = (struct attention_bench *)context;
    rotate_cache(b, a, &a->prefill.cache, turn);
    attention_prefill(&b->launch, &a->prefill);
}

/** A batch of num_seqs alike: context tokens cached, the last num_queries of them new. */
static struct attention_bench make_attention(struct bench *b, int num_heads, int num_kv_heads,
                                             int head_dim, bool is_fp8, int num_seqs, int context,
                                             int num_queries)
{
    struct attention_bench a = {};
    int width = (num_heads + 2 * num_kv_heads) * head_dim, max_blocks = (context + 15) / 16;
    struct cuda_kv_cache cache = {};
    cache.is_fp8 = is_fp8;
    cache.k_scale = cache.v_scale = 1;
    cache.num_blocks = num_seqs * max_blocks;
    cache.num_kv_heads = num_kv_heads;
    cache.block_size = 16;
    cache.head_dim = head_dim;
    a.cache_bytes = (size_t)cache.num_blocks * num_kv_heads * 16 * head_dim * (is_fp8 ? 1 : 2);
    a.num_layers = (int)(((size_t)WEIGHT_POOL_MB << 20) / (2 * a.cache_bytes));
    if (a.num_layers == 0) {
        fprintf(stderr, "the cache of this batch does not fit the pool\n");
        exit(1);
    }
    int32_t *table = (int32_t *)malloc((size_t)cache.num_blocks * 4);
    uint64_t seed = 11;
    for (int i = 0; i < cache.num_blocks; i++)
        table[i] = i;
    for (int i = cache.num_blocks - 1; i > 0; i--) {
        int j = (int)(random_word(&seed) % (uint64_t)(i + 1));
        int32_t swap = table[i];
        table[i] = table[j];
        table[j] = swap;
    }
    int32_t *lens = (int32_t *)malloc((size_t)num_seqs * 4);
    int32_t *start = (int32_t *)malloc((size_t)(num_seqs + 1) * 4);
    for (int i = 0; i <= num_seqs; i++) {
        start[i] = i * num_queries;
        if (i < num_seqs)
            lens[i] = context;
    }
    const int32_t *device_table = (int32_t *)device_copy_of(table, (size_t)cache.num_blocks * 4);
    const int32_t *device_lens = (int32_t *)device_copy_of(lens, (size_t)num_seqs * 4);
    const int32_t *device_start = (int32_t *)device_copy_of(start, (size_t)(num_seqs + 1) * 4);
    size_t rows = (size_t)num_seqs * num_queries;
    void *q = device_alloc(rows * width * 2), *out = device_alloc(rows * num_heads * head_dim * 2);
    CUDA_CHECK(cudaMemcpy(q, b->pool, rows * width * 2, cudaMemcpyDeviceToDevice));

    a.decode.out = a.prefill.out = out;
    a.decode.q = a.prefill.q = q;
    a.decode.q_stride = a.prefill.q_stride = width;
    a.decode.num_heads = a.prefill.num_heads = num_heads;
    a.decode.max_blocks = a.prefill.max_blocks = max_blocks;
    a.decode.block_table = a.prefill.block_table = device_table;
    a.decode.scale = a.prefill.scale = 0.088f;
    a.decode.cache = a.prefill.cache = cache;
    a.prefill.num_seqs = num_seqs;
    a.prefill.num_tokens = (int32_t)rows;
    a.prefill.query_start = device_start;
    a.prefill.seq_lens = device_lens;
    struct attention_decode_plan *plan = &a.decode.plan;
    plan->max_seqs = num_seqs;
    plan->num_ctas = attention_decode_num_ctas(b->launch.num_sms, num_kv_heads, num_heads);
    plan->memory = (int32_t *)device_zeroed(attention_decode_plan_bytes(num_seqs, plan->num_ctas));
    a.decode.scratch = device_zeroed(attention_decode_scratch_bytes(plan, num_heads, head_dim));
    attention_decode_plan_build(&b->launch, plan, device_lens, num_seqs, 0);
    rotate_cache(b, &a, &a.decode.cache, 0);
    rotate_cache(b, &a, &a.prefill.cache, 0);
    free(table);
    free(lens);
    free(start);
    return a;
}

static void free_attention(struct attention_bench *a)
{
    cudaFree((void *)a->decode.q);
    cudaFree(a->decode.out);
    cudaFree((void *)a->decode.block_table);
    cudaFree((void *)a->prefill.seq_lens);
    cudaFree((void *)a->prefill.query_start);
    cudaFree(a->decode.plan.memory);
    cudaFree(a->decode.scratch);
}

static void bench_attention(struct bench *b)
{
    static const struct {
        const char *name;
        int heads, kv_heads, dim, seqs, context;
        bool is_fp8;
    } decodes[] = {
        {"8B batch 1, 1k", 32, 8, 128, 1, 1024, false},
        {"8B batch 8, 1k", 32, 8, 128, 8, 1024, false},
        {"8B batch 16, 1k", 32, 8, 128, 16, 1024, false},
        {"8B batch 32, 1k", 32, 8, 128, 32, 1024, false},
        {"8B batch 64, 1k", 32, 8, 128, 64, 1024, false},
        {"8B batch 64, 1k, fp8", 32, 8, 128, 64, 1024, true},
        {"8B batch 256, 1k", 32, 8, 128, 256, 1024, false},
        {"8B batch 256, 1k, fp8", 32, 8, 128, 256, 1024, true},
        {"8B batch 512, 1k", 32, 8, 128, 512, 1024, false},
        {"8B batch 1, 32k", 32, 8, 128, 1, 32768, false},
        {"0.6B batch 1, 1k", 16, 8, 128, 1, 1024, false},
        {"0.6B batch 64, 1k", 16, 8, 128, 64, 1024, false},
        {"0.6B batch 256, 1k", 16, 8, 128, 256, 1024, false},
        {"30B-A3B batch 64, 1k", 32, 4, 128, 64, 1024, false},
        {"head 64 batch 64, 1k", 32, 8, 64, 64, 1024, false},
        {"gemma 1B batch 1, 1k", 4, 1, 256, 1, 1024, false},
        {"gemma 1B batch 256, 1k", 4, 1, 256, 256, 1024, false},
    };
    printf("\ndecode attention: us, share of read ceiling; the same as a layer in the middle of a "
           "step\n");
    for (size_t i = 0; i < sizeof(decodes) / sizeof(decodes[0]); i++) {
        struct attention_bench a =
            make_attention(b, decodes[i].heads, decodes[i].kv_heads, decodes[i].dim,
                           decodes[i].is_fp8, decodes[i].seqs, decodes[i].context, 1);
        double bytes = 2.0 * (double)a.cache_bytes;
        printf("%-32s", decodes[i].name);
        for (int settled = 0; settled < 2; settled++) {
            a.decode.plan.is_settled = settled;
            double seconds = time_launches(b, launch_decode, &a, 36);
            printf(" %8.2f %4.0f%%", seconds * 1e6, 100 * bytes / seconds / b->read_rate);
        }
        printf("\n");
        free_attention(&a);
    }
    static const struct {
        const char *name;
        int heads, kv_heads, dim, seqs, context, queries;
        bool is_fp8;
    } prefills[] = {
        {"8B one prompt of 8k", 32, 8, 128, 1, 8192, 8192, false},
        {"8B 8 prompts of 1k", 32, 8, 128, 8, 1024, 1024, false},
        {"8B chunk of 2k after 14k", 32, 8, 128, 1, 16384, 2048, false},
        {"8B one prompt of 8k, fp8", 32, 8, 128, 1, 8192, 8192, true},
        {"head 64 one prompt of 8k", 32, 8, 64, 1, 8192, 8192, false},
        {"head 256 one prompt of 8k", 16, 8, 256, 1, 8192, 8192, false},
        {"8B 64 decode rows at 1k", 32, 8, 128, 64, 1024, 1, false},
    };
    printf("\nprefill attention: us, TFLOP/s\n");
    for (size_t i = 0; i < sizeof(prefills) / sizeof(prefills[0]); i++) {
        int queries = prefills[i].queries, context = prefills[i].context;
        struct attention_bench a =
            make_attention(b, prefills[i].heads, prefills[i].kv_heads, prefills[i].dim,
                           prefills[i].is_fp8, prefills[i].seqs, context, queries);
        double seconds = time_launches(b, launch_prefill, &a, 6);
        double pairs = (double)queries * (context - queries) + 0.5 * queries * (queries + 1.0);
        double operations = 4.0 * prefills[i].heads * prefills[i].dim * pairs * prefills[i].seqs;
        printf("%-32s %8.2f %6.0f\n", prefills[i].name, seconds * 1e6, operations / seconds / 1e12);
        free_attention(&a);
    }
}

// ---- Small kernels and sampling ------------------------------------------------------------

struct small {
    int rows, n;
    char *residual, *out;
    struct qkv_rope_args rope;
};

static void launch_add_norm(struct bench *b, void *context, int turn)
{
    struct small *s = (struct small *)context;
    size_t size = (size_t)s->rows * s->n * 2, at = (size_t)turn % (((size_t)1 << 30) / size) * size;
    cuda_add_rms_norm(&b->launch, s->out + at, b->pool + at, s->residual + at, {b->pool, 1e-6f, 0},
                      s->rows, s->n);
}

static void launch_act(struct bench *b, void *context, int turn)
{
    struct small *s = (struct small *)context;
    size_t size = (size_t)s->rows * s->n * 2, at = (size_t)turn % (((size_t)1 << 29) / size) * size;
    cuda_act_and_mul(&b->launch, s->out + at, b->pool + 2 * at, CUDA_ACTIVATION_SILU, s->rows,
                     s->n);
}

static void launch_rope(struct bench *b, void *context, int turn)
{
    (void)turn;
    qkv_rope_cache(&b->launch, &((struct small *)context)->rope);
}

static void bench_small(struct bench *b)
{
    static const int rows[] = {1, 64, 8192};
    struct small s = {};
    s.residual = (char *)device_zeroed((size_t)1 << 30);
    s.out = (char *)device_alloc((size_t)1 << 30);
    printf("\nsmall kernels: us, share of copy ceiling\n%-28s %16s %16s %16s\n", "", "rows 1",
           "rows 64", "rows 8192");
    for (int kind = 0; kind < 3; kind++) {
        static const char *const names[] = {"add_rms_norm 4096", "silu_and_mul 12288",
                                            "qkv_rope_cache 32+8+8 x 128"};
        printf("%-28s", names[kind]);
        for (int r = 0; r < 3; r++) {
            double seconds, bytes;
            s.rows = rows[r];
            if (kind == 0) {
                s.n = 4096;
                seconds = time_launches(b, launch_add_norm, &s, 24);
                bytes = 8.0 * s.rows * s.n;
            } else if (kind == 1) {
                s.n = 12288;
                seconds = time_launches(b, launch_act, &s, 24);
                bytes = 6.0 * s.rows * s.n;
            } else {
                int32_t *positions = (int32_t *)malloc((size_t)s.rows * 4);
                int64_t *slots = (int64_t *)malloc((size_t)s.rows * 8);
                for (int i = 0; i < s.rows; i++)
                    slots[i] = positions[i] = i;
                s.rope.qkv = s.out;
                s.rope.stride = 48 * 128;
                s.rope.q_norm = s.rope.k_norm = b->pool;
                s.rope.norm_eps = 1e-6f;
                s.rope.cos_sin = (const float *)b->pool;
                s.rope.rot_dim = 128;
                s.rope.positions = (int32_t *)device_copy_of(positions, (size_t)s.rows * 4);
                s.rope.slot_mapping = (int64_t *)device_copy_of(slots, (size_t)s.rows * 8);
                s.rope.num_tokens = s.rows;
                s.rope.num_heads = 32;
                s.rope.cache = {s.residual, s.residual + (1 << 28), false, 1, 1, 1024, 8, 16, 128};
                seconds = time_launches(b, launch_rope, &s, 24);
                bytes = s.rows * 128 * 2.0 * 2 * 48;
                cudaFree((void *)s.rope.positions);
                cudaFree((void *)s.rope.slot_mapping);
                free(positions);
                free(slots);
            }
            printf(" %10.2f %4.0f%%", seconds * 1e6, 100 * bytes / seconds / b->copy_rate);
        }
        printf("\n");
    }
    cudaFree(s.residual);
    cudaFree(s.out);
}

struct sampling {
    float *logits; // two batches
    struct cuda_sampling_row *rows;
    int32_t *tokens, *ids, *ranks;
    float *logprobs;
    int num_rows;
};

enum { VOCAB = 151936 };

static void launch_sample(struct bench *b, void *context, int turn)
{
    struct sampling *s = (struct sampling *)context;
    cuda_sample(&b->launch, s->tokens, s->logits + (size_t)(turn % 4) * s->num_rows * VOCAB, VOCAB,
                s->rows, s->num_rows, VOCAB);
}

static void launch_logprobs(struct bench *b, void *context, int turn)
{
    struct sampling *s = (struct sampling *)context;
    cuda_sample_logprobs(&b->launch, s->ids, s->logprobs, s->ranks, s->tokens,
                         s->logits + (size_t)(turn % 4) * s->num_rows * VOCAB, VOCAB, s->rows,
                         s->num_rows, VOCAB);
}

static void bench_sampling(struct bench *b)
{
    enum { MAX_ROWS = 256 };
    static const struct {
        const char *name;
        float temperature, top_p;
        int top_k, num_logprobs;
        bool penalties;
    } kinds[] = {{"greedy", 0, 1, 0, -1, false},
                 {"temperature", 1, 1, 0, -1, false},
                 {"top-k 50, top-p 0.9", 1, 0.9f, 50, -1, false},
                 {"top-p 0.9", 1, 0.9f, 0, -1, false},
                 {"top-p 0.9, penalties", 1, 0.9f, 0, -1, true},
                 {"logprobs 20", 0, 1, 0, 20, false}};
    static const int batches[] = {1, 8, 64, 256};
    struct sampling s = {};
    size_t total = (size_t)4 * MAX_ROWS * VOCAB;
    s.logits = (float *)device_alloc(total * 4);
    float *host = (float *)malloc(VOCAB * 4);
    uint64_t seed = 12;
    for (int i = 0; i < 4 * MAX_ROWS; i++) {
        if (i < 4) { // logits of a model: a wide body and a few that stand out
            for (int j = 0; j < VOCAB; j++)
                host[j] = 2 * random_normal(&seed);
            for (int j = 0; j < 100; j++)
                host[random_word(&seed) % VOCAB] = 14 - 0.15f * (float)j;
        }
        CUDA_CHECK(cudaMemcpy(s.logits + (size_t)i * VOCAB,
                              i < 4 ? (void *)host : (void *)(s.logits + (size_t)(i % 4) * VOCAB),
                              VOCAB * 4, cudaMemcpyDefault));
    }
    s.tokens = (int32_t *)device_zeroed(MAX_ROWS * 4);
    s.ids = (int32_t *)device_zeroed(MAX_ROWS * 21 * 4);
    s.ranks = (int32_t *)device_zeroed(MAX_ROWS * 4);
    s.logprobs = (float *)device_zeroed(MAX_ROWS * 21 * 4);
    int32_t history[1024];
    for (int i = 0; i < 1024; i++)
        history[i] = (int32_t)(random_word(&seed) % VOCAB);
    int32_t *device_history = (int32_t *)device_copy_of(history, sizeof(history));
    printf("\nsampling of 151936 logits: us\n%-28s", "");
    for (int i = 0; i < 4; i++)
        printf(" %8s%-3d", "rows ", batches[i]);
    printf("\n");
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        static struct cuda_sampling_row rows[MAX_ROWS];
        for (int i = 0; i < MAX_ROWS; i++) {
            struct cuda_sampling_row *r = &rows[i];
            memset(r, 0, sizeof(*r));
            r->temperature = kinds[k].temperature;
            r->top_p = kinds[k].top_p;
            r->top_k = kinds[k].top_k;
            r->repetition_penalty = kinds[k].penalties ? 1.1f : 1.0f;
            r->seed = random_word(&seed);
            r->num_logprobs = kinds[k].num_logprobs;
            r->num_tokens = 1024;
            r->num_prompt_tokens = 900;
            r->token_ids = device_history;
        }
        s.rows = (struct cuda_sampling_row *)device_copy_of(rows, sizeof(rows));
        printf("%-28s", kinds[k].name);
        for (int i = 0; i < 4; i++) {
            s.num_rows = batches[i];
            double seconds = time_launches(
                b, kinds[k].num_logprobs >= 0 ? launch_logprobs : launch_sample, &s, 16);
            printf(" %11.2f", seconds * 1e6);
        }
        printf("\n");
        cudaFree(s.rows);
    }
    free(host);
    cudaFree(s.logits);
}

// ---- A decode step at batch 1 --------------------------------------------------------------

struct step {
    int num_layers, hidden, heads, kv_heads, inter;
    struct attention_bench attention;
    char *x, *qkv, *act, *logits;
    struct qkv_rope_args rope;
    struct sampling sampling;
};

/** Takes the next `n` by `k` weight from the pool, starting over at its end. */
static const void *next_weight(struct bench *b, size_t *at, int n, int k)
{
    size_t size = (size_t)n * k * 2;
    if (*at + size > (size_t)WEIGHT_POOL_MB << 20)
        *at = 0;
    *at += size;
    return b->pool + *at - size;
}

static void launch_step(struct bench *b, void *context, int turn)
{
    struct step *s = (struct step *)context;
    size_t at = (size_t)turn * 64 << 20;
    int width = (s->heads + 2 * s->kv_heads) * 128;
    for (int layer = 0; layer < s->num_layers; layer++) {
        struct gemv_args g = {};
        g.num_rows = 1;
        g.norm_eps = 1e-6f;
        g.out = s->qkv;
        g.x = s->x;
        g.norm_weight = b->pool;
        g.n = width;
        g.k = s->hidden;
        g.weight = next_weight(b, &at, g.n, g.k);
        g.x_stride = g.k;
        gemv(&b->launch, &g);
        qkv_rope_cache(&b->launch, &s->rope);
        launch_decode(b, &s->attention, layer);
        g.out = s->x;
        g.residual = s->x;
        g.x = s->attention.decode.out;
        g.norm_weight = NULL;
        g.n = s->hidden;
        g.k = s->heads * 128;
        g.x_stride = g.k;
        g.weight = next_weight(b, &at, g.n, g.k);
        gemv(&b->launch, &g);
        g.out = s->act;
        g.residual = NULL;
        g.x = s->x;
        g.norm_weight = b->pool;
        g.n = 2 * s->inter;
        g.k = s->hidden;
        g.x_stride = g.k;
        g.is_swiglu = true;
        g.weight = next_weight(b, &at, g.n, g.k);
        gemv(&b->launch, &g);
        g.out = s->x;
        g.residual = s->x;
        g.x = s->act;
        g.norm_weight = NULL;
        g.n = s->hidden;
        g.k = s->inter;
        g.x_stride = g.k;
        g.is_swiglu = false;
        g.weight = next_weight(b, &at, g.n, g.k);
        gemv(&b->launch, &g);
    }
    struct gemv_args head = {};
    head.num_rows = 1;
    head.norm_eps = 1e-6f;
    head.out = s->logits;
    head.x = s->x;
    head.norm_weight = b->pool;
    head.n = VOCAB;
    head.k = s->hidden;
    head.x_stride = head.k;
    head.out_is_f32 = true;
    head.weight = next_weight(b, &at, head.n, head.k);
    gemv(&b->launch, &head);
    cuda_sample(&b->launch, s->sampling.tokens, (const float *)s->logits, VOCAB, s->sampling.rows,
                1, VOCAB);
}

static void bench_step(struct bench *b, const char *name, int num_layers, int hidden, int heads,
                       int inter, double bytes)
{
    struct step s = {};
    s.num_layers = num_layers;
    s.hidden = hidden;
    s.heads = heads;
    s.kv_heads = 8;
    s.inter = inter;
    s.attention = make_attention(b, heads, 8, 128, false, 1, 1024, 1);
    s.x = (char *)device_zeroed(1 << 20);
    s.qkv = (char *)device_zeroed(1 << 20);
    s.act = (char *)device_zeroed(1 << 20);
    s.logits = (char *)device_zeroed(VOCAB * 4);
    s.attention.decode.q = s.qkv;
    int32_t zero[4] = {0};
    struct cuda_sampling_row row = {};
    row.repetition_penalty = 1;
    s.sampling.rows = (struct cuda_sampling_row *)device_copy_of(&row, sizeof(row));
    s.sampling.tokens = (int32_t *)device_zeroed(4);
    s.rope.qkv = s.qkv;
    s.rope.stride = (heads + 16) * 128;
    s.rope.q_norm = s.rope.k_norm = b->pool;
    s.rope.norm_eps = 1e-6f;
    s.rope.cos_sin = (const float *)b->pool;
    s.rope.rot_dim = 128;
    s.rope.positions = (int32_t *)device_copy_of(zero, 16);
    s.rope.slot_mapping = (int64_t *)device_copy_of(zero, 16);
    s.rope.num_tokens = 1;
    s.rope.num_heads = heads;
    s.rope.cache = {device_zeroed(1 << 22), device_zeroed(1 << 22), false, 1, 1, 1, 8, 16, 128};
    double seconds = time_launches(b, launch_step, &s, 1);
    printf("%-12s batch 1, 1k context: %7.3f ms a step, %6.1f tok/s, %3.0f%% of read ceiling\n",
           name, seconds * 1e3, 1 / seconds, 100 * bytes / seconds / b->read_rate);
    free_attention(&s.attention);
}

int main(void)
{
    struct bench b = {};
    struct cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    CUDA_CHECK(cudaStreamCreate(&b.launch.stream));
    b.launch.num_sms = properties.multiProcessorCount;
    CUDA_CHECK(cudaEventCreate(&b.begin));
    CUDA_CHECK(cudaEventCreate(&b.end));
    if (cublasLtCreate(&b.cublas) != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "cublasLtCreate failed\n");
        return 1;
    }
    b.workspace = device_alloc(32 << 20);
    b.pool = (char *)device_alloc((size_t)WEIGHT_POOL_MB << 20);
    random_kernel<<<132 * 8, 512, 0, b.launch.stream>>>((uint32_t *)b.pool,
                                                        (size_t)WEIGHT_POOL_MB << 18);
    CUDA_CHECK(cudaStreamSynchronize(b.launch.stream));

    double bytes = (double)((size_t)WEIGHT_POOL_MB << 20);
    b.read_rate = bytes / time_launches(&b, launch_read, NULL, 2);
    b.copy_rate = bytes / time_launches(&b, launch_copy, NULL, 2);
    printf("%s, %d multiprocessors: read %.2f TB/s, copy %.2f TB/s\n", properties.name,
           b.launch.num_sms, b.read_rate / 1e12, b.copy_rate / 1e12);
    bench_attention(&b);
    bench_products(&b);
    bench_skinny_products(&b);
    bench_layers(&b);
    bench_small(&b);
    bench_experts(&b);
    bench_sampling(&b);
    printf("\nwhole steps\n");
    bench_step(&b, "Qwen3-0.6B", 28, 1024, 16, 3072, 1.19e9 + 0.117e9);
    bench_step(&b, "Qwen3-8B", 36, 4096, 32, 12288, 15.14e9 + 0.151e9);
    return 0;
}
