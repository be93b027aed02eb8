// What a GPU draws, and its log-probabilities, against the host's sampler over rows that mix every
// parameter. Weights are float32 there: a draw within 1e-5 of a boundary of the cumulative
// distribution may go to either side.
#include <math.h>

#include "worker/sampler.h"
#include "worker/step_driver.h"

enum { ROWS = 64, VOCAB = 3001, HISTORY = 90, PROMPT = 50, MASK_WORDS = (VOCAB + 31) / 32 };

struct row {
    struct sampling_params params;
    uint32_t mask[MASK_WORDS];
    bool is_masked, has_last;
    float logits[VOCAB];
    int32_t history[HISTORY];
};

static struct row rows[ROWS];
static struct sample_params on_gpu[ROWS];
static int32_t drawn[ROWS];
static const int32_t ALLOWED[] = {3, 900, 901, 902, 1500, 2999}, FORBIDDEN[] = {1, 4, 1, 901};
static const struct logit_bias BIAS[] = {{11, 6.0f}, {12, -100.0f}, {2000, 5.5f}};

static uint64_t random_state = 5;

static double uniform(void)
{
    uint32_t words[4];
    philox4x32(random_state++, 1, 2, words);
    return words[0] / 4294967296.0;
}

static void make_row(struct row *r, int32_t i)
{
    r->params = driver_greedy();
    struct sampling_params *p = &r->params;
    p->temperature = i % 5 == 0 ? 0.0f : 0.4f + 0.3f * (float)(i % 4);
    p->top_p = i % 3 == 1 ? 0.9f : i % 3 == 2 ? 0.5f : 1.0f;
    p->top_k = i % 4 == 1 ? 40 : 0;
    p->min_p = i % 10 == 9 ? 0.05f : 0.0f;
    p->seed = (uint64_t)i * 1234567;
    if (i % 4 == 2) {
        p->repetition_penalty = 1.3f;
        p->frequency_penalty = 0.4f;
        p->presence_penalty = 0.2f;
    }
    if (i % 9 == 2) {
        p->allowed_token_ids = ALLOWED;
        p->num_allowed_token_ids = ARRAY_LEN(ALLOWED);
    }
    if (i % 9 == 4) {
        p->logit_bias = BIAS;
        p->num_logit_bias = ARRAY_LEN(BIAS);
    }
    if (i % 9 == 5) {
        p->bad_words = FORBIDDEN;
        p->num_bad_word_ints = ARRAY_LEN(FORBIDDEN);
    }
    p->num_logprobs = i % 2 ? i % (MAX_DEVICE_LOGPROBS + 1) : -1;
    r->is_masked = i % 7 == 3;
    r->has_last = i % 3 == 0;
    for (int32_t k = 0; k < VOCAB; k++)
        r->logits[k] = (float)(12 * uniform() - 6);
    for (int32_t k = 0; k < MASK_WORDS; k++)
        r->mask[k] = (uint32_t)(uniform() * 4294967295.0);
    for (int32_t k = 0; k < HISTORY; k++)
        r->history[k] = (int32_t)(uniform() * (k % 2 ? 40 : VOCAB));
}

static void *to_gpu(struct device *dev, const void *from, size_t size_bytes)
{
    void *memory = dev->ops.alloc(dev, size_bytes);
    dev->ops.copy_in(dev, memory, from, size_bytes);
    return memory;
}

static struct sample_params params_of(struct device *dev, const struct row *r)
{
    const struct sampling_params *p = &r->params;
    struct sample_params out = {
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .presence_penalty = p->presence_penalty,
        .frequency_penalty = p->frequency_penalty,
        .repetition_penalty = p->repetition_penalty,
        .seed = p->seed,
        .top_k = p->top_k,
        .num_logit_bias = p->num_logit_bias,
        .num_allowed = p->num_allowed_token_ids,
        .num_logprobs = p->num_logprobs,
        .num_prompt_tokens = PROMPT,
        .num_tokens = HISTORY,
        .token_ids = to_gpu(dev, r->history, sizeof(r->history)),
    };
    if (r->has_last) {
        out.token_ids = to_gpu(dev, r->history, sizeof(r->history) - sizeof(int32_t));
        out.last_token = to_gpu(dev, &r->history[HISTORY - 1], sizeof(int32_t));
    }
    if (out.num_allowed > 0)
        out.allowed = to_gpu(dev, ALLOWED, sizeof(ALLOWED));
    if (out.num_logit_bias > 0)
        out.logit_bias = to_gpu(dev, BIAS, sizeof(BIAS));
    if (p->num_bad_word_ints > 0) {
        static const int32_t ids[] = {4, 901};
        out.forbidden = to_gpu(dev, ids, sizeof(ids));
        out.num_forbidden = ARRAY_LEN(ids);
        out.min_tokens = INT32_MAX;
    }
    if (r->is_masked)
        out.mask = to_gpu(dev, r->mask, sizeof(r->mask));
    return out;
}

/** Whether the row's uniform number falls where `token_id` lies in the cumulative distribution. */
static bool is_drawn(const struct row *r, int32_t token_id, struct arena *arena)
{
    float *logits = arena_array(arena, float, VOCAB);
    double *probs = arena_array(arena, double, VOCAB);
    memcpy(logits, r->logits, sizeof(r->logits));
    const struct token_constraint constraint = {r->mask, false};
    const struct sampler_history history = {r->history, PROMPT, HISTORY,
                                            r->is_masked ? &constraint : NULL};
    sampler_distribution(logits, VOCAB, &r->params, &history, probs, arena);
    uint32_t words[4];
    philox4x32(r->params.seed, HISTORY - PROMPT, 0, words);
    double u = ((double)(words[0] >> 5) * 0x1p26 + (double)(words[1] >> 6)) * 0x1p-53, sum = 0;
    for (int32_t id = 0; id < token_id; id++)
        sum += probs[id];
    return probs[token_id] > 0 && u >= sum - 1e-5 && u <= sum + probs[token_id] + 1e-5;
}

static void check_logprobs(const struct row *r, int32_t token_id, const int32_t *ids,
                           const float *values, int32_t rank, struct arena *arena)
{
    float *logits = arena_array(arena, float, VOCAB);
    for (int32_t id = 0; id < VOCAB; id++)
        logits[id] = r->is_masked && !(r->mask[id / 32] >> id % 32 & 1) ? -INFINITY : r->logits[id];
    struct token_logprobs want;
    sampler_logprobs(logits, VOCAB, token_id, r->params.num_logprobs, &want, arena);
    assert_int_equal(rank, want.rank);
    for (int32_t k = 0; k < want.num_entries; k++) {
        assert_int_equal(ids[k], want.token_ids[k]);
        // To the bit: both sum in double precision, whose last bits a float does not show.
        if (values[k] != want.logprobs[k])
            fail_msg("token %d, entry %d: %.9g on the GPU, %.9g on the host", token_id, k,
                     (double)values[k], (double)want.logprobs[k]);
    }
}

static void a_gpu_draws_what_the_host_would(void **state)
{
    (void)state;
    if (!cuda_is_available()) {
        print_message("no GPU, or no driver, on this machine\n");
        skip();
    }
    enum { ENTRIES = 1 + MAX_DEVICE_LOGPROBS };
    static int32_t top_ids[ROWS * ENTRIES], ranks[ROWS];
    static float top[ROWS * ENTRIES];
    struct device dev;
    struct error err = {0};
    struct arena arena = {0};
    assert_int_equal(cuda_device_init(&dev, 1, &err), STATUS_OK);
    float *logits = arena_array(&arena, float, (size_t)ROWS *VOCAB);
    for (int32_t i = 0; i < ROWS; i++) {
        make_row(&rows[i], i);
        on_gpu[i] = params_of(&dev, &rows[i]);
        memcpy(logits + (size_t)i * VOCAB, rows[i].logits, sizeof(rows[i].logits));
    }
    struct tensor on_device = tensor_2d(to_gpu(&dev, logits, (size_t)ROWS * VOCAB * sizeof(float)),
                                        DTYPE_F32, ROWS, VOCAB);
    const struct sample_params *params = to_gpu(&dev, on_gpu, sizeof(on_gpu));
    int32_t *ids = dev.ops.alloc(&dev, sizeof(drawn));
    const struct sampled_logprobs out = {dev.ops.alloc(&dev, sizeof(top_ids)),
                                         dev.ops.alloc(&dev, sizeof(top)),
                                         dev.ops.alloc(&dev, sizeof(ranks))};
    op_sample(&dev, ids, on_device, params);
    op_sample_logprobs(&dev, &out, ids, on_device, params);
    dev.ops.copy_out(&dev, drawn, ids, sizeof(drawn));
    dev.ops.copy_out(&dev, top_ids, out.token_ids, sizeof(top_ids));
    dev.ops.copy_out(&dev, top, out.logprobs, sizeof(top));
    dev.ops.copy_out(&dev, ranks, out.ranks, sizeof(ranks));
    for (int32_t i = 0; i < ROWS; i++) {
        assert_in_range(drawn[i], 0, VOCAB - 1);
        if (!is_drawn(&rows[i], drawn[i], &arena))
            fail_msg("row %d: token %d is not what the host draws", i, drawn[i]);
        if (rows[i].params.num_logprobs >= 0)
            check_logprobs(&rows[i], drawn[i], top_ids + i * ENTRIES, top + i * ENTRIES, ranks[i],
                           &arena);
    }
    // What leaves no token is told from logits that are of no use.
    static const uint32_t nothing[MASK_WORDS];
    on_gpu[0].mask = to_gpu(&dev, nothing, sizeof(nothing));
    params = to_gpu(&dev, on_gpu, sizeof(on_gpu[0]));
    on_device.shape[0] = 1;
    op_sample(&dev, ids, on_device, params);
    dev.ops.copy_out(&dev, drawn, ids, sizeof(drawn[0]));
    assert_int_equal(drawn[0], TOKEN_ID_FORBIDDEN);
    arena_deinit(&arena);
    device_deinit(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_draws_what_the_host_would),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
