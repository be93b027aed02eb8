// `vllm plan`: the memory plan of `vllm serve` with the same flags, without reading a weight or
// starting anything. A directory that holds no more than config.json is enough.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/memory.h"
#include "config/command_line.h"
#include "entrypoints/entrypoints.h"
#include "worker/plan_report.h"
#include "worker/worker.h"

enum { EXIT_DOES_NOT_FIT = 1, EXIT_USAGE = 2 };

enum plan_device { PLAN_DEVICE_AUTO, PLAN_DEVICE_CPU, PLAN_DEVICE_GPU };

struct plan_options {
    struct arena arena;
    int device;          // enum plan_device
    int64_t gpu_memory;  // -1: no GPU
    int64_t host_memory; // -1: this host's
    bool json;
    struct str_list serve_words;
};

#define OPT(...) OPTION_ROW(struct plan_options, 0, __VA_ARGS__)

static const struct option table[] = {
    OPT("gpu-memory", HUMAN64, gpu_memory, "None",
        "Plan for a GPU with so many bytes, all of them free, e.g. 141G (G: 1024^3, g: 1000^3).",
        .range = "[1,inf)"),
    OPT("host-memory", HUMAN64, host_memory, "None",
        "Plan for a CPU machine with so many bytes, all of them free; else for this one.",
        .range = "[1,inf)"),
    OPT("device", ENUM, device, "auto",
        "What the engine would run on. auto: a GPU with --gpu-memory, a CPU with --host-memory, "
        "else what `vllm serve` would take here.",
        .choices = "auto,cpu,gpu"),
    OPT("json", FLAG, json, "False", "Print one JSON object."),
};

static enum options_outcome parse_words(struct plan_options *options, int argc, char **argv,
                                        int *exit_status)
{
    static const char *const titles[] = {"Plan"};
    const struct command_line line = {
        .program = "vllm plan",
        .usage = "MODEL [options] [options of vllm serve]",
        .description = "Prints what memory `vllm serve` would use, and whether it fits.",
        .table = table,
        .num_options = ARRAY_LEN(table),
        .group_titles = titles,
        .num_groups = 1,
        .groups = 1,
        .target = {options, &options->arena},
        .rest = &options->serve_words,
        .rest_help = "All other options are those of `vllm serve`; see `vllm serve --help`.",
    };
    if (command_line_parse(&line, argc, argv, stdout, stderr, exit_status) == OPTIONS_EXIT)
        return OPTIONS_EXIT;
    const char *fault = NULL;
    if (options->device == PLAN_DEVICE_CPU && options->gpu_memory > 0)
        fault = "--gpu-memory is of no use with --device cpu; --host-memory says how much a CPU "
                "machine has";
    else if (options->device == PLAN_DEVICE_GPU && options->gpu_memory <= 0)
        fault = "--device gpu needs --gpu-memory, e.g. --gpu-memory 141G";
    else if (options->gpu_memory > 0 && options->host_memory > 0)
        fault = "--gpu-memory and --host-memory exclude each other: weights and cache are in one "
                "of them";
    if (!fault)
        return OPTIONS_RUN;
    fprintf(stderr, "vllm plan: error: %s\n", fault);
    *exit_status = EXIT_USAGE;
    return OPTIONS_EXIT;
}

static bool has_file(const char *dir, const char *name)
{
    struct buf path = {0};
    buf_printf(&path, "%s/%s", dir, name);
    buf_append_char(&path, '\0');
    bool found = access(path.ptr, F_OK) == 0;
    buf_deinit(&path);
    return found;
}

static bool has_weights(const char *dir)
{
    return has_file(dir, "model.safetensors") || has_file(dir, "model.safetensors.index.json");
}

static void print_remedies(struct buf *out, const struct plan_verdict *verdict)
{
    if (verdict->num_remedies == 0)
        buf_append_c(out, "No flags make it fit; it needs more memory or a smaller model.\n");
    else
        buf_append_c(out, "Any one of these makes it fit\n");
    for (int32_t i = 0; i < verdict->num_remedies; i++)
        buf_printf(out, "  %-36s %s\n", verdict->remedies[i].flags, verdict->remedies[i].effect);
}

static void print_text(const struct engine_config *config, const struct plan_verdict *verdict)
{
    struct buf out = {0};
    plan_report_text(&out, config);
    if (config->kv_cache.num_blocks > 0)
        plan_report_concurrency(&out, config);
    if (verdict->problem) {
        buf_printf(&out, "Does not fit: %s\n", verdict->problem);
        print_remedies(&out, verdict);
    } else {
        buf_append_c(&out, "It fits.\n");
    }
    fwrite(out.ptr, 1, out.len, stdout);
    buf_deinit(&out);
}

static void print_json(const struct engine_config *config, const struct plan_verdict *verdict)
{
    struct buf out = {0};
    plan_report_json(&out, config, verdict);
    buf_append_char(&out, '\n');
    fwrite(out.ptr, 1, out.len, stdout);
    buf_deinit(&out);
}

static int run(const struct plan_options *options, struct serve_options *serve)
{
    bool is_gpu = options->gpu_memory > 0;
    if (is_gpu)
        serve->target_device = "cuda"; // whatever this machine has
    else if (options->device == PLAN_DEVICE_CPU || options->host_memory > 0)
        serve->target_device = "cpu";
    if (serve->load_format != LOAD_FORMAT_DUMMY && !has_weights(serve->model)) {
        serve->load_format = LOAD_FORMAT_DUMMY;
        fprintf(stderr, "%s holds no weights: sizes follow from config.json alone\n", serve->model);
    }
    int64_t memory_bytes = is_gpu ? options->gpu_memory : max_i64(options->host_memory, 0);
    struct model_config model = {0};
    struct engine_config config = {0};
    struct plan_verdict verdict = {0};
    struct error err = {0};
    enum status status = model_config_load(&model, serve->model, serve->generation_config,
                                           serve->override_generation_config, &err);
    if (status == STATUS_OK)
        status = engine_config_plan_for(&config, serve, &model, memory_bytes, &err);
    if (status == STATUS_OUT_OF_MEMORY) {
        verdict.problem = err.message;
        plan_find_remedies(&verdict, &config, memory_bytes);
    }
    if (status != STATUS_OK && status != STATUS_OUT_OF_MEMORY)
        fprintf(stderr, "vllm plan: error: %s\n", err.message);
    else if (options->json)
        print_json(&config, &verdict);
    else
        print_text(&config, &verdict);
    engine_config_deinit(&config);
    model_config_deinit(&model);
    return status == STATUS_OK ? 0 : EXIT_DOES_NOT_FIT;
}

int plan_main(int argc, char **argv)
{
    struct plan_options options = {0};
    struct serve_options serve;
    int exit_status = 0;
    if (parse_words(&options, argc, argv, &exit_status) == OPTIONS_RUN) {
        // The words as options_parse_serve() wants them: it changes none.
        int num = options.serve_words.len;
        char **words = arena_array(&options.arena, char *, num + 1);
        for (int i = 0; i < num; i++)
            words[i] = (char *)(uintptr_t)options.serve_words.items[i];
        words[num] = NULL;
        if (options_parse_serve(&serve, num, words, &exit_status) == OPTIONS_RUN) {
            // Standard output is the table's alone.
            log_set_level(LOG_LEVEL_ERROR);
            exit_status = run(&options, &serve);
            options_deinit(&serve);
        }
    }
    arena_deinit(&options.arena);
    return exit_status;
}
