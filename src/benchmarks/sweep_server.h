// The server of a sweep of commands: one that we start for each set of its flags, or one that runs
// already.
#pragma once

#include <signal.h>

#include "benchmarks/child_process.h"
#include "benchmarks/target.h"

struct sweep_server {
    struct target target;
    bool has_target;
    struct child_process process;
    bool is_reset_refused;
};

/**
 * Where the server of this command will answer, by its --host, --port and --ssl-certfile; or, with
 * `is_ours` false, where the benchmark of this command sends its requests. Errors: INVALID,
 * UNSUPPORTED (--uds), NOT_FOUND. End with sweep_server_close() in any case.
 */
NODISCARD enum status sweep_server_open(struct sweep_server *server, const struct str_list *words,
                                        bool is_ours, struct error *err);

/**
 * Starts the command and waits until GET /health answers 200, at most `timeout_s` seconds, or until
 * `*stop` is set. Its output goes to `log_path`; NULL: to ours. Errors: those of
 * child_process_start(), INVALID (another server answers there already), UNAVAILABLE (it ended),
 * TIMEOUT, CLOSED (stopped), with the end of its output.
 */
NODISCARD enum status sweep_server_start(struct sweep_server *server, const struct str_list *words,
                                         const char *log_path, int32_t timeout_s,
                                         const volatile sig_atomic_t *stop, struct error *err);

/** Errors: UNAVAILABLE: it was started and has ended, with the end of its output. */
NODISCARD enum status sweep_server_check(const struct sweep_server *server, struct error *err);

/** Ends the server, if it was started. */
void sweep_server_stop(struct sweep_server *server);
void sweep_server_close(struct sweep_server *server);
