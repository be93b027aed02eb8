// Whether and how a model pools: options, config.json and Sentence Transformers' files.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "config/pooling_config.h"

#define MODEL                                                                        \
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":8,\"hidden_size\":64," \
    "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"num_hidden_layers\":1,"   \
    "\"intermediate_size\":8"

/** What the sources say, and what comes of it: a type, or words of the error. */
struct source {
    const char *model; // more of config.json
    struct serve_options options;
    const char *modules, *pooling; // of Sentence Transformers; NULL: not there
    enum pooling_type type;
    bool use_activation;
    int32_t dimensions;
    const char *error;
};

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_file(const char *dir, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    unlink(path);
}

static enum status load(const struct source *source, struct pooling_config *config,
                        struct error *err)
{
    char dir[] = "/tmp/vllm-pooling-test-XXXXXX", inner[64], json[1024];
    assert_non_null(mkdtemp(dir));
    snprintf(inner, sizeof(inner), "%s/1_Pooling", dir);
    assert_int_equal(mkdir(inner, 0700), 0);
    if (source->modules)
        write_file(dir, "modules.json", source->modules);
    if (source->pooling)
        write_file(inner, "config.json", source->pooling);
    snprintf(json, sizeof(json), "%s%s}", MODEL, source->model ? source->model : "");
    struct model_config model;
    assert_int_equal(model_config_parse(&model, str_from(json), "config.json", err), STATUS_OK);
    model.path = dir;
    enum status status = pooling_config_load(config, &source->options, &model, err);
    model_config_deinit(&model);
    remove_file(dir, "modules.json");
    remove_file(inner, "config.json");
    rmdir(inner);
    rmdir(dir);
    return status;
}

#define TRANSFORMER "{\"type\":\"sentence_transformers.models.Transformer\",\"path\":\"\"}"
#define POOLING "{\"type\":\"sentence_transformers.models.Pooling\",\"path\":\"1_Pooling\"}"
#define NORMALIZE "{\"type\":\"sentence_transformers.models.Normalize\",\"path\":\"2_Normalize\"}"
#define ALL_MODULES "[" TRANSFORMER "," POOLING "," NORMALIZE "]"
#define POOLING_RUNNER .runner = RUNNER_POOLING

static void sources_are_settled_in_their_order(void **state)
{
    (void)state;
    static const struct source sources[] = {
        {.type = POOLING_NONE, .use_activation = true},
        {.options = {.runner = RUNNER_GENERATE},
         .modules = ALL_MODULES,
         .type = POOLING_NONE,
         .use_activation = true},
        {.options = {POOLING_RUNNER}, .type = POOLING_LAST, .use_activation = true},
        {.options = {.convert = CONVERT_EMBED}, .type = POOLING_LAST, .use_activation = true},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"pooling_type\":\"MEAN\"}"},
         .type = POOLING_MEAN,
         .use_activation = true},
        {.options = {POOLING_RUNNER, .pooler_config =
                                         "{\"seq_pooling_type\":\"MEAN\",\"normalize\":false,"
                                         "\"tok_pooling_type\":null}"},
         .type = POOLING_MEAN},
        {.modules = ALL_MODULES,
         .pooling = "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_lasttoken\":false}",
         .type = POOLING_MEAN,
         .use_activation = true},
        {.modules = "[" TRANSFORMER "," POOLING "]",
         .pooling = "{\"pooling_mode\":\"lasttoken\"}",
         .type = POOLING_LAST},
        {.modules = "[" TRANSFORMER "]", .type = POOLING_NONE, .use_activation = true},
        {.options = {.pooler_config = "{\"pooling_type\":\"LAST\",\"use_activation\":false}"},
         .modules = ALL_MODULES,
         .pooling = "{\"pooling_mode_mean_tokens\":true}",
         .type = POOLING_LAST},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"dimensions\":32}"},
         .model = ",\"matryoshka_dimensions\":[16,32]",
         .type = POOLING_LAST,
         .use_activation = true,
         .dimensions = 32},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"dimensions\":9}",
                     .hf_overrides = "{\"is_matryoshka\":true}"},
         .type = POOLING_LAST,
         .use_activation = true,
         .dimensions = 9},
    };
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        struct pooling_config config;
        struct error err = {0};
        if (load(&sources[i], &config, &err) != STATUS_OK)
            fail_msg("%zu: %s", i, err.message);
        assert_int_equal(config.type, sources[i].type);
        assert_int_equal(config.use_activation, sources[i].use_activation);
        assert_int_equal(config.dimensions, sources[i].dimensions);
    }
}

static void what_is_not_supported_is_refused_by_name(void **state)
{
    (void)state;
    static const struct source sources[] = {
        {.options = {POOLING_RUNNER, .pooler_config = "{\"pooling_type\":\"CLS\"}"},
         .error = "--pooler-config: vllm.c does not support pooling type CLS"},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"pooling_type\":3}"}, .error = "a string"},
        {.options = {POOLING_RUNNER,
                     .pooler_config = "{\"pooling_type\":\"LAST\",\"seq_pooling_type\":\"MEAN\"}"},
         .error = "expected one of them"},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"step_tag_id\":3}"},
         .error = "\"step_tag_id\""},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"enable_chunked_processing\":true}"},
         .error = "enable_chunked_processing"},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"dimensions\":0}"}, .error = "dimensions"},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"dimensions\":8}"},
         .error = "does not support matryoshka"},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"dimensions\":8}"},
         .model = ",\"matryoshka_dimensions\":[16,32]",
         .error = "only supports [16, 32]"},
        {.options = {POOLING_RUNNER, .pooler_config = "{\"dimensions\":65}"},
         .model = ",\"is_matryoshka\":true",
         .error = "at most 64"},
        {.options = {POOLING_RUNNER}, .model = ",\"is_matryoshka\":1", .error = "true or false"},
        {.options = {POOLING_RUNNER},
         .model = ",\"matryoshka_dimensions\":[0]",
         .error = "matryoshka_dimensions"},
        {.options = {POOLING_RUNNER, .hf_overrides = "{\"matryoshka_dimensions\":8}"},
         .error = "--hf-overrides"},
        {.options = {.pooler_config = "{}"}, .error = "expected --runner pooling"},
        {.options = {.hf_overrides = "{\"vocab_size\":8}"}, .error = "\"vocab_size\""},
        {.modules = "[", .error = "modules.json is not JSON"},
        {.modules = "{}", .error = "expected a list of modules"},
        {.modules = "[3]", .error = "module 0 has no \"type\""},
        {.modules = "[{\"type\":\"sentence_transformers.models.Dense\"}]", .error = "models.Dense"},
        {.modules = ALL_MODULES,
         .pooling = "{\"pooling_mode_max_tokens\":true}",
         .error = "max_tokens"},
        {.modules = ALL_MODULES,
         .pooling = "{\"pooling_mode\":\"attention\"}",
         .error = "attention"},
    };
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        struct pooling_config config;
        struct error err = {0};
        assert_int_not_equal(load(&sources[i], &config, &err), STATUS_OK);
        if (!strstr(err.message, sources[i].error))
            fail_msg("%zu: found \"%s\", expected \"%s\"", i, err.message, sources[i].error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_are_settled_in_their_order),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
