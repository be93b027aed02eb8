// How much memory there is: see host_memory.h.
#include "worker/host_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static int64_t read_meminfo(const char *key)
{
    FILE *file = fopen("/proc/meminfo", "re");
    int64_t bytes = INT64_MAX;
    size_t key_len = strlen(key);
    char line[256], *end;
    while (file && fgets(line, sizeof(line), file)) { // "MemTotal:       16316412 kB"
        if (strncmp(line, key, key_len) != 0 || line[key_len] != ':')
            continue;
        char *number = line + key_len + 1;
        int64_t kib = strtoll(number, &end, 10);
        if (end != number && kib >= 0 && kib <= INT64_MAX / 1024)
            bytes = kib * 1024;
    }
    if (file)
        fclose(file);
    return bytes;
}

/** A control group's number; INT64_MAX for "max" or no such file. */
static int64_t read_group_file(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return INT64_MAX;
    char line[64], *end = line;
    int64_t value = fgets(line, sizeof(line), file) ? strtoll(line, &end, 10) : 0;
    fclose(file);
    return end != line && value >= 0 ? value : INT64_MAX;
}

struct host_memory host_memory_read(void)
{
    static const struct {
        const char *limit, *usage;
    } GROUPS[] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    struct host_memory memory = {read_meminfo("MemTotal"), read_meminfo("MemAvailable")};
    for (size_t i = 0; i < ARRAY_LEN(GROUPS); i++) {
        int64_t limit = read_group_file(GROUPS[i].limit);
        int64_t usage = read_group_file(GROUPS[i].usage);
        if (limit == INT64_MAX)
            continue;
        memory.total_bytes = min_i64(memory.total_bytes, limit);
        if (usage != INT64_MAX)
            memory.available_bytes = min_i64(memory.available_bytes, max_i64(limit - usage, 0));
    }
    return memory;
}

struct byte_text byte_text(int64_t bytes)
{
    static const char *const UNITS[] = {"KiB", "MiB", "GiB", "TiB"};
    struct byte_text out;
    if (bytes < 1024) {
        snprintf(out.text, sizeof(out.text), "%" PRId64 " bytes", bytes);
        return out;
    }
    double value = (double)bytes / 1024;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < ARRAY_LEN(UNITS); unit++)
        value /= 1024;
    snprintf(out.text, sizeof(out.text), "%.2f %s", value, UNITS[unit]);
    return out;
}
