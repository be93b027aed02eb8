// Commands as words, and the sets of flags that a sweep puts into them.
#include "cmocka_setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "benchmarks/command_words.h"
#include "benchmarks/sweep_params.h"

static void commands_are_split_as_a_shell_would(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int num; // -1: refused
        const char *words[4];
    } rows[] = {
        {"vllm serve m", 3, {"vllm", "serve", "m"}},
        {"  a\t b\n", 2, {"a", "b"}},
        {"a 'b c' \"d e\"", 3, {"a", "b c", "d e"}},
        {"a'b 'c\"d\"", 1, {"ab cd"}},
        {"--x '{\"k\": \"v\"}'", 2, {"--x", "{\"k\": \"v\"}"}},
        {"a \"\\\"b\\\\\" '\\'", 3, {"a", "\"b\\", "\\"}},
        {"a\\ b \"\\n\" \\'", 3, {"a b", "\\n", "'"}},
        {"a '' \"\"", 3, {"a", "", ""}},
        {"a $HOME *.c | b", 5, {"a", "$HOME", "*.c", "|"}},
        {"", -1, {NULL}},
        {"  ", -1, {NULL}},
        {"a 'b", -1, {NULL}},
        {"a \"b", -1, {NULL}},
        {"a \\", -1, {NULL}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena arena = {0};
        struct str_list words;
        struct error err = {0};
        enum status status = command_words_split(&words, "--serve-cmd", rows[i].text, &arena, &err);
        bool right = rows[i].num < 0
                         ? status == STATUS_INVALID && strstr(err.message, "--serve-cmd")
                         : status == STATUS_OK && words.len == rows[i].num;
        for (int w = 0; right && w < rows[i].num && w < 4; w++)
            right = strcmp(words.items[w], rows[i].words[w]) == 0;
        if (!right)
            fail_msg("'%s': %s", rows[i].text, err.message);
        if (rows[i].num > 0) { // what is shown means the same
            struct str_list again;
            const char *text = command_words_text(&words, &arena);
            assert_int_equal(command_words_split(&again, "", text, &arena, &err), STATUS_OK);
            assert_int_equal(again.len, words.len);
            for (int w = 0; w < words.len; w++)
                assert_string_equal(again.items[w], words.items[w]);
        }
        arena_deinit(&arena);
    }
}

static void a_flag_is_replaced_where_it_stands_or_appended(void **state)
{
    (void)state;
    static const struct {
        const char *command, *flags, *expected;
    } rows[] = {
        {"s m --a-b 1 --c", "{\"a_b\": 2}", "s m --a-b 2 --c"},
        {"s m --a_b=1 --c", "{\"a-b\": \"x y\"}", "s m --a-b 'x y' --c"},
        {"s m", "{\"port\": 8001, \"rate\": 0.25}", "s m --port 8001 --rate 0.25"},
        {"s --no-x m", "{\"x\": true}", "s --x m"},
        {"s --x m", "{\"x\": false}", "s --no-x m"},
        {"s m", "{\"x\": false, \"y_z\": true}", "s m --no-x --y-z"},
        {"s --g a b --h m", "{\"g\": [\"c\", 2, \"d\"]}", "s --g c 2 d --h m"},
        {"s --j '{}' m", "{\"j\": {\"k\": [1]}}", "s --j '{\"k\":[1]}' m"},
        {"s --ab 1", "{\"a\": 2}", "s --ab 1 --a 2"},
        {"s --a 1 --a 2 m", "{\"a\": 3}", "s --a 3 m"},
        {"s", "{\"n\": -1}", "s --n=-1"},
        {"s", "{}", "s"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena arena = {0};
        struct str_list words;
        json_t *flags = json_loads(rows[i].flags, 0, NULL);
        assert_int_equal(command_words_split(&words, "", rows[i].command, &arena, NULL), STATUS_OK);
        sweep_params_apply(flags, &words, &arena);
        assert_string_equal(command_words_text(&words, &arena), rows[i].expected);
        json_decref(flags);
        arena_deinit(&arena);
    }
}

static void the_last_value_of_a_flag_is_found(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct str_list words;
    assert_int_equal(
        command_words_split(&words, "", "s --port 1 --api-key=k --port=2 --end", &arena, NULL),
        STATUS_OK);
    assert_string_equal(command_words_find(&words, "port"), "2");
    assert_string_equal(command_words_find(&words, "api_key"), "k");
    assert_string_equal(command_words_find(&words, "end"), "");
    assert_null(command_words_find(&words, "por"));
    assert_null(command_words_find(&words, "ports"));
    arena_deinit(&arena);
}

/** Reads sets from this text. */
static enum status load(struct sweep_params_list *list, const char *text, struct arena *arena,
                        struct error *err)
{
    char path[] = "/tmp/vllm-params-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    enum status status = sweep_params_load(list, path, arena, err);
    unlink(path);
    return status;
}

static void sets_are_called_by_their_flags_or_their_own_names(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int num;
        const char *names[3];
    } rows[] = {
        {"[{\"a\": 1}, {\"a\": 2, \"b_c\": \"x\"}, {}]", 3, {"a=1", "a=2-b_c=x", "default"}},
        {"{\"low\": {\"a\": 1}, \"hi/gh\": {\"a\": 1}}", 2, {"low", "hi_gh"}},
        {"[{\"_benchmark_name\": \"mine\", \"a\": true}]", 1, {"mine"}},
        {"[{\"m\": \"org/model\", \"o\": {\"k\":1}}]", 1, {"m=org_model-o={_k__1}"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena arena = {0};
        struct sweep_params_list list;
        struct error err = {0};
        if (load(&list, rows[i].text, &arena, &err) != STATUS_OK)
            fail_msg("%s: %s", rows[i].text, err.message);
        assert_int_equal(list.num, rows[i].num);
        for (int k = 0; k < list.num; k++) {
            assert_string_equal(list.items[k].name, rows[i].names[k]);
            assert_null(json_object_get(list.items[k].values, "_benchmark_name"));
        }
        sweep_params_deinit(&list);
        arena_deinit(&arena);
    }
    struct arena arena = {0};
    struct sweep_params_list none;
    assert_int_equal(sweep_params_load(&none, NULL, &arena, NULL), STATUS_OK);
    assert_int_equal(none.num, 1);
    assert_false(none.is_given);
    assert_int_equal(json_object_size(none.items[0].values), 0);
    sweep_params_deinit(&none);
    arena_deinit(&arena);
}

static void long_names_are_cut_and_stay_apart(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct sweep_params_list list;
    struct error err = {0};
    char value[400], text[1000];
    memset(value, 'x', sizeof(value) - 1);
    value[sizeof(value) - 1] = '\0';
    snprintf(text, sizeof(text), "[{\"a\": \"%s\"}, {\"a\": \"%sy\"}]", value, value);
    assert_int_equal(load(&list, text, &arena, &err), STATUS_OK);
    assert_true(strlen(list.items[0].name) < 100);
    assert_string_not_equal(list.items[0].name, list.items[1].name);
    sweep_params_deinit(&list);
    arena_deinit(&arena);
}

static void malformed_sets_are_refused_with_their_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"[{\"a\": 1},\n {\"a\" 2}]", "(line 2)"},
        {"[]", "expected a list of 1 to"},
        {"5", "or '{' expected"},
        {"[1]", "set 0 is no object of flags"},
        {"[{\"a\": 1}, {\"a\": null}]", "set 1: \"a\" must be"},
        {"[{\"a\": [[1]]}]", "set 0: \"a\" must be"},
        {"[{\"--a\": 1}]", "set 0: \"--a\" must be a flag's name without dashes"},
        {"[{\"_benchmark_name\": 7}]", "\"_benchmark_name\" must be a string"},
        {"[{\"a\": 1}, {\"a\": 1}]", "sets 0 and 1 are both called 'a=1'"},
        {"[{\"a\": 1, \"a\": 2}]", "duplicate"},
    };
    struct arena arena = {0};
    struct sweep_params_list list;
    struct error err = {0};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        enum status status = load(&list, rows[i].text, &arena, &err);
        if (status != STATUS_INVALID || !strstr(err.message, rows[i].message))
            fail_msg("%s: %s: %s", rows[i].text, status_name(status), err.message);
        sweep_params_deinit(&list);
    }
    assert_int_equal(sweep_params_load(&list, "/nowhere/x.json", &arena, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nowhere/x.json"));
    sweep_params_deinit(&list);
    arena_deinit(&arena);
}

static void links_keep_the_pairs_whose_flags_are_equal(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct sweep_params_list serve, bench;
    struct error err = {0};
    const char *items[] = {"seqs=limit"}, *wrong[] = {"seqs"}, *unknown[] = {"seqs=foo"};
    struct str_list links = {items, 1}, no_link = {wrong, 1}, no_flag = {unknown, 1}, none = {0};
    assert_int_equal(load(&serve, "[{\"seqs\": 1}, {\"seqs\": 4}]", &arena, &err), STATUS_OK);
    assert_int_equal(load(&bench, "[{\"limit\": 4}, {\"limit\": 1.0}, {\"x\": 4}]", &arena, &err),
                     STATUS_OK);
    assert_int_equal(sweep_links_check(&links, &serve, &bench, &err), STATUS_OK);
    static const bool expected[2][3] = {{false, true, false}, {true, false, false}};
    for (int s = 0; s < 2; s++) {
        for (int b = 0; b < 3; b++) {
            const json_t *left = serve.items[s].values, *right = bench.items[b].values;
            assert_int_equal(sweep_links_match(&links, left, right), expected[s][b]);
            assert_true(sweep_links_match(&none, left, right));
        }
    }
    assert_int_equal(sweep_links_check(&no_link, &serve, &bench, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "'seqs', expected SERVE_FLAG=BENCH_FLAG"));
    assert_int_equal(sweep_links_check(&no_flag, &serve, &bench, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "no set of --bench-params has foo"));
    sweep_params_deinit(&serve);
    sweep_params_deinit(&bench);
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_are_split_as_a_shell_would),
        cmocka_unit_test(a_flag_is_replaced_where_it_stands_or_appended),
        cmocka_unit_test(the_last_value_of_a_flag_is_found),
        cmocka_unit_test(sets_are_called_by_their_flags_or_their_own_names),
        cmocka_unit_test(long_names_are_cut_and_stay_apart),
        cmocka_unit_test(malformed_sets_are_refused_with_their_place),
        cmocka_unit_test(links_keep_the_pairs_whose_flags_are_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
