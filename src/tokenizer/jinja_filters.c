// Filters of one value: text, numbers, defaults. Those of sequences are in
// jinja_sequence_filters.c.
#include "tokenizer/jinja_filters.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

static bool is_given(struct jinja_value value)
{
    return value.kind != JINJA_ABSENT && value.kind != JINJA_NONE;
}

/** The value as text; a filter of strings takes anything that has some. */
static enum status soft_str(struct jinja_runtime *rt, struct jinja_value value, struct str *out)
{
    struct jinja_value text;
    TRY(jinja_to_str(rt, value, &text));
    *out = text.str;
    return STATUS_OK;
}

static enum status text_of(struct jinja_runtime *rt, struct jinja_value value,
                           struct jinja_value *out)
{
    TRY(jinja_to_str(rt, value, out));
    return STATUS_OK;
}

/** Calls a method of the value's text, with the same parameters. */
static enum status by_method(struct jinja_runtime *rt, struct jinja_value self, const char *name,
                             const struct jinja_value *arg, struct jinja_value *out)
{
    struct jinja_value text;
    TRY(text_of(rt, self, &text));
    const struct jinja_args none = {0};
    return jinja_find_string_method(str_from(name))->call(rt, text, arg, &none, out);
}

// --- text ---

JINJA_FILTER(filter_upper)
{
    (void)args;
    return by_method(rt, self, "upper", arg, out);
}

JINJA_FILTER(filter_lower)
{
    (void)args;
    return by_method(rt, self, "lower", arg, out);
}

JINJA_FILTER(filter_capitalize)
{
    (void)args;
    return by_method(rt, self, "capitalize", arg, out);
}

JINJA_FILTER(filter_trim)
{
    (void)args;
    return by_method(rt, self, "strip", arg, out);
}

JINJA_FILTER(filter_center)
{
    (void)args;
    struct jinja_value with_width[2] = {arg[0].kind == JINJA_ABSENT ? jinja_int(80) : arg[0], {0}};
    return by_method(rt, self, "center", with_width, out);
}

/** Words begin after blanks, dashes and opening brackets, not after apostrophes. */
JINJA_FILTER(filter_title)
{
    (void)arg, (void)args;
    struct str text;
    TRY(soft_str(rt, self, &text));
    size_t mark = jinja_mark(rt), word = 0;
    for (size_t at = 0; at <= text.len;) {
        size_t len = 1;
        uint32_t c = at < text.len ? utf8_decode(str_slice(text, at, text.len), &len) : 0;
        bool is_break = at == text.len || jinja_is_space(c) || c == '-' || c == '(' || c == '{' ||
                        c == '[' || c == '<';
        if (is_break) {
            struct str rest = str_slice(text, word, at);
            size_t first = jinja_char_offset(rest, 1);
            TRY(jinja_put_case(rt, str_slice(rest, 0, first), JINJA_CASE_UPPER));
            TRY(jinja_put_case(rt, str_slice(rest, first, rest.len), JINJA_CASE_LOWER));
            TRY(jinja_put(rt, str_slice(text, at, at + len)));
            word = at + len;
        }
        at += len;
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

JINJA_FILTER(filter_replace)
{
    (void)args;
    struct jinja_value with_text[3] = {{0}, {0}, arg[2]};
    TRY(text_of(rt, arg[0], &with_text[0]));
    TRY(text_of(rt, arg[1], &with_text[1]));
    return by_method(rt, self, "replace", with_text, out);
}

JINJA_FILTER(filter_string)
{
    (void)arg, (void)args;
    return text_of(rt, self, out);
}

JINJA_FILTER(filter_indent)
{
    (void)args;
    struct str text, indent;
    TRY(jinja_need_string(rt, self, "indent: the value", &text));
    if (arg[0].kind == JINJA_STRING) {
        indent = arg[0].str;
    } else {
        int64_t width = 4;
        if (arg[0].kind != JINJA_ABSENT)
            TRY(jinja_need_int(rt, arg[0], "indent: width", &width));
        size_t mark = jinja_mark(rt);
        TRY(jinja_put_repeat(rt, STR(" "), width > 0 ? (size_t)width : 0));
        indent = jinja_take(rt, mark).str;
    }
    bool first_too = jinja_is_true(arg[1]), blank_too = jinja_is_true(arg[2]);
    size_t mark = jinja_mark(rt);
    TRY(jinja_step(rt, text.len * 8));
    if (first_too)
        TRY(jinja_put(rt, indent));
    struct str rest = text;
    bool more = true;
    for (bool first = true; more; first = false) {
        size_t before = rest.len;
        struct str line = jinja_next_line(&rest, false);
        more = rest.len > 0 || line.len < before; // a line end at the end begins an empty line
        if (!first) {
            TRY(jinja_put_c(rt, "\n"));
            if (line.len > 0 || blank_too)
                TRY(jinja_put(rt, indent));
        }
        TRY(jinja_put(rt, line));
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

JINJA_FILTER(filter_truncate)
{
    (void)args;
    struct jinja_value text;
    int64_t length = 255, leeway = 5;
    struct str end = STR("...");
    TRY(text_of(rt, self, &text));
    if (arg[0].kind != JINJA_ABSENT)
        TRY(jinja_need_int(rt, arg[0], "truncate: length", &length));
    if (arg[2].kind != JINJA_ABSENT)
        TRY(jinja_need_string(rt, arg[2], "truncate: end", &end));
    if (is_given(arg[3]))
        TRY(jinja_need_int(rt, arg[3], "truncate: leeway", &leeway));
    int64_t len_end = (int64_t)jinja_char_count(end);
    if (length < len_end || leeway < 0)
        return jinja_fail(rt, STATUS_INVALID, "truncate: expected length >= %lld, leeway >= 0",
                          (long long)len_end);
    *out = text;
    if ((int64_t)jinja_char_count(text.str) <= length || // also keeps the sum below in range
        (int64_t)jinja_char_count(text.str) - length <= leeway)
        return STATUS_OK;
    struct str kept =
        str_slice(text.str, 0, jinja_char_offset(text.str, (size_t)(length - len_end)));
    if (!jinja_is_true(arg[1])) { // whole words
        const char *blank = kept.len > 0 ? memrchr(kept.ptr, ' ', kept.len) : NULL;
        if (blank)
            kept.len = (size_t)(blank - kept.ptr);
    }
    size_t mark = jinja_mark(rt);
    TRY(jinja_put(rt, kept));
    TRY(jinja_put(rt, end));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

JINJA_FILTER(filter_wordcount)
{
    (void)arg, (void)args;
    struct str text;
    TRY(soft_str(rt, self, &text));
    TRY(jinja_step(rt, text.len * 8));
    jinja_int_t count = 0;
    bool in_word = false;
    for (size_t at = 0; at < text.len;) {
        size_t len;
        bool word = jinja_is_word(utf8_decode(str_slice(text, at, text.len), &len));
        count += word && !in_word;
        in_word = word;
        at += len;
    }
    *out = jinja_int(count);
    return STATUS_OK;
}

JINJA_FILTER(filter_format)
{
    (void)arg;
    struct str format;
    struct jinja_value values;
    TRY(soft_str(rt, self, &format));
    if (args->num > 0 && args->num_named > 0)
        return jinja_fail(rt, STATUS_INVALID,
                          "can't handle positional and keyword arguments at the same time");
    if (args->num_named > 0) {
        values = jinja_dict_create(rt);
        for (size_t i = 0; i < args->num_named; i++)
            TRY(jinja_dict_set(rt, values.dict, jinja_string(args->names[i]), args->named[i]));
    } else {
        TRY(jinja_list_create(rt, args->num, JINJA_SEQUENCE_TUPLE, &values));
        if (args->num > 0)
            memcpy(values.list->items, args->items, args->num * sizeof(struct jinja_value));
    }
    return jinja_format_percent(rt, format, values, out);
}

// --- markup ---

JINJA_FILTER(filter_safe)
{
    (void)arg, (void)args;
    TRY(text_of(rt, self, out));
    out->is_markup = true;
    return STATUS_OK;
}

JINJA_FILTER(filter_forceescape)
{
    (void)arg, (void)args;
    struct str text;
    TRY(soft_str(rt, self, &text));
    size_t mark = jinja_mark(rt);
    TRY(jinja_put_escaped(rt, text));
    *out = jinja_take(rt, mark);
    out->is_markup = true;
    return STATUS_OK;
}

JINJA_FILTER(filter_escape)
{
    *out = self;
    if (self.kind == JINJA_STRING && self.is_markup)
        return STATUS_OK;
    return filter_forceescape(rt, self, arg, args, out);
}

/** Reads an entity at `text`; returns its length, 0 if it is none that is known. */
static size_t read_entity(struct str text, uint32_t *out)
{
    static const struct {
        const char *name;
        uint32_t code_point;
    } names[] = {{"amp;", '&'},  {"lt;", '<'},    {"gt;", '>'},
                 {"quot;", '"'}, {"apos;", '\''}, {"nbsp;", 0xA0}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct str name = str_from(names[i].name);
        if (str_starts_with(str_slice(text, 1, text.len), name)) {
            *out = names[i].code_point;
            return name.len + 1;
        }
    }
    size_t end = str_find(str_slice(text, 0, 12), STR(";"), 0);
    if (end == STR_NOT_FOUND || end < 3 || text.ptr[1] != '#')
        return 0;
    bool hex = (text.ptr[2] | 0x20) == 'x';
    jinja_int_t code_point;
    if (!jinja_parse_int(str_slice(text, hex ? 3 : 2, end), hex ? 16 : 10, &code_point) ||
        code_point <= 0 || code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000))
        return 0;
    *out = (uint32_t)code_point;
    return end + 1;
}

/** Without tags and comments, runs of white space as one blank, entities as what they stand for. */
JINJA_FILTER(filter_striptags)
{
    (void)arg, (void)args;
    struct str text;
    TRY(soft_str(rt, self, &text));
    TRY(jinja_step(rt, text.len * 8));
    size_t mark = jinja_mark(rt);
    bool blank = false, any = false;
    for (size_t at = 0; at < text.len;) {
        struct str rest = str_slice(text, at, text.len);
        bool comment = str_starts_with(rest, STR("<!--"));
        size_t close = rest.ptr[0] != '<' ? STR_NOT_FOUND
                       : comment          ? str_find(rest, STR("-->"), 4)
                                          : str_find(rest, STR(">"), 0);
        if (close != STR_NOT_FOUND) {
            at += close + (comment ? 3 : 1);
            continue;
        }
        if (rest.ptr[0] == '<') // no end from here on: nothing more to remove
            TRY(jinja_step(rt, rest.len));
        size_t len;
        uint32_t c = utf8_decode(rest, &len);
        if (jinja_is_space(c)) {
            blank = any;
            at += len;
            continue;
        }
        if (blank)
            TRY(jinja_put_c(rt, " "));
        blank = false;
        any = true;
        if (c == '&') {
            size_t entity = read_entity(rest, &c);
            len = entity > 0 ? entity : len;
        }
        TRY(jinja_put_char(rt, c));
        at += len;
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

static enum status put_quoted(struct jinja_runtime *rt, struct jinja_value value, bool in_query)
{
    struct str text;
    TRY(soft_str(rt, value, &text));
    TRY(jinja_step(rt, text.len * 8));
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !in_query);
        char quoted[8];
        if (plain)
            snprintf(quoted, sizeof(quoted), "%c", c);
        else if (c == ' ' && in_query)
            snprintf(quoted, sizeof(quoted), "+");
        else
            snprintf(quoted, sizeof(quoted), "%%%02X", c);
        TRY(jinja_put_c(rt, quoted));
    }
    return STATUS_OK;
}

JINJA_FILTER(filter_urlencode)
{
    (void)arg, (void)args;
    size_t mark = jinja_mark(rt);
    if (self.kind != JINJA_DICT && self.kind != JINJA_LIST) {
        TRY(put_quoted(rt, self, false));
        *out = jinja_take(rt, mark);
        return STATUS_OK;
    }
    struct jinja_value items;
    TRY(self.kind == JINJA_DICT ? jinja_pairs(rt, self, &items) : jinja_iterate(rt, self, &items));
    for (size_t i = 0; i < items.list->len; i++) {
        struct jinja_value pair;
        TRY(jinja_iterate(rt, items.list->items[i], &pair));
        if (pair.list->len != 2)
            return jinja_fail(rt, STATUS_INVALID, "urlencode: expected pairs of key and value");
        if (i > 0)
            TRY(jinja_put_c(rt, "&"));
        TRY(put_quoted(rt, pair.list->items[0], true));
        TRY(jinja_put_c(rt, "="));
        TRY(put_quoted(rt, pair.list->items[1], true));
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

static enum status put_attribute(struct jinja_runtime *rt, const struct jinja_entry *entry)
{
    struct str key, value;
    TRY(soft_str(rt, entry->key, &key));
    TRY(soft_str(rt, entry->value, &value));
    for (size_t i = 0; i < key.len; i++)
        if (strchr(" \t\n\r\f\v/>=", key.ptr[i]))
            return jinja_fail(rt, STATUS_INVALID,
                              "Invalid character in attribute name: '" STR_FORMAT "'",
                              STR_ARG(str_slice(key, 0, 100)));
    TRY(jinja_put_escaped(rt, key));
    TRY(jinja_put_c(rt, "=\""));
    TRY(entry->value.kind == JINJA_STRING && entry->value.is_markup ? jinja_put(rt, value)
                                                                    : jinja_put_escaped(rt, value));
    return jinja_put_c(rt, "\"");
}

JINJA_FILTER(filter_xmlattr)
{
    (void)args;
    if (self.kind != JINJA_DICT)
        return jinja_fail(rt, STATUS_INVALID, "xmlattr: expected a dict, not '%s'",
                          jinja_type_name(self));
    bool with_blank = arg[0].kind == JINJA_ABSENT || jinja_is_true(arg[0]);
    size_t mark = jinja_mark(rt);
    for (size_t i = 0; i < self.dict->len; i++) {
        const struct jinja_entry *entry = &self.dict->entries[i];
        if (entry->value.kind == JINJA_NONE || entry->value.kind == JINJA_UNDEFINED)
            continue;
        if (jinja_mark(rt) > mark || with_blank)
            TRY(jinja_put_c(rt, " "));
        TRY(put_attribute(rt, entry));
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

// --- numbers ---

JINJA_FILTER(filter_int)
{
    (void)args;
    int64_t base = 10;
    jinja_int_t value;
    double real;
    *out = arg[0].kind == JINJA_ABSENT ? jinja_int(0) : arg[0];
    if (arg[1].kind != JINJA_ABSENT)
        TRY(jinja_need_int(rt, arg[1], "int: base", &base));
    if (base != 0 && (base < 2 || base > 36))
        return STATUS_OK; // Python's int() refuses the base, and the filter gives the default
    TRY(jinja_need_defined(rt, self));
    if (self.kind == JINJA_INT || self.kind == JINJA_BOOL) {
        *out = jinja_int(jinja_as_int(self));
        return STATUS_OK;
    }
    if (self.kind == JINJA_STRING && jinja_parse_int(self.str, (int)base, &value)) {
        *out = jinja_int(value);
        return STATUS_OK;
    }
    bool is_real = self.kind == JINJA_FLOAT;
    if (is_real)
        real = self.real;
    else
        is_real = self.kind == JINJA_STRING && jinja_parse_float(self.str, &real);
    if (is_real && isfinite(real)) {
        if (fabs(real) >= 1e38)
            return jinja_fail(rt, STATUS_TOO_LARGE, "int: the number is over 128 bits");
        *out = jinja_int((jinja_int_t)real);
    }
    return STATUS_OK;
}

JINJA_FILTER(filter_float)
{
    (void)args;
    double value;
    *out = arg[0].kind == JINJA_ABSENT ? jinja_float(0) : arg[0];
    TRY(jinja_need_defined(rt, self));
    if (jinja_is_number(self))
        *out = jinja_float(jinja_as_double(self));
    else if (self.kind == JINJA_STRING && jinja_parse_float(self.str, &value))
        *out = jinja_float(value);
    return STATUS_OK;
}

JINJA_FILTER(filter_abs)
{
    (void)arg, (void)args;
    TRY(jinja_need_defined(rt, self));
    if (!jinja_is_number(self))
        return jinja_fail(rt, STATUS_INVALID, "bad operand type for abs(): '%s'",
                          jinja_type_name(self));
    if (self.kind == JINJA_FLOAT) {
        *out = jinja_float(fabs(self.real));
        return STATUS_OK;
    }
    *out = jinja_int(jinja_as_int(self));
    return out->integer < 0 ? jinja_negate(rt, *out, out) : STATUS_OK;
}

/** Python's round(): correctly rounded in decimal, halves to even. */
static double round_decimal(double value, int precision)
{
    char text[400];
    if (!isfinite(value) || precision > 300)
        return value;
    if (precision >= 0) {
        snprintf(text, sizeof(text), "%.*f", precision, value);
        return strtod(text, NULL);
    }
    double scale = pow(10, -precision);
    return nearbyint(value / scale) * scale;
}

static jinja_int_t round_int(jinja_int_t value, int digits)
{
    jinja_int_t scale = 1;
    for (int i = 0; i < digits; i++)
        if (__builtin_mul_overflow(scale, (jinja_int_t)10, &scale))
            return 0;
    jinja_int_t rest = value % scale, down = value - rest;
    jinja_int_t magnitude = rest < 0 ? -rest : rest;
    bool odd = (down / scale) % 2 != 0;
    if (magnitude * 2 > scale || (magnitude * 2 == scale && odd))
        down += value < 0 ? -scale : scale;
    return down;
}

JINJA_FILTER(filter_round)
{
    (void)args;
    int64_t precision = 0;
    struct str method = STR("common");
    TRY(jinja_need_defined(rt, self));
    if (arg[0].kind != JINJA_ABSENT)
        TRY(jinja_need_int(rt, arg[0], "round: precision", &precision));
    if (arg[1].kind != JINJA_ABSENT)
        TRY(jinja_need_string(rt, arg[1], "round: method", &method));
    bool up = str_eq_c(method, "ceil"), down = str_eq_c(method, "floor");
    if (!up && !down && !str_eq_c(method, "common"))
        return jinja_fail(rt, STATUS_INVALID, "method must be common, ceil or floor");
    if (!jinja_is_number(self))
        return jinja_fail(rt, STATUS_INVALID, "type %s doesn't define __round__ method",
                          jinja_type_name(self));
    if (precision > 300 || precision < -300)
        return jinja_fail(rt, STATUS_TOO_LARGE, "round: precision is out of range");
    double value = jinja_as_double(self);
    if (up || down) {
        double scale = pow(10, (double)precision);
        double scaled = value * scale;
        *out = jinja_float((up ? ceil(scaled) : floor(scaled)) / scale);
    } else if (self.kind == JINJA_FLOAT) {
        *out = jinja_float(round_decimal(value, (int)precision));
    } else {
        jinja_int_t integer = jinja_as_int(self);
        bool as_is = precision >= 0 || integer > INT64_MAX || integer < INT64_MIN;
        *out = jinja_int(as_is ? integer : round_int(integer, (int)-precision));
    }
    return STATUS_OK;
}

// --- others ---

JINJA_FILTER(filter_default)
{
    (void)rt, (void)args;
    bool missing = self.kind == JINJA_UNDEFINED || (jinja_is_true(arg[1]) && !jinja_is_true(self));
    *out = !missing ? self : arg[0].kind == JINJA_ABSENT ? jinja_string(STR("")) : arg[0];
    return STATUS_OK;
}

JINJA_FILTER(filter_attr)
{
    (void)args;
    struct jinja_value name;
    TRY(text_of(rt, arg[0], &name));
    TRY(jinja_need_defined(rt, self));
    if (self.kind == JINJA_DICT && jinja_dict_get(self.dict, name.str)) {
        struct jinja_value other; // an attribute only, never an item
        TRY(jinja_get_attribute(rt, jinja_dict_create(rt), name.str, &other));
        if (other.kind == JINJA_UNDEFINED) {
            *out = jinja_undefined(rt, self, name);
            return STATUS_OK;
        }
    }
    return jinja_get_attribute(rt, self, name.str, out);
}

/** Whether pprint shows the value as repr() does: it sorts the keys of dicts. */
static enum status prints_plainly(struct jinja_runtime *rt, struct jinja_value value, bool *out)
{
    TRY(jinja_enter(rt));
    TRY(jinja_step(rt, 0));
    *out = value.kind != JINJA_DICT || value.dict->len < 2;
    if (value.kind == JINJA_DICT && value.dict->len == 1)
        TRY(prints_plainly(rt, value.dict->entries[0].value, out));
    if (value.kind == JINJA_LIST)
        for (size_t i = 0; i < value.list->len && *out; i++)
            TRY(prints_plainly(rt, value.list->items[i], out));
    jinja_leave(rt);
    return STATUS_OK;
}

JINJA_FILTER(filter_pprint)
{
    (void)arg, (void)args;
    bool plain;
    TRY(prints_plainly(rt, self, &plain));
    size_t mark = jinja_mark(rt);
    TRY(jinja_put_repr(rt, self));
    *out = jinja_take(rt, mark);
    if (!plain || jinja_char_count(out->str) > 79)
        return jinja_fail(rt, STATUS_UNSUPPORTED,
                          "pprint of dicts with several keys, and over several lines, is not "
                          "supported");
    return STATUS_OK;
}

const struct jinja_function jinja_value_filters[] = {
    {"abs", "", 0, filter_abs},
    {"attr", "name", 1, filter_attr},
    {"capitalize", "", 0, filter_capitalize},
    {"center", "width", 0, filter_center},
    {"d", "default_value boolean", 0, filter_default},
    {"default", "default_value boolean", 0, filter_default},
    {"e", "", 0, filter_escape},
    {"escape", "", 0, filter_escape},
    {"float", "default", 0, filter_float},
    {"forceescape", "", 0, filter_forceescape},
    {"format", NULL, 0, filter_format},
    {"indent", "width first blank", 0, filter_indent},
    {"int", "default base", 0, filter_int},
    {"lower", "", 0, filter_lower},
    {"pprint", "", 0, filter_pprint},
    {"replace", "old new count", 2, filter_replace},
    {"round", "precision method", 0, filter_round},
    {"safe", "", 0, filter_safe},
    {"string", "", 0, filter_string},
    {"striptags", "", 0, filter_striptags},
    {"title", "", 0, filter_title},
    {"trim", "chars", 0, filter_trim},
    {"truncate", "length killwords end leeway", 0, filter_truncate},
    {"upper", "", 0, filter_upper},
    {"urlencode", "", 0, filter_urlencode},
    {"wordcount", "", 0, filter_wordcount},
    {"xmlattr", "autospace", 0, filter_xmlattr},
    {0},
};

const struct jinja_function *jinja_find_filter(struct str name)
{
    if (str_eq_c(name, jinja_filter_tojson.name))
        return &jinja_filter_tojson;
    const struct jinja_function *found = jinja_table_find(jinja_value_filters, name);
    return found ? found : jinja_table_find(jinja_sequence_filters, name);
}
