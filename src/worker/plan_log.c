// The plan in plain words, and the lines that log scrapers look for.
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "worker/model_runner.h"
#include "worker/plan_report.h"
#include "worker/worker.h"
#include "worker/worker_device.h"

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

static void log_lines(struct str text)
{
    while (text.len > 0) {
        struct str line = str_split(&text, '\n');
        log_info(STR_FORMAT, STR_ARG(line));
    }
}

void engine_config_log(const struct engine_config *config)
{
    log_info("Resolved architecture: %s", config->model->architecture);
    log_dtype(config);
    const struct pooling_config *pooling = &config->pooling;
    if (pooling->type != POOLING_NONE)
        log_info("Pooling prompts into embeddings: pooling_type=%s, use_activation=%s, "
                 "dimensions=%d",
                 pooling_type_name(pooling->type), pooling->use_activation ? "True" : "False",
                 pooling->dimensions > 0 ? pooling->dimensions : config->model->hidden_size);
    log_info("Using max model len %d", config->max_model_len);
    if (config->options->enable_chunked_prefill != TRISTATE_FALSE)
        log_info("Chunked prefill is enabled with max_num_batched_tokens=%d.",
                 config->max_num_batched_tokens);
    struct buf table = {0};
    plan_report_text(&table, config);
    log_lines(buf_str(&table));
    buf_deinit(&table);
}

void engine_config_log_cache(const struct engine_config *config)
{
    const struct kv_cache_config *kv_cache = &config->kv_cache;
    if (config->options->num_gpu_blocks_override > 0)
        log_info("Overriding num_gpu_blocks=%" PRId64 " with num_gpu_blocks_override=%d",
                 config->available_bytes > 0 ? config->available_bytes / kv_cache->block_bytes : 0,
                 config->options->num_gpu_blocks_override);
    log_info("Available KV cache memory: %.2f GiB",
             (double)max_i64(config->available_bytes, 0) / (1024.0 * 1024 * 1024));
    double concurrency = engine_config_concurrency(config, config->max_model_len);
    log_info("GPU KV cache size: %s tokens",
             number_text((int64_t)(concurrency * config->max_model_len)).text);
    log_info("Maximum concurrency for %s tokens per request: %.2fx",
             number_text(config->max_model_len).text, concurrency);
}
