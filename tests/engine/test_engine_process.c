// The EngineCore as a process, with the demo model: start, serve a request, stop.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
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
    char core[16];
    struct arena arena;
};

static void parse_options(struct world *w, const char *model, const char *cache_bytes,
                          const char *max_model_len)
{
    const char *words[] = {model,         "--kv-cache-memory-bytes",
                           cache_bytes,   "--max-model-len",
                           max_model_len, "--block-size",
                           "16"};
    char *arguments[ARRAY_LEN(words) + 1] = {0};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        arguments[i] = (char *)(uintptr_t)words[i];
    int exit_status = 0;
    assert_int_equal(
        options_parse_serve(&w->options, (int)ARRAY_LEN(arguments) - 1, arguments, &exit_status),
        OPTIONS_RUN);
    // One thread: threads that wait for each other suffer on a machine that has other work too.
    snprintf(w->core, sizeof(w->core), "%d", sched_getcpu());
    w->options.omp_threads_bind = w->core;
}

static void start_engine(struct world *w, const char *model, const char *cache_bytes,
                         const char *max_model_len)
{
    *w = (struct world){.ipc_dir = "/tmp/test_engine_process.XXXXXX"};
    struct error err = {0};
    assert_non_null(mkdtemp(w->ipc_dir));
    assert_int_equal(shared_page_create(&w->page, 1, &err), STATUS_OK);
    parse_options(w, model, cache_bytes, max_model_len);
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

static void add(struct channel *channel, uint64_t id, int32_t first_token, int32_t max_tokens)
{
    const int32_t tokens[] = {first_token, 20, 30, 40, 50};
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

static struct channel *greet(struct world *w)
{
    struct channel *channel;
    struct error err = {0};
    assert_int_equal(channel_connect(&channel, w->ipc_dir, 0, &err), STATUS_OK);
    const struct message hello = {.kind = MESSAGE_HELLO, .hello = {.version = MESSAGE_VERSION}};
    send_message(channel, &hello);
    struct message welcome = {0};
    receive_message(w, channel, &welcome);
    assert_int_equal(welcome.kind, MESSAGE_WELCOME);
    return channel;
}

static void the_engine_serves_and_says_goodbye(void **state)
{
    (void)state;
    struct world w;
    start_engine(&w, MODELS_DIR "/demo", "4194304", "256");
    struct channel *channel = greet(&w);
    assert_int_equal(atomic_load(&w.page->engine.state), ENGINE_STATE_READY);
    assert_int_equal(atomic_load(&w.page->engine.max_model_len), 256);
    assert_true(engine_page_is_healthy(&w.page->engine, clock_monotonic_ns()));

    int32_t tokens[2][256], num_tokens[2] = {0};
    for (int32_t i = 0; i < 2; i++) { // greedy, so the same twice
        add(channel, (uint64_t)i + 1, 10, 12);
        assert_int_equal(
            collect(&w, channel, (uint64_t)i + 1, tokens[i], &num_tokens[i], INT32_MAX),
            FINISH_REASON_LENGTH);
        assert_int_equal(num_tokens[i], 12);
    }
    assert_memory_equal(tokens[0], tokens[1], 12 * sizeof(int32_t));

    add(channel, 3, 10, 200);
    add(channel, 4, 10, 200);
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
    start_engine(&w, FIXTURES_DIR, "4194304", "256"); // a folder without a config.json
    assert_int_equal(wait_for_exit(&w), 3);
    assert_int_equal(atomic_load(&w.page->engine.state), ENGINE_STATE_DEAD);
    clean_up(&w);
}

// Four requests of three blocks each and five blocks in all: they take them from each other.
static void a_preempted_request_gives_the_tokens_it_gives_alone(void **state)
{
    (void)state;
    enum { NUM_REQUESTS = 4, NUM_TOKENS = 30 };
    struct world w;
    start_engine(&w, MODELS_DIR "/demo", "655360", "64");
    struct channel *channel = greet(&w);
    assert_int_equal(atomic_load(&w.page->engine.num_blocks), 5);
    int32_t alone[NUM_REQUESTS][NUM_TOKENS], num_alone[NUM_REQUESTS] = {0};
    for (int32_t i = 0; i < NUM_REQUESTS; i++) {
        add(channel, (uint64_t)i + 1, 10 + i, NUM_TOKENS);
        collect(&w, channel, (uint64_t)i + 1, alone[i], &num_alone[i], INT32_MAX);
        assert_int_equal(num_alone[i], NUM_TOKENS);
    }
    assert_int_equal(atomic_load(&w.page->engine.num_preemptions), 0);

    for (int32_t i = 0; i < NUM_REQUESTS; i++)
        add(channel, (uint64_t)i + 11, 10 + i, NUM_TOKENS);
    int32_t num_tokens[NUM_REQUESTS] = {0}, num_ended = 0;
    while (num_ended < NUM_REQUESTS) {
        struct message message = {0};
        receive_message(&w, channel, &message);
        assert_int_equal(message.kind, MESSAGE_OUTPUTS);
        for (int32_t i = 0; i < message.outputs.num_outputs; i++) {
            const struct engine_core_output *output = &message.outputs.outputs[i];
            size_t r = (size_t)output->request_id - 11;
            assert_true(r < NUM_REQUESTS);
            for (int32_t k = 0; k < output->num_new_tokens; k++) {
                assert_true(num_tokens[r] < NUM_TOKENS);
                assert_int_equal(output->new_token_ids[k], alone[r][num_tokens[r]]);
                num_tokens[r]++;
            }
            num_ended += output->finish_reason == FINISH_REASON_LENGTH;
        }
    }
    for (int32_t i = 0; i < NUM_REQUESTS; i++)
        assert_int_equal(num_tokens[i], NUM_TOKENS);
    assert_true(atomic_load(&w.page->engine.num_preemptions) > 0);
    kill(w.pid, SIGTERM);
    assert_int_equal(wait_for_exit(&w), 0);
    assert_int_equal(atomic_load(&w.page->engine.num_used_blocks), 0);
    channel_close(channel);
    clean_up(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_without_a_model_gives_up_for_good),
        cmocka_unit_test(a_preempted_request_gives_the_tokens_it_gives_alone),
        cmocka_unit_test(the_engine_serves_and_says_goodbye),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
