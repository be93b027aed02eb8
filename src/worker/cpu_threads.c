// Which cores OpenMP's threads run on: see cpu_threads.h.
#include "worker/cpu_threads.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/str.h"

#define VARIABLE "VLLM_CPU_OMP_THREADS_BIND"

static bool read_number(struct str *text, int32_t *out)
{
    int32_t value = 0;
    size_t len = 0;
    for (; len < text->len && text->ptr[len] >= '0' && text->ptr[len] <= '9'; len++) {
        value = value * 10 + (text->ptr[len] - '0');
        if (value >= CPU_SETSIZE)
            return false;
    }
    *text = str_slice(*text, len, text->len);
    *out = value;
    return len > 0;
}

/** Adds "3" or "0-7". False: malformed, or a core is there already. */
static bool add_range(struct cpu_threads *threads, cpu_set_t *set, struct str text)
{
    int32_t first, last;
    if (!read_number(&text, &first))
        return false;
    last = first;
    if (text.len > 0) {
        if (text.ptr[0] != '-')
            return false;
        text = str_slice(text, 1, text.len);
        if (!read_number(&text, &last) || text.len > 0 || last < first)
            return false;
    }
    for (int32_t core = first; core <= last; core++) {
        if (CPU_ISSET(core, set))
            return false;
        CPU_SET(core, set);
        threads->cores[threads->num_cores++] = core;
    }
    return true;
}

/** The kernel's lists ("0-3,8") are written like ours. */
static bool parse_list(struct cpu_threads *threads, struct str list)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    threads->num_cores = 0;
    while (list.len > 0) {
        if (!add_range(threads, &set, str_trim(str_split(&list, ','))))
            return false;
    }
    return threads->num_cores > 0;
}

static enum status parse_explicit(struct cpu_threads *threads, const char *binding, int32_t rank,
                                  const cpu_set_t *allowed, struct error *err)
{
    struct str rest = str_from(binding), part = {0};
    for (int32_t i = 0; i <= rank; i++) {
        if (rest.len == 0)
            return error_set(err, STATUS_INVALID, VARIABLE " is \"%s\": no cores for rank %d",
                             binding, rank);
        part = str_split(&rest, '|');
    }
    if (!parse_list(threads, part))
        return error_set(err, STATUS_INVALID,
                         VARIABLE " is \"%s\": expected auto, nobind, or cores such as 0-3,8",
                         binding);
    for (int32_t i = 0; i < threads->num_cores; i++) {
        if (!CPU_ISSET(threads->cores[i], allowed))
            return error_set(err, STATUS_INVALID,
                             VARIABLE " is \"%s\": this process may not run on core %d", binding,
                             threads->cores[i]);
    }
    threads->num_threads = threads->num_cores;
    threads->is_bound = true;
    threads->is_one_a_core = true;
    return STATUS_OK;
}

/** A small file of the kernel's, without its final newline. Empty: cannot be read. */
static struct str read_line(const char *path, char *line, size_t size_bytes)
{
    line[0] = '\0';
    FILE *file = fopen(path, "re");
    if (file) {
        if (!fgets(line, (int)size_bytes, file))
            line[0] = '\0';
        fclose(file);
    }
    return str_trim(str_from(line));
}

/** Whether a core is the first allowed one of its hyper-thread siblings. */
static bool is_first_sibling(int32_t core, const cpu_set_t *allowed)
{
    char path[96], line[512];
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
             core);
    struct cpu_threads siblings = {0};
    if (!parse_list(&siblings, read_line(path, line, sizeof(line))))
        return true;
    for (int32_t i = 0; i < siblings.num_cores; i++) {
        if (siblings.cores[i] < core && CPU_ISSET(siblings.cores[i], allowed))
            return false;
    }
    return true;
}

/** The NUMA node with the most allowed cores, as a list; without NUMA, all allowed cores. */
static void choose_node(struct cpu_threads *threads, const cpu_set_t *allowed)
{
    enum { MAX_NODES = 64 };
    struct cpu_threads node;
    for (int32_t n = 0; n < MAX_NODES; n++) {
        char path[64], line[4096];
        snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", n);
        if (!parse_list(&node, read_line(path, line, sizeof(line))))
            continue;
        int32_t count = 0;
        for (int32_t i = 0; i < node.num_cores; i++) {
            if (CPU_ISSET(node.cores[i], allowed))
                node.cores[count++] = node.cores[i];
        }
        node.num_cores = count;
        if (count > threads->num_cores)
            *threads = node;
    }
    for (int32_t core = 0; threads->num_cores == 0 && core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, allowed))
            threads->cores[threads->num_cores++] = core;
    }
}

/** Whole cores that the control group's CPU quota pays for; INT32_MAX without one. */
static int32_t quota_cores(void)
{
    char line[128];
    struct str text = read_line("/sys/fs/cgroup/cpu.max", line, sizeof(line));
    char *end = line;
    int64_t quota = text.len > 0 ? strtoll(line, &end, 10) : 0;
    int64_t period = strtoll(end, NULL, 10);
    if (end == line || period <= 0) // "max 100000", or no such file
        return INT32_MAX;
    return (int32_t)max_i64(1, min_i64(quota / period, INT32_MAX));
}

static void parse_auto(struct cpu_threads *threads, const cpu_set_t *allowed)
{
    *threads = (struct cpu_threads){0};
    choose_node(threads, allowed);
    int32_t num_physical = 0;
    for (int32_t i = 0; i < threads->num_cores; i++)
        num_physical += is_first_sibling(threads->cores[i], allowed);
    threads->num_threads = max_i32(1, min_i32(num_physical, quota_cores()));
    threads->is_bound = true;
    threads->is_one_a_core = false;
}

enum status cpu_threads_parse(struct cpu_threads *threads, const char *binding, int32_t rank,
                              struct error *err)
{
    *threads = (struct cpu_threads){0};
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return error_set(err, STATUS_IO, "the cores of this process are unknown: %s",
                         strerror(errno));
    struct str text = str_from(binding ? binding : "auto");
    if (str_eq_c(text, "nobind")) {
        threads->num_threads = omp_get_max_threads();
        return STATUS_OK;
    }
    if (text.len > 0 && !str_eq_c(text, "auto"))
        return parse_explicit(threads, binding, rank, &allowed, err);
    parse_auto(threads, &allowed);
    return STATUS_OK;
}

static void core_set(const struct cpu_threads *threads, int32_t thread, cpu_set_t *set)
{
    CPU_ZERO(set);
    for (int32_t i = 0; i < threads->num_cores; i++) {
        if (!threads->is_one_a_core || i == thread)
            CPU_SET(threads->cores[i], set);
    }
}

enum status cpu_threads_start(const struct cpu_threads *threads, struct error *err)
{
    if (!threads->is_bound)
        return STATUS_OK;
    int first_error = 0;
#pragma omp parallel num_threads(threads->num_threads)
    {
        cpu_set_t set;
        core_set(threads, omp_get_thread_num(), &set);
        if (sched_setaffinity(0, sizeof(set), &set) != 0) {
#pragma omp atomic write
            first_error = errno;
        }
    }
    if (first_error)
        return error_set(err, STATUS_IO, VARIABLE ": threads could not be bound: %s",
                         strerror(first_error));
    return STATUS_OK;
}
