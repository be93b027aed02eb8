#include "benchmarks/sweep_params.h"

#include <string.h>

#include "base/memory.h"
#include "benchmarks/command_words.h"

enum { MAX_SETS = 1024, MAX_NAME_BYTES = 90 };

static const char NAME_KEY[] = "_benchmark_name";

static bool is_scalar(const json_t *value)
{
    return json_is_string(value) || json_is_number(value) || json_is_boolean(value);
}

static enum status check_values(const char *path, json_t *values, int32_t index, struct error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(values))
        return error_set(err, STATUS_INVALID, "%s: set %d is no object of flags", path, index);
    json_object_foreach(values, key, value)
    {
        bool right = is_scalar(value) || json_is_object(value) || json_is_array(value);
        for (size_t i = 0; i < json_array_size(value); i++)
            right &= is_scalar(json_array_get(value, i));
        if (!right || *key == '\0' || *key == '-')
            return error_set(err, STATUS_INVALID,
                             "%s: set %d: \"%.100s\" must be a flag's name without dashes before "
                             "it, and have a string, number, boolean, list of these, or object",
                             path, index, key);
    }
    return STATUS_OK;
}

/** A name that is a folder's on any file system; a long one ends in the set's number. */
static const char *file_name(const char *name, int32_t index, struct arena *arena)
{
    size_t len = strlen(name);
    char *copy = len <= MAX_NAME_BYTES
                     ? arena_strdup(arena, str_from(name))
                     : arena_printf(arena, "%.*s~%d", MAX_NAME_BYTES, name, index);
    for (char *p = copy; *p != '\0'; p++) {
        if ((unsigned char)*p < ' ' || strchr("/\\:*?\"<>|", *p))
            *p = '_';
    }
    return copy;
}

static const char *name_of(const json_t *values, struct arena *arena)
{
    struct buf text = {0};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)values, key, value)
    {
        buf_printf(&text, "%s%s=%s", text.len > 0 ? "-" : "", key,
                   command_value_text(value, arena));
    }
    const char *name = text.len > 0 ? arena_strdup(arena, buf_str(&text)) : "default";
    buf_deinit(&text);
    return name;
}

static enum status add_set(struct sweep_params_list *list, const char *path, const char *name,
                           const json_t *source, struct arena *arena, struct error *err)
{
    int32_t index = list->num;
    TRY(check_values(path, (json_t *)(uintptr_t)source, index, err));
    struct sweep_params *set = &list->items[list->num++];
    set->values = json_deep_copy(source);
    const json_t *own = json_object_get(source, NAME_KEY);
    if (own && (!json_is_string(own) || json_string_length(own) == 0))
        return error_set(err, STATUS_INVALID, "%s: set %d: \"%s\" must be a string", path, index,
                         NAME_KEY);
    name = own ? json_string_value(own) : name;
    const char *copy = name ? arena_strdup(arena, str_from(name)) : NULL;
    json_object_del(set->values, NAME_KEY);
    set->name = file_name(copy ? copy : name_of(set->values, arena), index, arena);
    for (int32_t i = 0; i < index; i++) {
        if (strcmp(list->items[i].name, set->name) == 0)
            return error_set(err, STATUS_INVALID, "%s: sets %d and %d are both called '%s'", path,
                             i, index, set->name);
    }
    return STATUS_OK;
}

static enum status add_all(struct sweep_params_list *list, const char *path, json_t *root,
                           struct arena *arena, struct error *err)
{
    size_t num = json_is_object(root) ? json_object_size(root) : json_array_size(root);
    if (num == 0 || num > MAX_SETS)
        return error_set(err, STATUS_INVALID,
                         "%s: expected a list of 1 to %d objects of flags, or an object of them "
                         "by name",
                         path, MAX_SETS);
    list->items = xcalloc(num, sizeof(*list->items));
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        TRY(add_set(list, path, key, value, arena, err));
    }
    for (size_t i = 0; i < json_array_size(root); i++)
        TRY(add_set(list, path, NULL, json_array_get(root, i), arena, err));
    return STATUS_OK;
}

enum status sweep_params_load(struct sweep_params_list *list, const char *path, struct arena *arena,
                              struct error *err)
{
    *list = (struct sweep_params_list){.is_given = path != NULL};
    if (!path) {
        list->items = xcalloc(1, sizeof(*list->items));
        list->items[list->num++] = (struct sweep_params){"default", json_object()};
        return STATUS_OK;
    }
    json_error_t problem;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (!root)
        return error_set(err, problem.line < 0 ? STATUS_NOT_FOUND : STATUS_INVALID,
                         problem.line < 0 ? "%s: %s" : "%s: %s (line %d)", path, problem.text,
                         problem.line);
    enum status status = add_all(list, path, root, arena, err);
    json_decref(root);
    return status;
}

void sweep_params_deinit(struct sweep_params_list *list)
{
    for (int32_t i = 0; i < list->num; i++)
        json_decref(list->items[i].values);
    free(list->items);
    *list = (struct sweep_params_list){0};
}

void sweep_params_apply(const json_t *values, struct str_list *words, struct arena *arena)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)values, key, value)
    {
        command_words_set(words, key, value, arena);
    }
}

/** Splits "a=b". */
static bool split_link(const char *link, char *left, char *right, size_t size)
{
    struct str rest = str_from(link), first = str_split(&rest, '=');
    bool is_right = first.len > 0 && first.len < size && rest.len > 0 && rest.len < size;
    if (is_right) {
        snprintf(left, size, STR_FORMAT, STR_ARG(first));
        snprintf(right, size, STR_FORMAT, STR_ARG(rest));
    }
    return is_right;
}

bool sweep_links_match(const struct str_list *links, const json_t *serve, const json_t *bench)
{
    char left[128], right[128];
    for (int32_t i = 0; i < links->len; i++) {
        if (!split_link(links->items[i], left, right, sizeof(left)))
            return false;
        const json_t *a = json_object_get(serve, left), *b = json_object_get(bench, right);
        bool are_numbers = json_is_number(a) && json_is_number(b);
        if (!a || !b ||
            !(are_numbers ? json_number_value(a) == json_number_value(b) : json_equal(a, b)))
            return false;
    }
    return true;
}

static bool has_flag(const struct sweep_params_list *list, const char *flag)
{
    for (int32_t i = 0; i < list->num; i++) {
        if (json_object_get(list->items[i].values, flag))
            return true;
    }
    return false;
}

enum status sweep_links_check(const struct str_list *links, const struct sweep_params_list *serve,
                              const struct sweep_params_list *bench, struct error *err)
{
    char left[128], right[128];
    for (int32_t i = 0; i < links->len; i++) {
        const char *link = links->items[i];
        if (!split_link(link, left, right, sizeof(left)))
            return error_set(err, STATUS_INVALID,
                             "--link-vars has '%.100s', expected SERVE_FLAG=BENCH_FLAG", link);
        if (!has_flag(serve, left) || !has_flag(bench, right))
            return error_set(err, STATUS_INVALID,
                             "--link-vars has '%.100s', but no set of %s has %s", link,
                             has_flag(serve, left) ? "--bench-params" : "--serve-params",
                             has_flag(serve, left) ? right : left);
    }
    return STATUS_OK;
}
