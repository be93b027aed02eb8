// HTTP in, SSE out: one event loop per process, any number of processes on one port.
#pragma once

#include "config/options.h"
#include "message/shared_page.h"

/**
 * The API server process: loads tokenizer and chat template, connects to the engine, sets
 * its pid in the page (the launcher's sign that it serves) and serves on `listen_fd` until
 * SIGTERM/SIGINT (then drains for --shutdown-timeout seconds). Returns the exit status: 0 after a
 * signal, 3 when it cannot start (the reason is logged and a restart would not help), 1 for
 * anything else.
 */
int api_server_main(const struct serve_options *options, int32_t client_index, int listen_fd,
                    const char *ipc_dir, struct shared_page *page);
