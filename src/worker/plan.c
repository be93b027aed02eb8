// Every size of an engine, from options and model, before a weight is read. The model's own load
// code runs over the checkpoint's headers, so what is planned is what is loaded.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "worker/cpu_threads.h"
#include "worker/host_memory.h"
#include "worker/layer_groups.h"
#include "worker/limits.h"
#include "worker/model_runner.h"
#include "worker/worker.h"
#include "worker/worker_device.h"

enum { DEFAULT_BLOCK_SIZE = 16, MAX_BLOCK_SIZE = 1 << 16 };

/** Layer groups and the bytes of a block. */
static enum status plan_groups(struct engine_config *config, struct error *err)
{
    const struct model_config *model = config->model;
    struct kv_cache_config *kv_cache = &config->kv_cache;
    enum dtype dtype;
    TRY(worker_kv_dtype(&dtype, config->device, config->options, model, err));
    kv_cache->block_size = config->options->block_size;
    if (kv_cache->block_size < 0) // finer prefix hits than with the 128 that vLLM uses on the CPU
        kv_cache->block_size = DEFAULT_BLOCK_SIZE;
    if (kv_cache->block_size < 1 || kv_cache->block_size > MAX_BLOCK_SIZE)
        return error_set_field(err, STATUS_INVALID, "--block-size",
                               "--block-size %d: expected 1 to %d", kv_cache->block_size,
                               MAX_BLOCK_SIZE);
    TRY(layer_groups_init(kv_cache, model->layer_windows, model->num_hidden_layers,
                          config->max_model_len, err));
    const size_t factors[] = {(size_t)kv_cache->layers_per_group,
                              2, // keys and values
                              (size_t)model->num_key_value_heads, (size_t)model->head_dim,
                              dtype_size(dtype)};
    size_t bytes = (size_t)kv_cache->block_size;
    bool fits = true;
    for (size_t i = 0; i < ARRAY_LEN(factors); i++)
        fits = fits && size_mul(&bytes, bytes, factors[i]);
    if (!fits || bytes > INT64_MAX / 4)
        return error_set(err, STATUS_INVALID,
                         "a block of %d tokens of %d layers has no size in 64 "
                         "bits",
                         kv_cache->block_size, kv_cache->layers_per_group);
    kv_cache->block_bytes = (int64_t)bytes;
    return STATUS_OK;
}

/** What the sums consist of. */
static void keep_sizes(struct engine_config *config, const struct weight_store *store,
                       const struct runner_sizes *sizes, const struct device *dev)
{
    config->weight_bytes = store->bytes.copied;
    config->mapped_bytes = store->bytes.mapped;
    for (int kind = 0; kind < NUM_WEIGHT_KINDS; kind++)
        config->weight_kind_bytes[kind] = store->kind_bytes[kind];
    runner_sizes_split(sizes, dev, config->workspace_part_bytes, &config->host_bytes);
    config->pinned_bytes = runner_sizes_pinned(sizes, dev);
    config->workspace_bytes = 0;
    for (int part = 0; part < NUM_WORKSPACE_PARTS; part++)
        config->workspace_bytes += config->workspace_part_bytes[part];
    bool records = config->model->vocab_size <= dev->max_sampled_vocab;
    config->graph_bytes = records ? step_graphs_count(config) * dev->recording_bytes : 0;
}

/** Bytes of weights and of a step's memory, by a load that reads nothing. */
static enum status plan_model(struct engine_config *config, struct error *err)
{
    struct weight_store_options options;
    TRY(worker_weight_options(&options, config->device, config->options, config->model,
                              WEIGHTS_PLAN, err));
    struct cpu_threads threads;
    TRY(cpu_threads_parse(&threads, config->options->omp_threads_bind, 0, err));
    struct device dev;
    if (config->device == DEVICE_CUDA) { // sizes need no GPU
        cuda_device_init_planned(&dev, threads.num_threads);
        if (options.model_dtype == DTYPE_F16)
            dev.activation_dtype = DTYPE_F16;
    } else {
        TRY(worker_device_open(&dev, config->device, config->options, config->model,
                               threads.num_threads, err));
    }
    struct weight_store store;
    struct model model;
    enum model_use use = config->pooling.type == POOLING_NONE ? MODEL_GENERATES : MODEL_POOLS;
    enum status status = weight_store_open(&store, &dev, &options, err);
    if (status == STATUS_OK)
        status = model_load(&model, config->model, use, config->max_model_len, &store, err);
    if (status == STATUS_OK) {
        struct runner_sizes sizes = model_runner_sizes(config, &model, &dev);
        keep_sizes(config, &store, &sizes, &dev);
    }
    weight_store_close(&store);
    device_deinit(&dev);
    return status;
}

/** Blocks that one request of full length needs. */
static int64_t blocks_of_one(const struct engine_config *config)
{
    return layer_groups_blocks(&config->kv_cache, config->max_model_len,
                               engine_config_tokens_in_flight(config));
}

/**
 * The flight recorder's ring. Each half begins with the state of the scheduler, which grows with
 * the number of blocks: that is to be a small part of it. The memory that it takes decides how many
 * blocks there are, so the size follows from the most that there can be.
 */
static void plan_recorder(struct engine_config *config)
{
    enum { BYTES_A_BLOCK = 96 };
    const int64_t min_half_bytes = 2 << 20, max_half_bytes = 64 << 20;
    const struct serve_options *options = config->options;
    int64_t bytes = config->memory_total_bytes;
    if (options->kv_cache_memory_bytes >= 0)
        bytes = options->kv_cache_memory_bytes;
    int64_t blocks = bytes / config->kv_cache.block_bytes;
    if (options->kv_cache_memory_bytes < 0)
        blocks = min_i64(blocks, config->max_num_seqs * blocks_of_one(config));
    if (options->num_gpu_blocks_override > 0)
        blocks = options->num_gpu_blocks_override;
    int64_t half = min_i64(blocks, max_half_bytes / BYTES_A_BLOCK) * BYTES_A_BLOCK;
    config->recorder_bytes = 2 * max_i64(half, min_half_bytes);
}

/** Of the device's memory, or on a CPU of the host's. */
static int64_t used_without_cache(const struct engine_config *config)
{
    return config->weight_bytes + config->mapped_bytes + config->workspace_bytes +
           config->graph_bytes + (config->device == DEVICE_CPU ? config->recorder_bytes : 0);
}

static const char *memory_owner(const struct engine_config *config)
{
    if (config->has_given_memory)
        return "the given machine";
    return config->device == DEVICE_CUDA ? "the GPU" : "this host";
}

/** What the KV cache may take: the flag's bytes, or the share of memory that is left. */
static enum status plan_available(struct engine_config *config, struct error *err)
{
    const struct serve_options *options = config->options;
    struct host_memory host = {config->memory_total_bytes, config->memory_free_bytes};
    int64_t used = used_without_cache(config);
    if (options->kv_cache_memory_bytes >= 0) {
        config->available_bytes = options->kv_cache_memory_bytes;
        if (config->available_bytes > host.total_bytes - used)
            return error_set_field(
                err, STATUS_OUT_OF_MEMORY, "--kv-cache-memory-bytes",
                "--kv-cache-memory-bytes asks for %s; of %s's %s, weights and workspace "
                "take %s. Use at most --kv-cache-memory-bytes %" PRId64,
                byte_text(config->available_bytes).text, memory_owner(config),
                byte_text(host.total_bytes).text, byte_text(used).text,
                max_i64(host.total_bytes - used, 0));
        return STATUS_OK;
    }
    double share = options->gpu_memory_utilization * (double)host.total_bytes;
    config->available_bytes = min_i64((int64_t)share, host.available_bytes) - used;
    return STATUS_OK;
}

static enum status refuse_no_block(const struct engine_config *config, struct error *err)
{
    int64_t block_bytes = config->kv_cache.block_bytes;
    if (config->options->kv_cache_memory_bytes >= 0)
        return error_set_field(
            err, STATUS_OUT_OF_MEMORY, "--kv-cache-memory-bytes",
            "No available memory for the cache blocks: --kv-cache-memory-bytes (or "
            "VLLM_CPU_KVCACHE_SPACE) gives %" PRId64 " bytes, one block of %d tokens takes %" PRId64
            ". Use at least --kv-cache-memory-bytes %" PRId64,
            config->available_bytes, config->kv_cache.block_size, block_bytes, block_bytes);
    // The least share with which one request of full length fits, if there is one.
    int64_t total = config->memory_total_bytes;
    int64_t needed = used_without_cache(config) + blocks_of_one(config) * block_bytes;
    double share = ceil(100.0 * (double)needed / (double)total) / 100;
    char remedy[128];
    if (share <= 1 && needed <= config->memory_free_bytes)
        snprintf(remedy, sizeof(remedy), "--gpu-memory-utilization %.2f fits", share);
    else
        snprintf(remedy, sizeof(remedy), "with these flags it needs %s, of which %s are free",
                 byte_text(needed).text, byte_text(config->memory_free_bytes).text);
    return error_set_field(
        err, STATUS_OUT_OF_MEMORY, "--gpu-memory-utilization",
        "No available memory for the cache blocks: weights and workspace take %s of what "
        "--gpu-memory-utilization %g of %s's memory (%s) leaves free. Try increasing "
        "`gpu_memory_utilization` when initializing the engine: %s; or lower "
        "--max-num-batched-tokens (%d), --max-num-seqs (%d) or --max-model-len (%d). `vllm plan` "
        "with the same flags shows what each would change",
        byte_text(used_without_cache(config)).text, config->options->gpu_memory_utilization,
        memory_owner(config), byte_text(total).text, remedy, config->max_num_batched_tokens,
        config->max_num_seqs, config->max_model_len);
}

static enum status refuse_length(const struct engine_config *config, int32_t longest,
                                 struct error *err)
{
    const struct kv_cache_config *kv_cache = &config->kv_cache;
    int64_t needed = blocks_of_one(config) * kv_cache->block_bytes;
    int64_t available = kv_cache->num_blocks * kv_cache->block_bytes;
    bool is_override = config->options->num_gpu_blocks_override > 0;
    char remedy[160];
    if (is_override)
        snprintf(remedy, sizeof(remedy), "--num-gpu-blocks-override %" PRId64,
                 needed / kv_cache->block_bytes);
    else
        snprintf(remedy, sizeof(remedy), "--kv-cache-memory-bytes %" PRId64, needed);
    char shorter[96] = "";
    if (longest > 0)
        snprintf(shorter, sizeof(shorter), "--max-model-len %d (or auto), or ", longest);
    return error_set_field(
        err, STATUS_OUT_OF_MEMORY, "--max-model-len",
        "To serve at least one request with the model's max seq len (%d), %s KV cache is needed, "
        "which is larger than the available KV cache memory (%s in %d blocks). Based on the "
        "available memory, the estimated maximum model length is %d. Try increasing "
        "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine: "
        "%s%s fits",
        config->max_model_len, byte_text(needed).text, byte_text(available).text,
        kv_cache->num_blocks, longest, shorter, remedy);
}

/** The number of blocks that memory allows and that requests can use. */
static int64_t blocks_of_memory(const struct engine_config *config)
{
    const struct kv_cache_config *kv_cache = &config->kv_cache;
    int64_t blocks = config->available_bytes / kv_cache->block_bytes;
    if (config->options->kv_cache_memory_bytes < 0) // more than all requests together is no use
        blocks = min_i64(blocks, config->max_num_seqs * blocks_of_one(config));
    return max_i64(0, min_i64(blocks, INT32_MAX / kv_cache->block_size));
}

static enum status plan_blocks(struct engine_config *config, struct error *err)
{
    TRY(plan_available(config, err));
    struct kv_cache_config *kv_cache = &config->kv_cache;
    int32_t override = config->options->num_gpu_blocks_override;
    int64_t blocks = blocks_of_memory(config);
    if (override > 0) {
        int64_t total = config->memory_total_bytes - used_without_cache(config);
        if (override > INT32_MAX / kv_cache->block_size || override > total / kv_cache->block_bytes)
            return error_set_field(err, STATUS_OUT_OF_MEMORY, "--num-gpu-blocks-override",
                                   "--num-gpu-blocks-override %d: blocks of %s do not fit into "
                                   "%s's memory; at most %" PRId64 " do",
                                   override, byte_text(kv_cache->block_bytes).text,
                                   memory_owner(config), max_i64(total / kv_cache->block_bytes, 0));
        blocks = override;
    }
    if (blocks < 1)
        return refuse_no_block(config, err);
    kv_cache->num_blocks = (int32_t)blocks;
    return STATUS_OK;
}

/** All sizes for one context length. */
static enum status plan_for_length(struct engine_config *config, int32_t max_model_len,
                                   struct error *err)
{
    layer_groups_deinit(&config->kv_cache);
    config->max_model_len = max_model_len;
    TRY(limits_settle_batch(config, err));
    TRY(plan_groups(config, err));
    TRY(plan_model(config, err));
    plan_recorder(config);
    return plan_blocks(config, err);
}

static int32_t longest_length(const struct engine_config *config)
{
    return layer_groups_longest(&config->kv_cache, config->kv_cache.num_blocks,
                                config->max_model_len, engine_config_tokens_in_flight(config));
}

/** Which device, and a GPU's memory before anything of ours is there. */
static enum status plan_device(struct engine_config *config, struct error *err)
{
    config->device = worker_device_kind(config->options);
    if (config->device == DEVICE_CPU || config->has_given_memory)
        return STATUS_OK;
    struct device dev;
    TRY(worker_device_open(&dev, config->device, config->options, config->model, 1, err));
    dev.ops.memory_info(&dev, &config->memory_total_bytes, &config->memory_free_bytes);
    // What the backend holds already is counted again in the workspace.
    const struct backend_needs no_attention = {0};
    config->memory_free_bytes += (int64_t)dev.ops.own_bytes(&dev, &no_attention);
    device_deinit(&dev);
    return STATUS_OK;
}

/** Whether the next step is decided while one runs: on GPUs unless said. A pooling model has no
 *  token to wait for, and one place for a step's hidden states. */
static enum status plan_overlap(struct engine_config *config, struct error *err)
{
    enum tristate wanted = config->options->async_scheduling;
    bool is_pooling = config->pooling.type != POOLING_NONE;
    if (is_pooling && wanted == TRISTATE_TRUE)
        return error_set_field(err, STATUS_UNSUPPORTED, "--async-scheduling",
                               "--async-scheduling is not supported with a pooling model: leave it "
                               "out");
    config->async_scheduling = wanted == TRISTATE_UNSET
                                   ? config->device == DEVICE_CUDA && !is_pooling
                                   : wanted == TRISTATE_TRUE;
    return STATUS_OK;
}

/** Tells of a checkpoint that a GPU computes in another type than its own without being asked. */
static enum status warn_of_rounding(const struct engine_config *config, struct error *err)
{
    enum dtype from = config->model->dtype, to;
    TRY(worker_activation_dtype(&to, config->device, config->options, config->model, err));
    if (config->device == DEVICE_CUDA && worker_dtype_is_auto(config->options) && from != to)
        log_warning("the checkpoint's %s weights are rounded to %s on a GPU%s", dtype_name(from),
                    dtype_name(to),
                    from == DTYPE_F16 ? ": the model's activations outgrow float16" : "");
    return STATUS_OK;
}

static enum status plan(struct engine_config *config, struct error *err)
{
    const struct model_class *class;
    TRY(model_class_find(&class, config->model->architecture, err));
    TRY(pooling_config_load(&config->pooling, config->options, config->model, err));
    TRY(plan_device(config, err));
    TRY(plan_overlap(config, err));
    TRY(warn_of_rounding(config, err));
    TRY(limits_settle_length(config, err));
    TRY(plan_for_length(config, config->max_model_len, err));
    int32_t longest = longest_length(config);
    if (longest < config->max_model_len && longest > 0 && config->options->max_model_len == -1) {
        log_info("Auto-fit max_model_len: %d of the model's %d tokens fit into the KV cache",
                 longest, config->max_model_len);
        TRY(plan_for_length(config, longest, err));
        longest = longest_length(config);
    }
    return longest < config->max_model_len ? refuse_length(config, longest, err) : STATUS_OK;
}

enum status engine_config_plan_for(struct engine_config *config,
                                   const struct serve_options *options,
                                   const struct model_config *model, int64_t memory_bytes,
                                   struct error *err)
{
    struct host_memory memory = {memory_bytes, memory_bytes};
    if (memory_bytes == 0)
        memory = host_memory_read();
    *config = (struct engine_config){
        .options = options,
        .model = model,
        .has_given_memory = memory_bytes != 0,
        .memory_total_bytes = memory.total_bytes,
        .memory_free_bytes = memory.available_bytes,
    };
    return plan(config, err);
}

enum status engine_config_plan(struct engine_config *config, const struct serve_options *options,
                               const struct model_config *model, struct error *err)
{
    enum status status = engine_config_plan_for(config, options, model, 0, err);
    if (status != STATUS_OK)
        engine_config_deinit(config);
    return status;
}

void engine_config_deinit(struct engine_config *config)
{
    if (!config)
        return;
    layer_groups_deinit(&config->kv_cache);
    *config = (struct engine_config){0};
}
