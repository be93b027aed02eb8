// value.name and value[key], as the immutable sandbox of Jinja2 has them; methods of lists and
// dicts.
#include "tokenizer/jinja_value.h"

#include <string.h>

#include "base/memory.h"

#define METHOD(function)                                                                      \
    static enum status function(struct jinja_runtime *rt, struct jinja_value self,            \
                                const struct jinja_value *arg, const struct jinja_args *args, \
                                struct jinja_value *out)

// --- dicts ---

static enum status dict_view(struct jinja_runtime *rt, const struct jinja_dict *dict,
                             enum jinja_sequence sequence, struct jinja_value *out)
{
    TRY(jinja_list_create(rt, dict->len, sequence, out));
    for (size_t i = 0; i < dict->len; i++) {
        const struct jinja_entry *entry = &dict->entries[i];
        out->list->items[i] = sequence == JINJA_SEQUENCE_KEYS ? entry->key
                              : sequence == JINJA_SEQUENCE_VALUES
                                  ? entry->value
                                  : jinja_tuple2(rt, entry->key, entry->value);
    }
    return STATUS_OK;
}

METHOD(dict_items)
{
    (void)arg, (void)args;
    return dict_view(rt, self.dict, JINJA_SEQUENCE_ITEMS, out);
}

METHOD(dict_keys)
{
    (void)arg, (void)args;
    return dict_view(rt, self.dict, JINJA_SEQUENCE_KEYS, out);
}

METHOD(dict_values)
{
    (void)arg, (void)args;
    return dict_view(rt, self.dict, JINJA_SEQUENCE_VALUES, out);
}

METHOD(dict_get)
{
    (void)args;
    const struct jinja_value *found;
    TRY(jinja_dict_find(rt, self.dict, arg[0], &found));
    *out = found ? *found : arg[1].kind == JINJA_ABSENT ? jinja_none() : arg[1];
    return STATUS_OK;
}

/** A value that nothing can change is its own copy. */
METHOD(copy)
{
    (void)rt, (void)arg, (void)args;
    *out = self;
    return STATUS_OK;
}

static const struct jinja_function dict_methods[] = {
    {"items", "", 0, dict_items},        {"keys", "", 0, dict_keys}, {"values", "", 0, dict_values},
    {"get", "key default", 1, dict_get}, {"copy", "", 0, copy},      {0},
};

static const char *const dict_mutators[] = {"clear",      "pop",    "popitem",
                                            "setdefault", "update", NULL};

// --- lists ---

METHOD(list_index)
{
    (void)args;
    int64_t start = 0, stop = (int64_t)self.list->len, len = stop;
    if (arg[1].kind != JINJA_ABSENT)
        TRY(jinja_need_int(rt, arg[1], "start", &start));
    if (arg[2].kind != JINJA_ABSENT)
        TRY(jinja_need_int(rt, arg[2], "stop", &stop));
    start = start < 0 ? max_i64(start + len, 0) : start;
    stop = stop < 0 ? stop + len : min_i64(stop, len);
    for (int64_t i = start; i < stop; i++) {
        bool equal;
        TRY(jinja_step(rt, 0));
        TRY(jinja_equal(rt, self.list->items[i], arg[0], &equal));
        if (equal) {
            *out = jinja_int(i);
            return STATUS_OK;
        }
    }
    return jinja_fail(rt, STATUS_INVALID, "the value is not in the list");
}

METHOD(list_count)
{
    (void)args;
    jinja_int_t count = 0;
    for (size_t i = 0; i < self.list->len; i++) {
        bool equal;
        TRY(jinja_step(rt, 0));
        TRY(jinja_equal(rt, self.list->items[i], arg[0], &equal));
        count += equal;
    }
    *out = jinja_int(count);
    return STATUS_OK;
}

static const struct jinja_function list_methods[] = {
    {"index", "value start stop", 1, list_index},
    {"count", "value", 1, list_count},
    {"copy", "", 0, copy},
    {0},
};

static const char *const list_mutators[] = {"append", "clear",  "pop",    "reverse", "insert",
                                            "sort",   "extend", "remove", NULL};

// --- cyclers ---

METHOD(cycler_next)
{
    (void)rt, (void)arg, (void)args;
    struct jinja_cycler *cycler = self.cycler;
    *out = cycler->items[cycler->position];
    cycler->position = (cycler->position + 1) % cycler->len;
    return STATUS_OK;
}

METHOD(cycler_reset)
{
    (void)rt, (void)arg, (void)args;
    self.cycler->position = 0;
    *out = jinja_none();
    return STATUS_OK;
}

static const struct jinja_function cycler_methods[] = {
    {"next", "", 0, cycler_next},
    {"reset", "", 0, cycler_reset},
    {0},
};

// --- lookup ---

static bool is_listed(const char *const *names, struct str name)
{
    for (; names && *names; names++)
        if (str_eq_c(name, *names))
            return true;
    return false;
}

/** Attributes of every Python object; the sandbox lets none of them be used. */
static bool is_internal(struct str name)
{
    static const char *const names[] = {
        "__class__",        "__dict__",   "__doc__",          "__init__",
        "__module__",       "__repr__",   "__str__",          "__hash__",
        "__eq__",           "__ne__",     "__lt__",           "__le__",
        "__gt__",           "__ge__",     "__new__",          "__reduce__",
        "__dir__",          "__format__", "__getattribute__", "__setattr__",
        "__delattr__",      "__sizeof__", "__reduce_ex__",    "__init_subclass__",
        "__subclasshook__", NULL,
    };
    return is_listed(names, name);
}

static struct jinja_value bind(struct jinja_runtime *rt, struct jinja_value self,
                               const struct jinja_function *function)
{
    struct jinja_method *method = jinja_alloc(rt, sizeof(*method));
    *method = (struct jinja_method){self, function};
    return (struct jinja_value){.kind = JINJA_METHOD, .method = method};
}

/** An attribute proper, ABSENT if there is none. */
static enum status find_attribute(struct jinja_runtime *rt, struct jinja_value value,
                                  struct str name, struct jinja_value *out)
{
    const struct jinja_function *function = NULL;
    const char *const *mutators = NULL;
    *out = (struct jinja_value){0};
    switch (value.kind) {
    case JINJA_STRING:
        function = jinja_find_string_method(name);
        break;
    case JINJA_DICT:
        function = jinja_table_find(dict_methods, name);
        mutators = dict_mutators;
        break;
    case JINJA_LIST:
        if (value.sequence == JINJA_SEQUENCE_GROUP && str_eq_c(name, "grouper"))
            *out = value.list->items[0];
        else if (value.sequence == JINJA_SEQUENCE_GROUP && str_eq_c(name, "list"))
            *out = value.list->items[1];
        else if (value.sequence <= JINJA_SEQUENCE_RANGE)
            function = jinja_table_find(list_methods, name);
        if (value.sequence == JINJA_SEQUENCE_LIST)
            mutators = list_mutators;
        else if (function && function->call == copy)
            function = NULL; // only lists have it
        break;
    case JINJA_NAMESPACE: {
        const struct jinja_value *found = jinja_dict_get(value.dict, name);
        if (found)
            *out = *found;
        break;
    }
    case JINJA_LOOP:
        return jinja_loop_attribute(rt, value, name, out);
    case JINJA_MACRO:
        return jinja_macro_attribute(rt, value, name, out);
    case JINJA_CYCLER:
        if (str_eq_c(name, "current"))
            *out = value.cycler->items[value.cycler->position];
        function = jinja_table_find(cycler_methods, name);
        break;
    default:
        break;
    }
    if (is_listed(mutators, name) || is_internal(name))
        *out = jinja_undefined_hint(
            rt, "access to attribute '" STR_FORMAT "' of '%s' object is unsafe.", STR_ARG(name),
            jinja_type_name(value));
    else if (function)
        *out = bind(rt, value, function);
    return STATUS_OK;
}

static bool is_hashable(struct jinja_value key)
{
    return key.kind != JINJA_DICT &&
           !(key.kind == JINJA_LIST && key.sequence == JINJA_SEQUENCE_LIST);
}

static enum status item_of_string(struct jinja_runtime *rt, struct jinja_value value,
                                  jinja_int_t index, struct jinja_value *out)
{
    jinja_int_t len = (jinja_int_t)jinja_char_count(value.str);
    if (index < 0)
        index += len;
    TRY(jinja_step(rt, value.str.len));
    if (index < 0 || index >= len)
        return STATUS_OK;
    size_t from = jinja_char_offset(value.str, (size_t)index);
    struct str rest = str_slice(value.str, from, value.str.len);
    *out = jinja_string(str_slice(rest, 0, jinja_char_offset(rest, 1)));
    out->is_markup = value.is_markup;
    return STATUS_OK;
}

/** An item, ABSENT if there is none. */
static enum status find_item(struct jinja_runtime *rt, struct jinja_value value,
                             struct jinja_value key, struct jinja_value *out)
{
    *out = (struct jinja_value){0};
    bool is_index = key.kind == JINJA_INT || key.kind == JINJA_BOOL;
    if (value.kind == JINJA_STRING && is_index)
        return item_of_string(rt, value, jinja_as_int(key), out);
    if (value.kind == JINJA_LIST && is_index && value.sequence <= JINJA_SEQUENCE_RANGE) {
        jinja_int_t index = jinja_as_int(key), len = (jinja_int_t)value.list->len;
        if (index < 0)
            index += len;
        if (index >= 0 && index < len)
            *out = value.list->items[index];
    } else if (value.kind == JINJA_DICT && is_hashable(key)) {
        const struct jinja_value *found;
        TRY(jinja_dict_find(rt, value.dict, key, &found));
        if (found)
            *out = *found;
    }
    return STATUS_OK;
}

enum status jinja_get_attribute(struct jinja_runtime *rt, struct jinja_value value, struct str name,
                                struct jinja_value *out)
{
    struct jinja_value found;
    TRY(jinja_need_defined(rt, value));
    TRY(find_attribute(rt, value, name, &found));
    if (found.kind == JINJA_ABSENT)
        TRY(find_item(rt, value, jinja_string(name), &found));
    if (found.kind == JINJA_ABSENT)
        found = jinja_undefined(rt, value, jinja_string(name));
    *out = found;
    return STATUS_OK;
}

enum status jinja_get_item(struct jinja_runtime *rt, struct jinja_value value,
                           struct jinja_value key, struct jinja_value *out)
{
    struct jinja_value found;
    TRY(jinja_need_defined(rt, value));
    TRY(find_item(rt, value, key, &found));
    if (found.kind == JINJA_ABSENT && key.kind == JINJA_STRING)
        TRY(find_attribute(rt, value, key.str, &found));
    if (found.kind == JINJA_ABSENT)
        found = jinja_undefined(rt, value, key);
    *out = found;
    return STATUS_OK;
}
