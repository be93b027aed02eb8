// An API server's end of the engine, against an engine whose every word the test chooses.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api_server/engine_client.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/memory.h"
#include "message/channel.h"
#include "message/codec.h"

enum { MAX_HEARD = 32 };

/** The engine's side, and what it heard. */
struct world {
    char ipc_dir[64];
    struct shared_page *page;
    struct engine_client *client;
    struct channel *engine;
    struct arena arena;
    int32_t num_heard;
    enum message_kind heard[MAX_HEARD];
    int32_t num_given[MAX_HEARD]; // of an ADD: output tokens
};

static int setup(void **state)
{
    struct world *w = xcalloc(1, sizeof(*w));
    *state = w;
    strcpy(w->ipc_dir, "/tmp/test_engine_client.XXXXXX");
    struct error err = {0};
    if (!mkdtemp(w->ipc_dir) || shared_page_create(&w->page, 1, &err) != STATUS_OK ||
        engine_client_create(&w->client, w->ipc_dir, 0, w->page, &err) != STATUS_OK ||
        channel_bind(&w->engine, w->ipc_dir, &err) != STATUS_OK)
        return -1;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    engine_client_destroy(w->client);
    channel_close(w->engine);
    shared_page_destroy(w->page);
    arena_deinit(&w->arena);
    char path[96];
    snprintf(path, sizeof(path), "%s/engine", w->ipc_dir);
    unlink(path);
    int status = rmdir(w->ipc_dir);
    free(w);
    return status;
}

static void engine_is(struct world *w, int32_t generation, enum engine_state state)
{
    atomic_store(&w->page->engine.generation, generation);
    atomic_store(&w->page->engine.state, state);
}

static void say(struct world *w, const struct message *message)
{
    struct buf frame = {0};
    struct error err = {0};
    message_encode(&frame, message);
    assert_int_equal(channel_send(w->engine, 0, buf_str(&frame), &err), STATUS_OK);
    buf_deinit(&frame);
}

static void welcome_after(struct world *w, int32_t generation, int32_t num_losses)
{
    say(w, &(struct message){.kind = MESSAGE_WELCOME,
                             .welcome = {.version = MESSAGE_VERSION,
                                         .generation = generation,
                                         .num_losses = num_losses}});
}

static void welcome(struct world *w, int32_t generation)
{
    welcome_after(w, generation, 0);
}

static void give_token(struct world *w, uint64_t id, int32_t token)
{
    const struct engine_core_output output = {.request_id = id,
                                              .num_new_tokens = 1,
                                              .new_token_ids = &token,
                                              .finish_reason = FINISH_REASON_NONE,
                                              .stop_token_id = -1};
    say(w, &(struct message){.kind = MESSAGE_OUTPUTS,
                             .outputs = {.num_outputs = 1, .outputs = &output}});
}

// Takes in what both sides have for each other.
static void exchange(struct world *w)
{
    int32_t sender;
    struct str frame;
    engine_client_tick(w->client);
    while (engine_client_receive(w->client))
        ;
    while (channel_receive(w->engine, &sender, &frame)) {
        struct message message = {0};
        struct error err = {0};
        arena_reset(&w->arena);
        assert_int_equal(message_decode(&message, frame, &w->arena, &err), STATUS_OK);
        assert_true(w->num_heard < MAX_HEARD);
        w->num_given[w->num_heard] =
            message.kind == MESSAGE_ADD ? message.add.num_output_tokens : 0;
        w->heard[w->num_heard++] = message.kind;
    }
}

#define EXCHANGE_UNTIL(w, condition)                                       \
    do {                                                                   \
        int64_t deadline_ns = clock_monotonic_ns() + INT64_C(30000000000); \
        while (exchange(w), !(condition)) {                                \
            assert_true(clock_monotonic_ns() < deadline_ns);               \
            usleep(1000);                                                  \
        }                                                                  \
    } while (0)

static int32_t count_heard(const struct world *w, enum message_kind kind)
{
    int32_t count = 0;
    for (int32_t i = 0; i < w->num_heard; i++)
        count += w->heard[i] == kind;
    return count;
}

static void ignore_output(struct engine_request *r, const struct engine_core_output *output,
                          int64_t timestamp_ns)
{
    (void)r, (void)output, (void)timestamp_ns;
}

static void add(struct world *w, struct engine_request *r)
{
    static const int32_t prompt[] = {1, 2, 3};
    *r = (struct engine_request){
        .core = {.num_prompt_tokens = 3,
                 .prompt_token_ids = prompt,
                 .sampling = {.top_p = 1,
                              .repetition_penalty = 1,
                              .max_tokens = 50,
                              .eos_token_id = -1,
                              .num_logprobs = -1,
                              .num_prompt_logprobs = -1}},
        .on_output = ignore_output,
    };
    engine_client_add(w->client, r);
}

/** Adds it, and lets the first engine greet the server and hear of it. */
static void add_to_engine(struct world *w, struct engine_request *r)
{
    add(w, r);
    engine_is(w, 1, ENGINE_STATE_READY);
    EXCHANGE_UNTIL(w, count_heard(w, MESSAGE_HELLO) == 1);
    welcome(w, 1);
    EXCHANGE_UNTIL(w, count_heard(w, MESSAGE_ADD) == 1);
}

static void a_request_waits_for_the_welcome_and_is_sent_once(void **state)
{
    struct world *w = *state;
    struct engine_request r;
    add(w, &r);
    engine_is(w, 1, ENGINE_STATE_STARTING);
    exchange(w);
    assert_int_equal(w->num_heard, 0);
    engine_is(w, 1, ENGINE_STATE_READY);
    EXCHANGE_UNTIL(w, w->num_heard == 1);
    assert_int_equal(w->heard[0], MESSAGE_HELLO);
    welcome(w, 1);
    EXCHANGE_UNTIL(w, w->num_heard == 2);
    assert_int_equal(w->heard[1], MESSAGE_ADD);
    welcome(w, 1); // the answer to a HELLO that was repeated meanwhile
    give_token(w, r.core.request_id, 7);
    EXCHANGE_UNTIL(w, r.core.num_output_tokens == 1);
    assert_int_equal(w->num_heard, 2);
    engine_request_deinit(&r);
}

// The engine dies right after its WELCOME, and the API server hears it only when it has greeted the
// next one. Taken for that one's, it would make it send its requests twice.
static void the_welcome_of_a_dead_engine_is_not_its_successors(void **state)
{
    struct world *w = *state;
    struct engine_request r;
    add(w, &r);
    engine_is(w, 1, ENGINE_STATE_READY);
    EXCHANGE_UNTIL(w, count_heard(w, MESSAGE_HELLO) == 1);
    engine_is(w, 2, ENGINE_STATE_READY);
    engine_client_tick(w->client); // notices, and greets generation 2
    engine_client_tick(w->client);
    welcome(w, 1);
    EXCHANGE_UNTIL(w, count_heard(w, MESSAGE_HELLO) == 2);
    for (int i = 0; i < 100; i++) { // what was said is heard by now
        exchange(w);
        usleep(1000);
    }
    assert_int_equal(count_heard(w, MESSAGE_ADD), 0);
    assert_false(engine_client_is_ready(w->client));
    welcome(w, 2);
    EXCHANGE_UNTIL(w, count_heard(w, MESSAGE_ADD) == 1);
    give_token(w, r.core.request_id, 7);
    EXCHANGE_UNTIL(w, r.core.num_output_tokens == 1);
    assert_int_equal(count_heard(w, MESSAGE_ADD), 1);
    engine_request_deinit(&r);
}

static void a_new_engine_gets_the_tokens_so_far_and_old_words_are_dropped(void **state)
{
    struct world *w = *state;
    struct engine_request r;
    add_to_engine(w, &r);
    give_token(w, r.core.request_id, 7);
    give_token(w, r.core.request_id, 8);
    EXCHANGE_UNTIL(w, r.core.num_output_tokens == 2);
    engine_is(w, 2, ENGINE_STATE_READY);
    engine_client_tick(w->client);
    give_token(w, r.core.request_id, 9); // said before it died, heard too late
    EXCHANGE_UNTIL(w, count_heard(w, MESSAGE_HELLO) == 2);
    welcome(w, 2);
    EXCHANGE_UNTIL(w, count_heard(w, MESSAGE_ADD) == 2);
    assert_int_equal(w->num_given[w->num_heard - 1], 2);
    assert_int_equal(r.core.num_output_tokens, 2);
    engine_request_deinit(&r);
}

// The queue was full: the engine dropped everything of this API server and could not say so.
static void a_server_that_was_dropped_greets_again_and_resumes(void **state)
{
    struct world *w = *state;
    struct engine_request r;
    add_to_engine(w, &r);
    give_token(w, r.core.request_id, 7);
    EXCHANGE_UNTIL(w, r.core.num_output_tokens == 1);
    give_token(w, r.core.request_id, 8); // still in the queue
    give_token(w, r.core.request_id, 9);
    usleep(50000);
    atomic_fetch_add(&w->page->engine.num_losses[0], 1);
    engine_client_tick(w->client);
    assert_false(engine_client_is_ready(w->client));
    welcome(w, 1); // the answer to a HELLO before: what follows it is of the life that was dropped
    give_token(w, r.core.request_id, 10);
    EXCHANGE_UNTIL(w, count_heard(w, MESSAGE_HELLO) == 2);
    for (int i = 0; i < 100; i++) { // what was said is heard by now
        exchange(w);
        usleep(1000);
    }
    assert_int_equal(count_heard(w, MESSAGE_ADD), 1);
    welcome_after(w, 1, 1);
    EXCHANGE_UNTIL(w, count_heard(w, MESSAGE_ADD) == 2);
    assert_int_equal(w->num_given[w->num_heard - 1], 1);
    give_token(w, r.core.request_id, 8);
    EXCHANGE_UNTIL(w, r.core.num_output_tokens == 2);
    assert_int_equal(r.output_token_ids[0], 7);
    assert_int_equal(r.output_token_ids[1], 8);
    engine_request_deinit(&r);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_request_waits_for_the_welcome_and_is_sent_once),
        TEST(the_welcome_of_a_dead_engine_is_not_its_successors),
        TEST(a_new_engine_gets_the_tokens_so_far_and_old_words_are_dropped),
        TEST(a_server_that_was_dropped_greets_again_and_resumes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
