// Tokens → text: the same whatever way the engine's steps cut them and whatever comes twice.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api_server/logprobs.h"
#include "api_server/output_processor.h"
#include "base/memory.h"
#include "base/utf8.h"

#define TEXT "A \xF0\x9F\xA6\x8A says \xE8\xAA\x9E and stops here. Not here."

static struct tokenizer *tokenizer;
static struct arena arena;
static int32_t *ids, num_ids;
static const int32_t prompt[] = {300, 301, 302, 303, 304};

static int setup(void **state)
{
    (void)state;
    struct error err;
    if (tokenizer_load(&tokenizer, MODELS_DIR "/demo/tokenizer.json", &err) != STATUS_OK)
        return 1;
    ids = tokenizer_encode(tokenizer, STR(TEXT), false, &arena, &num_ids);
    return num_ids > 10 ? 0 : 1;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_destroy(tokenizer);
    arena_deinit(&arena);
    return 0;
}

static struct output_processor *make(const struct stop_matcher *stops)
{
    struct output_processor *p = xcalloc(1, sizeof(*p));
    p->engine.core.prompt_token_ids = prompt;
    p->engine.core.num_prompt_tokens = (int32_t)ARRAY_LEN(prompt);
    p->engine.core.sampling.num_logprobs = -1;
    output_processor_init(p, &(struct output_processor_options){.tokenizer = tokenizer,
                                                                .stops = stops,
                                                                .skip_special_tokens = true});
    return p;
}

/** One step's tokens, as engine_client hands them over. */
static bool step(struct output_processor *p, int32_t first, int32_t end, enum finish_reason reason)
{
    p->engine.output_token_ids = xrealloc(p->engine.output_token_ids, (size_t)(end + 1) * 4);
    memcpy(p->engine.output_token_ids + first, ids + first, (size_t)(end - first) * 4);
    p->engine.core.num_output_tokens = end;
    return output_processor_update(p, &(struct engine_core_output){.num_new_tokens = end - first,
                                                                   .new_token_ids = ids + first,
                                                                   .finish_reason = reason,
                                                                   .stop_token_id = -1});
}

static void every_cut_into_three_steps_gives_the_same_text(void **state)
{
    (void)state;
    struct str stop = STR(" here");
    const struct stop_matcher matchers[] = {stop_matcher_make(NULL, 0, false),
                                            stop_matcher_make(&stop, 1, false),
                                            stop_matcher_make(&stop, 1, true)};
    static const char *const expected[] = {TEXT, "A \xF0\x9F\xA6\x8A says \xE8\xAA\x9E and stops",
                                           "A \xF0\x9F\xA6\x8A says \xE8\xAA\x9E and stops here"};
    int32_t tokens[3] = {0};
    for (size_t m = 0; m < ARRAY_LEN(matchers); m++) {
        for (int32_t a = 0; a <= num_ids; a++) {
            for (int32_t b = a; b <= num_ids; b++) {
                struct output_processor *p = make(&matchers[m]);
                const int32_t ends[] = {a, b, num_ids};
                struct buf text = {0};
                int32_t first = 0;
                for (int s = 0; s < 3; s++) {
                    step(p, first, ends[s], s == 2 ? FINISH_REASON_LENGTH : FINISH_REASON_NONE);
                    struct output_delta delta = output_processor_take(p);
                    assert_true(utf8_is_valid(delta.text, NULL));
                    buf_append(&text, delta.text);
                    first = ends[s];
                }
                assert_true(str_eq_c(buf_str(&text), expected[m]));
                assert_int_equal(p->finish_reason,
                                 m == 0 ? FINISH_REASON_LENGTH : FINISH_REASON_STOP);
                if (tokens[m] == 0)
                    tokens[m] = p->num_tokens;
                assert_int_equal(p->num_tokens, tokens[m]); // whatever the steps held beyond it
                buf_deinit(&text);
                output_processor_deinit(p);
                free(p);
            }
        }
    }
}

static void prompt_logprobs_that_come_again_are_taken_once(void **state)
{
    (void)state;
    struct stop_matcher none = stop_matcher_make(NULL, 0, false);
    struct output_processor *p = make(&none);
    const int32_t id = 5;
    float values[8];
    struct token_logprobs rows[8];
    for (int i = 0; i < 8; i++) {
        values[i] = -(float)i;
        rows[i] = (struct token_logprobs){1, &id, &values[i], 1};
    }
    const struct {
        int32_t first, num; // rows[i] is offered for position first + i
        int32_t expected;
    } steps[] = {{1, 2, 2}, {1, 3, 3}, {2, 1, 3}, {0, 1, 3}, {4, 4, 4}, {1, 4, 4}};
    for (size_t s = 0; s < ARRAY_LEN(steps); s++) {
        output_processor_update(p,
                                &(struct engine_core_output){.first_prompt_logprob = steps[s].first,
                                                             .num_prompt_logprobs = steps[s].num,
                                                             .prompt_logprobs = rows,
                                                             .finish_reason = FINISH_REASON_NONE});
        assert_int_equal(p->prompt_logprobs.num_positions, steps[s].expected);
    }
    const float expected[] = {0, -1, -2, 0}; // the first word about each position
    for (int i = 0; i < 4; i++)
        assert_true(p->prompt_logprobs.logprobs[i] == expected[i]);
    output_processor_deinit(p);
    free(p);
}

static void the_token_the_engine_stopped_at_is_counted_and_not_shown(void **state)
{
    (void)state;
    struct stop_matcher none = stop_matcher_make(NULL, 0, false);
    struct output_processor *p = make(&none);
    step(p, 0, 1, FINISH_REASON_STOP);
    assert_int_equal(p->num_tokens, 1);
    assert_int_equal(p->text.len, 0);
    assert_int_equal(output_processor_take(p).num_tokens, 1);
    output_processor_deinit(p);
    free(p);
}

static void texts_of_tokens_join_to_the_text(void **state)
{
    (void)state;
    struct buf joined = {0};
    for (int32_t i = 0; i < num_ids; i++) {
        struct str text = logprob_token_text(tokenizer, ids, i, ids[i], &arena);
        assert_true(utf8_is_valid(text, NULL));
        buf_append(&joined, text);
    }
    assert_true(str_eq_c(buf_str(&joined), TEXT));
    buf_deinit(&joined);
}

/** The answer's length when it ends, over outputs that come `stride` at a time. */
static int32_t length_with_rule(const int32_t *outputs, int32_t num, int32_t stride,
                                struct repetition_rule rule, int32_t min_tokens,
                                enum finish_reason *reason)
{
    const struct stop_matcher none = stop_matcher_make(NULL, 0, false);
    struct output_processor *p = make(&none);
    p->options.repetition = rule;
    p->options.min_tokens = min_tokens;
    p->engine.output_token_ids = xcalloc((size_t)num, sizeof(*outputs));
    for (int32_t i = 0; i < num; i += stride) {
        int32_t count = min_i32(stride, num - i);
        memcpy(p->engine.output_token_ids + i, outputs + i, (size_t)count * sizeof(*outputs));
        p->engine.core.num_output_tokens = i + count;
        struct engine_core_output output = {.num_new_tokens = count,
                                            .new_token_ids = outputs + i,
                                            .finish_reason = FINISH_REASON_NONE,
                                            .stop_token_id = -1};
        if (output_processor_update(p, &output))
            break;
    }
    *reason = p->finish_reason;
    int32_t len = p->num_tokens;
    output_processor_deinit(p);
    free(p);
    return len;
}

static void repeated_patterns_end_an_answer_at_the_same_token_however_it_comes(void **state)
{
    (void)state;
    static const int32_t outputs[] = {9, 5, 6, 7, 5, 6, 7, 5, 6, 7, 7, 7};
    const struct {
        struct repetition_rule rule;
        int32_t min_tokens, expected; // 0: goes on
    } rows[] = {
        {{1, 3, 2}, 0, 7},  {{1, 3, 3}, 0, 10}, {{1, 3, 3}, 11, 12},
        {{1, 2, 3}, 0, 12}, {{1, 2, 4}, 0, 0},  {{3, 3, 3}, 0, 10},
        {{4, 6, 2}, 0, 0},  {{0, 0, 0}, 0, 0},  {{1, 4096, 2}, 0, 7},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int32_t stride = 1; stride <= (int32_t)ARRAY_LEN(outputs); stride++) {
            enum finish_reason reason;
            int32_t len = length_with_rule(outputs, ARRAY_LEN(outputs), stride, rows[i].rule,
                                           rows[i].min_tokens, &reason);
            assert_int_equal(reason,
                             rows[i].expected ? FINISH_REASON_REPETITION : FINISH_REASON_NONE);
            assert_int_equal(len,
                             rows[i].expected ? rows[i].expected : (int32_t)ARRAY_LEN(outputs));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeated_patterns_end_an_answer_at_the_same_token_however_it_comes),
        cmocka_unit_test(every_cut_into_three_steps_gives_the_same_text),
        cmocka_unit_test(prompt_logprobs_that_come_again_are_taken_once),
        cmocka_unit_test(the_token_the_engine_stopped_at_is_counted_and_not_shown),
        cmocka_unit_test(texts_of_tokens_join_to_the_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
