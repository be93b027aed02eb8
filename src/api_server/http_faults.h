// Requests that are no HTTP, or too much of it: what is wrong with them, and answers that say it as
// every other error is said. Part of http_server.c; libevent's types go no further.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <event2/buffer.h>
#include <event2/http.h>

#include "api_server/http_server.h"

/** Why a request's head is not to be trusted, or NULL. */
const char *http_faults_of_head(struct evhttp_request *request, int32_t max_header_count);

/**
 * For a callback of a connection's output while no answer of ours is due: whatever is written then
 * is evhttp's own. Puts our answer in the place of the one that evhttp has just begun to write;
 * returns whether it did.
 */
bool http_faults_replace(struct evbuffer *output, const struct evbuffer_cb_info *info,
                         const struct http_server_options *options, struct str peer);
