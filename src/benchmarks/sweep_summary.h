// What all kinds of sweeps do with their runs: a table, files, a picture.
//
//   FOLDER/summary.json   the runs in order, each as its own file has it but for lists
//   FOLDER/summary.csv    the same as a table
#pragma once

#include "benchmarks/bench_result.h"

struct sweep_run {
    json_t *json;
    struct bench_result result;
};

/** Runs under the same conditions. */
struct sweep_point {
    const char *name;
    int32_t series;         // points of one series are joined in the picture: those of one server
    struct sweep_run *runs; // [num_runs]
    int32_t num_runs;
};

/** `= {.options = ...}` is a valid empty one. The options say what is shown and where it goes. */
struct sweep_summary {
    const struct bench_options *options;
    struct sweep_point *points;
    int32_t num_points;
};

/** Begins a point; `name` is borrowed as long as the summary lives. */
void sweep_summary_begin(struct sweep_summary *summary, const char *name, int32_t series);

/** Adds a run to the latest point; takes the JSON and the result over. */
void sweep_summary_add(struct sweep_summary *summary, json_t *json,
                       const struct bench_result *result);

/** Puts a point behind all others. */
void sweep_summary_move_last(struct sweep_summary *summary, int32_t point);

/** The run of median throughput; NULL: the point has none. */
const struct sweep_run *sweep_point_median(const struct sweep_point *point);

void sweep_summary_print(const struct sweep_summary *summary);

/** Writes the files into a folder that is there, and --plot. `names_points`: the picture's labels
 *  are the points' names; else they are rates and limits. Errors: IO. */
NODISCARD enum status sweep_summary_save(const struct sweep_summary *summary, const char *folder,
                                         const char *model, bool names_points, struct error *err);
void sweep_summary_deinit(struct sweep_summary *summary);

/**
 * The result in a file of `vllm bench serve` (this one's or vLLM's): what it lacks is 0, and of
 * latencies NAN. With lists of each request (--save-detailed) their distributions too. Errors:
 * INVALID (another kind of file), naming `path`.
 */
NODISCARD enum status bench_result_read(struct bench_result *result, const json_t *json,
                                        const struct bench_options *options, const char *path,
                                        struct error *err);

/** Every folder of the path that is not there yet. Errors: IO. */
NODISCARD enum status make_folders(struct arena *arena, const char *path, struct error *err);

/** DIR/EXPERIMENT; without a name for the experiment it is the time. */
const char *sweep_folder_name(struct bench_options *options);
