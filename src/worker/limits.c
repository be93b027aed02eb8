// The limits of an engine before memory is looked at: see limits.h.
#include "worker/limits.h"

#include <inttypes.h>

#include "base/json_reader.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/memory.h"

enum {
    // vLLM's for a server on the CPU, on a GPU, and on one with much memory.
    CPU_BATCHED_TOKENS = 2048,
    CPU_SEQS = 128,
    GPU_BATCHED_TOKENS = 2048,
    GPU_SEQS = 256,
    LARGE_GPU_BATCHED_TOKENS = 8192,
    LARGE_GPU_SEQS = 1024,
    LARGE_GPU_GIB = 70,
    MAX_BATCHED_TOKENS = 1 << 24, // more is a typing error; sizes computed from it stay in range
    MAX_SEQS = 1 << 16,
};

static enum status read_max_len(struct str text, int64_t *out, struct error *err)
{
    struct arena arena = {0};
    struct json_reader json;
    json_reader_init(&json, text, &arena);
    enum status status = json_reader_expect(&json, JSON_TOKEN_OBJECT_BEGIN, err);
    for (struct str key; status == STATUS_OK && json_reader_next_key(&json, &key);) {
        enum json_token token = json_reader_peek(&json);
        bool is_number = token == JSON_TOKEN_INTEGER || token == JSON_TOKEN_DOUBLE;
        // Unlimited is written as a number beyond all lengths.
        if (str_eq_c(key, "model_max_length") && is_number && json.number >= 1 &&
            json.number < INT32_MAX)
            *out = (int64_t)json.number;
        json_reader_skip_value(&json);
    }
    if (status == STATUS_OK)
        status = json_reader_status(&json, err);
    arena_deinit(&arena);
    return status;
}

/** model_max_length of the tokenizer's configuration; 0 where nothing says. */
static enum status tokenizer_max_len(const struct engine_config *config, int64_t *out,
                                     struct error *err)
{
    *out = 0;
    if (config->options->skip_tokenizer_init)
        return STATUS_OK;
    const char *dir = config->options->tokenizer ? config->options->tokenizer : config->model->path;
    if (!dir) // a configuration from memory
        return STATUS_OK;
    struct arena arena = {0};
    const char *path = arena_printf(&arena, "%s/tokenizer_config.json", dir);
    struct mapped_file file;
    enum status status = mapped_file_open(&file, path, err);
    if (status == STATUS_OK) {
        status = read_max_len(mapped_file_str(&file), out, err);
        mapped_file_close(&file);
        if (status != STATUS_OK)
            error_prefix(err, "%s", path);
    } else if (status == STATUS_NOT_FOUND) {
        status = STATUS_OK; // optional
    }
    arena_deinit(&arena);
    return status;
}

enum status limits_settle_length(struct engine_config *config, struct error *err)
{
    int64_t from_tokenizer, wanted = config->options->max_model_len;
    TRY(tokenizer_max_len(config, &from_tokenizer, err));
    int32_t derived = model_config_derived_max_len(config->model, from_tokenizer);
    if (wanted > INT32_MAX / 2 || wanted < -1)
        return error_set_field(err, STATUS_INVALID, "--max-model-len",
                               "--max-model-len %" PRId64 ": expected 1 to %d, or -1", wanted,
                               INT32_MAX / 2);
    int32_t unsaid = model_config_default_max_len(config->model, from_tokenizer);
    config->max_model_len = wanted > 0 ? (int32_t)wanted : unsaid;
    if (wanted <= derived)
        return STATUS_OK;
    if (!config->options->allow_long_max_model_len)
        return error_set_field(
            err, STATUS_INVALID, "--max-model-len",
            "User-specified max_model_len (%" PRId64 ") is greater than the derived max_model_len "
            "(max_position_embeddings=%d or model_max_length=%" PRId64 " in the model's files "
            "allow %d). Use --max-model-len %d, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 when you "
            "know that the model can do more",
            wanted, config->model->max_position_embeddings, from_tokenizer, derived, derived);
    log_warning("max_model_len %" PRId64 " is longer than the %d that the model is made for; "
                "answers may be nonsense beyond that",
                wanted, derived);
    return STATUS_OK;
}

static enum status check_batch(const struct engine_config *config, struct error *err)
{
    const struct serve_options *options = config->options;
    int32_t tokens = config->max_num_batched_tokens, seqs = config->max_num_seqs;
    if (options->enable_chunked_prefill == TRISTATE_FALSE && tokens < config->max_model_len)
        return error_set_field(
            err, STATUS_INVALID, "--max-num-batched-tokens",
            "max_num_batched_tokens (%d) is smaller than max_model_len (%d). This effectively "
            "limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject "
            "longer sequences. Please increase max_num_batched_tokens or decrease max_model_len.",
            tokens, config->max_model_len);
    if (tokens < seqs)
        return error_set_field(err, STATUS_INVALID, "--max-num-batched-tokens",
                               "max_num_batched_tokens (%d) must be greater than or equal to "
                               "max_num_seqs (%d).",
                               tokens, seqs);
    if (options->long_prefill_token_threshold > config->max_model_len)
        return error_set_field(
            err, STATUS_INVALID, "--long-prefill-token-threshold",
            "long_prefill_token_threshold (%d) cannot be greater than the max_model_len (%d).",
            options->long_prefill_token_threshold, config->max_model_len);
    if (tokens > (int64_t)seqs * config->max_model_len)
        log_warning("max_num_batched_tokens (%d) exceeds max_num_seqs * max_model_len (%" PRId64
                    "): a step never has that many tokens",
                    tokens, (int64_t)seqs * config->max_model_len);
    return STATUS_OK;
}

enum status limits_settle_batch(struct engine_config *config, struct error *err)
{
    const struct serve_options *options = config->options;
    bool has_tokens = options->max_num_batched_tokens > 0, has_seqs = options->max_num_seqs > 0;
    bool is_gpu = config->device == DEVICE_CUDA;
    bool is_large = config->memory_total_bytes >= (int64_t)LARGE_GPU_GIB << 30;
    int32_t tokens = !is_gpu    ? CPU_BATCHED_TOKENS
                     : is_large ? LARGE_GPU_BATCHED_TOKENS
                                : GPU_BATCHED_TOKENS;
    int32_t seqs = !is_gpu ? CPU_SEQS : is_large ? LARGE_GPU_SEQS : GPU_SEQS;
    tokens = has_tokens ? options->max_num_batched_tokens : tokens;
    seqs = has_seqs ? options->max_num_seqs : seqs;
    if (!has_tokens) {
        if (options->enable_chunked_prefill == TRISTATE_FALSE)
            tokens = max_i32(tokens, config->max_model_len);
        tokens = (int32_t)min_i64(tokens, (int64_t)seqs * config->max_model_len);
    }
    if (!has_seqs)
        seqs = min_i32(seqs, tokens);
    if (tokens > MAX_BATCHED_TOKENS || seqs > MAX_SEQS)
        return error_set(err, STATUS_INVALID,
                         "--max-num-batched-tokens %d, --max-num-seqs %d: expected at most %d and "
                         "%d",
                         tokens, seqs, MAX_BATCHED_TOKENS, MAX_SEQS);
    config->max_num_batched_tokens = tokens;
    config->max_num_seqs = seqs;
    return check_batch(config, err);
}
