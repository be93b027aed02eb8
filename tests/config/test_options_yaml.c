// The --config file.
#include "cmocka_setup.h"
#include <unistd.h>

#include "base/memory.h"
#include "config/option_table.h"

static enum status parse(const char *text, struct arena *arena, struct buf *joined,
                         const char **model, struct error *err)
{
    struct str_list words;
    enum status status = options_yaml_parse(str_from(text), "f.yaml", arena, &words, model, err);
    if (status == STATUS_OK) {
        for (int32_t i = 0; i < words.len; i++)
            buf_printf(joined, "%s%s", i > 0 ? "|" : "", words.items[i]);
    }
    buf_append_char(joined, '\0');
    return status;
}

static void values_become_words(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *words, *model;
    } rows[] = {
        {"port: 8001\n", "--port=8001", NULL},
        {"port: 0x1F\n", "--port=31", NULL},
        {"port: 010\n", "--port=8", NULL},
        {"max-model-len: 32k", "--max-model-len=32k", NULL},
        {"max_model_len: 1_000", "--max_model_len=1000", NULL},
        {"gpu-memory-utilization: 0.9", "--gpu-memory-utilization=0.9", NULL},
        {"a: 1e3", "--a=1e3", NULL},
        {"a: -1", "--a=-1", NULL},
        {"a: -x", "--a=-x", NULL},
        {"enforce-eager: true\nb: yes", "--enforce-eager|--b", NULL},
        {"enforce-eager: false\nb: off", "", NULL},
        {"a: 'true'", "--a=true", NULL},
        {"a: \"007\"", "--a=007", NULL},
        {"a: ''", "--a=", NULL},
        {"a: null\nb: ~\nc:", "--a=None|--b=None|--c=None", NULL},
        {"api-key: [k1, k2]", "--api-key|k1|k2", NULL},
        {"api-key:\n  - k1\n  - 7\n", "--api-key|k1|7", NULL},
        {"api-key: []", "", NULL},
        {"c: {a: 1, b: {d: [true, null, 2.5, x]}}",
         "--c={\"a\":1,\"b\":{\"d\":[true,null,2.5,\"x\"]}}", NULL},
        {"model: some/dir\nport: 1", "--port=1", "some/dir"},
        {"# nothing but this\na: 1", "--a=1", NULL},
        {"---\na: 1\n...\n", "--a=1", NULL},
        {"{}", "", NULL},
        {"a: 99999999999999999999", "--a=99999999999999999999", NULL},
        {"a: 1.", "--a=1.0", NULL},
        {"a: .", "--a=.", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena arena = {0};
        struct buf joined = {0};
        struct error err = {0};
        const char *model = NULL;
        if (parse(rows[i].yaml, &arena, &joined, &model, &err) != STATUS_OK)
            fail_msg("%s: %s", rows[i].yaml, err.message);
        if (strcmp(joined.ptr, rows[i].words) != 0)
            fail_msg("%s: %s, expected %s", rows[i].yaml, joined.ptr, rows[i].words);
        if (rows[i].model)
            assert_string_equal(model, rows[i].model);
        else
            assert_null(model);
        buf_deinit(&joined);
        arena_deinit(&arena);
    }
}

static void malformed_files_are_refused_with_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *message;
    } rows[] = {
        {"", "f.yaml: expected a mapping"},
        {"- a\n- b\n", "expected a mapping"},
        {"just text", "expected a mapping"},
        {"a: 1\na: 2\n", "f.yaml: line 2: 'a' is given twice"},
        {"a: 1\n---\nb: 2\n", "expected a single document"},
        {"a: [1, 2\n", "line 2"},
        {"a: {b: 1\n", "line 2"},
        {"a:\n\t- b", "line 2"},
        {"x: &x [1]\ny: *x\n", "anchors and aliases are not supported"},
        {"x: *y\n", "anchors and aliases are not supported"},
        {"x: &a 1\n", "anchors and aliases are not supported"},
        {"? [a]\n: 1\n", "expected a name before ':'"},
        {"'': 1\n", "expected a name before ':'"},
        {"config: other.yaml\n", "'config' is not the name of an option"},
        {"--port: 1\n", "'--port' is not the name of an option"},
        {"a: \"x\\0y\"\n", "a zero byte"},
        {"model: [a]\n", "'model' is not a text"},
        {"a: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]\n",
         "nested too deeply"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena arena = {0};
        struct buf joined = {0};
        struct error err = {0};
        const char *model = NULL;
        if (parse(rows[i].yaml, &arena, &joined, &model, &err) == STATUS_OK)
            fail_msg("%s: accepted as %s", rows[i].yaml, joined.ptr);
        if (!strstr(err.message, rows[i].message))
            fail_msg("%s: '%s' has no '%s'", rows[i].yaml, err.message, rows[i].message);
        buf_deinit(&joined);
        arena_deinit(&arena);
    }
}

static void large_files_are_refused_before_they_are_read(void **state)
{
    (void)state;
    size_t len = 2 * 1024 * 1024;
    char *text = xmalloc(len);
    memset(text, '\n', len);
    struct arena arena = {0};
    struct str_list words;
    const char *model = NULL;
    struct error err = {0};
    assert_int_equal(
        options_yaml_parse((struct str){text, len}, "f.yaml", &arena, &words, &model, &err),
        STATUS_TOO_LARGE);
    free(text);
    arena_deinit(&arena);
}

static char config_path[] = "/tmp/vllm-test-XXXXXX.yaml";

static void write_config(const char *text)
{
    FILE *file = fopen(config_path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static enum options_outcome run(struct serve_options *options, int argc, const char *const *words,
                                int *exit_status, char **err_text)
{
    size_t len = 0, out_len = 0;
    char *out_text = NULL;
    FILE *err = open_memstream(err_text, &len), *out = open_memstream(&out_text, &out_len);
    char *argv[16] = {0};
    for (int i = 0; i < argc; i++)
        argv[i] = (char *)(uintptr_t)words[i];
    enum options_outcome outcome =
        options_parse_serve_to(options, argc, argv, out, err, exit_status);
    fclose(err);
    fclose(out);
    free(out_text);
    return outcome;
}

static void the_command_line_wins_over_the_file_and_the_file_over_the_defaults(void **state)
{
    (void)state;
    write_config("model: " MODELS_DIR "/demo\n"
                 "port: 9001\n"
                 "max-num-seqs: 5\n"
                 "api-key: [k1, k2]\n"
                 "enable_log_requests: true\n"
                 "override-generation-config: {top_k: 3}\n");
    struct serve_options options;
    int exit_status = -1;
    char *err = NULL;
    const char *words[] = {"--config", config_path, "--port", "9002", "--no-enable-log-requests"};
    if (run(&options, 5, words, &exit_status, &err) != OPTIONS_RUN)
        fail_msg("exit %d: %s", exit_status, err);
    assert_string_equal(options.model, MODELS_DIR "/demo");
    assert_int_equal(options.port, 9002);
    assert_int_equal(options.max_num_seqs, 5);
    assert_int_equal(options.api_keys.len, 2);
    assert_false(options.enable_log_requests);
    assert_string_equal(options.override_generation_config, "{\"top_k\":3}");
    assert_string_equal(err, ""); // the file's value is no duplicate
    options_deinit(&options);
    free(err);
}

static void a_positional_model_wins_over_the_file(void **state)
{
    (void)state;
    write_config("model: /nowhere\n");
    struct serve_options options;
    int exit_status = -1;
    char *err = NULL;
    const char *words[] = {MODELS_DIR "/demo", "--config", config_path};
    if (run(&options, 3, words, &exit_status, &err) != OPTIONS_RUN)
        fail_msg("exit %d: %s", exit_status, err);
    assert_string_equal(options.model, MODELS_DIR "/demo");
    options_deinit(&options);
    free(err);
}

static void a_file_without_a_model_needs_one_on_the_command_line(void **state)
{
    (void)state;
    write_config("port: 1\n");
    struct serve_options options;
    int exit_status = -1;
    char *err = NULL;
    const char *words[] = {"--config", config_path};
    assert_int_equal(run(&options, 2, words, &exit_status, &err), OPTIONS_EXIT);
    assert_int_equal(exit_status, 1);
    assert_non_null(strstr(err, "No model specified!"));
    free(err);
}

static void unknown_keys_of_the_file_are_unrecognized(void **state)
{
    (void)state;
    write_config("model: " MODELS_DIR "/demo\nfoo: 1\n");
    struct serve_options options;
    int exit_status = -1;
    char *err = NULL;
    const char *words[] = {"--config", config_path};
    assert_int_equal(run(&options, 2, words, &exit_status, &err), OPTIONS_EXIT);
    assert_int_equal(exit_status, 2);
    assert_non_null(strstr(err, "unrecognized arguments: --foo=1"));
    free(err);
}

int main(void)
{
    int fd = mkstemps(config_path, 5);
    if (fd < 0)
        return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_become_words),
        cmocka_unit_test(malformed_files_are_refused_with_the_line),
        cmocka_unit_test(large_files_are_refused_before_they_are_read),
        cmocka_unit_test(the_command_line_wins_over_the_file_and_the_file_over_the_defaults),
        cmocka_unit_test(a_positional_model_wins_over_the_file),
        cmocka_unit_test(a_file_without_a_model_needs_one_on_the_command_line),
        cmocka_unit_test(unknown_keys_of_the_file_are_unrecognized),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(config_path);
    return failed;
}
