// The whole API server in a child process, over loopback, with a scripted engine behind it; and
// ways to ask it and to read its answers.
#pragma once

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
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
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

static inline struct serve_options base_options(void)
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

static inline int bind_port(int *port)
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

static inline bool wait_for(bool (*condition)(struct fixture *f), struct fixture *f)
{
    for (int i = 0; i < 1000; i++) {
        if (condition(f))
            return true;
        usleep(10000);
    }
    return false;
}

static inline int health(struct fixture *f)
{
    struct http_answer a = http_call(f->port, "GET", "/health", "", "");
    int status = a.status;
    http_answer_free(&a);
    return status;
}

static inline bool answers(struct fixture *f)
{
    return health(f) != 0;
}

/** Ready for requests: the handshake with the engine is done. */
static inline bool generates(struct fixture *f)
{
    struct http_answer a =
        http_call(f->port, "POST", COMPLETIONS, "", "{\"prompt\":\"x\",\"max_tokens\":1}");
    int status = a.status;
    http_answer_free(&a);
    return status == 200;
}

static inline void script_text(struct fake_engine *e, const char *text)
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

static inline void start_server(struct fixture *f)
{
    fflush(NULL);
    f->pid = fork();
    if (f->pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a test that dies leaves no server behind
    if (f->pid == 0)
        exit(api_server_main(&f->options, 0, f->listen_fd, f->dir, f->page));
}

static inline struct fixture *fixture_start(const struct serve_options *options, bool with_engine)
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
static inline int stop_server(struct fixture *f)
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

static inline void fixture_free(struct fixture *f)
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

static inline void fixture_stop(struct fixture *f)
{
    assert_int_equal(stop_server(f), 0);
    fixture_free(f);
}

static inline int load_tokenizer(void **state)
{
    (void)state;
    struct error err;
    if (tokenizer_load(&tokenizer, MODELS_DIR "/demo/tokenizer.json", &err) == STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", err.message);
    return 1;
}

static inline int drop_tokenizer(void **state)
{
    (void)state;
    tokenizer_destroy(tokenizer);
    return 0;
}

static inline int setup(void **state)
{
    if (load_tokenizer(state) != 0)
        return 1;
    struct serve_options options = base_options();
    *state = fixture_start(&options, true);
    return 0;
}

static inline int teardown(void **state)
{
    fixture_stop(*state);
    return drop_tokenizer(state);
}

/** Each test starts from the same engine. */
static inline int reset(void **state)
{
    struct fixture *f = *state;
    atomic_store(&f->engine.paused, false);
    atomic_store(&f->engine.step_ms, 0);
    atomic_store(&f->engine.tokens_per_step, 1);
    return 0;
}

// ---- helpers for answers ----

static inline json_t *post(struct fixture *f, const char *path, const char *body,
                           int expected_status)
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

static inline json_t *at(const json_t *json, const char *path)
{
    char copy[128], *save = NULL;
    snprintf(copy, sizeof(copy), "%s", path);
    json_t *value = (json_t *)json;
    for (char *key = strtok_r(copy, ".", &save); key; key = strtok_r(NULL, ".", &save))
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(key))
                                     : json_object_get(value, key);
    return value;
}

static inline const char *text_at(const json_t *json, const char *path)
{
    const char *text = json_string_value(at(json, path));
    if (!text)
        fail_msg("no string at %s", path);
    return text;
}

static inline int int_at(const json_t *json, const char *path)
{
    json_t *value = at(json, path);
    if (!json_is_integer(value))
        fail_msg("no integer at %s", path);
    return (int)json_integer_value(value);
}

/** The keys of an object, joined by commas. */
static inline void assert_keys(const json_t *object, const char *expected)
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
static inline char *script_prefix(const struct fixture *f, int32_t n)
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

static inline struct events parse_events(const char *body)
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

static inline struct events stream(struct fixture *f, const char *path, const char *body)
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
static inline char *joined(const struct events *e, int index, bool chat)
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

static inline json_t *last_choice(const struct events *e)
{
    for (size_t i = json_array_size(e->list); i-- > 0;) {
        json_t *choice = at(json_array_get(e->list, i), "choices.0");
        if (choice)
            return choice;
    }
    return NULL;
}

static inline double metric(struct fixture *f, const char *series)
{
    struct http_answer a = http_call(f->port, "GET", "/metrics", "", "");
    const char *line = strstr(a.body, series);
    double value = line ? strtod(strchr(line, ' '), NULL) : -1;
    http_answer_free(&a);
    return value;
}
