// Single layers: what they load, what scratch they take, what they refuse.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "layers/attention.h"
#include "layers/gated_mlp.h"
#include "layers/lm_head.h"
#include "layers/rms_norm.h"

struct fixture {
    struct device dev;
    struct weight_store store;
};

static int start(void **state)
{
    static struct fixture fixture;
    struct error err;
    const struct weight_store_options options = {.mode = WEIGHTS_LOAD, .is_dummy = true};
    if (cpu_device_init(&fixture.dev, CPU_ISA_AUTO, 1, &err) != STATUS_OK ||
        weight_store_open(&fixture.store, &fixture.dev, &options, &err) != STATUS_OK)
        return -1;
    *state = &fixture;
    return 0;
}

static int stop(void **state)
{
    struct fixture *fixture = *state;
    weight_store_close(&fixture->store);
    device_deinit(&fixture->dev);
    return 0;
}

static void rms_norm_gives_the_published_values(void **state)
{
    static const double EXPECTED[] = {0.0657876, 0.4757913, 0.9680263, 1.2850228,
                                      1.2609716, 0.9084531, 0.4118566, 0.0309333};
    struct fixture *fixture = *state;
    float x[8], weight[8];
    for (int i = 0; i < 8; i++) {
        x[i] = (float)sin(0.37 * i + 0.1);
        weight[i] = (float)sin(0.37 * i + 0.5);
    }
    const struct rms_norm norm = {{weight, 1e-6f, 0}, 8};
    struct forward fwd = {.dev = &fixture->dev, .num_tokens = 1};
    struct tensor tensor = tensor_2d(x, DTYPE_F32, 1, 8);
    rms_norm_forward(&norm, &fwd, tensor, tensor);
    for (int i = 0; i < 8; i++)
        assert_true(fabs(x[i] - EXPECTED[i]) < 1e-6);
}

static void gated_mlp_multiplies_gated_and_up_within_its_scratch(void **state)
{
    enum { HIDDEN = 6, INNER = 5, TOKENS = 3 };
    struct fixture *fixture = *state;
    const struct weights root = {.store = &fixture->store};
    struct weights w = weights_at(&root, "mlp");
    const struct gated_mlp_options options = {
        .hidden_size = HIDDEN, .intermediate_size = INNER, .has_bias = true, .hidden_act = "silu"};
    struct gated_mlp mlp;
    struct error err = {0};
    assert_int_equal(gated_mlp_load(&mlp, &w, &options, &err), STATUS_OK);
    size_t scratch = gated_mlp_scratch_bytes(&mlp, DTYPE_F32, TOKENS);
    struct forward fwd = {
        .dev = &fixture->dev,
        .num_tokens = TOKENS,
        .workspace = {fixture->dev.ops.alloc(&fixture->dev, scratch), scratch, 0}};
    float x[TOKENS][HIDDEN], before[TOKENS][HIDDEN];
    for (int t = 0; t < TOKENS; t++) {
        for (int i = 0; i < HIDDEN; i++)
            before[t][i] = x[t][i] = (float)(10 * sin(t + i));
    }
    struct tensor hidden = tensor_2d(x, DTYPE_F32, TOKENS, HIDDEN);
    gated_mlp_forward(&mlp, &fwd, hidden, hidden);
    assert_int_equal(fwd.workspace.used_bytes, 0);
    const struct weight *gate_up = &mlp.gate_up_proj.weight, *down = &mlp.down_proj.weight;
    const float *gu = gate_up->data, *d = down->data;
    const float *gu_bias = gate_up->bias, *d_bias = down->bias;
    for (int t = 0; t < TOKENS; t++) {
        double inner[2 * INNER];
        for (int r = 0; r < 2 * INNER; r++) {
            inner[r] = gu_bias[r];
            for (int i = 0; i < HIDDEN; i++)
                inner[r] += (double)gu[r * HIDDEN + i] * before[t][i];
        }
        for (int i = 0; i < HIDDEN; i++) {
            double expected = d_bias[i];
            for (int r = 0; r < INNER; r++)
                expected += d[i * INNER + r] * inner[r] / (1 + exp(-inner[r])) * inner[INNER + r];
            assert_true(fabs(x[t][i] - expected) < 1e-5);
        }
    }
    fixture->dev.ops.free(&fixture->dev, fwd.workspace.base);
}

static void another_activation_is_refused_by_name(void **state)
{
    struct fixture *fixture = *state;
    const struct weights w = {.store = &fixture->store};
    const struct gated_mlp_options options = {
        .hidden_size = 8, .intermediate_size = 8, .hidden_act = "gelu"};
    struct gated_mlp mlp;
    struct error err = {0};
    assert_int_equal(gated_mlp_load(&mlp, &w, &options, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.message, "\"gelu\""));
    assert_string_equal(err.field, "hidden_act");
}

static void a_tied_head_multiplies_by_the_embedding(void **state)
{
    struct fixture *fixture = *state;
    const struct weights w = {.store = &fixture->store};
    struct embedding embedding;
    struct lm_head tied, own;
    struct error err = {0};
    assert_int_equal(embedding_load(&embedding, &w, "embed_tokens", 7, 4, 1, &err), STATUS_OK);
    assert_int_equal(lm_head_load(&tied, &w, &embedding, true, &err), STATUS_OK);
    assert_int_equal(lm_head_load(&own, &w, &embedding, false, &err), STATUS_OK);
    assert_memory_equal(tied.proj.weight.data, embedding.table.data, 7 * 4 * sizeof(float));
    assert_memory_not_equal(own.proj.weight.data, embedding.table.data, 7 * 4 * sizeof(float));
    assert_int_equal(own.proj.weight.out_features, 7);
}

static void attention_loads_norms_and_biases_only_where_asked(void **state)
{
    struct fixture *fixture = *state;
    const struct weights w = {.store = &fixture->store};
    struct attention_options options = {.hidden_size = 16,
                                        .num_heads = 4,
                                        .num_kv_heads = 2,
                                        .head_dim = 8,
                                        .has_qkv_bias = true,
                                        .rms_norm_eps = 1e-6};
    struct attention attention;
    struct error err = {0};
    assert_int_equal(attention_load(&attention, &w, &options, &err), STATUS_OK);
    assert_int_equal(attention.qkv_proj.parts[0].weight.out_features, 32);
    assert_int_equal(attention.qkv_proj.parts[1].weight.out_features, 16);
    assert_int_equal(attention.o_proj.weight.in_features, 32);
    assert_non_null(attention.qkv_proj.parts[2].weight.bias);
    assert_null(attention.o_proj.weight.bias);
    assert_null(attention.q_norm.params.weight);
    assert_true(fabs(attention.scale - 1 / sqrt(8.0)) < 1e-7);
    options.qk_norm = QK_NORM_HEADS;
    options.has_o_bias = true;
    assert_int_equal(attention_load(&attention, &w, &options, &err), STATUS_OK);
    assert_int_equal(attention.q_norm.size, 8);
    assert_non_null(attention.k_norm.params.weight);
    assert_non_null(attention.o_proj.weight.bias);
    assert_int_equal(attention_scratch_bytes(&attention, DTYPE_F32, 10),
                     (2 * 32 + 2 * 16) * 10 * sizeof(float));
}

int main(void)
{
#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, start, stop)
    const struct CMUnitTest tests[] = {
        WITH_STORE(rms_norm_gives_the_published_values),
        WITH_STORE(gated_mlp_multiplies_gated_and_up_within_its_scratch),
        WITH_STORE(another_activation_is_refused_by_name),
        WITH_STORE(a_tied_head_multiplies_by_the_embedding),
        WITH_STORE(attention_loads_norms_and_biases_only_where_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
