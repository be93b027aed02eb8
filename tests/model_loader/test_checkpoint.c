// A directory becomes named tensors, or a refusal that says which file and tensor are wrong.
#include "model_loader/broken_files.h"
#include "model_loader/checkpoint.h"

#define TENSOR(name, begin, end) \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #end "],\"data_offsets\":[" #begin "," #end "]}"
#define ONE(name) "{" TENSOR(name, 0, 4) "}"
#define INDEX(map) "{\"metadata\":{\"total_size\":8},\"weight_map\":{" map "}}"
#define TWO_SHARDS INDEX("\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"")

static void write_index(const char *text)
{
    write_bytes("model.safetensors.index.json", str_from(text));
}

static void expect_refusal(enum status expected, const char *part, const char *other)
{
    struct checkpoint checkpoint;
    struct error err = {0};
    enum status status = checkpoint_open(&checkpoint, folder, &err);
    if (status != expected || !strstr(err.message, part) || !strstr(err.message, other))
        fail_msg("status %d, \"%s\": expected %d, \"%s\" and \"%s\"", status, err.message, expected,
                 part, other);
}

static void a_missing_shard_is_named_with_a_tensor(void **state)
{
    (void)state;
    write_index(TWO_SHARDS);
    write_tensors("m-1.safetensors", ONE("a"), 4);
    expect_refusal(STATUS_NOT_FOUND, "m-2.safetensors", "places b");
}

static void a_shard_without_its_tensor_is_refused(void **state)
{
    (void)state;
    write_index(TWO_SHARDS);
    write_tensors("m-1.safetensors", ONE("a"), 4);
    write_tensors("m-2.safetensors", ONE("c"), 4);
    expect_refusal(STATUS_NOT_FOUND, "m-2.safetensors", "no tensor b");
}

static void a_shard_cut_short_is_refused(void **state)
{
    (void)state;
    write_index(TWO_SHARDS);
    write_tensors("m-1.safetensors", ONE("a"), 4);
    write_tensors("m-2.safetensors", "{" TENSOR("b", 0, 400) "}", 300);
    expect_refusal(STATUS_INVALID, "m-2.safetensors: b", "at least 100 more bytes");
}

static void only_what_the_index_names_counts(void **state)
{
    (void)state;
    write_index(TWO_SHARDS);
    write_tensors("m-1.safetensors", ONE("a"), 4);
    write_tensors("m-2.safetensors",
                  "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]},"
                  "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
                  4);
    write_tensors("m-3.safetensors", ONE("a"), 4);
    write_bytes("model.safetensors", STR("not even a header"));
    struct checkpoint checkpoint;
    struct error err = {0};
    assert_int_equal(checkpoint_open(&checkpoint, folder, &err), STATUS_OK);
    assert_int_equal(checkpoint.num_files, 2);
    assert_int_equal(checkpoint.num_tensors, 2);
    const struct safetensor *a = checkpoint.tensors[checkpoint_find(&checkpoint, STR("a"))];
    assert_int_equal(a->size_bytes, 4);
    assert_non_null(strstr(a->file, "m-1.safetensors"));
    const struct safetensor *b = checkpoint.tensors[checkpoint_find(&checkpoint, STR("b"))];
    assert_int_equal(*(const char *)b->data, 2);
    assert_int_equal(checkpoint_find(&checkpoint, STR("c")), -1);
    checkpoint_close(&checkpoint);
}

static void a_single_file_needs_no_index(void **state)
{
    (void)state;
    write_tensors("model.safetensors", ONE("a"), 4);
    struct checkpoint checkpoint;
    struct error err = {0};
    assert_int_equal(checkpoint_open(&checkpoint, folder, &err), STATUS_OK);
    assert_int_equal(checkpoint.num_tensors, 1);
    checkpoint_close(&checkpoint);
}

static void a_folder_without_a_checkpoint_is_named(void **state)
{
    (void)state;
    expect_refusal(STATUS_NOT_FOUND, folder, "model.safetensors.index.json");
}

static void an_index_that_leaves_the_folder_or_is_malformed_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *index, *part;
    } CASES[] = {
        {INDEX("\"b\":\"../x.safetensors\""), "b: \"../x.safetensors\""},
        {INDEX("\"b\":\"/etc/passwd\""), "b: \"/etc/passwd\""},
        {INDEX("\"b\":\"sub/../../x.safetensors\""), "is not a file of the model's directory"},
        {INDEX("\"b\":\"..\""), "is not a file of the model's directory"},
        {INDEX("\"b\":\"\""), "is not a file of the model's directory"},
        {INDEX("\"b\":\"m-1.safetensors\\u0000\""), "is not a file of the model's directory"},
        {INDEX("\"b\":7"), "b: "},
        {INDEX("\"b\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\""), "two tensors"},
        {"{\"weight_map\":[]}", "object"},
        {"{\"weight_map\":{},\"weight_map\":{}}", "twice"},
        {"{\"metadata\":{}}", "\"weight_map\" is missing"},
        {"{", "model.safetensors.index.json"},
        {"", "model.safetensors.index.json"},
    };
    write_tensors("m-1.safetensors", ONE("b"), 4);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        write_index(CASES[i].index);
        expect_refusal(STATUS_INVALID, CASES[i].part, "");
    }
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_missing_shard_is_named_with_a_tensor),
        IN_FOLDER(a_shard_without_its_tensor_is_refused),
        IN_FOLDER(a_shard_cut_short_is_refused),
        IN_FOLDER(only_what_the_index_names_counts),
        IN_FOLDER(a_single_file_needs_no_index),
        IN_FOLDER(a_folder_without_a_checkpoint_is_named),
        IN_FOLDER(an_index_that_leaves_the_folder_or_is_malformed_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
