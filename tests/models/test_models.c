// Models against the intermediate values of the reference, and what the registry refuses.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/memory.h"
#include "model_loader/safetensors.h"
#include "models/model.h"

enum { MAX_TOKENS = 32, BLOCK_SIZE = 8, NUM_BLOCKS = 4 };

static const char *const MODELS[] = {
    "llama",         "llama_bias_tied", "mistral",   "qwen2",       "qwen2_sliding",
    "qwen3",         "qwen3_tied",      "gemma2",    "gemma3_text", "phi3",
    "phi3_longrope", "olmo2",           "qwen3_moe", "mixtral"};

/** A model and all that one step of one sequence needs. */
struct bench {
    struct model_config config;
    struct device dev;
    struct weight_store store;
    struct model model;
    struct layer_cache *caches;
    struct forward fwd;
    struct tensor hidden, residual, logits;
    int32_t token_ids[MAX_TOKENS], positions[MAX_TOKENS], token_seq[MAX_TOKENS];
    int64_t slots[MAX_TOKENS];
    int32_t query_start[2], seq_len, table[NUM_BLOCKS];
};

/** Takes the only length that the fixtures' intermediates have from their 17-token prompt. */
static void read_prompt(struct bench *bench, const char *dir)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/expected.json", dir);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(json);
    json_t *ids = json_object_get(json_array_get(json_object_get(json, "prompts"), 1), "input_ids");
    bench->fwd.num_tokens = (int32_t)json_array_size(ids);
    assert_int_equal(bench->fwd.num_tokens, 17);
    for (int32_t i = 0; i < bench->fwd.num_tokens; i++)
        bench->token_ids[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    json_decref(json);
}

static void place_sequence(struct bench *bench)
{
    static const int32_t TABLE[NUM_BLOCKS] = {2, 0, 3, 1};
    int32_t n = bench->fwd.num_tokens;
    memcpy(bench->table, TABLE, sizeof(TABLE));
    for (int32_t i = 0; i < n; i++) {
        bench->positions[i] = i;
        bench->token_seq[i] = 0;
        bench->slots[i] = TABLE[i / BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE;
    }
    bench->query_start[1] = n;
    bench->seq_len = n;
    bench->fwd.token_ids = bench->token_ids;
    bench->fwd.positions = bench->positions;
    bench->fwd.groups[0] = (struct cache_group_step){
        .batch = {.num_seqs = 1,
                  .num_tokens = n,
                  .query_start = bench->query_start,
                  .seq_lens = &bench->seq_len,
                  .block_table = bench->table,
                  .max_blocks = NUM_BLOCKS,
                  .token_seq = bench->token_seq,
                  .positions = bench->positions,
                  .max_query_len = n,
                  .max_seq_len = n},
        .slot_mapping = bench->slots,
    };
}

static struct tensor allocate(struct bench *bench, int64_t cols)
{
    int64_t rows = bench->fwd.num_tokens;
    return tensor_2d(xcalloc((size_t)(rows * cols), sizeof(float)), DTYPE_F32, rows, cols);
}

/** Loads the first `num_layers` layers (0: all, and checks that nothing is left over). */
static void bench_start(struct bench *bench, const char *dir, enum cpu_isa isa, int32_t num_layers)
{
    *bench = (struct bench){0};
    struct error err = {0};
    assert_int_equal(model_config_load(&bench->config, dir, "vllm", NULL, &err), STATUS_OK);
    assert_int_equal(cpu_device_init(&bench->dev, isa, 2, &err), STATUS_OK);
    const struct weight_store_options options = {
        .mode = WEIGHTS_LOAD, .dir = dir, .keeps_dtype = true};
    assert_int_equal(weight_store_open(&bench->store, &bench->dev, &options, &err), STATUS_OK);
    if (num_layers == 0) {
        if (model_load(&bench->model, &bench->config, MODEL_GENERATES, MAX_TOKENS, &bench->store,
                       &err) != STATUS_OK)
            fail_msg("%s", err.message);
    } else {
        bench->config.num_hidden_layers = num_layers;
        const struct weights w = {.store = &bench->store};
        bench->model = (struct model){.config = &bench->config, .max_model_len = MAX_TOKENS};
        assert_int_equal(model_class_find(&bench->model.class, bench->config.architecture, &err),
                         STATUS_OK);
        assert_int_equal(bench->model.class->load(&bench->model, &w, &err), STATUS_OK);
    }
    read_prompt(bench, dir);
    place_sequence(bench);
    size_t cache_bytes = (size_t)NUM_BLOCKS * BLOCK_SIZE *
                         (size_t)bench->config.num_key_value_heads *
                         (size_t)bench->config.head_dim * sizeof(float);
    bench->caches = xcalloc((size_t)bench->config.num_hidden_layers, sizeof(*bench->caches));
    for (int32_t i = 0; i < bench->config.num_hidden_layers; i++)
        bench->caches[i].kv = (struct kv_cache){.k = xcalloc(1, cache_bytes),
                                                .v = xcalloc(1, cache_bytes),
                                                .dtype = DTYPE_F32,
                                                .num_blocks = NUM_BLOCKS,
                                                .block_size = BLOCK_SIZE,
                                                .num_kv_heads = bench->config.num_key_value_heads,
                                                .head_dim = bench->config.head_dim};
    bench->fwd.caches = bench->caches;
    bench->fwd.dev = &bench->dev;
    size_t scratch =
        bench->model.class->scratch_bytes(&bench->model, DTYPE_F32, bench->fwd.num_tokens);
    bench->fwd.workspace = (struct workspace){xmalloc(scratch), scratch, 0};
    bench->hidden = allocate(bench, bench->config.hidden_size);
    bench->residual = allocate(bench, bench->config.hidden_size);
    bench->logits = allocate(bench, bench->config.vocab_size);
}

static void bench_stop(struct bench *bench)
{
    for (int32_t i = 0; i < bench->config.num_hidden_layers; i++) {
        free(bench->caches[i].kv.k);
        free(bench->caches[i].kv.v);
    }
    free(bench->caches);
    free(bench->fwd.workspace.base);
    free(bench->hidden.data);
    free(bench->residual.data);
    free(bench->logits.data);
    weight_store_close(&bench->store);
    device_deinit(&bench->dev);
    model_config_deinit(&bench->config);
}

/** Within 1e-4 of the largest magnitude in the tensor. */
static void expect_tensor(struct tensor found, const struct safetensors *file, const char *name,
                          double absolute)
{
    const struct safetensor *expected = safetensors_find(file, str_from(name));
    assert_non_null(expected);
    assert_int_equal(expected->size_bytes, tensor_bytes(found));
    double largest = 0;
    const float *values = found.data;
    for (int64_t i = 0; i < tensor_numel(found); i++) {
        float value;
        memcpy(&value, (const char *)expected->data + (size_t)i * sizeof(value), sizeof(value));
        largest = fmax(largest, fabs(value));
    }
    double tolerance = absolute > 0 ? absolute : 1e-4 * largest;
    for (int64_t i = 0; i < tensor_numel(found); i++) {
        float value;
        memcpy(&value, (const char *)expected->data + (size_t)i * sizeof(value), sizeof(value));
        if (!(fabs(values[i] - value) <= tolerance))
            fail_msg("%s at %d: found %.6f, expected %.6f", name, (int)i, values[i], value);
    }
}

static void check_model(const char *name, enum cpu_isa isa)
{
    char dir[512], path[600], tensor[32];
    snprintf(dir, sizeof(dir), "%s/models/%s", FIXTURES_DIR, name);
    snprintf(path, sizeof(path), "%s/intermediates.safetensors", dir);
    struct safetensors file;
    struct error err = {0};
    assert_int_equal(safetensors_open(&file, path, &err), STATUS_OK);
    struct model_config config;
    assert_int_equal(model_config_load(&config, dir, "vllm", NULL, &err), STATUS_OK);
    int32_t num_layers = config.num_hidden_layers;
    model_config_deinit(&config);
    for (int32_t layers = 1; layers <= num_layers; layers++) {
        struct bench bench;
        bench_start(&bench, dir, isa, layers == num_layers ? 0 : layers);
        const struct model_class *class = bench.model.class;
        class->embed(&bench.model, &bench.fwd, bench.residual);
        expect_tensor(bench.residual, &file, "embed", 0);
        class->forward(&bench.model, &bench.fwd, bench.hidden, bench.residual);
        snprintf(tensor, sizeof(tensor), "layer.%d", layers - 1);
        expect_tensor(bench.residual, &file, tensor, 0);
        if (layers == num_layers) {
            expect_tensor(bench.hidden, &file, "final_norm", 0);
            class->compute_logits(&bench.model, &bench.fwd, bench.logits, bench.hidden);
            expect_tensor(bench.logits, &file, "logits", 1e-3);
        }
        bench_stop(&bench);
    }
    safetensors_close(&file);
}

static void every_layer_gives_the_reference_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(MODELS); i++) {
        check_model(MODELS[i], CPU_ISA_SCALAR);
        check_model(MODELS[i], CPU_ISA_AUTO);
    }
}

static void an_unknown_architecture_is_refused_with_what_there_is(void **state)
{
    (void)state;
    const struct model_class *class;
    struct error err = {0};
    assert_int_equal(model_class_find(&class, "GPT2LMHeadModel", &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.message, "GPT2LMHeadModel"));
    assert_non_null(strstr(err.message, "Qwen3ForCausalLM"));
    assert_int_equal(model_class_find(&class, NULL, &err), STATUS_UNSUPPORTED);
    assert_int_equal(model_class_find(&class, "MistralForCausalLM", &err), STATUS_OK);
    assert_string_equal(class->architecture, "MistralForCausalLM");
}

/** Parses a small Llama's config with `extra` keys and plans a load of dummy weights. */
static enum status plan_dummy(const char *architecture, const char *extra, struct error *err)
{
    char json[1024];
    snprintf(json, sizeof(json),
             "{\"architectures\":[\"%s\"],\"model_type\":\"x\",\"hidden_size\":32,"
             "\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
             "\"num_key_value_heads\":2,\"vocab_size\":100,\"rms_norm_eps\":1e-5,"
             "\"max_position_embeddings\":64%s}",
             architecture, extra);
    struct model_config config = {0};
    struct device dev;
    struct weight_store store;
    struct model model;
    const struct weight_store_options options = {.mode = WEIGHTS_PLAN, .is_dummy = true};
    TRY(model_config_parse(&config, str_from(json), "config.json", err));
    enum status status = cpu_device_init(&dev, CPU_ISA_AUTO, 1, err);
    if (status == STATUS_OK)
        status = weight_store_open(&store, &dev, &options, err);
    if (status == STATUS_OK)
        status = model_load(&model, &config, MODEL_GENERATES, 64, &store, err);
    weight_store_close(&store);
    device_deinit(&dev);
    model_config_deinit(&config);
    return status;
}

static void variants_that_are_not_computed_are_refused(void **state)
{
    (void)state;
    struct error err = {0};
    if (plan_dummy("MistralForCausalLM", "", &err) != STATUS_OK)
        fail_msg("%s", err.message);
    assert_int_equal(plan_dummy("MistralForCausalLM",
                                ",\"llama_4_scaling\":{\"beta\":0.1,"
                                "\"original_max_position_embeddings\":16}",
                                &err),
                     STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.message, "llama_4_scaling"));
    static const struct {
        const char *architecture, *extra;
        enum status status;
        const char *part; // of the message
    } rows[] = {
        {"LlamaForCausalLM", ",\"hidden_act\":\"relu\"", STATUS_UNSUPPORTED, "relu"},
        {"Phi3ForCausalLM", ",\"lm_head_bias\":true", STATUS_UNSUPPORTED, "lm_head_bias"},
        {"Gemma3ForCausalLM", ",\"use_bidirectional_attention\":true", STATUS_UNSUPPORTED,
         "use_bidirectional_attention"},
        {"Gemma2ForCausalLM", ",\"query_pre_attn_scalar\":0", STATUS_INVALID,
         "query_pre_attn_scalar is 0"},
        {"Gemma2ForCausalLM", ",\"attn_logit_softcapping\":-1", STATUS_INVALID,
         "attn_logit_softcapping is -1"},
        {"Qwen3MoeForCausalLM", ",\"moe_intermediate_size\":8", STATUS_UNSUPPORTED, "0 experts"},
        {"Qwen3MoeForCausalLM", ",\"num_experts\":2000,\"moe_intermediate_size\":8",
         STATUS_UNSUPPORTED, "2000 experts"},
        {"Qwen3MoeForCausalLM",
         ",\"num_experts\":4,\"num_experts_per_tok\":5,\"moe_intermediate_size\":8", STATUS_INVALID,
         "num_experts_per_tok is 5"},
        {"Qwen3MoeForCausalLM", ",\"num_experts\":4,\"num_experts_per_tok\":2", STATUS_INVALID,
         "intermediate size is 0"},
        {"Qwen3MoeForCausalLM", ",\"decoder_sparse_step\":0", STATUS_INVALID,
         "decoder_sparse_step is 0"},
        {"Qwen3MoeForCausalLM", ",\"mlp_only_layers\":[\"a\"]", STATUS_INVALID, "mlp_only_layers"},
        {"MixtralForCausalLM", "", STATUS_UNSUPPORTED, "0 experts"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(plan_dummy(rows[i].architecture, rows[i].extra, &err), rows[i].status);
        if (!strstr(err.message, rows[i].part))
            fail_msg("%s%s: %s", rows[i].architecture, rows[i].extra, err.message);
    }
}

static void every_architecture_is_planned_from_its_configuration(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *extra;
    } rows[] = {
        {"Gemma2ForCausalLM", ",\"hidden_act\":\"gelu_pytorch_tanh\",\"sliding_window\":8,"
                              "\"attn_logit_softcapping\":null"},
        {"Gemma3ForCausalLM", ",\"hidden_activation\":\"gelu_pytorch_tanh\""},
        {"Phi3ForCausalLM", ",\"mlp_bias\":true"},
        {"Olmo2ForCausalLM", ""},
        {"Qwen3MoeForCausalLM", ",\"num_experts\":4,\"num_experts_per_tok\":2,"
                                "\"moe_intermediate_size\":8,\"mlp_only_layers\":[0,77]"},
        {"MixtralForCausalLM", ",\"num_local_experts\":4,\"num_experts_per_tok\":4"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct error err = {0};
        if (plan_dummy(rows[i].architecture, rows[i].extra, &err) != STATUS_OK)
            fail_msg("%s: %s", rows[i].architecture, err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_gives_the_reference_values),
        cmocka_unit_test(an_unknown_architecture_is_refused_with_what_there_is),
        cmocka_unit_test(every_architecture_is_planned_from_its_configuration),
        cmocka_unit_test(variants_that_are_not_computed_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
