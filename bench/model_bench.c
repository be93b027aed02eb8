// Steps of a whole model with made-up weights: decoding at several batch sizes, and prefill.
// Usage: model_bench MODEL_DIR [CONTEXT]. Beside each number stands the time that reading the
// step's bytes, or computing its products, would take at ceilings that are given as GB/s and
// TFLOP/s in the environment (READ_GBS, default 4060; TFLOPS, default 740).
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "config/hf_config.h"
#include "config/options.h"
#include "worker/worker.h"

enum { MAX_BATCH = 1024, PREFILL_CHUNK = 8192 };

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

static void open_bench(struct bench *b, const char *dir, int32_t context)
{
    struct error err = {0};
    *b = (struct bench){
        .options = {.model = dir,
                    .dtype = "auto",
                    .load_format = LOAD_FORMAT_DUMMY,
                    .skip_tokenizer_init = true,
                    .block_size = -1,
                    .gpu_memory_utilization = 0.92,
                    .kv_cache_memory_bytes = -1,
                    .kv_cache_dtype = "auto",
                    .num_gpu_blocks_override = -1,
                    .enable_prefix_caching = TRISTATE_UNSET,
                    .enable_chunked_prefill = TRISTATE_UNSET,
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
        .read_bytes_per_s = number_of("READ_GBS", 4060) * 1e9,
        .flop_per_s = number_of("TFLOPS", 740) * 1e12,
    };
    b->options.enforce_eager = getenv("EAGER") != NULL;
    if (model_config_load(&b->model, dir, "vllm", NULL, &err) != STATUS_OK ||
        engine_config_plan(&b->config, &b->options, &b->model, &err) != STATUS_OK)
        die(dir, &err);
    int64_t start_ns = clock_monotonic_ns();
    if (executor_create(&b->executor, &b->config, NULL, &err) != STATUS_OK)
        die(dir, &err);
    printf("%s: loaded in %.2f s, %.2f GB of weights, %d blocks\n", dir,
           (double)(clock_monotonic_ns() - start_ns) / 1e9, (double)b->config.weight_bytes * 1e-9,
           b->config.kv_cache.num_blocks);
    b->blocks_per_seq = (int32_t)ceil_div(b->config.max_model_len, b->config.kv_cache.block_size);
    b->tokens = xcalloc((size_t)b->config.max_model_len + 1, sizeof(int32_t));
    for (int32_t i = 0; i <= b->config.max_model_len; i++)
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

/** Starts `batch` sequences of `context` computed tokens (their cache holds what it holds), then
 *  times steps that decode one token of each. */
static void bench_decode(struct bench *b, int32_t batch, int32_t context)
{
    enum { STEPS = 60, WARM_UP = 10 };
    static struct scheduled_new_request requests[MAX_BATCH];
    static struct scheduled_row rows[MAX_BATCH];
    static int32_t finished[MAX_BATCH];
    int32_t block_size = b->config.kv_cache.block_size;
    int32_t num_blocks = (int32_t)ceil_div(context + STEPS + 1, block_size);
    if ((int64_t)batch * num_blocks > b->config.kv_cache.num_blocks)
        return;
    double times[STEPS];
    for (int32_t i = 0; i < STEPS; i++) {
        struct scheduler_output step = {.step = i, .num_rows = batch, .rows = rows};
        step.num_scheduled_tokens = batch;
        for (int32_t s = 0; s < batch; s++) {
            rows[s] = (struct scheduled_row){.row = s,
                                             .num_computed_tokens = context - 1 + i,
                                             .num_scheduled_tokens = 1,
                                             .samples = true};
            if (i > 0)
                continue;
            int32_t *blocks = b->blocks + s * b->blocks_per_seq;
            for (int32_t j = 0; j < num_blocks; j++)
                blocks[j] = j * batch + s;
            requests[s] = (struct scheduled_new_request){s,       (uint64_t)s + 1, context,
                                                         context, b->tokens,       &b->sampling};
            rows[s].num_new_blocks[0] = num_blocks;
            rows[s].new_blocks[0] = blocks;
            finished[s] = s;
        }
        step.num_new_requests = i == 0 ? batch : 0;
        step.new_requests = requests;
        times[i] = run(b, &step);
    }
    const struct scheduler_output last = {.num_finished_rows = batch, .finished_rows = finished};
    run(b, &last);
    qsort(times + WARM_UP, STEPS - WARM_UP, sizeof(double), compare);
    double time = times[WARM_UP + (STEPS - WARM_UP) / 2];
    double embedding =
        b->model.tie_word_embeddings ? 0 : (double)b->model.vocab_size * b->model.hidden_size * 2;
    double bytes = (double)b->config.weight_bytes - embedding +
                   (double)batch * context * (double)b->config.kv_cache.block_bytes / block_size;
    printf("decode  batch %4d context %5d: %7.3f ms a step, %8.0f tok/s, reading takes %7.3f ms "
           "(%.0f %%)\n",
           batch, context, time * 1e3, batch / time, bytes / b->read_bytes_per_s * 1e3,
           100 * bytes / b->read_bytes_per_s / time);
    fflush(stdout);
}

static void bench_prefill(struct bench *b, int32_t length)
{
    enum { ROUNDS = 5 };
    int32_t block_size = b->config.kv_cache.block_size, finished = 0;
    int32_t num_blocks = (int32_t)ceil_div(length + 1, block_size);
    double times[ROUNDS];
    for (int32_t j = 0; j < num_blocks; j++)
        b->blocks[j] = j;
    for (int32_t i = 0; i < ROUNDS; i++) {
        times[i] = 0;
        struct scheduled_new_request request = {0, 1, length, length, b->tokens, &b->sampling};
        for (int32_t done = 0; done < length;) {
            int32_t count = min_i32(PREFILL_CHUNK, length - done);
            struct scheduled_row row = {.row = 0,
                                        .num_computed_tokens = done,
                                        .num_scheduled_tokens = count,
                                        .samples = done + count == length};
            if (done == 0) {
                row.num_new_blocks[0] = num_blocks;
                row.new_blocks[0] = b->blocks;
            }
            const struct scheduler_output step = {.num_new_requests = done == 0,
                                                  .new_requests = &request,
                                                  .num_rows = 1,
                                                  .rows = &row,
                                                  .num_scheduled_tokens = count};
            times[i] += run(b, &step);
            done += count;
        }
        const struct scheduler_output last = {.num_finished_rows = 1, .finished_rows = &finished};
        run(b, &last);
    }
    qsort(times, ROUNDS, sizeof(double), compare);
    double layers =
        (double)b->config.weight_bytes / 2 -
        (b->model.tie_word_embeddings ? 1.0 : 2.0) * b->model.vocab_size * b->model.hidden_size;
    double attention = 2.0 * length * length * b->model.num_attention_heads * b->model.head_dim *
                       b->model.num_hidden_layers; // half of the square is masked
    double flop = 2 * layers * length + attention, time = times[ROUNDS / 2];
    printf("prefill %d tokens: %.1f ms, %.0f tok/s, %.0f TFLOP/s (%.0f %% of %.0f)\n", length,
           time * 1e3, length / time, flop / time * 1e-12, 100 * flop / time / b->flop_per_s,
           b->flop_per_s * 1e-12);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int32_t batches[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL_DIR [CONTEXT]\n", argv[0]);
        return 2;
    }
    struct bench b;
    int32_t context = argc > 2 ? atoi(argv[2]) : 1024;
    open_bench(&b, argv[1], max_i32(context, PREFILL_CHUNK));
    for (size_t i = 0; i < ARRAY_LEN(batches); i++)
        bench_decode(&b, batches[i], context);
    static const int32_t lengths[] = {128, 1024, PREFILL_CHUNK};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        bench_prefill(&b, lengths[i]);
    executor_destroy(b.executor);
    engine_config_deinit(&b.config);
    model_config_deinit(&b.model);
    free(b.tokens);
    free(b.blocks);
    return 0;
}
