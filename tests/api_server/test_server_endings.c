// The whole API server when something ends: the engine, the client, the server itself, or a
// reader's patience.
#include "server_fixture.h"

static void an_engine_error_ends_a_stream_with_an_error_event(void **state)
{
    struct fixture *f = *state;
    atomic_store(&f->engine.step_ms, 5);
    int fd = http_start(f->port, "POST", COMPLETIONS, "",
                        STR("{\"prompt\":\"x\",\"max_tokens\":300,\"stream\":true}"));
    struct buf in = {0};
    assert_true(http_read_until(fd, &in, "data: ", 3));
    atomic_store(&f->engine.fail_next, true);
    struct http_answer a = http_finish_after(fd, &in);
    struct events e = parse_events(a.body);
    assert_true(a.complete && e.done);
    const json_t *last = json_array_get(e.list, json_array_size(e.list) - 1);
    assert_int_equal(int_at(last, "error.code"), 500);
    assert_string_equal(text_at(last, "error.type"), "InternalServerError");
    http_answer_free(&a);
    json_decref(e.list);
    atomic_store(&f->engine.fail_next, true);
    json_t *err = post(f, COMPLETIONS, "{\"prompt\":\"x\"}", 500);
    assert_string_equal(text_at(err, "error.type"), "InternalServerError");
    json_decref(err);
}

/** Streams until the engine fails; the body with the last event in it. */
static struct http_answer stream_until_failure(struct fixture *f, const char *path,
                                               const char *body, const char *event)
{
    atomic_store(&f->engine.step_ms, 20);
    int fd = http_start(f->port, "POST", path, "", str_from(body));
    struct buf in = {0};
    assert_true(http_read_until(fd, &in, event, 2));
    atomic_store(&f->engine.fail_next, true);
    struct http_answer a = http_finish_after(fd, &in);
    assert_true(a.complete);
    return a;
}

static void a_failed_engine_is_told_in_the_words_of_the_endpoint(void **state)
{
    struct fixture *f = *state;
    struct http_answer a =
        stream_until_failure(f, "/v1/messages",
                             "{\"model\":\"demo\",\"max_tokens\":300,\"stream\":true,\"messages\":"
                             "[{\"role\":\"user\",\"content\":\"x\"}]}",
                             "event: content_block_delta");
    assert_non_null(strstr(a.body, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
                                   "\"internal_error\",\"message\":\"Generation failed"));
    assert_null(strstr(a.body, "message_stop"));
    http_answer_free(&a);
    a = stream_until_failure(f, "/v1/responses",
                             "{\"input\":\"x\",\"max_output_tokens\":300,\"stream\":true}",
                             "event: response.output_text.delta");
    assert_non_null(strstr(a.body, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":"));
    assert_null(strstr(a.body, "response.completed"));
    http_answer_free(&a);
}

static void a_background_response_that_fails_says_so_to_who_asks(void **state)
{
    struct fixture *f = *state;
    atomic_store(&f->engine.step_ms, 20);
    json_t *response = post(f, "/v1/responses",
                            "{\"input\":\"x\",\"max_output_tokens\":300,\"background\":true}", 200);
    assert_string_equal(text_at(response, "status"), "queued");
    char path[128];
    snprintf(path, sizeof(path), "/v1/responses/%s", text_at(response, "id"));
    json_decref(response);
    atomic_store(&f->engine.fail_next, true);
    json_t *now = NULL;
    for (int i = 0; i < 500; i++) {
        struct http_answer a = http_call(f->port, "GET", path, "", "");
        assert_int_equal(a.status, 200);
        json_decref(now);
        now = json_loads(a.body, 0, NULL);
        http_answer_free(&a);
        if (strcmp(text_at(now, "status"), "failed") == 0)
            break;
        usleep(10000);
    }
    assert_string_equal(text_at(now, "status"), "failed");
    assert_non_null(strstr(text_at(now, "error.message"), "Generation failed"));
    json_decref(now);
}

static void a_client_that_leaves_aborts_all_its_choices(void **state)
{
    struct fixture *f = *state;
    const char *series = "vllm:request_success_total{engine=\"0\",model_name=\"demo\","
                         "finished_reason=\"abort\"}";
    double before = metric(f, series);
    static const char *const bodies[] = {
        "{\"prompt\":\"x\",\"n\":3,\"max_tokens\":400,\"ignore_eos\":true,\"stream\":true}",
        "{\"prompt\":\"x\",\"n\":3,\"max_tokens\":400,\"ignore_eos\":true}"};
    for (int i = 0; i < 2; i++) {
        int aborts = atomic_load(&f->engine.num_aborts);
        atomic_store(&f->engine.step_ms, 50);
        int fd = http_start(f->port, "POST", COMPLETIONS, "", str_from(bodies[i]));
        for (int t = 0; t < 500 && atomic_load(&f->engine.num_live) < 3; t++)
            usleep(10000);
        assert_int_equal(atomic_load(&f->engine.num_live), 3);
        close(fd);
        for (int t = 0; t < 100 && atomic_load(&f->engine.num_live) > 0; t++)
            usleep(10000);
        assert_int_equal(atomic_load(&f->engine.num_aborts) - aborts, 3);
        assert_int_equal(atomic_load(&f->page->fronts[0].num_unfinished), 0);
    }
    assert_true(metric(f, series) == before + 6);
}

static void requests_live_through_an_engine_restart(void **state)
{
    struct fixture *f = *state;
    json_t *whole = post(f, COMPLETIONS, "{\"prompt\":\"x\",\"max_tokens\":60,\"seed\":1}", 200);
    atomic_store(&f->engine.step_ms, 10);
    int fd = http_start(f->port, "POST", COMPLETIONS, "",
                        STR("{\"prompt\":\"x\",\"max_tokens\":60,\"seed\":1,\"stream\":true}"));
    struct buf in = {0};
    assert_true(http_read_until(fd, &in, "data: ", 5));
    int resumed = atomic_load(&f->engine.num_resumed);
    fake_engine_stop(&f->engine, ENGINE_STATE_STARTING);
    assert_int_equal(health(f), 503);
    struct http_answer refused = http_call(f->port, "POST", COMPLETIONS, "", "{\"prompt\":\"x\"}");
    assert_int_equal(refused.status, 503);
    assert_non_null(strstr(refused.head, "Retry-After: "));
    http_answer_free(&refused);
    assert_true(fake_engine_start(&f->engine));
    struct http_answer a = http_finish_after(fd, &in);
    struct events e = parse_events(a.body);
    assert_true(e.done);
    char *text = joined(&e, 0, false);
    assert_string_equal(text, text_at(whole, "choices.0.text"));
    assert_int_equal(atomic_load(&f->engine.num_resumed) - resumed, 1);
    assert_true(atomic_load(&f->engine.last_resumed_outputs) >= 4);
    free(text);
    http_answer_free(&a);
    json_decref(e.list);
    json_decref(whole);
    assert_int_equal(health(f), 200);
}

static void a_slow_reader_gets_everything_in_the_end(void **state)
{
    struct fixture *f = *state;
    json_t *whole = post(f, COMPLETIONS, "{\"prompt\":\"x\",\"max_tokens\":400,\"seed\":0}", 200);
    char id[501] = {0}, body[1024]; // every chunk carries it
    memset(id, 'x', sizeof(id) - 1);
    snprintf(body, sizeof(body),
             "{\"prompt\":\"x\",\"max_tokens\":400,\"seed\":0,\"stream\":true,\"n\":48,"
             "\"request_id\":\"%s\"}",
             id);
    int fd = http_start(f->port, "POST", COMPLETIONS, "", str_from(body));
    sleep(2); // more piles up than the sockets hold
    struct http_answer a = http_finish(fd);
    struct events e = parse_events(a.body);
    assert_true(e.done && a.complete);
    char *text = joined(&e, 0, false);
    assert_string_equal(text, text_at(whole, "choices.0.text"));
    free(text);
    http_answer_free(&a);
    json_decref(e.list);
    json_decref(whole);
}

static void sigterm_ends_running_requests_with_finish_reason_abort(void **state)
{
    (void)state;
    struct serve_options options = base_options();
    struct fixture *f = fixture_start(&options, true);
    atomic_store(&f->engine.step_ms, 20);
    int streamed = http_start(f->port, "POST", COMPLETIONS, "",
                              STR("{\"prompt\":\"x\",\"max_tokens\":400,\"stream\":true}"));
    int whole = http_start(f->port, "POST", CHAT, "", STR("{" MESSAGES "}"));
    struct buf in = {0};
    assert_true(http_read_until(streamed, &in, "data: ", 2));
    for (int i = 0; i < 500 && atomic_load(&f->engine.num_live) < 2; i++)
        usleep(10000);
    assert_int_equal(stop_server(f), 0);
    struct http_answer a = http_finish_after(streamed, &in);
    struct events e = parse_events(a.body);
    assert_true(e.done && a.complete);
    assert_string_equal(text_at(last_choice(&e), "finish_reason"), "abort");
    http_answer_free(&a);
    json_decref(e.list);
    a = http_finish(whole);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"finish_reason\":\"abort\""));
    http_answer_free(&a);
    fixture_free(f);
}

static void sigterm_with_a_timeout_lets_requests_end(void **state)
{
    (void)state;
    struct serve_options options = base_options();
    options.shutdown_timeout_s = 10;
    struct fixture *f = fixture_start(&options, true);
    atomic_store(&f->engine.step_ms, 10);
    int fd = http_start(f->port, "POST", COMPLETIONS, "",
                        STR("{\"prompt\":\"x\",\"max_tokens\":50,\"stream\":true}"));
    struct buf in = {0};
    assert_true(http_read_until(fd, &in, "data: ", 2));
    assert_int_equal(stop_server(f), 0);
    struct http_answer a = http_finish_after(fd, &in);
    struct events e = parse_events(a.body);
    assert_true(e.done);
    assert_string_equal(text_at(last_choice(&e), "finish_reason"), "length");
    http_answer_free(&a);
    json_decref(e.list);
    fixture_free(f);
}

static void a_dead_engine_ends_every_request_with_an_error(void **state)
{
    (void)state;
    struct serve_options options = base_options();
    struct fixture *f = fixture_start(&options, true);
    atomic_store(&f->engine.step_ms, 20);
    int fd = http_start(f->port, "POST", COMPLETIONS, "",
                        STR("{\"prompt\":\"x\",\"max_tokens\":400,\"stream\":true}"));
    struct buf in = {0};
    assert_true(http_read_until(fd, &in, "data: ", 2));
    fake_engine_stop(&f->engine, ENGINE_STATE_DEAD);
    f->engine_runs = false;
    struct http_answer a = http_finish_after(fd, &in);
    struct events e = parse_events(a.body);
    assert_true(e.done);
    assert_int_equal(int_at(json_array_get(e.list, json_array_size(e.list) - 1), "error.code"),
                     500);
    http_answer_free(&a);
    json_decref(e.list);
    assert_int_equal(health(f), 503);
    fixture_stop(f);
}

int main(void)
{
    const struct CMUnitTest on_one_server[] = {
        cmocka_unit_test_setup(an_engine_error_ends_a_stream_with_an_error_event, reset),
        cmocka_unit_test_setup(a_failed_engine_is_told_in_the_words_of_the_endpoint, reset),
        cmocka_unit_test_setup(a_background_response_that_fails_says_so_to_who_asks, reset),
        cmocka_unit_test_setup(a_client_that_leaves_aborts_all_its_choices, reset),
        cmocka_unit_test_setup(requests_live_through_an_engine_restart, reset),
        cmocka_unit_test_setup(a_slow_reader_gets_everything_in_the_end, reset),
    };
    // Each starts a process, so no thread of another server's fake engine may be there: what fork()
    // leaves of it confuses the thread sanitizer.
    const struct CMUnitTest on_servers_of_their_own[] = {
        cmocka_unit_test(sigterm_ends_running_requests_with_finish_reason_abort),
        cmocka_unit_test(sigterm_with_a_timeout_lets_requests_end),
        cmocka_unit_test(a_dead_engine_ends_every_request_with_an_error),
    };
    log_set_level(LOG_LEVEL_WARNING);
    int num_failed = cmocka_run_group_tests(on_one_server, setup, teardown);
    return num_failed +
           cmocka_run_group_tests(on_servers_of_their_own, load_tokenizer, drop_tokenizer);
}
