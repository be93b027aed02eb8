// Ids are unique over all API servers and their restarts: the server's index in the high byte, then
// a count that starts at the wall clock in microseconds and can never catch up with it.
#include "api_server/engine_client.h"

#include <assert.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "message/channel.h"
#include "message/codec.h"

enum {
    MIN_BUCKETS = 256,
    GREETING_RETRY_MS = 2000, // a HELLO may have died with the engine before
    MAX_CALLS = 16,           // questions under way
    MAX_RECEIVE_MS = 5,       // then clients have their turn
};

enum connection { CONNECTION_NONE, CONNECTION_GREETING, CONNECTION_UP };

struct call {
    int64_t id;
    void (*fn)(void *context, bool ok); // or:
    void (*on_reply)(void *context, const struct message *reply);
    void *context;
};

/** The event loop's. */
struct engine_client {
    struct channel *channel;
    struct shared_page *page;
    struct front_page *front;
    int32_t client_index;
    uint64_t next_id;
    enum connection connection;
    int32_t generation; // of the engine that was greeted
    int32_t num_losses; // of its messages to us, when it was greeted
    int64_t greeted_ns;
    bool has_unsent;

    struct engine_request *head, *tail; // live requests in order of arrival
    struct engine_request **buckets;
    size_t num_buckets; // a power of two
    int32_t num_live;
    int64_t num_ended;

    uint64_t *aborts;
    int32_t num_aborts, max_aborts;
    struct call calls[MAX_CALLS];
    int32_t num_calls;
    int64_t next_call_id;
    struct buf frame;
    struct arena arena; // of one received frame
};

// ---- the table of live requests ----

static struct engine_request **slot_of(struct engine_client *c, uint64_t id)
{
    return &c->buckets[(id * 0x9E3779B97F4A7C15u >> 32) & (c->num_buckets - 1)];
}

static struct engine_request *find(struct engine_client *c, uint64_t id)
{
    struct engine_request *r = *slot_of(c, id);
    while (r && r->core.request_id != id)
        r = r->hash_next;
    return r;
}

static void grow_table(struct engine_client *c)
{
    free(c->buckets);
    c->num_buckets *= 2;
    c->buckets = xcalloc(c->num_buckets, sizeof(struct engine_request *));
    for (struct engine_request *r = c->head; r; r = r->next) {
        struct engine_request **slot = slot_of(c, r->core.request_id);
        r->hash_next = *slot;
        *slot = r;
    }
}

static void publish_unfinished(struct engine_client *c)
{
    atomic_store_explicit(&c->front->num_unfinished, c->num_live, memory_order_relaxed);
}

static void link_request(struct engine_client *c, struct engine_request *r)
{
    r->previous = c->tail;
    r->next = NULL;
    if (c->tail)
        c->tail->next = r;
    else
        c->head = r;
    c->tail = r;
    r->live = true;
    if ((size_t)++c->num_live > c->num_buckets) {
        grow_table(c); // takes r in with the others
    } else {
        struct engine_request **slot = slot_of(c, r->core.request_id);
        r->hash_next = *slot;
        *slot = r;
    }
    publish_unfinished(c);
}

static void unlink_request(struct engine_client *c, struct engine_request *r)
{
    struct engine_request **slot = slot_of(c, r->core.request_id);
    while (*slot != r)
        slot = &(*slot)->hash_next;
    *slot = r->hash_next;
    if (r->previous)
        r->previous->next = r->next;
    else
        c->head = r->next;
    if (r->next)
        r->next->previous = r->previous;
    else
        c->tail = r->previous;
    r->live = false;
    c->num_live--;
    c->num_ended++;
    publish_unfinished(c);
}

// ---- sending ----

static bool send_message(struct engine_client *c, const struct message *message)
{
    buf_clear(&c->frame);
    message_encode(&c->frame, message);
    struct error err;
    enum status status = channel_send(c->channel, c->client_index, buf_str(&c->frame), &err);
    if (status != STATUS_OK && status != STATUS_UNAVAILABLE)
        log_error("cannot send to the engine: %s", err.message);
    return status == STATUS_OK;
}

static void send_request(struct engine_client *c, struct engine_request *r)
{
    struct message message = {.kind = MESSAGE_ADD, .add = r->core};
    r->sent = send_message(c, &message);
    c->has_unsent = c->has_unsent || !r->sent;
}

static void send_waiting(struct engine_client *c)
{
    if (c->connection != CONNECTION_UP || !c->has_unsent)
        return;
    c->has_unsent = false;
    for (struct engine_request *r = c->head; r && !c->has_unsent; r = r->next) {
        if (!r->sent)
            send_request(c, r);
    }
}

void engine_client_flush(struct engine_client *c)
{
    if (c->num_aborts == 0)
        return;
    if (c->connection == CONNECTION_UP) {
        struct message message = {.kind = MESSAGE_ABORT};
        message.abort.num_ids = c->num_aborts;
        message.abort.ids = c->aborts;
        if (!send_message(c, &message))
            return; // the queue is full: again at the next tick
    }
    c->num_aborts = 0; // an engine that is greeted anew forgets all by itself
}

static int32_t num_losses_of(const struct engine_client *c)
{
    return atomic_load(&c->page->engine.num_losses[c->client_index]);
}

static void greet(struct engine_client *c, int32_t generation)
{
    struct message message = {.kind = MESSAGE_HELLO};
    message.hello.version = MESSAGE_VERSION;
    message.hello.client_index = c->client_index;
    c->connection = CONNECTION_GREETING;
    c->generation = generation;
    c->num_losses = num_losses_of(c);
    c->greeted_ns = clock_monotonic_ns();
    if (!send_message(c, &message))
        c->connection = CONNECTION_NONE;
}

/** Ends the call `id`, or all calls (-1); `reply` NULL: there will be none. */
static void finish_calls(struct engine_client *c, int64_t id, const struct message *reply)
{
    for (int32_t i = 0; i < c->num_calls;) {
        struct call call = c->calls[i];
        if (id >= 0 && call.id != id) {
            i++;
            continue;
        }
        c->calls[i] = c->calls[--c->num_calls];
        if (call.on_reply)
            call.on_reply(call.context, reply);
        else
            call.fn(call.context, reply && reply->kind == MESSAGE_REPLY && reply->reply.ok);
    }
}

static void disconnect(struct engine_client *c)
{
    c->connection = CONNECTION_NONE;
    c->num_aborts = 0;
    finish_calls(c, -1, NULL);
}

/** Ends every live request: no engine will come any more. */
static void fail_all(struct engine_client *c)
{
    while (c->head) {
        struct engine_request *r = c->head;
        unlink_request(c, r);
        struct engine_core_output output = {.request_id = r->core.request_id,
                                            .finish_reason = FINISH_REASON_ERROR,
                                            .stop_token_id = -1};
        r->on_output(r, &output, clock_monotonic_ns());
    }
}

void engine_client_tick(struct engine_client *c)
{
    int32_t state = atomic_load(&c->page->engine.state);
    int32_t generation = atomic_load(&c->page->engine.generation);
    if (c->connection != CONNECTION_NONE && generation != c->generation) {
        log_warning("the engine restarted (generation %d): %d live requests will be resumed",
                    generation, c->num_live);
        disconnect(c);
    } else if (c->connection != CONNECTION_NONE && num_losses_of(c) != c->num_losses) {
        log_warning("the engine's messages were not read in time: %d live requests will be resumed",
                    c->num_live);
        disconnect(c);
    }
    if (state == ENGINE_STATE_DEAD) {
        disconnect(c);
        fail_all(c);
        return;
    }
    bool retry = c->connection == CONNECTION_GREETING &&
                 clock_monotonic_ns() - c->greeted_ns > GREETING_RETRY_MS * 1000000LL;
    if (state == ENGINE_STATE_READY && (c->connection == CONNECTION_NONE || retry))
        greet(c, generation);
    engine_client_flush(c);
    send_waiting(c);
}

// ---- receiving ----

static void welcome(struct engine_client *c, int32_t version, int32_t generation,
                    int32_t num_losses)
{
    if (version != MESSAGE_VERSION) {
        log_error("the engine speaks message version %d, this server %d", version, MESSAGE_VERSION);
        return;
    }
    if (generation != c->generation)
        return; // the last word of an engine that is gone: its successor was greeted already
    if (num_losses != c->num_losses)
        return; // outputs that belong to an earlier life may follow
    if (c->connection != CONNECTION_GREETING)
        return; // the answer to a repeated HELLO, which came before all that was sent since
    c->connection = CONNECTION_UP;
    if (c->num_live > 0)
        log_info("resuming %d requests on engine generation %d", c->num_live, generation);
    for (struct engine_request *r = c->head; r; r = r->next)
        r->sent = false;
    c->has_unsent = true;
    c->num_aborts = 0;
    send_waiting(c);
}

static void append_tokens(struct engine_request *r, const struct engine_core_output *o)
{
    int32_t need = r->core.num_output_tokens + o->num_new_tokens;
    if (need > r->capacity) {
        r->capacity = max_i32(need, r->capacity ? r->capacity * 2 : 64);
        r->output_token_ids = xrealloc(r->output_token_ids, (size_t)r->capacity * sizeof(int32_t));
        r->core.output_token_ids = r->output_token_ids;
    }
    if (o->num_new_tokens > 0)
        memcpy(r->output_token_ids + r->core.num_output_tokens, o->new_token_ids,
               (size_t)o->num_new_tokens * sizeof(int32_t));
    r->core.num_output_tokens = need;
}

static void dispatch(struct engine_client *c, const struct engine_core_outputs *outputs)
{
    for (int32_t i = 0; i < outputs->num_outputs; i++) {
        const struct engine_core_output *output = &outputs->outputs[i];
        struct engine_request *r = find(c, output->request_id);
        if (!r || !r->sent)
            continue; // aborted meanwhile, or a word from an engine that is gone
        append_tokens(r, output);
        if (output->finish_reason != FINISH_REASON_NONE)
            unlink_request(c, r);
        r->on_output(r, output, outputs->timestamp_ns);
    }
}

bool engine_client_receive(struct engine_client *c)
{
    struct str frame;
    int32_t from;
    bool more = false;
    int64_t end_ns = clock_monotonic_ns() + MAX_RECEIVE_MS * 1000000LL;
    while (!(more = clock_monotonic_ns() >= end_ns) && channel_receive(c->channel, &from, &frame)) {
        struct message message;
        struct error err;
        arena_reset(&c->arena);
        if (message_decode(&message, frame, &c->arena, &err) != STATUS_OK) {
            log_error("a frame of the engine was dropped: %s", err.message);
            continue;
        }
        switch (message.kind) {
        case MESSAGE_WELCOME:
            welcome(c, message.welcome.version, message.welcome.generation,
                    message.welcome.num_losses);
            break;
        case MESSAGE_OUTPUTS:
            if (c->connection == CONNECTION_UP)
                dispatch(c, &message.outputs);
            break;
        case MESSAGE_REPLY:
            finish_calls(c, message.reply.call_id, &message);
            break;
        case MESSAGE_DUMPED:
            finish_calls(c, message.dumped.call_id, &message);
            break;
        case MESSAGE_HISTORIES:
            finish_calls(c, message.histories.call_id, &message);
            break;
        default:
            log_error("the engine sent a message of kind %d, which only it receives", message.kind);
        }
    }
    engine_client_flush(c);
    return more;
}

// ---- the public rest ----

enum status engine_client_create(struct engine_client **out, const char *ipc_dir,
                                 int32_t client_index, struct shared_page *page, struct error *err)
{
    struct channel *channel;
    TRY(channel_connect(&channel, ipc_dir, client_index, err));
    struct engine_client *c = xcalloc(1, sizeof(*c));
    c->channel = channel;
    c->page = page;
    c->front = &page->fronts[client_index];
    c->client_index = client_index;
    c->next_id = (uint64_t)client_index << 56 |
                 ((uint64_t)(clock_wall_ns() / 1000) & (((uint64_t)1 << 56) - 1));
    c->num_buckets = MIN_BUCKETS;
    c->buckets = xcalloc(c->num_buckets, sizeof(struct engine_request *));
    publish_unfinished(c);
    *out = c;
    return STATUS_OK;
}

void engine_client_destroy(struct engine_client *c)
{
    if (!c)
        return;
    finish_calls(c, -1, NULL);
    channel_close(c->channel);
    free(c->buckets);
    free(c->aborts);
    buf_deinit(&c->frame);
    arena_deinit(&c->arena);
    free(c);
}

int engine_client_fd(const struct engine_client *c)
{
    return channel_fd(c->channel);
}

bool engine_client_is_ready(const struct engine_client *c)
{
    return c->connection == CONNECTION_UP &&
           atomic_load(&c->page->engine.generation) == c->generation &&
           engine_page_is_healthy(&c->page->engine, clock_monotonic_ns());
}

void engine_client_add(struct engine_client *c, struct engine_request *r)
{
    r->core.request_id = c->next_id++;
    r->core.client_index = c->client_index;
    r->sent = false;
    link_request(c, r);
    c->has_unsent = true;
    if (c->connection == CONNECTION_UP)
        send_request(c, r);
}

void engine_client_abort(struct engine_client *c, struct engine_request *r)
{
    if (!r->live)
        return;
    unlink_request(c, r);
    if (!r->sent)
        return;
    if (c->num_aborts == c->max_aborts) {
        c->max_aborts = max_i32(64, 2 * c->max_aborts);
        c->aborts = xrealloc(c->aborts, (size_t)c->max_aborts * sizeof(*c->aborts));
    }
    c->aborts[c->num_aborts++] = r->core.request_id;
}

int32_t engine_client_num_live(const struct engine_client *c)
{
    return c->num_live;
}

int64_t engine_client_num_ended(const struct engine_client *c)
{
    return c->num_ended;
}

void engine_client_reset_prefix_cache(struct engine_client *c, void (*fn)(void *context, bool ok),
                                      void *context)
{
    struct message message = {.kind = MESSAGE_RESET_PREFIX_CACHE};
    message.reset_prefix_cache.call_id = c->next_call_id;
    if (c->connection != CONNECTION_UP || c->num_calls == MAX_CALLS || !send_message(c, &message)) {
        fn(context, false);
        return;
    }
    c->calls[c->num_calls++] = (struct call){.id = c->next_call_id++, .fn = fn, .context = context};
}

void engine_client_ask(struct engine_client *c, struct message *question,
                       void (*fn)(void *context, const struct message *reply), void *context)
{
    assert(question->kind == MESSAGE_DUMP_RECORDING || question->kind == MESSAGE_FIND_REQUEST);
    if (question->kind == MESSAGE_FIND_REQUEST)
        question->find_request.call_id = c->next_call_id;
    else
        question->dump_recording.call_id = c->next_call_id;
    if (c->connection != CONNECTION_UP || c->num_calls == MAX_CALLS || !send_message(c, question)) {
        fn(context, NULL);
        return;
    }
    c->calls[c->num_calls++] =
        (struct call){.id = c->next_call_id++, .on_reply = fn, .context = context};
}

void engine_request_deinit(struct engine_request *r)
{
    free(r->output_token_ids);
    r->output_token_ids = NULL;
    r->capacity = 0;
}
