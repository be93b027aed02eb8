// Expressions of templates: recursive descent in Jinja2's order of precedence. From the loosest:
// a if b else c; or; and; not; comparisons; + -; ~; * / // %; **; unary - +; filters and tests,
// which belong to what stands before them; subscripts and calls.
#include "tokenizer/jinja_ast.h"

#include <string.h>

#include "base/memory.h"

enum { MAX_HEIGHT = 300 }; // of an expression; evaluation recurses as deep

static struct jinja_expr *new_expr(struct jinja_parser *p, enum jinja_expr_kind kind, int line)
{
    struct jinja_expr *expr = arena_calloc(&p->out->arena, 1, sizeof(*expr));
    expr->kind = kind;
    expr->line = line;
    expr->height = 1;
    return expr;
}

void jinja_exprs_add(struct jinja_parser *p, struct jinja_exprs *list, struct jinja_expr *expr)
{
    if (list->len == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 4;
        struct jinja_expr **items = arena_array(&p->out->arena, struct jinja_expr *, capacity);
        if (list->len > 0)
            memcpy(items, list->items, list->len * sizeof(struct jinja_expr *));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->len++] = expr;
}

static void raise_height(struct jinja_expr *expr, const struct jinja_expr *child)
{
    if (child && child->height >= expr->height)
        expr->height = child->height + 1;
}

static void raise_height_all(struct jinja_expr *expr, const struct jinja_exprs *children)
{
    for (size_t i = 0; i < children->len; i++)
        raise_height(expr, children->items[i]);
}

/** Measures `expr`, whose children are in place, and hands it over. */
static enum status finish(struct jinja_parser *p, struct jinja_expr *expr, struct jinja_expr **out)
{
    raise_height(expr, expr->left);
    raise_height(expr, expr->right);
    raise_height(expr, expr->condition);
    raise_height_all(expr, &expr->items);
    if (expr->kind == JINJA_EXPR_CALL || expr->kind == JINJA_EXPR_FILTER ||
        expr->kind == JINJA_EXPR_TEST) {
        raise_height_all(expr, &expr->args->positional);
        raise_height_all(expr, &expr->args->named);
        raise_height(expr, expr->args->star);
        raise_height(expr, expr->args->star_star);
    }
    if (expr->height > MAX_HEIGHT)
        return jinja_parser_fail(p, STATUS_TOO_LARGE, expr->line,
                                 "an expression of more than %d nested operations", MAX_HEIGHT);
    *out = expr;
    return STATUS_OK;
}

static enum status new_binary(struct jinja_parser *p, enum jinja_expr_kind kind, int line,
                              enum jinja_operator op, struct jinja_expr *right,
                              struct jinja_expr **left)
{
    struct jinja_expr *expr = new_expr(p, kind, line);
    expr->left = *left;
    expr->right = right;
    expr->op = op;
    return finish(p, expr, left);
}

// --- primaries ---

static void note_special_name(struct jinja_parser *p, struct str name)
{
    for (struct jinja_macro_scope *scope = p->macros; scope; scope = scope->outer) {
        scope->macro->uses_varargs |= str_eq_c(name, "varargs");
        scope->macro->uses_kwargs |= str_eq_c(name, "kwargs");
        scope->macro->uses_caller |= str_eq_c(name, "caller");
    }
}

static enum status parse_name(struct jinja_parser *p, struct jinja_expr **out)
{
    static const struct {
        const char *name;
        enum jinja_kind kind;
        bool boolean;
    } constants[] = {
        {"true", JINJA_BOOL, true},   {"True", JINJA_BOOL, true},  {"false", JINJA_BOOL, false},
        {"False", JINJA_BOOL, false}, {"none", JINJA_NONE, false}, {"None", JINJA_NONE, false},
    };
    struct str name = p->token->text;
    struct jinja_expr *expr = new_expr(p, JINJA_EXPR_NAME, p->token->line);
    expr->name = name;
    for (size_t i = 0; i < ARRAY_LEN(constants); i++) {
        if (str_eq_c(name, constants[i].name)) {
            expr->kind = JINJA_EXPR_CONSTANT;
            expr->constant =
                constants[i].kind == JINJA_BOOL ? jinja_bool(constants[i].boolean) : jinja_none();
        }
    }
    if (expr->kind == JINJA_EXPR_NAME)
        note_special_name(p, name);
    p->token++;
    *out = expr;
    return STATUS_OK;
}

static enum status parse_string(struct jinja_parser *p, struct jinja_expr **out)
{
    *out = new_expr(p, JINJA_EXPR_CONSTANT, p->token->line);
    (*out)->constant = p->token->value;
    p->token++;
    if (p->token->kind != JINJA_TOKEN_STRING)
        return STATUS_OK;
    struct buf joined = {0}; // literals beside each other are one
    buf_append(&joined, (*out)->constant.str);
    for (; p->token->kind == JINJA_TOKEN_STRING; p->token++)
        buf_append(&joined, p->token->value.str);
    (*out)->constant = jinja_string(arena_str(&p->out->arena, buf_str(&joined)));
    buf_deinit(&joined);
    return STATUS_OK;
}

static enum status parse_list(struct jinja_parser *p, struct jinja_expr **out)
{
    struct jinja_expr *list = new_expr(p, JINJA_EXPR_LIST, p->token->line);
    p->token++;
    while (!jinja_parser_at(p, "]")) {
        struct jinja_expr *item;
        if (list->items.len > 0)
            TRY(jinja_parser_expect(p, ","));
        if (jinja_parser_at(p, "]"))
            break;
        TRY(jinja_parse_expr(p, true, &item));
        jinja_exprs_add(p, &list->items, item);
    }
    TRY(jinja_parser_expect(p, "]"));
    return finish(p, list, out);
}

static enum status parse_dict(struct jinja_parser *p, struct jinja_expr **out)
{
    struct jinja_expr *dict = new_expr(p, JINJA_EXPR_DICT, p->token->line);
    p->token++;
    while (!jinja_parser_at(p, "}")) {
        struct jinja_expr *key, *value;
        if (dict->items.len > 0)
            TRY(jinja_parser_expect(p, ","));
        if (jinja_parser_at(p, "}"))
            break;
        TRY(jinja_parse_expr(p, true, &key));
        TRY(jinja_parser_expect(p, ":"));
        TRY(jinja_parse_expr(p, true, &value));
        jinja_exprs_add(p, &dict->items, key);
        jinja_exprs_add(p, &dict->items, value);
    }
    TRY(jinja_parser_expect(p, "}"));
    return finish(p, dict, out);
}

/** Items with commas between them up to `)`, the end of the tag, or `end_name`. */
static enum status parse_tuple_items(struct jinja_parser *p, bool conditional, bool in_brackets,
                                     const char *end_name, struct jinja_expr **out)
{
    struct jinja_expr *tuple = new_expr(p, JINJA_EXPR_TUPLE, p->token->line);
    bool has_comma = false;
    for (;;) {
        struct jinja_expr *item;
        bool at_end = p->token->kind == JINJA_TOKEN_VARIABLE_END ||
                      p->token->kind == JINJA_TOKEN_BLOCK_END || jinja_parser_at(p, ")") ||
                      (end_name && jinja_parser_at_name(p, end_name));
        if (at_end)
            break;
        TRY(jinja_parse_expr(p, conditional, &item));
        jinja_exprs_add(p, &tuple->items, item);
        if (!jinja_parser_skip(p, ","))
            break;
        has_comma = true;
    }
    if (!has_comma && tuple->items.len == 1) {
        *out = tuple->items.items[0];
        return STATUS_OK;
    }
    if (tuple->items.len == 0 && !in_brackets)
        return jinja_parser_fail(p, STATUS_INVALID, p->token->line,
                                 "Expected an expression, got '%s'",
                                 jinja_parser_describe(p, p->token));
    return finish(p, tuple, out);
}

enum status jinja_parse_tuple(struct jinja_parser *p, bool conditional, const char *end_name,
                              struct jinja_expr **out)
{
    return parse_tuple_items(p, conditional, false, end_name, out);
}

static enum status parse_primary(struct jinja_parser *p, struct jinja_expr **out)
{
    switch (p->token->kind) {
    case JINJA_TOKEN_NAME:
        return parse_name(p, out);
    case JINJA_TOKEN_STRING:
        return parse_string(p, out);
    case JINJA_TOKEN_NUMBER:
        *out = new_expr(p, JINJA_EXPR_CONSTANT, p->token->line);
        (*out)->constant = p->token->value;
        p->token++;
        return STATUS_OK;
    default:
        break;
    }
    if (jinja_parser_skip(p, "(")) {
        TRY(parse_tuple_items(p, true, true, NULL, out));
        return jinja_parser_expect(p, ")");
    }
    if (jinja_parser_at(p, "["))
        return parse_list(p, out);
    if (jinja_parser_at(p, "{"))
        return parse_dict(p, out);
    if (p->token->kind == JINJA_TOKEN_OPERATOR)
        return jinja_parser_fail(p, STATUS_INVALID, p->token->line, "unexpected '%s'",
                                 jinja_parser_describe(p, p->token));
    return jinja_parser_fail(p, STATUS_INVALID, p->token->line, "Expected an expression, got '%s'",
                             jinja_parser_describe(p, p->token));
}

// --- what follows a primary ---

static enum status parse_slice_part(struct jinja_parser *p, struct jinja_exprs *parts)
{
    struct jinja_expr *part = NULL;
    if (!jinja_parser_at(p, ":") && !jinja_parser_at(p, "]") && !jinja_parser_at(p, ","))
        TRY(jinja_parse_expr(p, true, &part));
    jinja_exprs_add(p, parts, part);
    return STATUS_OK;
}

static enum status parse_subscript(struct jinja_parser *p, struct jinja_expr **inout)
{
    int line = p->token->line;
    struct jinja_expr *expr = new_expr(p, JINJA_EXPR_ITEM, line);
    expr->left = *inout;
    if (jinja_parser_skip(p, ".")) {
        if (p->token->kind == JINJA_TOKEN_NAME) {
            expr->kind = JINJA_EXPR_ATTRIBUTE;
            expr->name = p->token->text;
        } else if (p->token->kind == JINJA_TOKEN_NUMBER && p->token->value.kind == JINJA_INT) {
            expr->right = new_expr(p, JINJA_EXPR_CONSTANT, line);
            expr->right->constant = p->token->value;
        } else {
            return jinja_parser_fail(p, STATUS_INVALID, line, "expected name or number");
        }
        p->token++;
        return finish(p, expr, inout);
    }
    TRY(jinja_parser_expect(p, "["));
    struct jinja_exprs parts = {0};
    bool is_slice = false;
    TRY(parse_slice_part(p, &parts));
    while (parts.len < 3 && jinja_parser_skip(p, ":")) {
        is_slice = true;
        TRY(parse_slice_part(p, &parts));
    }
    if (is_slice) {
        expr->kind = JINJA_EXPR_SLICE;
        while (parts.len < 3)
            jinja_exprs_add(p, &parts, NULL);
        expr->items = parts;
    } else if (!parts.items[0]) {
        return jinja_parser_fail(p, STATUS_INVALID, line, "Expected an expression, got '%s'",
                                 jinja_parser_describe(p, p->token));
    } else {
        expr->right = parts.items[0];
        if (jinja_parser_at(p, ",")) { // a tuple as the key
            struct jinja_expr *tuple = new_expr(p, JINJA_EXPR_TUPLE, line);
            jinja_exprs_add(p, &tuple->items, expr->right);
            while (jinja_parser_skip(p, ",")) {
                struct jinja_expr *item;
                TRY(jinja_parse_expr(p, true, &item));
                jinja_exprs_add(p, &tuple->items, item);
            }
            TRY(finish(p, tuple, &expr->right));
        }
    }
    TRY(jinja_parser_expect(p, "]"));
    return finish(p, expr, inout);
}

static bool at_keyword_argument(const struct jinja_parser *p)
{
    const struct jinja_token *next = p->token + 1; // there is one: a name is never the last token
    return p->token->kind == JINJA_TOKEN_NAME && next->kind == JINJA_TOKEN_OPERATOR &&
           str_eq_c(next->text, "=");
}

static enum status parse_argument(struct jinja_parser *p, struct jinja_call_args *args,
                                  struct jinja_exprs *names)
{
    int line = p->token->line;
    struct jinja_expr *value;
    if (jinja_parser_skip(p, "**")) {
        if (args->star_star)
            return jinja_parser_fail(p, STATUS_INVALID, line,
                                     "invalid syntax for function call expression");
        return jinja_parse_expr(p, true, &args->star_star);
    }
    if (args->star_star)
        return jinja_parser_fail(p, STATUS_INVALID, line,
                                 "invalid syntax for function call expression");
    if (jinja_parser_skip(p, "*")) {
        if (args->star)
            return jinja_parser_fail(p, STATUS_INVALID, line,
                                     "invalid syntax for function call expression");
        return jinja_parse_expr(p, true, &args->star);
    }
    if (at_keyword_argument(p)) {
        struct jinja_expr *name = new_expr(p, JINJA_EXPR_NAME, line);
        name->name = p->token->text;
        for (size_t i = 0; i < names->len; i++)
            if (str_eq(names->items[i]->name, name->name))
                return jinja_parser_fail(p, STATUS_INVALID, line,
                                         "keyword argument repeated: " STR_FORMAT,
                                         STR_ARG(str_slice(name->name, 0, 100)));
        p->token += 2;
        TRY(jinja_parse_expr(p, true, &value));
        jinja_exprs_add(p, names, name);
        jinja_exprs_add(p, &args->named, value);
        return STATUS_OK;
    }
    if (args->star || args->named.len > 0)
        return jinja_parser_fail(p, STATUS_INVALID, line,
                                 "invalid syntax for function call expression");
    TRY(jinja_parse_expr(p, true, &value));
    jinja_exprs_add(p, &args->positional, value);
    return STATUS_OK;
}

static struct jinja_call_args *new_args(struct jinja_parser *p)
{
    return arena_calloc(&p->out->arena, 1, sizeof(struct jinja_call_args));
}

static enum status parse_call_args(struct jinja_parser *p, struct jinja_call_args *args)
{
    struct jinja_exprs names = {0};
    bool first = true;
    TRY(jinja_parser_expect(p, "("));
    while (!jinja_parser_at(p, ")")) {
        if (!first) {
            TRY(jinja_parser_expect(p, ","));
            if (jinja_parser_at(p, ")"))
                break;
        }
        first = false;
        TRY(parse_argument(p, args, &names));
    }
    TRY(jinja_parser_expect(p, ")"));
    args->names = arena_array(&p->out->arena, struct str, names.len);
    for (size_t i = 0; i < names.len; i++)
        args->names[i] = names.items[i]->name;
    return STATUS_OK;
}

static enum status parse_call(struct jinja_parser *p, struct jinja_expr **inout)
{
    struct jinja_expr *call = new_expr(p, JINJA_EXPR_CALL, p->token->line);
    call->left = *inout;
    call->args = new_args(p);
    TRY(parse_call_args(p, call->args));
    return finish(p, call, inout);
}

static enum status parse_postfix(struct jinja_parser *p, struct jinja_expr **inout)
{
    for (;;) {
        if (jinja_parser_at(p, ".") || jinja_parser_at(p, "["))
            TRY(parse_subscript(p, inout));
        else if (jinja_parser_at(p, "("))
            TRY(parse_call(p, inout));
        else
            return STATUS_OK;
    }
}

static const char *const refused_filters[] = {
    "random",
    "urlize",
    "wordwrap",
    "filesizeformat",
};

static enum status parse_one_filter(struct jinja_parser *p, struct jinja_expr **inout)
{
    struct jinja_expr *filter = new_expr(p, JINJA_EXPR_FILTER, p->token->line);
    struct str name;
    TRY(jinja_parser_expect_name(p, &name));
    filter->left = *inout;
    filter->args = new_args(p);
    filter->args->callee = name;
    filter->function = jinja_find_filter(name);
    for (size_t i = 0; i < ARRAY_LEN(refused_filters); i++)
        if (str_eq_c(name, refused_filters[i]))
            return jinja_parser_fail(p, STATUS_UNSUPPORTED, filter->line,
                                     "the filter '%s' is not supported", refused_filters[i]);
    if (!filter->function && p->num_ifs == 0)
        return jinja_parser_fail(p, STATUS_INVALID, filter->line,
                                 "No filter named '" STR_FORMAT "'.",
                                 STR_ARG(str_slice(name, 0, 100)));
    if (jinja_parser_at(p, "("))
        TRY(parse_call_args(p, filter->args));
    return finish(p, filter, inout);
}

enum status jinja_parse_filters(struct jinja_parser *p, bool bare, struct jinja_expr **inout)
{
    if (bare)
        TRY(parse_one_filter(p, inout));
    while (jinja_parser_skip(p, "|"))
        TRY(parse_one_filter(p, inout));
    return STATUS_OK;
}

static enum status parse_test(struct jinja_parser *p, struct jinja_expr **inout)
{
    struct jinja_expr *test = new_expr(p, JINJA_EXPR_TEST, p->token->line);
    struct str name;
    p->token++; // is
    bool negated = jinja_parser_skip_name(p, "not");
    TRY(jinja_parser_expect_name(p, &name));
    test->left = *inout;
    test->args = new_args(p);
    test->args->callee = name;
    test->function = jinja_find_test(name);
    if (!test->function && p->num_ifs == 0)
        return jinja_parser_fail(p, STATUS_INVALID, test->line, "No test named '" STR_FORMAT "'.",
                                 STR_ARG(str_slice(name, 0, 100)));
    bool operand = p->token->kind == JINJA_TOKEN_NAME || p->token->kind == JINJA_TOKEN_STRING ||
                   p->token->kind == JINJA_TOKEN_NUMBER || jinja_parser_at(p, "[") ||
                   jinja_parser_at(p, "{");
    bool ends = jinja_parser_at_name(p, "else") || jinja_parser_at_name(p, "or") ||
                jinja_parser_at_name(p, "and");
    if (jinja_parser_at(p, "(")) {
        TRY(parse_call_args(p, test->args));
    } else if (operand && !ends) {
        struct jinja_expr *argument;
        if (jinja_parser_at_name(p, "is"))
            return jinja_parser_fail(p, STATUS_INVALID, test->line,
                                     "You cannot chain multiple tests with is");
        TRY(parse_primary(p, &argument));
        TRY(parse_postfix(p, &argument));
        jinja_exprs_add(p, &test->args->positional, argument);
    }
    TRY(finish(p, test, inout));
    if (negated)
        TRY(new_binary(p, JINJA_EXPR_NOT, test->line, JINJA_OP_ADD, NULL, inout));
    return STATUS_OK;
}

static enum status parse_filters_and_tests(struct jinja_parser *p, struct jinja_expr **inout)
{
    for (;;) {
        if (jinja_parser_skip(p, "|"))
            TRY(parse_one_filter(p, inout));
        else if (jinja_parser_at_name(p, "is"))
            TRY(parse_test(p, inout));
        else if (jinja_parser_at(p, "("))
            TRY(parse_call(p, inout));
        else
            return STATUS_OK;
    }
}

// --- operators ---

enum status jinja_parse_unary(struct jinja_parser *p, bool with_filters, struct jinja_expr **out)
{
    int line = p->token->line;
    TRY(jinja_parser_enter(p));
    if (jinja_parser_skip(p, "-") || jinja_parser_skip(p, "+")) {
        bool negate = str_eq_c(p->token[-1].text, "-");
        TRY(jinja_parse_unary(p, false, out));
        TRY(new_binary(p, negate ? JINJA_EXPR_NEGATE : JINJA_EXPR_PLUS, line, JINJA_OP_SUB, NULL,
                       out));
    } else {
        TRY(parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    if (with_filters)
        TRY(parse_filters_and_tests(p, out));
    p->depth--;
    return STATUS_OK;
}

static enum status parse_power(struct jinja_parser *p, struct jinja_expr **out)
{
    TRY(jinja_parse_unary(p, true, out));
    while (jinja_parser_at(p, "**")) {
        int line = p->token->line;
        struct jinja_expr *right;
        p->token++;
        TRY(jinja_parse_unary(p, true, &right));
        TRY(new_binary(p, JINJA_EXPR_BINARY, line, JINJA_OP_POW, right, out));
    }
    return STATUS_OK;
}

/** The operator at the current token if it is one of `names`; false: none. */
static bool at_operator(const struct jinja_parser *p, const char *const *names,
                        const enum jinja_operator *ops, size_t count, enum jinja_operator *out)
{
    for (size_t i = 0; i < count; i++) {
        if (jinja_parser_at(p, names[i])) {
            *out = ops[i];
            return true;
        }
    }
    return false;
}

static enum status parse_product(struct jinja_parser *p, struct jinja_expr **out)
{
    static const char *const names[] = {"*", "/", "//", "%"};
    static const enum jinja_operator ops[] = {JINJA_OP_MUL, JINJA_OP_DIV, JINJA_OP_FLOORDIV,
                                              JINJA_OP_MOD};
    enum jinja_operator op;
    TRY(parse_power(p, out));
    while (at_operator(p, names, ops, ARRAY_LEN(ops), &op)) {
        int line = p->token->line;
        struct jinja_expr *right;
        p->token++;
        TRY(parse_power(p, &right));
        TRY(new_binary(p, JINJA_EXPR_BINARY, line, op, right, out));
    }
    return STATUS_OK;
}

static enum status parse_concat(struct jinja_parser *p, struct jinja_expr **out)
{
    TRY(parse_product(p, out));
    if (!jinja_parser_at(p, "~"))
        return STATUS_OK;
    struct jinja_expr *concat = new_expr(p, JINJA_EXPR_CONCAT, p->token->line);
    jinja_exprs_add(p, &concat->items, *out);
    while (jinja_parser_skip(p, "~")) {
        struct jinja_expr *item;
        TRY(parse_product(p, &item));
        jinja_exprs_add(p, &concat->items, item);
    }
    return finish(p, concat, out);
}

static enum status parse_sum(struct jinja_parser *p, struct jinja_expr **out)
{
    static const char *const names[] = {"+", "-"};
    static const enum jinja_operator ops[] = {JINJA_OP_ADD, JINJA_OP_SUB};
    enum jinja_operator op;
    TRY(parse_concat(p, out));
    while (at_operator(p, names, ops, ARRAY_LEN(ops), &op)) {
        int line = p->token->line;
        struct jinja_expr *right;
        p->token++;
        TRY(parse_concat(p, &right));
        TRY(new_binary(p, JINJA_EXPR_BINARY, line, op, right, out));
    }
    return STATUS_OK;
}

static bool take_comparison(struct jinja_parser *p, enum jinja_comparison *out)
{
    static const char *const names[] = {"==", "!=", "<", "<=", ">", ">="};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (jinja_parser_skip(p, names[i])) {
            *out = (enum jinja_comparison)i;
            return true;
        }
    }
    if (jinja_parser_skip_name(p, "in")) {
        *out = JINJA_COMPARE_IN;
        return true;
    }
    if (jinja_parser_at_name(p, "not") && p->token[1].kind == JINJA_TOKEN_NAME &&
        str_eq_c(p->token[1].text, "in")) {
        p->token += 2;
        *out = JINJA_COMPARE_NOT_IN;
        return true;
    }
    return false;
}

static enum status parse_comparison(struct jinja_parser *p, struct jinja_expr **out)
{
    int line = p->token->line;
    enum jinja_comparison comparison;
    TRY(parse_sum(p, out));
    if (!take_comparison(p, &comparison))
        return STATUS_OK;
    struct jinja_expr *expr = new_expr(p, JINJA_EXPR_COMPARE, line);
    size_t capacity = 4, count = 0;
    expr->comparisons = arena_array(&p->out->arena, enum jinja_comparison, capacity);
    jinja_exprs_add(p, &expr->items, *out);
    do {
        struct jinja_expr *item;
        if (count == capacity) {
            enum jinja_comparison *grown =
                arena_array(&p->out->arena, enum jinja_comparison, capacity * 2);
            memcpy(grown, expr->comparisons, capacity * sizeof(*grown));
            expr->comparisons = grown;
            capacity *= 2;
        }
        expr->comparisons[count++] = comparison;
        TRY(parse_sum(p, &item));
        jinja_exprs_add(p, &expr->items, item);
    } while (take_comparison(p, &comparison));
    return finish(p, expr, out);
}

static enum status parse_not(struct jinja_parser *p, struct jinja_expr **out)
{
    int line = p->token->line;
    if (!jinja_parser_skip_name(p, "not"))
        return parse_comparison(p, out);
    TRY(jinja_parser_enter(p));
    TRY(parse_not(p, out));
    p->depth--;
    return new_binary(p, JINJA_EXPR_NOT, line, JINJA_OP_ADD, NULL, out);
}

static enum status parse_and(struct jinja_parser *p, struct jinja_expr **out)
{
    TRY(parse_not(p, out));
    while (jinja_parser_skip_name(p, "and")) {
        struct jinja_expr *right;
        TRY(parse_not(p, &right));
        TRY(new_binary(p, JINJA_EXPR_AND, right->line, JINJA_OP_ADD, right, out));
    }
    return STATUS_OK;
}

static enum status parse_or(struct jinja_parser *p, struct jinja_expr **out)
{
    TRY(parse_and(p, out));
    while (jinja_parser_skip_name(p, "or")) {
        struct jinja_expr *right;
        TRY(parse_and(p, &right));
        TRY(new_binary(p, JINJA_EXPR_OR, right->line, JINJA_OP_ADD, right, out));
    }
    return STATUS_OK;
}

enum status jinja_parse_expr(struct jinja_parser *p, bool conditional, struct jinja_expr **out)
{
    TRY(jinja_parser_enter(p));
    TRY(parse_or(p, out));
    while (conditional && jinja_parser_at_name(p, "if")) {
        struct jinja_expr *expr = new_expr(p, JINJA_EXPR_CONDITIONAL, p->token->line);
        p->token++;
        expr->left = *out;
        TRY(parse_or(p, &expr->condition));
        if (jinja_parser_skip_name(p, "else"))
            TRY(jinja_parse_expr(p, true, &expr->right));
        TRY(finish(p, expr, out));
    }
    p->depth--;
    return STATUS_OK;
}
