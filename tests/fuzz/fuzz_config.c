// config.json: any bytes give a configuration whose facts hold together, or an error with a reason.
#include <stdint.h>
#include <stdlib.h>

#include "base/log.h"
#include "config/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_set_level(LOG_LEVEL_ERROR); // warnings of odd token ids would drown the fuzzer's output
    struct model_config config;
    struct error err = {0};
    struct str text = {(const char *)data, size};
    if (model_config_parse(&config, text, "config.json", &err) != STATUS_OK) {
        CHECK(err.message[0] != '\0');
        return 0;
    }
    CHECK(config.num_hidden_layers > 0 && config.head_dim > 0 && config.vocab_size > 0);
    CHECK(config.num_attention_heads % config.num_key_value_heads == 0);
    CHECK(model_config_derived_max_len(&config, 0) > 0);
    CHECK(model_config_default_max_len(&config, 4096) > 0);
    int64_t windows = 0;
    for (int32_t i = 0; i < config.num_hidden_layers; i++)
        windows += config.layer_windows[i];
    for (int32_t i = 0; i < config.rope.num_factors; i++)
        CHECK(config.rope.short_factor[i] > 0 && config.rope.long_factor[i] > 0);
    for (int32_t i = 0; i < config.num_eos_token_ids; i++)
        CHECK(config.eos_token_ids[i] >= 0 && config.eos_token_ids[i] < config.vocab_size);
    CHECK(windows >= 0);
    CHECK(!config.has_sliding_rope || config.sliding_rope.theta >= 1);
    int32_t *list = NULL, count = 0;
    if (hf_config_get_ints(&config, "mlp_only_layers", 0, 99, &list, &count, &err) == STATUS_OK) {
        for (int32_t i = 0; i < count; i++)
            CHECK(list[i] >= 0 && list[i] <= 99);
    }
    free(list);
    CHECK(!hf_config_is_null(&config, "no.such.key"));
    const struct quant_scheme *scheme =
        quantization_scheme(config.quantization, "model.layers.0.self_attn.q_proj");
    CHECK(!scheme || (scheme->scale_name && scheme->strategy <= QUANT_BLOCK));
    CHECK(!quantization_scheme(config.quantization, "lm_head"));
    model_config_deinit(&config);
    return 0;
}
