// Every option of `vllm serve`, once. A new option is one row here and, when it is implemented, one
// field of struct serve_options.
//
// Rows keep the order of the groups. OPT() has a field; NOT_YET() is known and refused by name,
// except for values that describe what happens anyway.
#include "config/option_table.h"

#include <string.h>

#include "base/memory.h"

#define OPT(group_, name_, kind_, member_, default_, help_, ...)                     \
    {                                                                                \
        .name = name_, .kind = OPTION_##kind_, .group = GROUP_##group_,              \
        .offset = offsetof(struct serve_options, member_), .default_text = default_, \
        .help = help_, __VA_ARGS__                                                   \
    }
#define NOT_YET(group_, name_, kind_, default_, help_, ...)                                 \
    {                                                                                       \
        .name = name_, .kind = OPTION_##kind_, .group = GROUP_##group_, .offset = NO_FIELD, \
        .default_text = default_, .help = help_, __VA_ARGS__                                \
    }

// clang-format off
static const struct option table[] = {
    NOT_YET(OPTIONS, "help", HELP, "None", "Show help; also --help=all, --help=GROUP, --help=TEXT.", .alias = "-h"),
    NOT_YET(OPTIONS, "config", CONFIG, "None", "Read options from a YAML file; the command line wins."),
    OPT(OPTIONS, "api-server-count", INT, api_server_count, "None", "Number of HTTP front-end processes.", .alias = "-asc", .range = "[0,64]"),
    NOT_YET(OPTIONS, "headless", FLAG, "False", "Start engines only, no HTTP."),
    NOT_YET(OPTIONS, "grpc", FLAG, "False", "Serve gRPC instead of HTTP."),
    OPT(OPTIONS, "disable-log-stats", FLAG, disable_log_stats, "False", "No periodic line of statistics."),
    NOT_YET(OPTIONS, "aggregate-engine-logging", FLAG, "False", "One line of statistics for all engines.", .accepts = "*"),
    OPT(OPTIONS, "enable-log-requests", BOOL, enable_log_requests, "False", "Log every request."),
    OPT(OPTIONS, "disable-log-requests", FLAG_OFF, enable_log_requests, "False", "Deprecated: requests are not logged by default.", .note = "is deprecated: requests are not logged unless --enable-log-requests is given"),
    OPT(OPTIONS, "log-level", LOG_LEVEL, log_level, "info", "Log level of engine and server.", .choices = "critical,error,warning,info,debug,trace"),
    NOT_YET(OPTIONS, "fail-on-environ-validation", BOOL, "False", "Treat unknown VLLM_ variables as errors."),
    OPT(OPTIONS, "shutdown-timeout", INT, shutdown_timeout_s, "0", "Seconds to let running requests finish after SIGTERM or SIGINT; 0 aborts them.", .range = "[0,86400]"),
    NOT_YET(OPTIONS, "gdn-prefill-backend", STRING, "None", "Kernels of gated delta net prefill."),
    NOT_YET(OPTIONS, "kda-prefill-backend", STRING, "None", "Kernels of Kimi delta attention prefill."),

    OPT(FRONTEND, "host", STRING, host, "None", "Address to listen on; all interfaces unless given."),
    OPT(FRONTEND, "port", INT, port, "8000", "TCP port to listen on; 0 takes a free one.", .range = "[0,65535]"),
    OPT(FRONTEND, "uds", STRING, uds, "None", "Unix socket to listen on instead of host and port."),
    OPT(FRONTEND, "uvicorn-log-level", LOG_LEVEL, uvicorn_log_level, "info", "Log level of the HTTP server.", .choices = "critical,error,warning,info,debug,trace"),
    OPT(FRONTEND, "disable-uvicorn-access-log", BOOL, disable_uvicorn_access_log, "False", "No line for each HTTP request."),
    OPT(FRONTEND, "disable-access-log-for-endpoints", COMMA_LIST, access_log_excluded, "None", "Paths without access log lines, e.g. /health,/metrics."),
    OPT(FRONTEND, "allow-credentials", BOOL, allow_credentials, "False", "CORS: allow credentials."),
    OPT(FRONTEND, "allowed-origins", JSON_LIST, allowed_origins, "[\"*\"]", "CORS: allowed origins, a JSON list."),
    OPT(FRONTEND, "allowed-methods", JSON_LIST, allowed_methods, "[\"*\"]", "CORS: allowed methods, a JSON list."),
    OPT(FRONTEND, "allowed-headers", JSON_LIST, allowed_headers, "[\"*\"]", "CORS: allowed headers, a JSON list."),
    OPT(FRONTEND, "api-key", LIST, api_keys, "None", "Keys of which clients must send one in the header; else VLLM_API_KEY."),
    NOT_YET(FRONTEND, "ssl-keyfile", STRING, "None", "Private key for HTTPS."),
    NOT_YET(FRONTEND, "ssl-certfile", STRING, "None", "Certificate for HTTPS."),
    NOT_YET(FRONTEND, "ssl-ca-certs", STRING, "None", "Certificates of authorities for client certificates."),
    NOT_YET(FRONTEND, "ssl-cert-reqs", INT, "0", "Client certificates: 0 none, 1 optional, 2 required."),
    NOT_YET(FRONTEND, "ssl-ciphers", STRING, "None", "Cipher suites of TLS 1.2 and older."),
    NOT_YET(FRONTEND, "enable-ssl-refresh", BOOL, "False", "Read certificates again when they change."),
    OPT(FRONTEND, "root-path", STRING, root_path, "None", "Path prefix that a reverse proxy adds."),
    NOT_YET(FRONTEND, "middleware", STRING, "[]", "Additional Python middleware."),
    OPT(FRONTEND, "enable-request-id-headers", BOOL, enable_request_id_headers, "False", "Add X-Request-Id to responses."),
    NOT_YET(FRONTEND, "disable-fastapi-docs", BOOL, "False", "No /docs, /redoc and /openapi.json; there are none here.", .accepts = "*"),
    NOT_YET(FRONTEND, "enable-offline-docs", BOOL, "False", "Serve the documentation pages' assets."),
    OPT(FRONTEND, "h11-max-incomplete-event-size", INT64, max_header_bytes, "4194304", "Most bytes of a request head.", .range = "[256,1073741824]"),
    OPT(FRONTEND, "h11-max-header-count", INT, max_header_count, "256", "Most headers of a request.", .range = "[1,65536]"),
    OPT(FRONTEND, "chat-template", STRING, chat_template, "None", "Chat template: a file or the text itself; else the model's."),
    OPT(FRONTEND, "chat-template-content-format", STRING, chat_template_content_format, "auto", "How message content is handed to the template.", .choices = "auto,string,openai"),
    OPT(FRONTEND, "trust-request-chat-template", BOOL, trust_request_chat_template, "False", "Let requests bring their own chat template."),
    OPT(FRONTEND, "default-chat-template-kwargs", JSON_OBJECT, default_chat_template_kwargs, "None", "Template arguments beneath those of the request."),
    OPT(FRONTEND, "response-role", STRING, response_role, "assistant", "Role of answers."),
    OPT(FRONTEND, "return-tokens-as-token-ids", BOOL, return_tokens_as_token_ids, "False", "Log-probabilities name tokens as token_id:ID."),
    NOT_YET(FRONTEND, "enable-auto-tool-choice", BOOL, "False", "Let the model choose tools; needs --tool-call-parser."),
    NOT_YET(FRONTEND, "tool-call-parser", STRING, "None", "Reads tool calls out of the model's text."),
    NOT_YET(FRONTEND, "tool-parser-plugin", STRING, "", "Python file with a tool parser."),
    NOT_YET(FRONTEND, "tool-server", STRING, "None", "Tool servers for /v1/responses."),
    NOT_YET(FRONTEND, "exclude-tools-when-tool-choice-none", BOOL, "False", "Leave tools out of the prompt when tool_choice is none."),
    NOT_YET(FRONTEND, "lora-modules", LIST, "None", "LoRA adapters, name=path or JSON."),
    NOT_YET(FRONTEND, "log-config-file", STRING, "None", "JSON logging configuration."),
    OPT(FRONTEND, "max-log-len", INT, max_log_len, "None", "Most prompt characters or ids in a log line.", .range = "[0,2147483647]"),
    OPT(FRONTEND, "enable-prompt-tokens-details", BOOL, enable_prompt_tokens_details, "False", "Add usage.prompt_tokens_details."),
    NOT_YET(FRONTEND, "enable-per-request-metrics", BOOL, "False", "Add a metrics object to responses."),
    OPT(FRONTEND, "enable-server-load-tracking", BOOL, enable_server_load_tracking, "False", "Make /load count."),
    OPT(FRONTEND, "enable-force-include-usage", BOOL, enable_force_include_usage, "False", "Every stream includes usage."),
    OPT(FRONTEND, "sse-keep-alive-interval", INT, sse_keep_alive_interval_s, "0", "Seconds of silence after which a stream sends a comment; 0: off.", .range = "[0,86400]"),
    NOT_YET(FRONTEND, "enable-tokenizer-info-endpoint", BOOL, "False", "Serve /tokenizer_info."),
    NOT_YET(FRONTEND, "enable-log-outputs", BOOL, "False", "Log generated text."),
    NOT_YET(FRONTEND, "enable-log-deltas", BOOL, "True", "Log each piece when outputs are logged.", .accepts = "*"),
    NOT_YET(FRONTEND, "log-error-stack", BOOL, "False", "Log the stack of error responses."),
    NOT_YET(FRONTEND, "tokens-only", BOOL, "False", "Serve only tokens in, tokens out."),
    NOT_YET(FRONTEND, "fingerprint-mode", STRING, "full", "What system_fingerprint holds.", .choices = "full,hash,custom,none"),
    NOT_YET(FRONTEND, "fingerprint-value", STRING, "None", "The fingerprint of --fingerprint-mode custom."),
    NOT_YET(FRONTEND, "data-parallel-supervisor-port", INT, "9256", "Port of the data-parallel supervisor."),
    NOT_YET(FRONTEND, "dp-supervisor-probe-interval-s", DOUBLE, "5.0", "Seconds between the supervisor's probes."),
    NOT_YET(FRONTEND, "dp-supervisor-probe-timeout-s", DOUBLE, "5.0", "Seconds a probe may take."),
    NOT_YET(FRONTEND, "dp-supervisor-probe-failure-threshold", INT, "3", "Failed probes that count as dead."),
    NOT_YET(FRONTEND, "cohere-is-reasoning-model", BOOL, "True", "Cohere endpoints: the model reasons."),
    NOT_YET(FRONTEND, "cohere-format", STRING, "cmd4", "Cohere endpoints: the format."),
    NOT_YET(FRONTEND, "enable-flash-late-interaction", BOOL, "True", "Late interaction of pooling models."),

    OPT(MODEL, "model", MODEL, model, "Qwen/Qwen3-0.6B", "The model's directory; better given as the first word."),
    NOT_YET(MODEL, "runner", STRING, "auto", "What the model is run for.", .choices = "auto,generate,pooling,draft", .accepts = "auto,generate"),
    NOT_YET(MODEL, "convert", STRING, "auto", "Turn a generator into a pooling model.", .choices = "auto,none,embed,classify", .accepts = "auto,none"),
    OPT(MODEL, "tokenizer", STRING, tokenizer, "None", "The tokenizer's directory; the model's unless given."),
    NOT_YET(MODEL, "tokenizer-mode", STRING, "auto", "Which tokenizer implementation.", .accepts = "auto,hf"),
    NOT_YET(MODEL, "trust-remote-code", BOOL, "False", "Run code of the model's repository; none is ever run here.", .accepts = "*"),
    OPT(MODEL, "dtype", STRING, dtype, "auto", "Type of weights and activations.", .choices = "auto,half,float16,bfloat16,float,float32"),
    OPT(MODEL, "seed", INT64, seed, "0", "Seed for requests without one."),
    OPT(MODEL, "max-model-len", MODEL_LEN, max_model_len, "None", "Longest prompt plus output; -1 or auto: what fits.", .range = "[-1,2147483647]"),
    NOT_YET(MODEL, "quantization", STRING, "None", "Quantization method; else the checkpoint's.", .alias = "-q"),
    NOT_YET(MODEL, "quantization-config", JSON_OBJECT, "None", "Quantization per kind of layer."),
    NOT_YET(MODEL, "allow-deprecated-quantization", BOOL, "False", "Allow deprecated quantization methods."),
    NOT_YET(MODEL, "enforce-eager", BOOL, "False", "No CUDA graphs and no compilation; there are none on the CPU.", .accepts = "*"),
    OPT(MODEL, "max-logprobs", INT, max_logprobs, "20", "Most log-probabilities a request may ask for; -1: the vocabulary.", .range = "[-1,2147483647]"),
    NOT_YET(MODEL, "logprobs-mode", STRING, "raw_logprobs", "What log-probabilities are taken from.", .choices = "raw_logprobs,processed_logprobs,raw_logits,processed_logits"),
    NOT_YET(MODEL, "use-fp64-gumbel", BOOL, "False", "Sample in double precision."),
    NOT_YET(MODEL, "enable-trace-replay", BOOL, "False", "Replay recorded traces."),
    NOT_YET(MODEL, "return-sampling-mask", BOOL, "False", "Return which tokens could be sampled."),
    NOT_YET(MODEL, "enable-return-routed-experts", BOOL, "False", "Return the experts each token took."),
    NOT_YET(MODEL, "disable-sliding-window", BOOL, "False", "Cap the length to the sliding window."),
    NOT_YET(MODEL, "disable-cascade-attn", BOOL, "True", "No cascade attention; there is none here."),
    OPT(MODEL, "skip-tokenizer-init", BOOL, skip_tokenizer_init, "False", "Token ids in, token ids out."),
    NOT_YET(MODEL, "enable-prompt-embeds", BOOL, "False", "Accept embeddings as prompts."),
    OPT(MODEL, "served-model-name", LIST, served_model_names, "None", "Names clients may use; the first stands in responses."),
    NOT_YET(MODEL, "config-format", STRING, "auto", "Format of the model's configuration.", .choices = "auto,hf,mistral", .accepts = "auto,hf"),
    NOT_YET(MODEL, "hf-token", STRING, "None", "Token for downloads.", .accepts = "*", .note = "has no effect: vllm.c loads local directories and downloads nothing"),
    NOT_YET(MODEL, "hf-overrides", JSON_OBJECT, "{}", "Changes to the model's configuration."),
    NOT_YET(MODEL, "hf-config-path", STRING, "None", "Where the model's configuration is."),
    NOT_YET(MODEL, "revision", STRING, "None", "Version of the model to download."),
    NOT_YET(MODEL, "code-revision", STRING, "None", "Version of the model's code to download."),
    NOT_YET(MODEL, "tokenizer-revision", STRING, "None", "Version of the tokenizer to download."),
    NOT_YET(MODEL, "allowed-local-media-path", STRING, "", "Folder from which requests may read media."),
    NOT_YET(MODEL, "allowed-media-domains", LIST, "None", "Domains from which requests may load media."),
    NOT_YET(MODEL, "model-class-overrides", JSON_OBJECT, "{}", "Other classes for architectures."),
    NOT_YET(MODEL, "io-processor-plugin", STRING, "None", "Python plug-in for inputs and outputs."),
    NOT_YET(MODEL, "pooler-config", JSON_OBJECT, "None", "How pooling models pool."),
    NOT_YET(MODEL, "logits-processors", LIST, "None", "Python logits processors."),
    OPT(MODEL, "generation-config", STRING, generation_config, "auto", "Sampling defaults: auto (the model's), vllm (neutral) or a folder."),
    OPT(MODEL, "override-generation-config", JSON_OBJECT, override_generation_config, "None", "Sampling defaults over those of --generation-config."),
    NOT_YET(MODEL, "enable-sleep-mode", BOOL, "False", "Let the engine free GPU memory while idle."),
    NOT_YET(MODEL, "enable-cumem-allocator", BOOL, "False", "Allocate through CUDA virtual memory."),
    NOT_YET(MODEL, "model-impl", STRING, "auto", "Which implementation of the model.", .choices = "auto,vllm,transformers,terratorch", .accepts = "auto,vllm"),
    NOT_YET(MODEL, "renderer-num-workers", INT, "1", "Threads for tokenization and templates.", .range = "[1,1024]"),

    OPT(LOAD, "load-format", ENUM, load_format, "auto", "Format of the weights; dummy: random ones.", .choices = "auto,safetensors,dummy,pt,npcache,sharded_state,mistral,tensorizer,runai_streamer,runai_streamer_sharded,bitsandbytes,instanttensor,modelexpress", .accepts = "auto,safetensors,dummy"),
    NOT_YET(LOAD, "download-dir", STRING, "None", "Where downloads go.", .accepts = "*", .note = "has no effect: vllm.c loads local directories and downloads nothing"),
    NOT_YET(LOAD, "safetensors-load-strategy", STRING, "None", "How weight files are read; they are mapped into memory here.", .accepts = "lazy"),
    NOT_YET(LOAD, "safetensors-prefetch-num-threads", INT, "None", "Threads that read weights ahead.", .range = "[1,1024]"),
    NOT_YET(LOAD, "safetensors-prefetch-block-size", HUMAN64, "None", "Bytes of one read ahead.", .range = "[1,inf)"),
    NOT_YET(LOAD, "model-loader-extra-config", JSON_OBJECT, "{}", "Settings of the chosen loader."),
    NOT_YET(LOAD, "ignore-patterns", LIST, "original/**/*", "Files not to load.", .accepts = "original/**/*"),
    NOT_YET(LOAD, "use-tqdm-on-load", BOOL, "True", "Show progress while loading; the log does here.", .accepts = "*"),
    NOT_YET(LOAD, "pt-load-map-location", STRING, "cpu", "Device that .bin weights load to."),

    NOT_YET(ATTENTION, "attention-backend", STRING, "None", "Which attention kernels.", .accepts = "CPU_ATTN"),
    NOT_YET(ATTENTION, "attention-config", JSON_OBJECT, "{}", "Settings of attention kernels.", .alias = "-ac"),

    NOT_YET(MAMBA, "mamba-backend", STRING, "triton", "Which state-space kernels."),
    NOT_YET(MAMBA, "mamba-block-size", INT, "None", "Tokens in a block of state.", .range = "[1,inf)"),
    NOT_YET(MAMBA, "mamba-cache-dtype", STRING, "auto", "Type of the convolution state."),
    NOT_YET(MAMBA, "mamba-ssm-cache-dtype", STRING, "auto", "Type of the recurrent state."),
    NOT_YET(MAMBA, "mamba-cache-mode", STRING, "none", "How states are cached."),

    NOT_YET(STRUCTURED_OUTPUTS, "reasoning-parser", STRING, "", "Splits reasoning from the answer."),
    NOT_YET(STRUCTURED_OUTPUTS, "reasoning-parser-plugin", STRING, "", "Python file with a reasoning parser."),
    NOT_YET(STRUCTURED_OUTPUTS, "structured-outputs-config", JSON_OBJECT, "{}", "Settings of structured outputs."),
    NOT_YET(STRUCTURED_OUTPUTS, "reasoning-config", JSON_OBJECT, "None", "Settings of reasoning."),

    NOT_YET(PARALLEL, "tensor-parallel-size", INT, "1", "Devices that share each layer.", .alias = "-tp", .range = "[1,inf)"),
    NOT_YET(PARALLEL, "pipeline-parallel-size", INT, "1", "Stages that share the layers.", .alias = "-pp", .range = "[1,inf)"),
    NOT_YET(PARALLEL, "data-parallel-size", INT, "1", "Engine replicas.", .alias = "-dp", .range = "[1,inf)"),
    NOT_YET(PARALLEL, "data-parallel-size-local", INT, "None", "Engine replicas on this host.", .alias = "-dpl", .accepts = "1"),
    NOT_YET(PARALLEL, "data-parallel-rank", INT, "None", "Rank of this replica.", .alias = "-dpn"),
    NOT_YET(PARALLEL, "data-parallel-start-rank", INT, "None", "First rank of this host.", .alias = "-dpr"),
    NOT_YET(PARALLEL, "data-parallel-address", STRING, "None", "Address of the first replica.", .alias = "-dpa"),
    NOT_YET(PARALLEL, "data-parallel-rpc-port", INT, "29550", "Port of the first replica.", .alias = "-dpp"),
    NOT_YET(PARALLEL, "data-parallel-backend", STRING, "mp", "What starts replicas.", .alias = "-dpb"),
    NOT_YET(PARALLEL, "data-parallel-hybrid-lb", BOOL, "False", "Balance within a host only.", .alias = "-dph"),
    NOT_YET(PARALLEL, "data-parallel-external-lb", BOOL, "False", "Balance outside.", .alias = "-dpe"),
    NOT_YET(PARALLEL, "data-parallel-multi-port-external-lb", FLAG, "False", "A port for each replica.", .alias = "-dpm"),
    NOT_YET(PARALLEL, "distributed-executor-backend", STRING, "None", "What runs the ranks.", .accepts = "uni"),
    NOT_YET(PARALLEL, "nnodes", INT, "1", "Number of hosts.", .alias = "-n", .range = "[1,inf)"),
    NOT_YET(PARALLEL, "node-rank", INT, "0", "Which host this is.", .alias = "-r", .range = "[0,inf)"),
    NOT_YET(PARALLEL, "master-addr", STRING, "127.0.0.1", "Address of the first host."),
    NOT_YET(PARALLEL, "master-port", INT, "29501", "Port of the first host."),
    NOT_YET(PARALLEL, "device-ids", STRING, "None", "Devices to use."),
    NOT_YET(PARALLEL, "distributed-timeout-seconds", INT, "None", "Time limit of device collectives."),
    NOT_YET(PARALLEL, "cpu-distributed-timeout-seconds", INT, "None", "Time limit of host collectives."),
    NOT_YET(PARALLEL, "numa-bind", BOOL, "False", "Bind workers to NUMA nodes."),
    NOT_YET(PARALLEL, "numa-bind-nodes", LIST, "None", "NUMA nodes of the workers."),
    NOT_YET(PARALLEL, "numa-bind-cpus", LIST, "None", "Cores of the workers."),
    NOT_YET(PARALLEL, "enable-expert-parallel", BOOL, "False", "Spread experts over devices.", .alias = "-ep"),
    NOT_YET(PARALLEL, "all2all-backend", STRING, "allgather_reducescatter", "How tokens reach their experts."),
    NOT_YET(PARALLEL, "enable-eplb", BOOL, "False", "Balance experts."),
    NOT_YET(PARALLEL, "eplb-config", JSON_OBJECT, "{}", "Settings of expert balancing."),
    NOT_YET(PARALLEL, "expert-placement-strategy", STRING, "linear", "How experts are placed."),
    NOT_YET(PARALLEL, "enable-ep-weight-filter", BOOL, "False", "Load only the experts of this rank."),
    NOT_YET(PARALLEL, "decode-context-parallel-size", INT, "1", "Devices that share the context in decode.", .alias = "-dcp", .range = "[1,inf)"),
    NOT_YET(PARALLEL, "prefill-context-parallel-size", INT, "1", "Devices that share the context in prefill.", .alias = "-pcp", .range = "[1,inf)"),
    NOT_YET(PARALLEL, "dcp-comm-backend", STRING, "ag_rs", "Collectives of decode context parallelism."),
    NOT_YET(PARALLEL, "dcp-q-replicate", BOOL, "False", "Replicate queries in decode context parallelism."),
    NOT_YET(PARALLEL, "dcp-kv-cache-interleave-size", INT, "1", "Tokens in a turn of decode context parallelism."),
    NOT_YET(PARALLEL, "cp-kv-cache-interleave-size", INT, "1", "Tokens in a turn of context parallelism."),
    NOT_YET(PARALLEL, "enable-batch-sharded-sampling", BOOL, "None", "Share sampling among ranks.", .accepts = "False"),
    NOT_YET(PARALLEL, "disable-custom-all-reduce", BOOL, "False", "No all-reduce of our own; one device needs none.", .accepts = "*"),
    NOT_YET(PARALLEL, "max-parallel-loading-workers", INT, "None", "Workers that load at a time."),
    NOT_YET(PARALLEL, "ray-workers-use-nsight", BOOL, "False", "Profile Ray workers."),
    NOT_YET(PARALLEL, "worker-cls", STRING, "auto", "Python worker class."),
    NOT_YET(PARALLEL, "worker-extension-cls", STRING, "", "Python worker extension."),
    NOT_YET(PARALLEL, "enable-dbo", BOOL, "False", "Overlap two half batches."),
    NOT_YET(PARALLEL, "ubatch-size", INT, "0", "Number of part batches."),
    NOT_YET(PARALLEL, "dbo-decode-token-threshold", INT, "32", "Tokens from which decode batches are halved."),
    NOT_YET(PARALLEL, "dbo-prefill-token-threshold", INT, "512", "Tokens from which prefill batches are halved."),
    NOT_YET(PARALLEL, "enable-elastic-ep", BOOL, "False", "Change the number of ranks while running."),
    NOT_YET(PARALLEL, "disable-nccl-for-dp-synchronization", BOOL, "None", "Replicas agree over host memory.", .accepts = "True,False"),
    NOT_YET(PARALLEL, "enable-fault-tolerance", BOOL, "False", "Survive failing ranks."),
    NOT_YET(PARALLEL, "fault-tolerance-config", JSON_OBJECT, "{}", "Settings of fault tolerance."),

    OPT(CACHE, "block-size", INT, block_size, "None", "Tokens in a KV cache block.", .range = "[1,65536]"),
    OPT(CACHE, "gpu-memory-utilization", DOUBLE, gpu_memory_utilization, "0.92", "Share of the device's memory this server may use; of RAM on the CPU.", .range = "(0,1]"),
    OPT(CACHE, "kv-cache-memory-bytes", HUMAN64, kv_cache_memory_bytes, "None", "Bytes of KV cache; overrides the share of memory.", .range = "[1,inf)"),
    OPT(CACHE, "kv-cache-dtype", STRING, kv_cache_dtype, "auto", "Type of the KV cache; auto: the model's.", .choices = "auto,float32,float16,bfloat16,fp8,fp8_e4m3,fp8_e5m2,fp8_inc,fp8_ds_mla,nvfp4,int4_per_token_head,int8_per_token_head,fp8_per_token_head,turboquant_k8v4,turboquant_4bit_nc,turboquant_k3v4_nc,turboquant_3bit_nc", .accepts = "auto,float32,float16,bfloat16"),
    NOT_YET(CACHE, "kv-cache-dtype-skip-layers", LIST, "[]", "Layers that keep the model's type."),
    OPT(CACHE, "num-gpu-blocks-override", INT, num_gpu_blocks_override, "None", "Number of KV cache blocks, whatever fits.", .range = "[1,2147483647]"),
    OPT(CACHE, "enable-prefix-caching", TRISTATE, enable_prefix_caching, "None", "Reuse the KV cache of equal prefixes; on unless said."),
    NOT_YET(CACHE, "prefix-caching-hash-algo", STRING, "sha256", "How prefixes are hashed.", .choices = "sha256,sha256_cbor,xxhash,xxhash_cbor"),
    NOT_YET(CACHE, "prefix-match-unit", INT, "None", "Finest boundary of a cached prefix."),
    NOT_YET(CACHE, "prefix-cache-retention-interval", INT, "0", "Retention of sliding-window checkpoints."),
    NOT_YET(CACHE, "kv-sharing-fast-prefill", BOOL, "False", "Skip prefill in layers that share a cache."),
    NOT_YET(CACHE, "use-replayssm", BOOL, "False", "Replay recurrent states."),
    NOT_YET(CACHE, "replayssm-buffer-len", INT, "16", "Tokens kept for replay."),
    NOT_YET(CACHE, "kv-offloading-size", DOUBLE, "None", "GiB of host memory for offloaded KV cache."),
    NOT_YET(CACHE, "kv-offloading-backend", STRING, "native", "What offloads the KV cache.", .choices = "native,lmcache"),

    NOT_YET(OFFLOAD, "cpu-offload-gb", DOUBLE, "0", "GiB of weights kept in host memory."),
    NOT_YET(OFFLOAD, "cpu-offload-params", LIST, "[]", "Which weights stay in host memory."),
    NOT_YET(OFFLOAD, "offload-backend", STRING, "auto", "How weights are offloaded."),
    NOT_YET(OFFLOAD, "offload-group-size", INT, "0", "Layers in an offloading group."),
    NOT_YET(OFFLOAD, "offload-num-in-group", INT, "1", "Offloaded layers of each group."),
    NOT_YET(OFFLOAD, "offload-prefetch-step", INT, "1", "Layers fetched ahead."),
    NOT_YET(OFFLOAD, "offload-params", LIST, "[]", "Which weights are offloaded."),

    NOT_YET(MULTIMODAL, "language-model-only", BOOL, "False", "Leave out other modalities; only text is served here.", .accepts = "*"),
    NOT_YET(MULTIMODAL, "limit-mm-per-prompt", JSON_OBJECT, "{}", "Media items a prompt may have."),
    NOT_YET(MULTIMODAL, "enable-mm-embeds", BOOL, "False", "Accept media embeddings."),
    NOT_YET(MULTIMODAL, "media-io-kwargs", JSON_OBJECT, "{}", "Settings of media readers."),
    NOT_YET(MULTIMODAL, "mm-processor-kwargs", JSON_OBJECT, "None", "Settings of the media processor."),
    NOT_YET(MULTIMODAL, "mm-processor-cache-gb", DOUBLE, "4", "GiB of the media cache.", .accepts = "*"),
    NOT_YET(MULTIMODAL, "mm-processor-cache-type", STRING, "lru", "Kind of the media cache."),
    NOT_YET(MULTIMODAL, "mm-encoder-tp-mode", STRING, "weights", "How the media encoder is split."),
    NOT_YET(MULTIMODAL, "interleave-mm-strings", BOOL, "False", "Keep media in their places within text."),
    NOT_YET(MULTIMODAL, "skip-mm-profiling", BOOL, "False", "No memory profiling of media; there is none here.", .accepts = "*"),

    NOT_YET(LORA, "enable-lora", BOOL, "None", "Serve LoRA adapters.", .accepts = "False"),
    NOT_YET(LORA, "max-loras", INT, "1", "Adapters in a batch.", .range = "[1,inf)"),
    NOT_YET(LORA, "max-lora-rank", INT, "16", "Largest rank of an adapter.", .choices = "1,8,16,32,64,128,256,320,512"),
    NOT_YET(LORA, "max-cpu-loras", INT, "None", "Adapters in host memory.", .range = "[1,inf)"),
    NOT_YET(LORA, "lora-dtype", STRING, "auto", "Type of adapters.", .choices = "auto,float16,bfloat16"),
    NOT_YET(LORA, "lora-target-modules", LIST, "None", "Layers that adapters may change."),
    NOT_YET(LORA, "fully-sharded-loras", BOOL, "False", "Split adapters fully."),
    NOT_YET(LORA, "default-mm-loras", JSON_OBJECT, "None", "Adapters per modality."),
    NOT_YET(LORA, "enable-tower-connector-lora", BOOL, "False", "Adapters of media towers."),
    NOT_YET(LORA, "specialize-active-lora", BOOL, "False", "Kernels for the number of active adapters."),
    NOT_YET(LORA, "enable-mixed-moe-lora-format", BOOL, "False", "Several formats of expert adapters."),
    NOT_YET(LORA, "enable-moe-shared-loras", BOOL, "False", "Adapters shared by experts."),

    NOT_YET(OBSERVABILITY, "show-hidden-metrics-for-version", STRING, "None", "Show metrics hidden since that version."),
    NOT_YET(OBSERVABILITY, "otlp-traces-endpoint", STRING, "None", "Where OpenTelemetry traces go."),
    NOT_YET(OBSERVABILITY, "collect-detailed-traces", LIST, "None", "Which modules are traced in detail."),
    NOT_YET(OBSERVABILITY, "kv-cache-metrics", BOOL, "False", "Histograms of block residency."),
    NOT_YET(OBSERVABILITY, "kv-cache-metrics-sample", DOUBLE, "0.01", "Share of blocks that is sampled.", .range = "(0,1]"),
    NOT_YET(OBSERVABILITY, "cudagraph-metrics", BOOL, "False", "Count CUDA graph replays."),
    NOT_YET(OBSERVABILITY, "enable-mfu-metrics", BOOL, "False", "Report the use of arithmetic peak."),
    NOT_YET(OBSERVABILITY, "enable-logging-iteration-details", BOOL, "False", "Log each step."),
    NOT_YET(OBSERVABILITY, "per-request-spec-decode-metrics", STRING, "none", "Speculation metrics per request.", .choices = "none,summary,detailed"),
    NOT_YET(OBSERVABILITY, "enable-layerwise-nvtx-tracing", BOOL, "False", "Mark layers for the profiler."),
    NOT_YET(OBSERVABILITY, "jit-monitor-mode", STRING, "warn", "What late compilation does.", .choices = "warn,error"),
    NOT_YET(OBSERVABILITY, "jit-monitor-verbose", BOOL, "False", "Log late compilation in detail."),

    OPT(SCHEDULER, "max-num-batched-tokens", HUMAN32, max_num_batched_tokens, "None", "Most tokens computed in a step.", .range = "[1,2147483647]"),
    OPT(SCHEDULER, "max-num-seqs", INT, max_num_seqs, "None", "Most requests in a step.", .range = "[1,65536]"),
    NOT_YET(SCHEDULER, "max-num-scheduled-tokens", HUMAN32, "None", "Lower cap of tokens used with speculation.", .range = "[0,2147483647]"),
    OPT(SCHEDULER, "enable-chunked-prefill", TRISTATE, enable_chunked_prefill, "None", "Cut long prompts and mix them with decodes; on unless said."),
    OPT(SCHEDULER, "long-prefill-token-threshold", INT, long_prefill_token_threshold, "0", "Most tokens of one prompt in a step; 0: no cap.", .range = "[0,2147483647]"),
    OPT(SCHEDULER, "max-num-partial-prefills", INT, max_num_partial_prefills, "1", "Prompts that may be partly computed at a time.", .range = "[1,2147483647]"),
    OPT(SCHEDULER, "max-long-partial-prefills", INT, max_long_partial_prefills, "1", "How many of those may be long.", .range = "[1,2147483647]"),
    OPT(SCHEDULER, "scheduling-policy", ENUM, scheduling_policy, "fcfs", "First come first served, or by priority.", .choices = "fcfs,priority"),
    OPT(SCHEDULER, "max-num-queued-reqs", INT, max_num_queued_reqs, "None", "Unfinished requests from which new ones are refused with 503.", .range = "[0,2147483647]"),
    OPT(SCHEDULER, "max-num-queued-tokens", HUMAN64, max_num_queued_tokens, "None", "Prompt tokens in prefill from which new requests are refused with 503.", .range = "[0,inf)"),
    OPT(SCHEDULER, "scheduler-reserve-full-isl", BOOL, scheduler_reserve_full_isl, "True", "Admit a request only if its whole prompt fits."),
    OPT(SCHEDULER, "watermark", DOUBLE, watermark, "0.0", "Share of KV blocks kept free at admission.", .range = "[0,1)"),
    NOT_YET(SCHEDULER, "prefill-schedule-interval", INT, "1", "Steps between admissions of prefills.", .range = "[1,inf)"),
    NOT_YET(SCHEDULER, "async-scheduling", BOOL, "None", "Schedule the next step while one runs; off on the CPU.", .accepts = "False"),
    OPT(SCHEDULER, "stream-interval", INT, stream_interval, "1", "Tokens in a streamed piece.", .range = "[1,2147483647]"),
    NOT_YET(SCHEDULER, "disable-chunked-mm-input", BOOL, "False", "Never cut media items."),
    NOT_YET(SCHEDULER, "disable-hybrid-kv-cache-manager", BOOL, "None", "One cache layout for all layers.", .accepts = "False"),
    NOT_YET(SCHEDULER, "scheduler-cls", STRING, "None", "Python scheduler class."),

    NOT_YET(COMPILATION, "cudagraph-capture-sizes", LIST, "None", "Batch sizes with a CUDA graph."),
    NOT_YET(COMPILATION, "max-cudagraph-capture-size", INT, "None", "Largest batch with a CUDA graph."),

    NOT_YET(KERNEL, "kernel-config", JSON_OBJECT, "{}", "Settings of kernels."),
    NOT_YET(KERNEL, "moe-backend", STRING, "auto", "Which expert kernels."),
    NOT_YET(KERNEL, "linear-backend", STRING, "auto", "Which matrix kernels."),
    NOT_YET(KERNEL, "ir-op-priority", JSON_OBJECT, "{}", "Order of kernel implementations."),
    NOT_YET(KERNEL, "enable-flashinfer-autotune", BOOL, "None", "Tune FlashInfer at start.", .accepts = "False"),
    NOT_YET(KERNEL, "enable-bf16x3-router-gemm", BOOL, "False", "Router in three bfloat16 products."),

    NOT_YET(VLLM, "speculative-config", JSON_OBJECT, "None", "Speculative decoding.", .alias = "-sc"),
    NOT_YET(VLLM, "spec-method", STRING, "None", "Method of speculative decoding."),
    NOT_YET(VLLM, "spec-model", STRING, "None", "Draft model."),
    NOT_YET(VLLM, "spec-tokens", INT, "None", "Tokens drafted at a time."),
    NOT_YET(VLLM, "compilation-config", JSON_OBJECT, "{}", "Compilation and CUDA graphs.", .alias = "-cc"),
    NOT_YET(VLLM, "optimization-level", INT, "2", "How much is compiled; nothing is on the CPU.", .alias = "-O", .choices = "0,1,2,3", .accepts = "0,2"),
    NOT_YET(VLLM, "performance-mode", STRING, "balanced", "Latency or throughput.", .choices = "balanced,interactivity,throughput"),
    NOT_YET(VLLM, "kv-transfer-config", JSON_OBJECT, "None", "Moving KV cache between engines."),
    NOT_YET(VLLM, "kv-events-config", JSON_OBJECT, "None", "Publishing KV cache events."),
    NOT_YET(VLLM, "ec-transfer-config", JSON_OBJECT, "None", "Moving encoder caches between engines."),
    NOT_YET(VLLM, "ec-manager-config", JSON_OBJECT, "None", "Encoder cache settings."),
    NOT_YET(VLLM, "profiler-config", JSON_OBJECT, "{}", "Profiling."),
    NOT_YET(VLLM, "weight-transfer-config", JSON_OBJECT, "None", "Receiving new weights."),
    NOT_YET(VLLM, "additional-config", JSON_OBJECT, "{}", "Settings of plug-in platforms."),
    NOT_YET(VLLM, "diffusion-config", JSON_OBJECT, "None", "Diffusion language models.", .alias = "-dc"),
};
// clang-format on

static const struct {
    const char *title, *description;
} groups[NUM_GROUPS] = {
    [GROUP_OPTIONS] = {"options", "The program itself."},
    [GROUP_FRONTEND] = {"Frontend", "The HTTP server in front of the engine."},
    [GROUP_MODEL] = {"ModelConfig", "The model and its tokenizer."},
    [GROUP_LOAD] = {"LoadConfig", "How weights are loaded."},
    [GROUP_ATTENTION] = {"AttentionConfig", "Attention kernels."},
    [GROUP_MAMBA] = {"MambaConfig", "State-space layers."},
    [GROUP_STRUCTURED_OUTPUTS] = {"StructuredOutputsConfig", "Structured outputs and reasoning."},
    [GROUP_PARALLEL] = {"ParallelConfig", "Several devices and hosts."},
    [GROUP_CACHE] = {"CacheConfig", "The KV cache."},
    [GROUP_OFFLOAD] = {"OffloadConfig", "Weights in host memory."},
    [GROUP_MULTIMODAL] = {"MultiModalConfig", "Images, audio and video."},
    [GROUP_LORA] = {"LoRAConfig", "Low-rank adapters."},
    [GROUP_OBSERVABILITY] = {"ObservabilityConfig", "Metrics and traces."},
    [GROUP_SCHEDULER] = {"SchedulerConfig", "What runs in the next step."},
    [GROUP_COMPILATION] = {"CompilationConfig", "CUDA graphs."},
    [GROUP_KERNEL] = {"KernelConfig", "Choice of kernels."},
    [GROUP_VLLM] = {"VllmConfig", "Everything else."},
};

// Options of earlier releases: not accepted, but worth a word to whoever still has them in a
// script.
static const struct {
    const char *name, *hint;
} removed[] = {
    {"task", "use --runner and --convert"},
    {"swap-space", "preempted requests are recomputed; leave it out"},
    {"num-scheduler-steps", "leave it out"},
    {"use-v2-block-manager", "leave it out"},
    {"preemption-mode", "preempted requests are recomputed; leave it out"},
    {"scheduler-delay-factor", "leave it out"},
    {"num-lookahead-slots", "use --speculative-config"},
    {"guided-decoding-backend", "use --structured-outputs-config"},
    {"rope-scaling", "use --hf-overrides"},
    {"rope-theta", "use --hf-overrides"},
    {"cuda-graph-sizes", "use --cudagraph-capture-sizes"},
    {"max-seq-len-to-capture", "use --max-cudagraph-capture-size"},
    {"enable-reasoning", "use --reasoning-parser"},
    {"device", "the build decides on the device; leave it out"},
    {"disable-async-output-proc", "leave it out"},
    {"calculate-kv-scales", "leave it out"},
    {"override-attention-dtype", "leave it out"},
};

const struct option *option_table(size_t *count)
{
    *count = ARRAY_LEN(table);
    return table;
}

const char *option_group_title(enum option_group group)
{
    return groups[group].title;
}

const char *option_group_description(enum option_group group)
{
    return groups[group].description;
}

const char *option_removed_hint(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(removed); i++) {
        if (strcmp(name, removed[i].name) == 0)
            return removed[i].hint;
    }
    return NULL;
}

bool option_is_pair(const struct option *option)
{
    return option->kind == OPTION_BOOL || option->kind == OPTION_TRISTATE;
}

bool option_takes_value(const struct option *option)
{
    return option->kind != OPTION_FLAG && option->kind != OPTION_FLAG_OFF &&
           option->kind != OPTION_HELP && !option_is_pair(option);
}
