// Server-sent events: "data: " and compact JSON, an empty line, and at last "data: [DONE]".
#include "api_server/generation.h"

void sse_begin_chunk(struct buf *out, const struct generation *g)
{
    buf_append(out, g->chunk_head);
}

void sse_usage_chunk(struct buf *out, const struct generation *g)
{
    sse_begin_chunk(out, g);
    buf_append_c(out, "],\"usage\":");
    answer_write_usage(out, g, NULL, false);
    buf_append_c(out, ",\"system_fingerprint\":");
    buf_append_json_string(out, str_from(g->server->facts.system_fingerprint));
    buf_append_c(out, "}\n\n");
}

void sse_error(struct buf *out, const struct api_error *err)
{
    buf_append_c(out, "data: ");
    api_error_write(out, err);
    buf_append_c(out, "\n\n");
}

void sse_done(struct buf *out)
{
    buf_append_c(out, "data: [DONE]\n\n");
}
