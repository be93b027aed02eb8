// One line a fact, for the operator: "(APIServer pid=12) INFO 08-01 12:00:00 [serve.c:120] ...", or
// for a machine: {"time":"...","level":"INFO","process":"APIServer","pid":12,"file":...}.
#pragma once

#include <stdbool.h>

#include "base/status.h"

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARNING, LOG_LEVEL_ERROR };

enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

/** TEXT at start. */
void log_set_format(enum log_format format);
enum log_format log_get_format(void);

/** Lines below `level` are dropped. INFO at start. */
void log_set_level(enum log_level level);
enum log_level log_get_level(void);

/** The name in front of each line and, with the pid, what tells the processes apart. Copied. */
void log_set_process_name(const char *name);

/** "DEBUG", "INFO", "WARNING" or "WARN", "ERROR" or "CRITICAL", in any case. False: no such level.
 */
NODISCARD bool log_level_parse(const char *text, enum log_level *out);

/** Writes one whole line to standard output with a single write(). As text, newlines within stay;
 *  as JSON, a line is an object with time, level, process, pid, file, line and message. */
void log_write(enum log_level level, const char *file, int line, const char *format, ...)
    PRINTF_FORMAT(4, 5);

#define LOG_AT(level, ...)                                       \
    do {                                                         \
        if ((level) >= log_get_level())                          \
            log_write((level), __FILE__, __LINE__, __VA_ARGS__); \
    } while (0)
#define log_debug(...) LOG_AT(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) LOG_AT(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warning(...) LOG_AT(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_error(...) LOG_AT(LOG_LEVEL_ERROR, __VA_ARGS__)
