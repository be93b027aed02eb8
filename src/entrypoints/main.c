// The vllm program: picks the sub-command.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "benchmarks/benchmarks.h"
#include "entrypoints/entrypoints.h"

enum { EXIT_USAGE = 2 };

// OpenMP's threads spin between operations unless told otherwise, and where another program wants
// the cores, or a container's quota ends, each spinning thread delays the one that works: a
// hundredfold loss was measured. The runtime reads this when it is loaded, so the program starts
// itself once more.
static void let_idle_threads_sleep(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return; // the operator knows better
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv); // if it cannot, spinning threads are only slow
}

static int run_serve(int argc, char **argv)
{
    struct serve_options options;
    int exit_status = 0;
    if (options_parse_serve(&options, argc, argv, &exit_status) == OPTIONS_EXIT)
        return exit_status;
    log_set_level(options.log_level);
    log_set_format(options.log_format);
    exit_status = serve_main(&options);
    options_deinit(&options);
    return exit_status;
}

static const struct command {
    const char *name, *help;
    int (*run)(int argc, char **argv); // NULL: known, but not available yet
} commands[] = {
    {"serve", "serve a model over HTTP, OpenAI-compatible", run_serve},
    {"chat", "talk to a running server", chat_main},
    {"complete", "let a running server continue a text", complete_main},
    {"replay", "compare a recording of an engine's decisions with the scheduler's", replay_main},
    {"collect-env", "print what a report about this machine should contain", collect_env_main},
    {"bench", "measure a server or an engine", bench_main},
    {"run-batch", "answer a file of requests", NULL},
    {"launch", "start single components", NULL},
    {"plan", "print the memory plan of a model", plan_main},
};

static const char usage[] =
    "usage: vllm [-h] [-v] {serve,chat,complete,replay,collect-env,bench,run-batch,"
    "launch,plan} ...\n";

static int print_help(void)
{
    printf("%s\nServe large language models.\n\ncommands:\n", usage);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        printf("  %-14s%s%s\n", commands[i].name, commands[i].help,
               commands[i].run ? "" : " (not available yet)");
    printf("\noptions:\n  %-14s%s\n  %-14s%s\n", "-h, --help", "show this help", "-v, --version",
           "print the version");
    printf("\n`vllm serve --help` shows the options of the server.\n");
    return 0;
}

static int usage_error(const char *message, const char *what)
{
    fprintf(stderr, "%svllm: error: %s%s\n", usage, message, what);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);         // a reader that leaves is an error of that write alone
    setvbuf(stdout, NULL, _IOLBF, 0); // lines appear at once, in containers too
    if (argc < 2)
        return usage_error("a command is required; `vllm --help` lists them", "");
    const char *name = argv[1];
    if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0)
        return print_help();
    if (strcmp(name, "-v") == 0 || strcmp(name, "--version") == 0) {
        puts(VLLM_VERSION);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(name, commands[i].name) != 0)
            continue;
        if (!commands[i].run)
            return usage_error("vllm.c does not support this command yet: ", name);
        if (commands[i].run == run_serve || commands[i].run == bench_main)
            let_idle_threads_sleep(argv);
        return commands[i].run(argc - 2, argv + 2);
    }
    return usage_error("invalid choice, see `vllm --help` for the commands: ", name);
}
