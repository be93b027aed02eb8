#include "benchmarks/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

enum { LAST_OUTPUT_BYTES = 700, POLL_MS = 20 };

/** In the child, up to its own program; what goes wrong is written to `report_fd`. */
_Noreturn static void become(char *const *argv, int output_fd, const char *environment,
                             pid_t parent, int report_fd)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(EXIT_FAILURE);
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        signal(signals[i], SIG_DFL);
    int input_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (input_fd >= 0)
        dup2(input_fd, STDIN_FILENO);
    if (output_fd >= 0) {
        dup2(output_fd, STDOUT_FILENO);
        dup2(output_fd, STDERR_FILENO);
    }
    if (environment) {
        struct str value = str_from(environment), name = str_split(&value, '=');
        char copy[64];
        snprintf(copy, sizeof(copy), STR_FORMAT, STR_ARG(name));
        setenv(copy, value.ptr, 0);
    }
    execvp(argv[0], argv);
    int why = errno;
    ssize_t num = write(report_fd, &why, sizeof(why));
    (void)num; // without it the exit status has to do
    _exit(EXIT_FAILURE);
}

/** The words as execvp() takes them. */
static char **make_argv(const struct str_list *words)
{
    char **argv = xcalloc((size_t)words->len + 1, sizeof(*argv));
    for (int32_t i = 0; i < words->len; i++)
        argv[i] = (char *)(uintptr_t)words->items[i];
    return argv;
}

enum status child_process_start(struct child_process *child, const struct str_list *words,
                                const char *log_path, const char *environment, struct error *err)
{
    int report[2], output_fd = -1, why = 0;
    *child = (struct child_process){0};
    if (log_path) {
        output_fd = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (output_fd < 0)
            return error_set(err, STATUS_IO, "%s: %s", log_path, strerror(errno));
    }
    if (pipe2(report, O_CLOEXEC) != 0) {
        why = errno;
        if (output_fd >= 0)
            close(output_fd);
        return error_set(err, STATUS_IO, "no pipe: %s", strerror(why));
    }
    char **argv = make_argv(words);
    pid_t parent = getpid();
    fflush(NULL); // what is buffered would be written twice
    pid_t pid = fork();
    if (pid == 0)
        become(argv, output_fd, environment, parent, report[1]);
    why = pid < 0 ? errno : 0;
    close(report[1]);
    if (output_fd >= 0)
        close(output_fd);
    free(argv);
    if (pid > 0) {
        setpgid(pid, pid); // whoever comes first: a stop may be asked for at once
        while (read(report[0], &why, sizeof(why)) < 0 && errno == EINTR) // the end: it runs
            continue;
    }
    close(report[0]);
    if (pid > 0 && why == 0) {
        *child = (struct child_process){pid, log_path};
        return STATUS_OK;
    }
    if (pid > 0)
        waitpid(pid, NULL, 0);
    return error_set(err, why == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s cannot be run: %s",
                     words->items[0], strerror(why));
}

/** Leaves the process as it is, so that its id stays its own until child_process_stop(). */
static bool peek(const struct child_process *child, siginfo_t *info)
{
    memset(info, 0, sizeof(*info));
    if (child->pid == 0)
        return false;
    int result;
    do
        result = waitid(P_PID, (id_t)child->pid, info, WEXITED | WNOHANG | WNOWAIT);
    while (result != 0 && errno == EINTR);
    return result == 0 && info->si_pid == child->pid;
}

bool child_process_has_ended(const struct child_process *child, char *how, size_t how_size)
{
    siginfo_t info;
    if (!peek(child, &info))
        return false;
    snprintf(how, how_size, info.si_code == CLD_EXITED ? "exit status %d" : "signal %d",
             info.si_status);
    return true;
}

bool child_process_has_succeeded(const struct child_process *child)
{
    siginfo_t info;
    return peek(child, &info) && info.si_code == CLD_EXITED && info.si_status == 0;
}

void child_process_stop(struct child_process *child, int signal, int grace_s)
{
    siginfo_t info;
    if (child->pid == 0)
        return;
    if (!peek(child, &info)) {
        int64_t until_ns = clock_monotonic_ns() + grace_s * INT64_C(1000000000);
        kill(-child->pid, signal);
        while (!peek(child, &info) && clock_monotonic_ns() < until_ns)
            nanosleep(&(struct timespec){0, POLL_MS * 1000000L}, NULL);
    }
    kill(-child->pid, SIGKILL);
    while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    child->pid = 0;
}

const char *child_process_last_output(const struct child_process *child, struct arena *arena)
{
    char bytes[LAST_OUTPUT_BYTES];
    if (!child->log_path)
        return "; its output is above";
    FILE *file = fopen(child->log_path, "r");
    if (!file)
        return "";
    if (fseek(file, -LAST_OUTPUT_BYTES, SEEK_END) != 0)
        rewind(file);
    size_t len = fread(bytes, 1, sizeof(bytes), file);
    fclose(file);
    struct str text = str_trim((struct str){bytes, len});
    if (text.len == 0)
        return arena_printf(arena, "; it printed nothing (%s)", child->log_path);
    return arena_printf(arena, "; the end of its output (%s):\n" STR_FORMAT, child->log_path,
                        STR_ARG(text));
}
