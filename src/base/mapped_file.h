// A file mapped read-only into memory.
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "base/str.h"

struct mapped_file {
    const char *data; // NULL for an empty file
    size_t size;
};

/** Maps the whole file. Errors: NOT_FOUND, IO (a directory, no permission ...), naming the path. */
NODISCARD enum status mapped_file_open(struct mapped_file *file, const char *path,
                                       struct error *err);
void mapped_file_close(struct mapped_file *file);

static inline struct str mapped_file_str(const struct mapped_file *file)
{
    return (struct str){file->data, file->size};
}
