// How a function says that it failed, and why.
//
// A function that can fail returns `enum status`; where a person will read the reason it also takes
// a `struct error *` as its last argument and fills it with error_set(). TRY() passes a failure on.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_FORMAT(format_index, first_index) \
    __attribute__((format(printf, format_index, first_index)))

enum status {
    STATUS_OK = 0,
    STATUS_INVALID,       // malformed or out of range
    STATUS_NOT_FOUND,     // no such file, tensor, model, field
    STATUS_UNSUPPORTED,   // known, but not available here
    STATUS_TOO_LARGE,     // over a stated limit
    STATUS_OUT_OF_MEMORY, // does not fit
    STATUS_UNAVAILABLE,   // not now: overloaded, starting or stopping
    STATUS_TIMEOUT,
    STATUS_CLOSED, // the peer is gone
    STATUS_IO,     // the operating system refused
    STATUS_INTERNAL,
};

/** The reason for a failure. `= {0}` is an empty one. */
struct error {
    enum status status;
    char field[64];     // the flag, field or tensor at fault; empty when unknown
    char message[1024]; // one sentence or more for a person, without a final newline
};

/** Fills `err` (NULL is allowed: the message is dropped) and returns `status`. Clears `field`. */
enum status error_set(struct error *err, enum status status, const char *format, ...)
    PRINTF_FORMAT(3, 4);

/** As error_set(), and names the field at fault. */
enum status error_set_field(struct error *err, enum status status, const char *field,
                            const char *format, ...) PRINTF_FORMAT(4, 5);

#ifdef __clang_analyzer__
// It looks at one file at a time: this tells it that a failure is never STATUS_OK, so that it does
// not follow TRY() past a failure, to results that are not there.
#define error_set(err, status, ...) ((void)(error_set)(err, status, __VA_ARGS__), (status))
#define error_set_field(err, status, ...) \
    ((void)(error_set_field)(err, status, __VA_ARGS__), (status))
#endif

/** Puts "prefix: " before the message, for a caller that knows more than the callee. */
void error_prefix(struct error *err, const char *format, ...) PRINTF_FORMAT(2, 3);

/** "invalid", "not found" ... for logs. */
const char *status_name(enum status status);

/** Returns from the calling function with the status of `call` unless it is STATUS_OK. */
#define TRY(call)                         \
    do {                                  \
        enum status try_status_ = (call); \
        if (try_status_ != STATUS_OK)     \
            return try_status_;           \
    } while (0)

/** Ends the process with a message; for what must never happen, in release builds too. */
_Noreturn void check_failed(const char *file, int line, const char *condition);

/** An assertion that release builds keep: what would leak into another user's answer. */
#define CHECK(condition)                                  \
    do {                                                  \
        if (__builtin_expect(!(condition), 0))            \
            check_failed(__FILE__, __LINE__, #condition); \
    } while (0)
