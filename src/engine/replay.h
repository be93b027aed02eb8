// A recording through the real scheduler, without a model: does it decide the same again?
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

struct replay_report {
    int64_t num_records, num_skipped; // skipped: before the first snapshot, or behind a gap
    int64_t num_steps, num_added, num_finished, num_preemptions, num_snapshots;
    int64_t first_step, last_step;
    int64_t sum_schedule_ns, sum_execute_ns, sum_update_ns, sum_send_ns; // as recorded
    bool is_cut;  // the file ends within a record
    bool differs; // the scheduler decided otherwise; the error says what
};

/**
 * Re-drives the scheduler from the bytes of a recording and compares every decision. Errors:
 * INVALID: the bytes are no recording, or contradict themselves; or with `report->differs`, the
 * first decision that is not the recorded one.
 * `max_blocks`: a larger KV cache is refused; 0: any.
 */
NODISCARD enum status replay_run(struct str bytes, int32_t max_blocks, struct replay_report *report,
                                 struct error *err);
