// What `ps` and `top` show for this process.
//
// The kernel shows the memory that holds the strings of argv. Its start is what glibc keeps as the
// program's name, its length is that of /proc/self/cmdline, and both are compared before a byte is
// written.
#include "entrypoints/process_title.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/memory.h"

enum { MAX_COMMAND_LINE = 64 << 10 };

void process_title_set(const char *title, const char *thread_name)
{
    prctl(PR_SET_NAME, thread_name, 0, 0, 0);
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    char *shown = xmalloc(MAX_COMMAND_LINE), *area = program_invocation_name;
    ssize_t len = read(fd, shown, MAX_COMMAND_LINE);
    close(fd);
    // A line that fills the buffer may be longer: too odd to touch.
    if (len > 0 && len < MAX_COMMAND_LINE && memcmp(area, shown, (size_t)len) == 0) {
        size_t title_len = strlen(title);
        if (title_len >= (size_t)len)
            title_len = (size_t)len - 1;
        memset(area, 0, (size_t)len);
        memcpy(area, title, title_len);
    }
    free(shown);
}
