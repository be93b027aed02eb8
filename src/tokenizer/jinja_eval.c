// Expressions of templates.
#include "tokenizer/jinja_eval.h"

#include <string.h>

#include "base/memory.h"

// --- variables ---

struct jinja_scope *jinja_scope_create(struct jinja_runtime *rt, struct jinja_scope *parent)
{
    struct jinja_scope *scope = jinja_alloc(rt, sizeof(*scope));
    *scope = (struct jinja_scope){.parent = parent};
    return scope;
}

void jinja_scope_set(struct jinja_runtime *rt, struct jinja_scope *scope, struct str name,
                     struct jinja_value value)
{
    for (size_t i = 0; i < scope->len; i++) {
        if (str_eq(scope->bindings[i].name, name)) {
            scope->bindings[i].value = value;
            return;
        }
    }
    if (scope->len == scope->capacity) { // bounded by the names in the source
        size_t capacity = scope->capacity ? scope->capacity * 2 : 4;
        struct jinja_binding *bindings = jinja_alloc(rt, capacity * sizeof(*bindings));
        if (scope->len > 0)
            memcpy(bindings, scope->bindings, scope->len * sizeof(*bindings));
        scope->bindings = bindings;
        scope->capacity = capacity;
    }
    scope->bindings[scope->len++] = (struct jinja_binding){name, value};
}

struct jinja_value jinja_scope_get(struct jinja_runtime *rt, const struct jinja_scope *scope,
                                   struct str name)
{
    for (; scope; scope = scope->parent)
        for (size_t i = 0; i < scope->len; i++)
            if (str_eq(scope->bindings[i].name, name))
                return scope->bindings[i].value;
    const struct jinja_value *global = jinja_dict_get(rt->globals, name);
    if (global)
        return *global;
    const struct jinja_function *function = jinja_find_global(name);
    if (function)
        return (struct jinja_value){.kind = JINJA_FUNCTION, .function = function};
    return jinja_undefined(rt, (struct jinja_value){0}, jinja_string(name));
}

// --- calls ---

static enum status append_star(struct jinja_runtime *rt, struct jinja_value star,
                               struct jinja_value **items, size_t *num)
{
    struct jinja_value list, joined;
    TRY(jinja_iterate(rt, star, &list));
    TRY(jinja_list_create(rt, *num + list.list->len, JINJA_SEQUENCE_LIST, &joined));
    if (*num > 0)
        memcpy(joined.list->items, *items, *num * sizeof(**items));
    if (list.list->len > 0)
        memcpy(joined.list->items + *num, list.list->items, list.list->len * sizeof(**items));
    *items = joined.list->items;
    *num = joined.list->len;
    return STATUS_OK;
}

static enum status check_star_star(struct jinja_runtime *rt, struct jinja_value value)
{
    TRY(jinja_need_defined(rt, value));
    if (value.kind != JINJA_DICT)
        return jinja_fail(rt, STATUS_INVALID, "argument after ** must be a mapping, not %s",
                          jinja_type_name(value));
    for (size_t i = 0; i < value.dict->len; i++)
        if (value.dict->entries[i].key.kind != JINJA_STRING)
            return jinja_fail(rt, STATUS_INVALID, "keywords must be strings");
    return jinja_step(rt, value.dict->len);
}

static enum status eval_args(struct jinja_runtime *rt, struct jinja_scope *scope,
                             const struct jinja_call_args *source, struct jinja_value caller,
                             struct jinja_args *out)
{
    size_t num = source->positional.len, num_named = source->named.len;
    struct jinja_value *items = jinja_alloc(rt, num * sizeof(*items));
    for (size_t i = 0; i < num; i++)
        TRY(jinja_eval(rt, scope, source->positional.items[i], &items[i]));
    if (source->star) {
        struct jinja_value star;
        TRY(jinja_eval(rt, scope, source->star, &star));
        TRY(append_star(rt, star, &items, &num));
    }
    struct jinja_value extra = {0};
    size_t num_extra = 0;
    if (source->star_star) {
        TRY(jinja_eval(rt, scope, source->star_star, &extra));
        TRY(check_star_star(rt, extra));
        num_extra = extra.dict->len;
    }
    size_t room = num_named + num_extra + 1;
    struct str *names = jinja_alloc(rt, room * sizeof(*names));
    struct jinja_value *named = jinja_alloc(rt, room * sizeof(*named));
    for (size_t i = 0; i < num_named; i++) {
        names[i] = source->names[i];
        TRY(jinja_eval(rt, scope, source->named.items[i], &named[i]));
    }
    for (size_t i = 0; i < num_extra; i++, num_named++) {
        names[num_named] = extra.dict->entries[i].key.str;
        named[num_named] = extra.dict->entries[i].value;
    }
    if (caller.kind != JINJA_ABSENT) {
        names[num_named] = STR("caller");
        named[num_named++] = caller;
    }
    *out = (struct jinja_args){items, num, names, named, num_named};
    return STATUS_OK;
}

enum status jinja_eval_call(struct jinja_runtime *rt, struct jinja_scope *scope,
                            const struct jinja_expr *expr, struct jinja_value caller,
                            struct jinja_value *out)
{
    struct jinja_value callee;
    struct jinja_args args;
    TRY(jinja_eval(rt, scope, expr->left, &callee));
    TRY(eval_args(rt, scope, expr->args, caller, &args));
    rt->line = expr->line;
    return jinja_call(rt, callee, &args, out);
}

static enum status eval_filter_or_test(struct jinja_runtime *rt, struct jinja_scope *scope,
                                       const struct jinja_expr *expr, struct jinja_value *out)
{
    struct jinja_value input;
    struct jinja_args args;
    TRY(jinja_eval(rt, scope, expr->left, &input));
    TRY(eval_args(rt, scope, expr->args, (struct jinja_value){0}, &args));
    rt->line = expr->line;
    if (!expr->function) {
        struct str name = str_slice(expr->args->callee, 0, 100);
        return jinja_fail(rt, STATUS_INVALID, "No %s named '" STR_FORMAT "'.",
                          expr->kind == JINJA_EXPR_FILTER ? "filter" : "test", STR_ARG(name));
    }
    return jinja_call_function(rt, expr->function, input, &args, out);
}

// --- the rest ---

static enum status eval_list(struct jinja_runtime *rt, struct jinja_scope *scope,
                             const struct jinja_expr *expr, struct jinja_value *out)
{
    enum jinja_sequence sequence =
        expr->kind == JINJA_EXPR_TUPLE ? JINJA_SEQUENCE_TUPLE : JINJA_SEQUENCE_LIST;
    struct jinja_value list;
    TRY(jinja_list_create(rt, expr->items.len, sequence, &list));
    for (size_t i = 0; i < expr->items.len; i++)
        TRY(jinja_eval(rt, scope, expr->items.items[i], &list.list->items[i]));
    *out = list;
    return STATUS_OK;
}

static enum status eval_dict(struct jinja_runtime *rt, struct jinja_scope *scope,
                             const struct jinja_expr *expr, struct jinja_value *out)
{
    struct jinja_value dict = jinja_dict_create(rt);
    for (size_t i = 0; i < expr->items.len; i += 2) {
        struct jinja_value key, value;
        TRY(jinja_eval(rt, scope, expr->items.items[i], &key));
        TRY(jinja_eval(rt, scope, expr->items.items[i + 1], &value));
        TRY(jinja_dict_set(rt, dict.dict, key, value));
    }
    *out = dict;
    return STATUS_OK;
}

static enum status eval_item(struct jinja_runtime *rt, struct jinja_scope *scope,
                             const struct jinja_expr *expr, struct jinja_value *out)
{
    struct jinja_value object, key;
    TRY(jinja_eval(rt, scope, expr->left, &object));
    TRY(jinja_eval(rt, scope, expr->right, &key));
    rt->line = expr->line;
    return jinja_get_item(rt, object, key, out);
}

static enum status eval_attribute(struct jinja_runtime *rt, struct jinja_scope *scope,
                                  const struct jinja_expr *expr, struct jinja_value *out)
{
    struct jinja_value object;
    TRY(jinja_eval(rt, scope, expr->left, &object));
    rt->line = expr->line;
    return jinja_get_attribute(rt, object, expr->name, out);
}

static enum status eval_slice(struct jinja_runtime *rt, struct jinja_scope *scope,
                              const struct jinja_expr *expr, struct jinja_value *out)
{
    struct jinja_value object, parts[3];
    TRY(jinja_eval(rt, scope, expr->left, &object));
    for (int i = 0; i < 3; i++) {
        parts[i] = jinja_none();
        if (expr->items.items[i])
            TRY(jinja_eval(rt, scope, expr->items.items[i], &parts[i]));
    }
    rt->line = expr->line;
    return jinja_slice(rt, object, parts[0], parts[1], parts[2], out);
}

static enum status eval_binary(struct jinja_runtime *rt, struct jinja_scope *scope,
                               const struct jinja_expr *expr, struct jinja_value *out)
{
    struct jinja_value left, right;
    TRY(jinja_eval(rt, scope, expr->left, &left));
    TRY(jinja_eval(rt, scope, expr->right, &right));
    rt->line = expr->line;
    return jinja_binary(rt, expr->op, left, right, out);
}

static enum status eval_concat(struct jinja_runtime *rt, struct jinja_scope *scope,
                               const struct jinja_expr *expr, struct jinja_value *out)
{
    size_t mark = jinja_mark(rt);
    for (size_t i = 0; i < expr->items.len; i++) {
        struct jinja_value item;
        TRY(jinja_eval(rt, scope, expr->items.items[i], &item));
        TRY(jinja_put_str(rt, item));
    }
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

static enum status compare(struct jinja_runtime *rt, enum jinja_comparison comparison,
                           struct jinja_value a, struct jinja_value b, bool *out)
{
    static const char *const symbols[] = {
        [JINJA_COMPARE_LT] = "<",
        [JINJA_COMPARE_LE] = "<=",
        [JINJA_COMPARE_GT] = ">",
        [JINJA_COMPARE_GE] = ">=",
    };
    if (comparison == JINJA_COMPARE_EQ || comparison == JINJA_COMPARE_NE) {
        TRY(jinja_equal(rt, a, b, out));
        *out = *out == (comparison == JINJA_COMPARE_EQ);
        return STATUS_OK;
    }
    if (comparison == JINJA_COMPARE_IN || comparison == JINJA_COMPARE_NOT_IN) {
        TRY(jinja_contains(rt, b, a, out));
        *out = *out == (comparison == JINJA_COMPARE_IN);
        return STATUS_OK;
    }
    int order;
    TRY(jinja_compare(rt, a, b, symbols[comparison], &order));
    *out = (comparison == JINJA_COMPARE_LT && order == -1) ||
           (comparison == JINJA_COMPARE_LE && order <= 0) ||
           (comparison == JINJA_COMPARE_GT && order == 1) ||
           (comparison == JINJA_COMPARE_GE && (order == 0 || order == 1));
    return STATUS_OK;
}

static enum status eval_compare(struct jinja_runtime *rt, struct jinja_scope *scope,
                                const struct jinja_expr *expr, struct jinja_value *out)
{
    struct jinja_value left, right;
    bool holds = true;
    TRY(jinja_eval(rt, scope, expr->items.items[0], &left));
    for (size_t i = 1; i < expr->items.len && holds; i++) {
        TRY(jinja_eval(rt, scope, expr->items.items[i], &right));
        rt->line = expr->line;
        TRY(compare(rt, expr->comparisons[i - 1], left, right, &holds));
        left = right;
    }
    *out = jinja_bool(holds);
    return STATUS_OK;
}

static enum status eval_conditional(struct jinja_runtime *rt, struct jinja_scope *scope,
                                    const struct jinja_expr *expr, struct jinja_value *out)
{
    struct jinja_value condition;
    TRY(jinja_eval(rt, scope, expr->condition, &condition));
    if (jinja_is_true(condition))
        return jinja_eval(rt, scope, expr->left, out);
    if (expr->right)
        return jinja_eval(rt, scope, expr->right, out);
    *out = jinja_undefined_hint(rt,
                                "the inline if-expression on line %d evaluated to false and no "
                                "else section was defined.",
                                expr->line);
    return STATUS_OK;
}

static enum status eval_unary(struct jinja_runtime *rt, struct jinja_scope *scope,
                              const struct jinja_expr *expr, struct jinja_value *out)
{
    struct jinja_value value;
    TRY(jinja_eval(rt, scope, expr->left, &value));
    rt->line = expr->line;
    if (expr->kind == JINJA_EXPR_NOT) {
        *out = jinja_bool(!jinja_is_true(value));
        return STATUS_OK;
    }
    if (expr->kind == JINJA_EXPR_NEGATE)
        return jinja_negate(rt, value, out);
    TRY(jinja_need_defined(rt, value));
    if (!jinja_is_number(value))
        return jinja_fail(rt, STATUS_INVALID, "bad operand type for unary +: '%s'",
                          jinja_type_name(value));
    *out = value.kind == JINJA_BOOL ? jinja_int(value.boolean) : value;
    return STATUS_OK;
}

static enum status eval_logic(struct jinja_runtime *rt, struct jinja_scope *scope,
                              const struct jinja_expr *expr, struct jinja_value *out)
{
    TRY(jinja_eval(rt, scope, expr->left, out));
    if (jinja_is_true(*out) == (expr->kind == JINJA_EXPR_OR))
        return STATUS_OK;
    return jinja_eval(rt, scope, expr->right, out);
}

static enum status eval(struct jinja_runtime *rt, struct jinja_scope *scope,
                        const struct jinja_expr *expr, struct jinja_value *out)
{
    switch (expr->kind) {
    case JINJA_EXPR_CONSTANT:
        *out = expr->constant;
        return STATUS_OK;
    case JINJA_EXPR_NAME:
        *out = jinja_scope_get(rt, scope, expr->name);
        return STATUS_OK;
    case JINJA_EXPR_HOLE:
        *out = rt->hole;
        return STATUS_OK;
    case JINJA_EXPR_LIST:
    case JINJA_EXPR_TUPLE:
        return eval_list(rt, scope, expr, out);
    case JINJA_EXPR_DICT:
        return eval_dict(rt, scope, expr, out);
    case JINJA_EXPR_ATTRIBUTE:
        return eval_attribute(rt, scope, expr, out);
    case JINJA_EXPR_ITEM:
        return eval_item(rt, scope, expr, out);
    case JINJA_EXPR_SLICE:
        return eval_slice(rt, scope, expr, out);
    case JINJA_EXPR_CALL:
        return jinja_eval_call(rt, scope, expr, (struct jinja_value){0}, out);
    case JINJA_EXPR_FILTER:
    case JINJA_EXPR_TEST:
        return eval_filter_or_test(rt, scope, expr, out);
    case JINJA_EXPR_NOT:
    case JINJA_EXPR_NEGATE:
    case JINJA_EXPR_PLUS:
        return eval_unary(rt, scope, expr, out);
    case JINJA_EXPR_BINARY:
        return eval_binary(rt, scope, expr, out);
    case JINJA_EXPR_CONCAT:
        return eval_concat(rt, scope, expr, out);
    case JINJA_EXPR_AND:
    case JINJA_EXPR_OR:
        return eval_logic(rt, scope, expr, out);
    case JINJA_EXPR_COMPARE:
        return eval_compare(rt, scope, expr, out);
    case JINJA_EXPR_CONDITIONAL:
        return eval_conditional(rt, scope, expr, out);
    }
    return jinja_fail(rt, STATUS_INTERNAL, "an unknown kind of expression");
}

enum status jinja_eval(struct jinja_runtime *rt, struct jinja_scope *scope,
                       const struct jinja_expr *expr, struct jinja_value *out)
{
    rt->line = expr->line;
    TRY(jinja_enter(rt));
    TRY(jinja_step(rt, 0));
    TRY(eval(rt, scope, expr, out));
    jinja_leave(rt);
    return STATUS_OK;
}
