// Llama (Touvron et al. 2023, arXiv:2302.13971, and its later versions) and Mistral (Jiang et al.
// 2023, arXiv:2310.06825), which adds a sliding window.
#include "models/decoder.h"

static enum status llama_load(struct model *model, const struct weights *w, struct error *err)
{
    const struct decoder_options options = {
        .has_qkv_bias = model->config->attention_bias,
        .has_o_bias = model->config->attention_bias,
        .has_mlp_bias = model->config->mlp_bias,
    };
    return decoder_load(model, w, &options, err);
}

static enum status mistral_load(struct model *model, const struct weights *w, struct error *err)
{
    double beta = 0;
    TRY(hf_config_get_double(model->config, "llama_4_scaling.beta", &beta, err));
    if (beta != 0)
        return error_set_field(err, STATUS_UNSUPPORTED, "llama_4_scaling",
                               "config.json: llama_4_scaling (beta %g) is not supported", beta);
    return llama_load(model, w, err);
}

const struct model_class llama_model = {
    .architecture = "LlamaForCausalLM",
    .load = llama_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};

const struct model_class mistral_model = {
    .architecture = "MistralForCausalLM",
    .load = mistral_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};
