// Statements of templates: tokens to syntax tree.
#include "tokenizer/jinja_ast.h"

#include <stdarg.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

enum { MAX_NESTING = 100 }; // of blocks and expressions in each other, as CPython's own compiler

// --- tokens ---

// In parentheses: for the analyzer the name is a macro.
enum status(jinja_parser_fail)(struct jinja_parser *p, enum status status, int line,
                               const char *format, ...)
{
    char message[sizeof(p->err->message)];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    size_t len = utf8_complete_prefix(str_from(message));
    return error_set(p->err, status, "line %d: %.*s", line, (int)len, message);
}

enum status jinja_parser_enter(struct jinja_parser *p)
{
    if (++p->depth > MAX_NESTING)
        return jinja_parser_fail(p, STATUS_TOO_LARGE, p->token->line,
                                 "more than %d levels of nesting", MAX_NESTING);
    return STATUS_OK;
}

bool jinja_parser_at(const struct jinja_parser *p, const char *op)
{
    return p->token->kind == JINJA_TOKEN_OPERATOR && str_eq_c(p->token->text, op);
}

bool jinja_parser_at_name(const struct jinja_parser *p, const char *name)
{
    return p->token->kind == JINJA_TOKEN_NAME && str_eq_c(p->token->text, name);
}

bool jinja_parser_skip(struct jinja_parser *p, const char *op)
{
    bool there = jinja_parser_at(p, op);
    p->token += there;
    return there;
}

bool jinja_parser_skip_name(struct jinja_parser *p, const char *name)
{
    bool there = jinja_parser_at_name(p, name);
    p->token += there;
    return there;
}

const char *jinja_parser_describe(const struct jinja_parser *p, const struct jinja_token *token)
{
    switch (token->kind) {
    case JINJA_TOKEN_EOF:
        return "end of template";
    case JINJA_TOKEN_DATA:
        return "template data / text";
    case JINJA_TOKEN_VARIABLE_BEGIN:
        return "begin of print statement";
    case JINJA_TOKEN_VARIABLE_END:
        return "end of print statement";
    case JINJA_TOKEN_BLOCK_BEGIN:
        return "begin of statement block";
    case JINJA_TOKEN_BLOCK_END:
        return "end of statement block";
    default: {
        struct str shown = str_slice(token->text, 0, 100);
        return arena_strdup(&p->out->arena, str_slice(shown, 0, utf8_complete_prefix(shown)));
    }
    }
}

static enum status fail_expected(struct jinja_parser *p, const char *expected)
{
    if (p->token->kind == JINJA_TOKEN_EOF)
        return jinja_parser_fail(p, STATUS_INVALID, p->token->line,
                                 "unexpected end of template, expected '%s'.", expected);
    return jinja_parser_fail(p, STATUS_INVALID, p->token->line, "expected token '%s', got '%s'",
                             expected, jinja_parser_describe(p, p->token));
}

enum status jinja_parser_expect(struct jinja_parser *p, const char *op)
{
    return jinja_parser_skip(p, op) ? STATUS_OK : fail_expected(p, op);
}

enum status jinja_parser_expect_name(struct jinja_parser *p, struct str *out)
{
    if (p->token->kind != JINJA_TOKEN_NAME)
        return fail_expected(p, "name");
    *out = p->token->text;
    p->token++;
    return STATUS_OK;
}

static enum status expect_end(struct jinja_parser *p, enum jinja_token_kind kind)
{
    if (p->token->kind != kind)
        return fail_expected(p, kind == JINJA_TOKEN_BLOCK_END ? "end of statement block"
                                                              : "end of print statement");
    p->token++;
    return STATUS_OK;
}

// --- bodies ---

static struct jinja_stmt *new_stmt(struct jinja_parser *p, enum jinja_stmt_kind kind, int line)
{
    struct jinja_stmt *stmt = arena_calloc(&p->out->arena, 1, sizeof(*stmt));
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
}

static void list_stmt(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    stmt->next_listed = p->out->listed;
    p->out->listed = stmt;
}

static void body_add(struct jinja_body *body, struct jinja_stmt *stmt)
{
    if (body->last)
        body->last->next = stmt;
    else
        body->first = stmt;
    body->last = stmt;
}

static enum status parse_statement(struct jinja_parser *p, struct jinja_stmt **out);

/** Whether the current token is one of the names in `ends` ("'endfor' or 'else'"). */
static bool at_end_tag(const struct jinja_parser *p, const char *ends)
{
    struct str rest = str_from(ends);
    while (rest.len > 0) {
        str_split(&rest, '\'');
        struct str name = str_split(&rest, '\'');
        if (p->token->kind == JINJA_TOKEN_NAME && name.len > 0 && str_eq(p->token->text, name))
            return true;
    }
    return false;
}

static enum status fail_end_of_template(struct jinja_parser *p)
{
    return jinja_parser_fail(p, STATUS_INVALID, p->token->line,
                             "Unexpected end of template. Jinja was looking for the following "
                             "tags: %s. The innermost block that needs to be closed is '%s'.",
                             p->open_blocks->ends, p->open_blocks->name);
}

/** Text, outputs and statements up to one of the end tags; its name is the current token then. */
static enum status parse_body(struct jinja_parser *p, const char *name, const char *ends,
                              struct jinja_body *body)
{
    struct jinja_open_block open = {name, ends, p->open_blocks};
    if (ends)
        // cppcheck-suppress autoVariables ; taken off again on return; a failed parse is at its end
        p->open_blocks = &open;
    TRY(jinja_parser_enter(p));
    for (;;) {
        struct jinja_stmt *stmt = NULL;
        switch (p->token->kind) {
        case JINJA_TOKEN_DATA:
            stmt = new_stmt(p, JINJA_STMT_TEXT, p->token->line);
            stmt->text = p->token->text;
            p->token++;
            break;
        case JINJA_TOKEN_VARIABLE_BEGIN:
            p->token++;
            stmt = new_stmt(p, JINJA_STMT_OUTPUT, p->token->line);
            TRY(jinja_parse_tuple(p, true, NULL, &stmt->value));
            TRY(expect_end(p, JINJA_TOKEN_VARIABLE_END));
            break;
        case JINJA_TOKEN_BLOCK_BEGIN:
            p->token++;
            if (ends && at_end_tag(p, ends)) {
                p->open_blocks = open.outer;
                p->depth--;
                return STATUS_OK;
            }
            TRY(parse_statement(p, &stmt));
            break;
        default:
            if (ends)
                return fail_end_of_template(p);
            p->depth--;
            return STATUS_OK;
        }
        if (stmt)
            body_add(body, stmt);
    }
}

/** The rest of the opening tag, then the body, then its one end tag. */
static enum status parse_block(struct jinja_parser *p, const char *name, const char *ends,
                               struct jinja_body *body)
{
    TRY(expect_end(p, JINJA_TOKEN_BLOCK_END));
    TRY(parse_body(p, name, ends, body));
    p->token++;
    return expect_end(p, JINJA_TOKEN_BLOCK_END);
}

// --- targets ---

static bool is_reserved(struct str name)
{
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
        if (str_eq_c(name, reserved[i]))
            return true;
    return false;
}

static enum status parse_targets(struct jinja_parser *p, bool with_namespace, const char *end_name,
                                 struct jinja_target **out);

static enum status parse_one_target(struct jinja_parser *p, bool with_namespace,
                                    struct jinja_target **out)
{
    if (jinja_parser_skip(p, "(")) {
        TRY(jinja_parser_enter(p));
        TRY(parse_targets(p, with_namespace, NULL, out));
        p->depth--;
        return jinja_parser_expect(p, ")");
    }
    struct jinja_target *target = arena_calloc(&p->out->arena, 1, sizeof(*target));
    target->line = p->token->line;
    TRY(jinja_parser_expect_name(p, &target->name));
    if (is_reserved(target->name))
        return jinja_parser_fail(p, STATUS_INVALID, target->line,
                                 "can't assign to '" STR_FORMAT "'", STR_ARG(target->name));
    if (p->num_loops > 0 && str_eq_c(target->name, "loop"))
        return jinja_parser_fail(p, STATUS_INVALID, target->line,
                                 "Can't assign to special loop variable in for-loop target");
    if (with_namespace && jinja_parser_skip(p, "."))
        TRY(jinja_parser_expect_name(p, &target->attribute));
    *out = target;
    return STATUS_OK;
}

/** One target, or several with commas. */
static enum status parse_targets(struct jinja_parser *p, bool with_namespace, const char *end_name,
                                 struct jinja_target **out)
{
    int line = p->token->line;
    TRY(parse_one_target(p, with_namespace, out));
    if (!jinja_parser_at(p, ","))
        return STATUS_OK;
    size_t capacity = 4;
    struct jinja_target *tuple = arena_calloc(&p->out->arena, 1, sizeof(*tuple));
    tuple->is_tuple = true;
    tuple->line = line;
    tuple->items = arena_array(&p->out->arena, struct jinja_target *, capacity);
    tuple->items[tuple->num_items++] = *out;
    while (jinja_parser_skip(p, ",")) {
        bool ends = (end_name && jinja_parser_at_name(p, end_name)) || jinja_parser_at(p, ")") ||
                    p->token->kind == JINJA_TOKEN_BLOCK_END;
        if (ends)
            break;
        if (tuple->num_items == capacity) {
            struct jinja_target **items =
                arena_array(&p->out->arena, struct jinja_target *, capacity * 2);
            memcpy(items, tuple->items, capacity * sizeof(struct jinja_target *));
            tuple->items = items;
            capacity *= 2;
        }
        TRY(parse_one_target(p, with_namespace, &tuple->items[tuple->num_items]));
        tuple->num_items++;
    }
    *out = tuple;
    return STATUS_OK;
}

// --- statements ---

static enum status parse_if(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    struct jinja_branch **link = &stmt->branches;
    stmt->kind = JINJA_STMT_IF;
    p->num_ifs++;
    for (bool has_condition = true;;) {
        struct jinja_branch *branch = arena_calloc(&p->out->arena, 1, sizeof(*branch));
        *link = branch;
        link = &branch->next;
        if (has_condition)
            TRY(jinja_parse_tuple(p, false, NULL, &branch->condition));
        TRY(expect_end(p, JINJA_TOKEN_BLOCK_END));
        TRY(parse_body(p, "if", has_condition ? "'elif' or 'else' or 'endif'" : "'endif'",
                       &branch->body));
        struct str tag = p->token->text;
        p->token++;
        if (str_eq_c(tag, "endif"))
            break;
        has_condition = str_eq_c(tag, "elif");
    }
    p->num_ifs--;
    return expect_end(p, JINJA_TOKEN_BLOCK_END);
}

static enum status parse_for(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    stmt->kind = JINJA_STMT_FOR;
    list_stmt(p, stmt);
    p->num_loops++;
    TRY(parse_targets(p, false, "in", &stmt->target));
    p->num_loops--;
    if (!jinja_parser_skip_name(p, "in"))
        return fail_expected(p, "in");
    TRY(jinja_parse_tuple(p, false, "recursive", &stmt->value));
    if (jinja_parser_skip_name(p, "if"))
        TRY(jinja_parse_expr(p, true, &stmt->condition));
    stmt->recursive = jinja_parser_skip_name(p, "recursive");
    TRY(expect_end(p, JINJA_TOKEN_BLOCK_END));
    p->num_loops++;
    TRY(parse_body(p, "for", "'endfor' or 'else'", &stmt->body));
    p->num_loops--;
    if (jinja_parser_skip_name(p, "else"))
        return parse_block(p, "for", "'endfor'", &stmt->otherwise);
    p->token++;
    return expect_end(p, JINJA_TOKEN_BLOCK_END);
}

static struct jinja_expr *new_hole(struct jinja_parser *p, int line)
{
    struct jinja_expr *hole = arena_calloc(&p->out->arena, 1, sizeof(*hole));
    hole->kind = JINJA_EXPR_HOLE;
    hole->line = line;
    hole->height = 1;
    return hole;
}

static enum status parse_captured_body(struct jinja_parser *p, const char *name, const char *ends,
                                       struct jinja_body *body)
{
    int num_loops = p->num_loops;
    p->num_loops = 0; // break cannot leave what is being captured
    TRY(parse_block(p, name, ends, body));
    p->num_loops = num_loops;
    return STATUS_OK;
}

static enum status parse_set(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    TRY(parse_targets(p, true, NULL, &stmt->target));
    if (jinja_parser_skip(p, "=")) {
        stmt->kind = JINJA_STMT_SET;
        list_stmt(p, stmt);
        TRY(jinja_parse_tuple(p, true, NULL, &stmt->value));
        return expect_end(p, JINJA_TOKEN_BLOCK_END);
    }
    stmt->kind = JINJA_STMT_SET_BLOCK;
    stmt->value = new_hole(p, stmt->line);
    TRY(jinja_parse_filters(p, false, &stmt->value));
    return parse_captured_body(p, "set", "'endset'", &stmt->body);
}

static enum status parse_with(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    size_t num_targets = 0;
    stmt->kind = JINJA_STMT_WITH;
    while (p->token->kind != JINJA_TOKEN_BLOCK_END) {
        struct jinja_target *target;
        struct jinja_expr *value;
        if (num_targets > 0)
            TRY(jinja_parser_expect(p, ","));
        TRY(parse_one_target(p, false, &target));
        TRY(jinja_parser_expect(p, "="));
        TRY(jinja_parse_expr(p, true, &value));
        struct jinja_target **targets =
            arena_array(&p->out->arena, struct jinja_target *, num_targets + 1);
        if (num_targets > 0)
            memcpy(targets, stmt->targets, num_targets * sizeof(struct jinja_target *));
        targets[num_targets++] = target;
        stmt->targets = targets;
        jinja_exprs_add(p, &stmt->values, value);
        if (num_targets > 64)
            return jinja_parser_fail(p, STATUS_TOO_LARGE, stmt->line,
                                     "more than 64 variables in one with");
    }
    return parse_block(p, "with", "'endwith'", &stmt->body);
}

/** (name, name=default, ...) */
static enum status parse_signature(struct jinja_parser *p, struct jinja_macro *macro)
{
    enum { MAX_PARAMS = 64 };
    macro->params = arena_array(&p->out->arena, struct str, MAX_PARAMS);
    macro->defaults = arena_calloc(&p->out->arena, MAX_PARAMS, sizeof(struct jinja_expr *));
    TRY(jinja_parser_expect(p, "("));
    while (!jinja_parser_at(p, ")")) {
        size_t i = macro->num_params;
        struct jinja_target *param;
        if (i > 0)
            TRY(jinja_parser_expect(p, ","));
        if (i == MAX_PARAMS)
            return jinja_parser_fail(p, STATUS_TOO_LARGE, p->token->line,
                                     "more than %d parameters of a macro", MAX_PARAMS);
        if (p->token->kind != JINJA_TOKEN_NAME)
            return fail_expected(p, "name");
        TRY(parse_one_target(p, false, &param));
        for (size_t k = 0; k < i; k++)
            if (str_eq(macro->params[k], param->name))
                return jinja_parser_fail(p, STATUS_INVALID, param->line,
                                         "duplicate argument '" STR_FORMAT "' of a macro",
                                         STR_ARG(param->name));
        macro->params[i] = param->name;
        if (jinja_parser_skip(p, "="))
            TRY(jinja_parse_expr(p, true, &macro->defaults[i]));
        else if (i > 0 && macro->defaults[i - 1])
            return jinja_parser_fail(p, STATUS_INVALID, p->token->line,
                                     "non-default argument follows default argument");
        macro->num_params++;
    }
    return jinja_parser_expect(p, ")");
}

static enum status parse_macro_body(struct jinja_parser *p, struct jinja_macro *macro,
                                    const char *name, const char *ends)
{
    struct jinja_macro_scope scope = {macro, p->macros};
    // cppcheck-suppress autoVariables ; taken off again on return; a failed parse is at its end
    p->macros = &scope;
    TRY(parse_captured_body(p, name, ends, &macro->body));
    p->macros = scope.outer;
    return STATUS_OK;
}

static enum status parse_macro(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    struct jinja_target *target;
    stmt->kind = JINJA_STMT_MACRO;
    stmt->macro = arena_calloc(&p->out->arena, 1, sizeof(*stmt->macro));
    if (p->token->kind != JINJA_TOKEN_NAME)
        return fail_expected(p, "name");
    TRY(parse_one_target(p, false, &target));
    stmt->macro->name = target->name;
    TRY(parse_signature(p, stmt->macro));
    return parse_macro_body(p, stmt->macro, "macro", "'endmacro'");
}

static enum status parse_call_block(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    stmt->kind = JINJA_STMT_CALL;
    stmt->macro = arena_calloc(&p->out->arena, 1, sizeof(*stmt->macro));
    stmt->macro->name = STR("caller");
    if (jinja_parser_at(p, "("))
        TRY(parse_signature(p, stmt->macro));
    TRY(jinja_parse_expr(p, true, &stmt->value));
    if (stmt->value->kind != JINJA_EXPR_CALL)
        return jinja_parser_fail(p, STATUS_INVALID, stmt->line, "expected call");
    return parse_macro_body(p, stmt->macro, "call", "'endcall'");
}

static enum status parse_filter_block(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    stmt->kind = JINJA_STMT_FILTER;
    stmt->value = new_hole(p, stmt->line);
    TRY(jinja_parse_filters(p, true, &stmt->value));
    return parse_captured_body(p, "filter", "'endfilter'", &stmt->body);
}

static enum status parse_generation(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    stmt->kind = JINJA_STMT_SCOPE;
    return parse_captured_body(p, "generation", "'endgeneration'", &stmt->body);
}

static enum status parse_loop_control(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    bool is_break = str_eq_c(p->token[-1].text, "break");
    stmt->kind = is_break ? JINJA_STMT_BREAK : JINJA_STMT_CONTINUE;
    if (p->num_loops == 0)
        return jinja_parser_fail(p, STATUS_INVALID, stmt->line, "'%s' outside loop",
                                 is_break ? "break" : "continue");
    return expect_end(p, JINJA_TOKEN_BLOCK_END);
}

static enum status parse_print(struct jinja_parser *p, struct jinja_stmt *stmt)
{
    struct jinja_expr *all = arena_calloc(&p->out->arena, 1, sizeof(*all));
    stmt->kind = JINJA_STMT_OUTPUT;
    stmt->value = all;
    *all = (struct jinja_expr){.kind = JINJA_EXPR_CONCAT, .line = stmt->line, .height = 1};
    while (p->token->kind != JINJA_TOKEN_BLOCK_END) {
        struct jinja_expr *item;
        if (all->items.len > 0)
            TRY(jinja_parser_expect(p, ","));
        TRY(jinja_parse_expr(p, true, &item));
        jinja_exprs_add(p, &all->items, item);
    }
    return expect_end(p, JINJA_TOKEN_BLOCK_END);
}

static const struct {
    const char *name;
    enum status (*parse)(struct jinja_parser *p, struct jinja_stmt *stmt);
} tags[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"with", parse_with},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"generation", parse_generation},
    {"break", parse_loop_control},
    {"continue", parse_loop_control},
    {"print", parse_print},
};

static const char *const refused_tags[] = {
    "include", "import", "from", "extends", "block", "autoescape", "trans", "do", "debug",
};

static enum status parse_statement(struct jinja_parser *p, struct jinja_stmt **out)
{
    int line = p->token->line;
    if (p->token->kind != JINJA_TOKEN_NAME)
        return jinja_parser_fail(p, STATUS_INVALID, line, "tag name expected");
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) {
        if (jinja_parser_at_name(p, tags[i].name)) {
            p->token++;
            *out = new_stmt(p, JINJA_STMT_TEXT, line);
            TRY(jinja_parser_enter(p));
            TRY(tags[i].parse(p, *out));
            p->depth--;
            return STATUS_OK;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(refused_tags); i++)
        if (jinja_parser_at_name(p, refused_tags[i]))
            return jinja_parser_fail(p, STATUS_UNSUPPORTED, line,
                                     "the tag '%s' is not supported in chat templates",
                                     refused_tags[i]);
    const char *name = jinja_parser_describe(p, p->token);
    if (!p->open_blocks)
        return jinja_parser_fail(p, STATUS_INVALID, line, "Encountered unknown tag '%s'.", name);
    return jinja_parser_fail(p, STATUS_INVALID, line,
                             "Encountered unknown tag '%s'. Jinja was looking for the following "
                             "tags: %s. The innermost block that needs to be closed is '%s'.",
                             name, p->open_blocks->ends, p->open_blocks->name);
}

enum status jinja_parse(struct jinja_template *out, const struct jinja_tokens *tokens,
                        struct error *err)
{
    struct jinja_parser parser = {.out = out, .token = tokens->items, .err = err};
    return parse_body(&parser, "template", NULL, &out->body);
}
