// The memory plan as text and as JSON: see plan_report.h.
#include "worker/plan_report.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/memory.h"
#include "worker/host_memory.h"
#include "worker/layer_groups.h"
#include "worker/model_runner.h"
#include "worker/worker_device.h"

enum { MAX_LENGTHS = 8, SHORTEST_LENGTH = 128 };

static const char *const weight_kind_names[NUM_WEIGHT_KINDS] = {
    [WEIGHT_KIND_EMBEDDINGS] = "embeddings",
    [WEIGHT_KIND_ATTENTION] = "attention",
    [WEIGHT_KIND_MLP] = "mlp",
    [WEIGHT_KIND_EXPERTS] = "experts",
    [WEIGHT_KIND_NORMS] = "norms",
    [WEIGHT_KIND_HEAD] = "head",
    [WEIGHT_KIND_TABLES] = "tables",
    [WEIGHT_KIND_OTHER] = "other",
};

static const char *const workspace_part_names[NUM_WORKSPACE_PARTS] = {
    [WORKSPACE_ACTIVATIONS] = "activations",
    [WORKSPACE_BATCH] = "batch",
    [WORKSPACE_LISTS] = "lists",
    [WORKSPACE_SAMPLER] = "sampler",
    [WORKSPACE_PRODUCTS] = "products",
    [WORKSPACE_DECODING] = "decoding",
    [WORKSPACE_CONSTRAINTS] = "structured output",
    [WORKSPACE_POOLER] = "pooler",
};

struct number_text number_text(int64_t value)
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%" PRId64, value);
    struct number_text out;
    int used = 0, first = value < 0;
    for (int i = 0; i < len; i++) {
        if (i > first && (len - i) % 3 == 0)
            out.text[used++] = ',';
        out.text[used++] = digits[i];
    }
    out.text[used] = '\0';
    return out;
}

static int64_t weights_total(const struct engine_config *config)
{
    return config->weight_bytes + config->mapped_bytes;
}

static int64_t cache_bytes(const struct engine_config *config)
{
    return config->kv_cache.num_blocks * config->kv_cache.block_bytes;
}

int64_t engine_config_total_bytes(const struct engine_config *config)
{
    int64_t recorder_bytes = config->device == DEVICE_CPU ? config->recorder_bytes : 0;
    return weights_total(config) + config->workspace_bytes + config->graph_bytes + recorder_bytes +
           cache_bytes(config);
}

double engine_config_concurrency(const struct engine_config *config, int32_t len)
{
    int64_t blocks =
        layer_groups_blocks(&config->kv_cache, len, engine_config_tokens_in_flight(config));
    return blocks > 0 ? (double)config->kv_cache.num_blocks / (double)blocks : 0;
}

static enum dtype cache_dtype(const struct engine_config *config)
{
    enum dtype dtype = DTYPE_F32;
    // A name that is not known was refused when the plan was made.
    if (worker_kv_dtype(&dtype, config->device, config->options, config->model, NULL) != STATUS_OK)
        dtype = DTYPE_F32;
    return dtype;
}

/** What quantises the weights; NULL: nothing. */
static const char *quantization_of(const struct engine_config *config)
{
    const struct quantization *quantization = worker_quantization(config->options, config->model);
    return quantization ? quantization_method(quantization) : NULL;
}

/** "2 (key and value) x 8 layers x 2 heads x 64 x 2 bytes (bfloat16)". */
static void append_formula(struct buf *out, const struct engine_config *config)
{
    enum dtype dtype = cache_dtype(config);
    buf_printf(out, "2 (key and value) x %d layers x %d heads x %d x %zu bytes (%s)",
               config->kv_cache.layers_per_group, config->model->num_key_value_heads,
               config->model->head_dim, dtype_size(dtype), dtype_name(dtype));
}

// ---- text ----------------------------------------------------------------------------------

static void append_row(struct buf *out, int indent, const char *name, int64_t bytes)
{
    buf_printf(out, "%*s%-*s%12s\n", indent, "", 24 - indent, name, byte_text(bytes).text);
}

static void append_groups(struct buf *out, const struct kv_cache_config *kv_cache)
{
    for (int32_t g = 0; kv_cache->num_groups > 1 && g < kv_cache->num_groups; g++) {
        const struct kv_cache_group *group = &kv_cache->groups[g];
        if (group->kind == KV_CACHE_GROUP_SLIDING)
            buf_printf(out, "    group %d: %d layers that see the last %d tokens\n", g,
                       group->num_layers, group->window);
        else
            buf_printf(out, "    group %d: %d layers that see all tokens\n", g, group->num_layers);
    }
}

static void append_memory(struct buf *out, const struct engine_config *config)
{
    buf_printf(out, "  %-22s%12s of ", "in all", byte_text(engine_config_total_bytes(config)).text);
    if (config->has_given_memory)
        buf_printf(out, "the %s given\n", byte_text(config->memory_total_bytes).text);
    else
        buf_printf(out, "%s's %s, %s of them free\n",
                   config->device == DEVICE_CUDA ? "the GPU" : "this host",
                   byte_text(config->memory_total_bytes).text,
                   byte_text(config->memory_free_bytes).text);
    if (config->host_bytes > 0)
        buf_printf(out,
                   "  %-22s%12s, %s of them pinned for copies, and %s for the flight recorder\n",
                   "beside it, of the host", byte_text(config->host_bytes).text,
                   byte_text(config->pinned_bytes).text, byte_text(config->recorder_bytes).text);
}

void plan_report_text(struct buf *out, const struct engine_config *config)
{
    const struct kv_cache_config *kv_cache = &config->kv_cache;
    buf_printf(out, "Memory plan: %s, requests of up to %s tokens\n", config->model->architecture,
               number_text(config->max_model_len).text);
    buf_printf(out, "  %-22s%12s", "weights", byte_text(weights_total(config)).text);
    if (config->mapped_bytes > 0)
        buf_printf(out, ", %s of them used in place from the mapped files, %s copied",
                   byte_text(config->mapped_bytes).text, byte_text(config->weight_bytes).text);
    if (quantization_of(config))
        buf_printf(out, ", linear layers in 8 bits (%s)", quantization_of(config));
    buf_append_char(out, '\n');
    for (int kind = 0; kind < NUM_WEIGHT_KINDS; kind++) {
        bool is_tied_head = kind == WEIGHT_KIND_HEAD && config->model->tie_word_embeddings &&
                            config->pooling.type == POOLING_NONE &&
                            config->weight_kind_bytes[kind] == 0;
        if (is_tied_head)
            buf_printf(out, "    %-20s%12s\n", weight_kind_names[kind], "embeddings");
        else if (config->weight_kind_bytes[kind] > 0)
            append_row(out, 4, weight_kind_names[kind], config->weight_kind_bytes[kind]);
    }
    buf_printf(out, "  %-22s%12s for steps of up to %s tokens of up to %s requests\n", "workspace",
               byte_text(config->workspace_bytes).text,
               number_text(config->max_num_batched_tokens).text,
               number_text(config->max_num_seqs).text);
    for (int part = 0; part < NUM_WORKSPACE_PARTS; part++) {
        if (config->workspace_part_bytes[part] > 0)
            append_row(out, 4, workspace_part_names[part], config->workspace_part_bytes[part]);
    }
    if (config->graph_bytes > 0)
        buf_printf(out, "  %-22s%12s for %d, of steps of up to %d requests\n", "CUDA graphs",
                   byte_text(config->graph_bytes).text, step_graphs_count(config),
                   step_graphs_max_size(config));
    buf_printf(out, "  %-22s%12s in %s blocks of %d tokens\n", "KV cache",
               byte_text(cache_bytes(config)).text, number_text(kv_cache->num_blocks).text,
               kv_cache->block_size);
    buf_printf(out, "    %s bytes a token = ",
               number_text(kv_cache->block_bytes / kv_cache->block_size).text);
    append_formula(out, config);
    buf_append_char(out, '\n');
    append_groups(out, kv_cache);
    if (config->device == DEVICE_CPU)
        append_row(out, 2, "flight recorder", config->recorder_bytes);
    append_memory(out, config);
}

/** max_model_len and halves of it, rounded to powers of two, longest first. */
static int32_t list_lengths(const struct engine_config *config, int32_t *lengths)
{
    int32_t count = 0, power = 1;
    lengths[count++] = config->max_model_len;
    while (power <= config->max_model_len / 2)
        power *= 2;
    for (; power >= SHORTEST_LENGTH && count < MAX_LENGTHS; power /= 2) {
        if (power < config->max_model_len)
            lengths[count++] = power;
    }
    return count;
}

void plan_report_concurrency(struct buf *out, const struct engine_config *config)
{
    int32_t lengths[MAX_LENGTHS], count = list_lengths(config, lengths);
    buf_append_c(out, "Requests that fit at once, by their length\n");
    for (int32_t i = 0; i < count; i++) {
        double requests = engine_config_concurrency(config, lengths[i]);
        bool is_capped = requests > config->max_num_seqs;
        buf_printf(out, "  %9s tokens  %10.2f", number_text(lengths[i]).text, requests);
        if (is_capped)
            buf_printf(out, "  (--max-num-seqs lets %d run)", config->max_num_seqs);
        buf_append_char(out, '\n');
    }
}

// ---- JSON ----------------------------------------------------------------------------------

static void json_key(struct buf *out, const char *name)
{
    char last = out->ptr[out->len - 1];
    if (last != '{' && last != '[')
        buf_append_char(out, ',');
    buf_append_json_string(out, str_from(name));
    buf_append_char(out, ':');
}

static void json_int(struct buf *out, const char *name, int64_t value)
{
    json_key(out, name);
    buf_append_int(out, value);
}

static void json_text(struct buf *out, const char *name, const char *value)
{
    json_key(out, name);
    buf_append_json_string(out, str_from(value));
}

static void json_begin(struct buf *out, const char *name, char bracket)
{
    json_key(out, name);
    buf_append_char(out, bracket);
}

static void json_parts(struct buf *out, const char *const *names, const int64_t *bytes, int count)
{
    for (int i = 0; i < count; i++) {
        char name[48];
        snprintf(name, sizeof(name), "%s_bytes", names[i]);
        json_int(out, name, bytes[i]);
    }
}

static void json_cache(struct buf *out, const struct engine_config *config)
{
    const struct kv_cache_config *kv_cache = &config->kv_cache;
    json_begin(out, "kv_cache", '{');
    json_int(out, "total_bytes", cache_bytes(config));
    json_int(out, "bytes_per_token", kv_cache->block_bytes / kv_cache->block_size);
    struct buf formula = {0};
    append_formula(&formula, config);
    json_key(out, "formula");
    buf_append_json_string(out, buf_str(&formula));
    buf_deinit(&formula);
    json_text(out, "dtype", dtype_name(cache_dtype(config)));
    json_int(out, "block_size", kv_cache->block_size);
    json_int(out, "block_bytes", kv_cache->block_bytes);
    json_int(out, "num_blocks", kv_cache->num_blocks);
    double concurrency = engine_config_concurrency(config, config->max_model_len);
    json_int(out, "size_tokens", (int64_t)(concurrency * config->max_model_len));
    json_int(out, "available_bytes", max_i64(config->available_bytes, 0));
    json_begin(out, "groups", '[');
    for (int32_t g = 0; g < kv_cache->num_groups; g++) {
        const struct kv_cache_group *group = &kv_cache->groups[g];
        buf_append_c(out, g > 0 ? ",{" : "{");
        json_text(out, "kind", group->kind == KV_CACHE_GROUP_SLIDING ? "sliding" : "full");
        json_int(out, "num_layers", group->num_layers);
        json_int(out, "window", group->window);
        buf_append_char(out, '}');
    }
    buf_append_c(out, "]}");
}

static void json_concurrency(struct buf *out, const struct engine_config *config)
{
    int32_t lengths[MAX_LENGTHS], count = list_lengths(config, lengths);
    json_begin(out, "max_concurrency", '[');
    for (int32_t i = 0; i < count; i++) {
        buf_append_c(out, i > 0 ? ",{" : "{");
        json_int(out, "num_tokens", lengths[i]);
        json_key(out, "num_requests");
        buf_append_json_double(out, engine_config_concurrency(config, lengths[i]));
        buf_append_char(out, '}');
    }
    buf_append_char(out, ']');
}

static void json_verdict(struct buf *out, const struct plan_verdict *verdict)
{
    json_key(out, "problem");
    if (verdict->problem)
        buf_append_json_string(out, str_from(verdict->problem));
    else
        buf_append_c(out, "null");
    json_begin(out, "remedies", '[');
    for (int32_t i = 0; i < verdict->num_remedies; i++) {
        buf_append_c(out, i > 0 ? ",{" : "{");
        json_text(out, "flags", verdict->remedies[i].flags);
        json_text(out, "effect", verdict->remedies[i].effect);
        buf_append_char(out, '}');
    }
    buf_append_char(out, ']');
}

void plan_report_json(struct buf *out, const struct engine_config *config,
                      const struct plan_verdict *verdict)
{
    buf_append_char(out, '{');
    json_text(out, "model", config->options->model);
    json_text(out, "architecture", config->model->architecture);
    json_text(out, "device", config->device == DEVICE_CUDA ? "cuda" : "cpu");
    json_key(out, "fits");
    buf_append_c(out, verdict->problem ? "false" : "true");
    json_int(out, "max_model_len", config->max_model_len);
    json_int(out, "max_num_seqs", config->max_num_seqs);
    json_int(out, "max_num_batched_tokens", config->max_num_batched_tokens);
    json_begin(out, "memory", '{');
    json_int(out, "total_bytes", config->memory_total_bytes);
    json_int(out, "free_bytes", config->memory_free_bytes);
    json_int(out, "planned_bytes", engine_config_total_bytes(config));
    buf_append_char(out, '}');
    json_begin(out, "weights", '{');
    json_int(out, "total_bytes", weights_total(config));
    json_int(out, "mapped_bytes", config->mapped_bytes);
    json_int(out, "copied_bytes", config->weight_bytes);
    json_key(out, "quantization");
    if (quantization_of(config))
        buf_append_json_string(out, str_from(quantization_of(config)));
    else
        buf_append_c(out, "null");
    json_parts(out, weight_kind_names, config->weight_kind_bytes, NUM_WEIGHT_KINDS);
    buf_append_char(out, '}');
    json_begin(out, "workspace", '{');
    json_int(out, "total_bytes", config->workspace_bytes);
    json_parts(out, workspace_part_names, config->workspace_part_bytes, NUM_WORKSPACE_PARTS);
    buf_append_char(out, '}');
    json_int(out, "graph_bytes", config->graph_bytes);
    json_int(out, "host_bytes", config->host_bytes);
    json_int(out, "pinned_host_bytes", config->pinned_bytes);
    json_int(out, "recorder_bytes", config->recorder_bytes);
    json_cache(out, config);
    json_concurrency(out, config);
    json_verdict(out, verdict);
    buf_append_char(out, '}');
}
