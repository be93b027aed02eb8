// The text format that Prometheus reads: see exposition.h.
#include "api_server/exposition.h"

#include <math.h>

void exposition_label_value(struct buf *out, struct str value)
{
    buf_append_char(out, '"');
    for (size_t i = 0; i < value.len; i++) {
        char c = value.ptr[i];
        if (c == '\n') {
            buf_append_c(out, "\\n");
            continue;
        }
        if (c == '"' || c == '\\')
            buf_append_char(out, '\\');
        buf_append_char(out, c);
    }
    buf_append_char(out, '"');
}

void exposition_number(struct buf *out, double value)
{
    if (isinf(value))
        buf_append_c(out, value > 0 ? "+Inf" : "-Inf");
    else
        buf_append_json_double(out, value);
}

void exposition_head(struct buf *out, const char *name, const char *suffix, const char *type,
                     const char *help)
{
    buf_printf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, suffix, help, name, suffix, type);
}

void exposition_sample(struct buf *out, const char *name, const char *suffix, struct str base,
                       const char *extra, double value)
{
    buf_append_c(out, name);
    buf_append_c(out, suffix);
    if (base.len > 0 || extra[0]) {
        buf_append_char(out, '{');
        buf_append(out, base);
        if (base.len > 0 && extra[0])
            buf_append_char(out, ',');
        buf_append_c(out, extra);
        buf_append_char(out, '}');
    }
    buf_append_char(out, ' ');
    exposition_number(out, value);
    buf_append_char(out, '\n');
}
