// ZeroMQ sockets between API servers and the EngineCore.
//
// ZeroMQ's own descriptor is edge-triggered, and a send may swallow the edge of a frame that came
// in meanwhile. What channel_fd() gives is therefore an epoll descriptor over that one and an
// eventfd, which a send sets when it finds that there is something to receive.
//
// Queues are bounded (MAX_QUEUED_FRAMES a peer) and so are frames; a full queue refuses the next
// frame and never blocks. What an end has queued when its process dies is lost: a request's state
// lives with its API server, which sends it again. An engine that closes its end first lets go what
// it said last, how requests ended, within LAST_WORDS_MS.
#include "message/channel.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <zmq.h>

#include "base/memory.h"

enum {
    MAX_QUEUED_FRAMES = 100000,
    MAX_FRAME_BYTES = 256 << 20,
    LAST_WORDS_MS = 1000, // longer than that only API servers that hang need
    RECONNECT_MS = 5,     // an engine that is back, or up at last, is found within twice this time
};

#define IDENTITY_PREFIX "api-"

/** One thread's. */
struct channel {
    void *context, *socket;
    bool is_engine;
    int epoll_fd, event_fd;
    zmq_msg_t frame; // the one received last
};

static enum status zmq_failed(struct error *err, const char *what, const char *endpoint)
{
    return error_set(err, STATUS_IO, "%s: %s: %s", endpoint, what, zmq_strerror(zmq_errno()));
}

static enum status set_option(struct channel *channel, int option, int value, const char *endpoint,
                              struct error *err)
{
    if (zmq_setsockopt(channel->socket, option, &value, sizeof(value)) != 0)
        return zmq_failed(err, "cannot set a socket option", endpoint);
    return STATUS_OK;
}

static enum status set_options(struct channel *channel, const char *endpoint, struct error *err)
{
    const struct {
        int option, value;
        bool router_only;
    } rows[] = {
        {ZMQ_LINGER, channel->is_engine ? LAST_WORDS_MS : 0, false},
        {ZMQ_SNDHWM, MAX_QUEUED_FRAMES, false},
        {ZMQ_RCVHWM, MAX_QUEUED_FRAMES, false},
        {ZMQ_RECONNECT_IVL, RECONNECT_MS, false},
        {ZMQ_ROUTER_MANDATORY, 1, true}, // sending to nobody is an error
        {ZMQ_ROUTER_HANDOVER, 1, true},  // a restarted API server takes its name over
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (!rows[i].router_only || channel->is_engine)
            TRY(set_option(channel, rows[i].option, rows[i].value, endpoint, err));
    }
    int64_t max_bytes = MAX_FRAME_BYTES;
    if (zmq_setsockopt(channel->socket, ZMQ_MAXMSGSIZE, &max_bytes, sizeof(max_bytes)) != 0)
        return zmq_failed(err, "cannot set a socket option", endpoint);
    return STATUS_OK;
}

/** The descriptor that channel_fd() gives. */
static enum status watch_socket(struct channel *channel, const char *endpoint, struct error *err)
{
    int socket_fd = -1;
    size_t size = sizeof(socket_fd);
    if (zmq_getsockopt(channel->socket, ZMQ_FD, &socket_fd, &size) != 0)
        return zmq_failed(err, "no descriptor", endpoint);
    channel->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    channel->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (channel->event_fd < 0 || channel->epoll_fd < 0 ||
        epoll_ctl(channel->epoll_fd, EPOLL_CTL_ADD, socket_fd, &event) != 0 ||
        epoll_ctl(channel->epoll_fd, EPOLL_CTL_ADD, channel->event_fd, &event) != 0)
        return error_set(err, STATUS_IO, "%s: cannot watch the socket: %s", endpoint,
                         strerror(errno));
    return STATUS_OK;
}

static enum status open_socket(struct channel *channel, const char *endpoint, int32_t client_index,
                               struct error *err)
{
    channel->context = zmq_ctx_new();
    if (!channel->context)
        return zmq_failed(err, "no context", endpoint);
    channel->socket = zmq_socket(channel->context, channel->is_engine ? ZMQ_ROUTER : ZMQ_DEALER);
    if (!channel->socket)
        return zmq_failed(err, "no socket", endpoint);
    TRY(set_options(channel, endpoint, err));
    if (channel->is_engine) {
        if (zmq_bind(channel->socket, endpoint) != 0)
            return zmq_failed(err, "cannot bind", endpoint);
    } else {
        char identity[32];
        int len = snprintf(identity, sizeof(identity), IDENTITY_PREFIX "%d", client_index);
        if (zmq_setsockopt(channel->socket, ZMQ_ROUTING_ID, identity, (size_t)len) != 0)
            return zmq_failed(err, "cannot set the identity", endpoint);
        if (zmq_connect(channel->socket, endpoint) != 0)
            return zmq_failed(err, "cannot connect", endpoint);
    }
    return watch_socket(channel, endpoint, err);
}

static enum status channel_open(struct channel **out, const char *ipc_dir, int32_t client_index,
                                bool is_engine, struct error *err)
{
    *out = NULL;
    char endpoint[sizeof(((struct sockaddr_un *)0)->sun_path) + sizeof("ipc://")];
    int len = snprintf(endpoint, sizeof(endpoint), "ipc://%s/engine", ipc_dir);
    if (len < 0 || (size_t)len >= sizeof(endpoint) - 1)
        return error_set(err, STATUS_IO, "%s: the path is too long for a socket", ipc_dir);
    struct channel *channel = xcalloc(1, sizeof(*channel));
    channel->is_engine = is_engine;
    channel->epoll_fd = channel->event_fd = -1;
    zmq_msg_init(&channel->frame);
    enum status status = open_socket(channel, endpoint, client_index, err);
    if (status != STATUS_OK) {
        channel_close(channel);
        return status;
    }
    *out = channel;
    return STATUS_OK;
}

enum status channel_bind(struct channel **out, const char *ipc_dir, struct error *err)
{
    return channel_open(out, ipc_dir, -1, true, err);
}

enum status channel_connect(struct channel **out, const char *ipc_dir, int32_t client_index,
                            struct error *err)
{
    return channel_open(out, ipc_dir, client_index, false, err);
}

void channel_close(struct channel *channel)
{
    if (!channel)
        return;
    zmq_msg_close(&channel->frame);
    if (channel->epoll_fd >= 0)
        close(channel->epoll_fd);
    if (channel->event_fd >= 0)
        close(channel->event_fd);
    if (channel->socket)
        zmq_close(channel->socket);
    if (channel->context) {
        while (zmq_ctx_term(channel->context) != 0 && zmq_errno() == EINTR)
            ; // a signal interrupts the wait for ZeroMQ's thread
    }
    free(channel);
}

int channel_fd(const struct channel *channel)
{
    return channel->epoll_fd;
}

static bool has_input(struct channel *channel)
{
    int events = 0;
    size_t size = sizeof(events);
    while (zmq_getsockopt(channel->socket, ZMQ_EVENTS, &events, &size) != 0) {
        if (zmq_errno() != EINTR)
            return false;
    }
    return (events & ZMQ_POLLIN) != 0;
}

static int send_part(struct channel *channel, const void *bytes, size_t len, int flags)
{
    int rc;
    do {
        rc = zmq_send(channel->socket, bytes, len, flags | ZMQ_DONTWAIT);
    } while (rc < 0 && zmq_errno() == EINTR);
    return rc;
}

enum status channel_send(struct channel *channel, int32_t client_index, struct str frame,
                         struct error *err)
{
    if (frame.len > MAX_FRAME_BYTES)
        return error_set(err, STATUS_TOO_LARGE, "a frame of %zu bytes, at most %d are allowed",
                         frame.len, MAX_FRAME_BYTES);
    int rc = 0;
    if (channel->is_engine) {
        char identity[32];
        int len = snprintf(identity, sizeof(identity), IDENTITY_PREFIX "%d", client_index);
        rc = send_part(channel, identity, (size_t)len, ZMQ_SNDMORE);
    }
    if (rc >= 0)
        rc = send_part(channel, frame.ptr, frame.len, 0);
    int failure = rc < 0 ? zmq_errno() : 0;
    if (has_input(channel)) {
        uint64_t one = 1; // fails only when the counter is full, and then it is readable
        (void)!write(channel->event_fd, &one, sizeof(one));
    }
    switch (failure) {
    case 0:
        return STATUS_OK;
    case EAGAIN:
        return error_set(err, STATUS_UNAVAILABLE, "the message queue is full");
    case EHOSTUNREACH:
        return error_set(err, STATUS_UNAVAILABLE, "API server %d is not connected", client_index);
    default:
        return error_set(err, STATUS_IO, "cannot send a message: %s", zmq_strerror(failure));
    }
}

/** Next part into channel->frame; false when there is none. */
static bool receive_part(struct channel *channel)
{
    int rc;
    do {
        rc = zmq_msg_recv(&channel->frame, channel->socket, ZMQ_DONTWAIT);
    } while (rc < 0 && zmq_errno() == EINTR);
    return rc >= 0;
}

/** The index in "api-INDEX", or -1. */
static int32_t parse_identity(struct str identity)
{
    if (!str_starts_with(identity, STR(IDENTITY_PREFIX)))
        return -1;
    struct str digits = str_slice(identity, sizeof(IDENTITY_PREFIX) - 1, identity.len);
    int32_t index = 0;
    if (digits.len == 0 || digits.len > 4)
        return -1;
    for (size_t i = 0; i < digits.len; i++) {
        if (digits.ptr[i] < '0' || digits.ptr[i] > '9')
            return -1;
        index = index * 10 + (digits.ptr[i] - '0');
    }
    return index < MAX_API_SERVERS ? index : -1;
}

static struct str frame_str(struct channel *channel)
{
    return (struct str){zmq_msg_data(&channel->frame), zmq_msg_size(&channel->frame)};
}

bool channel_receive(struct channel *channel, int32_t *client_index, struct str *frame)
{
    while (receive_part(channel)) {
        int32_t sender = -1;
        bool valid = true;
        if (channel->is_engine) {
            sender = parse_identity(frame_str(channel));
            valid = sender >= 0 && zmq_msg_more(&channel->frame) && receive_part(channel);
        }
        // ZeroMQ delivers a message whole, so the parts that are too many can be taken now.
        while (zmq_msg_more(&channel->frame) && receive_part(channel))
            valid = false;
        if (valid) {
            *client_index = sender;
            *frame = frame_str(channel);
            return true;
        }
    }
    uint64_t count;
    (void)!read(channel->event_fd, &count, sizeof(count));
    return false;
}

void channel_wait(struct channel *channel, int64_t timeout_ns)
{
    if (timeout_ns == 0 || has_input(channel))
        return;
    struct pollfd watched = {.fd = channel->epoll_fd, .events = POLLIN};
    const struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    ppoll(&watched, 1, timeout_ns < 0 ? NULL : &timeout, NULL); // a signal is as good as a frame
}
