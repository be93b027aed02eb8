// How a function says that it failed, and why.
#include "base/status.h"

#include <stdarg.h>
#include <string.h>

PRINTF_FORMAT(4, 0)
static enum status set_message(struct error *err, enum status status, const char *field,
                               const char *format, va_list args)
{
    if (!err)
        return status;
    char message[sizeof(err->message)]; // the arguments may point into `err`
    vsnprintf(message, sizeof(message), format, args);
    char name[sizeof(err->field)];
    snprintf(name, sizeof(name), "%s", field);
    err->status = status;
    memcpy(err->message, message, sizeof(message));
    memcpy(err->field, name, sizeof(name));
    return status;
}

// In parentheses: for the analyzer the name is a macro.
enum status(error_set)(struct error *err, enum status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_message(err, status, "", format, args);
    va_end(args);
    return status;
}

// In parentheses: for the analyzer the name is a macro.
enum status(error_set_field)(struct error *err, enum status status, const char *field,
                             const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_message(err, status, field, format, args);
    va_end(args);
    return status;
}

void error_prefix(struct error *err, const char *format, ...)
{
    if (!err)
        return;
    char message[sizeof(err->message)];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (len < 0 || (size_t)len >= sizeof(message) - 3)
        return;
    size_t room = sizeof(message) - (size_t)len;
    snprintf(message + len, room, ": %.*s", (int)room - 3, err->message);
    memcpy(err->message, message, sizeof(message));
}

const char *status_name(enum status status)
{
    switch (status) {
    case STATUS_OK:
        return "ok";
    case STATUS_INVALID:
        return "invalid";
    case STATUS_NOT_FOUND:
        return "not found";
    case STATUS_UNSUPPORTED:
        return "unsupported";
    case STATUS_TOO_LARGE:
        return "too large";
    case STATUS_OUT_OF_MEMORY:
        return "out of memory";
    case STATUS_UNAVAILABLE:
        return "unavailable";
    case STATUS_TIMEOUT:
        return "timed out";
    case STATUS_CLOSED:
        return "closed";
    case STATUS_IO:
        return "input/output error";
    case STATUS_INTERNAL:
        return "internal error";
    }
    return "unknown";
}

void check_failed(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
    fflush(stderr);
    abort();
}
