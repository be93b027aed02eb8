// "quantization_config" and --quantization: which layers are in eight bits and how, and everything
// that is refused.
#include "cmocka_setup.h"

#include "base/buf.h"
#include "base/memory.h"
#include "config/hf_config.h"

#define MODEL                                                                          \
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":512,\"hidden_size\":64," \
    "\"intermediate_size\":128,\"num_hidden_layers\":3,\"num_attention_heads\":4,"     \
    "\"quantization_config\":{"
#define WEIGHTS(STRATEGY) \
    "\"weights\":{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"" STRATEGY "\"}"
#define TOKENS                                                                          \
    ",\"input_activations\":{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"token\"," \
    "\"dynamic\":true}"
#define LINEAR "\"targets\":[\"Linear\"],"
#define COMPRESSED(GROUPS) "\"quant_method\":\"compressed-tensors\",\"config_groups\":{" GROUPS "}"
#define GROUP(INSIDE) "\"group_0\":{" INSIDE "}"

static struct model_config parse(const char *quantization)
{
    struct buf text = {0};
    buf_printf(&text, "%s%s}}", MODEL, quantization);
    struct model_config config;
    struct error err = {0};
    if (model_config_parse(&config, buf_str(&text), "config.json", &err) != STATUS_OK)
        fail_msg("%s: %s", quantization, err.message);
    buf_deinit(&text);
    return config;
}

static void schemes_follow_the_configuration(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum quant_strategy strategy;
        enum quant_activations activations;
        const char *scale_name;
    } ROWS[] = {
        {"\"quant_method\":\"fp8\"", QUANT_TENSOR, QUANT_ACTIVATIONS_DYNAMIC, "weight_scale"},
        {"\"quant_method\":\"fp8\",\"activation_scheme\":\"static\",\"weight_block_size\":null",
         QUANT_TENSOR, QUANT_ACTIVATIONS_STATIC, "weight_scale"},
        {"\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]", QUANT_BLOCK,
         QUANT_ACTIVATIONS_DYNAMIC, "weight_scale_inv"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS("tensor"))), QUANT_TENSOR, QUANT_ACTIVATIONS_KEPT,
         "weight_scale"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS("channel") TOKENS)) ",\"format\":\"float-quantized\"",
         QUANT_CHANNEL, QUANT_ACTIVATIONS_DYNAMIC, "weight_scale"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS("tensor") ",\"input_activations\":{\"type\":\"float\"}")),
         QUANT_TENSOR, QUANT_ACTIVATIONS_STATIC, "weight_scale"},
        {COMPRESSED(GROUP(
             LINEAR "\"weights\":{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\","
                    "\"block_structure\":[128,128]},\"input_activations\":{\"type\":\"float\","
                    "\"strategy\":\"group\",\"group_size\":128,\"dynamic\":true}")),
         QUANT_BLOCK, QUANT_ACTIVATIONS_DYNAMIC, "weight_scale"},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        struct model_config config = parse(ROWS[i].json);
        const struct quant_scheme *scheme =
            quantization_scheme(config.quantization, "model.layers.0.mlp.up_proj");
        if (!scheme)
            fail_msg("%s: no scheme", ROWS[i].json);
        assert_int_equal(scheme->strategy, ROWS[i].strategy);
        assert_int_equal(scheme->activations, ROWS[i].activations);
        assert_string_equal(scheme->scale_name, ROWS[i].scale_name);
        assert_null(quantization_scheme(config.quantization, "lm_head"));
        assert_false(quantization_is_online(config.quantization));
        model_config_deinit(&config);
    }
    assert_null(quantization_scheme(NULL, "model.layers.0.mlp.up_proj"));
}

static void layers_are_ignored_by_path_expression_and_fused_name(void **state)
{
    (void)state;
    static const char FP8[] =
        "\"quant_method\":\"fp8\",\"modules_to_not_convert\":"
        "[\"model.layers.1.mlp.down_proj\",\"model.layers.2.self_attn.qkv_proj\"]";
    static const char COMPRESSED_TENSORS[] =
        COMPRESSED(GROUP("\"targets\":[\"re:model[.]layers[.][01][.].*\"]," WEIGHTS("channel")
                             TOKENS) ",\"group_1\":{" LINEAR
                       WEIGHTS("tensor") "}") ",\"ignore\":[\"lm_head\",\"re:.*self_attn.*\",\"re:"
                                              "mlp\",\"model.layers.2.mlp.up_proj\"]";
    static const struct {
        const char *json, *module;
        bool is_quantized;
        enum quant_strategy strategy;
    } ROWS[] = {
        {FP8, "model.layers.0.mlp.down_proj", true, QUANT_TENSOR},
        {FP8, "model.layers.1.mlp.down_proj", false, 0},
        {FP8, "model.layers.11.mlp.down_proj", true, QUANT_TENSOR},
        {FP8, "model.layers.2.self_attn.k_proj", false, 0},
        {FP8, "model.layers.2.self_attn.o_proj", true, QUANT_TENSOR},
        {COMPRESSED_TENSORS, "model.layers.0.self_attn.q_proj", false, 0},
        // An expression has to match from the start.
        {COMPRESSED_TENSORS, "model.layers.1.mlp.up_proj", true, QUANT_CHANNEL},
        {COMPRESSED_TENSORS, "model.layers.2.mlp.up_proj", false, 0},
        {COMPRESSED_TENSORS, "model.layers.2.mlp.gate_proj", true, QUANT_TENSOR},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        struct model_config config = parse(ROWS[i].json);
        const struct quant_scheme *scheme =
            quantization_scheme(config.quantization, ROWS[i].module);
        if (!scheme != !ROWS[i].is_quantized)
            fail_msg("%s is %squantized", ROWS[i].module, scheme ? "" : "not ");
        if (scheme)
            assert_int_equal(scheme->strategy, ROWS[i].strategy);
        model_config_deinit(&config);
    }
}

static void an_expression_that_takes_too_long_matches_nothing(void **state)
{
    (void)state;
    struct model_config config =
        parse("\"quant_method\":\"fp8\",\"ignored_layers\":[\"re:(.*.*)*(.*.*)*(.*.*)*x$\"]");
    assert_non_null(quantization_scheme(config.quantization, "model.layers.0.mlp.down_proj"));
    model_config_deinit(&config);
}

static void a_cache_in_eight_bits_may_be_asked_for(void **state)
{
    (void)state;
    struct model_config config = parse(COMPRESSED(GROUP(LINEAR WEIGHTS("tensor"))));
    assert_false(quantization_has_fp8_cache(config.quantization));
    model_config_deinit(&config);
    config = parse(COMPRESSED(
        GROUP(LINEAR WEIGHTS("tensor"))) ",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\","
                                         "\"strategy\":\"tensor\",\"dynamic\":false}");
    assert_true(quantization_has_fp8_cache(config.quantization));
    model_config_deinit(&config);
}

static void what_is_not_supported_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum status status;
        const char *message;
    } ROWS[] = {
        {"\"quant_method\":\"awq\"", STATUS_UNSUPPORTED, "quant_method awq, which is not"},
        {"\"bits\":4", STATUS_UNSUPPORTED, "quant_method none"},
        {"\"quant_method\":7", STATUS_INVALID, "\"quant_method\" is 7 (an integer)"},
        {"\"quant_method\":\"fp8\",\"activation_scheme\":\"none\"", STATUS_UNSUPPORTED,
         "activation_scheme none, which is not supported: expected dynamic or static"},
        {"\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"", STATUS_UNSUPPORTED, "fmt e5m2"},
        {"\"quant_method\":\"fp8\",\"store_dtype\":\"mxfp4\"", STATUS_UNSUPPORTED,
         "\"store_dtype\" \"mxfp4\""},
        {"\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]", STATUS_UNSUPPORTED,
         "\"weight_block_size\" is [64, 128], which is not supported: expected [128, 128]"},
        {"\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"
         "\"activation_scheme\":\"static\"",
         STATUS_UNSUPPORTED, "activation_scheme static"},
        {"\"quant_method\":\"fp8\",\"ignored_layers\":\"lm_head\"", STATUS_INVALID,
         "\"ignored_layers\" is \"lm_head\" (a string), expected a list of module names"},
        {"\"quant_method\":\"fp8\",\"ignored_layers\":[1]", STATUS_INVALID, "1 (an integer)"},
        {"\"quant_method\":\"fp8\",\"ignored_layers\":[\"re:a(\"]", STATUS_INVALID,
         "has the regular expression \"a(\""},
        {"\"quant_method\":\"compressed-tensors\"", STATUS_INVALID, "has no \"config_groups\""},
        {COMPRESSED("\"group_0\":1"), STATUS_INVALID, "\"group_0\" is 1"},
        {COMPRESSED(GROUP(LINEAR "\"a\":1")), STATUS_INVALID, "lacks \"weights\""},
        {COMPRESSED(GROUP(LINEAR "\"weights\":{\"num_bits\":4,\"type\":\"int\"}")),
         STATUS_UNSUPPORTED, "numbers of 4-bit int, which is not supported: expected 8-bit float"},
        {COMPRESSED(GROUP(LINEAR "\"weights\":{\"num_bits\":8,\"type\":\"int\"}")),
         STATUS_UNSUPPORTED, "8-bit int"},
        {COMPRESSED(GROUP(LINEAR "\"weights\":{\"type\":\"float\",\"symmetric\":false}")),
         STATUS_UNSUPPORTED, "symmetric false"},
        {COMPRESSED(GROUP(LINEAR "\"weights\":{\"type\":\"float\",\"dynamic\":true}")),
         STATUS_UNSUPPORTED, "weights with dynamic true"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS("group"))), STATUS_UNSUPPORTED,
         "weights with strategy group"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS("block"))), STATUS_UNSUPPORTED,
         "block without block_structure"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS("tensor") ",\"input_activations\":{\"type\":\"float\","
                                                   "\"dynamic\":true}")),
         STATUS_UNSUPPORTED, "dynamic input_activations with strategy tensor"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS("tensor") ",\"output_activations\":{\"num_bits\":8}")),
         STATUS_UNSUPPORTED, "\"output_activations\" an object"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS("tensor"))) ",\"format\":\"pack-quantized\"",
         STATUS_UNSUPPORTED, "format pack-quantized"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS("tensor"))) ",\"transform_config\":{\"a\":1}",
         STATUS_UNSUPPORTED, "\"transform_config\" an object"},
        {COMPRESSED(GROUP(
             LINEAR WEIGHTS("tensor"))) ",\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}",
         STATUS_UNSUPPORTED, "format sparse-24-bitmask"},
        {COMPRESSED(GROUP(
             LINEAR WEIGHTS("tensor"))) ",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"int\"}",
         STATUS_UNSUPPORTED, "8-bit int"},
        {COMPRESSED(GROUP(LINEAR WEIGHTS(
             "tensor"))) ",\"kv_cache_scheme\":{\"type\":\"float\",\"strategy\":\"attn_head\"}",
         STATUS_UNSUPPORTED, "a kv_cache_scheme by attn_head"},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        struct buf text = {0};
        buf_printf(&text, "%s%s}}", MODEL, ROWS[i].json);
        struct model_config config;
        struct error err = {0};
        enum status status = model_config_parse(&config, buf_str(&text), "config.json", &err);
        if (status != ROWS[i].status || !strstr(err.message, ROWS[i].message))
            fail_msg("%s: %d, %s", ROWS[i].json, (int)status, err.message);
        buf_deinit(&text);
    }
}

static void the_option_agrees_with_the_checkpoint_or_is_refused(void **state)
{
    (void)state;
    struct model_config fp8 = parse("\"quant_method\":\"fp8\"");
    static const struct {
        bool has_checkpoint;
        const char *option;
        enum status status;
        const char *found; // the method, or part of the message; NULL: none
        bool is_online;
    } ROWS[] = {
        {true, NULL, STATUS_OK, "fp8", false},
        {true, "fp8", STATUS_OK, "fp8", false},
        {true, "compressed-tensors", STATUS_INVALID,
         "(fp8) does not match the quantization method specified in the `quantization` argument "
         "(compressed-tensors)",
         false},
        {true, "fp8_per_channel", STATUS_INVALID, "(fp8_per_channel)", false},
        {false, NULL, STATUS_OK, NULL, false},
        {false, "fp8", STATUS_OK, "fp8", true},
        {false, "fp8_per_channel", STATUS_OK, "fp8_per_channel", true},
        {false, "fp8_per_block", STATUS_OK, "fp8_per_block", true},
        {false, "compressed-tensors", STATUS_INVALID, "has no \"quantization_config\"", false},
        {false, "awq", STATUS_UNSUPPORTED, "--quantization awq is not supported: expected fp8",
         false},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        const struct quantization *chosen;
        struct error err = {0};
        assert_int_equal(quantization_choose(&chosen,
                                             ROWS[i].has_checkpoint ? fp8.quantization : NULL,
                                             ROWS[i].option, &err),
                         ROWS[i].status);
        if (ROWS[i].status != STATUS_OK) {
            assert_non_null(strstr(err.message, ROWS[i].found));
        } else if (ROWS[i].found) {
            assert_string_equal(quantization_method(chosen), ROWS[i].found);
            assert_int_equal(quantization_is_online(chosen), ROWS[i].is_online);
            assert_non_null(quantization_scheme(chosen, "model.layers.0.mlp.up_proj"));
            assert_null(quantization_scheme(chosen, "lm_head"));
        } else {
            assert_null(chosen);
        }
    }
    model_config_deinit(&fp8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemes_follow_the_configuration),
        cmocka_unit_test(layers_are_ignored_by_path_expression_and_fused_name),
        cmocka_unit_test(an_expression_that_takes_too_long_matches_nothing),
        cmocka_unit_test(a_cache_in_eight_bits_may_be_asked_for),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(the_option_agrees_with_the_checkpoint_or_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
