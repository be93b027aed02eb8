// Phi-3 and Phi-4 (arXiv:2404.14219): Llama whose checkpoints join queries, keys and values, and
// gate and up, and whose longer versions stretch the rotary embedding by a list of factors.
#include "models/decoder.h"

static enum status phi3_load(struct model *model, const struct weights *w, struct error *err)
{
    bool has_head_bias = false;
    TRY(hf_config_get_bool(model->config, "lm_head_bias", &has_head_bias, err));
    if (has_head_bias)
        return error_set_field(err, STATUS_UNSUPPORTED, "lm_head_bias",
                               "config.json: lm_head_bias is true: an output matrix with a bias is "
                               "not supported");
    const struct decoder_options options = {
        .has_fused_projections = true,
        .has_qkv_bias = model->config->attention_bias,
        .has_o_bias = model->config->attention_bias,
        .has_mlp_bias = model->config->mlp_bias,
    };
    return decoder_load(model, w, &options, err);
}

const struct model_class phi3_model = {
    .architecture = "Phi3ForCausalLM",
    .load = phi3_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};
