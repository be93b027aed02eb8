// config.json and generation_config.json: the fixture models, old and new spellings, and everything
// that can be wrong with them.
#include "cmocka_setup.h"
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/memory.h"
#include "config/hf_config.h"

#define SIZES                                                                                  \
    "\"vocab_size\":512,\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":3," \
    "\"num_attention_heads\":4"
#define LLAMA "\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"," SIZES
#define GEMMA3 "\"architectures\":[\"Gemma3ForCausalLM\"],\"model_type\":\"gemma3_text\"," SIZES
#define QWEN "\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\"," SIZES

static struct model_config parse(const char *json)
{
    struct model_config config;
    struct error err = {0};
    if (model_config_parse(&config, str_from(json), "config.json", &err) != STATUS_OK)
        fail_msg("%s: %s", json, err.message);
    return config;
}

static void every_fixture_model_loads_with_its_facts(void **state)
{
    (void)state;
    static const struct {
        const char *name, *architecture;
        int32_t num_kv_heads, head_dim, windows[3];
        enum rope_type rope;
        double theta, eps;
        bool attention_bias, mlp_bias, tied;
        int32_t derived_len;
    } rows[] = {
        {"llama",
         "LlamaForCausalLM",
         2,
         16,
         {0, 0, 0},
         ROPE_LLAMA3,
         5e5,
         1e-5,
         false,
         false,
         false,
         2048},
        {"llama_bias_tied",
         "LlamaForCausalLM",
         2,
         32,
         {0, 0, 0},
         ROPE_DEFAULT,
         1e4,
         1e-5,
         true,
         true,
         true,
         2048},
        {"mistral",
         "MistralForCausalLM",
         2,
         16,
         {32, 32, 32},
         ROPE_DEFAULT,
         1e4,
         1e-5,
         false,
         false,
         false,
         2048},
        {"qwen2",
         "Qwen2ForCausalLM",
         2,
         16,
         {0, 0, 0},
         ROPE_DEFAULT,
         1e6,
         1e-6,
         false,
         false,
         true,
         2048},
        {"qwen2_sliding",
         "Qwen2ForCausalLM",
         2,
         16,
         {0, 32, 32},
         ROPE_DEFAULT,
         1e6,
         1e-6,
         false,
         false,
         false,
         2048},
        {"qwen3",
         "Qwen3ForCausalLM",
         2,
         32,
         {0, 0, 0},
         ROPE_DEFAULT,
         1e6,
         1e-6,
         false,
         false,
         false,
         2048},
        {"qwen3_tied",
         "Qwen3ForCausalLM",
         1,
         16,
         {0, 0, 0},
         ROPE_YARN,
         1e6,
         1e-6,
         false,
         false,
         true,
         128},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char dir[512];
        snprintf(dir, sizeof(dir), "%s/models/%s", FIXTURES_DIR, rows[i].name);
        struct model_config config;
        struct error err = {0};
        if (model_config_load(&config, dir, "auto", NULL, &err) != STATUS_OK)
            fail_msg("%s: %s", rows[i].name, err.message);
        assert_string_equal(config.path, dir);
        assert_string_equal(config.architecture, rows[i].architecture);
        assert_int_equal(config.dtype, DTYPE_BF16);
        assert_int_equal(config.vocab_size, 512);
        assert_int_equal(config.hidden_size, 64);
        assert_int_equal(config.intermediate_size, 128);
        assert_int_equal(config.num_hidden_layers, 3);
        assert_int_equal(config.num_attention_heads, 4);
        assert_int_equal(config.num_key_value_heads, rows[i].num_kv_heads);
        assert_int_equal(config.head_dim, rows[i].head_dim);
        assert_memory_equal(config.layer_windows, rows[i].windows, sizeof(rows[i].windows));
        assert_int_equal(config.rope.type, rows[i].rope);
        assert_true(config.rope.theta == rows[i].theta);
        assert_true(config.rms_norm_eps == rows[i].eps);
        assert_int_equal(config.attention_bias, rows[i].attention_bias);
        assert_int_equal(config.mlp_bias, rows[i].mlp_bias);
        assert_int_equal(config.tie_word_embeddings, rows[i].tied);
        assert_string_equal(config.hidden_act, "silu");
        assert_int_equal(config.bos_token_id, 1);
        assert_int_equal(config.num_eos_token_ids, 1);
        assert_int_equal(config.eos_token_ids[0], 2);
        assert_int_equal(model_config_derived_max_len(&config, 0), rows[i].derived_len);
        model_config_deinit(&config);
    }
}

static void the_demo_model_brings_sampling_defaults_and_two_ends(void **state)
{
    (void)state;
    struct model_config config;
    struct error err = {0};
    assert_int_equal(model_config_load(&config, MODELS_DIR "/demo", NULL, NULL, &err), STATUS_OK);
    assert_int_equal(config.bos_token_id, -1);
    assert_int_equal(config.num_eos_token_ids, 2);
    assert_int_equal(config.eos_token_ids[0], 4091);
    assert_int_equal(config.eos_token_ids[1], 4089);
    assert_true(config.generation.has_temperature && config.generation.temperature == 0.7);
    assert_true(config.generation.has_top_p && config.generation.top_p == 0.9);
    assert_false(config.generation.has_top_k);
    model_config_deinit(&config);
}

static void rope_is_read_from_every_spelling(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum rope_type type;
        double theta, factor;
        int32_t original;
        double partial, attention_factor;
    } rows[] = {
        {"{" LLAMA "}", ROPE_DEFAULT, 1e4, 1, 0, 1, -1},
        {"{" QWEN "}", ROPE_DEFAULT, 1e6, 1, 0, 1, -1},
        {"{" LLAMA ",\"rope_theta\":5e5}", ROPE_DEFAULT, 5e5, 1, 0, 1, -1},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", ROPE_LINEAR, 1e4, 4, 0,
         1, -1},
        {"{" LLAMA ",\"max_position_embeddings\":100,\"rope_scaling\":{\"type\":\"dynamic\","
         "\"factor\":2.5}}",
         ROPE_DYNAMIC, 1e4, 2.5, 100, 1, -1},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[1,2,3]}}",
         ROPE_DEFAULT, 1e4, 1, 0, 1, -1},
        {"{" LLAMA ",\"rope_parameters\":{\"rope_theta\":2e6}}", ROPE_DEFAULT, 2e6, 1, 0, 1, -1},
        {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":2e6,\"factor\":4,"
         "\"original_max_position_embeddings\":64,\"attention_factor\":1.5}}",
         ROPE_YARN, 2e6, 4, 64, 1, 1.5},
        {"{" LLAMA ",\"max_position_embeddings\":77,\"rope_scaling\":{\"rope_type\":\"yarn\","
         "\"factor\":4}}",
         ROPE_YARN, 1e4, 4, 77, 1, -1},
        {"{" LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":3e6},"
         "\"sliding_attention\":{\"rope_theta\":3e6}}}",
         ROPE_DEFAULT, 3e6, 1, 0, 1, -1},
        {"{" LLAMA ",\"partial_rotary_factor\":0.5}", ROPE_DEFAULT, 1e4, 1, 0, 0.5, -1},
        {"{" LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", ROPE_DEFAULT, 1e4, 1,
         0, 0.25, -1},
        {"{" LLAMA ",\"max_position_embeddings\":400,\"original_max_position_embeddings\":100,"
         "\"head_dim\":4,\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1.5],"
         "\"long_factor\":[2,3]}}",
         ROPE_LONGROPE, 1e4, 4, 100, 1, -1},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct model_config config = parse(rows[i].json);
        const struct rope_config *rope = &config.rope;
        if (rope->type != rows[i].type || rope->theta != rows[i].theta ||
            rope->factor != rows[i].factor ||
            rope->original_max_position_embeddings != rows[i].original ||
            rope->partial_rotary_factor != rows[i].partial ||
            rope->attention_factor != rows[i].attention_factor)
            fail_msg("%s: type %d theta %g factor %g original %d partial %g attention %g",
                     rows[i].json, rope->type, rope->theta, rope->factor,
                     rope->original_max_position_embeddings, rope->partial_rotary_factor,
                     rope->attention_factor);
        model_config_deinit(&config);
    }
}

static void sliding_layers_may_have_a_rope_of_their_own(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        bool has_sliding;
        enum rope_type full, sliding;
        double full_theta, sliding_theta;
    } rows[] = {
        {"{" GEMMA3 "}", true, ROPE_DEFAULT, ROPE_DEFAULT, 1e6, 1e4},
        {"{" GEMMA3 ",\"rope_theta\":2e6,\"rope_local_base_freq\":3e4,"
         "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}}",
         true, ROPE_LINEAR, ROPE_DEFAULT, 2e6, 3e4},
        {"{" GEMMA3 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
         "\"factor\":8,\"rope_theta\":5e5},\"sliding_attention\":{\"rope_type\":\"default\","
         "\"rope_theta\":7e3}}}",
         true, ROPE_LINEAR, ROPE_DEFAULT, 5e5, 7e3},
        {"{" LLAMA ",\"rope_theta\":5e5}", false, ROPE_DEFAULT, ROPE_DEFAULT, 5e5, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct model_config config = parse(rows[i].json);
        assert_int_equal(config.has_sliding_rope, rows[i].has_sliding);
        assert_int_equal(config.rope.type, rows[i].full);
        assert_true(config.rope.theta == rows[i].full_theta);
        if (rows[i].has_sliding) {
            assert_int_equal(config.sliding_rope.type, rows[i].sliding);
            assert_true(config.sliding_rope.theta == rows[i].sliding_theta);
            assert_true(config.sliding_rope.factor == 1);
        }
        model_config_deinit(&config);
    }
}

static void lists_and_nulls_are_told_from_absent_keys(void **state)
{
    (void)state;
    struct model_config config = parse("{" LLAMA ",\"list\":[0,2],\"cap\":null,\"odd\":[1,\"2\"]}");
    struct error err = {0};
    int32_t *list = NULL, count = 0;
    assert_int_equal(hf_config_get_ints(&config, "list", 0, 2, &list, &count, &err), STATUS_OK);
    assert_int_equal(count, 2);
    assert_true(list[0] == 0 && list[1] == 2);
    free(list);
    list = NULL;
    assert_int_equal(hf_config_get_ints(&config, "none", 0, 2, &list, &count, &err), STATUS_OK);
    assert_null(list);
    assert_int_equal(hf_config_get_ints(&config, "list", 0, 1, &list, &count, &err),
                     STATUS_INVALID);
    assert_non_null(strstr(err.message, "a list of integers from 0 to 1"));
    assert_int_equal(hf_config_get_ints(&config, "odd", 0, 9, &list, &count, &err), STATUS_INVALID);
    assert_true(hf_config_is_null(&config, "cap"));
    assert_false(hf_config_is_null(&config, "list"));
    assert_false(hf_config_is_null(&config, "none"));
    model_config_deinit(&config);
}

static void longrope_keeps_its_factors(void **state)
{
    (void)state;
    struct model_config config =
        parse("{" LLAMA ",\"max_position_embeddings\":400,\"head_dim\":4,"
              "\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1.5],"
              "\"long_factor\":[2,3],\"original_max_position_embeddings\":100}}");
    assert_int_equal(config.rope.num_factors, 2);
    assert_true(config.rope.short_factor[1] == 1.5 && config.rope.long_factor[1] == 3);
    assert_int_equal(model_config_derived_max_len(&config, 0), 400);
    assert_int_equal(model_config_default_max_len(&config, 0), 100);
    model_config_deinit(&config);
}

static void windows_follow_layer_types_or_the_family(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int32_t windows[3];
    } rows[] = {
        {"{" LLAMA ",\"sliding_window\":null}", {0, 0, 0}},
        {"{" LLAMA ",\"sliding_window\":8}", {8, 8, 8}},
        {"{" LLAMA ",\"sliding_window\":8,\"use_sliding_window\":false}", {0, 0, 0}},
        {"{" QWEN ",\"sliding_window\":8}", {0, 0, 0}},
        {"{" QWEN ",\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":0}",
         {8, 8, 8}},
        {"{" QWEN ",\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":2}",
         {0, 0, 8}},
        {"{" QWEN ",\"sliding_window\":8,\"use_sliding_window\":true}", {0, 0, 0}},
        {"{" LLAMA ",\"sliding_window\":8,\"layer_types\":[\"sliding_attention\","
         "\"full_attention\",\"sliding_attention\"]}",
         {8, 0, 8}},
        {"{\"architectures\":[\"Gemma2ForCausalLM\"],\"model_type\":\"gemma2\"," SIZES
         ",\"sliding_window\":8}",
         {8, 0, 8}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct model_config config = parse(rows[i].json);
        if (memcmp(config.layer_windows, rows[i].windows, sizeof(rows[i].windows)) != 0)
            fail_msg("%s: %d %d %d", rows[i].json, config.layer_windows[0], config.layer_windows[1],
                     config.layer_windows[2]);
        model_config_deinit(&config);
    }
}

static void the_derived_length_follows_keys_tokenizer_and_rope(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int64_t tokenizer_len;
        int32_t len;
    } rows[] = {
        {"{" LLAMA "}", 0, 2048},
        {"{" LLAMA "}", 300, 300},
        {"{" LLAMA ",\"max_position_embeddings\":4096}", 0, 4096},
        {"{" LLAMA ",\"max_position_embeddings\":4096}", 1000, 1000},
        {"{" LLAMA ",\"max_position_embeddings\":4096}", 1000000, 4096},
        {"{" LLAMA ",\"max_position_embeddings\":4096,\"seq_length\":512}", 0, 512},
        {"{" LLAMA ",\"model_max_length\":700}", 0, 700},
        {"{" LLAMA ",\"max_position_embeddings\":100,\"rope_scaling\":{\"type\":\"linear\","
         "\"factor\":2.5}}",
         0, 250},
        {"{" LLAMA ",\"max_position_embeddings\":100,\"rope_scaling\":{\"type\":\"yarn\","
         "\"factor\":4,\"original_max_position_embeddings\":50}}",
         0, 200},
        {"{" LLAMA ",\"max_position_embeddings\":100,\"rope_scaling\":{\"type\":\"llama3\","
         "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}}",
         0, 100},
        {"{" LLAMA ",\"max_position_embeddings\":2000000000,\"rope_scaling\":{\"type\":\"linear\","
         "\"factor\":100}}",
         0, INT32_MAX},
        {"{" LLAMA ",\"max_position_embeddings\":1,\"rope_scaling\":{\"type\":\"linear\","
         "\"factor\":0.01}}",
         0, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct model_config config = parse(rows[i].json);
        int32_t len = model_config_derived_max_len(&config, rows[i].tokenizer_len);
        if (len != rows[i].len)
            fail_msg("%s: %d, expected %d", rows[i].json, len, rows[i].len);
        model_config_deinit(&config);
    }
}

static void a_nested_text_config_is_the_model(void **state)
{
    (void)state;
    struct model_config config =
        parse("{\"architectures\":[\"XForConditionalGeneration\"],\"model_type\":\"x\","
              "\"hidden_size\":5,\"dtype\":\"float16\",\"tie_word_embeddings\":true,"
              "\"text_config\":{" SIZES ",\"extra\":{\"depth\":3,\"rate\":0.5,\"on\":true}}}");
    assert_int_equal(config.hidden_size, 64);
    assert_int_equal(config.dtype, DTYPE_F16);
    assert_true(config.tie_word_embeddings);
    struct error err = {0};
    int32_t depth = 0, absent = -7;
    double rate = 0;
    bool on = false;
    assert_int_equal(hf_config_get_int(&config, "extra.depth", &depth, &err), STATUS_OK);
    assert_int_equal(hf_config_get_double(&config, "extra.rate", &rate, &err), STATUS_OK);
    assert_int_equal(hf_config_get_bool(&config, "extra.on", &on, &err), STATUS_OK);
    assert_int_equal(hf_config_get_int(&config, "extra.none", &absent, &err), STATUS_OK);
    assert_int_equal(hf_config_get_int(&config, "none.none", &absent, &err), STATUS_OK);
    assert_true(depth == 3 && rate == 0.5 && on && absent == -7);
    assert_int_equal(hf_config_get_int(&config, "extra.rate", &depth, &err), STATUS_INVALID);
    assert_int_equal(hf_config_get_bool(&config, "extra.depth", &on, &err), STATUS_INVALID);
    assert_int_equal(hf_config_get_int(&config, "extra.depth.x", &depth, &err), STATUS_INVALID);
    model_config_deinit(&config);
}

static void defaults_stand_in_for_absent_and_null_keys(void **state)
{
    (void)state;
    struct model_config config = parse("{" LLAMA ",\"head_dim\":null,\"rope_scaling\":null,"
                                       "\"torch_dtype\":null,\"eos_token_id\":null}");
    assert_int_equal(config.num_key_value_heads, 4);
    assert_int_equal(config.head_dim, 16);
    assert_int_equal(config.dtype, DTYPE_F32);
    assert_int_equal(config.bos_token_id, -1);
    assert_int_equal(config.num_eos_token_ids, 0);
    assert_int_equal(config.max_position_embeddings, 0);
    assert_false(config.tie_word_embeddings);
    model_config_deinit(&config);
}

static void malformed_configurations_are_refused_by_key(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum status status;
        const char *message;
    } rows[] = {
        {"", STATUS_INVALID, "config.json: not valid JSON"},
        {"[]", STATUS_INVALID, "config.json: found a list, expected an object"},
        {"{\"a\":1", STATUS_INVALID, "not valid JSON: line 1"},
        {"{\"a\":NaN}", STATUS_INVALID, "not valid JSON"},
        {"{}", STATUS_INVALID, "\"architectures\" is missing"},
        {"{\"architectures\":[]}", STATUS_INVALID, "\"architectures\" is a list"},
        {"{\"architectures\":[1]}", STATUS_INVALID, "\"architectures\" is a list"},
        {"{\"architectures\":\"x\"}", STATUS_INVALID, "\"architectures\" is \"x\" (a string)"},
        {"{\"architectures\":[\"X\"]}", STATUS_INVALID, "\"vocab_size\" is missing, expected an"},
        {"{\"architectures\":[\"GPT2LMHeadModel\"],\"n_embd\":768,\"n_head\":12}",
         STATUS_UNSUPPORTED, "GPT2LMHeadModel gives its sizes as \"n_embd\""},
        {"{" LLAMA ",\"is_encoder_decoder\":true}", STATUS_UNSUPPORTED, "encoder-decoder"},
        {"{" LLAMA ",\"quantization_config\":{\"quant_method\":\"awq\"}}", STATUS_UNSUPPORTED,
         "method awq"},
        {"{" LLAMA ",\"quantization_config\":7}", STATUS_INVALID,
         "\"quantization_config\" is 7 (an integer), expected an object"},
        {"{" LLAMA ",\"text_config\":[]}", STATUS_INVALID, "\"text_config\" is a list"},
        {"{" LLAMA ",\"torch_dtype\":\"int3\"}", STATUS_INVALID, "\"torch_dtype\" is \"int3\""},
        {"{" LLAMA ",\"dtype\":16}", STATUS_INVALID, "\"dtype\" is 16 (an integer)"},
        {"{" LLAMA ",\"num_key_value_heads\":3}", STATUS_INVALID, "expected a divisor"},
        {"{" LLAMA ",\"num_key_value_heads\":0}", STATUS_INVALID, "\"num_key_value_heads\" is 0"},
        {"{" LLAMA ",\"head_dim\":-1}", STATUS_INVALID, "\"head_dim\" is -1"},
        {"{" LLAMA ",\"head_dim\":7}", STATUS_INVALID, "7 of 7 head dimensions"},
        {"{" LLAMA ",\"head_dim\":\"16\"}", STATUS_INVALID,
         "\"head_dim\" is \"16\" (a string), expected an integer from 1 to 8192"},
        {"{" LLAMA ",\"head_dim\":1.5}", STATUS_INVALID, "\"head_dim\" is 1.5 (a number)"},
        {"{" LLAMA ",\"max_position_embeddings\":99999999999}", STATUS_INVALID,
         "\"max_position_embeddings\" is 99999999999"},
        {"{" LLAMA ",\"rms_norm_eps\":-1}", STATUS_INVALID, "\"rms_norm_eps\" is -1"},
        {"{" LLAMA ",\"rms_norm_eps\":true}", STATUS_INVALID, "\"rms_norm_eps\" is true"},
        {"{" LLAMA ",\"attention_bias\":1}", STATUS_INVALID, "\"attention_bias\" is 1"},
        {"{" LLAMA ",\"hidden_act\":[1]}", STATUS_INVALID, "\"hidden_act\" is a list"},
        {"{" LLAMA ",\"sliding_window\":0}", STATUS_INVALID, "\"sliding_window\" is 0"},
        {"{" LLAMA ",\"layer_types\":[\"full_attention\"]}", STATUS_INVALID,
         "expected a list of 3 layer types"},
        {"{" LLAMA ",\"layer_types\":[\"full_attention\",\"x\",\"y\"]}", STATUS_UNSUPPORTED,
         "layer type \"x\""},
        {"{" LLAMA ",\"layer_types\":[1,2,3]}", STATUS_INVALID, "\"layer_types\" is 1"},
        {"{" LLAMA ",\"layer_types\":[\"full_attention\",\"full_attention\","
         "\"sliding_attention\"]}",
         STATUS_INVALID, "\"sliding_window\" is not given"},
        {"{" LLAMA ",\"rope_theta\":0}", STATUS_INVALID, "\"rope_theta\" is 0"},
        {"{" LLAMA ",\"rope_scaling\":{\"factor\":2}}", STATUS_INVALID, "\"type\" is missing"},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"weird\"}}", STATUS_UNSUPPORTED,
         "rope type \"weird\""},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", STATUS_INVALID,
         "\"factor\" is missing"},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", STATUS_INVALID,
         "\"factor\" is 0"},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", STATUS_INVALID,
         "\"original_max_position_embeddings\""},
        {"{" LLAMA ",\"max_position_embeddings\":9,\"rope_scaling\":{\"type\":\"llama3\","
         "\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}}",
         STATUS_INVALID, "\"high_freq_factor\" is 4, expected more than"},
        {"{" LLAMA ",\"max_position_embeddings\":9,\"rope_scaling\":{\"type\":\"longrope\","
         "\"short_factor\":[1],\"long_factor\":[1]}}",
         STATUS_INVALID, "expected a list of 8 numbers"},
        {"{" LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":3e6},"
         "\"linear_attention\":{\"rope_theta\":1e4}}}",
         STATUS_UNSUPPORTED, "differ between layer types"},
        {"{" LLAMA ",\"eos_token_id\":\"2\"}", STATUS_INVALID, "\"eos_token_id\" is \"2\""},
        {"{" LLAMA ",\"eos_token_id\":[1,[2]]}", STATUS_INVALID, "\"eos_token_id\" is a list"},
        {"{\"architectures\":[\"X\"],\"vocab_size\":512,\"hidden_size\":65,"
         "\"intermediate_size\":1,\"num_hidden_layers\":1,\"num_attention_heads\":4}",
         STATUS_INVALID, "\"hidden_size\" (65) must be a multiple"},
        {"{\"architectures\":[\"X\"],\"vocab_size\":512,\"hidden_size\":64,"
         "\"intermediate_size\":1,\"num_hidden_layers\":1,\"num_attention_heads\":8192,"
         "\"head_dim\":8192}",
         STATUS_INVALID, "8192 heads of 8192 dimensions"},
        {"{\"architectures\":[\"X\"],\"vocab_size\":512,\"hidden_size\":1e300}", STATUS_INVALID,
         "\"hidden_size\" is 1e300 (a number)"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct model_config config;
        struct error err = {0};
        enum status status =
            model_config_parse(&config, str_from(rows[i].json), "config.json", &err);
        if (status != rows[i].status || !strstr(err.message, rows[i].message))
            fail_msg("%s: status %d, '%s' has no '%s'", rows[i].json, status, err.message,
                     rows[i].message);
    }
}

static void deeply_nested_text_is_refused(void **state)
{
    (void)state;
    struct buf text = {0};
    for (int i = 0; i < 100000; i++)
        buf_append_c(&text, "{\"a\":");
    struct model_config config;
    struct error err = {0};
    assert_int_equal(model_config_parse(&config, buf_str(&text), "config.json", &err),
                     STATUS_INVALID);
    buf_deinit(&text);
}

static char folder[] = "/tmp/vllm-test-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    unlink(path);
}

static enum status load(struct model_config *config, const char *generation, const char *override,
                        struct error *err)
{
    return model_config_load(config, folder, generation, override, err);
}

static void generation_defaults_come_from_the_file_unless_told_otherwise(void **state)
{
    (void)state;
    write_file("config.json", "{" LLAMA ",\"eos_token_id\":2}");
    write_file("generation_config.json",
               "{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"repetition_penalty\":1.05,"
               "\"max_new_tokens\":32,\"do_sample\":true,\"min_p\":null,\"eos_token_id\":[2,7,9],"
               "\"unknown\":{\"x\":1}}");
    struct model_config config;
    struct error err = {0};

    assert_int_equal(load(&config, "auto", NULL, &err), STATUS_OK);
    const struct generation_config *g = &config.generation;
    assert_true(g->has_temperature && g->temperature == 0.6);
    assert_true(g->has_top_p && g->top_p == 0.95);
    assert_true(g->has_top_k && g->top_k == 20);
    assert_true(g->has_repetition_penalty && g->repetition_penalty == 1.05);
    assert_true(g->has_max_new_tokens && g->max_new_tokens == 32 && !g->max_new_tokens_is_cap);
    assert_false(g->has_min_p);
    assert_int_equal(config.num_eos_token_ids, 3);
    model_config_deinit(&config);

    assert_int_equal(load(&config, "vllm", NULL, &err), STATUS_OK);
    assert_false(g->has_temperature || g->has_top_k || g->has_max_new_tokens);
    assert_int_equal(config.num_eos_token_ids, 3); // the model's, not a sampling default
    model_config_deinit(&config);

    assert_int_equal(load(&config, "auto", "{\"top_k\":5}", &err), STATUS_OK);
    assert_true(g->top_k == 5 && g->temperature == 0.6 && !g->max_new_tokens_is_cap);
    assert_int_equal(config.num_eos_token_ids, 3);
    assert_int_equal(config.eos_token_ids[2], 9);
    model_config_deinit(&config);

    assert_int_equal(load(&config, "vllm", "{\"top_k\":5,\"max_new_tokens\":8}", &err), STATUS_OK);
    assert_true(g->top_k == 5 && !g->has_temperature);
    assert_true(g->max_new_tokens == 8 && g->max_new_tokens_is_cap);
    model_config_deinit(&config);

    assert_int_equal(load(&config, folder, NULL, &err), STATUS_OK); // a folder the operator names
    assert_true(g->max_new_tokens == 32 && g->max_new_tokens_is_cap);
    model_config_deinit(&config);
}

static void generation_files_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *file, *generation, *override;
        enum status status;
        const char *message;
    } rows[] = {
        {"{\"temperature\":\"hot\"}", "auto", NULL, STATUS_INVALID, "\"temperature\" is \"hot\""},
        {"{\"temperature\":-1}", "auto", NULL, STATUS_INVALID, "\"temperature\" is -1"},
        {"{\"top_p\":0}", "auto", NULL, STATUS_INVALID, "\"top_p\" is 0"},
        {"{\"top_k\":1.5}", "auto", NULL, STATUS_INVALID, "\"top_k\" is 1.5"},
        {"{\"max_new_tokens\":0}", "auto", NULL, STATUS_INVALID, "\"max_new_tokens\" is 0"},
        {"{\"eos_token_id\":true}", "auto", NULL, STATUS_INVALID, "\"eos_token_id\" is true"},
        {"[1]", "auto", NULL, STATUS_INVALID, "found a list, expected an object"},
        {"{", "auto", NULL, STATUS_INVALID, "not valid JSON"},
        {"{}", "auto", "[]", STATUS_INVALID, "--override-generation-config: found a list"},
        {"{}", "auto", "{\"top_k\":\"x\"}", STATUS_INVALID, "\"top_k\" is \"x\""},
        {"{}", "/nowhere", NULL, STATUS_NOT_FOUND, "/nowhere/generation_config.json"},
        {"{\"temperature\":\"hot\"}", "vllm", NULL, STATUS_OK, ""},
        {"{\"eos_token_id\":[5,512,-1]}", "auto", NULL, STATUS_OK, ""}, // outside: warned of
    };
    write_file("config.json", "{" LLAMA "}");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        write_file("generation_config.json", rows[i].file);
        struct model_config config;
        struct error err = {0};
        enum status status = load(&config, rows[i].generation, rows[i].override, &err);
        if (status != rows[i].status || !strstr(err.message, rows[i].message))
            fail_msg("%s: status %d: %s", rows[i].file, status, err.message);
        if (status == STATUS_OK)
            model_config_deinit(&config);
    }
}

static void ends_of_config_json_count_when_there_is_no_generation_file(void **state)
{
    (void)state;
    write_file("config.json", "{" LLAMA ",\"eos_token_id\":[2,7,2]}");
    remove_file("generation_config.json");
    struct model_config config;
    struct error err = {0};
    assert_int_equal(load(&config, "auto", NULL, &err), STATUS_OK);
    assert_int_equal(config.num_eos_token_ids, 2);
    assert_int_equal(config.eos_token_ids[0], 2);
    assert_int_equal(config.eos_token_ids[1], 7);
    model_config_deinit(&config);
}

static void a_folder_without_config_json_is_not_found(void **state)
{
    (void)state;
    remove_file("config.json");
    struct model_config config;
    struct error err = {0};
    assert_int_equal(load(&config, "auto", NULL, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.message, "config.json"));
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_model_loads_with_its_facts),
        cmocka_unit_test(the_demo_model_brings_sampling_defaults_and_two_ends),
        cmocka_unit_test(rope_is_read_from_every_spelling),
        cmocka_unit_test(sliding_layers_may_have_a_rope_of_their_own),
        cmocka_unit_test(lists_and_nulls_are_told_from_absent_keys),
        cmocka_unit_test(longrope_keeps_its_factors),
        cmocka_unit_test(windows_follow_layer_types_or_the_family),
        cmocka_unit_test(the_derived_length_follows_keys_tokenizer_and_rope),
        cmocka_unit_test(a_nested_text_config_is_the_model),
        cmocka_unit_test(defaults_stand_in_for_absent_and_null_keys),
        cmocka_unit_test(malformed_configurations_are_refused_by_key),
        cmocka_unit_test(deeply_nested_text_is_refused),
        cmocka_unit_test(generation_defaults_come_from_the_file_unless_told_otherwise),
        cmocka_unit_test(generation_files_are_checked),
        cmocka_unit_test(ends_of_config_json_count_when_there_is_no_generation_file),
        cmocka_unit_test(a_folder_without_config_json_is_not_found),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_file("generation_config.json");
    remove_file("config.json");
    rmdir(folder);
    return failed;
}
