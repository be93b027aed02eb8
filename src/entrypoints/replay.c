// `vllm replay FILE`: a recording of an engine's decisions through the real scheduler.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mapped_file.h"
#include "engine/replay.h"
#include "entrypoints/entrypoints.h"

enum { EXIT_SAME = 0, EXIT_DIFFERS = 1, EXIT_USAGE = 2 };

static const char usage[] = "usage: vllm replay [-h] FILE\n";

static int print_help(void)
{
    printf("%s\n"
           "Drives the scheduler from a recording, without a model, and compares every decision.\n"
           "\n"
           "Engines record all the time. They write FILE on POST /debug/recording, on SIGUSR2 to "
           "the\n"
           "engine's process, and when they fail, to VLLM_RECORDING_DIR (/tmp when it is not "
           "set).\n"
           "A recording has no text and no token ids in it.\n"
           "\n"
           "exit status: 0 every decision is the same; 1 one differs, and the first that does is\n"
           "printed; 2 FILE is no recording or is damaged\n",
           usage);
    return EXIT_SAME;
}

static double mean_us(int64_t sum_ns, int64_t count)
{
    return count > 0 ? (double)sum_ns / (double)count / 1e3 : 0;
}

static void print_report(const struct replay_report *r)
{
    printf("%" PRId64 " steps (%" PRId64 " to %" PRId64 "), %" PRId64 " requests arrived, %" PRId64
           " ended, %" PRId64 " preemptions\n",
           r->num_steps, r->first_step, r->last_step, r->num_added, r->num_finished,
           r->num_preemptions);
    printf("mean of a step: schedule %.1f us, execute %.1f us, update %.1f us, send %.1f us\n",
           mean_us(r->sum_schedule_ns, r->num_steps), mean_us(r->sum_execute_ns, r->num_steps),
           mean_us(r->sum_update_ns, r->num_steps), mean_us(r->sum_send_ns, r->num_steps));
    if (r->num_skipped > 0)
        printf("%" PRId64 " records stand where there is no snapshot to start from: skipped\n",
               r->num_skipped);
    if (r->is_cut)
        printf("the file ends within a record\n");
}

static int replay_file(const char *path)
{
    struct mapped_file file = {0};
    struct replay_report report;
    struct error err = {0};
    if (mapped_file_open(&file, path, &err) != STATUS_OK) {
        fprintf(stderr, "vllm replay: %s\n", err.message);
        return EXIT_USAGE;
    }
    enum status status = replay_run(mapped_file_str(&file), 0, &report, &err);
    mapped_file_close(&file);
    if (status != STATUS_OK && !report.differs) {
        fprintf(stderr, "vllm replay: %s: %s\n", path, err.message);
        return EXIT_USAGE;
    }
    print_report(&report);
    if (report.differs) {
        printf("the first difference: %s\n", err.message);
        return EXIT_DIFFERS;
    }
    printf("every decision is the same\n");
    return EXIT_SAME;
}

int replay_main(int argc, char **argv)
{
    if (argc == 1 && (strcmp(argv[0], "-h") == 0 || strcmp(argv[0], "--help") == 0))
        return print_help();
    if (argc != 1 || argv[0][0] == '-') {
        fprintf(stderr, "%svllm replay: error: expected one FILE\n", usage);
        return EXIT_USAGE;
    }
    return replay_file(argv[0]);
}
