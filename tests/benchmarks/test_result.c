// Numbers, report and files out of records that are known.
#include "cmocka_setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mapped_file.h"
#include "base/memory.h"
#include "benchmarks/bench_result.h"
#include "benchmarks/plot.h"
#include "benchmarks/svg.h"

#define MS INT64_C(1000000)

static void percentiles_interpolate_between_neighbours(void **state)
{
    (void)state;
    const double values[] = {1, 2, 4, 8};
    static const struct {
        double percent, expected;
    } rows[] = {{0, 1}, {50, 3}, {100, 8}, {25, 1.75}, {99, 7.88}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_true(fabs(percentile_of(values, 4, rows[i].percent) - rows[i].expected) < 1e-9);
    assert_true(percentile_of(values, 1, 99) == 1);
    assert_true(percentile_of(NULL, 0, 50) == 0);
}

enum { NUM = 4 };

/** Two answers, an empty one and a failure. */
struct sample {
    struct bench_options options;
    struct bench_prompt prompts[NUM];
    struct request_record *records;
    struct bench_result result;
};

static void add_tokens(struct request_record *r, int num, const int64_t *times_ms)
{
    r->token_ns = xcalloc((size_t)num, sizeof(*r->token_ns));
    for (int i = 0; i < num; i++)
        r->token_ns[i] = times_ms[i] * MS;
    r->num_token_ns = num;
    r->last_ns = times_ms[num - 1] * MS;
}

static void make_sample(struct sample *s)
{
    char *argv[] = {"--percentile-metrics=ttft,tpot,itl,e2el",
                    "--metric-percentiles=50,99.9",
                    "--goodput",
                    "ttft:150",
                    "tpot:60",
                    "--metadata",
                    "tp=1",
                    "--label",
                    "run"};
    int exit_status;
    *s = (struct sample){0};
    assert_int_equal(bench_options_parse(&s->options, BENCH_SERVE, (int)ARRAY_LEN(argv), argv,
                                         stdout, stderr, &exit_status),
                     OPTIONS_RUN);
    for (int i = 0; i < NUM; i++)
        s->prompts[i].num_tokens = 10;
    struct request_record *r = s->records = xcalloc(NUM, sizeof(*s->records));
    r[0] = (struct request_record){
        .outcome = OUTCOME_OK, .start_ns = 1000 * MS, .prompt_tokens = 12, .completion_tokens = 3};
    add_tokens(&r[0], 3, (const int64_t[]){1100, 1150, 1200});
    r[1] = (struct request_record){
        .outcome = OUTCOME_OK, .start_ns = 1500 * MS, .prompt_tokens = -1, .completion_tokens = -1};
    add_tokens(&r[1], 2, (const int64_t[]){1700, 2600});
    r[2] = (struct request_record){.outcome = OUTCOME_EMPTY, .start_ns = 1000 * MS};
    r[3] = (struct request_record){
        .outcome = OUTCOME_FAILED, .start_ns = 1000 * MS, .error = xstrdup("HTTP 500")};
    struct load_times times = {1000 * MS, 3000 * MS, false};
    bench_result_compute(&s->result, &s->options, s->prompts, s->records, NUM, &times, NULL);
}

static void drop_sample(struct sample *s)
{
    request_records_free(s->records, NUM);
    bench_result_deinit(&s->result);
    bench_options_deinit(&s->options);
}

static void assert_close(double found, double expected)
{
    if (fabs(found - expected) > 1e-9 * fmax(1, fabs(expected)))
        fail_msg("%.12g, expected %.12g", found, expected);
}

static void a_result_counts_answers_alone(void **state)
{
    (void)state;
    struct sample s;
    make_sample(&s);
    const struct bench_result *r = &s.result;
    assert_int_equal(r->completed + r->empty + r->failed + r->cancelled, NUM);
    assert_int_equal(r->completed, 2);
    assert_int_equal(r->total_input_tokens, 12 + 10);
    assert_int_equal(r->total_output_tokens, 3 + 2);
    assert_close(r->duration_s, 2);
    assert_close(r->request_throughput, 1);
    assert_close(r->output_throughput, 2.5);
    assert_close(r->total_token_throughput, 13.5);
    assert_close(r->request_goodput, 0.5); // the second one's first token came too late
    assert_close(r->metrics[METRIC_TTFT].mean, 150);
    assert_close(r->metrics[METRIC_TTFT].std, 50);
    assert_close(r->metrics[METRIC_TPOT].mean, (50.0 + 900.0) / 2);
    assert_close(r->metrics[METRIC_ITL].median, 50);
    assert_int_equal(r->metrics[METRIC_ITL].num, 3);
    assert_close(r->metrics[METRIC_E2EL].mean, (200.0 + 1100.0) / 2);
    assert_close(r->max_output_tokens_per_s, 4); // in the first second
    assert_close(r->max_concurrent_requests, 2);
    drop_sample(&s);
}

static void the_report_has_the_known_lines(void **state)
{
    (void)state;
    struct sample s;
    char text[8192];
    make_sample(&s);
    FILE *out = tmpfile();
    bench_report_failures(out, s.records, NUM);
    bench_report_print(out, &s.result, &s.options);
    rewind(out);
    text[fread(text, 1, sizeof(text) - 1, out)] = '\0';
    fclose(out);
    static const char *const lines[] = {
        "Failed requests during benchmark run detected (capping to 10):\nError 0: HTTP 500\n",
        "============ Serving Benchmark Result ============\n",
        "Successful requests:                     2         \n",
        "Empty answers:                           1         \n",
        "Failed requests:                         1         \n",
        "Benchmark duration (s):                  2.00      \n",
        "Request goodput (req/s):                 0.50      \n",
        "Peak output token throughput (tok/s):    4.00      \n",
        "---------------Time to First Token----------------\n",
        "Mean TTFT (ms):                          150.00    \n",
        "-----Time per Output Token (excl. 1st token)------\n",
        "P99.9 ITL (ms):                          898.30    \n",
        "----------------End-to-end Latency----------------\n",
        "==================================================\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        if (!strstr(text, lines[i]))
            fail_msg("no line %s in\n%s", lines[i], text);
    }
    drop_sample(&s);
}

static void the_result_file_has_the_known_keys_in_order(void **state)
{
    (void)state;
    struct sample s;
    make_sample(&s);
    struct bench_facts facts = {"demo", "demo"};
    json_t *json = bench_result_json(&s.result, &s.options, &facts, s.prompts, s.records);
    static const char *const keys[] = {
        "date",
        "endpoint_type",
        "backend",
        "label",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "tp",
        "request_rate",
        "burstiness",
        "max_concurrency",
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "request_goodput",
        "output_throughput",
        "total_token_throughput",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
        "rtfx",
        "mean_ttft_ms",
        "median_ttft_ms",
        "std_ttft_ms",
        "p50_ttft_ms",
        "p99.9_ttft_ms",
        "mean_tpot_ms",
        "mean_itl_ms",
        "mean_e2el_ms",
        "input_lens",
        "output_lens",
        "ttfts",
        "itls",
        "start_times",
        "generated_texts",
        "e2els",
        "errors",
    };
    void *at = json_object_iter(json);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        while (at && strcmp(json_object_iter_key(at), keys[i]) != 0)
            at = json_object_iter_next(json, at);
        if (!at)
            fail_msg("no key %s at its place", keys[i]);
    }
    assert_string_equal(json_string_value(json_object_get(json, "request_rate")), "inf");
    assert_true(json_is_null(json_object_get(json, "max_concurrency")));
    assert_close(json_real_value(json_object_get(json, "median_itl_ms")), 50);
    const json_t *errors = json_object_get(json, "errors");
    assert_string_equal(json_string_value(json_array_get(errors, 3)), "HTTP 500");
    assert_string_equal(json_string_value(json_array_get(errors, 2)), "empty answer");
    json_decref(json);
    drop_sample(&s);
}

static void results_are_written_and_appended(void **state)
{
    (void)state;
    char folder[] = "/tmp/vllm-result-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/r.json", folder);
    json_t *json = json_pack("{s:i}", "a", 1);
    struct error err;
    assert_int_equal(json_save(json, path, true, &err), STATUS_OK);
    assert_int_equal(json_save(json, path, true, &err), STATUS_OK);
    struct mapped_file file;
    assert_int_equal(mapped_file_open(&file, path, &err), STATUS_OK);
    assert_true(str_eq_c(mapped_file_str(&file), "{\"a\":1}\n{\"a\":1}\n"));
    mapped_file_close(&file);
    assert_int_equal(json_save(json, folder, false, &err), STATUS_IO);
    assert_non_null(strstr(err.message, folder));
    json_decref(json);
    unlink(path);
    rmdir(folder);
}

static int count_of(struct str text, const char *part)
{
    int num = 0;
    for (size_t at = 0; (at = str_find(text, str_from(part), at)) != STR_NOT_FOUND; at++)
        num++;
    return num;
}

static void a_plot_has_a_curve_for_each_result_and_closes_what_it_opens(void **state)
{
    (void)state;
    struct sample s[2];
    char path[] = "/tmp/vllm-plot-XXXXXX.svg";
    int fd = mkstemps(path, 4);
    assert_true(fd >= 0);
    close(fd);
    make_sample(&s[0]);
    make_sample(&s[1]);
    s[1].result.output_throughput = 7;
    s[1].result.max_concurrency = 64;
    for (int num = 1; num <= 2; num++) {
        struct bench_result results[] = {s[0].result, s[1].result};
        struct error err;
        assert_int_equal(plot_save(path, results, num, &s[0].options, "a<b>&c", &err), STATUS_OK);
        struct mapped_file file;
        assert_int_equal(mapped_file_open(&file, path, &err), STATUS_OK);
        struct str text = mapped_file_str(&file);
        assert_int_equal(count_of(text, "<svg"), 1);
        assert_int_equal(count_of(text, "</svg>"), 1);
        assert_int_equal(count_of(text, "<text"), count_of(text, "</text>"));
        assert_int_equal(count_of(text, "a&lt;b&gt;&amp;c"), 1);
        assert_int_equal(count_of(text, "nan"), 0);
        // Two distributions a result; with several also four curves, their keys and the legend.
        assert_int_equal(count_of(text, "class=\"line\""), num == 1 ? 2 : 4 + 4 + 4 + 2);
        assert_int_equal(count_of(text, "<circle"), num == 1 ? 0 : 8);
        mapped_file_close(&file);
    }
    unlink(path);
    drop_sample(&s[0]);
    drop_sample(&s[1]);
}

static void axes_end_in_round_numbers_and_hold_their_values(void **state)
{
    (void)state;
    static const struct {
        double low, high;
        bool is_log;
        double first, last;
    } rows[] = {
        {0, 100, false, 0, 100}, {0, 7, false, 0, 8},       {0, 0, false, 0, 1},
        {3, 180, true, 2, 200},  {0.7, 1.3, true, 0.5, 2},  {1, 1, true, 1, 2},
        {0, 5, true, 1e-6, 10},  {1, 123456, true, 1, 1e6},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct svg_axis axis = {0};
        svg_axis_fit(&axis, rows[i].low, rows[i].high, rows[i].is_log);
        assert_close(axis.low, rows[i].first);
        assert_close(axis.high, rows[i].last);
        assert_in_range(axis.num_ticks, 2, SVG_MAX_TICKS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_interpolate_between_neighbours),
        cmocka_unit_test(a_result_counts_answers_alone),
        cmocka_unit_test(the_report_has_the_known_lines),
        cmocka_unit_test(the_result_file_has_the_known_keys_in_order),
        cmocka_unit_test(results_are_written_and_appended),
        cmocka_unit_test(a_plot_has_a_curve_for_each_result_and_closes_what_it_opens),
        cmocka_unit_test(axes_end_in_round_numbers_and_hold_their_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
