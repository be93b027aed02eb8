// When steps are decided while others run: the real loop and scheduler with a fake clock. A channel
// and an executor take the place of the real ones, and of the clock, by having their names; nothing
// but them lets time pass.
#include "engine/fake_worker.h"

#include "base/clock.h"
#include "engine/engine_core.h"
#include "message/shared_page.h"

enum { MAX_FRAMES = 64, MAX_STEPS = 512, US = 1000, MS = 1000000, MARGIN_NS = 300 * US };

/** A message on its way. */
struct frame {
    int64_t at_ns;
    struct buf bytes;
};

/** What became of a step. */
struct run {
    int64_t submitted_ns, start_ns, end_ns;
    int32_t num_rows, num_tokens;
};

static struct {
    int64_t now_ns;
    struct frame frames[MAX_FRAMES];
    int32_t num_frames, num_received;
    int32_t num_tokens, num_ended; // told to the client
    struct run runs[MAX_STEPS];
    int32_t num_runs, num_collected;
    int64_t decode_ns, prompt_ns, host_ns; // a step takes so long, and so does submitting it
    int64_t oversleep_ns;                  // waits take so much longer than asked
} fake;

int64_t clock_monotonic_ns(void)
{
    return fake.now_ns;
}

int64_t clock_wall_ns(void)
{
    return fake.now_ns;
}

// ---- the channel -----------------------------------------------------------------------------

struct channel {
    struct arena arena;
};

enum status channel_bind(struct channel **out, const char *ipc_dir, struct error *err)
{
    (void)ipc_dir, (void)err;
    *out = xcalloc(1, sizeof(**out));
    return STATUS_OK;
}

enum status channel_connect(struct channel **out, const char *ipc_dir, int32_t client_index,
                            struct error *err)
{
    (void)client_index;
    return channel_bind(out, ipc_dir, err);
}

void channel_close(struct channel *channel)
{
    arena_deinit(&channel->arena);
    free(channel);
}

int channel_fd(const struct channel *channel)
{
    (void)channel;
    return -1;
}

enum status channel_send(struct channel *channel, int32_t client_index, struct str frame,
                         struct error *err)
{
    struct message message = {0};
    assert_int_equal(client_index, 0);
    arena_reset(&channel->arena);
    assert_int_equal(message_decode(&message, frame, &channel->arena, err), STATUS_OK);
    for (int32_t i = 0; message.kind == MESSAGE_OUTPUTS && i < message.outputs.num_outputs; i++) {
        fake.num_tokens += message.outputs.outputs[i].num_new_tokens;
        fake.num_ended += message.outputs.outputs[i].finish_reason != FINISH_REASON_NONE;
    }
    return STATUS_OK;
}

bool channel_receive(struct channel *channel, int32_t *client_index, struct str *frame)
{
    (void)channel;
    const struct frame *next = &fake.frames[fake.num_received];
    if (fake.num_received == fake.num_frames || next->at_ns > fake.now_ns)
        return false;
    fake.num_received++;
    *client_index = 0;
    *frame = buf_str(&next->bytes);
    return true;
}

void channel_wait(struct channel *channel, int64_t timeout_ns)
{
    (void)channel;
    assert_true(timeout_ns > 0); // or the loop would spin
    int64_t until_ns = fake.now_ns + timeout_ns;
    if (fake.num_received < fake.num_frames)
        until_ns = min_i64(until_ns, fake.frames[fake.num_received].at_ns);
    fake.now_ns = max_i64(fake.now_ns, until_ns) + fake.oversleep_ns;
}

// ---- the executor ----------------------------------------------------------------------------

struct executor {
    struct fake_worker worker;
    const struct scheduler_output *steps[MAX_STEPS_IN_FLIGHT]; // by number
};

enum tokens_state executor_poll_tokens(struct executor *executor)
{
    (void)executor;
    return TOKENS_READY;
}

void executor_submit(struct executor *executor, const struct scheduler_output *step)
{
    assert_true(fake.num_runs < MAX_STEPS);
    fake.now_ns += fake.host_ns;
    struct run *run = &fake.runs[fake.num_runs];
    executor->steps[fake.num_runs++ % MAX_STEPS_IN_FLIGHT] = step;
    bool decodes = step->num_scheduled_tokens == step->num_rows;
    *run = (struct run){.submitted_ns = fake.now_ns,
                        .start_ns = fake.now_ns,
                        .num_rows = step->num_rows,
                        .num_tokens = step->num_scheduled_tokens};
    if (fake.num_runs > 1)
        run->start_ns = max_i64(fake.now_ns, run[-1].end_ns);
    run->end_ns = run->start_ns + (decodes ? fake.decode_ns : fake.prompt_ns);
}

bool executor_has_ended(struct executor *executor)
{
    (void)executor;
    return fake.num_collected == fake.num_runs ||
           fake.now_ns >= fake.runs[fake.num_collected].end_ns;
}

enum status executor_collect(struct executor *executor, struct model_runner_output *result,
                             struct error *err)
{
    (void)err;
    assert_true(fake.num_collected < fake.num_runs);
    fake.now_ns = max_i64(fake.now_ns, fake.runs[fake.num_collected].end_ns);
    fake_worker_run(&executor->worker, executor->steps[fake.num_collected++ % MAX_STEPS_IN_FLIGHT],
                    result);
    return STATUS_OK;
}

void executor_destroy(struct executor *executor)
{
    fake_worker_deinit(&executor->worker);
    free(executor);
}

// ---- the engine ------------------------------------------------------------------------------

struct world {
    struct shared_page *page;
    struct serve_options options;
    struct model_config model;
    struct engine_config config;
    struct engine_core core;
};

/** `at_ns`: not before those that were sent. */
static void send_at(int64_t at_ns, const struct message *message)
{
    assert_true(fake.num_frames < MAX_FRAMES);
    struct frame *frame = &fake.frames[fake.num_frames++];
    frame->at_ns = at_ns;
    message_encode(&frame->bytes, message);
}

static void add_at(int64_t at_ns, uint64_t id, int32_t max_tokens)
{
    const int32_t tokens[] = {(int32_t)id, 2, 3, 4, 5, 6, 7, 8, 9}; // nobody else's
    send_at(at_ns, &(struct message){.kind = MESSAGE_ADD,
                                     .add = {.request_id = id,
                                             .num_prompt_tokens = ARRAY_LEN(tokens),
                                             .prompt_token_ids = tokens,
                                             .sampling = {.top_p = 1,
                                                          .repetition_penalty = 1,
                                                          .max_tokens = max_tokens,
                                                          .eos_token_id = -1,
                                                          .num_logprobs = -1,
                                                          .num_prompt_logprobs = -1}}});
}

static void open_engine(struct world *w)
{
    struct error err = {0};
    engine_core_init(&w->core, &w->config, &w->page->engine);
    w->core.executor = xcalloc(1, sizeof(*w->core.executor));
    fake_worker_init(&w->core.executor->worker, &w->config.kv_cache, w->config.max_num_seqs);
    assert_int_equal(channel_bind(&w->core.channel, "", &err), STATUS_OK);
}

static int setup(void **state)
{
    struct world *w = xcalloc(1, sizeof(*w));
    struct error err = {0};
    *state = w;
    memset(&fake, 0, sizeof(fake));
    fake.now_ns = 1000 * (int64_t)MS;
    fake.decode_ns = 5 * MS;
    fake.prompt_ns = 20 * MS;
    fake.host_ns = 60 * US;
    w->options.enable_prefix_caching = w->options.enable_chunked_prefill = TRISTATE_UNSET;
    w->options.disable_log_stats = true;
    w->model.vocab_size = FAKE_VOCAB_SIZE;
    w->config = (struct engine_config){
        .options = &w->options,
        .model = &w->model,
        .max_model_len = 400,
        .max_num_seqs = 4,
        .max_num_batched_tokens = 64,
        .device = DEVICE_CUDA,
        .async_scheduling = true,
        .recorder_bytes = 1 << 20,
        .kv_cache = {.block_size = 4, .num_blocks = 300, .num_groups = 1},
    };
    if (shared_page_create(&w->page, 1, &err) != STATUS_OK)
        return -1;
    open_engine(w);
    send_at(0, &(struct message){.kind = MESSAGE_HELLO, .hello = {.version = MESSAGE_VERSION}});
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    engine_core_deinit(&w->core);
    shared_page_destroy(w->page);
    for (int32_t i = 0; i < fake.num_frames; i++)
        buf_deinit(&fake.frames[i].bytes);
    free(w);
    return 0;
}

static void turn(struct world *w)
{
    struct error err = {0};
    assert_int_equal(engine_core_turn(&w->core, &err), STATUS_OK);
}

static void turn_until_runs(struct world *w, int32_t num_runs)
{
    for (int32_t i = 0; fake.num_runs < num_runs; i++) {
        assert_true(i < 4 * MAX_STEPS);
        turn(w);
    }
}

/** How long the device had nothing to do before a step. */
static int64_t gap_before(int32_t run)
{
    return fake.runs[run].start_ns - fake.runs[run - 1].end_ns;
}

// ---- tests -----------------------------------------------------------------------------------

static void without_a_prediction_the_next_step_is_decided_at_once(void **state)
{
    struct world *w = *state;
    add_at(fake.now_ns, 1, 300);
    turn_until_runs(w, 2);
    assert_int_equal(fake.runs[0].num_tokens, 9);
    assert_int_equal(fake.runs[1].submitted_ns, fake.runs[0].submitted_ns + fake.host_ns);
    turn_until_runs(w, 3); // the first that only decodes is new, too
    assert_int_equal(fake.runs[2].submitted_ns, fake.runs[0].end_ns + fake.host_ns);
}

static void the_next_step_is_decided_shortly_before_one_ends(void **state)
{
    struct world *w = *state;
    add_at(fake.now_ns, 1, 300);
    turn_until_runs(w, 40);
    for (int32_t i = 8; i < 40; i++) {
        assert_int_equal(gap_before(i), 0);
        int64_t decided_ns = fake.runs[i].submitted_ns - fake.host_ns;
        assert_int_equal(fake.runs[i - 1].end_ns - decided_ns, MARGIN_NS);
    }
}

static void a_request_that_arrives_while_a_step_runs_is_in_the_next(void **state)
{
    struct world *w = *state;
    add_at(fake.now_ns, 1, 300);
    turn_until_runs(w, 20);
    add_at(fake.runs[19].start_ns + 4 * MS, 2, 300);
    turn_until_runs(w, 30);
    assert_int_equal(fake.runs[19].num_rows, 1);
    assert_int_equal(fake.runs[20].num_rows, 2);
    assert_int_equal(fake.runs[20].num_tokens, 10);
    assert_int_equal(gap_before(20), 0);
}

static void a_step_that_ends_early_is_noticed_within_the_margin(void **state)
{
    struct world *w = *state;
    add_at(fake.now_ns, 1, 300);
    turn_until_runs(w, 20);
    fake.decode_ns = 2 * MS;
    turn_until_runs(w, 60);
    int32_t num_gaps = 0;
    for (int32_t i = 20; i < 60; i++) {
        assert_in_range(gap_before(i), 0, MARGIN_NS + fake.host_ns);
        num_gaps += gap_before(i) > 0;
    }
    assert_int_equal(num_gaps, 1); // the overlap of one step
    assert_true(fake.runs[59].submitted_ns - fake.host_ns >= fake.runs[58].end_ns - MARGIN_NS);
}

static void a_step_that_takes_longer_is_not_hurried(void **state)
{
    struct world *w = *state;
    add_at(fake.now_ns, 1, 300);
    turn_until_runs(w, 20);
    fake.decode_ns = 9 * MS;
    turn_until_runs(w, 40);
    for (int32_t i = 20; i < 40; i++)
        assert_int_equal(gap_before(i), 0);
    int64_t decided_ns = fake.runs[39].submitted_ns - fake.host_ns;
    assert_int_equal(fake.runs[38].end_ns - decided_ns, MARGIN_NS);
}

static void a_host_that_becomes_slow_begins_earlier(void **state)
{
    struct world *w = *state;
    add_at(fake.now_ns, 1, 380);
    turn_until_runs(w, 20);
    fake.host_ns = 900 * US;
    turn_until_runs(w, 120);
    int32_t num_gaps = 0;
    for (int32_t i = 20; i < 120; i++)
        num_gaps += gap_before(i) > 0;
    assert_in_range(num_gaps, 1, 3); // until that is known
    for (int32_t i = 60; i < 120; i++) {
        int64_t decided_ns = fake.runs[i].submitted_ns - fake.host_ns;
        assert_in_range(fake.runs[i - 1].end_ns - decided_ns, 2 * fake.host_ns, 3 * fake.host_ns);
    }
}

static void a_host_that_wakes_up_late_begins_earlier(void **state)
{
    struct world *w = *state;
    add_at(fake.now_ns, 1, 380);
    fake.oversleep_ns = 600 * US;
    turn_until_runs(w, 200);
    int32_t num_gaps = 0;
    for (int32_t i = 100; i < 200; i++)
        num_gaps += gap_before(i) > 0;
    assert_int_equal(num_gaps, 0);
    assert_true(fake.runs[199].submitted_ns > fake.runs[198].start_ns + 2 * MS); // not at once
}

static void one_long_delay_is_forgotten(void **state)
{
    struct world *w = *state;
    add_at(fake.now_ns, 1, 380);
    turn_until_runs(w, 20);
    fake.oversleep_ns = 500 * MS;
    turn(w);
    fake.oversleep_ns = 0;
    turn_until_runs(w, 200);
    assert_true(gap_before(20) > 0);
    for (int32_t i = 100; i < 200; i++) {
        int64_t decided_ns = fake.runs[i].submitted_ns - fake.host_ns;
        assert_in_range(fake.runs[i - 1].end_ns - decided_ns, MARGIN_NS, 2 * MARGIN_NS);
    }
}

static void a_cpu_is_given_the_next_step_at_once(void **state)
{
    struct world *w = *state;
    engine_core_deinit(&w->core);
    w->config.device = DEVICE_CPU;
    open_engine(w);
    add_at(fake.now_ns, 1, 300);
    turn_until_runs(w, 40);
    for (int32_t i = 2; i < 40; i++)
        assert_int_equal(fake.runs[i].submitted_ns, fake.runs[i - 2].end_ns + fake.host_ns);
}

static void everybody_may_leave_while_a_step_runs(void **state)
{
    struct world *w = *state;
    static const uint64_t ids[] = {1, 2};
    add_at(fake.now_ns, 1, 300);
    add_at(fake.now_ns, 2, 300);
    turn_until_runs(w, 20);
    send_at(fake.runs[19].start_ns + 1 * MS,
            &(struct message){.kind = MESSAGE_ABORT, .abort = {ARRAY_LEN(ids), ids}});
    for (int32_t i = 0; i < 4; i++)
        turn(w);
    assert_int_equal(fake.num_runs, 20);
    assert_int_equal(fake.num_collected, 20);
    assert_false(engine_core_has_work(&w->core));
    assert_int_equal(block_pool_num_used(&w->core.scheduler.kv.pool), 0);
    assert_int_equal(fake.num_ended, 0);
    assert_int_equal(fake.num_tokens, 2 * 19); // nothing of the step in which they left
}

static void an_engine_without_work_waits_for_messages(void **state)
{
    struct world *w = *state;
    turn(w);
    int64_t idle_ns = fake.now_ns;
    turn(w);
    assert_int_equal(fake.now_ns - idle_ns, 100 * MS);
    int64_t at_ns = fake.now_ns + 30 * MS;
    add_at(at_ns, 1, 5);
    turn_until_runs(w, 1);
    assert_int_equal(fake.runs[0].submitted_ns, at_ns + fake.host_ns);
    for (int32_t i = 0; i < 20; i++)
        turn(w);
    assert_int_equal(fake.num_runs, 5);
    assert_int_equal(fake.num_tokens, 5);
    assert_int_equal(fake.num_ended, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(without_a_prediction_the_next_step_is_decided_at_once),
        TEST(the_next_step_is_decided_shortly_before_one_ends),
        TEST(a_request_that_arrives_while_a_step_runs_is_in_the_next),
        TEST(a_step_that_ends_early_is_noticed_within_the_margin),
        TEST(a_step_that_takes_longer_is_not_hurried),
        TEST(a_host_that_becomes_slow_begins_earlier),
        TEST(a_host_that_wakes_up_late_begins_earlier),
        TEST(one_long_delay_is_forgotten),
        TEST(a_cpu_is_given_the_next_step_at_once),
        TEST(everybody_may_leave_while_a_step_runs),
        TEST(an_engine_without_work_waits_for_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
