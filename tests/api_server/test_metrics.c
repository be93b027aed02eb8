// /metrics: what is there from the start, what adds up, and what the format demands.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api_server/metrics.h"
#include "base/memory.h"

static const char *names[] = {"m\"x"};
static struct serve_options options = {
    .served_model_names = {names, 1},
    .kv_cache_dtype = "auto",
    .gpu_memory_utilization = 0.9,
    .num_gpu_blocks_override = -1,
};

static int setup(void **state)
{
    struct shared_page *page;
    struct error err;
    if (shared_page_create(&page, 2, &err) != STATUS_OK)
        return 1;
    page->engine.max_model_len = 2048;
    page->engine.num_blocks = 100;
    page->engine.state = ENGINE_STATE_READY;
    *state = page;
    return 0;
}

static int teardown(void **state)
{
    shared_page_destroy(*state);
    return 0;
}

static char *render(struct shared_page *page, int32_t client_index)
{
    struct metrics m = {page, &options, client_index, NULL};
    struct buf out = {0};
    metrics_render(&m, &out);
    buf_append_char(&out, '\0');
    return out.ptr;
}

/** The value of the line that starts with `series`. */
static double value_of(const char *text, const char *series)
{
    size_t len = strlen(series);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, series, len) == 0 && line[len] == ' ')
            return strtod(line + len, NULL);
    }
    fail_msg("no series %s", series);
    return -1;
}

#define LABELS "engine=\"0\",model_name=\"m\\\"x\""

static void all_series_stand_at_zero_from_the_start(void **state)
{
    static const char *const series[] = {
        "vllm:num_requests_running{" LABELS "}",
        "vllm:num_requests_waiting{" LABELS "}",
        "vllm:num_requests_waiting_by_reason{" LABELS ",reason=\"deferred\"}",
        "vllm:kv_cache_usage_perc{" LABELS "}",
        "vllm:prefix_cache_queries_total{" LABELS "}",
        "vllm:prefix_cache_hits_total{" LABELS "}",
        "vllm:num_preemptions_total{" LABELS "}",
        "vllm:prompt_tokens_total{" LABELS "}",
        "vllm:generation_tokens_total{" LABELS "}",
        "vllm:request_success_total{" LABELS ",finished_reason=\"stop\"}",
        "vllm:request_success_total{" LABELS ",finished_reason=\"length\"}",
        "vllm:request_success_total{" LABELS ",finished_reason=\"abort\"}",
        "vllm:request_success_total{" LABELS ",finished_reason=\"error\"}",
        "vllm:request_success_total{" LABELS ",finished_reason=\"repetition\"}",
        "vllm:time_to_first_token_seconds_bucket{" LABELS ",le=\"0.001\"}",
        "vllm:time_to_first_token_seconds_bucket{" LABELS ",le=\"2560.0\"}",
        "vllm:inter_token_latency_seconds_count{" LABELS "}",
        "vllm:request_time_per_output_token_seconds_sum{" LABELS "}",
        "vllm:e2e_request_latency_seconds_bucket{" LABELS ",le=\"+Inf\"}",
        "vllm:request_queue_time_seconds_sum{" LABELS "}",
        "vllm:request_prefill_time_seconds_sum{" LABELS "}",
        "vllm:request_decode_time_seconds_sum{" LABELS "}",
        "vllm:request_inference_time_seconds_sum{" LABELS "}",
        "vllm:request_prompt_tokens_bucket{" LABELS ",le=\"2000.0\"}",
        "vllm:request_generation_tokens_bucket{" LABELS ",le=\"1.0\"}",
        "vllm:request_max_num_generation_tokens_sum{" LABELS "}",
        "vllm:request_params_max_tokens_count{" LABELS "}",
        "vllm:request_params_n_bucket{" LABELS ",le=\"20.0\"}",
        "vllm:request_prefill_kv_computed_tokens_count{" LABELS "}",
        "vllm:iteration_tokens_total_bucket{" LABELS ",le=\"16384.0\"}",
        "http_request_duration_highr_seconds_bucket{le=\"0.025\"}",
    };
    char *text = render(*state, 0);
    for (size_t i = 0; i < ARRAY_LEN(series); i++)
        assert_true(value_of(text, series[i]) == 0);
    assert_true(value_of(text, "vllm:engine_sleep_state{" LABELS ",sleep_state=\"awake\"}") == 1);
    assert_non_null(strstr(text, "vllm:cache_config_info{block_size=\"0\",cache_dtype=\"auto\""));
    assert_null(strstr(text, "vllm:request_prompt_tokens_bucket{" LABELS ",le=\"5000.0\"}"));
    free(text);
}

static void rows_of_all_servers_add_up(void **state)
{
    struct metrics a = {*state, &options, 0, NULL}, b = {*state, &options, 1, NULL};
    metrics_count(&a, METRIC_GENERATION_TOKENS, 3);
    metrics_count(&b, METRIC_GENERATION_TOKENS, 4);
    metrics_success(&a, FINISH_REASON_ABORT);
    metrics_success(&b, FINISH_REASON_ABORT);
    metrics_success(&b, FINISH_REASON_NONE);
    for (int32_t server = 0; server < 2; server++) {
        char *text = render(*state, server);
        assert_true(value_of(text, "vllm:generation_tokens_total{" LABELS "}") == 7);
        assert_true(value_of(text, "vllm:request_success_total{" LABELS
                                   ",finished_reason=\"abort\"}") == 2);
        free(text);
    }
}

static void counters_take_no_negative_or_unreal_values(void **state)
{
    struct metrics m = {*state, &options, 0, NULL};
    metrics_count(&m, METRIC_PROMPT_TOKENS, -5);
    metrics_observe(&m, METRIC_E2E_LATENCY, -1);
    metrics_observe(&m, METRIC_E2E_LATENCY, 0.0 / 0.0);
    char *text = render(*state, 0);
    assert_true(value_of(text, "vllm:prompt_tokens_total{" LABELS "}") == 0);
    assert_true(value_of(text, "vllm:e2e_request_latency_seconds_sum{" LABELS "}") == 0);
    assert_true(value_of(text, "vllm:e2e_request_latency_seconds_count{" LABELS "}") == 2);
    free(text);
}

static void histograms_are_cumulative_and_agree_with_their_count(void **state)
{
    struct metrics m = {*state, &options, 0, NULL};
    const double values[] = {0.001, 0.0011, 0.3, 3, 5000};
    for (size_t i = 0; i < ARRAY_LEN(values); i++)
        metrics_observe(&m, METRIC_TIME_TO_FIRST_TOKEN, values[i]);
    char *text = render(*state, 0);
    const char *name = "vllm:time_to_first_token_seconds";
    char series[160];
    snprintf(series, sizeof(series), "%s_bucket{" LABELS ",le=\"0.001\"}", name);
    assert_true(value_of(text, series) == 1); // bounds are inclusive
    snprintf(series, sizeof(series), "%s_bucket{" LABELS ",le=\"0.5\"}", name);
    assert_true(value_of(text, series) == 3);
    snprintf(series, sizeof(series), "%s_bucket{" LABELS ",le=\"+Inf\"}", name);
    assert_true(value_of(text, series) == 5);
    snprintf(series, sizeof(series), "%s_count{" LABELS "}", name);
    assert_true(value_of(text, series) == 5);
    double last = 0;
    for (const char *line = text; (line = strstr(line, "seconds_bucket{" LABELS)) != NULL; line++) {
        if (strncmp(line - 24, "\nvllm:time_to_first_token", 24) != 0)
            continue;
        double value = strtod(strchr(line, ' '), NULL);
        assert_true(value >= last);
        last = value;
    }
    free(text);
}

static void every_name_has_one_type_and_every_line_reads(void **state)
{
    struct metrics m = {*state, &options, 0, NULL};
    for (int h = 0; h < NUM_METRIC_HANDLERS; h++)
        metrics_http(&m, h, 200 + 100 * (h % 4), 0.05, 10, 20);
    metrics_http(&m, HANDLER_EXCLUDED, 200, 0.05, 10, 20);
    char *text = render(*state, 0), *save = NULL;
    char seen[256][96];
    size_t num_seen = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "# TYPE ", 7) == 0) {
            char name[96];
            sscanf(line + 7, "%95s", name);
            for (size_t i = 0; i < num_seen; i++)
                assert_string_not_equal(seen[i], name);
            assert_true(num_seen < ARRAY_LEN(seen));
            memcpy(seen[num_seen++], name, sizeof(name));
        } else if (line[0] != '#') {
            char *end, *value = strrchr(line, ' ');
            assert_non_null(value);
            strtod(value, &end);
            assert_true(*end == '\0' && end > value + 1);
            assert_null(strstr(line, "nan"));
        }
    }
    free(text);
}

static void http_requests_are_told_apart_by_handler_and_status(void **state)
{
    struct metrics m = {*state, &options, 0, NULL};
    metrics_http(&m, HANDLER_CHAT, 200, 0.2, 100, 1000);
    metrics_http(&m, HANDLER_CHAT, 404, 0.2, 100, 1000);
    metrics_http(&m, HANDLER_NONE, 404, 0.2, 0, 10);
    char *text = render(*state, 0);
    assert_true(value_of(text, "http_requests_total{handler=\"/v1/chat/completions\",method="
                               "\"POST\",status=\"2xx\"}") == 1);
    assert_true(value_of(text, "http_requests_total{handler=\"none\",method=\"none\",status="
                               "\"4xx\"}") == 1);
    assert_true(value_of(text, "http_request_size_bytes_sum{handler=\"/v1/chat/completions\"}") ==
                200);
    assert_true(value_of(text, "http_request_duration_seconds_bucket{handler=\"/v1/chat/"
                               "completions\",method=\"POST\",le=\"0.5\"}") == 2);
    free(text);
}

static void gauges_of_an_engine_that_is_gone_are_zero(void **state)
{
    struct shared_page *page = *state;
    page->engine.num_running = 3;
    page->engine.num_used_blocks = 50;
    char *text = render(page, 0);
    assert_true(value_of(text, "vllm:num_requests_running{" LABELS "}") == 3);
    assert_true(value_of(text, "vllm:kv_cache_usage_perc{" LABELS "}") == 0.5);
    free(text);
    page->engine.state = ENGINE_STATE_STARTING;
    text = render(page, 0);
    assert_true(value_of(text, "vllm:num_requests_running{" LABELS "}") == 0);
    assert_true(value_of(text, "vllm:kv_cache_usage_perc{" LABELS "}") == 0);
    free(text);
}

static void disabled_statistics_leave_no_vllm_series(void **state)
{
    options.disable_log_stats = true;
    char *text = render(*state, 0);
    options.disable_log_stats = false;
    assert_null(strstr(text, "vllm:"));
    assert_non_null(strstr(text, "http_request_duration_highr_seconds_count"));
    free(text);
}

static void requests_of_a_dead_server_are_lost_and_counted_once(void **state)
{
    struct metrics m = {*state, &options, 1, NULL};
    metrics_begin(&m);
    metrics_count(&m, METRIC_REQUESTS_RECEIVED, 10);
    for (int reason = FINISH_REASON_STOP; reason <= FINISH_REASON_REPETITION; reason++)
        metrics_success(&m, (enum finish_reason)reason);
    for (int start = 0; start < 2; start++)
        metrics_begin(&m); // the process that died is replaced, and so is that one
    char *text = render(*state, 0);
    assert_true(value_of(text, "vllm_c:requests_received_total{" LABELS "}") == 10);
    assert_true(value_of(text, "vllm_c:requests_lost_total{" LABELS "}") == 5);
    free(text);
}

static void our_series_come_from_the_engines_page(void **state)
{
    struct shared_page *page = *state;
    page->engine.num_recomputed_tokens = 7;
    page->engine.num_steps = 4;
    page->engine.generation = 2;
    page->engine.step_phase_ns[STEP_PHASE_EXECUTE] = 1500000000;
    char *text = render(page, 0);
    assert_true(value_of(text, "vllm_c:recomputed_tokens_total{" LABELS "}") == 7);
    assert_true(value_of(text, "vllm_c:engine_steps_total{" LABELS "}") == 4);
    assert_true(value_of(text, "vllm_c:engine_starts_total{" LABELS "}") == 2);
    assert_true(value_of(text, "vllm_c:step_seconds_total{" LABELS ",phase=\"execute\"}") == 1.5);
    assert_true(value_of(text, "vllm_c:step_seconds_total{" LABELS ",phase=\"send\"}") == 0);
    assert_true(value_of(text, "vllm_c:engine_healthy{" LABELS "}") == 0); // never beat
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_series_stand_at_zero_from_the_start, setup, teardown),
        cmocka_unit_test_setup_teardown(rows_of_all_servers_add_up, setup, teardown),
        cmocka_unit_test_setup_teardown(counters_take_no_negative_or_unreal_values, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(histograms_are_cumulative_and_agree_with_their_count, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(every_name_has_one_type_and_every_line_reads, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(http_requests_are_told_apart_by_handler_and_status, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(gauges_of_an_engine_that_is_gone_are_zero, setup, teardown),
        cmocka_unit_test_setup_teardown(requests_of_a_dead_server_are_lost_and_counted_once, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(our_series_come_from_the_engines_page, setup, teardown),
        cmocka_unit_test_setup_teardown(disabled_statistics_leave_no_vllm_series, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
