// Server-sent events (HTML Living Standard, section 9.2.6) out of pieces cut anywhere.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

/**
 * Takes the data of one event, without the final "[DONE]". A status other than OK ends the stream
 * and becomes the result of sse_parser_feed().
 */
typedef enum status sse_event_fn(void *context, struct str data, struct error *err);

/** The events of one stream. `= {0}` is a fresh one. */
struct sse_parser {
    struct buf line, data;
    bool has_data;
    bool is_done;  // "[DONE]" was seen; what follows is dropped
    bool after_cr; // the last line ended in CR: a LF that follows belongs to it
};

/** Feeds the next bytes. Errors: TOO_LARGE (a line or event over 16 MiB), and those of `on_event`.
 */
NODISCARD enum status sse_parser_feed(struct sse_parser *parser, struct str bytes,
                                      sse_event_fn *on_event, void *context, struct error *err);

/** Forgets the stream and keeps the memory for the next one. */
void sse_parser_reset(struct sse_parser *parser);
void sse_parser_deinit(struct sse_parser *parser);
