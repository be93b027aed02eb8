// Qwen3-MoE (arXiv:2505.09388): Qwen3 with a mixture of experts in place of the MLP, in every layer
// or in some.
#include <stdlib.h>

#include "base/memory.h"
#include "models/decoder.h"

enum { MAX_LAYERS = 1 << 14 };

/** Layers with experts: every `decoder_sparse_step`-th, but those in `mlp_only_layers`, where ids
 *  beyond the last layer say nothing. */
static enum status read_sparse_layers(const struct model_config *config, bool *is_sparse,
                                      struct error *err)
{
    int32_t step = 1, num_dense = 0, *dense = NULL;
    TRY(hf_config_get_int(config, "decoder_sparse_step", &step, err));
    if (step < 1)
        return error_set_field(err, STATUS_INVALID, "decoder_sparse_step",
                               "config.json: decoder_sparse_step is %d: expected at least 1", step);
    TRY(hf_config_get_ints(config, "mlp_only_layers", 0, MAX_LAYERS, &dense, &num_dense, err));
    for (int32_t i = 0; i < config->num_hidden_layers; i++)
        is_sparse[i] = (i + 1) % step == 0;
    for (int32_t i = 0; i < num_dense; i++) {
        if (dense[i] < config->num_hidden_layers)
            is_sparse[dense[i]] = false;
    }
    free(dense);
    return STATUS_OK;
}

static enum status qwen3_moe_load(struct model *model, const struct weights *w, struct error *err)
{
    const struct model_config *config = model->config;
    struct moe_options moe = {
        .hidden_size = config->hidden_size,
        .hidden_act = config->hidden_act,
        .gate_name = "gate_proj",
        .up_name = "up_proj",
        .down_name = "down_proj",
    };
    TRY(hf_config_get_int(config, "num_experts", &moe.num_experts, err));
    TRY(hf_config_get_int(config, "num_experts_per_tok", &moe.top_k, err));
    TRY(hf_config_get_int(config, "moe_intermediate_size", &moe.intermediate_size, err));
    TRY(hf_config_get_bool(config, "norm_topk_prob", &moe.renormalises, err));
    bool *is_sparse = arena_array(&w->store->arena, bool, (size_t)config->num_hidden_layers);
    TRY(read_sparse_layers(config, is_sparse, err));
    const struct decoder_options options = {
        .has_qkv_bias = config->attention_bias,
        .has_o_bias = config->attention_bias,
        .qk_norm = QK_NORM_HEADS,
        .moe = &moe,
        .is_sparse = is_sparse,
        .moe_name = "mlp",
    };
    return decoder_load(model, w, &options, err);
}

const struct model_class qwen3_moe_model = {
    .architecture = "Qwen3MoeForCausalLM",
    .load = qwen3_moe_load,
    .scratch_bytes = decoder_scratch_bytes,
    .embed = decoder_embed,
    .forward = decoder_forward,
    .compute_logits = decoder_compute_logits,
};
