// Memory and load of the host's NVIDIA GPUs, from the driver's library (NVML), which is loaded when
// it is there. Without it there are no GPUs to tell of.
//
// The library may take seconds to start and milliseconds to answer, so a thread of the pool asks it
// and the event loop shows the last answer. It is started by the first scrape: a server whose
// metrics nobody reads leaves the driver alone.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "api_server/tokenizer_pool.h"

enum { MAX_MONITORED_GPUS = 16 };

struct gpu_reading {
    int64_t used_bytes, total_bytes;
    double utilization; // share of the last sample period in which a kernel ran
};

struct gpu_readings {
    int32_t num_gpus;
    struct gpu_reading gpus[MAX_MONITORED_GPUS];
};

struct nvml; // the library's functions

/** `= {0}` is one that has not been started. The loop's, but for what `job` fills. */
struct gpu_monitor {
    struct pool_job job;
    const char *library; // NULL: libnvidia-ml.so.1
    struct nvml *nvml;   // the pool's while `is_busy`
    bool is_started, is_busy, is_absent;
    struct gpu_readings fresh; // the pool's while `is_busy`
    struct gpu_readings shown;
};

/** Asks for readings unless that is under way, or there is no library. */
void gpu_monitor_refresh(struct gpu_monitor *monitor, struct tokenizer_pool *pool);

/** For a timer: refreshes once somebody has asked. */
void gpu_monitor_tick(struct gpu_monitor *monitor, struct tokenizer_pool *pool);

/** The pool must be gone. */
void gpu_monitor_deinit(struct gpu_monitor *monitor);
