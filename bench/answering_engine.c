// One loop: take what came, give every new request its first token, and at each step's end give
// every stream one more. Like the real one it sends one message a step to each API server.
#include "answering_engine.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "message/channel.h"
#include "message/codec.h"

enum { MAX_STREAMS = 16384, IDLE_WAIT_MS = 50, NS_PER_MS = 1000000 };

struct stream {
    uint64_t id;
    int32_t client, num_done, max_tokens;
    int64_t queued_ns, first_ns;
};

struct engine {
    const struct answering_engine_options *options;
    struct shared_page *page;
    struct channel *channel;
    struct stream streams[MAX_STREAMS];
    int32_t num_streams;
    int32_t num_old; // of them: those that have their first token
    struct engine_core_output outputs[MAX_STREAMS];
    struct buf frame;
    struct arena arena;
};

static volatile sig_atomic_t stop_requested;

static void request_stop(int signal_number)
{
    (void)signal_number;
    stop_requested = 1;
}

static void send_message(struct engine *e, int32_t client, const struct message *message)
{
    struct error err = {0};
    buf_clear(&e->frame);
    message_encode(&e->frame, message);
    if (channel_send(e->channel, client, buf_str(&e->frame), &err) != STATUS_OK)
        log_error("%s", err.message);
}

static void drop_client(struct engine *e, int32_t client)
{
    for (int32_t i = e->num_streams; i-- > 0;) {
        if (e->streams[i].client == client)
            e->streams[i] = e->streams[--e->num_streams];
    }
    e->num_old = e->num_streams;
}

static void drop_request(struct engine *e, uint64_t id)
{
    for (int32_t i = 0; i < e->num_streams; i++) {
        if (e->streams[i].id != id)
            continue;
        if (i < e->num_old) { // keeps the old ones in front
            e->streams[i] = e->streams[--e->num_old];
            i = e->num_old;
        }
        e->streams[i] = e->streams[--e->num_streams];
        return;
    }
}

static void take(struct engine *e, int32_t client, const struct message *m)
{
    if (m->kind == MESSAGE_HELLO) {
        drop_client(e, client);
        struct message welcome = {.kind = MESSAGE_WELCOME};
        welcome.welcome.version = MESSAGE_VERSION;
        welcome.welcome.generation = atomic_load(&e->page->engine.generation);
        send_message(e, client, &welcome);
    } else if (m->kind == MESSAGE_ADD && e->num_streams < MAX_STREAMS) {
        e->streams[e->num_streams++] = (struct stream){.id = m->add.request_id,
                                                       .client = m->add.client_index,
                                                       .num_done = m->add.num_output_tokens,
                                                       .max_tokens = m->add.sampling.max_tokens,
                                                       .queued_ns = clock_monotonic_ns()};
    } else if (m->kind == MESSAGE_ABORT) {
        for (int32_t i = 0; i < m->abort.num_ids; i++)
            drop_request(e, m->abort.ids[i]);
    } else if (m->kind == MESSAGE_RESET_PREFIX_CACHE) {
        struct message reply = {.kind = MESSAGE_REPLY};
        reply.reply.call_id = m->reset_prefix_cache.call_id;
        reply.reply.ok = true;
        send_message(e, client, &reply);
    }
}

static void receive_all(struct engine *e)
{
    struct str frame;
    int32_t client;
    while (channel_receive(e->channel, &client, &frame)) {
        struct message message;
        struct error err = {0};
        arena_reset(&e->arena);
        if (message_decode(&message, frame, &e->arena, &err) == STATUS_OK)
            take(e, client, &message);
        else
            log_error("%s", err.message);
    }
}

static void advance(struct engine *e, struct stream *stream, int64_t now_ns,
                    struct engine_core_output *output)
{
    const struct answering_engine_options *o = e->options;
    if (stream->first_ns == 0)
        stream->first_ns = now_ns;
    bool is_last = stream->num_done + 1 >= stream->max_tokens;
    *output = (struct engine_core_output){
        .request_id = stream->id,
        .num_new_tokens = 1,
        .new_token_ids = &o->tokens[stream->num_done % o->num_tokens],
        .finish_reason = is_last ? FINISH_REASON_LENGTH : FINISH_REASON_NONE,
        .stop_token_id = -1,
        .queued_ns = stream->queued_ns,
        .scheduled_ns = stream->queued_ns,
        .first_token_ns = stream->first_ns,
        .last_token_ns = now_ns,
    };
    stream->num_done++;
}

/** A token for each of the streams from `first` on, in one message a client. */
static void step(struct engine *e, int32_t first)
{
    int64_t now_ns = clock_monotonic_ns();
    for (int32_t client = 0; client < e->page->num_api_servers; client++) {
        int32_t num = 0;
        for (int32_t i = first; i < e->num_streams; i++) {
            if (e->streams[i].client == client)
                advance(e, &e->streams[i], now_ns, &e->outputs[num++]);
        }
        if (num == 0)
            continue;
        struct message message = {.kind = MESSAGE_OUTPUTS};
        message.outputs = (struct engine_core_outputs){
            .timestamp_ns = now_ns, .num_outputs = num, .outputs = e->outputs};
        send_message(e, client, &message);
    }
    for (int32_t i = e->num_streams; i-- > first;) {
        if (e->streams[i].num_done >= e->streams[i].max_tokens)
            e->streams[i] = e->streams[--e->num_streams];
    }
    e->num_old = e->num_streams;
}

static void loop(struct engine *e)
{
    int64_t step_ns = e->options->step_ns, next_ns = clock_monotonic_ns();
    while (!stop_requested) {
        int64_t now_ns = clock_monotonic_ns();
        atomic_store(&e->page->engine.heartbeat_ns, now_ns);
        if (e->num_streams == 0)
            channel_wait(e->channel, INT64_C(1) * IDLE_WAIT_MS * NS_PER_MS);
        else if (next_ns > now_ns) // whole milliseconds sleep, the rest is waited for awake
            channel_wait(e->channel, (next_ns - now_ns) / NS_PER_MS * NS_PER_MS);
        receive_all(e);
        if (e->num_old < e->num_streams)
            step(e, e->num_old);
        now_ns = clock_monotonic_ns();
        if (now_ns < next_ns)
            continue;
        step(e, 0);
        next_ns = max_i64(next_ns + step_ns, now_ns); // what was missed is not made up for
    }
}

int answering_engine_main(const struct answering_engine_options *options, const char *ipc_dir,
                          struct shared_page *page)
{
    struct engine *e = xcalloc(1, sizeof(*e));
    struct error err = {0};
    struct sigaction action = {.sa_handler = request_stop};
    e->options = options;
    e->page = page;
    sigaction(SIGTERM, &action, NULL);
    if (channel_bind(&e->channel, ipc_dir, &err) != STATUS_OK) {
        log_error("%s", err.message);
        return EXIT_FAILURE;
    }
    struct engine_page *facts = &page->engine;
    atomic_store(&facts->max_model_len, options->max_model_len);
    atomic_store(&facts->block_size, 16);
    atomic_store(&facts->num_blocks, 1 << 20);
    atomic_store(&facts->max_num_seqs, MAX_STREAMS);
    atomic_store(&facts->kv_cache_size_tokens, INT64_C(16) << 20);
    atomic_store(&facts->heartbeat_ns, clock_monotonic_ns());
    atomic_store(&facts->state, ENGINE_STATE_READY);
    loop(e);
    channel_close(e->channel);
    buf_deinit(&e->frame);
    arena_deinit(&e->arena);
    free(e);
    return EXIT_SUCCESS;
}
