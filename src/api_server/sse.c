// Server-sent events: "data: " and compact JSON, an empty line, and at last "data: [DONE]".
#include "api_server/generation.h"
#include "api_server/request_timings.h"

void sse_begin_chunk(struct buf *out, const struct generation *g)
{
    buf_append(out, g->chunk_head);
}

void sse_begin_event(struct buf *out, const char *name)
{
    buf_append_c(out, "event: ");
    buf_append_c(out, name);
    buf_append_c(out, "\ndata: ");
}

static void write_done(struct buf *out)
{
    buf_append_c(out, "data: [DONE]\n\n");
}

/** The chunk that only carries usage. */
static void write_usage_chunk(struct buf *out, const struct generation *g)
{
    sse_begin_chunk(out, g);
    buf_append_c(out, "],\"usage\":");
    answer_write_usage(out, g, NULL, false);
    if (request_timings_are_shown(g)) {
        buf_append_c(out, ",\"metrics\":");
        request_timings_write(out, g);
    }
    buf_append_c(out, ",\"system_fingerprint\":");
    buf_append_json_string(out, str_from(g->server->facts.system_fingerprint));
    buf_append_c(out, "}\n\n");
}

void sse_end_stream(struct generation *g, struct buf *out)
{
    if (g->fields->include_usage)
        write_usage_chunk(out, g);
    write_done(out);
}

void sse_fail_stream(struct generation *g, const struct api_error *err, struct buf *out)
{
    (void)g;
    buf_append_c(out, "data: ");
    api_error_write(out, err);
    buf_append_c(out, "\n\n");
    write_done(out);
}
