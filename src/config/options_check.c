// What comes after the command line: the environment, values that follow from others, and the
// checks that need no model, so that a mistake ends the start in milliseconds.
#include "config/option_table.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/memory.h"

enum { MAX_RANKS_TEXT = 4096, GIB_SHIFT = 30, MAX_KV_CACHE_GIB = 1 << 20, MAX_CORE = 65535 };

const char *options_env(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static enum status env_int(const char *name, int64_t min, int64_t max, int64_t *out,
                           struct error *err)
{
    const char *text = options_env(name);
    if (!text)
        return STATUS_OK;
    int64_t value = 0;
    if (plain_int_parse(str_from(text), &value, NULL) != STATUS_OK || value < min || value > max)
        return error_set_field(err, STATUS_INVALID, name,
                               "the environment variable %s is '%.100s', expected an integer from "
                               "%lld to %lld",
                               name, text, (long long)min, (long long)max);
    *out = value;
    return STATUS_OK;
}

static enum status env_bool(const char *name, bool *out, struct error *err)
{
    const char *text = options_env(name);
    if (!text)
        return STATUS_OK;
    bool on = strcmp(text, "1") == 0 || strcasecmp(text, "true") == 0;
    if (!on && strcmp(text, "0") != 0 && strcasecmp(text, "false") != 0)
        return error_set_field(err, STATUS_INVALID, name,
                               "the environment variable %s is '%.100s', expected 0 or 1", name,
                               text);
    *out = on;
    return STATUS_OK;
}

static enum status read_log_level(struct serve_options *options, const struct options_given *given,
                                  struct error *err)
{
    const char *text = options_env("VLLM_LOGGING_LEVEL");
    enum log_level level = LOG_LEVEL_INFO;
    if (text && !log_level_parse(text, &level))
        return error_set_field(err, STATUS_INVALID, "VLLM_LOGGING_LEVEL",
                               "the environment variable VLLM_LOGGING_LEVEL is '%.100s', expected "
                               "DEBUG, INFO, WARNING, ERROR or CRITICAL",
                               text);
    if (text && !given->log_level)
        options->log_level = level;
    if (given->log_level && !given->uvicorn_log_level)
        options->uvicorn_log_level = options->log_level;
    return STATUS_OK;
}

static enum status read_stats_interval(struct serve_options *options, struct error *err)
{
    const char *text = options_env("VLLM_LOG_STATS_INTERVAL");
    if (!text)
        return STATUS_OK;
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value > 1e9)
        return error_set_field(err, STATUS_INVALID, "VLLM_LOG_STATS_INTERVAL",
                               "the environment variable VLLM_LOG_STATS_INTERVAL is '%.100s', "
                               "expected a number of seconds",
                               text);
    if (value > 0)
        options->log_stats_interval_s = value;
    return STATUS_OK;
}

/** "auto", "nobind", or cores such as "0-7,16,18" (with one rank there is no '|'). */
static enum status read_threads_bind(struct serve_options *options, struct error *err)
{
    const char *text = options_env("VLLM_CPU_OMP_THREADS_BIND");
    if (!text)
        return STATUS_OK;
    bool fine = strcmp(text, "auto") == 0 || strcmp(text, "nobind") == 0;
    if (!fine && strlen(text) < MAX_RANKS_TEXT) {
        struct str rest = str_from(text);
        for (fine = true; fine && rest.len > 0;) {
            struct str high = str_split(&rest, ','), low = str_split(&high, '-');
            int64_t first = 0, last = 0;
            fine = plain_int_parse(low, &first, NULL) == STATUS_OK && first >= 0;
            last = first;
            if (fine && high.ptr && high.len > 0)
                fine = plain_int_parse(high, &last, NULL) == STATUS_OK;
            fine = fine && last >= first && last <= MAX_CORE;
        }
        fine = fine && text[strlen(text) - 1] != ',' && text[strlen(text) - 1] != '-';
    }
    if (!fine)
        return error_set_field(err, STATUS_INVALID, "VLLM_CPU_OMP_THREADS_BIND",
                               "the environment variable VLLM_CPU_OMP_THREADS_BIND is '%.100s', "
                               "expected auto, nobind or a list of cores such as 0-7,16 (one rank: "
                               "no '|')",
                               text);
    options->omp_threads_bind = arena_strdup(&options->arena, str_from(text));
    return STATUS_OK;
}

static void warn(FILE *err_out, const char *format, ...) PRINTF_FORMAT(2, 3);
static void warn(FILE *err_out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("vllm serve: warning: ", err_out);
    vfprintf(err_out, format, args);
    fputc('\n', err_out);
    va_end(args);
}

/** Names what is set for vLLM but read by nobody here, so that no setting is lost in silence. */
static void warn_of_unknown_variables(FILE *err_out)
{
    static const char *const known[] = {
        "VLLM_API_KEY",
        "VLLM_LOGGING_LEVEL",
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_CPU_ISA",
        "VLLM_TARGET_DEVICE",
        "VLLM_LOG_STATS_INTERVAL",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_ENABLE_RESPONSES_API_STORE",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "VLLM_BATCH_INVARIANT",
        "VLLM_NO_USAGE_STATS", // nothing is ever reported
    };
    for (char **entry = environ; entry && *entry; entry++) {
        if (strncmp(*entry, "VLLM_", 5) != 0)
            continue;
        size_t len = strcspn(*entry, "=");
        bool is_known = false;
        for (size_t i = 0; i < ARRAY_LEN(known); i++)
            is_known |= strlen(known[i]) == len && strncmp(known[i], *entry, len) == 0;
        if (!is_known)
            warn(err_out, "the environment variable %.*s has no effect here", (int)len, *entry);
    }
}

enum status options_read_environment(struct serve_options *options,
                                     const struct options_given *given, FILE *err_out,
                                     struct error *err)
{
    const char *key = options_env("VLLM_API_KEY");
    if (key && !given->api_key) {
        options->api_keys.items = arena_array(&options->arena, const char *, 1);
        options->api_keys.items[0] = arena_strdup(&options->arena, str_from(key));
        options->api_keys.len = 1;
    }
    TRY(read_log_level(options, given, err));
    TRY(read_stats_interval(options, err));
    TRY(read_threads_bind(options, err));

    int64_t kv_cache_gib = -1, keep_alive_s = options->keep_alive_timeout_s;
    TRY(env_int("VLLM_CPU_KVCACHE_SPACE", 0, MAX_KV_CACHE_GIB, &kv_cache_gib, err));
    if (kv_cache_gib > 0) // 0: from the share of memory, as if not set
        options->kv_cache_memory_bytes = kv_cache_gib << GIB_SHIFT;
    TRY(env_int("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 1, 86400, &keep_alive_s, err));
    options->keep_alive_timeout_s = (int32_t)keep_alive_s;
    TRY(env_bool("VLLM_SERVER_DEV_MODE", &options->server_dev_mode, err));
    TRY(env_bool("VLLM_ENABLE_RESPONSES_API_STORE", &options->enable_responses_store, err));
    TRY(env_bool("VLLM_ALLOW_LONG_MAX_MODEL_LEN", &options->allow_long_max_model_len, err));
    TRY(env_bool("VLLM_BATCH_INVARIANT", &options->batch_invariant, err));

    const char *isa = options_env("VLLM_CPU_ISA");
    if (isa && strcmp(isa, "auto") != 0 && strcmp(isa, "scalar") != 0 && strcmp(isa, "avx2") != 0)
        return error_set_field(err, STATUS_INVALID, "VLLM_CPU_ISA",
                               "the environment variable VLLM_CPU_ISA is '%.100s', expected auto, "
                               "scalar or avx2",
                               isa);
    if (isa)
        options->cpu_isa = arena_strdup(&options->arena, str_from(isa));
    const char *device = options_env("VLLM_TARGET_DEVICE");
    if (device && strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0 &&
        strcmp(device, "cuda") != 0)
        return error_set_field(err, STATUS_INVALID, "VLLM_TARGET_DEVICE",
                               "the environment variable VLLM_TARGET_DEVICE is '%.100s', expected "
                               "auto, cpu or cuda",
                               device);
    if (device)
        options->target_device = arena_strdup(&options->arena, str_from(device));
    warn_of_unknown_variables(err_out);
    return STATUS_OK;
}

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static enum status check_model(const struct serve_options *options, struct error *err)
{
    const char *model = options->model;
    struct stat info;
    if (is_directory(model))
        return STATUS_OK;
    if (stat(model, &info) == 0)
        return error_set_field(err, STATUS_UNSUPPORTED, "model",
                               "the model '%.200s' is a file, expected a directory with "
                               "config.json, tokenizer.json and *.safetensors (single files such "
                               "as GGUF are not supported yet)",
                               model);
    return error_set_field(
        err, STATUS_NOT_FOUND, "model",
        "the model '%.200s' was not found: vllm.c loads local directories, and there is none at "
        "'%s%.200s'. To get a model, download it first, e.g. `hf download %.100s --local-dir "
        "./model`, and give that directory: `vllm serve ./model`.",
        model, model[0] == '/' ? "" : "./", model, model);
}

static enum status check_paths(const struct serve_options *options, struct error *err)
{
    TRY(check_model(options, err));
    if (options->tokenizer && access(options->tokenizer, R_OK) != 0)
        return error_set_field(err, STATUS_NOT_FOUND, "tokenizer",
                               "--tokenizer '%.300s': %s; expected a directory with tokenizer.json",
                               options->tokenizer, strerror(errno));
    const char *generation = options->generation_config;
    if (strcmp(generation, "auto") != 0 && strcmp(generation, "vllm") != 0 &&
        !is_directory(generation))
        return error_set_field(err, STATUS_NOT_FOUND, "generation-config",
                               "--generation-config is '%.300s', expected auto, vllm or a "
                               "directory with generation_config.json",
                               generation);
    const char *chat_template = options->chat_template;
    if (chat_template && !strpbrk(chat_template, "{}\n") && access(chat_template, R_OK) != 0)
        return error_set_field(err, STATUS_NOT_FOUND, "chat-template",
                               "The supplied chat template string (%.300s) appears path-like, but "
                               "doesn't exist! Tried: %.300s",
                               chat_template, chat_template);
    struct sockaddr_un address;
    if (options->uds && strlen(options->uds) >= sizeof(address.sun_path))
        return error_set_field(err, STATUS_INVALID, "uds",
                               "--uds is %zu bytes long, expected at most %zu",
                               strlen(options->uds), sizeof(address.sun_path) - 1);
    return STATUS_OK;
}

static enum status check_numbers(const struct serve_options *options, struct error *err)
{
    int32_t tokens = options->max_num_batched_tokens, seqs = options->max_num_seqs;
    if (options->api_server_count == 0)
        return error_set_field(err, STATUS_UNSUPPORTED, "api-server-count",
                               "vllm.c does not support --api-server-count 0 (an engine without "
                               "HTTP) yet, expected at least 1");
    if (options->enable_responses_store && options->api_server_count > 1)
        return error_set_field(err, STATUS_UNSUPPORTED, "VLLM_ENABLE_RESPONSES_API_STORE",
                               "VLLM_ENABLE_RESPONSES_API_STORE=1 works with one API server, "
                               "which keeps the responses in its memory, and --api-server-count "
                               "is %d: a later request could reach another one",
                               options->api_server_count);
    if (tokens > 0 && seqs > 0 && tokens < seqs)
        return error_set_field(err, STATUS_INVALID, "max-num-batched-tokens",
                               "max_num_batched_tokens (%d) must be greater than or equal to "
                               "max_num_seqs (%d).",
                               tokens, seqs);
    if (options->max_long_partial_prefills > options->max_num_partial_prefills)
        return error_set_field(err, STATUS_INVALID, "max-long-partial-prefills",
                               "max_long_partial_prefills (%d) must be at most "
                               "max_num_partial_prefills (%d).",
                               options->max_long_partial_prefills,
                               options->max_num_partial_prefills);
    if (options->max_model_len > 0 &&
        options->long_prefill_token_threshold > options->max_model_len)
        return error_set_field(err, STATUS_INVALID, "long-prefill-token-threshold",
                               "long_prefill_token_threshold (%d) cannot be greater than the "
                               "max_model_len (%lld).",
                               options->long_prefill_token_threshold,
                               (long long)options->max_model_len);
    if (options->max_model_len > 0 && tokens > 0 && tokens < options->max_model_len &&
        options->enable_chunked_prefill == TRISTATE_FALSE)
        return error_set_field(err, STATUS_INVALID, "max-num-batched-tokens",
                               "max_num_batched_tokens (%d) is smaller than max_model_len (%lld). "
                               "This effectively limits the maximum sequence length to "
                               "max_num_batched_tokens and makes vLLM reject longer sequences. "
                               "Please increase max_num_batched_tokens or decrease max_model_len.",
                               tokens, (long long)options->max_model_len);
    return STATUS_OK;
}

static enum status check_runner(const struct serve_options *options, struct error *err)
{
    if (options->runner == RUNNER_GENERATE && options->convert == CONVERT_EMBED)
        return error_set_field(err, STATUS_INVALID, "convert",
                               "--convert embed contradicts --runner generate, expected --runner "
                               "pooling or auto");
    if (options->runner == RUNNER_POOLING && options->convert == CONVERT_NONE)
        return error_set_field(err, STATUS_UNSUPPORTED, "convert",
                               "--convert none with --runner pooling: this model does not support "
                               "`--runner pooling` as it is, expected --convert embed or auto");
    return STATUS_OK;
}

/** Drops empty strings, which would otherwise match an empty key or name. */
static void drop_empty(struct str_list *list)
{
    int32_t num_kept = 0;
    for (int32_t i = 0; i < list->len; i++) {
        if (list->items[i][0] != '\0')
            list->items[num_kept++] = list->items[i];
    }
    list->len = num_kept;
}

static enum status normalise_root_path(struct serve_options *options, struct error *err)
{
    if (!options->root_path)
        return STATUS_OK;
    size_t len = strlen(options->root_path);
    while (len > 0 && options->root_path[len - 1] == '/')
        len--;
    if (len > 0 && options->root_path[0] != '/')
        return error_set_field(err, STATUS_INVALID, "root-path",
                               "--root-path is '%.200s', expected a path such as /prefix",
                               options->root_path);
    options->root_path =
        len > 0 ? arena_strdup(&options->arena, (struct str){options->root_path, len}) : NULL;
    return STATUS_OK;
}

enum status options_finish(struct serve_options *options, FILE *err_out, struct error *err)
{
    bool has_keys = options->api_keys.len > 0;
    drop_empty(&options->api_keys);
    if (has_keys && options->api_keys.len == 0)
        warn(err_out, "--api-key holds no key: requests are not authenticated");
    drop_empty(&options->served_model_names);
    if (options->served_model_names.len == 0) {
        options->served_model_names.items = arena_array(&options->arena, const char *, 1);
        options->served_model_names.items[0] = options->model;
        options->served_model_names.len = 1;
    }
    TRY(normalise_root_path(options, err));
    TRY(check_numbers(options, err));
    TRY(check_runner(options, err));
    TRY(check_paths(options, err));
    if (options->enable_log_requests && options->log_level > LOG_LEVEL_INFO)
        warn(err_out, "--enable-log-requests logs nothing while the log level is above INFO");
    return STATUS_OK;
}
