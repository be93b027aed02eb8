// The flight recorder on its way to a file, and the thread that writes it when a signal asks.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "engine/recorder.h"

static bool write_all(int fd, const uint8_t *bytes, size_t len)
{
    while (len > 0) {
        ssize_t written = write(fd, bytes, len);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        bytes += written;
        len -= (size_t)written;
    }
    return true;
}

bool recorder_dump_fd(const struct recorder *rec, int fd)
{
    const struct recorder_half *other = &rec->halves[1 - rec->current];
    const struct recorder_half *current = &rec->halves[rec->current];
    return write_all(fd, rec->head, rec->head_bytes) &&
           (!rec->has_other || write_all(fd, other->bytes, other->used)) &&
           write_all(fd, current->bytes, current->used);
}

enum status recorder_dump(struct recorder *rec, const char *path, struct error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, STATUS_IO, "cannot create the recording %s: %s", path,
                         strerror(errno));
    pthread_mutex_lock(&rec->turning);
    bool is_written = recorder_dump_fd(rec, fd);
    int reason = errno;
    pthread_mutex_unlock(&rec->turning);
    if (close(fd) != 0 && is_written) {
        is_written = false;
        reason = errno;
    }
    if (is_written)
        return STATUS_OK;
    unlink(path);
    return error_set(err, STATUS_IO, "cannot write the recording %s: %s", path, strerror(reason));
}

enum status recorder_dump_to(struct recorder *rec, const char *folder, char *path, size_t path_size,
                             struct error *err)
{
    int number = atomic_fetch_add(&rec->num_dumps, 1);
    snprintf(path, path_size, "%s/vllm-recording-%d-%d.bin", folder ? folder : "/tmp",
             (int)getpid(), number);
    TRY(recorder_dump(rec, path, err));
    log_info("The flight recorder was written to %s", path);
    return STATUS_OK;
}

// ---- on a signal ---------------------------------------------------------------------------

struct dump_thread {
    pthread_t thread;
    struct recorder *recorder;
    const char *folder;
    atomic_bool stops;
};

static sigset_t dump_signal(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return set;
}

void dump_thread_block_signal(void)
{
    sigset_t set = dump_signal();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void *wait_and_dump(void *context)
{
    struct dump_thread *t = context;
    sigset_t set = dump_signal();
    int signal_number;
    while (sigwait(&set, &signal_number) == 0 && !atomic_load(&t->stops)) {
        char path[1024];
        struct error err = {0};
        if (recorder_dump_to(t->recorder, t->folder, path, sizeof(path), &err) != STATUS_OK)
            log_error("%s", err.message);
    }
    return NULL;
}

enum status dump_thread_start(struct dump_thread **out, struct recorder *recorder,
                              const char *folder, struct error *err)
{
    struct dump_thread *t = xcalloc(1, sizeof(*t));
    t->recorder = recorder;
    t->folder = folder;
    int failure = pthread_create(&t->thread, NULL, wait_and_dump, t);
    if (failure != 0) {
        free(t);
        return error_set(err, STATUS_IO, "cannot start a thread for recordings: %s",
                         strerror(failure));
    }
    *out = t;
    return STATUS_OK;
}

void dump_thread_stop(struct dump_thread *t)
{
    if (!t)
        return;
    atomic_store(&t->stops, true);
    pthread_kill(t->thread, SIGUSR2);
    pthread_join(t->thread, NULL);
    free(t);
}
