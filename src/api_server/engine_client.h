// The API server's end of the channel: live requests, and their resumption on a new engine.
//
//   DISCONNECTED ──page says READY: HELLO──▶ GREETING ──WELCOME──▶ CONNECTED
//        ▲                                                            │
//        └── the engine's generation, or its num_losses[us], changes ───┘
//
// Every live request keeps its prompt and the tokens that have come back. On each WELCOME all of
// them are sent again with those tokens: the client sees a pause and nothing else. What has not
// been sent yet is the same as what was lost with an engine, so sending has one path.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "message/codec.h"
#include "message/message.h"
#include "message/shared_page.h"

struct engine_client;

/** One request of the engine. Memory is the caller's, who fills `core` (arrays stay his) and the
 *  callback; the rest belongs to the client from engine_client_add() to the end. */
struct engine_request {
    struct engine_core_request core; // its outputs point to output_token_ids
    int32_t *output_token_ids;       // grows; freed by engine_request_deinit()
    int32_t capacity;
    bool live, sent;
    struct engine_request *previous, *next; // of the live ones
    struct engine_request *hash_next;
    /** New tokens (already in output_token_ids) or the finish; after a finish the request is no
     *  longer live. `timestamp_ns`: the engine's clock at the end of the step. May remove any
     * request. */
    void (*on_output)(struct engine_request *request, const struct engine_core_output *output,
                      int64_t timestamp_ns);
};

/** Connects. The page is read for health and written for num_unfinished. Errors: IO. */
NODISCARD enum status engine_client_create(struct engine_client **out, const char *ipc_dir,
                                           int32_t client_index, struct shared_page *page,
                                           struct error *err);
void engine_client_destroy(struct engine_client *client);

int engine_client_fd(const struct engine_client *client);
/** Receives what has come, for a few milliseconds at most; calls on_output. Call when the
 * descriptor is readable, and again soon if it returns true: then more may be there. */
NODISCARD bool engine_client_receive(struct engine_client *client);
/** Watches the engine's generation, greets, sends what waits; ends everything once the engine is
 *  dead for good. Call often (every 20 ms). */
void engine_client_tick(struct engine_client *client);

/** Whether a new request would be worked on: connected, and the engine beats. */
bool engine_client_is_ready(const struct engine_client *client);

/** Makes the request live, gives it its id, and sends it (now or as soon as an engine is there). */
void engine_client_add(struct engine_client *client, struct engine_request *request);
/** Takes a live request away and tells the engine; nothing is called for it any more. A request
 *  that is not live is left alone. */
void engine_client_abort(struct engine_client *client, struct engine_request *request);
/** Sends the aborts that are queued; called by tick and receive as well. */
void engine_client_flush(struct engine_client *client);

int32_t engine_client_num_live(const struct engine_client *client);
/** Requests that were live and are not any more, since the start. */
int64_t engine_client_num_ended(const struct engine_client *client);

/** Asks the engine to forget cached prefixes; `fn` is called once, `ok` false when it could not or
 *  when it went away. */
void engine_client_reset_prefix_cache(struct engine_client *client,
                                      void (*fn)(void *context, bool ok), void *context);

/**
 * Sends a question of the kinds DUMP_RECORDING or FIND_REQUEST, whose call id is filled in here.
 * `fn` is called once: with the engine's reply, valid during the call, or with NULL when the engine
 * could not be asked or went away.
 */
void engine_client_ask(struct engine_client *client, struct message *question,
                       void (*fn)(void *context, const struct message *reply), void *context);

void engine_request_deinit(struct engine_request *request);
