// A client of an OpenAI-compatible server: JSON requests, and answers as server-sent events.
// libcurl and its types stay in sse_client.c.
#pragma once

#include "base/buf.h"
#include "base/sse_parser.h"
#include "base/status.h"
#include "base/str.h"

struct sse_client;

/**
 * `base_url` such as "http://localhost:8000/v1"; `api_key` may be NULL. The caller owns `*out`.
 * Errors: INVALID (no http or https URL), INTERNAL.
 */
NODISCARD enum status sse_client_create(struct sse_client **out, const char *base_url,
                                        const char *api_key, struct error *err);
void sse_client_destroy(struct sse_client *client);

/**
 * GETs `path` (begins with '/') and appends the body. Errors: UNAVAILABLE (no connection), INVALID
 * (an answer other than 200: the message is the server's own), CLOSED (cut short), TOO_LARGE.
 */
NODISCARD enum status sse_client_get(struct sse_client *client, const char *path, struct buf *body,
                                     struct error *err);

/**
 * POSTs `json` and calls `on_event` for every event as it arrives. Errors: as sse_client_get(), and
 * CLOSED when the stream ends without "[DONE]"; an event {"error": ...} is INVALID.
 */
NODISCARD enum status sse_client_post(struct sse_client *client, const char *path, struct str json,
                                      sse_event_fn *on_event, void *context, struct error *err);
