// Methods of strings, as Python's. Positions are code points.
#include "tokenizer/jinja_value.h"

#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

#define METHOD(function)                                                                      \
    static enum status function(struct jinja_runtime *rt, struct jinja_value self,            \
                                const struct jinja_value *arg, const struct jinja_args *args, \
                                struct jinja_value *out)

static bool is_given(struct jinja_value value)
{
    return value.kind != JINJA_ABSENT && value.kind != JINJA_NONE;
}

static enum status find_last(struct jinja_runtime *rt, struct str text, struct str needle,
                             size_t *out)
{
    *out = STR_NOT_FOUND;
    if (needle.len > text.len)
        return STATUS_OK;
    for (size_t at = text.len - needle.len + 1; at-- > 0;) {
        if (needle.len == 0 ||
            (text.ptr[at] == needle.ptr[0] && memcmp(text.ptr + at, needle.ptr, needle.len) == 0)) {
            *out = at;
            return STATUS_OK;
        }
        if (needle.len >= JINJA_STEP_BYTES) // every position may cost as much
            TRY(jinja_step(rt, needle.len));
    }
    return STATUS_OK;
}

static size_t find_first(struct str text, struct str needle, size_t from)
{
    if (from > text.len || needle.len > text.len - from)
        return STR_NOT_FOUND;
    if (needle.len == 0)
        return from;
    const char *rest = text.ptr + from;
    const char *found = needle.len == 1 ? memchr(rest, needle.ptr[0], text.len - from)
                                        : memmem(rest, text.len - from, needle.ptr, needle.len);
    return found ? (size_t)(found - text.ptr) : STR_NOT_FOUND;
}

// --- case and white space ---

static enum status change_case(struct jinja_runtime *rt, struct str text, enum jinja_case to,
                               struct jinja_value *out)
{
    size_t mark = jinja_mark(rt);
    TRY(jinja_put_case(rt, text, to));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

METHOD(method_upper)
{
    (void)arg, (void)args;
    return change_case(rt, self.str, JINJA_CASE_UPPER, out);
}

METHOD(method_lower)
{
    (void)arg, (void)args;
    return change_case(rt, self.str, JINJA_CASE_LOWER, out);
}

METHOD(method_title)
{
    (void)arg, (void)args;
    return change_case(rt, self.str, JINJA_CASE_TITLE, out);
}

METHOD(method_casefold)
{
    (void)arg, (void)args;
    return change_case(rt, self.str, JINJA_CASE_FOLD, out);
}

METHOD(method_capitalize)
{
    (void)arg, (void)args;
    size_t mark = jinja_mark(rt);
    TRY(jinja_put_capitalized(rt, self.str));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

METHOD(method_swapcase)
{
    (void)arg, (void)args;
    size_t mark = jinja_mark(rt);
    for (size_t at = 0; at < self.str.len;) {
        size_t len;
        struct str rest = str_slice(self.str, at, self.str.len);
        uint32_t c = utf8_decode(rest, &len);
        TRY(jinja_put_case(rt, str_slice(rest, 0, len),
                           jinja_is_upper(c) ? JINJA_CASE_LOWER : JINJA_CASE_UPPER));
        at += len;
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

static enum status strip(struct jinja_runtime *rt, struct jinja_value self,
                         struct jinja_value chars, bool left, bool right, struct jinja_value *out)
{
    struct str set;
    if (is_given(chars))
        TRY(jinja_need_string(rt, chars, "strip(): chars", &set));
    // Each character at the ends is compared with each of the set.
    TRY(jinja_step(rt, self.str.len * (1 + (is_given(chars) ? set.len / 8 : 0))));
    *out = jinja_string(jinja_strip(self.str, is_given(chars) ? &set : NULL, left, right));
    out->is_markup = self.is_markup;
    return STATUS_OK;
}

METHOD(method_strip)
{
    (void)args;
    return strip(rt, self, arg[0], true, true, out);
}

METHOD(method_lstrip)
{
    (void)args;
    return strip(rt, self, arg[0], true, false, out);
}

METHOD(method_rstrip)
{
    (void)args;
    return strip(rt, self, arg[0], false, true, out);
}

static enum status pad(struct jinja_runtime *rt, struct str text, const struct jinja_value *arg,
                       int side, struct jinja_value *out)
{
    int64_t width;
    struct str fill = STR(" ");
    TRY(jinja_need_int(rt, arg[0], "width", &width));
    if (arg[1].kind != JINJA_ABSENT)
        TRY(jinja_need_string(rt, arg[1], "fillchar", &fill));
    if (jinja_char_count(fill) != 1)
        return jinja_fail(rt, STATUS_INVALID,
                          "The fill character must be exactly one character long");
    int64_t len = (int64_t)jinja_char_count(text);
    int64_t total = width > len ? width - len : 0;
    int64_t left = side < 0 ? total : side > 0 ? 0 : total / 2 + (total & width & 1);
    size_t mark = jinja_mark(rt);
    TRY(jinja_put_repeat(rt, fill, (size_t)left));
    TRY(jinja_put(rt, text));
    TRY(jinja_put_repeat(rt, fill, (size_t)(total - left)));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

METHOD(method_center)
{
    (void)args;
    return pad(rt, self.str, arg, 0, out);
}

METHOD(method_ljust)
{
    (void)args;
    return pad(rt, self.str, arg, 1, out);
}

METHOD(method_rjust)
{
    (void)args;
    return pad(rt, self.str, arg, -1, out);
}

METHOD(method_zfill)
{
    (void)args;
    int64_t width, len = (int64_t)jinja_char_count(self.str);
    TRY(jinja_need_int(rt, arg[0], "width", &width));
    bool sign = self.str.len > 0 && (self.str.ptr[0] == '-' || self.str.ptr[0] == '+');
    size_t mark = jinja_mark(rt);
    TRY(jinja_put(rt, str_slice(self.str, 0, sign)));
    TRY(jinja_put_repeat(rt, STR("0"), width > len ? (size_t)(width - len) : 0));
    TRY(jinja_put(rt, str_slice(self.str, sign, self.str.len)));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

METHOD(method_expandtabs)
{
    (void)args;
    int64_t size = 8, column = 0;
    if (arg[0].kind != JINJA_ABSENT)
        TRY(jinja_need_int(rt, arg[0], "tabsize", &size));
    size_t mark = jinja_mark(rt);
    for (size_t i = 0; i < self.str.len; i++) {
        char c = self.str.ptr[i];
        if (c == '\t') {
            int64_t blanks = size > 0 ? size - column % size : 0;
            TRY(jinja_put_repeat(rt, STR(" "), (size_t)blanks));
            column += blanks;
            continue;
        }
        TRY(jinja_put(rt, str_slice(self.str, i, i + 1)));
        if (c == '\n' || c == '\r')
            column = 0;
        else
            column += ((unsigned char)c & 0xC0) != 0x80;
    }
    *out = jinja_take(rt, mark);
    return jinja_step(rt, self.str.len * 8);
}

// --- searching ---

/** The part of `text` between the optional positions; `*offset` is where it starts. False: the
 *  start lies beyond the end, where nothing can be found. */
static enum status part_of(struct jinja_runtime *rt, struct str text, struct jinja_value start,
                           struct jinja_value stop, struct str *part, int64_t *offset,
                           bool *possible)
{
    int64_t len = (int64_t)jinja_char_count(text), from = 0, to = len;
    if (is_given(start))
        TRY(jinja_need_int(rt, start, "start", &from));
    if (is_given(stop))
        TRY(jinja_need_int(rt, stop, "end", &to));
    from = from < 0 ? max_i64(from + len, 0) : from;
    to = to < 0 ? max_i64(to + len, 0) : min_i64(to, len);
    *possible = from <= to;
    *offset = from;
    *part = str_slice(text, jinja_char_offset(text, (size_t)min_i64(from, len)),
                      jinja_char_offset(text, (size_t)to));
    return jinja_step(rt, text.len);
}

static enum status search(struct jinja_runtime *rt, struct jinja_value self,
                          const struct jinja_value *arg, bool last, bool must,
                          struct jinja_value *out)
{
    struct str needle, part;
    int64_t offset;
    bool possible;
    TRY(jinja_need_string(rt, arg[0], "sub", &needle));
    TRY(part_of(rt, self.str, arg[1], arg[2], &part, &offset, &possible));
    if (last)
        TRY(jinja_step(rt, part.len * 8));
    size_t at = STR_NOT_FOUND;
    if (possible && last)
        TRY(find_last(rt, part, needle, &at));
    else if (possible)
        at = find_first(part, needle, 0);
    if (at == STR_NOT_FOUND && must)
        return jinja_fail(rt, STATUS_INVALID, "substring not found");
    *out = jinja_int(
        at == STR_NOT_FOUND ? -1 : offset + (int64_t)jinja_char_count(str_slice(part, 0, at)));
    return STATUS_OK;
}

METHOD(method_find)
{
    (void)args;
    return search(rt, self, arg, false, false, out);
}

METHOD(method_rfind)
{
    (void)args;
    return search(rt, self, arg, true, false, out);
}

METHOD(method_index)
{
    (void)args;
    return search(rt, self, arg, false, true, out);
}

METHOD(method_rindex)
{
    (void)args;
    return search(rt, self, arg, true, true, out);
}

METHOD(method_count)
{
    (void)args;
    struct str needle, part;
    int64_t offset;
    bool possible;
    jinja_int_t count = 0;
    TRY(jinja_need_string(rt, arg[0], "sub", &needle));
    TRY(part_of(rt, self.str, arg[1], arg[2], &part, &offset, &possible));
    if (needle.len == 0 && possible)
        count = (jinja_int_t)jinja_char_count(part) + 1;
    for (size_t at = 0; needle.len > 0 && possible; count++) {
        at = find_first(part, needle, at);
        if (at == STR_NOT_FOUND)
            break;
        at += needle.len;
    }
    *out = jinja_int(count);
    return STATUS_OK;
}

static enum status has_affix(struct jinja_runtime *rt, struct jinja_value self,
                             const struct jinja_value *arg, bool at_end, struct jinja_value *out)
{
    struct str part;
    int64_t offset;
    bool possible, found = false;
    TRY(part_of(rt, self.str, arg[1], arg[2], &part, &offset, &possible));
    const struct jinja_value *affixes = &arg[0];
    size_t num_affixes = 1;
    if (jinja_is_tuple(arg[0])) {
        affixes = arg[0].list->items;
        num_affixes = arg[0].list->len;
    }
    for (size_t i = 0; i < num_affixes; i++) {
        struct str affix;
        TRY(jinja_need_string(rt, affixes[i],
                              at_end ? "endswith first arg" : "startswith first arg", &affix));
        found = found || (at_end ? str_ends_with(part, affix) : str_starts_with(part, affix));
    }
    *out = jinja_bool(found && possible);
    return STATUS_OK;
}

METHOD(method_startswith)
{
    (void)args;
    return has_affix(rt, self, arg, false, out);
}

METHOD(method_endswith)
{
    (void)args;
    return has_affix(rt, self, arg, true, out);
}

METHOD(method_removeprefix)
{
    (void)args;
    struct str prefix;
    TRY(jinja_need_string(rt, arg[0], "prefix", &prefix));
    *out = self;
    if (str_starts_with(self.str, prefix))
        out->str = str_slice(self.str, prefix.len, self.str.len);
    return STATUS_OK;
}

METHOD(method_removesuffix)
{
    (void)args;
    struct str suffix;
    TRY(jinja_need_string(rt, arg[0], "suffix", &suffix));
    *out = self;
    if (str_ends_with(self.str, suffix))
        out->str = str_slice(self.str, 0, self.str.len - suffix.len);
    return STATUS_OK;
}

// --- taking apart and putting together ---

METHOD(method_replace)
{
    (void)args;
    struct str old, new_text, text = self.str;
    int64_t count = -1;
    TRY(jinja_need_string(rt, arg[0], "replace() argument 1", &old));
    TRY(jinja_need_string(rt, arg[1], "replace() argument 2", &new_text));
    if (is_given(arg[2]))
        TRY(jinja_need_int(rt, arg[2], "count", &count));
    size_t mark = jinja_mark(rt), from = 0;
    while (count != 0) {
        TRY(jinja_step(rt, 0));
        size_t at = find_first(text, old, from);
        if (at == STR_NOT_FOUND)
            break;
        size_t after = at + old.len;
        if (old.len == 0) { // between all characters and at both ends
            size_t len = at < text.len ? jinja_char_offset(str_slice(text, at, text.len), 1) : 1;
            after = at + len;
        }
        TRY(jinja_put(rt, str_slice(text, from, at)));
        TRY(jinja_put(rt, new_text));
        if (old.len == 0)
            TRY(jinja_put(rt, str_slice(text, at, after)));
        from = after;
        count -= count > 0;
    }
    TRY(jinja_put(rt, str_slice(text, from, text.len)));
    *out = jinja_take(rt, mark);
    return jinja_step(rt, text.len);
}

/** Reverses what rsplit has found from the end. */
static void reverse_items(struct jinja_list *list)
{
    for (size_t i = 0; i < list->len / 2; i++) {
        struct jinja_value item = list->items[i];
        list->items[i] = list->items[list->len - 1 - i];
        list->items[list->len - 1 - i] = item;
    }
}

static bool is_space_at(struct str text, size_t at, size_t *len)
{
    return jinja_is_space(utf8_decode(str_slice(text, at, text.len), len));
}

/** At runs of white space; none at the ends. */
static enum status split_space(struct jinja_runtime *rt, struct str text, int64_t max_split,
                               bool from_end, struct jinja_list *list)
{
    size_t capacity = 0;
    for (;;) {
        text = jinja_strip(text, NULL, !from_end, from_end);
        if (text.len == 0)
            return STATUS_OK;
        size_t at = from_end ? text.len : 0, len = 0;
        if (max_split == 0) {
            at = from_end ? 0 : text.len; // the rest, white space at its other end included
        } else if (from_end) {
            while (at > 0) {
                size_t before = at - 1;
                while (before > 0 && ((unsigned char)text.ptr[before] & 0xC0) == 0x80)
                    before--;
                if (is_space_at(text, before, &len))
                    break;
                at = before;
            }
        } else {
            while (at < text.len && !is_space_at(text, at, &len))
                at += len;
        }
        struct str word = from_end ? str_slice(text, at, text.len) : str_slice(text, 0, at);
        TRY(jinja_list_append(rt, list, &capacity, jinja_string(word)));
        text = from_end ? str_slice(text, 0, at) : str_slice(text, at, text.len);
        max_split -= max_split > 0;
    }
}

static enum status split_at(struct jinja_runtime *rt, struct str text, struct str separator,
                            int64_t max_split, bool from_end, struct jinja_list *list)
{
    size_t capacity = 0;
    for (;;) {
        size_t at = STR_NOT_FOUND;
        if (max_split != 0 && from_end)
            TRY(find_last(rt, text, separator, &at));
        else if (max_split != 0)
            at = find_first(text, separator, 0);
        if (at == STR_NOT_FOUND)
            return jinja_list_append(rt, list, &capacity, jinja_string(text));
        struct str after = str_slice(text, at + separator.len, text.len);
        struct str before = str_slice(text, 0, at);
        TRY(jinja_list_append(rt, list, &capacity, jinja_string(from_end ? after : before)));
        text = from_end ? before : after;
        max_split -= max_split > 0;
    }
}

static enum status split(struct jinja_runtime *rt, struct jinja_value self,
                         const struct jinja_value *arg, bool from_end, struct jinja_value *out)
{
    int64_t max_split = -1;
    if (is_given(arg[1]))
        TRY(jinja_need_int(rt, arg[1], "maxsplit", &max_split));
    TRY(jinja_step(rt, self.str.len * 8));
    TRY(jinja_list_create(rt, 0, JINJA_SEQUENCE_LIST, out));
    if (is_given(arg[0])) {
        struct str separator;
        TRY(jinja_need_string(rt, arg[0], "sep", &separator));
        if (separator.len == 0)
            return jinja_fail(rt, STATUS_INVALID, "empty separator");
        TRY(split_at(rt, self.str, separator, max_split, from_end, out->list));
    } else {
        TRY(split_space(rt, self.str, max_split, from_end, out->list));
    }
    if (from_end)
        reverse_items(out->list);
    return STATUS_OK;
}

METHOD(method_split)
{
    (void)args;
    return split(rt, self, arg, false, out);
}

METHOD(method_rsplit)
{
    (void)args;
    return split(rt, self, arg, true, out);
}

struct str jinja_next_line(struct str *rest, bool keep_end)
{
    for (size_t at = 0; at < rest->len;) {
        size_t len;
        uint32_t c = utf8_decode(str_slice(*rest, at, rest->len), &len);
        bool is_end = (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
        if (is_end) {
            size_t after = at + len;
            if (c == '\r' && after < rest->len && rest->ptr[after] == '\n')
                after++;
            struct str line = str_slice(*rest, 0, keep_end ? after : at);
            *rest = str_slice(*rest, after, rest->len);
            return line;
        }
        at += len;
    }
    struct str line = *rest;
    *rest = (struct str){0};
    return line;
}

METHOD(method_splitlines)
{
    (void)args;
    struct str rest = self.str;
    size_t capacity = 0;
    TRY(jinja_step(rt, rest.len * 8));
    TRY(jinja_list_create(rt, 0, JINJA_SEQUENCE_LIST, out));
    while (rest.len > 0) {
        struct str line = jinja_next_line(&rest, jinja_is_true(arg[0]));
        TRY(jinja_list_append(rt, out->list, &capacity, jinja_string(line)));
    }
    return STATUS_OK;
}

static enum status partition(struct jinja_runtime *rt, struct jinja_value self,
                             struct jinja_value separator, bool last, struct jinja_value *out)
{
    struct str sep;
    TRY(jinja_need_string(rt, separator, "sep", &sep));
    if (sep.len == 0)
        return jinja_fail(rt, STATUS_INVALID, "empty separator");
    TRY(jinja_step(rt, self.str.len * 8));
    size_t at = find_first(self.str, sep, 0);
    if (last)
        TRY(find_last(rt, self.str, sep, &at));
    struct jinja_value empty = jinja_string(STR(""));
    TRY(jinja_list_create(rt, 3, JINJA_SEQUENCE_TUPLE, out));
    struct jinja_value *items = out->list->items;
    if (at == STR_NOT_FOUND) {
        items[0] = last ? empty : self;
        items[1] = empty;
        items[2] = last ? self : empty;
    } else {
        items[0] = jinja_string(str_slice(self.str, 0, at));
        items[1] = jinja_string(sep);
        items[2] = jinja_string(str_slice(self.str, at + sep.len, self.str.len));
    }
    return STATUS_OK;
}

METHOD(method_partition)
{
    (void)args;
    return partition(rt, self, arg[0], false, out);
}

METHOD(method_rpartition)
{
    (void)args;
    return partition(rt, self, arg[0], true, out);
}

METHOD(method_join)
{
    (void)args;
    struct jinja_value items;
    TRY(jinja_need_defined(rt, arg[0]));
    TRY(jinja_iterate(rt, arg[0], &items));
    size_t mark = jinja_mark(rt);
    for (size_t i = 0; i < items.list->len; i++) {
        struct jinja_value item = items.list->items[i];
        if (item.kind != JINJA_STRING)
            return jinja_fail(rt, STATUS_INVALID,
                              "sequence item %zu: expected str instance, %s found", i,
                              jinja_type_name(item));
        TRY(jinja_step(rt, 0));
        if (i > 0)
            TRY(jinja_put(rt, self.str));
        TRY(jinja_put(rt, item.str));
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

METHOD(method_format)
{
    (void)arg;
    return jinja_format_braces(rt, self.str, args, out);
}

// --- classes ---

static enum status all_are(struct jinja_runtime *rt, struct str text, bool (*is)(uint32_t),
                           struct jinja_value *out)
{
    bool all = text.len > 0;
    for (size_t at = 0; at < text.len && all;) {
        size_t len;
        all = is(utf8_decode(str_slice(text, at, text.len), &len));
        at += len;
    }
    *out = jinja_bool(all);
    return jinja_step(rt, text.len * 8);
}

static bool is_alnum(uint32_t c)
{
    return jinja_is_alpha(c) || jinja_is_numeric(c);
}

static bool is_ascii(uint32_t c)
{
    return c < 0x80;
}

METHOD(method_isdigit)
{
    (void)arg, (void)args;
    return all_are(rt, self.str, jinja_is_digit, out);
}

METHOD(method_isdecimal)
{
    (void)arg, (void)args;
    return all_are(rt, self.str, jinja_is_decimal, out);
}

METHOD(method_isnumeric)
{
    (void)arg, (void)args;
    return all_are(rt, self.str, jinja_is_numeric, out);
}

METHOD(method_isalpha)
{
    (void)arg, (void)args;
    return all_are(rt, self.str, jinja_is_alpha, out);
}

METHOD(method_isalnum)
{
    (void)arg, (void)args;
    return all_are(rt, self.str, is_alnum, out);
}

METHOD(method_isspace)
{
    (void)arg, (void)args;
    return all_are(rt, self.str, jinja_is_space, out);
}

METHOD(method_isascii)
{
    (void)arg, (void)args;
    TRY(all_are(rt, self.str, is_ascii, out));
    *out = jinja_bool(self.str.len == 0 || out->boolean);
    return STATUS_OK;
}

METHOD(method_isprintable)
{
    (void)arg, (void)args;
    TRY(all_are(rt, self.str, jinja_is_printable, out));
    *out = jinja_bool(self.str.len == 0 || out->boolean);
    return STATUS_OK;
}

METHOD(method_isidentifier)
{
    (void)arg, (void)args;
    TRY(all_are(rt, self.str, jinja_is_word, out));
    size_t len;
    if (out->boolean && jinja_is_numeric(utf8_decode(self.str, &len)))
        *out = jinja_bool(false);
    return STATUS_OK;
}

/** At least one cased character, and none of the other case. */
static enum status is_case(struct jinja_runtime *rt, struct str text, bool upper,
                           struct jinja_value *out)
{
    bool any = false, other = false;
    for (size_t at = 0; at < text.len;) {
        size_t len;
        uint32_t c = utf8_decode(str_slice(text, at, text.len), &len);
        any = any || (upper ? jinja_is_upper(c) : jinja_is_lower(c));
        other = other || jinja_is_title(c) || (upper ? jinja_is_lower(c) : jinja_is_upper(c));
        at += len;
    }
    *out = jinja_bool(any && !other);
    return jinja_step(rt, text.len * 8);
}

METHOD(method_isupper)
{
    (void)arg, (void)args;
    return is_case(rt, self.str, true, out);
}

METHOD(method_islower)
{
    (void)arg, (void)args;
    return is_case(rt, self.str, false, out);
}

METHOD(method_istitle)
{
    (void)arg, (void)args;
    bool any = false, right = true, previous_cased = false;
    for (size_t at = 0; at < self.str.len && right;) {
        size_t len;
        uint32_t c = utf8_decode(str_slice(self.str, at, self.str.len), &len);
        bool starts = jinja_is_upper(c) || jinja_is_title(c), goes_on = jinja_is_lower(c);
        if ((starts && previous_cased) || (goes_on && !previous_cased))
            right = false;
        previous_cased = starts || goes_on;
        any = any || previous_cased;
        at += len;
    }
    *out = jinja_bool(any && right);
    return jinja_step(rt, self.str.len * 8);
}

static const struct jinja_function methods[] = {
    {"upper", "", 0, method_upper},
    {"lower", "", 0, method_lower},
    {"title", "", 0, method_title},
    {"capitalize", "", 0, method_capitalize},
    {"swapcase", "", 0, method_swapcase},
    {"casefold", "", 0, method_casefold},
    {"strip", "chars", 0, method_strip},
    {"lstrip", "chars", 0, method_lstrip},
    {"rstrip", "chars", 0, method_rstrip},
    {"center", "width fillchar", 1, method_center},
    {"ljust", "width fillchar", 1, method_ljust},
    {"rjust", "width fillchar", 1, method_rjust},
    {"zfill", "width", 1, method_zfill},
    {"expandtabs", "tabsize", 0, method_expandtabs},
    {"find", "sub start end", 1, method_find},
    {"rfind", "sub start end", 1, method_rfind},
    {"index", "sub start end", 1, method_index},
    {"rindex", "sub start end", 1, method_rindex},
    {"count", "sub start end", 1, method_count},
    {"startswith", "prefix start end", 1, method_startswith},
    {"endswith", "suffix start end", 1, method_endswith},
    {"removeprefix", "prefix", 1, method_removeprefix},
    {"removesuffix", "suffix", 1, method_removesuffix},
    {"replace", "old new count", 2, method_replace},
    {"split", "sep maxsplit", 0, method_split},
    {"rsplit", "sep maxsplit", 0, method_rsplit},
    {"splitlines", "keepends", 0, method_splitlines},
    {"partition", "sep", 1, method_partition},
    {"rpartition", "sep", 1, method_rpartition},
    {"join", "iterable", 1, method_join},
    {"format", NULL, 0, method_format},
    {"isdigit", "", 0, method_isdigit},
    {"isdecimal", "", 0, method_isdecimal},
    {"isnumeric", "", 0, method_isnumeric},
    {"isalpha", "", 0, method_isalpha},
    {"isalnum", "", 0, method_isalnum},
    {"isspace", "", 0, method_isspace},
    {"isascii", "", 0, method_isascii},
    {"isprintable", "", 0, method_isprintable},
    {"isidentifier", "", 0, method_isidentifier},
    {"isupper", "", 0, method_isupper},
    {"islower", "", 0, method_islower},
    {"istitle", "", 0, method_istitle},
    {0},
};

const struct jinja_function *jinja_find_string_method(struct str name)
{
    return jinja_table_find(methods, name);
}
