// The text format that Prometheus reads (0.0.4): heads and samples.
#pragma once

#include "base/buf.h"
#include "base/str.h"

/** "# HELP" and "# TYPE" of `name` with `suffix`; `type` is counter, gauge, histogram, summary. */
void exposition_head(struct buf *out, const char *name, const char *suffix, const char *type,
                     const char *help);

/** One sample; `base` and `extra` are label lists, either may be empty. */
void exposition_sample(struct buf *out, const char *name, const char *suffix, struct str base,
                       const char *extra, double value);

/** A label's value in quotes, escaped. */
void exposition_label_value(struct buf *out, struct str value);

/** As clients of the format print floats: 0.001, 1.0, 1e+07. */
void exposition_number(struct buf *out, double value);
