// The whole state of a scheduler between two steps: what replay starts from. Counters and times
// that no decision reads are left out.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/recording.h"

// ---- writing -------------------------------------------------------------------------------

static void write_request(struct record_writer *w, const struct scheduler *s,
                          const struct request *r, const struct content_key *key)
{
    write_uint(w, r->request_id);
    write_int(w, r->state);
    write_int(w, r->finish_reason);
    write_int(w, r->client_index);
    write_int(w, r->priority);
    write_int(w, r->arrival_time_ns);
    write_int(w, r->order);
    write_int(w, r->num_prompt_tokens);
    write_int(w, r->num_tokens);
    write_int(w, r->sampling.max_tokens);
    write_int(w, r->sampling.min_tokens);
    write_int(w, r->sampling.eos_token_id >= 0);
    write_int(w, r->sampling.num_stop_token_ids);
    write_int(w, prompt_use_of(r));
    write_int(w, r->num_preemptions);
    write_int(w, r->kv.num_hashes);
    for (int32_t i = 0; i < r->kv.num_hashes; i++)
        write_content(w, key, r->kv.hashes[i]);
    if (r->state != REQUEST_RUNNING)
        return;
    write_int(w, r->row);
    write_int(w, r->num_computed_tokens);
    write_int(w, r->admitted_step);
    for (int32_t g = 0; g < s->kv.config.num_groups; g++) {
        const struct block_table *table = &r->kv.tables[g];
        write_int(w, table->len);
        write_int(w, table->num_freed);
        write_int(w, table->num_cached);
        for (int32_t i = table->num_freed; i < table->len; i++)
            write_int(w, table->blocks[i]);
    }
}

static void write_rows(struct record_writer *w, const int32_t *rows, int32_t num_rows)
{
    write_int(w, num_rows);
    for (int32_t i = 0; i < num_rows; i++)
        write_int(w, rows[i]);
}

// Findable blocks, those of equal content in the order in which they are found.
static void write_findable(struct record_writer *w, const struct block_pool *pool,
                           const struct content_key *key)
{
    int32_t num_findable = 0;
    for (int32_t id = 0; id < pool->num_blocks; id++)
        num_findable += pool->blocks[id].group >= 0;
    write_int(w, num_findable);
    for (int32_t first = 0; first < pool->num_blocks; first++) {
        const struct block *block = &pool->blocks[first];
        if (block->group < 0 || block_pool_find(pool, block->hash, block->group) != first)
            continue;
        int32_t id = first;
        do {
            write_int(w, id);
            write_int(w, block->group);
            write_content(w, key, block->hash);
            id = pool->blocks[id].twin_next;
        } while (id != first);
    }
}

static void write_waiting(struct record_writer *w, const struct scheduler *s,
                          const struct content_key *key)
{
    write_int(w, s->waiting.len);
    if (s->waiting.policy != SCHEDULING_POLICY_PRIORITY) {
        for (const struct request *r = s->waiting.head; r; r = r->next)
            write_request(w, s, r, key);
        return;
    }
    // In the order in which they come, so that equal states have equal bytes.
    struct request *const *sorted = request_queue_sort(&s->waiting);
    for (int32_t i = 0; i < s->waiting.len; i++)
        write_request(w, s, sorted[i], key);
}

void snapshot_write(struct record_writer *w, const struct scheduler *s,
                    const struct content_key *key)
{
    const struct block_pool *pool = &s->kv.pool;
    write_int(w, s->step);
    write_int(w, s->num_added);
    write_rows(w, s->free_rows, s->num_free_rows);
    write_rows(w, s->given_back_rows, s->num_given_back_rows);
    write_findable(w, pool, key);
    write_int(w, pool->num_free);
    for (int32_t id = pool->free_head; id != NO_BLOCK; id = pool->blocks[id].next)
        write_int(w, id);
    write_int(w, s->num_running);
    for (int32_t i = 0; i < s->num_running; i++)
        write_request(w, s, s->running[i], key);
    write_waiting(w, s, key);
    write_int(w, s->finished.len);
    for (const struct request *r = s->finished.head; r; r = r->next)
        write_request(w, s, r, key);
    write_uint(w, s->blocked ? s->blocked->request_id : 0);
    write_int(w, s->blocked ? s->blocked_num_free : 0);
}

// ---- reading -------------------------------------------------------------------------------

// Lengths and limits into a request of the table; NULL on failure.
static struct request *read_request_head(struct record_reader *r, struct scheduler *s,
                                         enum request_state wanted)
{
    static const int32_t stop_ids[MAX_STOP_TOKEN_IDS]; // real ones are set below
    struct engine_core_request m = {.request_id = read_uint(r, "request id")};
    enum request_state state = (enum request_state)read_i32(r, "state", wanted, wanted);
    enum finish_reason reason =
        (enum finish_reason)read_i32(r, "finish reason", FINISH_REASON_NONE, FINISH_REASON_ERROR);
    m.client_index = read_i32(r, "client index", 0, MAX_API_SERVERS - 1);
    m.priority = read_int(r, "priority", INT64_MIN, INT64_MAX);
    m.arrival_time_ns = read_int(r, "arrival time", INT64_MIN, INT64_MAX);
    int64_t order = read_int(r, "order", 0, INT64_MAX / 2);
    m.num_prompt_tokens = read_i32(r, "prompt tokens", 1, s->config.max_model_len);
    int32_t num_tokens = read_i32(r, "tokens", m.num_prompt_tokens, s->config.max_model_len);
    m.sampling.max_tokens = read_i32(r, "max_tokens", 1, INT32_MAX);
    m.sampling.min_tokens = read_i32(r, "min_tokens", 0, INT32_MAX);
    m.sampling.eos_token_id = read_i32(r, "has eos", 0, 1) ? REPLAY_EOS : -1;
    m.sampling.num_stop_token_ids = read_i32(r, "stop tokens", 0, MAX_STOP_TOKEN_IDS);
    m.sampling.stop_token_ids = stop_ids;
    read_prompt_use(r, &m);
    if (!record_ok(r))
        return NULL;
    if (request_table_find(&s->requests, m.request_id)) {
        record_fail(r, "request %" PRIu64 " is there twice", m.request_id);
        return NULL;
    }
    int32_t limit = engine_core_request_max_tokens(&m, s->config.max_model_len);
    bool has_ended = m.pooling.type == POOLING_NONE ? num_tokens >= limit : num_tokens > limit;
    if (state != REQUEST_FINISHED && has_ended) {
        record_fail(r, "%d tokens of a request that ends with %d", (int)num_tokens, (int)limit);
        return NULL;
    }
    int32_t max_tokens = max_i32(limit, num_tokens);
    int32_t *zeros = xcalloc((size_t)max_tokens, sizeof(*zeros));
    m.prompt_token_ids = zeros;
    m.output_token_ids = zeros;
    m.num_output_tokens = num_tokens - m.num_prompt_tokens;
    struct request *request = request_table_add(
        &s->requests, &m, max_tokens, (int32_t)ceil_div(max_tokens, s->kv.config.block_size),
        s->kv.config.num_groups);
    free(zeros);
    int32_t *own_stop_ids = (int32_t *)(uintptr_t)request->sampling.stop_token_ids;
    for (int32_t i = 0; i < request->sampling.num_stop_token_ids; i++)
        own_stop_ids[i] = REPLAY_FIRST_STOP + i;
    request->state = state;
    request->order = order;
    request->finish_reason = reason;
    s->num_live[request->client_index]++;
    return request;
}

// The tables of a running request; blocks get their owners.
static void read_tables(struct record_reader *r, struct scheduler *s, struct request *request)
{
    struct kv_cache_manager *kv = &s->kv;
    int32_t capacity = (int32_t)ceil_div(request->max_tokens, kv->config.block_size);
    int32_t need = (int32_t)ceil_div(request->num_computed_tokens, kv->config.block_size);
    for (int32_t g = 0; g < kv->config.num_groups && record_ok(r); g++) {
        struct block_table *table = &request->kv.tables[g];
        table->len = read_i32(r, "table length", need, capacity);
        bool is_sliding = kv->config.groups[g].kind == KV_CACHE_GROUP_SLIDING;
        table->num_freed = read_i32(r, "freed entries", 0, is_sliding ? table->len : 0);
        table->num_cached =
            read_i32(r, "cached entries", 0, min_i32(table->len, request->kv.num_hashes));
        if (record_ok(r) && table->len != request->kv.tables[0].len)
            record_fail(r, "tables of different length");
        for (int32_t i = 0; i < table->len && record_ok(r); i++) {
            table->blocks[i] = NO_BLOCK;
            if (i < table->num_freed)
                continue;
            int32_t id = read_i32(r, "block", 0, kv->pool.num_blocks - 1);
            if (!record_ok(r))
                break;
            table->blocks[i] = id;
            kv->pool.blocks[id].ref_count++;
            // What is still to be made findable must be its alone.
            if (i >= table->num_cached && kv->pool.blocks[id].group >= 0)
                record_fail(r, "block %d is findable too early", (int)id);
        }
    }
}

static struct request *read_request(struct record_reader *r, struct scheduler *s,
                                    enum request_state wanted)
{
    struct request *request = read_request_head(r, s, wanted);
    int32_t num_preemptions = read_i32(r, "preemptions", 0, INT32_MAX);
    int32_t most = request ? request->max_tokens / s->kv.config.block_size : 0;
    int32_t num_hashes = read_count(r, "content ids", most, sizeof(struct block_hash));
    if (!request || !record_ok(r))
        return NULL;
    request->num_preemptions = num_preemptions;
    if (wanted != REQUEST_FINISHED &&
        num_hashes !=
            (s->kv.enable_prefix_caching ? request->num_tokens / s->kv.config.block_size : 0))
        record_fail(r, "%d content ids for %d tokens", (int)num_hashes, (int)request->num_tokens);
    for (int32_t i = 0; i < num_hashes; i++)
        request->kv.hashes[i] = read_content(r);
    request->kv.num_hashes = num_hashes;
    if (wanted != REQUEST_RUNNING || !record_ok(r))
        return record_ok(r) ? request : NULL;
    request->row = read_i32(r, "row", 0, s->config.max_num_seqs - 1);
    request->num_computed_tokens = read_i32(r, "computed tokens", 0, request->num_tokens - 1);
    request->admitted_step = read_int(r, "admitted step", 0, INT64_MAX);
    read_tables(r, s, request);
    return record_ok(r) ? request : NULL;
}

static int32_t read_rows(struct record_reader *r, const struct scheduler *s, int32_t *rows)
{
    int32_t num_rows = read_count(r, "rows", s->config.max_num_seqs, 1);
    for (int32_t i = 0; i < num_rows; i++)
        rows[i] = read_i32(r, "row", 0, s->config.max_num_seqs - 1);
    return record_ok(r) ? num_rows : 0;
}

// Every block starts in use, so that it can be made findable; the free list comes later.
static void read_findable(struct record_reader *r, struct scheduler *s)
{
    struct block_pool *pool = &s->kv.pool;
    while (block_pool_allocate(pool) != NO_BLOCK)
        ;
    int32_t num_findable = read_count(r, "findable blocks", pool->num_blocks, 18);
    for (int32_t i = 0; i < num_findable && record_ok(r); i++) {
        int32_t id = read_i32(r, "block", 0, pool->num_blocks - 1);
        int32_t group = read_i32(r, "group", 0, s->kv.config.num_groups - 1);
        struct block_hash hash = read_content(r);
        if (record_ok(r) && pool->blocks[id].group >= 0)
            record_fail(r, "block %d is findable twice", (int)id);
        if (record_ok(r))
            block_pool_cache(pool, id, hash, group);
    }
    for (int32_t id = 0; id < pool->num_blocks; id++)
        pool->blocks[id].ref_count = 0; // the owners follow
}

static void read_free_list(struct record_reader *r, struct scheduler *s, int32_t *free_blocks,
                           int32_t *num_free)
{
    *num_free = read_count(r, "free blocks", s->kv.pool.num_blocks, 1);
    for (int32_t i = 0; i < *num_free; i++)
        free_blocks[i] = read_i32(r, "free block", 0, max_i32(s->kv.pool.num_blocks - 1, 0));
}

// Each row belongs to a running request or is free.
static void check_rows(struct record_reader *r, const struct scheduler *s)
{
    char *seen = xcalloc((size_t)s->config.max_num_seqs, 1);
    int32_t num_seen = 0;
    for (int32_t i = 0; i < s->num_free_rows; i++)
        num_seen += seen[s->free_rows[i]]++ == 0;
    for (int32_t i = 0; i < s->num_running; i++)
        num_seen += seen[s->running[i]->row]++ == 0;
    if (num_seen != s->config.max_num_seqs ||
        s->num_free_rows + s->num_running != s->config.max_num_seqs)
        record_fail(r, "rows are missing or there twice");
    free(seen);
}

enum status snapshot_read(struct record_reader *r, struct scheduler *s)
{
    s->step = read_int(r, "step", 0, INT64_MAX / 2);
    s->num_added = read_int(r, "requests added", 0, INT64_MAX / 2);
    s->num_free_rows = read_rows(r, s, s->free_rows);
    s->num_given_back_rows = read_rows(r, s, s->given_back_rows);
    read_findable(r, s);
    int32_t *free_blocks = xcalloc((size_t)s->kv.pool.num_blocks + 1, sizeof(*free_blocks));
    int32_t num_free;
    read_free_list(r, s, free_blocks, &num_free);

    int32_t num_running = read_count(r, "running requests", s->config.max_num_seqs, 20);
    for (int32_t i = 0; i < num_running && record_ok(r); i++) {
        struct request *request = read_request(r, s, REQUEST_RUNNING);
        if (request)
            s->running[s->num_running++] = request;
    }
    int32_t num_waiting = read_count(r, "waiting requests", INT32_MAX, 15);
    for (int32_t i = 0; i < num_waiting && record_ok(r); i++) {
        struct request *request = read_request(r, s, REQUEST_WAITING);
        request_queue_reserve(&s->waiting, s->requests.len);
        if (request)
            request_queue_push(&s->waiting, request);
    }
    int32_t num_finished = read_count(r, "finished requests", INT32_MAX, 15);
    for (int32_t i = 0; i < num_finished && record_ok(r); i++) {
        struct request *request = read_request(r, s, REQUEST_FINISHED);
        if (request)
            request_queue_push(&s->finished, request);
    }
    request_queue_reserve(&s->waiting, s->requests.len);
    scheduler_reserve_outputs(s);
    s->blocked = request_table_find(&s->requests, read_uint(r, "blocked request"));
    s->blocked_num_free = read_i32(r, "free blocks then", 0, INT32_MAX);
    if (record_ok(r))
        check_rows(r, s);
    if (record_ok(r) && !block_pool_set_free_list(&s->kv.pool, free_blocks, num_free))
        record_fail(r, "the free list does not hold exactly the blocks without an owner");
    free(free_blocks);
    return record_finish(r);
}
