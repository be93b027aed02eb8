// The EngineCore as a process, with the demo model: start, serve a request, stop.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
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
        channel_wait(channel, 100000000);
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

// ---- resumption ----

enum { MIN_TOKENS = 12, MAX_TOKENS = 48, NUM_CHOICES = 2, FAVOURED_TOKEN = 300 };

/** What a choice has said, and how it ended. */
struct answer {
    int32_t num_tokens;
    int32_t tokens[MAX_TOKENS];
    enum finish_reason reason;
    int32_t stop_token_id;
};

// Choice `child` of a request with all that depends on what came before; it goes on behind the
// first `num_given` tokens of `before`.
static void add_choice(struct channel *channel, uint64_t id, int32_t child,
                       const struct answer *before, int32_t num_given)
{
    static const int32_t prompt[] = {310, 320, 330, 340, 350, 310, 320, 330, 340, 350,
                                     360, 370, 380, 390, 400, 410, 420, 430, 440, 450};
    static const int32_t stops[] = {FAVOURED_TOKEN, 700, 801};
    static const struct logit_bias biases[] = {{FAVOURED_TOKEN, 4.0f}, {500, 2.5f}, {310, -3.0f}};
    const struct message message = {.kind = MESSAGE_ADD,
                                    .add = {
                                        .request_id = id + (uint64_t)child,
                                        .external_id = id,
                                        .num_prompt_tokens = ARRAY_LEN(prompt),
                                        .prompt_token_ids = prompt,
                                        .num_output_tokens = num_given,
                                        .output_token_ids = before ? before->tokens : NULL,
                                        .sampling = {.temperature = 0.9f,
                                                     .top_p = 0.95f,
                                                     .top_k = 200,
                                                     .presence_penalty = 0.4f,
                                                     .frequency_penalty = 0.3f,
                                                     .repetition_penalty = 1.2f,
                                                     .seed = 77 + (uint64_t)child,
                                                     .min_tokens = MIN_TOKENS,
                                                     .max_tokens = MAX_TOKENS,
                                                     .eos_token_id = -1,
                                                     .num_stop_token_ids = ARRAY_LEN(stops),
                                                     .stop_token_ids = stops,
                                                     .num_logit_bias = ARRAY_LEN(biases),
                                                     .logit_bias = biases,
                                                     .num_logprobs = -1,
                                                     .num_prompt_logprobs = -1},
                                    }};
    send_message(channel, &message);
}

// Runs both choices side by side, each behind the first `num_given` tokens of `before`.
static void run_choices(struct world *w, struct channel *channel, uint64_t id,
                        const struct answer *before, int32_t num_given, struct answer *answers)
{
    int32_t num_ended = 0;
    for (int32_t child = 0; child < NUM_CHOICES; child++) {
        const struct answer *earlier = before ? &before[child] : NULL;
        int32_t given = earlier ? min_i32(num_given, earlier->num_tokens) : 0;
        answers[child] = (struct answer){.num_tokens = given, .reason = FINISH_REASON_NONE};
        if (given > 0)
            memcpy(answers[child].tokens, earlier->tokens, (size_t)given * sizeof(int32_t));
        add_choice(channel, id, child, earlier, given);
    }
    while (num_ended < NUM_CHOICES) {
        struct message message = {0};
        receive_message(w, channel, &message);
        assert_int_equal(message.kind, MESSAGE_OUTPUTS);
        for (int32_t i = 0; i < message.outputs.num_outputs; i++) {
            const struct engine_core_output *output = &message.outputs.outputs[i];
            assert_true(output->request_id - id < NUM_CHOICES);
            struct answer *answer = &answers[output->request_id - id];
            for (int32_t k = 0; k < output->num_new_tokens; k++) {
                assert_true(answer->num_tokens < MAX_TOKENS);
                answer->tokens[answer->num_tokens++] = output->new_token_ids[k];
            }
            answer->reason = output->finish_reason;
            answer->stop_token_id = output->stop_token_id;
            num_ended += output->finish_reason != FINISH_REASON_NONE;
        }
    }
}

static void another_engine_goes_on_exactly_wherever_a_request_was_cut(void **state)
{
    (void)state;
    struct world w;
    struct answer whole[NUM_CHOICES];
    start_engine(&w, MODELS_DIR "/demo", "4194304", "256");
    struct channel *channel = greet(&w);
    run_choices(&w, channel, 1000, NULL, 0, whole);
    kill(w.pid, SIGTERM);
    assert_int_equal(wait_for_exit(&w), 0);
    channel_close(channel);
    clean_up(&w);
    assert_memory_not_equal(whole[0].tokens, whole[1].tokens, MIN_TOKENS * sizeof(int32_t));
    int32_t longest = max_i32(whole[0].num_tokens, whole[1].num_tokens);
    for (int32_t child = 0; child < NUM_CHOICES; child++) {
        assert_true(whole[child].num_tokens > MIN_TOKENS);
        assert_int_equal(whole[child].reason,
                         whole[child].num_tokens == MAX_TOKENS && whole[child].stop_token_id < 0
                             ? FINISH_REASON_LENGTH
                             : FINISH_REASON_STOP);
    }
    // Its favour makes a stop token likely once it may come.
    assert_true(whole[0].reason == FINISH_REASON_STOP || whole[1].reason == FINISH_REASON_STOP);

    // Everywhere: before and behind min_tokens, at blocks' edges, behind the end of one of them.
    start_engine(&w, MODELS_DIR "/demo", "4194304", "256");
    channel = greet(&w);
    for (int32_t cut = 1; cut <= longest; cut++) {
        struct answer resumed[NUM_CHOICES];
        run_choices(&w, channel, 1000 + (uint64_t)cut * 10, whole, cut, resumed);
        for (int32_t child = 0; child < NUM_CHOICES; child++) {
            assert_int_equal(resumed[child].num_tokens, whole[child].num_tokens);
            assert_memory_equal(resumed[child].tokens, whole[child].tokens,
                                (size_t)whole[child].num_tokens * sizeof(int32_t));
            assert_int_equal(resumed[child].reason, whole[child].reason);
            assert_int_equal(resumed[child].stop_token_id, whole[child].stop_token_id);
        }
    }
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
        cmocka_unit_test(another_engine_goes_on_exactly_wherever_a_request_was_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
