// libevent's loop over sockets, plain or in TLS: a stream costs a read, two small parsers and a
// time stamp.
//
//   a connection:  new ──connect──▶ busy ──answer ends──▶ idle ──next request──▶ busy
//                                    └──── "[DONE]" before the body's end ──▶ draining ──▶ idle
//
// Requests that are due together leave a few at a time, so that the first answers are read (and
// timed) while the last requests are still being sent.
#include "benchmarks/load.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/sse_parser.h"
#include "benchmarks/answer_chunk.h"
#include "benchmarks/http_answer.h"
#include "benchmarks/progress.h"

enum {
    READ_BYTES = 64 * 1024,
    MAX_ERROR_BODY_BYTES = 64 * 1024,
    MAX_WHOLE_BODY_BYTES = 64 << 20,
    MAX_SENDS_PER_TURN = 8,
    PROGRESS_MS = 200,
};

enum connection_state { CONNECTION_IDLE, CONNECTION_BUSY, CONNECTION_DRAINING };

struct connection {
    struct run *run;
    struct connection *next, **at; // in the list of all
    struct connection *next_idle, **idle_at;
    enum connection_state state;
    struct wire wire;
    struct event read_event, write_event;
    bool write_wants_read, read_wants_write; // as TLS may
    struct http_answer answer;
    struct sse_parser events;
    struct buf request;
    size_t num_sent;
    struct buf body;           // of a refusal, or of an answer that is no stream
    bool is_reused, has_bytes; // has_bytes: of the present answer
    bool is_finished;          // a finish_reason was seen
    int32_t index;             // of the request
};

struct run {
    const struct load *load;
    struct request_record *records;
    struct event_base *base;
    struct event *pump, *progress, *interrupt;
    struct connection *all, *idle;
    int32_t next, num_active, num_done;
    int64_t start_ns, now_ns; // now: of the read under way
    bool interrupted;
    struct buf scratch;
    struct arena arena;
    char bytes[READ_BYTES];
};

void request_records_free(struct request_record *records, int32_t num)
{
    for (int32_t i = 0; records && i < num; i++) {
        free(records[i].token_ns);
        free(records[i].error);
        buf_deinit(&records[i].text);
    }
    free(records);
}

// ---- connections ---------------------------------------------------------------------------

static void close_socket(struct connection *c)
{
    if (c->wire.fd < 0)
        return;
    event_del(&c->read_event);
    event_del(&c->write_event);
    wire_close(&c->wire);
}

static void leave_idle(struct connection *c)
{
    if (!c->idle_at)
        return;
    *c->idle_at = c->next_idle;
    if (c->next_idle)
        c->next_idle->idle_at = c->idle_at;
    c->idle_at = NULL;
    c->next_idle = NULL;
}

static void become_idle(struct connection *c)
{
    struct run *run = c->run;
    c->state = CONNECTION_IDLE;
    c->next_idle = run->idle;
    c->idle_at = &run->idle;
    if (run->idle)
        run->idle->idle_at = &c->next_idle;
    run->idle = c;
}

static void connection_free(struct connection *c)
{
    close_socket(c);
    leave_idle(c);
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    http_answer_deinit(&c->answer);
    sse_parser_deinit(&c->events);
    buf_deinit(&c->request);
    buf_deinit(&c->body);
    free(c);
}

static struct connection *connection_new(struct run *run)
{
    struct connection *c = xcalloc(1, sizeof(*c));
    c->run = run;
    c->wire.fd = -1;
    c->next = run->all;
    c->at = &run->all;
    if (run->all)
        run->all->at = &c->next;
    run->all = c;
    return c;
}

// ---- the end of a request ------------------------------------------------------------------

static void pump_soon(struct run *run)
{
    event_active(run->pump, EV_TIMEOUT, 0);
}

static void end_request(struct connection *c, enum outcome outcome, const char *error)
{
    struct run *run = c->run;
    struct request_record *record = &run->records[c->index];
    record->outcome = outcome;
    record->end_ns = clock_monotonic_ns();
    record->error = error ? xstrdup(error) : NULL;
    run->num_active--;
    run->num_done++;
    if (run->num_done == run->load->num)
        event_base_loopbreak(run->base);
    else
        pump_soon(run);
}

static void fail_request(struct connection *c, const char *error)
{
    end_request(c, OUTCOME_FAILED, error);
    connection_free(c);
}

/** A proper end of a stream. */
static void succeed(struct connection *c)
{
    bool is_empty = c->run->records[c->index].num_token_ns == 0;
    end_request(c, is_empty ? OUTCOME_EMPTY : OUTCOME_OK, NULL);
}

static bool is_whole(const struct connection *c)
{
    return c->run->load->body->backend == BENCH_BACKEND_EMBEDDINGS;
}

/** 200 and a body that is no stream: a vector should be in it. */
static void end_whole_answer(struct connection *c)
{
    struct run *run = c->run;
    struct request_record *record = &run->records[c->index];
    struct answer_chunk chunk;
    struct error err = {0};
    record->last_ns = run->now_ns;
    arena_reset(&run->arena);
    if (answer_chunk_parse(&chunk, buf_str(&c->body), &run->arena, &record->text, &err) !=
        STATUS_OK)
        error_prefix(&err, "an answer that is not JSON");
    else if (!chunk.has_embedding)
        error_set(&err, STATUS_INVALID, "an answer without an embedding");
    record->prompt_tokens = chunk.prompt_tokens;
    bool is_ok = err.status == STATUS_OK;
    end_request(c, is_ok ? OUTCOME_OK : OUTCOME_FAILED, is_ok ? NULL : err.message);
}

/** The answer is complete: 200 and a stream or a vector, or a refusal with a body. */
static void end_answer(struct connection *c)
{
    const struct http_answer *a = &c->answer;
    struct run *run = c->run;
    char message[512];
    if (a->code == 200 && is_whole(c)) {
        end_whole_answer(c);
    } else if (a->code == 200 && (c->events.is_done || c->is_finished)) {
        succeed(c);
    } else if (a->code == 200) {
        end_request(c, OUTCOME_FAILED,
                    run->records[c->index].last_ns == 0
                        ? "Never received a valid chunk to calculate TTFT.This response will be "
                          "marked as failed!"
                        : "the stream was cut: it ended without [DONE]");
    } else {
        arena_reset(&run->arena);
        struct str why = answer_error_message(buf_str(&c->body), &run->arena);
        snprintf(message, sizeof(message), "HTTP %d %s%s" STR_FORMAT, a->code, a->reason,
                 why.len > 0 ? ": " : "", STR_ARG(why));
        end_request(c, OUTCOME_FAILED, message);
    }
    if (a->closes)
        connection_free(c);
    else
        become_idle(c);
}

// ---- what arrives --------------------------------------------------------------------------

static void note_token(struct request_record *record, int64_t now_ns)
{
    int32_t num = record->num_token_ns;
    if ((num & (num - 1)) == 0) // room for 16, then doubled whenever a power of two is full
        record->token_ns =
            num >= 16 || num == 0
                ? xrealloc(record->token_ns, (size_t)max_i32(16, 2 * num) * sizeof(int64_t))
                : record->token_ns;
    record->token_ns[record->num_token_ns++] = now_ns;
}

static enum status on_event(void *context, struct str data, struct error *err)
{
    struct connection *c = context;
    struct run *run = c->run;
    struct request_record *record = &run->records[c->index];
    struct answer_chunk chunk;
    arena_reset(&run->arena);
    if (answer_chunk_parse(&chunk, data, &run->arena, &record->text, err) != STATUS_OK) {
        error_prefix(err, "an event that is not the JSON of a chunk");
        return STATUS_INVALID;
    }
    if (chunk.has_error)
        return error_set(err, STATUS_INVALID, "the stream carries an error: " STR_FORMAT,
                         STR_ARG(str_slice(chunk.error_message, 0, 300)));
    if (chunk.has_choices)
        record->last_ns = run->now_ns;
    if (chunk.has_output)
        note_token(record, run->now_ns);
    if (chunk.prompt_tokens >= 0)
        record->prompt_tokens = chunk.prompt_tokens;
    if (chunk.completion_tokens >= 0)
        record->completion_tokens = chunk.completion_tokens;
    c->is_finished |= chunk.is_finished;
    return STATUS_OK;
}

static enum status on_body(void *context, struct str bytes, struct error *err)
{
    struct connection *c = context;
    if (c->state == CONNECTION_DRAINING)
        return STATUS_OK;
    if (c->answer.code == 200 && is_whole(c)) {
        if (c->body.len + bytes.len > MAX_WHOLE_BODY_BYTES)
            return error_set(err, STATUS_TOO_LARGE, "an answer of more than %d bytes",
                             MAX_WHOLE_BODY_BYTES);
        buf_append(&c->body, bytes);
        return STATUS_OK;
    }
    if (c->answer.code == 200)
        return sse_parser_feed(&c->events, bytes, on_event, c, err);
    if (c->body.len < MAX_ERROR_BODY_BYTES)
        buf_append(&c->body, str_slice(bytes, 0, MAX_ERROR_BODY_BYTES));
    return STATUS_OK;
}

static void take_bytes(struct connection *c, struct str bytes)
{
    struct error err = {0};
    size_t num_used = 0;
    c->has_bytes = true;
    enum status status = http_answer_feed(&c->answer, bytes, &num_used, on_body, c, &err);
    if (status != STATUS_OK && c->state == CONNECTION_BUSY) {
        fail_request(c, err.message);
        return;
    }
    bool is_done = c->answer.state == HTTP_ANSWER_DONE;
    if (status != STATUS_OK || num_used < bytes.len) // nothing was asked for
        c->answer.closes = true;
    if (c->state == CONNECTION_BUSY && is_done) {
        end_answer(c);
    } else if (c->state == CONNECTION_BUSY && c->events.is_done) {
        c->state = CONNECTION_DRAINING;
        succeed(c);
    } else if (c->state == CONNECTION_DRAINING && (is_done || status != STATUS_OK)) {
        if (c->answer.closes)
            connection_free(c);
        else
            become_idle(c);
    }
}

static void send_request(struct connection *c);

static void on_closed(struct connection *c, int why)
{
    struct error err = {0};
    if (c->state != CONNECTION_BUSY) {
        connection_free(c);
        return;
    }
    // A connection that was kept alive may have been closed before it saw this request.
    if (c->is_reused && !c->has_bytes) {
        close_socket(c);
        send_request(c);
        return;
    }
    if (why == 0 && http_answer_end(&c->answer, &err) == STATUS_OK) {
        c->answer.closes = true;
        end_answer(c);
        return;
    }
    if (why != 0)
        error_set(&err, STATUS_CLOSED, "%s%s", c->has_bytes ? "the stream was cut: " : "",
                  wire_error(&c->wire, why));
    fail_request(c, err.message);
}

static void on_writable(evutil_socket_t fd, short what, void *context);

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct connection *c = context;
    if (c->write_wants_read) {
        c->write_wants_read = false;
        on_writable(fd, what, c); // which may have been its end; what is left to read comes back
        return;
    }
    ssize_t len = wire_receive(&c->wire, c->run->bytes, READ_BYTES);
    if (len < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (c->wire.wants == POLLOUT) {
            c->read_wants_write = true;
            event_add(&c->write_event, NULL);
        }
        return;
    }
    if (len <= 0) {
        on_closed(c, len < 0 ? errno : 0);
        return;
    }
    c->run->now_ns = clock_monotonic_ns();
    if (c->state == CONNECTION_IDLE)
        connection_free(c); // it says something nobody asked for
    else
        take_bytes(c, (struct str){c->run->bytes, (size_t)len});
}

// ---- what is sent --------------------------------------------------------------------------

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    struct connection *c = context;
    if (c->read_wants_write) {
        c->read_wants_write = false;
        on_readable(fd, what, c);
        return;
    }
    while (c->num_sent < c->request.len) {
        ssize_t len =
            wire_send(&c->wire, c->request.ptr + c->num_sent, c->request.len - c->num_sent);
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0 && errno == EAGAIN) {
            c->write_wants_read = c->wire.wants == POLLIN;
            if (!c->write_wants_read)
                event_add(&c->write_event, NULL);
            return;
        }
        if (len < 0) {
            on_closed(c, errno);
            return;
        }
        c->num_sent += (size_t)len;
    }
}

/** On the connection's socket, or a new one. */
static void send_request(struct connection *c)
{
    struct run *run = c->run;
    c->num_sent = 0;
    c->has_bytes = false;
    c->is_reused = c->wire.fd >= 0;
    c->write_wants_read = c->read_wants_write = false;
    if (c->is_reused) {
        on_writable(c->wire.fd, EV_WRITE, c);
        return;
    }
    if (!target_connect(run->load->target, &c->wire)) {
        fail_request(c, strerror(errno));
        return;
    }
    event_assign(&c->read_event, run->base, c->wire.fd, EV_READ | EV_PERSIST, on_readable, c);
    event_assign(&c->write_event, run->base, c->wire.fd, EV_WRITE, on_writable, c);
    event_add(&c->read_event, NULL);
    event_add(&c->write_event, NULL); // once connected
}

static void start_request(struct run *run, int32_t index)
{
    struct connection *c = run->idle ? run->idle : connection_new(run);
    struct request_record *record = &run->records[index];
    leave_idle(c);
    c->state = CONNECTION_BUSY;
    c->index = index;
    c->is_finished = false;
    http_answer_reset(&c->answer);
    sse_parser_reset(&c->events);
    buf_clear(&c->body);
    request_body_write(run->load->body, &run->load->prompts[index], index, &run->scratch,
                       &c->request);
    record->prompt_tokens = record->completion_tokens = -1;
    run->num_active++;
    record->start_ns = clock_monotonic_ns();
    send_request(c);
}

static void wait_ns(struct run *run, int64_t ns)
{
    struct timeval wait = {ns / 1000000000, ns / 1000 % 1000000};
    event_add(run->pump, &wait);
}

/** Sends what is due and allowed. */
static void on_pump(evutil_socket_t fd, short what, void *context)
{
    struct run *run = context;
    const struct load *load = run->load;
    (void)fd;
    (void)what;
    for (int num = 0; run->next < load->num; num++) {
        if (load->max_concurrency > 0 && run->num_active >= load->max_concurrency)
            return; // the end of a request comes back here
        int64_t due_ns = run->start_ns;
        if (load->times_s)
            due_ns += (int64_t)(load->times_s[run->next] * 1e9);
        int64_t left_ns = due_ns - clock_monotonic_ns();
        if (left_ns > 0 || num == MAX_SENDS_PER_TURN) {
            wait_ns(run, max_i64(left_ns, 0));
            return;
        }
        start_request(run, run->next++);
    }
}

// ---- the run -------------------------------------------------------------------------------

static double elapsed_s(const struct run *run)
{
    return (double)(clock_monotonic_ns() - run->start_ns) / 1e9;
}

static void on_progress(evutil_socket_t fd, short what, void *context)
{
    const struct run *run = context;
    (void)fd;
    (void)what;
    progress_show(run->num_done, run->load->num, elapsed_s(run));
}

static void on_interrupt(evutil_socket_t fd, short what, void *context)
{
    struct run *run = context;
    (void)fd;
    (void)what;
    run->interrupted = true;
    event_base_loopbreak(run->base);
}

/** As many descriptors as this process may have: one for each stream. */
static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit); // if it fails, requests beyond the limit say so
}

static enum status open_loop(struct run *run, struct error *err)
{
    struct event_config *config = event_config_new();
    if (config) {
        // Microseconds instead of milliseconds: requests leave when they are due.
        event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
        run->base = event_base_new_with_config(config);
        event_config_free(config);
    }
    if (run->base) {
        run->pump = event_new(run->base, -1, 0, on_pump, run);
        run->progress = event_new(run->base, -1, EV_PERSIST, on_progress, run);
        run->interrupt = evsignal_new(run->base, SIGINT, on_interrupt, run);
    }
    if (run->pump && run->progress && run->interrupt && event_add(run->interrupt, NULL) == 0)
        return STATUS_OK;
    return error_set(err, STATUS_IO, "no event loop: %s", strerror(errno));
}

static void close_loop(struct run *run)
{
    for (struct connection *c = run->all, *next; c; c = next) {
        next = c->next;
        connection_free(c);
    }
    struct event *events[] = {run->pump, run->progress, run->interrupt};
    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        if (events[i])
            event_free(events[i]);
    }
    if (run->base)
        event_base_free(run->base);
    buf_deinit(&run->scratch);
    arena_deinit(&run->arena);
}

static void cancel_active(struct run *run)
{
    for (struct connection *c = run->all; c; c = c->next) {
        if (c->state == CONNECTION_BUSY)
            end_request(c, OUTCOME_CANCELLED, NULL);
    }
}

enum status load_run(const struct load *load, struct request_record *records,
                     struct load_times *times, struct error *err)
{
    struct run *run = xcalloc(1, sizeof(*run));
    run->load = load;
    run->records = records;
    raise_file_limit();
    enum status status = open_loop(run, err);
    run->start_ns = clock_monotonic_ns();
    if (status == STATUS_OK && load->num > 0) {
        const struct timeval often = {PROGRESS_MS / 1000, PROGRESS_MS * 1000};
        if (load->shows_progress)
            event_add(run->progress, &often);
        pump_soon(run);
        event_base_dispatch(run->base);
        if (run->interrupted)
            cancel_active(run);
        if (load->shows_progress)
            progress_end(run->num_done, load->num, elapsed_s(run));
    }
    *times = (struct load_times){run->start_ns, clock_monotonic_ns(), run->interrupted};
    close_loop(run);
    free(run);
    return status;
}
