#include "benchmarks/sweep_server.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "benchmarks/command_words.h"

enum { DEFAULT_PORT = 8000, POLL_MS = 50, STOP_GRACE_S = 30 };

static enum status read_port(const char *text, int32_t *port, struct error *err)
{
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : DEFAULT_PORT;
    if (text && (end == text || *end != '\0' || value < 1 || value > 65535))
        return error_set(err, STATUS_INVALID,
                         "--port is '%.100s', expected an integer in [1,65535]", text);
    *port = (int32_t)value;
    return STATUS_OK;
}

/** A server that listens everywhere is reached at home. */
static const char *reachable_host(const char *host)
{
    if (!host || strcmp(host, "0.0.0.0") == 0)
        return "127.0.0.1";
    return strcmp(host, "::") == 0 ? "::1" : host;
}

enum status sweep_server_open(struct sweep_server *s, const struct str_list *words, bool is_ours,
                              struct error *err)
{
    struct arena arena = {0};
    struct bench_options address = {.insecure = true}; // it is only asked how it is
    *s = (struct sweep_server){0};
    if (is_ours && command_words_find(words, "uds"))
        return error_set(err, STATUS_UNSUPPORTED,
                         "--serve-cmd has --uds; a sweep reaches its server by --host and --port");
    TRY(read_port(command_words_find(words, "port"), &address.port, err));
    address.host = reachable_host(command_words_find(words, "host"));
    address.api_key = command_words_find(words, "api-key");
    if (!address.api_key)
        address.api_key = options_env("OPENAI_API_KEY");
    if (!is_ours)
        address.base_url = command_words_find(words, "base-url");
    else if (command_words_find(words, "ssl-certfile"))
        address.base_url =
            arena_printf(&arena, strchr(address.host, ':') ? "https://[%s]:%d" : "https://%s:%d",
                         address.host, address.port);
    s->has_target = true;
    enum status status = target_init(&s->target, &address, err);
    arena_deinit(&arena);
    return status;
}

/** The code of GET /health; 0: nobody answers. */
static int health_code(const struct sweep_server *s)
{
    struct buf body = {0};
    int code = 0;
    enum status status = target_call(&s->target, "GET", "/health", &code, &body, NULL);
    buf_deinit(&body);
    return status == STATUS_OK ? code : 0;
}

/** An error with the end of the server's output. */
static enum status fail_with_output(const struct sweep_server *s, enum status status,
                                    const char *what, struct error *err)
{
    struct arena arena = {0};
    error_set(err, status, "%s%s", what, child_process_last_output(&s->process, &arena));
    arena_deinit(&arena);
    return status;
}

enum status sweep_server_check(const struct sweep_server *s, struct error *err)
{
    char how[32], what[96];
    if (!child_process_has_ended(&s->process, how, sizeof(how)))
        return STATUS_OK;
    snprintf(what, sizeof(what), "the server ended with %s", how);
    return fail_with_output(s, STATUS_UNAVAILABLE, what, err);
}

enum status sweep_server_start(struct sweep_server *s, const struct str_list *words,
                               const char *log_path, int32_t timeout_s,
                               const volatile sig_atomic_t *stop, struct error *err)
{
    char what[96];
    if (health_code(s) != 0)
        return error_set(err, STATUS_INVALID,
                         "a server answers at %s already: stop it, or measure it without "
                         "--serve-cmd",
                         s->target.url);
    // The prefix cache can be reset between runs only where this is set.
    TRY(child_process_start(&s->process, words, log_path, "VLLM_SERVER_DEV_MODE=1", err));
    int64_t until_ns = clock_monotonic_ns() + timeout_s * INT64_C(1000000000);
    for (;;) {
        TRY(sweep_server_check(s, err));
        if (*stop)
            return error_set(err, STATUS_CLOSED, "interrupted");
        if (health_code(s) == 200)
            return sweep_server_check(s, err);
        if (clock_monotonic_ns() > until_ns) {
            snprintf(what, sizeof(what), "the server was not ready within %d s", timeout_s);
            return fail_with_output(s, STATUS_TIMEOUT, what, err);
        }
        nanosleep(&(struct timespec){0, POLL_MS * 1000000L}, NULL);
    }
}

void sweep_server_stop(struct sweep_server *s)
{
    child_process_stop(&s->process, SIGTERM, STOP_GRACE_S);
}

void sweep_server_close(struct sweep_server *s)
{
    sweep_server_stop(s);
    if (s->has_target)
        target_deinit(&s->target);
    s->has_target = false;
}
