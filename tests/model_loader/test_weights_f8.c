// Matrices of e4m3: elements and scales of a checkpoint, or values quantised as they are read.
#include <math.h>

#include "config/hf_config.h"
#include "model_loader/broken_files.h"
#include "model_loader/convert.h"
#include "model_loader/scalar_device.h"
#include "model_loader/weights.h"

// ---- Files ---------------------------------------------------------------------------------

/** A file of tensors, one after the other. */
struct tensors {
    struct buf header, data;
};

static void add_tensor(struct tensors *t, const char *name, const char *dtype, const char *shape,
                       const void *values, size_t size_bytes)
{
    buf_printf(&t->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
               t->header.len ? "," : "{", name, dtype, shape, t->data.len,
               t->data.len + size_bytes);
    buf_append(&t->data, (struct str){values, size_bytes});
}

static void write_file(struct tensors *t)
{
    struct buf file = {0};
    buf_append_char(&t->header, '}');
    append_u64_le(&file, t->header.len);
    buf_append(&file, buf_str(&t->header));
    buf_append(&file, buf_str(&t->data));
    write_bytes("model.safetensors", buf_str(&file));
    buf_deinit(&file);
    buf_deinit(&t->header);
    buf_deinit(&t->data);
}

#define MODEL                                                                          \
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":512,\"hidden_size\":64," \
    "\"intermediate_size\":128,\"num_hidden_layers\":3,\"num_attention_heads\":4"
#define FP8(MORE) MODEL ",\"quantization_config\":{\"quant_method\":\"fp8\"" MORE "}}"
#define BLOCKS ",\"weight_block_size\":[128,128]"
#define STATIC ",\"activation_scheme\":\"static\""
#define CHANNELS                                                                                \
    MODEL ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\","                  \
          "\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"type\":\"float\"," \
          "\"strategy\":\"channel\"}}}}}"

/** Loads two joined parts, "m.gate" of `rows` rows and "m.up" of `up_rows`, of `cols`. */
struct attempt {
    struct model_config config;
    struct weight_store store;
    struct weight weight;
    struct error err;
    enum status status;
};

static void attempt_load(struct attempt *a, const char *config, const char *option,
                         enum weights_mode mode, int64_t rows, int64_t up_rows, int64_t cols)
{
    *a = (struct attempt){0};
    if (model_config_parse(&a->config, str_from(config), "config.json", &a->err) != STATUS_OK)
        fail_msg("%s", a->err.message);
    struct weight_store_options options = {.mode = mode, .dir = folder, .keeps_dtype = true};
    a->status = quantization_choose(&options.quantization, a->config.quantization, option, &a->err);
    if (a->status == STATUS_OK)
        a->status = weight_store_open(&a->store, &dev, &options, &a->err);
    if (a->status != STATUS_OK)
        fail_msg("%s", a->err.message);
    const struct weights root = {.store = &a->store};
    struct weights w = weights_at(&root, "m");
    const struct weights_part parts[] = {{"gate", rows}, {"up", up_rows}};
    a->status = weights_matrix(&w, parts, up_rows > 0 ? 2 : 1, cols, false, &a->weight, &a->err);
}

static void attempt_end(struct attempt *a)
{
    weight_store_close(&a->store);
    model_config_deinit(&a->config);
}

static void expect_scales(const struct attempt *a, const float *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (a->weight.scales.values[i] != expected[i])
            fail_msg("scale %ld is %g, expected %g", (long)i, (double)a->weight.scales.values[i],
                     (double)expected[i]);
    }
}

// ---- Tests ---------------------------------------------------------------------------------

static void parts_keep_their_own_scales(void **state)
{
    (void)state;
    static const uint8_t GATE[] = {0x38, 0x40, 0x01, 0x7E, 0x80, 0xB8}, UP[] = {0x08, 0x3C, 0xFE};
    static const float GATE_SCALE = 2, UP_SCALE = 0.5f;
    for (int mode = WEIGHTS_PLAN; mode <= WEIGHTS_LOAD; mode++) {
        struct tensors t = {0};
        add_tensor(&t, "m.gate.weight", "F8_E4M3", "[2,3]", GATE, sizeof(GATE));
        add_tensor(&t, "m.gate.weight_scale", "F32", "[]", &GATE_SCALE, sizeof(float));
        add_tensor(&t, "m.up.weight", "F8_E4M3", "[1,3]", UP, sizeof(UP));
        add_tensor(&t, "m.up.weight_scale", "F32", "[1]", &UP_SCALE, sizeof(float));
        write_file(&t);
        struct attempt a;
        attempt_load(&a, FP8(""), NULL, (enum weights_mode)mode, 2, 1, 3);
        if (a.status != STATUS_OK)
            fail_msg("%s", a.err.message);
        assert_int_equal(a.weight.form, WEIGHT_F8_E4M3);
        assert_int_equal(a.store.bytes.copied, 9 + 3 * 4);
        assert_int_equal(a.store.bytes.mapped, 0);
        assert_int_equal(weight_store_check_unused(&a.store, NULL, 0, &a.err), STATUS_OK);
        if (mode == WEIGHTS_LOAD) {
            assert_memory_equal(a.weight.data, GATE, sizeof(GATE));
            assert_memory_equal((const char *)a.weight.data + sizeof(GATE), UP, sizeof(UP));
            expect_scales(&a, (const float[]){2, 2, 0.5f}, 3);
            assert_true(a.weight.scales.quantizes_input && a.weight.scales.input_scale == 0);
        }
        attempt_end(&a);
    }
}

static void one_matrix_stays_where_it_is_mapped(void **state)
{
    (void)state;
    static const uint8_t CODES[] = {1, 2, 3, 4};
    static const uint16_t SCALES[] = {0x3F80, 0x4000}; // 1 and 2 as bfloat16
    struct tensors t = {0};
    add_tensor(&t, "m.gate.weight", "F8_E4M3", "[2,2]", CODES, sizeof(CODES));
    add_tensor(&t, "m.gate.weight_scale", "BF16", "[2,1]", SCALES, sizeof(SCALES));
    write_file(&t);
    struct attempt a;
    attempt_load(&a, CHANNELS, NULL, WEIGHTS_LOAD, 2, 0, 2);
    if (a.status != STATUS_OK)
        fail_msg("%s", a.err.message);
    assert_int_equal(a.store.bytes.mapped, 4);
    assert_int_equal(a.store.bytes.copied, 8);
    expect_scales(&a, (const float[]){1, 2}, 2);
    assert_false(a.weight.scales.quantizes_input);
    attempt_end(&a);
}

static void blocks_follow_one_another(void **state)
{
    (void)state;
    enum { GATE_ROWS = 128, UP_ROWS = 130, COLS = 129 };
    static uint8_t codes[UP_ROWS * COLS];
    static const float GATE[] = {1, 2};
    static const uint8_t UP[] = {127, 128, 126, 0}; // powers of two: 1, 2, 1/2, 2^-127
    struct tensors t = {0};
    add_tensor(&t, "m.gate.weight", "F8_E4M3", "[128,129]", codes, GATE_ROWS * COLS);
    add_tensor(&t, "m.gate.weight_scale_inv", "F32", "[1,2]", GATE, sizeof(GATE));
    add_tensor(&t, "m.up.weight", "F8_E4M3", "[130,129]", codes, UP_ROWS * COLS);
    add_tensor(&t, "m.up.weight_scale_inv", "F8_E8M0", "[2,2]", UP, sizeof(UP));
    write_file(&t);
    struct attempt a;
    attempt_load(&a, FP8(BLOCKS), NULL, WEIGHTS_LOAD, GATE_ROWS, UP_ROWS, COLS);
    if (a.status != STATUS_OK)
        fail_msg("%s", a.err.message);
    assert_int_equal(a.weight.scales.block_pitch, 2);
    expect_scales(&a, (const float[]){1, 2, 1, 2, 0.5f, 0x1p-127f}, 6);
    attempt_end(&a);
}

static void static_activations_take_the_largest_scale(void **state)
{
    (void)state;
    static const uint8_t CODES[] = {1, 2};
    static const float ONE = 1, SMALL = 0.25f, LARGE = 0.75f;
    struct tensors t = {0};
    add_tensor(&t, "m.gate.weight", "F8_E4M3", "[1,2]", CODES, sizeof(CODES));
    add_tensor(&t, "m.gate.weight_scale", "F32", "[]", &ONE, sizeof(float));
    add_tensor(&t, "m.gate.input_scale", "F32", "[]", &LARGE, sizeof(float));
    add_tensor(&t, "m.up.weight", "F8_E4M3", "[1,2]", CODES, sizeof(CODES));
    add_tensor(&t, "m.up.weight_scale", "F32", "[]", &ONE, sizeof(float));
    add_tensor(&t, "m.up.input_scale", "F32", "[]", &SMALL, sizeof(float));
    write_file(&t);
    struct attempt a;
    attempt_load(&a, FP8(STATIC), NULL, WEIGHTS_LOAD, 1, 1, 2);
    if (a.status != STATUS_OK)
        fail_msg("%s", a.err.message);
    assert_true(a.weight.scales.quantizes_input && a.weight.scales.input_scale == LARGE);
    attempt_end(&a);
}

static void wrong_elements_and_scales_are_named(void **state)
{
    (void)state;
    static const uint8_t CODES[4] = {1, 2, 3, 4};
    static const float SCALES[4] = {1, NAN, -1, INFINITY};
    static const struct {
        const char *config, *dtype, *scale_name, *scale_dtype, *scale_shape;
        size_t first, scale_bytes;
        enum status status;
        const char *message;
    } ROWS[] = {
        {FP8(""), "U8", "weight_scale", "F32", "[]", 0, 4, STATUS_UNSUPPORTED,
         "m.gate.weight: found U8 [2, 2], expected F8_E4M3 [2, 2]"},
        {FP8(""), "F8_E4M3", "other", "F32", "[]", 0, 4, STATUS_NOT_FOUND,
         "m.gate.weight_scale: the checkpoint in"},
        {FP8(BLOCKS), "F8_E4M3", "weight_scale", "F32", "[]", 0, 4, STATUS_NOT_FOUND,
         "m.gate.weight_scale_inv: the checkpoint in"},
        {FP8(""), "F8_E4M3", "weight_scale", "F32", "[2]", 0, 8, STATUS_INVALID,
         "m.gate.weight_scale: found F32 [2], expected one number of F32, F16 or BF16"},
        {FP8(""), "F8_E4M3", "weight_scale", "F8_E8M0", "[1]", 0, 1, STATUS_INVALID,
         "m.gate.weight_scale: found F8_E8M0 [1], expected one number"},
        {FP8(BLOCKS), "F8_E4M3", "weight_scale_inv", "F32", "[2,1]", 0, 8, STATUS_INVALID,
         "found F32 [2, 1], expected F32, F16, BF16 or F8_E8M0 [1, 1]"},
        {CHANNELS, "F8_E4M3", "weight_scale", "F32", "[1,2]", 0, 8, STATUS_INVALID,
         "found F32 [1, 2], expected F32, F16 or BF16 [2, 1]"},
        {CHANNELS, "F8_E4M3", "weight_scale", "F32", "[2]", 0, 8, STATUS_INVALID,
         "m.gate.weight_scale: number 1 is "},
        {FP8(""), "F8_E4M3", "weight_scale", "F32", "[]", 2, 4, STATUS_INVALID,
         "number 0 is -1: expected finite ones that are not negative"},
        {FP8(""), "F8_E4M3", "weight_scale", "F32", "[]", 3, 4, STATUS_INVALID, "number 0 is inf"},
        {FP8(STATIC), "F8_E4M3", "weight_scale", "F32", "[]", 0, 4, STATUS_NOT_FOUND,
         "m.gate.input_scale: the checkpoint in"},
    };
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "m.gate.%s", ROWS[i].scale_name);
        struct tensors t = {0};
        add_tensor(&t, "m.gate.weight", ROWS[i].dtype, "[2,2]", CODES, sizeof(CODES));
        add_tensor(&t, name, ROWS[i].scale_dtype, ROWS[i].scale_shape, SCALES + ROWS[i].first,
                   ROWS[i].scale_bytes);
        write_file(&t);
        struct attempt a;
        attempt_load(&a, ROWS[i].config, NULL, WEIGHTS_LOAD, 2, 0, 2);
        if (a.status != ROWS[i].status || !strstr(a.err.message, ROWS[i].message))
            fail_msg("row %zu: %d, %s", i, (int)a.status, a.err.message);
        attempt_end(&a);
    }
}

static void layers_that_are_multiplied_together_are_stored_alike(void **state)
{
    (void)state;
    struct tensors t = {0};
    add_tensor(&t, "m.gate.weight", "F8_E4M3", "[1,2]", "ab", 2);
    write_file(&t);
    struct attempt a;
    attempt_load(&a, FP8(",\"ignored_layers\":[\"m.up\"]"), NULL, WEIGHTS_PLAN, 1, 1, 2);
    assert_int_equal(a.status, STATUS_UNSUPPORTED);
    assert_non_null(strstr(a.err.message, "m.gate is quantized, but m.up, which is multiplied "
                                          "together with it, is not: both"));
    attempt_end(&a);
    attempt_load(&a, FP8(BLOCKS), NULL, WEIGHTS_PLAN, 100, 128, 2);
    assert_int_equal(a.status, STATUS_UNSUPPORTED);
    assert_non_null(strstr(a.err.message, "m.gate.weight has 100 rows"));
    attempt_end(&a);
}

static void experts_are_refused_by_name(void **state)
{
    (void)state;
    struct tensors t = {0};
    add_tensor(&t, "m.experts.0.gate.weight", "F8_E4M3", "[1,2]", "ab", 2);
    write_file(&t);
    struct attempt a;
    attempt_load(&a, FP8(",\"ignored_layers\":[\"m.gate\"]"), NULL, WEIGHTS_PLAN, 1, 0, 2);
    const struct weights root = {.store = &a.store};
    struct weights w = weights_at(&root, "m");
    const struct weights_part part = {"gate", 1};
    struct expert_weights experts;
    struct error err = {0};
    assert_int_equal(weights_experts(&w, &part, 1, 1, 2, &experts, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.message, "m.experts.0.gate: experts of quantized models (fp8)"));
    attempt_end(&a);
}

/** Values whose largest magnitudes differ by row and by block. */
static void write_values(float *values, int64_t rows, int64_t cols, const char *shape)
{
    for (int64_t i = 0; i < rows * cols; i++)
        values[i] = (float)(i * 37 % 101 - 50) * (float)(1 + i / cols) *
                    (i % cols >= WEIGHT_BLOCK ? 8.0f : 0.01f);
    memset(values, 0, (size_t)cols * sizeof(float)); // a row of nothing
    struct tensors t = {0};
    add_tensor(&t, "m.gate.weight", "F32", shape, values, (size_t)(rows * cols) * sizeof(float));
    write_file(&t);
}

static void values_are_quantised_as_they_are_read(void **state)
{
    (void)state;
    enum { ROWS = 131, COLS = 140 };
    static const struct {
        const char *option;
        int32_t pitch;
        int64_t scale_rows, scale_cols; // of the elements that share a scale
    } CASES[] = {{"fp8", 0, ROWS, COLS},
                 {"fp8_per_tensor", 0, ROWS, COLS},
                 {"fp8_per_channel", 0, 1, COLS},
                 {"fp8_per_block", 2, WEIGHT_BLOCK, WEIGHT_BLOCK}};
    static float values[ROWS * COLS];
    write_values(values, ROWS, COLS, "[131,140]");
    for (size_t c = 0; c < sizeof(CASES) / sizeof(CASES[0]); c++) {
        struct attempt planned, a;
        attempt_load(&planned, MODEL "}", CASES[c].option, WEIGHTS_PLAN, ROWS, 0, COLS);
        attempt_load(&a, MODEL "}", CASES[c].option, WEIGHTS_LOAD, ROWS, 0, COLS);
        if (planned.status != STATUS_OK || a.status != STATUS_OK)
            fail_msg("%s", a.err.message);
        assert_memory_equal(&planned.store.bytes, &a.store.bytes, sizeof(a.store.bytes));
        assert_int_equal(a.store.bytes.mapped, 0);
        assert_int_equal(a.weight.scales.block_pitch, CASES[c].pitch);
        for (int64_t row = 0; row < ROWS; row++) {
            for (int64_t col = 0; col < COLS; col++) {
                float largest = 0, scale = weight_scale(&a.weight.scales, row, col);
                int64_t first_row = row / CASES[c].scale_rows * CASES[c].scale_rows;
                int64_t first_col = col / CASES[c].scale_cols * CASES[c].scale_cols;
                // Looking at the whole neighbourhood once for each scale is enough.
                if (row == first_row && col == first_col) {
                    for (int64_t r = first_row; r < first_row + CASES[c].scale_rows && r < ROWS;
                         r++)
                        for (int64_t k = first_col; k < first_col + CASES[c].scale_cols && k < COLS;
                             k++)
                            largest = fmaxf(largest, fabsf(values[r * COLS + k]));
                    assert_true(scale == (largest > 0 ? largest / 448 : 1));
                }
                float value = values[row * COLS + col];
                assert_int_equal(((const uint8_t *)a.weight.data)[row * COLS + col],
                                 f32_to_f8_e4m3(value / scale));
            }
        }
        attempt_end(&planned);
        attempt_end(&a);
    }
}

static void infinite_values_cannot_be_quantised(void **state)
{
    (void)state;
    static const float VALUES[] = {1, INFINITY};
    struct tensors t = {0};
    add_tensor(&t, "m.gate.weight", "F32", "[1,2]", VALUES, sizeof(VALUES));
    write_file(&t);
    struct attempt a;
    attempt_load(&a, MODEL "}", "fp8", WEIGHTS_LOAD, 1, 0, 2);
    assert_int_equal(a.status, STATUS_INVALID);
    assert_non_null(strstr(a.err.message, "m.gate.weight: a value is infinite"));
    attempt_end(&a);
}

static void dummy_elements_are_finite_and_spread(void **state)
{
    (void)state;
    enum { COUNT = 40001 };
    static uint8_t a[COUNT + 1], b[COUNT];
    a[COUNT] = 0xEE;
    dummy_values(a, DTYPE_F8_E4M3, COUNT, STR("m.gate.weight"));
    dummy_values(b, DTYPE_F8_E4M3, COUNT, STR("m.gate.weight"));
    assert_memory_equal(a, b, COUNT);
    assert_int_equal(a[COUNT], 0xEE);
    double sum = 0, squares = 0;
    for (int i = 0; i < COUNT; i++) {
        float value = f8_e4m3_to_f32(a[i]) * DUMMY_F8_SCALE;
        assert_true(fabsf(value) <= 1.0f / 32);
        sum += value;
        squares += value * value;
    }
    assert_true(fabs(sum / COUNT) < 1e-3);
    assert_true(fabs(squares / COUNT - 1.0 / (3 * 32 * 32)) < 2e-5);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(parts_keep_their_own_scales),
        IN_FOLDER(one_matrix_stays_where_it_is_mapped),
        IN_FOLDER(blocks_follow_one_another),
        IN_FOLDER(static_activations_take_the_largest_scale),
        IN_FOLDER(wrong_elements_and_scales_are_named),
        IN_FOLDER(layers_that_are_multiplied_together_are_stored_alike),
        IN_FOLDER(experts_are_refused_by_name),
        IN_FOLDER(values_are_quantised_as_they_are_read),
        IN_FOLDER(infinite_values_cannot_be_quantised),
        cmocka_unit_test(dummy_elements_are_finite_and_spread),
    };
    return cmocka_run_group_tests(tests, start_device, stop_device);
}
