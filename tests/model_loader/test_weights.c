// Parameters are found by name and shape, used in place where they can be, and never left unset.
#include <math.h>

#include "model_loader/broken_files.h"
#include "model_loader/convert.h"
#include "model_loader/scalar_device.h"
#include "model_loader/weights.h"

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"

/** gate and up next to one another, down elsewhere, a norm, and a vector of another dtype. */
static void write_checkpoint(void)
{
    write_tensors("model.safetensors",
                  "{" TENSOR("m.gate.weight", "BF16", "[2,3]", 0, 12) "," TENSOR(
                      "m.up.weight", "BF16", "[1,3]", 12, 18) "," TENSOR("m.norm.weight", "BF16",
                                                                         "[3]", 18, 24) "," //
                  TENSOR("m.down.weight", "BF16", "[1,3]", 24, 30) "," TENSOR("m.odd.weight", "U8",
                                                                              "[2]", 30, 32) "," //
                  TENSOR("x.rotary_emb.inv_freq", "F32", "[1]", 32, 36) "}      ",
                  36);
}

static void open_store(struct weight_store *store, const struct weight_store_options *options)
{
    struct weight_store_options with_dir = *options;
    with_dir.dir = folder;
    struct error err = {0};
    if (weight_store_open(store, &dev, &with_dir, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static const struct weight_store_options KEEP = {.mode = WEIGHTS_LOAD, .keeps_dtype = true};

static void neighbours_are_used_in_place_and_others_joined(void **state)
{
    (void)state;
    write_checkpoint();
    struct weight_store store;
    open_store(&store, &KEEP);
    const struct weights root = {.store = &store};
    struct weights w = weights_at(&root, "%s", "m");
    assert_string_equal(w.prefix, "m.");
    struct error err = {0};
    struct weight joined, copied;
    const struct weights_part near[] = {{"gate", 2}, {"up", 1}}, far[] = {{"up", 1}, {"down", 1}};
    assert_int_equal(weights_matrix(&w, near, 2, 3, false, &joined, &err), STATUS_OK);
    const struct safetensor *gate =
        store.checkpoint.tensors[checkpoint_find(&store.checkpoint, STR("m.gate.weight"))];
    assert_ptr_equal(joined.data, gate->data);
    assert_int_equal(joined.out_features, 3);
    assert_int_equal(joined.form, WEIGHT_BF16);
    assert_int_equal(store.bytes.mapped, 18);
    assert_int_equal(store.bytes.copied, 0);

    assert_int_equal(weights_matrix(&w, far, 2, 3, false, &copied, &err), STATUS_OK);
    static const unsigned char EXPECTED[] = {12, 13, 14, 15, 16, 17, 24, 25, 26, 27, 28, 29};
    assert_memory_equal(copied.data, EXPECTED, sizeof(EXPECTED));
    assert_int_equal(store.bytes.copied, 12);
    weight_store_close(&store);
}

static void planning_counts_what_loading_takes(void **state)
{
    (void)state;
    write_checkpoint();
    const struct weights_part near[] = {{"gate", 2}, {"up", 1}}, far[] = {{"up", 1}, {"down", 1}};
    for (int keeps_dtype = 0; keeps_dtype <= 1; keeps_dtype++) {
        struct weight_bytes bytes[2];
        for (int mode = WEIGHTS_PLAN; mode <= WEIGHTS_LOAD; mode++) {
            struct weight_store store;
            open_store(&store, &(struct weight_store_options){.mode = (enum weights_mode)mode,
                                                              .keeps_dtype = keeps_dtype,
                                                              .model_dtype = DTYPE_F32});
            const struct weights root = {.store = &store};
            struct weights w = weights_at(&root, "m");
            struct error err = {0};
            struct weight weight;
            const void *norm;
            assert_int_equal(weights_matrix(&w, near, 2, 3, false, &weight, &err), STATUS_OK);
            assert_int_equal(weights_matrix(&w, far, 2, 3, false, &weight, &err), STATUS_OK);
            assert_int_equal(weights_vector(&w, "norm.weight", 3, &norm, &err), STATUS_OK);
            assert_int_equal(norm == NULL, mode == WEIGHTS_PLAN);
            if (norm) // the bytes 18 and 19 as bfloat16
                assert_true(*(const float *)norm == bf16_to_f32(0x1312));
            bytes[mode] = store.bytes;
            weight_store_close(&store);
        }
        assert_memory_equal(&bytes[0], &bytes[1], sizeof(bytes[0]));
        assert_int_equal(bytes[0].mapped, keeps_dtype ? 18 : 0);
        assert_int_equal(bytes[0].copied, keeps_dtype ? 12 + 12 : 36 + 24 + 12);
    }
}

/** Two experts: the first one's matrices lie next to one another, the second one's do not and have
 *  another dtype. */
static void write_experts(void)
{
    write_tensors("model.safetensors",
                  "{" TENSOR("experts.0.gate.weight", "BF16", "[1,2]", 0, 4) "," TENSOR(
                      "experts.0.up.weight", "BF16", "[1,2]", 4,
                      8) "," TENSOR("experts.1.gate.weight", "F32", "[1,2]", 8, 16) "," //
                  TENSOR("other.weight", "F32", "[1]", 16,
                         20) "," TENSOR("experts.1.up.weight", "F32", "[1,2]", 20, 28) "}  ",
                  28);
}

static void experts_stay_where_they_are_or_become_one_dtype(void **state)
{
    (void)state;
    write_experts();
    const struct weights_part parts[] = {{"gate", 1}, {"up", 1}};
    for (int mode = WEIGHTS_PLAN; mode <= WEIGHTS_LOAD; mode++) {
        struct weight_store store;
        open_store(&store, &(struct weight_store_options){.mode = (enum weights_mode)mode,
                                                          .keeps_dtype = true});
        const struct weights w = {.store = &store};
        struct expert_weights experts;
        struct error err = {0};
        if (weights_experts(&w, parts, 2, 2, 2, &experts, &err) != STATUS_OK)
            fail_msg("%s", err.message);
        assert_int_equal(experts.form, WEIGHT_BF16);
        assert_int_equal(experts.num_experts, 2);
        assert_int_equal(experts.out_features, 2);
        assert_int_equal(experts.in_features, 2);
        assert_int_equal(store.bytes.mapped, 8);
        assert_int_equal(store.bytes.copied, 8);
        assert_int_equal(store.kind_bytes[WEIGHT_KIND_EXPERTS], 16);
        if (mode == WEIGHTS_LOAD) {
            const struct safetensor *gate =
                store.checkpoint
                    .tensors[checkpoint_find(&store.checkpoint, STR("experts.0.gate.weight"))];
            assert_ptr_equal(experts.data[0], gate->data);
            uint16_t first, last; // F32 at bytes 8 and 24: the upper halves, rounded
            memcpy(&first, experts.data[1], sizeof(first));
            memcpy(&last, (const char *)experts.data[1] + 6, sizeof(last));
            assert_int_equal(first, 0x0B0A);
            assert_int_equal(last, 0x1B1A);
        } else {
            assert_null(experts.data);
        }
        assert_int_equal(weights_experts(&w, parts, 2, 3, 2, &experts, &err), STATUS_NOT_FOUND);
        assert_non_null(strstr(err.message, "experts.2.gate.weight"));
        assert_int_equal(weights_experts(&w, parts, 2, 2, 3, &experts, &err), STATUS_INVALID);
        weight_store_close(&store);
    }
}

static void wrong_names_shapes_and_dtypes_are_named(void **state)
{
    (void)state;
    write_checkpoint();
    static const struct {
        const char *module;
        int64_t rows, cols;
        enum status status;
        const char *part;
    } CASES[] = {
        {"gate", 4, 3, STATUS_INVALID, "m.gate.weight: found BF16 [2, 3], expected [4, 3]"},
        {"gate", 2, 4, STATUS_INVALID, "m.gate.weight: found BF16 [2, 3], expected [2, 4]"},
        {"norm", 3, 1, STATUS_INVALID, "m.norm.weight: found BF16 [3], expected [3, 1]"},
        {"absent", 1, 3, STATUS_NOT_FOUND, "m.absent.weight: the checkpoint in"},
    };
    struct weight_store store;
    open_store(&store, &KEEP);
    const struct weights root = {.store = &store};
    struct weights w = weights_at(&root, "m");
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct error err = {0};
        struct weight weight;
        struct weights_part part = {CASES[i].module, CASES[i].rows};
        assert_int_equal(weights_matrix(&w, &part, 1, CASES[i].cols, false, &weight, &err),
                         CASES[i].status);
        if (!strstr(err.message, CASES[i].part))
            fail_msg("%s", err.message);
    }
    struct error err = {0};
    const void *vector;
    assert_int_equal(weights_vector(&w, "odd.weight", 2, &vector, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.message, "m.odd.weight: found U8 [2], expected F32, F16 or BF16"));
    weight_store_close(&store);
}

static void scalars_are_positive_numbers_or_absent(void **state)
{
    (void)state;
    // The bytes of a written tensor count up from its offset: 0x43424140 and 0x4544 here.
    write_tensors(
        "model.safetensors",
        "{" TENSOR("pad", "F32", "[16]", 0, 64) "," TENSOR("wide", "F32", "[]", 64,
                                                           68) "," //
        TENSOR("narrow", "BF16", "[1]", 68, 70) "," TENSOR("long", "BF16", "[2]", 70,
                                                           74) ","                       //
        TENSOR("byte", "U8", "[]", 74, 75) "," TENSOR("fill", "U8", "[85]", 75, 160) "," //
        TENSOR("negative", "BF16", "[]", 160, 162) "}      ",
        162);
    struct weight_store store;
    open_store(&store, &KEEP);
    const struct weights w = {.store = &store};
    struct error err = {0};
    float value = -1;
    assert_int_equal(weights_scalar(&w, "wide", &value, &err), STATUS_OK);
    assert_true(value == 0x1.848280p+7f);
    assert_int_equal(weights_scalar(&w, "narrow", &value, &err), STATUS_OK);
    assert_true(value == bf16_to_f32(0x4544));
    assert_int_equal(weights_scalar(&w, "absent", &value, &err), STATUS_OK);
    assert_true(value == 0);
    assert_int_equal(weights_scalar(&w, "long", &value, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "long: found BF16 [2], expected one number"));
    assert_int_equal(weights_scalar(&w, "byte", &value, &err), STATUS_UNSUPPORTED);
    assert_int_equal(weights_scalar(&w, "negative", &value, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "negative is -"));
    weight_store_close(&store);
}

static void tensors_without_a_place_are_refused_unless_harmless(void **state)
{
    (void)state;
    write_checkpoint();
    struct weight_store store;
    open_store(&store, &KEEP);
    struct error err = {0};
    assert_int_equal(weight_store_check_unused(&store, NULL, 0, &err), STATUS_INVALID);
    assert_non_null(strstr(err.message, "no place for 5 "));
    assert_non_null(strstr(err.message, "m.odd.weight"));
    assert_null(strstr(err.message, "inv_freq"));
    static const char *const IGNORED[] = {"m."};
    assert_int_equal(weight_store_check_unused(&store, IGNORED, 1, &err), STATUS_OK);
    weight_store_close(&store);
}

static void a_dtype_that_cannot_hold_a_value_is_refused(void **state)
{
    (void)state;
    struct buf file = {0};
    static const char HEADER[] = "{" TENSOR("m.a.weight", "F32", "[1,2]", 0, 8) "}";
    static const float VALUES[2] = {1.5f, 70000.0f};
    append_u64_le(&file, sizeof(HEADER) - 1);
    buf_append_c(&file, HEADER);
    buf_append(&file, (struct str){(const char *)VALUES, sizeof(VALUES)});
    write_bytes("model.safetensors", buf_str(&file));
    buf_deinit(&file);
    static const struct weights_part PART = {"a", 1};
    for (int is_half = 0; is_half <= 1; is_half++) {
        struct weight_store store;
        open_store(&store,
                   &(struct weight_store_options){.mode = WEIGHTS_LOAD,
                                                  .model_dtype = is_half ? DTYPE_F16 : DTYPE_BF16});
        const struct weights root = {.store = &store};
        struct weights w = weights_at(&root, "m");
        struct error err = {0};
        struct weight weight;
        assert_int_equal(weights_matrix(&w, &PART, 1, 2, false, &weight, &err),
                         is_half ? STATUS_INVALID : STATUS_OK);
        if (is_half)
            assert_non_null(strstr(err.message, "m.a.weight: a value is too large for float16"));
        else
            assert_int_equal(((const uint16_t *)weight.data)[0], f32_to_bf16(1.5f));
        weight_store_close(&store);
    }
}

static void unaligned_tensors_are_copied(void **state)
{
    (void)state;
    write_tensors(
        "model.safetensors",
        "{" TENSOR("m.pad", "U8", "[1]", 0, 1) "," TENSOR("m.a.weight", "BF16", "[1,2]", 1, 5) "}",
        5);
    struct weight_store store;
    open_store(&store, &KEEP);
    const struct weights root = {.store = &store};
    struct weights w = weights_at(&root, "m");
    struct error err = {0};
    struct weight weight;
    static const struct weights_part PART = {"a", 1};
    assert_int_equal(weights_matrix(&w, &PART, 1, 2, false, &weight, &err), STATUS_OK);
    const struct safetensor *a =
        store.checkpoint.tensors[checkpoint_find(&store.checkpoint, STR("m.a.weight"))];
    assert_int_equal((uintptr_t)weight.data % 2, 0);
    assert_int_equal(weight.data == a->data, (uintptr_t)a->data % 2 == 0);
    assert_int_equal(((const uint16_t *)weight.data)[0], 0x0201);
    weight_store_close(&store);
}

static void dummy_values_are_reproducible_and_spread(void **state)
{
    (void)state;
    enum { COUNT = 100000 };
    uint16_t *a = malloc(COUNT * sizeof(*a)), *b = malloc(COUNT * sizeof(*b));
    dummy_values(a, DTYPE_BF16, COUNT, STR("model.layers.0.mlp.up_proj.weight"));
    dummy_values(b, DTYPE_BF16, COUNT, STR("model.layers.0.mlp.up_proj.weight"));
    assert_memory_equal(a, b, COUNT * sizeof(*a));
    dummy_values(b, DTYPE_BF16, COUNT, STR("model.layers.1.mlp.up_proj.weight"));
    double sum = 0, squares = 0;
    int num_equal = 0;
    for (int i = 0; i < COUNT; i++) {
        double value = bf16_to_f32(a[i]);
        assert_true(fabs(value) <= 1.0 / 32);
        sum += value;
        squares += value * value;
        num_equal += a[i] == b[i];
    }
    assert_true(fabs(sum / COUNT) < 1e-3);
    assert_true(fabs(sqrt(squares / COUNT) - 1.0 / 32 / sqrt(3)) < 1e-3);
    assert_true(num_equal < COUNT / 100);
    float ones[3];
    dummy_values(ones, DTYPE_F32, 3, STR("model.norm.weight"));
    assert_true(ones[0] == 1 && ones[2] == 1);
    free(a);
    free(b);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(neighbours_are_used_in_place_and_others_joined),
        IN_FOLDER(planning_counts_what_loading_takes),
        IN_FOLDER(experts_stay_where_they_are_or_become_one_dtype),
        IN_FOLDER(wrong_names_shapes_and_dtypes_are_named),
        IN_FOLDER(scalars_are_positive_numbers_or_absent),
        IN_FOLDER(tensors_without_a_place_are_refused_unless_harmless),
        IN_FOLDER(a_dtype_that_cannot_hold_a_value_is_refused),
        IN_FOLDER(unaligned_tensors_are_copied),
        cmocka_unit_test(dummy_values_are_reproducible_and_spread),
    };
    return cmocka_run_group_tests(tests, start_device, stop_device);
}
