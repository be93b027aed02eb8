// What a sweep makes of its runs: results out of files, the one that stands for a point, the table
// for spreadsheets.
#include "cmocka_setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "benchmarks/sweep_summary.h"

static const struct bench_options options = {.percentiles = {99}, .num_percentiles = 1};

static struct bench_result read_result(const char *text)
{
    struct bench_result result;
    struct error err = {0};
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    if (bench_result_read(&result, json, &options, "file.json", &err) != STATUS_OK)
        fail_msg("%s", err.message);
    json_decref(json);
    return result;
}

static void results_are_read_back_with_what_they_have(void **state)
{
    (void)state;
    struct bench_result r = read_result(
        "{\"completed\": 3, \"failed\": 1, \"num_prompts\": 4, \"request_throughput\": 2.5, "
        "\"output_throughput\": 20, \"request_rate\": \"inf\", \"max_concurrency\": null, "
        "\"median_ttft_ms\": 12.5, \"p99_ttft_ms\": 40, \"p99.9_ttft_ms\": 50, "
        "\"ttfts\": [0.02, null, 0, 0.01], \"itls\": [[0.003, 0.001], [], [0.002]]}");
    assert_int_equal(r.completed, 3);
    assert_int_equal(r.num_prompts, 4);
    assert_true(isinf(r.request_rate) && r.max_concurrency == -1 && r.request_goodput < 0);
    assert_true(r.request_throughput == 2.5 && r.output_throughput == 20);
    assert_true(r.metrics[METRIC_TTFT].median == 12.5);
    assert_true(r.metrics[METRIC_TTFT].percentiles[0] == 40);
    assert_true(isnan(r.metrics[METRIC_E2EL].median));
    assert_int_equal(r.metrics[METRIC_TTFT].num, 2); // without the request that failed
    assert_true(r.metrics[METRIC_TTFT].values[0] == 10 && r.metrics[METRIC_TTFT].values[1] == 20);
    assert_int_equal(r.metrics[METRIC_ITL].num, 3);
    assert_true(r.metrics[METRIC_ITL].values[2] == 3);
    bench_result_deinit(&r);
    r = read_result("{\"completed\": 1e300, \"request_throughput\": 0, \"max_concurrency\": 8, "
                    "\"request_rate\": 4, \"ttfts\": {}, \"itls\": [\"x\"]}");
    assert_int_equal(r.completed, 0); // no count
    assert_int_equal(r.max_concurrency, 8);
    assert_true(r.request_rate == 4);
    assert_int_equal(r.metrics[METRIC_ITL].num, 0);
    bench_result_deinit(&r);
}

static void other_files_are_no_results(void **state)
{
    (void)state;
    static const char *const rows[] = {"{}", "[]", "{\"completed\": \"3\"}", "{\"completed\": 3}"};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct bench_result result;
        struct error err = {0};
        json_t *json = json_loads(rows[i], 0, NULL);
        assert_int_equal(bench_result_read(&result, json, &options, "file.json", &err),
                         STATUS_INVALID);
        assert_non_null(strstr(err.message, "file.json: expected the result of a serving"));
        json_decref(json);
    }
}

static void add(struct sweep_summary *summary, const char *text)
{
    json_t *json = json_loads(text, 0, NULL);
    struct bench_result result = read_result(text);
    sweep_summary_add(summary, json, &result);
}

static void the_median_run_stands_for_its_point(void **state)
{
    (void)state;
    struct sweep_summary summary = {.options = &options};
    sweep_summary_begin(&summary, "a", 0);
    assert_null(sweep_point_median(&summary.points[0]));
    add(&summary, "{\"completed\": 1, \"request_throughput\": 9, \"output_throughput\": 30}");
    add(&summary, "{\"completed\": 2, \"request_throughput\": 9, \"output_throughput\": 10}");
    add(&summary, "{\"completed\": 3, \"request_throughput\": 9, \"output_throughput\": 20}");
    assert_int_equal(sweep_point_median(&summary.points[0])->result.completed, 3);
    sweep_summary_begin(&summary, "b", 0);
    add(&summary, "{\"completed\": 4, \"request_throughput\": 9, \"total_token_throughput\": 2}");
    sweep_summary_begin(&summary, "c", 0);
    sweep_summary_move_last(&summary, 0);
    assert_string_equal(summary.points[0].name, "b");
    assert_string_equal(summary.points[1].name, "c");
    assert_string_equal(summary.points[2].name, "a");
    assert_int_equal(summary.points[2].num_runs, 3);
    sweep_summary_deinit(&summary);
}

/** The content of FOLDER/name, which is then removed. */
static void take_file(const char *folder, const char *name, char *out, size_t size)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    fclose(file);
    unlink(path);
}

static void files_hold_every_run_under_the_columns_of_all(void **state)
{
    (void)state;
    char folder[] = "/tmp/vllm-summary-XXXXXX", text[4096];
    struct sweep_summary summary = {.options = &options};
    struct error err = {0};
    assert_non_null(mkdtemp(folder));
    sweep_summary_begin(&summary, "a", 0);
    add(&summary,
        "{\"completed\": 1, \"request_throughput\": 2.5, \"ttfts\": [1], \"label\": null}");
    sweep_summary_begin(&summary, "b", 1);
    add(&summary,
        "{\"completed\": 2, \"request_throughput\": 3, \"kv\": \"a,\\\"b\\\"\", \"x\": true}");
    assert_int_equal(sweep_summary_save(&summary, folder, "m", true, &err), STATUS_OK);
    take_file(folder, "summary.csv", text, sizeof(text));
    assert_string_equal(text, "completed,request_throughput,label,kv,x\n"
                              "1,2.5,,,\n"
                              "2,3,,\"a,\"\"b\"\"\",true\n");
    take_file(folder, "summary.json", text, sizeof(text));
    json_t *json = json_loads(text, 0, NULL);
    assert_int_equal(json_array_size(json), 2);
    assert_null(json_object_get(json_array_get(json, 0), "ttfts")); // it is in the run's own file
    json_decref(json);
    rmdir(folder);
    assert_int_equal(sweep_summary_save(&summary, "/nowhere", "m", true, &err), STATUS_IO);
    sweep_summary_deinit(&summary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_read_back_with_what_they_have),
        cmocka_unit_test(other_files_are_no_results),
        cmocka_unit_test(the_median_run_stands_for_its_point),
        cmocka_unit_test(files_hold_every_run_under_the_columns_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
