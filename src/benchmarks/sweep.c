// `vllm bench sweep`: one serve run after the other over rates or concurrency limits, against a
// server that runs already; a table, the results as files, and a picture.
//
//   DIR/EXPERIMENT/BENCH--request_rate=4/run=0.json ...   each run
//   DIR/EXPERIMENT/summary.json, summary.csv              all of them
//
// A sweep that starts its servers is in sweep_commands.c.
#include "base/memory.h"
#include "benchmarks/serve_bench.h"
#include "benchmarks/sweep_summary.h"

/** A sweep under way. */
struct sweep {
    struct bench_options *options;
    struct serve_bench bench;
    const char *folder; // DIR/EXPERIMENT
    struct sweep_summary summary;
    bool is_reset_refused, interrupted, any_completed;
};

static int32_t count_points(const struct bench_options *o)
{
    return o->num_sweep_rates + o->num_sweep_concurrencies; // one of them is 0
}

static const char *point_name(struct arena *arena, const struct bench_options *o, int32_t point)
{
    return o->num_sweep_rates > 0
               ? arena_printf(arena, "request_rate=%s", o->rate_texts.items[point])
               : arena_printf(arena, "max_concurrency=%s", o->concurrency_texts.items[point]);
}

/** Saves the run and hands its result to the summary. */
static enum status keep_run(struct sweep *s, struct serve_run *run, const char *point,
                            int32_t number, struct error *err)
{
    const struct bench_options *o = s->options;
    struct arena *arena = &s->options->arena;
    const char *folder = arena_printf(arena, "%s/BENCH--%s", s->folder, point);
    TRY(make_folders(arena, folder, err));
    json_t *json = bench_result_json(&run->result, o, &s->bench.facts, s->bench.dataset.prompts,
                                     o->save_detailed ? run->records : NULL);
    json_object_set_new(json, "run_number", json_integer(number));
    enum status status =
        json_save(json, arena_printf(arena, "%s/run=%d.json", folder, number), false, err);
    sweep_summary_add(&s->summary, json, &run->result);
    run->result = (struct bench_result){.num_prompts = run->result.num_prompts};
    return status;
}

/** All runs of a point, each with prompts of its own. */
static enum status run_point(struct sweep *s, int32_t point, struct error *err)
{
    struct bench_options *o = s->options;
    int64_t seed = o->seed;
    const char *name = point_name(&o->arena, o, point);
    enum status status = STATUS_OK;
    if (o->num_sweep_rates > 0)
        o->request_rate = o->sweep_rates[point];
    else
        o->max_concurrency = o->sweep_concurrencies[point];
    sweep_summary_begin(&s->summary, name, 0);
    for (int32_t i = 0; status == STATUS_OK && i < o->num_runs && !s->interrupted; i++) {
        struct serve_run run = {0};
        printf("\n[%d/%d] %s, run %d of %d\n", point + 1, count_points(o), name, i + 1,
               o->num_runs);
        o->seed = seed + (int64_t)point * o->num_runs + i;
        target_reset_cache(&s->bench.target, &s->is_reset_refused);
        status = serve_bench_make_prompts(&s->bench, err);
        if (status == STATUS_OK)
            status = serve_bench_run(&s->bench, &run, err);
        s->interrupted |= run.interrupted;
        s->any_completed |= run.result.completed > 0;
        if (status == STATUS_OK)
            status = keep_run(s, &run, name, i, err);
        serve_run_deinit(&run);
    }
    o->seed = seed;
    return status;
}

static enum status run_all(struct sweep *s, struct error *err)
{
    struct bench_options *o = s->options;
    TRY(serve_bench_open(&s->bench, o, err));
    TRY(make_folders(&o->arena, s->folder, err));
    TRY(serve_bench_wait_ready(&s->bench, err));
    for (int32_t i = 0; i < count_points(o) && !s->interrupted; i++)
        TRY(run_point(s, i, err));
    sweep_summary_print(&s->summary);
    return sweep_summary_save(&s->summary, s->folder, s->bench.facts.model_id, false, err);
}

int sweep_main(struct bench_options *options)
{
    struct sweep s = {.options = options, .summary.options = options};
    struct error err = {0};
    s.folder = sweep_folder_name(options);
    enum status status = run_all(&s, &err);
    if (status != STATUS_OK)
        fprintf(stderr, "vllm bench sweep: error: %s\n", err.message);
    sweep_summary_deinit(&s.summary);
    serve_bench_close(&s.bench);
    return status == STATUS_OK && s.any_completed ? 0 : 1;
}
