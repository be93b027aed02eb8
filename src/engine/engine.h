// EngineCore: decides what runs next. One process, one loop, no locks; it knows tokens, never text.
#pragma once

#include "base/status.h"
#include "config/options.h"
#include "message/shared_page.h"

/**
 * The EngineCore process: plans, loads, sets the page's facts and READY, then loops: drain messages
 * → schedule → execute → update → send one output batch per API server. Returns the process's exit
 * status: 0 after SIGTERM/SIGINT, 3 when it cannot start (the reason is logged and a restart would
 * not help), 1 for anything else.
 * `ipc_dir`: folder for the sockets (see channel.h).
 */
int engine_core_main(const struct serve_options *options, const char *ipc_dir,
                     struct shared_page *page);
