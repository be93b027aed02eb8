// Requests with an automaton that cannot run yet: the bytes of the vocabulary's tokens are being
// read, or the automata of others take all the room there is. They wait in front of the scheduler,
// in order, as the frames that they came in, while everybody else goes on.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "message/message.h"

struct held_request {
    int32_t client_index;
    uint64_t request_id, external_id;
    int32_t num_prompt_tokens, num_automaton_words;
    int64_t queued_ns;
    int64_t num_held_steps;
    char *frame;
    size_t frame_len;
};

/** `= {0}` is an empty list. Belongs to the engine's thread. */
struct held_requests {
    struct held_request *items;
    int32_t len, capacity;
};

void held_requests_deinit(struct held_requests *held);

/** Appends a request; its frame is copied. */
void held_requests_add(struct held_requests *held, const struct engine_core_request *request,
                       struct str frame, int64_t now_ns);

/** Takes the item at `index` out; the caller frees its frame. */
struct held_request held_requests_take(struct held_requests *held, int32_t index);

/** Drops a client's request. False: it is not here. */
bool held_requests_drop(struct held_requests *held, int32_t client_index, uint64_t request_id);

/** Index of the first request of a client (-1: of any), -1 if there is none. */
int32_t held_requests_find_client(const struct held_requests *held, int32_t client_index);

/** Every request waited one step more. */
void held_requests_count_step(struct held_requests *held);

/** Histories of those with this external id, at most `max`. Returns how many. */
int32_t held_requests_histories(const struct held_requests *held, uint64_t external_id,
                                int64_t now_ns, struct request_history *histories, int32_t max);
