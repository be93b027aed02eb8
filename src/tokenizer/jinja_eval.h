// Walking the syntax tree: what expressions and statements share.
#pragma once

#include "tokenizer/jinja_ast.h"
#include "tokenizer/jinja_value.h"

struct jinja_binding {
    struct str name;
    struct jinja_value value;
};

/** Variables of a block; a loop has a new one each time round. Macros keep the one they were
 *  defined in, and see what is set in it later. */
struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_binding *bindings;
    size_t len, capacity;
};

struct jinja_scope *jinja_scope_create(struct jinja_runtime *rt, struct jinja_scope *parent);
void jinja_scope_set(struct jinja_runtime *rt, struct jinja_scope *scope, struct str name,
                     struct jinja_value value);
/** A variable of the scopes, the globals or the built-in functions; undefined if there is none. */
struct jinja_value jinja_scope_get(struct jinja_runtime *rt, const struct jinja_scope *scope,
                                   struct str name);

NODISCARD enum status jinja_eval(struct jinja_runtime *rt, struct jinja_scope *scope,
                                 const struct jinja_expr *expr, struct jinja_value *out);
/** Evaluates the callee and arguments of a call, whose arguments `caller` (if not ABSENT) joins,
 *  and calls. */
NODISCARD enum status jinja_eval_call(struct jinja_runtime *rt, struct jinja_scope *scope,
                                      const struct jinja_expr *expr, struct jinja_value caller,
                                      struct jinja_value *out);

/** Executes statements; text goes to the runtime's output. */
NODISCARD enum status jinja_exec(struct jinja_runtime *rt, const struct jinja_body *body);
