// A strict pull reader for JSON (RFC 8259) in memory: one token at a time, no tree.
//
// For files of many megabytes whose reader knows what it is looking for (vocabularies, tensor
// directories). Strings without escapes are slices of the input; others are unescaped into the
// arena. Duplicate keys are passed on as they come: what they mean is the caller's choice. Errors
// stick: after the first one every call fails with it.
//
//     for (struct str key; json_reader_next_key(&reader, &key);)
//         if (str_eq_c(key, "name"))
//             TRY(json_reader_read_string(&reader, &name, err));
//         else
//             json_reader_skip_value(&reader);
//     TRY(json_reader_status(&reader, err));
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

/** Objects and arrays within each other, at most. */
#define JSON_READER_MAX_DEPTH 512

enum json_token {
    JSON_TOKEN_ERROR, // json_reader_status() says what
    JSON_TOKEN_END,   // of the input; only white space follows the value
    JSON_TOKEN_OBJECT_BEGIN,
    JSON_TOKEN_OBJECT_END,
    JSON_TOKEN_ARRAY_BEGIN,
    JSON_TOKEN_ARRAY_END,
    JSON_TOKEN_KEY,     // reader->string
    JSON_TOKEN_STRING,  // reader->string
    JSON_TOKEN_INTEGER, // reader->integer; a whole number that fits into 64 bits
    JSON_TOKEN_DOUBLE,  // reader->number
    JSON_TOKEN_BOOL,    // reader->boolean
    JSON_TOKEN_NULL,
};

/** `string`, `integer`, `number`, `boolean` belong to the latest token; the rest is the reader's.
 */
struct json_reader {
    struct str string;
    int64_t integer;
    double number; // also set for INTEGER
    bool boolean;

    struct str text;
    struct arena *arena;
    size_t offset;       // of the next unread byte
    size_t token_offset; // of the latest token
    int expected;
    int depth;
    uint64_t in_object[JSON_READER_MAX_DEPTH / 64]; // a bit per level: object or array
    enum json_token peeked;
    bool has_peeked;
    const char *problem; // NULL: none so far
    size_t problem_offset;
};

/** Starts reading `text`, which stays alive and unchanged; `arena` takes unescaped strings. */
void json_reader_init(struct json_reader *reader, struct str text, struct arena *arena);

/** Reads the next token. */
enum json_token json_reader_next(struct json_reader *reader);

/** The token that json_reader_next() will return; its value is set already. */
enum json_token json_reader_peek(struct json_reader *reader);

/** Reads past one whole value of any kind (after a key: its value). */
void json_reader_skip_value(struct json_reader *reader);

/**
 * Inside an object: reads the next key, or the end of the object (false). False on errors too.
 * The caller then reads or skips the value.
 */
bool json_reader_next_key(struct json_reader *reader, struct str *key);

/**
 * Inside an array: true if a value follows, which the caller reads or skips; otherwise reads the
 * end of the array. False on errors too.
 */
bool json_reader_next_element(struct json_reader *reader);

/** OK, or the first error with its byte offset. */
NODISCARD enum status json_reader_status(const struct json_reader *reader, struct error *err);

/** Reads one token and checks its kind. INVALID: "at byte 12: expected an object, found null". */
NODISCARD enum status json_reader_expect(struct json_reader *reader, enum json_token token,
                                         struct error *err);
NODISCARD enum status json_reader_read_string(struct json_reader *reader, struct str *out,
                                              struct error *err);
NODISCARD enum status json_reader_read_int(struct json_reader *reader, int64_t *out,
                                           struct error *err);
NODISCARD enum status json_reader_read_bool(struct json_reader *reader, bool *out,
                                            struct error *err);

/** "a string", "an object" ... for messages. */
const char *json_token_name(enum json_token token);
