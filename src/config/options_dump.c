// The options in force as JSON, for people who ask a running server how it was started.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "config/option_table.h"

extern char **environ;

static void write_key(struct buf *out, const char *name, bool *is_first)
{
    buf_append_c(out, *is_first ? "\"" : ",\"");
    *is_first = false;
    for (const char *p = name; *p; p++)
        buf_append_char(out, *p == '-' ? '_' : *p);
    buf_append_c(out, "\":");
}

static void write_text(struct buf *out, const char *text)
{
    if (text)
        buf_append_json_string(out, str_from(text));
    else
        buf_append_c(out, "null");
}

static void write_list(struct buf *out, const struct str_list *list, bool masked)
{
    buf_append_char(out, '[');
    for (int32_t i = 0; i < list->len; i++) {
        buf_append_c(out, i > 0 ? "," : "");
        write_text(out, masked ? "***" : list->items[i]);
    }
    buf_append_char(out, ']');
}

static void write_value(struct buf *out, const struct serve_options *options,
                        const struct option *option)
{
    static const char *const levels[] = {"debug", "info", "warning", "error"};
    static const char *const truths[] = {"false", "true"};
    const void *field = (const char *)options + option->offset;
    switch (option->kind) {
    case OPTION_INT:
    case OPTION_HUMAN32:
        buf_append_int(out, *(const int32_t *)field);
        break;
    case OPTION_INT64:
    case OPTION_HUMAN64:
    case OPTION_MODEL_LEN:
        buf_append_int(out, *(const int64_t *)field);
        break;
    case OPTION_DOUBLE:
        buf_append_json_double(out, *(const double *)field);
        break;
    case OPTION_FLAG:
    case OPTION_BOOL:
        buf_append_c(out, truths[*(const bool *)field]);
        break;
    case OPTION_TRISTATE: {
        enum tristate value = *(const enum tristate *)field;
        buf_append_c(out, value == TRISTATE_UNSET ? "null" : truths[value == TRISTATE_TRUE]);
        break;
    }
    case OPTION_ENUM:
        buf_append_json_string(out, option_choice(option, *(const int *)field));
        break;
    case OPTION_LOG_LEVEL:
        write_text(out, levels[*(const enum log_level *)field]);
        break;
    case OPTION_LIST:
    case OPTION_COMMA_LIST:
        write_list(out, field, strcmp(option->name, "api-key") == 0);
        break;
    case OPTION_JSON_OBJECT:
    case OPTION_JSON_LIST: {
        const char *text = *(const char *const *)field; // checked when it was stored
        buf_append_c(out, text ? text : "null");
        break;
    }
    default:
        write_text(out, *(const char *const *)field);
    }
}

void options_write_json(const struct serve_options *options, struct buf *out)
{
    size_t count;
    const struct option *table = option_table(&count);
    bool is_first = true;
    buf_append_char(out, '{');
    for (size_t i = 0; i < count; i++) {
        if (table[i].offset == NO_FIELD || table[i].kind == OPTION_FLAG_OFF)
            continue;
        write_key(out, table[i].name, &is_first);
        write_value(out, options, &table[i]);
    }
    buf_append_char(out, '}');
}

void options_write_environment_json(struct buf *out)
{
    bool is_first = true;
    buf_append_char(out, '{');
    for (char **entry = environ; entry && *entry; entry++) {
        struct str value = str_from(*entry);
        struct str name = str_split(&value, '=');
        if (!str_starts_with(name, STR("VLLM_")) || str_find(name, STR("KEY"), 0) != STR_NOT_FOUND)
            continue;
        buf_append_c(out, is_first ? "" : ",");
        is_first = false;
        buf_append_json_string(out, name);
        buf_append_char(out, ':');
        buf_append_json_string(out, value);
    }
    buf_append_char(out, '}');
}
