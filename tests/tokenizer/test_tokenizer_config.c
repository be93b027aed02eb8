#include "cmocka_setup.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "tokenizer/tokenizer_config.h"

/** A folder of its own for each test. */
struct folder {
    char path[64];
};

static int setup(void **state)
{
    struct folder *folder = xcalloc(1, sizeof(*folder));
    snprintf(folder->path, sizeof(folder->path), "/tmp/tokenizer_config_XXXXXX");
    *state = folder;
    return mkdtemp(folder->path) ? 0 : -1;
}

static const char *const file_names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                         "chat_template.jinja", "tokenizer.json"};
static const char *const more_file_names[] = {
    "chat_template.json", "additional_chat_templates/tool_use.jinja",
    "additional_chat_templates/rag.jinja", "additional_chat_templates/notes.txt"};

static int teardown(void **state)
{
    struct folder *folder = *state;
    char path[128];
    for (size_t i = 0; i < ARRAY_LEN(file_names); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder->path, file_names[i]);
        unlink(path);
    }
    for (size_t i = 0; i < ARRAY_LEN(more_file_names); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder->path, more_file_names[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/additional_chat_templates", folder->path);
    rmdir(path);
    rmdir(folder->path);
    free(folder);
    return 0;
}

static void write_file(const struct folder *folder, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder->path, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void load(struct tokenizer_config *config, const char *dir)
{
    struct error err = {0};
    if (tokenizer_config_load(config, dir, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static void absent_files_give_an_empty_config(void **state)
{
    struct folder *folder = *state;
    struct tokenizer_config config;
    load(&config, folder->path);
    assert_int_equal(config.bos_token.len, 0);
    assert_null(config.chat_template.ptr);
    assert_int_equal(json_object_size(config.special_tokens), 0);
    assert_int_equal(config.model_max_length, 0);
    assert_int_equal(config.add_bos_token, -1);
    tokenizer_config_deinit(&config);
}

static void tokens_are_strings_or_objects(void **state)
{
    struct folder *folder = *state;
    write_file(
        folder, "tokenizer_config.json",
        "{\"bos_token\":\"<s>\",\"eos_token\":{\"__type\":\"AddedToken\",\"content\":\"</s>\"},"
        "\"unk_token\":null,\"model_max_length\":1000000000000000019884624838656,"
        "\"add_bos_token\":true,\"chat_template\":\"hello\","
        "\"extra_special_tokens\":{\"image_token\":\"<image>\"}}");
    write_file(folder, "special_tokens_map.json",
               "{\"bos_token\":\"<other>\",\"unk_token\":{\"content\":\"<unk>\",\"lstrip\":false},"
               "\"additional_special_tokens\":[\"x\"]}");
    struct tokenizer_config config;
    load(&config, folder->path);
    assert_true(str_eq_c(config.bos_token, "<s>")); // the first file wins
    assert_true(str_eq_c(config.eos_token, "</s>"));
    assert_true(str_eq_c(config.unk_token, "<unk>"));
    assert_null(config.pad_token.ptr);
    assert_true(str_eq_c(config.chat_template, "hello"));
    assert_int_equal(config.model_max_length, 0);
    assert_int_equal(config.add_bos_token, 1);
    assert_int_equal(json_object_size(config.special_tokens), 4);
    assert_string_equal(json_string_value(json_object_get(config.special_tokens, "eos_token")),
                        "</s>");
    assert_string_equal(json_string_value(json_object_get(config.special_tokens, "image_token")),
                        "<image>");
    tokenizer_config_deinit(&config);
}

static void template_file_wins_over_the_config(void **state)
{
    struct folder *folder = *state;
    write_file(folder, "tokenizer_config.json",
               "{\"chat_template\":\"from the config\",\"model_max_length\":4096}");
    write_file(folder, "chat_template.jinja", "from the file\n");
    write_file(folder, "tokenizer.json", "{}");
    char path[128];
    snprintf(path, sizeof(path), "%s/tokenizer.json", folder->path);
    const char *const dirs[] = {folder->path, path};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        struct tokenizer_config config;
        load(&config, dirs[i]);
        assert_true(str_eq_c(config.chat_template, "from the file\n"));
        assert_int_equal(config.model_max_length, 4096);
        tokenizer_config_deinit(&config);
    }
}

static void listed_templates_are_found_by_name(void **state)
{
    struct folder *folder = *state;
    write_file(folder, "tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},"
               "{\"name\":\"default\",\"template\":\"D\"}]}");
    struct tokenizer_config config;
    load(&config, folder->path);
    assert_true(str_eq_c(config.chat_template, "D"));
    assert_true(str_eq_c(tokenizer_config_template(&config, STR("tool_use")), "T"));
    assert_true(str_eq_c(tokenizer_config_template(&config, STR("rag")), "D"));
    tokenizer_config_deinit(&config);
}

static void templates_in_files_win_and_have_the_names_of_their_files(void **state)
{
    struct folder *folder = *state;
    struct tokenizer_config config;
    write_file(folder, "tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},"
               "{\"name\":\"old\",\"template\":\"O\"}]}");
    write_file(folder, "chat_template.json", "{\"other\":1,\"chat_template\":\"J\"}");
    load(&config, folder->path);
    assert_true(str_eq_c(config.chat_template, "J"));
    assert_int_equal(config.num_named_chat_templates, 0);
    tokenizer_config_deinit(&config);

    char path[128];
    snprintf(path, sizeof(path), "%s/additional_chat_templates", folder->path);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file(folder, "chat_template.jinja", "F");
    write_file(folder, "additional_chat_templates/tool_use.jinja", "T");
    write_file(folder, "additional_chat_templates/rag.jinja", "R");
    write_file(folder, "additional_chat_templates/notes.txt", "no template");
    load(&config, folder->path);
    assert_true(str_eq_c(config.chat_template, "F"));
    assert_int_equal(config.num_named_chat_templates, 3);
    static const char *const EXPECTED[][2] = {
        {"default", "F"}, {"tool_use", "T"}, {"rag", "R"}, {"old", "F"}, {"notes", "F"}};
    for (size_t i = 0; i < ARRAY_LEN(EXPECTED); i++)
        assert_true(
            str_eq_c(tokenizer_config_template(&config, str_from(EXPECTED[i][0])), EXPECTED[i][1]));
    tokenizer_config_deinit(&config);

    write_file(folder, "chat_template.json", "{\"chat_template\":5}");
    struct error err = {0};
    assert_int_not_equal(tokenizer_config_load(&config, folder->path, &err), STATUS_OK);
    assert_non_null(strstr(err.message, "chat_template.json"));
    tokenizer_config_deinit(&config);
}

static void malformed_files_are_refused_by_name(void **state)
{
    struct folder *folder = *state;
    static const struct {
        const char *file, *text, *message;
    } cases[] = {
        {"tokenizer_config.json", "", "tokenizer_config.json: malformed JSON at byte 0"},
        {"tokenizer_config.json", "[]", "expected an object"},
        {"tokenizer_config.json", "{\"bos_token\":7}", "expected a string, found an integer"},
        {"tokenizer_config.json", "{\"bos_token\":{}}", "needs \"content\""},
        {"tokenizer_config.json", "{\"chat_template\":7}", "expected a string"},
        {"tokenizer_config.json", "{\"chat_template\":[{\"name\":\"x\"}]}", "needs \"name\" and"},
        {"tokenizer_config.json", "{\"model_max_length\":\"x\"}", "model_max_length must be"},
        {"tokenizer_config.json", "{\"add_bos_token\":\"x\"}", "expected a boolean"},
        {"tokenizer_config.json", "{} {}", "more text"},
        {"special_tokens_map.json", "{", "special_tokens_map.json: malformed JSON"},
        {"chat_template.jinja", "a\xFF", "chat_template.jinja: malformed UTF-8 at byte 1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t f = 0; f < ARRAY_LEN(file_names); f++)
            write_file(folder, file_names[f], f < 2 ? "{}" : "");
        write_file(folder, cases[i].file, cases[i].text);
        struct tokenizer_config config;
        struct error err = {0};
        assert_int_equal(tokenizer_config_load(&config, folder->path, &err), STATUS_INVALID);
        if (!strstr(err.message, cases[i].message))
            fail_msg("%s: %s", cases[i].text, err.message);
        assert_null(config.special_tokens);
    }
}

static void demo_model_names_its_end(void **state)
{
    (void)state;
    struct tokenizer_config config;
    load(&config, MODELS_DIR "/demo");
    assert_true(str_eq_c(config.eos_token, "<|im_end|>"));
    assert_null(config.bos_token.ptr);
    assert_true(str_find(config.chat_template, STR("add_generation_prompt"), 0) != STR_NOT_FOUND);
    tokenizer_config_deinit(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(absent_files_give_an_empty_config, setup, teardown),
        cmocka_unit_test_setup_teardown(tokens_are_strings_or_objects, setup, teardown),
        cmocka_unit_test_setup_teardown(template_file_wins_over_the_config, setup, teardown),
        cmocka_unit_test_setup_teardown(listed_templates_are_found_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(templates_in_files_win_and_have_the_names_of_their_files,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(malformed_files_are_refused_by_name, setup, teardown),
        cmocka_unit_test(demo_model_names_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
