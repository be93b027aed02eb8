// The device that tests of loading load onto: the portable CPU backend, which uses weights in
// place. For one test program each.
#pragma once

#include <cmocka.h>

#include "ops/ops.h"

static struct device dev;

static int start_device(void **state)
{
    (void)state;
    struct error err;
    return cpu_device_init(&dev, CPU_ISA_SCALAR, 2, &err) == STATUS_OK ? 0 : -1;
}

static int stop_device(void **state)
{
    (void)state;
    device_deinit(&dev);
    return 0;
}
