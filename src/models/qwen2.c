// Qwen2 and Qwen2.5 (arXiv:2407.10671): Llama with biases on queries, keys and values, always, and
// in some configurations a sliding window in the upper layers.
#include "models/decoder.h"

static enum status qwen2_load(struct model *model, const struct weights *w, struct error *err)
{
    const struct decoder_options options = {.has_qkv_bias = true};
    return decoder_load(model, w, &options, err);
}

const struct model_class qwen2_model = {
    .architecture = "Qwen2ForCausalLM",
    .load = qwen2_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};
