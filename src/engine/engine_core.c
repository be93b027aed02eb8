// EngineCore: messages in, a step, messages out.
#include "engine/engine_core.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    MAX_FRAMES_A_STEP = 4096,
    IDLE_WAIT_MS = 100, // the page wants a beat at least so often
    HELD_WAIT_MS = 2,   // requests wait for something that sends no message
    NS_PER_MS = 1000000,
};

void engine_core_init(struct engine_core *core, const struct engine_config *config,
                      struct engine_page *page)
{
    *core = (struct engine_core){.options = config->options,
                                 .page = page,
                                 .pooling_type = config->pooling.type,
                                 .hidden_size = config->model->hidden_size,
                                 .paces_steps =
                                     config->async_scheduling && config->device != DEVICE_CPU};
    struct scheduler_config scheduler_config = scheduler_config_from(config);
    scheduler_init(&core->scheduler, &scheduler_config);
    recorder_init(&core->recorder, &core->scheduler, (size_t)config->recorder_bytes);
    core->reports.logged_ns = clock_monotonic_ns();
}

void engine_core_deinit(struct engine_core *core)
{
    executor_destroy(core->executor);
    channel_close(core->channel);
    scheduler_deinit(&core->scheduler);
    dump_thread_stop(core->dump_thread);
    recorder_deinit(&core->recorder);
    held_requests_deinit(&core->held);
    arena_deinit(&core->arena);
    buf_deinit(&core->frame);
    *core = (struct engine_core){0};
}

// ---- the scheduler, with a witness ----------------------------------------------------------

static void refuse_request(struct engine_core *core, int32_t client_index, uint64_t request_id,
                           enum finish_reason reason);

static void abort_client(struct engine_core *core, int32_t client_index, enum finish_reason reason)
{
    for (int32_t i; (i = held_requests_find_client(&core->held, client_index)) >= 0;) {
        struct held_request item = held_requests_take(&core->held, i);
        free(item.frame);
        if (reason != FINISH_REASON_NONE)
            refuse_request(core, item.client_index, item.request_id, reason);
    }
    recorder_checkpoint(&core->recorder, &core->scheduler);
    recorder_abort_client(&core->recorder, &core->scheduler, client_index, reason);
    scheduler_abort_client(&core->scheduler, client_index, reason);
}

void engine_core_abort_all(struct engine_core *core)
{
    abort_client(core, -1, FINISH_REASON_ABORT);
}

static void abort_requests(struct engine_core *core, int32_t client_index, const uint64_t *ids,
                           int32_t num_ids)
{
    for (int32_t i = 0; core->held.len > 0 && i < num_ids; i++)
        held_requests_drop(&core->held, client_index, ids[i]);
    recorder_checkpoint(&core->recorder, &core->scheduler);
    recorder_abort(&core->recorder, client_index, ids, num_ids, FINISH_REASON_NONE);
    scheduler_abort(&core->scheduler, client_index, ids, num_ids, FINISH_REASON_NONE);
}

static bool reset_prefix_cache(struct engine_core *core)
{
    recorder_checkpoint(&core->recorder, &core->scheduler);
    bool ok = scheduler_reset_prefix_cache(&core->scheduler);
    recorder_reset(&core->recorder, ok);
    return ok;
}

// ---- messages out --------------------------------------------------------------------------

static void send_message(struct engine_core *core, int32_t client_index,
                         const struct message *message)
{
    buf_clear(&core->frame);
    message_encode(&core->frame, message);
    struct error err = {0};
    if (channel_send(core->channel, client_index, buf_str(&core->frame), &err) == STATUS_OK)
        return;
    // It has gone, or has not read for very long. Either way it lost outputs: it is dropped, reads
    // that on the page, says HELLO and sends its requests again with the tokens that reached it.
    if (core->clients[client_index] == CLIENT_GREETED)
        log_warning("API server %d cannot be reached, its requests are dropped: %s",
                    (int)client_index, err.message);
    core->clients[client_index] = CLIENT_UNKNOWN;
    atomic_fetch_add(&core->page->num_losses[client_index], 1);
    abort_client(core, client_index, FINISH_REASON_NONE);
}

void engine_core_send_outputs(struct engine_core *core)
{
    int64_t start_ns = clock_monotonic_ns();
    for (int32_t c = 0; c < MAX_API_SERVERS; c++) {
        if (core->outputs[c].num_outputs == 0)
            continue;
        const struct message message = {.kind = MESSAGE_OUTPUTS, .outputs = core->outputs[c]};
        core->outputs[c].num_outputs = 0;
        if (core->clients[c] != CLIENT_UNKNOWN)
            send_message(core, c, &message);
    }
    core->durations.send_ns = clock_monotonic_ns() - start_ns;
}

// Ends a request that was never taken in.
static void refuse_request(struct engine_core *core, int32_t client_index, uint64_t request_id,
                           enum finish_reason reason)
{
    const struct engine_core_output output = {
        .request_id = request_id, .finish_reason = reason, .stop_token_id = -1};
    const struct message message = {
        .kind = MESSAGE_OUTPUTS,
        .outputs = {.timestamp_ns = clock_monotonic_ns(), .num_outputs = 1, .outputs = &output}};
    send_message(core, client_index, &message);
}

// ---- messages in ---------------------------------------------------------------------------

static void refuse_client(struct engine_core *core, int32_t client_index, const char *reason)
{
    if (core->clients[client_index] != CLIENT_REFUSED)
        log_error("API server %d is refused until it says hello again: %s", (int)client_index,
                  reason);
    core->clients[client_index] = CLIENT_REFUSED;
    abort_client(core, client_index, FINISH_REASON_ERROR);
}

static void handle_hello(struct engine_core *core, int32_t client_index,
                         const struct message *message)
{
    abort_client(core, client_index, FINISH_REASON_NONE);
    core->clients[client_index] = CLIENT_GREETED;
    const struct message welcome = {
        .kind = MESSAGE_WELCOME,
        .welcome = {.version = MESSAGE_VERSION,
                    .generation = atomic_load(&core->page->generation),
                    .num_losses = atomic_load(&core->page->num_losses[client_index])}};
    send_message(core, client_index, &welcome);
    char reason[128];
    if (message->hello.client_index != client_index)
        snprintf(reason, sizeof(reason), "it calls itself %d", (int)message->hello.client_index);
    else if (message->hello.version != MESSAGE_VERSION)
        snprintf(reason, sizeof(reason), "it speaks version %d of the messages, expected %d",
                 (int)message->hello.version, (int)MESSAGE_VERSION);
    else
        return;
    refuse_client(core, client_index, reason);
}

// What the worker has memory for; the API server asks for nothing else.
static bool is_for_this_runner(const struct engine_core *core, const struct pooling_params *pooling)
{
    return pooling->type == core->pooling_type && pooling->dimensions <= core->hidden_size;
}

/** Whether so large an automaton can be run now. */
static bool has_grammar(struct engine_core *core, int32_t num_words)
{
    if (executor_poll_tokens(core->executor) == TOKENS_LOADING)
        return false;
    return core->scheduler.num_automaton_words + num_words <= MAX_LIVE_AUTOMATON_WORDS;
}

static void add_request(struct engine_core *core, int32_t client_index,
                        const struct engine_core_request *request)
{
    struct error err = {0};
    recorder_checkpoint(&core->recorder, &core->scheduler);
    if (scheduler_add(&core->scheduler, request, clock_monotonic_ns(), &err) == STATUS_OK)
        recorder_add(&core->recorder, &core->scheduler, request->request_id);
    else
        refuse_client(core, client_index, err.message);
}

/** `frame`: what the request was read from. */
static void handle_add(struct engine_core *core, int32_t client_index,
                       const struct engine_core_request *request, struct str frame)
{
    if (core->clients[client_index] == CLIENT_REFUSED) {
        refuse_request(core, client_index, request->request_id, FINISH_REASON_ERROR);
        return;
    }
    if (core->stopping) {
        refuse_request(core, client_index, request->request_id, FINISH_REASON_ABORT);
        return;
    }
    if (request->client_index != client_index) {
        refuse_client(core, client_index, "a request that another API server waits for");
        return;
    }
    if (!is_for_this_runner(core, &request->pooling)) {
        refuse_client(core, client_index, "a request for another runner than this engine's");
        return;
    }
    int32_t num_words = request->sampling.num_automaton_words;
    if (num_words > 0 && (core->held.len > 0 || !has_grammar(core, num_words)))
        held_requests_add(&core->held, request, frame, clock_monotonic_ns());
    else
        add_request(core, client_index, request);
}

// Those at the head of the list whose time has come. The time that they waited counts as theirs.
static void release_held(struct engine_core *core)
{
    while (core->held.len > 0 && has_grammar(core, core->held.items[0].num_automaton_words)) {
        struct held_request item = held_requests_take(&core->held, 0);
        struct message message = {0};
        struct error err = {0};
        arena_reset(&core->arena);
        // It was read before, when it came.
        CHECK(message_decode(&message, (struct str){item.frame, item.frame_len}, &core->arena,
                             &err) == STATUS_OK);
        add_request(core, item.client_index, &message.add);
        struct request *r = request_table_find(&core->scheduler.requests, item.request_id);
        if (r) {
            r->queued_ns = item.queued_ns;
            r->history->num_held_steps[HOLD_GRAMMAR] = item.num_held_steps;
        }
        free(item.frame);
    }
}

bool engine_core_has_work(const struct engine_core *core)
{
    return scheduler_has_work(&core->scheduler) || core->held.len > 0;
}

enum status engine_core_dump_recording(struct engine_core *core, char *path, size_t path_size,
                                       struct error *err)
{
    return recorder_dump_to(&core->recorder, options_env("VLLM_RECORDING_DIR"), path, path_size,
                            err);
}

static void handle_dump_recording(struct engine_core *core, int32_t client_index,
                                  const struct message *message)
{
    char path[1024];
    struct error err = {0};
    struct message reply = {.kind = MESSAGE_DUMPED};
    reply.dumped.call_id = message->dump_recording.call_id;
    reply.dumped.ok = engine_core_dump_recording(core, path, sizeof(path), &err) == STATUS_OK;
    reply.dumped.text = str_from(reply.dumped.ok ? path : err.message);
    send_message(core, client_index, &reply);
}

static void handle_find_request(struct engine_core *core, int32_t client_index,
                                const struct message *message)
{
    struct request_history *histories =
        arena_array(&core->arena, struct request_history, MAX_HISTORIES);
    struct message reply = {.kind = MESSAGE_HISTORIES};
    reply.histories.call_id = message->find_request.call_id;
    reply.histories.histories = histories;
    uint64_t external_id = message->find_request.external_id;
    int64_t now_ns = clock_monotonic_ns();
    int32_t num =
        held_requests_histories(&core->held, external_id, now_ns, histories, MAX_HISTORIES);
    num += scheduler_find_histories(&core->scheduler, external_id, now_ns, histories + num,
                                    MAX_HISTORIES - num);
    reply.histories.num_histories = num;
    send_message(core, client_index, &reply);
}

void engine_core_handle(struct engine_core *core, int32_t client_index, struct str frame)
{
    if (client_index < 0 || client_index >= MAX_API_SERVERS)
        return;
    arena_reset(&core->arena);
    struct message message = {0};
    struct error err = {0};
    if (message_decode(&message, frame, &core->arena, &err) != STATUS_OK) {
        refuse_client(core, client_index, err.message);
        return;
    }
    if (message.kind == MESSAGE_HELLO) {
        handle_hello(core, client_index, &message);
        return;
    }
    if (core->clients[client_index] == CLIENT_UNKNOWN)
        return;
    switch (message.kind) {
    case MESSAGE_ADD:
        handle_add(core, client_index, &message.add, frame);
        return;
    case MESSAGE_ABORT:
        abort_requests(core, client_index, message.abort.ids, message.abort.num_ids);
        return;
    case MESSAGE_RESET_PREFIX_CACHE: {
        const struct message reply = {.kind = MESSAGE_REPLY,
                                      .reply = {.call_id = message.reset_prefix_cache.call_id,
                                                .ok = reset_prefix_cache(core)}};
        send_message(core, client_index, &reply);
        return;
    }
    case MESSAGE_DUMP_RECORDING:
        handle_dump_recording(core, client_index, &message);
        return;
    case MESSAGE_FIND_REQUEST:
        handle_find_request(core, client_index, &message);
        return;
    default:
        refuse_client(core, client_index, "a message that only engines send");
    }
}

void engine_core_receive(struct engine_core *core)
{
    int32_t client_index;
    struct str frame;
    for (int32_t i = 0; i < MAX_FRAMES_A_STEP; i++) {
        if (!channel_receive(core->channel, &client_index, &frame))
            break;
        engine_core_handle(core, client_index, frame);
    }
    release_held(core);
}

// ---- a step --------------------------------------------------------------------------------

// The oldest step in flight, or NULL.
static const struct scheduler_output *oldest_step(const struct engine_core *core)
{
    const struct scheduler *s = &core->scheduler;
    return s->in_flight > 0 ? &core->steps[(s->step - s->in_flight) % MAX_STEPS_IN_FLIGHT] : NULL;
}

// It began when it was given to the executor, or when the one before it ended.
static int64_t start_of_step(const struct engine_core *core, const struct scheduler_output *step)
{
    return max_i64(core->submitted_ns[step->step % MAX_STEPS_IN_FLIGHT], core->collected_ns);
}

// While a step runs and its end can be predicted: takes in what the channel brings until shortly
// before. Returns since when the next step is due; 0: there was no telling.
static int64_t await_next_begin(struct engine_core *core)
{
    const struct scheduler_output *step = oldest_step(core);
    if (!core->paces_steps || !step || !scheduler_can_schedule(&core->scheduler))
        return 0;
    int64_t due_ns = step_pacer_due_ns(&core->pacer, step, start_of_step(core, step));
    int64_t margin_ns = step_pacer_margin_ns(&core->pacer);
    int64_t now_ns = clock_monotonic_ns();
    if (due_ns <= now_ns)
        return due_ns > 0 ? now_ns : 0;
    for (; now_ns < due_ns; now_ns = clock_monotonic_ns()) {
        if (executor_has_ended(core->executor))
            return 0; // by the margin ago at most
        channel_wait(core->channel, min_i64(due_ns - now_ns, margin_ns));
        engine_core_receive(core);
    }
    return due_ns;
}

bool engine_core_begin_step(struct engine_core *core)
{
    struct scheduler *s = &core->scheduler;
    recorder_checkpoint(&core->recorder, s);
    // A snapshot is of a scheduler at rest: that costs the overlap of one step, now and then.
    if (s->in_flight > 0 && (!scheduler_can_schedule(s) || recorder_is_due(&core->recorder)))
        return false;
    int64_t now_ns = clock_monotonic_ns();
    struct scheduler_output step;
    bool runs = scheduler_schedule(s, now_ns, &step);
    int64_t submitted_ns = clock_monotonic_ns();
    core->durations.schedule_ns = submitted_ns - now_ns;
    recorder_step(&core->recorder, s, runs, &step, now_ns);
    if (!runs)
        return false;
    held_requests_count_step(&core->held);
    int32_t slot = (int32_t)(step.step % MAX_STEPS_IN_FLIGHT);
    core->steps[slot] = step;
    core->submitted_ns[slot] = submitted_ns;
    if (s->in_flight == 1)
        atomic_store(&core->page->step_start_ns, now_ns);
    executor_submit(core->executor, &core->steps[slot]);
    return true;
}

enum status engine_core_end_step(struct engine_core *core, struct error *err)
{
    struct scheduler *s = &core->scheduler;
    struct model_runner_output result = {0};
    const struct scheduler_output *step = oldest_step(core);
    int64_t num_generated = s->stats.num_generated_tokens;
    bool is_awaited = step && !executor_has_ended(core->executor);
    if (step)
        TRY(executor_collect(core->executor, &result, err));
    int64_t now_ns = clock_monotonic_ns();
    scheduler_update(s, now_ns, step, step ? &result : NULL, core->outputs);
    core->durations.execute_ns = 0;
    if (step) {
        core->durations.execute_ns = now_ns - start_of_step(core, step);
        step_pacer_note_end(&core->pacer, step, core->durations.execute_ns, is_awaited);
    }
    core->collected_ns = now_ns;
    core->durations.update_ns = clock_monotonic_ns() - now_ns;
    recorder_update(&core->recorder, s, now_ns, step, &result, core->outputs, &core->durations);
    if (step) {
        num_generated = s->stats.num_generated_tokens - num_generated;
        engine_core_count_step(core, scheduler_step_of(s, step)->num_prompt_tokens + num_generated);
    }
    engine_core_publish(core, now_ns);
    atomic_store(&core->page->step_start_ns, s->in_flight > 0 ? now_ns : 0);
    return STATUS_OK;
}

// ---- the loop ------------------------------------------------------------------------------

static void idle(struct engine_core *core)
{
    engine_core_publish(core, clock_monotonic_ns());
    channel_wait(core->channel,
                 (int64_t)(core->held.len > 0 ? HELD_WAIT_MS : IDLE_WAIT_MS) * NS_PER_MS);
}

enum status engine_core_turn(struct engine_core *core, struct error *err)
{
    engine_core_receive(core);
    if (scheduler_has_work(&core->scheduler)) {
        int64_t due_ns = await_next_begin(core);
        bool begun = engine_core_begin_step(core);
        if (begun && due_ns > 0)
            step_pacer_note_begin(&core->pacer, clock_monotonic_ns() - due_ns);
        if (begun)
            engine_core_receive(core); // so that aborts count before the outputs are made
        if (!begun || !scheduler_can_schedule(&core->scheduler)) {
            TRY(engine_core_end_step(core, err));
            engine_core_send_outputs(core);
        }
    } else {
        idle(core);
    }
    engine_core_log_stats(core, clock_monotonic_ns());
    return STATUS_OK;
}
