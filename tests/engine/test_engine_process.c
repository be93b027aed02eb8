// The EngineCore as a process, with the demo model: start, serve a request, stop.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "message/channel.h"
#include "message/codec.h"

enum { LIMIT_S = 60 };

struct world {
    char ipc_dir[64];
    struct shared_page *page;
    struct serve_options options;
    pid_t pid;
    struct arena arena;
};

static void parse_options(struct world *w, const char *model)
{
    char *arguments[] = {(char *)(uintptr_t)model,
                         "--kv-cache-memory-bytes",
                         "4194304",
                         "--max-model-len",
                         "256",
                         NULL};
    int exit_status = 0;
    assert_int_equal(
        options_parse_serve(&w->options, (int)ARRAY_LEN(arguments) - 1, arguments, &exit_status),
        OPTIONS_RUN);
}

static void start_engine(struct world *w, const char *model)
{
    *w = (struct world){.ipc_dir = "/tmp/test_engine_process.XXXXXX"};
    struct error err = {0};
    assert_non_null(mkdtemp(w->ipc_dir));
    assert_int_equal(shared_page_create(&w->page, 1, &err), STATUS_OK);
    parse_options(w, model);
    fflush(NULL);
    w->pid = fork();
    assert_true(w->pid >= 0);
    if (w->pid == 0)
        _exit(engine_core_main(&w->options, w->ipc_dir, w->page));
}

static int wait_for_exit(struct world *w)
{
    int64_t deadline_ns = clock_monotonic_ns() + LIMIT_S * INT64_C(1000000000);
    int status;
    while (waitpid(w->pid, &status, WNOHANG) == 0) {
        if (clock_monotonic_ns() > deadline_ns) {
            kill(w->pid, SIGKILL);
            waitpid(w->pid, &status, 0);
            fail_msg("the engine does not end");
        }
        usleep(5000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void clean_up(struct world *w)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/engine", w->ipc_dir);
    unlink(path);
    rmdir(w->ipc_dir);
    shared_page_destroy(w->page);
    options_deinit(&w->options);
    arena_deinit(&w->arena);
}

static void send_message(struct channel *channel, const struct message *message)
{
    struct buf frame = {0};
    message_encode(&frame, message);
    struct error err = {0};
    assert_int_equal(channel_send(channel, 0, buf_str(&frame), &err), STATUS_OK);
    buf_deinit(&frame);
}

static void receive_message(struct world *w, struct channel *channel, struct message *message)
{
    int64_t deadline_ns = clock_monotonic_ns() + LIMIT_S * INT64_C(1000000000);
    int32_t sender;
    struct str frame;
    while (!channel_receive(channel, &sender, &frame)) {
        assert_true(clock_monotonic_ns() < deadline_ns);
        channel_wait(channel, 100);
    }
    struct error err = {0};
    arena_reset(&w->arena);
    assert_int_equal(message_decode(message, frame, &w->arena, &err), STATUS_OK);
}

static void add(struct channel *channel, uint64_t id, int32_t max_tokens)
{
    static const int32_t tokens[] = {10, 20, 30, 40, 50};
    const struct message message = {.kind = MESSAGE_ADD,
                                    .add = {
                                        .request_id = id,
                                        .num_prompt_tokens = 5,
                                        .prompt_token_ids = tokens,
                                        .sampling = {.top_p = 1,
                                                     .repetition_penalty = 1,
                                                     .max_tokens = max_tokens,
                                                     .eos_token_id = -1,
                                                     .num_logprobs = -1,
                                                     .num_prompt_logprobs = -1},
                                    }};
    send_message(channel, &message);
}

// Collects a request's tokens to its end; returns how it ended.
static enum finish_reason collect(struct world *w, struct channel *channel, uint64_t id,
                                  int32_t *tokens, int32_t *num_tokens, int32_t stop_after)
{
    for (;;) {
        struct message message = {0};
        receive_message(w, channel, &message);
        assert_int_equal(message.kind, MESSAGE_OUTPUTS);
        for (int32_t i = 0; i < message.outputs.num_outputs; i++) {
            const struct engine_core_output *output = &message.outputs.outputs[i];
            if (output->request_id != id)
                continue;
            for (int32_t k = 0; k < output->num_new_tokens; k++)
                tokens[(*num_tokens)++] = output->new_token_ids[k];
            if (output->finish_reason != FINISH_REASON_NONE || *num_tokens >= stop_after)
                return output->finish_reason;
        }
    }
}

static void the_engine_serves_and_says_goodbye(void **state)
{
    (void)state;
    struct world w;
    start_engine(&w, MODELS_DIR "/demo");
    struct channel *channel;
    struct error err = {0};
    assert_int_equal(channel_connect(&channel, w.ipc_dir, 0, &err), STATUS_OK);
    const struct message hello = {.kind = MESSAGE_HELLO, .hello = {.version = MESSAGE_VERSION}};
    send_message(channel, &hello);
    struct message welcome = {0};
    receive_message(&w, channel, &welcome);
    assert_int_equal(welcome.kind, MESSAGE_WELCOME);
    assert_int_equal(atomic_load(&w.page->engine.state), ENGINE_STATE_READY);
    assert_int_equal(atomic_load(&w.page->engine.max_model_len), 256);
    assert_true(engine_page_is_healthy(&w.page->engine, clock_monotonic_ns()));

    int32_t tokens[2][256], num_tokens[2] = {0};
    for (int32_t i = 0; i < 2; i++) { // greedy, so the same twice
        add(channel, (uint64_t)i + 1, 12);
        assert_int_equal(
            collect(&w, channel, (uint64_t)i + 1, tokens[i], &num_tokens[i], INT32_MAX),
            FINISH_REASON_LENGTH);
        assert_int_equal(num_tokens[i], 12);
    }
    assert_memory_equal(tokens[0], tokens[1], 12 * sizeof(int32_t));

    add(channel, 3, 200);
    add(channel, 4, 200);
    num_tokens[0] = 0;
    assert_int_equal(collect(&w, channel, 3, tokens[0], &num_tokens[0], 1), FINISH_REASON_NONE);
    kill(w.pid, SIGTERM);
    enum finish_reason reason = collect(&w, channel, 4, tokens[1], (int32_t[1]){0}, INT32_MAX);
    assert_true(reason == FINISH_REASON_ABORT || reason == FINISH_REASON_LENGTH);
    assert_int_equal(wait_for_exit(&w), 0);
    channel_close(channel);
    clean_up(&w);
}

static void an_engine_without_a_model_gives_up_for_good(void **state)
{
    (void)state;
    struct world w;
    start_engine(&w, FIXTURES_DIR); // a folder without a config.json
    assert_int_equal(wait_for_exit(&w), 3);
    assert_int_equal(atomic_load(&w.page->engine.state), ENGINE_STATE_DEAD);
    clean_up(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_without_a_model_gives_up_for_good),
        cmocka_unit_test(the_engine_serves_and_says_goodbye),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
