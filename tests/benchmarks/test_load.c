// The load against a server that answers at known times: what is measured, what fails and how, and
// that many streams at once do not distort their own times.
#include "cmocka_setup.h"

#include <math.h>
#include <signal.h>

#include "benchmarks/bench_result.h"
#include "benchmarks/load.h"
#include "scripted_server.h"

#define SSE_HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
#define CHAT(delta) "data: {\"choices\":[{\"index\":0,\"delta\":{" delta "}}]}\n\n"
#define ROLE CHAT("\"role\":\"assistant\",\"content\":\"\"")
#define STOP "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
#define USAGE(p, c) \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":" #p ",\"completion_tokens\":" #c "}}\n\n"
#define DONE "data: [DONE]\n\n"
#define MODEL "m"

/** One run of `num` requests and what came of it. */
struct trial {
    struct bench_options options;
    struct request_record *records;
    struct load_times times;
    struct bench_result result;
    int num;
};

static void run_trial(struct trial *t, const struct scripted_server *server, int num,
                      int max_concurrency, const double *times_s, const char *const *words)
{
    char port[16], *argv[32] = {0};
    int argc = 0, exit_status = 0;
    snprintf(port, sizeof(port), "%d", server->port);
    const char *common[] = {"--port", port, "--backend", "openai-chat"};
    for (size_t i = 0; i < ARRAY_LEN(common); i++)
        argv[argc++] = (char *)(uintptr_t)common[i];
    for (int i = 0; words && words[i]; i++)
        argv[argc++] = (char *)(uintptr_t)words[i];
    *t = (struct trial){.num = num};
    assert_int_equal(
        bench_options_parse(&t->options, BENCH_SERVE, argc, argv, stdout, stderr, &exit_status),
        OPTIONS_RUN);
    struct target target;
    struct request_body body;
    struct error err = {0};
    assert_int_equal(target_init(&target, &t->options, &err), STATUS_OK);
    assert_int_equal(request_body_init(&body, &t->options, &target, MODEL, "test-", &err),
                     STATUS_OK);
    struct bench_prompt *prompts = xcalloc((size_t)num, sizeof(*prompts));
    for (int i = 0; i < num; i++)
        prompts[i] =
            (struct bench_prompt){.text = STR("Say \"it\"."), .num_tokens = 7, .output_len = 5};
    t->records = xcalloc((size_t)num, sizeof(*t->records));
    struct load load = {.target = &target,
                        .body = &body,
                        .prompts = prompts,
                        .num = num,
                        .times_s = times_s,
                        .max_concurrency = max_concurrency};
    assert_int_equal(load_run(&load, t->records, &t->times, &err), STATUS_OK);
    bench_result_compute(&t->result, &t->options, prompts, t->records, num, &t->times, NULL);
    free(prompts);
    request_body_deinit(&body);
    target_deinit(&target);
}

static void end_trial(struct trial *t)
{
    request_records_free(t->records, t->num);
    bench_result_deinit(&t->result);
    bench_options_deinit(&t->options);
}

/** Milliseconds after the start; what a busy machine adds is bounded by `slack`. */
static double ms_between(int64_t from_ns, int64_t to_ns)
{
    return (double)(to_ns - from_ns) / 1e6;
}

static void five_scripted_streams_are_measured_and_counted_exactly(void **state)
{
    (void)state;
    static const struct script scripts[] = {
        {4,
         {{10, SSE_HEAD ROLE},
          {100, CHAT("\"content\":\"x\"")},
          {150, CHAT("\"content\":\"y\"") STOP DONE},
          {150, NULL}}},
        {3, {{10, SSE_HEAD ROLE}, {20, STOP DONE}, {20, NULL}}},
        {4,
         {{10, SSE_HEAD ROLE},
          {60, CHAT("\"reasoning\":\"r\"")},
          {200, CHAT("\"content\":\"x\"") STOP DONE},
          {200, NULL}}},
        {2,
         {{5,
           "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 35\r\nConnection: close\r\n\r\n"
           "{\"error\":{\"message\":\"out of luck\"}}"},
          {5, NULL}}},
        {3, {{10, SSE_HEAD ROLE}, {30, CHAT("\"content\":\"x\"")}, {40, NULL}}},
    };
    struct scripted_server *server = scripted_server_start(scripts, 5, 5);
    struct trial t;
    run_trial(&t, server, 5, -1, NULL, NULL);
    scripted_server_stop(server);
    const struct request_record *r = t.records;
    assert_int_equal(r[0].outcome, OUTCOME_OK);
    assert_int_equal(r[0].num_token_ns, 2);
    assert_true(ms_between(r[0].start_ns, r[0].token_ns[0]) > 99); // not the role's 10
    assert_true(ms_between(r[0].start_ns, r[0].token_ns[1]) > 149);
    assert_int_equal(r[1].outcome, OUTCOME_EMPTY);
    assert_int_equal(r[2].outcome, OUTCOME_OK);
    assert_true(ms_between(r[2].start_ns, r[2].token_ns[0]) > 59);
    assert_true(ms_between(r[2].start_ns, r[2].token_ns[1]) > 199);
    assert_int_equal(r[3].outcome, OUTCOME_FAILED);
    assert_string_equal(r[3].error, "HTTP 500 Internal Server Error: out of luck");
    assert_int_equal(r[4].outcome, OUTCOME_FAILED);
    assert_string_equal(r[4].error, "the stream was cut: it ended without [DONE]");
    // Successes, empty answers and failures add up; latencies are those of a and c alone.
    assert_int_equal(t.result.completed, 2);
    assert_int_equal(t.result.empty, 1);
    assert_int_equal(t.result.failed, 2);
    assert_int_equal(t.result.metrics[METRIC_TTFT].num, 2);
    assert_int_equal(t.result.metrics[METRIC_ITL].num, 2); // no gap after the role chunk
    end_trial(&t);
    scripted_server_free(server);
}

#define CHUNKED_HEAD \
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

static void streams_of_other_servers_are_understood(void **state)
{
    (void)state;
    // Comments, empty deltas, several tokens in an event, an event cut in two, CRLF, chunked
    // framing, tool calls, usage with its own count, and a body that goes on after [DONE].
    static const struct script scripts[] = {
        {4,
         {{1, SSE_HEAD ": hello\r\n\r\nevent: message\r\n" ROLE "data: {\"choices\":[{\"del"},
          {5, "ta\":{\"content\":\"one two three\"}}]}\r\n\r\n" CHAT("\"content\":\"\"")},
          {9, CHAT("\"content\":\" four\"") STOP USAGE(11, 4) DONE ": bye\n\n"},
          {9, NULL}}},
        {2,
         {{1, CHUNKED_HEAD
           "5a\r\ndata: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{"
           "\"arguments\":\"{}\"}}]}}]}\n\n\r\n"},
          {4, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"}}},
        {1, {{1, "HTTP/1.0 200 OK\r\n\r\n" CHAT("\"content\":\"z\"") STOP}}},
        {2,
         {{1, SSE_HEAD "data: {\"error\":{\"message\":\"engine died\",\"code\":500}}\n\n" DONE},
          {1, NULL}}},
        {2, {{1, SSE_HEAD "data: {oops\n\n"}, {1, NULL}}},
        {2, {{1, "SSH-2.0-OpenSSH\r\n"}, {1, NULL}}},
        {1, {{1, NULL}}},
        {2, {{1, SSE_HEAD DONE}, {1, NULL}}},
        {2, {{1, SSE_HEAD "{\"choices\":[]}"}, {1, NULL}}},
    };
    static const struct {
        enum outcome outcome;
        int num_tokens;
        int64_t output_tokens;
        const char *error;
    } expected[] = {
        {OUTCOME_OK, 2, 4, NULL},
        {OUTCOME_OK, 1, -1, NULL},
        {OUTCOME_OK, 1, -1, NULL},
        {OUTCOME_FAILED, 0, -1, "the stream carries an error: engine died"},
        {OUTCOME_FAILED, 0, -1, "not the JSON of a chunk"},
        {OUTCOME_FAILED, 0, -1, "not an HTTP answer: status line 'SSH-2.0-OpenSSH'"},
        {OUTCOME_FAILED, 0, -1, "the server closed the connection without an answer"},
        {OUTCOME_EMPTY, 0, -1, NULL},
        {OUTCOME_FAILED, 0, -1, "Never received a valid chunk"},
    };
    // The third ends with its connection, which the script's last step does not close.
    struct script copy[ARRAY_LEN(scripts)];
    memcpy(copy, scripts, sizeof(copy));
    copy[2].steps[1] = (struct script_step){1, NULL};
    copy[2].num_steps = 2;
    int num = (int)ARRAY_LEN(scripts);
    struct scripted_server *server = scripted_server_start(copy, num, num);
    struct trial t;
    run_trial(&t, server, num, 1, NULL, NULL);
    scripted_server_stop(server);
    for (int i = 0; i < num; i++) {
        const struct request_record *r = &t.records[i];
        bool right = r->outcome == expected[i].outcome &&
                     r->num_token_ns == expected[i].num_tokens &&
                     r->completion_tokens == expected[i].output_tokens &&
                     (!expected[i].error || (r->error && strstr(r->error, expected[i].error)));
        if (!right)
            fail_msg("stream %d: outcome %d, %d events, %lld tokens, %s", i, (int)r->outcome,
                     r->num_token_ns, (long long)r->completion_tokens, r->error ? r->error : "-");
    }
    assert_int_equal(t.records[0].prompt_tokens, 11);
    assert_int_equal(t.result.total_output_tokens, 4 + 1 + 1); // events where nobody counts
    end_trial(&t);
    scripted_server_free(server);
}

#define VECTOR(prompt) \
    "{\"data\":[{\"index\":0,\"embedding\":[0.5]}],\"usage\":{\"prompt_tokens\":" prompt "}}"
#define JSON_HEAD "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"

static void a_vector_is_timed_by_the_end_of_its_answer(void **state)
{
    (void)state;
    static const struct script scripts[] = {
        {4, {{5, JSON_HEAD "{\"data\":[{\"embed"}, {20, "ding\":[1"}, {60, ",2]}]}"}, {60, NULL}}},
        {3, {{1, JSON_HEAD}, {2, VECTOR("9")}, {2, NULL}}},
        {2, {{1, JSON_HEAD "{\"data\":[]}"}, {1, NULL}}},
        {2, {{1, JSON_HEAD "data: {}"}, {1, NULL}}},
    };
    static const char *const words[] = {"--backend", "openai-embeddings", "--goodput",
                                        "e2el:100000", NULL};
    static const char *const errors[] = {NULL, NULL, "an answer without an embedding",
                                         "an answer that is not JSON"};
    struct scripted_server *server = scripted_server_start(scripts, 4, 4);
    struct trial t;
    run_trial(&t, server, 4, 1, NULL, words);
    scripted_server_stop(server);
    for (int i = 0; i < 4; i++) {
        const struct request_record *r = &t.records[i];
        assert_int_equal(r->outcome, errors[i] ? OUTCOME_FAILED : OUTCOME_OK);
        assert_true(!errors[i] || strstr(r->error, errors[i]));
    }
    assert_true(ms_between(t.records[0].start_ns, t.records[0].last_ns) > 59);
    assert_int_equal(t.result.completed, 2);
    assert_int_equal(t.result.total_input_tokens, 7 + 9); // the client's count, the server's
    assert_int_equal(t.result.total_output_tokens, 0);
    assert_int_equal(t.result.metrics[METRIC_E2EL].num, 2);
    assert_int_equal(t.result.metrics[METRIC_TTFT].num, 0);
    assert_true(t.result.request_goodput == t.result.request_throughput);
    // The last request was number 3; it holds the prompt as the interface calls it.
    assert_non_null(strstr(server->last_request.ptr, "POST /v1/embeddings HTTP/1.1\r\n"));
    assert_non_null(strstr(server->last_request.ptr, "\"truncate_prompt_tokens\":-1"));
    assert_non_null(strstr(server->last_request.ptr, ",\"input\":\"Say \\\"it\\\".\"}"));
    assert_null(strstr(server->last_request.ptr, "stream"));
    end_trial(&t);
    scripted_server_free(server);
}

#define KEPT_ALIVE                                                                              \
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n30\r\ndata: {\"choices\":[{\"text\":" \
    "\"k\"}]}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n"

static void connections_are_kept_and_the_limit_holds(void **state)
{
    (void)state;
    static const struct script script = {1, {{2, KEPT_ALIVE}}};
    struct scripted_server *server = scripted_server_start(&script, 1, 40);
    struct trial t;
    run_trial(&t, server, 40, 4, NULL, NULL);
    scripted_server_stop(server);
    assert_int_equal(t.result.completed, 40);
    assert_int_equal(atomic_load(&server->num_requests), 40);
    assert_int_equal(atomic_load(&server->most_active), 4);
    assert_int_equal(atomic_load(&server->num_connections), 4);
    end_trial(&t);
    scripted_server_free(server);
}

static void a_kept_connection_that_was_closed_is_replaced(void **state)
{
    (void)state;
    // Every second request closes its connection after it has answered without saying so.
    static const struct script scripts[] = {
        {1, {{2, KEPT_ALIVE}}},
        {2, {{2, KEPT_ALIVE}, {2, NULL}}},
    };
    struct scripted_server *server = scripted_server_start(scripts, 2, 20);
    struct trial t;
    run_trial(&t, server, 20, 1, NULL, NULL);
    scripted_server_stop(server);
    assert_int_equal(t.result.completed, 20);
    end_trial(&t);
    scripted_server_free(server);
}

static void requests_leave_at_their_times(void **state)
{
    (void)state;
    static const struct script script = {1, {{1, KEPT_ALIVE}}};
    double times_s[] = {0, 0.05, 0.1, 0.1, 0.2};
    struct scripted_server *server = scripted_server_start(&script, 1, 5);
    struct trial t;
    run_trial(&t, server, 5, -1, times_s, NULL);
    scripted_server_stop(server);
    for (int i = 0; i < 5; i++)
        assert_true(ms_between(t.times.start_ns, t.records[i].start_ns) >= times_s[i] * 1000);
    for (int i = 1; i < 5; i++)
        assert_true(t.records[i].start_ns >= t.records[i - 1].start_ns);
    end_trial(&t);
    scripted_server_free(server);
}

static void a_request_holds_what_the_options_say(void **state)
{
    (void)state;
    static const struct script script = {1, {{1, KEPT_ALIVE}}};
    struct scripted_server *server = scripted_server_start(&script, 1, 1);
    struct trial t;
    const char *words[] = {"--api-key",
                           "k1",
                           "--header",
                           "X-A=b=c",
                           "--ignore-eos",
                           "--top-k=5",
                           "--extra-body",
                           "{\"seed\":3,\"stop\":\"e\"}",
                           "--temperature",
                           "0.5",
                           NULL};
    run_trial(&t, server, 1, -1, NULL, words);
    scripted_server_stop(server);
    static const char *const parts[] = {
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:",
        "\r\nAuthorization: Bearer k1\r\nX-A: b=c\r\n",
        "\r\nX-Request-Id: test-0\r\n",
        "{\"max_completion_tokens\":5,\"model\":\"m\",\"stream\":true,\"stream_options\":{"
        "\"include_usage\":true},\"temperature\":0.5,\"top_k\":5,\"ignore_eos\":true,\"seed\":3,"
        "\"stop\":\"e\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
        "\"text\":\"Say \\\"it\\\".\"}]}]}",
    };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (!strstr(server->last_request.ptr, parts[i]))
            fail_msg("no %s in %s", parts[i], server->last_request.ptr);
    }
    end_trial(&t);
    scripted_server_free(server);
}

static void nobody_at_the_port_fails_every_request(void **state)
{
    (void)state;
    struct scripted_server nobody = {.port = 1};
    struct trial t;
    run_trial(&t, &nobody, 3, -1, NULL, NULL);
    assert_int_equal(t.result.failed, 3);
    assert_string_equal(t.records[2].error, "Connection refused");
    end_trial(&t);
}

static void *interrupt_soon(void *context)
{
    (void)context;
    usleep(100000);
    kill(getpid(), SIGINT);
    return NULL;
}

static void an_interrupt_ends_the_run_and_keeps_what_is_there(void **state)
{
    (void)state;
    static const struct script scripts[] = {
        {1, {{1, KEPT_ALIVE}}},
        {2, {{1, SSE_HEAD CHAT("\"content\":\"a\"")}, {60000, NULL}}},
    };
    struct scripted_server *server = scripted_server_start(scripts, 2, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, interrupt_soon, NULL);
    struct trial t;
    run_trial(&t, server, 2, -1, NULL, NULL);
    pthread_join(thread, NULL);
    scripted_server_stop(server);
    assert_true(t.times.interrupted);
    assert_int_equal(t.result.completed, 1);
    assert_int_equal(t.result.cancelled, 1);
    end_trial(&t);
    scripted_server_free(server);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

static void a_thousand_streams_do_not_distort_their_times(void **state)
{
    (void)state;
    enum { NUM_STREAMS = 1024, NUM_TOKENS = 10, GAP_MS = 100 };
    static struct script script;
    script.num_steps = NUM_TOKENS + 1;
    for (int i = 0; i < NUM_TOKENS; i++)
        script.steps[i] =
            (struct script_step){500 + GAP_MS * i, i == 0 ? SSE_HEAD CHAT("\"content\":\"t\"")
                                                          : CHAT("\"content\":\"t\"")};
    script.steps[NUM_TOKENS - 1].bytes = CHAT("\"content\":\"t\"") STOP DONE;
    script.steps[NUM_TOKENS] = (struct script_step){500 + GAP_MS * NUM_TOKENS, NULL};
    // Spread over the gap, as streams of a real server are not.
    double *times_s = xcalloc(NUM_STREAMS, sizeof(*times_s));
    for (int i = 0; i < NUM_STREAMS; i++)
        times_s[i] = 0.0002 * i;
    struct scripted_server *server = scripted_server_start(&script, 1, NUM_STREAMS);
    struct trial t;
    run_trial(&t, server, NUM_STREAMS, -1, times_s, NULL);
    scripted_server_stop(server);
    assert_int_equal(t.result.completed, NUM_STREAMS);
    double *lag_ms = xcalloc((size_t)NUM_STREAMS * NUM_TOKENS, sizeof(*lag_ms));
    int num = 0;
    for (int i = 0; i < NUM_STREAMS; i++) {
        assert_int_equal(t.records[i].num_token_ns, NUM_TOKENS);
        for (int k = 0; k < NUM_TOKENS; k++) {
            int64_t sent_ns = server->sent_ns[i * SCRIPT_MAX_STEPS + k];
            lag_ms[num++] = ms_between(sent_ns, t.records[i].token_ns[k]);
        }
    }
    qsort(lag_ms, (size_t)num, sizeof(*lag_ms), compare);
    double median = percentile_of(lag_ms, num, 50), p99 = percentile_of(lag_ms, num, 99);
    printf("from the server's write to the time stamp: median %.3f ms, p99 %.3f ms\n", median, p99);
    // Other programs use this machine as well; a client that cannot keep up lags by far more.
    assert_true(lag_ms[0] >= 0);
    assert_true(median < (IS_SANITIZED ? 1000 : 10));
    free(lag_ms);
    free(times_s);
    end_trial(&t);
    scripted_server_free(server);
}

int main(void)
{
    unsetenv("OPENAI_API_KEY");
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(five_scripted_streams_are_measured_and_counted_exactly),
        cmocka_unit_test(streams_of_other_servers_are_understood),
        cmocka_unit_test(a_vector_is_timed_by_the_end_of_its_answer),
        cmocka_unit_test(connections_are_kept_and_the_limit_holds),
        cmocka_unit_test(a_kept_connection_that_was_closed_is_replaced),
        cmocka_unit_test(requests_leave_at_their_times),
        cmocka_unit_test(a_request_holds_what_the_options_say),
        cmocka_unit_test(nobody_at_the_port_fails_every_request),
        cmocka_unit_test(an_interrupt_ends_the_run_and_keeps_what_is_there),
        cmocka_unit_test(a_thousand_streams_do_not_distort_their_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
