// Every size follows from flags and model before a weight is read, and what does not fit is refused
// with a number that does.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/layer_groups.h"
#include "worker/step_driver.h"

/** A Llama of 2 layers, 2 KV heads of 64: 1024 bytes a token with a 2-byte cache. */
static const char CONFIG[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":256,"
    "\"intermediate_size\":512,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":64,\"vocab_size\":512,\"rms_norm_eps\":1e-5,"
    "\"max_position_embeddings\":4096,\"torch_dtype\":\"bfloat16\"}";

/** Options for dummy weights and a cache of `kv_bytes`. */
static struct serve_options small_options(int64_t kv_bytes)
{
    struct serve_options options = driver_options("dummy");
    options.load_format = LOAD_FORMAT_DUMMY;
    options.kv_cache_dtype = "bfloat16";
    options.block_size = 16;
    options.kv_cache_memory_bytes = kv_bytes;
    return options;
}

/** A plan and what it points at. */
struct planned {
    struct serve_options options;
    struct model_config model;
    struct engine_config config;
    struct error err;
    enum status status;
};

static void make_plan(struct planned *p, const struct serve_options *options, const char *json)
{
    *p = (struct planned){.options = *options};
    if (model_config_parse(&p->model, str_from(json), "config.json", &p->err) != STATUS_OK)
        fail_msg("%s", p->err.message);
    p->status = engine_config_plan(&p->config, &p->options, &p->model, &p->err);
}

static void drop_plan(struct planned *p)
{
    engine_config_deinit(&p->config);
    model_config_deinit(&p->model);
}

static void expect_refusal(const struct serve_options *options, enum status status,
                           const char *const *parts)
{
    struct planned p;
    make_plan(&p, options, CONFIG);
    if (p.status != status)
        fail_msg("status %d instead of %d: %s", p.status, status, p.err.message);
    for (; *parts; parts++) {
        if (!strstr(p.err.message, *parts))
            fail_msg("\"%s\" lacks \"%s\"", p.err.message, *parts);
    }
    drop_plan(&p);
}

static void one_mebibyte_holds_1024_tokens_and_says_so(void **state)
{
    (void)state;
    struct serve_options options = small_options(1 << 20);
    options.max_model_len = 1024;
    struct planned p;
    make_plan(&p, &options, CONFIG);
    assert_int_equal(p.status, STATUS_OK);
    assert_int_equal(p.config.kv_cache.block_bytes, 16384);
    assert_int_equal(p.config.kv_cache.num_blocks, 64);
    assert_int_equal(p.config.max_model_len, 1024);
    drop_plan(&p);

    static const int64_t TOO_LONG[] = {1025, 2048, 0}; // 0: 4096 of the model
    for (size_t i = 0; i < ARRAY_LEN(TOO_LONG); i++) {
        options.max_model_len = TOO_LONG[i];
        static const char *const PARTS[] = {"1.00 MiB", "maximum model length is 1024",
                                            "--max-model-len 1024", NULL};
        expect_refusal(&options, STATUS_OUT_OF_MEMORY, PARTS);
    }
}

static void the_length_of_the_refusal_works(void **state)
{
    (void)state;
    for (int64_t kv_bytes = 16384; kv_bytes < 40 * 16384; kv_bytes += 7777) {
        struct serve_options options = small_options(kv_bytes);
        struct planned p;
        make_plan(&p, &options, CONFIG);
        assert_int_equal(p.status, STATUS_OUT_OF_MEMORY);
        const char *hint = strstr(p.err.message, "--max-model-len ");
        assert_non_null(hint);
        drop_plan(&p);
        options.max_model_len = strtol(hint + strlen("--max-model-len "), NULL, 10);
        make_plan(&p, &options, CONFIG);
        assert_int_equal(p.status, STATUS_OK);
        drop_plan(&p);
        options.max_model_len++;
        make_plan(&p, &options, CONFIG);
        assert_int_equal(p.status, STATUS_OUT_OF_MEMORY);
        drop_plan(&p);
    }
}

static void less_than_a_block_is_refused_by_the_flags_name(void **state)
{
    (void)state;
    static const int64_t TOO_LITTLE[] = {0, 16383};
    static const char *const PARTS[] = {"--kv-cache-memory-bytes", "16384", NULL};
    for (size_t i = 0; i < ARRAY_LEN(TOO_LITTLE); i++) {
        struct serve_options options = small_options(TOO_LITTLE[i]);
        options.max_model_len = 16;
        expect_refusal(&options, STATUS_OUT_OF_MEMORY, PARTS);
    }
}

static void auto_takes_the_longest_length_that_fits(void **state)
{
    (void)state;
    static const struct {
        int64_t kv_bytes;
        int32_t expected;
    } CASES[] = {{1 << 20, 1024}, {16384, 16}, {100 << 20, 4096}};
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct serve_options options = small_options(CASES[i].kv_bytes);
        options.max_model_len = -1;
        struct planned p;
        make_plan(&p, &options, CONFIG);
        assert_int_equal(p.status, STATUS_OK);
        assert_int_equal(p.config.max_model_len, CASES[i].expected);
        drop_plan(&p);
    }
}

static void more_memory_than_there_is_is_refused(void **state)
{
    (void)state;
    static const char *const BYTES[] = {"--kv-cache-memory-bytes", "Use at most", NULL};
    static const char *const BLOCKS[] = {"--num-gpu-blocks-override 2000000", "at most", NULL};
    struct serve_options options = small_options((int64_t)1 << 50);
    expect_refusal(&options, STATUS_OUT_OF_MEMORY, BYTES);
    options = small_options(1 << 20);
    options.block_size = 1024;
    options.num_gpu_blocks_override = 2000000;
    expect_refusal(&options, STATUS_OUT_OF_MEMORY, BLOCKS);
}

static void a_block_override_replaces_what_memory_gives(void **state)
{
    (void)state;
    struct serve_options options = small_options(1 << 20);
    options.num_gpu_blocks_override = 300;
    struct planned p;
    make_plan(&p, &options, CONFIG);
    assert_int_equal(p.status, STATUS_OK);
    assert_int_equal(p.config.kv_cache.num_blocks, 300);
    engine_config_log(&p.config);
    drop_plan(&p);
    options.num_gpu_blocks_override = 255; // one less than 4096 tokens need
    static const char *const PARTS[] = {"maximum model length is 4080",
                                        "--num-gpu-blocks-override 256", NULL};
    expect_refusal(&options, STATUS_OUT_OF_MEMORY, PARTS);
}

static void utilisation_gives_at_most_what_requests_can_use(void **state)
{
    (void)state;
    struct serve_options options = small_options(-1);
    options.max_num_seqs = 4;
    struct planned p;
    make_plan(&p, &options, CONFIG);
    if (p.status != STATUS_OK)
        fail_msg("%s", p.err.message);
    assert_int_equal(p.config.kv_cache.num_blocks, 4 * 4096 / 16);
    assert_true(p.config.available_bytes >= p.config.kv_cache.num_blocks * (int64_t)16384);
    drop_plan(&p);
    options.gpu_memory_utilization = 1e-9;
    static const char *const PARTS[] = {"No available memory for the cache blocks",
                                        "gpu_memory_utilization", NULL};
    expect_refusal(&options, STATUS_OUT_OF_MEMORY, PARTS);
}

static void limits_follow_from_each_other(void **state)
{
    (void)state;
    static const struct {
        int32_t tokens, seqs;
        enum tristate chunked;
        int32_t expected_tokens, expected_seqs;
    } CASES[] = {
        {-1, -1, TRISTATE_UNSET, 2048, 128}, {-1, -1, TRISTATE_FALSE, 4096, 128},
        {64, -1, TRISTATE_UNSET, 64, 64},    {8192, 256, TRISTATE_UNSET, 8192, 256},
        {-1, 3, TRISTATE_TRUE, 2048, 3},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct serve_options options = small_options(100 << 20);
        options.max_num_batched_tokens = CASES[i].tokens;
        options.max_num_seqs = CASES[i].seqs;
        options.enable_chunked_prefill = CASES[i].chunked;
        struct planned p;
        make_plan(&p, &options, CONFIG);
        if (p.status != STATUS_OK)
            fail_msg("%s", p.err.message);
        assert_int_equal(p.config.max_num_batched_tokens, CASES[i].expected_tokens);
        assert_int_equal(p.config.max_num_seqs, CASES[i].expected_seqs);
        drop_plan(&p);
    }
    struct serve_options options = small_options(100 << 20);
    options.max_model_len = 100;
    options.max_num_seqs = 2;
    struct planned p;
    make_plan(&p, &options, CONFIG);
    assert_int_equal(p.config.max_num_batched_tokens, 200);
    drop_plan(&p);
}

static void flags_that_contradict_are_refused(void **state)
{
    (void)state;
    static const char *const SEQS[] = {"max_num_batched_tokens (8)", "max_num_seqs (9)", NULL};
    static const char *const CHUNKED[] = {"max_num_batched_tokens (64)", "max_model_len (4096)",
                                          NULL};
    static const char *const THRESHOLD[] = {"long_prefill_token_threshold (5000)", "(4096)", NULL};
    static const char *const LENGTH[] = {"User-specified max_model_len (5000)",
                                         "max_position_embeddings=4096", NULL};
    static const char *const DTYPE[] = {"Unknown dtype: 'int4'", NULL};
    static const char *const KV_DTYPE[] = {"--kv-cache-dtype fp8_e5m2", "fp8_e4m3", NULL};
    static const char *const BLOCK[] = {"--block-size 0", NULL};
    static const char *const BIND[] = {"VLLM_CPU_OMP_THREADS_BIND", "99999", NULL};
    const struct serve_options base = small_options(100 << 20);
    struct serve_options options = base;
    options.max_num_batched_tokens = 8;
    options.max_num_seqs = 9;
    expect_refusal(&options, STATUS_INVALID, SEQS);
    options = base;
    options.max_num_batched_tokens = 64;
    options.enable_chunked_prefill = TRISTATE_FALSE;
    expect_refusal(&options, STATUS_INVALID, CHUNKED);
    options = base;
    options.long_prefill_token_threshold = 5000;
    expect_refusal(&options, STATUS_INVALID, THRESHOLD);
    options = base;
    options.max_model_len = 5000;
    expect_refusal(&options, STATUS_INVALID, LENGTH);
    options = base;
    options.dtype = "int4";
    expect_refusal(&options, STATUS_INVALID, DTYPE);
    options = base;
    options.kv_cache_dtype = "fp8_e5m2";
    expect_refusal(&options, STATUS_UNSUPPORTED, KV_DTYPE);
    options = base;
    options.block_size = 0;
    expect_refusal(&options, STATUS_INVALID, BLOCK);
    options = base;
    options.omp_threads_bind = "99999";
    expect_refusal(&options, STATUS_INVALID, BIND);
}

static void lowering_a_limit_never_needs_more(void **state)
{
    (void)state;
    struct serve_options options = small_options(100 << 20);
    int64_t last = 0;
    for (int32_t tokens = 128; tokens <= 8192; tokens *= 2) {
        options.max_num_batched_tokens = tokens;
        struct planned p;
        make_plan(&p, &options, CONFIG);
        assert_int_equal(p.status, STATUS_OK);
        assert_true(p.config.workspace_bytes >= last);
        last = p.config.workspace_bytes;
        drop_plan(&p);
    }
}

static void layers_of_two_kinds_share_a_pool_in_equal_groups(void **state)
{
    (void)state;
    static const struct {
        const char *windows; // f: full, s: 128 tokens, t: 64, w: as long as the model
        int32_t num_groups, layers_per_group;
    } CASES[] = {
        {"ffff", 1, 4},       {"ssss", 1, 4},  {"fsfsfs", 2, 3},
        {"fssssfssss", 5, 2}, {"ffsss", 3, 2}, {"fsfsfsf", 2, 4},
        {"wfff", 1, 4},       {"fst", 3, 1},   {"fssssssssssssssssssss", 8, 3},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        int32_t windows[32], num_layers = (int32_t)strlen(CASES[i].windows);
        for (int32_t l = 0; l < num_layers; l++) {
            char kind = CASES[i].windows[l];
            windows[l] = kind == 's' ? 128 : kind == 't' ? 64 : kind == 'w' ? 1024 : 0;
        }
        struct kv_cache_config kv_cache = {.block_size = 16};
        struct error err = {0};
        assert_int_equal(layer_groups_init(&kv_cache, windows, num_layers, 1024, &err), STATUS_OK);
        if (kv_cache.num_groups != CASES[i].num_groups)
            fail_msg("%s: %d groups", CASES[i].windows, kv_cache.num_groups);
        assert_int_equal(kv_cache.layers_per_group, CASES[i].layers_per_group);
        bool is_seen[32] = {false};
        for (int32_t g = 0; g < kv_cache.num_groups; g++) {
            const struct kv_cache_group *group = &kv_cache.groups[g];
            assert_in_range(group->num_layers, 1, kv_cache.layers_per_group);
            for (int32_t l = 0; l < group->num_layers; l++) {
                int32_t layer = group->layers[l];
                assert_false(is_seen[layer]);
                is_seen[layer] = true;
                assert_int_equal(group->window, windows[layer] == 1024 ? 0 : windows[layer]);
            }
        }
        for (int32_t l = 0; l < num_layers; l++)
            assert_true(is_seen[l]);
        layer_groups_deinit(&kv_cache);
    }
}

static void a_window_needs_no_blocks_before_it(void **state)
{
    (void)state;
    static const int32_t WINDOWS[] = {0, 128};
    struct kv_cache_config kv_cache = {.block_size = 16};
    struct error err = {0};
    assert_int_equal(layer_groups_init(&kv_cache, WINDOWS, 2, 4096, &err), STATUS_OK);
    // Full: 256. Window: 127 before, 64 of the step, in blocks of 16, and one for the borders.
    assert_int_equal(layer_groups_blocks(&kv_cache, 4096, 64), 256 + 12 + 1);
    assert_int_equal(layer_groups_blocks(&kv_cache, 100, 64), 7 + 7);
    assert_int_equal(layer_groups_longest(&kv_cache, 256 + 13, 4096, 64), 4096);
    assert_int_equal(layer_groups_longest(&kv_cache, 256 + 12, 4096, 64), 4080);
    assert_int_equal(layer_groups_longest(&kv_cache, 1, 4096, 64), 0);
    int64_t last = 0;
    for (int32_t len = 1; len <= 4096; len++) {
        int64_t blocks = layer_groups_blocks(&kv_cache, len, 64);
        assert_true(blocks >= last);
        last = blocks;
    }
    layer_groups_deinit(&kv_cache);
}

static void the_tokenizers_limit_counts(void **state)
{
    (void)state;
    char dir[] = "/tmp/vllm-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir);
    static const struct {
        const char *json;
        int32_t expected; // 0: refused
    } CASES[] = {
        {"{\"model_max_length\": 512}", 512},
        {"{\"model_max_length\": 1e30}", 4096},
        {"{\"model_max_length\": 1000000000000000019884624838656}", 4096},
        {"{\"other\": [1, {\"model_max_length\": 3}]}", 4096},
        {"{\"model_max_length\": 512", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        fputs(CASES[i].json, file);
        fclose(file);
        struct serve_options options = small_options(100 << 20);
        options.skip_tokenizer_init = false;
        options.tokenizer = dir;
        struct planned p;
        make_plan(&p, &options, CONFIG);
        assert_int_equal(p.status, CASES[i].expected ? STATUS_OK : STATUS_INVALID);
        if (CASES[i].expected)
            assert_int_equal(p.config.max_model_len, CASES[i].expected);
        else
            assert_non_null(strstr(p.err.message, path));
        drop_plan(&p);
    }
    unlink(path);
    rmdir(dir);
}

static void what_was_planned_is_loaded(void **state)
{
    (void)state;
    struct serve_options options = driver_options(FIXTURES_DIR "/models/qwen2_sliding");
    options.dtype = "float32";
    struct driver driver;
    driver_start(&driver, &options); // refuses when the bytes differ
    assert_true(driver.config.weight_bytes > 0);
    assert_int_equal(driver.config.mapped_bytes, 0);
    assert_int_equal(driver.config.kv_cache.num_groups, 3); // one full layer, two sliding
    engine_config_log(&driver.config);
    driver_stop(&driver);
    options.dtype = "auto";
    driver_start(&driver, &options);
    assert_true(driver.config.mapped_bytes > 0);
    driver_stop(&driver);
}

static void dummy_weights_need_no_checkpoint(void **state)
{
    (void)state;
    struct serve_options options = small_options(16 << 20);
    struct planned p;
    make_plan(&p, &options, CONFIG);
    assert_int_equal(p.status, STATUS_OK);
    assert_int_equal(p.config.mapped_bytes, 0);
    struct executor *executor;
    DRIVER_OK(executor_create(&executor, &p.config, NULL, &err));
    executor_destroy(executor);
    drop_plan(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_mebibyte_holds_1024_tokens_and_says_so),
        cmocka_unit_test(the_length_of_the_refusal_works),
        cmocka_unit_test(less_than_a_block_is_refused_by_the_flags_name),
        cmocka_unit_test(auto_takes_the_longest_length_that_fits),
        cmocka_unit_test(more_memory_than_there_is_is_refused),
        cmocka_unit_test(a_block_override_replaces_what_memory_gives),
        cmocka_unit_test(utilisation_gives_at_most_what_requests_can_use),
        cmocka_unit_test(limits_follow_from_each_other),
        cmocka_unit_test(flags_that_contradict_are_refused),
        cmocka_unit_test(lowering_a_limit_never_needs_more),
        cmocka_unit_test(layers_of_two_kinds_share_a_pool_in_equal_groups),
        cmocka_unit_test(a_window_needs_no_blocks_before_it),
        cmocka_unit_test(the_tokenizers_limit_counts),
        cmocka_unit_test(what_was_planned_is_loaded),
        cmocka_unit_test(dummy_weights_need_no_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
