// Axes and lines in SVG: the pieces that pictures are put together from.
#pragma once

#include <stdbool.h>

#include "base/buf.h"

enum { SVG_MAX_TICKS = 12 };

/** From values to a length on the page. */
struct svg_axis {
    double low, high; // of the values; both above 0 when logarithmic
    bool is_log;
    const char *label;
    double ticks[SVG_MAX_TICKS];
    int num_ticks;
};

/** A panel: its frame on the page and its two axes. */
struct svg_panel {
    double left, top, width, height; // of the drawing area, in pixels
    const char *title;
    struct svg_axis x, y;
};

/** An axis that begins at 0, or logarithmic over whole decades or their halves, and ends in a round
 *  number; chooses the ticks. */
void svg_axis_fit(struct svg_axis *axis, double low, double high, bool is_log);

double svg_x(const struct svg_panel *panel, double value);
double svg_y(const struct svg_panel *panel, double value);

/** Title, frame, grid, ticks and labels. */
void svg_panel_draw(const struct svg_panel *panel, struct buf *out);

/** A text with &, < and > escaped. */
void svg_append_text(struct buf *out, const char *text);

/** A colour for the i-th of `num` series: from light to dark, readable on white, told apart without
 *  colour vision by lightness. */
const char *svg_colour(int i, int num);
