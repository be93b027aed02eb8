// Statements of templates: output, conditions, loops, assignments, macros.
#include "tokenizer/jinja_eval.h"

#include <string.h>

#include "base/memory.h"

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

struct jinja_closure {
    const struct jinja_macro *macro;
    struct jinja_scope *scope;
};

/** A loop that runs. With a filter, the elements that pass are found as they are needed. */
struct jinja_loop {
    const struct jinja_stmt *stmt;
    struct jinja_scope *scope; // around the loop
    const struct jinja_value *source;
    size_t num_source, next_source;
    struct jinja_value *items;
    size_t num_items;
    size_t index;
    int depth0;
    struct jinja_value changed; // arguments of the last loop.changed()
};

static enum status exec_body(struct jinja_runtime *rt, struct jinja_scope *scope,
                             const struct jinja_body *body, enum flow *flow);

/** Executes a body in a new scope and takes its text. */
static enum status capture(struct jinja_runtime *rt, struct jinja_scope *scope,
                           const struct jinja_body *body, struct jinja_value *out)
{
    enum flow flow = FLOW_NEXT;
    size_t mark = jinja_mark(rt);
    TRY(exec_body(rt, jinja_scope_create(rt, scope), body, &flow));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

// --- assignment ---

static enum status assign(struct jinja_runtime *rt, struct jinja_scope *scope,
                          const struct jinja_target *target, struct jinja_value value)
{
    if (target->is_tuple) {
        struct jinja_value items;
        TRY(jinja_iterate(rt, value, &items));
        if (items.list->len != target->num_items)
            return jinja_fail(rt, STATUS_INVALID, "%s values to unpack (expected %zu, got %zu)",
                              items.list->len > target->num_items ? "too many" : "not enough",
                              target->num_items, items.list->len);
        for (size_t i = 0; i < target->num_items; i++)
            TRY(assign(rt, scope, target->items[i], items.list->items[i]));
        return STATUS_OK;
    }
    if (!target->attribute.ptr) {
        jinja_scope_set(rt, scope, target->name, value);
        return STATUS_OK;
    }
    struct jinja_value object = jinja_scope_get(rt, scope, target->name);
    if (object.kind != JINJA_NAMESPACE)
        return jinja_fail(rt, STATUS_INVALID,
                          "cannot assign attribute '" STR_FORMAT "' on non-namespace object '%s'",
                          STR_ARG(str_slice(target->attribute, 0, 100)), jinja_type_name(object));
    return jinja_dict_set(rt, object.dict, jinja_string(target->attribute), value);
}

// --- loops ---

/** Finds elements until `count` have passed the filter or there are no more; tells whether. */
static enum status loop_find(struct jinja_runtime *rt, struct jinja_loop *loop, size_t count,
                             bool *found)
{
    while (loop->num_items < count && loop->next_source < loop->num_source) {
        struct jinja_value item = loop->source[loop->next_source++];
        struct jinja_value passes = jinja_bool(true);
        if (loop->stmt->condition) {
            struct jinja_scope *scope = jinja_scope_create(rt, loop->scope);
            TRY(assign(rt, scope, loop->stmt->target, item));
            TRY(jinja_eval(rt, scope, loop->stmt->condition, &passes));
        }
        if (jinja_is_true(passes))
            loop->items[loop->num_items++] = item;
    }
    *found = loop->num_items >= count;
    return STATUS_OK;
}

static enum status exec_loop(struct jinja_runtime *rt, struct jinja_scope *scope,
                             const struct jinja_stmt *stmt, struct jinja_value iterable, int depth0,
                             enum flow *outer_flow)
{
    struct jinja_value source, items;
    TRY(jinja_iterate(rt, iterable, &source));
    items = source;
    if (stmt->condition)
        TRY(jinja_list_create(rt, source.list->len, JINJA_SEQUENCE_LIST, &items));
    struct jinja_loop *loop = jinja_alloc(rt, sizeof(*loop));
    *loop = (struct jinja_loop){
        .stmt = stmt,
        .scope = scope,
        .source = source.list->items,
        .num_source = source.list->len,
        .next_source = stmt->condition ? 0 : source.list->len,
        .items = items.list->items,
        .num_items = stmt->condition ? 0 : source.list->len,
        .depth0 = depth0,
    };
    struct jinja_value self = {.kind = JINJA_LOOP, .loop = loop};
    for (;; loop->index++) {
        bool found;
        enum flow flow = FLOW_NEXT;
        TRY(loop_find(rt, loop, loop->index + 1, &found));
        if (!found)
            break;
        struct jinja_scope *inner = jinja_scope_create(rt, scope);
        jinja_scope_set(rt, inner, STR("loop"), self);
        rt->line = stmt->line;
        TRY(assign(rt, inner, stmt->target, loop->items[loop->index]));
        TRY(exec_body(rt, inner, &stmt->body, &flow));
        if (flow == FLOW_BREAK)
            return STATUS_OK;
    }
    if (loop->index == 0) // a break in here leaves the loop around this one
        return exec_body(rt, jinja_scope_create(rt, scope), &stmt->otherwise, outer_flow);
    return STATUS_OK;
}

static enum status loop_neighbour(struct jinja_runtime *rt, struct jinja_loop *loop, bool next,
                                  struct jinja_value *out)
{
    bool found = loop->index > 0;
    if (next)
        TRY(loop_find(rt, loop, loop->index + 2, &found));
    *out = found ? loop->items[next ? loop->index + 1 : loop->index - 1]
                 : jinja_undefined_hint(rt, "there is no %s item", next ? "next" : "previous");
    return STATUS_OK;
}

/** loop.cycle(a, b ...) */
static enum status loop_cycle(struct jinja_runtime *rt, struct jinja_value self,
                              const struct jinja_value *arg, const struct jinja_args *args,
                              struct jinja_value *out)
{
    (void)arg;
    if (args->num == 0)
        return jinja_fail(rt, STATUS_INVALID, "no items for cycling given");
    *out = args->items[self.loop->index % args->num];
    return STATUS_OK;
}

/** loop.changed(values): whether they differ from those of the call before. */
static enum status loop_changed(struct jinja_runtime *rt, struct jinja_value self,
                                const struct jinja_value *arg, const struct jinja_args *args,
                                struct jinja_value *out)
{
    struct jinja_value now;
    bool same = false;
    (void)arg;
    TRY(jinja_list_create(rt, args->num, JINJA_SEQUENCE_TUPLE, &now));
    for (size_t i = 0; i < args->num; i++)
        now.list->items[i] = args->items[i];
    if (self.loop->changed.kind != JINJA_ABSENT)
        TRY(jinja_equal(rt, self.loop->changed, now, &same));
    self.loop->changed = now;
    *out = jinja_bool(!same);
    return STATUS_OK;
}

static const struct jinja_function loop_methods[] = {
    {.name = "cycle", .call = loop_cycle},
    {.name = "changed", .call = loop_changed},
    {0},
};

enum status jinja_loop_attribute(struct jinja_runtime *rt, struct jinja_value value,
                                 struct str name, struct jinja_value *out)
{
    struct jinja_loop *loop = value.loop;
    bool found;
    jinja_int_t index = (jinja_int_t)loop->index;
    *out = (struct jinja_value){0};
    if (str_eq_c(name, "previtem") || str_eq_c(name, "nextitem"))
        return loop_neighbour(rt, loop, str_eq_c(name, "nextitem"), out);
    if (str_eq_c(name, "last")) {
        TRY(loop_find(rt, loop, loop->index + 2, &found));
        *out = jinja_bool(!found);
    } else if (str_eq_c(name, "length") || str_eq_c(name, "revindex") ||
               str_eq_c(name, "revindex0")) {
        TRY(loop_find(rt, loop, SIZE_MAX, &found));
        jinja_int_t length = (jinja_int_t)loop->num_items;
        *out = jinja_int(str_eq_c(name, "length")     ? length
                         : str_eq_c(name, "revindex") ? length - index
                                                      : length - index - 1);
    } else if (str_eq_c(name, "index")) {
        *out = jinja_int(index + 1);
    } else if (str_eq_c(name, "index0")) {
        *out = jinja_int(index);
    } else if (str_eq_c(name, "first")) {
        *out = jinja_bool(index == 0);
    } else if (str_eq_c(name, "depth")) {
        *out = jinja_int(loop->depth0 + 1);
    } else if (str_eq_c(name, "depth0")) {
        *out = jinja_int(loop->depth0);
    } else {
        const struct jinja_function *function = jinja_table_find(loop_methods, name);
        if (function) {
            struct jinja_method *method = jinja_alloc(rt, sizeof(*method));
            *method = (struct jinja_method){value, function};
            *out = (struct jinja_value){.kind = JINJA_METHOD, .method = method};
        }
    }
    return STATUS_OK;
}

enum status jinja_put_loop(struct jinja_runtime *rt, struct jinja_value value)
{
    struct jinja_value length;
    char text[80];
    TRY(jinja_loop_attribute(rt, value, STR("length"), &length));
    snprintf(text, sizeof(text), "<LoopContext %zu/%lld>", value.loop->index + 1,
             (long long)length.integer);
    return jinja_put_c(rt, text);
}

/** loop(iterable): the same loop over other elements, one level deeper. */
static enum status call_loop(struct jinja_runtime *rt, const struct jinja_loop *loop,
                             const struct jinja_args *args, struct jinja_value *out)
{
    if (!loop->stmt->recursive)
        return jinja_fail(rt, STATUS_INVALID,
                          "The loop must have the 'recursive' marker to be called recursively.");
    if (args->num != 1 || args->num_named != 0)
        return jinja_fail(rt, STATUS_INVALID, "loop() takes one argument, the iterable");
    enum flow flow = FLOW_NEXT;
    size_t mark = jinja_mark(rt);
    TRY(exec_loop(rt, loop->scope, loop->stmt, args->items[0], loop->depth0 + 1, &flow));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

// --- macros ---

struct str jinja_macro_name(struct jinja_value macro)
{
    return macro.macro->macro->name;
}

enum status jinja_macro_attribute(struct jinja_runtime *rt, struct jinja_value value,
                                  struct str name, struct jinja_value *out)
{
    const struct jinja_macro *macro = value.macro->macro;
    *out = (struct jinja_value){0};
    if (str_eq_c(name, "name")) {
        *out = jinja_string(macro->name);
    } else if (str_eq_c(name, "catch_kwargs")) {
        *out = jinja_bool(macro->uses_kwargs);
    } else if (str_eq_c(name, "catch_varargs")) {
        *out = jinja_bool(macro->uses_varargs);
    } else if (str_eq_c(name, "caller")) {
        *out = jinja_bool(macro->uses_caller);
    } else if (str_eq_c(name, "arguments")) {
        TRY(jinja_list_create(rt, macro->num_params, JINJA_SEQUENCE_TUPLE, out));
        for (size_t i = 0; i < macro->num_params; i++)
            out->list->items[i] = jinja_string(macro->params[i]);
    }
    return STATUS_OK;
}

/** The named argument `name`, marked as used; NULL: not given. */
static const struct jinja_value *take_named(const struct jinja_args *args, struct str name,
                                            bool *used)
{
    for (size_t i = 0; i < args->num_named; i++) {
        if (!used[i] && str_eq(args->names[i], name)) {
            used[i] = true;
            return &args->named[i];
        }
    }
    return NULL;
}

static enum status bind_rest(struct jinja_runtime *rt, const struct jinja_macro *macro,
                             const struct jinja_args *args, bool *used, struct jinja_scope *scope)
{
    if (macro->uses_caller) {
        const struct jinja_value *caller = take_named(args, STR("caller"), used);
        bool is_param = false;
        for (size_t i = 0; i < macro->num_params; i++)
            is_param = is_param || str_eq_c(macro->params[i], "caller");
        if (!is_param)
            jinja_scope_set(rt, scope, STR("caller"),
                            caller ? *caller : jinja_undefined_hint(rt, "No caller defined"));
    }
    if (macro->uses_kwargs) {
        struct jinja_value kwargs = jinja_dict_create(rt);
        for (size_t i = 0; i < args->num_named; i++)
            if (!used[i])
                TRY(jinja_dict_set(rt, kwargs.dict, jinja_string(args->names[i]), args->named[i]));
        jinja_scope_set(rt, scope, STR("kwargs"), kwargs);
    } else {
        for (size_t i = 0; i < args->num_named; i++)
            if (!used[i])
                return jinja_fail(rt, STATUS_INVALID,
                                  "macro '" STR_FORMAT "' takes no keyword argument '" STR_FORMAT
                                  "'",
                                  STR_ARG(str_slice(macro->name, 0, 100)),
                                  STR_ARG(str_slice(args->names[i], 0, 100)));
    }
    size_t num_extra = args->num > macro->num_params ? args->num - macro->num_params : 0;
    if (macro->uses_varargs) {
        struct jinja_value varargs;
        TRY(jinja_list_create(rt, num_extra, JINJA_SEQUENCE_TUPLE, &varargs));
        for (size_t i = 0; i < num_extra; i++)
            varargs.list->items[i] = args->items[macro->num_params + i];
        jinja_scope_set(rt, scope, STR("varargs"), varargs);
    } else if (num_extra > 0) {
        return jinja_fail(rt, STATUS_INVALID,
                          "macro '" STR_FORMAT "' takes not more than %zu argument(s)",
                          STR_ARG(str_slice(macro->name, 0, 100)), macro->num_params);
    }
    return STATUS_OK;
}

static enum status call_macro(struct jinja_runtime *rt, const struct jinja_closure *closure,
                              const struct jinja_args *args, struct jinja_value *out)
{
    const struct jinja_macro *macro = closure->macro;
    struct jinja_scope *scope = jinja_scope_create(rt, closure->scope);
    bool *used = jinja_alloc(rt, args->num_named + 1);
    memset(used, 0, args->num_named + 1);
    for (size_t i = 0; i < macro->num_params; i++) {
        struct str name = macro->params[i];
        struct jinja_value value;
        const struct jinja_value *named = i < args->num ? NULL : take_named(args, name, used);
        if (i < args->num)
            value = args->items[i];
        else if (named)
            value = *named;
        else if (macro->defaults[i])
            TRY(jinja_eval(rt, scope, macro->defaults[i], &value));
        else
            value = jinja_undefined_hint(rt, "parameter '" STR_FORMAT "' was not provided",
                                         STR_ARG(str_slice(name, 0, 100)));
        jinja_scope_set(rt, scope, name, value);
    }
    TRY(bind_rest(rt, macro, args, used, scope));
    enum flow flow = FLOW_NEXT;
    size_t mark = jinja_mark(rt);
    TRY(exec_body(rt, scope, &macro->body, &flow));
    *out = jinja_take(rt, mark);
    return STATUS_OK;
}

enum status jinja_call(struct jinja_runtime *rt, struct jinja_value callee,
                       const struct jinja_args *args, struct jinja_value *out)
{
    TRY(jinja_need_defined(rt, callee));
    switch (callee.kind) {
    case JINJA_FUNCTION:
        return jinja_call_function(rt, callee.function, (struct jinja_value){0}, args, out);
    case JINJA_METHOD:
        return jinja_call_function(rt, callee.method->function, callee.method->self, args, out);
    case JINJA_MACRO:
        return call_macro(rt, callee.macro, args, out);
    case JINJA_LOOP:
        return call_loop(rt, callee.loop, args, out);
    case JINJA_JOINER:
        if (args->num + args->num_named > 0)
            return jinja_fail(rt, STATUS_INVALID, "a joiner takes no arguments");
        *out = callee.joiner->used ? callee.joiner->separator : jinja_string(STR(""));
        callee.joiner->used = true;
        return STATUS_OK;
    default:
        return jinja_fail(rt, STATUS_INVALID, "'%s' object is not callable",
                          jinja_type_name(callee));
    }
}

static struct jinja_value new_closure(struct jinja_runtime *rt, const struct jinja_macro *macro,
                                      struct jinja_scope *scope)
{
    struct jinja_closure *closure = jinja_alloc(rt, sizeof(*closure));
    *closure = (struct jinja_closure){macro, scope};
    return (struct jinja_value){.kind = JINJA_MACRO, .macro = closure};
}

// --- statements ---

static enum status exec_if(struct jinja_runtime *rt, struct jinja_scope *scope,
                           const struct jinja_stmt *stmt, enum flow *flow)
{
    for (const struct jinja_branch *branch = stmt->branches; branch; branch = branch->next) {
        struct jinja_value condition = jinja_bool(true);
        if (branch->condition)
            TRY(jinja_eval(rt, scope, branch->condition, &condition));
        if (jinja_is_true(condition))
            return exec_body(rt, scope, &branch->body, flow);
    }
    return STATUS_OK;
}

static enum status exec_with(struct jinja_runtime *rt, struct jinja_scope *scope,
                             const struct jinja_stmt *stmt, enum flow *flow)
{
    struct jinja_scope *inner = jinja_scope_create(rt, scope);
    for (size_t i = 0; i < stmt->values.len; i++) {
        struct jinja_value value;
        TRY(jinja_eval(rt, scope, stmt->values.items[i], &value)); // they do not see each other
        TRY(assign(rt, inner, stmt->targets[i], value));
    }
    return exec_body(rt, inner, &stmt->body, flow);
}

/** Set blocks and filter blocks: capture, then the filters. */
static enum status eval_captured(struct jinja_runtime *rt, struct jinja_scope *scope,
                                 const struct jinja_stmt *stmt, struct jinja_value *out)
{
    struct jinja_value text;
    TRY(capture(rt, scope, &stmt->body, &text));
    rt->hole = text; // read first thing, before an argument could capture again
    return jinja_eval(rt, scope, stmt->value, out);
}

static enum status exec_stmt(struct jinja_runtime *rt, struct jinja_scope *scope,
                             const struct jinja_stmt *stmt, enum flow *flow)
{
    struct jinja_value value;
    switch (stmt->kind) {
    case JINJA_STMT_TEXT:
        return jinja_put(rt, stmt->text);
    case JINJA_STMT_OUTPUT:
        TRY(jinja_eval(rt, scope, stmt->value, &value));
        return jinja_put_str(rt, value);
    case JINJA_STMT_IF:
        return exec_if(rt, scope, stmt, flow);
    case JINJA_STMT_FOR:
        TRY(jinja_eval(rt, scope, stmt->value, &value));
        return exec_loop(rt, scope, stmt, value, 0, flow);
    case JINJA_STMT_SET:
        TRY(jinja_eval(rt, scope, stmt->value, &value));
        return assign(rt, scope, stmt->target, value);
    case JINJA_STMT_SET_BLOCK:
        TRY(eval_captured(rt, scope, stmt, &value));
        return assign(rt, scope, stmt->target, value);
    case JINJA_STMT_WITH:
        return exec_with(rt, scope, stmt, flow);
    case JINJA_STMT_MACRO:
        jinja_scope_set(rt, scope, stmt->macro->name, new_closure(rt, stmt->macro, scope));
        return STATUS_OK;
    case JINJA_STMT_CALL:
        value = new_closure(rt, stmt->macro, scope);
        TRY(jinja_eval_call(rt, scope, stmt->value, value, &value));
        return jinja_put_str(rt, value);
    case JINJA_STMT_FILTER:
        TRY(eval_captured(rt, scope, stmt, &value));
        return jinja_put_str(rt, value);
    case JINJA_STMT_SCOPE:
        return exec_body(rt, jinja_scope_create(rt, scope), &stmt->body, flow);
    case JINJA_STMT_BREAK:
        *flow = FLOW_BREAK;
        return STATUS_OK;
    case JINJA_STMT_CONTINUE:
        *flow = FLOW_CONTINUE;
        return STATUS_OK;
    }
    return jinja_fail(rt, STATUS_INTERNAL, "an unknown kind of statement");
}

static enum status exec_body(struct jinja_runtime *rt, struct jinja_scope *scope,
                             const struct jinja_body *body, enum flow *flow)
{
    TRY(jinja_enter(rt));
    for (const struct jinja_stmt *stmt = body->first; stmt; stmt = stmt->next) {
        rt->line = stmt->line;
        TRY(jinja_step(rt, 0));
        TRY(exec_stmt(rt, scope, stmt, flow));
        if (*flow != FLOW_NEXT)
            break;
    }
    jinja_leave(rt);
    return STATUS_OK;
}

enum status jinja_exec(struct jinja_runtime *rt, const struct jinja_body *body)
{
    enum flow flow = FLOW_NEXT;
    return exec_body(rt, jinja_scope_create(rt, NULL), body, &flow);
}
