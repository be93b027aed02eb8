// The flight recorder and its replay: the same decisions, the first difference, damaged files.
#include "engine/scheduler_world.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mapped_file.h"
#include "engine/recorder.h"
#include "engine/replay.h"

struct recorded_world {
    struct world w;
    struct recorder recorder;
};

static void start_as(struct recorded_world *rw, struct scheduler_config config, int32_t num_blocks)
{
    init(&rw->w, config, num_blocks);
    recorder_init(&rw->recorder, &rw->w.scheduler, 4 << 20);
}

static void start(struct recorded_world *rw, int32_t num_blocks)
{
    struct scheduler_config config = DEFAULTS;
    config.watermark = 0.07;
    start_as(rw, config, num_blocks);
}

static void stop(struct recorded_world *rw)
{
    recorder_deinit(&rw->recorder);
    deinit(&rw->w);
}

static void recorded_add(struct recorded_world *rw, uint64_t id, int32_t num_prompt, int32_t family,
                         int32_t max_tokens)
{
    recorder_checkpoint(&rw->recorder, &rw->w.scheduler);
    add(&rw->w, id, num_prompt, family, max_tokens);
    recorder_add(&rw->recorder, &rw->w.scheduler, id);
}

static void recorded_step(struct recorded_world *rw)
{
    struct world *w = &rw->w;
    struct scheduler *s = &w->scheduler;
    struct model_runner_output result = {0};
    struct engine_core_outputs outputs[MAX_API_SERVERS];
    const struct step_durations durations = {1000, 2000, 3000, 4000};
    recorder_checkpoint(&rw->recorder, s);
    bool runs = begin_step(w);
    recorder_step(&rw->recorder, s, runs, &w->step, w->now_ns);
    if (runs)
        fake_worker_run(&w->worker, &w->step, &result);
    w->now_ns += 1000;
    scheduler_update(s, w->now_ns, runs ? &w->step : NULL, runs ? &result : NULL, outputs);
    recorder_update(&rw->recorder, s, w->now_ns, runs ? &w->step : NULL, &result, outputs,
                    &durations);
}

static void recorded_add_pooling(struct recorded_world *rw, uint64_t id, int32_t num_prompt,
                                 int32_t family, enum pooling_type type)
{
    int32_t tokens[FAKE_MAX_LEN];
    struct engine_core_request message = request(id, num_prompt, family, tokens);
    message.pooling.type = type;
    recorder_checkpoint(&rw->recorder, &rw->w.scheduler);
    add_message(&rw->w, &message);
    recorder_add(&rw->recorder, &rw->w.scheduler, id);
}

static void make_traffic(struct recorded_world *rw, int32_t num_requests)
{
    for (int32_t i = 0; i < num_requests; i++) {
        recorded_add(rw, (uint64_t)i + 1, 5 + i * 7 % 30, i % 3, 4 + i % 20);
        recorded_step(rw);
    }
    while (scheduler_has_work(&rw->w.scheduler))
        recorded_step(rw);
}

static void bytes_of(const struct recorder *rec, struct buf *file)
{
    const struct recorder_half *other = &rec->halves[1 - rec->current];
    const struct recorder_half *current = &rec->halves[rec->current];
    buf_clear(file);
    buf_append(file, (struct str){(const char *)rec->head, rec->head_bytes});
    if (rec->has_other)
        buf_append(file, (struct str){(const char *)other->bytes, other->used});
    buf_append(file, (struct str){(const char *)current->bytes, current->used});
}

static void a_recording_replays_to_the_same_decisions(void **state)
{
    (void)state;
    struct recorded_world rw;
    start(&rw, 14);
    make_traffic(&rw, 40);
    assert_true(rw.w.scheduler.stats.num_preemptions > 0);
    char path[] = "/tmp/vllm-recording-test-XXXXXX";
    close(mkstemp(path));
    struct error err = {0};
    assert_int_equal(recorder_dump(&rw.recorder, path, &err), STATUS_IO); // it is there already
    assert_non_null(strstr(err.message, path));
    unlink(path);
    assert_int_equal(recorder_dump(&rw.recorder, path, &err), STATUS_OK);
    struct mapped_file file;
    assert_int_equal(mapped_file_open(&file, path, &err), STATUS_OK);
    struct replay_report report;
    assert_int_equal(replay_run(mapped_file_str(&file), 0, &report, &err), STATUS_OK);
    assert_int_equal(report.num_added, 40);
    assert_int_equal(report.num_finished, 40);
    assert_int_equal(report.num_steps, rw.w.scheduler.step);
    assert_int_equal(report.num_preemptions, rw.w.scheduler.stats.num_preemptions);
    assert_int_equal(report.num_skipped, 0);
    assert_false(report.is_cut);
    assert_int_equal(report.sum_execute_ns % 2000, 0);
    mapped_file_close(&file);
    unlink(path);
    stop(&rw);
}

static void requests_that_pool_are_replayed(void **state)
{
    (void)state;
    struct recorded_world rw;
    struct scheduler_config config = DEFAULTS;
    config.reserve_full_isl = false;
    config.long_prefill_token_threshold = 8; // side by side, so that they take each other's blocks
    start_as(&rw, config, 40);
    rw.w.worker.nan_one_in = 9; // some vectors are not finite
    rw.recorder.capacity = 20000;
    for (int32_t i = 0; i < 200; i++) {
        enum pooling_type type = i % 2 ? POOLING_MEAN : POOLING_LAST;
        int32_t len = i % 50 == 0 ? DEFAULTS.max_model_len : 5 + i * 7 % 90;
        recorded_add_pooling(&rw, (uint64_t)i + 1, min_i32(len, 120), i % 3, type);
        recorded_step(&rw);
    }
    while (scheduler_has_work(&rw.w.scheduler))
        recorded_step(&rw);
    assert_true(rw.recorder.has_other);
    assert_true(rw.w.scheduler.stats.num_preemptions > 0);
    struct buf file = {0};
    bytes_of(&rw.recorder, &file);
    struct replay_report report;
    struct error err = {0};
    if (replay_run(buf_str(&file), 0, &report, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    assert_int_equal(report.num_snapshots, 2);
    assert_true(report.num_finished > 50);
    buf_deinit(&file);
    stop(&rw);
}

static void a_ring_that_turned_starts_from_its_older_half(void **state)
{
    (void)state;
    struct recorded_world rw;
    start(&rw, 40);
    rw.recorder.capacity = 30000;
    make_traffic(&rw, 400);
    assert_true(rw.recorder.has_other);
    assert_int_equal(rw.recorder.num_gaps, 0);
    struct buf file = {0};
    bytes_of(&rw.recorder, &file);
    struct replay_report report;
    struct error err = {0};
    assert_int_equal(replay_run(buf_str(&file), 0, &report, &err), STATUS_OK);
    assert_int_equal(report.num_snapshots, 2); // one to start from, one compared
    assert_true(report.first_step > 0);
    assert_int_equal(report.last_step, rw.w.scheduler.step - 1);
    assert_int_equal(report.num_skipped, 0);
    buf_deinit(&file);
    stop(&rw);
}

enum { NUM_DUMPS = 40, REQUESTS_A_DUMP = 10 };

struct dumper {
    struct recorder *recorder;
    char folder[64];
    _Atomic uint64_t num_requests; // told by the other thread
    atomic_bool is_done;
};

static void *dump_again_and_again(void *context)
{
    struct dumper *d = context;
    for (int i = 0; i < NUM_DUMPS; i++) {
        char path[128];
        struct error err = {0};
        snprintf(path, sizeof(path), "%s/%d", d->folder, i);
        while (atomic_load(&d->num_requests) < (uint64_t)i * REQUESTS_A_DUMP)
            sched_yield(); // so that the ring turns meanwhile
        if (recorder_dump(d->recorder, path, &err) != STATUS_OK)
            break; // the test misses the file
    }
    atomic_store(&d->is_done, true);
    return NULL;
}

// By another thread, while records are added and halves emptied.
static void a_dump_beside_a_busy_scheduler_replays(void **state)
{
    (void)state;
    struct recorded_world rw;
    start(&rw, 40);
    rw.recorder.capacity = 30000;
    struct dumper d = {.recorder = &rw.recorder, .folder = "/tmp/test_recording.XXXXXX"};
    assert_non_null(mkdtemp(d.folder));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, dump_again_and_again, &d), 0);
    for (uint64_t id = 1; !atomic_load(&d.is_done); id++) {
        recorded_add(&rw, id, 5 + (int32_t)(id * 7 % 30), (int32_t)(id % 3),
                     4 + (int32_t)(id % 20));
        for (int i = 0; i < 10; i++)
            recorded_step(&rw);
        atomic_store(&d.num_requests, id);
    }
    pthread_join(thread, NULL);
    assert_true(rw.recorder.has_other);
    for (int i = 0; i < NUM_DUMPS; i++) {
        char path[128];
        struct error err = {0};
        struct mapped_file file;
        struct replay_report report;
        snprintf(path, sizeof(path), "%s/%d", d.folder, i);
        assert_int_equal(mapped_file_open(&file, path, &err), STATUS_OK);
        if (replay_run(mapped_file_str(&file), 0, &report, &err) != STATUS_OK)
            fail_msg("%s", err.message);
        assert_false(report.is_cut);
        mapped_file_close(&file);
        unlink(path);
    }
    rmdir(d.folder);
    stop(&rw);
}

static void what_does_not_fit_leaves_a_gap_and_replay_goes_on_behind_it(void **state)
{
    (void)state;
    struct recorded_world rw;
    start(&rw, 40);
    rw.recorder.capacity = 3000;
    make_traffic(&rw, 100);
    assert_true(rw.recorder.num_gaps > 0);
    struct buf file = {0};
    bytes_of(&rw.recorder, &file);
    struct replay_report report;
    struct error err = {0};
    assert_int_equal(replay_run(buf_str(&file), 0, &report, &err), STATUS_OK);
    buf_deinit(&file);
    stop(&rw);
}

// The record with this place among those of its kind; its body's offset and length.
static size_t find_record(const struct buf *file, enum record_kind kind, int32_t place, size_t *len)
{
    size_t at = RECORDING_MAGIC_BYTES + 4;
    while (at + RECORD_HEAD_BYTES <= file->len) {
        uint32_t body;
        memcpy(&body, file->ptr + at + 1, sizeof(body));
        if (file->ptr[at] == (char)kind && place-- == 0) {
            *len = body;
            return at + RECORD_HEAD_BYTES;
        }
        at += RECORD_HEAD_BYTES + body;
    }
    fail_msg("no such record");
    return 0;
}

static void the_first_difference_is_told_with_its_step(void **state)
{
    (void)state;
    struct recorded_world rw;
    start(&rw, 14);
    make_traffic(&rw, 10);
    struct buf file = {0};
    bytes_of(&rw.recorder, &file);
    size_t len = 0;
    size_t at = find_record(&file, RECORD_STEP, 3, &len);
    file.ptr[at + len - 2] ^= 2; // the last block or place before the final zero
    struct replay_report report;
    struct error err = {0};
    assert_int_equal(replay_run(buf_str(&file), 0, &report, &err), STATUS_INVALID);
    assert_true(report.differs);
    assert_non_null(strstr(err.message, "step 4: "));
    assert_non_null(strstr(err.message, "recorded"));

    // Other tokens than recorded: the same arrivals would have gone on otherwise.
    bytes_of(&rw.recorder, &file);
    at = find_record(&file, RECORD_CONFIG, 0, &len);
    file.ptr[at + 1] ^= 4; // max_num_batched_tokens or max_num_seqs
    assert_int_equal(replay_run(buf_str(&file), 0, &report, &err), STATUS_INVALID);
    buf_deinit(&file);
    stop(&rw);
}

static void a_file_that_was_cut_is_read_up_to_there(void **state)
{
    (void)state;
    struct recorded_world rw;
    start(&rw, 14);
    make_traffic(&rw, 10);
    struct buf file = {0};
    bytes_of(&rw.recorder, &file);
    int num_read = 0;
    for (size_t len = 0; len < file.len; len++) {
        struct replay_report report;
        struct error err = {0};
        enum status status = replay_run((struct str){file.ptr, len}, 0, &report, &err);
        assert_true(status == STATUS_OK || (len < 64 && err.message[0] != '\0'));
        num_read += status == STATUS_OK;
    }
    assert_true(num_read > 100);
    buf_deinit(&file);
    stop(&rw);
}

static void damage_is_an_error_or_a_difference_and_never_more(void **state)
{
    (void)state;
    struct recorded_world rw;
    start(&rw, 14);
    make_traffic(&rw, 12);
    struct buf file = {0}, damaged = {0};
    bytes_of(&rw.recorder, &file);
    int num_refused = 0;
    uint64_t random = 1;
    for (int round = 0; round < 4000; round++) {
        buf_clear(&damaged);
        buf_append(&damaged, buf_str(&file));
        for (int i = 0; i <= round % 3; i++) {
            random = fake_mix(random, 3);
            damaged.ptr[random % damaged.len] = (char)(random >> 40);
        }
        struct replay_report report;
        struct error err = {0};
        if (replay_run(buf_str(&damaged), 4096, &report, &err) != STATUS_OK) {
            assert_true(err.message[0] != '\0');
            num_refused++;
        }
    }
    assert_true(num_refused > 1000);
    buf_deinit(&file);
    buf_deinit(&damaged);
    stop(&rw);
}

static void another_version_is_refused_by_its_number(void **state)
{
    (void)state;
    static const struct {
        struct str bytes;
        const char *message;
    } cases[] = {
        {STR(""), "not a recording"},
        {STR("something else entirely"), "not a recording"},
        {STR("VLLMREC\0\x01\0\0\0"), "version 1, expected 2"},
        {STR("VLLMREC\0\x02\0\0\0"), "without a configuration"},
        {STR("VLLMREC\0\x02\0\0\0\x06\0\0\0\0"), "before the configuration"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct replay_report report;
        struct error err = {0};
        assert_int_equal(replay_run(cases[i].bytes, 0, &report, &err), STATUS_INVALID);
        assert_non_null(strstr(err.message, cases[i].message));
    }
}

static void a_recording_holds_no_token(void **state)
{
    (void)state;
    // Two prompts of one length that share nothing give files that differ in content ids alone.
    struct buf files[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        struct recorded_world rw;
        start(&rw, 40);
        recorded_add(&rw, 1, 3, i, 1); // shorter than a block
        while (scheduler_has_work(&rw.w.scheduler))
            recorded_step(&rw);
        bytes_of(&rw.recorder, &files[i]);
        stop(&rw);
    }
    assert_int_equal(files[0].len, files[1].len);
    assert_memory_equal(files[0].ptr, files[1].ptr, files[0].len);
    buf_deinit(&files[0]);
    buf_deinit(&files[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recording_replays_to_the_same_decisions),
        cmocka_unit_test(requests_that_pool_are_replayed),
        cmocka_unit_test(a_ring_that_turned_starts_from_its_older_half),
        cmocka_unit_test(a_dump_beside_a_busy_scheduler_replays),
        cmocka_unit_test(what_does_not_fit_leaves_a_gap_and_replay_goes_on_behind_it),
        cmocka_unit_test(the_first_difference_is_told_with_its_step),
        cmocka_unit_test(a_file_that_was_cut_is_read_up_to_there),
        cmocka_unit_test(damage_is_an_error_or_a_difference_and_never_more),
        cmocka_unit_test(another_version_is_refused_by_its_number),
        cmocka_unit_test(a_recording_holds_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
