// From the text of one option to its field, and back.
//
// The default texts of the table go through the same door as the command line, so that help, field
// and "not given" can never disagree.
#include "config/option_table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"

enum { MAX_SHOWN = 200, MAX_LIST_ITEMS = 4096 };

/** Whether the comma-separated `list` holds `text`; `*position` counts from 0. */
static bool list_has(const char *list, struct str text, int *position)
{
    struct str rest = str_from(list);
    for (int i = 0; rest.len > 0; i++) {
        if (str_eq(str_split(&rest, ','), text)) {
            *position = i;
            return true;
        }
    }
    return false;
}

static bool is_number(enum option_kind kind)
{
    return kind == OPTION_INT || kind == OPTION_INT64 || kind == OPTION_HUMAN32 ||
           kind == OPTION_HUMAN64 || kind == OPTION_MODEL_LEN || kind == OPTION_DOUBLE;
}

static bool is_bool(enum option_kind kind)
{
    return kind == OPTION_FLAG || kind == OPTION_FLAG_OFF || kind == OPTION_BOOL ||
           kind == OPTION_TRISTATE;
}

/** Reads a float as Python does, but for infinities and NaN, which no option wants. */
static enum status parse_double(const char *text, double *out, struct error *err)
{
    char *end = NULL;
    errno = 0;
    double value = strtod(text, &end);
    bool has_rest = end == text || *(end + strspn(end, " \t\n")) != '\0';
    if (has_rest || !isfinite(value) || strpbrk(text, "xXpP"))
        return error_set(err, STATUS_INVALID, "invalid float value: '%.*s'", MAX_SHOWN, text);
    *out = value;
    return STATUS_OK;
}

/** Any numeric kind; integers keep their exact value in `*integer`. */
static enum status parse_number(enum option_kind kind, const char *text, int64_t *integer,
                                double *real, struct error *err)
{
    if (kind == OPTION_DOUBLE)
        return parse_double(text, real, err);
    struct str s = str_trim(str_from(text));
    if (kind == OPTION_MODEL_LEN && str_eq_ignore_case(s, STR("auto"))) {
        *integer = -1;
    } else if (kind == OPTION_INT || kind == OPTION_INT64) {
        if (plain_int_parse(s, integer, err) != STATUS_OK)
            return error_set(err, STATUS_INVALID, "invalid int value: '%.*s'", MAX_SHOWN, text);
    } else {
        TRY(human_int_parse(s, integer, err));
    }
    *real = (double)*integer;
    return STATUS_OK;
}

/** `range` is "[0,65535]", "(0,1]", "[1,inf)". */
static bool in_range(const char *range, double value)
{
    char *end = NULL;
    double low = strtod(range + 1, &end);
    double high = strtod(end + 1, &end);
    bool above = range[0] == '[' ? value >= low : value > low;
    bool below = *end == ']' ? value <= high : value < high;
    return above && below;
}

static enum status check_range(const struct option *option, const char *text, double value,
                               struct error *err)
{
    // What no range bounds must still fit the field.
    bool is_32 = option->kind == OPTION_INT || option->kind == OPTION_HUMAN32;
    const char *range = option->range ? option->range : is_32 ? "[-2147483648,2147483647]" : NULL;
    bool fits =
        (!range || in_range(range, value)) && !(is_32 && (value > INT32_MAX || value < INT32_MIN));
    if (fits)
        return STATUS_OK;
    return error_set(err, STATUS_TOO_LARGE, "--%s is %.*s, expected %s in %s", option->name,
                     MAX_SHOWN, text, option->kind == OPTION_DOUBLE ? "a number" : "an integer",
                     range);
}

/** The value of an option without a field is only compared; numbers by value, not by spelling. */
static bool same_value(enum option_kind kind, const char *text, struct str accepted)
{
    if (!is_number(kind))
        return str_eq_c(accepted, text);
    char copy[64];
    snprintf(copy, sizeof(copy), STR_FORMAT, STR_ARG(accepted));
    int64_t a = 0, b = 0;
    double x = 0, y = 0;
    return parse_number(kind, text, &a, &x, NULL) == STATUS_OK &&
           parse_number(kind, copy, &b, &y, NULL) == STATUS_OK && x == y;
}

static bool is_accepted(const struct option *option, const char *text)
{
    if (option->accepts && strcmp(option->accepts, "*") == 0)
        return true;
    if (option->offset == NO_FIELD &&
        same_value(option->kind, text, str_from(option->default_text)))
        return true;
    if (!option->accepts)
        return option->offset != NO_FIELD;
    for (struct str rest = str_from(option->accepts); rest.len > 0;) {
        if (same_value(option->kind, text, str_split(&rest, ',')))
            return true;
    }
    return false;
}

static enum status refuse(const struct option *option, const char *text, struct error *err)
{
    if (is_bool(option->kind)) {
        bool on = strcmp(text, "True") == 0;
        return error_set(err, STATUS_UNSUPPORTED, "vllm.c does not support --%s%s yet",
                         on ? "" : "no-", option->name);
    }
    const char *works = option->accepts ? option->accepts : option->default_text;
    if (strcmp(works, "None") == 0 || works[0] == '\0' || works[0] == '[' || works[0] == '{')
        return error_set(err, STATUS_UNSUPPORTED, "vllm.c does not support --%s yet", option->name);
    return error_set(err, STATUS_UNSUPPORTED,
                     "vllm.c does not support --%s %.*s yet, expected one of: %s", option->name,
                     MAX_SHOWN, text, works);
}

static enum status check_choice(const struct option *option, const char *text, int *position,
                                struct error *err)
{
    if (!option->choices || list_has(option->choices, str_from(text), position))
        return STATUS_OK;
    struct buf list = {0};
    for (struct str rest = str_from(option->choices); rest.len > 0;) {
        struct str choice = str_split(&rest, ',');
        buf_printf(&list, "%s'" STR_FORMAT "'", list.len > 0 ? ", " : "", STR_ARG(choice));
    }
    enum status status =
        error_set(err, STATUS_INVALID, "invalid choice: '%.*s' (choose from " STR_FORMAT ")",
                  MAX_SHOWN, text, STR_ARG(buf_str(&list)));
    buf_deinit(&list);
    return status;
}

/** Checks JSON text; `*is_empty` tells {} or []. */
static enum status check_json(const struct option *option, const char *text, bool *is_empty,
                              struct error *err)
{
    json_error_t why;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &why);
    if (!value)
        return error_set(err, STATUS_INVALID, "invalid JSON value: '%.*s': %s", MAX_SHOWN, text,
                         why.text);
    bool wants_list = option->kind == OPTION_JSON_LIST;
    bool right = wants_list ? json_is_array(value) : json_is_object(value);
    for (size_t i = 0; right && wants_list && i < json_array_size(value); i++)
        right = json_is_string(json_array_get(value, i));
    *is_empty = json_object_size(value) == 0 && json_array_size(value) == 0;
    json_decref(value);
    if (right)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID, "invalid value: '%.*s', expected %s", MAX_SHOWN, text,
                     wants_list ? "a JSON list of strings" : "a JSON object");
}

static void *field_of(struct option_target target, const struct option *option)
{
    return (char *)target.fields + option->offset;
}

/** Stores "not given". */
static void store_none(struct option_target target, const struct option *option)
{
    void *field = field_of(target, option);
    switch (option->kind) {
    case OPTION_INT:
    case OPTION_HUMAN32:
        *(int32_t *)field = -1;
        break;
    case OPTION_INT64:
    case OPTION_HUMAN64:
        *(int64_t *)field = -1;
        break;
    case OPTION_MODEL_LEN: // -1 means something else here
        *(int64_t *)field = 0;
        break;
    case OPTION_TRISTATE:
        *(enum tristate *)field = TRISTATE_UNSET;
        break;
    case OPTION_LIST:
    case OPTION_COMMA_LIST:
        *(struct str_list *)field = (struct str_list){0};
        break;
    default:
        *(const char **)field = NULL;
    }
}

static void store_number(struct option_target target, const struct option *option, int64_t integer,
                         double real)
{
    void *field = field_of(target, option);
    switch (option->kind) {
    case OPTION_INT:
    case OPTION_HUMAN32:
        *(int32_t *)field = (int32_t)integer;
        break;
    case OPTION_DOUBLE:
        *(double *)field = real;
        break;
    default:
        *(int64_t *)field = integer;
    }
}

static void store_bool(struct option_target target, const struct option *option, bool on)
{
    void *field = field_of(target, option);
    if (option->kind == OPTION_TRISTATE)
        *(enum tristate *)field = on ? TRISTATE_TRUE : TRISTATE_FALSE;
    else
        *(bool *)field = option->kind == OPTION_FLAG_OFF ? !on : on;
}

static void store_comma_list(struct option_target target, const struct option *option,
                             const char *text)
{
    struct str_list *list = field_of(target, option);
    *list = (struct str_list){0};
    int32_t capacity = 1;
    for (const char *p = text; *p; p++)
        capacity += *p == ',';
    list->items = arena_array(target.arena, const char *, capacity);
    for (struct str rest = str_from(text); rest.len > 0;) {
        struct str item = str_trim(str_split(&rest, ','));
        if (item.len > 0)
            list->items[list->len++] = arena_strdup(target.arena, item);
    }
}

static enum status set_number(struct option_target target, const struct option *option,
                              const char *text, struct error *err)
{
    int64_t integer = 0;
    double real = 0;
    int position = 0;
    TRY(parse_number(option->kind, text, &integer, &real, err));
    TRY(check_choice(option, text, &position, err));
    TRY(check_range(option, text, real, err));
    if (option->kind == OPTION_MODEL_LEN && integer == 0)
        return error_set(err, STATUS_TOO_LARGE, "--%s is 0, expected -1, auto or at least 1",
                         option->name);
    if (!is_accepted(option, text))
        return refuse(option, text, err);
    if (option->offset != NO_FIELD)
        store_number(target, option, integer, real);
    return STATUS_OK;
}

static enum status set_json(struct option_target target, const struct option *option,
                            const char *text, struct error *err)
{
    bool is_empty = false;
    text = options_json_expand_suffixes(text, target.arena);
    TRY(check_json(option, text, &is_empty, err));
    if (option->offset == NO_FIELD)
        return is_empty ? STATUS_OK : refuse(option, text, err);
    *(const char **)field_of(target, option) = text;
    return STATUS_OK;
}

static enum status set_text(struct option_target target, const struct option *option,
                            const char *text, struct error *err)
{
    int position = 0;
    TRY(check_choice(option, text, &position, err));
    if (!is_accepted(option, text))
        return refuse(option, text, err);
    if (option->offset == NO_FIELD)
        return STATUS_OK;
    void *field = field_of(target, option);
    switch (option->kind) {
    case OPTION_ENUM:
        *(int *)field = position;
        break;
    case OPTION_LOG_LEVEL:
        if (!log_level_parse(text, field))
            return error_set(err, STATUS_INTERNAL, "no log level: %s", text);
        break;
    case OPTION_COMMA_LIST:
        store_comma_list(target, option, text);
        break;
    default:
        *(const char **)field = arena_strdup(target.arena, str_from(text));
    }
    return STATUS_OK;
}

enum status option_set(struct option_target target, const struct option *option, const char *text,
                       struct error *err)
{
    _Static_assert(sizeof(enum scheduling_policy) == sizeof(int), "stored through int");
    _Static_assert(sizeof(enum load_format) == sizeof(int), "stored through int");
    bool is_optional = strcmp(option->default_text, "None") == 0 && !is_bool(option->kind);
    if (is_optional && (text[0] == '\0' || strcmp(text, "None") == 0)) {
        if (option->offset != NO_FIELD)
            store_none(target, option);
        return STATUS_OK;
    }
    if (is_number(option->kind))
        return set_number(target, option, text, err);
    if (option->kind == OPTION_JSON_OBJECT || option->kind == OPTION_JSON_LIST)
        return set_json(target, option, text, err);
    if (!is_bool(option->kind))
        return set_text(target, option, text, err);
    if (option->kind == OPTION_TRISTATE && strcmp(text, "None") == 0)
        store_none(target, option);
    else if (!is_accepted(option, text))
        return refuse(option, text, err);
    else if (option->offset != NO_FIELD)
        store_bool(target, option, strcmp(text, "True") == 0);
    return STATUS_OK;
}

enum status option_set_list(struct option_target target, const struct option *option,
                            const char *const *items, int32_t num_items, struct error *err)
{
    if (num_items > MAX_LIST_ITEMS)
        return error_set(err, STATUS_INVALID, "%d values, expected at most %d", num_items,
                         MAX_LIST_ITEMS);
    for (int32_t i = 0; i < num_items; i++) {
        if (!is_accepted(option, items[i]))
            return refuse(option, items[i], err);
    }
    if (option->offset == NO_FIELD)
        return STATUS_OK;
    struct str_list *list = field_of(target, option);
    list->items = arena_array(target.arena, const char *, num_items);
    list->len = num_items;
    for (int32_t i = 0; i < num_items; i++)
        list->items[i] = arena_strdup(target.arena, str_from(items[i]));
    return STATUS_OK;
}

void option_set_defaults(struct option_target target, const struct option *table, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (table[i].offset == NO_FIELD || table[i].kind == OPTION_FLAG_OFF)
            continue;
        struct error err = {0};
        CHECK(option_set(target, &table[i], table[i].default_text, &err) == STATUS_OK);
    }
}

void options_set_defaults(struct serve_options *options)
{
    *options = (struct serve_options){
        .log_stats_interval_s = 10,
        .keep_alive_timeout_s = 5,
        .target_device = "auto",
        .omp_threads_bind = "auto",
        .cpu_isa = "auto",
    };
    size_t count = 0;
    const struct option *table = option_table(&count);
    option_set_defaults(serve_options_target(options), table, count);
}

struct str option_choice(const struct option *option, int position)
{
    struct str rest = str_from(option->choices), choice = {0};
    for (int i = 0; i <= position; i++)
        choice = str_split(&rest, ',');
    return choice;
}

void options_deinit(struct serve_options *options)
{
    if (!options)
        return;
    arena_deinit(&options->arena);
    *options = (struct serve_options){0};
}

const char *option_display_name(const struct option *option, struct arena *arena)
{
    const char *name = option_is_pair(option)
                           ? arena_printf(arena, "--%s/--no-%s", option->name, option->name)
                           : arena_printf(arena, "--%s", option->name);
    return option->alias ? arena_printf(arena, "%s/%s", name, option->alias) : name;
}
