// Which device an engine runs on: see worker_device.h.
#include "worker/worker_device.h"

#include "base/str.h"

enum device_kind worker_device_kind(const struct serve_options *options)
{
    struct str name = str_from(options->target_device ? options->target_device : "auto");
    if (str_eq_c(name, "auto"))
        return cuda_is_available() ? DEVICE_CUDA : DEVICE_CPU;
    return str_eq_c(name, "cuda") ? DEVICE_CUDA : DEVICE_CPU;
}

enum status worker_device_open(struct device *dev, enum device_kind kind,
                               const struct serve_options *options, int32_t num_threads,
                               struct error *err)
{
    *dev = (struct device){0};
    if (kind == DEVICE_CUDA) {
        TRY(cuda_device_init(dev, num_threads, err));
        dev->is_batch_invariant = options->batch_invariant;
        return STATUS_OK;
    }
    enum cpu_isa isa = CPU_ISA_AUTO;
    if (options->cpu_isa && cpu_isa_parse(str_from(options->cpu_isa), &isa) != STATUS_OK)
        return error_set_field(err, STATUS_INVALID, "VLLM_CPU_ISA",
                               "VLLM_CPU_ISA is \"%s\": no such instruction set", options->cpu_isa);
    return cpu_device_init(dev, isa, num_threads, err);
}

enum dtype worker_activation_dtype(enum device_kind kind)
{
    return kind == DEVICE_CUDA ? DTYPE_BF16 : DTYPE_F32;
}

static bool is_float(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
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
        .model_dtype = model->dtype,
    };
    TRY(quantization_choose(&out->quantization, model->quantization, options->quantization, err));
    struct str dtype = str_from(options->dtype ? options->dtype : "auto");
    bool is_auto = str_eq_c(dtype, "auto");
    if (!is_auto && dtype_parse(dtype, &out->model_dtype) != STATUS_OK)
        return error_set_field(err, STATUS_INVALID, "--dtype", "Unknown dtype: '" STR_FORMAT "'",
                               STR_ARG(dtype));
    if (!is_float(out->model_dtype))
        return error_set_field(err, STATUS_UNSUPPORTED, "--dtype",
                               "--dtype %s is not supported: expected auto, float32, float16 or "
                               "bfloat16",
                               dtype_name(out->model_dtype));
    out->keeps_dtype = is_auto;
    if (kind == DEVICE_CPU)
        return STATUS_OK;
    if (out->quantization)
        return error_set_field(err, STATUS_UNSUPPORTED, "quantization",
                               "weights quantized by %.64s are not supported on a GPU: use "
                               "VLLM_TARGET_DEVICE=cpu, or the original checkpoint",
                               quantization_method(out->quantization));
    if (!is_auto && out->model_dtype != DTYPE_BF16)
        return error_set_field(err, STATUS_UNSUPPORTED, "--dtype",
                               "--dtype %s is not supported on a GPU: expected auto or bfloat16",
                               dtype_name(out->model_dtype));
    out->keeps_dtype = false;
    out->model_dtype = DTYPE_BF16;
    return STATUS_OK;
}

enum status worker_kv_dtype(enum dtype *out, enum device_kind kind,
                            const struct serve_options *options, const struct model_config *model,
                            struct error *err)
{
    struct str name = str_from(options->kv_cache_dtype ? options->kv_cache_dtype : "auto");
    *out = worker_activation_dtype(kind);
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
    if (kind == DEVICE_CUDA && !(is_known && (*out == DTYPE_BF16 || *out == DTYPE_F8_E4M3)))
        return error_set_field(err, STATUS_UNSUPPORTED, "--kv-cache-dtype",
                               "--kv-cache-dtype " STR_FORMAT
                               " is not supported on a GPU: expected auto, bfloat16, fp8 or "
                               "fp8_e4m3",
                               STR_ARG(name));
    return STATUS_OK;
}
