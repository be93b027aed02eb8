// Tokens and syntax tree of a template. All of it lies in the template's arena.
#pragma once

#include "tokenizer/jinja_value.h"

enum jinja_token_kind {
    JINJA_TOKEN_EOF,
    JINJA_TOKEN_DATA,
    JINJA_TOKEN_VARIABLE_BEGIN,
    JINJA_TOKEN_VARIABLE_END,
    JINJA_TOKEN_BLOCK_BEGIN,
    JINJA_TOKEN_BLOCK_END,
    JINJA_TOKEN_NAME,
    JINJA_TOKEN_STRING,
    JINJA_TOKEN_NUMBER,
    JINJA_TOKEN_OPERATOR,
};

struct jinja_token {
    enum jinja_token_kind kind;
    int line;
    struct str text;          // as written; of DATA, after trimming
    struct jinja_value value; // of STRING and NUMBER
};

struct jinja_tokens {
    struct jinja_token *items;
    size_t len, capacity;
};

/** Splits `source` into tokens, the last being EOF. Errors name the line. */
NODISCARD enum status jinja_tokenize(struct arena *arena, struct str source,
                                     struct jinja_tokens *out, struct error *err);

// --- expressions ---

enum jinja_expr_kind {
    JINJA_EXPR_CONSTANT,
    JINJA_EXPR_NAME,
    JINJA_EXPR_HOLE, // what the filter block or block set around captured
    JINJA_EXPR_LIST,
    JINJA_EXPR_TUPLE,
    JINJA_EXPR_DICT, // items: key, value, key, value ...
    JINJA_EXPR_ATTRIBUTE,
    JINJA_EXPR_ITEM,
    JINJA_EXPR_SLICE, // left, then items: start, stop, step, each NULL if left out
    JINJA_EXPR_CALL,
    JINJA_EXPR_FILTER,
    JINJA_EXPR_TEST,
    JINJA_EXPR_NOT,
    JINJA_EXPR_NEGATE,
    JINJA_EXPR_PLUS,
    JINJA_EXPR_BINARY,
    JINJA_EXPR_CONCAT, // items
    JINJA_EXPR_AND,
    JINJA_EXPR_OR,
    JINJA_EXPR_COMPARE,     // items compared in a row by `comparisons`
    JINJA_EXPR_CONDITIONAL, // left if condition else right
};

enum jinja_comparison {
    JINJA_COMPARE_EQ,
    JINJA_COMPARE_NE,
    JINJA_COMPARE_LT,
    JINJA_COMPARE_LE,
    JINJA_COMPARE_GT,
    JINJA_COMPARE_GE,
    JINJA_COMPARE_IN,
    JINJA_COMPARE_NOT_IN,
};

struct jinja_expr;

struct jinja_exprs {
    struct jinja_expr **items;
    size_t len, capacity;
};

struct jinja_call_args {
    struct str callee; // name of the filter or test
    struct jinja_exprs positional, named;
    struct str *names; // of `named`
    struct jinja_expr *star, *star_star;
};

struct jinja_expr {
    enum jinja_expr_kind kind;
    int line;
    int height; // of the tree below, bounded by the parser
    struct jinja_expr *left, *right, *condition;
    struct jinja_exprs items;
    union {
        struct jinja_value constant;
        struct str name; // of a variable or an attribute
        enum jinja_operator op;
        enum jinja_comparison *comparisons;
        struct {
            const struct jinja_function *function; // of a filter or a test
            struct jinja_call_args *args;          // also of a call
        };
    };
};

// --- statements ---

enum jinja_stmt_kind {
    JINJA_STMT_TEXT,
    JINJA_STMT_OUTPUT,
    JINJA_STMT_IF,
    JINJA_STMT_FOR,
    JINJA_STMT_SET,
    JINJA_STMT_SET_BLOCK,
    JINJA_STMT_WITH,
    JINJA_STMT_MACRO,
    JINJA_STMT_CALL,
    JINJA_STMT_FILTER,
    JINJA_STMT_SCOPE, // generation: a scope of its own, nothing more
    JINJA_STMT_BREAK,
    JINJA_STMT_CONTINUE,
};

struct jinja_stmt;

struct jinja_body {
    struct jinja_stmt *first, *last;
};

/** One condition of an if; `condition` NULL: the else. */
struct jinja_branch {
    struct jinja_expr *condition;
    struct jinja_body body;
    struct jinja_branch *next;
};

/** Where a value goes: a name, an attribute of a namespace, or a tuple of targets. */
struct jinja_target {
    struct str name;
    struct str attribute; // ptr NULL: none
    struct jinja_target **items;
    size_t num_items;
    bool is_tuple;
    int line;
};

struct jinja_macro {
    struct str name;
    struct str *params;
    struct jinja_expr **defaults; // NULL: none
    size_t num_params;
    struct jinja_body body;
    bool uses_varargs, uses_kwargs, uses_caller;
};

struct jinja_stmt {
    enum jinja_stmt_kind kind;
    int line;
    struct jinja_stmt *next;
    struct jinja_stmt *next_listed; // next loop or set of the template
    union {
        struct str text;
        struct jinja_branch *branches;
        struct {
            struct jinja_target *target;
            struct jinja_expr *value; // iterated, assigned, output, called; a filter chain
            struct jinja_expr *condition;
            struct jinja_body body, otherwise;
            bool recursive;
            struct jinja_macro *macro;
            struct jinja_target **targets; // of a with
            struct jinja_exprs values;
        };
    };
};

struct jinja_template {
    struct arena arena;
    struct jinja_body body;
    struct jinja_stmt *listed; // all loops and sets, newest first
};

/** Parses into `*out`, whose arena holds the tokens too. */
NODISCARD enum status jinja_parse(struct jinja_template *out, const struct jinja_tokens *tokens,
                                  struct error *err);

// --- the parser's own parts ---

struct jinja_parser {
    struct jinja_template *out;
    const struct jinja_token *token; // the current one
    struct error *err;
    int depth;     // of nested blocks and expressions
    int num_loops; // around the current statement, within the current macro
    int num_ifs;   // around it: there an unknown filter is an error only once it is reached
    struct jinja_macro_scope *macros;
    struct jinja_open_block *open_blocks;
};

/** A macro whose body is being parsed: names used in it are noted. */
struct jinja_macro_scope {
    struct jinja_macro *macro;
    struct jinja_macro_scope *outer;
};

/** A block whose end is awaited, for messages. */
struct jinja_open_block {
    const char *name;
    const char *ends; // "'endfor' or 'else'"
    struct jinja_open_block *outer;
};

NODISCARD enum status jinja_parser_fail(struct jinja_parser *p, enum status status, int line,
                                        const char *format, ...) PRINTF_FORMAT(4, 5);
#ifdef __clang_analyzer__ // as for error_set()
#define jinja_parser_fail(p, status, ...) \
    ((void)(jinja_parser_fail)(p, status, __VA_ARGS__), (status))
#endif
NODISCARD enum status jinja_parser_enter(struct jinja_parser *p);
bool jinja_parser_at(const struct jinja_parser *p, const char *op);
bool jinja_parser_at_name(const struct jinja_parser *p, const char *name);
/** Takes the operator or name if it is there. */
bool jinja_parser_skip(struct jinja_parser *p, const char *op);
bool jinja_parser_skip_name(struct jinja_parser *p, const char *name);
NODISCARD enum status jinja_parser_expect(struct jinja_parser *p, const char *op);
NODISCARD enum status jinja_parser_expect_name(struct jinja_parser *p, struct str *out);
/** How a message calls the token. */
const char *jinja_parser_describe(const struct jinja_parser *p, const struct jinja_token *token);

void jinja_exprs_add(struct jinja_parser *p, struct jinja_exprs *list, struct jinja_expr *expr);

/** An expression; without `conditional`, no `a if b else c`. */
NODISCARD enum status jinja_parse_expr(struct jinja_parser *p, bool conditional,
                                       struct jinja_expr **out);
/** An expression or a tuple without parentheses. `end_name` (may be NULL) also ends it. */
NODISCARD enum status jinja_parse_tuple(struct jinja_parser *p, bool conditional,
                                        const char *end_name, struct jinja_expr **out);
/** One primary expression with what follows it: subscripts, calls. */
NODISCARD enum status jinja_parse_unary(struct jinja_parser *p, bool with_filters,
                                        struct jinja_expr **out);
/** `|name(args)|name...`, applied to `*inout`; with `bare`, the first `|` is not there. */
NODISCARD enum status jinja_parse_filters(struct jinja_parser *p, bool bare,
                                          struct jinja_expr **inout);
