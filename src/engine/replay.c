// A recording through the real scheduler.
//
// Whatever the file says is checked before the scheduler hears of it: a file that lies ends with an
// error, not with a failed CHECK. Where file and scheduler disagree on a decision that is a
// difference, which is what replay is for; where the file contradicts itself it is damage.
#include "engine/replay.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/recording.h"

struct replay {
    struct record_reader r; // over the present record
    struct replay_report *report;
    struct kv_cache_config kv_cache;
    struct scheduler scheduler;
    bool is_made, is_live; // the scheduler exists; it stands where the recording stands
    struct scheduler_output steps[MAX_STEPS_IN_FLIGHT]; // by number
    struct scheduler_output step;                       // decided last
    struct row_output *rows;
    int32_t *last_rows, num_last_rows; // of the step before; -1: unknown
    int32_t *zeros;                    // [max_model_len + 1] plain tokens
    struct block_hash *given;
    int32_t given_capacity;
    uint8_t *own_snapshot;
    size_t own_capacity;
};

// The scheduler decided otherwise.
#define DIFFER(replay, ...)                                                            \
    do {                                                                               \
        if (record_ok(&(replay)->r)) {                                                 \
            (replay)->report->differs = true;                                          \
            record_fail(&(replay)->r, "step %" PRId64 ": ", (replay)->scheduler.step); \
            differ_text(&(replay)->r, __VA_ARGS__);                                    \
        }                                                                              \
    } while (0)

static void differ_text(struct record_reader *r, const char *format, ...) PRINTF_FORMAT(2, 3);
static void differ_text(struct record_reader *r, const char *format, ...)
{
    if (!r->err)
        return;
    size_t len = strlen(r->err->message);
    va_list args;
    va_start(args, format);
    vsnprintf(r->err->message + len, sizeof(r->err->message) - len, format, args);
    va_end(args);
}

// ---- records that tell the scheduler something ---------------------------------------------

static void make_scheduler(struct replay *p, int32_t max_blocks)
{
    struct scheduler_config config;
    if (p->is_made)
        record_fail(&p->r, "a second configuration");
    if (!record_ok(&p->r) || config_read(&p->r, &config, &p->kv_cache) != STATUS_OK)
        return;
    if (max_blocks > 0 && (p->kv_cache.num_blocks > max_blocks ||
                           config.max_model_len > max_blocks || config.max_num_seqs > max_blocks)) {
        record_fail(&p->r, "%d blocks, expected at most %d", (int)p->kv_cache.num_blocks,
                    (int)max_blocks);
        return;
    }
    scheduler_init(&p->scheduler, &config);
    p->rows = xcalloc((size_t)config.max_num_seqs, sizeof(*p->rows));
    p->last_rows = xcalloc((size_t)config.max_num_seqs, sizeof(*p->last_rows));
    p->zeros = xcalloc((size_t)config.max_model_len + 1, sizeof(*p->zeros));
    p->is_made = true;
}

static void remake_scheduler(struct replay *p)
{
    struct scheduler_config config = p->scheduler.config;
    config.kv_cache = &p->kv_cache;
    scheduler_deinit(&p->scheduler);
    scheduler_init(&p->scheduler, &config);
}

// A snapshot on the way says whether everything is the same, not only what was decided.
static void compare_snapshot(struct replay *p)
{
    size_t len = (size_t)(p->r.end - p->r.at);
    if (p->own_capacity < len + 16) {
        p->own_capacity = len + 16;
        p->own_snapshot = xrealloc(p->own_snapshot, p->own_capacity);
    }
    struct record_writer w = {.at = p->own_snapshot, .end = p->own_snapshot + p->own_capacity};
    snapshot_write(&w, &p->scheduler, NULL);
    if (w.overflow || (size_t)(w.at - p->own_snapshot) != len ||
        memcmp(p->own_snapshot, p->r.at, len) != 0)
        DIFFER(p, "the scheduler's state is not the recorded one");
    p->r.at = p->r.end;
}

static void take_snapshot(struct replay *p)
{
    p->report->num_snapshots++;
    p->num_last_rows = -1;
    if (p->is_live && p->scheduler.in_flight > 0) {
        record_fail(&p->r, "a snapshot while a step is in flight");
    } else if (p->is_live) {
        compare_snapshot(p);
    } else {
        remake_scheduler(p);
        p->is_live = snapshot_read(&p->r, &p->scheduler) == STATUS_OK;
        p->report->first_step = p->report->num_steps ? p->report->first_step : p->scheduler.step;
    }
}

static void read_given(struct replay *p, int32_t count)
{
    if (count > p->given_capacity) {
        p->given_capacity = max_i32(count, 2 * p->given_capacity);
        p->given = xrealloc(p->given, (size_t)p->given_capacity * sizeof(*p->given));
    }
    for (int32_t i = 0; i < count; i++)
        p->given[i] = read_content(&p->r);
    struct block_hasher *hasher = &p->scheduler.kv.hasher;
    hasher->given = p->given;
    hasher->num_given = count;
    hasher->is_short = false;
}

// The scheduler must have wanted exactly the content ids that were recorded.
static void check_given(struct replay *p)
{
    const struct block_hasher *hasher = &p->scheduler.kv.hasher;
    if (hasher->is_short || hasher->num_given > 0)
        DIFFER(p, "%s content ids of full blocks than recorded",
               hasher->is_short ? "more" : "fewer");
}

static int32_t token_of_class(int32_t token_class)
{
    switch (token_class) {
    case TOKEN_PLAIN:
        return REPLAY_PLAIN_TOKEN;
    case TOKEN_NONE:
        return -1;
    case TOKEN_EOS:
        return REPLAY_EOS;
    default:
        return REPLAY_FIRST_STOP + token_class - TOKEN_FIRST_STOP;
    }
}

static void replay_add(struct replay *p)
{
    struct record_reader *r = &p->r;
    struct scheduler *s = &p->scheduler;
    int32_t longest = s->config.max_model_len + 1;
    struct engine_core_request m = {.request_id = read_uint(r, "request id")};
    m.client_index = read_i32(r, "client index", 0, MAX_API_SERVERS - 1);
    m.priority = read_int(r, "priority", INT64_MIN, INT64_MAX);
    m.arrival_time_ns = read_int(r, "arrival time", INT64_MIN, INT64_MAX);
    m.num_prompt_tokens = read_i32(r, "prompt tokens", 1, longest);
    m.num_output_tokens = read_i32(r, "output tokens", 0, longest - m.num_prompt_tokens);
    m.sampling.max_tokens = read_i32(r, "max_tokens", 1, INT32_MAX);
    m.sampling.min_tokens = read_i32(r, "min_tokens", 0, INT32_MAX);
    m.sampling.eos_token_id = read_i32(r, "has eos", 0, 1) ? REPLAY_EOS : -1;
    m.sampling.num_stop_token_ids = read_i32(r, "stop tokens", 0, MAX_STOP_TOKEN_IDS);
    read_prompt_use(r, &m);
    bool is_outside = read_i32(r, "ids outside the vocabulary", 0, 1) != 0;
    int32_t last = read_i32(r, "last token", TOKEN_PLAIN,
                            TOKEN_FIRST_STOP + m.sampling.num_stop_token_ids - 1);
    int32_t num_hashes =
        read_count(r, "content ids", longest / s->kv.config.block_size, sizeof(struct block_hash));
    read_given(p, num_hashes);
    if (record_finish(r) != STATUS_OK)
        return;

    int32_t stop_ids[MAX_STOP_TOKEN_IDS];
    for (int32_t i = 0; i < m.sampling.num_stop_token_ids; i++)
        stop_ids[i] = REPLAY_FIRST_STOP + i;
    m.sampling.stop_token_ids = stop_ids;
    m.prompt_token_ids = p->zeros;
    m.output_token_ids = p->zeros + m.num_prompt_tokens;
    int32_t *last_token = p->zeros + m.num_prompt_tokens + m.num_output_tokens - 1;
    *last_token = is_outside ? -1 : token_of_class(last);
    struct error err = {0};
    if (scheduler_add(s, &m, 0, &err) != STATUS_OK)
        record_fail(r, "%s", err.message);
    *last_token = REPLAY_PLAIN_TOKEN;
    check_given(p);
    p->report->num_added++;
}

static void replay_abort(struct replay *p)
{
    struct record_reader *r = &p->r;
    int32_t client = read_i32(r, "client index", 0, MAX_API_SERVERS - 1);
    enum finish_reason reason =
        (enum finish_reason)read_i32(r, "reason", FINISH_REASON_NONE, FINISH_REASON_ERROR);
    int32_t num_ids = read_count(r, "ids", INT32_MAX, 1);
    for (int32_t i = 0; i < num_ids && record_ok(r); i++) {
        uint64_t id = read_uint(r, "request id");
        if (record_ok(r))
            scheduler_abort(&p->scheduler, client, &id, 1, reason);
    }
}

static void replay_reset(struct replay *p)
{
    bool recorded = read_i32(&p->r, "outcome", 0, 1) != 0;
    if (record_ok(&p->r) && scheduler_reset_prefix_cache(&p->scheduler) != recorded)
        DIFFER(p, "the prefix cache was%s reset, recorded the opposite", recorded ? " not" : "");
}

// ---- decisions -----------------------------------------------------------------------------

static void compare(struct replay *p, const char *what, int64_t recorded, int64_t decided)
{
    if (recorded != decided)
        DIFFER(p, "%s is %" PRId64 ", recorded %" PRId64, what, decided, recorded);
}

static void compare_id(struct replay *p, const char *what, uint64_t recorded, uint64_t decided)
{
    if (recorded != decided)
        DIFFER(p, "%s is request %" PRIx64 ", recorded %" PRIx64, what, decided, recorded);
}

static void compare_preemptions(struct replay *p)
{
    const struct scheduler *s = &p->scheduler;
    int32_t recorded = read_count(&p->r, "preemptions", s->config.max_num_seqs, 2);
    for (int32_t i = 0; i < min_i32(recorded, s->num_preemptions); i++) {
        compare_id(p, "the victim", read_uint(&p->r, "victim"), s->preemptions[i].victim_id);
        compare_id(p, "who needed the blocks", read_uint(&p->r, "by"), s->preemptions[i].by_id);
    }
    compare(p, "the number of preemptions", recorded, s->num_preemptions);
    p->report->num_preemptions += recorded;
}

static void compare_admissions(struct replay *p)
{
    int32_t recorded = read_count(&p->r, "admissions", p->scheduler.config.max_num_seqs, 2);
    for (int32_t i = 0; i < min_i32(recorded, p->step.num_new_requests); i++) {
        const struct scheduled_new_request *new = &p->step.new_requests[i];
        compare_id(p, "the one admitted", read_uint(&p->r, "admitted"), new->request_id);
        compare(p, "the row of the one admitted", read_int(&p->r, "row", 0, INT32_MAX), new->row);
    }
    compare(p, "the number of admissions", recorded, p->step.num_new_requests);
}

static void compare_row(struct replay *p, int32_t i, int64_t row, int64_t num_tokens)
{
    const struct scheduled_row *decided = &p->step.rows[i];
    uint64_t id = p->scheduler.row_requests[i]->request_id;
    if (decided->row != row)
        DIFFER(p, "place %d has row %d (request %" PRIx64 "), recorded row %" PRId64, (int)i,
               (int)decided->row, id, row);
    if (decided->num_scheduled_tokens != num_tokens)
        DIFFER(p, "request %" PRIx64 " computes %d tokens, recorded %" PRId64, id,
               (int)decided->num_scheduled_tokens, num_tokens);
}

static void compare_rows(struct replay *p)
{
    bool same = read_i32(&p->r, "same rows", 0, 1) != 0;
    if (same && p->num_last_rows < 0)
        record_fail(&p->r, "rows of a step before, and there is none");
    int32_t num_rows =
        same ? p->num_last_rows : read_count(&p->r, "rows", p->scheduler.config.max_num_seqs, 2);
    compare(p, "the number of rows", num_rows, p->step.num_rows);
    for (int32_t i = 0; i < num_rows && record_ok(&p->r); i++) {
        if (!same)
            p->last_rows[i] = read_i32(&p->r, "row", 0, INT32_MAX);
        compare_row(p, i, p->last_rows[i], same ? 1 : read_int(&p->r, "tokens", 0, INT32_MAX));
    }
    p->num_last_rows = num_rows;
}

static void compare_blocks_of_row(struct replay *p, const struct scheduled_row *row)
{
    for (int32_t g = 0; g < p->scheduler.kv.config.num_groups && record_ok(&p->r); g++) {
        compare(p, "the number of new blocks", read_int(&p->r, "new blocks", 0, INT32_MAX),
                row->num_new_blocks[g]);
        compare(p, "the number of freed blocks", read_int(&p->r, "freed blocks", 0, INT32_MAX),
                row->num_freed_blocks[g]);
        for (int32_t k = 0; k < row->num_new_blocks[g] && record_ok(&p->r); k++)
            compare(p, "a new block", read_int(&p->r, "block", NO_BLOCK, INT32_MAX),
                    row->new_blocks[g][k]);
    }
}

static void compare_blocks(struct replay *p)
{
    int32_t next = 0;
    while (record_ok(&p->r)) {
        int32_t place = read_i32(&p->r, "place", 0, p->step.num_rows) - 1;
        for (; next < (place < 0 ? p->step.num_rows : place); next++) {
            if (p->step.rows[next].num_new_blocks[0] > 0)
                DIFFER(p, "place %d gets new blocks, recorded none", (int)next);
        }
        if (place < 0 || !record_ok(&p->r))
            return;
        if (next != place)
            record_fail(&p->r, "places are not in order");
        if (record_ok(&p->r))
            compare_blocks_of_row(p, &p->step.rows[next++]);
    }
}

static void replay_step(struct replay *p)
{
    struct record_reader *r = &p->r;
    int64_t now_ns = read_int(r, "time", 0, INT64_MAX);
    bool recorded_runs = read_i32(r, "runs", 0, 1) != 0;
    if (!scheduler_can_schedule(&p->scheduler))
        record_fail(r, "a step while %d are in flight", (int)p->scheduler.in_flight);
    if (!record_ok(r))
        return;
    bool runs = scheduler_schedule(&p->scheduler, now_ns, &p->step);
    if (runs)
        p->steps[p->step.step % MAX_STEPS_IN_FLIGHT] = p->step;
    compare_preemptions(p);
    compare(p, "whether there is a step", recorded_runs, runs);
    if (runs && record_ok(r)) {
        compare(p, "the step's number", read_int(r, "step", 0, INT64_MAX), p->step.step);
        compare_admissions(p);
        compare_rows(p);
        if (record_ok(r))
            compare_blocks(p);
        p->report->num_steps++;
        p->report->last_step = p->step.step;
    }
}

// The tokens that the recording has for a step in flight.
static void read_tokens(struct replay *p, const struct scheduler_output *step)
{
    static const float vector[1]; // nobody looks into it
    for (int32_t i = 0; i < step->num_rows; i++)
        p->rows[i] = (struct row_output){.row = step->rows[i].row,
                                         .token_id = REPLAY_PLAIN_TOKEN,
                                         .num_pooled = ARRAY_LEN(vector),
                                         .pooled = vector};
    while (record_ok(&p->r)) {
        int32_t place = read_i32(&p->r, "place", 0, step->num_rows) - 1;
        if (place < 0)
            return;
        const struct request *request = scheduler_step_of(&p->scheduler, step)->row_requests[place];
        int32_t last = TOKEN_FIRST_STOP + request->sampling.num_stop_token_ids - 1;
        p->rows[place].token_id = token_of_class(read_i32(&p->r, "token", TOKEN_NONE, last));
        p->rows[place].num_pooled = 0;
    }
}

static void compare_finishes(struct replay *p,
                             const struct engine_core_outputs outputs[MAX_API_SERVERS])
{
    for (int32_t c = 0; c < MAX_API_SERVERS; c++) {
        for (int32_t i = 0; i < outputs[c].num_outputs && record_ok(&p->r); i++) {
            const struct engine_core_output *output = &outputs[c].outputs[i];
            if (output->finish_reason == FINISH_REASON_NONE)
                continue;
            int64_t recorded = read_int(&p->r, "finish", 0, 1 + FINISH_REASON_ERROR) - 1;
            compare(p, "why a request ended", recorded, output->finish_reason);
            if (record_ok(&p->r))
                compare_id(p, "the one that ended", read_uint(&p->r, "request id"),
                           output->request_id);
            p->report->num_finished++;
        }
    }
    if (record_ok(&p->r) && read_int(&p->r, "finish", 0, 1 + FINISH_REASON_ERROR) != 0)
        DIFFER(p, "a request goes on, recorded that it ended");
}

static void replay_update(struct replay *p)
{
    struct record_reader *r = &p->r;
    struct scheduler *s = &p->scheduler;
    int64_t now_ns = read_int(r, "time", 0, INT64_MAX);
    bool has_step = read_i32(r, "has step", 0, 1) != 0;
    // Without a step before it: the engine stops and tells what it aborted.
    if (record_ok(r) && has_step != (s->in_flight > 0))
        record_fail(r, "an update that does not belong to the step before it");
    const struct scheduler_output *step = &p->steps[(s->step - s->in_flight) % MAX_STEPS_IN_FLIGHT];
    read_given(p, 0);
    if (has_step && record_ok(r)) {
        read_tokens(p, step);
        read_given(p, read_count(r, "full blocks", step->num_rows, sizeof(struct block_hash)));
    }
    if (!record_ok(r))
        return;
    const struct model_runner_output result = {.num_rows = has_step ? step->num_rows : 0,
                                               .rows = p->rows};
    struct engine_core_outputs outputs[MAX_API_SERVERS];
    scheduler_update(s, now_ns, has_step ? step : NULL, has_step ? &result : NULL, outputs);
    check_given(p);
    compare_finishes(p, outputs);
    p->report->sum_schedule_ns += read_int(r, "schedule time", 0, INT64_MAX >> 20);
    p->report->sum_execute_ns += read_int(r, "execute time", 0, INT64_MAX >> 20);
    p->report->sum_update_ns += read_int(r, "update time", 0, INT64_MAX >> 20);
    p->report->sum_send_ns += read_int(r, "send time", 0, INT64_MAX >> 20);
}

// ---- the file ------------------------------------------------------------------------------

static enum status replay_record(struct replay *p, enum record_kind kind, int32_t max_blocks)
{
    p->report->num_records++;
    if (kind == RECORD_CONFIG) {
        make_scheduler(p, max_blocks);
        return record_finish(&p->r);
    }
    if (!p->is_made) {
        record_fail(&p->r, "record of kind %d before the configuration", (int)kind);
        return p->r.status;
    }
    if (kind == RECORD_GAP)
        p->is_live = false;
    if (kind != RECORD_SNAPSHOT && !p->is_live) {
        p->report->num_skipped++;
        return STATUS_OK;
    }
    switch (kind) {
    case RECORD_SNAPSHOT:
        take_snapshot(p);
        break;
    case RECORD_ADD:
        replay_add(p);
        break;
    case RECORD_ABORT:
        replay_abort(p);
        break;
    case RECORD_RESET:
        replay_reset(p);
        break;
    case RECORD_STEP:
        replay_step(p);
        break;
    case RECORD_UPDATE:
        replay_update(p);
        break;
    default:
        record_fail(&p->r, "%d is no kind of record", (int)kind);
    }
    return record_finish(&p->r);
}

static uint32_t load_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static enum status check_magic(struct str bytes, struct error *err)
{
    if (bytes.len < RECORDING_MAGIC_BYTES + 4 ||
        memcmp(bytes.ptr, RECORDING_MAGIC, RECORDING_MAGIC_BYTES) != 0)
        return error_set(err, STATUS_INVALID, "not a recording: it does not begin with \"%s\"",
                         RECORDING_MAGIC);
    uint32_t version = load_u32((const uint8_t *)bytes.ptr + RECORDING_MAGIC_BYTES);
    if (version != RECORDING_VERSION)
        return error_set(err, STATUS_INVALID, "a recording of version %u, expected %d", version,
                         RECORDING_VERSION);
    return STATUS_OK;
}

enum status replay_run(struct str bytes, int32_t max_blocks, struct replay_report *report,
                       struct error *err)
{
    *report = (struct replay_report){0};
    TRY(check_magic(bytes, err));
    struct replay p = {.report = report, .num_last_rows = -1};
    const uint8_t *begin = (const uint8_t *)bytes.ptr, *end = begin + bytes.len;
    const uint8_t *at = begin + RECORDING_MAGIC_BYTES + 4;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && end - at >= RECORD_HEAD_BYTES) {
        size_t len = load_u32(at + 1);
        enum record_kind kind = (enum record_kind)at[0];
        if (len > (size_t)(end - at) - RECORD_HEAD_BYTES)
            break;
        const uint8_t *body = at + RECORD_HEAD_BYTES;
        p.r = (struct record_reader){.at = body, .end = body + len, .err = err};
        status = replay_record(&p, kind, max_blocks);
        if (status != STATUS_OK && !report->differs)
            error_prefix(err, "record %lld at byte %zu", (long long)report->num_records,
                         (size_t)(at - begin));
        at = body + len;
    }
    report->is_cut = status == STATUS_OK && at != end;
    if (status == STATUS_OK && !p.is_made)
        status = error_set(err, STATUS_INVALID, "a recording without a configuration");
    if (p.is_made)
        scheduler_deinit(&p.scheduler);
    free(p.rows);
    free(p.last_rows);
    free(p.zeros);
    free(p.given);
    free(p.own_snapshot);
    return status;
}
