// A list in the order of arrival; at most a few thousand entries, so it is searched from its end.
#include "api_server/response_store.h"

#include <pthread.h>
#include <string.h>

#include "api_server/response_events.h"
#include "base/memory.h"

struct entry {
    struct entry *older, *newer;
    struct generation *live;  // NULL: finished
    struct event_log *events; // held; NULL: none
    uint64_t hash;
    struct str id, json, history; // one block behind the entry
    size_t size_bytes;
};

struct response_store {
    pthread_mutex_t lock;
    struct entry *oldest, *newest;
    int32_t count, num_live, max_count;
    size_t size_bytes, max_bytes;
};

struct response_store *response_store_create(int32_t max_count, size_t max_bytes)
{
    struct response_store *store = xcalloc(1, sizeof(*store));
    pthread_mutex_init(&store->lock, NULL);
    store->max_count = max_count;
    store->max_bytes = max_bytes;
    return store;
}

static void remove_entry(struct response_store *store, struct entry *e)
{
    *(e->older ? &e->older->newer : &store->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &store->newest) = e->older;
    store->count--;
    store->num_live -= e->live != NULL;
    store->size_bytes -= e->size_bytes;
    event_log_release(e->events);
    free(e);
}

void response_store_destroy(struct response_store *store)
{
    if (!store)
        return;
    for (struct entry *e = store->oldest, *newer; e; e = newer) {
        newer = e->newer;
        event_log_release(e->events);
        free(e);
    }
    pthread_mutex_destroy(&store->lock);
    free(store);
}

static struct str put(char **at, struct str text)
{
    struct str copy = {*at, text.len};
    if (text.len > 0)
        memcpy(*at, text.ptr, text.len);
    *at += text.len;
    return copy;
}

static void add_entry(struct response_store *store, struct str id, struct generation *live,
                      struct str json, struct str history, struct event_log *events)
{
    size_t size = sizeof(struct entry) + id.len + json.len + history.len;
    struct entry *e = xcalloc(1, size);
    char *at = (char *)(e + 1);
    e->live = live;
    e->hash = str_hash(id);
    e->id = put(&at, id);
    e->json = put(&at, json);
    e->history = put(&at, history);
    e->events = event_log_retain(events);
    e->size_bytes = size + event_log_bytes(events); // of a live one these grow
    e->older = store->newest;
    *(e->older ? &e->older->newer : &store->oldest) = e;
    store->newest = e;
    store->count++;
    store->num_live += live != NULL;
    store->size_bytes += e->size_bytes;
}

static struct entry *find_entry(const struct response_store *store, struct str id)
{
    uint64_t hash = str_hash(id);
    for (struct entry *e = store->newest; e; e = e->older) {
        if (e->hash == hash && str_eq(e->id, id))
            return e;
    }
    return NULL;
}

/** Forgets finished responses, the oldest first, until the limits hold. */
static void trim(struct response_store *store)
{
    for (struct entry *e = store->oldest, *newer; e; e = newer) {
        newer = e->newer;
        if (store->count <= store->max_count && store->size_bytes <= store->max_bytes)
            return;
        if (!e->live)
            remove_entry(store, e);
    }
}

bool response_store_has_room(struct response_store *store)
{
    pthread_mutex_lock(&store->lock);
    size_t live_bytes = 0;
    for (const struct entry *e = store->oldest; e; e = e->newer)
        live_bytes += e->live ? event_log_bytes(e->events) : 0;
    bool has_room = store->num_live < store->max_count && live_bytes < store->max_bytes;
    pthread_mutex_unlock(&store->lock);
    return has_room;
}

void response_store_begin(struct response_store *store, struct str id, struct generation *live,
                          struct event_log *events)
{
    pthread_mutex_lock(&store->lock);
    struct entry *e = find_entry(store, id);
    if (e)
        remove_entry(store, e); // the id has a new owner
    add_entry(store, id, live, (struct str){0}, (struct str){0}, events);
    trim(store);
    pthread_mutex_unlock(&store->lock);
}

void response_store_finish(struct response_store *store, struct str id,
                           const struct generation *live, struct str json, struct str history)
{
    pthread_mutex_lock(&store->lock);
    struct entry *e = find_entry(store, id);
    if (!live || (e && e->live == live)) {
        struct event_log *events = e ? event_log_retain(e->events) : NULL;
        if (e)
            remove_entry(store, e);
        add_entry(store, id, NULL, json, history, live ? events : NULL);
        event_log_release(events);
        trim(store);
    }
    pthread_mutex_unlock(&store->lock);
}

enum response_lookup response_store_find(struct response_store *store, struct str id,
                                         struct generation **live, struct str *json)
{
    pthread_mutex_lock(&store->lock);
    const struct entry *e = find_entry(store, id);
    *live = e ? e->live : NULL;
    *json = e ? e->json : (struct str){0};
    pthread_mutex_unlock(&store->lock);
    return !e ? RESPONSE_UNKNOWN : *live ? RESPONSE_LIVE : RESPONSE_FINISHED;
}

enum response_lookup response_store_history(struct response_store *store, struct str id,
                                            struct arena *arena, struct str *history)
{
    pthread_mutex_lock(&store->lock);
    const struct entry *e = find_entry(store, id);
    bool live = e && e->live;
    if (e && !live)
        *history = arena_str(arena, e->history);
    pthread_mutex_unlock(&store->lock);
    return !e ? RESPONSE_UNKNOWN : live ? RESPONSE_LIVE : RESPONSE_FINISHED;
}

struct event_log *response_store_events(struct response_store *store, struct str id)
{
    pthread_mutex_lock(&store->lock);
    const struct entry *e = find_entry(store, id);
    struct event_log *events = e ? e->events : NULL;
    pthread_mutex_unlock(&store->lock);
    return events;
}
