// The rows. What one row cannot say (sums, pairs, lists of numbers) is checked in bench_check.c.
#include "benchmarks/bench_options.h"

#include "base/memory.h"
#include "benchmarks/bench_check.h"
#include "config/command_line.h"

enum group {
    BENCH_GROUP_COMMON,
    BENCH_GROUP_SERVER,
    BENCH_GROUP_REQUEST,
    BENCH_GROUP_DATASET,
    BENCH_GROUP_LENGTHS,
    BENCH_GROUP_LOAD,
    BENCH_GROUP_WARMUPS,
    BENCH_GROUP_REPORT,
    BENCH_GROUP_PLOT,
    BENCH_GROUP_ENGINE,
    BENCH_GROUP_LATENCY,
    BENCH_GROUP_SWEEP,
    BENCH_GROUP_RUNS,
    BENCH_GROUP_COMMANDS,
    BENCH_GROUP_WORKLOAD,
    NUM_BENCH_GROUPS,
};

static const char *const group_titles[NUM_BENCH_GROUPS] = {
    [BENCH_GROUP_COMMON] = "Model",     [BENCH_GROUP_SERVER] = "Server",
    [BENCH_GROUP_REQUEST] = "Requests", [BENCH_GROUP_DATASET] = "Dataset",
    [BENCH_GROUP_LENGTHS] = "Lengths",  [BENCH_GROUP_LOAD] = "Load",
    [BENCH_GROUP_WARMUPS] = "Warm-up",  [BENCH_GROUP_REPORT] = "Report",
    [BENCH_GROUP_PLOT] = "Plot",        [BENCH_GROUP_ENGINE] = "Engine",
    [BENCH_GROUP_LATENCY] = "Batches",  [BENCH_GROUP_SWEEP] = "Sweep",
    [BENCH_GROUP_RUNS] = "Runs",        [BENCH_GROUP_COMMANDS] = "Commands",
    [BENCH_GROUP_WORKLOAD] = "Loads",
};

#define OPT(group_, ...) OPTION_ROW(struct bench_options, BENCH_GROUP_##group_, __VA_ARGS__)
#define NO_OPT(group_, ...) OPTION_ROW_WITHOUT_FIELD(BENCH_GROUP_##group_, __VA_ARGS__)

static const struct option table[] = {
    OPT(COMMON, "model", STRING, model, "None",
        "The model: a directory, whose tokenizer counts tokens, or a name that the server knows. "
        "Without it the first one that the server lists."),
    OPT(COMMON, "tokenizer", STRING, tokenizer, "None",
        "Directory of the tokenizer; the model's unless given."),
    OPT(COMMON, "seed", INT64, seed, "0", "Prompts and arrival times follow from it."),
    NO_OPT(COMMON, "tokenizer-mode", STRING, "auto", "Which tokenizer implementation.",
           .accepts = "auto,hf"),
    NO_OPT(COMMON, "trust-remote-code", FLAG, "False",
           "Run code of the model's repository; none is ever run here.", .accepts = "*"),

    OPT(SERVER, "backend", STRING, backend_name, "openai",
        "The interface to drive: completions (openai, vllm), chat (openai-chat) or embeddings of a "
        "pooling server (openai-embeddings), whose answers come whole: e2el is their latency.",
        .choices = "openai,vllm,openai-chat,openai-embeddings"),
    OPT(SERVER, "base-url", STRING, base_url, "None",
        "http[s]://HOST[:PORT][/PREFIX] instead of --host and --port."),
    OPT(SERVER, "insecure", FLAG, insecure, "False",
        "Accept any certificate of an https server; else it must be one that this system trusts "
        "(SSL_CERT_FILE names others)."),
    OPT(SERVER, "host", STRING, host, "127.0.0.1", "Host of the server."),
    OPT(SERVER, "port", INT, port, "8000", "Port of the server.", .range = "[1,65535]"),
    OPT(SERVER, "endpoint", STRING, endpoint, "None",
        "Path of the requests; /v1/completions, /v1/chat/completions or /v1/embeddings, by the "
        "backend."),
    OPT(SERVER, "header", LIST, headers, "None", "Further headers, KEY=VALUE."),
    OPT(SERVER, "served-model-name", STRING, served_model_name, "None",
        "The name to send as model; the model's own unless given."),
    OPT(SERVER, "api-key", STRING, api_key, "None",
        "Sent as Authorization: Bearer KEY; else OPENAI_API_KEY."),
    OPT(SERVER, "skip-tokenizer-init", FLAG, skip_tokenizer_init, "False",
        "Load no tokenizer: prompt lengths are estimates until the server counts them."),
    OPT(SERVER, "ready-check-timeout-sec", INT, ready_check_timeout_s, "0",
        "Try a test request every 5 s until it succeeds or so many seconds have passed; 0: begin "
        "at once.",
        .range = "[0,86400]"),

    OPT(REQUEST, "ignore-eos", FLAG, ignore_eos, "False",
        "Ask for the full output length: send ignore_eos."),
    OPT(REQUEST, "temperature", STRING, temperature, "None",
        "Sampling temperature; the server's default unless given."),
    OPT(REQUEST, "top-p", STRING, top_p, "None", "Nucleus sampling."),
    OPT(REQUEST, "top-k", STRING, top_k, "None", "Sample from the k most likely tokens."),
    OPT(REQUEST, "min-p", STRING, min_p, "None", "Least probability relative to the best token."),
    OPT(REQUEST, "frequency-penalty", STRING, frequency_penalty, "None", "Frequency penalty."),
    OPT(REQUEST, "presence-penalty", STRING, presence_penalty, "None", "Presence penalty."),
    OPT(REQUEST, "repetition-penalty", STRING, repetition_penalty, "None", "Repetition penalty."),
    OPT(REQUEST, "extra-body", JSON_OBJECT, extra_body, "None",
        "A JSON object that is merged over each request."),
    OPT(REQUEST, "logprobs", INT, logprobs, "None", "Ask for so many log-probabilities a token.",
        .range = "[-1,1000]"),
    NO_OPT(REQUEST, "use-beam-search", FLAG, "False", "Ask for beam search.", .accepts = "False"),
    NO_OPT(REQUEST, "lora-modules", LIST, "None", "LoRA adapters to ask for by turns."),
    NO_OPT(REQUEST, "lora-assignment", STRING, "random", "How they are chosen.",
           .accepts = "random"),
    OPT(REQUEST, "request-id-prefix", STRING, request_id_prefix, "None",
        "X-Request-Id is this and the request's number; bench-<8 hex digits>- unless given."),

    OPT(DATASET, "dataset-name", STRING, dataset_name, "random",
        "Where prompts come from. timed_trace: JSON lines with timestamp (milliseconds), "
        "input_length, output_length and, where prefixes repeat, hash_ids. burstgpt: a CSV file "
        "with the columns Model, Request tokens, Response tokens.",
        .choices = "random,sharegpt,custom,sonnet,prefix_repetition,prefix-repetition,"
                   "timed_trace,timed-trace,burstgpt"),
    OPT(DATASET, "dataset-path", STRING, dataset_path, "None", "File of the dataset."),
    OPT(DATASET, "num-prompts", INT, num_prompts, "1000", "Number of requests.",
        .range = "[1,10000000]"),
    OPT(DATASET, "disable-shuffle", FLAG, disable_shuffle, "False",
        "Take sharegpt and custom prompts in the order of the file."),
    OPT(DATASET, "no-oversample", FLAG, no_oversample, "False",
        "Send fewer requests when the file has fewer prompts, instead of repeating them."),
    OPT(DATASET, "skip-chat-template", FLAG, skip_chat_template, "False",
        "Send custom prompts to the completions interface without the model's chat template."),
    OPT(DATASET, "chat-template-kwargs", JSON_OBJECT, chat_template_kwargs, "None",
        "A JSON object of variables for that template."),
    OPT(DATASET, "random-batch-size", INT, random_batch_size, "1",
        "Random prompts in each request for embeddings; --num-prompts counts prompts.",
        .range = "[1,65536]"),
    OPT(DATASET, "random-input-len", INT, random_input_len, "1024", "Tokens of a random prompt.",
        .range = "[1,16777216]"),
    OPT(DATASET, "random-output-len", INT, random_output_len, "128",
        "Tokens of the answer to a random prompt.", .range = "[1,16777216]"),
    OPT(DATASET, "random-range-ratio", STRING, random_range_ratio, "0.0",
        "Lengths are uniform within this share around the given ones: a number in [0,1), or "
        "{\"input\": a, \"output\": b}."),
    OPT(DATASET, "random-prefix-len", INT, random_prefix_len, "0",
        "Tokens that all random prompts begin with, in addition.", .range = "[0,16777216]"),
    OPT(DATASET, "sharegpt-output-len", INT, sharegpt_output_len, "None",
        "Output length; that of the recorded answer unless given.", .range = "[1,16777216]"),
    OPT(DATASET, "custom-output-len", INT, custom_output_len, "256",
        "Output length of custom prompts; -1: each line's output_tokens.",
        .range = "[-1,16777216]"),
    OPT(DATASET, "sonnet-input-len", INT, sonnet_input_len, "550", "Tokens of a sonnet prompt.",
        .range = "[1,16777216]"),
    OPT(DATASET, "sonnet-output-len", INT, sonnet_output_len, "150", "Tokens of its answer.",
        .range = "[1,16777216]"),
    OPT(DATASET, "sonnet-prefix-len", INT, sonnet_prefix_len, "200",
        "Tokens of the lines that all sonnet prompts share.", .range = "[0,16777216]"),
    OPT(DATASET, "prefix-repetition-prefix-len", INT, prefix_repetition_prefix_len, "256",
        "Tokens of each prefix.", .range = "[0,16777216]"),
    OPT(DATASET, "prefix-repetition-suffix-len", INT, prefix_repetition_suffix_len, "256",
        "Tokens after the prefix.", .range = "[1,16777216]"),
    OPT(DATASET, "prefix-repetition-num-prefixes", INT, prefix_repetition_num_prefixes, "10",
        "Number of different prefixes.", .range = "[1,10000000]"),
    OPT(DATASET, "prefix-repetition-output-len", INT, prefix_repetition_output_len, "128",
        "Tokens of each answer.", .range = "[1,16777216]"),

    OPT(LENGTHS, "input-len", INT, input_len, "None",
        "Prompt length, whatever the dataset calls it.", .range = "[1,16777216]"),
    OPT(LENGTHS, "output-len", INT, output_len, "None",
        "Output length, whatever the dataset calls it.", .range = "[1,16777216]"),

    OPT(LOAD, "request-rate", STRING, request_rate_text, "inf",
        "Requests per second; inf: all at once."),
    OPT(LOAD, "burstiness", DOUBLE, burstiness, "1.0",
        "Shape of the gamma-distributed gaps: 1 is a Poisson process, less is burstier, more is "
        "more even.",
        .range = "(0,1000000]"),
    OPT(LOAD, "max-concurrency", INT, max_concurrency, "None",
        "Most requests at a time; others wait their turn, which counts for no latency.",
        .range = "[1,65536]"),
    OPT(LOAD, "ramp-up-strategy", STRING, ramp_up_text, "None",
        "Let the rate grow from --ramp-up-start-rps to --ramp-up-end-rps.",
        .choices = "linear,exponential"),
    OPT(LOAD, "ramp-up-start-rps", STRING, ramp_up_start_text, "None",
        "First requests per second."),
    OPT(LOAD, "ramp-up-end-rps", STRING, ramp_up_end_text, "None", "Last requests per second."),
    OPT(LOAD, "self-timed", FLAG, self_timed, "False",
        "Send each request at its time stamp of the dataset; always so with timed_trace."),

    OPT(WARMUPS, "num-warmups", INT, num_warmups, "0", "Requests before the ones that count.",
        .range = "[0,1000000]"),

    OPT(REPORT, "percentile-metrics", COMMA_LIST, metric_names, "ttft,tpot,itl",
        "Which of ttft, tpot, itl, e2el the report details; of embeddings e2el."),
    OPT(REPORT, "metric-percentiles", COMMA_LIST, percentile_texts, "99",
        "Which percentiles it shows, e.g. 50,90,99.9."),
    OPT(REPORT, "goodput", LIST, goodput_texts, "None",
        "Objectives in milliseconds, e.g. ttft:500 tpot:50 e2el:5000; counts the requests that "
        "meet them all."),
    OPT(REPORT, "save-result", FLAG, save_result, "False", "Write the result as JSON."),
    OPT(REPORT, "save-detailed", FLAG, save_detailed, "False",
        "With lengths, times, texts and errors of each request."),
    OPT(REPORT, "append-result", FLAG, append_result, "False",
        "Append to the result file, one line a run."),
    OPT(REPORT, "result-dir", STRING, result_dir, "None", "Folder of the result file."),
    OPT(REPORT, "result-filename", STRING, result_filename, "None",
        "Name of the result file; made of backend, rate, model and time unless given."),
    OPT(REPORT, "metadata", LIST, metadata, "None", "KEY=VALUE pairs for the result file."),
    OPT(REPORT, "label", STRING, label, "None",
        "Stands for the backend in the result and its file name."),
    OPT(REPORT, "disable-tqdm", FLAG, disable_tqdm, "False", "No progress bar."),

    OPT(PLOT, "plot", STRING, plot, "None", "Draw the result into this .html or .svg file."),
    NO_OPT(PLOT, "plot-timeline", FLAG, "False", "Draw each request over time; see --plot.",
           .accepts = "False"),
    NO_OPT(PLOT, "plot-dataset-stats", FLAG, "False", "Draw the prompts' lengths; see --plot.",
           .accepts = "False"),
    NO_OPT(PLOT, "profile", FLAG, "False", "Have the server profile itself.", .accepts = "False"),

    OPT(ENGINE, "output-json", STRING, output_json, "None", "Write the result as JSON."),
    OPT(ENGINE, "n", INT, n, "1", "Answers to each prompt.", .range = "[1,1024]"),
    NO_OPT(ENGINE, "disable-detokenize", FLAG, "False",
           "Make no text of the tokens; none is made here.", .accepts = "*"),

    OPT(LATENCY, "batch-size", INT, batch_size, "8", "Requests at a time.", .range = "[1,65536]"),
    OPT(LATENCY, "num-iters", INT, num_iters, "30", "Batches to measure.", .range = "[1,1000000]"),
    OPT(LATENCY, "num-iters-warmup", INT, num_iters_warmup, "10", "Batches before those.",
        .range = "[0,1000000]"),

    OPT(SWEEP, "request-rates", COMMA_LIST, rate_texts, "None",
        "Request rates to measure one after the other, e.g. 1,2,4,8,inf."),
    OPT(SWEEP, "max-concurrencies", COMMA_LIST, concurrency_texts, "None",
        "Concurrency limits to measure one after the other, e.g. 1,4,16,64."),

    OPT(RUNS, "num-runs", INT, num_runs, "3", "Runs for each point; the table shows the median.",
        .range = "[1,100]"),
    OPT(RUNS, "output-dir", STRING, output_dir, "results", "Folder of the results.", .alias = "-o"),
    OPT(RUNS, "experiment-name", STRING, experiment_name, "None",
        "Folder within it; the date and time unless given."),

    OPT(COMMANDS, "serve-cmd", STRING, serve_cmd, "None",
        "The server's command, e.g. 'vllm serve MODEL --port 8000': one server is started for "
        "each set of --serve-params, with VLLM_SERVER_DEV_MODE=1. Quoted as for a shell, but run "
        "without one. Without it a server must run already."),
    OPT(COMMANDS, "bench-cmd", STRING, bench_cmd, "None",
        "The command that measures it, e.g. 'vllm bench serve --port 8000 --num-prompts 200'. "
        "What it takes to save its result is added."),
    OPT(COMMANDS, "serve-params", STRING, serve_params, "None",
        "JSON file with a list of sets of the server's flags, e.g. [{\"max_num_seqs\": 8}, "
        "{\"max_num_seqs\": 32}]."),
    OPT(COMMANDS, "bench-params", STRING, bench_params, "None",
        "JSON file with sets of the measuring command's flags; each is run with each of the "
        "server's."),
    OPT(COMMANDS, "link-vars", COMMA_LIST, link_vars, "None",
        "Run only the pairs of sets whose flags are equal, e.g. max_num_seqs=max_concurrency."),
    OPT(COMMANDS, "after-bench-cmd", STRING, after_bench_cmd, "None",
        "What to run after each run instead of POST /reset_prefix_cache; '' for nothing."),
    OPT(COMMANDS, "show-stdout", FLAG, show_stdout, "False",
        "Show the output of all commands instead of keeping it in files beside the results."),
    OPT(COMMANDS, "server-ready-timeout", INT, server_ready_timeout_s, "300",
        "Seconds until a server's /health must answer 200.", .range = "[1,86400]"),
    OPT(COMMANDS, "dry-run", FLAG, dry_run, "False", "Print the commands and run none."),
    OPT(COMMANDS, "resume", FLAG, resume, "False",
        "Go on with --experiment-name: runs that have their file are not repeated."),

    OPT(WORKLOAD, "workload-var", STRING, workload_var, "request_rate",
        "What to vary between one request at a time and all at once.",
        .choices = "request_rate,max_concurrency"),
    OPT(WORKLOAD, "workload-iters", INT, workload_iters, "10",
        "Number of loads, with the two extremes.", .range = "[2,64]"),
};

#define BIT(group) (1u << (group))

static const struct {
    const char *program, *usage, *description;
    uint32_t groups;
} commands[] = {
    [BENCH_SERVE] = {"vllm bench serve", "[options]",
                     "Sends requests to a running server and measures its answers.",
                     BIT(BENCH_GROUP_COMMON) | BIT(BENCH_GROUP_SERVER) | BIT(BENCH_GROUP_REQUEST) |
                         BIT(BENCH_GROUP_DATASET) | BIT(BENCH_GROUP_LENGTHS) |
                         BIT(BENCH_GROUP_LOAD) | BIT(BENCH_GROUP_WARMUPS) |
                         BIT(BENCH_GROUP_REPORT) | BIT(BENCH_GROUP_PLOT)},
    [BENCH_SWEEP] = {"vllm bench sweep",
                     "(--request-rates LIST | --max-concurrencies LIST) [options]\n"
                     "       vllm bench sweep {serve,serve_workload} --bench-cmd COMMAND [options]",
                     "Runs `vllm bench serve` over several request rates or concurrency limits of "
                     "a running server. `sweep serve` and `sweep serve_workload` run commands and "
                     "have options of their own.",
                     BIT(BENCH_GROUP_COMMON) | BIT(BENCH_GROUP_SERVER) | BIT(BENCH_GROUP_REQUEST) |
                         BIT(BENCH_GROUP_DATASET) | BIT(BENCH_GROUP_LENGTHS) |
                         BIT(BENCH_GROUP_LOAD) | BIT(BENCH_GROUP_WARMUPS) |
                         BIT(BENCH_GROUP_REPORT) | BIT(BENCH_GROUP_PLOT) | BIT(BENCH_GROUP_SWEEP) |
                         BIT(BENCH_GROUP_RUNS)},
    [BENCH_SWEEP_SERVE] = {"vllm bench sweep serve", "--bench-cmd COMMAND [options]",
                           "Starts a server for each set of its flags and runs a benchmark on it "
                           "for each set of the benchmark's.",
                           BIT(BENCH_GROUP_COMMANDS) | BIT(BENCH_GROUP_RUNS) |
                               BIT(BENCH_GROUP_PLOT)},
    [BENCH_SWEEP_WORKLOAD] =
        {"vllm bench sweep serve_workload", "--bench-cmd COMMAND [options]",
         "As `vllm bench sweep serve`, and each pair of sets at several loads: "
         "one request at a time, all at once, and evenly between what these "
         "two reach.",
         BIT(BENCH_GROUP_COMMANDS) | BIT(BENCH_GROUP_WORKLOAD) | BIT(BENCH_GROUP_RUNS) |
             BIT(BENCH_GROUP_PLOT)},
    [BENCH_THROUGHPUT] = {"vllm bench throughput", "--model DIR [options] [options of vllm serve]",
                          "Starts an engine, gives it all prompts at once and measures how fast it "
                          "answers, without HTTP and text.",
                          BIT(BENCH_GROUP_COMMON) | BIT(BENCH_GROUP_DATASET) |
                              BIT(BENCH_GROUP_LENGTHS) | BIT(BENCH_GROUP_WARMUPS) |
                              BIT(BENCH_GROUP_ENGINE)},
    [BENCH_LATENCY] = {"vllm bench latency", "--model DIR [options] [options of vllm serve]",
                       "Starts an engine and measures how long one batch takes from the first "
                       "token of the prompts to the last of the answers, without HTTP and text.",
                       BIT(BENCH_GROUP_COMMON) | BIT(BENCH_GROUP_LENGTHS) |
                           BIT(BENCH_GROUP_ENGINE) | BIT(BENCH_GROUP_LATENCY)},
};

enum options_outcome bench_options_parse(struct bench_options *options, enum bench_command command,
                                         int argc, char **argv, FILE *out, FILE *err_out,
                                         int *exit_status)
{
    *options = (struct bench_options){0};
    bool has_engine = command == BENCH_THROUGHPUT || command == BENCH_LATENCY;
    bool given[ARRAY_LEN(table)] = {false};
    struct command_line line = {
        .program = commands[command].program,
        .usage = commands[command].usage,
        .description = commands[command].description,
        .table = table,
        .num_options = ARRAY_LEN(table),
        .group_titles = group_titles,
        .num_groups = NUM_BENCH_GROUPS,
        .groups = commands[command].groups,
        .target = {options, &options->arena},
        .given = given,
        .rest = has_engine ? &options->serve_words : NULL,
        .rest_help =
            has_engine ? "Everything else is for the engine: see `vllm serve --help`." : NULL,
    };
    if (command_line_parse(&line, argc, argv, out, err_out, exit_status) == OPTIONS_EXIT)
        return OPTIONS_EXIT;
    struct bench_given facts = {0};
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        struct str name = str_from(table[i].name);
        facts.request_rate |= given[i] && str_eq_c(name, "request-rate");
        facts.percentile_metrics |= given[i] && str_eq_c(name, "percentile-metrics");
        if (given[i] && str_ends_with(name, STR("output-len")))
            facts.output_len = table[i].name;
    }
    struct error err = {0};
    if (bench_options_check(options, command, &facts, &err) == STATUS_OK)
        return OPTIONS_RUN;
    fprintf(err_out, "%s: error: %s\n", line.program, err.message);
    *exit_status = 2;
    return OPTIONS_EXIT;
}

void bench_options_deinit(struct bench_options *options)
{
    arena_deinit(&options->arena);
    *options = (struct bench_options){0};
}
