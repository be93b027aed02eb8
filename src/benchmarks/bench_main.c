// `vllm bench`: picks the sub-command.
#include "benchmarks/benchmarks.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "benchmarks/bench_options.h"
#include "benchmarks/offline_bench.h"
#include "benchmarks/serve_bench.h"

enum { EXIT_USAGE = 2 };

static const struct {
    const char *name, *help;
    enum bench_command command;
    int (*run)(struct bench_options *options);
} commands[] = {
    {"serve", "send requests to a running server", BENCH_SERVE, serve_bench_main},
    {"sweep", "the same over several request rates or concurrency limits", BENCH_SWEEP, sweep_main},
    {"throughput", "how fast an engine answers many prompts", BENCH_THROUGHPUT, throughput_main},
    {"latency", "how long an engine takes for one batch", BENCH_LATENCY, latency_main},
};

static const char usage[] = "usage: vllm bench [-h] {serve,sweep,throughput,latency} ...\n";

static void print_help(void)
{
    printf("%sMeasure a server or an engine.\n\ncommands:\n", usage);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        printf("  %-14s%s\n", commands[i].name, commands[i].help);
    printf("\n`vllm bench COMMAND --help` shows the options of each.\n");
}

int bench_main(int argc, char **argv)
{
    if (argc < 1) {
        fprintf(stderr, "%svllm bench: error: a command is required\n", usage);
        return EXIT_USAGE;
    }
    const char *name = argv[0];
    if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0) {
        print_help();
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(name, commands[i].name) != 0)
            continue;
        // `vllm bench sweep serve` is the long name of the only sweep there is.
        bool is_long =
            commands[i].command == BENCH_SWEEP && argc > 1 && strcmp(argv[1], "serve") == 0;
        int skip = is_long ? 2 : 1, exit_status = 0;
        struct bench_options options;
        if (bench_options_parse(&options, commands[i].command, argc - skip, argv + skip, stdout,
                                stderr, &exit_status) == OPTIONS_RUN)
            exit_status = commands[i].run(&options);
        bench_options_deinit(&options);
        return exit_status;
    }
    fprintf(stderr, "%svllm bench: error: invalid choice: '%.100s'\n", usage, name);
    return EXIT_USAGE;
}
