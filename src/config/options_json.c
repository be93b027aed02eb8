// JSON on the command line: dotted keys (--arg.a.b value) and bare numbers with a suffix.
#include "config/option_table.h"

#include <ctype.h>
#include <string.h>

enum { MAX_DOTTED_DEPTH = 16, MAX_KEY_BYTES = 256 };

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

const char *options_json_expand_suffixes(const char *text, struct arena *arena)
{
    struct buf out = {0};
    bool in_string = false;
    for (const char *p = text; *p;) {
        if (in_string || !isdigit((unsigned char)*p) || (p > text && is_word(p[-1]))) {
            if (*p == '"')
                in_string = !in_string;
            else if (in_string && *p == '\\' && p[1])
                buf_append_char(&out, *p++);
            buf_append_char(&out, *p++);
            continue;
        }
        size_t len = strspn(p, "0123456789.");
        int64_t value = 0;
        if (p[len] && strchr("kmgtKMGT", p[len]) && !is_word(p[len + 1]) &&
            human_int_parse((struct str){p, len + 1}, &value, NULL) == STATUS_OK) {
            buf_append_int(&out, value);
            len++;
        } else {
            buf_append(&out, (struct str){p, len});
        }
        p += len;
    }
    const char *expanded = arena_strdup(arena, buf_str(&out));
    buf_deinit(&out);
    return expanded;
}

/** JSON if it is, else a number with a suffix, else the text. */
static json_t *value_of(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    int64_t number = 0;
    if (!value && human_int_parse(str_from(text), &number, NULL) == STATUS_OK)
        value = json_integer(number);
    if (!value)
        value = json_string(text);
    return value;
}

/** Appends the comma-separated parts of `text` to the list at `key`, made when it is not there. */
static enum status append_parts(json_t *object, const char *key, const char *text,
                                struct error *err)
{
    json_t *list = json_object_get(object, key);
    if (!list) {
        list = json_array();
        json_object_set_new(object, key, list);
    }
    if (!json_is_array(list))
        return error_set(err, STATUS_INVALID, "'%s' has a value that is not a list", key);
    struct str rest = str_from(text);
    do {
        struct str part = str_split(&rest, ',');
        json_t *item = json_stringn(part.ptr, part.len);
        if (!item)
            return error_set(err, STATUS_INVALID, "'%s': the value is not valid UTF-8", key);
        json_array_append_new(list, item);
    } while (rest.len > 0);
    return STATUS_OK;
}

enum status options_json_set_dotted(json_t *root, struct str path, const char *value, bool *is_new,
                                    struct error *err)
{
    json_t *object = root;
    for (int depth = 0; depth < MAX_DOTTED_DEPTH; depth++) {
        bool is_last = str_find(path, STR("."), 0) == STR_NOT_FOUND;
        struct str part = str_split(&path, '.');
        bool appends = is_last && str_ends_with(part, STR("+"));
        if (appends)
            part.len--;
        if (part.len == 0 || part.len >= MAX_KEY_BYTES)
            return error_set(err, STATUS_INVALID, "a key of %zu bytes, expected 1 to %d", part.len,
                             MAX_KEY_BYTES - 1);
        char key[MAX_KEY_BYTES];
        snprintf(key, sizeof(key), STR_FORMAT, STR_ARG(part));
        json_t *child = json_object_get(object, key);
        if (is_last) {
            *is_new = child == NULL || appends;
            if (appends)
                return append_parts(object, key, value, err);
            json_t *item = value_of(value);
            if (!item || json_object_set_new(object, key, item) != 0)
                return error_set(err, STATUS_INVALID, "'%s' is not valid UTF-8", key);
            return STATUS_OK;
        }
        if (!json_is_object(child)) { // a later, deeper key replaces an earlier plain value
            child = json_object();
            if (json_object_set_new(object, key, child) != 0)
                return error_set(err, STATUS_INVALID, "'%s' is not valid UTF-8", key);
        }
        object = child;
    }
    return error_set(err, STATUS_INVALID, "more than %d dots in a key", MAX_DOTTED_DEPTH);
}
