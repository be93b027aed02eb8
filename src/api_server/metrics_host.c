// The part of /metrics that is about the host: see metrics_host.h.
#include "api_server/metrics_host.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api_server/exposition.h"

/** Pages of a process; false when it is gone. */
static bool read_pages(int32_t pid, double *virtual_pages, double *resident_pages)
{
    char path[48];
    snprintf(path, sizeof(path), "/proc/%d/statm", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    char line[256] = "", *end = line; // two numbers of pages come first
    bool is_read = fgets(line, sizeof(line), file);
    *virtual_pages = strtod(line, &end);
    is_read = is_read && end != line;
    *resident_pages = strtod(end, NULL);
    fclose(file);
    return is_read;
}

static double open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    double count = 0;
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count > 3 ? count - 3 : 0; // ".", ".." and the one that reads
}

static void plain(struct buf *out, const char *name, const char *type, const char *help,
                  double value)
{
    exposition_head(out, name, "", type, help);
    exposition_sample(out, name, "", (struct str){0}, "", value);
}

static void render_self(const struct metrics *m, struct buf *out)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double virtual_pages = 0, resident_pages = 0;
    if (!read_pages((int32_t)getpid(), &virtual_pages, &resident_pages))
        virtual_pages = resident_pages = 0;
    double page_size = (double)sysconf(_SC_PAGESIZE);
    plain(out, "process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.",
          virtual_pages * page_size);
    plain(out, "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.",
          resident_pages * page_size);
    plain(out, "process_start_time_seconds", "gauge",
          "Start time of the process since unix epoch in seconds.",
          (double)m->page->start_wall_ns / 1e9);
    plain(out, "process_cpu_seconds_total", "counter",
          "Total user and system CPU time spent in seconds.",
          (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
              (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    plain(out, "process_open_fds", "gauge", "Number of open file descriptors.", open_fds());
    plain(out, "process_max_fds", "gauge", "Maximum number of open file descriptors.",
          (double)sysconf(_SC_OPEN_MAX));
}

static void resident_sample(struct buf *out, const char *process, int32_t pid)
{
    double virtual_pages, resident_pages;
    if (pid <= 0 || !read_pages(pid, &virtual_pages, &resident_pages))
        return;
    char labels[64];
    snprintf(labels, sizeof(labels), "process=\"%s\"", process);
    exposition_sample(out, "vllm_c:process_resident_memory_bytes", "", (struct str){0}, labels,
                      resident_pages * (double)sysconf(_SC_PAGESIZE));
}

void metrics_render_processes(const struct metrics *m, struct buf *out)
{
    const struct shared_page *page = m->page;
    if (page->num_api_servers == 1)
        render_self(m, out);
    if (m->options->disable_log_stats)
        return;
    exposition_head(out, "vllm_c:process_resident_memory_bytes", "", "gauge",
                    "Resident memory of each process; pages of mapped files included.");
    resident_sample(out, "Launcher", (int32_t)getppid());
    resident_sample(out, "EngineCore", atomic_load(&page->engine.pid));
    for (int32_t i = 0; i < page->num_api_servers; i++) {
        char name[24];
        snprintf(name, sizeof(name), page->num_api_servers == 1 ? "APIServer" : "ApiServer_%d", i);
        resident_sample(out, name, atomic_load(&page->fronts[i].pid));
    }
}

void metrics_render_gpus(const struct metrics *m, struct buf *out)
{
    static const char *const names[] = {"vllm_c:gpu_memory_used_bytes",
                                        "vllm_c:gpu_memory_total_bytes", "vllm_c:gpu_utilization"};
    static const char *const helps[] = {
        "Memory of the GPU in use, by anybody, the driver's reserve included.",
        "Memory that the GPU has.", "Share of time in which the GPU ran a kernel."};
    if (!m->gpus || m->gpus->num_gpus == 0 || m->options->disable_log_stats)
        return;
    for (int series = 0; series < 3; series++) {
        exposition_head(out, names[series], "", "gauge", helps[series]);
        for (int32_t i = 0; i < m->gpus->num_gpus; i++) {
            const struct gpu_reading *gpu = &m->gpus->gpus[i];
            const double values[] = {(double)gpu->used_bytes, (double)gpu->total_bytes,
                                     gpu->utilization};
            char labels[24];
            snprintf(labels, sizeof(labels), "gpu=\"%d\"", i);
            exposition_sample(out, names[series], "", (struct str){0}, labels, values[series]);
        }
    }
}
