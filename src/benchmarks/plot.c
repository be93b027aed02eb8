// One page: for several results the throughput-latency curves first, then how TTFT and ITL are
// distributed (the share of values up to each latency), a curve a result. Embeddings have one
// latency, that of the whole answer, and their throughput is that of their inputs.
#include "benchmarks/plot.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "benchmarks/svg.h"

enum {
    PAGE_WIDTH = 1120,
    PANEL_WIDTH = 430,
    PANEL_HEIGHT = 280,
    LEFT = 86,
    COLUMN_STEP = 545,
    HEADER_HEIGHT = 84,
    ROW_HEIGHT = 396,
    MAX_CURVE_POINTS = 400,
    LEGEND_COLUMNS = 7,
    LEGEND_STEP = 145,
    NAMED_LEGEND_COLUMNS = 2, // names are longer than loads
    NAMED_LEGEND_STEP = 500,
    LEGEND_LINE = 20,
};

struct plot {
    const struct bench_result *results;
    int32_t num;
    const struct bench_options *options;
    const char *model;
    struct buf *out;
    bool is_embedding; // whole answers: their time is the only latency
};

static const char style[] =
    "<style>text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;"
    "fill:#1f2430}.head{font-size:22px;font-weight:600}.sub{font-size:13px;fill:#5b6375}"
    ".title{font-size:15px;font-weight:600}.label{font-size:13px;fill:#3d4454}"
    ".tick,.mark{font-size:12px;fill:#5b6375}.key{font-size:12px}"
    ".grid{stroke:#e6e8ee;fill:none}.axis{stroke:#8b93a5;fill:none}"
    ".line{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}"
    ".ref{stroke:#b4bac8;stroke-dasharray:4 4;fill:none}</style>\n";

/** "4 req/s", "64 at a time", "all at once". */
static void name_of(const struct bench_result *r, char *out, size_t size)
{
    if (r->name)
        snprintf(out, size, "%.60s", r->name);
    else if (isfinite(r->request_rate))
        snprintf(out, size, "%g req/s", r->request_rate);
    else if (r->max_concurrency > 0)
        snprintf(out, size, "%d at a time", r->max_concurrency);
    else
        snprintf(out, size, "all at once");
}

// ---- distributions -------------------------------------------------------------------------

/** A result's values as steps thinned to what the eye can tell; ends matter, so they stay. */
static void draw_distribution(const struct plot *plot, const struct svg_panel *panel,
                              const struct metric_values *metric, const char *colour)
{
    if (metric->num == 0)
        return;
    buf_printf(plot->out, "<path class=\"line\" stroke=\"%s\" d=\"M%.1f %.1f", colour,
               svg_x(panel, metric->values[0]), svg_y(panel, 0));
    int64_t num = metric->num < MAX_CURVE_POINTS ? metric->num : MAX_CURVE_POINTS;
    for (int64_t i = 1; i <= num; i++) {
        int64_t at = (metric->num * i + num - 1) / num - 1;
        buf_printf(plot->out, "H%.1fV%.1f", svg_x(panel, metric->values[at]),
                   svg_y(panel, 100.0 * (double)(at + 1) / (double)metric->num));
    }
    buf_append_c(plot->out, "\"/>\n");
}

/** A dashed line at a share, named at its right end. */
static void draw_share(const struct plot *plot, const struct svg_panel *panel, double percent,
                       const char *name)
{
    double y = svg_y(panel, percent), right = panel->left + panel->width;
    buf_printf(plot->out,
               "<path class=\"ref\" d=\"M%.1f %.1fH%.1f\"/><text class=\"mark\" x=\"%.1f\" "
               "y=\"%.1f\">%s</text>\n",
               panel->left, y, right, right + 5, y + 4, name);
}

/** The least (above zero) and the largest value of a metric over all results; false: none. */
static bool find_extent(const struct plot *plot, enum bench_metric metric, double *low,
                        double *high)
{
    *low = INFINITY;
    *high = 0;
    for (int32_t i = 0; i < plot->num; i++) {
        const struct metric_values *m = &plot->results[i].metrics[metric];
        if (m->num == 0)
            continue;
        // Bursts that arrive in one read have gaps of nearly nothing: they are not the story.
        *low = fmin(*low, fmax(percentile_of(m->values, m->num, 1), 1e-3));
        *high = fmax(*high, m->values[m->num - 1]);
    }
    *low = fmax(*low, *high / 1000); // three decades show what matters
    return *high > 0 && isfinite(*low);
}

static int32_t legend_columns(const struct plot *plot)
{
    return plot->results[0].name ? NAMED_LEGEND_COLUMNS : LEGEND_COLUMNS;
}

static void draw_legend(const struct plot *plot, double left, double top)
{
    char name[64];
    for (int32_t i = 0; i < plot->num; i++) {
        int32_t columns = legend_columns(plot);
        int32_t step = columns == LEGEND_COLUMNS ? LEGEND_STEP : NAMED_LEGEND_STEP;
        double x = left + (double)(step * (i % columns));
        int32_t row = i / columns;
        double y = top + (double)LEGEND_LINE * row;
        name_of(&plot->results[i], name, sizeof(name));
        buf_printf(plot->out,
                   "<path class=\"line\" stroke=\"%s\" d=\"M%.1f %.1fh22\"/><text class=\"key\" "
                   "x=\"%.1f\" y=\"%.1f\">",
                   svg_colour(i, plot->num), x, y, x + 28, y + 4);
        svg_append_text(plot->out, name);
        buf_append_c(plot->out, "</text>\n");
    }
}

static void draw_distributions(const struct plot *plot, double top, int column,
                               enum bench_metric metric, const char *title, const char *label)
{
    double low, high;
    struct svg_panel panel = {.left = LEFT + column * (double)COLUMN_STEP,
                              .top = top,
                              .width = PANEL_WIDTH,
                              .height = PANEL_HEIGHT,
                              .title = title,
                              .x = {.label = label},
                              .y = {.label = "share of values up to here, %"}};
    bool has_values = find_extent(plot, metric, &low, &high);
    svg_axis_fit(&panel.x, has_values ? low : 1, has_values ? high : 10, true);
    svg_axis_fit(&panel.y, 0, 100, false);
    svg_panel_draw(&panel, plot->out);
    draw_share(plot, &panel, 50, "p50");
    draw_share(plot, &panel, 99, "p99");
    for (int32_t i = 0; i < plot->num; i++)
        draw_distribution(plot, &panel, &plot->results[i].metrics[metric],
                          svg_colour(i, plot->num));
}

// ---- throughput and latency ----------------------------------------------------------------

/** Tokens per second: those generated, or those read where none are. */
static double throughput_of(const struct plot *plot, const struct bench_result *r)
{
    return plot->is_embedding ? r->total_token_throughput : r->output_throughput;
}

/** A curve through the results of each series, a mark at each: x throughput, y a latency. */
static void draw_curve(const struct plot *plot, const struct svg_panel *panel,
                       enum bench_metric metric, double percent, const char *colour,
                       const char *name)
{
    const struct bench_result *before = NULL;
    buf_printf(plot->out, "<path class=\"line\" stroke=\"%s\" d=\"", colour);
    for (int32_t i = 0; i < plot->num; i++) {
        const struct metric_values *m = &plot->results[i].metrics[metric];
        if (m->num == 0)
            continue;
        bool goes_on = before && before->series == plot->results[i].series;
        before = &plot->results[i];
        buf_printf(plot->out, "%c%.1f %.1f", goes_on ? 'L' : 'M',
                   svg_x(panel, throughput_of(plot, before)),
                   svg_y(panel, percentile_of(m->values, m->num, percent)));
    }
    buf_append_c(plot->out, "\"/>\n");
    for (int32_t i = 0; i < plot->num; i++) {
        const struct bench_result *r = &plot->results[i];
        const struct metric_values *m = &r->metrics[metric];
        char point[64];
        if (m->num == 0)
            continue;
        name_of(r, point, sizeof(point));
        double value = percentile_of(m->values, m->num, percent);
        buf_printf(plot->out,
                   "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\" stroke=\"#fff\"><title>"
                   "%s: %.1f tok/s, %s %.2f ms</title></circle>\n",
                   svg_x(panel, throughput_of(plot, r)), svg_y(panel, value), colour, point,
                   throughput_of(plot, r), name, value);
    }
}

/** Whether a mark at (x, y) would touch one of the marks before it. */
static bool is_crowded(const double (*marks)[2], int num_marks, double x, double y)
{
    for (int i = 0; i < num_marks; i++) {
        if (fabs(marks[i][0] - x) < 26 && fabs(marks[i][1] - y) < 13)
            return true;
    }
    return false;
}

/** The load's value above each mark of the upper curve, where there is room for it. */
static void mark_points(const struct plot *plot, const struct svg_panel *panel,
                        enum bench_metric metric, double percent)
{
    double marks[MAX_SWEEP_POINTS][2];
    int num_marks = 0;
    for (int32_t i = plot->num - 1; i >= 0; i--) { // the highest loads matter most
        const struct bench_result *r = &plot->results[i];
        const struct metric_values *m = &r->metrics[metric];
        double x = svg_x(panel, throughput_of(plot, r));
        double y = svg_y(panel, percentile_of(m->values, m->num, percent)) - 9;
        char text[32] = "inf";
        if (m->num == 0 || is_crowded(marks, num_marks, x, y) || num_marks == MAX_SWEEP_POINTS)
            continue;
        if (isfinite(r->request_rate))
            snprintf(text, sizeof(text), "%g", r->request_rate);
        else if (r->max_concurrency > 0)
            snprintf(text, sizeof(text), "%d", r->max_concurrency);
        marks[num_marks][0] = x;
        marks[num_marks++][1] = y;
        buf_printf(plot->out,
                   "<text class=\"mark\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" "
                   "paint-order=\"stroke\" stroke=\"#fff\" stroke-width=\"3\">%s</text>\n",
                   x, y, text);
    }
}

static void draw_key(const struct plot *plot, double left, double y, const char *colour,
                     const char *name)
{
    buf_printf(plot->out,
               "<path class=\"line\" stroke=\"%s\" d=\"M%.1f %.1fh22\"/><text class=\"key\" "
               "x=\"%.1f\" y=\"%.1f\">%s</text>\n",
               colour, left, y, left + 28, y + 4, name);
}

static void draw_load_curve(const struct plot *plot, double top, int column,
                            enum bench_metric metric, const char *title, const char *label)
{
    static const char median_colour[] = "#33308a", tail_colour[] = "#d9544d";
    double most = 0, low = INFINITY, high = 0;
    for (int32_t i = 0; i < plot->num; i++) {
        const struct metric_values *m = &plot->results[i].metrics[metric];
        if (m->num == 0)
            continue;
        most = fmax(most, throughput_of(plot, &plot->results[i]));
        low = fmin(low, fmax(m->median, 1e-3));
        high = fmax(high, percentile_of(m->values, m->num, 99));
    }
    struct svg_panel panel = {.left = LEFT + column * (double)COLUMN_STEP,
                              .top = top,
                              .width = PANEL_WIDTH,
                              .height = PANEL_HEIGHT,
                              .title = title,
                              .x = {.label = plot->is_embedding ? "input throughput, tokens/s"
                                                                : "output throughput, tokens/s"},
                              .y = {.label = label}};
    svg_axis_fit(&panel.x, 0, most * 1.04, false);
    svg_axis_fit(&panel.y, isfinite(low) ? low : 1, high > 0 ? high * 1.1 : 10, true);
    svg_panel_draw(&panel, plot->out);
    draw_curve(plot, &panel, metric, 50, median_colour, "median");
    draw_curve(plot, &panel, metric, 99, tail_colour, "p99");
    mark_points(plot, &panel, metric, 99);
    draw_key(plot, panel.left + panel.width - 150, top - 18, median_colour, "median");
    draw_key(plot, panel.left + panel.width - 62, top - 18, tail_colour, "p99");
}

// ---- the page ------------------------------------------------------------------------------

static void draw_header(const struct plot *plot)
{
    const struct bench_result *first = &plot->results[0];
    char text[256];
    buf_printf(plot->out, "<text class=\"head\" x=\"%d\" y=\"36\">vllm bench: ", LEFT - 52);
    svg_append_text(plot->out, plot->model);
    buf_printf(plot->out, "</text>\n<text class=\"sub\" x=\"%d\" y=\"60\">", LEFT - 52);
    if (first->name)
        snprintf(text, sizeof(text),
                 "%d points of %d requests each; a curve joins the points of one server", plot->num,
                 first->num_prompts);
    else if (plot->num > 1)
        snprintf(text, sizeof(text),
                 "%d loads of %d %s requests each; the numbers along the curves are %s", plot->num,
                 first->num_prompts, plot->options->dataset_name,
                 plot->options->num_sweep_rates > 0 ? "requests per second" : "requests at a time");
    else if (plot->is_embedding)
        snprintf(text, sizeof(text),
                 "%d of %d %s requests, %.1f input tokens/s, median end-to-end latency %.2f ms",
                 first->completed, first->num_prompts, plot->options->dataset_name,
                 first->total_token_throughput, first->metrics[METRIC_E2EL].median);
    else
        snprintf(text, sizeof(text),
                 "%d of %d %s requests, %.1f output tokens/s, median TTFT %.2f ms, median ITL "
                 "%.2f ms",
                 first->completed, first->num_prompts, plot->options->dataset_name,
                 first->output_throughput, first->metrics[METRIC_TTFT].median,
                 first->metrics[METRIC_ITL].median);
    svg_append_text(plot->out, text);
    buf_append_c(plot->out, "</text>\n");
}

/** The two columns of a row: of generated tokens the first and those after it, of embeddings the
 *  whole. */
static void draw_load_curves(const struct plot *plot, double top)
{
    if (plot->is_embedding) {
        draw_load_curve(plot, top, 0, METRIC_E2EL, "End-to-end latency under load",
                        "end-to-end latency, ms");
        return;
    }
    draw_load_curve(plot, top, 0, METRIC_TTFT, "Time to first token under load",
                    "time to first token, ms");
    draw_load_curve(plot, top, 1, METRIC_ITL, "Inter-token latency under load",
                    "inter-token latency, ms");
}

static void draw_all_distributions(const struct plot *plot, double top)
{
    if (plot->is_embedding) {
        draw_distributions(plot, top, 0, METRIC_E2EL, "End-to-end latency",
                           "end-to-end latency, ms");
        return;
    }
    draw_distributions(plot, top, 0, METRIC_TTFT, "Time to first token", "time to first token, ms");
    draw_distributions(plot, top, 1, METRIC_ITL, "Inter-token latency", "inter-token latency, ms");
}

static void draw(const struct plot *plot)
{
    bool has_curves = plot->num > 1;
    int32_t num_lines = (int32_t)ceil_div(plot->num, legend_columns(plot));
    double legend_height = has_curves ? (double)LEGEND_LINE * num_lines + 16 : 0;
    double height = HEADER_HEIGHT + ROW_HEIGHT * (has_curves ? 2.0 : 1.0) + legend_height;
    double top = HEADER_HEIGHT + 36;
    buf_printf(plot->out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
               "height=\"%.0f\">\n%s<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
               PAGE_WIDTH, height, PAGE_WIDTH, height, style);
    draw_header(plot);
    if (has_curves) {
        draw_load_curves(plot, top);
        top += ROW_HEIGHT;
    }
    draw_all_distributions(plot, top);
    if (has_curves)
        draw_legend(plot, LEFT, top + PANEL_HEIGHT + 72);
    buf_append_c(plot->out, "</svg>\n");
}

static enum status write_file(const char *path, struct str text, struct error *err)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    bool ok = fwrite(text.ptr, 1, text.len, file) == text.len;
    ok = fclose(file) == 0 && ok;
    return ok ? STATUS_OK : error_set(err, STATUS_IO, "%s: cannot be written", path);
}

enum status plot_save(const char *path, const struct bench_result *results, int32_t num,
                      const struct bench_options *options, const char *model, struct error *err)
{
    struct buf out = {0};
    struct plot plot = {.results = results,
                        .num = num,
                        .options = options,
                        .model = model,
                        .out = &out,
                        .is_embedding = options->backend == BENCH_BACKEND_EMBEDDINGS};
    bool is_page = str_ends_with(str_from(path), STR(".html"));
    if (num == 0)
        return error_set(err, STATUS_INVALID, "%s: there is nothing to draw", path);
    if (is_page)
        buf_append_c(&out, "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>vllm "
                           "bench</title>\n<body style=\"margin:0;background:#fff\">\n");
    draw(&plot);
    if (is_page)
        buf_append_c(&out, "</body></html>\n");
    enum status status = write_file(path, buf_str(&out), err);
    if (status == STATUS_OK)
        printf("Plot saved to %s\n", path);
    buf_deinit(&out);
    return status;
}
