// A file mapped read-only into memory.
#include "base/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum status mapped_file_open(struct mapped_file *file, const char *path, struct error *err)
{
    *file = (struct mapped_file){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: %s", path,
                         strerror(errno));
    struct stat info;
    enum status status = STATUS_OK;
    if (fstat(fd, &info) != 0)
        status = error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = error_set(err, STATUS_IO, "%s: not a regular file", path);
    if (status == STATUS_OK && info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = error_set(err, STATUS_IO, "%s: cannot be mapped: %s", path, strerror(errno));
        } else {
            file->data = data;
            file->size = (size_t)info.st_size;
        }
    }
    close(fd);
    return status;
}

void mapped_file_close(struct mapped_file *file)
{
    if (file && file->data)
        munmap((void *)(uintptr_t)file->data, file->size);
    if (file)
        *file = (struct mapped_file){0};
}
