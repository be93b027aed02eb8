// The whole API server: errors, small endpoints, headers, keys and limits.
#include "server_fixture.h"

static void errors_have_the_right_code_type_and_param(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *path, *body;
        int status;
        const char *type, *param, *message;
    } rows[] = {
        {CHAT, "{\"model\":\"nope\"," MESSAGES "}", 404, "NotFoundError", "model",
         "The model `nope` does not exist. Served here: `demo`, `alias`."},
        {COMPLETIONS, "{\"prompt\":\"x\",\"top_p\":0}", 400, "BadRequestError", "top_p",
         "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)"},
        {CHAT, "{\"model\":\"demo\"}", 400, "Bad Request", "body.messages",
         "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field "
         "required', 'input': '<dict of 1 items>'}"},
        {COMPLETIONS, "{\"prompt\":\"\"}", 400, "BadRequestError", NULL,
         "The decoder prompt cannot be empty"},
        {COMPLETIONS, "{\"prompt\":[4096]}", 400, "BadRequestError", NULL,
         "Token id 4096 is out of vocabulary"},
        {COMPLETIONS, "{\"prompt\":\"x\",\"max_tokens\":512,\"stream\":true}", 400,
         "BadRequestError", "input_tokens", NULL},
        {COMPLETIONS, "{\"prompt\":\"x\",\"temperature\":3,\"stream\":true}", 400,
         "BadRequestError", "temperature", NULL},
        {"/tokenize", "{}", 400, "Bad Request", "body.prompt", NULL},
        {"/detokenize", "{\"tokens\":[-1]}", 400, "Bad Request", "body.tokens.0", NULL},
        {"/nope", "{}", 404, "Not Found", NULL, "Not Found"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        json_t *a = post(f, rows[i].path, rows[i].body, rows[i].status);
        assert_keys(a, "error");
        assert_keys(at(a, "error"), "message,type,param,code");
        assert_string_equal(text_at(a, "error.type"), rows[i].type);
        assert_int_equal(int_at(a, "error.code"), rows[i].status);
        if (rows[i].param)
            assert_string_equal(text_at(a, "error.param"), rows[i].param);
        else
            assert_true(json_is_null(at(a, "error.param")));
        if (rows[i].message)
            assert_string_equal(text_at(a, "error.message"), rows[i].message);
        json_decref(a);
    }
}

static void the_media_type_must_be_json(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *header;
        int status;
    } rows[] = {
        {"Content-Type: application/json; charset=utf-8\r\n", 200},
        {"Content-Type: APPLICATION/JSON\r\n", 200},
        {"Content-Type: text/plain\r\n", 400},
        {"Content-Type: application/x-www-form-urlencoded\r\n", 400},
        {"Content-Type:\r\n", 400},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct http_answer a = http_call(f->port, "POST", COMPLETIONS, rows[i].header,
                                         "{\"prompt\":\"x\",\"max_tokens\":1}");
        if (a.status != rows[i].status)
            fail_msg("%s: %d", rows[i].header, a.status);
        if (rows[i].status == 400)
            assert_non_null(
                strstr(a.body, "Unsupported Media Type: Only 'application/json' is allowed"));
        http_answer_free(&a);
    }
}

static void a_wrong_method_says_which_are_allowed(void **state)
{
    struct fixture *f = *state;
    struct http_answer a = http_call(f->port, "GET", CHAT, "", "");
    assert_int_equal(a.status, 405);
    assert_non_null(strstr(a.head, "Allow: POST"));
    assert_non_null(strstr(a.body, "\"type\":\"Method Not Allowed\""));
    http_answer_free(&a);
}

static void long_prompts_go_through_the_pool(void **state)
{
    struct fixture *f = *state;
    struct buf body = {0};
    buf_append_c(&body, "{\"prompt\":\"");
    for (int i = 0; i < 100000; i++)
        buf_append_c(&body, "word ");
    buf_append_c(&body, "\"}");
    int fd = http_start(f->port, "POST", COMPLETIONS, "", buf_str(&body));
    struct http_answer a = http_finish(fd);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.body, "maximum context length is 512 tokens"));
    http_answer_free(&a);
    // One that fits once it is cut, and a client that leaves while the pool works.
    body.len -= 1;
    buf_append_c(&body, ",\"truncate_prompt_tokens\":20,\"max_tokens\":3}");
    close(http_start(f->port, "POST", COMPLETIONS, "", buf_str(&body)));
    a = http_finish(http_start(f->port, "POST", COMPLETIONS, "", buf_str(&body)));
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"prompt_tokens\":20,"));
    http_answer_free(&a);
    buf_deinit(&body);
}

static void tokenize_and_detokenize_are_inverse(void **state)
{
    struct fixture *f = *state;
    json_t *a =
        post(f, "/tokenize", "{\"prompt\":\"Hello w\\u00f6rld\",\"return_token_strs\":true}", 200);
    assert_keys(a, "count,max_model_len,tokens,token_strs");
    assert_int_equal(json_array_size(at(a, "tokens")), (size_t)int_at(a, "count"));
    assert_int_equal(json_array_size(at(a, "token_strs")), (size_t)int_at(a, "count"));
    char *tokens = json_dumps(at(a, "tokens"), JSON_COMPACT), body[512];
    snprintf(body, sizeof(body), "{\"tokens\":%s}", tokens);
    json_t *b = post(f, "/detokenize", body, 200);
    assert_string_equal(text_at(b, "prompt"), "Hello w\xC3\xB6rld");
    free(tokens);
    json_decref(a);
    json_decref(b);
    a = post(f, "/tokenize", "{" MESSAGES "}", 200);
    b = post(f, CHAT, "{" MESSAGES ",\"max_tokens\":1,\"return_token_ids\":true}", 200);
    assert_true(json_equal(at(a, "tokens"), at(b, "prompt_token_ids")));
    json_decref(a);
    json_decref(b);
}

static void models_lists_every_served_name(void **state)
{
    struct fixture *f = *state;
    struct http_answer a = http_call(f->port, "GET", "/v1/models", "", "");
    json_t *json = json_loads(a.body, 0, NULL);
    assert_string_equal(text_at(json, "data.0.id"), "demo");
    assert_string_equal(text_at(json, "data.1.id"), "alias");
    assert_int_equal(int_at(json, "data.0.max_model_len"), FAKE_MODEL_LEN);
    assert_keys(at(json, "data.0"),
                "id,object,created,owned_by,root,parent,max_model_len,permission");
    json_decref(json);
    http_answer_free(&a);
}

static void small_endpoints_answer(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *method, *path, *body;
    } rows[] = {
        {"GET", "/health", ""},
        {"POST", "/ping", ""},
        {"GET", "/version", "{\"version\":\"" VLLM_VERSION "\"}"},
        {"GET", "/load", "{\"server_load\":0}"},
        {"POST", "/reset_prefix_cache", "{\"success\":true}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct http_answer a = http_call(f->port, rows[i].method, rows[i].path, "", "");
        assert_int_equal(a.status, 200);
        assert_string_equal(a.body, rows[i].body);
        http_answer_free(&a);
    }
    struct http_answer a = http_call(f->port, "GET", "/metrics/", "", "");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.head, "text/plain; version=0.0.4; charset=utf-8"));
    http_answer_free(&a);
}

static void cors_allows_everybody_by_default(void **state)
{
    struct fixture *f = *state;
    struct http_answer a = http_call(f->port, "OPTIONS", CHAT,
                                     "Origin: http://a\r\nAccess-Control-Request-Method: POST\r\n"
                                     "Access-Control-Request-Headers: x-y\r\n",
                                     "");
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "OK");
    assert_non_null(strstr(a.head, "access-control-allow-origin: *"));
    assert_non_null(strstr(a.head, "access-control-max-age: 600"));
    assert_non_null(strstr(a.head, "access-control-allow-headers: x-y"));
    http_answer_free(&a);
}

static void request_ids_come_from_the_header_then_the_body(void **state)
{
    struct fixture *f = *state;
    const char *body = "{\"prompt\":\"x\",\"max_tokens\":1,\"request_id\":\"from-body\"}";
    struct http_answer a = http_call(f->port, "POST", COMPLETIONS, "", body);
    assert_non_null(strstr(a.body, "\"id\":\"cmpl-from-body\""));
    http_answer_free(&a);
    a = http_call(f->port, "POST", COMPLETIONS, "X-Request-Id: from-header\r\n", body);
    assert_non_null(strstr(a.body, "\"id\":\"cmpl-from-header\""));
    http_answer_free(&a);
    a = http_call(f->port, "POST", COMPLETIONS, "X-data-parallel-rank: 3\r\n", body);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.body, "data_parallel_rank 3 is out of range [0, 1)."));
    http_answer_free(&a);
}

static void tool_history_renders(void **state)
{
    struct fixture *f = *state;
    json_t *a = post(f, CHAT,
                     "{\"max_tokens\":1,\"return_prompt_text\":true,\"tool_choice\":\"none\","
                     "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}],"
                     "\"messages\":[{\"role\":\"user\",\"content\":\"2+2?\"},"
                     "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\","
                     "\"type\":\"function\",\"function\":{\"name\":\"add\",\"arguments\":"
                     "\"{\\\"a\\\":2, \\\"b\\\":2}\"}}]},"
                     "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"4\"}]}",
                     200);
    const char *prompt = text_at(a, "prompt_text");
    assert_non_null(strstr(prompt, "{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 2}}"));
    assert_non_null(strstr(prompt, "<tool_response>\n4\n</tool_response>"));
    assert_null(strstr(prompt, "None"));
    json_decref(a);
}

static void keys_are_asked_for_everywhere_but_on_probes_and_metrics(void **state)
{
    (void)state;
    static const char *keys[] = {"alpha-1", "beta-22"};
    struct serve_options options = base_options();
    options.api_keys = (struct str_list){keys, 2};
    struct fixture *f = fixture_start(&options, false);
    static const struct {
        const char *header;
        int status;
    } rows[] = {
        {"Authorization: Bearer alpha-1\r\n", 200},
        {"Authorization: Bearer beta-22\r\n", 200},
        {"Authorization: bearer alpha-1\r\n", 200},
        {"Authorization: Bearer alpha-\r\n", 401},
        {"Authorization: Bearer alpha-1x\r\n", 401},
        {"Authorization: Bearer alpha-1,beta-22\r\n", 401},
        {"Authorization: Bearer \r\n", 401},
        {"Authorization: alpha-1\r\n", 401},
        {"Authorization: Basic alpha-1\r\n", 401},
        {"Authorization: Bearer \x80\xFF\r\n", 401},
        {"Authorization: Bearer alpha-1\r\nAuthorization: Bearer alpha-1\r\n", 401},
        {"", 401},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct http_answer a = http_call(f->port, "GET", "/v1/models", rows[i].header, "");
        if (a.status != rows[i].status)
            fail_msg("%s: %d", rows[i].header, a.status);
        if (rows[i].status == 401)
            assert_string_equal(a.body, "{\"error\":\"Unauthorized\"}");
        http_answer_free(&a);
    }
    assert_int_equal(health(f), 503); // open, and there is no engine
    static const struct {
        const char *method, *path;
        int status;
    } paths[] = {
        {"GET", "/ping", 503},
        {"GET", "/metrics", 200},
        {"GET", "/metrics/", 200},
        {"OPTIONS", "/v1/models", 405},
        {"POST", "/tokenize", 401},
        {"GET", "/version", 401},
        {"GET", "/load", 401},
        {"GET", "/", 401},
        {"GET", "/nothing", 401},
        {"GET", "/healthy", 401},
        {"GET", "/health/", 401},
        {"GET", "//metrics", 401},
        {"POST", "/debug/recording", 401},
        {"GET", "/v1", 401},
    };
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct http_answer a = http_call(f->port, paths[i].method, paths[i].path, "", "");
        if (a.status != paths[i].status)
            fail_msg("%s %s: %d", paths[i].method, paths[i].path, a.status);
        http_answer_free(&a);
    }
    fixture_stop(f);

    options.api_key_for_metrics = true;
    f = fixture_start(&options, false);
    struct http_answer a = http_call(f->port, "GET", "/metrics", "", "");
    assert_int_equal(a.status, 401);
    http_answer_free(&a);
    a = http_call(f->port, "GET", "/metrics", "Authorization: Bearer beta-22\r\n", "");
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    fixture_stop(f);
}

static void admission_limits_answer_503_before_anything_is_sent(void **state)
{
    (void)state;
    struct serve_options options = base_options();
    options.max_num_queued_reqs = 2;
    options.root_path = "/proxy";
    struct fixture *f = fixture_start(&options, true);
    struct http_answer a = http_call(f->port, "POST", "/proxy" COMPLETIONS, "",
                                     "{\"prompt\":\"x\",\"n\":3,\"max_tokens\":1}");
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "\"type\":\"Service Unavailable\""));
    assert_non_null(strstr(a.head, "Retry-After: "));
    http_answer_free(&a);
    a = http_call(f->port, "POST", "/proxy" COMPLETIONS, "",
                  "{\"prompt\":\"x\",\"n\":2,\"max_tokens\":1}");
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    fixture_stop(f);
}

int main(void)
{
    const struct CMUnitTest on_one_server[] = {
        cmocka_unit_test_setup(errors_have_the_right_code_type_and_param, reset),
        cmocka_unit_test_setup(the_media_type_must_be_json, reset),
        cmocka_unit_test_setup(a_wrong_method_says_which_are_allowed, reset),
        cmocka_unit_test_setup(long_prompts_go_through_the_pool, reset),
        cmocka_unit_test_setup(tokenize_and_detokenize_are_inverse, reset),
        cmocka_unit_test_setup(models_lists_every_served_name, reset),
        cmocka_unit_test_setup(small_endpoints_answer, reset),
        cmocka_unit_test_setup(cors_allows_everybody_by_default, reset),
        cmocka_unit_test_setup(request_ids_come_from_the_header_then_the_body, reset),
        cmocka_unit_test_setup(tool_history_renders, reset),
    };
    // Each starts a process, so no thread of another server's fake engine may be there: what fork()
    // leaves of it confuses the thread sanitizer.
    const struct CMUnitTest on_servers_of_their_own[] = {
        cmocka_unit_test(keys_are_asked_for_everywhere_but_on_probes_and_metrics),
        cmocka_unit_test(admission_limits_answer_503_before_anything_is_sent),
    };
    log_set_level(LOG_LEVEL_WARNING);
    int num_failed = cmocka_run_group_tests(on_one_server, setup, teardown);
    return num_failed +
           cmocka_run_group_tests(on_servers_of_their_own, load_tokenizer, drop_tokenizer);
}
