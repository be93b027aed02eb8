// `vllm bench sweep serve` and `serve_workload`: servers and benchmarks as commands, over all pairs
// of their sets of flags.
//
//   DIR/EXPERIMENT/SERVE--a.log                        a server's output
//   DIR/EXPERIMENT/SERVE--a-BENCH--b/run=0.json, .log  a run: its result and its output
//   DIR/EXPERIMENT/SERVE--a-BENCH--b-LOAD--serial/...  the loads of serve_workload
//   DIR/EXPERIMENT/summary.json, summary.csv           all of them
//
// A result is written under another name and renamed when it is complete, so that --resume repeats
// what was cut short.
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "benchmarks/command_words.h"
#include "benchmarks/serve_bench.h"
#include "benchmarks/sweep_params.h"
#include "benchmarks/sweep_server.h"
#include "benchmarks/sweep_summary.h"

enum { POLL_MS = 50, INTERRUPT_GRACE_S = 10 };

struct command_sweep {
    struct bench_options *options;
    bool has_loads;     // serve_workload
    const char *folder; // DIR/EXPERIMENT
    struct str_list serve_words, bench_words, after_words;
    struct sweep_params_list serve_sets, bench_sets;
    struct sweep_summary summary;

    // Of the present set of the server's flags
    struct sweep_server server;
    struct str_list server_words;
    const char *server_log;
    int32_t series;
    bool is_up;
};

/** What a point is called and what makes it: flags of the server, of the benchmark, and its load.
 */
struct point_plan {
    const char *name;
    const json_t *serve, *bench, *load;
};

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal}; // no SA_RESTART: waiting ends
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaction(signals[i], &action, NULL);
}

// ---- commands ------------------------------------------------------------------------------

static enum status failed(const struct child_process *child, const char *what, const char *how,
                          struct error *err)
{
    struct arena arena = {0};
    error_set(err, STATUS_UNAVAILABLE, "%s ended with %s%s", what, how,
              child_process_last_output(child, &arena));
    arena_deinit(&arena);
    return STATUS_UNAVAILABLE;
}

/** Waits for a command to succeed; it is gone in any case. */
static enum status wait_for(const struct command_sweep *s, struct child_process *child,
                            const char *what, struct error *err)
{
    char how[32];
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !child_process_has_ended(child, how, sizeof(how))) {
        if (stop_signal)
            status = error_set(err, STATUS_CLOSED, "interrupted");
        else
            status = sweep_server_check(&s->server, err);
        nanosleep(&(struct timespec){0, POLL_MS * 1000000L}, NULL);
    }
    if (status == STATUS_OK && !child_process_has_succeeded(child)) {
        status = sweep_server_check(&s->server, err); // which would be why
        status = status == STATUS_OK ? failed(child, what, how, err) : status;
    }
    child_process_stop(child, SIGINT, INTERRUPT_GRACE_S);
    return status;
}

static enum status run_command(const struct command_sweep *s, const struct str_list *words,
                               const char *log_path, const char *what, struct error *err)
{
    struct child_process child;
    fflush(stdout);
    TRY(child_process_start(&child, words, s->options->show_stdout ? NULL : log_path, NULL, err));
    return wait_for(s, &child, what, err);
}

static enum status ensure_server(struct command_sweep *s, struct error *err)
{
    const struct bench_options *o = s->options;
    if (!o->serve_cmd || s->is_up)
        return STATUS_OK;
    printf("\nServer: %s\n", command_words_text(&s->server_words, &s->options->arena));
    fflush(stdout);
    TRY(sweep_server_start(&s->server, &s->server_words, o->show_stdout ? NULL : s->server_log,
                           o->server_ready_timeout_s, &stop_signal, err));
    s->is_up = true;
    printf("Ready at %s\n", s->server.target.url);
    return STATUS_OK;
}

// ---- a run ---------------------------------------------------------------------------------

/** The benchmark's command with the flags of its set and of the load. */
static struct str_list bench_words_of(const struct command_sweep *s, const struct point_plan *plan)
{
    struct str_list words = s->bench_words;
    struct arena *arena = &s->options->arena;
    sweep_params_apply(plan->bench, &words, arena);
    if (plan->load && !json_object_get(plan->load, "request_rate") &&
        command_words_find(&words, "request-rate")) {
        json_t *unlimited = json_string("inf"); // the limit alone is the load
        command_words_set(&words, "request_rate", unlimited, arena);
        json_decref(unlimited);
    }
    if (plan->load)
        sweep_params_apply(plan->load, &words, arena);
    return words;
}

static bool is_embedding(const struct str_list *words)
{
    const char *backend = command_words_find(words, "backend");
    return backend && strcmp(backend, "openai-embeddings") == 0;
}

/** Adds what makes the command write its result into `folder`/`name`. */
static void add_result_flags(const struct command_sweep *s, struct str_list *words,
                             const char *folder, const char *name)
{
    struct arena *arena = &s->options->arena;
    const char *flags[] = {"--save-result", "--result-dir", folder, "--result-filename", name};
    // The summary and the loads want the time of whole answers too.
    if (!command_words_find(words, "percentile-metrics") && !is_embedding(words)) {
        command_words_append(words, "--percentile-metrics", arena);
        command_words_append(words, "ttft,tpot,itl,e2el", arena);
    }
    if (s->options->plot) // distributions are made of each request's times
        command_words_append(words, "--save-detailed", arena);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        command_words_append(words, flags[i], arena);
}

static enum status load_result(json_t **out, const char *path, struct error *err)
{
    json_error_t problem;
    *out = json_load_file(path, 0, &problem);
    if (*out)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID, "%s: no result: %s", path, problem.text);
}

/** Runs the benchmark and leaves its result, with the flags that made it, in `path`. */
static enum status make_result(struct command_sweep *s, const struct point_plan *plan,
                               const char *folder, int32_t number, const char *path, json_t **out,
                               struct error *err)
{
    struct arena *arena = &s->options->arena;
    const char *name = arena_printf(arena, "run=%d.json.new", number);
    const char *new_path = arena_printf(arena, "%s/%s", folder, name);
    struct str_list words = bench_words_of(s, plan);
    add_result_flags(s, &words, folder, name);
    TRY(make_folders(arena, folder, err));
    TRY(ensure_server(s, err));
    printf("%s\n", command_words_text(&words, arena));
    unlink(new_path);
    TRY(run_command(s, &words, arena_printf(arena, "%s/run=%d.log", folder, number),
                    "the benchmark", err));
    TRY(load_result(out, new_path, err));
    json_object_set_new(*out, "run_number", json_integer(number));
    json_object_update_missing(*out, (json_t *)(uintptr_t)plan->bench);
    json_object_update_missing(*out, (json_t *)(uintptr_t)plan->serve);
    TRY(json_save(*out, new_path, false, err));
    if (rename(new_path, path) != 0)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    if (s->after_words.len > 0)
        return run_command(s, &s->after_words,
                           arena_printf(arena, "%s/run=%d.after.log", folder, number),
                           "--after-bench-cmd", err);
    if (!s->options->after_bench_cmd)
        target_reset_cache(&s->server.target, &s->server.is_reset_refused);
    return STATUS_OK;
}

static enum status run_point(struct command_sweep *s, const struct point_plan *plan,
                             struct error *err)
{
    const struct bench_options *o = s->options;
    struct arena *arena = &s->options->arena;
    const char *folder = arena_printf(arena, "%s/%s", s->folder, plan->name);
    sweep_summary_begin(&s->summary, plan->name, s->series);
    for (int32_t i = 0; i < o->num_runs; i++) {
        const char *path = arena_printf(arena, "%s/run=%d.json", folder, i);
        json_t *json = NULL;
        struct bench_result result = {0};
        bool is_there = o->resume && access(path, F_OK) == 0;
        if (stop_signal)
            return error_set(err, STATUS_CLOSED, "interrupted");
        printf("\n%s, run %d of %d%s\n", plan->name, i + 1, o->num_runs,
               is_there ? ": is there" : "");
        enum status status = is_there ? load_result(&json, path, err)
                                      : make_result(s, plan, folder, i, path, &json, err);
        if (status == STATUS_OK)
            status = bench_result_read(&result, json, o, path, err);
        if (status != STATUS_OK) {
            json_decref(json);
            return status;
        }
        sweep_summary_add(&s->summary, json, &result);
        printf("%d of %d requests succeeded, %.2f a second\n", result.completed, result.num_prompts,
               result.request_throughput);
    }
    return STATUS_OK;
}

// ---- loads ---------------------------------------------------------------------------------

/** A point at this value of the limit or the rate; `label` NULL: it is called by the value. */
static enum status run_load(struct command_sweep *s, const struct point_plan *pair,
                            const char *variable, json_t *value, const char *label,
                            struct error *err)
{
    struct arena *arena = &s->options->arena;
    json_t *load = json_pack("{s:o}", variable, value);
    struct point_plan plan = *pair;
    plan.load = load;
    plan.name = label ? arena_printf(arena, "%s-LOAD--%s", pair->name, label)
                      : arena_printf(arena, "%s-LOAD--%s=%s", pair->name, variable,
                                     command_value_text(value, arena));
    enum status status = run_point(s, &plan, err);
    json_decref(load);
    return status;
}

/** What --workload-var was in effect in the latest point: its rate, or by Little's law (L = λW) its
 *  requests at a time. */
static enum status measured_load(const struct command_sweep *s, double *load, struct error *err)
{
    const struct sweep_point *point = &s->summary.points[s->summary.num_points - 1];
    const struct bench_result *r = &sweep_point_median(point)->result;
    *load = r->request_throughput;
    if (strcmp(s->options->workload_var, "max_concurrency") == 0)
        *load *= r->metrics[METRIC_E2EL].mean / 1e3;
    if (isfinite(*load) && *load > 0)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "%s: its results do not tell the load: no request succeeded, or mean_e2el_ms "
                     "is not among them",
                     point->name);
}

/** The extremes first: what they reach says which loads lie between. */
static enum status run_loads(struct command_sweep *s, const struct point_plan *pair,
                             struct error *err)
{
    const struct bench_options *o = s->options;
    bool is_rate = strcmp(o->workload_var, "request_rate") == 0;
    double least, most, last = 0;
    TRY(run_load(s, pair, "max_concurrency", json_integer(1), "serial", err));
    TRY(measured_load(s, &least, err));
    int32_t num_prompts =
        sweep_point_median(&s->summary.points[s->summary.num_points - 1])->result.num_prompts;
    TRY(run_load(s, pair, "max_concurrency", json_integer(num_prompts > 0 ? num_prompts : 1),
                 "batch", err));
    int32_t batch = s->summary.num_points - 1;
    TRY(measured_load(s, &most, err));
    if (most <= least)
        printf("All at once is no more than one at a time (%g and %g): there is no load between.\n",
               most, least);
    for (int32_t i = 1; i < o->workload_iters - 1 && most > least; i++) {
        double value = least + (most - least) * i / (o->workload_iters - 1);
        char text[32];
        snprintf(text, sizeof(text), "%.4g", value);
        value = is_rate ? strtod(text, NULL) : round(value);
        snprintf(text, sizeof(text), "%.10g", value);
        if (value <= last)
            continue; // rounded to the one before
        last = value;
        TRY(run_load(s, pair, o->workload_var, json_string(text), NULL, err));
    }
    sweep_summary_move_last(&s->summary, batch); // the picture's curves go up
    return STATUS_OK;
}

// ---- all pairs -----------------------------------------------------------------------------

static const char *pair_name(const struct command_sweep *s, int32_t serve, int32_t bench)
{
    struct arena *arena = &s->options->arena;
    const char *serve_name = s->serve_sets.items[serve].name;
    const char *bench_name = s->bench_sets.items[bench].name;
    if (!s->serve_sets.is_given)
        return arena_printf(arena, "BENCH--%s", bench_name);
    if (!s->bench_sets.is_given)
        return arena_printf(arena, "SERVE--%s", serve_name);
    return arena_printf(arena, "SERVE--%s-BENCH--%s", serve_name, bench_name);
}

static bool is_wanted(const struct command_sweep *s, int32_t serve, int32_t bench)
{
    return sweep_links_match(&s->options->link_vars, s->serve_sets.items[serve].values,
                             s->bench_sets.items[bench].values);
}

static void prepare_set(struct command_sweep *s, int32_t serve)
{
    struct arena *arena = &s->options->arena;
    const struct sweep_params *set = &s->serve_sets.items[serve];
    s->series = serve;
    s->is_up = false;
    s->server_words = s->serve_words;
    sweep_params_apply(set->values, &s->server_words, arena);
    s->server_log = arena_printf(arena, "%s/SERVE--%s.log", s->folder, set->name);
}

static enum status run_set(struct command_sweep *s, int32_t serve, struct error *err)
{
    const struct bench_options *o = s->options;
    enum status status = sweep_server_open(
        &s->server, o->serve_cmd ? &s->server_words : &s->bench_words, o->serve_cmd != NULL, err);
    for (int32_t b = 0; b < s->bench_sets.num && status == STATUS_OK; b++) {
        if (!is_wanted(s, serve, b))
            continue;
        struct point_plan plan = {.name = pair_name(s, serve, b),
                                  .serve = s->serve_sets.items[serve].values,
                                  .bench = s->bench_sets.items[b].values};
        status = s->has_loads ? run_loads(s, &plan, err) : run_point(s, &plan, err);
    }
    sweep_server_close(&s->server);
    return status;
}

/** --dry-run. */
static void print_set(struct command_sweep *s, int32_t serve)
{
    struct arena *arena = &s->options->arena;
    if (s->options->serve_cmd)
        printf("Server: %s\n", command_words_text(&s->server_words, arena));
    for (int32_t b = 0; b < s->bench_sets.num; b++) {
        if (!is_wanted(s, serve, b))
            continue;
        struct point_plan plan = {.bench = s->bench_sets.items[b].values};
        const char *name = pair_name(s, serve, b);
        struct str_list words = bench_words_of(s, &plan);
        add_result_flags(s, &words, arena_printf(arena, "%s/%s", s->folder, name),
                         "run=N.json.new");
        if (s->has_loads)
            printf("  %d runs at %d loads by %s: %s\n", s->options->num_runs,
                   s->options->workload_iters, s->options->workload_var,
                   command_words_text(&words, arena));
        else
            printf("  %d runs: %s\n", s->options->num_runs, command_words_text(&words, arena));
    }
}

static enum status run_all(struct command_sweep *s, struct error *err)
{
    struct bench_options *o = s->options;
    int32_t num_pairs = 0;
    if (!o->dry_run && !o->resume && access(s->folder, F_OK) == 0)
        return error_set(err, STATUS_INVALID,
                         "%s is there already: --resume goes on with it, another --experiment-name "
                         "begins anew",
                         s->folder);
    if (!o->dry_run)
        TRY(make_folders(&o->arena, s->folder, err));
    for (int32_t serve = 0; serve < s->serve_sets.num; serve++) {
        int32_t before = num_pairs;
        for (int32_t b = 0; b < s->bench_sets.num; b++)
            num_pairs += is_wanted(s, serve, b);
        if (num_pairs == before)
            continue;
        prepare_set(s, serve);
        if (o->dry_run)
            print_set(s, serve);
        else
            TRY(run_set(s, serve, err));
    }
    if (num_pairs == 0)
        return error_set(err, STATUS_INVALID, "--link-vars leaves no pair of sets");
    return STATUS_OK;
}

/** The words and sets, and what the summary shows of the results. */
static enum status prepare(struct command_sweep *s, struct error *err)
{
    struct bench_options *o = s->options;
    TRY(command_words_split(&s->bench_words, "--bench-cmd", o->bench_cmd, &o->arena, err));
    if (o->serve_cmd)
        TRY(command_words_split(&s->serve_words, "--serve-cmd", o->serve_cmd, &o->arena, err));
    if (o->after_bench_cmd && *o->after_bench_cmd != '\0')
        TRY(command_words_split(&s->after_words, "--after-bench-cmd", o->after_bench_cmd, &o->arena,
                                err));
    TRY(sweep_params_load(&s->serve_sets, o->serve_params, &o->arena, err));
    TRY(sweep_params_load(&s->bench_sets, o->bench_params, &o->arena, err));
    TRY(sweep_links_check(&o->link_vars, &s->serve_sets, &s->bench_sets, err));
    const char *percentiles = command_words_find(&s->bench_words, "metric-percentiles");
    const char *comma = percentiles ? strrchr(percentiles, ',') : NULL;
    o->percentiles[0] = percentiles ? strtod(comma ? comma + 1 : percentiles, NULL) : 99;
    o->num_percentiles = 1;
    o->backend =
        is_embedding(&s->bench_words) ? BENCH_BACKEND_EMBEDDINGS : BENCH_BACKEND_COMPLETIONS;
    s->summary.options = o;
    s->folder = sweep_folder_name(o);
    return STATUS_OK;
}

/** What the first run says the model is. */
static const char *find_model(const struct command_sweep *s)
{
    for (int32_t i = 0; i < s->summary.num_points; i++) {
        const struct sweep_run *run = sweep_point_median(&s->summary.points[i]);
        const char *model = run ? json_string_value(json_object_get(run->json, "model_id")) : NULL;
        if (model)
            return model;
    }
    return NULL;
}

static int sweep_commands(struct bench_options *options, const char *program, bool has_loads)
{
    struct command_sweep s = {.options = options, .has_loads = has_loads};
    struct error err = {0}, save_err = {0};
    catch_signals();
    enum status status = prepare(&s, &err), save_status = STATUS_OK;
    if (status == STATUS_OK)
        status = run_all(&s, &err);
    const char *model = find_model(&s);
    if (model) { // also of a sweep that was cut short: what is done is done
        sweep_summary_print(&s.summary);
        save_status = sweep_summary_save(&s.summary, s.folder, model, true, &save_err);
    }
    fflush(stdout);
    if (status != STATUS_OK)
        fprintf(stderr, "%s: error: %s\n", program, err.message);
    if (save_status != STATUS_OK)
        fprintf(stderr, "%s: error: %s\n", program, save_err.message);
    sweep_summary_deinit(&s.summary);
    sweep_params_deinit(&s.serve_sets);
    sweep_params_deinit(&s.bench_sets);
    return status == STATUS_OK && save_status == STATUS_OK ? 0 : 1;
}

int sweep_serve_main(struct bench_options *options)
{
    return sweep_commands(options, "vllm bench sweep serve", false);
}

int sweep_workload_main(struct bench_options *options)
{
    return sweep_commands(options, "vllm bench sweep serve_workload", true);
}
