// The load itself: sends the requests of a run at their times and writes down when what came back.
//
// One thread and one event loop. All times are the client's: a request starts just before its
// connection or its first byte, and an event's time is that of the read that brought it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "benchmarks/dataset.h"
#include "benchmarks/request_body.h"
#include "benchmarks/target.h"

enum outcome {
    OUTCOME_NOT_SENT,
    OUTCOME_OK,
    OUTCOME_EMPTY,     // a proper end, but no output at all: no time to a first token
    OUTCOME_FAILED,    // `error` says why
    OUTCOME_CANCELLED, // the run was interrupted
};

/** What became of one request. Times are monotonic nanoseconds; 0: never. */
struct request_record {
    enum outcome outcome;
    int64_t start_ns, end_ns;
    int64_t last_ns;      // of the last event with choices, or of a whole answer's last bytes
    int64_t *token_ns;    // of each event with output: text, reasoning or a tool call
    int32_t num_token_ns; // an event may hold several tokens; 0 for embeddings
    int64_t prompt_tokens, completion_tokens; // as the server counts them; -1: it does not
    struct buf text;
    char *error;
};

void request_records_free(struct request_record *records, int32_t num);

struct load {
    const struct target *target;
    const struct request_body *body;
    const struct bench_prompt *prompts;
    int32_t num;
    const double *times_s;   // [num], ascending; NULL: all at once
    int32_t max_concurrency; // -1: no limit
    bool shows_progress;
};

struct load_times {
    int64_t start_ns, end_ns; // from the first that was due to the last that ended
    bool interrupted;         // by SIGINT: what was under way is cancelled
};

/**
 * Runs the load and fills `records[load->num]` (zeroed by the caller, who frees them with
 * request_records_free()). What goes wrong with a request is in its record. Errors: IO (no event
 * loop).
 */
NODISCARD enum status load_run(const struct load *load, struct request_record *records,
                               struct load_times *times, struct error *err);
