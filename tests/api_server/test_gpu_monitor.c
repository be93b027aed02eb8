// GPUs in /metrics: there with a driver's library, absent without one.
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api_server/gpu_monitor.h"
#include "api_server/metrics_host.h"

/** Asks and waits for the answer. */
static void refresh(struct gpu_monitor *monitor, struct tokenizer_pool *pool)
{
    gpu_monitor_refresh(monitor, pool);
    for (int i = 0; monitor->is_busy && i < 100; i++) {
        struct pollfd item = {tokenizer_pool_fd(pool), POLLIN, 0};
        poll(&item, 1, 100);
        tokenizer_pool_collect(pool);
    }
    assert_false(monitor->is_busy);
}

static void gpus_of_the_drivers_library_are_shown(void **state)
{
    (void)state;
    struct tokenizer_pool *pool;
    struct error err;
    assert_int_equal(tokenizer_pool_create(&pool, 1, &err), STATUS_OK);
    struct gpu_monitor monitor = {.library = FAKE_NVML};
    gpu_monitor_tick(&monitor, pool); // nobody has asked yet
    assert_false(monitor.is_busy);
    for (int round = 0; round < 2; round++) {
        refresh(&monitor, pool);
        assert_false(monitor.is_absent);
        assert_int_equal(monitor.shown.num_gpus, 2);
    }
    gpu_monitor_tick(&monitor, pool);
    assert_true(monitor.is_busy);

    struct serve_options options = {0};
    struct metrics metrics = {.options = &options, .gpus = &monitor.shown};
    struct buf out = {0};
    metrics_render_gpus(&metrics, &out);
    buf_append_char(&out, '\0');
    static const char *const lines[] = {
        "\nvllm_c:gpu_memory_used_bytes{gpu=\"0\"} 750.0\n",
        "\nvllm_c:gpu_memory_used_bytes{gpu=\"1\"} 10.0\n",
        "\nvllm_c:gpu_memory_total_bytes{gpu=\"1\"} 1000.0\n",
        "\nvllm_c:gpu_utilization{gpu=\"0\"} 0.4\n",
        "\nvllm_c:gpu_utilization{gpu=\"1\"} 0.0\n",
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        if (!strstr(out.ptr, lines[i]))
            fail_msg("no line %sin\n%s", lines[i], out.ptr);
    }
    buf_deinit(&out);
    tokenizer_pool_destroy(pool);
    gpu_monitor_deinit(&monitor);
}

static void without_the_library_there_are_no_series(void **state)
{
    (void)state;
    static const char *const libraries[] = {
        "libno-such-driver.so.1",
        "libm.so.6", // a library, but another one
    };
    for (size_t i = 0; i < 2; i++) {
        struct tokenizer_pool *pool;
        struct error err;
        assert_int_equal(tokenizer_pool_create(&pool, 1, &err), STATUS_OK);
        struct gpu_monitor monitor = {.library = libraries[i]};
        refresh(&monitor, pool);
        assert_true(monitor.is_absent);
        gpu_monitor_refresh(&monitor, pool); // and is not looked for again
        assert_false(monitor.is_busy);
        struct serve_options options = {0};
        struct metrics metrics = {.options = &options, .gpus = &monitor.shown};
        struct buf out = {0};
        metrics_render_gpus(&metrics, &out);
        assert_int_equal(out.len, 0);
        buf_deinit(&out);
        tokenizer_pool_destroy(pool);
        gpu_monitor_deinit(&monitor);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_of_the_drivers_library_are_shown),
        cmocka_unit_test(without_the_library_there_are_no_series),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
