// Lines end in LF, CR or CRLF; "data:" lines of an event are joined; an empty line ends it; ':' is
// a comment.
#include "base/sse_parser.h"

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

/** Bytes before the first line end. */
static size_t line_len(struct str bytes)
{
    size_t len = 0;
    while (len < bytes.len && bytes.ptr[len] != '\n' && bytes.ptr[len] != '\r')
        len++;
    return len;
}

enum status sse_parser_feed(struct sse_parser *parser, struct str bytes, sse_event_fn *on_event,
                            void *context, struct error *err)
{
    for (size_t i = 0; i < bytes.len;) {
        bool is_second_half = bytes.ptr[i] == '\n' && parser->after_cr;
        parser->after_cr = false;
        if (is_second_half) {
            i++;
            continue;
        }
        size_t len = line_len(str_slice(bytes, i, bytes.len));
        if (len > MAX_EVENT_BYTES - parser->line.len)
            return error_set(err, STATUS_TOO_LARGE, "a line of more than %d bytes",
                             MAX_EVENT_BYTES);
        buf_append(&parser->line, str_slice(bytes, i, i + len));
        i += len;
        if (i == bytes.len)
            break;
        parser->after_cr = bytes.ptr[i++] == '\r';
        TRY(end_line(parser, on_event, context, err));
    }
    return STATUS_OK;
}

void sse_parser_reset(struct sse_parser *parser)
{
    buf_clear(&parser->line);
    buf_clear(&parser->data);
    parser->has_data = parser->is_done = parser->after_cr = false;
}

void sse_parser_deinit(struct sse_parser *parser)
{
    buf_deinit(&parser->line);
    buf_deinit(&parser->data);
    *parser = (struct sse_parser){0};
}
