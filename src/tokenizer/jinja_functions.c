// Calling what is built in, and the global functions.
#include "tokenizer/jinja_value.h"

#include <string.h>

#include "base/clock.h"

#define FUNCTION(function)                                                                    \
    static enum status function(struct jinja_runtime *rt, struct jinja_value self,            \
                                const struct jinja_value *arg, const struct jinja_args *args, \
                                struct jinja_value *out)

const struct jinja_function *jinja_table_find(const struct jinja_function *table, struct str name)
{
    for (; table->name; table++)
        if (str_eq_c(name, table->name))
            return table;
    return NULL;
}

static enum status bind_named(struct jinja_runtime *rt, const struct jinja_function *function,
                              struct str name, struct jinja_value value, struct jinja_value *arg)
{
    struct str rest = str_from(function->params);
    for (int i = 0; rest.len > 0; i++) {
        if (!str_eq(str_split(&rest, ' '), name))
            continue;
        if (arg[i].kind != JINJA_ABSENT)
            return jinja_fail(rt, STATUS_INVALID,
                              "%s() got multiple values for argument '" STR_FORMAT "'",
                              function->name, STR_ARG(name));
        arg[i] = value;
        return STATUS_OK;
    }
    return jinja_fail(rt, STATUS_INVALID,
                      "%s() got an unexpected keyword argument '" STR_FORMAT "'", function->name,
                      STR_ARG(str_slice(name, 0, 100)));
}

enum status jinja_call_function(struct jinja_runtime *rt, const struct jinja_function *function,
                                struct jinja_value self, const struct jinja_args *args,
                                struct jinja_value *out)
{
    TRY(jinja_step(rt, 0));
    if (!function->params)
        return function->call(rt, self, NULL, args, out);
    struct jinja_value arg[JINJA_MAX_PARAMS] = {0};
    size_t num_params = 0;
    struct str rest = str_from(function->params);
    for (; rest.len > 0; num_params++)
        str_split(&rest, ' ');
    if (args->num > num_params)
        return jinja_fail(rt, STATUS_INVALID, "%s() takes at most %zu argument(s), %zu given",
                          function->name, num_params, args->num);
    for (size_t i = 0; i < args->num; i++)
        arg[i] = args->items[i];
    for (size_t i = 0; i < args->num_named; i++)
        TRY(bind_named(rt, function, args->names[i], args->named[i], arg));
    rest = str_from(function->params);
    for (int i = 0; i < function->num_required; i++) {
        struct str name = str_split(&rest, ' ');
        if (arg[i].kind == JINJA_ABSENT)
            return jinja_fail(rt, STATUS_INVALID, "%s() is missing the argument '" STR_FORMAT "'",
                              function->name, STR_ARG(name));
    }
    return function->call(rt, self, arg, args, out);
}

// --- the global functions ---

FUNCTION(function_range)
{
    (void)self, (void)args;
    int64_t bounds[3] = {0, 0, 1};
    if (arg[1].kind == JINJA_ABSENT) {
        TRY(jinja_need_int(rt, arg[0], "range(): stop", &bounds[1]));
    } else {
        TRY(jinja_need_int(rt, arg[0], "range(): start", &bounds[0]));
        TRY(jinja_need_int(rt, arg[1], "range(): stop", &bounds[1]));
    }
    if (arg[2].kind != JINJA_ABSENT)
        TRY(jinja_need_int(rt, arg[2], "range(): step", &bounds[2]));
    if (bounds[2] == 0)
        return jinja_fail(rt, STATUS_INVALID, "range() arg 3 must not be zero");
    jinja_int_t start = bounds[0], stop = bounds[1], step = bounds[2];
    jinja_int_t len =
        step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step;
    if (len < 0)
        len = 0;
    if (len > JINJA_MAX_RANGE)
        return jinja_fail(rt, STATUS_TOO_LARGE,
                          "Range too big. The sandbox blocks ranges larger than %d.",
                          JINJA_MAX_RANGE);
    TRY(jinja_list_create(rt, (size_t)len, JINJA_SEQUENCE_RANGE, out));
    for (size_t i = 0; i < (size_t)len; i++)
        out->list->items[i] = jinja_int(start + (jinja_int_t)i * step);
    int64_t *range = jinja_alloc(rt, sizeof(bounds));
    memcpy(range, bounds, sizeof(bounds));
    out->list->range = range;
    return STATUS_OK;
}

/** Entries of a mapping, or of an iterable of pairs. */
static enum status add_entries(struct jinja_runtime *rt, struct jinja_value source,
                               struct jinja_dict *dict)
{
    if (source.kind == JINJA_DICT) {
        for (size_t i = 0; i < source.dict->len; i++)
            TRY(jinja_dict_set(rt, dict, source.dict->entries[i].key,
                               source.dict->entries[i].value));
        return STATUS_OK;
    }
    struct jinja_value items;
    TRY(jinja_iterate(rt, source, &items));
    for (size_t i = 0; i < items.list->len; i++) {
        struct jinja_value pair;
        TRY(jinja_iterate(rt, items.list->items[i], &pair));
        if (pair.list->len != 2)
            return jinja_fail(rt, STATUS_INVALID,
                              "dictionary update sequence element #%zu has length %zu; 2 is "
                              "required",
                              i, pair.list->len);
        TRY(jinja_dict_set(rt, dict, pair.list->items[0], pair.list->items[1]));
    }
    return STATUS_OK;
}

FUNCTION(function_dict)
{
    (void)self, (void)arg;
    *out = jinja_dict_create(rt);
    if (args->num > 1)
        return jinja_fail(rt, STATUS_INVALID, "dict expected at most 1 argument, got %zu",
                          args->num);
    if (args->num == 1)
        TRY(add_entries(rt, args->items[0], out->dict));
    for (size_t i = 0; i < args->num_named; i++)
        TRY(jinja_dict_set(rt, out->dict, jinja_string(args->names[i]), args->named[i]));
    return STATUS_OK;
}

FUNCTION(function_namespace)
{
    TRY(function_dict(rt, self, arg, args, out));
    out->kind = JINJA_NAMESPACE;
    return STATUS_OK;
}

FUNCTION(function_joiner)
{
    (void)self, (void)args;
    struct jinja_joiner *joiner = jinja_alloc(rt, sizeof(*joiner));
    *joiner = (struct jinja_joiner){
        .separator = arg[0].kind == JINJA_ABSENT ? jinja_string(STR(", ")) : arg[0]};
    *out = (struct jinja_value){.kind = JINJA_JOINER, .joiner = joiner};
    return STATUS_OK;
}

FUNCTION(function_cycler)
{
    (void)self, (void)arg;
    if (args->num == 0 || args->num_named > 0)
        return jinja_fail(rt, STATUS_INVALID, "at least one item has to be provided");
    struct jinja_value items;
    TRY(jinja_list_create(rt, args->num, JINJA_SEQUENCE_LIST, &items));
    memcpy(items.list->items, args->items, args->num * sizeof(struct jinja_value));
    struct jinja_cycler *cycler = jinja_alloc(rt, sizeof(*cycler));
    *cycler = (struct jinja_cycler){.items = items.list->items, .len = args->num};
    *out = (struct jinja_value){.kind = JINJA_CYCLER, .cycler = cycler};
    return STATUS_OK;
}

FUNCTION(function_lipsum)
{
    (void)self, (void)arg, (void)args, (void)out;
    return jinja_fail(rt, STATUS_UNSUPPORTED, "the function 'lipsum' is not supported");
}

/** The template's own refusal: its text is the whole message. */
FUNCTION(function_raise_exception)
{
    (void)self, (void)args;
    TRY(jinja_to_str(rt, arg[0], out));
    struct str text = str_slice(out->str, 0, sizeof(rt->err->message) - 1);
    if (text.len < out->str.len) // cut between characters
        while (text.len > 0 && ((unsigned char)out->str.ptr[text.len] & 0xC0) == 0x80)
            text.len--;
    return error_set(rt->err, STATUS_INVALID, STR_FORMAT, STR_ARG(text));
}

// The format is made of one % and one letter that is known to strftime().
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static enum status put_time_part(struct jinja_runtime *rt, const struct tm *now, int microsecond,
                                 char flag, char letter)
{
    char format[4] = {'%', flag ? flag : letter, flag ? letter : '\0', '\0'};
    char text[256];
    if (letter == 'f')
        snprintf(text, sizeof(text), "%06d", microsecond);
    else if (strftime(text, sizeof(text), format, now) == 0)
        text[0] = '\0';
    return jinja_put_c(rt, text);
}
#pragma GCC diagnostic pop

FUNCTION(function_strftime_now)
{
    (void)self, (void)args;
    struct str format;
    struct tm now;
    int microsecond = 0;
    TRY(jinja_need_string(rt, arg[0], "strftime_now(): format", &format));
    if (rt->now) {
        now = *rt->now;
    } else {
        int64_t wall_ns = clock_wall_ns();
        time_t seconds = (time_t)(wall_ns / 1000000000);
        microsecond = (int)(wall_ns / 1000 % 1000000);
        localtime_r(&seconds, &now);
        now.tm_zone = ""; // Python's datetime.now() knows no time zone
    }
    size_t mark = jinja_mark(rt);
    for (size_t i = 0; i < format.len; i++) {
        TRY(jinja_step(rt, 0));
        bool last = i + 1 == format.len;
        if (format.ptr[i] != '%' || last) {
            TRY(jinja_put(rt, str_slice(format, i, i + 1)));
            continue;
        }
        char flag = format.ptr[++i];
        bool is_flag = flag && strchr("-_0^#", flag) && i + 1 < format.len;
        char letter = is_flag ? format.ptr[++i] : flag;
        bool known = letter && strchr("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYf%", letter);
        if (known)
            TRY(put_time_part(rt, &now, microsecond, is_flag ? flag : 0, letter));
        else if (letter != 'z' && letter != 'Z') // those two are empty without a time zone
            TRY(jinja_put(rt, str_slice(format, is_flag ? i - 2 : i - 1, i + 1)));
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

static const struct jinja_function functions[] = {
    {"range", "start stop step", 1, function_range},
    {"dict", NULL, 0, function_dict},
    {"namespace", NULL, 0, function_namespace},
    {"joiner", "sep", 0, function_joiner},
    {"cycler", NULL, 0, function_cycler},
    {"lipsum", NULL, 0, function_lipsum},
    {"raise_exception", "message", 1, function_raise_exception},
    {"strftime_now", "format", 1, function_strftime_now},
    {0},
};

const struct jinja_function *jinja_find_global(struct str name)
{
    return jinja_table_find(functions, name);
}
