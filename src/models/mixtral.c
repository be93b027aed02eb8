// Mixtral (Jiang et al. 2024, arXiv:2401.04088): Mistral with a mixture of experts in place of the
// MLP, whose chosen weights always add up to one.
#include "models/decoder.h"

static enum status mixtral_load(struct model *model, const struct weights *w, struct error *err)
{
    const struct model_config *config = model->config;
    struct moe_options moe = {
        .hidden_size = config->hidden_size,
        .intermediate_size = config->intermediate_size,
        .renormalises = true,
        .hidden_act = config->hidden_act,
        .gate_name = "w1",
        .up_name = "w3",
        .down_name = "w2",
    };
    TRY(hf_config_get_int(config, "num_local_experts", &moe.num_experts, err));
    TRY(hf_config_get_int(config, "num_experts_per_tok", &moe.top_k, err));
    const struct decoder_options options = {
        .has_qkv_bias = config->attention_bias,
        .has_o_bias = config->attention_bias,
        .moe = &moe,
        .moe_name = "block_sparse_moe",
    };
    return decoder_load(model, w, &options, err);
}

const struct model_class mixtral_model = {
    .architecture = "MixtralForCausalLM",
    .load = mixtral_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};
