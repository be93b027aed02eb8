// Tests: what stands after `is`.
#include "tokenizer/jinja_filters.h"

#include <string.h>

#define TYPE_TEST(function, condition)   \
    JINJA_FILTER(function)               \
    {                                    \
        (void)rt, (void)arg, (void)args; \
        *out = jinja_bool(condition);    \
        return STATUS_OK;                \
    }

TYPE_TEST(test_defined, self.kind != JINJA_UNDEFINED)
TYPE_TEST(test_undefined, self.kind == JINJA_UNDEFINED)
TYPE_TEST(test_none, self.kind == JINJA_NONE)
TYPE_TEST(test_boolean, self.kind == JINJA_BOOL)
TYPE_TEST(test_true, self.kind == JINJA_BOOL && self.boolean)
TYPE_TEST(test_false, self.kind == JINJA_BOOL && !self.boolean)
TYPE_TEST(test_integer, self.kind == JINJA_INT)
TYPE_TEST(test_float, self.kind == JINJA_FLOAT)
TYPE_TEST(test_number, jinja_is_number(self))
TYPE_TEST(test_string, self.kind == JINJA_STRING)
TYPE_TEST(test_mapping, self.kind == JINJA_DICT)
TYPE_TEST(test_escaped, self.kind == JINJA_STRING && self.is_markup)
TYPE_TEST(test_sequence, self.kind == JINJA_STRING || self.kind == JINJA_DICT ||
                             self.kind == JINJA_UNDEFINED ||
                             (self.kind == JINJA_LIST && self.sequence <= JINJA_SEQUENCE_RANGE))
TYPE_TEST(test_iterable, self.kind == JINJA_STRING || self.kind == JINJA_DICT ||
                             self.kind == JINJA_UNDEFINED || self.kind == JINJA_LIST ||
                             self.kind == JINJA_LOOP)
TYPE_TEST(test_callable, self.kind == JINJA_FUNCTION || self.kind == JINJA_METHOD ||
                             self.kind == JINJA_MACRO || self.kind == JINJA_LOOP ||
                             self.kind == JINJA_JOINER || self.kind == JINJA_UNDEFINED)

static enum status modulo_is(struct jinja_runtime *rt, struct jinja_value self,
                             struct jinja_value divisor, int rest, struct jinja_value *out)
{
    struct jinja_value value;
    bool equal;
    TRY(jinja_binary(rt, JINJA_OP_MOD, self, divisor, &value));
    TRY(jinja_equal(rt, value, jinja_int(rest), &equal));
    *out = jinja_bool(equal);
    return STATUS_OK;
}

JINJA_FILTER(test_odd)
{
    (void)arg, (void)args;
    return modulo_is(rt, self, jinja_int(2), 1, out);
}

JINJA_FILTER(test_even)
{
    (void)arg, (void)args;
    return modulo_is(rt, self, jinja_int(2), 0, out);
}

JINJA_FILTER(test_divisibleby)
{
    (void)args;
    return modulo_is(rt, self, arg[0], 0, out);
}

static enum status case_is(struct jinja_runtime *rt, struct jinja_value self, const char *method,
                           struct jinja_value *out)
{
    struct jinja_value text;
    const struct jinja_args none = {0};
    TRY(jinja_to_str(rt, self, &text));
    return jinja_find_string_method(str_from(method))->call(rt, text, NULL, &none, out);
}

JINJA_FILTER(test_lower)
{
    (void)arg, (void)args;
    return case_is(rt, self, "islower", out);
}

JINJA_FILTER(test_upper)
{
    (void)arg, (void)args;
    return case_is(rt, self, "isupper", out);
}

JINJA_FILTER(test_eq)
{
    (void)args;
    bool equal;
    TRY(jinja_equal(rt, self, arg[0], &equal));
    *out = jinja_bool(equal);
    return STATUS_OK;
}

JINJA_FILTER(test_ne)
{
    TRY(test_eq(rt, self, arg, args, out));
    *out = jinja_bool(!out->boolean);
    return STATUS_OK;
}

JINJA_FILTER(test_lt)
{
    (void)args;
    int order;
    TRY(jinja_compare(rt, self, arg[0], "<", &order));
    *out = jinja_bool(order == -1);
    return STATUS_OK;
}

JINJA_FILTER(test_le)
{
    (void)args;
    int order;
    TRY(jinja_compare(rt, self, arg[0], "<=", &order));
    *out = jinja_bool(order <= 0);
    return STATUS_OK;
}

JINJA_FILTER(test_gt)
{
    (void)args;
    int order;
    TRY(jinja_compare(rt, self, arg[0], ">", &order));
    *out = jinja_bool(order == 1);
    return STATUS_OK;
}

JINJA_FILTER(test_ge)
{
    (void)args;
    int order;
    TRY(jinja_compare(rt, self, arg[0], ">=", &order));
    *out = jinja_bool(order == 0 || order == 1);
    return STATUS_OK;
}

JINJA_FILTER(test_in)
{
    (void)args;
    bool found;
    TRY(jinja_contains(rt, arg[0], self, &found));
    *out = jinja_bool(found);
    return STATUS_OK;
}

/** Identity; scalars of the same type and value are one object. */
JINJA_FILTER(test_sameas)
{
    (void)args;
    struct jinja_value other = arg[0];
    bool same = self.kind == other.kind;
    bool is_scalar = jinja_is_number(self) || self.kind == JINJA_STRING || self.kind == JINJA_NONE;
    if (same && is_scalar)
        TRY(jinja_equal(rt, self, other, &same));
    else if (same)
        same = self.list == other.list;
    *out = jinja_bool(same);
    return STATUS_OK;
}

JINJA_FILTER(test_filter)
{
    (void)rt, (void)arg, (void)args;
    *out = jinja_bool(self.kind == JINJA_STRING && jinja_find_filter(self.str) != NULL);
    return STATUS_OK;
}

JINJA_FILTER(test_test)
{
    (void)rt, (void)arg, (void)args;
    *out = jinja_bool(self.kind == JINJA_STRING && jinja_find_test(self.str) != NULL);
    return STATUS_OK;
}

static const struct jinja_function tests[] = {
    {"defined", "", 0, test_defined},    {"undefined", "", 0, test_undefined},
    {"none", "", 0, test_none},          {"boolean", "", 0, test_boolean},
    {"true", "", 0, test_true},          {"false", "", 0, test_false},
    {"integer", "", 0, test_integer},    {"float", "", 0, test_float},
    {"number", "", 0, test_number},      {"string", "", 0, test_string},
    {"mapping", "", 0, test_mapping},    {"escaped", "", 0, test_escaped},
    {"sequence", "", 0, test_sequence},  {"iterable", "", 0, test_iterable},
    {"callable", "", 0, test_callable},  {"odd", "", 0, test_odd},
    {"even", "", 0, test_even},          {"divisibleby", "num", 1, test_divisibleby},
    {"lower", "", 0, test_lower},        {"upper", "", 0, test_upper},
    {"eq", "other", 1, test_eq},         {"equalto", "other", 1, test_eq},
    {"==", "other", 1, test_eq},         {"ne", "other", 1, test_ne},
    {"!=", "other", 1, test_ne},         {"lt", "other", 1, test_lt},
    {"lessthan", "other", 1, test_lt},   {"<", "other", 1, test_lt},
    {"le", "other", 1, test_le},         {"<=", "other", 1, test_le},
    {"gt", "other", 1, test_gt},         {"greaterthan", "other", 1, test_gt},
    {">", "other", 1, test_gt},          {"ge", "other", 1, test_ge},
    {">=", "other", 1, test_ge},         {"in", "seq", 1, test_in},
    {"sameas", "other", 1, test_sameas}, {"filter", "", 0, test_filter},
    {"test", "", 0, test_test},          {0},
};

const struct jinja_function *jinja_find_test(struct str name)
{
    return jinja_table_find(tests, name);
}
