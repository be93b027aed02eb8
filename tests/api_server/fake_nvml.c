// Stands in for the driver's library in tests: two GPUs, of which the second does not tell its
// load.
enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

#define EXPORT __attribute__((visibility("default")))

struct memory {
    unsigned long long total, free, used;
};

struct utilization {
    unsigned gpu, memory;
};

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlInit_v2(void)
{
    return SUCCESS;
}

EXPORT int nvmlShutdown(void);
EXPORT int nvmlShutdown(void)
{
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 2;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, const void **device);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, const void **device)
{
    static const int devices[2] = {0, 1};
    *device = &devices[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(const int *device, struct memory *memory);
EXPORT int nvmlDeviceGetMemoryInfo(const int *device, struct memory *memory)
{
    *memory = (struct memory){1000, 1000, 0};
    memory->used = *device == 0 ? 750 : 10;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(const int *device, struct utilization *utilization);
EXPORT int nvmlDeviceGetUtilizationRates(const int *device, struct utilization *utilization)
{
    if (*device == 1)
        return NOT_SUPPORTED;
    *utilization = (struct utilization){40, 5};
    return SUCCESS;
}
