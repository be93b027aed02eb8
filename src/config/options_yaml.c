// The --config file: a YAML mapping of option names, turned into the words of a command line.
//
//   key: true      --key            key: [a, b]       --key a b
//   key: false     (dropped)        key: {a: 1}       --key '{"a":1}'
//   key: value     --key value      model: value      the positional model
//
// The file is read event by event into a JSON tree of bounded depth and size. Anchors and aliases
// are refused: a few lines of them can stand for gigabytes.
#include "config/option_table.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <yaml.h>

#include "base/log.h"
#include "base/mapped_file.h"
#include "base/memory.h"

enum { MAX_FILE_BYTES = 1024 * 1024, MAX_DEPTH = 32, MAX_NODES = 100000 };

struct yaml_reader {
    yaml_parser_t parser;
    const char *name;
    int num_nodes;
    struct error *err;
};

static enum status fail_at(struct yaml_reader *reader, const yaml_mark_t *mark, const char *what)
{
    return error_set(reader->err, STATUS_INVALID, "%s: line %zu: %s", reader->name, mark->line + 1,
                     what);
}

static enum status next_event(struct yaml_reader *reader, yaml_event_t *event)
{
    if (yaml_parser_parse(&reader->parser, event))
        return STATUS_OK;
    const char *problem = reader->parser.problem ? reader->parser.problem : "not valid YAML";
    return fail_at(reader, &reader->parser.problem_mark, problem);
}

static bool is_one_of(struct str text, const char *const *words)
{
    for (; *words; words++) {
        if (str_eq_c(text, *words))
            return true;
    }
    return false;
}

/** Integers of YAML 1.1: decimal, 0x hexadecimal, 0 octal, single signs, underscores. */
static json_t *integer_of(struct str text)
{
    char digits[64];
    size_t len = 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] != '_' && len + 1 < sizeof(digits))
            digits[len++] = text.ptr[i];
    }
    digits[len] = '\0';
    char *first = digits + (digits[0] == '-' || digits[0] == '+');
    if (!isdigit((unsigned char)first[0]))
        return NULL;
    int base = first[0] == '0' && first[1] ? (first[1] == 'x' ? 16 : 8) : 10;
    char *end = NULL;
    errno = 0;
    long long value = strtoll(digits, &end, base);
    return *end == '\0' && errno == 0 ? json_integer(value) : NULL;
}

/** Floats need a point; "1e3" is text in YAML 1.1. */
static json_t *real_of(struct str text)
{
    char digits[64];
    if (text.len >= sizeof(digits) || str_find(text, STR("."), 0) == STR_NOT_FOUND)
        return NULL;
    snprintf(digits, sizeof(digits), STR_FORMAT, STR_ARG(text));
    if (digits[strspn(digits, "+-.0123456789eE")] != '\0')
        return NULL;
    char *end = NULL;
    double value = strtod(digits, &end);
    return *end == '\0' && end != digits ? json_real(value) : NULL; // NULL for an infinity
}

static json_t *scalar_value(struct str text, bool is_plain)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const truths[] = {"true", "True", "TRUE", "yes", "Yes",
                                         "YES",  "on",   "On",   "ON",  NULL};
    static const char *const falsehoods[] = {"false", "False", "FALSE", "no",  "No",
                                             "NO",    "off",   "Off",   "OFF", NULL};
    if (is_plain) {
        if (is_one_of(text, nulls))
            return json_null();
        if (is_one_of(text, truths))
            return json_true();
        if (is_one_of(text, falsehoods))
            return json_false();
        json_t *number = integer_of(text);
        if (!number)
            number = real_of(text);
        if (number)
            return number;
    }
    return json_stringn(text.ptr, text.len);
}

static enum status read_value(struct yaml_reader *reader, const yaml_event_t *event, int depth,
                              json_t **out);

static enum status read_scalar(struct yaml_reader *reader, const yaml_event_t *event, json_t **out)
{
    struct str text = {(const char *)event->data.scalar.value, event->data.scalar.length};
    if (memchr(text.ptr, '\0', text.len))
        return fail_at(reader, &event->start_mark, "a zero byte within a value");
    *out = scalar_value(text, event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE);
    return *out ? STATUS_OK : fail_at(reader, &event->start_mark, "text is not valid UTF-8");
}

static enum status read_sequence(struct yaml_reader *reader, int depth, json_t *list)
{
    for (;;) {
        yaml_event_t event;
        TRY(next_event(reader, &event));
        json_t *item = NULL;
        bool ends = event.type == YAML_SEQUENCE_END_EVENT;
        enum status status = ends ? STATUS_OK : read_value(reader, &event, depth, &item);
        yaml_event_delete(&event);
        if (ends || status != STATUS_OK)
            return status;
        json_array_append_new(list, item);
    }
}

static enum status read_mapping(struct yaml_reader *reader, int depth, json_t *object)
{
    for (;;) {
        yaml_event_t event;
        TRY(next_event(reader, &event));
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            return STATUS_OK;
        }
        json_t *value = NULL;
        char *key = NULL;
        enum status status = STATUS_OK;
        if (event.type != YAML_SCALAR_EVENT || event.data.scalar.length == 0 ||
            memchr(event.data.scalar.value, '\0', event.data.scalar.length))
            status = fail_at(reader, &event.start_mark, "expected a name before ':'");
        else
            key = xstrdup((const char *)event.data.scalar.value);
        yaml_mark_t mark = event.start_mark;
        yaml_event_delete(&event);
        if (status == STATUS_OK)
            status = next_event(reader, &event);
        if (status == STATUS_OK) {
            status = read_value(reader, &event, depth, &value);
            yaml_event_delete(&event);
        }
        if (status == STATUS_OK && json_object_get(object, key)) {
            json_decref(value);
            status = error_set(reader->err, STATUS_INVALID, "%s: line %zu: '%.100s' is given twice",
                               reader->name, mark.line + 1, key);
        } else if (status == STATUS_OK && json_object_set_new(object, key, value) != 0) {
            status = fail_at(reader, &mark, "a name is not valid UTF-8");
        }
        free(key);
        TRY(status);
    }
}

static enum status read_value(struct yaml_reader *reader, const yaml_event_t *event, int depth,
                              json_t **out)
{
    const char *anchor = NULL;
    if (event->type == YAML_SCALAR_EVENT)
        anchor = (const char *)event->data.scalar.anchor;
    else if (event->type == YAML_SEQUENCE_START_EVENT)
        anchor = (const char *)event->data.sequence_start.anchor;
    else if (event->type == YAML_MAPPING_START_EVENT)
        anchor = (const char *)event->data.mapping_start.anchor;
    if (anchor || event->type == YAML_ALIAS_EVENT)
        return fail_at(reader, &event->start_mark, "anchors and aliases are not supported");
    if (depth >= MAX_DEPTH)
        return fail_at(reader, &event->start_mark, "nested too deeply");
    if (++reader->num_nodes > MAX_NODES)
        return fail_at(reader, &event->start_mark, "too many values");

    enum status status;
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return read_scalar(reader, event, out);
    case YAML_SEQUENCE_START_EVENT:
        *out = json_array();
        status = read_sequence(reader, depth + 1, *out);
        break;
    case YAML_MAPPING_START_EVENT:
        *out = json_object();
        status = read_mapping(reader, depth + 1, *out);
        break;
    default:
        return fail_at(reader, &event->start_mark, "expected a value");
    }
    if (status != STATUS_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

/** The one document of the file; NULL when the file is empty. */
static enum status read_document(struct yaml_reader *reader, json_t **out)
{
    *out = NULL;
    for (;;) {
        yaml_event_t event;
        enum status status = next_event(reader, &event);
        if (status == STATUS_OK) {
            bool ends = event.type == YAML_STREAM_END_EVENT;
            bool is_frame = event.type == YAML_STREAM_START_EVENT ||
                            event.type == YAML_DOCUMENT_START_EVENT ||
                            event.type == YAML_DOCUMENT_END_EVENT;
            if (!ends && !is_frame)
                status = *out ? fail_at(reader, &event.start_mark, "expected a single document")
                              : read_value(reader, &event, 0, out);
            yaml_event_delete(&event);
            if (ends)
                return STATUS_OK;
        }
        if (status != STATUS_OK) {
            json_decref(*out);
            *out = NULL;
            return status;
        }
    }
}

struct word_list {
    struct arena *arena;
    struct str_list *list;
    int32_t capacity;
};

static void add_word(struct word_list *words, const char *text)
{
    if (words->list->len == words->capacity) {
        words->capacity = words->capacity ? words->capacity * 2 : 64;
        const char **items = arena_array(words->arena, const char *, words->capacity);
        if (words->list->len > 0)
            memcpy(items, words->list->items, (size_t)words->list->len * sizeof(*items));
        words->list->items = items;
    }
    words->list->items[words->list->len++] = text;
}

/** `key: false` is dropped, which cannot turn off what is on by default: say so. */
static void warn_if_on_by_default(const char *key, const char *name)
{
    size_t count = 0;
    const struct option *table = option_table(&count);
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (table[i].name[k] && (key[k] == '_' ? '-' : key[k]) == table[i].name[k])
            k++;
        if (table[i].name[k] == key[k] && strcmp(table[i].default_text, "False") != 0)
            log_warning("%s: '%s: false' changes nothing; write 'no-%s: true'", name, key, key);
    }
}

/** A value as one word: text as it is, the rest as Python or JSON writes it. */
static const char *word_of(const json_t *value, struct arena *arena)
{
    if (json_is_string(value))
        return arena_strdup(arena, str_from(json_string_value(value)));
    if (json_is_null(value))
        return "None";
    if (json_is_boolean(value))
        return json_is_true(value) ? "True" : "False";
    if (json_is_real(value)) {
        struct buf digits = {0};
        buf_append_json_double(&digits, json_real_value(value));
        const char *word = arena_strdup(arena, buf_str(&digits));
        buf_deinit(&digits);
        return word;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const char *word = arena_strdup(arena, str_from(text ? text : ""));
    free(text);
    return word;
}

static enum status add_option(struct word_list *words, const char *key, const json_t *value,
                              const char *name, const char **model, struct error *err)
{
    if (strcmp(key, "model") == 0 || strcmp(key, "model_tag") == 0) {
        if (!json_is_string(value) && !json_is_number(value))
            return error_set(err, STATUS_INVALID, "%s: '%s' is not a text", name, key);
        *model = word_of(value, words->arena);
        return STATUS_OK;
    }
    if (strcmp(key, "config") == 0 || key[0] == '-')
        return error_set(err, STATUS_INVALID, "%s: '%.100s' is not the name of an option", name,
                         key);
    if (json_is_false(value))
        warn_if_on_by_default(key, name);
    if (json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0))
        return STATUS_OK;
    const char *option = arena_printf(words->arena, "--%s", key);
    if (json_is_array(value)) {
        add_word(words, option);
        for (size_t i = 0; i < json_array_size(value); i++)
            add_word(words, word_of(json_array_get(value, i), words->arena));
    } else if (json_is_true(value)) {
        add_word(words, option);
    } else {
        // One word, so that a value which begins with a dash stays a value.
        add_word(words, arena_printf(words->arena, "%s=%s", option, word_of(value, words->arena)));
    }
    return STATUS_OK;
}

enum status options_yaml_parse(struct str text, const char *name, struct arena *arena,
                               struct str_list *words, const char **model, struct error *err)
{
    *words = (struct str_list){0};
    if (text.len > MAX_FILE_BYTES)
        return error_set(err, STATUS_TOO_LARGE, "%s: %zu bytes, expected at most %d", name,
                         text.len, MAX_FILE_BYTES);
    struct yaml_reader reader = {.name = name, .err = err};
    if (!yaml_parser_initialize(&reader.parser))
        return error_set(err, STATUS_INTERNAL, "%s: the YAML reader does not start", name);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)(text.ptr ? text.ptr : ""),
                                 text.len);
    json_t *root = NULL;
    enum status status = read_document(&reader, &root);
    yaml_parser_delete(&reader.parser);
    if (status == STATUS_OK && !json_is_object(root))
        status = error_set(err, STATUS_INVALID, "%s: expected a mapping of option names to values",
                           name);

    struct word_list list = {arena, words, 0};
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        if (status == STATUS_OK)
            status = add_option(&list, key, value, name, model, err);
    }
    json_decref(root);
    return status;
}

enum status options_yaml_load(const char *path, struct arena *arena, struct str_list *words,
                              const char **model, struct error *err)
{
    const char *dot = strrchr(path, '.');
    const char *extension = dot && !strchr(dot, '/') ? dot + 1 : "";
    if (strcmp(extension, "yaml") != 0 && strcmp(extension, "yml") != 0)
        return error_set(err, STATUS_INVALID,
                         "Config file must be of a yaml/yml type. %.64s supplied", extension);
    struct mapped_file file;
    TRY(mapped_file_open(&file, path, err));
    enum status status = options_yaml_parse(mapped_file_str(&file), path, arena, words, model, err);
    mapped_file_close(&file);
    return status;
}
