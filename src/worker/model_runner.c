// One rank's model and memory, from load to release: see model_runner.h.
#include "worker/model_runner.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/host_memory.h"
#include "worker/worker_device.h"

/** Makes an arena's first chunk large enough for a step, so that no step asks for more. */
static void reserve_arena(struct arena *arena, size_t size_bytes)
{
    arena_alloc(arena, size_bytes);
    arena_reset(arena);
}

/** Every layer's part of the pool: first all key arrays, slot by slot with their value arrays. */
static enum status allocate_kv_pool(struct model_runner *runner, struct error *err)
{
    const struct model_config *model = runner->config->model;
    const struct kv_cache_config *kv_cache = &runner->config->kv_cache;
    enum dtype dtype;
    TRY(worker_kv_dtype(&dtype, runner->config->device, runner->config->options, model, err));
    size_t pool_bytes = (size_t)kv_cache->num_blocks * (size_t)kv_cache->block_bytes;
    runner->kv_pool = runner->dev.ops.alloc(&runner->dev, pool_bytes);
    if (!runner->kv_pool)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%s for the KV cache were refused",
                         byte_text((int64_t)pool_bytes).text);
    runner->caches = xcalloc((size_t)model->num_hidden_layers, sizeof(*runner->caches));
    // A slot of the pool is shared by one layer of each group: block ids keep them apart.
    size_t half_bytes = pool_bytes / (size_t)kv_cache->layers_per_group / 2;
    for (int32_t g = 0; g < kv_cache->num_groups; g++) {
        const struct kv_cache_group *group = &kv_cache->groups[g];
        for (int32_t i = 0; i < group->num_layers; i++) {
            char *keys = (char *)runner->kv_pool + 2 * (size_t)i * half_bytes;
            runner->caches[group->layers[i]] = (struct layer_cache){
                .kv =
                    {
                        .k = keys,
                        .v = keys + half_bytes,
                        .dtype = dtype,
                        .num_blocks = kv_cache->num_blocks,
                        .block_size = kv_cache->block_size,
                        .num_kv_heads = model->num_key_value_heads,
                        .head_dim = model->head_dim,
                    },
                .group = g,
            };
        }
    }
    return STATUS_OK;
}

static enum status load_model(struct model_runner *runner, struct error *err)
{
    const struct engine_config *config = runner->config;
    int64_t start_ns = clock_monotonic_ns();
    struct weight_store_options options;
    TRY(worker_weight_options(&options, config->device, config->options, config->model,
                              WEIGHTS_LOAD, err));
    TRY(weight_store_open(&runner->weights, &runner->dev, &options, err));
    enum model_use use = config->pooling.type == POOLING_NONE ? MODEL_GENERATES : MODEL_POOLS;
    TRY(model_load(&runner->model, config->model, use, config->max_model_len, &runner->weights,
                   err));
    runner->load_ns = clock_monotonic_ns() - start_ns;
    const struct weight_bytes *bytes = &runner->weights.bytes;
    if (bytes->copied != config->weight_bytes || bytes->mapped != config->mapped_bytes)
        return error_set(err, STATUS_INVALID,
                         "%s: the checkpoint changed between planning and loading (%s of weights "
                         "planned, %s found)",
                         config->model->path,
                         byte_text(config->weight_bytes + config->mapped_bytes).text,
                         byte_text(bytes->copied + bytes->mapped).text);
    return STATUS_OK;
}

/** The parts of one allocation for log-probabilities of `rows` rows. */
static struct sampled_logprobs lay_out_logprobs(void *memory, int32_t rows)
{
    size_t entries = (size_t)rows * (1 + MAX_DEVICE_LOGPROBS);
    int32_t *ids = memory;
    return (struct sampled_logprobs){
        .token_ids = ids,
        .logprobs = (void *)(ids + entries), // as wide as the ids
        .ranks = ids + 2 * entries,
    };
}

/** Where drawn tokens and logits come back from a device with memory of its own. */
static enum status allocate_exchange(struct model_runner *runner, struct error *err)
{
    struct device *dev = &runner->dev;
    const struct runner_sizes *sizes = &runner->sizes;
    int32_t max_seqs = runner->config->max_num_seqs;
    runner->drawn = dev->ops.alloc(dev, sizes->drawn_bytes);
    runner->logprobs = lay_out_logprobs(dev->ops.alloc(dev, sizes->logprob_bytes), max_seqs);
    runner->host_logits = dev->ops.alloc_staging(dev, sizes->host_logits_bytes);
    bool is_whole = runner->drawn && runner->logprobs.token_ids && runner->host_logits;
    for (int32_t i = 0; i < sizes->num_steps; i++) {
        struct runner_step *step = &runner->steps[i];
        step->drawn = dev->ops.alloc_staging(dev, sizes->drawn_bytes);
        step->logprobs =
            lay_out_logprobs(dev->ops.alloc_staging(dev, sizes->logprob_bytes), max_seqs);
        is_whole = is_whole && step->drawn && step->logprobs.token_ids;
    }
    if (!is_whole)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%s to exchange logits were refused",
                         byte_text((int64_t)(sizes->drawn_bytes + sizes->logprob_bytes +
                                             sizes->host_logits_bytes))
                             .text);
    return STATUS_OK;
}

static void allocate_step(const struct model_runner *runner, struct runner_step *step)
{
    const struct engine_config *config = runner->config;
    size_t num_tokens = (size_t)config->max_num_batched_tokens;
    size_t num_seqs = (size_t)config->max_num_seqs, num_threads = (size_t)runner->dev.num_threads;
    step->is_settled = true;
    step->logits_rows = xcalloc(num_tokens, sizeof(*step->logits_rows));
    step->outputs = xcalloc(num_seqs, sizeof(*step->outputs));
    step->sampled_logprobs = xcalloc(num_seqs, sizeof(*step->sampled_logprobs));
    step->thread_arenas = xcalloc(num_threads, sizeof(*step->thread_arenas));
    for (size_t i = 0; i < num_threads; i++)
        reserve_arena(&step->thread_arenas[i], runner->sizes.sampler_bytes);
    reserve_arena(&step->arena, num_tokens * sizeof(struct token_logprobs));
}

static enum status allocate_step_memory(struct model_runner *runner, struct error *err)
{
    const struct engine_config *config = runner->config;
    runner->sizes = model_runner_sizes(config, &runner->model, &runner->dev);
    const struct backend_needs needs = runner_needs(config);
    if (runner->dev.ops.reserve)
        TRY(runner->dev.ops.reserve(&runner->dev, &needs, err));
    struct workspace *workspace = &runner->fwd.workspace;
    workspace->base = runner->dev.ops.alloc(&runner->dev, runner->sizes.activation_bytes);
    if (!workspace->base)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%s for a step's workspace were refused",
                         byte_text((int64_t)runner->sizes.activation_bytes).text);
    workspace->capacity_bytes = runner->sizes.activation_bytes;
    struct input_batch_options batch = runner_batch_options(config, &runner->dev);
    TRY(input_batch_init(&runner->batch, &batch, err));
    struct pooler_options pooler = runner_pooler_options(config, &runner->dev);
    TRY(pooler_init(&runner->pooler, &pooler, err));
    for (int32_t i = 0; i < runner->sizes.num_steps; i++)
        allocate_step(runner, &runner->steps[i]);
    constraint_store_init(&runner->constraints, config->model->vocab_size);
    bool draws = config->pooling.type == POOLING_NONE;
    return runner->dev.has_host_memory || !draws ? STATUS_OK : allocate_exchange(runner, err);
}

static void free_step(struct model_runner *runner, struct runner_step *step)
{
    struct device *dev = &runner->dev;
    if (dev->ops.free_staging) {
        dev->ops.free_staging(dev, step->drawn);
        dev->ops.free_staging(dev, step->logprobs.token_ids);
    }
    for (int32_t i = 0; step->thread_arenas && i < dev->num_threads; i++)
        arena_deinit(&step->thread_arenas[i]);
    free(step->thread_arenas);
    arena_deinit(&step->arena);
    free(step->logits_rows);
    free(step->outputs);
    free(step->sampled_logprobs);
}

enum status model_runner_init(struct model_runner *runner, const struct engine_config *config,
                              int32_t num_threads, _Atomic int64_t *progress, struct error *err)
{
    *runner = (struct model_runner){.config = config, .fwd = {.progress = progress}};
    enum status status = worker_device_open(&runner->dev, config->device, config->options,
                                            config->model, num_threads, err);
    if (status == STATUS_OK)
        status = load_model(runner, err);
    if (status == STATUS_OK)
        status = allocate_step_memory(runner, err);
    if (status == STATUS_OK)
        status = allocate_kv_pool(runner, err);
    if (status != STATUS_OK) {
        model_runner_deinit(runner);
        return status;
    }
    runner->fwd.dev = &runner->dev;
    runner->fwd.caches = runner->caches;
    status = step_graphs_record(runner, err);
    if (status != STATUS_OK)
        model_runner_deinit(runner);
    return status;
}

void model_runner_deinit(struct model_runner *runner)
{
    if (!runner)
        return;
    struct device *dev = &runner->dev;
    if (dev->ops.free) {
        if (runner->num_submitted > runner->num_collected)
            (void)dev->ops.synchronize(dev, NULL); // what is in flight uses what follows
        step_graphs_free(runner);
        pooler_deinit(&runner->pooler);
        dev->ops.free(dev, runner->kv_pool);
        dev->ops.free(dev, runner->fwd.workspace.base);
        dev->ops.free(dev, runner->drawn);
        dev->ops.free(dev, runner->logprobs.token_ids);
        dev->ops.free_staging(dev, runner->host_logits);
    }
    for (int32_t i = 0; i < MAX_RUNNER_STEPS; i++)
        free_step(runner, &runner->steps[i]);
    free(runner->caches);
    token_loader_deinit(&runner->token_loader);
    constraint_store_deinit(&runner->constraints);
    input_batch_deinit(&runner->batch);
    weight_store_close(&runner->weights);
    device_deinit(dev);
    *runner = (struct model_runner){0};
}
