// One line a fact, for the operator.
#include "base/log.h"

#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"

static enum log_level current_level = LOG_LEVEL_INFO;
static enum log_format current_format = LOG_FORMAT_TEXT;
static char process_name[32];

void log_set_format(enum log_format format)
{
    current_format = format;
}

enum log_format log_get_format(void)
{
    return current_format;
}

void log_set_level(enum log_level level)
{
    current_level = level;
}

enum log_level log_get_level(void)
{
    return current_level;
}

void log_set_process_name(const char *name)
{
    snprintf(process_name, sizeof(process_name), "%s", name);
}

bool log_level_parse(const char *text, enum log_level *out)
{
    static const struct {
        const char *name;
        enum log_level level;
    } names[] = {
        {"TRACE", LOG_LEVEL_DEBUG},    {"DEBUG", LOG_LEVEL_DEBUG},     {"INFO", LOG_LEVEL_INFO},
        {"WARN", LOG_LEVEL_WARNING},   {"WARNING", LOG_LEVEL_WARNING}, {"ERROR", LOG_LEVEL_ERROR},
        {"CRITICAL", LOG_LEVEL_ERROR},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcasecmp(text, names[i].name) == 0) {
            *out = names[i].level;
            return true;
        }
    }
    return false;
}

static const char *const level_names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};

static void append_text_line(struct buf *out, enum log_level level, const char *file, int line,
                             struct str message)
{
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    char stamp[32];
    strftime(stamp, sizeof(stamp), "%m-%d %H:%M:%S", &local);
    if (process_name[0])
        buf_printf(out, "(%s pid=%d) ", process_name, (int)getpid());
    buf_printf(out, "%s %s [%s:%d] ", level_names[level], stamp, file, line);
    buf_append(out, message);
}

static void append_json_line(struct buf *out, enum log_level level, const char *file, int line,
                             struct str message)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    char stamp[32];
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &utc);
    buf_printf(out, "{\"time\":\"%s.%03dZ\",\"level\":\"%s\",\"process\":", stamp,
               (int)(now.tv_nsec / 1000000), level_names[level]);
    buf_append_json_string(out, str_from(process_name));
    buf_printf(out, ",\"pid\":%d,\"file\":", (int)getpid());
    buf_append_json_string(out, str_from(file));
    buf_printf(out, ",\"line\":%d,\"message\":", line);
    buf_append_json_string(out, message);
    buf_append_char(out, '}');
}

void log_write(enum log_level level, const char *file, int line, const char *format, ...)
{
    struct buf message = {0}, text = {0};
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len > 0) {
        vsnprintf(buf_reserve(&message, (size_t)len + 1), (size_t)len + 1, format, again);
        message.len += (size_t)len;
    }
    va_end(again);

    const char *slash = strrchr(file, '/');
    if (current_format == LOG_FORMAT_JSON)
        append_json_line(&text, level, slash ? slash + 1 : file, line, buf_str(&message));
    else
        append_text_line(&text, level, slash ? slash + 1 : file, line, buf_str(&message));
    buf_append_char(&text, '\n');
    // A reader that went away must not stop the server: what cannot be written is dropped.
    for (size_t done = 0; done < text.len;) {
        ssize_t wrote = write(STDOUT_FILENO, text.ptr + done, text.len - done);
        if (wrote <= 0)
            break;
        done += (size_t)wrote;
    }
    buf_deinit(&message);
    buf_deinit(&text);
}
