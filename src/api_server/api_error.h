// What a client reads when a request fails: one table from kinds of failure to HTTP.
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

enum api_error_kind {
    API_ERROR_SCHEMA,       // a field is missing or ill-typed, or the body contradicts itself
    API_ERROR_VALUE,        // well formed, but out of range here
    API_ERROR_UNAUTHORIZED, // no key or a wrong one
    API_ERROR_NOT_FOUND,    // no such model
    API_ERROR_RESPONSE,     // /v1/responses: what this server or this response does not allow
    API_ERROR_NO_RESPONSE,  // no stored response of this id
    API_ERROR_NO_ROUTE,     // no such path
    API_ERROR_METHOD,       // the path is there for another method
    API_ERROR_TOO_LARGE,    // the body is over the limit
    API_ERROR_UNSUPPORTED,  // a feature that this server lacks
    API_ERROR_OVERLOADED,   // not now: admission limits, starting, restarting, stopping
    API_ERROR_INTERNAL,     // generation failed
};

/** A failure on its way to the client. */
struct api_error {
    enum api_error_kind kind;
    int32_t retry_after_s; // of OVERLOADED; 0: as soon as the client likes, which is told as 1
    char param[96];        // the field at fault; empty: null in the answer
    char message[2048];
};

/** Fills `err`; returns the status that goes with the kind, for TRY(). Clears `param`. */
enum status api_error_set(struct api_error *err, enum api_error_kind kind, const char *format, ...)
    PRINTF_FORMAT(3, 4);

/** A semantic violation that names its field: " (parameter=P, value=V)" is appended, the value part
 *  only where `value` is not NULL. */
enum status api_error_param(struct api_error *err, const char *param, const char *value,
                            const char *format, ...) PRINTF_FORMAT(4, 5);

/** A schema violation of `type` (pydantic's name) at `loc` ("body.messages"). */
enum status api_error_schema(struct api_error *err, const char *type, const char *loc,
                             const char *input, const char *format, ...) PRINTF_FORMAT(5, 6);

/** A failed validator of the body: `phrase` goes into the message, `param` may be NULL. */
enum status api_error_validator(struct api_error *err, const char *param, const char *format, ...)
    PRINTF_FORMAT(3, 4);

/** A field for a feature that this server does not have. */
enum status api_error_unsupported(struct api_error *err, const char *param);

/** Says `to` wherever param and message say `from`: for a field that came in under another name. */
void api_error_rename(struct api_error *err, const char *from, const char *to);

/** Takes over what a lower room reports. */
enum status api_error_from(struct api_error *err, const struct error *cause);

int32_t api_error_http_status(enum api_error_kind kind);

/** Appends {"error":{"message":...,"type":...,"param":...,"code":...}}. */
void api_error_write(struct buf *out, const struct api_error *err);

/** The same for an error that HTTP itself has a name for: its `phrase` is the type. */
void api_error_write_status(struct buf *out, int32_t status, const char *phrase,
                            const char *message);

/** Appends {"type":"error","error":{"type":...,"message":...}}, as Anthropic's clients read it. */
void api_error_write_anthropic(struct buf *out, const struct api_error *err);
