// The EngineCore process: start, loop, stop.
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine_core.h"

enum {
    EXIT_CANNOT_START = 3,
    EXIT_FAILED = 1,
};

static volatile sig_atomic_t stop_requested;

// For the handler of fatal signals, which gets no argument.
static const struct recorder *fatal_recorder;
static char fatal_path[1024];

static void request_stop(int signal_number)
{
    (void)signal_number;
    stop_requested = 1;
}

// The last decisions, for whoever looks for the reason. Calls nothing that a signal handler may
// not.
static void dump_and_die(int signal_number)
{
    const struct recorder *recorder = fatal_recorder;
    fatal_recorder = NULL; // a failure in here is final
    int fd = recorder ? open(fatal_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        // NOLINTNEXTLINE(bugprone-signal-handler,cert-sig30-c): it writes memory with write() alone
        recorder_dump_fd(recorder, fd);
        close(fd);
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void dump_on_fatal_signals(const struct recorder *recorder)
{
    const char *folder = options_env("VLLM_RECORDING_DIR");
    snprintf(fatal_path, sizeof(fatal_path), "%s/vllm-recording-%d-fatal.bin",
             folder ? folder : "/tmp", (int)getpid());
    fatal_recorder = recorder;
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        signal(signals[i], dump_and_die);
}

static void dump_recording(struct engine_core *core)
{
    char path[1024];
    struct error err = {0};
    if (engine_core_dump_recording(core, path, sizeof(path), &err) != STATUS_OK)
        log_error("%s", err.message);
}

static void install_signal_handlers(void)
{
    // Without SA_RESTART, so that waiting for messages ends.
    struct sigaction action = {.sa_handler = request_stop};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static double seconds_since(int64_t start_ns)
{
    return (double)(clock_monotonic_ns() - start_ns) / 1e9;
}

static void log_config(const struct engine_core *core, const struct engine_config *config)
{
    const struct serve_options *o = config->options;
    const struct scheduler_config *s = &core->scheduler.config;
    log_info("Initializing a V1 LLM engine (v" VLLM_VERSION ") with config: model='%s', "
             "tokenizer='%s', dtype=%s, max_seq_len=%d, kv_cache_dtype=%s, block_size=%d, "
             "max_num_seqs=%d, max_num_batched_tokens=%d, seed=%lld, served_model_name=%s, "
             "scheduling_policy=%s, enable_prefix_caching=%s, chunked_prefill_enabled=%s",
             o->model, o->tokenizer ? o->tokenizer : o->model, o->dtype, (int)config->max_model_len,
             o->kv_cache_dtype, (int)config->kv_cache.block_size, (int)config->max_num_seqs,
             (int)config->max_num_batched_tokens, (long long)o->seed,
             o->served_model_names.len > 0 ? o->served_model_names.items[0] : o->model,
             s->policy == SCHEDULING_POLICY_PRIORITY ? "priority" : "fcfs",
             s->enable_prefix_caching ? "True" : "False",
             s->enable_chunked_prefill ? "True" : "False");
}

// Everything up to READY. `core` and `config` are to be deinitialised in any case.
static enum status start(struct engine_core *core, struct engine_config *config,
                         const char *ipc_dir, struct engine_page *page, struct error *err)
{
    int64_t start_ns = clock_monotonic_ns();
    engine_config_log(config);
    engine_core_init(core, config, page);
    log_config(core, config);

    TRY(executor_create(&core->executor, config, &page->progress, err));
    engine_config_log_cache(config);
    engine_core_publish_facts(core, config);
    TRY(channel_bind(&core->channel, ipc_dir, err));
    log_info("init engine (profile, create kv cache, warmup model) took %.2f s",
             seconds_since(start_ns));
    engine_core_publish(core, clock_monotonic_ns());
    atomic_store(&page->step_start_ns, 0); // an engine that died in a step left it
    dump_on_fatal_signals(&core->recorder);
    TRY(dump_thread_start(&core->dump_thread, &core->recorder, options_env("VLLM_RECORDING_DIR"),
                          err));
    atomic_store(&page->state, ENGINE_STATE_READY);
    return STATUS_OK;
}

// Lets the requests that are here end by themselves as long as --shutdown-timeout allows, then
// aborts the rest, each with an output that says so.
static enum status stop(struct engine_core *core, struct error *err)
{
    core->stopping = true;
    int64_t deadline_ns =
        clock_monotonic_ns() + (int64_t)core->options->shutdown_timeout_s * 1000000000;
    while (engine_core_has_work(core) && clock_monotonic_ns() < deadline_ns)
        TRY(engine_core_turn(core, err));
    int32_t num_left = core->scheduler.requests.len + core->held.len;
    if (num_left > 0)
        log_info("Stopping: %d requests are aborted", (int)num_left);
    engine_core_abort_all(core);
    do {
        TRY(engine_core_end_step(core, err));
        engine_core_send_outputs(core);
    } while (core->scheduler.in_flight > 0);
    return STATUS_OK;
}

static enum status run(struct engine_core *core, struct error *err)
{
    while (!stop_requested)
        TRY(engine_core_turn(core, err));
    return stop(core, err);
}

int engine_core_main(const struct serve_options *options, const char *ipc_dir,
                     struct shared_page *page)
{
    stop_requested = 0;
    dump_thread_block_signal();
    install_signal_handlers();
    struct engine_core core = {0};
    struct engine_config config = {0};
    struct model_config model = {0};
    struct error err = {0};
    int exit_status = 0;

    enum status status = model_config_load(&model, options->model, options->generation_config,
                                           options->override_generation_config, &err);
    if (status == STATUS_OK)
        status = engine_config_plan(&config, options, &model, &err);
    if (status == STATUS_OK)
        status = start(&core, &config, ipc_dir, &page->engine, &err);
    if (status != STATUS_OK) {
        log_error("The engine cannot start: %s", err.message);
        atomic_store(&page->engine.state, ENGINE_STATE_DEAD);
        exit_status = EXIT_CANNOT_START;
    } else if (run(&core, &err) != STATUS_OK) {
        log_error("The engine failed in a step: %s", err.message);
        dump_recording(&core);
        exit_status = EXIT_FAILED;
    }
    fatal_recorder = NULL;
    engine_core_deinit(&core);
    engine_config_deinit(&config);
    model_config_deinit(&model);
    return exit_status;
}
