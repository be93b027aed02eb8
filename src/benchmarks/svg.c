#include "benchmarks/svg.h"

#include <math.h>
#include <stdio.h>

#include "base/memory.h"

static void add_tick(struct svg_axis *axis, double value)
{
    if (axis->num_ticks < SVG_MAX_TICKS)
        axis->ticks[axis->num_ticks++] = value;
}

/** 1, 2 or 5 times a power of ten: about five steps to `high`. */
static double round_step(double high)
{
    double raw = high / 5, power = pow(10, floor(log10(raw))), share = raw / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

static void fit_log(struct svg_axis *axis, double low, double high)
{
    static const double steps[] = {1, 2, 5};
    axis->low = pow(10, floor(log10(low)));
    axis->high = pow(10, ceil(log10(high * 1.0001)));
    double decades = log10(axis->high / axis->low);
    // Over few decades: cut at the nearest step, and mark 2 and 5 as well.
    if (decades <= 3.5) {
        for (int k = 0; k < 3; k++) {
            double power = pow(10, floor(log10(low)));
            if (steps[k] * power <= low)
                axis->low = steps[k] * power;
        }
        for (int k = 2; k >= 0; k--) {
            double power = pow(10, floor(log10(high)));
            if (steps[k] * power >= high)
                axis->high = steps[k] * power;
        }
    }
    int stride = decades > 10 ? 3 : decades > 6 ? 2 : 1;
    for (double power = pow(10, floor(log10(axis->low))); power <= axis->high * 1.001;
         power *= pow(10, stride)) {
        for (int k = 0; k < (decades <= 3.5 ? 3 : 1); k++) {
            double value = steps[k] * power;
            if (value >= axis->low * 0.999 && value <= axis->high * 1.001)
                add_tick(axis, value);
        }
    }
}

void svg_axis_fit(struct svg_axis *axis, double low, double high, bool is_log)
{
    axis->is_log = is_log;
    axis->num_ticks = 0;
    if (is_log) {
        low = low > 1e-6 ? low : 1e-6;
        fit_log(axis, low, high > low * 1.2 ? high : low * 1.2);
        return;
    }
    double step = round_step(high > 0 ? high : 1);
    axis->low = 0;
    axis->high = ceil((high > 0 ? high : 1) / step) * step;
    for (double value = 0; value <= axis->high * 1.001; value += step)
        add_tick(axis, value);
}

static double place(const struct svg_axis *axis, double value)
{
    double share = axis->is_log
                       ? log(fmax(value, axis->low) / axis->low) / log(axis->high / axis->low)
                       : (value - axis->low) / (axis->high - axis->low);
    return fmin(fmax(share, 0), 1);
}

double svg_x(const struct svg_panel *panel, double value)
{
    return panel->left + panel->width * place(&panel->x, value);
}

double svg_y(const struct svg_panel *panel, double value)
{
    return panel->top + panel->height * (1 - place(&panel->y, value));
}

void svg_append_text(struct buf *out, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '&')
            buf_append_c(out, "&amp;");
        else if (*p == '<')
            buf_append_c(out, "&lt;");
        else if (*p == '>')
            buf_append_c(out, "&gt;");
        else if ((unsigned char)*p >= ' ')
            buf_append_char(out, *p);
    }
}

static void tick_text(double value, char *out, size_t size)
{
    if (value >= 1e6)
        snprintf(out, size, "%gM", value / 1e6);
    else if (value >= 1e4)
        snprintf(out, size, "%gk", value / 1e3);
    else
        snprintf(out, size, "%.4g", value);
}

static void draw_ticks(const struct svg_panel *p, struct buf *out)
{
    char text[32];
    for (int i = 0; i < p->x.num_ticks; i++) {
        double x = svg_x(p, p->x.ticks[i]);
        tick_text(p->x.ticks[i], text, sizeof(text));
        buf_printf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x, p->top,
                   p->top + p->height);
        buf_printf(out,
                   "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                   x, p->top + p->height + 18, text);
    }
    for (int i = 0; i < p->y.num_ticks; i++) {
        double y = svg_y(p, p->y.ticks[i]);
        tick_text(p->y.ticks[i], text, sizeof(text));
        buf_printf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", p->left, y,
                   p->left + p->width);
        buf_printf(out,
                   "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                   p->left - 8, y + 4, text);
    }
}

void svg_panel_draw(const struct svg_panel *p, struct buf *out)
{
    draw_ticks(p, out);
    buf_printf(out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", p->left, p->top,
               p->top + p->height, p->left + p->width);
    buf_printf(out, "<text class=\"title\" x=\"%.1f\" y=\"%.1f\">", p->left, p->top - 14);
    svg_append_text(out, p->title);
    buf_printf(out, "</text>\n<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
               p->left + p->width / 2, p->top + p->height + 40);
    svg_append_text(out, p->x.label);
    double y = p->top + p->height / 2, x = p->left - 52;
    buf_printf(out,
               "</text>\n<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" "
               "transform=\"rotate(-90 %.1f %.1f)\">",
               x, y, x, y);
    svg_append_text(out, p->y.label);
    buf_append_c(out, "</text>\n");
}

const char *svg_colour(int i, int num)
{
    // From orange over red and violet to dark blue: lightness falls all the way.
    static const char *const colours[] = {"#f2a33a", "#ea7a3c", "#d9544d", "#b83a6b",
                                          "#8c3283", "#5d3191", "#33308a", "#161f5c"};
    int count = (int)ARRAY_LEN(colours);
    if (num <= 1)
        return colours[5];
    return colours[num <= count ? i * (count - 1) / (num - 1) : i % count];
}
