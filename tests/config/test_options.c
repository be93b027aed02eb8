// Command lines of `vllm serve`: values, messages, exit statuses.
#include "cmocka_setup.h"
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "config/option_table.h"

#define MODEL MODELS_DIR "/demo"

enum { MAX_WORDS = 32 };

/** One run of the parser, with what it printed. */
struct run {
    struct serve_options options;
    enum options_outcome outcome;
    int exit_status;
    char *out, *err;
};

static struct run run_words(int argc, const char *const *words)
{
    struct run run = {.exit_status = -1};
    size_t out_len = 0, err_len = 0;
    FILE *out = open_memstream(&run.out, &out_len), *err = open_memstream(&run.err, &err_len);
    char *argv[MAX_WORDS + 1] = {0};
    for (int i = 0; i < argc; i++)
        argv[i] = (char *)(uintptr_t)words[i];
    run.outcome = options_parse_serve_to(&run.options, argc, argv, out, err, &run.exit_status);
    fclose(out);
    fclose(err);
    return run;
}

/** `line` split at '|', so that words may hold blanks; `$M` is the demo model. */
static struct run run_line(const char *line)
{
    struct arena arena = {0};
    const char *words[MAX_WORDS] = {0};
    int argc = 0;
    for (struct str rest = str_from(line); rest.len > 0;) {
        struct str word = str_split(&rest, '|');
        words[argc++] = str_eq(word, STR("$M")) ? MODEL : arena_strdup(&arena, word);
    }
    struct run run = run_words(argc, words);
    // What the options keep must be their own copies.
    arena_deinit(&arena);
    return run;
}

static void run_end(struct run *run)
{
    if (run->outcome == OPTIONS_RUN)
        options_deinit(&run->options);
    free(run->out);
    free(run->err);
}

static void expect_non_default(const char *line, const char *expected)
{
    struct run run = run_line(line);
    if (run.outcome != OPTIONS_RUN)
        fail_msg("%s: exit %d: %s", line, run.exit_status, run.err);
    struct buf text = {0};
    options_non_default(&run.options, &text);
    buf_append_char(&text, '\0');
    if (!strstr(text.ptr, expected))
        fail_msg("%s: %s has no %s", line, text.ptr, expected);
    buf_deinit(&text);
    run_end(&run);
}

static void every_spelling_reaches_its_field(void **state)
{
    (void)state;
    static const struct {
        const char *line, *expected;
    } rows[] = {
        {"$M|--port|9000", "'port': 9000"},
        {"$M|--port=9000", "'port': 9000"},
        {"--port|9000|$M", "'port': 9000"},
        {"$M|--port| 9_000 ", "'port': 9000"},
        {"$M|--max_model_len|4096", "'max_model_len': 4096"},
        {"$M|--max_model-len=32k", "'max_model_len': 32000"},
        {"$M|--max-model-len|32K", "'max_model_len': 32768"},
        {"$M|--max-model|4096", "'max_model_len': 4096"},
        {"$M|--max-model-len|auto", "'max_model_len': -1"},
        {"$M|--max-model-len|AUTO", "'max_model_len': -1"},
        {"$M|--max-model-len|-1", "'max_model_len': -1"},
        {"$M|--max-num-seqs|7", "'max_num_seqs': 7"},
        {"$M|--max-num-batched-tokens|2k", "'max_num_batched_tokens': 2000"},
        {"$M|--kv-cache-memory-bytes|1.5g", "'kv_cache_memory_bytes': 1500000000"},
        {"$M|--gpu-memory-utilization|0.5", "'gpu_memory_utilization': 0.5"},
        {"$M|--enable-prefix-caching", "'enable_prefix_caching': True"},
        {"$M|--no-enable-prefix-caching", "'enable_prefix_caching': False"},
        {"$M|--no_enable_prefix_caching", "'enable_prefix_caching': False"},
        {"$M|--no-enable-pref", "'enable_prefix_caching': False"},
        {"$M|--no-scheduler-reserve-full-isl", "'scheduler_reserve_full_isl': False"},
        {"$M|--scheduling-policy|priority", "'scheduling_policy': \"priority\""},
        {"$M|--load-format=dummy", "'load_format': \"dummy\""},
        {"$M|-asc|2", "'api_server_count': 2"},
        {"$M|-asc=3", "'api_server_count': 3"},
        {"$M|--dtype|half", "'dtype': \"half\""},
        {"$M|--kv-cache-dtype|bfloat16", "'kv_cache_dtype': \"bfloat16\""},
        {"$M|--kv-cache-dtype|fp8", "'kv_cache_dtype': \"fp8\""},
        {"$M|--api-key|a|b", "'api_key': [\"***\", \"***\"]"},
        {"--served-model-name|x|y|--model|$M", "'served_model_name': [\"x\", \"y\"]"},
        {"$M|--served-model-name=x", "'served_model_name': [\"x\"]"},
        {"$M|--disable-access-log-for-endpoints|/health, /ping",
         "'disable_access_log_for_endpoints': [\"/health\", \"/ping\"]"},
        {"$M|--allowed-origins|[\"https://a.example\"]",
         "'allowed_origins': \"[\\\"https://a.example\\\"]\""},
        {"$M|--override-generation-config|{\"top_k\":5}", "{\\\"top_k\\\":5}"},
        {"$M|--override-generation-config|{\"max_new_tokens\": 2k}", "2000"},
        {"$M|--override-generation-config|{\"x\": \"2k\"}", "\\\"2k\\\""},
        {"$M|--override-generation-config.top_k|5|--override-generation-config.a.b=1k",
         "{\\\"top_k\\\":5,\\\"a\\\":{\\\"b\\\":1000}}"},
        {"$M|--default-chat-template-kwargs.stop+|a|--default-chat-template-kwargs.stop+=b,c",
         "{\\\"stop\\\":[\\\"a\\\",\\\"b\\\",\\\"c\\\"]}"},
        {"$M|--default_chat_template_kwargs.enable_thinking=false",
         "{\\\"enable_thinking\\\":false}"},
        {"$M|--chat-template|{{ messages }}", "'chat_template': \"{{ messages }}\""},
        {"$M|--chat-template|- {{ x }}", "'chat_template': \"- {{ x }}\""},
        {"$M|--root-path|/v/", "'root_path': \"/v\""},
        {"$M|--host|x|--host|None|--port|2", "{'port': 2, 'model': "},
        {"$M|--max-num-partial-prefills|4|--max-long-partial-prefills|2",
         "'max_num_partial_prefills': 4"},
        {"$M|--log-level|debug", "'uvicorn_log_level': \"debug\""},
        {"$M|--log-level|error|--uvicorn-log-level|warning", "'uvicorn_log_level': \"warning\""},
        {"$M|--seed|-5", "'seed': -5"},
        {"$M|--watermark|0", "{'model': "},
        {"--|$M", "{'model': "},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        expect_non_default(rows[i].line, rows[i].expected);
}

static void what_describes_the_program_anyway_is_accepted(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "$M|--tensor-parallel-size|1",
        "$M|-tp|1|-pp=1|-dp|1",
        "$M|--pipeline-parallel-size=1",
        "$M|--no-enable-lora",
        "$M|--enforce-eager",
        "$M|--no-enforce-eager",
        "$M|--trust-remote-code",
        "$M|--quantization|None",
        "$M|--quantization|fp8",
        "$M|-qfp8",
        "$M|-q|None",
        "$M|--hf-overrides|{}",
        "$M|--speculative-config|None",
        "$M|--no-async-scheduling",
        "$M|--async-scheduling",
        "$M|--runner|generate",
        "$M|--runner|pooling|--convert|embed|--pooler-config.pooling_type|MEAN",
        "$M|--cpu-offload-gb|0.0",
        "$M|--disable-custom-all-reduce",
        "$M|-O0",
        "$M|-O=2",
        "$M|--structured-outputs-config|{}",
        "$M|--no-enable-auto-tool-choice",
        "$M|--mm-processor-cache-gb|0",
        "$M|--attention-backend|CPU_ATTN",
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct run run = run_line(lines[i]);
        if (run.outcome != OPTIONS_RUN || run.err[0] != '\0')
            fail_msg("%s: exit %d: %s", lines[i], run.exit_status, run.err);
        run_end(&run);
    }
}

static void mistakes_are_named_and_end_with_the_right_status(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int exit_status;
        const char *message;
    } rows[] = {
        {"$M|--foo", 2, "vllm serve: error: unrecognized arguments: --foo\n"},
        {"$M|--foo=1|--bar", 2, "unrecognized arguments: --foo=1 --bar\n"},
        {"$M|second", 2, "unrecognized arguments: second\n"},
        {"$M||", 2, "unrecognized arguments: \n"},
        {"$M|-", 2, "unrecognized arguments: -\n"},
        {"$M|--no-|--=x|-.y", 2, "unrecognized arguments: --no- --=x -.y\n"},
        {"$M|--port|x", 2, "error: argument --port: invalid int value: 'x'\n"},
        {"$M|--port|1k", 2, "argument --port: invalid int value: '1k'"},
        {"$M|--port", 2, "argument --port: expected one argument"},
        {"$M|--port|--uds|x", 2, "argument --port: expected one argument"},
        {"$M|--api-key", 2, "argument --api-key: expected at least one argument"},
        {"$M|--port|70000", 1, "--port is 70000, expected an integer in [0,65535]"},
        {"$M|--port|-1", 1, "--port is -1"},
        {"$M|--seed|99999999999999999999", 2, "argument --seed: invalid int value"},
        {"$M|--max-num-seqs|0", 1, "--max-num-seqs is 0"},
        {"$M|--max-num-seqs|1k", 2, "argument --max-num-seqs: invalid int value: '1k'"},
        {"$M|--max-model-len|1.5K", 2, "1.5k"},
        {"$M|--max-model-len|0", 1, "--max-model-len is 0"},
        {"$M|--max-model-len|-2", 1, "--max-model-len is -2"},
        {"$M|--max-model-len|9g", 1, "--max-model-len is 9g"},
        {"$M|--gpu-memory-utilization|0", 1, "expected a number in (0,1]"},
        {"$M|--gpu-memory-utilization|1.01", 1, "expected a number in (0,1]"},
        {"$M|--gpu-memory-utilization|nan", 2, "invalid float value: 'nan'"},
        {"$M|--watermark|1", 1, "expected a number in [0,1)"},
        {"$M|--scheduling-policy|lifo", 2,
         "argument --scheduling-policy: invalid choice: 'lifo' (choose from 'fcfs', 'priority')"},
        {"$M|--max-num|5", 2, "ambiguous option: --max-num could match --max-num-batched-tokens, "},
        {"$M|--enable-log-requests=1", 2,
         "--enable-log-requests/--no-enable-log-requests: ignored "
         "explicit argument '1'"},
        {"$M|--allowed-origins|*", 2, "argument --allowed-origins: invalid JSON value"},
        {"$M|--allowed-origins|{}", 2, "expected a JSON list of strings"},
        {"$M|--allowed-origins|[1]", 2, "expected a JSON list of strings"},
        {"$M|--override-generation-config|[]", 2, "expected a JSON object"},
        {"$M|--override-generation-config|{", 2, "invalid JSON value"},
        {"$M|--port.x|1", 2, "argument --port: takes no keys"},
        {"$M|--tensor-parallel-size|2", 2, "vllm.c does not support --tensor-parallel-size 2 yet"},
        {"$M|-tp|0", 1, "--tensor-parallel-size is 0"},
        {"$M|-tp|two", 2, "argument --tensor-parallel-size/-tp: invalid int value: 'two'"},
        {"$M|--kv-cache-dtype|fp8_e5m2", 2,
         "vllm.c does not support --kv-cache-dtype fp8_e5m2 yet"},
        {"$M|--calculate-kv-scales", 2, "--calculate-kv-scales"},
        {"$M|--kv-cache-dtype|int3", 2, "invalid choice: 'int3'"},
        {"$M|--load-format|pt", 2, "vllm.c does not support --load-format pt yet"},
        {"$M|--quantization-config|{\"a\":1}", 2,
         "vllm.c does not support --quantization-config yet"},
        {"$M|-O3", 2, "vllm.c does not support --optimization-level 3 yet"},
        {"$M|-cc.mode=3", 2, "vllm.c does not support --compilation-config yet"},
        {"$M|--headless", 2, "vllm.c does not support --headless yet"},
        {"$M|--enable-auto-tool-choice", 2,
         "vllm.c does not support --enable-auto-tool-choice yet"},
        {"$M|--no-disable-cascade-attn", 2,
         "vllm.c does not support --no-disable-cascade-attn yet"},
        {"$M|--swap-space|4", 2,
         "unrecognized arguments: --swap-space 4 (--swap-space was removed"},
        {"$M|--device|cpu", 2, "--device was removed"},
        {"$M|--config", 2, "No config file specified!"},
        {"$M|--config|a.yaml|--config|b.yaml", 2, "More than one config file"},
        {"$M|--config=a.yaml", 2, "argument --config: expected two words"},
        {"$M|--config|/etc/passwd", 1, "Config file must be of a yaml/yml type"},
        {"$M|--config|/nowhere/x.yaml", 1, "/nowhere/x.yaml"},
        {"--served-model-name|x|--port|1", 2, "`model` should be provided as the first positional"},
        {"no/such-model", 1, "the model 'no/such-model' was not found: vllm.c loads local dir"},
        {"", 1, "Qwen/Qwen3-0.6B"},
        {"/etc/passwd", 1, "is a file"},
        {"$M|--api-server-count|0", 1, "--api-server-count 0"},
        {"$M|--max-num-batched-tokens|4|--max-num-seqs|8", 1,
         "max_num_batched_tokens (4) must be greater than or equal to max_num_seqs (8)."},
        {"$M|--long-prefill-token-threshold|9|--max-model-len|8", 1,
         "long_prefill_token_threshold (9) cannot be greater than the max_model_len (8)."},
        {"$M|--no-enable-chunked-prefill|--max-model-len|64|--max-num-batched-tokens|32", 1,
         "max_num_batched_tokens (32) is smaller than max_model_len (64)."},
        {"$M|--chat-template|no-such.jinja", 1, "appears path-like, but doesn't exist! Tried: no-"},
        {"$M|--tokenizer|/nowhere", 1, "--tokenizer '/nowhere'"},
        {"$M|--generation-config|/nowhere", 1, "--generation-config is '/nowhere'"},
        {"$M|--root-path|v1", 1, "--root-path is 'v1'"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct run run = run_line(rows[i].line);
        if (run.outcome != OPTIONS_EXIT || run.exit_status != rows[i].exit_status ||
            !strstr(run.err, rows[i].message))
            fail_msg("%s: outcome %d, exit %d, expected %d and '%s', found: %s", rows[i].line,
                     run.outcome, run.exit_status, rows[i].exit_status, rows[i].message, run.err);
        if ((rows[i].exit_status == 2) != (strstr(run.err, "usage: vllm serve") != NULL))
            fail_msg("%s: the usage line goes with exit status 2: %s", rows[i].line, run.err);
        run_end(&run);
    }
}

static void warnings_do_not_stop_the_start(void **state)
{
    (void)state;
    static const struct {
        const char *line, *message;
    } rows[] = {
        {"$M|--port|1|--port|2", "Found duplicate keys --port"},
        {"$M|--override-generation-config.a|1|--override-generation-config.a|2",
         "Found duplicate keys --override-generation-config.a"},
        {"$M|--disable-log-requests", "--disable-log-requests is deprecated"},
        {"--model|$M", "provide the model as a positional argument"},
        {"$M|--download-dir|/tmp", "--download-dir has no effect"},
        {"$M|--hf-token", "--hf-token has no effect"},
        {"$M|--api-key=", "--api-key holds no key: requests are not authenticated"},
        {"$M|--enable-log-requests|--log-level|error", "--enable-log-requests logs nothing"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct run run = run_line(rows[i].line);
        if (run.outcome != OPTIONS_RUN || !strstr(run.err, rows[i].message))
            fail_msg("%s: exit %d: %s", rows[i].line, run.exit_status, run.err);
        run_end(&run);
    }
}

/** A value that is of the option's kind and not what it accepts. */
static const char *other_value(const struct option *option)
{
    static char choice[64];
    struct str rest = str_from(option->choices);
    while (rest.len > 0) {
        struct str one = str_split(&rest, ',');
        snprintf(choice, sizeof(choice), ",%.*s,", (int)one.len, one.ptr);
        char all[512];
        snprintf(all, sizeof(all), ",%s,%s,", option->default_text,
                 option->accepts ? option->accepts : "");
        if (!strstr(all, choice)) {
            snprintf(choice, sizeof(choice), "%.*s", (int)one.len, one.ptr);
            return choice;
        }
    }
    switch (option->kind) {
    case OPTION_INT:
    case OPTION_INT64:
    case OPTION_HUMAN32:
    case OPTION_HUMAN64:
        return "77";
    case OPTION_DOUBLE:
        return "0.77";
    case OPTION_JSON_OBJECT:
        return "{\"key\": 1}";
    default:
        return "something-else";
    }
}

static void every_option_without_a_field_is_refused_by_name(void **state)
{
    (void)state;
    size_t count = 0, num_refused = 0;
    const struct option *table = option_table(&count);
    for (size_t i = 0; i < count; i++) {
        const struct option *option = &table[i];
        bool acts = option->kind == OPTION_HELP || option->kind == OPTION_CONFIG;
        if (option->offset != NO_FIELD || acts ||
            (option->accepts && strcmp(option->accepts, "*") == 0))
            continue;
        char word[128];
        bool off = strcmp(option->default_text, "True") == 0;
        snprintf(word, sizeof(word), "--%s%s", off ? "no-" : "", option->name);
        const char *words[] = {MODEL, word, other_value(option)};
        bool both_are_fine = option->accepts && strcmp(option->accepts, "True,False") == 0;
        if (both_are_fine)
            continue;
        struct run run = run_words(option_takes_value(option) ? 3 : 2, words);
        char expected[160];
        snprintf(expected, sizeof(expected), "vllm.c does not support %s", word);
        if (run.outcome != OPTIONS_EXIT || run.exit_status != 2 || !strstr(run.err, expected))
            fail_msg("%s %s: outcome %d, exit %d: %s", word, words[2], run.outcome, run.exit_status,
                     run.err);
        num_refused++;
        run_end(&run);
    }
    assert_true(num_refused > 120);
}

static void the_default_of_every_option_may_be_spelled_out(void **state)
{
    (void)state;
    size_t count = 0;
    const struct option *table = option_table(&count);
    for (size_t i = 0; i < count; i++) {
        const struct option *option = &table[i];
        if (!option_takes_value(option) || option->kind == OPTION_CONFIG ||
            option->kind == OPTION_LIST || option->kind == OPTION_MODEL)
            continue;
        char word[256];
        snprintf(word, sizeof(word), "--%s=%s", option->name, option->default_text);
        struct run run = run_words(2, (const char *const[]){MODEL, word});
        if (run.outcome != OPTIONS_RUN)
            fail_msg("%s: exit %d: %s", word, run.exit_status, run.err);
        struct buf text = {0};
        options_non_default(&run.options, &text);
        buf_append_char(&text, '\0');
        if (strchr(text.ptr, ','))
            fail_msg("%s changes something: %s", word, text.ptr);
        buf_deinit(&text);
        run_end(&run);
    }
}

static void names_and_aliases_are_unique_and_helped(void **state)
{
    (void)state;
    size_t count = 0;
    const struct option *table = option_table(&count);
    for (size_t i = 0; i < count; i++) {
        assert_true(strlen(table[i].help) > 5);
        for (size_t k = 0; k < i; k++) {
            if (strcmp(table[i].name, table[k].name) == 0 ||
                (table[i].alias && table[k].alias && strcmp(table[i].alias, table[k].alias) == 0))
                fail_msg("%s and %s", table[i].name, table[k].name);
        }
    }
}

static void help_has_five_forms(void **state)
{
    (void)state;
    static const struct {
        const char *line, *has, *has_not;
    } rows[] = {
        {"--help", "Config Groups:\n", "--max-model-len"},
        {"-h", "  ModelConfig             ", "--port"},
        {"$M|--port|1|--help", "Config Groups", "--port"},
        {"--help=all", "--max-model-len MAX_MODEL_LEN", "Config Groups"},
        {"--help=all", "(default: 8000)", "Arguments matching"},
        {"--help=ModelConfig", "--dtype {auto,half,", "--port"},
        {"--help=modelconfig", "--max-model-len", "--port"},
        {"--help=frontend", "--port PORT", "--dtype"},
        {"--help=max-num-seqs", "Arguments matching 'max-num-seqs':", "--max-num-batched-tokens"},
        {"--help=max", "--max-num-batched-tokens", "--port"},
        {"--help=max_num_seqs", "--max-num-seqs", "--port"},
        {"--help=zzz", "No group or option matches 'zzz'", "--port"},
        {"--help=all", "Not supported yet.", "Arguments matching"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct run run = run_line(rows[i].line);
        if (run.outcome != OPTIONS_EXIT || run.exit_status != 0 || run.err[0] != '\0' ||
            !strstr(run.out, rows[i].has) || strstr(run.out, rows[i].has_not))
            fail_msg("%s: exit %d: %s%s", rows[i].line, run.exit_status, run.out, run.err);
        run_end(&run);
    }
}

static void the_environment_fills_what_the_command_line_leaves_open(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *line;
        int exit_status; // 0: runs
        const char *expected;
    } rows[] = {
        {"VLLM_API_KEY", "secret", "$M", 0, "'api_key': [\"***\"]"},
        {"VLLM_API_KEY", "", "$M", 0, "{'model': "},
        {"VLLM_LOGGING_LEVEL", "debug", "$M", 0, "'log_level': \"debug\""},
        {"VLLM_LOGGING_LEVEL", "debug", "$M|--log-level|error", 0, "'log_level': \"error\""},
        {"VLLM_LOGGING_LEVEL", "loud", "$M", 1, "VLLM_LOGGING_LEVEL is 'loud'"},
        {"VLLM_CPU_KVCACHE_SPACE", "2", "$M|--kv-cache-memory-bytes|5", 0,
         "'kv_cache_memory_bytes': 2147483648"},
        {"VLLM_CPU_KVCACHE_SPACE", "0", "$M|--kv-cache-memory-bytes|5", 0,
         "'kv_cache_memory_bytes': 5"},
        {"VLLM_CPU_KVCACHE_SPACE", "two", "$M", 1, "VLLM_CPU_KVCACHE_SPACE is 'two'"},
        {"VLLM_CPU_KVCACHE_SPACE", "-1", "$M", 1, "VLLM_CPU_KVCACHE_SPACE is '-1'"},
        {"VLLM_CPU_OMP_THREADS_BIND", "0-3,5", "$M", 0, ""},
        {"VLLM_CPU_OMP_THREADS_BIND", "0-3|4-7", "$M", 1, "VLLM_CPU_OMP_THREADS_BIND"},
        {"VLLM_CPU_OMP_THREADS_BIND", "3-1", "$M", 1, "VLLM_CPU_OMP_THREADS_BIND"},
        {"VLLM_CPU_OMP_THREADS_BIND", "1,", "$M", 1, "VLLM_CPU_OMP_THREADS_BIND"},
        {"VLLM_CPU_ISA", "scalar", "$M", 0, ""},
        {"VLLM_CPU_ISA", "mmx", "$M", 1, "VLLM_CPU_ISA is 'mmx'"},
        {"VLLM_LOG_STATS_INTERVAL", "soon", "$M", 1, "VLLM_LOG_STATS_INTERVAL is 'soon'"},
        {"VLLM_LOG_STATS_INTERVAL", "-3", "$M", 0, ""},
        {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "x", "$M", 1, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE is 'x'"},
        {"VLLM_SERVER_DEV_MODE", "maybe", "$M", 1, "VLLM_SERVER_DEV_MODE is 'maybe'"},
        {"VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1", "$M", 0, ""},
        {"VLLM_BATCH_INVARIANT", "1", "$M", 0, ""},
        {"VLLM_BATCH_INVARIANT", "perhaps", "$M", 1, "VLLM_BATCH_INVARIANT"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        setenv(rows[i].name, rows[i].value, 1);
        if (rows[i].exit_status == 0) {
            expect_non_default(rows[i].line, rows[i].expected);
        } else {
            struct run run = run_line(rows[i].line);
            if (run.exit_status != rows[i].exit_status || !strstr(run.err, rows[i].expected))
                fail_msg("%s=%s: exit %d: %s", rows[i].name, rows[i].value, run.exit_status,
                         run.err);
            run_end(&run);
        }
        unsetenv(rows[i].name);
    }
}

static void environment_values_without_an_option_reach_their_fields(void **state)
{
    (void)state;
    setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1", 1);
    setenv("VLLM_CPU_ISA", "avx2", 1);
    setenv("VLLM_LOG_STATS_INTERVAL", "2.5", 1);
    setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "9", 1);
    setenv("VLLM_SERVER_DEV_MODE", "1", 1);
    setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "true", 1);
    setenv("VLLM_SOMETHING_NEW", "1", 1);
    struct run run = run_line("$M");
    assert_int_equal(run.outcome, OPTIONS_RUN);
    assert_string_equal(run.options.omp_threads_bind, "0-1");
    assert_string_equal(run.options.cpu_isa, "avx2");
    assert_true(run.options.log_stats_interval_s == 2.5);
    assert_int_equal(run.options.keep_alive_timeout_s, 9);
    assert_true(run.options.server_dev_mode);
    assert_true(run.options.allow_long_max_model_len);
    assert_non_null(strstr(run.err, "VLLM_SOMETHING_NEW has no effect"));
    run_end(&run);
    unsetenv("VLLM_CPU_OMP_THREADS_BIND");
    unsetenv("VLLM_CPU_ISA");
    unsetenv("VLLM_LOG_STATS_INTERVAL");
    unsetenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE");
    unsetenv("VLLM_SERVER_DEV_MODE");
    unsetenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN");
    unsetenv("VLLM_SOMETHING_NEW");
}

static void defaults_are_those_of_the_reference(void **state)
{
    (void)state;
    struct run run = run_line("$M");
    assert_int_equal(run.outcome, OPTIONS_RUN);
    const struct serve_options *o = &run.options;
    assert_null(o->host);
    assert_int_equal(o->port, 8000);
    assert_int_equal(o->api_keys.len, 0);
    assert_int_equal(o->served_model_names.len, 1);
    assert_string_equal(o->served_model_names.items[0], MODEL);
    assert_int_equal(o->max_model_len, 0);
    assert_int_equal(o->max_num_seqs, -1);
    assert_int_equal(o->max_num_batched_tokens, -1);
    assert_int_equal(o->block_size, -1);
    assert_true(o->gpu_memory_utilization == 0.92);
    assert_int_equal(o->enable_prefix_caching, TRISTATE_UNSET);
    assert_int_equal(o->enable_chunked_prefill, TRISTATE_UNSET);
    assert_int_equal(o->max_logprobs, 20);
    assert_int_equal(o->max_num_queued_tokens, -1);
    assert_int_equal(o->max_num_partial_prefills, 1);
    assert_true(o->scheduler_reserve_full_isl);
    assert_int_equal(o->stream_interval, 1);
    assert_int_equal(o->max_header_bytes, 4194304);
    assert_int_equal(o->max_header_count, 256);
    assert_string_equal(o->response_role, "assistant");
    assert_string_equal(o->generation_config, "auto");
    assert_null(o->override_generation_config);
    assert_int_equal(o->log_level, LOG_LEVEL_INFO);
    assert_int_equal(o->keep_alive_timeout_s, 5);
    run_end(&run);
}

int main(void)
{
    unsetenv("VLLM_API_KEY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_spelling_reaches_its_field),
        cmocka_unit_test(what_describes_the_program_anyway_is_accepted),
        cmocka_unit_test(mistakes_are_named_and_end_with_the_right_status),
        cmocka_unit_test(warnings_do_not_stop_the_start),
        cmocka_unit_test(every_option_without_a_field_is_refused_by_name),
        cmocka_unit_test(the_default_of_every_option_may_be_spelled_out),
        cmocka_unit_test(names_and_aliases_are_unique_and_helped),
        cmocka_unit_test(help_has_five_forms),
        cmocka_unit_test(the_environment_fills_what_the_command_line_leaves_open),
        cmocka_unit_test(environment_values_without_an_option_reach_their_fields),
        cmocka_unit_test(defaults_are_those_of_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
