// Which device an engine runs on, and what follows from that choice alone.
#pragma once

#include "base/status.h"
#include "config/hf_config.h"
#include "config/options.h"
#include "model_loader/weights.h"
#include "ops/ops.h"

/** VLLM_TARGET_DEVICE, or with "auto" the GPU when this build and this machine have one. */
enum device_kind worker_device_kind(const struct serve_options *options);

/** Opens it to run `model`, with `num_threads` for the host's share of the work. Errors: INVALID
 *  (VLLM_CPU_ISA, --dtype), UNSUPPORTED (--dtype; this machine lacks what was asked for). */
NODISCARD enum status worker_device_open(struct device *dev, enum device_kind kind,
                                         const struct serve_options *options,
                                         const struct model_config *model, int32_t num_threads,
                                         struct error *err);

/** Whether the checkpoint decides its dtype. */
bool worker_dtype_is_auto(const struct serve_options *options);

/**
 * The dtype of activations: float32 on the CPU. On a GPU what --dtype says; of "auto" the
 * checkpoint's, but bfloat16 in place of float32, and in place of float16 for a model whose
 * activations that cannot hold. Errors: INVALID, UNSUPPORTED (--dtype, the architecture).
 */
NODISCARD enum status worker_activation_dtype(enum dtype *out, enum device_kind kind,
                                              const struct serve_options *options,
                                              const struct model_config *model, struct error *err);

/** How a plan and a load open the weights of `model`: as they are on the CPU, in the activations'
 *  dtype on a GPU. Errors: INVALID, UNSUPPORTED (--dtype, --quantization). */
NODISCARD enum status worker_weight_options(struct weight_store_options *out, enum device_kind kind,
                                            const struct serve_options *options,
                                            const struct model_config *model,
                                            enum weights_mode mode, struct error *err);

/** What quantises the weights: as worker_weight_options() says once it has succeeded. NULL:
 *  nothing. */
const struct quantization *worker_quantization(const struct serve_options *options,
                                               const struct model_config *model);

/** The dtype of the KV cache: for "auto" the activations', or e4m3 where the checkpoint asks for
 * it; on a GPU one of the two. Errors: UNSUPPORTED (--kv-cache-dtype), and as
 *  worker_activation_dtype(). */
NODISCARD enum status worker_kv_dtype(enum dtype *out, enum device_kind kind,
                                      const struct serve_options *options,
                                      const struct model_config *model, struct error *err);
