// Which device an engine runs on: see worker_device.h.
#include "worker/worker_device.h"

#include <string.h>

#include "base/str.h"
#include "models/model.h"

enum device_kind worker_device_kind(const struct serve_options *options)
{
    struct str name = str_from(options->target_device ? options->target_device : "auto");
    if (str_eq_c(name, "auto"))
        return cuda_is_available() ? DEVICE_CUDA : DEVICE_CPU;
    return str_eq_c(name, "cuda") ? DEVICE_CUDA : DEVICE_CPU;
}

static bool is_float(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

bool worker_dtype_is_auto(const struct serve_options *options)
{
    return !options->dtype || strcmp(options->dtype, "auto") == 0;
}

/** --dtype; of "auto", the checkpoint's. */
static enum status wanted_dtype(enum dtype *out, const struct serve_options *options,
                                const struct model_config *model, struct error *err)
{
    *out = model->dtype;
    if (!worker_dtype_is_auto(options) && dtype_parse(str_from(options->dtype), out) != STATUS_OK)
        return error_set_field(err, STATUS_INVALID, "--dtype", "Unknown dtype: '%s'",
                               options->dtype);
    if (!is_float(*out))
        return error_set_field(err, STATUS_UNSUPPORTED, "--dtype",
                               "--dtype %s is not supported: expected auto, float32, float16 or "
                               "bfloat16",
                               dtype_name(*out));
    return STATUS_OK;
}

enum status worker_activation_dtype(enum dtype *out, enum device_kind kind,
                                    const struct serve_options *options,
                                    const struct model_config *model, struct error *err)
{
    if (kind == DEVICE_CPU) {
        *out = DTYPE_F32;
        return STATUS_OK;
    }
    const struct model_class *class;
    TRY(model_class_find(&class, model->architecture, err));
    TRY(wanted_dtype(out, options, model, err));
    bool is_auto = worker_dtype_is_auto(options);
    if (is_auto && (*out == DTYPE_F32 || class->outgrows_float16))
        *out = DTYPE_BF16;
    if (*out == DTYPE_F32)
        return error_set_field(err, STATUS_UNSUPPORTED, "--dtype",
                               "--dtype float32 is not supported on a GPU: expected auto, float16 "
                               "or bfloat16");
    if (*out == DTYPE_F16 && class->outgrows_float16)
        return error_set_field(err, STATUS_UNSUPPORTED, "--dtype",
                               "The model type '%s' does not support float16. Reason: its "
                               "activations come to more than float16 can hold. Use --dtype "
                               "bfloat16",
                               model->model_type);
    return STATUS_OK;
}

enum status worker_device_open(struct device *dev, enum device_kind kind,
                               const struct serve_options *options,
                               const struct model_config *model, int32_t num_threads,
                               struct error *err)
{
    *dev = (struct device){0};
    if (kind == DEVICE_CUDA) {
        enum dtype dtype;
        TRY(worker_activation_dtype(&dtype, kind, options, model, err));
        TRY(cuda_device_init(dev, num_threads, err));
        if (dtype == DTYPE_F16) // it is one of bfloat16 unless told
            dev->activation_dtype = DTYPE_F16;
        dev->is_batch_invariant = options->batch_invariant;
        return STATUS_OK;
    }
    enum cpu_isa isa = CPU_ISA_AUTO;
    if (options->cpu_isa && cpu_isa_parse(str_from(options->cpu_isa), &isa) != STATUS_OK)
        return error_set_field(err, STATUS_INVALID, "VLLM_CPU_ISA",
                               "VLLM_CPU_ISA is \"%s\": no such instruction set", options->cpu_isa);
    return cpu_device_init(dev, isa, num_threads, err);
}

enum status worker_weight_options(struct weight_store_options *out, enum device_kind kind,
                                  const struct serve_options *options,
                                  const struct model_config *model, enum weights_mode mode,
                                  struct error *err)
{
    *out = (struct weight_store_options){
        .mode = mode,
        .dir = model->path,
        .is_dummy = options->load_format == LOAD_FORMAT_DUMMY,
    };
    TRY(quantization_choose(&out->quantization, model->quantization, options->quantization, err));
    out->keeps_dtype = kind == DEVICE_CPU && worker_dtype_is_auto(options);
    if (kind == DEVICE_CPU)
        return wanted_dtype(&out->model_dtype, options, model, err);
    return worker_activation_dtype(&out->model_dtype, kind, options, model, err);
}

const struct quantization *worker_quantization(const struct serve_options *options,
                                               const struct model_config *model)
{
    const struct quantization *quantization;
    enum status status =
        quantization_choose(&quantization, model->quantization, options->quantization, NULL);
    return status == STATUS_OK ? quantization : NULL;
}

enum status worker_kv_dtype(enum dtype *out, enum device_kind kind,
                            const struct serve_options *options, const struct model_config *model,
                            struct error *err)
{
    struct str name = str_from(options->kv_cache_dtype ? options->kv_cache_dtype : "auto");
    enum dtype activations;
    TRY(worker_activation_dtype(&activations, kind, options, model, err));
    *out = activations;
    if (str_eq_c(name, "auto")) {
        if (quantization_has_fp8_cache(model->quantization))
            *out = DTYPE_F8_E4M3;
        return STATUS_OK;
    }
    bool is_known = true;
    if (str_eq_c(name, "fp8") || str_eq_c(name, "fp8_e4m3"))
        *out = DTYPE_F8_E4M3;
    else
        is_known = dtype_parse(name, out) == STATUS_OK;
    if (kind == DEVICE_CPU && !(is_known && (is_float(*out) || *out == DTYPE_F8_E4M3)))
        return error_set_field(err, STATUS_UNSUPPORTED, "--kv-cache-dtype",
                               "--kv-cache-dtype " STR_FORMAT
                               " is not supported: expected auto, float32, float16, bfloat16, fp8 "
                               "or fp8_e4m3",
                               STR_ARG(name));
    if (kind == DEVICE_CUDA && !(is_known && (*out == activations || *out == DTYPE_F8_E4M3)))
        return error_set_field(err, STATUS_UNSUPPORTED, "--kv-cache-dtype",
                               "--kv-cache-dtype " STR_FORMAT
                               " is not supported on a GPU that computes in %s: expected auto, %s, "
                               "fp8 or fp8_e4m3",
                               STR_ARG(name), dtype_name(activations), dtype_name(activations));
    return STATUS_OK;
}
