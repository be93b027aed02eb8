// Gemma 2 (arXiv:2408.00118) and the text model of Gemma 3 (arXiv:2503.19786): norms before and
// after each block that multiply by one plus their weight, GeGLU, embeddings scaled by the root of
// their size, and layers that see a window between layers that see everything. Gemma 2 caps
// attention scores and logits; Gemma 3 normalises query and key heads instead, and gives the two
// kinds of layers rotary embeddings of their own.
#include <math.h>

#include "models/decoder.h"

/** A cap from config.json: absent as the family has it, null none. */
static enum status read_cap(const struct model_config *config, const char *key, double *cap,
                            struct error *err)
{
    if (hf_config_is_null(config, key))
        *cap = 0;
    TRY(hf_config_get_double(config, key, cap, err));
    if (!(*cap >= 0 && *cap <= 1e6))
        return error_set_field(err, STATUS_INVALID, key, "config.json: %s is %g: expected 0 to 1e6",
                               key, *cap);
    return STATUS_OK;
}

static enum status gemma_load(struct model *model, const struct weights *w,
                              struct decoder_options *options, struct error *err)
{
    const struct model_config *config = model->config;
    double query_scalar = 256;
    TRY(hf_config_get_double(config, "query_pre_attn_scalar", &query_scalar, err));
    if (!(query_scalar > 0 && query_scalar <= 1e9))
        return error_set_field(err, STATUS_INVALID, "query_pre_attn_scalar",
                               "config.json: query_pre_attn_scalar is %g: expected more than 0, at "
                               "most 1e9",
                               query_scalar);
    TRY(read_cap(config, "attn_logit_softcapping", &options->attention_softcap, err));
    TRY(read_cap(config, "final_logit_softcapping", &options->logits_softcap, err));
    options->norms = NORMS_AROUND;
    options->norm_weight_offset = 1;
    options->has_qkv_bias = options->has_o_bias = config->attention_bias;
    options->embedding_scale = sqrt(config->hidden_size);
    options->attention_scale = 1 / sqrt(query_scalar);
    return decoder_load(model, w, options, err);
}

static enum status gemma2_load(struct model *model, const struct weights *w, struct error *err)
{
    struct decoder_options options = {.attention_softcap = 50, .logits_softcap = 30};
    return gemma_load(model, w, &options, err);
}

static enum status gemma3_load(struct model *model, const struct weights *w, struct error *err)
{
    bool is_bidirectional = false;
    TRY(hf_config_get_bool(model->config, "use_bidirectional_attention", &is_bidirectional, err));
    if (is_bidirectional)
        return error_set_field(err, STATUS_UNSUPPORTED, "use_bidirectional_attention",
                               "config.json: use_bidirectional_attention is true: models that read "
                               "both ways are not supported");
    struct decoder_options options = {.qk_norm = QK_NORM_HEADS};
    return gemma_load(model, w, &options, err);
}

const struct model_class gemma2_model = {
    .architecture = "Gemma2ForCausalLM",
    .outgrows_float16 = true,
    .load = gemma2_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};

const struct model_class gemma3_model = {
    .architecture = "Gemma3ForCausalLM",
    .outgrows_float16 = true,
    .load = gemma3_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};
