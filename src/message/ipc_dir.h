// The folder in which an engine's socket lives.
#pragma once

#include "base/status.h"

enum { IPC_DIR_BYTES = 128 };

/** Makes a folder only this user may enter, in XDG_RUNTIME_DIR, /tmp or /dev/shm. Errors: IO; then
 *  `dir` is empty. */
NODISCARD enum status ipc_dir_make(char dir[IPC_DIR_BYTES], struct error *err);

/** Removes it and the sockets in it. An empty name is none. */
void ipc_dir_remove(const char *dir);
