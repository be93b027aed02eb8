// One HTTP/1.1 response (RFC 9112) out of pieces cut anywhere: status, then the bytes of the body.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

enum http_answer_state {
    HTTP_ANSWER_STATUS_LINE,
    HTTP_ANSWER_HEADERS,
    HTTP_ANSWER_BODY,       // `remaining` bytes, or until the connection closes
    HTTP_ANSWER_CHUNK_SIZE, // a line with the size of the next chunk
    HTTP_ANSWER_CHUNK,      // `remaining` bytes of it
    HTTP_ANSWER_CHUNK_END,  // the line end after a chunk
    HTTP_ANSWER_TRAILERS,   // lines up to an empty one
    HTTP_ANSWER_DONE,
};

/** `= {0}` waits for a status line. */
struct http_answer {
    enum http_answer_state state;
    int code;
    char reason[64];
    bool is_chunked, has_length, closes; // closes: the connection cannot be used again
    int64_t remaining;
    size_t head_bytes;
    struct buf line;
};

/** Takes some bytes of the body. A status other than OK ends the answer. */
typedef enum status http_body_fn(void *context, struct str bytes, struct error *err);

/**
 * Feeds bytes and calls `on_body`. Sets state DONE at the end of the answer; `*num_used` tells how
 * many bytes belonged to it. Errors: INVALID (not HTTP), TOO_LARGE (a head over 64 KiB), and those
 * of `on_body`.
 */
NODISCARD enum status http_answer_feed(struct http_answer *answer, struct str bytes,
                                       size_t *num_used, http_body_fn *on_body, void *context,
                                       struct error *err);

/** The connection closed: OK where that ends the body. Errors: CLOSED (cut short). */
NODISCARD enum status http_answer_end(struct http_answer *answer, struct error *err);

/** Ready for the next answer; keeps the memory. */
void http_answer_reset(struct http_answer *answer);
void http_answer_deinit(struct http_answer *answer);
