// HTTP answers and events in pieces and in every shape that servers send.
#include "cmocka_setup.h"

#include "base/memory.h"
#include "benchmarks/answer_chunk.h"
#include "benchmarks/http_answer.h"

static enum status collect(void *context, struct str bytes, struct error *err)
{
    (void)err;
    buf_append(context, bytes);
    return STATUS_OK;
}

/** Feeds `text` cut in two; OK, or what feeding or ending said. */
static enum status read_cut(const char *text, size_t cut, struct http_answer *answer,
                            struct buf *body, size_t *num_used)
{
    struct str all = str_from(text),
               pieces[] = {str_slice(all, 0, cut), str_slice(all, cut, all.len)};
    *num_used = 0;
    for (int i = 0; i < 2; i++) {
        size_t used = 0;
        TRY(http_answer_feed(answer, pieces[i], &used, collect, body, NULL));
        *num_used += used;
        if (used < pieces[i].len)
            return STATUS_OK; // the rest belongs to the next answer
    }
    return http_answer_end(answer, NULL);
}

static void answers_of_any_framing_are_read_however_they_are_cut(void **state)
{
    (void)state;
    static const struct {
        const char *text, *body;
        int code;
        bool closes;
        size_t num_left; // bytes of the next answer
    } rows[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, false, 0},
        {"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhihi", "hi", 200, false, 2},
        {"HTTP/1.1 404 Not Found\r\nContent-Length:0\r\n\r\n", "", 404, false, 0},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=1\r\nabc\r\n00A\r\n0123456789"
         "\r\n0\r\nTrailer: 1\r\n\r\n",
         "abc0123456789", 200, false, 0},
        {"HTTP/1.1 200 OK\r\nConnection: Close\r\n\r\nuntil the end", "until the end", 200, true,
         0},
        {"HTTP/1.0 200 OK\n\nold", "old", 200, true, 0},
        {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", "x", 200, false,
         0},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nContent-Length: 1\r\n\r\n!", "!", 503,
         false, 0},
        {"HTTP/1.1 204 No Content\r\n\r\n", "", 204, false, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        size_t len = strlen(rows[i].text);
        for (size_t cut = 0; cut <= len; cut++) {
            struct http_answer answer = {0};
            struct buf body = {0};
            size_t num_used = 0;
            enum status status = read_cut(rows[i].text, cut, &answer, &body, &num_used);
            bool right = status == STATUS_OK && answer.state == HTTP_ANSWER_DONE &&
                         answer.code == rows[i].code && answer.closes == rows[i].closes &&
                         str_eq_c(buf_str(&body), rows[i].body);
            // What is left over is seen only where it came with the end.
            right &= num_used + rows[i].num_left >= len && num_used <= len;
            if (!right)
                fail_msg("answer %zu cut at %zu: status %d, code %d, body " STR_FORMAT, i, cut,
                         (int)status, answer.code, STR_ARG(buf_str(&body)));
            buf_deinit(&body);
            http_answer_deinit(&answer);
        }
    }
}

static void malformed_and_cut_answers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum status status;
    } rows[] = {
        {"ICY 200 OK\r\n\r\n", STATUS_INVALID},
        {"HTTP/1.1 20 OK\r\n\r\n", STATUS_INVALID},
        {"HTTP/1.1 2x0 OK\r\n\r\n", STATUS_INVALID},
        {"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", STATUS_INVALID},
        {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", STATUS_INVALID},
        {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", STATUS_INVALID},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", STATUS_INVALID},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", STATUS_INVALID},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", STATUS_INVALID},
        {"", STATUS_CLOSED},
        {"HTTP/1.1 200 OK\r\n", STATUS_CLOSED},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", STATUS_CLOSED},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", STATUS_CLOSED},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct http_answer answer = {0};
        struct buf body = {0};
        size_t num_used;
        enum status status = read_cut(rows[i].text, 0, &answer, &body, &num_used);
        if (status != rows[i].status)
            fail_msg("%s: %s", rows[i].text, status_name(status));
        buf_deinit(&body);
        http_answer_deinit(&answer);
    }
}

static void a_head_without_end_is_bounded(void **state)
{
    (void)state;
    struct http_answer answer = {0};
    char line[1000];
    size_t num_used;
    memset(line, 'x', sizeof(line));
    memcpy(line, "HTTP/1.1 200 ", 13);
    enum status status = STATUS_OK;
    for (int i = 0; i < 100 && status == STATUS_OK; i++)
        status = http_answer_feed(&answer, (struct str){line, sizeof(line)}, &num_used, collect,
                                  NULL, NULL);
    assert_int_equal(status, STATUS_TOO_LARGE);
    http_answer_deinit(&answer);
}

static void a_whole_answer_is_told_from_one_without_a_vector(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        bool has_embedding;
        int64_t prompt;
    } rows[] = {
        {"{\"object\":\"list\",\"data\":[{\"index\":0,\"embedding\":[0.5,-1]}],\"usage\":"
         "{\"prompt_tokens\":4,\"total_tokens\":4}}",
         true, 4},
        {"{\"data\":[{\"embedding\":\"AAAA\",\"index\":0}]}", true, -1},
        {"{\"data\":[]}", false, -1},
        {"{\"data\":[{\"embedding\":null}],\"usage\":null}", false, -1},
        {"{\"data\":{\"embedding\":[1]}}", false, -1},
        {"{\"choices\":[{\"text\":\"a\"}]}", false, -1},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct answer_chunk chunk;
        struct arena arena = {0};
        struct buf text = {0};
        enum status status =
            answer_chunk_parse(&chunk, str_from(rows[i].json), &arena, &text, NULL);
        if (status != STATUS_OK || chunk.has_embedding != rows[i].has_embedding ||
            chunk.prompt_tokens != rows[i].prompt)
            fail_msg("%s", rows[i].json);
        buf_deinit(&text);
        arena_deinit(&arena);
    }
}

static void events_of_any_server_are_understood(void **state)
{
    (void)state;
    static const struct {
        const char *json, *text;
        bool has_choices, has_output, is_finished;
        int64_t prompt, completion;
        const char *error;
    } rows[] = {
        {"{\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}", "a", true, true, false, -1, -1,
         NULL},
        {"{\"choices\":[{\"text\":\"\"}]}", "", true, false, false, -1, -1, NULL},
        {"{\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}", "", true, false, false, -1, -1,
         NULL},
        {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}", "",
         true, false, false, -1, -1, NULL},
        {"{\"choices\":[{\"delta\":{\"content\":\"\\u00e9\"}}]}", "\xC3\xA9", true, true, false, -1,
         -1, NULL},
        {"{\"choices\":[{\"delta\":{\"reasoning\":\"r\",\"reasoning_content\":\"r\"}}]}", "r", true,
         true, false, -1, -1, NULL},
        {"{\"choices\":[{\"delta\":{\"content\":null,\"reasoning_content\":\"r\"}}]}", "r", true,
         true, false, -1, -1, NULL},
        {"{\"choices\":[{\"delta\":{\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\"}},5]}}]}",
         "f{", true, true, false, -1, -1, NULL},
        {"{\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}", "", true, false, true, -1,
         -1, NULL},
        {"{\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":9,\"x\":{}}}", "",
         false, false, false, 3, 9, NULL},
        {"{\"choices\":[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":-3,\"completion_tokens\":"
         "\"9\"}}",
         "a", true, true, false, -1, -1, NULL},
        {"{\"choices\":[{\"text\":\"a\"},{\"text\":\"b\"}]}", "ab", true, true, false, -1, -1,
         NULL},
        {"{\"error\":{\"message\":\"no\",\"code\":500}}", "", false, false, false, -1, -1, "no"},
        {"{\"error\":\"Unauthorized\"}", "", false, false, false, -1, -1, "Unauthorized"},
        {"{\"error\":null,\"choices\":5}", "", false, false, false, -1, -1, NULL},
        {"{\"choices\":[[],7,{\"delta\":[1]},{\"text\":4}]}", "", true, false, false, -1, -1, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct answer_chunk chunk;
        struct arena arena = {0};
        struct buf text = {0};
        enum status status =
            answer_chunk_parse(&chunk, str_from(rows[i].json), &arena, &text, NULL);
        bool right =
            status == STATUS_OK && str_eq_c(buf_str(&text), rows[i].text) &&
            chunk.has_choices == rows[i].has_choices && chunk.has_output == rows[i].has_output &&
            chunk.is_finished == rows[i].is_finished && chunk.prompt_tokens == rows[i].prompt &&
            chunk.completion_tokens == rows[i].completion &&
            chunk.has_error == (rows[i].error != NULL) &&
            (!rows[i].error || str_eq_c(chunk.error_message, rows[i].error));
        if (!right)
            fail_msg("%s", rows[i].json);
        buf_deinit(&text);
        arena_deinit(&arena);
    }
    static const char *const bad[] = {
        "", "[]", "{", "{\"choices\":[{]}", "nonsense", "{} x\"", "{\"choices\":[{\"text\":\"a}]}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct answer_chunk chunk;
        struct arena arena = {0};
        struct buf text = {0};
        bool is_prefix = strcmp(bad[i], "{} x\"") == 0; // what follows an object is not looked at
        enum status status = answer_chunk_parse(&chunk, str_from(bad[i]), &arena, &text, NULL);
        if ((status == STATUS_OK) != is_prefix)
            fail_msg("%s: %s", bad[i], status_name(status));
        buf_deinit(&text);
        arena_deinit(&arena);
    }
}

static void error_bodies_of_any_shape_give_a_message(void **state)
{
    (void)state;
    static const struct {
        const char *body, *message;
    } rows[] = {
        {"{\"error\":{\"message\":\"m1\",\"code\":400}}", "m1"},
        {"{\"error\":\"m2\"}", "m2"},
        {"{\"object\":\"error\",\"message\":\"m3\"}", "m3"},
        {"{\"detail\":\"m4\"}", "m4"},
        {"{\"detail\":[{\"msg\":\"x\"}]}", "{\"detail\":[{\"msg\":\"x\"}]}"},
        {" <html>busy</html>\n", "<html>busy</html>"},
        {"", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena arena = {0};
        struct str message = answer_error_message(str_from(rows[i].body), &arena);
        if (!str_eq_c(message, rows[i].message))
            fail_msg("%s: " STR_FORMAT, rows[i].body, STR_ARG(message));
        arena_deinit(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_of_any_framing_are_read_however_they_are_cut),
        cmocka_unit_test(malformed_and_cut_answers_are_refused),
        cmocka_unit_test(a_head_without_end_is_bounded),
        cmocka_unit_test(a_whole_answer_is_told_from_one_without_a_vector),
        cmocka_unit_test(events_of_any_server_are_understood),
        cmocka_unit_test(error_bodies_of_any_shape_give_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
