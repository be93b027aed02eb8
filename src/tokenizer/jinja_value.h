// The values that a template computes with, and the state of one rendering.
//
// Values behave as Python's do, because that is what chat templates were written against: truth,
// equality, ordering, str() and repr(), code points as the unit of strings. Strings are always well
// formed UTF-8; integers have 128 bits, and overflow is an error.
//
// Bounds. Whatever a template does costs steps, and every allocation is counted; jinja_step()
// refuses the next step once either is spent. Strings pass through one output buffer of bounded
// size. Recursion, of values as of code, is counted by jinja_enter(). So a template can neither
// hang nor exhaust memory or the stack.
//
// All memory of a rendering lies in its arena. An error ends the rendering, so nothing is undone on
// the way out.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

enum {
    JINJA_MAX_STEPS = 10 * 1000 * 1000,
    JINJA_MAX_OUTPUT_BYTES = 16 * 1024 * 1024, // also the longest string
    JINJA_MAX_MEMORY_BYTES = 256 * 1024 * 1024,
    JINJA_MAX_DEPTH = 2000,   // nested evaluations, statements and values together
    JINJA_MAX_RANGE = 100000, // as the sandbox of Jinja2
    JINJA_STEP_BYTES = 64,    // bytes of text that count as one step
    JINJA_MAX_PARAMS = 6,
};

typedef __int128 jinja_int_t;

enum jinja_kind {
    JINJA_ABSENT, // no value at all: an argument that was not given
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST, // everything with elements in order; see enum jinja_sequence
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_FUNCTION, // global function
    JINJA_METHOD,   // method bound to its object
    JINJA_MACRO,
    JINJA_LOOP,
    JINJA_CYCLER,
    JINJA_JOINER,
};

/** What a JINJA_LIST is to Python; they differ in repr, truth, and what may be done to them. */
enum jinja_sequence {
    JINJA_SEQUENCE_LIST,
    JINJA_SEQUENCE_TUPLE,
    JINJA_SEQUENCE_GROUP, // tuple of groupby: its elements are also .grouper and .list
    JINJA_SEQUENCE_RANGE,
    JINJA_SEQUENCE_KEYS,
    JINJA_SEQUENCE_VALUES,
    JINJA_SEQUENCE_ITEMS,
    JINJA_SEQUENCE_GENERATOR, // always true, has no length, is used up by iteration
};

struct jinja_undefined;
struct jinja_list;
struct jinja_dict;
struct jinja_method;
struct jinja_function;
struct jinja_closure;
struct jinja_loop;
struct jinja_cycler;
struct jinja_joiner;

struct jinja_value {
    uint8_t kind;     // enum jinja_kind
    uint8_t sequence; // enum jinja_sequence of a list
    bool is_markup;   // a string that is already escaped for HTML
    union {
        bool boolean;
        jinja_int_t integer;
        double real;
        struct str str;
        struct jinja_undefined *undefined;
        struct jinja_list *list;
        struct jinja_dict *dict; // also of a namespace
        const struct jinja_function *function;
        struct jinja_method *method;
        struct jinja_closure *macro;
        struct jinja_loop *loop;
        struct jinja_cycler *cycler;
        struct jinja_joiner *joiner;
    };
};

/** Why there is no value: said when something is done with it that needs one. */
struct jinja_undefined {
    struct str hint;           // the whole message, or empty
    struct jinja_value object; // ABSENT for a variable
    struct jinja_value name;
};

struct jinja_list {
    struct jinja_value *items;
    size_t len;
    size_t num_consumed;  // of a generator
    const int64_t *range; // start, stop, step of a range
};

struct jinja_entry {
    struct jinja_value key, value;
    uint64_t hash;
};

/** Entries in order of insertion; an index by hash once there are more than a few. */
struct jinja_dict {
    struct jinja_entry *entries;
    size_t len, capacity;
    uint32_t *index; // entry + 1, 0 empty; NULL while small
    size_t index_size;
};

/** Arguments of a call as evaluated. */
struct jinja_args {
    const struct jinja_value *items;
    size_t num;
    const struct str *names;
    const struct jinja_value *named;
    size_t num_named;
};

struct jinja_runtime;

/** A filter, a test, a method or a global function: all are called in the same way. */
struct jinja_function {
    const char *name;
    const char *params; // names with a blank between them; NULL: takes the arguments as they come
    int num_required;
    /** `self` is the filtered value, the method's object, or ABSENT. `arg` holds the parameters, or
     *  is NULL for a function that takes `args` as they come. */
    enum status (*call)(struct jinja_runtime *rt, struct jinja_value self,
                        const struct jinja_value *arg, const struct jinja_args *args,
                        struct jinja_value *out);
};

struct jinja_method {
    struct jinja_value self;
    const struct jinja_function *function;
};

struct jinja_cycler {
    struct jinja_value *items;
    size_t len, position;
};

struct jinja_joiner {
    struct jinja_value separator;
    bool used;
};

/** One rendering. Belongs to the thread that renders. */
struct jinja_runtime {
    struct arena arena;
    struct buf out; // output, and above it whatever string is being built
    struct error *err;
    int line; // of the template, for messages
    int depth;
    size_t num_steps;
    size_t num_allocated_bytes;
    const struct tm *now; // NULL: the wall clock
    struct jinja_dict *globals;
    struct jinja_value hole; // what a filter block captured
};

// --- the state of a rendering (jinja_value.c) ---

/** Fails with "line N: ...". */
NODISCARD enum status jinja_fail(struct jinja_runtime *rt, enum status status, const char *format,
                                 ...) PRINTF_FORMAT(3, 4);
#ifdef __clang_analyzer__ // as for error_set()
#define jinja_fail(rt, status, ...) ((void)(jinja_fail)(rt, status, __VA_ARGS__), (status))
#endif

/** Accounts for one step that handles `num_bytes` of text. Errors: TIMEOUT, TOO_LARGE (memory). */
NODISCARD enum status jinja_step(struct jinja_runtime *rt, size_t num_bytes);

/** One level deeper; jinja_leave() on the way back (not needed after an error). */
NODISCARD enum status jinja_enter(struct jinja_runtime *rt);
void jinja_leave(struct jinja_runtime *rt);

/** A small block of the rendering's memory. */
void *jinja_alloc(struct jinja_runtime *rt, size_t size_bytes);

/** Building a string: mark, put as often as needed, take. Builders nest. */
size_t jinja_mark(const struct jinja_runtime *rt);
NODISCARD enum status jinja_put(struct jinja_runtime *rt, struct str text);
NODISCARD enum status jinja_put_c(struct jinja_runtime *rt, const char *text);
NODISCARD enum status jinja_put_char(struct jinja_runtime *rt, uint32_t code_point);
NODISCARD enum status jinja_put_repeat(struct jinja_runtime *rt, struct str text, size_t count);
struct jinja_value jinja_take(struct jinja_runtime *rt, size_t mark);

// --- making values ---

static inline struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.kind = JINJA_NONE};
}

static inline struct jinja_value jinja_bool(bool value)
{
    return (struct jinja_value){.kind = JINJA_BOOL, .boolean = value};
}

static inline struct jinja_value jinja_int(jinja_int_t value)
{
    return (struct jinja_value){.kind = JINJA_INT, .integer = value};
}

static inline struct jinja_value jinja_float(double value)
{
    return (struct jinja_value){.kind = JINJA_FLOAT, .real = value};
}

static inline struct jinja_value jinja_string(struct str text)
{
    return (struct jinja_value){.kind = JINJA_STRING, .str = text};
}

static inline struct jinja_value jinja_string_c(const char *text)
{
    return jinja_string(str_from(text));
}

/** "name is undefined"; with `object`, "has no attribute name". */
struct jinja_value jinja_undefined(struct jinja_runtime *rt, struct jinja_value object,
                                   struct jinja_value name);
/** Undefined with its own message. */
struct jinja_value jinja_undefined_hint(struct jinja_runtime *rt, const char *format, ...)
    PRINTF_FORMAT(2, 3);

/** A list of `len` uninitialised elements for the caller to fill. */
NODISCARD enum status jinja_list_create(struct jinja_runtime *rt, size_t len,
                                        enum jinja_sequence sequence, struct jinja_value *out);
/** Appends to a list that is being made; starts from an empty list of capacity `*capacity`. */
NODISCARD enum status jinja_list_append(struct jinja_runtime *rt, struct jinja_list *list,
                                        size_t *capacity, struct jinja_value item);
struct jinja_value jinja_tuple2(struct jinja_runtime *rt, struct jinja_value first,
                                struct jinja_value second);

struct jinja_value jinja_dict_create(struct jinja_runtime *rt);
NODISCARD enum status jinja_dict_set(struct jinja_runtime *rt, struct jinja_dict *dict,
                                     struct jinja_value key, struct jinja_value value);
/** `*out` is NULL if there is no such key. Errors: INVALID for a key that cannot be one. */
NODISCARD enum status jinja_dict_find(struct jinja_runtime *rt, const struct jinja_dict *dict,
                                      struct jinja_value key, const struct jinja_value **out);
/** The same by a string key, which cannot fail; NULL: none. */
const struct jinja_value *jinja_dict_get(const struct jinja_dict *dict, struct str key);

/** Strings are borrowed from `json`. */
NODISCARD enum status jinja_from_json(struct jinja_runtime *rt, const json_t *json,
                                      struct jinja_value *out);

// --- asking values ---

/** Python's name of the type: "str", "NoneType", "dict_items" ... */
const char *jinja_type_name(struct jinja_value value);
bool jinja_is_true(struct jinja_value value);
bool jinja_is_number(struct jinja_value value); // int, float or bool
bool jinja_is_tuple(struct jinja_value value);
static inline bool jinja_is_string(struct jinja_value value)
{
    return value.kind == JINJA_STRING;
}

/** Fails with the reason if the value is undefined. */
NODISCARD enum status jinja_need_defined(struct jinja_runtime *rt, struct jinja_value value);
/** Why the value is undefined, as one sentence. */
struct str jinja_undefined_message(struct jinja_runtime *rt, struct jinja_value value);

/** `what` names the parameter in the error. */
NODISCARD enum status jinja_need_int(struct jinja_runtime *rt, struct jinja_value value,
                                     const char *what, int64_t *out);
NODISCARD enum status jinja_need_string(struct jinja_runtime *rt, struct jinja_value value,
                                        const char *what, struct str *out);

/** A number as a double; only for jinja_is_number(). */
double jinja_as_double(struct jinja_value value);
/** An int or a bool as an integer. */
static inline jinja_int_t jinja_as_int(struct jinja_value value)
{
    return value.kind == JINJA_BOOL ? (jinja_int_t)value.boolean : value.integer;
}

NODISCARD enum status jinja_equal(struct jinja_runtime *rt, struct jinja_value a,
                                  struct jinja_value b, bool *out);
/** `*out` < 0, 0, > 0 as a sorts before, with or after b; 2: unordered (NaN). `op` stands in the
 *  error about what cannot be ordered. */
NODISCARD enum status jinja_compare(struct jinja_runtime *rt, struct jinja_value a,
                                    struct jinja_value b, const char *op, int *out);

/** The elements that iteration visits, as a list. Uses a generator up. */
NODISCARD enum status jinja_iterate(struct jinja_runtime *rt, struct jinja_value value,
                                    struct jinja_value *out);
NODISCARD enum status jinja_length(struct jinja_runtime *rt, struct jinja_value value,
                                   int64_t *out);
NODISCARD enum status jinja_contains(struct jinja_runtime *rt, struct jinja_value container,
                                     struct jinja_value item, bool *out);

/** Number of code points; the byte position of code point `index` (the length if beyond). */
size_t jinja_char_count(struct str text);
size_t jinja_char_offset(struct str text, size_t index);

// --- text of values (jinja_text.c) ---

/** Appends str(value) or repr(value) to the string being built. */
NODISCARD enum status jinja_put_str(struct jinja_runtime *rt, struct jinja_value value);
NODISCARD enum status jinja_put_repr(struct jinja_runtime *rt, struct jinja_value value);
NODISCARD enum status jinja_put_int(struct jinja_runtime *rt, jinja_int_t value);
/** As Python's repr(float): the shortest digits that read back the same. */
NODISCARD enum status jinja_put_float(struct jinja_runtime *rt, double value);
NODISCARD enum status jinja_to_str(struct jinja_runtime *rt, struct jinja_value value,
                                   struct jinja_value *out);
/** HTML escaping as MarkupSafe's. */
NODISCARD enum status jinja_put_escaped(struct jinja_runtime *rt, struct str text);

/** Python's int(text, base), float(text): false if the text is none. Overflow of int is false. */
bool jinja_parse_int(struct str text, int base, jinja_int_t *out);
bool jinja_parse_float(struct str text, double *out);

/** The filter tojson. */
extern const struct jinja_function jinja_filter_tojson;

// --- code points (jinja_unicode.c) ---

enum jinja_case { JINJA_CASE_UPPER, JINJA_CASE_LOWER, JINJA_CASE_TITLE, JINJA_CASE_FOLD };

bool jinja_is_space(uint32_t code_point);
bool jinja_is_printable(uint32_t code_point);
bool jinja_is_alpha(uint32_t code_point);
bool jinja_is_digit(uint32_t code_point);
bool jinja_is_decimal(uint32_t code_point);
bool jinja_is_numeric(uint32_t code_point);
bool jinja_is_upper(uint32_t code_point);
bool jinja_is_lower(uint32_t code_point);
bool jinja_is_title(uint32_t code_point);
bool jinja_is_word(uint32_t code_point); // letter, digit or underscore
/** Python's upper(), lower(), casefold() of `text`; with `TITLE` its title(). */
NODISCARD enum status jinja_put_case(struct jinja_runtime *rt, struct str text, enum jinja_case to);
NODISCARD enum status jinja_put_capitalized(struct jinja_runtime *rt, struct str text);
/** Without the white space (or, if not NULL, the characters of `chars`) at the ends asked for. */
struct str jinja_strip(struct str text, const struct str *chars, bool left, bool right);

/** Takes the first line off `*rest` as Python's splitlines() does (jinja_string_methods.c). */
struct str jinja_next_line(struct str *rest, bool keep_end);

// --- operators (jinja_operators.c) ---

enum jinja_operator {
    JINJA_OP_ADD,
    JINJA_OP_SUB,
    JINJA_OP_MUL,
    JINJA_OP_DIV,
    JINJA_OP_FLOORDIV,
    JINJA_OP_MOD,
    JINJA_OP_POW,
};

NODISCARD enum status jinja_binary(struct jinja_runtime *rt, enum jinja_operator op,
                                   struct jinja_value a, struct jinja_value b,
                                   struct jinja_value *out);
NODISCARD enum status jinja_negate(struct jinja_runtime *rt, struct jinja_value value,
                                   struct jinja_value *out);
/** value[start:stop:step], each NONE if left out. */
NODISCARD enum status jinja_slice(struct jinja_runtime *rt, struct jinja_value value,
                                  struct jinja_value start, struct jinja_value stop,
                                  struct jinja_value step, struct jinja_value *out);

// --- formatting (jinja_format.c) ---

/** Python's `format % value`. */
NODISCARD enum status jinja_format_percent(struct jinja_runtime *rt, struct str format,
                                           struct jinja_value value, struct jinja_value *out);
/** Python's format.format(*args, **kwargs). */
NODISCARD enum status jinja_format_braces(struct jinja_runtime *rt, struct str format,
                                          const struct jinja_args *args, struct jinja_value *out);

// --- attributes and functions (jinja_attributes.c, jinja_functions.c) ---

/** value.name: attribute, then item. */
NODISCARD enum status jinja_get_attribute(struct jinja_runtime *rt, struct jinja_value value,
                                          struct str name, struct jinja_value *out);
/** value[key]: item, then attribute. */
NODISCARD enum status jinja_get_item(struct jinja_runtime *rt, struct jinja_value value,
                                     struct jinja_value key, struct jinja_value *out);

/** Calls `function` with its parameters bound from `args`. */
NODISCARD enum status jinja_call_function(struct jinja_runtime *rt,
                                          const struct jinja_function *function,
                                          struct jinja_value self, const struct jinja_args *args,
                                          struct jinja_value *out);
/** Calls any callable value (jinja_exec.c). */
NODISCARD enum status jinja_call(struct jinja_runtime *rt, struct jinja_value callee,
                                 const struct jinja_args *args, struct jinja_value *out);

/** NULL: there is none of that name. */
const struct jinja_function *jinja_find_filter(struct str name);
const struct jinja_function *jinja_find_test(struct str name);
const struct jinja_function *jinja_find_global(struct str name);
const struct jinja_function *jinja_find_string_method(struct str name);

/** Attributes of what statements make (jinja_exec.c); ABSENT: none of that name. */
NODISCARD enum status jinja_loop_attribute(struct jinja_runtime *rt, struct jinja_value loop,
                                           struct str name, struct jinja_value *out);
NODISCARD enum status jinja_macro_attribute(struct jinja_runtime *rt, struct jinja_value macro,
                                            struct str name, struct jinja_value *out);
NODISCARD enum status jinja_put_loop(struct jinja_runtime *rt, struct jinja_value loop);
struct str jinja_macro_name(struct jinja_value macro);

/** Finds `name` in a table that ends with a NULL name. */
const struct jinja_function *jinja_table_find(const struct jinja_function *table, struct str name);
