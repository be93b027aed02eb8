// How much memory this host, or the container around us, has.
#pragma once

#include <stdint.h>

struct host_memory {
    int64_t total_bytes;     // of the machine, or the control group's limit where that is less
    int64_t available_bytes; // without swapping, within that limit
};

/** Reads /proc/meminfo and the control group's files. What cannot be read counts as unlimited. */
struct host_memory host_memory_read(void);

/** Text for a person: "1.50 GiB", "64.00 KiB", "12 bytes". */
struct byte_text {
    char text[32];
};
struct byte_text byte_text(int64_t bytes);
