// EngineCore: messages in, a step, messages out.
#include "engine/engine_core.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"

enum { MAX_FRAMES_A_STEP = 4096 };

void engine_core_init(struct engine_core *core, const struct engine_config *config,
                      struct engine_page *page)
{
    *core = (struct engine_core){.options = config->options, .page = page};
    struct scheduler_config scheduler_config = scheduler_config_from(config);
    scheduler_init(&core->scheduler, &scheduler_config);
    core->reports.logged_ns = clock_monotonic_ns();
}

void engine_core_deinit(struct engine_core *core)
{
    executor_destroy(core->executor);
    channel_close(core->channel);
    scheduler_deinit(&core->scheduler);
    arena_deinit(&core->arena);
    buf_deinit(&core->frame);
    *core = (struct engine_core){0};
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
    // It has gone, or has not read for very long. Either way it lost outputs and will say HELLO
    // and send its requests again when it is back.
    if (core->clients[client_index] == CLIENT_GREETED)
        log_warning("API server %d cannot be reached, its requests are dropped: %s",
                    (int)client_index, err.message);
    core->clients[client_index] = CLIENT_UNKNOWN;
    scheduler_abort_client(&core->scheduler, client_index, FINISH_REASON_NONE);
}

void engine_core_send_outputs(struct engine_core *core)
{
    for (int32_t c = 0; c < MAX_API_SERVERS; c++) {
        if (core->outputs[c].num_outputs == 0)
            continue;
        const struct message message = {.kind = MESSAGE_OUTPUTS, .outputs = core->outputs[c]};
        core->outputs[c].num_outputs = 0;
        if (core->clients[c] != CLIENT_UNKNOWN)
            send_message(core, c, &message);
    }
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
    scheduler_abort_client(&core->scheduler, client_index, FINISH_REASON_ERROR);
}

static void handle_hello(struct engine_core *core, int32_t client_index,
                         const struct message *message)
{
    scheduler_abort_client(&core->scheduler, client_index, FINISH_REASON_NONE);
    core->clients[client_index] = CLIENT_GREETED;
    const struct message welcome = {
        .kind = MESSAGE_WELCOME,
        .welcome = {.version = MESSAGE_VERSION,
                    .generation = atomic_load(&core->page->generation)}};
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

static void handle_add(struct engine_core *core, int32_t client_index,
                       const struct engine_core_request *request)
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
    struct error err = {0};
    if (scheduler_add(&core->scheduler, request, clock_monotonic_ns(), &err) != STATUS_OK)
        refuse_client(core, client_index, err.message);
}

static void handle_find_request(struct engine_core *core, int32_t client_index,
                                const struct message *message)
{
    struct request_history *histories =
        arena_array(&core->arena, struct request_history, MAX_HISTORIES);
    struct message reply = {.kind = MESSAGE_HISTORIES};
    reply.histories.call_id = message->find_request.call_id;
    reply.histories.histories = histories;
    reply.histories.num_histories =
        scheduler_find_histories(&core->scheduler, message->find_request.external_id,
                                 clock_monotonic_ns(), histories, MAX_HISTORIES);
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
        handle_add(core, client_index, &message.add);
        return;
    case MESSAGE_ABORT:
        scheduler_abort(&core->scheduler, client_index, message.abort.ids, message.abort.num_ids,
                        FINISH_REASON_NONE);
        return;
    case MESSAGE_RESET_PREFIX_CACHE: {
        const struct message reply = {
            .kind = MESSAGE_REPLY,
            .reply = {.call_id = message.reset_prefix_cache.call_id,
                      .ok = scheduler_reset_prefix_cache(&core->scheduler)}};
        send_message(core, client_index, &reply);
        return;
    }
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
            return;
        engine_core_handle(core, client_index, frame);
    }
}

// ---- a step --------------------------------------------------------------------------------

bool engine_core_begin_step(struct engine_core *core)
{
    int64_t now_ns = clock_monotonic_ns();
    core->in_step = scheduler_schedule(&core->scheduler, now_ns, &core->step);
    if (!core->in_step)
        return false;
    atomic_store(&core->page->step_start_ns, now_ns);
    executor_submit(core->executor, &core->step);
    return true;
}

enum status engine_core_end_step(struct engine_core *core, struct error *err)
{
    struct model_runner_output result = {0};
    int64_t num_generated = core->scheduler.stats.num_generated_tokens;
    if (core->in_step)
        TRY(executor_collect(core->executor, &result, err));
    int64_t now_ns = clock_monotonic_ns();
    scheduler_update(&core->scheduler, now_ns, core->in_step ? &core->step : NULL,
                     core->in_step ? &result : NULL, core->outputs);
    if (core->in_step) {
        num_generated = core->scheduler.stats.num_generated_tokens - num_generated;
        engine_core_count_step(core, core->scheduler.num_prompt_tokens_in_step + num_generated);
    }
    core->in_step = false;
    engine_core_publish(core, now_ns);
    atomic_store(&core->page->step_start_ns, 0);
    return STATUS_OK;
}
