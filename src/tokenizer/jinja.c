// Compiling and rendering, and what a template asks of message contents.
#include "tokenizer/jinja.h"

#include "base/memory.h"
#include "tokenizer/jinja_ast.h"
#include "tokenizer/jinja_eval.h"

enum status jinja_template_compile(struct jinja_template **out, struct str source,
                                   struct error *err)
{
    struct error ignored = {0};
    struct jinja_template *compiled = xcalloc(1, sizeof(*compiled));
    struct jinja_tokens tokens;
    err = err ? err : &ignored;
    *out = NULL;
    enum status status = jinja_tokenize(&compiled->arena, source, &tokens, err);
    if (status == STATUS_OK)
        status = jinja_parse(compiled, &tokens, err);
    if (status != STATUS_OK) {
        jinja_template_destroy(compiled);
        return status;
    }
    *out = compiled;
    return STATUS_OK;
}

void jinja_template_destroy(struct jinja_template *jinja_template)
{
    if (!jinja_template)
        return;
    arena_deinit(&jinja_template->arena);
    free(jinja_template);
}

void jinja_runtime_init(struct jinja_runtime *rt, const struct tm *now, struct error *err)
{
    *rt = (struct jinja_runtime){.now = now, .err = err, .line = 1, .hole = jinja_none()};
    rt->globals = jinja_dict_create(rt).dict;
}

void jinja_runtime_deinit(struct jinja_runtime *rt)
{
    buf_deinit(&rt->out);
    arena_deinit(&rt->arena);
}

enum status jinja_runtime_set_json(struct jinja_runtime *rt, struct str name, const json_t *json)
{
    struct jinja_value value;
    TRY(jinja_from_json(rt, json, &value));
    return jinja_dict_set(rt, rt->globals, jinja_string(name), value);
}

enum status jinja_template_render(const struct jinja_template *jinja_template,
                                  struct jinja_runtime *rt, struct str *out)
{
    TRY(jinja_exec(rt, &jinja_template->body));
    *out = buf_str(&rt->out);
    return STATUS_OK;
}

// --- does it loop over message contents? ---

enum { MAX_NAMES = 64 };

/** Variables that hold messages, one message, or its content. */
struct names {
    struct str items[MAX_NAMES];
    size_t len;
};

static bool names_add(struct names *names, struct str name)
{
    for (size_t i = 0; i < names->len; i++)
        if (str_eq(names->items[i], name))
            return false;
    if (names->len == MAX_NAMES)
        return false;
    names->items[names->len++] = name;
    return true;
}

/** The expression below filters, tests and slices: they give elements of the same thing. */
static const struct jinja_expr *below_filters(const struct jinja_expr *expr)
{
    while (expr->kind == JINJA_EXPR_FILTER || expr->kind == JINJA_EXPR_TEST ||
           expr->kind == JINJA_EXPR_SLICE)
        expr = expr->left;
    return expr;
}

static bool is_one_of(const struct jinja_expr *expr, const struct names *names)
{
    if (expr->kind != JINJA_EXPR_NAME)
        return false;
    for (size_t i = 0; i < names->len; i++)
        if (str_eq(expr->name, names->items[i]))
            return true;
    return false;
}

static bool is_content_of(const struct jinja_expr *expr, const struct names *messages)
{
    bool content = expr->kind == JINJA_EXPR_ATTRIBUTE && str_eq_c(expr->name, "content");
    if (expr->kind == JINJA_EXPR_ITEM && expr->right->kind == JINJA_EXPR_CONSTANT)
        content = expr->right->constant.kind == JINJA_STRING &&
                  str_eq_c(expr->right->constant.str, "content");
    return content && is_one_of(expr->left, messages);
}

bool jinja_template_loops_over_content(const struct jinja_template *jinja_template)
{
    struct names lists = {.items = {STR("messages")}, .len = 1};
    struct names messages = {0}, contents = {0};
    // Each pass adds a name or is the last: a variable may be set before its source in the text.
    for (bool changed = true; changed;) {
        changed = false;
        for (const struct jinja_stmt *stmt = jinja_template->listed; stmt;
             stmt = stmt->next_listed) {
            if (stmt->target->is_tuple || stmt->target->attribute.ptr)
                continue;
            const struct jinja_expr *source = below_filters(stmt->value);
            struct str name = stmt->target->name;
            bool loop = stmt->kind == JINJA_STMT_FOR;
            if (is_one_of(source, &lists))
                changed |= names_add(loop ? &messages : &lists, name);
            else if (!loop && (is_content_of(source, &messages) || is_one_of(source, &contents)))
                changed |= names_add(&contents, name);
            else if (!loop && is_one_of(source, &messages))
                changed |= names_add(&messages, name);
        }
    }
    for (const struct jinja_stmt *stmt = jinja_template->listed; stmt; stmt = stmt->next_listed) {
        if (stmt->kind != JINJA_STMT_FOR)
            continue;
        const struct jinja_expr *source = below_filters(stmt->value);
        if (is_content_of(source, &messages) || is_one_of(source, &contents))
            return true;
    }
    return false;
}
