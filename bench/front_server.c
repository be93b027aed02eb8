// The front end alone: real API servers before an engine that answers at once.
//
//     front_server STEP_US MODEL [options of vllm serve]
//
// STEP_US: microseconds between two tokens of a stream. Prints "ready" and the address, and stops
// on SIGTERM or SIGINT. bench/front.mjs drives it.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "answering_engine.h"
#include "api_server/api_server.h"
#include "base/log.h"
#include "base/memory.h"
#include "entrypoints/listener.h"
#include "message/ipc_dir.h"
#include "tokenizer/tokenizer.h"

enum { MAX_MODEL_LEN = 8192 };

static const char text[] =
    "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of an "
    "old tree. Nobody knows how many dogs it has met before: some say two, others many more. ";

static volatile sig_atomic_t stop_requested;

static void request_stop(int signal_number)
{
    (void)signal_number;
    stop_requested = 1;
}

static int32_t *load_tokens(const struct serve_options *options, struct arena *arena, int32_t *num)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    const char *dir = options->tokenizer ? options->tokenizer : options->model;
    const char *path = arena_printf(arena, "%s/tokenizer.json", dir);
    if (tokenizer_load(&tokenizer, path, &err) != STATUS_OK) {
        log_error("%s", err.message);
        exit(EXIT_FAILURE);
    }
    int32_t *tokens = tokenizer_encode(tokenizer, str_from(text), false, arena, num);
    tokenizer_destroy(tokenizer);
    return tokens;
}

static pid_t start_child(void)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
    }
    return pid;
}

static bool is_ready(const struct shared_page *page)
{
    if (atomic_load(&page->engine.state) != ENGINE_STATE_READY)
        return false;
    for (int32_t i = 0; i < page->num_api_servers; i++) {
        if (atomic_load(&page->fronts[i].pid) == 0)
            return false;
    }
    return true;
}

static void nap(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/** Until a signal comes or a process ends. */
static void watch(const struct shared_page *page, const struct listeners *listeners)
{
    bool announced = false;
    while (!stop_requested && waitpid(-1, NULL, WNOHANG) == 0) {
        if (!announced && is_ready(page)) {
            printf("ready %s\n", listeners->url);
            fflush(stdout);
            announced = true;
        }
        nap();
    }
}

int main(int argc, char **argv)
{
    struct serve_options options;
    int exit_status = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: front_server STEP_US MODEL [options of vllm serve]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if (options_parse_serve(&options, argc - 2, argv + 2, &exit_status) == OPTIONS_EXIT)
        return exit_status;
    log_set_level(LOG_LEVEL_WARNING);
    struct arena arena = {0};
    struct answering_engine_options answers = {.max_model_len = MAX_MODEL_LEN,
                                               .step_ns = atoll(argv[1]) * 1000};
    answers.tokens = load_tokens(&options, &arena, &answers.num_tokens);
    int32_t num_servers = max_i32(1, options.api_server_count);
    struct listeners listeners = {0};
    struct shared_page *page = NULL;
    struct error err = {0};
    char ipc_dir[IPC_DIR_BYTES] = "";
    pid_t pids[MAX_API_SERVERS + 1];
    if (ipc_dir_make(ipc_dir, &err) != STATUS_OK ||
        listeners_open(&listeners, options.host, options.port, options.uds, num_servers, &err) !=
            STATUS_OK ||
        shared_page_create(&page, num_servers, &err) != STATUS_OK) {
        log_error("%s", err.message);
        return EXIT_FAILURE;
    }
    atomic_store(&page->engine.generation, 1);
    struct sigaction action = {.sa_handler = request_stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pids[num_servers] = start_child();
    if (pids[num_servers] == 0)
        exit(answering_engine_main(&answers, ipc_dir, page));
    for (int32_t i = 0; i < num_servers; i++) {
        pids[i] = start_child();
        if (pids[i] == 0)
            exit(api_server_main(&options, i, listeners.fds[i], ipc_dir, page));
    }
    watch(page, &listeners);
    for (int32_t i = 0; i <= num_servers; i++)
        kill(pids[i], SIGTERM);
    while (wait(NULL) > 0)
        continue;
    listeners_close(&listeners);
    ipc_dir_remove(ipc_dir);
    shared_page_destroy(page);
    options_deinit(&options);
    arena_deinit(&arena);
    return EXIT_SUCCESS;
}
