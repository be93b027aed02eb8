// The events of a background response that streams: kept from the first one on, so that a client
// that lost its connection can read on where it was, and several can read at once. A log outlives
// its generation as long as the store or a reader holds it. The event loop's.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api_server/router.h"
#include "base/str.h"

struct event_log;

/** A new one, held once. */
struct event_log *event_log_create(void);
struct event_log *event_log_retain(struct event_log *log);
void event_log_release(struct event_log *log); // NULL: nothing

/** Appends whole events, each with the next sequence number, and gives them to the readers. */
void event_log_append(struct event_log *log, struct str events);

/** No event follows. Readers that have them all are done. */
void event_log_end(struct event_log *log);

size_t event_log_bytes(const struct event_log *log); // NULL: 0

/** Streams the events behind number `after` (-1: all) to a call, and those to come. */
void event_log_follow(struct event_log *log, struct api_call *call, int64_t after);

/** For a timer: readers that are slow, silence that some clients take for the end. */
void event_readers_tick(struct api_server *server);

/** Cuts off all readers. */
void event_readers_drop_all(struct api_server *server);
