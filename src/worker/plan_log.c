// The plan in plain words, and the lines that log scrapers look for.
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "worker/host_memory.h"
#include "worker/layer_groups.h"
#include "worker/model_runner.h"
#include "worker/worker.h"
#include "worker/worker_device.h"

/** "1,234,567". */
struct number_text {
    char text[32];
};

static struct number_text number_text(int64_t value)
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%" PRId64, value);
    struct number_text out;
    int used = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out.text[used++] = ',';
        out.text[used++] = digits[i];
    }
    out.text[used] = '\0';
    return out;
}

static void log_dtype(const struct engine_config *config)
{
    struct weight_store_options weights;
    if (worker_weight_options(&weights, config->device, config->options, config->model,
                              WEIGHTS_PLAN, NULL) != STATUS_OK)
        return; // planning would have failed
    enum dtype from = config->model->dtype, to = weights.model_dtype;
    if (from == to)
        return;
    const char *from_name = dtype_name(from), *to_name = dtype_name(to);
    if (to == DTYPE_F32)
        log_info("Upcasting %s to %s.", from_name, to_name);
    else if (from == DTYPE_F32)
        log_info("Downcasting %s to %s.", from_name, to_name);
    else
        log_warning("Casting %s to %s.", from_name, to_name);
}

static void log_cache(const struct engine_config *config)
{
    const struct model_config *model = config->model;
    const struct kv_cache_config *kv_cache = &config->kv_cache;
    enum dtype dtype;
    if (worker_kv_dtype(&dtype, config->device, config->options, NULL) != STATUS_OK)
        return; // planning would have failed
    log_info("  KV cache: %s in %s blocks of %d tokens, %" PRId64
             " bytes a token = 2 (key and value) x %d layers x %d heads x %d x %zu bytes (%s)",
             byte_text(kv_cache->num_blocks * kv_cache->block_bytes).text,
             number_text(kv_cache->num_blocks).text, kv_cache->block_size,
             kv_cache->block_bytes / kv_cache->block_size, kv_cache->layers_per_group,
             model->num_key_value_heads, model->head_dim, dtype_size(dtype), dtype_name(dtype));
    for (int32_t g = 0; kv_cache->num_groups > 1 && g < kv_cache->num_groups; g++) {
        const struct kv_cache_group *group = &kv_cache->groups[g];
        if (group->kind == KV_CACHE_GROUP_SLIDING)
            log_info("    group %d: %d layers that see the last %d tokens", g, group->num_layers,
                     group->window);
        else
            log_info("    group %d: %d layers that see all tokens", g, group->num_layers);
    }
}

void engine_config_log(const struct engine_config *config)
{
    const struct kv_cache_config *kv_cache = &config->kv_cache;
    int64_t cache_bytes = kv_cache->num_blocks * kv_cache->block_bytes;
    log_dtype(config);
    log_info("Using max model len %d", config->max_model_len);
    if (config->options->enable_chunked_prefill != TRISTATE_FALSE)
        log_info("Chunked prefill is enabled with max_num_batched_tokens=%d.",
                 config->max_num_batched_tokens);
    log_info("Memory plan: %s in all",
             byte_text(config->weight_bytes + config->mapped_bytes + config->workspace_bytes +
                       config->graph_bytes + cache_bytes)
                 .text);
    log_info("  weights: %s used in place from the mapped files, %s copied",
             byte_text(config->mapped_bytes).text, byte_text(config->weight_bytes).text);
    log_info("  workspace: %s for steps of up to %s tokens of up to %s requests",
             byte_text(config->workspace_bytes).text,
             number_text(config->max_num_batched_tokens).text,
             number_text(config->max_num_seqs).text);
    if (config->graph_bytes > 0)
        log_info("  CUDA graphs: %s set aside for %d, of steps of up to %d requests",
                 byte_text(config->graph_bytes).text, step_graphs_count(config),
                 step_graphs_max_size(config));
    log_cache(config);
    if (config->options->num_gpu_blocks_override > 0)
        log_info("Overriding num_gpu_blocks=%" PRId64 " with num_gpu_blocks_override=%d",
                 config->available_bytes > 0 ? config->available_bytes / kv_cache->block_bytes : 0,
                 config->options->num_gpu_blocks_override);
    log_info("Available KV cache memory: %.2f GiB",
             (double)max_i64(config->available_bytes, 0) / (1024.0 * 1024 * 1024));
    double concurrency =
        (double)kv_cache->num_blocks / (double)layer_groups_blocks(kv_cache, config->max_model_len,
                                                                   config->max_num_batched_tokens);
    log_info("GPU KV cache size: %s tokens",
             number_text((int64_t)(concurrency * config->max_model_len)).text);
    log_info("Maximum concurrency for %s tokens per request: %.2fx",
             number_text(config->max_model_len).text, concurrency);
}
