// Dummy values that a GPU makes are those that the host makes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "model_loader/convert.h"
#include "model_loader/weights.h"

static void check_dtype(enum dtype dtype)
{
    struct device dev;
    struct error err = {0};
    assert_int_equal(cuda_device_init(&dev, 1, &err), STATUS_OK);
    dev.activation_dtype = dtype;
    const struct weight_store_options options = {
        .mode = WEIGHTS_LOAD, .is_dummy = true, .model_dtype = dtype};
    struct weight_store store;
    assert_int_equal(weight_store_open(&store, &dev, &options, &err), STATUS_OK);
    const struct weights root = {.store = &store};
    enum { COLS = 72, GATE = 301, UP = 5, ROWS = 77 };
    static const struct weights_part parts[] = {{"gate", GATE}, {"up", UP}};
    struct weight joined;
    assert_int_equal(weights_matrix(&root, parts, 2, COLS, false, &joined, &err), STATUS_OK);
    struct tensor table;
    assert_int_equal(weights_table(&root, "embed.weight", ROWS, COLS - 1, &table, &err), STATUS_OK);
    static uint16_t got[(GATE + UP) * COLS], want[(GATE + UP) * COLS];
    dev.ops.copy_out(&dev, got, joined.data, sizeof(got));
    dummy_values(want, dtype, (size_t)GATE * COLS, STR("gate.weight"));
    dummy_values(want + GATE * COLS, dtype, (size_t)UP * COLS, STR("up.weight"));
    assert_memory_equal(got, want, sizeof(got));
    size_t num_table = (size_t)ROWS * (COLS - 1); // no multiple of eight
    dev.ops.copy_out(&dev, got, table.data, num_table * sizeof(*got));
    dummy_values(want, dtype, num_table, STR("embed.weight"));
    assert_memory_equal(got, want, num_table * sizeof(*got));

    struct expert_weights experts;
    static const struct weights_part even[] = {{"gate", 3}, {"up", 2}};
    assert_int_equal(weights_experts(&root, even, 2, 3, COLS, &experts, &err), STATUS_OK);
    const void *rows[3];
    dev.ops.copy_out(&dev, rows, experts.data, sizeof(rows));
    dev.ops.copy_out(&dev, got, rows[2], (size_t)5 * COLS * sizeof(*got));
    dummy_values(want, dtype, (size_t)3 * COLS, STR("experts.2.gate.weight"));
    dummy_values(want + 3 * COLS, dtype, (size_t)2 * COLS, STR("experts.2.up.weight"));
    assert_memory_equal(got, want, (size_t)5 * COLS * sizeof(*got));
    weight_store_close(&store);
    device_deinit(&dev);
}

static void a_gpu_makes_up_what_the_host_would(void **state)
{
    (void)state;
    if (!cuda_is_available()) {
        print_message("no GPU, or no driver, on this machine\n");
        skip();
    }
    check_dtype(DTYPE_BF16);
    check_dtype(DTYPE_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_makes_up_what_the_host_would),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
