// Server-sent events (HTML Living Standard, section 9.2.6) out of pieces cut anywhere: lines end in
// LF, CR or CRLF; "data:" lines of an event are joined; an empty line ends it; ':' is a comment.
#include "entrypoints/sse_client.h"

enum { MAX_EVENT_BYTES = 16 * 1024 * 1024 };

static enum status end_event(struct sse_parser *parser, sse_event_fn *on_event, void *context,
                             struct error *err)
{
    if (!parser->has_data)
        return STATUS_OK;
    parser->has_data = false;
    struct str data = buf_str(&parser->data);
    parser->data.len = 0;
    if (str_eq(data, STR("[DONE]")))
        parser->is_done = true;
    if (parser->is_done)
        return STATUS_OK;
    return on_event(context, data, err);
}

static enum status end_line(struct sse_parser *parser, sse_event_fn *on_event, void *context,
                            struct error *err)
{
    struct str line = buf_str(&parser->line);
    parser->line.len = 0;
    if (line.len == 0)
        return end_event(parser, on_event, context, err);
    struct str value = line, name = str_split(&value, ':');
    if (!str_eq(name, STR("data")))
        return STATUS_OK; // comments, event names, ids, retry times: not used by these servers
    if (value.len > 0 && value.ptr[0] == ' ')
        value = str_slice(value, 1, value.len);
    if (parser->data.len + value.len + 1 > MAX_EVENT_BYTES)
        return error_set(err, STATUS_TOO_LARGE, "an event of more than %d bytes", MAX_EVENT_BYTES);
    if (parser->has_data)
        buf_append_char(&parser->data, '\n');
    buf_append(&parser->data, value);
    parser->has_data = true;
    return STATUS_OK;
}

enum status sse_parser_feed(struct sse_parser *parser, struct str bytes, sse_event_fn *on_event,
                            void *context, struct error *err)
{
    for (size_t i = 0; i < bytes.len; i++) {
        char c = bytes.ptr[i];
        bool is_second_half = c == '\n' && parser->after_cr;
        parser->after_cr = c == '\r';
        if (is_second_half)
            continue;
        if (c == '\n' || c == '\r') {
            TRY(end_line(parser, on_event, context, err));
            continue;
        }
        if (parser->line.len >= MAX_EVENT_BYTES)
            return error_set(err, STATUS_TOO_LARGE, "a line of more than %d bytes",
                             MAX_EVENT_BYTES);
        buf_append_char(&parser->line, c);
    }
    return STATUS_OK;
}

void sse_parser_deinit(struct sse_parser *parser)
{
    buf_deinit(&parser->line);
    buf_deinit(&parser->data);
    *parser = (struct sse_parser){0};
}
