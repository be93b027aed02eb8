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
    {"sweep", "the same over several loads, or over sets of flags of servers and benchmarks",
     BENCH_SWEEP, sweep_main},
    {"throughput", "how fast an engine answers many prompts", BENCH_THROUGHPUT, throughput_main},
    {"latency", "how long an engine takes for one batch", BENCH_LATENCY, latency_main},
};

/** Words after "sweep". */
static const struct {
    const char *name;
    enum bench_command command;
} sweeps[] = {
    {"serve", BENCH_SWEEP_SERVE},
    {"serve_workload", BENCH_SWEEP_WORKLOAD},
};

static const char usage[] = "usage: vllm bench [-h] {serve,sweep,throughput,latency} ...\n";

static void print_help(void)
{
    printf("%sMeasure a server or an engine.\n\ncommands:\n", usage);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        printf("  %-14s%s\n", commands[i].name, commands[i].help);
    printf("\n`vllm bench COMMAND --help` shows the options of each.\n");
}

static int run_command(enum bench_command command, int (*run)(struct bench_options *), int argc,
                       char **argv)
{
    struct bench_options options;
    int exit_status = 0;
    if (bench_options_parse(&options, command, argc, argv, stdout, stderr, &exit_status) ==
        OPTIONS_RUN)
        exit_status = run(&options);
    bench_options_deinit(&options);
    return exit_status;
}

static int run_sweep_of_commands(int argc, char **argv)
{
    for (size_t i = 0; i < ARRAY_LEN(sweeps); i++) {
        if (strcmp(argv[0], sweeps[i].name) == 0)
            return run_command(sweeps[i].command,
                               sweeps[i].command == BENCH_SWEEP_WORKLOAD ? sweep_workload_main
                                                                         : sweep_serve_main,
                               argc - 1, argv + 1);
    }
    fprintf(stderr,
            "vllm bench sweep: error: invalid choice: '%.100s' (expected serve, serve_workload, or "
            "options)\n",
            argv[0]);
    return EXIT_USAGE;
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
        if (commands[i].command == BENCH_SWEEP && argc > 1 && argv[1][0] != '-')
            return run_sweep_of_commands(argc - 1, argv + 1);
        return run_command(commands[i].command, commands[i].run, argc - 1, argv + 1);
    }
    fprintf(stderr, "%svllm bench: error: invalid choice: '%.100s'\n", usage, name);
    return EXIT_USAGE;
}
