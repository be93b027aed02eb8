// Filters of sequences and dicts.
#include "tokenizer/jinja_filters.h"

#include <string.h>

#include "base/memory.h"

static bool is_given(struct jinja_value value)
{
    return value.kind != JINJA_ABSENT && value.kind != JINJA_NONE;
}

enum status jinja_pairs(struct jinja_runtime *rt, struct jinja_value dict, struct jinja_value *out)
{
    TRY(jinja_list_create(rt, dict.dict->len, JINJA_SEQUENCE_LIST, out));
    for (size_t i = 0; i < dict.dict->len; i++)
        out->list->items[i] =
            jinja_tuple2(rt, dict.dict->entries[i].key, dict.dict->entries[i].value);
    return STATUS_OK;
}

// --- keys to sort, group and compare by ---

/** What an attribute= argument says: "a.b.0", a number, or nothing. */
struct getter {
    struct jinja_value attribute; // ABSENT: the item itself
    struct jinja_value otherwise; // in place of undefined; ABSENT: none
    bool ignore_case;
    bool is_multi; // several attributes with commas between them: the key is a list
};

static enum status get_path(struct jinja_runtime *rt, const struct getter *getter, struct str path,
                            struct jinja_value item, struct jinja_value *out)
{
    *out = item;
    do {
        struct str part = str_split(&path, '.');
        jinja_int_t index;
        bool is_index = part.len > 0 && part.ptr[0] >= '0' && part.ptr[0] <= '9' &&
                        jinja_parse_int(part, 10, &index);
        TRY(jinja_step(rt, 0));
        TRY(jinja_get_item(rt, *out, is_index ? jinja_int(index) : jinja_string(part), out));
        if (out->kind == JINJA_UNDEFINED && is_given(getter->otherwise))
            *out = getter->otherwise;
    } while (path.len > 0);
    return STATUS_OK;
}

static enum status fold_case(struct jinja_runtime *rt, bool ignore_case, struct jinja_value *value)
{
    if (!ignore_case || value->kind != JINJA_STRING)
        return STATUS_OK;
    size_t mark = jinja_mark(rt);
    TRY(jinja_put_case(rt, value->str, JINJA_CASE_LOWER));
    *value = jinja_take(rt, mark);
    return STATUS_OK;
}

static enum status get(struct jinja_runtime *rt, const struct getter *getter,
                       struct jinja_value item, struct jinja_value *out)
{
    *out = item;
    if (getter->attribute.kind == JINJA_STRING) {
        TRY(get_path(rt, getter, getter->attribute.str, item, out));
    } else if (is_given(getter->attribute)) {
        TRY(jinja_get_item(rt, item, getter->attribute, out));
        if (out->kind == JINJA_UNDEFINED && is_given(getter->otherwise))
            *out = getter->otherwise;
    }
    return fold_case(rt, getter->ignore_case, out);
}

/** As get(); with several attributes a list of their values. */
static enum status get_multi(struct jinja_runtime *rt, const struct getter *getter,
                             struct jinja_value item, struct jinja_value *out)
{
    struct str rest = getter->attribute.str; // if it is a string
    if (!getter->is_multi)
        return get(rt, getter, item, out);
    size_t capacity = 0;
    struct jinja_value list;
    TRY(jinja_list_create(rt, 0, JINJA_SEQUENCE_LIST, &list));
    if (getter->attribute.kind != JINJA_STRING) {
        struct jinja_value value;
        TRY(get(rt, getter, item, &value));
        TRY(jinja_list_append(rt, list.list, &capacity, value));
    }
    while (getter->attribute.kind == JINJA_STRING && rest.len > 0) {
        struct jinja_value value;
        struct getter part = *getter;
        part.attribute = jinja_string(str_split(&rest, ','));
        TRY(get(rt, &part, item, &value));
        TRY(jinja_list_append(rt, list.list, &capacity, value));
    }
    *out = list;
    return STATUS_OK;
}

struct keyed {
    struct jinja_value key, item;
};

/** Merge sort: stable, never quadratic. */
static enum status sort_keyed(struct jinja_runtime *rt, struct keyed *items, size_t len,
                              bool reverse, struct keyed *scratch)
{
    if (len < 2)
        return STATUS_OK;
    size_t half = len / 2;
    TRY(sort_keyed(rt, items, half, reverse, scratch));
    TRY(sort_keyed(rt, items + half, len - half, reverse, scratch));
    memcpy(scratch, items, half * sizeof(*items));
    size_t left = 0, right = half;
    for (size_t i = 0; left < half; i++) {
        int order = -1;
        TRY(jinja_step(rt, 0));
        if (right < len && reverse)
            TRY(jinja_compare(rt, scratch[left].key, items[right].key, "<", &order));
        else if (right < len)
            TRY(jinja_compare(rt, items[right].key, scratch[left].key, "<", &order));
        bool take_right = right < len && order == -1;
        items[i] = take_right ? items[right++] : scratch[left++];
    }
    return STATUS_OK;
}

static enum status sort_by(struct jinja_runtime *rt, const struct jinja_list *source,
                           const struct getter *getter, bool reverse, struct keyed **out)
{
    struct jinja_value room; // twice: the second half for merging; counted as list elements
    TRY(jinja_list_create(rt, source->len * 4, JINJA_SEQUENCE_LIST, &room));
    struct keyed *items = (struct keyed *)(void *)room.list->items;
    for (size_t i = 0; i < source->len; i++) {
        items[i].item = source->items[i];
        TRY(get_multi(rt, getter, source->items[i], &items[i].key));
    }
    TRY(sort_keyed(rt, items, source->len, reverse, items + source->len));
    *out = items;
    return STATUS_OK;
}

JINJA_FILTER(filter_sort)
{
    (void)args;
    struct jinja_value source;
    struct keyed *sorted;
    TRY(jinja_iterate(rt, self, &source));
    struct getter getter = {
        .attribute = arg[2], .ignore_case = !jinja_is_true(arg[1]), .is_multi = true};
    TRY(sort_by(rt, source.list, &getter, jinja_is_true(arg[0]), &sorted));
    TRY(jinja_list_create(rt, source.list->len, JINJA_SEQUENCE_LIST, out));
    for (size_t i = 0; i < source.list->len; i++)
        out->list->items[i] = sorted[i].item;
    return STATUS_OK;
}

JINJA_FILTER(filter_dictsort)
{
    (void)args;
    struct str by = STR("key");
    struct jinja_value pairs;
    struct keyed *sorted;
    TRY(jinja_need_defined(rt, self));
    if (self.kind != JINJA_DICT)
        return jinja_fail(rt, STATUS_INVALID, "dictsort: expected a dict, not '%s'",
                          jinja_type_name(self));
    if (arg[1].kind != JINJA_ABSENT)
        TRY(jinja_need_string(rt, arg[1], "dictsort: by", &by));
    if (!str_eq_c(by, "key") && !str_eq_c(by, "value"))
        return jinja_fail(rt, STATUS_INVALID, "You can only sort by either \"key\" or \"value\"");
    TRY(jinja_pairs(rt, self, &pairs));
    struct getter getter = {.attribute = jinja_int(str_eq_c(by, "value")),
                            .ignore_case = !jinja_is_true(arg[0])};
    TRY(sort_by(rt, pairs.list, &getter, jinja_is_true(arg[2]), &sorted));
    TRY(jinja_list_create(rt, pairs.list->len, JINJA_SEQUENCE_LIST, out));
    for (size_t i = 0; i < pairs.list->len; i++)
        out->list->items[i] = sorted[i].item;
    return STATUS_OK;
}

static enum status make_group(struct jinja_runtime *rt, const struct keyed *items, size_t len,
                              struct jinja_value grouper, struct jinja_value *out)
{
    struct jinja_value list;
    TRY(jinja_list_create(rt, len, JINJA_SEQUENCE_LIST, &list));
    for (size_t i = 0; i < len; i++)
        list.list->items[i] = items[i].item;
    *out = jinja_tuple2(rt, grouper, list);
    out->sequence = JINJA_SEQUENCE_GROUP;
    return STATUS_OK;
}

JINJA_FILTER(filter_groupby)
{
    (void)args;
    struct jinja_value source;
    struct keyed *sorted;
    size_t capacity = 0;
    TRY(jinja_iterate(rt, self, &source));
    struct getter getter = {
        .attribute = arg[0], .otherwise = arg[1], .ignore_case = !jinja_is_true(arg[2])};
    TRY(sort_by(rt, source.list, &getter, false, &sorted));
    TRY(jinja_list_create(rt, 0, JINJA_SEQUENCE_LIST, out));
    for (size_t from = 0; from < source.list->len;) {
        size_t to = from + 1;
        for (bool equal = true; to < source.list->len; to++) {
            TRY(jinja_equal(rt, sorted[from].key, sorted[to].key, &equal));
            if (!equal)
                break;
        }
        struct jinja_value grouper, group;
        struct getter as_written = getter;
        as_written.ignore_case = false;
        TRY(get(rt, &as_written, sorted[from].item, &grouper));
        TRY(make_group(rt, sorted + from, to - from, grouper, &group));
        TRY(jinja_list_append(rt, out->list, &capacity, group));
        from = to;
    }
    return STATUS_OK;
}

JINJA_FILTER(filter_unique)
{
    (void)args;
    struct jinja_value source, seen = jinja_dict_create(rt);
    size_t capacity = 0;
    struct getter getter = {.attribute = arg[1], .ignore_case = !jinja_is_true(arg[0])};
    TRY(jinja_iterate(rt, self, &source));
    TRY(jinja_list_create(rt, 0, JINJA_SEQUENCE_GENERATOR, out));
    for (size_t i = 0; i < source.list->len; i++) {
        struct jinja_value key;
        size_t before = seen.dict->len;
        TRY(get(rt, &getter, source.list->items[i], &key));
        TRY(jinja_dict_set(rt, seen.dict, key, jinja_none()));
        if (seen.dict->len > before)
            TRY(jinja_list_append(rt, out->list, &capacity, source.list->items[i]));
    }
    return STATUS_OK;
}

static enum status extreme(struct jinja_runtime *rt, struct jinja_value self,
                           const struct jinja_value *arg, int sign, struct jinja_value *out)
{
    struct jinja_value source, best = {0}, key;
    struct getter getter = {.attribute = arg[1], .ignore_case = !jinja_is_true(arg[0])};
    TRY(jinja_iterate(rt, self, &source));
    *out = jinja_undefined_hint(rt, "No aggregated item, sequence was empty.");
    for (size_t i = 0; i < source.list->len; i++) {
        int order = sign;
        TRY(jinja_step(rt, 0));
        TRY(get(rt, &getter, source.list->items[i], &key));
        if (i > 0)
            TRY(jinja_compare(rt, key, best, sign < 0 ? "<" : ">", &order));
        if (order == sign) {
            best = key;
            *out = source.list->items[i];
        }
    }
    return STATUS_OK;
}

JINJA_FILTER(filter_min)
{
    (void)args;
    return extreme(rt, self, arg, -1, out);
}

JINJA_FILTER(filter_max)
{
    (void)args;
    return extreme(rt, self, arg, 1, out);
}

JINJA_FILTER(filter_sum)
{
    (void)args;
    struct jinja_value source, item;
    struct getter getter = {.attribute = arg[0]};
    TRY(jinja_iterate(rt, self, &source));
    *out = arg[1].kind == JINJA_ABSENT ? jinja_int(0) : arg[1];
    for (size_t i = 0; i < source.list->len; i++) {
        TRY(jinja_step(rt, 0));
        TRY(get(rt, &getter, source.list->items[i], &item));
        TRY(jinja_binary(rt, JINJA_OP_ADD, *out, item, out));
    }
    return STATUS_OK;
}

// --- elements ---

JINJA_FILTER(filter_length)
{
    (void)arg, (void)args;
    int64_t length;
    TRY(jinja_length(rt, self, &length));
    *out = jinja_int(length);
    return STATUS_OK;
}

JINJA_FILTER(filter_first)
{
    (void)arg, (void)args;
    struct jinja_value source;
    if (self.kind == JINJA_LIST && self.sequence == JINJA_SEQUENCE_GENERATOR) {
        struct jinja_list *list = self.list; // takes one and leaves the rest
        *out = list->num_consumed < list->len
                   ? list->items[list->num_consumed++]
                   : jinja_undefined_hint(rt, "No first item, sequence was empty.");
        return STATUS_OK;
    }
    TRY(jinja_iterate(rt, self, &source));
    *out = source.list->len > 0 ? source.list->items[0]
                                : jinja_undefined_hint(rt, "No first item, sequence was empty.");
    return STATUS_OK;
}

JINJA_FILTER(filter_last)
{
    (void)arg, (void)args;
    struct jinja_value source;
    if (self.kind == JINJA_LIST && self.sequence == JINJA_SEQUENCE_GENERATOR)
        return jinja_fail(rt, STATUS_INVALID, "'generator' object is not reversible");
    TRY(jinja_iterate(rt, self, &source));
    *out = source.list->len > 0 ? source.list->items[source.list->len - 1]
                                : jinja_undefined_hint(rt, "No last item, sequence was empty.");
    return STATUS_OK;
}

JINJA_FILTER(filter_list)
{
    (void)arg, (void)args;
    return jinja_iterate(rt, self, out);
}

JINJA_FILTER(filter_reverse)
{
    (void)arg, (void)args;
    if (self.kind == JINJA_STRING)
        return jinja_slice(rt, self, jinja_none(), jinja_none(), jinja_int(-1), out);
    struct jinja_value source;
    bool is_generator = self.kind == JINJA_LIST && self.sequence == JINJA_SEQUENCE_GENERATOR;
    TRY(jinja_iterate(rt, self, &source));
    TRY(jinja_list_create(rt, source.list->len,
                          is_generator || self.kind == JINJA_UNDEFINED ? JINJA_SEQUENCE_LIST
                                                                       : JINJA_SEQUENCE_GENERATOR,
                          out));
    for (size_t i = 0; i < source.list->len; i++)
        out->list->items[i] = source.list->items[source.list->len - 1 - i];
    return STATUS_OK;
}

JINJA_FILTER(filter_items)
{
    (void)arg, (void)args;
    if (self.kind == JINJA_UNDEFINED)
        return jinja_list_create(rt, 0, JINJA_SEQUENCE_GENERATOR, out);
    if (self.kind != JINJA_DICT)
        return jinja_fail(rt, STATUS_INVALID, "Can only get item pairs from a mapping.");
    TRY(jinja_pairs(rt, self, out));
    out->sequence = JINJA_SEQUENCE_GENERATOR;
    return STATUS_OK;
}

JINJA_FILTER(filter_join)
{
    (void)args;
    struct jinja_value source, item;
    struct getter getter = {.attribute = arg[1]};
    TRY(jinja_iterate(rt, self, &source));
    size_t mark = jinja_mark(rt);
    for (size_t i = 0; i < source.list->len; i++) {
        TRY(jinja_step(rt, 0));
        if (i > 0 && arg[0].kind != JINJA_ABSENT)
            TRY(jinja_put_str(rt, arg[0]));
        TRY(get(rt, &getter, source.list->items[i], &item));
        TRY(jinja_put_str(rt, item));
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

JINJA_FILTER(filter_batch)
{
    (void)args;
    int64_t size;
    struct jinja_value source;
    size_t capacity = 0;
    TRY(jinja_need_int(rt, arg[0], "batch: linecount", &size));
    if (size < 1 || size > JINJA_MAX_RANGE)
        return jinja_fail(rt, STATUS_INVALID, "batch: linecount must be from 1 to %d",
                          JINJA_MAX_RANGE);
    TRY(jinja_iterate(rt, self, &source));
    TRY(jinja_list_create(rt, 0, JINJA_SEQUENCE_GENERATOR, out));
    for (size_t from = 0; from < source.list->len; from += (size_t)size) {
        struct jinja_value batch;
        size_t rest = source.list->len - from;
        size_t len = rest < (size_t)size ? rest : (size_t)size;
        size_t room = is_given(arg[1]) ? (size_t)size : len;
        TRY(jinja_list_create(rt, room, JINJA_SEQUENCE_LIST, &batch));
        for (size_t i = 0; i < room; i++)
            batch.list->items[i] = i < len ? source.list->items[from + i] : arg[1];
        TRY(jinja_list_append(rt, out->list, &capacity, batch));
    }
    return STATUS_OK;
}

JINJA_FILTER(filter_slice)
{
    (void)args;
    int64_t num_slices;
    struct jinja_value source;
    TRY(jinja_need_int(rt, arg[0], "slice: slices", &num_slices));
    if (num_slices < 1 || num_slices > JINJA_MAX_RANGE)
        return jinja_fail(rt, STATUS_INVALID, "slice: slices must be from 1 to %d",
                          JINJA_MAX_RANGE);
    TRY(jinja_iterate(rt, self, &source));
    size_t count = (size_t)num_slices, from = 0;
    size_t per_slice = source.list->len / count, num_longer = source.list->len % count;
    TRY(jinja_list_create(rt, count, JINJA_SEQUENCE_GENERATOR, out));
    for (size_t s = 0; s < count; s++) {
        bool longer = s < num_longer, filled = is_given(arg[1]) && !longer;
        size_t len = per_slice + longer;
        struct jinja_value *slice = &out->list->items[s];
        TRY(jinja_list_create(rt, len + filled, JINJA_SEQUENCE_LIST, slice));
        for (size_t i = 0; i < len; i++)
            slice->list->items[i] = source.list->items[from + i];
        if (filled)
            slice->list->items[len] = arg[1];
        from += len;
    }
    return STATUS_OK;
}

// --- map, select, reject ---

/** The arguments after the first `skip`. */
static struct jinja_args rest_of(const struct jinja_args *args, size_t skip)
{
    struct jinja_args rest = *args;
    skip = skip < rest.num ? skip : rest.num;
    rest.items += skip;
    rest.num -= skip;
    return rest;
}

static enum status find_by_name(struct jinja_runtime *rt, struct jinja_value name, bool is_test,
                                const struct jinja_function **out)
{
    struct str text;
    TRY(jinja_need_string(rt, name, is_test ? "the name of a test" : "the name of a filter",
                          &text));
    *out = is_test ? jinja_find_test(text) : jinja_find_filter(text);
    if (!*out)
        return jinja_fail(rt, STATUS_INVALID, "No %s named '" STR_FORMAT "'.",
                          is_test ? "test" : "filter", STR_ARG(str_slice(text, 0, 100)));
    return STATUS_OK;
}

static enum status read_map_attribute(struct jinja_runtime *rt, const struct jinja_args *args,
                                      struct getter *getter)
{
    for (size_t i = 0; i < args->num_named; i++) {
        if (str_eq_c(args->names[i], "attribute"))
            getter->attribute = args->named[i];
        else if (str_eq_c(args->names[i], "default"))
            getter->otherwise = args->named[i];
        else
            return jinja_fail(rt, STATUS_INVALID, "Unexpected keyword argument '" STR_FORMAT "'",
                              STR_ARG(str_slice(args->names[i], 0, 100)));
    }
    if (!is_given(getter->attribute))
        return jinja_fail(rt, STATUS_INVALID, "map requires a filter argument");
    return STATUS_OK;
}

JINJA_FILTER(filter_map)
{
    (void)arg;
    struct jinja_value source;
    struct getter getter = {0};
    const struct jinja_function *function = NULL;
    if (args->num == 0)
        TRY(read_map_attribute(rt, args, &getter));
    else
        TRY(find_by_name(rt, args->items[0], false, &function));
    struct jinja_args rest = rest_of(args, 1);
    TRY(jinja_iterate(rt, self, &source));
    TRY(jinja_list_create(rt, source.list->len, JINJA_SEQUENCE_GENERATOR, out));
    TRY(jinja_enter(rt)); // map of map of map ...
    for (size_t i = 0; i < source.list->len; i++) {
        struct jinja_value *item = &out->list->items[i];
        TRY(jinja_step(rt, 0));
        if (function)
            TRY(jinja_call_function(rt, function, source.list->items[i], &rest, item));
        else
            TRY(get(rt, &getter, source.list->items[i], item));
    }
    jinja_leave(rt);
    return STATUS_OK;
}

static enum status select_items(struct jinja_runtime *rt, struct jinja_value self,
                                const struct jinja_args *args, bool by_attribute, bool wanted,
                                struct jinja_value *out)
{
    struct jinja_value source;
    struct getter getter = {0};
    const struct jinja_function *test = NULL;
    size_t num_used = 0, capacity = 0;
    if (by_attribute) {
        if (args->num == 0)
            return jinja_fail(rt, STATUS_INVALID, "Missing parameter for attribute name");
        getter.attribute = args->items[num_used++];
    }
    if (args->num > num_used)
        TRY(find_by_name(rt, args->items[num_used++], true, &test));
    struct jinja_args rest = rest_of(args, num_used);
    TRY(jinja_iterate(rt, self, &source));
    TRY(jinja_list_create(rt, 0, JINJA_SEQUENCE_GENERATOR, out));
    for (size_t i = 0; i < source.list->len; i++) {
        struct jinja_value value, verdict;
        TRY(jinja_step(rt, 0));
        TRY(get(rt, &getter, source.list->items[i], &value));
        verdict = value;
        if (test)
            TRY(jinja_call_function(rt, test, value, &rest, &verdict));
        if (jinja_is_true(verdict) == wanted)
            TRY(jinja_list_append(rt, out->list, &capacity, source.list->items[i]));
    }
    return STATUS_OK;
}

JINJA_FILTER(filter_select)
{
    (void)arg;
    return select_items(rt, self, args, false, true, out);
}

JINJA_FILTER(filter_reject)
{
    (void)arg;
    return select_items(rt, self, args, false, false, out);
}

JINJA_FILTER(filter_selectattr)
{
    (void)arg;
    return select_items(rt, self, args, true, true, out);
}

JINJA_FILTER(filter_rejectattr)
{
    (void)arg;
    return select_items(rt, self, args, true, false, out);
}

const struct jinja_function jinja_sequence_filters[] = {
    {"batch", "linecount fill_with", 1, filter_batch},
    {"count", "", 0, filter_length},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort},
    {"first", "", 0, filter_first},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby},
    {"items", "", 0, filter_items},
    {"join", "d attribute", 0, filter_join},
    {"last", "", 0, filter_last},
    {"length", "", 0, filter_length},
    {"list", "", 0, filter_list},
    {"map", NULL, 0, filter_map},
    {"max", "case_sensitive attribute", 0, filter_max},
    {"min", "case_sensitive attribute", 0, filter_min},
    {"reject", NULL, 0, filter_reject},
    {"rejectattr", NULL, 0, filter_rejectattr},
    {"reverse", "", 0, filter_reverse},
    {"select", NULL, 0, filter_select},
    {"selectattr", NULL, 0, filter_selectattr},
    {"slice", "slices fill_with", 1, filter_slice},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort},
    {"sum", "attribute start", 0, filter_sum},
    {"unique", "case_sensitive attribute", 0, filter_unique},
    {0},
};
