// What the host does for a decoding step, by part, while a device computes: schedule and record,
// prepare and launch, collect and update, encode what goes out. The device of this program is one
// that does nothing, in the place of the GPU's, so that nothing else is measured.
// Usage: host_bench MODEL_DIR [BATCH [CONTEXT]]. Exits with 1 when a step takes longer than 150 us.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/recorder.h"
#include "engine/scheduler.h"
#include "message/codec.h"

enum { WARM_UP_STEPS = 100, STEPS = 400, BLOCK_SIZE = 16, TARGET_US = 150 };

// ---- the device that does nothing -----------------------------------------------------------

static void *idle_alloc(struct device *dev, size_t size_bytes)
{
    (void)dev;
    size_t mapped = size_bytes + 4096; // its size stands in front
    char *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    memcpy(memory, &mapped, sizeof(mapped));
    return memory + 4096;
}

static void idle_free(struct device *dev, void *memory)
{
    (void)dev;
    size_t mapped;
    if (!memory)
        return;
    memcpy(&mapped, (char *)memory - 4096, sizeof(mapped));
    munmap((char *)memory - 4096, mapped);
}

static void idle_copy(struct device *dev, void *dst, const void *src, size_t size_bytes)
{
    (void)dev, (void)dst, (void)src, (void)size_bytes;
}

static void idle_copy_rows(struct device *dev, void *dst, size_t dst_pitch, const void *src,
                           size_t src_pitch, size_t row_bytes, size_t num_rows)
{
    (void)dev, (void)dst, (void)dst_pitch, (void)src, (void)src_pitch, (void)row_bytes;
    (void)num_rows;
}

static void idle_set_mark(struct device *dev, int32_t mark)
{
    (void)dev, (void)mark;
}

static enum status idle_wait_mark(struct device *dev, int32_t mark, struct error *err)
{
    (void)dev, (void)mark, (void)err;
    return STATUS_OK;
}

static bool idle_passed_mark(struct device *dev, int32_t mark)
{
    (void)dev, (void)mark;
    return true;
}

static enum status idle_synchronize(struct device *dev, struct error *err)
{
    (void)dev, (void)err;
    return STATUS_OK;
}

static void idle_memory_info(struct device *dev, int64_t *total_bytes, int64_t *free_bytes)
{
    (void)dev;
    *total_bytes = *free_bytes = INT64_C(1) << 40;
}

static size_t idle_own_bytes(const struct device *dev, const struct backend_needs *needs)
{
    (void)dev, (void)needs;
    return 0;
}

static size_t idle_prepared_bytes(const struct device *dev, const struct weight *w)
{
    (void)dev;
    return (size_t)w->out_features * (size_t)w->in_features * sizeof(uint16_t);
}

static enum status idle_prepare(struct device *dev, struct weight *w, struct error *err)
{
    (void)err;
    w->data = idle_alloc(dev, 64);
    w->is_packed = true;
    return STATUS_OK;
}

static void idle_make_up(struct device *dev, void *dst, const void *levels, uint64_t key,
                         size_t count)
{
    (void)dev, (void)dst, (void)levels, (void)key, (void)count;
}

static void idle_take_tokens(struct device *dev, int32_t *token_ids, const int32_t *indices,
                             const int32_t *drawn, int32_t num_tokens)
{
    (void)dev, (void)token_ids, (void)indices, (void)drawn, (void)num_tokens;
}

static void idle_sample(struct device *dev, int32_t *token_ids, struct tensor logits,
                        const struct sample_params *params)
{
    (void)dev, (void)token_ids, (void)logits, (void)params;
}

static void idle_sample_logprobs(struct device *dev, const struct sampled_logprobs *out,
                                 const int32_t *token_ids, struct tensor logits,
                                 const struct sample_params *params)
{
    (void)dev, (void)out, (void)token_ids, (void)logits, (void)params;
}

static void idle_embedding(struct device *dev, struct tensor out, struct tensor table,
                           const int32_t *ids, float scale)
{
    (void)dev, (void)out, (void)table, (void)ids, (void)scale;
}

static void idle_norm(struct device *dev, struct tensor out, struct tensor x,
                      struct norm_params params)
{
    (void)dev, (void)out, (void)x, (void)params;
}

static bool idle_fuses_matmul(const struct device *dev, int64_t rows, const struct weight *w,
                              const struct matmul_fusion *fusion)
{
    (void)dev, (void)rows, (void)w, (void)fusion;
    return false;
}

static void idle_matmul(struct device *dev, struct tensor out, struct tensor x,
                        const struct weight *w)
{
    (void)dev, (void)out, (void)x, (void)w;
}

static void idle_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                     const struct qkv_params *params, const int32_t *positions,
                     const int64_t *slots)
{
    (void)dev, (void)qkv, (void)cache, (void)params, (void)positions, (void)slots;
}

static void idle_attention(struct device *dev, struct tensor out, struct tensor q,
                           const struct kv_cache *cache, const struct attention_batch *batch,
                           const struct attention_params *params)
{
    (void)dev, (void)out, (void)q, (void)cache, (void)batch, (void)params;
}

static void idle_activation(struct device *dev, struct tensor out, struct tensor gate_up)
{
    (void)dev, (void)out, (void)gate_up;
}

static void idle_gather(struct device *dev, struct tensor out, struct tensor x, const int32_t *rows)
{
    (void)dev, (void)out, (void)x, (void)rows;
}

static void idle_record_begin(struct device *dev)
{
    (void)dev;
}

static void *idle_record_end(struct device *dev)
{
    return dev;
}

static void idle_recording(struct device *dev, void *recording)
{
    (void)dev, (void)recording;
}

bool cuda_is_available(void)
{
    return true;
}

enum status cuda_device_init(struct device *dev, int32_t num_threads, struct error *err)
{
    (void)err;
    *dev = (struct device){
        .kind = DEVICE_CUDA,
        .activation_dtype = DTYPE_BF16,
        .num_threads = max_i32(num_threads, 1),
        .max_sampled_vocab = 1 << 20,
        .ops = {.name = "idle",
                .alloc = idle_alloc,
                .free = idle_free,
                .copy_in = idle_copy,
                .copy_out = idle_copy,
                .alloc_staging = idle_alloc,
                .free_staging = idle_free,
                .upload = idle_copy,
                .download = idle_copy,
                .copy_rows = idle_copy_rows,
                .set_mark = idle_set_mark,
                .wait_mark = idle_wait_mark,
                .passed_mark = idle_passed_mark,
                .synchronize = idle_synchronize,
                .memory_info = idle_memory_info,
                .own_bytes = idle_own_bytes,
                .prepared_weight_bytes = idle_prepared_bytes,
                .prepare_weight = idle_prepare,
                .make_up = idle_make_up,
                .embedding = idle_embedding,
                .rms_norm = idle_norm,
                .add_rms_norm = idle_norm,
                .matmul = idle_matmul,
                .fuses_matmul = idle_fuses_matmul,
                .prepare_qkv = idle_qkv,
                .attention = idle_attention,
                .silu_and_mul = idle_activation,
                .gather_rows = idle_gather,
                .take_tokens = idle_take_tokens,
                .sample = idle_sample,
                .sample_logprobs = idle_sample_logprobs,
                .record_begin = idle_record_begin,
                .record_end = idle_record_end,
                .replay = idle_recording,
                .free_recording = idle_recording},
    };
    return STATUS_OK;
}

void cuda_device_init_planned(struct device *dev, int32_t num_threads)
{
    if (cuda_device_init(dev, num_threads, NULL) != STATUS_OK)
        abort();
}

// ---- the loop -------------------------------------------------------------------------------

enum part { PART_SCHEDULE, PART_SUBMIT, PART_UPDATE, PART_SEND, PART_ALL, NUM_PARTS };
static const char *const PART_NAMES[NUM_PARTS] = {
    "schedule, record", "prepare, launch", "collect, update, record", "encode outputs", "a step"};

struct bench {
    struct serve_options options;
    struct model_config model;
    struct engine_config config;
    struct executor *executor;
    struct scheduler scheduler;
    struct recorder recorder;
    struct scheduler_output steps[MAX_STEPS_IN_FLIGHT];
    struct buf frame;
};

static void die(const struct error *err)
{
    fprintf(stderr, "%s\n", err->message);
    exit(2);
}

static void open_bench(struct bench *b, const char *dir, int32_t batch, int32_t context)
{
    struct error err = {0};
    int32_t max_len = context + 2 * (WARM_UP_STEPS + STEPS) + BLOCK_SIZE;
    b->options = (struct serve_options){
        .model = dir,
        .dtype = "auto",
        .generation_config = "vllm",
        .load_format = LOAD_FORMAT_DUMMY,
        .skip_tokenizer_init = true,
        .block_size = BLOCK_SIZE,
        .gpu_memory_utilization = 0.9,
        .kv_cache_memory_bytes = -1,
        .kv_cache_dtype = "auto",
        .num_gpu_blocks_override = batch * (max_len / BLOCK_SIZE + 2),
        .enable_prefix_caching = TRISTATE_UNSET,
        .enable_chunked_prefill = TRISTATE_UNSET,
        .async_scheduling = TRISTATE_UNSET,
        .max_num_batched_tokens = 8192,
        .max_num_seqs = batch,
        .max_model_len = max_len,
        .max_cudagraph_capture_size = -1,
        .omp_threads_bind = "nobind",
        .target_device = "cuda",
        .cpu_isa = "auto",
    };
    if (model_config_load(&b->model, dir, "vllm", NULL, &err) != STATUS_OK ||
        engine_config_plan(&b->config, &b->options, &b->model, &err) != STATUS_OK ||
        executor_create(&b->executor, &b->config, NULL, &err) != STATUS_OK)
        die(&err);
    struct scheduler_config config = scheduler_config_from(&b->config);
    scheduler_init(&b->scheduler, &config);
    recorder_init(&b->recorder, &b->scheduler, b->config.recorder_bytes);
    int32_t *prompt = xcalloc((size_t)context, sizeof(*prompt));
    for (int32_t i = 0; i < batch; i++) {
        for (int32_t k = 0; k < context; k++)
            prompt[k] = (i * 7919 + k * 104729 % 1000) % b->model.vocab_size;
        const struct engine_core_request request = {
            .request_id = (uint64_t)i + 1,
            .num_prompt_tokens = context,
            .prompt_token_ids = prompt,
            .sampling = {.top_p = 1,
                         .repetition_penalty = 1,
                         .max_tokens = 1 << 20,
                         .eos_token_id = -1,
                         .num_logprobs = -1,
                         .num_prompt_logprobs = -1},
        };
        if (scheduler_add(&b->scheduler, &request, 1, &err) != STATUS_OK)
            die(&err);
        recorder_add(&b->recorder, &b->scheduler, request.request_id);
    }
    free(prompt);
}

/** A turn of the engine's loop; `ns` gets what each part took. */
static void turn(struct bench *b, int64_t ns[NUM_PARTS])
{
    struct scheduler *s = &b->scheduler;
    struct error err = {0};
    int64_t start = clock_monotonic_ns(), scheduled = start, submitted = start;
    bool begun = false;
    recorder_checkpoint(&b->recorder, s);
    if (s->in_flight == 0 || (scheduler_can_schedule(s) && !recorder_is_due(&b->recorder))) {
        struct scheduler_output step;
        begun = scheduler_schedule(s, start, &step);
        recorder_step(&b->recorder, s, begun, &step, start);
        scheduled = clock_monotonic_ns();
        struct scheduler_output *place = &b->steps[step.step % MAX_STEPS_IN_FLIGHT];
        *place = step;
        if (begun)
            executor_submit(b->executor, place);
        submitted = clock_monotonic_ns();
    }
    int64_t updated = submitted, sent = submitted;
    if (!begun || !scheduler_can_schedule(s)) {
        struct model_runner_output result;
        struct engine_core_outputs outputs[MAX_API_SERVERS];
        const struct step_durations durations = {0};
        const struct scheduler_output *step =
            &b->steps[(s->step - s->in_flight) % MAX_STEPS_IN_FLIGHT];
        if (executor_collect(b->executor, &result, &err) != STATUS_OK)
            die(&err);
        scheduler_update(s, submitted, step, &result, outputs);
        recorder_update(&b->recorder, s, submitted, step, &result, outputs, &durations);
        updated = clock_monotonic_ns();
        const struct message message = {.kind = MESSAGE_OUTPUTS, .outputs = outputs[0]};
        buf_clear(&b->frame);
        message_encode(&b->frame, &message);
        sent = clock_monotonic_ns();
    }
    ns[PART_SCHEDULE] = scheduled - start;
    ns[PART_SUBMIT] = submitted - scheduled;
    ns[PART_UPDATE] = updated - submitted;
    ns[PART_SEND] = sent - updated;
    ns[PART_ALL] = sent - start;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL_DIR [BATCH [CONTEXT]]\n", argv[0]);
        return 2;
    }
    int32_t batch = argc > 2 ? atoi(argv[2]) : 256, context = argc > 3 ? atoi(argv[3]) : 1024;
    static struct bench b;
    static int64_t ns[NUM_PARTS][STEPS];
    int64_t once[NUM_PARTS];
    open_bench(&b, argv[1], batch, context);
    while (b.scheduler.waiting.len > 0 || b.scheduler.num_prefilling > 0)
        turn(&b, once);
    for (int32_t i = 0; i < WARM_UP_STEPS; i++)
        turn(&b, once);
    for (int32_t i = 0; i < STEPS; i++) {
        turn(&b, once);
        for (int part = 0; part < NUM_PARTS; part++)
            ns[part][i] = once[part];
    }
    printf("%d decoding at about %d tokens of context, %d steps in flight\n", (int)batch,
           (int)context, (int)b.scheduler.in_flight + 1);
    for (int part = 0; part < NUM_PARTS; part++) {
        qsort(ns[part], STEPS, sizeof(int64_t), compare);
        printf("%-24s median %7.1f us, p99 %7.1f us\n", PART_NAMES[part],
               (double)ns[part][STEPS / 2] / 1e3, (double)ns[part][STEPS * 99 / 100] / 1e3);
    }
    bool is_met = ns[PART_ALL][STEPS / 2] < TARGET_US * 1000;
    printf("target at batch 256: %d us, %s\n", TARGET_US, is_met ? "met" : "MISSED");
    executor_destroy(b.executor);
    recorder_deinit(&b.recorder);
    scheduler_deinit(&b.scheduler);
    engine_config_deinit(&b.config);
    model_config_deinit(&b.model);
    buf_deinit(&b.frame);
    return is_met ? 0 : 1;
}
