// The whole API server: answers of the chat and completion endpoints, whole and as streams, to the
// key.
#include "server_fixture.h"

static void chat_answers_with_exactly_the_agreed_keys(void **state)
{
    struct fixture *f = *state;
    json_t *a = post(f, CHAT, "{\"model\":\"demo\"," MESSAGES ",\"max_tokens\":8,\"seed\":0}", 200);
    assert_keys(a, "id,object,created,model,choices,service_tier,system_fingerprint,usage,"
                   "prompt_logprobs,prompt_token_ids,prompt_text,kv_transfer_params,"
                   "ec_transfer_params,metrics");
    assert_keys(at(a, "choices.0"),
                "index,message,logprobs,finish_reason,stop_reason,token_ids,routed_experts");
    assert_keys(at(a, "choices.0.message"),
                "role,content,refusal,annotations,audio,function_call,reasoning");
    assert_keys(at(a, "usage"),
                "prompt_tokens,total_tokens,completion_tokens,prompt_tokens_details");
    assert_string_equal(text_at(a, "object"), "chat.completion");
    assert_memory_equal(text_at(a, "id"), "chatcmpl-", 9);
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "length");
    assert_string_equal(text_at(a, "choices.0.message.role"), "assistant");
    char *expected = script_prefix(f, 8);
    assert_string_equal(text_at(a, "choices.0.message.content"), expected);
    assert_int_equal(int_at(a, "usage.completion_tokens"), 8);
    assert_int_equal(int_at(a, "usage.total_tokens"), 8 + int_at(a, "usage.prompt_tokens"));
    free(expected);
    json_decref(a);
}

static void completion_answers_with_exactly_the_agreed_keys(void **state)
{
    struct fixture *f = *state;
    json_t *a = post(f, COMPLETIONS, "{\"model\":\"alias\",\"prompt\":\"x\",\"seed\":0}", 200);
    assert_keys(a, "id,object,created,model,choices,service_tier,system_fingerprint,usage,"
                   "kv_transfer_params,ec_transfer_params,metrics");
    assert_keys(at(a, "choices.0"), "index,text,logprobs,finish_reason,stop_reason,token_ids,"
                                    "prompt_logprobs,prompt_token_ids,routed_experts");
    assert_string_equal(text_at(a, "model"), "alias");
    assert_int_equal(int_at(a, "usage.completion_tokens"), 16);
    json_decref(a);
}

static void requests_end_at_eos_and_at_stop_tokens(void **state)
{
    struct fixture *f = *state;
    int32_t eos = tokenizer_token_to_id(tokenizer, STR("<|im_end|>"));
    int32_t end_of_text = tokenizer_token_to_id(tokenizer, STR("<|endoftext|>"));
    int32_t kept = f->engine.script[5];
    char *expected = script_prefix(f, 5);
    const int32_t ends[] = {eos, end_of_text};
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&f->engine.script_lock);
        f->engine.script[5] = ends[i];
        pthread_mutex_unlock(&f->engine.script_lock);
        json_t *a =
            post(f, COMPLETIONS, "{\"prompt\":\"x\",\"seed\":0,\"return_token_ids\":true}", 200);
        assert_string_equal(text_at(a, "choices.0.text"), expected);
        assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
        assert_int_equal(int_at(a, "usage.completion_tokens"), 6); // the end token counts
        assert_int_equal(json_array_size(at(a, "choices.0.token_ids")), 6);
        if (i == 0)
            assert_true(json_is_null(at(a, "choices.0.stop_reason")));
        else
            assert_int_equal(int_at(a, "choices.0.stop_reason"), end_of_text);
        json_decref(a);
    }
    pthread_mutex_lock(&f->engine.script_lock);
    f->engine.script[5] = kept;
    pthread_mutex_unlock(&f->engine.script_lock);
    free(expected);
}

static void stop_strings_cut_the_answer_and_abort_the_engine(void **state)
{
    struct fixture *f = *state;
    int aborts = atomic_load(&f->engine.num_aborts);
    atomic_store(&f->engine.step_ms, 5); // no request ends by itself before its abort is there
    const struct {
        const char *fields, *text;
    } rows[] = {
        {"\"stop\":\"own fo\"", "The quick br"},
        {"\"stop\":[\"zzz\",\"brown\"]", "The quick "},
        {"\"stop\":\"brown\",\"include_stop_str_in_output\":true", "The quick brown"},
        {"\"stop\":\"\\ud83e\\udd8a j\"", "The quick brown fox "},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int per_step = 1; per_step <= 5; per_step += 2) {
            atomic_store(&f->engine.tokens_per_step, per_step);
            char body[256];
            snprintf(body, sizeof(body), "{\"prompt\":\"x\",\"seed\":0,\"max_tokens\":400,%s}",
                     rows[i].fields);
            json_t *a = post(f, COMPLETIONS, body, 200);
            assert_string_equal(text_at(a, "choices.0.text"), rows[i].text);
            assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
            assert_true(json_is_string(at(a, "choices.0.stop_reason")));
            int tokens = int_at(a, "usage.completion_tokens");
            json_decref(a);
            snprintf(body, sizeof(body),
                     "{\"prompt\":\"x\",\"seed\":0,\"max_tokens\":400,\"stream\":true,"
                     "\"stream_options\":{\"include_usage\":true},%s}",
                     rows[i].fields);
            struct events e = stream(f, COMPLETIONS, body);
            char *text = joined(&e, 0, false);
            assert_string_equal(text, rows[i].text);
            json_t *last = json_array_get(e.list, json_array_size(e.list) - 1);
            assert_int_equal(int_at(last, "usage.completion_tokens"), tokens);
            free(text);
            json_decref(e.list);
        }
    }
    for (int i = 0; i < 500 && atomic_load(&f->engine.num_live) > 0; i++)
        usleep(10000);
    assert_int_equal(atomic_load(&f->engine.num_live), 0);
    assert_int_equal(atomic_load(&f->engine.num_aborts) - aborts, 24);
}

static void stop_strings_wait_for_min_tokens(void **state)
{
    struct fixture *f = *state;
    script_text(&f->engine, "\n");
    json_t *a = post(f, COMPLETIONS,
                     "{\"prompt\":\"x\",\"stop\":[\"\\n\"],\"min_tokens\":8,\"max_tokens\":16,"
                     "\"ignore_eos\":true}",
                     200);
    script_text(&f->engine, SCRIPT_TEXT);
    assert_int_equal(int_at(a, "usage.completion_tokens"), 9);
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
    json_decref(a);
}

static void several_choices_have_their_own_seeds_and_order(void **state)
{
    struct fixture *f = *state;
    json_t *a =
        post(f, COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"seed\":0,\"max_tokens\":4}", 200);
    assert_int_equal(json_array_size(at(a, "choices")), 4);
    for (int i = 0; i < 4; i++) {
        char path[32];
        snprintf(path, sizeof(path), "choices.%d.index", i);
        assert_int_equal(int_at(a, path), i);
    }
    assert_string_equal(text_at(a, "choices.0.text"), text_at(a, "choices.2.text"));
    assert_string_not_equal(text_at(a, "choices.0.text"), text_at(a, "choices.1.text"));
    assert_int_equal(int_at(a, "usage.completion_tokens"), 16);
    json_decref(a);
}

static void echo_gives_the_prompt_back_and_scores_it(void **state)
{
    struct fixture *f = *state;
    static const char *const bodies[] = {
        "{\"prompt\":\"Graz lies on the Mur\",\"echo\":true,\"max_tokens\":0,\"logprobs\":1}",
        "{\"prompt\":\"Graz lies on the Mur\",\"echo\":true,\"max_tokens\":2,\"logprobs\":1,"
        "\"seed\":0}"};
    for (int i = 0; i < 2; i++) {
        json_t *a = post(f, COMPLETIONS, bodies[i], 200);
        int prompt = int_at(a, "usage.prompt_tokens");
        int output = int_at(a, "usage.completion_tokens");
        assert_int_equal(output, i == 0 ? 0 : 2);
        assert_memory_equal(text_at(a, "choices.0.text"), "Graz lies on the Mur", 20);
        if (i == 0)
            assert_string_equal(text_at(a, "choices.0.text"), "Graz lies on the Mur");
        assert_string_equal(text_at(a, "choices.0.finish_reason"), "length");
        const json_t *l = at(a, "choices.0.logprobs");
        assert_keys(l, "text_offset,token_logprobs,tokens,top_logprobs");
        assert_int_equal(json_array_size(at(l, "tokens")), prompt + output);
        assert_true(json_is_null(at(l, "token_logprobs.0")));
        assert_true(json_is_null(at(l, "top_logprobs.0")));
        assert_true(json_is_real(at(l, "token_logprobs.1")));
        assert_int_equal(int_at(l, "text_offset.0"), 0);
        struct buf text = {0};
        for (size_t t = 0; t < json_array_size(at(l, "tokens")); t++)
            buf_append_c(&text, json_string_value(json_array_get(at(l, "tokens"), t)));
        buf_append_char(&text, '\0');
        assert_string_equal(text.ptr, text_at(a, "choices.0.text"));
        buf_deinit(&text);
        json_decref(a);
    }
    json_decref(post(f, COMPLETIONS, "{\"prompt\":\"x\",\"max_tokens\":0}", 400));
    json_t *plain =
        post(f, COMPLETIONS, "{\"prompt\":\"Graz\",\"echo\":true,\"max_tokens\":0}", 200);
    assert_true(json_is_null(at(plain, "choices.0.logprobs")));
    assert_string_equal(text_at(plain, "choices.0.text"), "Graz");
    json_decref(plain);
    struct events e =
        stream(f, COMPLETIONS,
               "{\"prompt\":\"Graz lies on the Mur\",\"echo\":true,\"max_tokens\":0,\"logprobs\":1,"
               "\"stream\":true}");
    char *text = joined(&e, 0, false);
    assert_string_equal(text, "Graz lies on the Mur");
    free(text);
    json_decref(e.list);
}

static void chat_logprobs_have_exactly_the_requested_alternatives(void **state)
{
    struct fixture *f = *state;
    json_t *a = post(f, CHAT,
                     "{" MESSAGES ",\"max_tokens\":12,\"seed\":0,\"logprobs\":true,"
                     "\"top_logprobs\":3,\"prompt_logprobs\":1}",
                     200);
    const json_t *content = at(a, "choices.0.logprobs.content");
    assert_int_equal(json_array_size(content), 12);
    assert_keys(json_array_get(content, 0), "token,logprob,bytes,top_logprobs");
    assert_int_equal(json_array_size(at(content, "0.top_logprobs")), 3);
    struct buf text = {0};
    for (size_t i = 0; i < 12; i++)
        buf_append_c(&text, json_string_value(at(json_array_get(content, i), "token")));
    buf_append_char(&text, '\0');
    assert_string_equal(text.ptr, text_at(a, "choices.0.message.content"));
    buf_deinit(&text);
    assert_int_equal(json_array_size(at(a, "prompt_logprobs")),
                     (size_t)int_at(a, "usage.prompt_tokens"));
    assert_true(json_is_null(at(a, "prompt_logprobs.0")));
    json_decref(a);
    a = post(f, CHAT,
             "{" MESSAGES ",\"max_tokens\":1,\"seed\":0,\"logprobs\":true,"
             "\"return_tokens_as_token_ids\":true}",
             200);
    char expected[32];
    snprintf(expected, sizeof(expected), "token_id:%d", f->engine.script[0]);
    assert_string_equal(text_at(a, "choices.0.logprobs.content.0.token"), expected);
    json_decref(a);
}

static void chat_stream_has_exactly_the_agreed_shapes(void **state)
{
    struct fixture *f = *state;
    struct events e = stream(f, CHAT,
                             "{" MESSAGES ",\"max_tokens\":12,\"seed\":0,\"stream\":true,"
                             "\"stream_options\":{\"include_usage\":true}}");
    size_t count = json_array_size(e.list);
    assert_true(count >= 4);
    const json_t *role = json_array_get(e.list, 0);
    assert_keys(role, "id,object,created,model,choices,prompt_token_ids,prompt_text");
    assert_keys(at(role, "choices.0"), "index,delta,logprobs,finish_reason");
    assert_keys(at(role, "choices.0.delta"), "role,content");
    for (size_t i = 1; i + 2 < count; i++) {
        const json_t *chunk = json_array_get(e.list, i);
        assert_keys(chunk, "id,object,created,model,choices");
        assert_keys(at(chunk, "choices.0"), "index,delta,logprobs,finish_reason,token_ids");
        assert_keys(at(chunk, "choices.0.delta"), "content");
        assert_string_not_equal(text_at(chunk, "choices.0.delta.content"), "");
        assert_string_equal(text_at(chunk, "id"), text_at(role, "id"));
    }
    const json_t *final = json_array_get(e.list, count - 2);
    assert_keys(at(final, "choices.0"), "index,delta,logprobs,finish_reason,stop_reason,token_ids");
    assert_string_equal(text_at(final, "choices.0.finish_reason"), "length");
    const json_t *usage = json_array_get(e.list, count - 1);
    assert_keys(usage, "id,object,created,model,choices,usage,system_fingerprint");
    assert_int_equal(json_array_size(at(usage, "choices")), 0);
    assert_int_equal(int_at(usage, "usage.completion_tokens"), 12);
    char *text = joined(&e, 0, true), *expected = script_prefix(f, 12);
    assert_string_equal(text, expected);
    free(text), free(expected);
    json_decref(e.list);

    e = stream(f, CHAT, "{" MESSAGES ",\"max_tokens\":2,\"seed\":0,\"stream\":true}");
    final = json_array_get(e.list, json_array_size(e.list) - 1);
    assert_keys(final, "id,object,created,model,choices,system_fingerprint");
    json_decref(e.list);
}

static void completion_stream_has_exactly_the_agreed_shapes(void **state)
{
    struct fixture *f = *state;
    struct events e = stream(f, COMPLETIONS,
                             "{\"prompt\":\"x\",\"max_tokens\":6,\"seed\":0,\"stream\":true,"
                             "\"logprobs\":1,\"stream_options\":{\"include_usage\":true,"
                             "\"continuous_usage_stats\":true}}");
    int last_count = 0;
    for (size_t i = 0; i + 1 < json_array_size(e.list); i++) {
        const json_t *chunk = json_array_get(e.list, i);
        assert_keys(chunk, "id,object,created,model,choices,usage");
        assert_keys(at(chunk, "choices.0"), "index,text,logprobs,finish_reason,stop_reason,"
                                            "prompt_token_ids,token_ids");
        assert_true(int_at(chunk, "usage.completion_tokens") >= last_count);
        last_count = int_at(chunk, "usage.completion_tokens");
    }
    assert_int_equal(last_count, 6);
    json_decref(e.list);
}

static void a_stream_gives_what_the_whole_answer_gives(void **state)
{
    struct fixture *f = *state;
    const char *fields = MESSAGES ",\"max_tokens\":40,\"seed\":3,\"logprobs\":true,"
                                  "\"top_logprobs\":2,\"return_token_ids\":true";
    char body[512];
    snprintf(body, sizeof(body), "{%s}", fields);
    json_t *whole = post(f, CHAT, body, 200);
    for (int per_step = 1; per_step <= 7; per_step += 3) {
        atomic_store(&f->engine.tokens_per_step, per_step);
        snprintf(body, sizeof(body), "{%s,\"stream\":true}", fields);
        struct events e = stream(f, CHAT, body);
        char *text = joined(&e, 0, true);
        assert_string_equal(text, text_at(whole, "choices.0.message.content"));
        json_t *ids = json_array(), *logprobs = json_array();
        for (size_t i = 0; i < json_array_size(e.list); i++) {
            const json_t *choice = at(json_array_get(e.list, i), "choices.0");
            if (json_is_array(at(choice, "token_ids")))
                json_array_extend(ids, at(choice, "token_ids"));
            if (at(choice, "logprobs.content"))
                json_array_extend(logprobs, at(choice, "logprobs.content"));
        }
        assert_true(json_equal(ids, at(whole, "choices.0.token_ids")));
        assert_true(json_equal(logprobs, at(whole, "choices.0.logprobs.content")));
        assert_string_equal(text_at(last_choice(&e), "finish_reason"), "length");
        json_decref(ids);
        json_decref(logprobs);
        free(text);
        json_decref(e.list);
    }
    json_decref(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(chat_answers_with_exactly_the_agreed_keys, reset),
        cmocka_unit_test_setup(completion_answers_with_exactly_the_agreed_keys, reset),
        cmocka_unit_test_setup(requests_end_at_eos_and_at_stop_tokens, reset),
        cmocka_unit_test_setup(stop_strings_cut_the_answer_and_abort_the_engine, reset),
        cmocka_unit_test_setup(stop_strings_wait_for_min_tokens, reset),
        cmocka_unit_test_setup(several_choices_have_their_own_seeds_and_order, reset),
        cmocka_unit_test_setup(echo_gives_the_prompt_back_and_scores_it, reset),
        cmocka_unit_test_setup(chat_logprobs_have_exactly_the_requested_alternatives, reset),
        cmocka_unit_test_setup(chat_stream_has_exactly_the_agreed_shapes, reset),
        cmocka_unit_test_setup(completion_stream_has_exactly_the_agreed_shapes, reset),
        cmocka_unit_test_setup(a_stream_gives_what_the_whole_answer_gives, reset),
    };
    log_set_level(LOG_LEVEL_WARNING);
    return cmocka_run_group_tests(tests, setup, teardown);
}
