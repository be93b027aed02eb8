#include "message/ipc_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "config/options.h"

enum status ipc_dir_make(char dir[IPC_DIR_BYTES], struct error *err)
{
    const char *parents[] = {options_env("XDG_RUNTIME_DIR"), "/tmp", "/dev/shm"};
    for (size_t i = 0; i < ARRAY_LEN(parents); i++) {
        // The socket's name must fit in a socket address of 108 bytes.
        if (!parents[i] || strlen(parents[i]) > 64)
            continue;
        snprintf(dir, IPC_DIR_BYTES, "%s/vllm-XXXXXX", parents[i]);
        if (mkdtemp(dir)) // mode 700
            return STATUS_OK;
    }
    dir[0] = '\0';
    return error_set(err, STATUS_IO,
                     "no folder for sockets in XDG_RUNTIME_DIR, /tmp or /dev/shm: %s",
                     strerror(errno));
}

void ipc_dir_remove(const char *path)
{
    DIR *dir = path[0] ? opendir(path) : NULL;
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));)
        unlinkat(dirfd(dir), entry->d_name, 0); // . and .. refuse
    closedir(dir);
    rmdir(path);
}
