// `vllm serve`: the launcher. It binds the sockets, starts one EngineCore and N API servers, starts
// again what dies, and stops everything on a signal. It serves nothing itself and touches neither
// ZeroMQ nor OpenMP, which do not survive a fork.
//
//   starting ──all ready──▶ serving ──signal──▶ stopping: API servers drain ──▶ engine ends ──▶
//   exit
//
// A dead engine is replaced under a new generation, and the API servers send it their live requests
// again. A process that says that it cannot start (exit status 3), or that dies over and over
// before it is ready, ends the whole.
#include "entrypoints/entrypoints.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api_server/api_server.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "entrypoints/listener.h"
#include "entrypoints/process_title.h"
#include "message/ipc_dir.h"

#define NS_PER_MS INT64_C(1000000)

enum {
    EXIT_CANNOT_START = 3, // of a child: a restart would not help
    MAX_FAILED_STARTS = 5, // in a row, before ever being ready
    MIN_BACKOFF_MS = 100,
    MAX_BACKOFF_MS = 5000,
    STABLE_MS = 10000,    // a process that lived longer is restarted at once
    WATCH_MS = 500,       // how often the engine's progress is looked at
    STARTING_POLL_MS = 1, // ready is noticed at once ...
    LOADING_POLL_MS = 20, // ... and after EAGER_MS a little later
    EAGER_MS = 1000,
    GRACE_MS = 5000, // beyond --shutdown-timeout, until what hangs is killed
};

/** A process that is to live. */
struct child {
    char name[32];
    int32_t index; // of an API server; -1: the engine
    pid_t pid;     // 0: not running
    int64_t start_ns;
    int64_t restart_ns; // when to start it (again), 0: not to
    int32_t num_failed_starts;
    int32_t backoff_ms;
};

enum phase { PHASE_RUNNING, PHASE_STOPPING_SERVERS, PHASE_STOPPING_ENGINE, PHASE_DONE };

struct launcher {
    const struct serve_options *options;
    struct shared_page *page;
    struct listeners listeners;
    char ipc_dir[IPC_DIR_BYTES];
    int signal_fd;
    sigset_t old_mask;
    pid_t pid;
    struct child engine;
    struct child servers[MAX_API_SERVERS];
    int32_t num_servers;
    enum phase phase;
    bool announced;
    int64_t start_ns, deadline_ns; // the deadline: of the present stopping phase
    int exit_status;
};

// ---- starting ------------------------------------------------------------------------------

/** In the child: nothing of the launcher's is left but what it needs. */
static void become_child(const struct launcher *l, const struct child *child)
{
    // A launcher that is killed takes its children along.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != l->pid)
        _exit(EXIT_FAILURE); // it died before that was set
    // Ctrl-C at a terminal goes to the launcher alone, which stops everything in order.
    setpgid(0, 0);
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGQUIT};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        signal(signals[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, &l->old_mask, NULL);
    close(l->signal_fd);
    int keep = child->index >= 0 ? l->listeners.fds[child->index] : -1;
    for (int32_t i = 0; i < l->listeners.num; i++) {
        bool shared = i > 0 && l->listeners.fds[i] == l->listeners.fds[0];
        if (!shared && l->listeners.fds[i] != keep)
            close(l->listeners.fds[i]);
    }
}

static int run_child(const struct launcher *l, const struct child *child)
{
    char title[64], thread_name[16];
    if (child->index < 0) {
        log_set_process_name("EngineCore");
        process_title_set("vllm: EngineCore", "vllm-engine");
        return engine_core_main(l->options, l->ipc_dir, l->page);
    }
    log_set_process_name(child->name);
    snprintf(title, sizeof(title), "vllm: APIServer %d", child->index);
    snprintf(thread_name, sizeof(thread_name), "vllm-api-%d", child->index);
    process_title_set(title, thread_name);
    return api_server_main(l->options, child->index, l->listeners.fds[child->index], l->ipc_dir,
                           l->page);
}

/** An API server's requests end with it: they no longer count against the limits of the others. */
static void clear_front(const struct launcher *l, const struct child *child)
{
    struct front_page *front = &l->page->fronts[child->index];
    atomic_store(&front->pid, 0);
    atomic_store(&front->num_unfinished, 0);
    atomic_store(&front->server_load, 0);
    atomic_store(&front->num_queued_prompt_tokens, 0);
}

/** What the page says of a process that is about to start. */
static void reset_page(const struct launcher *l, const struct child *child)
{
    if (child->index >= 0) {
        clear_front(l, child);
        return;
    }
    struct engine_page *engine = &l->page->engine;
    atomic_store(&engine->state, ENGINE_STATE_STARTING);
    atomic_store(&engine->step_start_ns, 0);
    atomic_store(&engine->num_running, 0);
    atomic_store(&engine->num_waiting, 0);
    atomic_store(&engine->num_used_blocks, 0);
    atomic_fetch_add(&engine->generation, 1);
}

static void start_child(struct launcher *l, struct child *child)
{
    child->restart_ns = 0;
    child->start_ns = clock_monotonic_ns();
    reset_page(l, child);
    fflush(NULL); // what is buffered would be written twice
    pid_t pid = fork();
    if (pid == 0) {
        become_child(l, child);
        exit(run_child(l, child));
    }
    if (pid < 0) {
        log_error("Cannot start %s: %s", child->name, strerror(errno));
        child->restart_ns = child->start_ns + MAX_BACKOFF_MS * NS_PER_MS;
        return;
    }
    child->pid = pid;
    if (child->index < 0)
        atomic_store(&l->page->engine.pid, (int32_t)pid);
    log_debug("Started %s with pid %d", child->name, (int)pid);
}

static bool child_is_ready(const struct launcher *l, const struct child *child)
{
    if (child->index < 0)
        return atomic_load(&l->page->engine.state) == ENGINE_STATE_READY;
    return child->pid > 0 && atomic_load(&l->page->fronts[child->index].pid) == child->pid;
}

static void announce_when_ready(struct launcher *l)
{
    if (l->announced || l->phase != PHASE_RUNNING || !child_is_ready(l, &l->engine))
        return;
    for (int32_t i = 0; i < l->num_servers; i++) {
        if (!child_is_ready(l, &l->servers[i]))
            return;
    }
    l->announced = true;
    bool is_secure = l->options->ssl_certfile && strncmp(l->listeners.url, "http:", 5) == 0;
    log_info("Starting vLLM server on %s%s", is_secure ? "https:" : "",
             l->listeners.url + (is_secure ? 5 : 0));
    log_info("Application startup complete.");
    log_debug("Ready after %.3f s", (double)(clock_monotonic_ns() - l->start_ns) / 1e9);
}

// ---- stopping ------------------------------------------------------------------------------

static void signal_child(const struct child *child, int signo)
{
    if (child->pid > 0)
        kill(child->pid, signo);
}

static int32_t num_live_servers(const struct launcher *l)
{
    int32_t num = 0;
    for (int32_t i = 0; i < l->num_servers; i++)
        num += l->servers[i].pid > 0;
    return num;
}

static void stop(struct launcher *l, int exit_status)
{
    if (l->phase != PHASE_RUNNING)
        return;
    l->exit_status = exit_status;
    l->phase = PHASE_STOPPING_SERVERS;
    l->deadline_ns = clock_monotonic_ns() +
                     ((int64_t)l->options->shutdown_timeout_s * 1000 + GRACE_MS) * NS_PER_MS;
    l->engine.restart_ns = 0;
    atomic_store(&l->page->stopping, 1);
    for (int32_t i = 0; i < l->num_servers; i++) {
        l->servers[i].restart_ns = 0;
        signal_child(&l->servers[i], SIGTERM);
    }
}

static void kill_all(struct launcher *l)
{
    for (int32_t i = 0; i < l->num_servers; i++)
        signal_child(&l->servers[i], SIGKILL);
    signal_child(&l->engine, SIGKILL);
}

/** Goes on to the next phase when the present one is over, or its time. */
static void advance_stopping(struct launcher *l)
{
    bool late = clock_monotonic_ns() >= l->deadline_ns;
    if (l->phase == PHASE_STOPPING_SERVERS) {
        if (num_live_servers(l) > 0 && !late)
            return;
        if (num_live_servers(l) > 0)
            log_warning("%d API servers did not stop in time and are killed", num_live_servers(l));
        for (int32_t i = 0; i < l->num_servers; i++)
            signal_child(&l->servers[i], SIGKILL);
        l->phase = PHASE_STOPPING_ENGINE;
        l->deadline_ns = clock_monotonic_ns() + GRACE_MS * NS_PER_MS;
        // An engine that still loads owes nothing to anybody.
        signal_child(&l->engine, child_is_ready(l, &l->engine) ? SIGTERM : SIGKILL);
        return;
    }
    if (l->engine.pid == 0 && num_live_servers(l) == 0) {
        l->phase = PHASE_DONE;
    } else if (late) {
        log_warning("The engine did not stop in time and is killed");
        kill_all(l);
        l->deadline_ns = clock_monotonic_ns() + GRACE_MS * NS_PER_MS;
    }
}

// ---- watching ------------------------------------------------------------------------------

static const char *describe_end(int wait_status, char *out, size_t size)
{
    if (WIFSIGNALED(wait_status))
        snprintf(out, size, "was killed by signal %d (%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    else
        snprintf(out, size, "ended with status %d", WEXITSTATUS(wait_status));
    return out;
}

/** Stops for good because of a child. Where it is the engine, API servers must know before they are
 *  told to stop: their requests have failed, which is something else than being aborted. */
static void give_up(struct launcher *l, const struct child *child)
{
    if (child->index < 0)
        atomic_store(&l->page->engine.state, ENGINE_STATE_DEAD);
    stop(l, EXIT_FAILURE);
}

/** Plans the restart of a process that died by itself, or gives the whole up. */
static void handle_death(struct launcher *l, struct child *child, pid_t pid, bool was_ready,
                         int wait_status)
{
    char how[96];
    describe_end(wait_status, how, sizeof(how));
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == EXIT_CANNOT_START) {
        log_error("%s (pid %d) cannot start, the reason is above; stopping", child->name, (int)pid);
        give_up(l, child);
        return;
    }
    int64_t now_ns = clock_monotonic_ns();
    bool stable = was_ready && now_ns - child->start_ns > STABLE_MS * NS_PER_MS;
    child->num_failed_starts = was_ready ? 0 : child->num_failed_starts + 1;
    if (child->num_failed_starts >= MAX_FAILED_STARTS) {
        log_error("%s (pid %d) %s; it died %d times in a row before it was ready; stopping",
                  child->name, (int)pid, how, child->num_failed_starts);
        give_up(l, child);
        return;
    }
    // The first death is mended at once; those that follow closely wait longer and longer.
    int32_t delay_ms = stable ? 0 : child->backoff_ms;
    child->backoff_ms = stable ? 0 : min_i32(max_i32(delay_ms * 2, MIN_BACKOFF_MS), MAX_BACKOFF_MS);
    child->restart_ns = now_ns + delay_ms * NS_PER_MS;
    log_error("%s (pid %d) %s; restarting it%s", child->name, (int)pid, how,
              child->index < 0 ? ", its requests go on from where they were" : "");
}

static struct child *find_child(struct launcher *l, pid_t pid)
{
    if (l->engine.pid == pid)
        return &l->engine;
    for (int32_t i = 0; i < l->num_servers; i++) {
        if (l->servers[i].pid == pid)
            return &l->servers[i];
    }
    return NULL;
}

static void reap(struct launcher *l)
{
    int wait_status;
    for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;) {
        struct child *child = find_child(l, pid);
        if (!child)
            continue;
        bool was_ready = child_is_ready(l, child);
        child->pid = 0;
        if (child->index >= 0)
            clear_front(l, child);
        if (child->index < 0) {
            // Until it is back, /health says so.
            bool for_good = l->phase != PHASE_RUNNING;
            atomic_store(&l->page->engine.state,
                         for_good ? ENGINE_STATE_DEAD : ENGINE_STATE_STARTING);
            atomic_store(&l->page->engine.pid, 0);
        }
        if (l->phase == PHASE_RUNNING)
            handle_death(l, child, pid, was_ready, wait_status);
    }
}

static void start_due(struct launcher *l)
{
    int64_t now_ns = clock_monotonic_ns();
    if (l->engine.restart_ns != 0 && now_ns >= l->engine.restart_ns)
        start_child(l, &l->engine);
    for (int32_t i = 0; i < l->num_servers; i++) {
        if (l->servers[i].restart_ns != 0 && now_ns >= l->servers[i].restart_ns)
            start_child(l, &l->servers[i]);
    }
}

static void read_signals(struct launcher *l)
{
    struct signalfd_siginfo info;
    while (read(l->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue; // reap() looks at every turn
        if (l->phase == PHASE_RUNNING) {
            log_info("[shutdown] %s: stopping, requests have %d s to end",
                     strsignal((int)info.ssi_signo), l->options->shutdown_timeout_s);
            stop(l, EXIT_SUCCESS);
        } else {
            log_info("[shutdown] %s again: stopping at once", strsignal((int)info.ssi_signo));
            kill_all(l);
        }
    }
}

static int poll_timeout_ms(const struct launcher *l)
{
    int64_t now_ns = clock_monotonic_ns();
    if (l->phase == PHASE_RUNNING && !l->announced)
        return now_ns - l->start_ns < EAGER_MS * NS_PER_MS ? STARTING_POLL_MS : LOADING_POLL_MS;
    int64_t until_ns = now_ns + WATCH_MS * NS_PER_MS;
    if (l->phase != PHASE_RUNNING)
        until_ns = min_i64(until_ns, l->deadline_ns);
    if (l->engine.restart_ns != 0)
        until_ns = min_i64(until_ns, l->engine.restart_ns);
    for (int32_t i = 0; i < l->num_servers; i++) {
        if (l->servers[i].restart_ns != 0)
            until_ns = min_i64(until_ns, l->servers[i].restart_ns);
    }
    return (int)ceil_div(max_i64(until_ns - now_ns, 0), NS_PER_MS);
}

static void supervise(struct launcher *l)
{
    struct pollfd item = {.fd = l->signal_fd, .events = POLLIN};
    while (l->phase != PHASE_DONE) {
        start_due(l);
        announce_when_ready(l);
        poll(&item, 1, poll_timeout_ms(l));
        read_signals(l);
        reap(l);
        engine_page_watch(&l->page->engine, clock_monotonic_ns());
        if (l->phase != PHASE_RUNNING)
            advance_stopping(l);
    }
}

// ---- the program ---------------------------------------------------------------------------

static enum status catch_signals(struct launcher *l, struct error *err)
{
    sigset_t mask;
    sigemptyset(&mask);
    static const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        sigaddset(&mask, signals[i]);
    signal(SIGCHLD, SIG_DFL); // one that is ignored by inheritance would leave nothing to wait for
    sigprocmask(SIG_BLOCK, &mask, &l->old_mask);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        sigdelset(&l->old_mask, signals[i]); // what the children get
    l->signal_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (l->signal_fd < 0)
        return error_set(err, STATUS_IO, "no descriptor for signals: %s", strerror(errno));
    return STATUS_OK;
}

static enum status prepare(struct launcher *l, struct error *err)
{
    const struct serve_options *o = l->options;
    TRY(listeners_open(&l->listeners, o->host, o->port, o->uds, l->num_servers, err));
    TRY(ipc_dir_make(l->ipc_dir, err));
    TRY(shared_page_create(&l->page, l->num_servers, err));
    return catch_signals(l, err);
}

static void log_options(const struct serve_options *options)
{
    struct buf text = {0};
    options_non_default(options, &text);
    log_info("vLLM server version " VLLM_VERSION " (vllm.c), serving model %s", options->model);
    log_info("non-default args: " STR_FORMAT, STR_ARG(buf_str(&text)));
    buf_deinit(&text);
}

static void init_children(struct launcher *l)
{
    l->engine = (struct child){.name = "EngineCore", .index = -1, .restart_ns = 1}; // due at once
    for (int32_t i = 0; i < l->num_servers; i++) {
        struct child *server = &l->servers[i];
        *server = (struct child){.index = i, .restart_ns = 1};
        snprintf(server->name, sizeof(server->name),
                 l->num_servers == 1 ? "APIServer" : "ApiServer_%d", i);
    }
}

int serve_main(const struct serve_options *options)
{
    struct launcher l = {
        .options = options,
        .pid = getpid(),
        .signal_fd = -1,
        .start_ns = clock_monotonic_ns(),
        .num_servers = options->api_server_count < 1 ? 1 : options->api_server_count,
    };
    struct error err = {0};
    log_set_process_name("Launcher");
    log_options(options);
    if (prepare(&l, &err) == STATUS_OK) {
        init_children(&l);
        supervise(&l);
        log_info("[shutdown] done");
    } else {
        log_error("Cannot start: %s", err.message);
        l.exit_status = EXIT_FAILURE;
    }
    if (l.signal_fd >= 0)
        close(l.signal_fd);
    listeners_close(&l.listeners);
    ipc_dir_remove(l.ipc_dir);
    shared_page_destroy(l.page);
    return l.exit_status;
}
