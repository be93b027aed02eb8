// Qwen3 (arXiv:2505.09388): Llama whose query and key heads are RMS-normalised before the rotary
// embedding.
#include "models/decoder.h"

static enum status qwen3_load(struct model *model, const struct weights *w, struct error *err)
{
    const struct decoder_options options = {
        .has_qkv_bias = model->config->attention_bias,
        .has_o_bias = model->config->attention_bias,
        .qk_norm = QK_NORM_HEADS,
    };
    return decoder_load(model, w, &options, err);
}

const struct model_class qwen3_model = {
    .architecture = "Qwen3ForCausalLM",
    .load = qwen3_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};
