// Responses that clients may ask for again: bounded in number and in bytes, in this process alone.
//
//   live (a background generation runs) ──▶ finished ──▶ forgotten, the oldest first
//
// The event loop changes the store; other threads may read conversations out of it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

struct event_log;
struct generation;
struct response_store;

enum response_lookup { RESPONSE_UNKNOWN, RESPONSE_LIVE, RESPONSE_FINISHED };

/** Keeps at most `max_count` responses and `max_bytes` of text. */
struct response_store *response_store_create(int32_t max_count, size_t max_bytes);
void response_store_destroy(struct response_store *store);

/** Whether one more live response fits. Any thread. */
bool response_store_has_room(struct response_store *store);

/** Notes a background generation; it is borrowed until response_store_finish(). `events` (NULL: it
 *  does not stream) are held as long as the response is known. */
void response_store_begin(struct response_store *store, struct str id, struct generation *live,
                          struct event_log *events);

/** The events of a response; NULL: it does not stream, or is not known. Borrowed until the store
 *  changes. */
struct event_log *response_store_events(struct response_store *store, struct str id);

/**
 * Keeps the final text of a response, and the conversation with its answer in it. Forgets older
 * ones where there are too many. `live`: the generation that was noted with this id, else NULL;
 * when the id belongs to another one by now, nothing is kept.
 */
void response_store_finish(struct response_store *store, struct str id,
                           const struct generation *live, struct str json, struct str history);

/** What is known: of a live one its generation, of a finished one its text (borrowed until the
 *  store changes). */
enum response_lookup response_store_find(struct response_store *store, struct str id,
                                         struct generation **live, struct str *json);

/** The conversation of a finished response, copied into `arena`. Any thread. */
enum response_lookup response_store_history(struct response_store *store, struct str id,
                                            struct arena *arena, struct str *history);
