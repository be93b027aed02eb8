// A short list: see held_requests.h.
#include "engine/held_requests.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

void held_requests_deinit(struct held_requests *held)
{
    for (int32_t i = 0; i < held->len; i++)
        free(held->items[i].frame);
    free(held->items);
    *held = (struct held_requests){0};
}

void held_requests_add(struct held_requests *held, const struct engine_core_request *request,
                       struct str frame, int64_t now_ns)
{
    if (held->len == held->capacity) {
        held->capacity = 2 * held->capacity + 16;
        held->items = xrealloc(held->items, (size_t)held->capacity * sizeof(*held->items));
    }
    struct held_request *item = &held->items[held->len++];
    *item = (struct held_request){
        .client_index = request->client_index,
        .request_id = request->request_id,
        .external_id = request->external_id,
        .num_prompt_tokens = request->num_prompt_tokens,
        .num_automaton_words = request->sampling.num_automaton_words,
        .queued_ns = now_ns,
        .frame = xmalloc(frame.len + 1),
        .frame_len = frame.len,
    };
    memcpy(item->frame, frame.ptr, frame.len);
}

struct held_request held_requests_take(struct held_requests *held, int32_t index)
{
    struct held_request item = held->items[index];
    held->len--;
    memmove(held->items + index, held->items + index + 1,
            (size_t)(held->len - index) * sizeof(*held->items));
    return item;
}

bool held_requests_drop(struct held_requests *held, int32_t client_index, uint64_t request_id)
{
    for (int32_t i = 0; i < held->len; i++) {
        const struct held_request *item = &held->items[i];
        if (item->client_index == client_index && item->request_id == request_id) {
            free(held_requests_take(held, i).frame);
            return true;
        }
    }
    return false;
}

int32_t held_requests_find_client(const struct held_requests *held, int32_t client_index)
{
    for (int32_t i = 0; i < held->len; i++) {
        if (client_index < 0 || held->items[i].client_index == client_index)
            return i;
    }
    return -1;
}

void held_requests_count_step(struct held_requests *held)
{
    for (int32_t i = 0; i < held->len; i++)
        held->items[i].num_held_steps++;
}

int32_t held_requests_histories(const struct held_requests *held, uint64_t external_id,
                                int64_t now_ns, struct request_history *histories, int32_t max)
{
    int32_t num = 0;
    for (int32_t i = 0; i < held->len && num < max; i++) {
        const struct held_request *item = &held->items[i];
        if (item->external_id != external_id)
            continue;
        histories[num] = (struct request_history){
            .request_id = item->request_id,
            .external_id = item->external_id,
            .state = REQUEST_WAITING,
            .num_prompt_tokens = item->num_prompt_tokens,
            .now_ns = now_ns,
            .queued_ns = item->queued_ns,
        };
        histories[num++].num_held_steps[HOLD_GRAMMAR] = item->num_held_steps;
    }
    return num;
}
