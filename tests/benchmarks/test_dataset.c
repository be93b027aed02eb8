// Prompts: their lengths, their repeatability, and what files may not say.
#include "cmocka_setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "benchmarks/arrival.h"
#include "benchmarks/dataset.h"
#include "benchmarks/dice.h"

enum { MAX_WORDS = 16 };

static struct tokenizer *tokenizer;

static int load(void **state)
{
    (void)state;
    struct error err;
    return tokenizer_load(&tokenizer, MODELS_DIR "/demo/tokenizer.json", &err) == STATUS_OK ? 0 : 1;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_destroy(tokenizer);
    return 0;
}

/** Options and the prompts they make. */
struct made {
    struct bench_options options;
    struct dataset dataset;
    enum status status;
    struct error err;
};

static void make(struct made *m, const struct dataset_use *use, const char *const *words)
{
    char *argv[MAX_WORDS + 1] = {0};
    int argc = 0, exit_status = 0;
    for (; argc < MAX_WORDS && words[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    *m = (struct made){0};
    assert_int_equal(
        bench_options_parse(&m->options, BENCH_SERVE, argc, argv, stdout, stderr, &exit_status),
        OPTIONS_RUN);
    m->status = dataset_make(&m->dataset, &m->options, use, &m->err);
}

static void drop(struct made *m)
{
    dataset_deinit(&m->dataset);
    bench_options_deinit(&m->options);
}

static int32_t count(struct str text)
{
    struct arena arena = {0};
    int32_t num = 0;
    tokenizer_encode(tokenizer, text, true, &arena, &num);
    arena_deinit(&arena);
    return num;
}

static void random_prompts_encode_to_the_lengths_asked_for(void **state)
{
    (void)state;
    struct dataset_use use = {.tokenizer = tokenizer};
    struct made m;
    make(&m, &use,
         (const char *[]){"--num-prompts=60", "--random-input-len=100", "--random-output-len=20",
                          "--random-range-ratio=0.5", "--random-prefix-len=16", NULL});
    assert_int_equal(m.status, STATUS_OK);
    assert_int_equal(m.dataset.num, 60);
    int num_exact = 0, num_different = 0;
    for (int32_t i = 0; i < 60; i++) {
        const struct bench_prompt *p = &m.dataset.prompts[i];
        assert_in_range(p->output_len, 10, 30);
        assert_in_range(p->num_tokens, 50 + 16 - 4, 150 + 16 + 4);
        assert_int_equal(count(p->text), p->num_tokens);
        num_exact += p->num_tokens >= 66 && p->num_tokens <= 166;
        num_different += p->output_len != m.dataset.prompts[0].output_len;
    }
    assert_in_range(num_exact, 57, 60); // a few texts never settle
    assert_in_range(num_different, 30, 60);
    drop(&m);
}

static void batches_hold_the_prompts_in_order_and_the_last_what_is_left(void **state)
{
    (void)state;
    struct dataset_use use = {.tokenizer = tokenizer};
    struct made single, batched;
    make(&single, &use,
         (const char *[]){"--num-prompts=7", "--input-len=9", "--backend=openai-embeddings", NULL});
    make(&batched, &use,
         (const char *[]){"--num-prompts=7", "--input-len=9", "--backend=openai-embeddings",
                          "--random-batch-size=3", NULL});
    assert_int_equal(single.status, STATUS_OK);
    assert_int_equal(batched.status, STATUS_OK);
    static const int sizes[] = {3, 3, 1};
    assert_int_equal(batched.dataset.num, 3);
    assert_null(single.dataset.prompts[0].batch);
    for (int b = 0, i = 0; b < 3; b++) {
        const struct bench_prompt *batch = &batched.dataset.prompts[b];
        int32_t num_tokens = 0;
        assert_int_equal(batch->num_batch, sizes[b]);
        for (int k = 0; k < sizes[b]; k++, i++) {
            assert_true(str_eq(batch->batch[k], single.dataset.prompts[i].text));
            num_tokens += single.dataset.prompts[i].num_tokens;
        }
        assert_int_equal(batch->num_tokens, num_tokens);
    }
    drop(&single);
    drop(&batched);
}

static void the_same_seed_gives_the_same_prompts_and_another_others(void **state)
{
    (void)state;
    struct dataset_use use = {.tokenizer = tokenizer};
    static const char *const names[] = {"random", "prefix_repetition"};
    for (size_t n = 0; n < ARRAY_LEN(names); n++) {
        struct made a, b, c;
        const char *words[] = {"--num-prompts=20",
                               "--input-len=40",
                               "--dataset-name",
                               names[n],
                               "--seed",
                               "5",
                               "--prefix-repetition-prefix-len=8",
                               NULL};
        make(&a, &use, words);
        make(&b, &use, words);
        words[5] = "6";
        make(&c, &use, words);
        int num_same = 0;
        for (int i = 0; i < 20; i++) {
            assert_true(str_eq(a.dataset.prompts[i].text, b.dataset.prompts[i].text));
            num_same += str_eq(a.dataset.prompts[i].text, c.dataset.prompts[i].text);
        }
        assert_int_equal(num_same, 0);
        drop(&a);
        drop(&b);
        drop(&c);
    }
}

static void ids_need_no_tokenizer_and_stay_within_the_vocabulary(void **state)
{
    (void)state;
    struct dataset_use use = {.vocab_size = 50, .wants_ids = true};
    struct made m;
    make(&m, &use, (const char *[]){"--num-prompts=10", "--input-len=70", NULL});
    assert_int_equal(m.status, STATUS_OK);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(m.dataset.prompts[i].num_tokens, 70);
        for (int k = 0; k < 70; k++)
            assert_in_range(m.dataset.prompts[i].ids[k], 0, 49);
    }
    drop(&m);
    make(&m, &(struct dataset_use){0}, (const char *[]){"--num-prompts=3", "--input-len=5", NULL});
    assert_int_equal(m.status, STATUS_OK); // words where there are neither ids nor a tokenizer
    int num_blanks = 0;
    for (size_t i = 0; i < m.dataset.prompts[0].text.len; i++)
        num_blanks += m.dataset.prompts[0].text.ptr[i] == ' ';
    assert_int_equal(num_blanks, 4);
    drop(&m);
}

static void prefixes_repeat_as_often_as_each_other(void **state)
{
    (void)state;
    struct dataset_use use = {.vocab_size = 1000, .wants_ids = true};
    struct made m;
    make(&m, &use,
         (const char *[]){"--num-prompts=12", "--dataset-name=prefix-repetition",
                          "--prefix-repetition-num-prefixes=3", "--prefix-repetition-prefix-len=6",
                          "--prefix-repetition-suffix-len=5", NULL});
    assert_int_equal(m.status, STATUS_OK);
    for (int i = 0; i < 12; i++) {
        int num_alike = 0;
        for (int k = 0; k < 12; k++)
            num_alike += memcmp(m.dataset.prompts[i].ids, m.dataset.prompts[k].ids,
                                6 * sizeof(int32_t)) == 0;
        assert_int_equal(num_alike, 4);
        assert_int_equal(m.dataset.prompts[i].num_tokens, 11);
    }
    drop(&m);
}

/** A file of this content; the caller unlinks it. */
static void write_file(char *path, const char *text)
{
    strcpy(path, "/tmp/vllm-dataset-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void sharegpt_keeps_conversations_of_fitting_length(void **state)
{
    (void)state;
    char path[64];
    write_file(path,
               "[{\"id\":\"1\",\"conversations\":[{\"from\":\"human\",\"value\":\"Tell me a story "
               "about the \\u00e9 sea, please.\"},{\"from\":\"gpt\",\"value\":\"Once upon a time "
               "there was a sea.\"},{\"value\":\"third\"}]},"
               "{\"id\":\"2\",\"conversations\":[{\"value\":\"only one turn in this one\"}]},"
               "{\"id\":\"3\",\"conversations\":[{\"value\":\"\"},{\"value\":\"long enough answer "
               "for anybody\"}]},"
               "{\"items\":[1,{\"a\":[]}]}]");
    struct dataset_use use = {.tokenizer = tokenizer};
    struct made m;
    make(&m, &use,
         (const char *[]){"--dataset-name=sharegpt", "--dataset-path", path, "--num-prompts=3",
                          NULL});
    assert_int_equal(m.status, STATUS_OK);
    assert_int_equal(m.dataset.num, 3); // the one that fits, repeated
    struct str text = m.dataset.prompts[2].text;
    assert_true(str_eq_c(text, "Tell me a story about the \xC3\xA9 sea, please."));
    assert_int_equal(m.dataset.prompts[0].output_len,
                     count(STR("Once upon a time there was a sea.")));
    drop(&m);
    make(&m, &use,
         (const char *[]){"--dataset-name=sharegpt", "--dataset-path", path, "--num-prompts=3",
                          "--no-oversample", "--output-len=9", NULL});
    assert_int_equal(m.dataset.num, 1);
    assert_int_equal(m.dataset.prompts[0].output_len, 9);
    drop(&m);
    unlink(path);
}

static void custom_lines_are_wrapped_in_the_chat_template_unless_told_not_to(void **state)
{
    (void)state;
    char path[64];
    write_file(path, "{\"prompt\": \"First\", \"output_tokens\": 3}\n\n"
                     "{\"output_tokens\": 4, \"prompt\": \"Second\", \"x\": {}}\n");
    struct dataset_use use = {.tokenizer = tokenizer, .template_dir = MODELS_DIR "/demo"};
    struct made m;
    make(&m, &use,
         (const char *[]){"--dataset-name=custom", "--dataset-path", path, "--num-prompts=2",
                          "--disable-shuffle", "--custom-output-len=-1", "--skip-chat-template",
                          NULL});
    assert_int_equal(m.status, STATUS_OK);
    assert_true(str_eq_c(m.dataset.prompts[0].text, "First"));
    assert_int_equal(m.dataset.prompts[0].output_len, 3);
    assert_true(str_eq_c(m.dataset.prompts[1].text, "Second"));
    drop(&m);
    make(&m, &use,
         (const char *[]){"--dataset-name=custom", "--dataset-path", path, "--num-prompts=2",
                          "--disable-shuffle", NULL});
    assert_int_equal(m.status, STATUS_OK);
    assert_true(m.dataset.prompts[0].text.len > strlen("First"));
    assert_true(str_find(m.dataset.prompts[0].text, STR("First"), 0) != STR_NOT_FOUND);
    assert_int_equal(m.dataset.prompts[0].output_len, 256);
    drop(&m);
    unlink(path);
}

static void a_trace_gives_times_lengths_and_repeated_prefixes(void **state)
{
    (void)state;
    char path[64];
    write_file(path, "{\"timestamp\":1000,\"input_length\":600,\"output_length\":5,\"hash_ids\":[7,"
                     "8]}\n{\"timestamp\":1500.5,\"input_length\":520,\"output_length\":6,"
                     "\"hash_ids\":[7,9]}\n");
    struct dataset_use use = {.vocab_size = 1000, .wants_ids = true};
    struct made m;
    make(&m, &use, (const char *[]){"--dataset-name=timed_trace", "--dataset-path", path, NULL});
    assert_int_equal(m.status, STATUS_OK);
    assert_int_equal(m.dataset.num, 2); // a trace is not repeated
    const struct bench_prompt *p = m.dataset.prompts;
    assert_true(p[0].at_s == 0 && p[1].at_s == 0.5005);
    assert_int_equal(p[1].num_tokens, 520);
    assert_int_equal(p[1].output_len, 6);
    assert_memory_equal(p[0].ids, p[1].ids, 512 * sizeof(int32_t));
    assert_memory_not_equal(p[0].ids + 512, p[1].ids + 512, 8 * sizeof(int32_t));
    drop(&m);
    unlink(path);
}

static void burstgpt_gives_the_lengths_of_answered_requests(void **state)
{
    (void)state;
    char path[64];
    write_file(path, "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                     "5,ChatGPT,472,18,490,Conversation log\n"
                     "6.0,GPT-4,20,7,27,Conversation log\r\n"
                     "7,GPT-4,33.0,0,33,API log\n"
                     "8,\"GPT-4\",40,9,49,API log\n\n");
    struct dataset_use use = {.tokenizer = tokenizer};
    struct made m;
    make(&m, &use,
         (const char *[]){"--dataset-name=burstgpt", "--dataset-path", path, "--num-prompts=4",
                          NULL});
    assert_int_equal(m.status, STATUS_OK);
    assert_int_equal(m.dataset.num, 4); // each of the two, twice
    int32_t sum = 0;
    for (int i = 0; i < 4; i++) {
        const struct bench_prompt *p = &m.dataset.prompts[i];
        assert_true((p->output_len == 7 && p->num_tokens >= 18 && p->num_tokens <= 22) ||
                    (p->output_len == 9 && p->num_tokens >= 38 && p->num_tokens <= 42));
        assert_int_equal(count(p->text), p->num_tokens);
        sum += p->output_len;
    }
    assert_int_equal(sum, 2 * (7 + 9));
    drop(&m);
    unlink(path);
}

static void lines_of_verse_fill_prompts_behind_a_common_beginning(void **state)
{
    (void)state;
    char path[64];
    write_file(path, "Shall I compare thee to a day\nThou art more lovely\nRough winds do shake\n");
    struct dataset_use use = {.tokenizer = tokenizer};
    struct made m;
    make(&m, &use,
         (const char *[]){"--dataset-name=sonnet", "--dataset-path", path, "--num-prompts=5",
                          "--sonnet-input-len=200", "--sonnet-prefix-len=60", NULL});
    assert_int_equal(m.status, STATUS_OK);
    assert_int_equal(m.dataset.num, 5);
    for (int i = 0; i < 5; i++) {
        assert_in_range(m.dataset.prompts[i].num_tokens, 180, 240);
        assert_memory_equal(m.dataset.prompts[i].text.ptr, m.dataset.prompts[0].text.ptr, 100);
    }
    assert_false(str_eq(m.dataset.prompts[0].text, m.dataset.prompts[1].text));
    drop(&m);
    unlink(path);
}

static void bad_files_are_refused_with_their_place(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *message;
    } rows[] = {
        {"sharegpt", "{}", "expected an array"},
        {"sharegpt", "[", "at byte 1"},
        {"sharegpt", "[]", "no usable prompt"},
        {"sharegpt", "[{\"conversations\":[1,2]}]", "expected an object"},
        {"custom", "{\"prompt\":\"a\"}\n{\"text\":\"b\"}", "line 2: expected the key \"prompt\""},
        {"custom", "{\"prompt\":5}", "line 1: at byte 10: expected a string"},
        {"custom", "{\"prompt\":\"a\"} {}", "line 1"},
        {"custom", "", "no usable prompt"},
        {"sonnet", "\n\n", "no usable prompt"},
        {"timed_trace", "{\"timestamp\":5}", "line 1: expected timestamp >= 0, input_length"},
        {"timed_trace", "{\"timestamp\":5,\"input_length\":99999999,\"output_length\":1}",
         "input_length and output_length in [1, 16777216]"},
        {"timed_trace", "{\"timestamp\":\"x\"}", "expected a number, found a string"},
        {"timed_trace",
         "{\"timestamp\":5,\"input_length\":9,\"output_length\":1}\n"
         "{\"timestamp\":4,\"input_length\":9,\"output_length\":1}",
         "line 2: timestamp 4 comes after 5"},
        {"burstgpt", "Timestamp,Model\n5,GPT-4\n", "line 1: expected a column \"Request tokens\""},
        {"burstgpt", "Model,Request tokens,Response tokens\nGPT-4,5\n", "line 2: it has fewer"},
        {"burstgpt", "Model,Request tokens,Response tokens\nGPT-4,5,many\n", "'5' and 'many'"},
        {"burstgpt", "Model,Request tokens,Response tokens\nGPT-4,99999999,1\n", "line 2: request"},
        {"burstgpt", "Model,Request tokens,Response tokens\nChatGPT,5,6\n", "no usable prompt"},
    };
    struct dataset_use use = {.tokenizer = tokenizer};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char path[64];
        write_file(path, rows[i].text);
        struct made m;
        make(&m, &use,
             (const char *[]){"--dataset-name", rows[i].name, "--dataset-path", path, NULL});
        if (m.status != STATUS_INVALID || !strstr(m.err.message, rows[i].message) ||
            !strstr(m.err.message, path))
            fail_msg("%s: %s: %s", rows[i].message, status_name(m.status), m.err.message);
        drop(&m);
        unlink(path);
    }
    struct made m;
    make(&m, &use, (const char *[]){"--dataset-name=custom", "--dataset-path=/nowhere", NULL});
    assert_int_equal(m.status, STATUS_NOT_FOUND);
    drop(&m);
}

static void arrivals_follow_rate_burstiness_and_ramp(void **state)
{
    (void)state;
    enum { NUM = 4000 };
    static double times_s[NUM], again_s[NUM];
    struct made m;
    struct dataset_use use = {.vocab_size = 10, .wants_ids = true};
    static const char *const burstiness[] = {"0.3", "1", "25"};
    for (size_t b = 0; b < ARRAY_LEN(burstiness); b++) {
        make(&m, &use,
             (const char *[]){"--num-prompts=1", "--request-rate=20", "--burstiness", burstiness[b],
                              NULL});
        arrival_times(&m.options, NUM, times_s);
        arrival_times(&m.options, NUM, again_s);
        assert_memory_equal(times_s, again_s, sizeof(times_s));
        assert_true(times_s[NUM - 1] > 199.999 && times_s[NUM - 1] < 200.001); // NUM / rate
        double squares = 0, mean = 0.05;
        for (int i = 1; i < NUM; i++) {
            double gap = times_s[i] - times_s[i - 1];
            assert_true(gap >= 0);
            squares += (gap - mean) * (gap - mean);
        }
        // The variance of a gamma distribution is mean^2 / shape.
        double shape = mean * mean / (squares / NUM), wanted = strtod(burstiness[b], NULL);
        if (shape < wanted * 0.85 || shape > wanted * 1.15)
            fail_msg("burstiness %s gives gaps of shape %.2f", burstiness[b], shape);
        drop(&m);
    }
    make(&m, &use,
         (const char *[]){"--num-prompts=1", "--ramp-up-strategy=linear", "--ramp-up-start-rps=0",
                          "--ramp-up-end-rps=100", NULL});
    arrival_times(&m.options, NUM, times_s);
    double early = times_s[NUM / 4], late = times_s[NUM - 1] - times_s[NUM * 3 / 4];
    assert_true(early > 3 * late);
    drop(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_prompts_encode_to_the_lengths_asked_for),
        cmocka_unit_test(batches_hold_the_prompts_in_order_and_the_last_what_is_left),
        cmocka_unit_test(the_same_seed_gives_the_same_prompts_and_another_others),
        cmocka_unit_test(ids_need_no_tokenizer_and_stay_within_the_vocabulary),
        cmocka_unit_test(prefixes_repeat_as_often_as_each_other),
        cmocka_unit_test(sharegpt_keeps_conversations_of_fitting_length),
        cmocka_unit_test(custom_lines_are_wrapped_in_the_chat_template_unless_told_not_to),
        cmocka_unit_test(a_trace_gives_times_lengths_and_repeated_prefixes),
        cmocka_unit_test(burstgpt_gives_the_lengths_of_answered_requests),
        cmocka_unit_test(lines_of_verse_fill_prompts_behind_a_common_beginning),
        cmocka_unit_test(bad_files_are_refused_with_their_place),
        cmocka_unit_test(arrivals_follow_rate_burstiness_and_ramp),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
