// The whole API server in a child process, over loopback, with a scripted engine behind it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "api_server/api_server.h"
#include "base/log.h"
#include "fake_engine.h"
#include "http_client.h"
#include "tokenizer/tokenizer.h"

#define CHAT "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define SCRIPT_TEXT "The quick brown fox \xF0\x9F\xA6\x8A jumps over the lazy dog. "

/** Servers are forked while the engine's thread runs, and have threads of their own. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}

struct fixture {
    struct serve_options options;
    struct shared_page *page;
    struct fake_engine engine;
    bool engine_runs;
    char dir[64];
    int listen_fd, port;
    pid_t pid;
};

static struct tokenizer *tokenizer; // the demo model's, to know what to expect

static const char *names[] = {"demo", "alias"};

static struct serve_options base_options(void)
{
    return (struct serve_options){
        .served_model_names = {names, 2},
        .model = MODELS_DIR "/demo",
        .dtype = "auto",
        .kv_cache_dtype = "auto",
        .generation_config = "vllm",
        .response_role = "assistant",
        .chat_template_content_format = "auto",
        .enable_prompt_tokens_details = true,
        .server_dev_mode = true,
        .enable_responses_store = true,
        .max_log_len = -1,
        .max_num_queued_reqs = -1,
        .max_num_queued_tokens = -1,
        .num_gpu_blocks_override = -1,
        .stream_interval = 1,
        .keep_alive_timeout_s = 5,
        .max_header_count = 256,
        .max_header_bytes = 4 << 20,
        .max_logprobs = 20,
        .disable_uvicorn_access_log = true,
    };
}

static int bind_port(int *port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    if (bind(fd, (struct sockaddr *)&address, len) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return -1;
    *port = ntohs(address.sin_port);
    return fd;
}

static bool wait_for(bool (*condition)(struct fixture *f), struct fixture *f)
{
    for (int i = 0; i < 1000; i++) {
        if (condition(f))
            return true;
        usleep(10000);
    }
    return false;
}

static int health(struct fixture *f)
{
    struct http_answer a = http_call(f->port, "GET", "/health", "", "");
    int status = a.status;
    http_answer_free(&a);
    return status;
}

static bool answers(struct fixture *f)
{
    return health(f) != 0;
}

/** Ready for requests: the handshake with the engine is done. */
static bool generates(struct fixture *f)
{
    struct http_answer a =
        http_call(f->port, "POST", COMPLETIONS, "", "{\"prompt\":\"x\",\"max_tokens\":1}");
    int status = a.status;
    http_answer_free(&a);
    return status == 200;
}

static void script_text(struct fake_engine *e, const char *text)
{
    struct arena arena = {0};
    int32_t count;
    const int32_t *ids = tokenizer_encode(tokenizer, str_from(text), false, &arena, &count);
    pthread_mutex_lock(&e->script_lock);
    e->num_script = min_i32(count, FAKE_MAX_SCRIPT);
    memcpy(e->script, ids, (size_t)e->num_script * sizeof(*ids));
    pthread_mutex_unlock(&e->script_lock);
    arena_deinit(&arena);
}

static void start_server(struct fixture *f)
{
    fflush(NULL);
    f->pid = fork();
    if (f->pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a test that dies leaves no server behind
    if (f->pid == 0)
        exit(api_server_main(&f->options, 0, f->listen_fd, f->dir, f->page));
}

static struct fixture *fixture_start(const struct serve_options *options, bool with_engine)
{
    struct fixture *f = xcalloc(1, sizeof(*f));
    struct error err;
    f->options = *options;
    snprintf(f->dir, sizeof(f->dir), "/tmp/vllm-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_int_equal(shared_page_create(&f->page, 1, &err), STATUS_OK);
    f->page->start_wall_ns = clock_wall_ns();
    f->listen_fd = bind_port(&f->port);
    assert_true(f->listen_fd >= 0);
    f->engine.page = f->page;
    f->engine.ipc_dir = f->dir;
    script_text(&f->engine, SCRIPT_TEXT);
    start_server(f); // before there are threads
    if (with_engine) {
        assert_true(fake_engine_start(&f->engine));
        f->engine_runs = true;
        assert_true(wait_for(generates, f));
    } else {
        assert_true(wait_for(answers, f));
    }
    return f;
}

/** The server's exit status. */
static int stop_server(struct fixture *f)
{
    int status = -1;
    kill(f->pid, SIGTERM);
    for (int i = 0; i < 1500 && waitpid(f->pid, &status, WNOHANG) == 0; i++)
        usleep(10000);
    if (status == -1) {
        kill(f->pid, SIGKILL);
        waitpid(f->pid, &status, 0);
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void fixture_free(struct fixture *f)
{
    if (f->engine_runs)
        fake_engine_stop(&f->engine, ENGINE_STATE_DEAD);
    fake_engine_free(&f->engine);
    close(f->listen_fd);
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    shared_page_destroy(f->page);
    free(f);
}

static void fixture_stop(struct fixture *f)
{
    assert_int_equal(stop_server(f), 0);
    fixture_free(f);
}

static int load_tokenizer(void **state)
{
    (void)state;
    struct error err;
    if (tokenizer_load(&tokenizer, MODELS_DIR "/demo/tokenizer.json", &err) == STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", err.message);
    return 1;
}

static int drop_tokenizer(void **state)
{
    (void)state;
    tokenizer_destroy(tokenizer);
    return 0;
}

static int setup(void **state)
{
    if (load_tokenizer(state) != 0)
        return 1;
    struct serve_options options = base_options();
    *state = fixture_start(&options, true);
    return 0;
}

static int teardown(void **state)
{
    fixture_stop(*state);
    return drop_tokenizer(state);
}

/** Each test starts from the same engine. */
static int reset(void **state)
{
    struct fixture *f = *state;
    atomic_store(&f->engine.paused, false);
    atomic_store(&f->engine.step_ms, 0);
    atomic_store(&f->engine.tokens_per_step, 1);
    return 0;
}

// ---- helpers for answers ----

static json_t *post(struct fixture *f, const char *path, const char *body, int expected_status)
{
    struct http_answer a = http_call(f->port, "POST", path, "", body);
    if (a.status != expected_status)
        fail_msg("%s %s: expected %d, got %d: %s", path, body, expected_status, a.status, a.body);
    json_error_t failure;
    json_t *json = json_loadb(a.body, a.body_len, 0, &failure);
    if (!json)
        fail_msg("%s: not JSON: %s", a.body, failure.text);
    http_answer_free(&a);
    return json;
}

static json_t *at(const json_t *json, const char *path)
{
    char copy[128], *save = NULL;
    snprintf(copy, sizeof(copy), "%s", path);
    json_t *value = (json_t *)json;
    for (char *key = strtok_r(copy, ".", &save); key; key = strtok_r(NULL, ".", &save))
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(key))
                                     : json_object_get(value, key);
    return value;
}

static const char *text_at(const json_t *json, const char *path)
{
    const char *text = json_string_value(at(json, path));
    if (!text)
        fail_msg("no string at %s", path);
    return text;
}

static int int_at(const json_t *json, const char *path)
{
    json_t *value = at(json, path);
    if (!json_is_integer(value))
        fail_msg("no integer at %s", path);
    return (int)json_integer_value(value);
}

/** The keys of an object, joined by commas. */
static void assert_keys(const json_t *object, const char *expected)
{
    char keys[1024] = "";
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        strcat(keys, keys[0] ? "," : "");
        strcat(keys, key);
    }
    assert_string_equal(keys, expected);
}

/** The first n tokens of the script as text. */
static char *script_prefix(const struct fixture *f, int32_t n)
{
    struct arena arena = {0};
    int32_t *ids = arena_array(&arena, int32_t, n);
    for (int32_t i = 0; i < n; i++)
        ids[i] = f->engine.script[i % f->engine.num_script];
    struct str text = tokenizer_decode(tokenizer, ids, n, true, &arena);
    char *copy = xstrndup(text.ptr, text.len);
    arena_deinit(&arena);
    return copy;
}

/** A stream's events: JSON each, and whether [DONE] came last. */
struct events {
    json_t *list;
    bool done;
};

static struct events parse_events(const char *body)
{
    struct events e = {.list = json_array()};
    struct str rest = str_from(body);
    while (rest.len > 0) {
        size_t end = str_find(rest, STR("\n\n"), 0);
        assert_int_not_equal(end, STR_NOT_FOUND);
        struct str event = str_slice(rest, 0, end);
        rest = str_slice(rest, end + 2, rest.len);
        if (event.ptr[0] == ':')
            continue;
        assert_true(str_starts_with(event, STR("data: ")));
        assert_false(e.done);
        event = str_slice(event, 6, event.len);
        e.done = str_eq(event, STR("[DONE]"));
        if (e.done)
            continue;
        json_error_t failure;
        json_t *json = json_loadb(event.ptr, event.len, 0, &failure);
        if (!json)
            fail_msg("not JSON: %.*s", (int)event.len, event.ptr);
        json_array_append_new(e.list, json);
    }
    return e;
}

static struct events stream(struct fixture *f, const char *path, const char *body)
{
    struct http_answer a = http_call(f->port, "POST", path, "", body);
    if (a.status != 200)
        fail_msg("%s: %d %s", body, a.status, a.body);
    assert_non_null(strstr(a.head, "text/event-stream; charset=utf-8"));
    assert_true(a.complete);
    struct events e = parse_events(a.body);
    assert_true(e.done);
    http_answer_free(&a);
    return e;
}

/** The joined text of one choice. */
static char *joined(const struct events *e, int index, bool chat)
{
    struct buf text = {0};
    for (size_t i = 0; i < json_array_size(e->list); i++) {
        const json_t *choices = json_object_get(json_array_get(e->list, i), "choices");
        for (size_t c = 0; c < json_array_size(choices); c++) {
            const json_t *choice = json_array_get(choices, c);
            if (json_integer_value(json_object_get(choice, "index")) != index)
                continue;
            const json_t *piece = chat ? at(choice, "delta.content") : at(choice, "text");
            if (piece)
                buf_append_c(&text, json_string_value(piece));
        }
    }
    buf_append_char(&text, '\0');
    return text.ptr;
}

static json_t *last_choice(const struct events *e)
{
    for (size_t i = json_array_size(e->list); i-- > 0;) {
        json_t *choice = at(json_array_get(e->list, i), "choices.0");
        if (choice)
            return choice;
    }
    return NULL;
}

static double metric(struct fixture *f, const char *series)
{
    struct http_answer a = http_call(f->port, "GET", "/metrics", "", "");
    const char *line = strstr(a.body, series);
    double value = line ? strtod(strchr(line, ' '), NULL) : -1;
    http_answer_free(&a);
    return value;
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

// ---- whole answers ----

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
            snprintf(body, sizeof(body), "{\"prompt\":\"x\",\"seed\":0,\"max_tokens\":200,%s}",
                     rows[i].fields);
            json_t *a = post(f, COMPLETIONS, body, 200);
            assert_string_equal(text_at(a, "choices.0.text"), rows[i].text);
            assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
            assert_true(json_is_string(at(a, "choices.0.stop_reason")));
            int tokens = int_at(a, "usage.completion_tokens");
            json_decref(a);
            snprintf(body, sizeof(body),
                     "{\"prompt\":\"x\",\"seed\":0,\"max_tokens\":200,\"stream\":true,"
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

// ---- streams ----

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

static void an_engine_error_ends_a_stream_with_an_error_event(void **state)
{
    struct fixture *f = *state;
    atomic_store(&f->engine.step_ms, 5);
    int fd = http_start(f->port, "POST", COMPLETIONS, "",
                        STR("{\"prompt\":\"x\",\"max_tokens\":300,\"stream\":true}"));
    struct buf in = {0};
    assert_true(http_read_until(fd, &in, "data: ", 3));
    atomic_store(&f->engine.fail_next, true);
    int64_t deadline_ns = clock_monotonic_ns() + 5000000000LL;
    while (http_read_some(fd, &in, deadline_ns)) {
    }
    close(fd);
    struct http_answer a = http_parse(buf_str(&in));
    struct events e = parse_events(a.body);
    assert_true(a.complete && e.done);
    const json_t *last = json_array_get(e.list, json_array_size(e.list) - 1);
    assert_int_equal(int_at(last, "error.code"), 500);
    assert_string_equal(text_at(last, "error.type"), "InternalServerError");
    http_answer_free(&a);
    buf_deinit(&in);
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
    int64_t deadline_ns = clock_monotonic_ns() + 5000000000LL;
    while (http_read_some(fd, &in, deadline_ns)) {
    }
    close(fd);
    struct http_answer a = http_parse(buf_str(&in));
    assert_true(a.complete);
    buf_deinit(&in);
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
    int64_t deadline_ns = clock_monotonic_ns() + 10000000000LL;
    while (http_read_some(fd, &in, deadline_ns)) {
    }
    close(fd);
    struct http_answer a = http_parse(buf_str(&in));
    struct events e = parse_events(a.body);
    assert_true(e.done);
    char *text = joined(&e, 0, false);
    assert_string_equal(text, text_at(whole, "choices.0.text"));
    assert_int_equal(atomic_load(&f->engine.num_resumed) - resumed, 1);
    assert_true(atomic_load(&f->engine.last_resumed_outputs) >= 4);
    free(text);
    http_answer_free(&a);
    buf_deinit(&in);
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

// ---- errors and small endpoints ----

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

// ---- servers with other options ----

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
    int64_t deadline_ns = clock_monotonic_ns() + 5000000000LL;
    while (http_read_some(streamed, &in, deadline_ns)) {
    }
    close(streamed);
    struct http_answer a = http_parse(buf_str(&in));
    struct events e = parse_events(a.body);
    assert_true(e.done && a.complete);
    assert_string_equal(text_at(last_choice(&e), "finish_reason"), "abort");
    http_answer_free(&a);
    json_decref(e.list);
    buf_deinit(&in);
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
    int64_t deadline_ns = clock_monotonic_ns() + 5000000000LL;
    while (http_read_some(fd, &in, deadline_ns)) {
    }
    close(fd);
    struct http_answer a = http_parse(buf_str(&in));
    struct events e = parse_events(a.body);
    assert_true(e.done);
    assert_string_equal(text_at(last_choice(&e), "finish_reason"), "length");
    http_answer_free(&a);
    json_decref(e.list);
    buf_deinit(&in);
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
    int64_t deadline_ns = clock_monotonic_ns() + 5000000000LL;
    while (http_read_some(fd, &in, deadline_ns)) {
    }
    close(fd);
    struct http_answer a = http_parse(buf_str(&in));
    struct events e = parse_events(a.body);
    assert_true(e.done);
    assert_int_equal(int_at(json_array_get(e.list, json_array_size(e.list) - 1), "error.code"),
                     500);
    http_answer_free(&a);
    json_decref(e.list);
    buf_deinit(&in);
    assert_int_equal(health(f), 503);
    fixture_stop(f);
}

int main(void)
{
    const struct CMUnitTest on_one_server[] = {
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
        cmocka_unit_test_setup(an_engine_error_ends_a_stream_with_an_error_event, reset),
        cmocka_unit_test_setup(a_failed_engine_is_told_in_the_words_of_the_endpoint, reset),
        cmocka_unit_test_setup(a_background_response_that_fails_says_so_to_who_asks, reset),
        cmocka_unit_test_setup(a_client_that_leaves_aborts_all_its_choices, reset),
        cmocka_unit_test_setup(requests_live_through_an_engine_restart, reset),
        cmocka_unit_test_setup(a_slow_reader_gets_everything_in_the_end, reset),
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
        cmocka_unit_test(sigterm_ends_running_requests_with_finish_reason_abort),
        cmocka_unit_test(sigterm_with_a_timeout_lets_requests_end),
        cmocka_unit_test(a_dead_engine_ends_every_request_with_an_error),
    };
    log_set_level(LOG_LEVEL_WARNING);
    int num_failed = cmocka_run_group_tests(on_one_server, setup, teardown);
    return num_failed +
           cmocka_run_group_tests(on_servers_of_their_own, load_tokenizer, drop_tokenizer);
}
