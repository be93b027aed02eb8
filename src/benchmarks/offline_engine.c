#include "benchmarks/offline_engine.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "message/channel.h"
#include "message/codec.h"
#include "message/ipc_dir.h"
#include "message/shared_page.h"

enum {
    CLIENT_INDEX = 0,
    WAIT_MS = 100, // then it is looked whether the engine still lives
    STOP_MS = 5000,
    POLL_US = 1000,
};

struct offline_engine {
    pid_t pid; // 0: gone
    char ipc_dir[IPC_DIR_BYTES];
    struct shared_page *page;
    struct channel *channel;
    struct buf frame;
    struct arena arena;
    uint64_t next_id;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static void nap(void)
{
    nanosleep(&(struct timespec){0, POLL_US * 1000L}, NULL);
}

static bool is_alive(struct offline_engine *e)
{
    if (e->pid > 0 && waitpid(e->pid, NULL, WNOHANG) == e->pid)
        e->pid = 0;
    return e->pid > 0;
}

static enum status check_alive(struct offline_engine *e, struct error *err)
{
    if (interrupted)
        return error_set(err, STATUS_CLOSED, "interrupted");
    if (!is_alive(e))
        return error_set(err, STATUS_CLOSED, "the engine ended; it has said why above");
    return STATUS_OK;
}

static enum status fork_engine(struct offline_engine *e, const struct serve_options *options,
                               struct error *err)
{
    pid_t parent = getpid();
    fflush(NULL); // what is buffered would be written twice
    atomic_fetch_add(&e->page->engine.generation, 1);
    pid_t pid = fork();
    if (pid < 0)
        return error_set(err, STATUS_IO, "no process for the engine: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(EXIT_FAILURE);
        setpgid(0, 0); // Ctrl-C goes to the benchmark, which stops it
        log_set_process_name("EngineCore");
        exit(engine_core_main(options, e->ipc_dir, e->page));
    }
    e->pid = pid;
    atomic_store(&e->page->engine.pid, (int32_t)pid);
    return STATUS_OK;
}

static enum status send_message(struct offline_engine *e, const struct message *message,
                                struct error *err)
{
    buf_clear(&e->frame);
    message_encode(&e->frame, message);
    for (;;) {
        enum status status = channel_send(e->channel, CLIENT_INDEX, buf_str(&e->frame), err);
        if (status != STATUS_UNAVAILABLE)
            return status;
        TRY(check_alive(e, err)); // its queue is full: it takes a moment
        nap();
    }
}

/** The next message, waited for. */
static enum status receive(struct offline_engine *e, struct message *message, struct error *err)
{
    struct str frame;
    int32_t client;
    while (!channel_receive(e->channel, &client, &frame)) {
        TRY(check_alive(e, err));
        channel_wait(e->channel, WAIT_MS * INT64_C(1000000));
    }
    arena_reset(&e->arena);
    return message_decode(message, frame, &e->arena, err);
}

static enum status greet(struct offline_engine *e, struct error *err)
{
    struct message message = {.kind = MESSAGE_HELLO};
    message.hello.version = MESSAGE_VERSION;
    message.hello.client_index = CLIENT_INDEX;
    TRY(channel_connect(&e->channel, e->ipc_dir, CLIENT_INDEX, err));
    TRY(send_message(e, &message, err));
    do
        TRY(receive(e, &message, err));
    while (message.kind != MESSAGE_WELCOME);
    return STATUS_OK;
}

static enum status start(struct offline_engine *e, const struct serve_options *options,
                         struct error *err)
{
    struct sigaction action = {.sa_handler = on_interrupt}; // no SA_RESTART: waiting ends
    interrupted = 0;
    TRY(ipc_dir_make(e->ipc_dir, err));
    TRY(shared_page_create(&e->page, 1, err));
    TRY(fork_engine(e, options, err));
    sigaction(SIGINT, &action, NULL);
    while (atomic_load(&e->page->engine.state) != ENGINE_STATE_READY) {
        TRY(check_alive(e, err));
        nap();
    }
    return greet(e, err);
}

enum status offline_engine_start(struct offline_engine **out, const struct serve_options *options,
                                 struct error *err)
{
    struct offline_engine *e = xcalloc(1, sizeof(*e));
    enum status status = start(e, options, err);
    *out = e;
    if (status == STATUS_OK)
        return STATUS_OK;
    offline_engine_stop(e);
    *out = NULL;
    return status;
}

void offline_engine_stop(struct offline_engine *e)
{
    if (!e)
        return;
    if (e->pid > 0)
        kill(e->pid, SIGTERM);
    int64_t until_ns = clock_monotonic_ns() + STOP_MS * INT64_C(1000000);
    while (is_alive(e)) {
        if (clock_monotonic_ns() > until_ns)
            kill(e->pid, SIGKILL);
        nap();
    }
    channel_close(e->channel);
    shared_page_destroy(e->page);
    ipc_dir_remove(e->ipc_dir);
    buf_deinit(&e->frame);
    arena_deinit(&e->arena);
    free(e);
}

int32_t offline_engine_max_len(const struct offline_engine *e)
{
    return atomic_load(&e->page->engine.max_model_len);
}

static enum status submit(struct offline_engine *e, const struct bench_prompt *prompt,
                          struct error *err)
{
    struct message message = {.kind = MESSAGE_ADD};
    message.add = (struct engine_core_request){
        .request_id = ++e->next_id,
        .client_index = CLIENT_INDEX,
        .arrival_time_ns = clock_wall_ns(),
        .num_prompt_tokens = prompt->num_tokens,
        .prompt_token_ids = prompt->ids,
        .sampling = {.temperature = 1,
                     .top_p = 1,
                     .repetition_penalty = 1,
                     .seed = e->next_id,
                     .max_tokens = prompt->output_len,
                     .eos_token_id = -1, // so that every answer has its full length
                     .num_logprobs = -1,
                     .num_prompt_logprobs = -1},
    };
    return send_message(e, &message, err);
}

/** Takes one message of outputs. */
static enum status collect(struct offline_engine *e, int64_t *num_left, struct offline_times *times,
                           struct error *err)
{
    struct message message;
    TRY(receive(e, &message, err));
    if (message.kind != MESSAGE_OUTPUTS)
        return STATUS_OK;
    for (int32_t i = 0; i < message.outputs.num_outputs; i++) {
        const struct engine_core_output *output = &message.outputs.outputs[i];
        times->num_output_tokens += output->num_new_tokens;
        if (output->finish_reason == FINISH_REASON_ERROR ||
            output->finish_reason == FINISH_REASON_ABORT)
            return error_set(err, STATUS_INTERNAL, "the engine gave up a request");
        *num_left -= output->finish_reason != FINISH_REASON_NONE;
    }
    return STATUS_OK;
}

enum status offline_engine_run(struct offline_engine *e, const struct bench_prompt *prompts,
                               int32_t num, int32_t n, struct offline_times *times,
                               struct error *err)
{
    int32_t max_len = offline_engine_max_len(e);
    *times = (struct offline_times){0};
    for (int32_t i = 0; i < num; i++) {
        if (prompts[i].num_tokens > max_len - prompts[i].output_len)
            return error_set(err, STATUS_TOO_LARGE,
                             "prompt %d has %d tokens and its answer %d, more than the model's %d "
                             "(--max-model-len); choose shorter ones by --input-len and "
                             "--output-len",
                             i, prompts[i].num_tokens, prompts[i].output_len, max_len);
        times->num_prompt_tokens += prompts[i].num_tokens;
    }
    int64_t start_ns = clock_monotonic_ns(), num_left = (int64_t)num * n;
    for (int32_t i = 0; i < num; i++) {
        for (int32_t k = 0; k < n; k++)
            TRY(submit(e, &prompts[i], err));
    }
    while (num_left > 0)
        TRY(collect(e, &num_left, times, err));
    times->seconds = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    return STATUS_OK;
}
