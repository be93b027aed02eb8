#include "api_server/http_linger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include <event2/event.h>

#include "base/clock.h"
#include "base/memory.h"

enum {
    IDLE_S = 2,   // without a byte: the client waits for us, or is gone
    TOTAL_S = 10, // a client that sends on for ever is reset in the end
};

/** One socket that is being emptied. */
struct drain {
    struct drain *next, **link; // `link` points to what points here
    struct event *event;
    int64_t end_ns;
    int fd;
};

struct http_linger {
    struct event_base *base;
    struct drain *drains;
};

static void drain_destroy(struct drain *drain)
{
    *drain->link = drain->next;
    if (drain->next)
        drain->next->link = drain->link;
    if (drain->event)
        event_free(drain->event);
    close(drain->fd);
    free(drain);
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct drain *drain = context;
    char bytes[64 << 10];
    bool goes_on = (what & EV_READ) && clock_monotonic_ns() < drain->end_ns;
    if (goes_on) { // once a turn: others are served in between
        ssize_t len = read(fd, bytes, sizeof(bytes));
        goes_on = len > 0 || (len < 0 && (errno == EAGAIN || errno == EINTR));
    }
    if (!goes_on)
        drain_destroy(drain);
}

struct http_linger *http_linger_create(struct event_base *base)
{
    struct http_linger *linger = xcalloc(1, sizeof(*linger));
    linger->base = base;
    return linger;
}

void http_linger_destroy(struct http_linger *linger)
{
    if (!linger)
        return;
    for (struct drain *drain = linger->drains, *next; drain; drain = next) {
        next = drain->next;
        drain_destroy(drain);
    }
    free(linger);
}

void http_linger_add(struct http_linger *linger, int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return; // no descriptor to spare: closed at once
    struct drain *drain = xcalloc(1, sizeof(*drain));
    drain->fd = copy;
    drain->end_ns = clock_monotonic_ns() + TOTAL_S * INT64_C(1000000000);
    drain->next = linger->drains;
    drain->link = &linger->drains;
    if (drain->next)
        drain->next->link = &drain->next;
    linger->drains = drain;
    const struct timeval idle = {.tv_sec = IDLE_S};
    drain->event = event_new(linger->base, copy, EV_READ | EV_PERSIST, on_readable, drain);
    if (!drain->event || event_add(drain->event, &idle) != 0)
        drain_destroy(drain);
}
