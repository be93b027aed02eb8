// Asks NVML: see gpu_monitor.h. The few declarations that are needed stand here, so that no header
// of the driver is.
#include "api_server/gpu_monitor.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"

// NVML's interface, versions of 2012 and later.
enum { NVML_SUCCESS = 0 };
typedef struct nvmlDevice_st *nvml_device; // opaque in NVML as well
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_utilization {
    unsigned gpu, memory; // percent
};

struct nvml {
    void *handle;
    int (*init)(void);
    int (*shutdown)(void);
    int (*get_count)(unsigned *count);
    int (*get_device)(unsigned index, nvml_device *device);
    int (*get_memory)(nvml_device device, struct nvml_memory *memory);
    int (*get_utilization)(nvml_device device, struct nvml_utilization *utilization);
    int32_t num_gpus;
    nvml_device devices[MAX_MONITORED_GPUS];
};

static bool find_functions(struct nvml *nvml)
{
    const struct {
        const char *name;
        void *slot;
    } FUNCTIONS[] = {
        {"nvmlInit_v2", &nvml->init},
        {"nvmlShutdown", &nvml->shutdown},
        {"nvmlDeviceGetCount_v2", &nvml->get_count},
        {"nvmlDeviceGetHandleByIndex_v2", &nvml->get_device},
        {"nvmlDeviceGetMemoryInfo", &nvml->get_memory},
        {"nvmlDeviceGetUtilizationRates", &nvml->get_utilization},
    };
    for (size_t i = 0; i < ARRAY_LEN(FUNCTIONS); i++) {
        void *function = dlsym(nvml->handle, FUNCTIONS[i].name);
        if (!function)
            return false;
        memcpy(FUNCTIONS[i].slot, &function, sizeof(function)); // C has no cast for it
    }
    return true;
}

static void nvml_close(struct nvml *nvml)
{
    if (!nvml)
        return;
    if (nvml->num_gpus > 0)
        nvml->shutdown();
    if (nvml->handle)
        dlclose(nvml->handle);
    free(nvml);
}

/** The library with its GPUs, or NULL where there is none or it does not work. */
static struct nvml *nvml_open(const char *library)
{
    struct nvml *nvml = xcalloc(1, sizeof(*nvml));
    nvml->handle = dlopen(library ? library : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    unsigned count = 0;
    if (nvml->handle && find_functions(nvml) && nvml->init() == NVML_SUCCESS) {
        if (nvml->get_count(&count) != NVML_SUCCESS)
            count = 0;
        for (unsigned i = 0; i < count && nvml->num_gpus < MAX_MONITORED_GPUS; i++) {
            if (nvml->get_device(i, &nvml->devices[nvml->num_gpus]) == NVML_SUCCESS)
                nvml->num_gpus++;
        }
        if (nvml->num_gpus == 0)
            nvml->shutdown();
    }
    if (nvml->num_gpus > 0)
        return nvml;
    nvml_close(nvml);
    return NULL;
}

static void read_gpus(const struct nvml *nvml, struct gpu_readings *out)
{
    *out = (struct gpu_readings){.num_gpus = nvml->num_gpus};
    for (int32_t i = 0; i < nvml->num_gpus; i++) {
        struct nvml_memory memory = {0};
        struct nvml_utilization utilization = {0};
        // What a GPU does not tell (a part of a MIG device has no load) stays 0.
        if (nvml->get_memory(nvml->devices[i], &memory) != NVML_SUCCESS)
            memory = (struct nvml_memory){0};
        if (nvml->get_utilization(nvml->devices[i], &utilization) != NVML_SUCCESS)
            utilization = (struct nvml_utilization){0};
        out->gpus[i] = (struct gpu_reading){
            .used_bytes = (int64_t)memory.used,
            .total_bytes = (int64_t)memory.total,
            .utilization = utilization.gpu / 100.0,
        };
    }
}

static struct gpu_monitor *monitor_of(struct pool_job *job)
{
    return (struct gpu_monitor *)((char *)job - offsetof(struct gpu_monitor, job));
}

static void run_job(struct pool_job *job)
{
    struct gpu_monitor *monitor = monitor_of(job);
    if (!monitor->nvml)
        monitor->nvml = nvml_open(monitor->library);
    if (monitor->nvml)
        read_gpus(monitor->nvml, &monitor->fresh);
}

static void job_done(struct pool_job *job)
{
    struct gpu_monitor *monitor = monitor_of(job);
    monitor->is_busy = false;
    monitor->is_absent = monitor->nvml == NULL;
    monitor->shown = monitor->fresh;
}

void gpu_monitor_refresh(struct gpu_monitor *monitor, struct tokenizer_pool *pool)
{
    monitor->is_started = true;
    if (monitor->is_busy || monitor->is_absent)
        return;
    monitor->job = (struct pool_job){.run = run_job, .done = job_done};
    monitor->is_busy = tokenizer_pool_post(pool, &monitor->job);
}

void gpu_monitor_tick(struct gpu_monitor *monitor, struct tokenizer_pool *pool)
{
    if (monitor->is_started)
        gpu_monitor_refresh(monitor, pool);
}

void gpu_monitor_deinit(struct gpu_monitor *monitor)
{
    nvml_close(monitor->nvml);
    *monitor = (struct gpu_monitor){0};
}
