// Steps of a whole model with made-up weights: decoding at several batch sizes, and prefill.
// Usage: model_bench MODEL_DIR [CONTEXT] [short] [fp8] [async] [quantization=METHOD]; `short`
// leaves out what is no target, `fp8` stores keys and values in 8 bits, `quantization=fp8` weights.
// VLLM_BATCH_INVARIANT=1 and EAGER=1 show what those cost.
//
// Decoding steps run one after the other, and then overlapping: one is submitted before the one
// before it is collected, as --async-scheduling does. That is so on GPUs; `async` asks for it on a
// CPU. The overlapping figures count where there are any.
//
// On a GPU its limits (reading, copying, products) are measured first, and figures stand beside
// them; elsewhere beside READ_GBS and TFLOPS of the environment. Where a figure is a target, the
// last table compares them.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "config/hf_config.h"
#include "config/options.h"
#include "worker/worker.h"
#ifdef HAS_CEILINGS
#include "cuda/ceilings.h"
#endif

enum { MAX_BATCH = 1024, PREFILL_CHUNK = 8192, MAX_RESULTS = 32 };

/** What is aimed at, by the model's folder: tokens per second at 1,024 tokens of context, or of
 *  prompts of 8k (batch 0). */
static const struct {
    const char *model;
    int32_t batch;
    bool is_fp8;
    double tokens_per_s;
} TARGETS[] = {
    {"qwen3-8b", 1, false, 235},       {"qwen3-8b", 64, false, 8600},
    {"qwen3-8b", 256, false, 14300},   {"qwen3-8b", 256, true, 19000},
    {"qwen3-8b", 0, false, 36000},     {"qwen3-0.6b", 1, false, 900},
    {"qwen3-0.6b", 256, false, 27000},
};

/** One line of the last table. */
struct result {
    int32_t batch; // 0: prefill
    double tokens_per_s, ceiling;
};

struct bench {
    struct serve_options options;
    struct model_config model;
    struct engine_config config;
    struct executor *executor;
    int32_t blocks_per_seq;
    int32_t *tokens;
    int32_t *blocks; // [MAX_BATCH, blocks_per_seq]
    struct sampling_params sampling;
    double read_bytes_per_s, flop_per_s;
    double experts_share; // of all experts, those that a token is sent to; 0: there are none
    int32_t num_results;
    struct result results[MAX_RESULTS];
};

static void die(const char *what, const struct error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->message);
    exit(1);
}

static double number_of(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text ? strtod(text, NULL) : otherwise;
}

/** Of a mixture of experts, the share that a token is sent to; 0 for a dense model. */
static double experts_share(const struct model_config *model, const struct engine_config *config)
{
    struct error err = {0};
    int32_t num_experts, top_k;
    if (config->weight_kind_bytes[WEIGHT_KIND_EXPERTS] == 0)
        return 0;
    if ((hf_config_get_int(model, "num_experts", &num_experts, &err) != STATUS_OK &&
         hf_config_get_int(model, "num_local_experts", &num_experts, &err) != STATUS_OK) ||
        hf_config_get_int(model, "num_experts_per_tok", &top_k, &err) != STATUS_OK)
        die("experts", &err);
    return (double)top_k / num_experts;
}

/** The machine's limits, or what the environment says they are; and the memory in use. */
static int64_t read_ceilings(struct bench *b)
{
    b->read_bytes_per_s = number_of("READ_GBS", 4060) * 1e9;
    b->flop_per_s = number_of("TFLOPS", 740) * 1e12;
#ifdef HAS_CEILINGS
    struct ceilings ceilings;
    const char *device = getenv("VLLM_TARGET_DEVICE");
    if ((device && strcmp(device, "cpu") == 0) || !ceilings_measure(&ceilings))
        return 0;
    printf("measured: reading %.2f TB/s, copying %.2f TB/s, products %.0f (bf16) and %.0f (fp8) "
           "TFLOP/s\n",
           ceilings.read * 1e-12, ceilings.copy * 1e-12, ceilings.bf16 * 1e-12,
           ceilings.fp8 * 1e-12);
    b->read_bytes_per_s = ceilings.read;
    if (ceilings.bf16 > 0)
        b->flop_per_s = ceilings.bf16;
    return ceilings_used_bytes();
#else
    return 0;
#endif
}

/** What the plan says beside what the GPU says. */
static void print_memory(const struct bench *b, int64_t used_before)
{
#ifdef HAS_CEILINGS
    const struct engine_config *config = &b->config;
    if (used_before == 0)
        return;
    int64_t cache = config->kv_cache.num_blocks * config->kv_cache.block_bytes;
    int64_t planned = config->weight_bytes + config->workspace_bytes + config->graph_bytes + cache;
    printf("memory: %.3f GB planned (weights %.3f, cache %.3f, workspace %.3f, graphs %.3f), %.3f "
           "GB in use\n",
           (double)planned * 1e-9, (double)config->weight_bytes * 1e-9, (double)cache * 1e-9,
           (double)config->workspace_bytes * 1e-9, (double)config->graph_bytes * 1e-9,
           (double)(ceilings_used_bytes() - used_before) * 1e-9);
#else
    (void)b;
    (void)used_before;
#endif
}

static void keep_result(struct bench *b, int32_t batch, double tokens_per_s, double ceiling)
{
    if (b->num_results < MAX_RESULTS)
        b->results[b->num_results++] = (struct result){batch, tokens_per_s, ceiling};
}

static void open_bench(struct bench *b, const char *dir, const char *dtype,
                       const char *quantization, int32_t context, bool is_fp8, bool is_async)
{
    struct error err = {0};
    *b = (struct bench){
        .options = {.model = dir,
                    .dtype = dtype,
                    .quantization = quantization,
                    .load_format = LOAD_FORMAT_DUMMY,
                    .skip_tokenizer_init = true,
                    .block_size = -1,
                    .gpu_memory_utilization = 0.92,
                    .kv_cache_memory_bytes = -1,
                    .kv_cache_dtype = is_fp8 ? "fp8" : "auto",
                    .num_gpu_blocks_override = -1,
                    .enable_prefix_caching = TRISTATE_UNSET,
                    .enable_chunked_prefill = TRISTATE_UNSET,
                    .async_scheduling = is_async ? TRISTATE_TRUE : TRISTATE_UNSET,
                    .max_num_batched_tokens = PREFILL_CHUNK,
                    .max_num_seqs = MAX_BATCH,
                    .max_model_len = context + 512,
                    .max_cudagraph_capture_size = -1,
                    .omp_threads_bind = "nobind",
                    .target_device = getenv("VLLM_TARGET_DEVICE"),
                    .cpu_isa = "auto"},
        .sampling = {.top_p = 1,
                     .repetition_penalty = 1,
                     .max_tokens = 1 << 20,
                     .eos_token_id = -1,
                     .num_logprobs = -1,
                     .num_prompt_logprobs = -1},
    };
    b->options.enforce_eager = getenv("EAGER") != NULL;
    const char *invariant = getenv("VLLM_BATCH_INVARIANT");
    b->options.batch_invariant = invariant && strcmp(invariant, "1") == 0;
    int64_t used_before = read_ceilings(b);
    if (model_config_load(&b->model, dir, "vllm", NULL, &err) != STATUS_OK ||
        engine_config_plan(&b->config, &b->options, &b->model, &err) != STATUS_OK)
        die(dir, &err);
    b->experts_share = experts_share(&b->model, &b->config);
    int64_t start_ns = clock_monotonic_ns();
    if (executor_create(&b->executor, &b->config, NULL, &err) != STATUS_OK)
        die(dir, &err);
    printf("%s: dtype %s, loaded in %.2f s, %.2f GB of weights, %d blocks, cache %s%s\n", dir,
           dtype, (double)(clock_monotonic_ns() - start_ns) / 1e9,
           (double)b->config.weight_bytes * 1e-9, b->config.kv_cache.num_blocks,
           b->options.kv_cache_dtype, b->options.batch_invariant ? ", batch-invariant" : "");
    print_memory(b, used_before);
    b->blocks_per_seq = (int32_t)ceil_div(b->config.max_model_len, b->config.kv_cache.block_size);
    int32_t num_tokens = b->config.max_model_len + 1 + MAX_BATCH; // every sequence's are its own
    b->tokens = xcalloc((size_t)num_tokens, sizeof(int32_t));
    for (int32_t i = 0; i < num_tokens; i++)
        b->tokens[i] = (int32_t)((uint32_t)i * 2654435761u >> 16) % b->model.vocab_size;
    b->blocks = xcalloc((size_t)MAX_BATCH * (size_t)b->blocks_per_seq, sizeof(int32_t));
}

/** Runs a step and waits for it. */
static double run(struct bench *b, const struct scheduler_output *step)
{
    struct error err = {0};
    struct model_runner_output result;
    int64_t start_ns = clock_monotonic_ns();
    executor_submit(b->executor, step);
    if (executor_collect(b->executor, &result, &err) != STATUS_OK)
        die("step", &err);
    return (double)(clock_monotonic_ns() - start_ns) / 1e9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/** What a decoding step refers to until it is collected. */
struct decode_step {
    struct scheduler_output output;
    struct scheduled_row rows[MAX_BATCH];
    int64_t submitted_ns;
};

enum { DECODE_STEPS = 60, DECODE_WARM_UP = 10 };

/** Layers of every group keep their keys and values in the same blocks: a block holds as many bytes
 *  of each group, and what is read is the same. */
static void give_blocks(const struct bench *b, struct scheduled_row *row, int32_t *blocks,
                        int32_t num_blocks)
{
    for (int32_t g = 0; g < b->config.kv_cache.num_groups; g++) {
        row->num_new_blocks[g] = num_blocks;
        row->new_blocks[g] = blocks;
    }
}

/** Bytes of weights that a step of `batch` tokens reads; of the experts those that at least one of
 *  the tokens is sent to, as if they chose independently. */
static double weight_bytes_read(const struct bench *b, int32_t batch)
{
    double embedding =
        b->model.tie_word_embeddings ? 0 : (double)b->model.vocab_size * b->model.hidden_size * 2;
    double experts = (double)b->config.weight_kind_bytes[WEIGHT_KIND_EXPERTS];
    double idle = b->experts_share > 0 ? pow(1 - b->experts_share, batch) : 0;
    return (double)b->config.weight_bytes - embedding - experts * idle;
}

/** Bytes of keys and values that a sequence of `context` tokens reads. */
static double cache_bytes_read(const struct bench *b, int32_t context)
{
    const struct kv_cache_config *cache = &b->config.kv_cache;
    double layer_token_bytes =
               (double)cache->block_bytes / cache->block_size / cache->layers_per_group,
           sum = 0;
    for (int32_t g = 0; g < cache->num_groups; g++) {
        const struct kv_cache_group *group = &cache->groups[g];
        int32_t num_tokens =
            group->kind == KV_CACHE_GROUP_SLIDING ? min_i32(group->window, context) : context;
        sum += layer_token_bytes * group->num_layers * num_tokens;
    }
    return sum;
}

/** Step `i` of `batch` sequences that begin with `context` computed tokens (their cache holds what
 *  it holds): one token of each. */
static void fill_decode_step(struct bench *b, struct decode_step *step, int32_t i, int32_t batch,
                             int32_t context)
{
    static struct scheduled_new_request requests[MAX_BATCH];
    int32_t num_blocks =
        (int32_t)ceil_div(context + DECODE_STEPS + 1, b->config.kv_cache.block_size);
    step->output = (struct scheduler_output){.step = i,
                                             .num_rows = batch,
                                             .rows = step->rows,
                                             .num_scheduled_tokens = batch,
                                             .num_new_requests = i == 0 ? batch : 0,
                                             .new_requests = requests};
    for (int32_t s = 0; s < batch; s++) {
        step->rows[s] = (struct scheduled_row){.row = s,
                                               .num_computed_tokens = context - 1 + i,
                                               .num_scheduled_tokens = 1,
                                               .samples = true};
        if (i > 0)
            continue;
        int32_t *blocks = b->blocks + s * b->blocks_per_seq;
        for (int32_t j = 0; j < num_blocks; j++)
            blocks[j] = j * batch + s;
        requests[s] = (struct scheduled_new_request){.row = s,
                                                     .request_id = (uint64_t)s + 1,
                                                     .num_prompt_tokens = context,
                                                     .num_tokens = context,
                                                     .token_ids = b->tokens + s,
                                                     .sampling = &b->sampling};
        give_blocks(b, &step->rows[s], blocks, num_blocks);
    }
}

/** Decodes, with `num_in_flight` steps submitted at a time; returns the median of their times. */
static double time_decode(struct bench *b, int32_t batch, int32_t context, int32_t num_in_flight)
{
    static struct decode_step steps[2];
    static int32_t finished[MAX_BATCH];
    double times[DECODE_STEPS];
    int64_t collected_ns = 0;
    int32_t num_submitted = 0;
    for (int32_t i = 0; i < DECODE_STEPS; i++) {
        struct error err = {0};
        struct model_runner_output result;
        for (; num_submitted < DECODE_STEPS && num_submitted < i + num_in_flight; num_submitted++) {
            struct decode_step *step = &steps[num_submitted % 2];
            fill_decode_step(b, step, num_submitted, batch, context);
            step->submitted_ns = clock_monotonic_ns();
            executor_submit(b->executor, &step->output);
        }
        if (executor_collect(b->executor, &result, &err) != STATUS_OK)
            die("step", &err);
        int64_t now_ns = clock_monotonic_ns();
        times[i] = (double)(now_ns - max_i64(steps[i % 2].submitted_ns, collected_ns)) / 1e9;
        collected_ns = now_ns;
    }
    for (int32_t s = 0; s < batch; s++)
        finished[s] = s;
    const struct scheduler_output last = {.num_finished_rows = batch, .finished_rows = finished};
    run(b, &last);
    qsort(times + DECODE_WARM_UP, DECODE_STEPS - DECODE_WARM_UP, sizeof(double), compare);
    return times[DECODE_WARM_UP + (DECODE_STEPS - DECODE_WARM_UP) / 2];
}

static void bench_decode(struct bench *b, int32_t batch, int32_t context)
{
    int32_t block_size = b->config.kv_cache.block_size;
    int32_t num_blocks = (int32_t)ceil_div(context + DECODE_STEPS + 1, block_size);
    if ((int64_t)batch * num_blocks > b->config.kv_cache.num_blocks)
        return;
    double time = time_decode(b, batch, context, 1);
    double bytes = weight_bytes_read(b, batch) + batch * cache_bytes_read(b, context);
    printf("decode  batch %4d context %5d: %7.3f ms a step, %8.0f tok/s, reading takes %7.3f ms "
           "(%.0f %%)",
           batch, context, time * 1e3, batch / time, bytes / b->read_bytes_per_s * 1e3,
           100 * bytes / b->read_bytes_per_s / time);
    if (b->config.async_scheduling) { // as a server runs them
        time = time_decode(b, batch, context, 2);
        printf("; overlapping: %7.3f ms, %8.0f tok/s (%.0f %%)", time * 1e3, batch / time,
               100 * bytes / b->read_bytes_per_s / time);
    }
    printf("\n");
    fflush(stdout);
    if (context == 1024)
        keep_result(b, batch, batch / time, batch * b->read_bytes_per_s / bytes);
}

/** Prompts of `length` side by side in steps of up to PREFILL_CHUNK tokens. */
static double run_prefill(struct bench *b, int32_t length, int32_t num_prompts)
{
    static struct scheduled_new_request requests[PREFILL_CHUNK];
    static struct scheduled_row rows[PREFILL_CHUNK];
    static int32_t finished[PREFILL_CHUNK];
    int32_t num_blocks = (int32_t)ceil_div(length + 1, b->config.kv_cache.block_size);
    double time = 0;
    for (int32_t done = 0; done < length;) {
        int32_t count = min_i32(PREFILL_CHUNK / num_prompts, length - done);
        for (int32_t s = 0; s < num_prompts; s++) {
            rows[s] = (struct scheduled_row){.row = s,
                                             .num_computed_tokens = done,
                                             .num_scheduled_tokens = count,
                                             .samples = done + count == length};
            requests[s] = (struct scheduled_new_request){.row = s,
                                                         .request_id = (uint64_t)s + 1,
                                                         .num_prompt_tokens = length,
                                                         .num_tokens = length,
                                                         .token_ids = b->tokens + s,
                                                         .sampling = &b->sampling};
            finished[s] = s;
            if (done > 0)
                continue;
            give_blocks(b, &rows[s], b->blocks + s * num_blocks, num_blocks);
        }
        const struct scheduler_output step = {.num_new_requests = done == 0 ? num_prompts : 0,
                                              .new_requests = requests,
                                              .num_rows = num_prompts,
                                              .rows = rows,
                                              .num_scheduled_tokens = count * num_prompts};
        time += run(b, &step);
        done += count;
    }
    const struct scheduler_output last = {.num_finished_rows = num_prompts,
                                          .finished_rows = finished};
    run(b, &last);
    return time;
}

static void bench_prefill(struct bench *b, int32_t length, int32_t num_prompts)
{
    enum { ROUNDS = 5 };
    int32_t num_blocks = (int32_t)ceil_div(length + 1, b->config.kv_cache.block_size);
    if ((int64_t)num_prompts * num_blocks > b->config.kv_cache.num_blocks)
        return;
    for (int32_t j = 0; j < num_prompts * num_blocks; j++)
        b->blocks[j] = j;
    double times[ROUNDS];
    for (int32_t i = 0; i < ROUNDS; i++)
        times[i] = run_prefill(b, length, num_prompts);
    qsort(times, ROUNDS, sizeof(double), compare);
    double idle_experts =
        b->experts_share > 0
            ? (1 - b->experts_share) * (double)b->config.weight_kind_bytes[WEIGHT_KIND_EXPERTS] / 2
            : 0;
    double layers =
        (double)b->config.weight_bytes / 2 - idle_experts -
        (b->model.tie_word_embeddings ? 1.0 : 2.0) * b->model.vocab_size * b->model.hidden_size;
    double attention = 2.0 * length * length * b->model.num_attention_heads * b->model.head_dim *
                       b->model.num_hidden_layers; // half of the square is masked
    double flop = (2 * layers * length + attention) * num_prompts, time = times[ROUNDS / 2];
    double tokens = (double)length * num_prompts;
    printf("prefill %d of %d tokens: %.1f ms, %.0f tok/s, %.0f TFLOP/s (%.0f %% of %.0f)\n",
           num_prompts, length, time * 1e3, tokens / time, flop / time * 1e-12,
           100 * flop / time / b->flop_per_s, b->flop_per_s * 1e-12);
    fflush(stdout);
    if (length == PREFILL_CHUNK)
        keep_result(b, 0, tokens / time, tokens / flop * b->flop_per_s);
}

/** The figures that are targets, beside them and beside what the machine's limits allow. */
static void print_targets(const struct bench *b, const char *dir)
{
    const char *slash = strrchr(dir, '/');
    const char *model = slash ? slash + 1 : dir;
    bool is_fp8 = strcmp(b->options.kv_cache_dtype, "fp8") == 0, has_header = false;
    for (size_t t = 0; t < ARRAY_LEN(TARGETS); t++) {
        if (strcmp(TARGETS[t].model, model) != 0 || TARGETS[t].is_fp8 != is_fp8)
            continue;
        for (int32_t i = 0; i < b->num_results; i++) {
            const struct result *r = &b->results[i];
            if (r->batch != TARGETS[t].batch)
                continue;
            if (!has_header)
                printf("| %s%s | measured tok/s | target | of target | of ceiling |\n"
                       "| --- | --- | --- | --- | --- |\n",
                       model, is_fp8 ? ", fp8 cache" : "");
            has_header = true;
            char what[32] = "prefill of 8k";
            if (r->batch > 0)
                snprintf(what, sizeof(what), "decode, batch %d", r->batch);
            printf("| %s | %.0f | %.0f | %.3f | %.3f |\n", what, r->tokens_per_s,
                   TARGETS[t].tokens_per_s, r->tokens_per_s / TARGETS[t].tokens_per_s,
                   r->tokens_per_s / r->ceiling);
        }
    }
}

int main(int argc, char **argv)
{
    static const int32_t BATCHES[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
    static const int32_t SHORT_BATCHES[] = {1, 8, 64, 256};
    static const int32_t LENGTHS[] = {128, 1024, PREFILL_CHUNK};
    if (argc < 2) {
        fprintf(stderr,
                "usage: %s MODEL_DIR [CONTEXT] [short] [fp8] [async] [float16|bfloat16] "
                "[quantization=METHOD]\n",
                argv[0]);
        return 2;
    }
    int32_t context = 1024;
    static const char QUANTIZATION[] = "quantization=";
    const char *quantization = NULL;
    bool is_short = false, is_fp8 = false, is_async = false;
    const char *dtype = "auto";
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "short") == 0)
            is_short = true;
        else if (strcmp(argv[i], "fp8") == 0)
            is_fp8 = true;
        else if (strcmp(argv[i], "async") == 0)
            is_async = true;
        else if (strcmp(argv[i], "float16") == 0 || strcmp(argv[i], "bfloat16") == 0)
            dtype = argv[i];
        else if (strncmp(argv[i], QUANTIZATION, strlen(QUANTIZATION)) == 0)
            quantization = argv[i] + strlen(QUANTIZATION);
        else
            context = atoi(argv[i]);
    }
    if (context < 1 || context > 1 << 20) {
        fprintf(stderr, "%s: a context of %d tokens: expected 1 to 1048576\n", argv[0], context);
        return 2;
    }
    static struct bench b;
    open_bench(&b, argv[1], dtype, quantization, max_i32(context, PREFILL_CHUNK), is_fp8, is_async);
    const int32_t *batches = is_short ? SHORT_BATCHES : BATCHES;
    size_t num_batches = is_short ? ARRAY_LEN(SHORT_BATCHES) : ARRAY_LEN(BATCHES);
    for (size_t i = 0; i < num_batches; i++)
        bench_decode(&b, batches[i], context);
    for (size_t i = is_short ? ARRAY_LEN(LENGTHS) - 1 : 0; i < ARRAY_LEN(LENGTHS); i++)
        bench_prefill(&b, LENGTHS[i], 1);
    bench_prefill(&b, 1024, PREFILL_CHUNK / 1024);
    if (!quantization) // targets are for weights of the model's own type
        print_targets(&b, argv[1]);
    executor_destroy(b.executor);
    engine_config_deinit(&b.config);
    model_config_deinit(&b.model);
    free(b.tokens);
    free(b.blocks);
    return 0;
}
