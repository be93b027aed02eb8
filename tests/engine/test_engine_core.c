// Messages in, steps, messages out: a real channel, the real scheduler, and a fake executor that
// stands in for the worker's by having its names.
#include "engine/fake_worker.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mapped_file.h"
#include "engine/engine_core.h"
#include "engine/replay.h"

struct executor {
    struct fake_worker worker;
    const struct scheduler_output *steps[MAX_STEPS_IN_FLIGHT]; // in flight, oldest first
    int32_t num_steps, most_steps;
    bool fails;
    void (*hang)(void); // NULL: a step does not
    bool is_loading;    // the bytes of its tokens
};

enum tokens_state executor_poll_tokens(struct executor *executor)
{
    return executor->is_loading ? TOKENS_LOADING : TOKENS_READY;
}

void executor_submit(struct executor *executor, const struct scheduler_output *step)
{
    assert_true(executor->num_steps < MAX_STEPS_IN_FLIGHT);
    executor->steps[executor->num_steps++] = step;
    executor->most_steps = max_i32(executor->most_steps, executor->num_steps);
}

bool executor_has_ended(struct executor *executor)
{
    return executor->num_steps == 0; // they end when they are collected
}

enum status executor_collect(struct executor *executor, struct model_runner_output *result,
                             struct error *err)
{
    if (executor->hang)
        executor->hang();
    if (executor->fails)
        return error_set(err, STATUS_INTERNAL, "the device is gone");
    assert_true(executor->num_steps > 0);
    fake_worker_run(&executor->worker, executor->steps[0], result);
    executor->steps[0] = executor->steps[1];
    executor->num_steps--;
    return STATUS_OK;
}

void executor_destroy(struct executor *executor)
{
    fake_worker_deinit(&executor->worker);
    free(executor);
}

enum { NUM_CLIENTS = 2, MAX_NEWS = 256 };

/** What a client was told about a request. */
struct news {
    int32_t client;
    uint64_t id;
    int32_t num_tokens;
    enum finish_reason finish_reason;
};

struct world {
    char ipc_dir[64];
    struct shared_page *page;
    struct serve_options options;
    struct model_config model;
    struct engine_config config;
    struct engine_core core;
    struct channel *clients[NUM_CLIENTS];
    struct arena arena;
    int32_t num_welcomes[NUM_CLIENTS], num_losses[NUM_CLIENTS], num_replies[NUM_CLIENTS];
    bool reply_ok;
    int32_t num_news;
    struct news news[MAX_NEWS];
};

static void send_message(struct world *w, int32_t client, const struct message *message)
{
    struct buf frame = {0};
    message_encode(&frame, message);
    struct error err = {0};
    assert_int_equal(channel_send(w->clients[client], client, buf_str(&frame), &err), STATUS_OK);
    buf_deinit(&frame);
}

static void hello(struct world *w, int32_t client)
{
    send_message(w, client,
                 &(struct message){.kind = MESSAGE_HELLO,
                                   .hello = {.version = MESSAGE_VERSION, .client_index = client}});
}

static void add_constrained(struct world *w, int32_t client, uint64_t id, int32_t max_tokens,
                            const uint32_t *automaton, int32_t num_words)
{
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const struct message message = {.kind = MESSAGE_ADD,
                                    .add = {
                                        .request_id = id,
                                        .client_index = client,
                                        .num_prompt_tokens = 9,
                                        .prompt_token_ids = tokens,
                                        .sampling = {.top_p = 1,
                                                     .repetition_penalty = 1,
                                                     .max_tokens = max_tokens,
                                                     .eos_token_id = -1,
                                                     .num_logprobs = -1,
                                                     .num_prompt_logprobs = -1,
                                                     .num_automaton_words = num_words,
                                                     .automaton = automaton},
                                    }};
    send_message(w, client, &message);
}

static void add(struct world *w, int32_t client, uint64_t id, int32_t max_tokens)
{
    add_constrained(w, client, id, max_tokens, NULL, 0);
}

static void note(struct world *w, int32_t client, const struct message *message)
{
    if (message->kind == MESSAGE_WELCOME) {
        w->num_welcomes[client]++;
        w->num_losses[client] = message->welcome.num_losses;
    }
    if (message->kind == MESSAGE_REPLY) {
        w->num_replies[client]++;
        w->reply_ok = message->reply.ok;
    }
    for (int32_t i = 0; message->kind == MESSAGE_OUTPUTS && i < message->outputs.num_outputs; i++) {
        const struct engine_core_output *output = &message->outputs.outputs[i];
        struct news *news = NULL;
        for (int32_t k = 0; k < w->num_news; k++) {
            if (w->news[k].client == client && w->news[k].id == output->request_id)
                news = &w->news[k];
        }
        if (!news) {
            assert_true(w->num_news < MAX_NEWS);
            news = &w->news[w->num_news++];
            *news = (struct news){.client = client, .id = output->request_id};
        }
        news->num_tokens += output->num_new_tokens;
        news->finish_reason = output->finish_reason;
    }
}

static void receive(struct world *w)
{
    for (int32_t c = 0; c < NUM_CLIENTS; c++) {
        int32_t sender;
        struct str frame;
        while (w->clients[c] && channel_receive(w->clients[c], &sender, &frame)) {
            struct message message = {0};
            struct error err = {0};
            arena_reset(&w->arena);
            assert_int_equal(message_decode(&message, frame, &w->arena, &err), STATUS_OK);
            note(w, c, &message);
        }
    }
}

static void turn(struct world *w)
{
    struct error err = {0};
    assert_int_equal(engine_core_turn(&w->core, &err), STATUS_OK);
}

// Turns the loop until `condition` holds, for five seconds at most; slowly, so that clients hear of
// a request's tokens before it has come to its end.
#define TURN_UNTIL(w, condition)                                          \
    do {                                                                  \
        int64_t deadline_ns = clock_monotonic_ns() + INT64_C(5000000000); \
        while (receive(w), !(condition)) {                                \
            assert_true(clock_monotonic_ns() < deadline_ns);              \
            turn(w);                                                      \
            usleep(1000);                                                 \
        }                                                                 \
    } while (0)

static const struct news *news_of(const struct world *w, int32_t client, uint64_t id)
{
    static const struct news none = {.finish_reason = FINISH_REASON_NONE};
    for (int32_t i = 0; i < w->num_news; i++) {
        if (w->news[i].client == client && w->news[i].id == id)
            return &w->news[i];
    }
    return &none;
}

static bool has_ended(const struct world *w, int32_t client, uint64_t id)
{
    return news_of(w, client, id)->finish_reason != FINISH_REASON_NONE;
}

static int setup_mode(void **state, bool async_scheduling)
{
    struct world *w = xcalloc(1, sizeof(*w));
    *state = w;
    strcpy(w->ipc_dir, "/tmp/test_engine_core.XXXXXX");
    struct error err = {0};
    if (!mkdtemp(w->ipc_dir) || shared_page_create(&w->page, NUM_CLIENTS, &err) != STATUS_OK)
        return -1;
    w->options.enable_chunked_prefill = TRISTATE_UNSET;
    w->options.enable_prefix_caching = TRISTATE_UNSET;
    w->options.scheduler_reserve_full_isl = true;
    w->options.disable_log_stats = true;
    w->model.vocab_size = FAKE_VOCAB_SIZE;
    w->config = (struct engine_config){
        .options = &w->options,
        .model = &w->model,
        .max_model_len = 400,
        .max_num_seqs = 4,
        .max_num_batched_tokens = 64,
        .async_scheduling = async_scheduling,
        .recorder_bytes = 1 << 20,
        .kv_cache = {.block_size = 4, .num_blocks = 300, .num_groups = 1},
    };
    engine_core_init(&w->core, &w->config, &w->page->engine);
    w->core.executor = xcalloc(1, sizeof(*w->core.executor));
    fake_worker_init(&w->core.executor->worker, &w->config.kv_cache, w->config.max_num_seqs);
    if (channel_bind(&w->core.channel, w->ipc_dir, &err) != STATUS_OK)
        return -1;
    for (int32_t c = 0; c < NUM_CLIENTS; c++) {
        if (channel_connect(&w->clients[c], w->ipc_dir, c, &err) != STATUS_OK)
            return -1;
    }
    return 0;
}

static int setup(void **state)
{
    return setup_mode(state, false);
}

static int setup_async(void **state)
{
    return setup_mode(state, true);
}

static int teardown(void **state)
{
    struct world *w = *state;
    for (int32_t c = 0; c < NUM_CLIENTS; c++)
        channel_close(w->clients[c]);
    engine_core_deinit(&w->core);
    shared_page_destroy(w->page);
    arena_deinit(&w->arena);
    char path[96];
    snprintf(path, sizeof(path), "%s/engine", w->ipc_dir);
    unlink(path);
    int status = rmdir(w->ipc_dir);
    free(w);
    return status;
}

static void a_greeted_client_gets_its_tokens_to_the_end(void **state)
{
    struct world *w = *state;
    hello(w, 0);
    hello(w, 1);
    add(w, 0, 11, 5);
    add(w, 1, 12, 7);
    TURN_UNTIL(w, has_ended(w, 0, 11) && has_ended(w, 1, 12));
    assert_int_equal(w->num_welcomes[0], 1);
    assert_int_equal(news_of(w, 0, 11)->num_tokens, 5);
    assert_int_equal(news_of(w, 1, 12)->num_tokens, 7);
    assert_int_equal(news_of(w, 0, 11)->finish_reason, FINISH_REASON_LENGTH);
    assert_int_equal(w->num_news, 2); // nobody heard of the other's
}

static void what_comes_before_hello_was_for_an_earlier_engine(void **state)
{
    struct world *w = *state;
    add(w, 0, 11, 5);
    hello(w, 0);
    TURN_UNTIL(w, w->num_welcomes[0] == 1);
    assert_int_equal(w->core.scheduler.requests.len, 0);
    add(w, 0, 11, 5);
    TURN_UNTIL(w, has_ended(w, 0, 11));
}

static void hello_again_drops_the_earlier_life(void **state)
{
    struct world *w = *state;
    hello(w, 0);
    add(w, 0, 11, 300);
    TURN_UNTIL(w, news_of(w, 0, 11)->num_tokens > 2);
    hello(w, 0);
    add(w, 0, 11, 4); // the same request, sent again
    w->num_news = 0;
    TURN_UNTIL(w, has_ended(w, 0, 11));
    assert_int_equal(w->num_welcomes[0], 2);
    assert_int_equal(w->core.scheduler.requests.len, 0);
}

static void garbage_costs_its_sender_alone(void **state)
{
    struct world *w = *state;
    const struct message not_for_engines = {.kind = MESSAGE_WELCOME,
                                            .welcome = {.version = 1, .generation = 1}};
    for (int32_t kind = 0; kind < 3; kind++) {
        w->num_news = 0;
        uint64_t base = 100 * (uint64_t)kind;
        hello(w, 0);
        hello(w, 1);
        add(w, 0, base + 1, 300);
        add(w, 1, base + 2, 30);
        TURN_UNTIL(w, news_of(w, 0, base + 1)->num_tokens > 2);
        struct error err = {0};
        if (kind == 0)
            assert_int_equal(channel_send(w->clients[0], 0, STR("\xc1 garbage"), &err), STATUS_OK);
        else if (kind == 1)
            send_message(w, 0, &not_for_engines);
        else
            add(w, 0, base + 1, 5); // an id that is live
        TURN_UNTIL(w, has_ended(w, 0, base + 1) && has_ended(w, 1, base + 2));
        assert_int_equal(news_of(w, 0, base + 1)->finish_reason, FINISH_REASON_ERROR);
        assert_int_equal(news_of(w, 1, base + 2)->finish_reason, FINISH_REASON_LENGTH);
        add(w, 0, base + 3, 5); // it is not left without an answer
        TURN_UNTIL(w, has_ended(w, 0, base + 3));
        assert_int_equal(news_of(w, 0, base + 3)->finish_reason, FINISH_REASON_ERROR);
        hello(w, 0);
        add(w, 0, base + 4, 5);
        TURN_UNTIL(w, has_ended(w, 0, base + 4));
        assert_int_equal(news_of(w, 0, base + 4)->finish_reason, FINISH_REASON_LENGTH);
    }
}

static void another_version_or_name_is_refused(void **state)
{
    struct world *w = *state;
    for (int32_t i = 0; i < 2; i++) {
        send_message(
            w, 0,
            &(struct message){.kind = MESSAGE_HELLO,
                              .hello = {.version = MESSAGE_VERSION + (i == 0), .client_index = i}});
        add(w, 0, 20 + (uint64_t)i, 5);
        TURN_UNTIL(w, has_ended(w, 0, 20 + (uint64_t)i));
        assert_int_equal(news_of(w, 0, 20 + (uint64_t)i)->finish_reason, FINISH_REASON_ERROR);
    }
}

static void a_request_for_another_runner_is_refused(void **state)
{
    struct world *w = *state; // it generates
    static const int32_t tokens[] = {1, 2, 3};
    struct message message = {.kind = MESSAGE_ADD,
                              .add = {
                                  .num_prompt_tokens = ARRAY_LEN(tokens),
                                  .prompt_token_ids = tokens,
                                  .pooling = {POOLING_LAST, true, 0},
                                  .sampling = {.top_p = 1,
                                               .repetition_penalty = 1,
                                               .max_tokens = 1,
                                               .eos_token_id = -1,
                                               .num_logprobs = -1,
                                               .num_prompt_logprobs = -1},
                              }};
    hello(w, 0);
    add(w, 0, 30, 400);
    message.add.request_id = 31;
    send_message(w, 0, &message);
    TURN_UNTIL(w, has_ended(w, 0, 30)); // what the client had ends with it
    assert_int_equal(news_of(w, 0, 30)->finish_reason, FINISH_REASON_ERROR);
    hello(w, 0);
    add(w, 0, 32, 5);
    TURN_UNTIL(w, has_ended(w, 0, 32));
    assert_int_equal(news_of(w, 0, 32)->finish_reason, FINISH_REASON_LENGTH);
}

// One state, from which every byte leads back to it.
static const uint32_t ANY_TEXT[] = {1, 0 | AUTOMATON_ACCEPTS, 1, 0xff00};

static void what_waits_for_a_grammar_holds_nobody_back(void **state)
{
    struct world *w = *state;
    hello(w, 0);
    hello(w, 1);
    w->core.executor->is_loading = true;
    for (uint64_t id = 11; id <= 14; id++)
        add_constrained(w, id == 14, id, 5, ANY_TEXT, ARRAY_LEN(ANY_TEXT));
    add(w, 0, 20, 30);
    TURN_UNTIL(w, has_ended(w, 0, 20) && w->core.held.len == 4);
    assert_int_equal(atomic_load(&w->page->engine.num_waiting), 4);
    assert_true(engine_core_has_work(&w->core));
    assert_int_equal(w->core.scheduler.requests.len, 0);
    struct request_history history[2];
    assert_int_equal(held_requests_histories(&w->core.held, 0, 5, history, 2), 2);
    assert_int_equal(history[0].state, REQUEST_WAITING);
    assert_true(history[0].num_held_steps[HOLD_GRAMMAR] > 0);

    const uint64_t gone = 12; // one is aborted, and one client begins anew
    send_message(w, 0, &(struct message){.kind = MESSAGE_ABORT, .abort = {1, &gone}});
    hello(w, 1);
    TURN_UNTIL(w, w->core.held.len == 2);
    w->core.executor->is_loading = false;
    TURN_UNTIL(w, has_ended(w, 0, 11) && has_ended(w, 0, 13));
    assert_int_equal(news_of(w, 0, 11)->num_tokens, 5);
    assert_false(has_ended(w, 0, 12) || has_ended(w, 1, 14));
    assert_false(engine_core_has_work(&w->core));
}

static void a_client_that_is_refused_hears_of_what_was_held(void **state)
{
    struct world *w = *state;
    hello(w, 0);
    w->core.executor->is_loading = true;
    add_constrained(w, 0, 11, 5, ANY_TEXT, ARRAY_LEN(ANY_TEXT));
    TURN_UNTIL(w, w->core.held.len == 1);
    struct error err = {0};
    assert_int_equal(channel_send(w->clients[0], 0, STR("\xc1 garbage"), &err), STATUS_OK);
    TURN_UNTIL(w, has_ended(w, 0, 11));
    assert_int_equal(news_of(w, 0, 11)->finish_reason, FINISH_REASON_ERROR);
    hello(w, 0);
    add_constrained(w, 0, 12, 5, ANY_TEXT, ARRAY_LEN(ANY_TEXT));
    TURN_UNTIL(w, w->core.held.len == 1);
    engine_core_abort_all(&w->core); // as when the engine stops
    TURN_UNTIL(w, has_ended(w, 0, 12));
    assert_int_equal(news_of(w, 0, 12)->finish_reason, FINISH_REASON_ABORT);
}

static void automata_beyond_the_room_for_them_wait_for_others_to_end(void **state)
{
    struct world *w = *state;
    // As large as can be: a state for each edge, and many of them.
    enum { NUM_STATES = MAX_AUTOMATON_STATES, NUM_WORDS = 2 * NUM_STATES + 2 };
    uint32_t *words = xcalloc(NUM_WORDS, sizeof(*words));
    words[0] = NUM_STATES;
    for (uint32_t i = 0; i < NUM_STATES; i++) {
        words[1 + i] = i | AUTOMATON_ACCEPTS;
        words[NUM_STATES + 2 + i] = automaton_edge(0, 0, 255);
    }
    words[1 + NUM_STATES] = NUM_STATES;
    const int32_t num_fitting = MAX_LIVE_AUTOMATON_WORDS / NUM_WORDS;
    hello(w, 0);
    for (int32_t i = 0; i < num_fitting + 2; i++)
        add_constrained(w, 0, 100 + (uint64_t)i, 20, words, NUM_WORDS);
    TURN_UNTIL(w, w->core.held.len == 2);
    assert_true(w->core.scheduler.num_automaton_words <= MAX_LIVE_AUTOMATON_WORDS);
    TURN_UNTIL(w, has_ended(w, 0, 100 + (uint64_t)num_fitting + 1));
    for (int32_t i = 0; i < num_fitting + 2; i++)
        assert_int_equal(news_of(w, 0, 100 + (uint64_t)i)->num_tokens, 20);
    assert_int_equal(w->core.scheduler.num_automaton_words, 0);
    free(words);
}

static void an_abort_during_a_step_leaves_no_output(void **state)
{
    struct world *w = *state;
    hello(w, 0);
    add(w, 0, 11, 300);
    TURN_UNTIL(w, news_of(w, 0, 11)->num_tokens > 2);
    if (w->core.scheduler.in_flight == 0)
        assert_true(engine_core_begin_step(&w->core));
    if (w->config.async_scheduling && w->core.scheduler.in_flight == 1)
        assert_true(engine_core_begin_step(&w->core));
    const uint64_t id = 11;
    const struct message abort = {.kind = MESSAGE_ABORT, .abort = {.num_ids = 1, .ids = &id}};
    struct buf frame = {0};
    message_encode(&frame, &abort);
    engine_core_handle(&w->core, 0, buf_str(&frame));
    buf_deinit(&frame);
    struct error err = {0};
    do {
        assert_int_equal(engine_core_end_step(&w->core, &err), STATUS_OK);
        assert_int_equal(w->core.outputs[0].num_outputs, 0);
    } while (w->core.scheduler.in_flight > 0);
    assert_int_equal(block_pool_num_used(&w->core.scheduler.kv.pool), 0);
    assert_int_equal(atomic_load(&w->page->engine.num_used_blocks), 0);
    assert_int_equal(atomic_load(&w->page->engine.num_running), 0);
}

static void the_prefix_cache_is_reset_only_while_no_block_is_used(void **state)
{
    struct world *w = *state;
    const struct message reset = {.kind = MESSAGE_RESET_PREFIX_CACHE,
                                  .reset_prefix_cache = {.call_id = 5}};
    hello(w, 0);
    add(w, 0, 11, 300);
    TURN_UNTIL(w, news_of(w, 0, 11)->num_tokens > 2);
    send_message(w, 0, &reset);
    TURN_UNTIL(w, w->num_replies[0] == 1);
    assert_false(w->reply_ok);
    TURN_UNTIL(w, has_ended(w, 0, 11));
    send_message(w, 0, &reset);
    TURN_UNTIL(w, w->num_replies[0] == 2);
    assert_true(w->reply_ok);
}

static void the_page_tells_gauges_counters_and_facts(void **state)
{
    struct world *w = *state;
    struct engine_page *page = &w->page->engine;
    atomic_store(&page->num_generated_tokens, 1000); // an earlier engine's
    engine_core_publish_facts(&w->core, &w->config);
    assert_int_equal(atomic_load(&page->num_blocks), 300);
    assert_int_equal(atomic_load(&page->kv_cache_size_tokens), 1200);
    assert_true(atomic_load(&page->kv_cache_max_concurrency) == 3.0);
    hello(w, 0);
    add(w, 0, 11, 6);
    TURN_UNTIL(w, atomic_load(&page->num_running) == 1); // after its first step
    assert_int_equal(atomic_load(&page->num_used_blocks), 3);
    assert_int_equal(atomic_load(&page->num_computed_prompt_tokens), 9);
    TURN_UNTIL(w, has_ended(w, 0, 11));
    assert_int_equal(atomic_load(&page->num_running), 0);
    assert_int_equal(atomic_load(&page->num_used_blocks), 0);
    assert_int_equal(atomic_load(&page->num_generated_tokens), 1006);
    assert_int_equal(atomic_load(&page->num_steps), 6);
    // 9 prompt tokens and one drawn: the bucket up to 16; then steps of one token.
    assert_int_equal(atomic_load(&page->iteration_tokens_buckets[2]), 1);
    assert_int_equal(atomic_load(&page->iteration_tokens_buckets[0]), 5);
    assert_int_equal(atomic_load(&page->iteration_tokens_sum), 15);
    assert_int_equal(atomic_load(&page->prefix_cache_queries), 9);
    assert_int_equal(atomic_load(&page->step_start_ns), 0);
    assert_true(clock_monotonic_ns() - atomic_load(&page->heartbeat_ns) < INT64_C(5000000000));
}

static void a_stopping_engine_takes_nothing_new(void **state)
{
    struct world *w = *state;
    hello(w, 0);
    add(w, 0, 11, 200);
    TURN_UNTIL(w, news_of(w, 0, 11)->num_tokens > 0);
    w->core.stopping = true;
    add(w, 0, 12, 20);
    TURN_UNTIL(w, has_ended(w, 0, 11) && has_ended(w, 0, 12));
    assert_int_equal(news_of(w, 0, 11)->finish_reason, FINISH_REASON_LENGTH);
    assert_int_equal(news_of(w, 0, 12)->finish_reason, FINISH_REASON_ABORT);
}

static void requests_of_a_client_that_vanished_are_dropped(void **state)
{
    struct world *w = *state;
    hello(w, 0);
    hello(w, 1);
    add(w, 0, 11, 380);
    add(w, 1, 12, 5);
    TURN_UNTIL(w, news_of(w, 0, 11)->num_tokens > 2 && has_ended(w, 1, 12));
    channel_close(w->clients[0]);
    w->clients[0] = NULL;
    usleep(200000);
    turn(w);
    turn(w);
    assert_int_equal(w->core.scheduler.requests.len, 0);
    add(w, 1, 13, 5);
    TURN_UNTIL(w, has_ended(w, 1, 13));
}

// It has not read for long: what is lost is the end of what it gets, it can see that it was
// dropped, and after HELLO it has its request from where it is.
static void a_client_whose_queue_is_full_is_dropped_and_can_see_it(void **state)
{
    struct world *w = *state;
    struct error err = {0};
    struct buf frame = {0};
    hello(w, 0);
    add(w, 0, 11, 300);
    TURN_UNTIL(w, news_of(w, 0, 11)->num_tokens > 2);
    assert_int_equal(w->core.clients[0], CLIENT_GREETED);
    message_encode(&frame, &(struct message){.kind = MESSAGE_REPLY, .reply = {.call_id = 1}});
    enum status status = STATUS_OK;
    int32_t num_sent = 0, expected = w->num_replies[0];
    // ZeroMQ's thread goes on passing frames to the other end until that is full, too.
    for (int32_t num_refused = 0; num_refused < 100; num_refused++) {
        while ((status = channel_send(w->core.channel, 0, buf_str(&frame), &err)) == STATUS_OK)
            assert_true(num_sent++ < 10000000);
        usleep(2000);
    }
    assert_int_equal(status, STATUS_UNAVAILABLE);
    buf_deinit(&frame);
    for (int i = 0; i < 1000 && w->core.clients[0] == CLIENT_GREETED; i++)
        turn(w);
    assert_int_equal(w->core.clients[0], CLIENT_UNKNOWN);
    assert_int_equal(w->core.scheduler.requests.len, 0);
    assert_int_equal(atomic_load(&w->page->engine.num_losses[0]), 1);
    assert_int_equal(atomic_load(&w->page->engine.num_losses[1]), 0);

    TURN_UNTIL(w, w->num_replies[0] == expected + num_sent); // all that was said before is heard
    hello(w, 0);
    TURN_UNTIL(w, w->num_welcomes[0] == 2);
    assert_int_equal(w->num_losses[0], 1);
    add(w, 0, 11, 300);
    TURN_UNTIL(w, has_ended(w, 0, 11));
}

// What `core` logs ten seconds after its last line of statistics; `text` has room for 1024 bytes.
static void stats_line(struct world *w, char *text)
{
    int out = dup(STDOUT_FILENO);
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    engine_core_log_stats(&w->core, w->core.reports.logged_ns + INT64_C(9000000000));
    engine_core_log_stats(&w->core, w->core.reports.logged_ns + INT64_C(10000000000));
    dup2(out, STDOUT_FILENO);
    close(out);
    rewind(file);
    text[fread(text, 1, 1023, file)] = '\0';
    fclose(file);
}

static void the_line_of_statistics_reads_as_log_scrapers_expect(void **state)
{
    struct world *w = *state;
    char text[1024];
    w->options.log_stats_interval_s = 10;
    stats_line(w, text);
    assert_string_equal(text, ""); // --disable-log-stats
    w->options.disable_log_stats = false;
    hello(w, 0);
    add(w, 0, 11, 380);
    TURN_UNTIL(w, w->core.scheduler.stats.num_generated_tokens == 50);
    stats_line(w, text);
    assert_non_null(
        strstr(text, "Engine 000: Avg prompt throughput: 0.9 tokens/s, Avg generation throughput: "
                     "5.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 5.0%, "
                     "Prefix cache hit rate: 0.0%\n"));
    const uint64_t id = 11;
    scheduler_abort(&w->core.scheduler, 0, &id, 1, FINISH_REASON_NONE);
    stats_line(w, text);
    assert_non_null(strstr(text, "generation throughput: 0.0 tokens/s, Running: 0 reqs"));
    stats_line(w, text); // then silence
    assert_string_equal(text, "");
}

static char hang_dir[64];

static int is_recording(const struct dirent *entry)
{
    return strncmp(entry->d_name, "vllm-recording-", 15) == 0;
}

// A step that waits for what another thread of the engine does meanwhile.
static void hang_until_a_recording_is_there(void)
{
    kill(getpid(), SIGUSR2);
    for (int i = 0; i < 10000; i++) {
        struct dirent **names;
        int num_names = scandir(hang_dir, &names, is_recording, alphasort);
        for (int k = 0; k < num_names; k++)
            free(names[k]);
        if (num_names >= 0)
            free(names);
        if (num_names > 0)
            return;
        usleep(1000);
    }
    fail_msg("nothing is recorded while a step hangs");
}

static void a_signal_writes_the_recording_even_while_a_step_hangs(void **state)
{
    struct world *w = *state;
    struct error err = {0};
    strcpy(hang_dir, "/tmp/test_engine_core_dump.XXXXXX");
    assert_non_null(mkdtemp(hang_dir));
    dump_thread_block_signal();
    assert_int_equal(dump_thread_start(&w->core.dump_thread, &w->core.recorder, hang_dir, &err),
                     STATUS_OK);
    hello(w, 0);
    add(w, 0, 11, 300);
    TURN_UNTIL(w, news_of(w, 0, 11)->num_tokens > 20);
    w->core.executor->hang = hang_until_a_recording_is_there;
    turn(w);
    w->core.executor->hang = NULL;
    dump_thread_stop(w->core.dump_thread); // the file is whole
    w->core.dump_thread = NULL;

    char path[128];
    snprintf(path, sizeof(path), "%s/vllm-recording-%d-0.bin", hang_dir, (int)getpid());
    struct mapped_file file;
    assert_int_equal(mapped_file_open(&file, path, &err), STATUS_OK);
    struct replay_report report;
    assert_int_equal(replay_run(mapped_file_str(&file), 0, &report, &err), STATUS_OK);
    assert_int_equal(report.num_added, 1);
    assert_true(report.num_steps > 20);
    assert_false(report.is_cut);
    mapped_file_close(&file);
    unlink(path);
    rmdir(hang_dir);
}

static void a_failed_step_is_told_to_the_loop(void **state)
{
    struct world *w = *state;
    hello(w, 0);
    add(w, 0, 11, 300);
    TURN_UNTIL(w, news_of(w, 0, 11)->num_tokens > 0);
    w->core.executor->fails = true;
    struct error err = {0};
    engine_core_begin_step(&w->core);
    assert_int_equal(engine_core_end_step(&w->core, &err), STATUS_INTERNAL);
    assert_string_equal(err.message, "the device is gone");
}

static void a_step_is_given_out_while_another_runs(void **state)
{
    struct world *w = *state;
    hello(w, 0);
    add(w, 0, 11, 40);
    TURN_UNTIL(w, has_ended(w, 0, 11));
    assert_int_equal(news_of(w, 0, 11)->num_tokens, 40);
    assert_int_equal(w->core.executor->most_steps, MAX_STEPS_IN_FLIGHT);
    while (w->core.scheduler.in_flight > 0)
        turn(w);
    assert_int_equal(atomic_load(&w->page->engine.num_generated_tokens), 40);
    assert_int_equal(atomic_load(&w->page->engine.step_start_ns), 0);
}

int main(void)
{
#define ASYNC_TEST(name)                                    \
    {                                                       \
#name " (async)", name, setup_async, teardown, NULL \
    }
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_greeted_client_gets_its_tokens_to_the_end),
        TEST(what_comes_before_hello_was_for_an_earlier_engine),
        TEST(hello_again_drops_the_earlier_life),
        TEST(garbage_costs_its_sender_alone),
        TEST(another_version_or_name_is_refused),
        TEST(a_request_for_another_runner_is_refused),
        TEST(what_waits_for_a_grammar_holds_nobody_back),
        TEST(a_client_that_is_refused_hears_of_what_was_held),
        TEST(automata_beyond_the_room_for_them_wait_for_others_to_end),
        TEST(an_abort_during_a_step_leaves_no_output),
        TEST(the_prefix_cache_is_reset_only_while_no_block_is_used),
        TEST(the_page_tells_gauges_counters_and_facts),
        TEST(a_stopping_engine_takes_nothing_new),
        TEST(requests_of_a_client_that_vanished_are_dropped),
        TEST(a_client_whose_queue_is_full_is_dropped_and_can_see_it),
        TEST(the_line_of_statistics_reads_as_log_scrapers_expect),
        TEST(a_signal_writes_the_recording_even_while_a_step_hangs),
        TEST(a_failed_step_is_told_to_the_loop),
        ASYNC_TEST(a_step_is_given_out_while_another_runs),
        ASYNC_TEST(a_greeted_client_gets_its_tokens_to_the_end),
        ASYNC_TEST(hello_again_drops_the_earlier_life),
        ASYNC_TEST(garbage_costs_its_sender_alone),
        ASYNC_TEST(an_abort_during_a_step_leaves_no_output),
        ASYNC_TEST(the_prefix_cache_is_reset_only_while_no_block_is_used),
        ASYNC_TEST(a_stopping_engine_takes_nothing_new),
        ASYNC_TEST(requests_of_a_client_that_vanished_are_dropped),
        ASYNC_TEST(a_failed_step_is_told_to_the_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
