// Values of templates: making, asking, comparing; and the accounting of a rendering.
#include "tokenizer/jinja_value.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

enum { SMALL_DICT = 8 };

// --- the state of a rendering ---

// In parentheses: for the analyzer the name is a macro.
enum status(jinja_fail)(struct jinja_runtime *rt, enum status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char message[sizeof(rt->err->message)];
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    size_t len = utf8_complete_prefix(str_from(message)); // the cut may be inside a character
    return error_set(rt->err, status, "line %d: %.*s", rt->line, (int)len, message);
}

enum status jinja_step(struct jinja_runtime *rt, size_t num_bytes)
{
    rt->num_steps += 1 + num_bytes / JINJA_STEP_BYTES;
    if (rt->num_steps > JINJA_MAX_STEPS)
        return jinja_fail(rt, STATUS_TIMEOUT, "the template took more than %d steps",
                          JINJA_MAX_STEPS);
    if (rt->num_allocated_bytes > JINJA_MAX_MEMORY_BYTES)
        return jinja_fail(rt, STATUS_TOO_LARGE, "the template used more than %d MiB of memory",
                          JINJA_MAX_MEMORY_BYTES >> 20);
    return STATUS_OK;
}

enum status jinja_enter(struct jinja_runtime *rt)
{
    if (++rt->depth > JINJA_MAX_DEPTH)
        return jinja_fail(rt, STATUS_TOO_LARGE,
                          "nested more than %d levels deep (a recursion without end?)",
                          JINJA_MAX_DEPTH);
    return STATUS_OK;
}

void jinja_leave(struct jinja_runtime *rt)
{
    rt->depth--;
}

void *jinja_alloc(struct jinja_runtime *rt, size_t size_bytes)
{
    rt->num_allocated_bytes += size_bytes + 16;
    return arena_alloc(&rt->arena, size_bytes);
}

size_t jinja_mark(const struct jinja_runtime *rt)
{
    return rt->out.len;
}

enum status jinja_put(struct jinja_runtime *rt, struct str text)
{
    if (text.len > JINJA_MAX_OUTPUT_BYTES - rt->out.len)
        return jinja_fail(rt, STATUS_TOO_LARGE, "the text grew over %d MiB",
                          JINJA_MAX_OUTPUT_BYTES >> 20);
    rt->num_steps += text.len / JINJA_STEP_BYTES;
    if (text.len > 0)
        buf_append(&rt->out, text);
    return STATUS_OK;
}

enum status jinja_put_c(struct jinja_runtime *rt, const char *text)
{
    return jinja_put(rt, str_from(text));
}

enum status jinja_put_char(struct jinja_runtime *rt, uint32_t code_point)
{
    char bytes[4];
    size_t len = utf8_encode(code_point, bytes);
    return jinja_put(rt, (struct str){bytes, len});
}

enum status jinja_put_repeat(struct jinja_runtime *rt, struct str text, size_t count)
{
    size_t total;
    if (text.len == 0)
        return STATUS_OK;
    if (!size_mul(&total, text.len, count) || total > JINJA_MAX_OUTPUT_BYTES)
        return jinja_fail(rt, STATUS_TOO_LARGE, "the text grew over %d MiB",
                          JINJA_MAX_OUTPUT_BYTES >> 20);
    if (total > JINJA_MAX_OUTPUT_BYTES - rt->out.len)
        return jinja_put(rt, (struct str){text.ptr, total}); // refuses by the length alone
    char *at = buf_reserve(&rt->out, total);
    if (text.len == 1)
        memset(at, text.ptr[0], total);
    for (size_t i = 0; i < count && text.len > 1; i++)
        memcpy(at + i * text.len, text.ptr, text.len);
    rt->out.len += total;
    return jinja_step(rt, total);
}

struct jinja_value jinja_take(struct jinja_runtime *rt, size_t mark)
{
    struct str text = {rt->out.ptr ? rt->out.ptr + mark : NULL, rt->out.len - mark};
    char *copy = jinja_alloc(rt, text.len + 1);
    if (text.len > 0)
        memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    rt->out.len = mark;
    return jinja_string((struct str){copy, text.len});
}

// --- making values ---

struct jinja_value jinja_undefined(struct jinja_runtime *rt, struct jinja_value object,
                                   struct jinja_value name)
{
    struct jinja_undefined *undefined = jinja_alloc(rt, sizeof(*undefined));
    *undefined = (struct jinja_undefined){.object = object, .name = name};
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .undefined = undefined};
}

struct jinja_value jinja_undefined_hint(struct jinja_runtime *rt, const char *format, ...)
{
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    struct jinja_undefined *undefined = jinja_alloc(rt, sizeof(*undefined));
    *undefined = (struct jinja_undefined){.hint = arena_str(&rt->arena, str_from(message))};
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .undefined = undefined};
}

static enum status alloc_values(struct jinja_runtime *rt, size_t len, struct jinja_value **out)
{
    *out = NULL;
    if (len > JINJA_MAX_MEMORY_BYTES / sizeof(struct jinja_value))
        return jinja_fail(rt, STATUS_TOO_LARGE, "a list of %zu elements is too long", len);
    rt->num_allocated_bytes += len * sizeof(struct jinja_value);
    TRY(jinja_step(rt, len));
    *out = arena_array(&rt->arena, struct jinja_value, len);
    return STATUS_OK;
}

enum status jinja_list_create(struct jinja_runtime *rt, size_t len, enum jinja_sequence sequence,
                              struct jinja_value *out)
{
    struct jinja_list *list = jinja_alloc(rt, sizeof(*list));
    *list = (struct jinja_list){.len = len};
    TRY(alloc_values(rt, len, &list->items));
    *out = (struct jinja_value){.kind = JINJA_LIST, .sequence = (uint8_t)sequence, .list = list};
    return STATUS_OK;
}

enum status jinja_list_append(struct jinja_runtime *rt, struct jinja_list *list, size_t *capacity,
                              struct jinja_value item)
{
    if (list->len == *capacity) {
        size_t grown = *capacity ? *capacity * 2 : 8;
        struct jinja_value *items;
        TRY(alloc_values(rt, grown, &items));
        if (list->len > 0)
            memcpy(items, list->items, list->len * sizeof(*items));
        list->items = items;
        *capacity = grown;
    }
    list->items[list->len++] = item;
    return jinja_step(rt, 0);
}

struct jinja_value jinja_tuple2(struct jinja_runtime *rt, struct jinja_value first,
                                struct jinja_value second)
{
    struct jinja_list *list = jinja_alloc(rt, sizeof(*list));
    struct jinja_value *items = jinja_alloc(rt, 2 * sizeof(*items));
    items[0] = first;
    items[1] = second;
    *list = (struct jinja_list){.items = items, .len = 2};
    return (struct jinja_value){.kind = JINJA_LIST, .sequence = JINJA_SEQUENCE_TUPLE, .list = list};
}

struct jinja_value jinja_dict_create(struct jinja_runtime *rt)
{
    struct jinja_dict *dict = jinja_alloc(rt, sizeof(*dict));
    *dict = (struct jinja_dict){0};
    return (struct jinja_value){.kind = JINJA_DICT, .dict = dict};
}

static uint64_t hash_int(jinja_int_t value)
{
    uint64_t hash = (uint64_t)value ^ (uint64_t)(value >> 64);
    hash *= 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

/** Equal values have equal hashes; 1, 1.0 and True are equal. */
static enum status hash_value(struct jinja_runtime *rt, struct jinja_value value, uint64_t *out)
{
    *out = 0;
    switch (value.kind) {
    case JINJA_STRING:
        *out = str_hash(value.str);
        return jinja_step(rt, value.str.len);
    case JINJA_BOOL:
    case JINJA_INT:
        *out = hash_int(jinja_as_int(value));
        return STATUS_OK;
    case JINJA_FLOAT:
        if (fabs(value.real) < 1e37 && floor(value.real) == value.real)
            *out = hash_int((jinja_int_t)value.real);
        else
            *out = str_hash((struct str){(const char *)&value.real, sizeof(value.real)});
        return STATUS_OK;
    case JINJA_LIST:
        if (value.sequence == JINJA_SEQUENCE_LIST)
            break;
        if (jinja_is_tuple(value)) {
            uint64_t hash = 7;
            TRY(jinja_enter(rt));
            for (size_t i = 0; i < value.list->len; i++) {
                uint64_t item;
                TRY(jinja_step(rt, 0));
                TRY(hash_value(rt, value.list->items[i], &item));
                hash = (hash ^ item) * 0x100000001B3u;
            }
            jinja_leave(rt);
            *out = hash;
            return STATUS_OK;
        }
        *out = (uint64_t)(uintptr_t)value.list;
        return STATUS_OK;
    case JINJA_DICT:
        break;
    case JINJA_NONE:
        *out = 3;
        return STATUS_OK;
    case JINJA_UNDEFINED:
        *out = 5; // all undefined values are equal
        return STATUS_OK;
    default:
        *out = (uint64_t)(uintptr_t)value.list; // identity
        return STATUS_OK;
    }
    return jinja_fail(rt, STATUS_INVALID, "unhashable type: '%s'", jinja_type_name(value));
}

static enum status find_entry(struct jinja_runtime *rt, const struct jinja_dict *dict,
                              struct jinja_value key, uint64_t hash, struct jinja_entry **out)
{
    *out = NULL;
    size_t num_probes = dict->index ? dict->index_size : dict->len;
    for (size_t i = 0; i < num_probes; i++) {
        struct jinja_entry *entry;
        if (dict->index) {
            uint32_t at = dict->index[(hash + i) & (dict->index_size - 1)];
            if (at == 0)
                return STATUS_OK;
            entry = &dict->entries[at - 1];
        } else {
            entry = &dict->entries[i];
        }
        if (entry->hash != hash)
            continue;
        bool equal;
        TRY(jinja_equal(rt, entry->key, key, &equal));
        if (equal) {
            *out = entry;
            return STATUS_OK;
        }
    }
    return STATUS_OK;
}

static void index_entry(struct jinja_dict *dict, size_t entry)
{
    size_t at = dict->entries[entry].hash & (dict->index_size - 1);
    while (dict->index[at] != 0)
        at = (at + 1) & (dict->index_size - 1);
    dict->index[at] = (uint32_t)entry + 1;
}

static enum status grow_dict(struct jinja_runtime *rt, struct jinja_dict *dict)
{
    size_t capacity = dict->capacity ? dict->capacity * 2 : SMALL_DICT;
    if (capacity > JINJA_MAX_MEMORY_BYTES / sizeof(struct jinja_entry))
        return jinja_fail(rt, STATUS_TOO_LARGE, "a dict of %zu entries is too large", dict->len);
    struct jinja_entry *entries = jinja_alloc(rt, capacity * sizeof(*entries));
    if (dict->len > 0)
        memcpy(entries, dict->entries, dict->len * sizeof(*entries));
    dict->entries = entries;
    dict->capacity = capacity;
    if (capacity > SMALL_DICT) {
        dict->index_size = capacity * 2;
        dict->index = jinja_alloc(rt, dict->index_size * sizeof(*dict->index));
        memset(dict->index, 0, dict->index_size * sizeof(*dict->index));
        for (size_t i = 0; i < dict->len; i++)
            index_entry(dict, i);
    }
    return jinja_step(rt, capacity);
}

enum status jinja_dict_set(struct jinja_runtime *rt, struct jinja_dict *dict,
                           struct jinja_value key, struct jinja_value value)
{
    uint64_t hash;
    struct jinja_entry *entry;
    TRY(hash_value(rt, key, &hash));
    TRY(find_entry(rt, dict, key, hash, &entry));
    if (entry) {
        entry->value = value;
        return STATUS_OK;
    }
    if (dict->len == dict->capacity)
        TRY(grow_dict(rt, dict));
    dict->entries[dict->len++] = (struct jinja_entry){key, value, hash};
    if (dict->index)
        index_entry(dict, dict->len - 1);
    return jinja_step(rt, 0);
}

enum status jinja_dict_find(struct jinja_runtime *rt, const struct jinja_dict *dict,
                            struct jinja_value key, const struct jinja_value **out)
{
    uint64_t hash;
    struct jinja_entry *entry;
    TRY(hash_value(rt, key, &hash));
    TRY(find_entry(rt, dict, key, hash, &entry));
    *out = entry ? &entry->value : NULL;
    return STATUS_OK;
}

const struct jinja_value *jinja_dict_get(const struct jinja_dict *dict, struct str key)
{
    uint64_t hash = str_hash(key);
    size_t num_probes = dict->index ? dict->index_size : dict->len;
    for (size_t i = 0; i < num_probes; i++) {
        const struct jinja_entry *entry = &dict->entries[i];
        if (dict->index) {
            uint32_t at = dict->index[(hash + i) & (dict->index_size - 1)];
            if (at == 0)
                return NULL;
            entry = &dict->entries[at - 1];
        }
        if (entry->hash == hash && entry->key.kind == JINJA_STRING && str_eq(entry->key.str, key))
            return &entry->value;
    }
    return NULL;
}

enum status jinja_from_json(struct jinja_runtime *rt, const json_t *json, struct jinja_value *out)
{
    TRY(jinja_enter(rt));
    TRY(jinja_step(rt, 0));
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_OBJECT: {
        *out = jinja_dict_create(rt);
        json_t *object = (json_t *)(uintptr_t)json; // jansson iterates only what is not const
        for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
            struct jinja_value value;
            TRY(jinja_from_json(rt, json_object_iter_value(it), &value));
            struct str key = {json_object_iter_key(it), json_object_iter_key_len(it)};
            TRY(jinja_dict_set(rt, out->dict, jinja_string(key), value));
        }
        break;
    }
    case JSON_ARRAY:
        TRY(jinja_list_create(rt, json_array_size(json), JINJA_SEQUENCE_LIST, out));
        for (size_t i = 0; i < out->list->len; i++)
            TRY(jinja_from_json(rt, json_array_get(json, i), &out->list->items[i]));
        break;
    case JSON_STRING:
        *out = jinja_string((struct str){json_string_value(json), json_string_length(json)});
        break;
    case JSON_INTEGER:
        *out = jinja_int(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = jinja_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jinja_bool(json_is_true(json));
        break;
    case JSON_NULL:
        *out = jinja_none();
        break;
    }
    jinja_leave(rt);
    return STATUS_OK;
}

// --- asking values ---

const char *jinja_type_name(struct jinja_value value)
{
    static const char *const sequences[] = {
        [JINJA_SEQUENCE_LIST] = "list",         [JINJA_SEQUENCE_TUPLE] = "tuple",
        [JINJA_SEQUENCE_GROUP] = "_GroupTuple", [JINJA_SEQUENCE_RANGE] = "range",
        [JINJA_SEQUENCE_KEYS] = "dict_keys",    [JINJA_SEQUENCE_VALUES] = "dict_values",
        [JINJA_SEQUENCE_ITEMS] = "dict_items",  [JINJA_SEQUENCE_GENERATOR] = "generator",
    };
    static const char *const kinds[] = {
        [JINJA_ABSENT] = "Undefined",
        [JINJA_UNDEFINED] = "Undefined",
        [JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",
        [JINJA_FLOAT] = "float",
        [JINJA_STRING] = "str",
        [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "Namespace",
        [JINJA_FUNCTION] = "function",
        [JINJA_METHOD] = "builtin_function_or_method",
        [JINJA_MACRO] = "Macro",
        [JINJA_LOOP] = "LoopContext",
        [JINJA_CYCLER] = "Cycler",
        [JINJA_JOINER] = "Joiner",
    };
    if (value.kind == JINJA_LIST)
        return sequences[value.sequence];
    if (value.kind == JINJA_STRING && value.is_markup)
        return "Markup";
    return kinds[value.kind];
}

bool jinja_is_true(struct jinja_value value)
{
    switch (value.kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return value.boolean;
    case JINJA_INT:
        return value.integer != 0;
    case JINJA_FLOAT:
        return value.real != 0;
    case JINJA_STRING:
        return value.str.len > 0;
    case JINJA_LIST:
        return value.sequence == JINJA_SEQUENCE_GENERATOR || value.list->len > 0;
    case JINJA_DICT:
        return value.dict->len > 0;
    default:
        return true;
    }
}

bool jinja_is_number(struct jinja_value value)
{
    return value.kind == JINJA_INT || value.kind == JINJA_FLOAT || value.kind == JINJA_BOOL;
}

bool jinja_is_tuple(struct jinja_value value)
{
    return value.kind == JINJA_LIST &&
           (value.sequence == JINJA_SEQUENCE_TUPLE || value.sequence == JINJA_SEQUENCE_GROUP);
}

struct str jinja_undefined_message(struct jinja_runtime *rt, struct jinja_value value)
{
    const struct jinja_undefined *undefined = value.undefined;
    if (undefined->hint.len > 0)
        return undefined->hint;
    struct jinja_value object = undefined->object;
    struct jinja_value name = undefined->name;
    struct str shown = {"?", 1};
    if (name.kind == JINJA_STRING) {
        shown = str_slice(name.str, 0, 200);
    } else if (name.kind == JINJA_INT) {
        shown = str_from(arena_printf(&rt->arena, "%lld", (long long)name.integer));
    }
    if (object.kind == JINJA_ABSENT)
        return str_from(arena_printf(&rt->arena, "'" STR_FORMAT "' is undefined", STR_ARG(shown)));
    const char *type = object.kind == JINJA_NONE ? "None" : jinja_type_name(object);
    const char *suffix = object.kind == JINJA_NONE ? "" : " object";
    if (name.kind == JINJA_STRING)
        return str_from(arena_printf(&rt->arena, "'%s%s' has no attribute '" STR_FORMAT "'", type,
                                     suffix, STR_ARG(shown)));
    return str_from(
        arena_printf(&rt->arena, "%s%s has no element " STR_FORMAT, type, suffix, STR_ARG(shown)));
}

enum status jinja_need_defined(struct jinja_runtime *rt, struct jinja_value value)
{
    if (value.kind != JINJA_UNDEFINED)
        return STATUS_OK;
    struct str message = jinja_undefined_message(rt, value);
    return jinja_fail(rt, STATUS_INVALID, STR_FORMAT, STR_ARG(message));
}

enum status jinja_need_int(struct jinja_runtime *rt, struct jinja_value value, const char *what,
                           int64_t *out)
{
    TRY(jinja_need_defined(rt, value));
    if (value.kind != JINJA_INT && value.kind != JINJA_BOOL)
        return jinja_fail(rt, STATUS_INVALID, "%s must be an integer, not '%s'", what,
                          jinja_type_name(value));
    jinja_int_t wide = jinja_as_int(value);
    if (wide > INT64_MAX || wide < INT64_MIN)
        return jinja_fail(rt, STATUS_TOO_LARGE, "%s is out of range", what);
    *out = (int64_t)wide;
    return STATUS_OK;
}

enum status jinja_need_string(struct jinja_runtime *rt, struct jinja_value value, const char *what,
                              struct str *out)
{
    TRY(jinja_need_defined(rt, value));
    if (value.kind != JINJA_STRING)
        return jinja_fail(rt, STATUS_INVALID, "%s must be a string, not '%s'", what,
                          jinja_type_name(value));
    *out = value.str;
    return STATUS_OK;
}

double jinja_as_double(struct jinja_value value)
{
    return value.kind == JINJA_FLOAT ? value.real : (double)jinja_as_int(value);
}

static bool is_set_like(struct jinja_value value)
{
    return value.sequence == JINJA_SEQUENCE_KEYS || value.sequence == JINJA_SEQUENCE_ITEMS;
}

static enum status equal_lists(struct jinja_runtime *rt, struct jinja_value a, struct jinja_value b,
                               bool *out)
{
    bool same_type = a.sequence == b.sequence || (jinja_is_tuple(a) && jinja_is_tuple(b));
    *out = false;
    if (a.list == b.list) {
        *out = true;
        return STATUS_OK;
    }
    if (!same_type || a.list->len != b.list->len || a.sequence == JINJA_SEQUENCE_GENERATOR ||
        a.sequence == JINJA_SEQUENCE_VALUES)
        return STATUS_OK;
    for (size_t i = 0; i < a.list->len; i++) {
        bool equal = false;
        TRY(jinja_step(rt, 0));
        if (is_set_like(a)) { // in any order
            TRY(jinja_contains(rt, b, a.list->items[i], &equal));
        } else {
            TRY(jinja_equal(rt, a.list->items[i], b.list->items[i], &equal));
        }
        if (!equal)
            return STATUS_OK;
    }
    *out = true;
    return STATUS_OK;
}

static enum status equal_dicts(struct jinja_runtime *rt, const struct jinja_dict *a,
                               const struct jinja_dict *b, bool *out)
{
    *out = false;
    if (a->len != b->len)
        return STATUS_OK;
    for (size_t i = 0; i < a->len; i++) {
        const struct jinja_value *other;
        bool equal;
        TRY(jinja_step(rt, 0));
        TRY(jinja_dict_find(rt, b, a->entries[i].key, &other));
        if (!other)
            return STATUS_OK;
        TRY(jinja_equal(rt, a->entries[i].value, *other, &equal));
        if (!equal)
            return STATUS_OK;
    }
    *out = true;
    return STATUS_OK;
}

enum status jinja_equal(struct jinja_runtime *rt, struct jinja_value a, struct jinja_value b,
                        bool *out)
{
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT)
            *out = jinja_as_double(a) == jinja_as_double(b);
        else
            *out = jinja_as_int(a) == jinja_as_int(b);
        return STATUS_OK;
    }
    if (a.kind != b.kind) {
        *out = false;
        return STATUS_OK;
    }
    TRY(jinja_enter(rt));
    switch (a.kind) {
    case JINJA_NONE:
    case JINJA_UNDEFINED:
        *out = true;
        break;
    case JINJA_STRING:
        TRY(jinja_step(rt, a.str.len));
        *out = str_eq(a.str, b.str);
        break;
    case JINJA_LIST:
        TRY(equal_lists(rt, a, b, out));
        break;
    case JINJA_DICT:
        TRY(equal_dicts(rt, a.dict, b.dict, out));
        break;
    case JINJA_METHOD: {
        bool same_self = false;
        if (a.method->function == b.method->function)
            TRY(jinja_equal(rt, a.method->self, b.method->self, &same_self));
        *out = same_self;
        break;
    }
    default:
        *out = a.list == b.list; // identity: any of the pointers
        break;
    }
    jinja_leave(rt);
    return STATUS_OK;
}

static int order_strings(struct str a, struct str b)
{
    size_t len = a.len < b.len ? a.len : b.len;
    int order = len > 0 ? memcmp(a.ptr, b.ptr, len) : 0; // byte order is code point order
    if (order == 0)
        order = a.len < b.len ? -1 : a.len > b.len;
    return order < 0 ? -1 : order > 0;
}

enum status jinja_compare(struct jinja_runtime *rt, struct jinja_value a, struct jinja_value b,
                          const char *op, int *out)
{
    TRY(jinja_need_defined(rt, a));
    TRY(jinja_need_defined(rt, b));
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT) {
            double x = jinja_as_double(a), y = jinja_as_double(b);
            *out = x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
        } else {
            jinja_int_t x = jinja_as_int(a), y = jinja_as_int(b);
            *out = x < y ? -1 : x > y;
        }
        return STATUS_OK;
    }
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        *out = order_strings(a.str, b.str);
        return jinja_step(rt, a.str.len);
    }
    bool both_lists = a.kind == JINJA_LIST && b.kind == JINJA_LIST &&
                      ((jinja_is_tuple(a) && jinja_is_tuple(b)) ||
                       (a.sequence == JINJA_SEQUENCE_LIST && b.sequence == JINJA_SEQUENCE_LIST));
    if (!both_lists)
        return jinja_fail(rt, STATUS_INVALID,
                          "'%s' not supported between instances of '%s' and '%s'", op,
                          jinja_type_name(a), jinja_type_name(b));
    TRY(jinja_enter(rt));
    size_t len = a.list->len < b.list->len ? a.list->len : b.list->len;
    *out = a.list->len < b.list->len ? -1 : a.list->len > b.list->len;
    for (size_t i = 0; i < len; i++) {
        bool equal;
        TRY(jinja_step(rt, 0));
        TRY(jinja_equal(rt, a.list->items[i], b.list->items[i], &equal));
        if (!equal) {
            TRY(jinja_compare(rt, a.list->items[i], b.list->items[i], op, out));
            break;
        }
    }
    jinja_leave(rt);
    return STATUS_OK;
}

static enum status list_of_chars(struct jinja_runtime *rt, struct str text, struct jinja_value *out)
{
    TRY(jinja_list_create(rt, jinja_char_count(text), JINJA_SEQUENCE_LIST, out));
    size_t at = 0;
    for (size_t i = 0; i < out->list->len; i++) {
        size_t len;
        utf8_decode((struct str){text.ptr + at, text.len - at}, &len);
        out->list->items[i] = jinja_string((struct str){text.ptr + at, len});
        at += len;
    }
    return STATUS_OK;
}

enum status jinja_iterate(struct jinja_runtime *rt, struct jinja_value value,
                          struct jinja_value *out)
{
    switch (value.kind) {
    case JINJA_UNDEFINED:
        return jinja_list_create(rt, 0, JINJA_SEQUENCE_LIST, out);
    case JINJA_STRING:
        return list_of_chars(rt, value.str, out);
    case JINJA_LIST:
        *out = value;
        if (value.sequence == JINJA_SEQUENCE_GENERATOR) {
            struct jinja_list *rest = jinja_alloc(rt, sizeof(*rest));
            size_t from = value.list->num_consumed;
            *rest = (struct jinja_list){.items = value.list->items + from,
                                        .len = value.list->len - from};
            value.list->num_consumed = value.list->len;
            out->list = rest;
        }
        out->sequence = JINJA_SEQUENCE_LIST;
        return STATUS_OK;
    case JINJA_DICT:
        TRY(jinja_list_create(rt, value.dict->len, JINJA_SEQUENCE_LIST, out));
        for (size_t i = 0; i < value.dict->len; i++)
            out->list->items[i] = value.dict->entries[i].key;
        return STATUS_OK;
    default:
        return jinja_fail(rt, STATUS_INVALID, "'%s' object is not iterable",
                          jinja_type_name(value));
    }
}

enum status jinja_length(struct jinja_runtime *rt, struct jinja_value value, int64_t *out)
{
    switch (value.kind) {
    case JINJA_UNDEFINED:
        *out = 0;
        return STATUS_OK;
    case JINJA_STRING:
        *out = (int64_t)jinja_char_count(value.str);
        return jinja_step(rt, value.str.len);
    case JINJA_LIST:
        if (value.sequence == JINJA_SEQUENCE_GENERATOR)
            break;
        *out = (int64_t)value.list->len;
        return STATUS_OK;
    case JINJA_DICT:
        *out = (int64_t)value.dict->len;
        return STATUS_OK;
    case JINJA_LOOP: {
        struct jinja_value length;
        TRY(jinja_loop_attribute(rt, value, STR("length"), &length));
        return jinja_need_int(rt, length, "length", out);
    }
    default:
        break;
    }
    return jinja_fail(rt, STATUS_INVALID, "object of type '%s' has no len()",
                      jinja_type_name(value));
}

enum status jinja_contains(struct jinja_runtime *rt, struct jinja_value container,
                           struct jinja_value item, bool *out)
{
    *out = false;
    if (container.kind == JINJA_STRING) {
        TRY(jinja_need_defined(rt, item));
        if (item.kind != JINJA_STRING)
            return jinja_fail(rt, STATUS_INVALID,
                              "'in <string>' requires string as left operand, not %s",
                              jinja_type_name(item));
        *out = item.str.len == 0 ||
               memmem(container.str.ptr, container.str.len, item.str.ptr, item.str.len) != NULL;
        return jinja_step(rt, container.str.len);
    }
    if (container.kind == JINJA_DICT) {
        const struct jinja_value *found;
        TRY(jinja_dict_find(rt, container.dict, item, &found));
        *out = found != NULL;
        return STATUS_OK;
    }
    if (container.kind != JINJA_LIST && container.kind != JINJA_UNDEFINED)
        return jinja_fail(rt, STATUS_INVALID, "argument of type '%s' is not iterable",
                          jinja_type_name(container));
    struct jinja_value items;
    TRY(jinja_iterate(rt, container, &items));
    for (size_t i = 0; i < items.list->len && !*out; i++) {
        TRY(jinja_step(rt, 0));
        TRY(jinja_equal(rt, items.list->items[i], item, out));
    }
    return STATUS_OK;
}

size_t jinja_char_count(struct str text)
{
    size_t count = 0;
    for (size_t i = 0; i < text.len; i++)
        count += ((unsigned char)text.ptr[i] & 0xC0) != 0x80; // all but continuation bytes
    return count;
}

size_t jinja_char_offset(struct str text, size_t index)
{
    size_t at = 0;
    for (; at < text.len; at++) {
        if (((unsigned char)text.ptr[at] & 0xC0) == 0x80)
            continue;
        if (index-- == 0)
            break;
    }
    return at;
}
