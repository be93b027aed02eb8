// The CUDA backend's memory, its copies and marks, recordings, and a machine without a GPU.
#include "ops/gpu_bench.h"

static void copies_bring_back_what_they_took(void **state)
{
    struct bench *b = bench_of(state);
    struct device *dev = &b->gpu;
    struct error err = {0};
    enum { ROWS = 5, ROW = 300, PITCH = 512 };
    char *staging = dev->ops.alloc_staging(dev, ROWS * PITCH);
    char *memory = dev->ops.alloc(dev, ROWS * PITCH);
    assert_non_null(staging);
    assert_int_equal((uintptr_t)memory % 256, 0);
    memset(staging, 1, ROWS * PITCH);
    dev->ops.copy_in(dev, memory, staging, ROWS * PITCH);
    for (int i = 0; i < ROWS * ROW; i++)
        staging[i] = (char)(i * 7);
    char *packed = dev->ops.alloc(dev, ROWS * ROW);
    dev->ops.upload(dev, packed, staging, ROWS * ROW);
    dev->ops.copy_rows(dev, memory, PITCH, packed, ROW, ROW, ROWS);
    dev->ops.set_mark(dev, 1);
    assert_int_equal(dev->ops.wait_mark(dev, 1, &err), STATUS_OK);
    assert_true(dev->ops.passed_mark(dev, 1));
    memset(staging, 0, ROWS * PITCH);
    dev->ops.download(dev, staging, memory, ROWS * PITCH);
    assert_int_equal(dev->ops.synchronize(dev, &err), STATUS_OK);
    for (int i = 0; i < ROWS * PITCH; i++)
        assert_int_equal(staging[i],
                         i % PITCH < ROW ? (char)((i / PITCH * ROW + i % PITCH) * 7) : 1);
    dev->ops.free(dev, packed);
    int64_t total = 0, free_now = 0;
    dev->ops.memory_info(dev, &total, &free_now);
    assert_true(free_now > 0 && free_now < total);
    dev->ops.free(dev, memory);
    dev->ops.free(dev, NULL);
    dev->ops.free_staging(dev, staging);
    assert_null(dev->ops.alloc(dev, (size_t)total * 2)); // and is no failure
    assert_int_equal(dev->ops.synchronize(dev, &err), STATUS_OK);
}

static void a_recording_runs_over_what_memory_holds_then(void **state)
{
    struct bench *b = bench_of(state);
    struct device *dev = &b->gpu;
    enum { N = 64 };
    float *first = randoms(b, N), *second = randoms(b, N), *weight = randoms(b, N);
    void *gpu_weight = rounded_to_gpu(b, weight, N);
    const struct norm_params norm = {gpu_weight, eps, 0}, cpu_norm = {weight, eps, 0};
    struct tensor x = matrix_to_gpu(b, first, 1, N), out = matrix_to_gpu(b, first, 1, N);
    op_rms_norm(dev, out, x, norm);
    dev->ops.record_begin(dev);
    op_rms_norm(dev, out, x, norm);
    void *recording = dev->ops.record_end(dev);
    assert_non_null(recording);
    void *other = rounded_to_gpu(b, second, N);
    uint16_t bits[N];
    dev->ops.copy_out(dev, bits, other, sizeof(bits));
    dev->ops.copy_in(dev, x.data, bits, sizeof(bits));
    dev->ops.replay(dev, recording);
    float *expected = floats(b, N);
    op_rms_norm(&b->cpu, tensor_2d(expected, DTYPE_F32, 1, N), tensor_2d(second, DTYPE_F32, 1, N),
                cpu_norm);
    assert_close(from_gpu(b, out), expected, N, rounding(b), 1e-5, "replayed rms_norm");
    dev->ops.free_recording(dev, recording);
    release(b, gpu_weight);
    release(b, other);
    release(b, x.data);
    release(b, out.data);
}

static void a_device_that_is_not_there_is_refused_in_words(void **state)
{
    (void)state;
    if (cuda_is_available()) {
        print_message("this machine has a GPU\n");
        skip();
    }
    struct device dev;
    struct error err = {0};
    assert_int_equal(cuda_device_init(&dev, 1, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.message, "VLLM_TARGET_DEVICE=cpu"));
    device_deinit(&dev); // a device that never came to be
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_is_not_there_is_refused_in_words),
        cmocka_unit_test(copies_bring_back_what_they_took),
        cmocka_unit_test(a_recording_runs_over_what_memory_holds_then),
    };
    return run_in_both_types(tests);
}
