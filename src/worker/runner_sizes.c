// Bytes of a step's memory, from the limits and the model: what plan.c sums up and model_runner.c
// allocates.
#include "base/memory.h"
#include "worker/model_runner.h"
#include "worker/worker_device.h"

enum {
    SLICE_BYTES = 64 * 1024 * 1024,
    MIN_SLICE_ROWS = 16,
    MAX_DEVICE_SLICE_ROWS = 512,
};

struct input_batch_options runner_batch_options(const struct engine_config *config,
                                                struct device *dev)
{
    return (struct input_batch_options){
        .max_num_seqs = config->max_num_seqs,
        .max_model_len = config->max_model_len,
        .max_num_batched_tokens = config->max_num_batched_tokens,
        .kv_cache = &config->kv_cache,
        .dev = dev,
        .num_steps = config->async_scheduling ? MAX_RUNNER_STEPS : 1,
    };
}

struct pooler_options runner_pooler_options(const struct engine_config *config, struct device *dev)
{
    return (struct pooler_options){
        .type = config->pooling.type,
        .max_num_seqs = config->max_num_seqs,
        .max_num_batched_tokens = config->max_num_batched_tokens,
        .hidden_size = config->model->hidden_size,
        .dev = dev,
    };
}

/** What the sampler takes from a thread's arena: scratch for one row, and for each row that wants
 *  log-probabilities a copy of its raw logits until the step is over. */
static size_t sampler_bytes(const struct engine_config *config, int32_t num_threads)
{
    const size_t scratch_per_token = 32; // of the vocabulary: candidates, counts, flags
    if (config->pooling.type != POOLING_NONE)
        return 0;
    size_t vocab_size = (size_t)config->model->vocab_size;
    size_t rows = (size_t)ceil_div(config->max_num_seqs, num_threads) + 1;
    return rows * (vocab_size * sizeof(float) + 1024) + vocab_size * scratch_per_token + 4096;
}

/** Rows whose logits are computed at a time. */
static int32_t slice_rows(const struct engine_config *config, const struct device *dev)
{
    int64_t rows = MAX_DEVICE_SLICE_ROWS;
    if (dev->has_host_memory) {
        rows = SLICE_BYTES / (config->model->vocab_size * (int64_t)sizeof(float));
        rows = max_i64(MIN_SLICE_ROWS, min_i64(rows, MAX_SLICE_ROWS));
    }
    return (int32_t)min_i64(rows, config->max_num_batched_tokens);
}

/** Windows that differ; layers with one share what attention keeps for it. */
static int32_t count_windows(const struct kv_cache_config *kv_cache)
{
    int32_t count = 0;
    for (int32_t g = 0; g < kv_cache->num_groups; g++) {
        bool is_new = true;
        for (int32_t other = 0; other < g; other++)
            is_new = is_new && kv_cache->groups[other].window != kv_cache->groups[g].window;
        count += is_new;
    }
    return count;
}

struct backend_needs runner_needs(const struct engine_config *config)
{
    const struct model_config *model = config->model;
    struct backend_needs needs = {
        .num_heads = model->num_attention_heads,
        .num_kv_heads = model->num_key_value_heads,
        .head_dim = model->head_dim,
        .block_size = config->kv_cache.block_size,
        .num_windows = count_windows(&config->kv_cache),
        .max_seqs = config->max_num_seqs,
        .max_tokens = config->max_num_batched_tokens,
    };
    if (worker_quantization(config->options, model)) { // of a decoder's linear layers
        int64_t heads = (int64_t)model->num_attention_heads * model->head_dim;
        int64_t kv_heads = (int64_t)model->num_key_value_heads * model->head_dim;
        needs.f8_in_features =
            max_i64(max_i64(model->hidden_size, model->intermediate_size), heads);
        needs.f8_out_features =
            max_i64(max_i64(2 * (int64_t)model->intermediate_size, heads + 2 * kv_heads),
                    model->hidden_size);
    }
    return needs;
}

/** What the backend's operations keep for themselves. */
static void backend_sizes(struct runner_sizes *sizes, const struct engine_config *config,
                          const struct device *dev)
{
    const struct backend_needs needs = runner_needs(config);
    const struct backend_needs products = {.max_tokens = needs.max_tokens,
                                           .f8_in_features = needs.f8_in_features,
                                           .f8_out_features = needs.f8_out_features};
    if (!dev->ops.own_bytes)
        return;
    sizes->products_bytes = dev->ops.own_bytes(dev, &products);
    sizes->decoding_bytes = dev->ops.own_bytes(dev, &needs) - sizes->products_bytes;
}

struct runner_sizes model_runner_sizes(const struct engine_config *config,
                                       const struct model *model, struct device *dev)
{
    int64_t tokens = config->max_num_batched_tokens;
    int64_t hidden_size = config->model->hidden_size, vocab_size = config->model->vocab_size;
    enum dtype dtype = dev->activation_dtype;
    struct runner_sizes sizes = {.logits_rows = slice_rows(config, dev),
                                 .sampler_bytes = sampler_bytes(config, dev->num_threads),
                                 .num_threads = dev->num_threads};

    backend_sizes(&sizes, config, dev);
    size_t layers = model->class->scratch_bytes(model, dtype, tokens);
    size_t logits = workspace_tensor_bytes(dtype, sizes.logits_rows, hidden_size) +
                    workspace_tensor_bytes(DTYPE_F32, sizes.logits_rows, vocab_size);
    if (config->pooling.type != POOLING_NONE)
        logits = 0; // nobody reads any
    struct pooler_options pooler = runner_pooler_options(config, dev);
    sizes.pooler_bytes = pooler_bytes(&pooler);
    sizes.pooler_staging_bytes = pooler_staging_bytes(&pooler);
    sizes.activation_bytes = 2 * workspace_tensor_bytes(dtype, tokens, hidden_size) +
                             (layers > logits ? layers : logits);
    struct input_batch_options batch = runner_batch_options(config, dev);
    sizes.batch_bytes = input_batch_bytes(&batch);
    sizes.step_bytes = input_batch_step_bytes(&batch);
    sizes.staging_bytes = input_batch_staging_bytes(&batch);
    sizes.num_steps = batch.num_steps;
    size_t num_seqs = (size_t)config->max_num_seqs;
    sizes.list_bytes =
        (size_t)tokens * (sizeof(struct logits_row) + sizeof(struct token_logprobs)) +
        num_seqs * (sizeof(struct row_output) + sizeof(struct token_logprobs));
    bool draws = config->pooling.type == POOLING_NONE;
    if (draws)
        sizes.constraint_bytes =
            token_loader_max_bytes(config->model->vocab_size) +
            constraint_store_bytes(config->model->vocab_size) +
            (size_t)MAX_LIVE_AUTOMATON_WORDS * sizeof(uint32_t); // the scheduler's
    if (dev->has_host_memory || !draws)
        return sizes;
    sizes.logprob_bytes =
        num_seqs *
        ((1 + MAX_DEVICE_LOGPROBS) * (sizeof(int32_t) + sizeof(float)) + sizeof(int32_t));
    sizes.drawn_bytes = (size_t)tokens * sizeof(int32_t);
    sizes.host_logits_bytes = MAX_HOST_LOGITS * (size_t)vocab_size * sizeof(float);
    return sizes;
}

int64_t runner_sizes_pinned(const struct runner_sizes *sizes, const struct device *dev)
{
    if (dev->has_host_memory)
        return 0;
    return (int64_t)(sizes->staging_bytes + sizes->host_logits_bytes + sizes->pooler_staging_bytes +
                     (size_t)sizes->num_steps * (sizes->drawn_bytes + sizes->logprob_bytes));
}

void runner_sizes_split(const struct runner_sizes *sizes, const struct device *dev,
                        int64_t *device_parts, int64_t *host_bytes)
{
    int64_t batch = (int64_t)sizes->batch_bytes;
    int64_t lists = (int64_t)sizes->list_bytes * sizes->num_steps;
    int64_t samplers = (int64_t)sizes->sampler_bytes * sizes->num_threads * sizes->num_steps;
    device_parts[WORKSPACE_ACTIVATIONS] = (int64_t)sizes->activation_bytes;
    device_parts[WORKSPACE_BATCH] =
        (int64_t)(sizes->step_bytes + sizes->drawn_bytes + sizes->logprob_bytes);
    device_parts[WORKSPACE_PRODUCTS] = (int64_t)sizes->products_bytes;
    device_parts[WORKSPACE_DECODING] = (int64_t)sizes->decoding_bytes;
    int64_t constraints = (int64_t)sizes->constraint_bytes, pooler = (int64_t)sizes->pooler_bytes;
    device_parts[WORKSPACE_LISTS] = device_parts[WORKSPACE_SAMPLER] = *host_bytes = 0;
    device_parts[WORKSPACE_CONSTRAINTS] = device_parts[WORKSPACE_POOLER] = 0;
    if (dev->has_host_memory) {
        device_parts[WORKSPACE_BATCH] += batch;
        device_parts[WORKSPACE_LISTS] = lists;
        device_parts[WORKSPACE_SAMPLER] = samplers;
        device_parts[WORKSPACE_CONSTRAINTS] = constraints;
        device_parts[WORKSPACE_POOLER] = pooler + (int64_t)sizes->pooler_staging_bytes;
    } else {
        *host_bytes =
            batch + lists + samplers + constraints + pooler + runner_sizes_pinned(sizes, dev);
    }
}
