// Python's two ways to format a string: `format % values` and format.format(values).
#include "tokenizer/jinja_value.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

enum { MAX_WIDTH = 1000 * 1000, MAX_PRECISION = 300, MAX_NUMBER_BYTES = 1024 };

/** One conversion, of either way. */
struct spec {
    uint32_t fill;
    char align; // '<', '>', '^', '=' or 0: by type
    char sign;  // '+', ' ' or 0
    bool alternate, grouping;
    char group_char;
    int64_t width, precision; // -1: not given
    char type;
};

static enum status fail_type(struct jinja_runtime *rt, char type, struct jinja_value value)
{
    return jinja_fail(rt, STATUS_INVALID,
                      "the format code '%c' does not take an object of type '%s'", type,
                      jinja_type_name(value));
}

/** Writes `prefix` (sign, 0x) and `digits` into the width asked for. */
static enum status put_padded(struct jinja_runtime *rt, const struct spec *spec, struct str prefix,
                              struct str body, char default_align)
{
    char align = spec->align ? spec->align : default_align;
    int64_t len = (int64_t)(prefix.len + jinja_char_count(body));
    size_t pad = spec->width > len ? (size_t)(spec->width - len) : 0;
    size_t left = align == '>' || align == '=' ? pad : align == '^' ? pad / 2 : 0;
    char fill_bytes[4];
    struct str fill = {fill_bytes, utf8_encode(spec->fill, fill_bytes)};
    if (align == '=')
        TRY(jinja_put(rt, prefix));
    TRY(jinja_put_repeat(rt, fill, left));
    if (align != '=')
        TRY(jinja_put(rt, prefix));
    TRY(jinja_put(rt, body));
    return jinja_put_repeat(rt, fill, pad - left);
}

/** Puts `separator` between groups of `size` digits of the whole part; `out` has the room. */
static struct str group_digits(struct str digits, char separator, size_t size, char *out)
{
    size_t whole = 0;
    while (whole < digits.len && ((digits.ptr[whole] >= '0' && digits.ptr[whole] <= '9') ||
                                  (digits.ptr[whole] >= 'a' && digits.ptr[whole] <= 'f')))
        whole++;
    size_t len = 0;
    for (size_t i = 0; i < digits.len; i++) {
        if (i > 0 && i < whole && (whole - i) % size == 0)
            out[len++] = separator;
        out[len++] = digits.ptr[i];
    }
    return (struct str){out, len};
}

static enum status put_integer(struct jinja_runtime *rt, const struct spec *spec, jinja_int_t value)
{
    int base = spec->type == 'x' || spec->type == 'X' ? 16
               : spec->type == 'o'                    ? 8
               : spec->type == 'b'                    ? 2
                                                      : 10;
    char text[160], prefix[8];
    size_t at = sizeof(text), num_prefix = 0;
    unsigned __int128 rest = value < 0 ? -(unsigned __int128)value : (unsigned __int128)value;
    const char *digits = spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    do {
        text[--at] = digits[rest % (unsigned)base];
        rest /= (unsigned)base;
    } while (rest > 0);
    while (spec->precision > (int64_t)(sizeof(text) - at) && at > 0)
        text[--at] = '0';
    if (value < 0)
        prefix[num_prefix++] = '-';
    else if (spec->sign)
        prefix[num_prefix++] = spec->sign;
    if (spec->alternate && base != 10) {
        prefix[num_prefix++] = '0';
        prefix[num_prefix++] = spec->type;
    }
    struct str body = {text + at, sizeof(text) - at};
    char grouped[2 * sizeof(text)];
    if (spec->grouping)
        body = group_digits(body, spec->group_char, base == 10 ? 3 : 4, grouped);
    return put_padded(rt, spec, (struct str){prefix, num_prefix}, body, '>');
}

static enum status put_real(struct jinja_runtime *rt, const struct spec *spec, double value)
{
    char type = spec->type ? spec->type : 'g';
    int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    char text[MAX_NUMBER_BYTES], grouped[2 * MAX_NUMBER_BYTES], prefix = 0;
    bool percent = type == '%';
    double magnitude = fabs(value) * (percent ? 100 : 1);
    if (signbit(value) && !isnan(value))
        prefix = '-';
    else
        prefix = spec->sign;
    struct str body;
    bool is_upper = type == 'F' || type == 'E' || type == 'G';
    char kind = percent ? 'f' : (char)(type | 0x20);
    if (isnan(value)) {
        body = is_upper ? STR("NAN") : STR("nan");
    } else if (isinf(value)) {
        body = is_upper ? STR("INF") : STR("inf");
    } else if (!spec->type && spec->precision < 0) { // as str()
        size_t mark = jinja_mark(rt);
        TRY(jinja_put_float(rt, magnitude));
        body = jinja_take(rt, mark).str;
    } else {
        int len;
        if (kind == 'f')
            len = snprintf(text, sizeof(text), spec->alternate ? "%#.*f" : "%.*f", precision,
                           magnitude);
        else if (kind == 'e')
            len = snprintf(text, sizeof(text), spec->alternate ? "%#.*e" : "%.*e", precision,
                           magnitude);
        else
            len = snprintf(text, sizeof(text), spec->alternate ? "%#.*g" : "%.*g", precision,
                           magnitude);
        if (is_upper)
            for (int i = 0; i < len; i++)
                text[i] = text[i] == 'e' ? 'E' : text[i];
        if (percent)
            text[len++] = '%';
        body = (struct str){text, (size_t)len};
        if (!spec->type && !memchr(text, '.', body.len) && !memchr(text, 'e', body.len)) {
            text[body.len++] = '.';
            text[body.len++] = '0';
        }
    }
    if (spec->grouping && body.len < MAX_NUMBER_BYTES)
        body = group_digits(body, spec->group_char, 3, grouped);
    return put_padded(rt, spec, (struct str){&prefix, prefix != 0}, body, '>');
}

static enum status put_text(struct jinja_runtime *rt, const struct spec *spec, struct str text,
                            char default_align)
{
    if (spec->precision >= 0)
        text = str_slice(text, 0, jinja_char_offset(text, (size_t)spec->precision));
    return put_padded(rt, spec, STR(""), text, default_align);
}

static enum status put_character(struct jinja_runtime *rt, struct spec *spec,
                                 struct jinja_value value)
{
    spec->precision = -1;
    if (value.kind == JINJA_STRING && jinja_char_count(value.str) == 1)
        return put_text(rt, spec, value.str, '>');
    if (value.kind == JINJA_INT && value.integer >= 0 && value.integer < 0x110000 &&
        !(value.integer >= 0xD800 && value.integer < 0xE000)) {
        char bytes[4];
        size_t len = utf8_encode((uint32_t)value.integer, bytes);
        return put_text(rt, spec, (struct str){bytes, len}, '<');
    }
    return fail_type(rt, 'c', value);
}

// --- format % values ---

struct percent_args {
    struct jinja_value value; // a tuple's items are taken one after the other
    size_t next;
    bool by_name;
};

static enum status next_argument(struct jinja_runtime *rt, struct percent_args *args,
                                 struct jinja_value *out)
{
    bool tuple = jinja_is_tuple(args->value);
    if (args->next >= (tuple ? args->value.list->len : 1))
        return jinja_fail(rt, STATUS_INVALID, "not enough arguments for format string");
    *out = tuple ? args->value.list->items[args->next] : args->value;
    args->next++;
    return STATUS_OK;
}

static enum status read_number(struct jinja_runtime *rt, struct str text, size_t *at, int64_t *out)
{
    int64_t value = 0;
    while (*at < text.len && text.ptr[*at] >= '0' && text.ptr[*at] <= '9') {
        value = value * 10 + (text.ptr[(*at)++] - '0');
        if (value > MAX_WIDTH)
            return jinja_fail(rt, STATUS_TOO_LARGE, "a width of more than %d in a format string",
                              MAX_WIDTH);
    }
    *out = value;
    return STATUS_OK;
}

static enum status check_precision(struct jinja_runtime *rt, const struct spec *spec)
{
    bool is_text = spec->type == 's' || spec->type == 'r' || spec->type == 'a' || !spec->type;
    if (!is_text && spec->precision > MAX_PRECISION)
        return jinja_fail(rt, STATUS_TOO_LARGE, "a precision of more than %d in a format string",
                          MAX_PRECISION);
    return STATUS_OK;
}

static enum status read_percent_spec(struct jinja_runtime *rt, struct str format, size_t *at,
                                     struct percent_args *args, struct spec *spec)
{
    *spec = (struct spec){.fill = ' ', .width = -1, .precision = -1};
    bool left = false, zero = false;
    for (; *at < format.len && format.ptr[*at] && strchr("-+ #0", format.ptr[*at]); (*at)++) {
        char flag = format.ptr[*at];
        left = left || flag == '-';
        zero = zero || flag == '0';
        spec->alternate = spec->alternate || flag == '#';
        if (flag == '+' || (flag == ' ' && spec->sign != '+'))
            spec->sign = flag;
    }
    for (int part = 0; part < 2; part++) { // width, then precision after a dot
        int64_t *number = part == 0 ? &spec->width : &spec->precision;
        if (part == 1) {
            if (*at >= format.len || format.ptr[*at] != '.')
                break;
            (*at)++;
        }
        if (*at < format.len && format.ptr[*at] == '*') {
            struct jinja_value value;
            (*at)++;
            TRY(next_argument(rt, args, &value));
            TRY(jinja_need_int(rt, value, "*", number));
            if (part == 0 && *number < 0 && *number >= -MAX_WIDTH) {
                left = true;
                *number = -*number;
            }
            if (*number > MAX_WIDTH || *number < -MAX_WIDTH)
                return jinja_fail(rt, STATUS_TOO_LARGE, "a width of more than %d", MAX_WIDTH);
            if (*number < 0)
                *number = 0;
        } else {
            TRY(read_number(rt, format, at, number));
        }
    }
    while (*at < format.len && format.ptr[*at] && strchr("hlL", format.ptr[*at]))
        (*at)++;
    if (*at >= format.len)
        return jinja_fail(rt, STATUS_INVALID, "incomplete format");
    spec->type = format.ptr[(*at)++];
    spec->align = left ? '<' : zero ? '=' : '>';
    if (zero && !left)
        spec->fill = '0';
    return check_precision(rt, spec);
}

static enum status put_percent(struct jinja_runtime *rt, struct spec *spec,
                               struct jinja_value value)
{
    char type = spec->type;
    switch (type) {
    case 's':
    case 'r':
    case 'a': {
        size_t mark = jinja_mark(rt);
        TRY(type == 's' ? jinja_put_str(rt, value) : jinja_put_repr(rt, value));
        struct str text = jinja_take(rt, mark).str;
        if (spec->align == '=') // zeros are for numbers
            spec->align = '>';
        spec->fill = ' ';
        return put_text(rt, spec, text, '>');
    }
    case 'd':
    case 'i':
    case 'u':
        if (value.kind == JINJA_FLOAT && isfinite(value.real) && fabs(value.real) < 1e37)
            return put_integer(rt, spec, (jinja_int_t)value.real);
        // fall through
    case 'x':
    case 'X':
    case 'o':
        if (value.kind != JINJA_INT && value.kind != JINJA_BOOL)
            return fail_type(rt, type, value);
        return put_integer(rt, spec, jinja_as_int(value));
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        if (!jinja_is_number(value))
            return fail_type(rt, type, value);
        return put_real(rt, spec, jinja_as_double(value));
    case 'c':
        return put_character(rt, spec, value);
    default:
        return jinja_fail(rt, STATUS_INVALID, "unsupported format character 0x%02x",
                          (unsigned)(unsigned char)type);
    }
}

enum status jinja_format_percent(struct jinja_runtime *rt, struct str format,
                                 struct jinja_value value, struct jinja_value *out)
{
    struct percent_args args = {.value = value};
    size_t mark = jinja_mark(rt);
    for (size_t at = 0; at < format.len;) {
        size_t percent = str_find(format, STR("%"), at);
        if (percent == STR_NOT_FOUND)
            percent = format.len;
        TRY(jinja_put(rt, str_slice(format, at, percent)));
        if (percent == format.len)
            break;
        TRY(jinja_step(rt, 0));
        at = percent + 1;
        struct percent_args named = args;
        bool has_name = at < format.len && format.ptr[at] == '(';
        if (has_name) {
            size_t close = str_find(format, STR(")"), at);
            if (close == STR_NOT_FOUND)
                return jinja_fail(rt, STATUS_INVALID, "incomplete format key");
            if (value.kind != JINJA_DICT)
                return jinja_fail(rt, STATUS_INVALID, "format requires a mapping");
            struct str key = str_slice(format, at + 1, close);
            const struct jinja_value *found = jinja_dict_get(value.dict, key);
            if (!found)
                return jinja_fail(rt, STATUS_INVALID, "no key '" STR_FORMAT "' to format",
                                  STR_ARG(str_slice(key, 0, 100)));
            named = (struct percent_args){.value = jinja_tuple2(rt, *found, *found)};
            args.by_name = true;
            at = close + 1;
        }
        struct percent_args *from = has_name ? &named : &args;
        struct spec spec;
        TRY(read_percent_spec(rt, format, &at, from, &spec));
        if (spec.type == '%') {
            TRY(jinja_put_c(rt, "%"));
            continue;
        }
        struct jinja_value item;
        TRY(next_argument(rt, from, &item));
        TRY(put_percent(rt, &spec, item));
    }
    bool all_used =
        jinja_is_tuple(value)
            ? args.next == value.list->len
            : args.next > 0 || args.by_name || value.kind == JINJA_DICT || value.kind == JINJA_LIST;
    if (!all_used)
        return jinja_fail(rt, STATUS_INVALID,
                          "not all arguments converted during string formatting");
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

// --- format.format(values) ---

struct brace_args {
    const struct jinja_args *args;
    size_t next;
    bool is_automatic, is_manual; // {} and {0} do not mix
};

static enum status brace_argument(struct jinja_runtime *rt, struct brace_args *args,
                                  struct str name, struct jinja_value *out)
{
    jinja_int_t index;
    bool numbered = jinja_parse_int(name, 10, &index) && name.ptr[0] >= '0';
    if (name.len == 0 || numbered) {
        args->is_automatic = args->is_automatic || name.len == 0;
        args->is_manual = args->is_manual || name.len > 0;
        if (args->is_automatic && args->is_manual)
            return jinja_fail(rt, STATUS_INVALID,
                              "cannot switch between manual field specification and automatic "
                              "field numbering");
        if (name.len == 0)
            index = (jinja_int_t)args->next++;
        if (index < 0 || (size_t)index >= args->args->num)
            return jinja_fail(rt, STATUS_INVALID,
                              "Replacement index %lld out of range for positional args tuple",
                              (long long)index);
        *out = args->args->items[index];
        return STATUS_OK;
    }
    for (size_t i = 0; i < args->args->num_named; i++) {
        if (str_eq(args->args->names[i], name)) {
            *out = args->args->named[i];
            return STATUS_OK;
        }
    }
    return jinja_fail(rt, STATUS_INVALID, "no argument '" STR_FORMAT "' to format",
                      STR_ARG(str_slice(name, 0, 100)));
}

/** name.attribute[key]... */
static enum status resolve_field(struct jinja_runtime *rt, struct brace_args *args,
                                 struct str field, struct jinja_value *out)
{
    size_t at = 0;
    while (at < field.len && field.ptr[at] != '.' && field.ptr[at] != '[')
        at++;
    TRY(brace_argument(rt, args, str_slice(field, 0, at), out));
    while (at < field.len) {
        size_t from = ++at;
        if (field.ptr[from - 1] == '[') {
            size_t close = str_find(field, STR("]"), from);
            if (close == STR_NOT_FOUND)
                return jinja_fail(rt, STATUS_INVALID, "Missing ']' in format string");
            struct str key = str_slice(field, from, close);
            jinja_int_t index;
            bool numbered = jinja_parse_int(key, 10, &index) && key.ptr[0] >= '0';
            TRY(jinja_get_item(rt, *out, numbered ? jinja_int(index) : jinja_string(key), out));
            at = close + 1;
            if (at < field.len && field.ptr[at] != '.' && field.ptr[at] != '[')
                return jinja_fail(rt, STATUS_INVALID,
                                  "Only '.' or '[' may follow ']' in format field specifier");
        } else {
            while (at < field.len && field.ptr[at] != '.' && field.ptr[at] != '[')
                at++;
            TRY(jinja_get_attribute(rt, *out, str_slice(field, from, at), out));
        }
    }
    return STATUS_OK;
}

static enum status read_brace_spec(struct jinja_runtime *rt, struct str text, struct spec *spec)
{
    *spec = (struct spec){.fill = ' ', .width = -1, .precision = -1};
    size_t at = 0, len = 0;
    uint32_t first = text.len > 0 ? utf8_decode(text, &len) : 0;
    if (text.len > len && len > 0 && text.ptr[len] && strchr("<>=^", text.ptr[len])) {
        spec->fill = first;
        spec->align = text.ptr[len];
        at = len + 1;
    } else if (text.len > 0 && text.ptr[0] && strchr("<>=^", text.ptr[0])) {
        spec->align = text.ptr[0];
        at = 1;
    }
    if (at < text.len && text.ptr[at] && strchr("+- ", text.ptr[at])) {
        spec->sign = text.ptr[at] == '-' ? 0 : text.ptr[at];
        at++;
    }
    if (at < text.len && text.ptr[at] == '#') {
        spec->alternate = true;
        at++;
    }
    if (at < text.len && text.ptr[at] == '0') {
        if (!spec->align) {
            spec->fill = '0';
            spec->align = '=';
        }
        at++;
    }
    TRY(read_number(rt, text, &at, &spec->width));
    if (at < text.len && (text.ptr[at] == ',' || text.ptr[at] == '_')) {
        spec->grouping = true;
        spec->group_char = text.ptr[at++];
    }
    if (at < text.len && text.ptr[at] == '.') {
        at++;
        TRY(read_number(rt, text, &at, &spec->precision));
    }
    if (at < text.len)
        spec->type = text.ptr[at++];
    if (at < text.len)
        return jinja_fail(rt, STATUS_INVALID, "Invalid format specifier '" STR_FORMAT "'",
                          STR_ARG(str_slice(text, 0, 100)));
    return check_precision(rt, spec);
}

static enum status put_brace(struct jinja_runtime *rt, struct jinja_value value, char conversion,
                             struct str spec_text)
{
    if (conversion != 0) {
        size_t mark = jinja_mark(rt);
        TRY(conversion == 's' ? jinja_put_str(rt, value) : jinja_put_repr(rt, value));
        value = jinja_take(rt, mark);
    }
    if (spec_text.len == 0)
        return jinja_put_str(rt, value);
    struct spec spec;
    TRY(read_brace_spec(rt, spec_text, &spec));
    bool real_type = spec.type && strchr("eEfFgG%", spec.type);
    if (value.kind == JINJA_STRING && (!spec.type || spec.type == 's') && spec.align != '=')
        return put_text(rt, &spec, value.str, '<');
    if (value.kind == JINJA_INT && spec.type == 'c')
        return put_character(rt, &spec, value);
    bool is_integer = value.kind == JINJA_INT || value.kind == JINJA_BOOL;
    if (is_integer && spec.precision < 0 && (!spec.type || strchr("dxXob", spec.type)))
        return put_integer(rt, &spec, jinja_as_int(value));
    if (jinja_is_number(value) && (real_type || (value.kind == JINJA_FLOAT && !spec.type)))
        return put_real(rt, &spec, jinja_as_double(value));
    if (!jinja_is_number(value) && value.kind != JINJA_STRING)
        return jinja_fail(rt, STATUS_INVALID, "unsupported format string passed to %s.__format__",
                          jinja_type_name(value));
    return fail_type(rt, spec.type ? spec.type : '?', value);
}

static enum status format_braces(struct jinja_runtime *rt, struct str format,
                                 struct brace_args *args, int level);

static enum status put_field(struct jinja_runtime *rt, struct str field, struct brace_args *args,
                             int level)
{
    size_t end = 0, brackets = 0; // the name ends at ! or : outside of brackets
    for (; end < field.len; end++) {
        char c = field.ptr[end];
        brackets += c == '[' ? 1 : c == ']' && brackets > 0 ? (size_t)-1 : 0;
        if (brackets == 0 && (c == '!' || c == ':'))
            break;
    }
    struct jinja_value value;
    TRY(resolve_field(rt, args, str_slice(field, 0, end), &value));
    char conversion = 0;
    if (end < field.len && field.ptr[end] == '!') {
        conversion = end + 1 < field.len ? field.ptr[end + 1] : 0;
        end += 2;
        if (!(conversion == 'r' || conversion == 's' || conversion == 'a') ||
            (end < field.len && field.ptr[end] != ':'))
            return jinja_fail(rt, STATUS_INVALID, "unknown conversion in a format string");
    }
    size_t mark = jinja_mark(rt); // the specification may hold fields of its own
    TRY(format_braces(rt, str_slice(field, end + 1, field.len), args, level + 1));
    struct str spec = jinja_take(rt, mark).str;
    return put_brace(rt, value, conversion, spec);
}

static enum status format_braces(struct jinja_runtime *rt, struct str format,
                                 struct brace_args *args, int level)
{
    if (level > 2)
        return jinja_fail(rt, STATUS_INVALID, "Max string recursion exceeded");
    for (size_t at = 0; at < format.len;) {
        char c = format.ptr[at];
        if (c != '{' && c != '}') {
            size_t from = at;
            while (at < format.len && format.ptr[at] != '{' && format.ptr[at] != '}')
                at++;
            TRY(jinja_put(rt, str_slice(format, from, at)));
            continue;
        }
        TRY(jinja_step(rt, 0));
        if (at + 1 < format.len && format.ptr[at + 1] == c) {
            TRY(jinja_put(rt, str_slice(format, at, at + 1)));
            at += 2;
            continue;
        }
        size_t depth = 0, end = at;
        for (; end < format.len; end++) {
            depth += format.ptr[end] == '{' ? 1 : format.ptr[end] == '}' ? (size_t)-1 : 0;
            if (depth == 0)
                break;
        }
        if (c == '}' || end >= format.len)
            return jinja_fail(rt, STATUS_INVALID, "Single '%c' encountered in format string", c);
        TRY(put_field(rt, str_slice(format, at + 1, end), args, level));
        at = end + 1;
    }
    return STATUS_OK;
}

enum status jinja_format_braces(struct jinja_runtime *rt, struct str format,
                                const struct jinja_args *args, struct jinja_value *out)
{
    struct brace_args state = {.args = args};
    size_t mark = jinja_mark(rt);
    TRY(format_braces(rt, format, &state, 0));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}
