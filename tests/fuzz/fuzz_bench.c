// What a server sends to the benchmark client, cut into pieces: HTTP framing, events, their JSON.
#include <stddef.h>
#include <stdint.h>

#include "base/sse_parser.h"
#include "benchmarks/answer_chunk.h"
#include "benchmarks/http_answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct reading {
    struct http_answer answer;
    struct sse_parser events;
    struct arena arena;
    struct buf text;
};

static enum status on_event(void *context, struct str data, struct error *err)
{
    struct reading *r = context;
    struct answer_chunk chunk;
    arena_reset(&r->arena);
    return answer_chunk_parse(&chunk, data, &r->arena, &r->text, err);
}

static enum status on_body(void *context, struct str bytes, struct error *err)
{
    struct reading *r = context;
    return sse_parser_feed(&r->events, bytes, on_event, r, err);
}

/** The first byte says how long the pieces are. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reading r = {0};
    struct error err;
    enum status status = STATUS_OK;
    size_t piece = size > 0 ? (size_t)data[0] + 1 : 1;
    struct str rest = {(const char *)data + (size > 0), size - (size > 0)};
    while (rest.len > 0 && status == STATUS_OK && r.answer.state != HTTP_ANSWER_DONE) {
        size_t num_used = 0;
        status =
            http_answer_feed(&r.answer, str_slice(rest, 0, piece), &num_used, on_body, &r, &err);
        rest = str_slice(rest, piece, rest.len);
    }
    if (status == STATUS_OK)
        status = http_answer_end(&r.answer, &err);
    arena_reset(&r.arena);
    (void)answer_error_message((struct str){(const char *)data, size}, &r.arena);
    http_answer_deinit(&r.answer);
    sse_parser_deinit(&r.events);
    arena_deinit(&r.arena);
    buf_deinit(&r.text);
    return 0;
}
