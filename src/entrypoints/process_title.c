// What `ps` and `top` show for this process.
//
// The kernel shows the memory that holds the strings of argv. Its start is what glibc keeps as the
// program's name, its length is that of /proc/self/cmdline, and both are compared before a byte is
// written. A title that is longer goes on where the strings of the environment were, which move
// first: the kernel follows it there when the last byte of the arguments is not zero.
#include "entrypoints/process_title.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/memory.h"

enum { MAX_COMMAND_LINE = 64 << 10 };

/** The bytes of argv's strings from `area` on; 0 if they are not found there. */
static size_t find_arguments(const char *area)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    char *shown = xmalloc(MAX_COMMAND_LINE);
    ssize_t len = read(fd, shown, MAX_COMMAND_LINE);
    close(fd);
    // A line that fills the buffer may be longer: too odd to touch.
    bool found = len > 0 && len < MAX_COMMAND_LINE && memcmp(area, shown, (size_t)len) == 0;
    free(shown);
    return found ? (size_t)len : 0;
}

/** Moves the environment to the heap; returns the bytes that it had right behind `end`. */
static size_t move_environment(const char *end)
{
    size_t num = 0, freed = 0;
    while (environ[num])
        num++;
    char **copy = xcalloc(num + 1, sizeof(*copy)); // for the rest of the process's life
    for (size_t i = 0; i < num; i++) {
        size_t size = strlen(environ[i]) + 1;
        if (environ[i] == end + freed)
            freed += size;
        copy[i] = xstrdup(environ[i]);
    }
    environ = copy;
    return freed;
}

void process_title_set(const char *title, const char *thread_name)
{
    prctl(PR_SET_NAME, thread_name, 0, 0, 0);
    char *area = program_invocation_name;
    size_t size = find_arguments(area), title_len = strlen(title);
    if (size == 0)
        return;
    if (title_len >= size)
        size += move_environment(area + size);
    memset(area, 0, size);
    memcpy(area, title, title_len < size ? title_len : size - 1);
}
