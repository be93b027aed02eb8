#include "benchmarks/http_answer.h"

#include <string.h>

#include "base/memory.h"

enum { MAX_HEAD_BYTES = 64 * 1024 };

static enum status bad(struct error *err, const char *what, struct str line)
{
    return error_set(err, STATUS_INVALID, "not an HTTP answer: %s '" STR_FORMAT "'", what,
                     STR_ARG(str_slice(line, 0, 80)));
}

/** "HTTP/1.1 200 OK". */
static enum status read_status_line(struct http_answer *a, struct str line, struct error *err)
{
    struct str rest = line, version = str_split(&rest, ' '), code = str_split(&rest, ' ');
    if (!str_starts_with(version, STR("HTTP/1.")) || code.len != 3)
        return bad(err, "status line", line);
    a->code = 0;
    for (size_t i = 0; i < code.len; i++) {
        if (code.ptr[i] < '0' || code.ptr[i] > '9')
            return bad(err, "status code", line);
        a->code = a->code * 10 + (code.ptr[i] - '0');
    }
    a->closes = str_eq_c(version, "HTTP/1.0");
    snprintf(a->reason, sizeof(a->reason), STR_FORMAT,
             STR_ARG(str_slice(rest, 0, sizeof(a->reason) - 1)));
    a->state = HTTP_ANSWER_HEADERS;
    return STATUS_OK;
}

static bool read_length(struct str text, int base, int64_t *out)
{
    int64_t value = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : base == 16 && c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : base == 16 && c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                         : -1;
        if (digit < 0 || value > (INT64_MAX >> 5))
            return false;
        value = value * base + digit;
    }
    *out = value;
    return text.len > 0;
}

static enum status read_header(struct http_answer *a, struct str line, struct error *err)
{
    struct str value = line, name = str_split(&value, ':');
    if (name.len == line.len)
        return bad(err, "header", line);
    value = str_trim(value);
    if (str_eq_ignore_case(name, STR("Content-Length"))) {
        if (!read_length(value, 10, &a->remaining))
            return bad(err, "header", line);
        a->has_length = true;
    } else if (str_eq_ignore_case(name, STR("Transfer-Encoding"))) {
        if (!str_eq_ignore_case(value, STR("chunked")))
            return bad(err, "transfer encoding", value);
        a->is_chunked = true;
    } else if (str_eq_ignore_case(name, STR("Connection"))) {
        if (str_eq_ignore_case(value, STR("close")))
            a->closes = true;
        else if (str_eq_ignore_case(value, STR("keep-alive")))
            a->closes = false;
    }
    return STATUS_OK;
}

static void end_head(struct http_answer *a)
{
    if (a->code < 200 && a->code != 101) { // 100 Continue, 103 Early Hints: the answer follows
        a->state = HTTP_ANSWER_STATUS_LINE;
        a->is_chunked = a->has_length = false;
    } else if (a->code == 204 || a->code == 304) {
        a->state = HTTP_ANSWER_DONE;
    } else if (a->is_chunked) {
        a->state = HTTP_ANSWER_CHUNK_SIZE;
    } else {
        a->state = a->has_length && a->remaining == 0 ? HTTP_ANSWER_DONE : HTTP_ANSWER_BODY;
        a->closes |= !a->has_length;
    }
}

static enum status end_line(struct http_answer *a, struct error *err)
{
    struct str line = buf_str(&a->line);
    if (str_ends_with(line, STR("\r")))
        line.len--;
    buf_clear(&a->line);
    switch (a->state) {
    case HTTP_ANSWER_STATUS_LINE:
        return read_status_line(a, line, err);
    case HTTP_ANSWER_HEADERS:
        if (line.len > 0)
            return read_header(a, line, err);
        end_head(a);
        break;
    case HTTP_ANSWER_CHUNK_SIZE: {
        struct str rest = line, size = str_trim(str_split(&rest, ';'));
        if (!read_length(size, 16, &a->remaining))
            return bad(err, "chunk size", line);
        a->state = a->remaining > 0 ? HTTP_ANSWER_CHUNK : HTTP_ANSWER_TRAILERS;
        a->head_bytes = 0;
        break;
    }
    case HTTP_ANSWER_CHUNK_END:
        if (line.len > 0)
            return bad(err, "after a chunk", line);
        a->state = HTTP_ANSWER_CHUNK_SIZE;
        break;
    case HTTP_ANSWER_TRAILERS:
        if (line.len == 0)
            a->state = HTTP_ANSWER_DONE;
        break;
    case HTTP_ANSWER_BODY:
    case HTTP_ANSWER_CHUNK:
    case HTTP_ANSWER_DONE:
        break;
    }
    return STATUS_OK;
}

/** Bytes of the body at the front of `bytes`. */
static size_t body_len(const struct http_answer *a, size_t len)
{
    bool is_bounded = a->state == HTTP_ANSWER_CHUNK || a->has_length;
    return is_bounded && (uint64_t)a->remaining < len ? (size_t)a->remaining : len;
}

static enum status take_body(struct http_answer *a, struct str bytes, size_t *num_used,
                             http_body_fn *on_body, void *context, struct error *err)
{
    size_t len = body_len(a, bytes.len);
    *num_used += len;
    TRY(on_body(context, str_slice(bytes, 0, len), err));
    if (a->state == HTTP_ANSWER_BODY && !a->has_length)
        return STATUS_OK;
    a->remaining -= (int64_t)len;
    if (a->remaining == 0)
        a->state = a->state == HTTP_ANSWER_CHUNK ? HTTP_ANSWER_CHUNK_END : HTTP_ANSWER_DONE;
    return STATUS_OK;
}

enum status http_answer_feed(struct http_answer *a, struct str bytes, size_t *num_used,
                             http_body_fn *on_body, void *context, struct error *err)
{
    *num_used = 0;
    while (*num_used < bytes.len && a->state != HTTP_ANSWER_DONE) {
        struct str rest = str_slice(bytes, *num_used, bytes.len);
        if (a->state == HTTP_ANSWER_BODY || a->state == HTTP_ANSWER_CHUNK) {
            TRY(take_body(a, rest, num_used, on_body, context, err));
            continue;
        }
        const char *end = memchr(rest.ptr, '\n', rest.len);
        size_t len = end ? (size_t)(end - rest.ptr) : rest.len;
        a->head_bytes += len + 1;
        if (a->head_bytes > MAX_HEAD_BYTES)
            return error_set(err, STATUS_TOO_LARGE, "an answer whose head has more than %d bytes",
                             MAX_HEAD_BYTES);
        buf_append(&a->line, str_slice(rest, 0, len));
        *num_used += end ? len + 1 : len;
        if (end)
            TRY(end_line(a, err));
    }
    return STATUS_OK;
}

enum status http_answer_end(struct http_answer *a, struct error *err)
{
    if (a->state == HTTP_ANSWER_BODY && !a->has_length)
        a->state = HTTP_ANSWER_DONE;
    if (a->state == HTTP_ANSWER_DONE)
        return STATUS_OK;
    return error_set(err, STATUS_CLOSED, "the server closed the connection %s",
                     a->state == HTTP_ANSWER_STATUS_LINE ? "without an answer"
                                                         : "in the middle of its answer");
}

void http_answer_reset(struct http_answer *a)
{
    struct buf line = a->line;
    buf_clear(&line);
    *a = (struct http_answer){.line = line};
}

void http_answer_deinit(struct http_answer *a)
{
    buf_deinit(&a->line);
    *a = (struct http_answer){0};
}
