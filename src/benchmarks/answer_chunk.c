#include "benchmarks/answer_chunk.h"

#include "base/json_reader.h"

enum { MAX_SHOWN = 300 };

struct reading {
    struct json_reader reader;
    struct answer_chunk *chunk;
    struct buf *text;
};

/** Whether the next value is of this kind and begins; otherwise reads past it. */
static bool begins(struct json_reader *reader, enum json_token token)
{
    if (json_reader_peek(reader) != token) {
        json_reader_skip_value(reader);
        return false;
    }
    json_reader_next(reader);
    return true;
}

static void take_text(struct reading *r)
{
    if (!begins(&r->reader, JSON_TOKEN_STRING) || r->reader.string.len == 0)
        return;
    r->chunk->has_output = true;
    buf_append(r->text, r->reader.string);
}

/** [{"index": 0, "function": {"name": ..., "arguments": ...}}]: names and arguments are output. */
static void take_tool_calls(struct reading *r)
{
    struct json_reader *reader = &r->reader;
    if (!begins(reader, JSON_TOKEN_ARRAY_BEGIN))
        return;
    while (json_reader_next_element(reader)) {
        if (!begins(reader, JSON_TOKEN_OBJECT_BEGIN))
            continue;
        for (struct str key; json_reader_next_key(reader, &key);) {
            if (!str_eq_c(key, "function")) {
                json_reader_skip_value(reader);
                continue;
            }
            if (!begins(reader, JSON_TOKEN_OBJECT_BEGIN))
                continue;
            for (struct str part; json_reader_next_key(reader, &part);) {
                if (str_eq_c(part, "name") || str_eq_c(part, "arguments"))
                    take_text(r);
                else
                    json_reader_skip_value(reader);
            }
        }
    }
}

static void take_delta(struct reading *r)
{
    struct json_reader *reader = &r->reader;
    if (!begins(reader, JSON_TOKEN_OBJECT_BEGIN))
        return;
    size_t before = r->text->len;
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (str_eq_c(key, "content"))
            take_text(r);
        else if (str_eq_c(key, "reasoning_content") || str_eq_c(key, "reasoning")) {
            if (r->text->len == before) // servers send one text under both names
                take_text(r);
            else
                json_reader_skip_value(reader);
        } else if (str_eq_c(key, "tool_calls"))
            take_tool_calls(r);
        else
            json_reader_skip_value(reader);
    }
}

static void take_choices(struct reading *r)
{
    struct json_reader *reader = &r->reader;
    if (!begins(reader, JSON_TOKEN_ARRAY_BEGIN))
        return;
    while (json_reader_next_element(reader)) {
        if (!begins(reader, JSON_TOKEN_OBJECT_BEGIN))
            continue;
        r->chunk->has_choices = true;
        for (struct str key; json_reader_next_key(reader, &key);) {
            if (str_eq_c(key, "text"))
                take_text(r);
            else if (str_eq_c(key, "delta"))
                take_delta(r);
            else if (str_eq_c(key, "finish_reason"))
                r->chunk->is_finished |= begins(reader, JSON_TOKEN_STRING);
            else
                json_reader_skip_value(reader);
        }
    }
}

/** [{"embedding": [0.5, ...]}] or base64. */
static void take_data(struct reading *r)
{
    struct json_reader *reader = &r->reader;
    if (!begins(reader, JSON_TOKEN_ARRAY_BEGIN))
        return;
    while (json_reader_next_element(reader)) {
        if (!begins(reader, JSON_TOKEN_OBJECT_BEGIN))
            continue;
        for (struct str key; json_reader_next_key(reader, &key);) {
            enum json_token token = json_reader_peek(reader);
            r->chunk->has_embedding |=
                str_eq_c(key, "embedding") &&
                (token == JSON_TOKEN_ARRAY_BEGIN || token == JSON_TOKEN_STRING);
            json_reader_skip_value(reader);
        }
    }
}

static void take_count(struct json_reader *reader, int64_t *count)
{
    if (begins(reader, JSON_TOKEN_INTEGER) && reader->integer >= 0 && reader->integer <= INT32_MAX)
        *count = reader->integer;
}

static void take_usage(struct reading *r)
{
    struct json_reader *reader = &r->reader;
    if (!begins(reader, JSON_TOKEN_OBJECT_BEGIN))
        return;
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (str_eq_c(key, "prompt_tokens"))
            take_count(reader, &r->chunk->prompt_tokens);
        else if (str_eq_c(key, "completion_tokens"))
            take_count(reader, &r->chunk->completion_tokens);
        else
            json_reader_skip_value(reader);
    }
}

/** "error": {"message": ...} or "error": "text". null is none. */
static void take_error(struct json_reader *reader, struct answer_chunk *chunk)
{
    enum json_token token = json_reader_peek(reader);
    chunk->has_error |= token == JSON_TOKEN_STRING || token == JSON_TOKEN_OBJECT_BEGIN;
    if (token == JSON_TOKEN_STRING) {
        json_reader_next(reader);
        chunk->error_message = reader->string;
        return;
    }
    if (!begins(reader, JSON_TOKEN_OBJECT_BEGIN))
        return;
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (!str_eq_c(key, "message"))
            json_reader_skip_value(reader);
        else if (begins(reader, JSON_TOKEN_STRING))
            chunk->error_message = reader->string;
    }
}

enum status answer_chunk_parse(struct answer_chunk *chunk, struct str json, struct arena *arena,
                               struct buf *text, struct error *err)
{
    *chunk = (struct answer_chunk){.prompt_tokens = -1, .completion_tokens = -1};
    struct reading r = {.chunk = chunk, .text = text};
    struct json_reader *reader = &r.reader;
    json_reader_init(reader, json, arena);
    TRY(json_reader_expect(reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (str_eq_c(key, "choices"))
            take_choices(&r);
        else if (str_eq_c(key, "data"))
            take_data(&r);
        else if (str_eq_c(key, "usage"))
            take_usage(&r);
        else if (str_eq_c(key, "error"))
            take_error(reader, chunk);
        else
            json_reader_skip_value(reader);
    }
    return json_reader_status(reader, err);
}

struct str answer_error_message(struct str body, struct arena *arena)
{
    struct answer_chunk chunk = {0};
    struct str other = {0};
    struct json_reader reader;
    json_reader_init(&reader, body, arena);
    if (json_reader_next(&reader) == JSON_TOKEN_OBJECT_BEGIN) {
        for (struct str key; json_reader_next_key(&reader, &key);) {
            bool is_text = json_reader_peek(&reader) == JSON_TOKEN_STRING;
            if (str_eq_c(key, "error")) {
                take_error(&reader, &chunk);
            } else if (is_text && (str_eq_c(key, "message") || str_eq_c(key, "detail"))) {
                json_reader_next(&reader);
                other = reader.string;
            } else {
                json_reader_skip_value(&reader);
            }
        }
    }
    struct str message = chunk.error_message.len > 0 ? chunk.error_message : other;
    return str_slice(message.len > 0 ? message : str_trim(body), 0, MAX_SHOWN);
}
