// What a device computes in, for every kind of checkpoint and flag; no GPU is needed to say so.
#include "worker/worker_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"

static struct model_config model_of(const char *architecture, const char *type, enum dtype dtype)
{
    return (struct model_config){.architecture = architecture, .model_type = type, .dtype = dtype};
}

static struct model_config llama_of(enum dtype dtype)
{
    return model_of("LlamaForCausalLM", "llama", dtype);
}

static struct model_config gemma_of(enum dtype dtype)
{
    return model_of("Gemma2ForCausalLM", "gemma2", dtype);
}

/** A refusal that names its flag and holds each of the parts. */
static void expect_refusal(enum status status, const struct error *err, const char *flag,
                           const char *const *parts)
{
    assert_true(status == STATUS_UNSUPPORTED || status == STATUS_INVALID);
    assert_string_equal(err->field, flag);
    for (; *parts; parts++) {
        if (!strstr(err->message, *parts))
            fail_msg("\"%s\" lacks \"%s\"", err->message, *parts);
    }
}

static void a_gpu_computes_in_the_checkpoints_type_where_it_can(void **state)
{
    (void)state;
    static const struct {
        const char *flag;
        bool is_gemma;
        enum dtype checkpoint, expected;
    } CASES[] = {
        {NULL, false, DTYPE_BF16, DTYPE_BF16},       {"auto", false, DTYPE_BF16, DTYPE_BF16},
        {"auto", false, DTYPE_F16, DTYPE_F16},       {"auto", false, DTYPE_F32, DTYPE_BF16},
        {"auto", true, DTYPE_F16, DTYPE_BF16},       {"auto", true, DTYPE_F32, DTYPE_BF16},
        {"half", false, DTYPE_BF16, DTYPE_F16},      {"float16", false, DTYPE_F32, DTYPE_F16},
        {"bfloat16", false, DTYPE_F16, DTYPE_BF16},  {"bfloat16", true, DTYPE_F16, DTYPE_BF16},
        {"torch.half", false, DTYPE_F16, DTYPE_F16}, {"torch.float16", false, DTYPE_F16, DTYPE_F16},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        const struct serve_options options = {.dtype = CASES[i].flag};
        const struct model_config model =
            CASES[i].is_gemma ? gemma_of(CASES[i].checkpoint) : llama_of(CASES[i].checkpoint);
        struct error err = {0};
        enum dtype dtype, kv_dtype;
        assert_int_equal(worker_activation_dtype(&dtype, DEVICE_CUDA, &options, &model, &err),
                         STATUS_OK);
        assert_int_equal(dtype, CASES[i].expected);
        struct weight_store_options weights;
        assert_int_equal(
            worker_weight_options(&weights, DEVICE_CUDA, &options, &model, WEIGHTS_PLAN, &err),
            STATUS_OK);
        assert_int_equal(weights.model_dtype, CASES[i].expected);
        assert_false(weights.keeps_dtype);
        assert_int_equal(worker_kv_dtype(&kv_dtype, DEVICE_CUDA, &options, &model, &err),
                         STATUS_OK);
        assert_int_equal(kv_dtype, CASES[i].expected);
    }
}

static void what_a_gpu_cannot_compute_in_is_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *flag;
        bool is_gemma;
        const char *parts[3];
    } CASES[] = {
        {"float32", false, {"--dtype float32", "auto, float16 or bfloat16"}},
        {"float", false, {"--dtype float32"}},
        {"float16",
         true,
         {"The model type 'gemma2' does not support float16. Reason:", "bfloat16"}},
        {"half", true, {"'gemma2'"}},
        {"int4", false, {"Unknown dtype: 'int4'"}},
        {"fp8_e4m3", false, {"fp8_e4m3"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        const struct serve_options options = {.dtype = CASES[i].flag};
        const struct model_config model =
            CASES[i].is_gemma ? gemma_of(DTYPE_BF16) : llama_of(DTYPE_BF16);
        struct error err = {0};
        enum dtype dtype;
        expect_refusal(worker_activation_dtype(&dtype, DEVICE_CUDA, &options, &model, &err), &err,
                       "--dtype", CASES[i].parts);
        struct weight_store_options weights;
        assert_int_not_equal(
            worker_weight_options(&weights, DEVICE_CUDA, &options, &model, WEIGHTS_PLAN, &err),
            STATUS_OK);
    }
}

static void a_gpus_cache_is_of_its_activations_or_of_eight_bits(void **state)
{
    (void)state;
    static const struct {
        const char *dtype, *cache;
        enum dtype expected; // DTYPE_F32: refused
    } CASES[] = {
        {"bfloat16", "auto", DTYPE_BF16},     {"float16", "auto", DTYPE_F16},
        {"bfloat16", "bfloat16", DTYPE_BF16}, {"float16", "float16", DTYPE_F16},
        {"float16", "half", DTYPE_F16},       {"bfloat16", "fp8", DTYPE_F8_E4M3},
        {"float16", "fp8", DTYPE_F8_E4M3},    {"float16", "fp8_e4m3", DTYPE_F8_E4M3},
        {"bfloat16", "float16", DTYPE_F32},   {"float16", "bfloat16", DTYPE_F32},
        {"bfloat16", "float32", DTYPE_F32},   {"float16", "float32", DTYPE_F32},
        {"float16", "fp8_e5m2", DTYPE_F32},
    };
    const struct model_config model = llama_of(DTYPE_BF16);
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        const struct serve_options options = {.dtype = CASES[i].dtype,
                                              .kv_cache_dtype = CASES[i].cache};
        struct error err = {0};
        enum dtype dtype = DTYPE_F32;
        enum status status = worker_kv_dtype(&dtype, DEVICE_CUDA, &options, &model, &err);
        if (CASES[i].expected == DTYPE_F32) {
            const char *const parts[] = {CASES[i].cache, CASES[i].dtype, "fp8_e4m3", NULL};
            expect_refusal(status, &err, "--kv-cache-dtype", parts);
        } else {
            assert_int_equal(status, STATUS_OK);
            assert_int_equal(dtype, CASES[i].expected);
        }
    }
}

static void a_cpu_computes_in_float32_over_weights_as_they_are(void **state)
{
    (void)state;
    static const enum dtype CHECKPOINTS[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (size_t i = 0; i < ARRAY_LEN(CHECKPOINTS); i++) {
        const struct model_config model = gemma_of(CHECKPOINTS[i]);
        struct serve_options options = {.dtype = "auto"};
        struct error err = {0};
        enum dtype dtype;
        struct weight_store_options weights;
        assert_int_equal(worker_activation_dtype(&dtype, DEVICE_CPU, &options, &model, &err),
                         STATUS_OK);
        assert_int_equal(dtype, DTYPE_F32);
        assert_int_equal(
            worker_weight_options(&weights, DEVICE_CPU, &options, &model, WEIGHTS_PLAN, &err),
            STATUS_OK);
        assert_true(weights.keeps_dtype);
        assert_int_equal(weights.model_dtype, CHECKPOINTS[i]);
        options.dtype = "half"; // weights alone: no activation outgrows anything
        assert_int_equal(
            worker_weight_options(&weights, DEVICE_CPU, &options, &model, WEIGHTS_PLAN, &err),
            STATUS_OK);
        assert_false(weights.keeps_dtype);
        assert_int_equal(weights.model_dtype, DTYPE_F16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_computes_in_the_checkpoints_type_where_it_can),
        cmocka_unit_test(what_a_gpu_cannot_compute_in_is_refused_with_the_reason),
        cmocka_unit_test(a_gpus_cache_is_of_its_activations_or_of_eight_bits),
        cmocka_unit_test(a_cpu_computes_in_float32_over_weights_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
