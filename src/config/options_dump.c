// The options in force, for people: all of them as JSON, for who asks a running server how it was
// started, and in the log, as Python writes them, those that were given.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "config/option_table.h"

extern char **environ;

/** How values are spelled. */
struct notation {
    const char *none, *false_text, *true_text, *separator;
    char quote;      // around keys
    bool keeps_json; // text that is JSON stays as it is, without quotes
};

static const struct notation json = {"null", "false", "true", ",", '"', true};
static const struct notation python = {"None", "False", "True", ", ", '\'', false};

static void write_key(struct buf *out, const struct notation *how, const char *name, bool *is_first)
{
    buf_append_c(out, *is_first ? "" : how->separator);
    *is_first = false;
    buf_append_char(out, how->quote);
    for (const char *p = name; *p; p++)
        buf_append_char(out, *p == '-' ? '_' : *p);
    buf_append_char(out, how->quote);
    buf_append_c(out, how == &json ? ":" : ": ");
}

static void write_text(struct buf *out, const struct notation *how, const char *text)
{
    if (text)
        buf_append_json_string(out, str_from(text));
    else
        buf_append_c(out, how->none);
}

static void write_list(struct buf *out, const struct notation *how, const struct str_list *list,
                       bool masked)
{
    buf_append_char(out, '[');
    for (int32_t i = 0; i < list->len; i++) {
        buf_append_c(out, i > 0 ? how->separator : "");
        write_text(out, how, masked ? "***" : list->items[i]);
    }
    buf_append_char(out, ']');
}

static void write_truth(struct buf *out, const struct notation *how, bool value)
{
    buf_append_c(out, value ? how->true_text : how->false_text);
}

static void write_value(struct buf *out, const struct notation *how,
                        const struct serve_options *options, const struct option *option)
{
    static const char *const levels[] = {"debug", "info", "warning", "error"};
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
        write_truth(out, how, *(const bool *)field);
        break;
    case OPTION_TRISTATE: {
        enum tristate value = *(const enum tristate *)field;
        if (value == TRISTATE_UNSET)
            write_text(out, how, NULL);
        else
            write_truth(out, how, value == TRISTATE_TRUE);
        break;
    }
    case OPTION_ENUM:
        buf_append_json_string(out, option_choice(option, *(const int *)field));
        break;
    case OPTION_LOG_LEVEL:
        write_text(out, how, levels[*(const enum log_level *)field]);
        break;
    case OPTION_LIST:
    case OPTION_COMMA_LIST:
        write_list(out, how, field, strcmp(option->name, "api-key") == 0);
        break;
    case OPTION_JSON_OBJECT:
    case OPTION_JSON_LIST: {
        const char *text = *(const char *const *)field; // checked when it was stored
        if (text && how->keeps_json)
            buf_append_c(out, text);
        else
            write_text(out, how, text);
        break;
    }
    default:
        write_text(out, how, *(const char *const *)field);
    }
}

static bool has_value(const struct option *option)
{
    return option->offset != NO_FIELD && option->kind != OPTION_FLAG_OFF;
}

void options_write_json(const struct serve_options *options, struct buf *out)
{
    size_t count;
    const struct option *table = option_table(&count);
    bool is_first = true;
    buf_append_char(out, '{');
    for (size_t i = 0; i < count; i++) {
        if (!has_value(&table[i]))
            continue;
        write_key(out, &json, table[i].name, &is_first);
        write_value(out, &json, options, &table[i]);
    }
    buf_append_char(out, '}');
}

/** The served name is the model's own unless somebody chose one. */
static bool is_derived(const struct serve_options *options, const struct option *option)
{
    const struct str_list *names = &options->served_model_names;
    return strcmp(option->name, "served-model-name") == 0 && names->len == 1 &&
           strcmp(names->items[0], options->model) == 0;
}

void options_non_default(const struct serve_options *options, struct buf *out)
{
    struct serve_options defaults;
    options_set_defaults(&defaults);
    struct buf value = {0}, usual = {0};
    size_t count = 0;
    bool is_first = true;
    const struct option *table = option_table(&count);
    buf_append_char(out, '{');
    for (size_t i = 0; i < count; i++) {
        if (!has_value(&table[i]))
            continue;
        buf_clear(&value);
        buf_clear(&usual);
        write_value(&value, &python, options, &table[i]);
        write_value(&usual, &python, &defaults, &table[i]);
        if (str_eq(buf_str(&value), buf_str(&usual)) || is_derived(options, &table[i]))
            continue;
        write_key(out, &python, table[i].name, &is_first);
        buf_append(out, buf_str(&value));
    }
    buf_append_char(out, '}');
    buf_deinit(&value);
    buf_deinit(&usual);
    options_deinit(&defaults);
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
