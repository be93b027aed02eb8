// A log is text and the offset of each event in it. A reader is a call and how far it has been
// given; what it does not read stays in the log, not in its connection.
#include "api_server/response_events.h"

#include <stdlib.h>
#include <string.h>

#include "api_server/generation.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

struct event_log {
    struct buf bytes;
    size_t *starts; // of events
    int64_t num_events, capacity;
    bool has_ended;
    int32_t num_holders;
    struct event_reader *readers;
};

struct event_reader {
    struct event_reader *next_of_log; // of log->readers
    struct event_reader *next;        // of server->event_readers
    struct event_log *log;            // held
    struct api_call *call;
    size_t at;
    int64_t last_write_ns;
    struct stall_watch stall;
};

// ---- logs ----

struct event_log *event_log_create(void)
{
    struct event_log *log = xcalloc(1, sizeof(*log));
    log->num_holders = 1;
    return log;
}

struct event_log *event_log_retain(struct event_log *log)
{
    if (log)
        log->num_holders++;
    return log;
}

void event_log_release(struct event_log *log)
{
    if (!log || --log->num_holders > 0)
        return;
    buf_deinit(&log->bytes);
    free(log->starts);
    free(log);
}

size_t event_log_bytes(const struct event_log *log)
{
    return log ? log->bytes.len + (size_t)log->num_events * sizeof(*log->starts) : 0;
}

// ---- readers ----

static void unlink_reader(struct event_reader *reader)
{
    struct event_reader **link = &reader->log->readers;
    while (*link != reader)
        link = &(*link)->next_of_log;
    *link = reader->next_of_log;
    link = &reader->call->server->event_readers;
    while (*link != reader)
        link = &(*link)->next;
    *link = reader->next;
}

/** The call is the caller's again. */
static struct api_call *end_reader(struct event_reader *reader)
{
    struct api_call *call = reader->call;
    unlink_reader(reader);
    event_log_release(reader->log);
    free(reader);
    return call;
}

static void on_reader_gone(void *context)
{
    end_reader(context);
}

/** Gives the reader what it can take. It may be gone afterwards. */
static void feed(struct event_reader *reader)
{
    const struct event_log *log = reader->log;
    while (reader->at < log->bytes.len &&
           http_exchange_pending_bytes(reader->call->exchange) <= MAX_PENDING_BYTES) {
        size_t end = reader->at + MAX_PENDING_BYTES;
        end = end < log->bytes.len ? end : log->bytes.len;
        api_call_write(reader->call, str_slice(buf_str(&log->bytes), reader->at, end));
        reader->at = end;
        reader->last_write_ns = clock_monotonic_ns();
    }
    if (reader->at == log->bytes.len && log->has_ended)
        api_call_end_stream(end_reader(reader));
}

static void feed_all(struct event_log *log)
{
    for (struct event_reader *reader = log->readers, *next; reader; reader = next) {
        next = reader->next_of_log;
        feed(reader); // the log is held by who calls
    }
}

void event_log_append(struct event_log *log, struct str events)
{
    size_t base = log->bytes.len;
    for (size_t at = 0; at < events.len;) {
        if (log->num_events == log->capacity) {
            log->capacity = 2 * log->capacity + 64;
            log->starts = xrealloc(log->starts, (size_t)log->capacity * sizeof(*log->starts));
        }
        log->starts[log->num_events++] = base + at;
        size_t end = str_find(events, STR("\n\n"), at); // JSON has no line breaks of its own
        at = end == STR_NOT_FOUND ? events.len : end + 2;
    }
    buf_append(&log->bytes, events);
    feed_all(log);
}

void event_log_end(struct event_log *log)
{
    log->has_ended = true;
    feed_all(log);
}

void event_log_follow(struct event_log *log, struct api_call *call, int64_t after)
{
    struct event_reader *reader = xcalloc(1, sizeof(*reader));
    reader->log = event_log_retain(log);
    reader->call = call;
    reader->at = after + 1 < log->num_events ? log->starts[after + 1] : log->bytes.len;
    reader->last_write_ns = clock_monotonic_ns();
    reader->next_of_log = log->readers;
    log->readers = reader;
    reader->next = call->server->event_readers;
    call->server->event_readers = reader;
    api_call_on_close(call, on_reader_gone, reader);
    api_call_begin_stream(call);
    feed(reader);
}

void event_readers_tick(struct api_server *server)
{
    int64_t now_ns = clock_monotonic_ns();
    int64_t keep_alive_ns = server->options->sse_keep_alive_interval_s * 1000000000LL;
    for (struct event_reader *reader = server->event_readers, *next; reader; reader = next) {
        next = reader->next;
        size_t pending = http_exchange_pending_bytes(reader->call->exchange);
        uint64_t taken = http_exchange_taken_bytes(reader->call->exchange);
        if (stall_watch_is_over(&reader->stall, pending, taken, now_ns)) {
            log_warning("a reader of events has read nothing for %d s and %zu bytes wait: cut off",
                        MAX_STALL_S, pending);
            api_call_drop(end_reader(reader));
            continue;
        }
        if (keep_alive_ns > 0 && now_ns - reader->last_write_ns >= keep_alive_ns) {
            api_call_write(reader->call, STR(": keep-alive\n\n"));
            reader->last_write_ns = now_ns;
        }
        feed(reader);
    }
}

void event_readers_drop_all(struct api_server *server)
{
    for (struct event_reader *reader = server->event_readers, *next; reader; reader = next) {
        next = reader->next;
        api_call_drop(end_reader(reader));
    }
}
