// The sampler against exact distributions of an independent implementation, and what must hold for
// the random stream: it depends on seed and position alone.
#include "worker/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/memory.h"

static const struct sampling_params neutral = {
    .temperature = 1.0f,
    .top_p = 1.0f,
    .repetition_penalty = 1.0f,
    .max_tokens = 1,
    .eos_token_id = -1,
    .num_logprobs = -1,
    .num_prompt_logprobs = -1,
};

static const struct sampler_history no_history = {0};

static int setup(void **state)
{
    static struct arena arena;
    *state = &arena;
    return 0;
}

static int teardown(void **state)
{
    arena_deinit(*state);
    return 0;
}

static double number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);
    return value ? json_number_value(value) : otherwise;
}

// ---- Fixtures ------------------------------------------------------------------------------

static void read_history(const json_t *params, struct sampler_history *history, struct arena *arena)
{
    const json_t *prompt = json_object_get(params, "prompt_ids");
    const json_t *output = json_object_get(params, "output_ids");
    size_t num_prompt = json_array_size(prompt), num_output = json_array_size(output);
    int32_t *ids = arena_array(arena, int32_t, num_prompt + num_output);
    for (size_t i = 0; i < num_prompt + num_output; i++)
        ids[i] = (int32_t)json_integer_value(
            i < num_prompt ? json_array_get(prompt, i) : json_array_get(output, i - num_prompt));
    *history = (struct sampler_history){.token_ids = ids,
                                        .num_prompt_tokens = (int32_t)num_prompt,
                                        .num_tokens = (int32_t)(num_prompt + num_output)};
}

static void read_params(json_t *json, struct sampling_params *params, struct arena *arena)
{
    *params = neutral;
    params->temperature = (float)number(json, "temperature", 1);
    params->top_p = (float)number(json, "top_p", 1);
    params->min_p = (float)number(json, "min_p", 0);
    params->top_k = (int32_t)number(json, "top_k", 0);
    params->presence_penalty = (float)number(json, "presence_penalty", 0);
    params->frequency_penalty = (float)number(json, "frequency_penalty", 0);
    params->repetition_penalty = (float)number(json, "repetition_penalty", 1);
    json_t *bias = json_object_get(json, "logit_bias"), *value;
    const char *key;
    struct logit_bias *biases = arena_array(arena, struct logit_bias, json_object_size(bias));
    params->logit_bias = biases;
    json_object_foreach(bias, key, value)
    {
        biases[params->num_logit_bias++] =
            (struct logit_bias){(int32_t)atoi(key), (float)json_number_value(value)};
    }
}

static void check_case(const json_t *root, json_t *test, struct arena *arena)
{
    const char *name = json_string_value(json_object_get(test, "name"));
    const json_t *values = json_object_get(json_object_get(root, "logits"),
                                           json_string_value(json_object_get(test, "logits")));
    int32_t vocab_size = (int32_t)json_array_size(values);
    float *logits = arena_array(arena, float, vocab_size);
    double *probs = arena_array(arena, double, vocab_size);
    double *expected = arena_calloc(arena, (size_t)vocab_size, sizeof(double));
    for (int32_t i = 0; i < vocab_size; i++)
        logits[i] = (float)json_number_value(json_array_get(values, (size_t)i));
    size_t i;
    json_t *pair;
    json_array_foreach(json_object_get(test, "probs"), i, pair)
    {
        expected[json_integer_value(json_array_get(pair, 0))] =
            json_number_value(json_array_get(pair, 1));
    }

    struct sampling_params params;
    struct sampler_history history;
    read_params(json_object_get(test, "params"), &params, arena);
    read_history(json_object_get(test, "params"), &history, arena);
    sampler_distribution(logits, vocab_size, &params, &history, probs, arena);

    // Near a threshold, what is kept may turn on the last bit of a float.
    double base_tolerance = json_object_get(test, "fragile") ? 1e-3 : 1e-5;
    double largest = 0;
    for (int32_t id = 0; id < vocab_size; id++)
        largest = fmax(largest, expected[id]);
    for (int32_t id = 0; id < vocab_size; id++) {
        // The temperature is a float: half an ulp of it moves e^-z by z times as much.
        double exponent = expected[id] > 0 ? log(largest / expected[id]) : 0;
        double tolerance = base_tolerance + exponent * 0x1p-24;
        if (fabs(probs[id] - expected[id]) > tolerance * fmax(expected[id], probs[id]))
            fail_msg("%s: token %d has probability %.9g, expected %.9g", name, id, probs[id],
                     expected[id]);
    }
}

static void distributions_equal_the_reference(void **state)
{
    json_error_t json_error;
    json_t *root = json_load_file(FIXTURES_DIR "/sampling/cases.json", 0, &json_error);
    assert_non_null(root);
    json_t *cases = json_object_get(root, "cases"), *test;
    assert_int_equal(json_array_size(cases), 138);
    size_t i;
    json_array_foreach(cases, i, test)
    {
        check_case(root, test, *state);
        arena_reset(*state);
    }
    json_decref(root);
}

// ---- The random stream ---------------------------------------------------------------------

static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t key, low, high;
        uint32_t out[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t out[4];
        philox4x32(cases[i].key, cases[i].low, cases[i].high, out);
        assert_memory_equal(out, cases[i].out, sizeof(out));
    }
}

enum { VOCAB = 6, NUM_DRAWS = 20000 };
static const float small_logits[VOCAB] = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -3.0f};

/** The token drawn at an output position (outputs are all token 0). */
static int32_t sample_at(const struct sampling_params *params, int32_t position,
                         struct arena *arena)
{
    float logits[VOCAB];
    memcpy(logits, small_logits, sizeof(logits));
    int32_t *tokens = arena_calloc(arena, (size_t)position + 1, sizeof(int32_t));
    struct sampler_history history = {tokens, 0, position, NULL};
    struct token_logprobs logprobs;
    int32_t token = sampler_sample(logits, VOCAB, params, &history, &logprobs, arena);
    arena_reset(arena);
    return token;
}

static void same_seed_and_position_give_the_same_token(void **state)
{
    struct sampling_params params = neutral;
    int num_other_seed = 0, num_other_position = 0;
    for (int32_t i = 0; i < 200; i++) {
        params.seed = (uint64_t)i;
        int32_t token = sample_at(&params, 7, *state);
        assert_int_equal(sample_at(&params, 7, *state), token);
        num_other_position += sample_at(&params, 8, *state) != token;
        params.seed = (uint64_t)i << 40;
        num_other_seed += sample_at(&params, 7, *state) != token;
    }
    assert_in_range(num_other_seed, 80, 180);
    assert_in_range(num_other_position, 80, 180);
}

static void prompt_length_does_not_move_the_stream(void **state)
{
    struct sampling_params params = neutral;
    for (int32_t i = 0; i < 50; i++) {
        params.seed = (uint64_t)i;
        float logits[VOCAB];
        memcpy(logits, small_logits, sizeof(logits));
        int32_t tokens[9] = {0};
        struct sampler_history history = {tokens, 5, 9, NULL};
        int32_t token = sampler_sample(logits, VOCAB, &params, &history, NULL, *state);
        assert_int_equal(sample_at(&params, 4, *state), token);
    }
}

static void draws_follow_the_distribution(void **state)
{
    struct sampling_params params = neutral;
    params.temperature = 0.8f;
    params.seed = 42;
    int32_t counts[VOCAB] = {0};
    for (int32_t i = 0; i < NUM_DRAWS; i++) {
        params.seed = (uint64_t)i;
        int32_t token = sample_at(&params, i % 16, *state);
        assert_in_range(token, 0, VOCAB - 1);
        counts[token]++;
    }
    float logits[VOCAB];
    double probs[VOCAB];
    memcpy(logits, small_logits, sizeof(logits));
    sampler_distribution(logits, VOCAB, &params, &no_history, probs, *state);
    for (int32_t id = 0; id < VOCAB; id++) {
        // Six standard deviations of a binomial.
        double bound = 6 * sqrt(probs[id] * (1 - probs[id]) / NUM_DRAWS);
        assert_true(fabs((double)counts[id] / NUM_DRAWS - probs[id]) < bound);
    }
}

static void only_kept_tokens_are_drawn(void **state)
{
    struct sampling_params params = neutral;
    params.top_k = 2;
    bool is_drawn[VOCAB] = {false};
    for (int32_t i = 0; i < 500; i++) {
        params.seed = (uint64_t)i;
        is_drawn[sample_at(&params, 0, *state)] = true;
    }
    static const bool expected[VOCAB] = {false, true, false, true, false, false};
    assert_memory_equal(is_drawn, expected, sizeof(expected));
}

// ---- Masks and limits ----------------------------------------------------------------------

static void greedy_takes_the_lowest_id_of_equal_logits(void **state)
{
    struct sampling_params params = neutral;
    params.temperature = 0.0f;
    float logits[] = {1.0f, 3.0f, 3.0f, -INFINITY, 3.0f};
    assert_int_equal(sampler_sample(logits, 5, &params, &no_history, NULL, *state), 1);
}

static void stop_tokens_wait_for_min_tokens(void **state)
{
    static const int32_t stops[] = {1, 99, -5}; // ids outside the vocabulary are skipped
    struct sampling_params params = neutral;
    params.temperature = 0.0f;
    params.min_tokens = 3;
    params.eos_token_id = 3;
    params.stop_token_ids = stops;
    params.num_stop_token_ids = 3;
    assert_int_equal(sample_at(&params, 2, *state), 4); // 3 and 1 are likelier
    assert_int_equal(sample_at(&params, 3, *state), 3);
}

static void only_allowed_tokens_remain(void **state)
{
    static const int32_t allowed[] = {2, 5, 77};
    struct sampling_params params = neutral;
    params.allowed_token_ids = allowed;
    params.num_allowed_token_ids = 3;
    float logits[VOCAB];
    double probs[VOCAB];
    memcpy(logits, small_logits, sizeof(logits));
    sampler_distribution(logits, VOCAB, &params, &no_history, probs, *state);
    assert_true(fabs(probs[2] - 1 / (1 + exp(-2.0))) < 1e-12);
    assert_true(fabs(probs[2] + probs[5] - 1) < 1e-12);
    params.temperature = 0.0f;
    assert_int_equal(sample_at(&params, 0, *state), 2);
}

static void history_outside_the_vocabulary_is_skipped(void **state)
{
    struct sampling_params params = neutral;
    params.temperature = 0.0f;
    params.repetition_penalty = 2.0f;
    params.presence_penalty = 1.5f;
    static const struct logit_bias bias[] = {{-1, 5.0f}, {VOCAB, 5.0f}};
    params.logit_bias = bias;
    params.num_logit_bias = 2;
    static const int32_t tokens[] = {-1, VOCAB, INT32_MAX, INT32_MIN, 3};
    struct sampler_history history = {tokens, 2, 5, NULL};
    float logits[VOCAB];
    memcpy(logits, small_logits, sizeof(logits));
    // Token 3: 2 / 2 - 1.5 is below the 1 of token 1.
    assert_int_equal(sampler_sample(logits, VOCAB, &params, &history, NULL, *state), 1);
}

static void logits_that_are_not_numbers_draw_nothing(void **state)
{
    static const float bad[] = {NAN, INFINITY};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        for (int32_t at = 0; at < VOCAB; at++) {
            for (int greedy = 0; greedy < 2; greedy++) {
                struct sampling_params params = neutral;
                params.temperature = greedy ? 0.0f : 1.0f;
                params.top_k = 2;
                params.top_p = 0.5f;
                params.min_p = 0.1f;
                params.num_logprobs = 3;
                float logits[VOCAB];
                memcpy(logits, small_logits, sizeof(logits));
                logits[at] = bad[i];
                struct token_logprobs logprobs;
                assert_int_equal(
                    sampler_sample(logits, VOCAB, &params, &no_history, &logprobs, *state), -1);
            }
        }
    }
    float none[] = {-INFINITY, -INFINITY};
    assert_int_equal(sampler_sample(none, 2, &neutral, &no_history, NULL, *state), -1);
}

static void a_mask_of_every_token_draws_nothing(void **state)
{
    static const int32_t allowed[] = {3};
    struct sampling_params params = neutral;
    params.allowed_token_ids = allowed;
    params.num_allowed_token_ids = 1;
    params.min_tokens = 1;
    params.eos_token_id = 3;
    params.top_p = 0.5f;
    assert_int_equal(sample_at(&params, 0, *state), TOKEN_ID_FORBIDDEN);
}

// ---- Log-probabilities ---------------------------------------------------------------------

static void logprobs_are_of_the_raw_logits(void **state)
{
    struct sampling_params params = neutral;
    static const struct logit_bias bias[] = {{5, 100.0f}};
    params.logit_bias = bias;
    params.num_logit_bias = 1;
    params.temperature = 0.0f;
    params.num_logprobs = 3;
    float logits[VOCAB];
    memcpy(logits, small_logits, sizeof(logits));
    struct token_logprobs out;
    assert_int_equal(sampler_sample(logits, VOCAB, &params, &no_history, &out, *state), 5);
    assert_int_equal(out.num_entries, 4);
    assert_int_equal(out.rank, 6);
    static const int32_t ids[] = {5, 3, 1, 4};
    assert_memory_equal(out.token_ids, ids, sizeof(ids));
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp(small_logits[i]);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(out.logprobs[i] - (small_logits[ids[i]] - log(sum))) < 1e-6);
}

static void top_logprobs_stop_at_the_vocabulary(void **state)
{
    static const float logits[] = {1.0f, 2.0f, 2.0f};
    struct token_logprobs out;
    sampler_logprobs(logits, 3, 0, 20, &out, *state);
    assert_int_equal(out.num_entries, 4);
    static const int32_t ids[] = {0, 1, 2, 0};
    assert_memory_equal(out.token_ids, ids, sizeof(ids));
    sampler_logprobs(logits, 3, 2, 0, &out, *state);
    assert_int_equal(out.num_entries, 1);
    assert_int_equal(out.rank, 2); // as likely as token 1
}

// ---- A real vocabulary ---------------------------------------------------------------------

/** top-k and top-p by a full sort, for comparison. */
static const float *sort_logits;

static int by_rank(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sort_logits[x] != sort_logits[y])
        return sort_logits[x] > sort_logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void selection_equals_a_full_sort(void **state)
{
    struct arena *arena = *state;
    enum { SIZE = 20011 };
    static const struct {
        int32_t top_k;
        float top_p;
    } cases[] = {{1, 1.0f}, {50, 1.0f}, {5000, 0.7f}, {0, 0.9f}, {0, 0.05f}, {0, 0.9999f}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        float *logits = arena_array(arena, float, SIZE);
        for (int32_t id = 0; id < SIZE; id++) {
            uint32_t words[4];
            philox4x32(1, (uint64_t)id, 0, words);
            logits[id] = (float)(words[0] % 4000) / 400.0f; // many ties
        }
        int32_t *order = arena_array(arena, int32_t, SIZE);
        for (int32_t id = 0; id < SIZE; id++)
            order[id] = id;
        sort_logits = logits;
        qsort(order, SIZE, sizeof(*order), by_rank);
        int32_t num = cases[i].top_k ? cases[i].top_k : SIZE;
        while (num < SIZE && logits[order[num]] == logits[order[num - 1]])
            num++; // ties with the k-th stay
        double total = 0, mass = 0;
        for (int32_t r = 0; r < num; r++)
            total += exp(logits[order[r]] - 10.0);
        double *expected = arena_calloc(arena, SIZE, sizeof(double));
        int32_t num_kept = 0;
        while (num_kept < num && (num_kept == 0 || mass < (double)cases[i].top_p * total))
            mass += expected[order[num_kept]] = exp(logits[order[num_kept]] - 10.0), num_kept++;

        struct sampling_params params = neutral;
        params.top_k = cases[i].top_k;
        params.top_p = cases[i].top_p;
        double *probs = arena_array(arena, double, SIZE);
        sampler_distribution(logits, SIZE, &params, &no_history, probs, arena);
        for (int32_t id = 0; id < SIZE; id++) {
            if (cases[i].top_p < 1.0f || cases[i].top_k > 0)
                assert_true((probs[id] > 0) == (expected[id] > 0));
            assert_true(fabs(probs[id] - expected[id] / mass) <= 1e-9 * probs[id]);
        }
        arena_reset(arena);
    }
}

/** Logits that fall with the id, so that without anything else token 0 is the likeliest. */
static void fill_falling(float *logits, int32_t vocab_size)
{
    for (int32_t id = 0; id < vocab_size; id++)
        logits[id] = (float)(vocab_size - id);
}

static struct sampling_params greedy_params(void)
{
    return (struct sampling_params){.top_p = 1,
                                    .repetition_penalty = 1,
                                    .max_tokens = 1,
                                    .eos_token_id = -1,
                                    .num_logprobs = -1};
}

static void a_bad_word_is_forbidden_only_behind_its_beginning(void **state)
{
    (void)state;
    enum { SMALL_VOCAB = 8 };
    struct arena arena = {0};
    const int32_t bad_words[] = {1, 0, 3, 5, 6, 1}; // "0" alone, and "5 6 1"
    const struct {
        int32_t tokens[4];
        int32_t num_prompt, num, expected;
    } rows[] = {
        {{5, 6}, 0, 2, 2},    // 0 is bad anywhere, 1 behind 5 6
        {{5, 6}, 1, 2, 1},    // the prompt is no part of a word
        {{6, 5, 6}, 0, 3, 2}, //
        {{6, 6}, 0, 2, 1},    // another beginning
        {{6}, 0, 1, 1},       // too short for one
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        float logits[SMALL_VOCAB];
        struct sampling_params params = greedy_params();
        params.num_bad_word_ints = 6;
        params.bad_words = bad_words;
        struct sampler_history history = {rows[i].tokens, rows[i].num_prompt, rows[i].num, NULL};
        fill_falling(logits, SMALL_VOCAB);
        assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, NULL, &arena),
                         rows[i].expected);
    }
    arena_deinit(&arena);
}

static void a_constraint_leaves_only_its_tokens_and_ends_before_min_tokens(void **state)
{
    (void)state;
    enum { SMALL_VOCAB = 70 };
    struct arena arena = {0};
    float logits[SMALL_VOCAB];
    uint32_t mask[3] = {0, 1u << 8, 1u << 1}; // 40 and 65
    struct token_constraint constraint = {mask, false};
    struct sampler_history history = {NULL, 0, 0, &constraint};
    struct sampling_params params = greedy_params();
    struct token_logprobs logprobs;
    params.num_logprobs = 2;
    fill_falling(logits, SMALL_VOCAB);
    assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, &logprobs, &arena), 40);
    assert_int_equal(logprobs.token_ids[1], 40);
    assert_int_equal(logprobs.token_ids[2], 65);
    assert_true(logprobs.logprobs[0] <= 0 && logprobs.logprobs[0] > -1e-9);

    params.min_tokens = 4;
    params.eos_token_id = 40;
    fill_falling(logits, SMALL_VOCAB);
    assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, &logprobs, &arena), 65);
    constraint.must_end = true;
    mask[2] = 0;
    fill_falling(logits, SMALL_VOCAB);
    assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, &logprobs, &arena), 40);

    fill_falling(logits, SMALL_VOCAB);
    logits[3] = NAN; // though the mask would hide it
    assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, &logprobs, &arena), -1);
    arena_deinit(&arena);
}

static void constraints_that_leave_nothing_are_told_from_a_broken_model(void **state)
{
    (void)state;
    enum { SMALL_VOCAB = 70 };
    static const int32_t allowed[] = {41}, words[] = {1, 41}, end[] = {40};
    struct arena arena = {0};
    float logits[SMALL_VOCAB];
    uint32_t mask[3] = {0, 1u << 8, 0}; // 40
    struct token_constraint constraint = {mask, true};
    const int32_t no_tokens[1] = {0};
    struct sampler_history history = {no_tokens, 0, 0, NULL};
    struct token_logprobs logprobs;
    struct sampling_params params = greedy_params();
    params.num_allowed_token_ids = 1;
    params.allowed_token_ids = allowed;
    params.num_bad_word_ints = 2;
    params.bad_words = words;
    fill_falling(logits, SMALL_VOCAB);
    assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, &logprobs, &arena),
                     TOKEN_ID_FORBIDDEN);
    fill_falling(logits, SMALL_VOCAB);
    logits[3] = NAN;
    params.num_allowed_token_ids = 0; // a list of allowed tokens would hide it
    assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, &logprobs, &arena),
                     TOKEN_ID_NONE);

    // A list need not name what ends an answer where a constraint decides about that.
    params = greedy_params();
    params.num_allowed_token_ids = 1;
    params.allowed_token_ids = allowed;
    params.num_automaton_words = 1;
    history.constraint = &constraint;
    fill_falling(logits, SMALL_VOCAB);
    assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, &logprobs, &arena),
                     TOKEN_ID_FORBIDDEN);
    params.num_stop_token_ids = 1;
    params.stop_token_ids = end;
    fill_falling(logits, SMALL_VOCAB);
    assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, &logprobs, &arena), 40);
    arena_deinit(&arena);
}

static void listed_log_probabilities_take_the_place_of_the_likeliest(void **state)
{
    (void)state;
    enum { SMALL_VOCAB = 8 };
    struct arena arena = {0};
    float logits[SMALL_VOCAB];
    const int32_t listed[] = {7, 0, 3};
    struct sampler_history history = {NULL, 0, 0, NULL};
    struct sampling_params params = greedy_params();
    struct token_logprobs top, some;
    params.num_logprobs = SMALL_VOCAB;
    fill_falling(logits, SMALL_VOCAB);
    sampler_sample(logits, SMALL_VOCAB, &params, &history, &top, &arena);
    params.num_logprob_token_ids = 3;
    params.logprob_token_ids = listed;
    fill_falling(logits, SMALL_VOCAB);
    assert_int_equal(sampler_sample(logits, SMALL_VOCAB, &params, &history, &some, &arena), 0);
    assert_int_equal(some.num_entries, 4);
    assert_int_equal(some.rank, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(some.token_ids[1 + i], listed[i]);
        assert_true(some.logprobs[1 + i] == top.logprobs[1 + listed[i]]); // ids are ranks here
    }
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_word_is_forbidden_only_behind_its_beginning),
        cmocka_unit_test(a_constraint_leaves_only_its_tokens_and_ends_before_min_tokens),
        cmocka_unit_test(constraints_that_leave_nothing_are_told_from_a_broken_model),
        cmocka_unit_test(listed_log_probabilities_take_the_place_of_the_likeliest),
        cmocka_unit_test_setup_teardown(distributions_equal_the_reference, setup, teardown),
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test_setup_teardown(same_seed_and_position_give_the_same_token, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(prompt_length_does_not_move_the_stream, setup, teardown),
        cmocka_unit_test_setup_teardown(draws_follow_the_distribution, setup, teardown),
        cmocka_unit_test_setup_teardown(only_kept_tokens_are_drawn, setup, teardown),
        cmocka_unit_test_setup_teardown(greedy_takes_the_lowest_id_of_equal_logits, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(stop_tokens_wait_for_min_tokens, setup, teardown),
        cmocka_unit_test_setup_teardown(only_allowed_tokens_remain, setup, teardown),
        cmocka_unit_test_setup_teardown(history_outside_the_vocabulary_is_skipped, setup, teardown),
        cmocka_unit_test_setup_teardown(logits_that_are_not_numbers_draw_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_mask_of_every_token_draws_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(logprobs_are_of_the_raw_logits, setup, teardown),
        cmocka_unit_test_setup_teardown(top_logprobs_stop_at_the_vocabulary, setup, teardown),
        cmocka_unit_test_setup_teardown(selection_equals_a_full_sort, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
