// Stands in for the CUDA backend in builds without it.
#include "ops/ops.h"

bool cuda_is_available(void)
{
    return false;
}

enum status cuda_device_init(struct device *dev, int32_t num_threads, struct error *err)
{
    (void)num_threads;
    *dev = (struct device){0};
    return error_set(err, STATUS_UNSUPPORTED,
                     "this build of vllm has no CUDA backend: build it with the preset \"cuda\", "
                     "or use VLLM_TARGET_DEVICE=cpu");
}
