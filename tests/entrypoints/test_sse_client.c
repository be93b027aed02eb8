// `vllm chat` and `vllm complete` against a small server that answers what each test scripts.
#include "cmocka_setup.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/memory.h"
#include "entrypoints/entrypoints.h"
#include "entrypoints/sse_client.h"

enum { MAX_ANSWERS = 4, TIMEOUT_S = 10 };

/** Answers connections one after the other, one request each. */
struct fake_server {
    int listen_fd, port;
    pthread_t thread;
    const char *answers[MAX_ANSWERS]; // whole HTTP responses
    int num_answers;
    struct buf requests; // what came in, all of it
};

static void read_request(int fd, struct buf *requests)
{
    size_t start = requests->len;
    for (;;) {
        char piece[4096];
        ssize_t len = recv(fd, piece, sizeof(piece), 0);
        if (len <= 0)
            return;
        buf_append(requests, (struct str){piece, (size_t)len});
        struct str request = {requests->ptr + start, requests->len - start};
        size_t end = str_find(request, STR("\r\n\r\n"), 0);
        if (end == STR_NOT_FOUND)
            continue;
        size_t at = str_find(request, STR("Content-Length: "), 0);
        size_t body_len = 0;
        if (at < end)
            body_len = strtoul(request.ptr + at + 16, NULL, 10);
        if (request.len >= end + 4 + body_len)
            return;
    }
}

static void *serve(void *context)
{
    struct fake_server *server = context;
    for (int i = 0; i < server->num_answers; i++) {
        int fd = accept(server->listen_fd, NULL, NULL);
        if (fd < 0)
            break;
        struct timeval limit = {TIMEOUT_S, 0};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
        read_request(fd, &server->requests);
        const char *answer = server->answers[i];
        // In two pieces, so that an event is cut in the middle.
        size_t len = strlen(answer), half = len - len / 3;
        if (send(fd, answer, half, MSG_NOSIGNAL) == (ssize_t)half) {
            usleep(20000);
            (void)!send(fd, answer + half, len - half, MSG_NOSIGNAL);
        }
        close(fd);
    }
    return NULL;
}

static void start(struct fake_server *server, int num_answers, const char *const *answers)
{
    *server = (struct fake_server){.num_answers = num_answers};
    for (int i = 0; i < num_answers; i++)
        server->answers[i] = answers[i];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    server->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {TIMEOUT_S, 0};
    setsockopt(server->listen_fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(bind(server->listen_fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(server->listen_fd, 8), 0);
    getsockname(server->listen_fd, (struct sockaddr *)&address, &len);
    server->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void stop(struct fake_server *server)
{
    shutdown(server->listen_fd, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->listen_fd);
    buf_append_char(&server->requests, '\0');
}

/** One run of a client with `input` on its standard input. */
struct result {
    int exit_status;
    char out[4096], err[4096];
};

static void read_back(FILE *file, char *text, size_t size)
{
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

static struct result run(int (*client)(int, char **), const char *input, int argc, char **argv)
{
    struct result result = {0};
    FILE *in = tmpfile(), *out = tmpfile(), *err = tmpfile();
    assert_true(in && out && err);
    fputs(input, in);
    rewind(in);
    fflush(stdout);
    fflush(stderr);
    FILE *streams[] = {stdin, stdout, stderr};
    FILE *files[] = {in, out, err};
    int saved[3];
    for (int fd = 0; fd < 3; fd++) {
        saved[fd] = dup(fd);
        dup2(fileno(files[fd]), fd);
    }
    clearerr(stdin);
    result.exit_status = client(argc, argv);
    fflush(stdout);
    fflush(stderr);
    for (int fd = 0; fd < 3; fd++) {
        dup2(saved[fd], fd);
        close(saved[fd]);
        clearerr(streams[fd]);
    }
    fclose(in);
    read_back(out, result.out, sizeof(result.out));
    read_back(err, result.err, sizeof(result.err));
    return result;
}

#define OK_JSON "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
#define OK_SSE "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
#define MODELS OK_JSON "{\"data\":[{\"id\":\"tiny\"}]}"
#define CHUNK(text) "data: {\"choices\":[{\"delta\":{\"content\":\"" text "\"}}]}\n\n"

static struct result run_client(int (*client)(int, char **), struct fake_server *server,
                                const char *input, int argc, const char *const *words)
{
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/v1/", server->port);
    char *argv[16] = {"--url", url};
    for (int i = 0; i < argc; i++)
        argv[i + 2] = (char *)(uintptr_t)words[i];
    return run(client, input, argc + 2, argv);
}

static void chat_keeps_the_conversation_and_prints_answers(void **state)
{
    (void)state;
    const char *answers[] = {
        MODELS,
        OK_SSE CHUNK("Hel") CHUNK("lo") "data: [DONE]\n\n",
        OK_SSE CHUNK("Bye \\u00e9") "data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n",
    };
    struct fake_server server;
    start(&server, 3, answers);
    const char *words[] = {"--system-prompt", "Be brief.", "--api-key=k1"};
    struct result result =
        run_client(chat_main, &server, "Hi there\n\nAnd now?\n/exit\nnever sent\n", 3, words);
    stop(&server);
    assert_string_equal(result.out, "Hello\nBye \xC3\xA9\n");
    assert_int_equal(result.exit_status, 0);
    assert_non_null(strstr(result.err, "Using model: tiny"));
    assert_non_null(strstr(server.requests.ptr, "GET /v1/models HTTP/1.1"));
    assert_non_null(strstr(server.requests.ptr, "POST /v1/chat/completions HTTP/1.1"));
    assert_non_null(strstr(server.requests.ptr, "Authorization: Bearer k1"));
    assert_non_null(
        strstr(server.requests.ptr,
               "{\"model\":\"tiny\",\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
               "{\"role\":\"user\",\"content\":\"Hi there\"},"
               "{\"role\":\"assistant\",\"content\":\"Hello\"},"
               "{\"role\":\"user\",\"content\":\"And now?\"}],\"stream\":true}"));
    assert_null(strstr(server.requests.ptr, "never sent"));
    buf_deinit(&server.requests);
}

static void complete_continues_one_text(void **state)
{
    (void)state;
    const char *answers[] = {OK_SSE "data: {\"choices\":[{\"text\":\" upon\"}]}\n\n"
                                    "data: {\"choices\":[{\"text\":\" a time\"}]}\n\n"
                                    "data: [DONE]\n\n"};
    struct fake_server server;
    start(&server, 1, answers);
    const char *words[] = {"--model-name", "m", "--max-tokens", "9", "-q", "Once"};
    struct result result = run_client(complete_main, &server, "", 6, words);
    stop(&server);
    assert_string_equal(result.err, "");
    assert_string_equal(result.out, " upon a time\n");
    assert_int_equal(result.exit_status, 0);
    assert_non_null(
        strstr(server.requests.ptr,
               "{\"model\":\"m\",\"prompt\":\"Once\",\"stream\":true,\"max_tokens\":9}"));
    buf_deinit(&server.requests);
}

static void failures_are_told_and_end_with_one(void **state)
{
    (void)state;
    static const struct {
        const char *answer, *message;
    } rows[] = {
        {"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n{\"error\":\"Unauthorized\"}",
         "the server answers 401: Unauthorized"},
        {"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n{\"error\":{\"message\":\"The model "
         "`m` does not exist.\"}}",
         "the server answers 404: The model `m` does not exist."},
        {"HTTP/1.1 503 Unavailable\r\nConnection: close\r\n\r\nbusy", "the server answers 503 at"},
        {OK_SSE CHUNK("Half"), "the server ended the answer before its end"},
        {OK_SSE "data: {\"error\":{\"message\":\"engine died\"}}\n\ndata: [DONE]\n\n",
         "the server says: engine died"},
        {OK_SSE "data: {nonsense\n\n", "an event that is not JSON"},
        {"nonsense", "vllm chat: error: "},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct fake_server server;
        start(&server, 1, &rows[i].answer);
        const char *words[] = {"--model-name=m", "--quick", "Hi"};
        struct result result = run_client(chat_main, &server, "", 3, words);
        stop(&server);
        if (result.exit_status != 1 || !strstr(result.err, rows[i].message))
            fail_msg("%s: exit %d: %s", rows[i].message, result.exit_status, result.err);
        buf_deinit(&server.requests);
    }
}

static void wrong_usage_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *words[2];
        int argc, exit_status;
        const char *message;
    } rows[] = {
        {{"--foo"}, 1, 2, "unrecognized arguments: --foo"},
        {{"--max-tokens", "5"}, 2, 2, "unrecognized arguments: --max-tokens"},
        {{"--url"}, 1, 2, "expected one argument after --url"},
        {{"--url", "ftp://x"}, 2, 1, "the URL is 'ftp://x', expected http://"},
        {{"--url", "http://127.0.0.1:1/v1"}, 2, 1, "no server answers at http://127.0.0.1:1/v1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *argv[3] = {(char *)(uintptr_t)rows[i].words[0], (char *)(uintptr_t)rows[i].words[1]};
        struct result result = run(chat_main, "", rows[i].argc, argv);
        if (result.exit_status != rows[i].exit_status || !strstr(result.err, rows[i].message))
            fail_msg("%s: exit %d: %s", rows[i].words[0], result.exit_status, result.err);
    }
    char *complete_argv[] = {"--max-tokens", "none"};
    struct result result = run(complete_main, "", 2, complete_argv);
    assert_int_equal(result.exit_status, 2);
    assert_non_null(strstr(result.err, "invalid int value: none"));
}

static void collect_env_names_the_machine_and_masks_keys(void **state)
{
    (void)state;
    setenv("VLLM_API_KEY", "very-secret", 1);
    setenv("VLLM_LOGGING_LEVEL", "debug", 1);
    struct result result = run(collect_env_main, "", 0, NULL);
    unsetenv("VLLM_API_KEY");
    unsetenv("VLLM_LOGGING_LEVEL");
    assert_int_equal(result.exit_status, 0);
    static const char *const facts[] = {"kernel",
                                        "cores online",
                                        "memory",
                                        "libevent",
                                        "ZeroMQ",
                                        "msgpack-c",
                                        "jansson",
                                        "PCRE2",
                                        "libcurl",
                                        "GPU driver",
                                        "vLLM " VLLM_VERSION};
    for (size_t i = 0; i < ARRAY_LEN(facts); i++) {
        if (!strstr(result.out, facts[i]))
            fail_msg("no %s in %s", facts[i], result.out);
    }
    assert_non_null(strstr(result.out, "VLLM_API_KEY=***"));
    assert_non_null(strstr(result.out, "VLLM_LOGGING_LEVEL=debug"));
    assert_null(strstr(result.out, "very-secret"));
}

int main(void)
{
    unsetenv("OPENAI_API_KEY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_keeps_the_conversation_and_prints_answers),
        cmocka_unit_test(complete_continues_one_text),
        cmocka_unit_test(failures_are_told_and_end_with_one),
        cmocka_unit_test(wrong_usage_is_refused),
        cmocka_unit_test(collect_env_names_the_machine_and_masks_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
