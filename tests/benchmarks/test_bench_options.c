// What the commands accept and what they say to the rest.
#include "cmocka_setup.h"

#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "benchmarks/bench_options.h"

enum { MAX_WORDS = 12 };

struct parsed {
    struct bench_options options;
    enum options_outcome outcome;
    int exit_status;
    char out[65536], err[4096];
};

static void parse(struct parsed *p, enum bench_command command, const char *const *words)
{
    char *argv[MAX_WORDS + 1] = {0};
    int argc = 0;
    FILE *out = tmpfile(), *err = tmpfile();
    assert_true(out && err);
    *p = (struct parsed){0};
    for (; argc < MAX_WORDS && words[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    p->outcome = bench_options_parse(&p->options, command, argc, argv, out, err, &p->exit_status);
    rewind(out);
    rewind(err);
    p->out[fread(p->out, 1, sizeof(p->out) - 1, out)] = '\0';
    p->err[fread(p->err, 1, sizeof(p->err) - 1, err)] = '\0';
    fclose(out);
    fclose(err);
}

static void defaults_are_those_of_the_reference(void **state)
{
    (void)state;
    struct parsed *p = xcalloc(1, sizeof(*p));
    parse(p, BENCH_SERVE, (const char *[]){NULL});
    const struct bench_options *o = &p->options;
    assert_int_equal(p->outcome, OPTIONS_RUN);
    assert_string_equal(o->endpoint, "/v1/completions");
    assert_int_equal(o->num_prompts, 1000);
    assert_int_equal(o->random_input_len, 1024);
    assert_int_equal(o->random_output_len, 128);
    assert_int_equal(o->dataset, DATASET_RANDOM);
    assert_true(isinf(o->request_rate));
    assert_int_equal(o->max_concurrency, -1);
    assert_true(o->shows[METRIC_TTFT] && o->shows[METRIC_TPOT] && o->shows[METRIC_ITL]);
    assert_false(o->shows[METRIC_E2EL]);
    assert_int_equal(o->num_percentiles, 1);
    assert_true(o->percentiles[0] == 99);
    assert_null(o->temperature);
    bench_options_deinit(&p->options);
    free(p);
}

static void lengths_of_any_name_reach_the_dataset(void **state)
{
    (void)state;
    struct parsed *p = xcalloc(1, sizeof(*p));
    parse(p, BENCH_SERVE,
          (const char *[]){"--input_len=7", "--output-len", "9", "--backend", "openai-chat",
                           "--goodput", "ttft:500", "e2el:2.5", "--metric-perc=50,99.9", NULL});
    assert_int_equal(p->outcome, OPTIONS_RUN);
    assert_int_equal(p->options.random_input_len, 7);
    assert_int_equal(p->options.custom_output_len, 9);
    assert_string_equal(p->options.endpoint, "/v1/chat/completions");
    assert_true(p->options.goodput_ms[METRIC_E2EL] == 2.5);
    assert_true(p->options.goodput_ms[METRIC_TPOT] < 0);
    assert_true(p->options.percentiles[1] == 99.9);
    bench_options_deinit(&p->options);
    free(p);
}

static void wrong_words_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        enum bench_command command;
        const char *words[MAX_WORDS];
        const char *message;
    } rows[] = {
        {BENCH_SERVE, {"--foo"}, "unrecognized arguments: --foo"},
        {BENCH_SERVE, {"extra"}, "unrecognized arguments: extra"},
        {BENCH_SERVE, {"--batch-size", "3"}, "unrecognized arguments: --batch-size"},
        {BENCH_SERVE, {"--ramp-up", "linear"}, "ambiguous option: --ramp-up could match"},
        {BENCH_SERVE, {"--port"}, "argument --port: expected one argument"},
        {BENCH_SERVE, {"--port", "0"}, "--port is 0, expected an integer in [1,65535]"},
        {BENCH_SERVE, {"--backend", "tgi"}, "invalid choice: 'tgi'"},
        {BENCH_SERVE, {"--ignore-eos=1"}, "ignored explicit argument '1'"},
        {BENCH_SERVE, {"--request-rate", "0"}, "--request-rate is '0', expected a number above 0"},
        {BENCH_SERVE, {"--request-rate", "nan"}, "--request-rate is 'nan'"},
        {BENCH_SERVE, {"--burstiness", "0"}, "--burstiness is 0"},
        {BENCH_SERVE, {"--temperature", "hot"}, "--temperature is 'hot', expected a number"},
        {BENCH_SERVE, {"--extra-body", "[1]"}, "argument --extra-body: invalid value"},
        {BENCH_SERVE,
         {"--dataset-name", "sharegpt"},
         "--dataset-name sharegpt needs --dataset-path"},
        {BENCH_SERVE, {"--dataset-path", "x"}, "--dataset-name random reads no file"},
        {BENCH_SERVE, {"--random-range-ratio", "1"}, "--random-range-ratio is '1'"},
        {BENCH_SERVE, {"--custom-output-len", "0"}, "--custom-output-len is 0"},
        {BENCH_SERVE, {"--self-timed"}, "--self-timed needs a dataset with time stamps"},
        {BENCH_SERVE, {"--ramp-up-start-rps", "1"}, "need --ramp-up-strategy"},
        {BENCH_SERVE,
         {"--ramp-up-strategy", "linear", "--ramp-up-start-rps", "5", "--ramp-up-end-rps", "5"},
         "two numbers with 0 <= start < end"},
        {BENCH_SERVE,
         {"--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "0", "--ramp-up-end-rps",
          "5"},
         "expected more for exponential growth"},
        {BENCH_SERVE,
         {"--request-rate", "3", "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1",
          "--ramp-up-end-rps", "5"},
         "leave out --request-rate"},
        {BENCH_SERVE, {"--goodput", "itl:5"}, "--goodput has 'itl:5'"},
        {BENCH_SERVE, {"--goodput", "ttft"}, "--goodput has 'ttft'"},
        {BENCH_SERVE, {"--percentile-metrics", "ttft,x"}, "--percentile-metrics has 'x'"},
        {BENCH_SERVE, {"--metric-percentiles", "101"}, "--metric-percentiles has '101'"},
        {BENCH_SERVE, {"--metadata", "a"}, "--metadata has 'a', expected KEY=VALUE"},
        {BENCH_SERVE, {"--header", "a=b\r\nc"}, "--header has"},
        {BENCH_SERVE, {"--plot", "x.png"}, "--plot is 'x.png', expected a .html or .svg file"},
        {BENCH_SERVE, {"--endpoint", "/v1/chat"}, "expected a path that ends in completions"},
        {BENCH_SERVE,
         {"--backend", "openai-chat", "--endpoint", "/v1/completions"},
         "ends in chat/completions"},
        {BENCH_SERVE,
         {"--backend", "openai-embeddings", "--endpoint", "/v1/completions"},
         "ends in embeddings"},
        {BENCH_SERVE,
         {"--backend", "openai-embeddings", "--ignore-eos"},
         "--ignore-eos is for generated tokens"},
        {BENCH_SERVE,
         {"--backend", "openai-embeddings", "--top-p", "0.5"},
         "--top-p is for generated tokens"},
        {BENCH_SERVE,
         {"--backend", "openai-embeddings", "--random-output-len", "128"},
         "--random-output-len is given, but --backend openai-embeddings generates no tokens"},
        {BENCH_SERVE,
         {"--backend", "openai-embeddings", "--percentile-metrics", "ttft,e2el"},
         "--percentile-metrics has ttft"},
        {BENCH_SERVE, {"--random-batch-size", "4"}, "only requests of --backend openai-embeddings"},
        {BENCH_THROUGHPUT, {"--model", "m", "--random-batch-size", "4"}, "hold several prompts"},
        {BENCH_SERVE,
         {"--backend", "openai-embeddings", "--random-batch-size", "4", "--dataset-name",
          "prefix_repetition"},
         "--random-batch-size is 4, but --dataset-name is prefix_repetition"},
        {BENCH_SERVE,
         {"--backend", "openai-embeddings", "--goodput", "tpot:5"},
         "--goodput has tpot"},
        {BENCH_SWEEP, {NULL}, "expected one of --request-rates and --max-concurrencies"},
        {BENCH_SWEEP, {"--max-concurrencies", "1,0"}, "--max-concurrencies has '0'"},
        {BENCH_SWEEP, {"--request-rates", "1,x"}, "--request-rates is 'x'"},
        {BENCH_SWEEP_SERVE, {NULL}, "expected --bench-cmd"},
        {BENCH_SWEEP_SERVE, {"--max-concurrencies", "1"}, "unrecognized arguments"},
        {BENCH_SWEEP_SERVE, {"--bench-cmd", "b", "--serve-params", "f"}, "needs --serve-cmd"},
        {BENCH_SWEEP_SERVE, {"--bench-cmd", "b", "--resume"}, "--resume needs --experiment-name"},
        {BENCH_SWEEP_SERVE, {"--bench-cmd", "b", "--plot", "x.png"}, "a .html or .svg file"},
        {BENCH_SWEEP_SERVE, {"--bench-cmd", "b", "--workload-iters", "3"}, "unrecognized"},
        {BENCH_SWEEP_WORKLOAD, {"--bench-cmd", "b", "--workload-iters", "1"}, "[2,64]"},
        {BENCH_SWEEP_WORKLOAD, {"--bench-cmd", "b", "--workload-var", "x"}, "invalid choice: 'x'"},
        {BENCH_THROUGHPUT, {NULL}, "expected --model DIR"},
    };
    struct parsed *p = xcalloc(1, sizeof(*p));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        parse(p, rows[i].command, rows[i].words);
        if (p->outcome != OPTIONS_EXIT || p->exit_status != 2 || !strstr(p->err, rows[i].message))
            fail_msg("%s: exit %d: %s", rows[i].message, p->exit_status, p->err);
        bench_options_deinit(&p->options);
    }
    free(p);
}

static void what_is_the_engines_is_left_to_it(void **state)
{
    (void)state;
    struct parsed *p = xcalloc(1, sizeof(*p));
    parse(p, BENCH_LATENCY,
          (const char *[]){"--model", "m", "--max-model-len", "512", "--batch-size=2",
                           "--no-enable-chunked-prefill", NULL});
    assert_int_equal(p->outcome, OPTIONS_RUN);
    assert_int_equal(p->options.batch_size, 2);
    assert_int_equal(p->options.random_input_len, 1024);
    assert_int_equal(p->options.input_len, 32);
    const struct str_list *rest = &p->options.serve_words;
    assert_int_equal(rest->len, 3);
    assert_string_equal(rest->items[0], "--max-model-len");
    assert_string_equal(rest->items[1], "512");
    assert_string_equal(rest->items[2], "--no-enable-chunked-prefill");
    bench_options_deinit(&p->options);
    free(p);
}

static void help_shows_the_options_of_the_command_alone(void **state)
{
    (void)state;
    struct parsed *p = xcalloc(1, sizeof(*p));
    parse(p, BENCH_SERVE, (const char *[]){"--help", NULL});
    assert_int_equal(p->exit_status, 0);
    assert_non_null(strstr(p->out, "usage: vllm bench serve [options]"));
    assert_non_null(strstr(p->out, "--random-input-len RANDOM_INPUT_LEN"));
    assert_null(strstr(p->out, "--num-iters"));
    bench_options_deinit(&p->options);
    parse(p, BENCH_LATENCY, (const char *[]){"-h", NULL});
    assert_non_null(strstr(p->out, "--num-iters NUM_ITERS"));
    assert_non_null(strstr(p->out, "see `vllm serve --help`"));
    assert_null(strstr(p->out, "--request-rate"));
    bench_options_deinit(&p->options);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_reference),
        cmocka_unit_test(lengths_of_any_name_reach_the_dataset),
        cmocka_unit_test(wrong_words_are_refused_by_name),
        cmocka_unit_test(what_is_the_engines_is_left_to_it),
        cmocka_unit_test(help_shows_the_options_of_the_command_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
