// A command that runs beside us, in a process group of its own, which ends with it in any case.
//
//   none ──start──▶ running ──ends by itself──▶ ended ──stop──▶ none
//                      └──────────stop────────────────────────▶ none
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "config/options.h"

/** `= {0}`: none. */
struct child_process {
    pid_t pid;            // and its group; 0: none
    const char *log_path; // where its output goes; NULL: where ours goes
};

/**
 * Starts `words` (the first is found in PATH) with nothing to read and its output in the file
 * `log_path`, or with ours (NULL). `environment` is a NAME=VALUE that it gets unless NAME is set;
 * NULL: none. If this process dies it is sent SIGTERM. Errors: IO, NOT_FOUND (no such command).
 */
NODISCARD enum status child_process_start(struct child_process *child, const struct str_list *words,
                                          const char *log_path, const char *environment,
                                          struct error *err);

/** Whether it has ended by itself, and how: "exit status 1" or "signal 9". */
bool child_process_has_ended(const struct child_process *child, char *how, size_t how_size);

/** Whether it has ended with exit status 0. */
bool child_process_has_succeeded(const struct child_process *child);

/**
 * Ends it: `signal` to the whole group, and SIGKILL to what is left of it once the first process
 * has ended or `grace_s` seconds have passed. Does nothing without a process.
 */
void child_process_stop(struct child_process *child, int signal, int grace_s);

/** The end of its output for an error message, in `arena`: ":\n..." or a note where it is. */
const char *child_process_last_output(const struct child_process *child, struct arena *arena);
