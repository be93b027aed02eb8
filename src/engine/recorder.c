// The flight recorder: the ring and what goes into it.
#include "engine/recorder.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

// ---- records -------------------------------------------------------------------------------

static struct record_writer begin_record(const struct recorder *rec)
{
    const struct recorder_half *half = &rec->halves[rec->current];
    if (!half->bytes || rec->has_gap || rec->capacity - half->used < RECORD_HEAD_BYTES)
        return (struct record_writer){.overflow = true};
    return (struct record_writer){.at = half->bytes + half->used + RECORD_HEAD_BYTES,
                                  .end = half->bytes + rec->capacity};
}

static void store_head(uint8_t *at, enum record_kind kind, size_t len)
{
    at[0] = (uint8_t)kind;
    for (int i = 0; i < 4; i++)
        at[1 + i] = (uint8_t)(len >> (8 * i));
}

// Makes the record part of the half, or notes that it is missing.
static void end_record(struct recorder *rec, const struct record_writer *w, enum record_kind kind)
{
    struct recorder_half *half = &rec->halves[rec->current];
    if (!half->bytes)
        return;
    if (w->overflow) {
        rec->num_gaps += !rec->has_gap;
        rec->has_gap = true;
        return;
    }
    uint8_t *head = half->bytes + half->used;
    size_t len = (size_t)(w->at - head) - RECORD_HEAD_BYTES;
    store_head(head, kind, len);
    // Last: a dump by another thread or from a signal handler sees the record whole.
    atomic_store_explicit(&half->used, half->used + RECORD_HEAD_BYTES + len, memory_order_release);
}

// The current half begins anew with the state of the scheduler.
static void begin_half(struct recorder *rec, const struct scheduler *s)
{
    rec->halves[rec->current].used = 0;
    rec->num_last_rows = -1;
    if (rec->has_gap) {
        store_head(rec->halves[rec->current].bytes, RECORD_GAP, 0);
        rec->halves[rec->current].used = RECORD_HEAD_BYTES;
        rec->has_gap = false;
    }
    struct record_writer w = begin_record(rec);
    snapshot_write(&w, s, &rec->key);
    end_record(rec, &w, RECORD_SNAPSHOT);
}

void recorder_init(struct recorder *rec, const struct scheduler *s, size_t num_bytes)
{
    *rec = (struct recorder){.capacity = num_bytes / 2};
    pthread_mutex_init(&rec->turning, NULL);
    random_bytes(rec->key.secret, sizeof(rec->key.secret));
    rec->last_rows = xcalloc((size_t)s->config.max_num_seqs, sizeof(*rec->last_rows));
    for (int i = 0; i < 2; i++) {
        rec->halves[i].bytes = xmalloc(rec->capacity);
        memset(rec->halves[i].bytes, 0, rec->capacity); // so that memory does not grow later
    }

    memcpy(rec->head, RECORDING_MAGIC, RECORDING_MAGIC_BYTES);
    rec->head[RECORDING_MAGIC_BYTES] = RECORDING_VERSION;
    uint8_t *config = rec->head + RECORDING_MAGIC_BYTES + 4;
    struct record_writer w = {.at = config + RECORD_HEAD_BYTES,
                              .end = rec->head + sizeof(rec->head)};
    config_write(&w, &s->config);
    CHECK(!w.overflow);
    store_head(config, RECORD_CONFIG, (size_t)(w.at - config) - RECORD_HEAD_BYTES);
    rec->head_bytes = (size_t)(w.at - rec->head);
    begin_half(rec, s);
}

void recorder_deinit(struct recorder *rec)
{
    free(rec->halves[0].bytes);
    free(rec->halves[1].bytes);
    free(rec->last_rows);
    pthread_mutex_destroy(&rec->turning);
    *rec = (struct recorder){0};
}

bool recorder_is_due(const struct recorder *rec)
{
    const struct recorder_half *half = &rec->halves[rec->current];
    // The last quarter is for what comes while a step is in flight.
    return half->bytes && (half->used >= rec->capacity / 4 * 3 || rec->has_gap);
}

void recorder_checkpoint(struct recorder *rec, const struct scheduler *s)
{
    // While somebody reads the older half there is still the last quarter of this one.
    if (s->in_flight > 0 || !recorder_is_due(rec) || pthread_mutex_trylock(&rec->turning) != 0)
        return;
    rec->current = 1 - rec->current;
    rec->has_other = true;
    begin_half(rec, s);
    pthread_mutex_unlock(&rec->turning);
}

// ---- what is told to the scheduler ---------------------------------------------------------

// How the token that stands last in a request is told.
static int32_t class_of_last(const struct request *r)
{
    int32_t last = r->token_ids[r->num_tokens - 1];
    if (last == r->sampling.eos_token_id)
        return TOKEN_EOS;
    for (int32_t i = 0; i < r->sampling.num_stop_token_ids; i++) {
        if (last == r->sampling.stop_token_ids[i])
            return TOKEN_FIRST_STOP + i;
    }
    return TOKEN_PLAIN;
}

void recorder_add(struct recorder *rec, const struct scheduler *s, uint64_t request_id)
{
    const struct request *r = request_table_find(&s->requests, request_id);
    assert(r);
    struct record_writer w = begin_record(rec);
    write_uint(&w, r->request_id);
    write_int(&w, r->client_index);
    write_int(&w, r->priority);
    write_int(&w, r->arrival_time_ns);
    // One that is too long was cut when it was refused: the shortest such stands for it.
    bool is_too_long = r->given_tokens > s->config.max_model_len;
    int32_t num_outputs = is_too_long ? r->given_outputs > 0 : r->given_outputs;
    write_int(&w, min_i32(r->given_tokens, s->config.max_model_len + 1) - num_outputs);
    write_int(&w, num_outputs);
    write_int(&w, r->sampling.max_tokens);
    write_int(&w, r->sampling.min_tokens);
    write_int(&w, r->sampling.eos_token_id >= 0);
    write_int(&w, r->sampling.num_stop_token_ids);
    write_int(&w, prompt_use_of(r));
    write_int(&w, r->refusal.kind == REFUSAL_TOKEN_IDS);
    write_int(&w, is_too_long ? TOKEN_PLAIN : class_of_last(r));
    write_int(&w, r->kv.num_hashes);
    for (int32_t i = 0; i < r->kv.num_hashes; i++)
        write_content(&w, &rec->key, r->kv.hashes[i]);
    end_record(rec, &w, RECORD_ADD);
}

void recorder_abort(struct recorder *rec, int32_t client_index, const uint64_t *ids,
                    int32_t num_ids, enum finish_reason reason)
{
    struct record_writer w = begin_record(rec);
    write_int(&w, client_index);
    write_int(&w, reason);
    write_int(&w, num_ids);
    for (int32_t i = 0; i < num_ids; i++)
        write_uint(&w, ids[i]);
    end_record(rec, &w, RECORD_ABORT);
}

void recorder_abort_client(struct recorder *rec, const struct scheduler *s, int32_t client_index,
                           enum finish_reason reason)
{
    // In the order in which the table is walked: it decides the order of freed blocks.
    for (uint64_t i = 0; i < s->requests.num_buckets; i++) {
        for (const struct request *r = s->requests.buckets[i]; r; r = r->hash_next) {
            if (client_index < 0 || r->client_index == client_index)
                recorder_abort(rec, r->client_index, &r->request_id, 1, reason);
        }
    }
}

void recorder_reset(struct recorder *rec, bool ok)
{
    struct record_writer w = begin_record(rec);
    write_int(&w, ok);
    end_record(rec, &w, RECORD_RESET);
}

// ---- what the scheduler decides ------------------------------------------------------------

// Whether the step's rows are those of the step before, each with one token.
static bool only_goes_on(const struct recorder *rec, const struct scheduler_output *step)
{
    if (step->num_rows != rec->num_last_rows || step->num_scheduled_tokens != step->num_rows)
        return false;
    for (int32_t i = 0; i < step->num_rows; i++) {
        if (step->rows[i].row != rec->last_rows[i])
            return false;
    }
    return true;
}

static void write_rows(struct recorder *rec, struct record_writer *w,
                       const struct scheduler_output *step)
{
    bool same = only_goes_on(rec, step);
    write_int(w, same);
    if (same)
        return;
    write_int(w, step->num_rows);
    for (int32_t i = 0; i < step->num_rows; i++) {
        write_int(w, step->rows[i].row);
        write_int(w, step->rows[i].num_scheduled_tokens);
        rec->last_rows[i] = step->rows[i].row;
    }
    rec->num_last_rows = step->num_rows;
}

// Only of rows whose tables have changed; a zero ends the list.
static void write_blocks(struct record_writer *w, const struct scheduler *s,
                         const struct scheduler_output *step)
{
    int32_t num_groups = s->kv.config.num_groups;
    for (int32_t i = 0; i < step->num_rows; i++) {
        const struct scheduled_row *row = &step->rows[i];
        if (row->num_new_blocks[0] == 0) // tables grow together
            continue;
        write_int(w, i + 1);
        for (int32_t g = 0; g < num_groups; g++) {
            write_int(w, row->num_new_blocks[g]);
            write_int(w, row->num_freed_blocks[g]);
            for (int32_t k = 0; k < row->num_new_blocks[g]; k++)
                write_int(w, row->new_blocks[g][k]);
        }
    }
    write_int(w, 0);
}

void recorder_step(struct recorder *rec, const struct scheduler *s, bool runs,
                   const struct scheduler_output *step, int64_t now_ns)
{
    struct record_writer w = begin_record(rec);
    write_int(&w, now_ns);
    write_int(&w, runs);
    write_int(&w, s->num_preemptions);
    for (int32_t i = 0; i < s->num_preemptions; i++) {
        write_uint(&w, s->preemptions[i].victim_id);
        write_uint(&w, s->preemptions[i].by_id);
    }
    if (runs) {
        write_int(&w, step->step);
        write_int(&w, step->num_new_requests);
        for (int32_t i = 0; i < step->num_new_requests; i++) {
            write_uint(&w, step->new_requests[i].request_id);
            write_int(&w, step->new_requests[i].row);
        }
        write_rows(rec, &w, step);
        write_blocks(&w, s, step);
    }
    end_record(rec, &w, RECORD_STEP);
}

// Tokens that did more than make a request longer; a zero ends the list.
static void write_tokens(struct record_writer *w, const struct scheduler *s,
                         const struct scheduler_output *step,
                         const struct model_runner_output *result)
{
    struct request *const *requests = scheduler_step_of(s, step)->row_requests;
    for (int32_t k = 0; k < s->num_notable_rows; k++) {
        int32_t i = s->notable_rows[k];
        const struct request *r = requests[i];
        if (r->state != REQUEST_FINISHED || !step->rows[i].samples)
            continue;
        int32_t class = TOKEN_PLAIN;
        const struct row_output *got = &result->rows[i];
        if (request_pools(r) ? got->num_pooled == 0 : got->token_id < 0)
            class = TOKEN_NONE;
        else if (request_pools(r))
            continue; // it ended with its vector
        else if (r->finish_reason == FINISH_REASON_STOP)
            class = class_of_last(r);
        if (class == TOKEN_PLAIN)
            continue;
        write_int(w, i + 1);
        write_int(w, class);
    }
    write_int(w, 0);
}

// The content ids of blocks whose tokens have become known: what goes on among the notable rows.
static void write_full_blocks(struct recorder *rec, struct record_writer *w,
                              const struct scheduler *s, const struct scheduler_output *step)
{
    struct request *const *requests = scheduler_step_of(s, step)->row_requests;
    int32_t num_notable = s->kv.enable_prefix_caching ? s->num_notable_rows : 0;
    int32_t num_full = 0;
    for (int32_t k = 0; k < num_notable; k++)
        num_full += requests[s->notable_rows[k]]->state != REQUEST_FINISHED;
    write_int(w, num_full);
    for (int32_t k = 0; k < num_notable; k++) {
        const struct request *r = requests[s->notable_rows[k]];
        if (r->state != REQUEST_FINISHED)
            write_content(w, &rec->key, r->kv.hashes[r->kv.num_hashes - 1]);
    }
}

static void write_finishes(struct record_writer *w, const struct scheduler *s,
                           const struct engine_core_outputs outputs[MAX_API_SERVERS])
{
    for (int32_t c = 0; c < MAX_API_SERVERS && s->num_ended > 0; c++) {
        for (int32_t i = 0; i < outputs[c].num_outputs; i++) {
            const struct engine_core_output *output = &outputs[c].outputs[i];
            if (output->finish_reason == FINISH_REASON_NONE)
                continue;
            write_int(w, 1 + (int64_t)output->finish_reason);
            write_uint(w, output->request_id);
        }
    }
    write_int(w, 0);
}

void recorder_update(struct recorder *rec, const struct scheduler *s, int64_t now_ns,
                     const struct scheduler_output *step, const struct model_runner_output *result,
                     const struct engine_core_outputs outputs[MAX_API_SERVERS],
                     const struct step_durations *durations)
{
    struct record_writer w = begin_record(rec);
    write_int(&w, now_ns);
    write_int(&w, step != NULL);
    if (step) {
        write_tokens(&w, s, step, result);
        write_full_blocks(rec, &w, s, step);
    }
    write_finishes(&w, s, outputs);
    write_int(&w, durations->schedule_ns);
    write_int(&w, durations->execute_ns);
    write_int(&w, durations->update_ns);
    write_int(&w, durations->send_ns);
    end_record(rec, &w, RECORD_UPDATE);
}
