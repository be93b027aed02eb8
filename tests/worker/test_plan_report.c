// The memory table: its parts make up its sums, its remedies work, and what it says is what an
// executor takes from the system.
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "worker/plan_report.h"
#include "worker/step_driver.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAN_COUNT 0
#else
#define CAN_COUNT 1
#endif

#if CAN_COUNT
// Every block that the program holds, by its address: what was asked for, since the allocator's own
// sizes include what alignment wastes.
enum { MAX_LIVE = 1 << 18 };

static struct {
    const void *ptr;
    size_t size_bytes;
} live[MAX_LIVE];
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t live_bytes;

// The C library's own functions, behind the ones that this program puts in their place.
void *__libc_malloc(size_t size_bytes);
void *__libc_calloc(size_t count, size_t size_bytes);
void *__libc_realloc(void *ptr, size_t size_bytes);
void *__libc_memalign(size_t alignment, size_t size_bytes);
void __libc_free(void *ptr);

/** The entry of `ptr`, or the free one where it belongs. */
static size_t find_live(const void *ptr)
{
    size_t i = ((uintptr_t)ptr >> 4) * 0x9E3779B97F4A7C15u >> 46;
    while (live[i].ptr && live[i].ptr != ptr)
        i = (i + 1) % MAX_LIVE;
    return i;
}

static void *keep(void *ptr, size_t size_bytes)
{
    if (!ptr)
        return NULL;
    pthread_mutex_lock(&live_lock);
    size_t i = find_live(ptr);
    live[i].ptr = ptr;
    live[i].size_bytes = size_bytes;
    live_bytes += (int64_t)size_bytes;
    pthread_mutex_unlock(&live_lock);
    return ptr;
}

static void drop(const void *ptr)
{
    if (!ptr)
        return;
    pthread_mutex_lock(&live_lock);
    size_t i = find_live(ptr); // its place stays taken: the address will come again
    if (live[i].ptr == ptr) {
        live_bytes -= (int64_t)live[i].size_bytes;
        live[i].size_bytes = 0;
    }
    pthread_mutex_unlock(&live_lock);
}

void *malloc(size_t size_bytes)
{
    return keep(__libc_malloc(size_bytes), size_bytes);
}

void *calloc(size_t count, size_t size_bytes)
{
    return keep(__libc_calloc(count, size_bytes), count * size_bytes);
}

void *realloc(void *ptr, size_t size_bytes)
{
    drop(ptr);
    return keep(__libc_realloc(ptr, size_bytes), size_bytes);
}

void *aligned_alloc(size_t alignment, size_t size_bytes)
{
    return keep(__libc_memalign(alignment, size_bytes), size_bytes);
}

int posix_memalign(void **out, size_t alignment, size_t size_bytes)
{
    void *ptr = aligned_alloc(alignment, size_bytes);
    if (ptr)
        *out = ptr;
    return ptr ? 0 : ENOMEM;
}

void free(void *ptr)
{
    drop(ptr);
    __libc_free(ptr);
}

void *mmap(void *address, size_t size_bytes, int protection, int flags, int fd, off_t offset)
{
    long result = syscall(SYS_mmap, address, size_bytes, protection, flags, fd, offset);
    void *ptr = result == -1 ? MAP_FAILED : (void *)result;
    return ptr != MAP_FAILED && fd < 0 ? keep(ptr, size_bytes) : ptr; // files are not memory taken
}

int munmap(void *address, size_t size_bytes)
{
    drop(address);
    return (int)syscall(SYS_munmap, address, size_bytes);
}
#else
static int64_t live_bytes;
#endif

static uint64_t random_state = 88172645463325252u;

static int32_t pick(int32_t least, int32_t most)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return least + (int32_t)(random_state % (uint64_t)(most - least + 1));
}

/** A random small model of a random architecture, and random limits for it. */
struct sample {
    char json[1024];
    struct serve_options options;
    struct model_config model;
};

static void draw(struct sample *s)
{
    static const struct {
        const char *architecture, *type;
    } KINDS[] = {{"LlamaForCausalLM", "llama"},
                 {"MistralForCausalLM", "mistral"},
                 {"Qwen2ForCausalLM", "qwen2"},
                 {"Qwen3ForCausalLM", "qwen3"}};
    static const char *const DTYPES[] = {"bfloat16", "float16", "float32"};
    static const char *const CACHES[] = {"auto", "bfloat16", "float16"};
    int kind = pick(0, 3);
    int32_t kv_heads = pick(1, 3), heads = kv_heads * pick(1, 3), head_dim = 8 * pick(1, 8);
    snprintf(s->json, sizeof(s->json),
             "{\"architectures\":[\"%s\"],\"model_type\":\"%s\",\"hidden_size\":%d,"
             "\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
             "\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":%d,\"rms_norm_eps\":1e-5,"
             "\"max_position_embeddings\":%d,\"torch_dtype\":\"%s\",\"tie_word_embeddings\":%s}",
             KINDS[kind].architecture, KINDS[kind].type, 8 * pick(2, 40), 8 * pick(2, 80),
             pick(1, 6), heads, kv_heads, head_dim, pick(100, 5000), pick(64, 4096),
             DTYPES[pick(0, 2)], pick(0, 1) ? "true" : "false");
    s->options = driver_options("sample");
    s->options.load_format = LOAD_FORMAT_DUMMY;
    s->options.block_size = pick(0, 1) ? 1 << pick(0, 6) : pick(1, 100);
    s->options.dtype = pick(0, 1) ? "auto" : DTYPES[pick(0, 2)];
    s->options.max_num_seqs = pick(0, 1) ? pick(1, 64) : -1;
    s->options.max_num_batched_tokens = pick(0, 1) ? pick(64, 3000) : -1;
    s->options.kv_cache_dtype = CACHES[pick(0, 2)];
    s->options.kv_cache_memory_bytes = pick(0, 64) << 20;
    s->options.max_model_len = pick(0, 1) ? -1 : 0;
    struct error err = {0};
    if (model_config_parse(&s->model, str_from(s->json), "config.json", &err) != STATUS_OK)
        fail_msg("%s: %s", s->json, err.message);
}

static void expect_parts_to_add_up(const struct engine_config *config)
{
    int64_t weights = 0, workspace = 0;
    for (int i = 0; i < NUM_WEIGHT_KINDS; i++)
        weights += config->weight_kind_bytes[i];
    for (int i = 0; i < NUM_WORKSPACE_PARTS; i++)
        workspace += config->workspace_part_bytes[i];
    assert_int_equal(weights, config->weight_bytes + config->mapped_bytes);
    assert_int_equal(workspace, config->workspace_bytes);
    assert_int_equal(config->weight_kind_bytes[WEIGHT_KIND_OTHER], 0);
}

/** What the table leaves out: bookkeeping by the tensor and by the thread, and the first scratch
 *  of the CPU's operations. */
enum { UNPLANNED_BYTES = 1408 * 1024 };

/** What an executor has before anybody asks for structured output; the flight recorder is the
 *  engine's. */
static int64_t planned_at_start(const struct engine_config *config)
{
    return engine_config_total_bytes(config) - config->recorder_bytes -
           config->workspace_part_bytes[WORKSPACE_CONSTRAINTS];
}

static void what_an_executor_takes_is_what_the_table_says(void **state)
{
    (void)state;
    if (!CAN_COUNT)
        skip();
    int32_t num_created = 0;
    for (int32_t round = 0; round < 60; round++) {
        struct sample s;
        draw(&s);
        struct engine_config config;
        struct error err = {0};
        enum status status = engine_config_plan(&config, &s.options, &s.model, &err);
        if (status != STATUS_OK && status != STATUS_OUT_OF_MEMORY && status != STATUS_INVALID)
            fail_msg("%s: %s", s.json, err.message);
        if (status == STATUS_OK) {
            expect_parts_to_add_up(&config);
            struct executor *executor;
            int64_t before = live_bytes;
            if (executor_create(&executor, &config, NULL, &err) != STATUS_OK)
                fail_msg("%s", err.message);
            int64_t taken = live_bytes - before, planned = planned_at_start(&config);
            if (taken < planned || taken > planned + UNPLANNED_BYTES)
                fail_msg("planned %lld, taken %lld (%+lld): %s", (long long)planned,
                         (long long)taken, (long long)(taken - planned), s.json);
            executor_destroy(executor);
            assert_true(live_bytes - before < 64 * 1024); // what OpenMP keeps
            engine_config_deinit(&config);
            num_created++;
        }
        model_config_deinit(&s.model);
    }
    assert_true(num_created >= 20);
}

static void what_a_real_checkpoint_takes_is_what_the_table_says(void **state)
{
    (void)state;
    if (!CAN_COUNT)
        skip();
    static const char *const MODELS[] = {"llama", "llama_bias_tied", "mistral",      "qwen2",
                                         "qwen3", "qwen3_tied",      "qwen2_sliding"};
    static const char *const DTYPES[] = {"auto", "float32", "bfloat16"};
    for (size_t m = 0; m < ARRAY_LEN(MODELS); m++) {
        for (size_t d = 0; d < ARRAY_LEN(DTYPES); d++) {
            char dir[256];
            snprintf(dir, sizeof(dir), FIXTURES_DIR "/models/%s", MODELS[m]);
            struct serve_options options = driver_options(dir);
            options.dtype = DTYPES[d];
            struct driver driver;
            int64_t before = live_bytes;
            driver_start(&driver, &options);
            // What is mapped lies in files; the driver itself takes a little.
            int64_t taken = live_bytes - before + driver.config.mapped_bytes;
            int64_t planned = planned_at_start(&driver.config);
            expect_parts_to_add_up(&driver.config);
            assert_true(taken >= planned);
            assert_true(taken <= planned + UNPLANNED_BYTES + 512 * 1024);
            driver_stop(&driver);
        }
    }
}

/** Requests of a model of any shape on a GPU that this machine need not have. */
static void a_plan_for_a_gpu_needs_no_gpu(void **state)
{
    (void)state;
    int32_t num_planned = 0, num_graphs = 0;
    for (int32_t round = 0; round < 200; round++) {
        struct sample s;
        draw(&s);
        s.options.target_device = "cuda";
        s.options.enforce_eager = pick(0, 3) == 0;
        bool is_float32 = strcmp(s.options.dtype, "float32") == 0;
        enum dtype wanted = s.model.dtype;
        if (strcmp(s.options.dtype, "auto") != 0)
            assert_int_equal(dtype_parse(str_from(s.options.dtype), &wanted), STATUS_OK);
        const char *activations = wanted == DTYPE_F16 ? "float16" : "bfloat16";
        bool is_other_cache = strcmp(s.options.kv_cache_dtype, "auto") != 0 &&
                              strcmp(s.options.kv_cache_dtype, activations) != 0;
        struct engine_config config;
        struct error err = {0};
        int64_t memory_bytes = (int64_t)pick(1, 141) << 30;
        enum status status =
            engine_config_plan_for(&config, &s.options, &s.model, memory_bytes, &err);
        if (is_float32 || is_other_cache)
            assert_true(status == STATUS_UNSUPPORTED || status == STATUS_INVALID);
        else if (status != STATUS_OK && status != STATUS_OUT_OF_MEMORY && status != STATUS_INVALID)
            fail_msg("%s: %s", s.json, err.message);
        if (status == STATUS_OK) {
            expect_parts_to_add_up(&config);
            assert_int_equal(config.device, DEVICE_CUDA);
            assert_int_equal(config.mapped_bytes, 0); // everything is copied
            assert_true(config.workspace_part_bytes[WORKSPACE_PRODUCTS] == 32 << 20);
            assert_int_equal(config.workspace_part_bytes[WORKSPACE_SAMPLER], 0);
            assert_true(config.host_bytes > config.pinned_bytes && config.pinned_bytes > 0);
            assert_int_equal(config.graph_bytes > 0, !s.options.enforce_eager);
            assert_true(engine_config_total_bytes(&config) <= memory_bytes);
            num_graphs += config.graph_bytes > 0;
            num_planned++;
        }
        engine_config_deinit(&config);
        model_config_deinit(&s.model);
    }
    assert_true(num_planned >= 30 && num_graphs >= 15 && num_graphs < num_planned);
}

static const char BIG[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":4096,"
    "\"intermediate_size\":14336,\"num_hidden_layers\":32,\"num_attention_heads\":32,"
    "\"num_key_value_heads\":8,\"vocab_size\":128256,\"rms_norm_eps\":1e-5,"
    "\"max_position_embeddings\":131072,\"torch_dtype\":\"bfloat16\"}";

static struct serve_options big_options(void)
{
    struct serve_options options = driver_options("big");
    options.load_format = LOAD_FORMAT_DUMMY;
    options.kv_cache_memory_bytes = -1;
    return options;
}

/** Applies "--a 1 --b 2" to the options that plans look at. */
static void apply(struct serve_options *options, const char *flags)
{
    char copy[sizeof(((struct plan_remedy *)0)->flags)], *save = NULL;
    snprintf(copy, sizeof(copy), "%s", flags);
    for (char *flag = strtok_r(copy, " ", &save); flag; flag = strtok_r(NULL, " ", &save)) {
        const char *value = strtok_r(NULL, " ", &save);
        assert_non_null(value);
        if (strcmp(flag, "--gpu-memory-utilization") == 0)
            options->gpu_memory_utilization = strtod(value, NULL);
        else if (strcmp(flag, "--kv-cache-memory-bytes") == 0)
            options->kv_cache_memory_bytes = strtoll(value, NULL, 10);
        else if (strcmp(flag, "--num-gpu-blocks-override") == 0)
            options->num_gpu_blocks_override = (int32_t)strtol(value, NULL, 10);
        else if (strcmp(flag, "--max-num-batched-tokens") == 0)
            options->max_num_batched_tokens = (int32_t)strtol(value, NULL, 10);
        else if (strcmp(flag, "--max-num-seqs") == 0)
            options->max_num_seqs = (int32_t)strtol(value, NULL, 10);
        else if (strcmp(flag, "--max-model-len") == 0)
            options->max_model_len = strtoll(value, NULL, 10);
        else if (strcmp(flag, "--kv-cache-dtype") == 0)
            options->kv_cache_dtype = "bfloat16";
        else if (strcmp(flag, "--dtype") == 0)
            options->dtype = "bfloat16";
        else if (strcmp(flag, "--quantization") == 0)
            options->quantization = "fp8";
        else
            fail_msg("an unknown remedy: %s", flags);
    }
}

static void every_remedy_makes_the_plan_fit(void **state)
{
    (void)state;
    static const struct {
        int64_t memory_gib, cache_bytes;
        int32_t blocks, batched_tokens;
        double utilization;
        const char *first; // the remedy that comes first; NULL: none is expected
    } CASES[] = {
        {10, -1, -1, -1, 0.92, NULL}, // the weights alone take more
        {17, -1, -1, -1, 0.92, "--max-model-len"},
        {24, -1, -1, -1, 0.92, "--max-model-len"},
        {36, -1, -1, -1, 0.92, "--kv-cache-dtype bfloat16"},
        {50, -1, -1, -1, 0.92, "--gpu-memory-utilization 0.96"},
        {64, 1 << 30, -1, -1, 0.92, "--kv-cache-memory-bytes 34359738368"},
        {64, -1, 100, -1, 0.92, "--num-gpu-blocks-override 8192"},
        {16, -1, -1, 16384, 0.99, "--max-num-seqs 8 --max-num-batched-tokens 256"},
    };
    struct model_config model;
    DRIVER_OK(model_config_parse(&model, str_from(BIG), "config.json", &err));
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct serve_options options = big_options();
        options.gpu_memory_utilization = CASES[i].utilization;
        options.kv_cache_memory_bytes = CASES[i].cache_bytes;
        options.num_gpu_blocks_override = CASES[i].blocks;
        options.max_num_batched_tokens = CASES[i].batched_tokens;
        int64_t memory_bytes = CASES[i].memory_gib << 30;
        struct engine_config config, changed;
        struct error refusal = {0};
        assert_int_equal(engine_config_plan_for(&config, &options, &model, memory_bytes, &refusal),
                         STATUS_OUT_OF_MEMORY);
        assert_true(config.weight_bytes > 0 && config.workspace_bytes > 0);
        struct plan_verdict verdict = {.problem = refusal.message};
        plan_find_remedies(&verdict, &config, memory_bytes);
        if (!CASES[i].first) {
            assert_int_equal(verdict.num_remedies, 0);
        } else {
            assert_true(verdict.num_remedies > 0);
            if (strncmp(verdict.remedies[0].flags, CASES[i].first, strlen(CASES[i].first)) != 0)
                fail_msg("%d GiB: %s", (int)CASES[i].memory_gib, verdict.remedies[0].flags);
        }
        for (int32_t r = 0; r < verdict.num_remedies; r++) {
            struct serve_options remedied = options;
            apply(&remedied, verdict.remedies[r].flags);
            DRIVER_OK(engine_config_plan_for(&changed, &remedied, &model, memory_bytes, &err));
            engine_config_deinit(&changed);
        }
        engine_config_deinit(&config);
    }
    model_config_deinit(&model);
}

static void a_gpu_is_planned_for_as_the_backend_allocates(void **state)
{
    (void)state;
    struct model_config model;
    struct engine_config config;
    DRIVER_OK(model_config_parse(&model, str_from(BIG), "config.json", &err));
    struct serve_options options = big_options();
    options.target_device = "cuda";
    options.max_model_len = 8192;
    DRIVER_OK(engine_config_plan_for(&config, &options, &model, (int64_t)141 << 30, &err));
    assert_int_equal(config.max_num_batched_tokens, 8192); // of a GPU with much memory
    assert_int_equal(config.max_num_seqs, 1024);
    assert_int_equal(config.kv_cache.block_bytes, 16 * 2 * 32 * 8 * 128 * 2);
    // 33 CTAs of 132 multiprocessors for 8 kv heads: a plan of 40 words and 1,057 segments of 32
    // bytes, and for each of 32 heads a counter by sequence and 129 floats by segment.
    int64_t plan_bytes = 40 * 4 + 1057 * 32, scratch_bytes = 4 * 32 * (1024 + 1057 * 129);
    int64_t expected = (plan_bytes + 511) / 512 * 512 + (scratch_bytes + 511) / 512 * 512;
    assert_int_equal(config.workspace_part_bytes[WORKSPACE_PRODUCTS], 32 << 20);
    assert_int_equal(config.workspace_part_bytes[WORKSPACE_DECODING], expected);
    assert_int_equal(config.weight_bytes, 16060522496 + 8192 * 128 * 4); // and rotary tables
    engine_config_deinit(&config);
    model_config_deinit(&model);
}

static void weights_in_eight_bits_take_their_elements_and_scales(void **state)
{
    (void)state;
    static const struct {
        const char *method;
        int64_t scales; // of a layer
    } CASES[] = {
        {"fp8", 6144 + 4096 + 28672 + 4096},
        {"fp8_per_channel", 6144 + 4096 + 28672 + 4096},
        {"fp8_per_block", (48 + 32 + 224) * 32 + 32 * 112},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct model_config model;
        struct engine_config config;
        DRIVER_OK(model_config_parse(&model, str_from(BIG), "config.json", &err));
        struct serve_options options = big_options();
        options.target_device = "cuda";
        options.quantization = CASES[i].method;
        options.max_model_len = 8192;
        DRIVER_OK(engine_config_plan_for(&config, &options, &model, (int64_t)141 << 30, &err));
        expect_parts_to_add_up(&config);
        int64_t elements = 4096 * (6144 + 4096 + 28672 + (int64_t)14336), layers = 32;
        assert_int_equal(config.weight_bytes,
                         16060522496 + 8192 * 128 * 4 - layers * (elements - CASES[i].scales * 4));
        // Codes of a step's activations, a scale for each 128 of them, and 512 rows of the widest
        // result.
        int64_t scratch_bytes = 8192 * (14336 + 112 * 4) + 512 * 28672 * 2;
        assert_int_equal(config.workspace_part_bytes[WORKSPACE_PRODUCTS],
                         (32 << 20) + scratch_bytes);
        struct buf text = {0};
        plan_report_text(&text, &config);
        buf_append_char(&text, '\0');
        assert_non_null(strstr(text.ptr, ", linear layers in 8 bits (fp8"));
        buf_deinit(&text);
        engine_config_deinit(&config);
        model_config_deinit(&model);
    }
}

static void the_tables_say_the_same(void **state)
{
    (void)state;
    struct model_config model;
    struct engine_config config;
    DRIVER_OK(model_config_parse(&model, str_from(BIG), "config.json", &err));
    struct serve_options options = big_options();
    options.kv_cache_dtype = "bfloat16";
    DRIVER_OK(engine_config_plan_for(&config, &options, &model, (int64_t)141 << 30, &err));
    struct buf text = {0}, json = {0};
    plan_report_text(&text, &config);
    plan_report_concurrency(&text, &config);
    buf_append_char(&text, '\0');
    static const char *const LINES[] = {
        "  weights                  15.02 GiB\n",
        "    embeddings           1002.00 MiB\n",
        "    attention               2.50 GiB\n",
        "    mlp                    10.50 GiB\n",
        "    131,072 bytes a token = 2 (key and value) x 32 layers x 8 heads x 128 x 2 bytes "
        "(bfloat16)\n",
        " of the 141.00 GiB given\n",
        "    131,072 tokens        7.13\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(LINES); i++) {
        if (!strstr(text.ptr, LINES[i]))
            fail_msg("no line \"%s\" in\n%s", LINES[i], text.ptr);
    }
    plan_report_json(&json, &config, &(struct plan_verdict){0});
    json_t *root = json_loadb(json.ptr, json.len, 0, NULL);
    assert_non_null(root);
    assert_true(json_is_true(json_object_get(root, "fits")));
    json_t *cache = json_object_get(root, "kv_cache");
    assert_int_equal(json_integer_value(json_object_get(cache, "bytes_per_token")), 131072);
    assert_int_equal(json_integer_value(json_object_get(cache, "num_blocks")),
                     config.kv_cache.num_blocks);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(root, "memory"), "planned_bytes")),
        engine_config_total_bytes(&config));
    json_decref(root);
    buf_deinit(&text);
    buf_deinit(&json);
    engine_config_deinit(&config);
    model_config_deinit(&model);
}

int main(void)
{
    log_set_level(LOG_LEVEL_WARNING);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_an_executor_takes_is_what_the_table_says),
        cmocka_unit_test(what_a_real_checkpoint_takes_is_what_the_table_says),
        cmocka_unit_test(a_plan_for_a_gpu_needs_no_gpu),
        cmocka_unit_test(a_gpu_is_planned_for_as_the_backend_allocates),
        cmocka_unit_test(weights_in_eight_bits_take_their_elements_and_scales),
        cmocka_unit_test(every_remedy_makes_the_plan_fit),
        cmocka_unit_test(the_tables_say_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
