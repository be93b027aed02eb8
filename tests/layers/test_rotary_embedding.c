// Frequencies of every scaling type against published and independently computed numbers.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "layers/rotary_embedding.h"

enum { MAX_HALF = 64 };

static struct rope_config plain(double theta)
{
    return (struct rope_config){.type = ROPE_DEFAULT,
                                .theta = theta,
                                .partial_rotary_factor = 1,
                                .factor = 1,
                                .beta_fast = 32,
                                .beta_slow = 1,
                                .truncate = true,
                                .attention_factor = -1};
}

static double frequencies(double *inv_freq, const struct rope_config *rope, int32_t head_dim,
                          int32_t max_position_embeddings, int32_t max_positions)
{
    const struct rotary_embedding_options options = {rope, head_dim, max_position_embeddings,
                                                     max_positions};
    double magnitude;
    struct error err = {0};
    if (rotary_frequencies(inv_freq, &magnitude, &options, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return magnitude;
}

static void expect_relative(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-7 * fabs(expected)))
        fail_msg("found %.12g, expected %.12g", found, expected);
}

static void llama3_keeps_fast_slows_slow_and_blends_between(void **state)
{
    (void)state;
    double base[MAX_HALF], inv[MAX_HALF];
    struct rope_config rope = plain(5e5);
    frequencies(base, &rope, 128, 131072, 4096);
    rope.type = ROPE_LLAMA3;
    rope.factor = 8;
    rope.low_freq_factor = 1;
    rope.high_freq_factor = 4;
    rope.original_max_position_embeddings = 8192;
    assert_true(frequencies(inv, &rope, 128, 131072, 4096) == 1);
    for (int i = 0; i <= 28; i++)
        assert_true(inv[i] == base[i]);
    for (int i = 35; i < 64; i++)
        expect_relative(inv[i], base[i] / 8);
    expect_relative(base[29], 0.0026160993);
    expect_relative(inv[29], 0.0021665708);
    expect_relative(inv[30], 0.0013718936);
    expect_relative(inv[32], 0.00052484616);
    rope.factor = 32;
    frequencies(inv, &rope, 64, 131072, 4096);
    expect_relative(inv[15], 0.00129054793);
    expect_relative(inv[16], 0.00042955680);
    expect_relative(inv[18], 1.94616382e-5);
    expect_relative(inv[31], 9.41830673e-8);
}

static void yarn_interpolates_by_wave_length_and_scales_magnitude(void **state)
{
    (void)state;
    double inv[MAX_HALF];
    struct rope_config rope = plain(1e4);
    rope.type = ROPE_YARN;
    rope.factor = 40;
    rope.original_max_position_embeddings = 4096;
    frequencies(inv, &rope, 64, 163840, 4096);
    expect_relative(inv[12], 0.0268793601);
    expect_relative(inv[16], 0.0055);
    expect_relative(inv[20], 0.00079056941);
    expect_relative(inv[31], 3.33380358e-6);

    rope = plain(1e6);
    rope.type = ROPE_YARN;
    rope.factor = 4;
    rope.original_max_position_embeddings = 32768;
    expect_relative(frequencies(inv, &rope, 128, 32768, 4096), 1.138629436111989);
    expect_relative(inv[22], pow(1e6, -44.0 / 128)); // below the ramp 23..40
    expect_relative(inv[41], pow(1e6, -82.0 / 128) / 4);

    rope = plain(150000);
    rope.type = ROPE_YARN;
    rope.factor = 32;
    rope.truncate = false;
    rope.original_max_position_embeddings = 4096;
    expect_relative(frequencies(inv, &rope, 64, 131072, 4096), 1.3465735902799727);
    expect_relative(inv[8], 0.0508132748);
    expect_relative(inv[12], 0.00679495949);
    expect_relative(inv[16], 0.000456483919);
    expect_relative(inv[24], 4.09997848e-6);
    rope.attention_factor = 1.5;
    assert_true(frequencies(inv, &rope, 64, 131072, 4096) == 1.5);
    rope.attention_factor = -1;
    rope.factor = 40;
    rope.mscale = 0.707;
    rope.mscale_all_dim = 0.707;
    assert_true(frequencies(inv, &rope, 64, 131072, 4096) == 1);
    rope.mscale = 1;
    expect_relative(frequencies(inv, &rope, 64, 131072, 4096),
                    1.3688879454113936 / 1.2608037774058554);
}

static void linear_dynamic_and_longrope_follow_their_formulas(void **state)
{
    (void)state;
    double inv[MAX_HALF], base[MAX_HALF];
    struct rope_config rope = plain(1e4);
    frequencies(base, &rope, 16, 2048, 2048);
    rope.type = ROPE_LINEAR;
    rope.factor = 4;
    frequencies(inv, &rope, 16, 2048, 2048);
    for (int i = 0; i < 8; i++)
        expect_relative(inv[i], base[i] / 4);

    rope.type = ROPE_DYNAMIC;
    rope.factor = 2;
    frequencies(inv, &rope, 16, 2048, 4096);
    double theta = 1e4 * pow(2.0 * 4096 / 2048 - 1, 16.0 / 14);
    for (int i = 0; i < 8; i++)
        expect_relative(inv[i], pow(theta, -2.0 * i / 16));

    static const double SHORT[] = {1, 1.1, 1.2, 1.3}, LONG[] = {1, 2, 4, 8};
    rope = plain(1e4);
    rope.type = ROPE_LONGROPE;
    rope.short_factor = SHORT;
    rope.long_factor = LONG;
    rope.num_factors = 4;
    rope.partial_rotary_factor = 0.5;
    rope.original_max_position_embeddings = 4096;
    double magnitude = frequencies(inv, &rope, 16, 131072, 4096);
    expect_relative(magnitude, sqrt(1 + log(32.0) / log(4096.0)));
    for (int i = 0; i < 4; i++)
        expect_relative(inv[i], pow(1e4, -2.0 * i / 8) / SHORT[i]);
    frequencies(inv, &rope, 16, 131072, 4097);
    for (int i = 0; i < 4; i++)
        expect_relative(inv[i], pow(1e4, -2.0 * i / 8) / LONG[i]);
}

static void the_table_rotates_as_published(void **state)
{
    (void)state;
    static const double FULL[] = {0.9872026, -0.0479219, 0.7071162, 0.9334223,
                                  0.1879175, 1.0323641,  0.768533,  0.4410717};
    static const double PARTIAL[] = {0.7423753, 0.405559, 0.1154944, 0.9570816};
    struct device dev;
    struct error err = {0};
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_AUTO, 1, &err), STATUS_OK);
    struct weight_store store;
    const struct weight_store_options options = {.mode = WEIGHTS_LOAD, .is_dummy = true};
    assert_int_equal(weight_store_open(&store, &dev, &options, &err), STATUS_OK);
    const struct weights w = {.store = &store};
    for (int is_partial = 0; is_partial <= 1; is_partial++) {
        struct rope_config rope = plain(1e4);
        rope.partial_rotary_factor = is_partial ? 0.5 : 1;
        const struct rotary_embedding_options rotary_options = {&rope, 8, 32, 6};
        struct rotary_embedding rotary;
        assert_int_equal(rotary_embedding_init(&rotary, &w, &rotary_options, &err), STATUS_OK);
        float x[8];
        for (int i = 0; i < 8; i++)
            x[i] = (float)sin(0.37 * i + 0.1);
        const float *cosines = rotary.cos_sin + 5 * rotary.rot_dim;
        int half = rotary.rot_dim / 2;
        for (int i = 0; i < half; i++) {
            float first = x[i], second = x[half + i];
            x[i] = first * cosines[i] - second * cosines[half + i];
            x[half + i] = second * cosines[i] + first * cosines[half + i];
        }
        for (int i = 0; i < 8; i++) {
            double unchanged = sin(0.37 * i + 0.1);
            double expected = !is_partial ? FULL[i] : i < 4 ? PARTIAL[i] : unchanged;
            assert_true(fabs(x[i] - expected) < 1e-6);
        }
    }
    weight_store_close(&store);
    device_deinit(&dev);
}

static void long_tables_hold_the_cosines_of_their_angles(void **state)
{
    (void)state;
    enum { POSITIONS = 70001, DIM = 32 };
    struct device dev;
    struct error err = {0};
    assert_int_equal(cpu_device_init(&dev, CPU_ISA_AUTO, 2, &err), STATUS_OK);
    struct weight_store store;
    const struct weight_store_options options = {.mode = WEIGHTS_LOAD, .is_dummy = true};
    assert_int_equal(weight_store_open(&store, &dev, &options, &err), STATUS_OK);
    const struct weights w = {.store = &store};
    struct rope_config rope = plain(1e4);
    rope.type = ROPE_YARN;
    rope.factor = 4;
    rope.original_max_position_embeddings = 16384;
    const struct rotary_embedding_options rotary_options = {&rope, DIM, 16384, POSITIONS};
    double inv[DIM / 2], magnitude;
    assert_int_equal(rotary_frequencies(inv, &magnitude, &rotary_options, &err), STATUS_OK);
    struct rotary_embedding rotary;
    assert_int_equal(rotary_embedding_init(&rotary, &w, &rotary_options, &err), STATUS_OK);
    for (int32_t position = 0; position < POSITIONS; position += 7) {
        const float *row = rotary.cos_sin + (int64_t)position * DIM;
        for (int i = 0; i < DIM / 2; i++) {
            assert_true(fabs(row[i] - magnitude * cos(position * inv[i])) < 2e-7);
            assert_true(fabs(row[DIM / 2 + i] - magnitude * sin(position * inv[i])) < 2e-7);
        }
    }
    weight_store_close(&store);
    device_deinit(&dev);
}

static void configurations_without_sense_are_refused(void **state)
{
    (void)state;
    struct rope_config cases[7];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        cases[i] = plain(1e4);
    cases[0].theta = 0;
    cases[1].partial_rotary_factor = 0;
    cases[2].partial_rotary_factor = 3;
    cases[3].type = ROPE_LINEAR;
    cases[3].factor = 0;
    cases[4].type = ROPE_LLAMA3;
    cases[4].low_freq_factor = 4;
    cases[4].high_freq_factor = 4;
    cases[5].type = ROPE_LONGROPE;
    cases[6].type = ROPE_YARN;
    cases[6].beta_slow = 0;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct rotary_embedding_options options = {&cases[i], 16, 2048, 2048};
        double inv[MAX_HALF], magnitude;
        struct error err = {0};
        assert_int_equal(rotary_frequencies(inv, &magnitude, &options, &err), STATUS_INVALID);
        assert_true(strlen(err.message) > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3_keeps_fast_slows_slow_and_blends_between),
        cmocka_unit_test(yarn_interpolates_by_wave_length_and_scales_magnitude),
        cmocka_unit_test(linear_dynamic_and_longrope_follow_their_formulas),
        cmocka_unit_test(the_table_rotates_as_published),
        cmocka_unit_test(long_tables_hold_the_cosines_of_their_angles),
        cmocka_unit_test(configurations_without_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
