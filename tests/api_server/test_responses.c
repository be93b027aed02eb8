// Bodies of /v1/responses and /v1/messages as the chats that they mean, and the store of responses.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#include "api_server/json_body.h"
#include "api_server/messages_request.h"
#include "api_server/response_store.h"
#include "api_server/responses_request.h"
#include "base/memory.h"

enum language { MESSAGES, COUNTING, RESPONSES, STORED_RESPONSES };

/** `chat`: the whole chat request as JSON; or NULL, and `error` is in what the client reads. */
struct row {
    enum language language;
    const char *body, *chat, *error;
};

static enum status translate(const struct row *row, json_t **chat, struct api_error *err)
{
    json_t *body;
    struct arena arena = {0};
    struct response response;
    assert_int_equal(json_body_parse(&body, str_from(row->body), err), STATUS_OK);
    enum status status =
        row->language <= COUNTING
            ? messages_request_to_chat(chat, body, row->language == COUNTING, err)
            : responses_request_to_chat(chat, &response, body, row->language == STORED_RESPONSES,
                                        &arena, err);
    json_decref(body);
    arena_deinit(&arena);
    return status;
}

static void check_rows(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        json_t *chat = NULL;
        struct api_error err = {0};
        enum status status = translate(&rows[i], &chat, &err);
        if (rows[i].chat) {
            if (status != STATUS_OK)
                fail_msg("%s: %s", rows[i].body, err.message);
            json_t *expected = json_loads(rows[i].chat, 0, NULL);
            assert_non_null(expected);
            char *text = json_dumps(chat, JSON_COMPACT);
            if (!json_equal(chat, expected))
                fail_msg("%s\n became %s\n not    %s", rows[i].body, text, rows[i].chat);
            free(text);
            json_decref(expected);
            json_decref(chat);
        } else {
            assert_int_not_equal(status, STATUS_OK);
            assert_null(chat);
            if (!strstr(err.message, rows[i].error))
                fail_msg("%s: '%s' does not have '%s'", rows[i].body, err.message, rows[i].error);
        }
    }
}

#define USER "{\"role\":\"user\",\"content\":\"x\"}"
#define M(rest) "{\"model\":\"m\",\"max_tokens\":5," rest "}"
#define C(rest) "{\"model\":\"m\",\"max_tokens\":5," rest "}"

static void anthropic_bodies_become_the_chats_they_mean(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {MESSAGES, M("\"messages\":[" USER "]"), C("\"messages\":[" USER "]"), NULL},
        {MESSAGES,
         M("\"messages\":[" USER "],\"system\":\"s\",\"stop_sequences\":[\"a\"],\"top_k\":3,"
           "\"metadata\":{\"user_id\":\"u\"},\"tools\":[]"),
         C("\"messages\":[{\"role\":\"system\",\"content\":\"s\"}," USER
           "],\"stop\":[\"a\"],\"top_k\":3"),
         NULL},
        {MESSAGES,
         M("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
           "\"tool_use_id\":\"t\",\"content\":\"r\"}]}]"),
         C("\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"t\",\"content\":\"r\"}]"), NULL},
        {MESSAGES,
         M("\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":"
           "\"a\"},{\"type\":\"thinking\",\"thinking\":\"b\"},{\"type\":\"redacted_thinking\","
           "\"data\":\"z\"},{\"type\":\"text\",\"text\":\"c\"}]}]"),
         C("\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}],"
           "\"reasoning\":\"a\\nb\"}]"),
         NULL},
        {MESSAGES,
         M("\"messages\":[],\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],"
           "\"tool_choice\":{\"type\":\"any\"}"),
         C("\"messages\":[],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
           "\"parameters\":{}}}],\"tool_choice\":\"required\""),
         NULL},
        {COUNTING, "{\"model\":\"m\",\"messages\":[" USER "],\"max_tokens\":\"ignored\"}",
         "{\"model\":\"m\",\"messages\":[" USER "]}", NULL},
        {MESSAGES, "[]", NULL, "dictionary"},
        {MESSAGES, "{\"max_tokens\":5,\"messages\":[]}", NULL, "body.model"},
        {MESSAGES, "{\"model\":\"m\",\"messages\":[]}", NULL, "body.max_tokens"},
        {MESSAGES, M("\"messages\":[7]"), NULL, "body.messages.0"},
        {MESSAGES, M("\"messages\":[{\"role\":\"user\"}]"), NULL, "body.messages.0.content"},
        {MESSAGES, M("\"messages\":[],\"system\":7"), NULL, "body.system"},
        {MESSAGES, M("\"messages\":[],\"system\":[{\"type\":\"image\"}]"), NULL, "`image`"},
        {MESSAGES, M("\"messages\":[],\"stop_sequences\":\"a\""), NULL, "body.stop_sequences"},
        {MESSAGES,
         M("\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\","
           "\"name\":\"f\",\"input\":5}]}]"),
         NULL, "content.0.input"},
        {MESSAGES,
         M("\"messages\":[],\"tools\":[{\"name\":\"f\"}],\"tool_choice\":{\"type\":\"some\"}"),
         NULL, "body.tool_choice.type"},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

static void response_bodies_become_the_chats_they_mean(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {RESPONSES, "{\"input\":\"x\"}", "{\"messages\":[" USER "]}", NULL},
        {RESPONSES,
         "{\"input\":\"x\",\"instructions\":\"s\",\"max_output_tokens\":4,\"reasoning\":{"
         "\"effort\":"
         "\"low\"},\"text\":{\"format\":{\"type\":\"text\"}},\"tools\":[]}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"}," USER "],"
         "\"max_completion_tokens\":4,\"reasoning_effort\":\"low\",\"response_format\":"
         "{\"type\":\"text\"}}",
         NULL},
        {RESPONSES,
         "{\"input\":[" USER ",{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\","
         "\"arguments\":\"{}\"},{\"type\":\"function_call\",\"call_id\":\"b\",\"name\":\"g\","
         "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"a\",\"output\":"
         "\"1\"}]}",
         "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
         "{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},"
         "{\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]}"
         ","
         "{\"role\":\"tool\",\"content\":\"1\",\"tool_call_id\":\"a\"}]}",
         NULL},
        {RESPONSES,
         "{\"input\":[{\"type\":\"reasoning\",\"content\":[{\"text\":\"a\"},{\"text\":\"b\"}]},"
         "{\"role\":\"assistant\",\"content\":\"c\"},{\"type\":\"reasoning\",\"content\":"
         "[{\"text\":\"d\"}]}]}",
         "{\"messages\":[{\"role\":\"assistant\",\"content\":\"c\",\"reasoning\":\"ab\"},"
         "{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"d\"}]}",
         NULL},
        {RESPONSES, "{\"input\":\"x\",\"top_logprobs\":2}", "{\"messages\":[" USER "]}", NULL},
        {STORED_RESPONSES, "{\"input\":\"x\",\"background\":true}", "{\"messages\":[" USER "]}",
         NULL},
        {RESPONSES, "{\"input\":\"x\",\"background\":true}", NULL,
         "VLLM_ENABLE_RESPONSES_API_STORE=1"},
        {STORED_RESPONSES, "{\"input\":\"x\",\"background\":true,\"stream\":true}",
         "{\"stream\":true,\"messages\":[" USER "]}", NULL},
        {STORED_RESPONSES, "{\"input\":\"x\",\"background\":true,\"store\":false}", NULL,
         "`store` is true"},
        {RESPONSES, "{}", NULL, "body.input"},
        {RESPONSES, "{\"input\":[{\"type\":\"reasoning\",\"encrypted_content\":\"x\"}]}", NULL,
         "encrypted_content"},
        {RESPONSES, "{\"input\":[{\"type\":\"function_call\",\"name\":\"f\"}]}", NULL,
         "body.input.0.call_id"},
        {RESPONSES, "{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\"}]}", NULL,
         "body.input.0.output"},
        {RESPONSES, "{\"input\":\"x\",\"max_output_tokens\":\"many\"}", NULL,
         "body.max_output_tokens"},
        {RESPONSES, "{\"input\":\"x\",\"enable_response_messages\":true}", NULL,
         "enable_response_messages"},
        {RESPONSES, "{\"input\":\"x\",\"tools\":[{\"name\":\"f\"}]}", NULL, "body.tools.0.type"},
        {RESPONSES, "{\"input\":\"x\",\"tools\":[5]}", NULL, "body.tools.0.type"},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

// ---- the store ----

static enum response_lookup look(struct response_store *store, const char *id)
{
    struct generation *live;
    struct str json;
    return response_store_find(store, str_from(id), &live, &json);
}

static void the_store_forgets_the_oldest_finished_response(void **state)
{
    (void)state;
    struct response_store *store = response_store_create(3, 1 << 20);
    static const char *const ids[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++)
        response_store_finish(store, str_from(ids[i]), NULL, STR("{}"), STR("[]"));
    assert_int_equal(look(store, "a"), RESPONSE_UNKNOWN);
    for (int i = 1; i < 4; i++)
        assert_int_equal(look(store, ids[i]), RESPONSE_FINISHED);
    // The same id again is one response, the newest.
    response_store_finish(store, STR("b"), NULL, STR("{\"n\":2}"), STR("[2]"));
    response_store_finish(store, STR("e"), NULL, STR("{}"), STR("[]"));
    assert_int_equal(look(store, "c"), RESPONSE_UNKNOWN);
    assert_int_equal(look(store, "b"), RESPONSE_FINISHED);
    struct arena arena = {0};
    struct str history;
    assert_int_equal(response_store_history(store, STR("b"), &arena, &history), RESPONSE_FINISHED);
    assert_true(str_eq(history, STR("[2]")));
    arena_deinit(&arena);
    response_store_destroy(store);
}

static void the_store_is_bounded_in_bytes(void **state)
{
    (void)state;
    enum { TEXT_BYTES = 1000 };
    char text[TEXT_BYTES];
    memset(text, ' ', sizeof(text));
    struct response_store *store = response_store_create(100, (size_t)TEXT_BYTES * 5);
    for (int i = 0; i < 50; i++) {
        char id[16];
        snprintf(id, sizeof(id), "r%d", i);
        response_store_finish(store, str_from(id), NULL, (struct str){text, TEXT_BYTES}, STR(""));
    }
    int kept = 0;
    for (int i = 0; i < 50; i++) {
        char id[16];
        snprintf(id, sizeof(id), "r%d", i);
        bool found = look(store, id) == RESPONSE_FINISHED;
        assert_true(found || kept == 0); // the newest are the ones that stay
        kept += found;
    }
    assert_true(kept >= 3 && kept <= 4);
    // What does not fit at all is not kept.
    char *large = xmalloc(TEXT_BYTES * 6);
    memset(large, ' ', TEXT_BYTES * 6);
    response_store_finish(store, STR("large"), NULL, (struct str){large, TEXT_BYTES * 6}, STR(""));
    assert_int_equal(look(store, "large"), RESPONSE_UNKNOWN);
    free(large);
    response_store_destroy(store);
}

static void live_responses_stay_until_they_finish(void **state)
{
    (void)state;
    struct generation *one = (struct generation *)16, *two = (struct generation *)32; // names only
    struct response_store *store = response_store_create(2, 1 << 20);
    response_store_begin(store, STR("a"), one, NULL);
    assert_true(response_store_has_room(store));
    response_store_begin(store, STR("b"), two, NULL);
    assert_false(response_store_has_room(store));
    response_store_finish(store, STR("c"), NULL, STR("{}"), STR("[]"));
    assert_int_equal(look(store, "a"), RESPONSE_LIVE);
    assert_int_equal(look(store, "c"), RESPONSE_UNKNOWN); // there was no room beside the live ones
    struct arena arena = {0};
    struct str history;
    assert_int_equal(response_store_history(store, STR("a"), &arena, &history), RESPONSE_LIVE);
    response_store_finish(store, STR("a"), one, STR("{}"), STR("[]"));
    assert_int_equal(look(store, "a"), RESPONSE_FINISHED);
    assert_true(response_store_has_room(store));
    // An id that a later request took over is that one's.
    response_store_begin(store, STR("b"), one, NULL);
    response_store_finish(store, STR("b"), two, STR("{}"), STR("[]"));
    assert_int_equal(look(store, "b"), RESPONSE_LIVE);
    arena_deinit(&arena);
    response_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anthropic_bodies_become_the_chats_they_mean),
        cmocka_unit_test(response_bodies_become_the_chats_they_mean),
        cmocka_unit_test(the_store_forgets_the_oldest_finished_response),
        cmocka_unit_test(the_store_is_bounded_in_bytes),
        cmocka_unit_test(live_responses_stay_until_they_finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
