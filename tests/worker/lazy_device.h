// A device with memory of its own, for tests on machines without a GPU: the CPU's operations, each
// done only when the host waits for it, in order. What the runner overwrites too early, or reads
// too early, therefore shows. It takes the place of the GPU by having its names.
#pragma once

#include <math.h>

#include "worker/sampler.h"
#include "worker/step_driver.h"

enum { MAX_LAZY = 1 << 15 };

/** An operation to be done; unused fields are zero. */
struct lazy_op {
    enum {
        LAZY_COPY,
        LAZY_COPY_ROWS,
        LAZY_EMBEDDING,
        LAZY_RMS_NORM,
        LAZY_ADD_RMS_NORM,
        LAZY_MATMUL,
        LAZY_QKV,
        LAZY_ATTENTION,
        LAZY_SILU,
        LAZY_GATHER,
        LAZY_TAKE,
        LAZY_SAMPLE,
        LAZY_LOGPROBS,
    } kind;
    struct tensor a, b;
    void *dst;
    const void *src, *extra;
    size_t bytes, num_rows, dst_pitch, src_pitch;
    float scale;
    struct norm_params norm;
    struct weight weight;
    struct kv_cache cache;
    struct qkv_params qkv;
    struct attention_batch batch;
    struct attention_params attention;
    struct sampled_logprobs logprobs;
};

struct lazy_recording {
    struct lazy_op *ops;
    int32_t num;
};

static struct {
    struct device cpu;
    struct lazy_op ops[MAX_LAZY];
    int32_t num_ops;
    int32_t recording_from;   // -1: none
    int32_t marks[MAX_MARKS]; // how many operations stand before each
    int64_t num_waits, num_replays, num_uploads;
} lazy = {.recording_from = -1};

static struct lazy_op *lazy_add(int kind)
{
    assert_true(lazy.num_ops < MAX_LAZY);
    struct lazy_op *op = &lazy.ops[lazy.num_ops++];
    *op = (struct lazy_op){0};
    op->kind = kind;
    return op;
}

// ---- drawing, by the host's sampler ----------------------------------------------------------

/** The request that a row of parameters stands for. */
static struct sampling_params lazy_params(const struct sample_params *p, int32_t *bad_words)
{
    struct sampling_params params = {
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .presence_penalty = p->presence_penalty,
        .frequency_penalty = p->frequency_penalty,
        .repetition_penalty = p->repetition_penalty,
        .seed = p->seed,
        .eos_token_id = -1,
        .num_logit_bias = p->num_logit_bias,
        .logit_bias = p->logit_bias,
        .num_allowed_token_ids = p->num_allowed,
        .allowed_token_ids = p->allowed,
        .num_logprobs = -1,
        .bad_words = bad_words,
    };
    bool forbids = p->num_tokens - p->num_prompt_tokens < p->min_tokens;
    for (int32_t i = 0; forbids && i < p->num_forbidden; i++) {
        bad_words[params.num_bad_word_ints++] = 1;
        bad_words[params.num_bad_word_ints++] = p->forbidden[i];
    }
    return params;
}

static void lazy_mask(float *logits, int32_t vocab_size, const uint32_t *mask)
{
    for (int32_t id = 0; mask && id < vocab_size; id++) {
        if (!(mask[id / 32] >> id % 32 & 1) && logits[id] < INFINITY)
            logits[id] = -INFINITY;
    }
}

static void lazy_sample(const struct lazy_op *op)
{
    const struct sample_params *params = op->extra;
    int32_t *ids = op->dst, vocab_size = (int32_t)op->a.shape[1];
    struct arena arena = {0};
    for (int64_t i = 0; i < op->a.shape[0]; i++) {
        const struct sample_params *p = &params[i];
        float *logits = arena_array(&arena, float, vocab_size);
        memcpy(logits, (float *)op->a.data + i * op->a.row_stride,
               (size_t)vocab_size * sizeof(*logits));
        lazy_mask(logits, vocab_size, p->mask);
        int32_t *words = arena_array(&arena, int32_t, 2 * (size_t)p->num_forbidden + 1);
        struct sampling_params as = lazy_params(p, words);
        int32_t *history = arena_calloc(&arena, (size_t)p->num_tokens + 1, sizeof(*history));
        int32_t num_listed = p->token_ids ? p->num_tokens - (p->last_token != NULL) : 0;
        if (num_listed > 0)
            memcpy(history, p->token_ids, (size_t)num_listed * sizeof(*history));
        if (p->last_token)
            history[num_listed] = *p->last_token;
        const struct sampler_history past = {history, p->num_prompt_tokens, p->num_tokens, NULL};
        struct token_logprobs unused;
        ids[i] = sampler_sample(logits, vocab_size, &as, &past, &unused, &arena);
    }
    arena_deinit(&arena);
}

static void lazy_logprobs(const struct lazy_op *op)
{
    enum { ENTRIES = 1 + MAX_DEVICE_LOGPROBS };
    const struct sample_params *params = op->extra;
    const int32_t *ids = op->src;
    int32_t vocab_size = (int32_t)op->a.shape[1];
    struct arena arena = {0};
    for (int64_t i = 0; i < op->a.shape[0]; i++) {
        if (params[i].num_logprobs < 0 || ids[i] < 0)
            continue;
        float *logits = arena_array(&arena, float, vocab_size);
        memcpy(logits, (float *)op->a.data + i * op->a.row_stride,
               (size_t)vocab_size * sizeof(*logits));
        lazy_mask(logits, vocab_size, params[i].mask);
        struct token_logprobs got;
        sampler_logprobs(logits, vocab_size, ids[i], params[i].num_logprobs, &got, &arena);
        for (int32_t k = 0; k < got.num_entries; k++) {
            op->logprobs.token_ids[i * ENTRIES + k] = got.token_ids[k];
            op->logprobs.logprobs[i * ENTRIES + k] = got.logprobs[k];
        }
        op->logprobs.ranks[i] = got.rank;
    }
    arena_deinit(&arena);
}

// ---- doing what was put off ------------------------------------------------------------------

/** Sequences that are padding have no tokens, which the CPU's attention never sees. */
static void lazy_do_attention(const struct lazy_op *op)
{
    struct attention_batch batch = op->batch;
    struct tensor out = op->a, q = op->b;
    int32_t num_real = 0;
    while (num_real < batch.num_seqs && batch.seq_lens[num_real] > 0)
        num_real++;
    batch.num_seqs = num_real;
    batch.num_tokens = batch.query_start[num_real];
    out.shape[0] = q.shape[0] = batch.num_tokens;
    if (num_real > 0)
        lazy.cpu.ops.attention(&lazy.cpu, out, q, &op->cache, &batch, &op->attention);
}

static void lazy_do(const struct lazy_op *op)
{
    struct device *cpu = &lazy.cpu;
    switch (op->kind) {
    case LAZY_COPY:
        memcpy(op->dst, op->src, op->bytes);
        return;
    case LAZY_COPY_ROWS:
        for (size_t i = 0; i < op->num_rows; i++)
            memcpy((char *)op->dst + i * op->dst_pitch, (const char *)op->src + i * op->src_pitch,
                   op->bytes);
        return;
    case LAZY_EMBEDDING:
        cpu->ops.embedding(cpu, op->a, op->b, op->src, op->scale);
        return;
    case LAZY_RMS_NORM:
        cpu->ops.rms_norm(cpu, op->a, op->b, op->norm);
        return;
    case LAZY_ADD_RMS_NORM:
        cpu->ops.add_rms_norm(cpu, op->a, op->b, op->norm);
        return;
    case LAZY_MATMUL:
        cpu->ops.matmul(cpu, op->a, op->b, &op->weight);
        return;
    case LAZY_QKV:
        cpu->ops.prepare_qkv(cpu, op->a, &op->cache, &op->qkv, op->src, op->extra);
        return;
    case LAZY_ATTENTION:
        lazy_do_attention(op);
        return;
    case LAZY_SILU:
        cpu->ops.silu_and_mul(cpu, op->a, op->b);
        return;
    case LAZY_GATHER:
        cpu->ops.gather_rows(cpu, op->a, op->b, op->src);
        return;
    case LAZY_TAKE: {
        const int32_t *indices = op->src, *drawn = op->extra;
        for (size_t i = 0; i < op->num_rows; i++) {
            if (indices[i] >= 0)
                ((int32_t *)op->dst)[i] = max_i32(drawn[indices[i]], 0);
        }
        return;
    }
    case LAZY_SAMPLE:
        lazy_sample(op);
        return;
    case LAZY_LOGPROBS:
        lazy_logprobs(op);
    }
    arena_reset(&cpu->scratch);
}

/** Does the first `count` operations. */
static void lazy_catch_up(int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        lazy_do(&lazy.ops[i]);
    lazy.num_ops -= count;
    memmove(lazy.ops, lazy.ops + count, (size_t)lazy.num_ops * sizeof(*lazy.ops));
    for (int32_t m = 0; m < MAX_MARKS; m++)
        lazy.marks[m] = max_i32(lazy.marks[m] - count, 0);
}

// ---- the table -------------------------------------------------------------------------------

static void *lazy_alloc(struct device *dev, size_t size_bytes)
{
    (void)dev;
    char *memory = lazy.cpu.ops.alloc(&lazy.cpu, size_bytes);
    memset(memory, 0x5a, size_bytes); // what nobody wrote is no sensible number
    return memory;
}

static void lazy_free(struct device *dev, void *memory)
{
    (void)dev;
    lazy.cpu.ops.free(&lazy.cpu, memory);
}

static void lazy_copy_now(struct device *dev, void *dst, const void *src, size_t size_bytes)
{
    (void)dev;
    lazy_catch_up(lazy.num_ops);
    memcpy(dst, src, size_bytes);
}

static void lazy_copy(struct device *dev, void *dst, const void *src, size_t size_bytes)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_COPY);
    op->dst = dst;
    op->src = src;
    op->bytes = size_bytes;
}

static void lazy_upload(struct device *dev, void *dst, const void *src, size_t size_bytes)
{
    lazy.num_uploads++;
    lazy_copy(dev, dst, src, size_bytes);
}

static void lazy_copy_rows(struct device *dev, void *dst, size_t dst_pitch, const void *src,
                           size_t src_pitch, size_t row_bytes, size_t num_rows)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_COPY_ROWS);
    op->dst = dst;
    op->dst_pitch = dst_pitch;
    op->src = src;
    op->src_pitch = src_pitch;
    op->bytes = row_bytes;
    op->num_rows = num_rows;
}

static enum status lazy_synchronize(struct device *dev, struct error *err)
{
    (void)dev;
    (void)err;
    lazy_catch_up(lazy.num_ops);
    return STATUS_OK;
}

static void lazy_set_mark(struct device *dev, int32_t mark)
{
    (void)dev;
    lazy.marks[mark] = lazy.num_ops;
}

static enum status lazy_wait_mark(struct device *dev, int32_t mark, struct error *err)
{
    (void)dev;
    (void)err;
    lazy.num_waits++;
    lazy_catch_up(lazy.marks[mark]);
    return STATUS_OK;
}

static bool lazy_passed_mark(struct device *dev, int32_t mark)
{
    (void)dev;
    return lazy.marks[mark] == 0; // what is done makes room
}

static void lazy_memory_info(struct device *dev, int64_t *total_bytes, int64_t *free_bytes)
{
    (void)dev;
    *total_bytes = *free_bytes = INT64_C(4) << 30;
}

static size_t lazy_own_bytes(const struct device *dev, const struct backend_needs *needs)
{
    (void)dev;
    (void)needs;
    return 0;
}

static size_t lazy_prepared_bytes(const struct device *dev, const struct weight *w)
{
    (void)dev;
    return lazy.cpu.ops.prepared_weight_bytes(&lazy.cpu, w);
}

static enum status lazy_prepare(struct device *dev, struct weight *w, struct error *err)
{
    (void)dev;
    return lazy.cpu.ops.prepare_weight(&lazy.cpu, w, err);
}

static void lazy_embedding(struct device *dev, struct tensor out, struct tensor table,
                           const int32_t *ids, float scale)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_EMBEDDING);
    op->scale = scale;
    op->a = out;
    op->b = table;
    op->src = ids;
}

static void lazy_rms_norm(struct device *dev, struct tensor out, struct tensor x,
                          struct norm_params norm)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_RMS_NORM);
    op->a = out;
    op->b = x;
    op->norm = norm;
}

static void lazy_add_rms_norm(struct device *dev, struct tensor x, struct tensor residual,
                              struct norm_params norm)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_ADD_RMS_NORM);
    op->a = x;
    op->b = residual;
    op->norm = norm;
}

static void lazy_matmul(struct device *dev, struct tensor out, struct tensor x,
                        const struct weight *w)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_MATMUL);
    op->a = out;
    op->b = x;
    op->weight = *w;
}

static bool lazy_fuses_matmul(const struct device *dev, int64_t rows, const struct weight *w,
                              const struct matmul_fusion *fusion)
{
    (void)dev, (void)rows, (void)w, (void)fusion;
    return false;
}

static void lazy_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                     const struct qkv_params *params, const int32_t *positions,
                     const int64_t *slots)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_QKV);
    op->a = qkv;
    op->cache = *cache;
    op->qkv = *params;
    op->src = positions;
    op->extra = slots;
}

static void lazy_attention(struct device *dev, struct tensor out, struct tensor q,
                           const struct kv_cache *cache, const struct attention_batch *batch,
                           const struct attention_params *params)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_ATTENTION);
    op->a = out;
    op->b = q;
    op->cache = *cache;
    op->batch = *batch;
    op->attention = *params;
}

static void lazy_silu(struct device *dev, struct tensor out, struct tensor gate_up)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_SILU);
    op->a = out;
    op->b = gate_up;
}

static void lazy_gather(struct device *dev, struct tensor out, struct tensor x, const int32_t *rows)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_GATHER);
    op->a = out;
    op->b = x;
    op->src = rows;
}

static void lazy_take_tokens(struct device *dev, int32_t *token_ids, const int32_t *indices,
                             const int32_t *drawn, int32_t num_tokens)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_TAKE);
    op->dst = token_ids;
    op->src = indices;
    op->extra = drawn;
    op->num_rows = (size_t)num_tokens;
}

static void lazy_add_sample(struct device *dev, int32_t *ids, struct tensor logits,
                            const struct sample_params *params)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_SAMPLE);
    op->dst = ids;
    op->a = logits;
    op->extra = params;
}

static void lazy_add_logprobs(struct device *dev, const struct sampled_logprobs *out,
                              const int32_t *ids, struct tensor logits,
                              const struct sample_params *params)
{
    (void)dev;
    struct lazy_op *op = lazy_add(LAZY_LOGPROBS);
    op->logprobs = *out;
    op->src = ids;
    op->a = logits;
    op->extra = params;
}

static void lazy_record_begin(struct device *dev)
{
    (void)dev;
    lazy.recording_from = lazy.num_ops;
}

static void *lazy_record_end(struct device *dev)
{
    (void)dev;
    struct lazy_recording *recording = xcalloc(1, sizeof(*recording));
    recording->num = lazy.num_ops - lazy.recording_from;
    recording->ops = xcalloc((size_t)recording->num, sizeof(*recording->ops));
    memcpy(recording->ops, lazy.ops + lazy.recording_from,
           (size_t)recording->num * sizeof(*recording->ops));
    lazy.num_ops = lazy.recording_from;
    return recording;
}

static void lazy_replay(struct device *dev, void *memory)
{
    (void)dev;
    const struct lazy_recording *recording = memory;
    lazy.num_replays++;
    for (int32_t i = 0; i < recording->num; i++)
        *lazy_add(0) = recording->ops[i];
}

static void lazy_free_recording(struct device *dev, void *memory)
{
    (void)dev;
    struct lazy_recording *recording = memory;
    free(recording->ops);
    free(recording);
}

static void lazy_close(struct device *dev)
{
    (void)dev;
    device_deinit(&lazy.cpu);
    lazy.num_ops = 0;
}

bool cuda_is_available(void)
{
    return true;
}

void cuda_device_init_planned(struct device *dev, int32_t num_threads)
{
    struct error err = {0};
    assert_int_equal(cuda_device_init(dev, num_threads, &err), STATUS_OK);
}

enum status cuda_device_init(struct device *dev, int32_t num_threads, struct error *err)
{
    if (!lazy.cpu.ops.name && cpu_device_init(&lazy.cpu, CPU_ISA_AUTO, num_threads, err))
        return STATUS_UNSUPPORTED;
    *dev = lazy.cpu;
    dev->kind = DEVICE_CUDA;
    dev->has_host_memory = false;
    dev->scratch = (struct arena){0};
    dev->max_sampled_vocab = 1 << 20;
    dev->ops = (struct ops){
        .name = "lazy",
        .close = lazy_close,
        .own_bytes = lazy_own_bytes,
        .alloc = lazy_alloc,
        .free = lazy_free,
        .copy_in = lazy_copy_now,
        .copy_out = lazy_copy_now,
        .alloc_staging = lazy_alloc,
        .free_staging = lazy_free,
        .upload = lazy_upload,
        .download = lazy_copy,
        .copy_rows = lazy_copy_rows,
        .set_mark = lazy_set_mark,
        .wait_mark = lazy_wait_mark,
        .passed_mark = lazy_passed_mark,
        .synchronize = lazy_synchronize,
        .memory_info = lazy_memory_info,
        .prepared_weight_bytes = lazy_prepared_bytes,
        .prepare_weight = lazy_prepare,
        .embedding = lazy_embedding,
        .rms_norm = lazy_rms_norm,
        .add_rms_norm = lazy_add_rms_norm,
        .matmul = lazy_matmul,
        .fuses_matmul = lazy_fuses_matmul,
        .prepare_qkv = lazy_qkv,
        .attention = lazy_attention,
        .silu_and_mul = lazy_silu,
        .gather_rows = lazy_gather,
        .take_tokens = lazy_take_tokens,
        .sample = lazy_add_sample,
        .sample_logprobs = lazy_add_logprobs,
        .record_begin = lazy_record_begin,
        .record_end = lazy_record_end,
        .replay = lazy_replay,
        .free_recording = lazy_free_recording,
    };
    return STATUS_OK;
}
