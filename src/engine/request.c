// Requests inside an engine: their state, the queue they wait in, and the table that finds them.
#include "engine/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { REQUESTS_A_SLAB = 64 };

// ---- queue -------------------------------------------------------------------------------

void request_queue_reserve(struct request_queue *queue, int32_t count)
{
    if (queue->policy != SCHEDULING_POLICY_PRIORITY || count <= queue->heap_capacity)
        return;
    queue->heap_capacity = max_i32(count, queue->heap_capacity * 2);
    queue->heap = xrealloc(queue->heap, (size_t)queue->heap_capacity * sizeof(*queue->heap));
    queue->sorted = xrealloc(queue->sorted, (size_t)queue->heap_capacity * sizeof(*queue->sorted));
}

void request_queue_deinit(struct request_queue *queue)
{
    free(queue->heap);
    free(queue->sorted);
    *queue = (struct request_queue){0};
}

bool request_is_before(const struct request *a, const struct request *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->arrival_time_ns != b->arrival_time_ns)
        return a->arrival_time_ns < b->arrival_time_ns;
    return a->request_id < b->request_id;
}

static void heap_put(struct request_queue *queue, int32_t index, struct request *request)
{
    queue->heap[index] = request;
    request->heap_index = index;
}

// Moves the request at `index` to where it belongs, up or down.
static void heap_settle(struct request_queue *queue, int32_t index)
{
    struct request *request = queue->heap[index];
    while (index > 0 && request_is_before(request, queue->heap[(index - 1) / 2])) {
        heap_put(queue, index, queue->heap[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    for (int32_t child; (child = 2 * index + 1) < queue->len; index = child) {
        if (child + 1 < queue->len && request_is_before(queue->heap[child + 1], queue->heap[child]))
            child++;
        if (!request_is_before(queue->heap[child], request))
            break;
        heap_put(queue, index, queue->heap[child]);
    }
    heap_put(queue, index, request);
}

void request_queue_push(struct request_queue *queue, struct request *request)
{
    if (queue->policy == SCHEDULING_POLICY_PRIORITY) {
        assert(queue->len < queue->heap_capacity);
        heap_put(queue, queue->len++, request);
        heap_settle(queue, queue->len - 1);
        return;
    }
    request->next = NULL;
    request->prev = queue->tail;
    if (queue->tail)
        queue->tail->next = request;
    else
        queue->head = request;
    queue->tail = request;
    queue->len++;
}

void request_queue_push_front(struct request_queue *queue, struct request *request)
{
    if (queue->policy == SCHEDULING_POLICY_PRIORITY) {
        request_queue_push(queue, request);
        return;
    }
    request->prev = NULL;
    request->next = queue->head;
    if (queue->head)
        queue->head->prev = request;
    else
        queue->tail = request;
    queue->head = request;
    queue->len++;
}

void request_queue_push_again(struct request_queue *queue, struct request *request)
{
    struct request *next = queue->head;
    if (queue->policy == SCHEDULING_POLICY_PRIORITY) {
        request_queue_push(queue, request);
        return;
    }
    while (next && next->num_preemptions > 0 && next->order < request->order)
        next = next->next;
    if (!next) {
        request_queue_push(queue, request);
    } else if (!next->prev) {
        request_queue_push_front(queue, request);
    } else {
        request->prev = next->prev;
        request->next = next;
        next->prev->next = request;
        next->prev = request;
        queue->len++;
    }
}

struct request *request_queue_peek(const struct request_queue *queue)
{
    if (queue->policy == SCHEDULING_POLICY_PRIORITY)
        return queue->len > 0 ? queue->heap[0] : NULL;
    return queue->head;
}

// Moves the request at `index` down in a heap whose root is the one that comes last.
static void sift_down(struct request **heap, int32_t index, int32_t len)
{
    struct request *request = heap[index];
    for (int32_t child; (child = 2 * index + 1) < len; index = child) {
        if (child + 1 < len && request_is_before(heap[child], heap[child + 1]))
            child++;
        if (!request_is_before(request, heap[child]))
            break;
        heap[index] = heap[child];
    }
    heap[index] = request;
}

struct request *const *request_queue_sort(const struct request_queue *queue)
{
    struct request **sorted = queue->sorted;
    if (queue->len > 0)
        memcpy(sorted, queue->heap, (size_t)queue->len * sizeof(*sorted));
    for (int32_t i = queue->len / 2 - 1; i >= 0; i--)
        sift_down(sorted, i, queue->len);
    for (int32_t len = queue->len - 1; len > 0; len--) {
        struct request *last = sorted[0];
        sorted[0] = sorted[len];
        sorted[len] = last;
        sift_down(sorted, 0, len);
    }
    return sorted;
}

void request_queue_remove(struct request_queue *queue, struct request *request)
{
    assert(queue->len > 0);
    queue->len--;
    if (queue->policy == SCHEDULING_POLICY_PRIORITY) {
        int32_t index = request->heap_index;
        assert(queue->heap[index] == request);
        if (index < queue->len) {
            heap_put(queue, index, queue->heap[queue->len]);
            heap_settle(queue, index);
        }
        return;
    }
    if (request->prev)
        request->prev->next = request->next;
    else
        queue->head = request->next;
    if (request->next)
        request->next->prev = request->prev;
    else
        queue->tail = request->prev;
    request->prev = request->next = NULL;
}

// ---- table -------------------------------------------------------------------------------

void request_table_init(struct request_table *table, int32_t max_spares)
{
    *table = (struct request_table){.max_spares = max_spares};
}

// Side by side, because thousands of requests on a memory page each are more than the processor's
// table of pages has places for; histories apart, because few steps look at them.
struct request_slab {
    struct request requests[REQUESTS_A_SLAB];
    struct request_history histories[REQUESTS_A_SLAB];
    struct request_slab *next;
};

static void add_slab(struct request_table *table)
{
    struct request_slab *slab = xcalloc_aligned(1, sizeof(*slab), _Alignof(struct request_slab));
    slab->next = table->slabs;
    table->slabs = slab;
    for (int32_t i = REQUESTS_A_SLAB - 1; i >= 0; i--) { // the lowest first
        slab->requests[i].history = &slab->histories[i];
        slab->requests[i].hash_next = table->blanks;
        table->blanks = &slab->requests[i];
    }
}

void request_table_deinit(struct request_table *table)
{
    for (struct request_slab *slab = table->slabs, *next; slab; slab = next) {
        next = slab->next;
        for (int32_t i = 0; i < REQUESTS_A_SLAB; i++)
            free(slab->requests[i].memory);
        free(slab);
    }
    free(table->buckets);
    *table = (struct request_table){0};
}

static struct request **bucket_of(const struct request_table *table, uint64_t request_id)
{
    uint64_t mixed = request_id * 0x9E3779B97F4A7C15u;
    return &table->buckets[(mixed ^ mixed >> 32) & (table->num_buckets - 1)];
}

struct request *request_table_find(const struct request_table *table, uint64_t request_id)
{
    if (table->len == 0)
        return NULL;
    struct request *request = *bucket_of(table, request_id);
    while (request && request->request_id != request_id)
        request = request->hash_next;
    return request;
}

static void grow_buckets(struct request_table *table)
{
    struct request_table grown = *table;
    grown.num_buckets = table->num_buckets ? table->num_buckets * 2 : 64;
    grown.buckets = xcalloc(grown.num_buckets, sizeof(struct request *));
    for (uint64_t i = 0; i < table->num_buckets; i++) {
        for (struct request *r = table->buckets[i], *next; r; r = next) {
            next = r->hash_next;
            struct request **bucket = bucket_of(&grown, r->request_id);
            r->hash_next = *bucket;
            *bucket = r;
        }
    }
    free(table->buckets);
    *table = grown;
}

// Bytes of the arrays of one request, each aligned to 16; and, when `memory` is given, lays them
// out there.
struct layout {
    char *memory;
    size_t used;
};

static void *take(struct layout *layout, size_t count, size_t size_bytes)
{
    void *at = layout->memory ? layout->memory + layout->used : NULL;
    layout->used += (count * size_bytes + 15) / 16 * 16;
    return at;
}

static size_t lay_out(struct request *request, const struct sampling_params *from, char *memory,
                      int32_t max_tokens, int32_t max_blocks, int32_t num_groups)
{
    struct layout layout = {.memory = memory};
    struct sampling_params *to = &request->sampling;
    request->token_ids = take(&layout, (size_t)max_tokens, sizeof(int32_t));
    request->kv.hashes = take(&layout, (size_t)max_blocks, sizeof(struct block_hash));
    for (int32_t g = 0; g < num_groups; g++)
        request->kv.tables[g].blocks = take(&layout, (size_t)max_blocks, sizeof(int32_t));
    to->stop_token_ids = take(&layout, (size_t)from->num_stop_token_ids, sizeof(int32_t));
    to->logit_bias = take(&layout, (size_t)from->num_logit_bias, sizeof(struct logit_bias));
    to->allowed_token_ids = take(&layout, (size_t)from->num_allowed_token_ids, sizeof(int32_t));
    to->bad_words = take(&layout, (size_t)from->num_bad_word_ints, sizeof(int32_t));
    to->automaton = take(&layout, (size_t)from->num_automaton_words, sizeof(uint32_t));
    to->logprob_token_ids = take(&layout, (size_t)from->num_logprob_token_ids, sizeof(int32_t));
    return layout.used;
}

static void copy_bytes(const void *to, const void *from, int32_t count, size_t size_bytes)
{
    if (count > 0)
        memcpy((void *)(uintptr_t)to, from, (size_t)count * size_bytes);
}

// A request that is not in use: one that has arrays if there is any.
static struct request *take_spare(struct request_table *table)
{
    for (; table->num_spares > table->max_spares; table->num_spares--) {
        struct request *surplus = table->spares;
        table->spares = surplus->hash_next;
        free(surplus->memory);
        surplus->memory = NULL;
        surplus->memory_bytes = 0;
        surplus->hash_next = table->blanks;
        table->blanks = surplus;
    }
    struct request *request = table->spares;
    if (request) {
        table->spares = request->hash_next;
        table->num_spares--;
        return request;
    }
    if (!table->blanks)
        add_slab(table);
    request = table->blanks;
    table->blanks = request->hash_next;
    return request;
}

struct request *request_table_add(struct request_table *table,
                                  const struct engine_core_request *message, int32_t max_tokens,
                                  int32_t max_blocks, int32_t num_groups)
{
    assert(!request_table_find(table, message->request_id));
    assert(message->num_prompt_tokens + message->num_output_tokens <= max_tokens);
    if ((uint64_t)table->len >= table->num_buckets)
        grow_buckets(table);

    struct request *r = take_spare(table);
    const struct sampling_params *from = &message->sampling;
    size_t need = lay_out(r, from, NULL, max_tokens, max_blocks, num_groups);
    if (r->memory_bytes < need) {
        free(r->memory);
        r->memory = xmalloc(need);
        r->memory_bytes = need;
    }
    *r = (struct request){
        .state = REQUEST_WAITING,
        .row = NO_ROW,
        .scheduled_slot = -1,
        .num_prompt_tokens = message->num_prompt_tokens,
        .num_tokens = message->num_prompt_tokens + message->num_output_tokens,
        .max_tokens = max_tokens,
        .request_id = message->request_id,
        .client_index = message->client_index,
        .priority = message->priority,
        .arrival_time_ns = message->arrival_time_ns,
        .pools = message->pooling.type != POOLING_NONE,
        .pooling = message->pooling,
        .sampling = *from,
        .finish_reason = FINISH_REASON_NONE,
        .stop_token_id = -1,
        .memory = r->memory,
        .memory_bytes = r->memory_bytes,
        .history = r->history,
    };
    *r->history = (struct request_history){.external_id = message->external_id};
    // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the memory allocated after that free()
    lay_out(r, from, r->memory, max_tokens, max_blocks, num_groups);
    copy_bytes(r->token_ids, message->prompt_token_ids, message->num_prompt_tokens,
               sizeof(int32_t));
    copy_bytes(r->token_ids + message->num_prompt_tokens, message->output_token_ids,
               message->num_output_tokens, sizeof(int32_t));
    copy_bytes(r->sampling.stop_token_ids, from->stop_token_ids, from->num_stop_token_ids,
               sizeof(int32_t));
    copy_bytes(r->sampling.logit_bias, from->logit_bias, from->num_logit_bias,
               sizeof(struct logit_bias));
    copy_bytes(r->sampling.allowed_token_ids, from->allowed_token_ids, from->num_allowed_token_ids,
               sizeof(int32_t));
    copy_bytes(r->sampling.bad_words, from->bad_words, from->num_bad_word_ints, sizeof(int32_t));
    copy_bytes(r->sampling.automaton, from->automaton, from->num_automaton_words, sizeof(uint32_t));
    copy_bytes(r->sampling.logprob_token_ids, from->logprob_token_ids, from->num_logprob_token_ids,
               sizeof(int32_t));
    r->kv.token_ids = r->token_ids;
    request_settle_stops(r);

    struct request **bucket = bucket_of(table, r->request_id);
    r->hash_next = *bucket;
    *bucket = r;
    table->len++;
    return r;
}

void request_table_remove(struct request_table *table, struct request *request)
{
    struct request **link = bucket_of(table, request->request_id);
    while (*link != request)
        link = &(*link)->hash_next;
    *link = request->hash_next;
    table->len--;
}

void request_table_recycle(struct request_table *table, struct request *request)
{
    request->hash_next = table->spares;
    table->spares = request;
    table->num_spares++;
}
