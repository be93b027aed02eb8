// Every option of `vllm serve`, once: the rows are in options.c, the values land here.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

#define VLLM_VERSION "0.29.0" // the vLLM release whose interface this is

/** A list of strings in the options' arena. */
struct str_list {
    const char **items;
    int32_t len;
};

enum scheduling_policy { SCHEDULING_POLICY_FCFS, SCHEDULING_POLICY_PRIORITY };

enum load_format { LOAD_FORMAT_AUTO, LOAD_FORMAT_SAFETENSORS, LOAD_FORMAT_DUMMY };

enum runner_type { RUNNER_AUTO, RUNNER_GENERATE, RUNNER_POOLING, RUNNER_DRAFT };

enum convert_type { CONVERT_AUTO, CONVERT_NONE, CONVERT_EMBED, CONVERT_CLASSIFY };

/** One of three: said on, said off, not said (resolved later). */
enum tristate { TRISTATE_UNSET = -1, TRISTATE_FALSE = 0, TRISTATE_TRUE = 1 };

/**
 * What the command line, the --config file and the environment say, checked one by one and not yet
 * against the model. Strings live in `arena`. NULL or a negative number: not given.
 */
struct serve_options {
    struct arena arena;

    // Frontend
    const char *host; // NULL: all interfaces
    int32_t port;
    const char *uds;
    struct str_list api_keys; // --api-key, else VLLM_API_KEY; empty strings left out
    bool api_key_for_metrics; // ours: vLLM leaves /metrics open
    const char *ssl_keyfile, *ssl_certfile, *ssl_ca_certs, *ssl_ciphers;
    int32_t ssl_cert_reqs;              // client certificates: 0 none, 1 optional, 2 required
    struct str_list served_model_names; // at least one after options_finish()
    int32_t api_server_count;           // -1: 1
    const char *root_path;              // NULL or "/prefix" without a final slash
    enum log_level log_level;           // VLLM_LOGGING_LEVEL, --log-level
    enum log_level uvicorn_log_level;   // the access log is written at INFO
    enum log_format log_format;         // ours
    bool disable_uvicorn_access_log;
    struct str_list access_log_excluded; // --disable-access-log-for-endpoints
    bool enable_log_requests;
    int32_t max_log_len;             // -1: no cap
    bool enable_log_request_timings; // ours
    bool enable_per_request_metrics;
    bool disable_log_stats;
    double log_stats_interval_s;
    const char *chat_template;                // path or the text itself
    const char *chat_template_content_format; // "auto", "string", "openai"
    bool trust_request_chat_template;
    const char *default_chat_template_kwargs; // a JSON object or NULL
    const char *response_role;
    bool return_tokens_as_token_ids;
    bool enable_prompt_tokens_details;
    bool enable_force_include_usage;
    bool enable_server_load_tracking;
    bool enable_request_id_headers;
    int32_t sse_keep_alive_interval_s; // 0: off
    bool allow_credentials;
    const char *allowed_origins, *allowed_methods, *allowed_headers; // JSON lists
    int32_t max_header_count;                                        // --h11-max-header-count
    int64_t max_header_bytes; // --h11-max-incomplete-event-size
    int32_t shutdown_timeout_s;
    int32_t keep_alive_timeout_s; // VLLM_HTTP_TIMEOUT_KEEP_ALIVE
    bool server_dev_mode;         // VLLM_SERVER_DEV_MODE
    bool enable_responses_store;  // VLLM_ENABLE_RESPONSES_API_STORE
    bool disable_fastapi_docs;

    // ModelConfig, LoadConfig
    const char *model; // a directory
    enum runner_type runner;
    enum convert_type convert;
    const char *pooler_config; // a JSON object or NULL
    const char *hf_overrides;  // likewise
    const char *tokenizer;     // NULL: the model's
    const char *quantization;  // as quantization_choose() takes it; NULL: the checkpoint's
    const char *dtype;         // "auto" or a dtype_parse() name
    int64_t seed;
    int64_t max_model_len;                  // 0: from the model; -1: the longest that fits
    int32_t max_logprobs;                   // -1: the vocabulary
    const char *generation_config;          // "auto", "vllm" or a folder
    const char *override_generation_config; // a JSON object or NULL
    enum load_format load_format;
    bool skip_tokenizer_init;
    bool allow_long_max_model_len; // VLLM_ALLOW_LONG_MAX_MODEL_LEN

    // CacheConfig
    int32_t block_size; // -1: the backend's default
    double gpu_memory_utilization;
    int64_t kv_cache_memory_bytes;   // -1: from the utilisation; VLLM_CPU_KVCACHE_SPACE overrides
    const char *kv_cache_dtype;      // "auto", "float32", "float16", "bfloat16", "fp8" ...
    int32_t num_gpu_blocks_override; // -1: none
    enum tristate enable_prefix_caching;
    const char *prefix_caching_hash_algo; // "sha256", "xxhash"

    // SchedulerConfig
    int32_t max_num_batched_tokens; // -1: derived
    int32_t max_num_seqs;           // -1: derived
    enum tristate enable_chunked_prefill;
    enum tristate async_scheduling;
    int32_t long_prefill_token_threshold;
    int32_t max_num_partial_prefills;
    int32_t max_long_partial_prefills;
    enum scheduling_policy scheduling_policy;
    int32_t max_num_queued_reqs;   // -1: no limit
    int64_t max_num_queued_tokens; // -1: no limit
    bool scheduler_reserve_full_isl;
    double watermark;
    int32_t stream_interval;

    // Devices
    const char *target_device;          // VLLM_TARGET_DEVICE: "auto", "cpu", "cuda"
    bool enforce_eager;                 // no CUDA graphs
    int32_t max_cudagraph_capture_size; // -1: derived
    bool batch_invariant;               // VLLM_BATCH_INVARIANT; CPUs always are

    // CPU backend
    const char *omp_threads_bind; // VLLM_CPU_OMP_THREADS_BIND: "auto", "nobind" or a list of cores
    const char *cpu_isa;          // VLLM_CPU_ISA (ours): "auto", "scalar", "avx2" ...
};

/** What parsing asks the program to do. */
enum options_outcome { OPTIONS_RUN, OPTIONS_EXIT };

/**
 * Parses `vllm serve` arguments (argv[0] is the first after "serve"), the --config file and the
 * environment. OPTIONS_EXIT: help or an error was printed, and `*exit_status` is what to exit with
 * (0 after help, 2 after a usage error, 1 after a configuration error).
 */
enum options_outcome options_parse_serve(struct serve_options *options, int argc, char **argv,
                                         int *exit_status);
void options_deinit(struct serve_options *options);

/** Appends what differs from the defaults, for the log: {'port': 8001, 'api_key': ['***']}. */
void options_non_default(const struct serve_options *options, struct buf *out);

/** Appends every option as a JSON object; keys are masked. */
void options_write_json(const struct serve_options *options, struct buf *out);

/** Appends the VLLM_ variables of the environment as a JSON object, but for keys. */
void options_write_environment_json(struct buf *out);

/** The environment variable `name`; NULL when it is not set or empty. */
const char *options_env(const char *name);

/** `25.6k` = 25600, `32K` = 32768, `1m`, `2G` ...: the grammar of reference section 1.2.
 *  Errors: INVALID. */
NODISCARD enum status human_int_parse(struct str text, int64_t *out, struct error *err);
