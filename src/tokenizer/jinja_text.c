// Values as text: str(), repr(), numbers, JSON.
#include "tokenizer/jinja_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum status jinja_put_int(struct jinja_runtime *rt, jinja_int_t value)
{
    char digits[48];
    size_t at = sizeof(digits);
    unsigned __int128 rest = value < 0 ? -(unsigned __int128)value : (unsigned __int128)value;
    do {
        digits[--at] = (char)('0' + (int)(rest % 10));
        rest /= 10;
    } while (rest > 0);
    if (value < 0)
        digits[--at] = '-';
    return jinja_put(rt, (struct str){digits + at, sizeof(digits) - at});
}

enum status jinja_put_float(struct jinja_runtime *rt, double value)
{
    if (isnan(value))
        return jinja_put_c(rt, "nan");
    if (isinf(value))
        return jinja_put_c(rt, value < 0 ? "-inf" : "inf");
    char text[40];
    for (int precision = 0; precision < 18; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision, value);
        if (strtod(text, NULL) == value)
            break;
    }
    // text is [-]d[.ddd]e±xx; Python writes it out for exponents from -4 to 15.
    char *e = strchr(text, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10);
    const char *digit = text;
    if (*digit == '-') {
        TRY(jinja_put_c(rt, "-"));
        digit++;
    }
    char digits[24];
    size_t num_digits = 0;
    for (; digit < e; digit++)
        if (*digit != '.')
            digits[num_digits++] = *digit;
    struct str all = {digits, num_digits};
    if (exponent < -4 || exponent >= 16) {
        TRY(jinja_put(rt, str_slice(all, 0, 1)));
        if (num_digits > 1) {
            TRY(jinja_put_c(rt, "."));
            TRY(jinja_put(rt, str_slice(all, 1, num_digits)));
        }
        char tail[16];
        snprintf(tail, sizeof(tail), "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return jinja_put_c(rt, tail);
    }
    if (exponent < 0) {
        TRY(jinja_put_c(rt, "0."));
        TRY(jinja_put_repeat(rt, STR("0"), (size_t)(-exponent - 1)));
        return jinja_put(rt, all);
    }
    size_t whole = (size_t)exponent + 1;
    TRY(jinja_put(rt, str_slice(all, 0, whole)));
    if (num_digits > whole) {
        TRY(jinja_put_c(rt, "."));
        return jinja_put(rt, str_slice(all, whole, num_digits));
    }
    TRY(jinja_put_repeat(rt, STR("0"), whole - num_digits));
    return jinja_put_c(rt, ".0");
}

static enum status put_string_repr(struct jinja_runtime *rt, struct str text)
{
    bool has_single = text.len > 0 && memchr(text.ptr, '\'', text.len) != NULL;
    bool has_double = text.len > 0 && memchr(text.ptr, '"', text.len) != NULL;
    char quote = has_single && !has_double ? '"' : '\'';
    TRY(jinja_step(rt, text.len * 4));
    TRY(jinja_put_char(rt, (uint32_t)quote));
    for (size_t at = 0; at < text.len;) {
        size_t len;
        uint32_t c = utf8_decode((struct str){text.ptr + at, text.len - at}, &len);
        char escape[16] = "";
        if (c == (uint32_t)quote || c == '\\')
            snprintf(escape, sizeof(escape), "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escape, sizeof(escape), "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!jinja_is_printable(c))
            snprintf(escape, sizeof(escape),
                     c < 0x100     ? "\\x%02x"
                     : c < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                     c);
        if (escape[0])
            TRY(jinja_put_c(rt, escape));
        else
            TRY(jinja_put(rt, (struct str){text.ptr + at, len}));
        at += len;
    }
    return jinja_put_char(rt, (uint32_t)quote);
}

static enum status put_list_repr(struct jinja_runtime *rt, struct jinja_value value)
{
    const struct jinja_list *list = value.list;
    if (value.sequence == JINJA_SEQUENCE_GENERATOR)
        return jinja_put_c(rt, "<generator object>");
    if (value.sequence == JINJA_SEQUENCE_RANGE) {
        char text[96];
        int len = snprintf(text, sizeof(text), "range(%lld, %lld", (long long)list->range[0],
                           (long long)list->range[1]);
        if (list->range[2] != 1)
            len += snprintf(text + len, sizeof(text) - (size_t)len, ", %lld",
                            (long long)list->range[2]);
        snprintf(text + len, sizeof(text) - (size_t)len, ")");
        return jinja_put_c(rt, text);
    }
    bool tuple = jinja_is_tuple(value);
    bool view = !tuple && value.sequence != JINJA_SEQUENCE_LIST;
    if (view)
        TRY(jinja_put_c(rt, jinja_type_name(value)));
    TRY(jinja_put_c(rt, tuple ? "(" : view ? "([" : "["));
    for (size_t i = 0; i < list->len; i++) {
        if (i > 0)
            TRY(jinja_put_c(rt, ", "));
        TRY(jinja_put_repr(rt, list->items[i]));
    }
    if (tuple && list->len == 1)
        TRY(jinja_put_c(rt, ","));
    return jinja_put_c(rt, tuple ? ")" : view ? "])" : "]");
}

static enum status put_dict_repr(struct jinja_runtime *rt, const struct jinja_dict *dict)
{
    TRY(jinja_put_c(rt, "{"));
    for (size_t i = 0; i < dict->len; i++) {
        if (i > 0)
            TRY(jinja_put_c(rt, ", "));
        TRY(jinja_put_repr(rt, dict->entries[i].key));
        TRY(jinja_put_c(rt, ": "));
        TRY(jinja_put_repr(rt, dict->entries[i].value));
    }
    return jinja_put_c(rt, "}");
}

enum status jinja_put_repr(struct jinja_runtime *rt, struct jinja_value value)
{
    TRY(jinja_enter(rt));
    TRY(jinja_step(rt, 0));
    switch (value.kind) {
    case JINJA_UNDEFINED:
        TRY(jinja_put_c(rt, "Undefined"));
        break;
    case JINJA_NONE:
        TRY(jinja_put_c(rt, "None"));
        break;
    case JINJA_BOOL:
        TRY(jinja_put_c(rt, value.boolean ? "True" : "False"));
        break;
    case JINJA_INT:
        TRY(jinja_put_int(rt, value.integer));
        break;
    case JINJA_FLOAT:
        TRY(jinja_put_float(rt, value.real));
        break;
    case JINJA_STRING:
        if (value.is_markup)
            TRY(jinja_put_c(rt, "Markup("));
        TRY(put_string_repr(rt, value.str));
        if (value.is_markup)
            TRY(jinja_put_c(rt, ")"));
        break;
    case JINJA_LIST:
        TRY(put_list_repr(rt, value));
        break;
    case JINJA_DICT:
        TRY(put_dict_repr(rt, value.dict));
        break;
    case JINJA_NAMESPACE:
        TRY(jinja_put_c(rt, "<Namespace "));
        TRY(put_dict_repr(rt, value.dict));
        TRY(jinja_put_c(rt, ">"));
        break;
    case JINJA_LOOP:
        TRY(jinja_put_loop(rt, value));
        break;
    case JINJA_MACRO:
        TRY(jinja_put_c(rt, "<Macro "));
        TRY(put_string_repr(rt, jinja_macro_name(value)));
        TRY(jinja_put_c(rt, ">"));
        break;
    case JINJA_FUNCTION:
        TRY(jinja_put_c(rt, "<function "));
        TRY(jinja_put_c(rt, value.function->name));
        TRY(jinja_put_c(rt, ">"));
        break;
    case JINJA_METHOD:
        TRY(jinja_put_c(rt, "<built-in method "));
        TRY(jinja_put_c(rt, value.method->function->name));
        TRY(jinja_put_c(rt, " of "));
        TRY(jinja_put_c(rt, jinja_type_name(value.method->self)));
        TRY(jinja_put_c(rt, " object>"));
        break;
    default:
        TRY(jinja_put_c(rt, "<"));
        TRY(jinja_put_c(rt, jinja_type_name(value)));
        TRY(jinja_put_c(rt, " object>"));
        break;
    }
    jinja_leave(rt);
    return STATUS_OK;
}

enum status jinja_put_str(struct jinja_runtime *rt, struct jinja_value value)
{
    if (value.kind == JINJA_STRING)
        return jinja_put(rt, value.str);
    if (value.kind == JINJA_UNDEFINED)
        return STATUS_OK;
    return jinja_put_repr(rt, value);
}

enum status jinja_to_str(struct jinja_runtime *rt, struct jinja_value value,
                         struct jinja_value *out)
{
    if (value.kind == JINJA_STRING) {
        *out = value;
        return STATUS_OK;
    }
    size_t mark = jinja_mark(rt);
    TRY(jinja_put_str(rt, value));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

enum status jinja_put_escaped(struct jinja_runtime *rt, struct str text)
{
    size_t plain = 0;
    TRY(jinja_step(rt, text.len));
    for (size_t i = 0; i < text.len; i++) {
        const char *escape = NULL;
        switch (text.ptr[i]) {
        case '&':
            escape = "&amp;";
            break;
        case '<':
            escape = "&lt;";
            break;
        case '>':
            escape = "&gt;";
            break;
        case '\'':
            escape = "&#39;";
            break;
        case '"':
            escape = "&#34;";
            break;
        default:
            continue;
        }
        TRY(jinja_put(rt, str_slice(text, plain, i)));
        TRY(jinja_put_c(rt, escape));
        plain = i + 1;
    }
    return jinja_put(rt, str_slice(text, plain, text.len));
}

// --- reading numbers ---

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'Z')
        return c - 'A' + 10;
    return 99;
}

bool jinja_parse_int(struct str text, int base, jinja_int_t *out)
{
    text = jinja_strip(text, NULL, true, true);
    bool negative = text.len > 0 && text.ptr[0] == '-';
    if (text.len > 0 && (text.ptr[0] == '-' || text.ptr[0] == '+'))
        text = str_slice(text, 1, text.len);
    if (text.len > 2 && text.ptr[0] == '0') {
        char letter = text.ptr[1] | 0x20;
        int prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
        if (prefix != 0 && (base == prefix || base == 0)) {
            base = prefix;
            text = str_slice(text, text.ptr[2] == '_' ? 3 : 2, text.len);
        }
    }
    if (base == 0)
        base = 10;
    jinja_int_t value = 0;
    bool after_digit = false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] == '_' && after_digit) {
            after_digit = false;
            continue;
        }
        int digit = digit_value(text.ptr[i]);
        if (digit >= base || __builtin_mul_overflow(value, (jinja_int_t)base, &value) ||
            __builtin_add_overflow(value, (jinja_int_t)digit, &value))
            return false;
        after_digit = true;
    }
    *out = negative ? -value : value;
    return after_digit;
}

bool jinja_parse_float(struct str text, double *out)
{
    text = jinja_strip(text, NULL, true, true);
    char copy[512];
    size_t len = 0;
    bool has_digit = false;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '_' && i > 0 && i + 1 < text.len && digit_value(text.ptr[i - 1]) < 10 &&
            digit_value(text.ptr[i + 1]) < 10)
            continue;
        if (!(digit_value(c) < 10 || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E') ||
            len + 1 >= sizeof(copy)) {
            len = 0;
            break;
        }
        has_digit = has_digit || digit_value(c) < 10;
        copy[len++] = c;
    }
    copy[len] = '\0';
    if (len > 0 && has_digit) {
        char *end;
        *out = strtod(copy, &end);
        return *end == '\0';
    }
    bool negative = text.len > 0 && text.ptr[0] == '-';
    if (text.len > 0 && (text.ptr[0] == '-' || text.ptr[0] == '+'))
        text = str_slice(text, 1, text.len);
    if (str_eq_ignore_case(text, STR("inf")) || str_eq_ignore_case(text, STR("infinity")))
        *out = negative ? -INFINITY : INFINITY;
    else if (str_eq_ignore_case(text, STR("nan")))
        *out = NAN;
    else
        return false;
    return true;
}

// --- JSON ---

struct json_style {
    bool ensure_ascii, sort_keys;
    struct str indent; // one level; ptr NULL: all on one line
    struct str item_separator, key_separator;
};

static enum status put_json_string(struct jinja_runtime *rt, struct str text, bool ensure_ascii)
{
    size_t plain = 0;
    TRY(jinja_step(rt, text.len * 2));
    TRY(jinja_put_c(rt, "\""));
    for (size_t at = 0; at < text.len;) {
        size_t len = 1;
        uint32_t c = (unsigned char)text.ptr[at];
        if (c >= 0x80)
            c = utf8_decode((struct str){text.ptr + at, text.len - at}, &len);
        if ((c >= 0x20 && c < 0x7F && c != '"' && c != '\\') || (c >= 0x7F && !ensure_ascii)) {
            at += len;
            continue;
        }
        TRY(jinja_put(rt, str_slice(text, plain, at)));
        char escape[16];
        const char *shorthand = c ? strchr("\"\"\\\\\nn\rr\tt\bb\ff", (int)c) : NULL;
        if (c < 0x80 && shorthand)
            snprintf(escape, sizeof(escape), "\\%c", shorthand[1]);
        else if (c < 0x10000)
            snprintf(escape, sizeof(escape), "\\u%04x", c);
        else
            snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10),
                     0xDC00 + ((c - 0x10000) & 0x3FF));
        TRY(jinja_put_c(rt, escape));
        at += len;
        plain = at;
    }
    TRY(jinja_put(rt, str_slice(text, plain, text.len)));
    return jinja_put_c(rt, "\"");
}

static enum status put_json_float(struct jinja_runtime *rt, double value)
{
    if (isnan(value))
        return jinja_put_c(rt, "NaN");
    if (isinf(value))
        return jinja_put_c(rt, value < 0 ? "-Infinity" : "Infinity");
    return jinja_put_float(rt, value);
}

static enum status put_json(struct jinja_runtime *rt, const struct json_style *style,
                            struct jinja_value value, size_t level);

static enum status put_line_break(struct jinja_runtime *rt, const struct json_style *style,
                                  size_t level)
{
    if (!style->indent.ptr)
        return STATUS_OK;
    TRY(jinja_put_c(rt, "\n"));
    return jinja_put_repeat(rt, style->indent, level);
}

static enum status put_json_key(struct jinja_runtime *rt, const struct json_style *style,
                                struct jinja_value key)
{
    if (key.kind == JINJA_STRING)
        return put_json_string(rt, key.str, style->ensure_ascii);
    if (!jinja_is_number(key) && key.kind != JINJA_NONE)
        return jinja_fail(rt, STATUS_INVALID, "keys must be str, int, float, bool or None, not %s",
                          jinja_type_name(key));
    TRY(jinja_put_c(rt, "\""));
    TRY(put_json(rt, style, key, 0));
    return jinja_put_c(rt, "\"");
}

/** Copies the entries in order of their keys: merge sort, which is stable and never quadratic. */
static enum status sort_entries(struct jinja_runtime *rt, struct jinja_entry *entries, size_t len,
                                struct jinja_entry *scratch)
{
    if (len < 2)
        return STATUS_OK;
    size_t half = len / 2;
    TRY(sort_entries(rt, entries, half, scratch));
    TRY(sort_entries(rt, entries + half, len - half, scratch));
    memcpy(scratch, entries, half * sizeof(*entries));
    size_t left = 0, right = half;
    for (size_t i = 0; left < half; i++) {
        int order = -1;
        TRY(jinja_step(rt, 0));
        if (right < len)
            TRY(jinja_compare(rt, entries[right].key, scratch[left].key, "<", &order));
        bool take_right = right < len && order == -1;
        entries[i] = take_right ? entries[right++] : scratch[left++];
    }
    return STATUS_OK;
}

static enum status put_json_dict(struct jinja_runtime *rt, const struct json_style *style,
                                 const struct jinja_dict *dict, size_t level)
{
    if (dict->len == 0)
        return jinja_put_c(rt, "{}");
    const struct jinja_entry *entries = dict->entries;
    if (style->sort_keys) {
        size_t size = dict->len * sizeof(struct jinja_entry);
        struct jinja_entry *sorted = jinja_alloc(rt, size);
        memcpy(sorted, entries, size);
        TRY(sort_entries(rt, sorted, dict->len, jinja_alloc(rt, size)));
        entries = sorted;
    }
    TRY(jinja_put_c(rt, "{"));
    for (size_t i = 0; i < dict->len; i++) {
        if (i > 0)
            TRY(jinja_put(rt, style->item_separator));
        TRY(put_line_break(rt, style, level + 1));
        TRY(put_json_key(rt, style, entries[i].key));
        TRY(jinja_put(rt, style->key_separator));
        TRY(put_json(rt, style, entries[i].value, level + 1));
    }
    TRY(put_line_break(rt, style, level));
    return jinja_put_c(rt, "}");
}

static enum status put_json_list(struct jinja_runtime *rt, const struct json_style *style,
                                 const struct jinja_list *list, size_t level)
{
    if (list->len == 0)
        return jinja_put_c(rt, "[]");
    TRY(jinja_put_c(rt, "["));
    for (size_t i = 0; i < list->len; i++) {
        if (i > 0)
            TRY(jinja_put(rt, style->item_separator));
        TRY(put_line_break(rt, style, level + 1));
        TRY(put_json(rt, style, list->items[i], level + 1));
    }
    TRY(put_line_break(rt, style, level));
    return jinja_put_c(rt, "]");
}

static enum status put_json(struct jinja_runtime *rt, const struct json_style *style,
                            struct jinja_value value, size_t level)
{
    TRY(jinja_enter(rt));
    TRY(jinja_step(rt, 0));
    bool is_list = value.kind == JINJA_LIST &&
                   (value.sequence == JINJA_SEQUENCE_LIST || jinja_is_tuple(value));
    if (value.kind == JINJA_STRING)
        TRY(put_json_string(rt, value.str, style->ensure_ascii));
    else if (value.kind == JINJA_NONE)
        TRY(jinja_put_c(rt, "null"));
    else if (value.kind == JINJA_BOOL)
        TRY(jinja_put_c(rt, value.boolean ? "true" : "false"));
    else if (value.kind == JINJA_INT)
        TRY(jinja_put_int(rt, value.integer));
    else if (value.kind == JINJA_FLOAT)
        TRY(put_json_float(rt, value.real));
    else if (value.kind == JINJA_DICT)
        TRY(put_json_dict(rt, style, value.dict, level));
    else if (is_list)
        TRY(put_json_list(rt, style, value.list, level));
    else
        return jinja_fail(rt, STATUS_INVALID, "Object of type %s is not JSON serializable",
                          jinja_type_name(value));
    jinja_leave(rt);
    return STATUS_OK;
}

static enum status read_indent(struct jinja_runtime *rt, struct jinja_value value,
                               struct json_style *style)
{
    if (value.kind == JINJA_ABSENT || value.kind == JINJA_NONE)
        return STATUS_OK;
    if (value.kind == JINJA_STRING) {
        style->indent = value.str.ptr ? value.str : STR("");
    } else {
        int64_t width;
        TRY(jinja_need_int(rt, value, "tojson: indent", &width));
        size_t mark = jinja_mark(rt);
        TRY(jinja_put_repeat(rt, STR(" "), width > 0 ? (size_t)width : 0));
        style->indent = jinja_take(rt, mark).str;
    }
    style->item_separator = STR(",");
    return STATUS_OK;
}

static enum status filter_tojson(struct jinja_runtime *rt, struct jinja_value self,
                                 const struct jinja_value *arg, const struct jinja_args *args,
                                 struct jinja_value *out)
{
    (void)args;
    struct json_style style = {
        .ensure_ascii = jinja_is_true(arg[0]),
        .sort_keys = jinja_is_true(arg[3]),
        .item_separator = STR(", "),
        .key_separator = STR(": "),
    };
    TRY(read_indent(rt, arg[1], &style));
    struct jinja_value separators = arg[2];
    if (separators.kind != JINJA_ABSENT && separators.kind != JINJA_NONE) {
        if (separators.kind != JINJA_LIST || separators.list->len != 2)
            return jinja_fail(rt, STATUS_INVALID, "tojson: separators must be a pair of strings");
        TRY(jinja_need_string(rt, separators.list->items[0], "tojson: a separator",
                              &style.item_separator));
        TRY(jinja_need_string(rt, separators.list->items[1], "tojson: a separator",
                              &style.key_separator));
    }
    size_t mark = jinja_mark(rt);
    TRY(put_json(rt, &style, self, 0));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

const struct jinja_function jinja_filter_tojson = {
    .name = "tojson",
    .params = "ensure_ascii indent separators sort_keys",
    .call = filter_tojson,
};
