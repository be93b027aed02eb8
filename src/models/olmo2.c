// OLMo 2 (arXiv:2501.00656): norms after attention and MLP instead of before, and queries and keys
// that are RMS-normalised over all heads together.
#include "models/decoder.h"

static enum status olmo2_load(struct model *model, const struct weights *w, struct error *err)
{
    const struct decoder_options options = {
        .norms = NORMS_AFTER,
        .has_qkv_bias = model->config->attention_bias,
        .has_o_bias = model->config->attention_bias,
        .qk_norm = QK_NORM_WHOLE,
    };
    return decoder_load(model, w, &options, err);
}

const struct model_class olmo2_model = {
    .architecture = "Olmo2ForCausalLM",
    .load = olmo2_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};
