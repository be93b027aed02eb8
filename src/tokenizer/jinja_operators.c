// Arithmetic and slices, as Python's.
#include "tokenizer/jinja_value.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

static const char *const symbols[] = {
    [JINJA_OP_ADD] = "+",       [JINJA_OP_SUB] = "-", [JINJA_OP_MUL] = "*",
    [JINJA_OP_DIV] = "/",       [JINJA_OP_MOD] = "%", [JINJA_OP_POW] = "** or pow()",
    [JINJA_OP_FLOORDIV] = "//",
};

static enum status fail_operands(struct jinja_runtime *rt, enum jinja_operator op,
                                 struct jinja_value a, struct jinja_value b)
{
    return jinja_fail(rt, STATUS_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'",
                      symbols[op], jinja_type_name(a), jinja_type_name(b));
}

static enum status fail_overflow(struct jinja_runtime *rt)
{
    return jinja_fail(rt, STATUS_TOO_LARGE, "an integer grew over 128 bits");
}

static enum status int_power(struct jinja_runtime *rt, jinja_int_t base, jinja_int_t exponent,
                             struct jinja_value *out)
{
    if (exponent < 0) {
        if (base == 0)
            return jinja_fail(rt, STATUS_INVALID, "0.0 cannot be raised to a negative power");
        *out = jinja_float(pow((double)base, (double)exponent));
        return STATUS_OK;
    }
    jinja_int_t result = 1;
    if (base == 0 || base == 1) {
        result = exponent == 0 ? 1 : base;
    } else if (base == -1) {
        result = exponent % 2 == 0 ? 1 : -1;
    } else {
        for (jinja_int_t i = 0; i < exponent; i++) // overflows after at most 127 rounds
            if (__builtin_mul_overflow(result, base, &result))
                return fail_overflow(rt);
    }
    *out = jinja_int(result);
    return STATUS_OK;
}

static enum status int_arithmetic(struct jinja_runtime *rt, enum jinja_operator op, jinja_int_t a,
                                  jinja_int_t b, struct jinja_value *out)
{
    jinja_int_t result = 0;
    bool overflow = false;
    switch (op) {
    case JINJA_OP_ADD:
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case JINJA_OP_SUB:
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case JINJA_OP_MUL:
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case JINJA_OP_DIV:
        if (b == 0)
            return jinja_fail(rt, STATUS_INVALID, "division by zero");
        *out = jinja_float((double)a / (double)b);
        return STATUS_OK;
    case JINJA_OP_FLOORDIV:
    case JINJA_OP_MOD: {
        if (b == 0)
            return jinja_fail(rt, STATUS_INVALID, "integer division or modulo by zero");
        if (b == -1) { // the one quotient that can overflow
            overflow = __builtin_sub_overflow((jinja_int_t)0, a, &result);
            if (op == JINJA_OP_MOD) {
                result = 0;
                overflow = false;
            }
            break;
        }
        jinja_int_t quotient = a / b, rest = a % b;
        if (rest != 0 && (rest < 0) != (b < 0)) { // Python rounds down
            quotient--;
            rest += b;
        }
        result = op == JINJA_OP_MOD ? rest : quotient;
        break;
    }
    case JINJA_OP_POW:
        return int_power(rt, a, b, out);
    }
    if (overflow)
        return fail_overflow(rt);
    *out = jinja_int(result);
    return STATUS_OK;
}

static enum status float_arithmetic(struct jinja_runtime *rt, enum jinja_operator op, double a,
                                    double b, struct jinja_value *out)
{
    double result = 0;
    if (b == 0 && (op == JINJA_OP_DIV || op == JINJA_OP_FLOORDIV || op == JINJA_OP_MOD))
        return jinja_fail(rt, STATUS_INVALID, "float %s by zero",
                          op == JINJA_OP_DIV ? "division" : "floor division");
    switch (op) {
    case JINJA_OP_ADD:
        result = a + b;
        break;
    case JINJA_OP_SUB:
        result = a - b;
        break;
    case JINJA_OP_MUL:
        result = a * b;
        break;
    case JINJA_OP_DIV:
        result = a / b;
        break;
    case JINJA_OP_FLOORDIV:
    case JINJA_OP_MOD: {
        double rest = fmod(a, b);
        double quotient = (a - rest) / b;
        if (rest != 0 && (rest < 0) != (b < 0)) {
            rest += b;
            quotient -= 1;
        } else if (rest == 0) {
            rest = copysign(0, b);
        }
        result = op == JINJA_OP_MOD ? rest : round(quotient);
        break;
    }
    case JINJA_OP_POW:
        if (a == 0 && b < 0)
            return jinja_fail(rt, STATUS_INVALID, "0.0 cannot be raised to a negative power");
        if (a < 0 && floor(b) != b)
            return jinja_fail(rt, STATUS_UNSUPPORTED, "complex numbers are not supported");
        result = pow(a, b);
        if (isinf(result) && !isinf(a) && !isinf(b))
            return jinja_fail(rt, STATUS_INVALID, "the result of ** is too large");
        break;
    }
    *out = jinja_float(result);
    return STATUS_OK;
}

static enum status concat_strings(struct jinja_runtime *rt, struct jinja_value a,
                                  struct jinja_value b, struct jinja_value *out)
{
    bool is_markup = a.is_markup || b.is_markup;
    size_t mark = jinja_mark(rt);
    TRY(is_markup && !a.is_markup ? jinja_put_escaped(rt, a.str) : jinja_put(rt, a.str));
    TRY(is_markup && !b.is_markup ? jinja_put_escaped(rt, b.str) : jinja_put(rt, b.str));
    *out = jinja_take(rt, mark);
    out->is_markup = is_markup;
    return STATUS_OK;
}

static enum status concat_lists(struct jinja_runtime *rt, struct jinja_value a,
                                struct jinja_value b, struct jinja_value *out)
{
    size_t len_a = a.list->len, len_b = b.list->len;
    enum jinja_sequence sequence = jinja_is_tuple(a) ? JINJA_SEQUENCE_TUPLE : JINJA_SEQUENCE_LIST;
    TRY(jinja_list_create(rt, len_a + len_b, sequence, out));
    if (len_a > 0)
        memcpy(out->list->items, a.list->items, len_a * sizeof(struct jinja_value));
    if (len_b > 0)
        memcpy(out->list->items + len_a, b.list->items, len_b * sizeof(struct jinja_value));
    return STATUS_OK;
}

static bool is_plain_list(struct jinja_value value)
{
    return value.kind == JINJA_LIST &&
           (value.sequence == JINJA_SEQUENCE_LIST || jinja_is_tuple(value));
}

static enum status add(struct jinja_runtime *rt, struct jinja_value a, struct jinja_value b,
                       struct jinja_value *out)
{
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING)
        return concat_strings(rt, a, b, out);
    if (is_plain_list(a) && is_plain_list(b) && jinja_is_tuple(a) == jinja_is_tuple(b))
        return concat_lists(rt, a, b, out);
    if (a.kind == JINJA_STRING || is_plain_list(a)) {
        const char *type = jinja_type_name(a);
        return jinja_fail(rt, STATUS_INVALID, "can only concatenate %s (not \"%s\") to %s", type,
                          jinja_type_name(b), type);
    }
    return fail_operands(rt, JINJA_OP_ADD, a, b);
}

static enum status repeat(struct jinja_runtime *rt, struct jinja_value value,
                          struct jinja_value count, struct jinja_value *out)
{
    int64_t times;
    TRY(jinja_need_int(rt, count, "the number of repetitions", &times));
    if (times < 0)
        times = 0;
    if (value.kind == JINJA_STRING) {
        size_t mark = jinja_mark(rt);
        TRY(jinja_put_repeat(rt, value.str, (size_t)times));
        *out = jinja_take(rt, mark);
        out->is_markup = value.is_markup;
        return STATUS_OK;
    }
    size_t total, len = value.list->len;
    if (!size_mul(&total, len, (size_t)times))
        return jinja_fail(rt, STATUS_TOO_LARGE, "the repeated list is too long");
    TRY(jinja_list_create(rt, total,
                          jinja_is_tuple(value) ? JINJA_SEQUENCE_TUPLE : JINJA_SEQUENCE_LIST, out));
    for (size_t i = 0; i < total; i++)
        out->list->items[i] = value.list->items[i % len];
    return STATUS_OK;
}

enum status jinja_binary(struct jinja_runtime *rt, enum jinja_operator op, struct jinja_value a,
                         struct jinja_value b, struct jinja_value *out)
{
    TRY(jinja_need_defined(rt, a));
    TRY(jinja_need_defined(rt, b));
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT)
            return float_arithmetic(rt, op, jinja_as_double(a), jinja_as_double(b), out);
        return int_arithmetic(rt, op, jinja_as_int(a), jinja_as_int(b), out);
    }
    bool a_integer = a.kind == JINJA_INT || a.kind == JINJA_BOOL;
    bool b_integer = b.kind == JINJA_INT || b.kind == JINJA_BOOL;
    if (op == JINJA_OP_ADD)
        return add(rt, a, b, out);
    if (op == JINJA_OP_MUL && b_integer && (a.kind == JINJA_STRING || is_plain_list(a)))
        return repeat(rt, a, b, out);
    if (op == JINJA_OP_MUL && a_integer && (b.kind == JINJA_STRING || is_plain_list(b)))
        return repeat(rt, b, a, out);
    if (op == JINJA_OP_MOD && a.kind == JINJA_STRING)
        return jinja_format_percent(rt, a.str, b, out);
    return fail_operands(rt, op, a, b);
}

enum status jinja_negate(struct jinja_runtime *rt, struct jinja_value value,
                         struct jinja_value *out)
{
    TRY(jinja_need_defined(rt, value));
    if (value.kind == JINJA_FLOAT) {
        *out = jinja_float(-value.real);
        return STATUS_OK;
    }
    if (!jinja_is_number(value))
        return jinja_fail(rt, STATUS_INVALID, "bad operand type for unary -: '%s'",
                          jinja_type_name(value));
    return int_arithmetic(rt, JINJA_OP_SUB, 0, jinja_as_int(value), out);
}

// --- slices ---

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

static enum status slice_bound(struct jinja_runtime *rt, struct jinja_value bound, int64_t len,
                               bool backwards, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (bound.kind == JINJA_NONE)
        return STATUS_OK;
    TRY(jinja_need_int(rt, bound, "a slice index", out));
    if (*out < 0)
        *out = *out < -len ? -1 : *out + len;
    if (*out < 0)
        *out = backwards ? -1 : 0;
    *out = clamp(*out, backwards ? -1 : 0, backwards ? len - 1 : len);
    return STATUS_OK;
}

static enum status slice_string(struct jinja_runtime *rt, struct jinja_value value, int64_t start,
                                int64_t step, int64_t count, struct jinja_value *out)
{
    struct str text = value.str;
    if (step == 1) {
        size_t from = jinja_char_offset(text, (size_t)start);
        struct str rest = str_slice(text, from, text.len);
        *out = jinja_string(str_slice(rest, 0, jinja_char_offset(rest, (size_t)count)));
    } else {
        struct jinja_value chars;
        TRY(jinja_iterate(rt, value, &chars));
        size_t mark = jinja_mark(rt);
        for (int64_t i = 0; i < count; i++)
            TRY(jinja_put(rt, chars.list->items[start + i * step].str));
        *out = jinja_take(rt, mark);
    }
    out->is_markup = value.is_markup;
    return jinja_step(rt, text.len);
}

enum status jinja_slice(struct jinja_runtime *rt, struct jinja_value value,
                        struct jinja_value start, struct jinja_value stop, struct jinja_value step,
                        struct jinja_value *out)
{
    TRY(jinja_need_defined(rt, value));
    bool sliceable = value.kind == JINJA_STRING || is_plain_list(value) ||
                     (value.kind == JINJA_LIST && value.sequence == JINJA_SEQUENCE_RANGE);
    if (!sliceable) { // as a subscript that fails: undefined, an error once it is used
        *out = jinja_undefined_hint(rt, "'%s' object cannot be sliced", jinja_type_name(value));
        return STATUS_OK;
    }
    int64_t len, by = 1, from, to;
    TRY(jinja_length(rt, value, &len));
    if (step.kind != JINJA_NONE)
        TRY(jinja_need_int(rt, step, "a slice step", &by));
    if (by == 0)
        return jinja_fail(rt, STATUS_INVALID, "slice step cannot be zero");
    by = clamp(by, -len - 1, len + 1); // no further step can matter; keeps the sums in range
    TRY(slice_bound(rt, start, len, by < 0, by < 0 ? len - 1 : 0, &from));
    TRY(slice_bound(rt, stop, len, by < 0, by < 0 ? -1 : len, &to));
    // cppcheck-suppress zerodivcond ; `by` is not 0
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): `by` is not 0, nor clamped to it
    int64_t count = by > 0 ? (to - from + by - 1) / by : (from - to - by - 1) / -by;
    if (count < 0)
        count = 0;
    if (value.kind == JINJA_STRING)
        return slice_string(rt, value, from, by, count, out);
    TRY(jinja_list_create(rt, (size_t)count, (enum jinja_sequence)value.sequence, out));
    for (int64_t i = 0; i < count; i++)
        out->list->items[i] = value.list->items[from + i * by];
    if (value.sequence == JINJA_SEQUENCE_RANGE) {
        int64_t *range = jinja_alloc(rt, 3 * sizeof(*range));
        const int64_t *old = value.list->range;
        range[0] = old[0] + from * old[2];
        range[1] = old[0] + to * old[2];
        range[2] = old[2] * by;
        out->list->range = range;
    }
    return STATUS_OK;
}
